"""A model's tensors <-> chunks of packed planes: what travels, cut to size.

The tensors of a schema are laid end to end into one vector, in the schema's order. Behind them stands the silo's
weight, where the plan has weights. The vector is cut into chunks of equal length, the last one shorter, and each chunk
is one packed plane per modulus. Chunks one behind the other are a body: a silo's, or the sum of many, which is held as
it travels. `Layout` is all that a hop needs; `Codec` adds what the values mean.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.packing import Bytes, Residues, check, pack_into, slice_bytes, unpack
from silomix.runtime.core.numbers.plan import CHUNK_PARAMETERS, Plan
from silomix.runtime.core.numbers.slices import add_plane

Array = npt.NDArray[Any]


class Dtype(StrEnum):
    """The tensor types that travel, named as safetensors does. BF16 is held as its 16 bits in a uint16 array."""

    F64 = "F64"
    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"


NUMPY_TYPES = {Dtype.F64: np.float64, Dtype.F32: np.float32, Dtype.F16: np.float16, Dtype.BF16: np.uint16}
"""How each type is held in memory."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the model: a parameter, or a buffer such as a batch norm's running mean."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype = Dtype.F32
    buffer: bool = False

    @property
    def size(self) -> int:
        """How many values it has."""
        return prod(self.shape)


@dataclass(frozen=True)
class Schema:
    """The tensors in the order in which they travel."""

    tensors: tuple[TensorSpec, ...]

    @property
    def parameters(self) -> int:
        """How many values the model has, buffers included."""
        return sum(t.size for t in self.tensors)

    @cached_property
    def digest(self) -> bytes:
        """What two nodes compare to know that they mean the same vector."""
        parts: list[str | int] = [len(self.tensors)]
        for t in self.tensors:
            parts += [t.name, str(t.dtype), "buffer" if t.buffer else "parameter", len(t.shape), *t.shape]
        return digest("schema", *parts, self.parameters)


