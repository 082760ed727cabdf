"""Handwritten digits on a small network: the task of the demo and of the tests.

The 1,797 images of 8 by 8 pixels come with scikit-learn, so nothing is downloaded. Every silo deals them out from the
same seed (partition.py), keeps its own share and the held-out test set, and forgets the rest.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from silomix.models.partition import dirichlet
from silomix.models.task import Task, TaskError, Tensors, Trained
from silomix.runtime.core.codec import Schema, TensorSpec

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


class Digits:
    """One silo's part in the federation. It has one network, so it does one thing at a time."""

    def __init__(
        self,
        net: nn.Module,
        share: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        *,
        seed: tuple[int, int],
        epochs: int,
        batch: int,
        lr: float,
        momentum: float,
    ) -> None:
        self.net, self.share, self.test, self.seed = net, share, test, seed
        self.epochs, self.batch, self.lr, self.momentum = epochs, batch, lr, momentum
        self.first = self._read()

    def schema(self) -> Schema:
        """Name the network's tensors in torch's own order. It has no buffers."""
        return Schema(tuple(TensorSpec(name, array.shape) for name, array in self.first.items()))

    def initial(self) -> dict[str, npt.NDArray[Any]]:
        """Return the network as it was made from the seed, before any training."""
        return {name: array.copy() for name, array in self.first.items()}

    def train(self, tensors: Tensors, round: int) -> Trained:  # noqa: A002 - the protocol's word for it
        """Run SGD over the share for some epochs. The momentum starts at rest: no state outlives the round."""
        x, y = self.share
        if not len(y):
            raise TaskError("silo = -1 has no records to train on: set the option silo to this silo's number")
        self._write(tensors)
        self.net.train()
        sgd = torch.optim.SGD(self.net.parameters(), lr=self.lr, momentum=self.momentum)
        rng = np.random.default_rng([*self.seed, round])
        loss_sum = 0.0
        for picked in self._batches(rng, len(y)):
            sgd.zero_grad()
            loss = functional.cross_entropy(self.net(x[picked]), y[picked])
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()
            loss_sum += loss.item() * len(picked)
        return Trained(self._read(), examples=len(y), metrics={"loss": loss_sum / (self.epochs * len(y))})

    def evaluate(self, tensors: Tensors) -> dict[str, float]:
        """Measure the network on the records that no silo trains on."""
        x, y = self.test
        self._write(tensors)
        self.net.eval()
        with torch.inference_mode():
            scores = self.net(x)
            accuracy = (scores.argmax(1) == y).double().mean().item()
            return {"accuracy": accuracy, "loss": functional.cross_entropy(scores, y).item()}

    def _batches(self, rng: np.random.Generator, n: int) -> Iterator[Tensor]:
        for _ in range(self.epochs):
            order = torch.from_numpy(rng.permutation(n))
            for start in range(0, n, self.batch):
                yield order[start : start + self.batch]

    def _read(self) -> dict[str, npt.NDArray[Any]]:
        return {name: tensor.numpy().copy() for name, tensor in self.net.state_dict().items()}

    def _write(self, tensors: Tensors) -> None:
        # np.array copies: what arrives from the wire may be read-only, which torch does not know.
        self.net.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in tensors.items()})


def task(
    silos: int = 10,
    silo: int = -1,
    alpha: float = 0.1,
    seed: int = 1,
    epochs: int = 5,
    batch: int = 16,
    lr: float = 0.05,
    momentum: float = 0.5,
    test_share: float = 0.2,
    threads: int = 1,
    model: str = "cnn",
) -> Task:
    """Make the task of one silo, 0 to silos-1, or of nobody (-1): of whoever only starts or evaluates the model.

    The defaults are gentle: in 20 rounds of averaging with seeds 1 to 8, no silo moved a value by as much as 1.0 in a
    round, so a bound of 1.0 clipped nothing. The seed fixes the split, the shares, the first model and the order of
    the records; the number of threads is for the whole process.
    """
    if silos < 1 or not -1 <= silo < silos:
        raise ValueError(f"silo = {silo} of silos = {silos}: silos count from 0 to silos-1, and -1 has no records")
    if model not in MODELS:
        raise ValueError(f"model = {model!r}: known models are {', '.join(MODELS)}")
    for name, value in {"epochs": epochs, "batch": batch, "threads": threads}.items():
        if value < 1:
            raise ValueError(f"{name} = {value}: it must be 1 or more")
    if seed < 0 or not 0 < test_share < 1 or not lr > 0 or not 0 <= momentum < 1:
        raise ValueError(
            f"seed = {seed}, test_share = {test_share}, lr = {lr}, momentum = {momentum}: it takes seed >= 0, "
            "0 < test_share < 1, lr > 0 and 0 <= momentum < 1"
        )
    torch.set_num_threads(threads)
    # scikit-learn has no type stubs, so it is imported by name.
    pixels, labels = importlib.import_module("sklearn.datasets").load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)  # (1797, 64) in 0..16 -> (1797, 1, 8, 8) in 0..1
    order = np.random.default_rng(seed).permutation(len(labels))
    test, training = np.split(order, [max(1, round(test_share * len(labels)))])
    own = training[dirichlet(labels[training], silos, alpha, seed)[silo]] if silo >= 0 else training[:0]
    with torch.random.fork_rng(devices=[]):  # leave the process's own randomness as it was
        torch.manual_seed(seed)
        net = MODELS[model]()

    def records(rows: npt.NDArray[Any]) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(images[rows]), torch.from_numpy(labels[rows])

    return Digits(
        net,
        records(own),
        records(test),
        seed=(seed, silo + 1),
        epochs=epochs,
        batch=batch,
        lr=lr,
        momentum=momentum,
    )
