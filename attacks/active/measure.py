"""What an adversary's estimate of a silo's update is worth.

The plain cosine flatters: every update resembles the mean, and the mean is everybody's. So beside it stands the cosine
of what sets the silo apart from the mean, which is nought for whoever holds the mean alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.numbers.schema import Schema

Vector = npt.NDArray[np.float64]

READ = 0.6
"""An estimate that is closer than this to what sets a silo apart counts as having read its update."""


def flat(schema: Schema, tensors: Mapping[str, npt.NDArray[Any]]) -> Vector:
    """Lay a model's tensors end to end."""
    return np.concatenate([np.ravel(tensors[t.name]).astype(np.float64) for t in schema.tensors])


def cosine(left: Vector, right: Vector) -> float:
    """Return the cosine of two vectors, nought if one of them is."""
    size = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / size if size else 0.0


@dataclass(frozen=True)
class Closeness:
    """How near an estimate comes to the truth."""

    cosine: float
    error: float
    """The distance to the truth, as a share of the truth's length."""
    apart: float
    """The cosine of what sets the silo apart from the mean."""

    @classmethod
    def of(cls, estimate: Vector, truth: Vector, mean: Vector) -> "Closeness":
        """Compare an estimate with the true update; `mean` is that of all silos."""
        error = float(np.linalg.norm(estimate - truth) / np.linalg.norm(truth))
        return cls(cosine(estimate, truth), error, cosine(estimate - mean, truth - mean))

    @property
    def read(self) -> bool:
        """Whether the update counts as read."""
        return self.apart >= READ

    @property
    def figures(self) -> dict[str, float]:
        """By name, for a report."""
        return {"cosine": round(self.cosine, 4), "error": round(self.error, 4), "apart": round(self.apart, 4)}