@dataclass(frozen=True)
class Layout:
    """Every length of a body, derived once from the plan and the number of coordinates."""

    plan: Plan
    coordinates: int
    chunk_parameters: int = CHUNK_PARAMETERS

    @property
    def chunks(self) -> int:
        """How many chunks a body has."""
        return -(-self.coordinates // self.chunk_parameters)

    def start(self, index: int) -> int:
        """First coordinate of a chunk."""
        if not 0 <= index < self.chunks:
            raise PeerFault(
                Reason.WRONG_LENGTH,
                f"there is no chunk {index}: the body has {self.chunks}",
                found=index,
                expected=self.chunks,
            )
        return index * self.chunk_parameters

    def length(self, index: int) -> int:
        """How many coordinates a chunk has."""
        return min(self.chunk_parameters, self.coordinates - self.start(index))

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of the planes of a full chunk."""
        return sum(self.plan.plane_bytes(self.chunk_parameters))

    @property
    def body_bytes(self) -> int:
        """Bytes of all planes of a body, without framing."""
        last = self.coordinates - (self.chunks - 1) * self.chunk_parameters
        return (self.chunks - 1) * self.chunk_bytes + sum(self.plan.plane_bytes(last)) if self.chunks else 0

    def body(self) -> Bytes:
        """Make an empty body: all residues are zero."""
        return np.zeros(self.body_bytes, np.uint8)

    def part(self, body: Bytes, index: int) -> Bytes:
        """Return a chunk of a body, as a view: its planes one behind the other."""
        self.start(index)
        return body[index * self.chunk_bytes : (index + 1) * self.chunk_bytes]

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
        """Unpack a whole body."""
        out = residue.zeros(self.plan, self.coordinates)
        for i in range(self.chunks):
            start = self.start(i)
            planes = self.planes(self.part(body, i).data, i)
            out[:, start : start + self.length(i)] = self.unpack(i, planes)
        return out

    def pack(self, residues: npt.NDArray[np.integer[Any]]) -> Bytes:
        """Pack a whole body."""
        if residues.shape != (len(self.plan.moduli), self.coordinates):
            shape = (len(self.plan.moduli), self.coordinates)
            raise ValueError(f"a body holds residues of shape {shape}, not {residues.shape}")
        rows: Residues = residues.astype(residue.plan_dtype(self.plan), copy=False)
        out = self.body()
        for i in range(self.chunks):
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


@dataclass(frozen=True)
class Aggregate:
    """A decoded round: the mean of the cohort's tensors, and the sum of its weights (its size, where all weigh 1)."""

    tensors: dict[str, Array]
    weight: int


@dataclass
class Clips:
    """How many values of each tensor were beyond their bound. A silo keeps this to itself: it is attack material."""

    by_tensor: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many values were clipped in all."""
        return sum(self.by_tensor.values())


@dataclass(frozen=True)
class Codec:
    """What a silo encodes with and the aggregator decodes with."""

    schema: Schema
    bounds: tuple[float, ...]
    plan: Plan
    chunk_parameters: int = CHUNK_PARAMETERS

    def __post_init__(self) -> None:
        if len(self.bounds) != len(self.schema.tensors):
            raise LocalFault(
                Reason.BAD_BOUND,
                f"there are {len(self.bounds)} bounds for {len(self.schema.tensors)} tensors: give one each",
                found=len(self.bounds),
                expected=len(self.schema.tensors),
            )

    @property
    def weighted(self) -> bool:
        """Whether a silo's weight travels as one more coordinate."""
        return self.plan.weight_levels > 1

    @cached_property
    def layout(self) -> Layout:
        """Return the lengths of a body."""
        return Layout(self.plan, self.schema.parameters + self.weighted, self.chunk_parameters)

    def encode(
        self,
        tensors: Mapping[str, Array],
        *,
        weight: int = 1,
        clips: Clips | None = None,
        noise: Callable[[int], residue.Integers] | None = None,
        body: Bytes | None = None,
    ) -> Iterator[list[memoryview]]:
        """Yield the packed planes of each chunk: places of the body, if one is given, or views overwritten by the next.

        A NaN is found only when its tensor is reached, so a silo freezes all chunks before it sends the first.
        `noise` draws so many integers, to be added to the quantised values: the plan must have room for them.
        """
        self._check_names(tensors)
        plan, layout = self.plan, self.layout
        chunk = layout.buffer()
        room = np.empty(layout.chunk_bytes, np.uint8)
        index = filled = 0

        def packed() -> list[memoryview]:
            nonlocal index
            part = room[: sum(plan.plane_bytes(filled))] if body is None else layout.part(body, index)
            layout.put(part, chunk[:, :filled])
            index += 1
            return layout.planes(part.data, index - 1)

        for spec, bound in zip(self.schema.tensors, self.bounds, strict=True):
            values = self._flat(spec, tensors[spec.name])
            clipped = done = 0
            while done < spec.size:
                step = min(layout.chunk_parameters - filled, spec.size - done)
                part = as_float(values[done : done + step], spec.dtype)
                try:
                    clipped += residue.encode(part, bound, plan, weight=weight, name=spec.name, out=chunk, at=filled)[1]
                except LocalFault as fault:
                    raise _shifted(fault, done) from None
                if noise is not None:
                    residue.add_integers(noise(step), plan, chunk, filled)
                done += step
                filled += step
                if filled == layout.chunk_parameters:
                    yield packed()
                    filled = 0
            if clips is not None:
                clips.by_tensor[spec.name] = clipped
        if self.weighted:
            residue.put_integer(weight, plan, chunk, filled)
            filled += 1
        if filled:
            yield packed()

    def decode(self, body: Bytes, cohort: int, slack: int = 0) -> Aggregate:
        """Decode the sum of a cohort's bodies to the mean, or refuse it if it cannot be one of this cohort.

        `slack` is how far noise may carry a sum beyond the largest that the cohort has without it.
        """
        weight = self._weight(body, cohort)
        layout, limit = self.layout, weight * self.plan.v + slack
        means: dict[str, residue.Floats] = {
            t.name: np.empty(t.size, np.float64 if t.dtype is Dtype.F64 else np.float32) for t in self.schema.tensors
        }
        buffer, index = layout.buffer(), -1
        at = 0
        for spec, bound in zip(self.schema.tensors, self.bounds, strict=True):
            done = 0
            while done < spec.size:
                if at // layout.chunk_parameters > index:
                    index += 1
                    layout.unpack(index, layout.planes(layout.part(body, index).data, index), buffer)
                place = at - layout.start(index)
                step = min(spec.size - done, layout.length(index) - place)
                out = means[spec.name][done : done + step]
                residue.decode_mean(buffer, self.plan, bound, weight, limit=limit, out=out, at=place, name=spec.name)
                done, at = done + step, at + step
        tensors = {t.name: as_dtype(means[t.name], t.dtype).reshape(t.shape) for t in self.schema.tensors}
        return Aggregate(tensors, weight)

    def _weight(self, body: Bytes, cohort: int) -> int:
        layout = self.layout
        if len(body) != layout.body_bytes:
            raise PeerFault(Reason.WRONG_LENGTH, f"a sum has {layout.body_bytes} bytes, not {len(body)}")
        if not 1 <= cohort <= self.plan.n_max:
            raise PeerFault(
                Reason.OUT_OF_RANGE, f"a cohort of {cohort}: the plan holds 1 to {self.plan.n_max}", found=cohort
            )
        if not self.weighted:
            return cohort
        last = layout.chunks - 1
        residues = layout.unpack(last, layout.planes(layout.part(body, last).data, last))
        weight = int(residue.decode_sum(residues[:, -1:], self.plan)[0])
        if not cohort <= weight <= cohort * self.plan.weight_levels:
            raise PeerFault(
                Reason.OUT_OF_RANGE,
                f"the weights of {cohort} silos sum to {weight}, which weights of 1 to "
                f"{self.plan.weight_levels} cannot: no model is published",
                found=weight,
            )
        return weight

    def _check_names(self, tensors: Mapping[str, Array]) -> None:
        expected = {t.name for t in self.schema.tensors}
        for name in sorted(expected ^ set(tensors)):
            what = "is missing" if name in expected else "is not in the schema"
            raise LocalFault(Reason.SHAPE_MISMATCH, f"tensor {name} {what}: the task and the model differ", tensor=name)

    @staticmethod
    def _flat(spec: TensorSpec, array: Array) -> Array:
        if array.dtype != NUMPY_TYPES[spec.dtype]:
            raise LocalFault(
                Reason.UNSUPPORTED_DTYPE,
                f"{spec.name} is {array.dtype}, the schema says {spec.dtype} ({np.dtype(NUMPY_TYPES[spec.dtype])})",
                tensor=spec.name,
                found=str(array.dtype),
                expected=str(spec.dtype),
            )
        if array.shape != spec.shape:
            raise LocalFault(
                Reason.SHAPE_MISMATCH,
                f"{spec.name} has shape {array.shape}, the schema says {spec.shape}",
                tensor=spec.name,
                found=str(array.shape),
                expected=str(spec.shape),
            )
        return np.ascontiguousarray(array).reshape(-1)


def _shifted(fault: LocalFault, by: int) -> LocalFault:
    """Count a position from the start of the tensor instead of the start of the chunk."""
    index = fault.details.get("index")
    if not isinstance(index, int):
        return fault
    message = fault.message.replace(f"at position {index}", f"at position {index + by}")
    return LocalFault(fault.reason, message, **{**fault.details, "index": index + by})


def as_float(values: Array, dtype: Dtype) -> residue.Floats:
    """Return values to compute with: short types as float32, others as they are."""
    if dtype is Dtype.BF16:
        return np.asarray(np.left_shift(values.astype(np.uint32), 16, dtype=np.uint32)).view(np.float32)
    return values.astype(np.float32) if dtype is Dtype.F16 else values


def as_dtype(mean: residue.Floats, dtype: Dtype) -> Array:
    """Round to the tensor's own type, to nearest, ties to even."""
    mean = np.asarray(mean)  # numpy makes scalars of arrays without a shape whenever it computes with them
    if dtype is Dtype.BF16:
        bits = mean.view(np.uint32)
        rounded: Array = np.asarray((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return rounded
    return mean.astype(NUMPY_TYPES[dtype], copy=False)


def round_to(values: npt.NDArray[np.float64], dtype: Dtype) -> Array:
    """Round what was computed in float64 to a tensor's own type."""
    return as_dtype(values if dtype is Dtype.F64 else values.astype(np.float32), dtype)


def add(left: Array, right: Array, dtype: Dtype) -> Array:
    """Add two tensors of a schema's type, rounded to that type: BF16 is held as bits, which do not add up."""
    return as_dtype(as_float(left, dtype) + as_float(right, dtype), dtype)


def subtract(left: Array, right: Array, dtype: Dtype) -> Array:
    """Subtract two tensors of a schema's type, rounded to that type."""
    return as_dtype(as_float(left, dtype) - as_float(right, dtype), dtype)
