"""Task files as a user writes them, in an empty directory."""

CONV = """\
# mine.py: a convolutional network with batch norm
import torch
from sklearn.datasets import load_digits
from torch import nn
from silomix import TorchTask
from silomix.models.data.partition import dirichlet

def task(silo=-1, silos=3, lr=0.02):
    x, y = load_digits(return_X_y=True)
    own, test = dirichlet(y[:1500], silos, alpha=0.3, seed=2)[max(silo, 0)], slice(1500, None)
    x, y = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)
    torch.manual_seed(7)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)
    )
    share = None if silo < 0 else (x[own], y[own])
    return TorchTask(net, share, (x[test], y[test]), silo=silo, epochs=2, batch=16, lr=lr)
"""

LORA = """\
# lora.py: a frozen network with adapters
import torch
from sklearn.datasets import load_digits
from torch import nn
from silomix import TorchTask
from silomix.models.data.partition import dirichlet

class Lora(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T

def task(silo=-1, silos=3):
    x, y = load_digits(return_X_y=True)
    own, test = dirichlet(y[:1500], silos, alpha=0.3, seed=2)[max(silo, 0)], slice(1500, None)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    torch.manual_seed(7)
    net = nn.Sequential(Lora(nn.Linear(64, 32)), nn.ReLU(), Lora(nn.Linear(32, 10)))
    return TorchTask(
        net, None if silo < 0 else (x[own], y[own]), (x[test], y[test]), silo=silo, epochs=3, batch=16, lr=0.03
    )
"""

ODD = """\
# odd.py: everything that a state dict may hold
import torch
from torch import nn
from silomix import TorchTask

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))  # no dimension
        self.short = nn.Parameter(torch.full((3,), 0.25, dtype=torch.bfloat16))
        self.first = nn.Linear(4, 6, bias=False)
        self.tied = nn.Linear(4, 6, bias=False)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("level", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x):
        if self.training:
            self.seen += 1
            self.level += 0.001
        x = self.norm(self.frozen(self.first(x) + self.tied(x)))
        return self.out(x) * self.scale + self.short.float()

def task(silo=-1):
    draw = torch.Generator().manual_seed(silo + 5)
    x = torch.randn(90, 4, generator=draw)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    y = torch.where(torch.rand(90, generator=draw) < 0.3, y, (y + max(silo, 0)) % 3)  # silos do not agree on much
    torch.manual_seed(3)
    return TorchTask(Odd(), None if silo < 0 else (x, y), (x, y), silo=silo, epochs=8, batch=16, lr=0.1)
"""

FAILING = """\
# failing.py: trains nothing
from slow import Slow

class Failing(Slow):
    def train(self, tensors, round):
        raise RuntimeError("the table of patients is not mounted")

def task(silo=-1):
    return Failing()
"""

SLOW = """\
# slow.py: takes its time
import time
import numpy as np
from silomix import Schema, TensorSpec, Trained

class Slow:
    def schema(self):
        return Schema((TensorSpec("w", (5,)),))
    def initial(self):
        return {"w": np.zeros(5, np.float32)}
    def train(self, tensors, round):
        time.sleep(0.3)
        return Trained({"w": tensors["w"] + np.float32(0.25)}, 1, {})
    def evaluate(self, tensors):
        return {"accuracy": float(tensors["w"][0]) / 100, "loss": 0.0}

def task(silo=-1):
    return Slow()
"""
