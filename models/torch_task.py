"""Any torch module with records as a task: local SGD, FedProx or FedSGD, the same bits for the same round.

    TorchTask(net, share=(x, y), test=(x, y), silo=3, lr=0.01)

A round of training is a function of (seed, silo, round) and the global model: the optimiser starts at rest, counters
start anew, and dropout draws from a seed of its own, so a round that is tried again gives the same update.
"""

import logging
import math
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from functools import cached_property, lru_cache
from numbers import Real
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from silomix.models import LOGGER
from silomix.models.training import dp
from silomix.models.training.dp import DpOptions, Privacy
from silomix.models.training.torch_checks import Records, as_records, check_numbers, find_device
from silomix.models.training.torch_seed import Randomness, from_seed
from silomix.models.training.torch_state import ModuleState, freeze_all_but
from silomix.runtime.core.errors import LocalFault, Reason
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.task import TaskError, Tensors, Trained

__all__ = ["ALGORITHMS", "Augment", "Loss", "Measure", "Records", "TorchTask", "Training", "accuracy", "from_seed"]

AT_ONCE = 128
"""Records that go through the network at once where the result does not depend on it: evaluation, FedSGD."""
ALGORITHMS = ("sgd", "fedsgd")
"""What the option `algorithm` may say. FedProx is SGD with mu > 0."""

Loss = Callable[[Tensor, Tensor], Tensor]
Measure = Callable[[Tensor, Tensor], dict[str, float]]
Augment = Callable[[Tensor, np.random.Generator], Tensor]


@lru_cache(maxsize=256)
def _say(level: int, what: str) -> None:
    """Say something of a model, once in a process: there it may be made again for each silo, and is the same."""
    logging.getLogger(LOGGER).log(level, "%s", what)


class Training(DpOptions, total=False):
    """The options of local training, for factories that hand them on: `def task(..., **training: Unpack[Training])`."""

    epochs: int
    batch: int
    lr: float
    momentum: float
    weight_decay: float
    label_smoothing: float
    mu: float
    algorithm: str
    trainable: str
    device: str
    threads: int


def accuracy(scores: Tensor, y: Tensor) -> dict[str, float]:
    """Count how often the highest score is the label's."""
    return {"accuracy": (scores.argmax(1) == y).double().mean().item()}


