"""A model's tensors <-> chunks of packed planes: what travels, cut to size.

The tensors of a schema are laid end to end into one vector, in the schema's order. Behind them stands the silo's
weight, where the plan has weights. The vector is cut into chunks of equal length, the last one shorter, and each chunk
is one packed plane per modulus. Chunks one behind the other are a body: a silo's, or the sum of many, which is held as
it travels. `Layout` is all that a hop needs; `Codec` adds what the values mean.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import CHUNK_PARAMETERS, Plan
from silomix.runtime.core.numbers.schema import NUMPY_TYPES, Array, Dtype, Schema, TensorSpec, as_dtype, as_float


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
        last = layout.value_chunks - 1
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
