"""A task without torch: each silo's update is known, so that any double counting shows in the sum."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.task import Trained


class Toy:
    """Silo i adds (i + 1) * 2^-8 to every parameter, and a pattern that differs by silo and round."""

    def __init__(self, silo: int, parameters: int, *, broken: bool = False, slow_s: float = 0.0) -> None:
        self.silo, self.parameters, self.broken, self.slow_s = silo, parameters, broken, slow_s

    def schema(self) -> Schema:
        return Schema((TensorSpec("a", (self.parameters - 7,)), TensorSpec("b", (7,), buffer=True)))

    def initial(self) -> dict[str, np.ndarray[Any, Any]]:
        return {"a": np.zeros(self.parameters - 7, np.float32), "b": np.zeros(7, np.float32)}

    def update(self, round_: int) -> dict[str, np.ndarray[Any, Any]]:
        rng = np.random.default_rng([self.silo, round_])
        a = rng.uniform(-0.01, 0.01, self.parameters - 7) + (self.silo + 1) / 256
        return {"a": a.astype(np.float32), "b": np.full(7, 1 / (self.silo + 2), np.float32)}

    def train(self, tensors: Mapping[str, np.ndarray[Any, Any]], round: int) -> Trained:  # noqa: A002
        time.sleep(self.slow_s)
        update = self.update(round)
        if self.broken:
            update["b"][3] = np.nan
        trained = {name: tensors[name] + update[name] for name in tensors}
        return Trained(trained, 10 * (self.silo + 1), {"loss": 1.0})

    def evaluate(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, float]:
        return {"accuracy": 0.5, "loss": 1.0}


def task(silo: int = -1, parameters: int = 1000, broken: bool = False, slow_s: float = 0.0) -> Toy:
    return Toy(silo, parameters, broken=broken, slow_s=slow_s)
