"""A task whose silos end their training at the same moment: what comes after is the network's time alone."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests.nodes.toy import Toy

from silomix.runtime.task import Trained

WAIT_S = 120.0


class Together(Toy):
    """Each silo leaves a file when it is ready, and goes on when all have."""

    def __init__(self, silo: int, parameters: int, silos: int, directory: str) -> None:
        super().__init__(silo, parameters)
        self.silos, self.directory = silos, Path(directory)

    def train(self, tensors: Mapping[str, np.ndarray[Any, Any]], round: int) -> Trained:  # noqa: A002
        trained = super().train(tensors, round)
        (self.directory / f"{round}-{self.silo}").touch()
        end = time.monotonic() + WAIT_S
        while len(list(self.directory.glob(f"{round}-*"))) < self.silos and time.monotonic() < end:
            time.sleep(0.005)
        return trained


def task(silo: int = -1, parameters: int = 1000, silos: int = 3, directory: str = "") -> Together:
    return Together(silo, parameters, silos, directory)
