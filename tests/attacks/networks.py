"""Small networks with records, for attacks to work on: no data set, no training unless a test asks for it."""

import numpy as np
import torch
from torch import Tensor, nn

from silomix.attacks.views.classifier import Records
from silomix.attacks.views.simulated import Truth
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.task import Tensors

CLASSES, INPUTS, HIDDEN = 4, 6, 5


class Net(nn.Module):
    """One hidden layer and one head, in double precision so that two ways to compute agree on every comparison."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.hidden = nn.Linear(INPUTS, HIDDEN)
        self.out = nn.Linear(HIDDEN, CLASSES, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(torch.relu(self.hidden(x)))
        return scores


def schema_of(net: nn.Module) -> Schema:
    return Schema(tuple(TensorSpec(name, tuple(t.shape)) for name, t in net.state_dict().items()))


def random_models(net: nn.Module, n: int, seed: int = 0, scale: float = 0.3) -> list[Tensors]:
    rng = np.random.default_rng(seed)
    state = net.state_dict()
    return [{k: rng.normal(0, scale, tuple(t.shape)).astype(np.float32) for k, t in state.items()} for _ in range(n)]


def records(count: int, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(count, INPUTS)).astype(np.float32))
    return x, torch.from_numpy(rng.integers(0, CLASSES, count))


def truth(n: int = 5, seed: int = 0) -> Truth:
    """A round in which every silo moves every value by less than the bound."""
    net = Net()
    before = random_models(net, 1, seed + 100)[0]
    moved = random_models(net, n, seed, scale=0.1)
    trained = tuple({k: (before[k] + m[k]).astype(np.float32) for k in before} for m in moved)
    return Truth(schema_of(net), tuple(range(n)), before, trained)
