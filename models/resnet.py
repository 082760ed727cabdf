"""ResNet-18 as the paper uses it for CIFAR-100: 11,227,812 weights, and 9,620 values in the buffers of batch norms.

Of the buffers, 9,600 are running means and variances, which travel; 20 are counters, which stay local. Names are
torchvision's, so that its weights fit.
"""

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from silomix.models.built_in import Options, make, pixels
from silomix.models.torch_task import TorchTask

PREPARE = pixels(0.5, 0.5)
"""Pixels from -1 to 1."""


class Block(nn.Module):
    """Two convolutions of 3 by 3 beside a short cut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample: nn.Sequential | None = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find to what came in."""
        beside = x if self.downsample is None else self.downsample(x)
        x = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(x)) + beside)


class ResNet18(nn.Module):
    """Scores the classes of a colour image of any size from 32 by 32 pixels on."""

    def __init__(self, classes: int = 100, enlarge_to: int = 0) -> None:
        """`enlarge_to` scales images up first: 224 is what the network was made for, and what the paper names."""
        super().__init__()
        self.enlarge_to = enlarge_to
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        # On a CPU, training takes up to a quarter less time.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """Score the classes."""
        if self.enlarge_to:
            x = functional.interpolate(x, self.enlarge_to, mode="bilinear", antialias=True)
        x = functional.relu(self.bn1(self.conv1(x)))  # (n, 3, s, s) -> (n, 64, s/2, s/2)
        x = functional.max_pool2d(x, 3, 2, 1)  # (n, 64, s/4, s/4)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (n, 512, s/32, s/32)
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))  # (n, 512) -> (n, classes)
        return scores


def task(
    silos: int = 10,
    silo: int = -1,
    alpha: float = 0.1,
    seed: int = 1,
    dataset: str = "cifar100",
    enlarge_to: int = 0,
    **options: Unpack[Options],
) -> TorchTask:
    """Make the task of one silo. SGD is the paper's: lr 0.01, momentum 0.9, batch 64.

    Every silo gets at least two records, since a batch norm cannot learn from one.
    """
    if dataset not in ("cifar10", "cifar100"):
        raise ValueError(f"dataset = {dataset!r}: this network is for cifar100 and cifar10")
    return make(
        dataset,
        lambda data: ResNet18(data.classes, enlarge_to),
        PREPARE,
        {},
        options,
        silos=silos,
        silo=silo,
        alpha=alpha,
        seed=seed,
        least=2,
    )