class TorchTask:
    """One silo's part in the federation: a torch module, and its records. It does one thing at a time.

    >>> import silomix, torch
    >>> x, y = torch.randn(60, 4), torch.randint(3, (60,))
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    >>> task = silomix.TorchTask(net, (x[:40], y[:40]), (x[40:], y[40:]), lr=0.05, epochs=2)
    >>> [spec.name for spec in task.schema().tensors][:3], list(task.local)
    (['0.weight', '0.bias', '1.weight'], ['1.num_batches_tracked'])
    >>> trained = task.train(task.initial(), round=1)
    >>> trained.examples, sorted(task.evaluate(trained.tensors))
    (40, ['accuracy', 'loss'])
    """

    def __init__(
        self,
        net: nn.Module,
        share: Records | Dataset[Any] | None,
        test: Records | Dataset[Any] | Callable[[], Records],
        *,
        silo: int = -1,
        seed: int = 0,
        epochs: int = 1,
        batch: int = 64,
        lr: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        label_smoothing: float = 0.0,
        mu: float = 0.0,
        algorithm: str = "sgd",
        trainable: str = "*",
        device: str = "cpu",
        threads: int = 0,
        loss: Loss | None = None,
        measure: Measure = accuracy,
        augment: Augment | None = None,
        shadow: Records | None = None,
        **private: Unpack[DpOptions],
    ) -> None:
        """Take a network and this silo's records; `share=None` for whoever only starts or evaluates the model.

        The test records may come as a function, which is called when they are first needed.

        epochs, batch, lr, momentum, weight_decay: of SGD, and the defaults are the paper's. mu: FedProx's pull towards
        the global model. algorithm: "sgd", or "fedsgd" for one step along the gradient over all records. trainable:
        which parameters are trained, as "head.*"; the others are frozen and stay local. device: "cpu", "cuda",
        "cuda:1" or "mps". threads: of torch, in the whole process; 0 leaves it alone. loss and measure: what is
        minimised (cross-entropy, with label_smoothing) and what is reported. augment: changes a batch's inputs before
        a step. shadow: records of this silo's kind that are in neither set, for audits. dp_...: see
        models/training/dp.py.
        """
        check_numbers(
            {"epochs": epochs, "batch": batch},
            {"seed": seed, "weight_decay": weight_decay, "mu": mu, "threads": threads},
            {"momentum": momentum, "label_smoothing": label_smoothing},
            lr,
        )
        if algorithm not in ALGORITHMS:
            raise TaskError(f"algorithm = {algorithm!r}: it is one of {', '.join(ALGORITHMS)}; FedProx is sgd and mu")
        if threads:
            torch.set_num_threads(threads)
        self.device = find_device(device)
        if trainable != "*":
            freeze_all_but(net, trainable)
        self.state = ModuleState(net)
        self.net = net.to(self.device)
        self._test = test
        self.share = (self.test[0][:0], self.test[1][:0]) if share is None else as_records(share, "share")
        self.shadow = shadow
        self.silo, self.seed = silo, seed
        self.epochs, self.batch, self.lr, self.momentum = epochs, batch, lr, momentum
        self.weight_decay, self.mu, self.algorithm = weight_decay, mu, algorithm
        self.augment, self.measure = augment, measure
        self.privacy = Privacy.of(private, len(self.share[1]), batch, epochs)
        if self.privacy is not None and (mu or algorithm != "sgd"):
            raise TaskError(f"algorithm = {algorithm!r} with mu = {mu}: the dp_ options train by plain sgd")
        self.loss: Loss = loss or (lambda s, y: functional.cross_entropy(s, y, label_smoothing=label_smoothing))
        self._norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules())
        self._randomness = Randomness(seed, silo, self.device)
        self.first = self.state.read()
        self._try_one()
        for name, why in self.local.items():
            _say(logging.INFO, f"{name} does not travel: {why}")
        if short := self.state.short():
            _say(logging.WARNING, short)

    @cached_property
    def test(self) -> Records:
        """The records that no silo trains on."""
        return as_records(self._test() if callable(self._test) else self._test, "test")

    @property
    def local(self) -> dict[str, str]:
        """What of the state dict does not travel, with the reason."""
        return self.state.local

    def schema(self) -> Schema:
        """Name the network's tensors in torch's own order."""
        return self.state.schema

    def initial(self) -> dict[str, npt.NDArray[Any]]:
        """Return the network as it was handed in, before any training."""
        return {name: array.copy() for name, array in self.first.items()}

    def deal(self, silos: int) -> list["TorchTask"]:
        """Deal the records out, so that each silo has a task of its own: for a federation of one's own on one machine.

        Every share is drawn from all records alike. Data that differ from silo to silo, as they do in earnest, are
        dealt with silomix.models.data.partition.
        """
        n = len(self.share[1])
        if n < silos:
            raise TaskError(f"{n} records cannot be dealt out to {silos} silos: give more records, or fewer silos")
        order = torch.from_numpy(np.random.default_rng([self.seed, silos]).permutation(n))
        return [self._with(silo, order[silo::silos]) for silo in range(silos)]

    def _with(self, silo: int, rows: Tensor) -> "TorchTask":
        """Return the same task with some of the records, and a network of its own."""
        if self.privacy is not None:
            raise TaskError("the noise of the dp_ options follows from a silo's records: make a task for each silo")
        one = copy(self)
        one.net = deepcopy(self.net)
        one.state = ModuleState(one.net)
        one.silo, one.share = silo, (self.share[0][rows], self.share[1][rows])
        one._randomness = Randomness(self.seed, silo, self.device)
        return one

    def load(self, tensors: Tensors) -> nn.Module:
        """Put a model into the network, and return it ready to evaluate."""
        self.state.write(tensors)
        return self.net.eval()

    def train(self, tensors: Tensors, round: int) -> Trained:  # noqa: A002 - the protocol's word for it
        """Train on the share. The momentum starts at rest: no state outlives the round."""
        n = len(self.share[1])
        if not n:
            raise TaskError(
                f"silo = {self.silo} has no records to train on: set the option silo to this silo's number"
                if self.silo < 0
                else f"silo = {self.silo} has no records to train on: give it some, or leave it out"
            )
        self.load(tensors)
        if bad := self.state.not_finite():
            raise LocalFault(
                Reason.NOT_FINITE,
                f"round {round}: the global model came with NaN or infinity in {bad}: begin anew, with a lower lr",
                tensor=bad,
            )
        self.net.train()
        for module in self.state.frozen_modules():
            module.eval()
        rng = np.random.default_rng([self.seed, self.silo + 1, round])
        with self._randomness.of_round(round):
            loss = self.fit(rng, round)
        if not isinstance(loss, Real):
            raise TaskError(
                f"{type(self).__name__}.fit returned {type(loss).__name__}; return the mean loss as a number, such as "
                "float(loss)"
            )
        if bad := self.state.not_finite():
            raise self._exploded(round, f"after the last step {bad} holds NaN or infinity")
        metrics = {"loss": loss}
        if self.privacy is not None:
            metrics["epsilon"] = self.privacy.spent(round)
        return Trained(self.state.read(), examples=n, metrics=metrics)

    def fit(self, rng: np.random.Generator, round: int) -> float:  # noqa: A002
        """Move the network from the global model to this silo's, and return the mean loss on the way.

        Another way of training overrides this: the network holds the global model and is in training mode, and all
        randomness comes from `rng` and torch's generator, which is seeded.
        """
        if self.privacy is not None:
            return dp.fit(self, self.privacy, rng, lambda picked: self._loss(picked, rng, round, 0))
        parameters = [p for p in self.net.parameters() if p.requires_grad]
        start = [p.detach().clone() for p in parameters] if self.mu else []
        sgd = torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.algorithm == "fedsgd":
            return self._one_step(sgd, rng, round)
        loss_sum = 0.0
        for step, picked in enumerate(self._batches(rng), 1):
            sgd.zero_grad()
            loss = self._loss(picked, rng, round, step)
            loss.backward()  # type: ignore[no-untyped-call]
            for p, p0 in zip(parameters, start, strict=False):  # no start without mu
                if p.grad is not None:
                    p.grad.add_(p.detach() - p0, alpha=self.mu)
            sgd.step()
            loss_sum += loss.item() * len(picked)
        return loss_sum / (self.epochs * len(self.share[1]))

    def evaluate(self, tensors: Tensors) -> dict[str, float]:
        """Measure the network on the records that no silo trains on."""
        y = self.test[1]
        if not len(y):
            raise TaskError("there are no test records to evaluate on: give the task some")
        self.load(tensors)
        return self.judge(self.scores(self.test[0]))

    def judge(self, scores: Tensor) -> dict[str, float]:
        """Measure what the network gave for the test records: they may have been put through it in parts, elsewhere."""
        with torch.inference_mode():
            return {**self.measure(scores, self.test[1]), "loss": self.loss(scores, self.test[1]).item()}

    def scores(self, x: Tensor) -> Tensor:
        """Put records through the network as it stands, some at a time."""
        with torch.inference_mode():
            return torch.cat([self.net(part.to(self.device)).cpu() for part in torch.split(x, AT_ONCE)])

    def _one_step(self, sgd: torch.optim.SGD, rng: np.random.Generator, round_: int) -> float:
        """FedSGD: the gradient over all records, added up in parts that fit into memory."""
        n = len(self.share[1])
        sgd.zero_grad()
        loss_sum = 0.0
        for step, part in enumerate(torch.split(torch.arange(n), AT_ONCE), 1):
            loss = self._loss(part, rng, round_, step)
            (loss * (len(part) / n)).backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.item() * len(part)
        sgd.step()
        return loss_sum / n

    def _loss(self, picked: Tensor, rng: np.random.Generator, round_: int, step: int) -> Tensor:
        x, y = (part[picked].to(self.device) for part in self.share)
        if self.augment is not None:
            x = self.augment(x, rng)
        try:
            loss = self.loss(self.net(x), y)
        except ValueError as error:
            if self._norms and len(picked) == 1:
                raise self._alone() from error
            raise
        if not math.isfinite(loss.item()):
            if x.is_floating_point() and not torch.isfinite(x).all():
                raise LocalFault(
                    Reason.NOT_FINITE,
                    f"round {round_}, step {step}: a record of silo {self.silo} holds NaN or infinity: mend the data",
                )
            raise self._exploded(round_, f"at step {step} the loss is {loss.item()}")
        return loss

    def _alone(self) -> TaskError:
        """A batch norm has no variance to learn from one record."""
        n = len(self.share[1])
        have = "has one record" if n == 1 else f"has {n} records in batches of {self.batch}"
        return TaskError(
            f"silo {self.silo} {have}, and a batch norm cannot learn from one record alone: give it more records"
            f"{'' if n == 1 else ', or a larger batch'}, or let the network have GroupNorm or LayerNorm instead"
        )

    def _exploded(self, round_: int, what: str) -> LocalFault:
        if tensor := self.state.not_finite():
            where = f"the first tensor that holds NaN or infinity is {tensor}"
        else:
            tensor, value = self.state.largest()
            where = f"all tensors are finite, and {tensor} has the largest value, {value:.3g}"
        return LocalFault(
            Reason.NOT_FINITE,
            f"round {round_}: training exploded: {what}; {where}. Lower the option lr (now {self.lr:g}) or momentum "
            f"(now {self.momentum:g}), or scale the records",
            tensor=tensor,
        )

    def _batches(self, rng: np.random.Generator) -> Iterator[Tensor]:
        n = len(self.share[1])
        for _ in range(self.epochs):
            order = torch.from_numpy(rng.permutation(n))
            start = 0
            while start < n:
                end = start + self.batch
                if self._norms and end == n - 1:  # a batch norm cannot learn from one record alone
                    end = n
                yield order[start:end]
                start = end

    def _try_one(self) -> None:
        """Put one record through the network, of the highest label: what does not fit fails now."""
        x, y = self.share if len(self.share[1]) else self.test
        if not len(y):
            return
        row = int(y.argmax()) if y.ndim == 1 else 0
        x, y = x[row : row + 1], y[row : row + 1]
        self.net.eval()
        try:
            with torch.inference_mode():
                scores = self.net(x.to(self.device)).cpu()
                self.loss(scores, y).item()
                self.measure(scores, y)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise TaskError(
                f"{type(self.net).__name__} cannot be trained on records of shape {tuple(x.shape[1:])} "
                f"({x.dtype}) with labels of shape {tuple(y.shape[1:])} ({y.dtype}): {error}"
            ) from error
