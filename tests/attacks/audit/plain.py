"""A task without torch, which trains, and cannot be attacked."""

from typing import Any

import numpy as np

from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.task import Tensors, Trained


class Plain:
    def schema(self) -> Schema:
        return Schema((TensorSpec("w", (2,)),))

    def initial(self) -> dict[str, Any]:
        return {"w": np.zeros(2, np.float32)}

    def train(self, tensors: Tensors, round: int) -> Trained:  # noqa: A002
        return Trained({"w": np.asarray(tensors["w"])}, 1, {})

    def evaluate(self, tensors: Tensors) -> dict[str, float]:
        return {"accuracy": 0.0, "loss": 0.0}


def task(silos: int = 3, silo: int = -1, seed: int = 1, shadow: float = 0.0) -> Plain:
    return Plain()
