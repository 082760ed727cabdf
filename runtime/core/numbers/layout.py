"""Every length of a body, derived once: chunks, planes and bytes. It is all that a hop needs to know of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.fold import rhos
from silomix.runtime.core.numbers.packing import Bytes, Residues, check, pack_into, slice_bytes, unpack
from silomix.runtime.core.numbers.plan import CHUNK_PARAMETERS, Level, Plan
from silomix.runtime.core.numbers.slices import add_plane


@dataclass(frozen=True)
class Layout:
    """Every length of a body, derived once from the plan and the number of coordinates."""

    plan: Plan
    coordinates: int
    chunk_parameters: int = CHUNK_PARAMETERS

    @cached_property
    def blinders(self) -> int:
        """How many coordinates the chunk of blinders has, the last one; 0 if there is none, below level malicious.

        As many in every plane as the plane with the smallest modulus needs: so all chunks are handled alike.
        """
        return max(rhos(self.plan)) if self.plan.level is Level.MALICIOUS else 0

    @property
    def value_chunks(self) -> int:
        """How many chunks hold values, and the weight."""
        return -(-self.coordinates // self.chunk_parameters)

    @cached_property
    def chunks(self) -> int:
        """How many chunks a body has."""
        return self.value_chunks + bool(self.blinders)

    def start(self, index: int) -> int:
        """First coordinate of a chunk."""
        if not 0 <= index < self.chunks:
            raise PeerFault(
                Reason.WRONG_LENGTH,
                f"there is no chunk {index}: the body has {self.chunks}",
                found=index,
                expected=self.chunks,
            )
        return min(index * self.chunk_parameters, self.coordinates)

    def length(self, index: int) -> int:
        """How many coordinates a chunk has."""
        start = self.start(index)
        return self.blinders if start == self.coordinates else min(self.chunk_parameters, self.coordinates - start)

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of the planes of a full chunk."""
        return sum(self.plan.plane_bytes(self.chunk_parameters))

    @cached_property
    def value_bytes(self) -> int:
        """Bytes of the planes of all values, and of the weight."""
        full = self.value_chunks - 1
        last = self.coordinates - full * self.chunk_parameters
        return full * self.chunk_bytes + sum(self.plan.plane_bytes(last)) if self.value_chunks else 0

    @property
    def body_bytes(self) -> int:
        """Bytes of all planes of a body, without framing."""
        return self.value_bytes + (sum(self.plan.plane_bytes(self.blinders)) if self.blinders else 0)

    def offset(self, index: int) -> int:
        """Where a chunk begins in a body, in bytes."""
        return min(index * self.chunk_bytes, self.value_bytes)

    def body(self) -> Bytes:
        """Make an empty body: all residues are zero."""
        return np.zeros(self.body_bytes, np.uint8)

    def part(self, body: Bytes, index: int) -> Bytes:
        """Return a chunk of a body, as a view: its planes one behind the other."""
        self.start(index)
        end = self.offset(index + 1) if index < self.value_chunks else self.body_bytes
        return body[self.offset(index) : end]

    def planes(self, part: memoryview, index: int) -> list[memoryview]:
        """Cut a chunk into its planes."""
        out, at = [], 0
        for size in self.plan.plane_bytes(self.length(index)):
            out.append(part[at : at + size])
            at += size
        return out

    def check(self, index: int, planes: Sequence[bytes | memoryview]) -> list[Bytes]:
        """Return one chunk's planes as arrays, or refuse it whole."""
        n = self.length(index)
        self._count(index, planes)
        return [check(plane, m, n) for plane, m in zip(planes, self.plan.moduli, strict=True)]

    def _count(self, index: int, planes: Sequence[bytes | memoryview]) -> None:
        if len(planes) != len(self.plan.moduli):
            raise PeerFault(
                Reason.WRONG_LENGTH,
                f"chunk {index} has {len(planes)} planes, the plan has {len(self.plan.moduli)}",
                found=len(planes),
                expected=len(self.plan.moduli),
            )

    def unpack(self, index: int, planes: Sequence[bytes | memoryview], out: Residues | None = None) -> Residues:
        """Unpack one chunk to a row of residues per plane, or refuse it whole. `out` is a buffer for a full chunk."""
        n = self.length(index)
        self._count(index, planes)
        rows: Residues = self.buffer(n) if out is None else out[:, :n]
        for row, plane, m in zip(rows, planes, self.plan.moduli, strict=True):
            unpack(plane, m, n, row)
        return rows

    def residues(self, body: Bytes) -> Residues:
        """Unpack the values of a whole body, and the weight."""
        out = residue.zeros(self.plan, self.coordinates)
        for i in range(self.value_chunks):
            start = self.start(i)
            planes = self.planes(self.part(body, i).data, i)
            out[:, start : start + self.length(i)] = self.unpack(i, planes)
        return out

    def pack(self, residues: npt.NDArray[np.integer[Any]]) -> Bytes:
        """Pack a whole body; blinders are left at zero."""
        if residues.shape != (len(self.plan.moduli), self.coordinates):
            shape = (len(self.plan.moduli), self.coordinates)
            raise ValueError(f"a body holds residues of shape {shape}, not {residues.shape}")
        rows: Residues = residues.astype(residue.plan_dtype(self.plan), copy=False)
        out = self.body()
        for i in range(self.value_chunks):
            start = self.start(i)
            self.put(self.part(out, i), rows[:, start : start + self.length(i)])
        return out

    def put(self, part: Bytes, residues: Residues) -> None:
        """Pack one chunk of residues into its place."""
        at = 0
        for row, size, width in zip(residues, self.plan.plane_bytes(residues.shape[1]), self.plan.widths, strict=True):
            pack_into(row, width, part[at : at + size])
            at += size

    def buffer(self, n: int | None = None) -> Residues:
        """Make a buffer for the residues of a chunk, to be used again and again."""
        return residue.zeros(self.plan, self.chunk_parameters if n is None else n)

    def add(self, body: Bytes, index: int, planes: Sequence[bytes | memoryview]) -> None:
        """Add one packed chunk to a body. A chunk that is refused leaves the body as it was."""
        self.sum(self.part(body, index), self.check(index, planes), slice_bytes(self.length(index)))

    def add_body(self, body: Bytes, other: Bytes) -> None:
        """Add a whole body to another one."""
        for i in range(self.chunks):
            self.add(body, i, self.planes(self.part(other, i).data, i))

    def sum(self, part: Bytes, planes: Sequence[Bytes], size: int) -> None:
        """Add planes that were checked, with slices of `size` bytes, to a chunk."""
        sizes = [size * width for width in self.plan.widths]
        if [len(plane) for plane in planes] != sizes or len(part) != sum(sizes):  # the kernel would go past the end
            raise ValueError(f"planes of {[len(p) for p in planes]} bytes do not go into {len(part)}")
        at = 0
        for plane, m, width in zip(planes, self.plan.moduli, self.plan.widths, strict=True):
            add_plane(part, at, plane, 0, size, m, width)
            at += len(plane)
