"""A network with one hidden layer, for tables: 60-200-10 with 14,210 parameters on the synthetic one of Hu et al."""

from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from silomix.models.built_in import Options, make
from silomix.models.data.catalogue import Data
from silomix.models.data.text import bag
from silomix.models.torch_task import TorchTask

BAG = 4096
"""Places in a hashed bag of words."""
DATASETS = ("synthetic", "breast-cancer", "indo-rct", "newsgroups", "digits")


class Mlp(nn.Module):
    """Scores the classes of a row of numbers."""

    def __init__(self, features: int = 60, hidden: int = 200, classes: int = 10) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score the classes."""
        scores: Tensor = self.out(torch.relu(self.hidden(x)))  # (n, features) -> (n, hidden) -> (n, classes)
        return scores


def prepare(x: npt.NDArray[Any]) -> Tensor:
    """Take numbers as they are, images as rows, and texts as hashed bags of words."""
    if x.dtype == object:
        return torch.from_numpy(bag(x, BAG))
    return torch.from_numpy(x.astype(np.float32)).flatten(1)


def task(
    silos: int = 10,
    silo: int = -1,
    alpha: float = 0.1,
    seed: int = 1,
    dataset: str = "synthetic",
    hidden: int = 200,
    **options: Unpack[Options],
) -> TorchTask:
    """Make the task of one silo. SGD is the paper's: lr 0.01, momentum 0.9, batch 64."""
    if dataset not in DATASETS:
        raise ValueError(f"dataset = {dataset!r}: this network is for {', '.join(DATASETS)}")

    def net(data: Data) -> nn.Module:
        features = prepare(data.x.take(np.arange(1))).shape[1]
        return Mlp(features, hidden, data.classes)

    return make(dataset, net, prepare, {}, options, silos=silos, silo=silo, alpha=alpha, seed=seed)
