"""The paper's CNN for MNIST and Fashion-MNIST: two convolutions of 5 by 5, three dense layers, 643,850 parameters."""

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from silomix.models.built_in import Options, crop, make, pixels
from silomix.models.torch_task import TorchTask

PREPARE = {"mnist": pixels(0.1307, 0.3081), "fashion-mnist": pixels(0.2860, 0.3530)}
"""The data sets, with the mean and the deviation of their pixels."""


class MnistCnn(nn.Module):
    """Scores the ten classes of a grey image of 28 by 28 pixels."""

    def __init__(self, dropout: float = 0.0) -> None:
        """Dropout is before the last two layers; the paper trains without, and compares with it as a defence."""
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc1 = nn.Linear(64 * 4 * 4, 512)
        self.fc2 = nn.Linear(512, 128)
        self.fc3 = nn.Linear(128, 10)
        self.drop = nn.Dropout(dropout)
        # On a CPU, training takes up to a quarter less time.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """Score the classes."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)  # (n, 1, 28, 28) -> (n, 32, 12, 12)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)  # (n, 64, 4, 4)
        x = self.drop(functional.relu(self.fc1(x.flatten(1))))  # (n, 512)
        scores: Tensor = self.fc3(self.drop(functional.relu(self.fc2(x))))  # (n, 128) -> (n, 10)
        return scores


def task(
    silos: int = 10,
    silo: int = -1,
    alpha: float = 0.1,
    seed: int = 1,
    dataset: str = "mnist",
    dropout: float = 0.0,
    crop_to: int = 0,
    **options: Unpack[Options],
) -> TorchTask:
    """Make the task of one silo. SGD is the paper's: lr 0.01, momentum 0.9, batch 64.

    dropout and crop_to (the side of a random square that is shown) are the defences that the paper compares with.
    """
    if dataset not in PREPARE:
        raise ValueError(f"dataset = {dataset!r}: this network is for {' and '.join(PREPARE)}")
    return make(
        dataset,
        lambda data: MnistCnn(dropout),
        PREPARE[dataset],
        {},
        options,
        silos=silos,
        silo=silo,
        alpha=alpha,
        seed=seed,
        augment=crop(crop_to) if crop_to else None,
    )
