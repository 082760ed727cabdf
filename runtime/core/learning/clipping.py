"""What of an update did not fit its bound: for the silo's own eyes, since it tells of the silo's records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

import numpy as np

from silomix.runtime.core.numbers.codec import Clips
from silomix.runtime.core.numbers.schema import Array, Schema, as_float


@dataclass(frozen=True)
class Clipped:
    """One tensor with values beyond its bound: training went further than what was sent of it."""

    tensor: str
    clipped: int
    share: float
    """Of its values."""
    bound: float
    largest: float
    suggested_bound: float
    """A round number that would have held them all."""
    automatic: bool = False
    """Whether the bound follows from the model, so that the next one may be another."""

    def __str__(self) -> str:
        what = f"{self.clipped} values of {self.tensor} ({self.share:.0%}) are beyond the bound {self.bound:g}"
        would = f"with policy.bound = {self.suggested_bound:g} they would fit"
        if self.automatic:
            would = f"the next round's bound is larger if most silos moved that far; {would} now"
        return f"{what}, up to {self.largest:.3g}: {would}"


def beyond(
    schema: Schema, bounds: Sequence[float], update: Mapping[str, Array], clips: Clips, *, automatic: bool = False
) -> list[Clipped]:
    """List the tensors that were clipped, the worst first."""
    found = []
    for spec, bound in zip(schema.tensors, bounds, strict=True):
        if count := clips.by_tensor.get(spec.name, 0):
            largest = float(np.abs(as_float(update[spec.name], spec.dtype)).max())
            found.append(Clipped(spec.name, count, count / spec.size, bound, largest, round_up(largest), automatic))
    return sorted(found, key=lambda one: -one.share)


def round_up(value: float) -> float:
    """Return the least of 1, 2, 5, 10, 20, 50 and so on, in either direction, that is not below a value."""
    unit = 10.0 ** floor(log10(value))
    return next(float(f"{step * unit:.3g}") for step in (1, 2, 5, 10) if step * unit >= value * (1 - 1e-9))
