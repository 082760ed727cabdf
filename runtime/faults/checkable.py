"""A task whose sums tell who is in them: silo i adds 4^i units to every value, so a digit in base 4 is its count."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.task import Trained

UNIT = 1 / 9999
"""One integer of the plan with four digits and bound 1."""
VALUES = 64


class Checkable:
    """Trains for a moment, and always the same."""

    def __init__(self, silo: int, train_s: float) -> None:
        """`silo` counts from 0; the aggregator has none."""
        self.silo, self.train_s = silo, train_s

    def schema(self) -> Schema:
        """A vector."""
        return Schema((TensorSpec("values", (VALUES,)),))

    def initial(self) -> dict[str, np.ndarray[Any, Any]]:
        """Zeros."""
        return {"values": np.zeros(VALUES, np.float32)}

    def train(self, tensors: Mapping[str, np.ndarray[Any, Any]], round: int) -> Trained:  # noqa: A002
        """Add this silo's digit."""
        time.sleep(self.train_s)
        values = tensors["values"].astype(np.float64) + 4**self.silo * UNIT
        return Trained({"values": values.astype(np.float32)}, 1, {})

    def evaluate(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, float]:
        """There is nothing to measure."""
        return {"accuracy": 0.0}


def task(silo: int = 0, train_s: float = 0.2) -> Checkable:
    """Make a silo's task."""
    return Checkable(silo, train_s)
