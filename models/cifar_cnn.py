"""The paper's CNN for CIFAR-10: two convolutions of 5 by 5, three dense layers, 940,362 parameters."""

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from silomix.models.built_in import Options, crop, make, pixels
from silomix.models.torch_task import TorchTask

PREPARE = pixels(0.5, 0.5)
"""Pixels from -1 to 1."""


class CifarCnn(nn.Module):
    """Scores the classes of a colour image of 32 by 32 pixels."""

    def __init__(self, classes: int = 10, dropout: float = 0.0) -> None:
        """Dropout is before the last two layers; the paper trains without, and compares with it as a defence."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc1 = nn.Linear(64 * 5 * 5, 512)
        self.fc2 = nn.Linear(512, 128)
        self.fc3 = nn.Linear(128, classes)
        self.drop = nn.Dropout(dropout)
        # On a CPU, training takes up to a quarter less time.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """Score the classes."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)  # (n, 3, 32, 32) -> (n, 32, 14, 14)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)  # (n, 64, 5, 5)
        x = self.drop(functional.relu(self.fc1(x.flatten(1))))  # (n, 512)
        scores: Tensor = self.fc3(self.drop(functional.relu(self.fc2(x))))  # (n, 128) -> (n, classes)
        return scores


def task(
    silos: int = 10,
    silo: int = -1,
    alpha: float = 0.1,
    seed: int = 1,
    dataset: str = "cifar10",
    dropout: float = 0.0,
    crop_to: int = 0,
    **options: Unpack[Options],
) -> TorchTask:
    """Make the task of one silo. SGD is the paper's: lr 0.01, momentum 0.9, batch 64.

    dropout and crop_to (the side of a random square that is shown) are the defences that the paper compares with.
    """
    if dataset not in ("cifar10", "cifar100"):
        raise ValueError(f"dataset = {dataset!r}: this network is for cifar10 and cifar100")
    return make(
        dataset,
        lambda data: CifarCnn(data.classes, dropout),
        PREPARE,
        {},
        options,
        silos=silos,
        silo=silo,
        alpha=alpha,
        seed=seed,
        augment=crop(crop_to) if crop_to else None,
    )
