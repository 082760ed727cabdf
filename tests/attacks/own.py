"""Classifiers as users bring them: frozen layers, adapters, short floats, a batch norm, a parameter without a shape."""

import importlib

import torch
from torch import Tensor, nn

from silomix.models.data.partition import deal
from silomix.models.torch_task import TorchTask, from_seed

HIDDEN = 24


class Adapted(nn.Module):
    """A dense layer as LoRA has it: the layer stays as it is, and a product of two small matrices is learned beside."""

    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.base(x) + x @ self.a.T @ self.b.T
        return scores


class Tempered(nn.Module):
    """Scores divided by a learned temperature: a parameter without a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.body(x) / self.temperature
        return scores


def _frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(64, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10))
    net[0].requires_grad_(False)
    return net


def _frozen_head() -> nn.Module:
    net = nn.Sequential(nn.Linear(64, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10))
    net[2].requires_grad_(False)
    return net


NETS = {
    "plain": lambda: nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)),
    "frozen": _frozen,
    "frozen-head": _frozen_head,
    "adapted": lambda: nn.Sequential(Adapted(64, HIDDEN), nn.Tanh(), Adapted(HIDDEN, 10)),
    "tempered": Tempered,
    "norm": lambda: nn.Sequential(nn.Linear(64, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 10, 8), nn.Flatten()),
}


def task(
    silos: int = 5, silo: int = -1, seed: int = 1, alpha: float = 0.1, net: str = "plain", dtype: str = "float32"
) -> TorchTask:
    """Make a silo's task on the digits, flat."""
    pixels, labels = importlib.import_module("sklearn.datasets").load_digits(return_X_y=True)
    kind: torch.dtype = getattr(torch, dtype)
    x, y = torch.from_numpy(pixels / 16).to(kind), torch.from_numpy(labels)
    part = deal(labels[400:], silos, silo, seed=seed, alpha=alpha, partition="dirichlet", shadow=0.0)
    own = torch.from_numpy(part.own) + 400
    made = from_seed(seed, NETS[net]).to(kind)
    return TorchTask(
        made, (x[own], y[own]), (x[:400], y[:400]), silo=silo, seed=seed, epochs=5, batch=16, lr=0.1, threads=1
    )
