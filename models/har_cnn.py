"""A convolutional network over time, for the sensors of UCI HAR and of the smartwatch.

The paper says only "1D CNN"; this one has 250,246 parameters on UCI HAR's windows of 9 channels and 128 samples.
"""

from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from silomix.models.built_in import Options, make
from silomix.models.data.catalogue import Data
from silomix.models.torch_task import TorchTask


class HarCnn(nn.Module):
    """Scores what somebody is doing, from a window of sensor samples."""

    def __init__(self, channels: int = 9, length: int = 128, classes: int = 6) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, 32, 5)
        self.conv2 = nn.Conv1d(32, 64, 5)
        left = ((length - 4) // 2 - 4) // 2
        self.hidden = nn.Linear(64 * left, 128)
        self.out = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score the classes."""
        x = functional.max_pool1d(functional.relu(self.conv1(x)), 2)  # (n, 9, 128) -> (n, 32, 62)
        x = functional.max_pool1d(functional.relu(self.conv2(x)), 2)  # (n, 64, 29)
        scores: Tensor = self.out(functional.relu(self.hidden(x.flatten(1))))  # (n, 128) -> (n, classes)
        return scores


def prepare(x: npt.NDArray[Any]) -> Tensor:
    """Take the windows as they are."""
    return torch.from_numpy(x.astype(np.float32))


def task(
    silos: int = 10,
    silo: int = -1,
    alpha: float = 0.1,
    seed: int = 1,
    dataset: str = "har",
    **options: Unpack[Options],
) -> TorchTask:
    """Make the task of one silo. With partition = "natural", a silo is a person: 21 in har, 10 in watch."""
    if dataset not in ("har", "watch"):
        raise ValueError(f"dataset = {dataset!r}: this network is for har and watch")

    def net(data: Data) -> nn.Module:
        _, channels, length = data.x.take(np.arange(1)).shape
        return HarCnn(channels, length, data.classes)

    return make(dataset, net, prepare, {}, options, silos=silos, silo=silo, alpha=alpha, seed=seed)
