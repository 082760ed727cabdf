"""Handwritten digits on a small network: the task of the demo and of the tests.

The 1,797 images of 8 by 8 pixels come with scikit-learn, so nothing is downloaded. Every silo deals them out from the
same seed (partition.py), keeps its own share and the held-out test set, and forgets the rest.
"""

import importlib
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from silomix.models.data.partition import deal
from silomix.models.torch_task import TorchTask, Training, from_seed

CLASSES = 10


class Cnn(nn.Module):
    """Two convolutions and two dense layers: small enough to train in a blink, deep enough to be worth attacking."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 4 * 4, 32)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Score the classes."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)  # (n, 1, 8, 8) -> (n, 16, 4, 4)
        x = functional.relu(self.conv2(x))  # (n, 32, 4, 4)
        x = functional.relu(self.hidden(x.flatten(1)))  # (n, 32)
        scores: Tensor = self.out(x)  # (n, 10)
        return scores


class Linear(nn.Module):
    """Logistic regression: 650 parameters, for when the model should cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8 * 8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Score the classes."""
        scores: Tensor = self.out(x.flatten(1))  # (n, 1, 8, 8) -> (n, 10)
        return scores


MODELS: dict[str, type[nn.Module]] = {"cnn": Cnn, "linear": Linear}
"""What the option `model` may say."""


def task(
    silos: int = 10,
    silo: int = -1,
    alpha: float = 0.1,
    seed: int = 1,
    model: str = "cnn",
    test_share: float = 0.2,
    partition: str = "dirichlet",
    shadow: float = 0.0,
    **training: Unpack[Training],
) -> TorchTask:
    """Make the task of one silo, 0 to silos-1, or of nobody (-1): of whoever only starts or evaluates the model.

    The defaults (5 epochs, batch 16, lr 0.05, momentum 0.5, one thread) are gentle: in 20 rounds of averaging with
    seeds 1 to 8, no silo moved a value by as much as 1.0 in a round, so a bound of 1.0 clipped nothing. The seed fixes
    the split, the shares, the first model and the order of the records; the threads are for the whole process.
    """
    if model not in MODELS:
        raise ValueError(f"model = {model!r}: known models are {', '.join(MODELS)}")
    if seed < 0 or not 0 < test_share < 1:
        raise ValueError(f"seed = {seed}, test_share = {test_share}: it takes seed >= 0 and 0 < test_share < 1")
    # scikit-learn has no type stubs, so it is imported by name.
    pixels, labels = importlib.import_module("sklearn.datasets").load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)  # (1797, 64) in 0..16 -> (1797, 1, 8, 8) in 0..1
    order = np.random.default_rng(seed).permutation(len(labels))
    test, rest = np.split(order, [max(1, round(test_share * len(labels)))])
    part = deal(labels[rest], silos, silo, seed=seed, alpha=alpha, partition=partition, shadow=shadow)

    def records(rows: npt.NDArray[Any]) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(images[rows]), torch.from_numpy(labels[rows])

    options: Training = {"epochs": 5, "batch": 16, "lr": 0.05, "momentum": 0.5, "threads": 1, **training}
    return TorchTask(
        from_seed(seed, MODELS[model]),
        records(rest[part.own]),
        records(test),
        shadow=records(rest[part.shadow]),
        silo=silo,
        seed=seed,
        **options,
    )
