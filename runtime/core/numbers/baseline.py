"""The paper's literal modes, which protect less or nothing: what attacks compare the sum with.

Here whole bodies leave the chain, one for each silo of the cohort, and every hop permutes them among the silos: not at
all (`none`), as wholes (`model`), each tensor on its own (`layer`), each value on its own (`parameter`), or, where a
value travels as the unary bits of its residues, the bits of all silos per value and modulus (`unary`, the paper's
Alg. 1). A chunk of a body is one plane of little-endian float32, or for `unary` one plane of m_j bits per value for
each modulus, one value's behind the other's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from silomix.runtime.core.digest import frame
from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.codec import Clips, Codec
from silomix.runtime.core.numbers.kernels import compiled
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.masks import Secret, derive
from silomix.runtime.core.numbers.packing import Residues
from silomix.runtime.core.numbers.plan import Granularity, Plan
from silomix.runtime.core.numbers.schema import Array, Schema, as_dtype, as_float

FLOAT_BITS = 32
_LOT = 1 << 22  # random words at a time: 16 MiB

Row = Sequence[bytes | memoryview]
"""One chunk of one body: its planes."""
Bits = npt.NDArray[np.uint8]
Tally = npt.NDArray[Any]
"""What a baseline adds up: values in float64, or ones per modulus, which are not reduced."""


def float_body(granularity: Granularity) -> bool:
    """Whether bodies hold float32 values; if not, and not a sum, they hold unary bits."""
    return granularity not in (Granularity.SUM, Granularity.UNARY)


def wire_bits(granularity: Granularity, plan: Plan) -> int:
    """Bits that a silo sends per parameter, framing aside: what metrics are compared with."""
    if granularity is Granularity.SUM:
        return plan.packed_bits
    return FLOAT_BITS if float_body(granularity) else sum(plan.moduli)


@dataclass(frozen=True)
class Baseline:
    """Bodies of one literal mode: their lengths, their shuffling, their mean."""

    granularity: Granularity
    schema: Schema
    plan: Plan
    chunk_parameters: int

    @cached_property
    def layout(self) -> Layout:
        """How a body is cut: the same chunks as a sum's, with other planes."""
        weighted = self.plan.weight_levels > 1
        return Layout(self.plan, self.schema.parameters + weighted, self.chunk_parameters)

    @property
    def cells(self) -> tuple[int, ...]:
        """Bits of one value in each plane."""
        return (FLOAT_BITS,) if float_body(self.granularity) else self.plan.moduli

    def sizes(self, index: int) -> tuple[int, ...]:
        """Bytes of each plane of a chunk."""
        return tuple((self.layout.length(index) * cell + 7) // 8 for cell in self.cells)

    @property
    def body_bytes(self) -> int:
        """Bytes of a body, without framing."""
        return sum(sum(self.sizes(i)) for i in range(self.layout.chunks))

    def encode(
        self,
        tensors: Mapping[str, Array],
        bounds: tuple[float, ...],
        *,
        weight: int = 1,
        clips: Clips | None = None,
    ) -> bytearray:
        """Make a silo's body: all chunks end to end. A NaN is the silo's own fault, and nothing is sent."""
        if float_body(self.granularity):
            return bytearray(self._floats(tensors).tobytes())
        codec = Codec(self.schema, bounds, self.plan, self.chunk_parameters)
        body = bytearray()
        for i, planes in enumerate(codec.encode(tensors, weight=weight, clips=clips)):
            for counts, m in zip(self.layout.unpack(i, planes), self.plan.moduli, strict=True):
                ones = np.arange(m, dtype=counts.dtype) < counts[:, None]  # (values, m): the residue's ones, then zeros
                body += np.packbits(ones.reshape(-1), bitorder="little").tobytes()
        return body

    def _floats(self, tensors: Mapping[str, Array]) -> npt.NDArray[np.float32]:
        flat = []
        for spec in self.schema.tensors:
            values = as_float(np.ascontiguousarray(tensors[spec.name]).reshape(-1), spec.dtype)
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                raise LocalFault(
                    Reason.NOT_FINITE,
                    f"{spec.name} is not finite at position {bad[0]}: nothing is sent",
                    tensor=spec.name,
                    index=int(bad[0]),
                )
            flat.append(values.astype("<f4"))
        return np.concatenate(flat)

    def check(self, index: int, planes: Row) -> None:
        """Refuse a chunk that is not one: a wrong length, or padding that is not zero."""
        sizes = self.sizes(index)
        found = tuple(len(plane) for plane in planes)
        if found != sizes:
            raise PeerFault(
                Reason.WRONG_LENGTH, f"chunk {index} has planes of {list(found)} bytes instead of {list(sizes)}"
            )
        for plane, cell in zip(planes, self.cells, strict=True):
            spare = -self.layout.length(index) * cell % 8
            if spare and plane[-1] >> (8 - spare):
                raise PeerFault(Reason.TRAILING_BITS, f"chunk {index} has bits behind its last value")

    def check_body(self, index: int, planes: Row, silo: str) -> None:
        """Check what a silo sent before anything is shuffled: afterwards nobody could be named."""
        self.check(index, planes)
        if float_body(self.granularity):
            if not np.isfinite(np.frombuffer(planes[0], "<f4")).all():
                raise PeerFault(Reason.OUT_OF_RANGE, f"{silo} sent a value that is not finite", peer=silo)
            return
        counts = np.stack([bits.sum(1, dtype=np.int64) for bits in self._bits(index, planes)])  # (moduli, values)
        if (counts >= np.array(self.plan.moduli)[:, None]).any():
            raise PeerFault(Reason.RESIDUE_RANGE, f"{silo} sent more ones than a residue can have", peer=silo)
        values: Residues = counts.astype(self.layout.buffer(0).dtype)
        if self.plan.weight_levels > 1 and index == self.layout.chunks - 1:
            values = values[:, :-1]
        beyond = np.abs(residue.decode_sum(values, self.plan)) > self.plan.v * self.plan.weight_levels
        if beyond.any():
            raise PeerFault(
                Reason.OUT_OF_RANGE, f"{silo} sent {np.count_nonzero(beyond)} value(s) beyond its bound", peer=silo
            )

    def _bits(self, index: int, planes: Row) -> list[Bits]:
        """Unpack a chunk to one array (values, m_j) of zeros and ones for each modulus."""
        n = self.layout.length(index)
        return [
            np.unpackbits(np.frombuffer(plane, np.uint8), count=n * m, bitorder="little").reshape(n, m)
            for plane, m in zip(planes, self.plan.moduli, strict=True)
        ]

    def shuffle(self, index: int, rows: Sequence[Row], seed: Secret) -> list[list[bytes]]:
        """Permute one chunk of all bodies, the same way whenever it is asked with the same seed."""
        if self.granularity is Granularity.NONE:
            return [[bytes(plane) for plane in row] for row in rows]
        if self.granularity is Granularity.UNARY:
            return self._shuffle_bits(index, rows, seed)
        table = np.stack([np.frombuffer(row[0], "<u4") for row in rows])  # (silos, values)
        if self.granularity is Granularity.PARAMETER:
            table = _shuffled(np.ascontiguousarray(table.T), seed, index).T
        else:
            for tensor, part in self._parts(index):
                table[:, part] = table[_order(len(rows), seed, tensor), part]
        return [[np.ascontiguousarray(row).tobytes()] for row in table]

    def _parts(self, index: int) -> list[tuple[int, slice]]:
        """What of a chunk is permuted together: a number for its permutation, and where it lies."""
        start, n = self.layout.start(index), self.layout.length(index)
        if self.granularity is Granularity.MODEL:
            return [(0, slice(0, n))]
        parts, at = [], 0
        for number, spec in enumerate(self.schema.tensors):
            low, high = max(at, start), min(at + spec.size, start + n)
            if low < high:
                parts.append((number, slice(low - start, high - start)))
            at += spec.size
        return parts

    def _shuffle_bits(self, index: int, rows: Sequence[Row], seed: Secret) -> list[list[bytes]]:
        out: list[list[bytes]] = [[] for _ in rows]
        unpacked = [self._bits(index, row) for row in rows]
        for j, m in enumerate(self.plan.moduli):
            cells = np.concatenate([bits[j] for bits in unpacked], axis=1)  # (values, silos * m)
            cells = _shuffled(cells, seed, index, j)
            for r, row in enumerate(out):
                part = np.ascontiguousarray(cells[:, r * m : (r + 1) * m])
                row.append(np.packbits(part.reshape(-1), bitorder="little").tobytes())
        return out

    def tally(self) -> Tally:
        """Make room for what the aggregator adds up."""
        if float_body(self.granularity):
            return np.zeros(self.layout.coordinates, np.float64)
        return np.zeros((len(self.plan.moduli), self.layout.coordinates), np.int64)

    def add(self, tally: Tally, index: int, planes: Row) -> None:
        """Add one chunk of one row."""
        start = self.layout.start(index)
        where = slice(start, start + self.layout.length(index))
        if float_body(self.granularity):
            tally[where] += np.frombuffer(planes[0], "<f4")
            return
        for total, bits in zip(tally, self._bits(index, planes), strict=True):
            total[where] += bits.sum(1, dtype=np.int64)

    def mean(self, tally: Tally, cohort: int, bounds: tuple[float, ...]) -> dict[str, Array]:
        """Make the cohort's mean of what was added up."""
        if not float_body(self.granularity):
            reduced = tally % np.array(self.plan.moduli)[:, None]
            codec = Codec(self.schema, bounds, self.plan, self.chunk_parameters)
            return codec.decode(codec.layout.pack(reduced), cohort).tensors
        mean, out, at = tally / cohort, {}, 0
        if not np.isfinite(mean).all():
            raise PeerFault(Reason.OUT_OF_RANGE, "the mean is not finite: no model is published")
        for spec in self.schema.tensors:
            values = mean[at : at + spec.size]
            wide = values if spec.dtype == "F64" else values.astype(np.float32)
            out[spec.name] = as_dtype(wide, spec.dtype).reshape(spec.shape)
            at += spec.size
        return out


def _order(n: int, seed: Secret, number: int) -> npt.NDArray[np.int64]:
    """A permutation of the silos."""
    order: npt.NDArray[np.int64] = _shuffled(np.arange(n, dtype=np.int64)[None, :].copy(), seed, number)[0]
    return order


def _shuffled(cells: npt.NDArray[Any], seed: Secret, *label: int) -> npt.NDArray[Any]:
    """Permute each row of an array on its own, with AES-CTR keyed by the seed and the label; return the array."""
    key = derive(seed.value, frame("shuffle", *label))[:16]
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    rows, k = cells.shape
    if k < 2:
        return cells
    step = max(1, _LOT // (k - 1))
    for start in range(0, rows, step):
        part = cells[start : start + step]
        words = np.frombuffer(stream.update(bytes(4 * len(part) * (k - 1))), np.uint32)
        _fisher_yates(part, words)
    return cells


@compiled
def _fisher_yates(cells: npt.NDArray[Any], words: npt.NDArray[np.uint32]) -> None:
    """Permute each row. A pick among k places is word * k / 2^32, which is off uniform by less than k / 2^32."""
    at = 0
    for r in range(cells.shape[0]):
        for i in range(cells.shape[1] - 1, 0, -1):
            j = (np.uint64(words[at]) * np.uint64(i + 1)) >> np.uint64(32)
            at += 1
            kept = cells[r, i]
            cells[r, i] = cells[r, j]
            cells[r, j] = kept
