"""Deep leakage from gradients (Zhu et al., 2019): pictures from an update.

A silo that takes one step on one record sends the record's gradient. The adversary looks for pictures and labels whose
gradient is that one, by descent on the distance. The mean over n silos is the gradient of n records at once. Whoever
looks for one picture in it, as the paper's experiment seems to, finds none; but whoever looks for n may find them all,
as long as there are more equations than pixels: a sum over silos hides whose a record is, and hides the record only
behind many others. Sigmoids instead of ReLUs, and weights drawn wide, are Zhu et al.'s: they make the attack work at
its best, and it is given the exact mean, not a rounded one.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from silomix.attacks.errors import AttackError
from silomix.attacks.views.classifier import Records

Pictures = npt.NDArray[np.float32]
"""(n, channels, side, side), with pixels in 0..1."""
STEPS = 60
"""Steps of L-BFGS, of up to 20 evaluations each."""
TRIES = 3
"""Starts from other noise; the one whose gradient comes nearest counts. The adversary can tell, since it has that."""


class Leaky(nn.Module):
    """A small convolutional network as the attack likes it: smooth, and without bottlenecks."""

    def __init__(self, channels: int, side: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 12, 3, padding=1), nn.Sigmoid(), nn.Conv2d(12, 12, 3, padding=1, stride=2), nn.Sigmoid()
        )
        self.out = nn.Linear(12 * ((side + 1) // 2) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score the classes."""
        scores: Tensor = self.out(self.body(x).flatten(1))  # (n, channels, side, side) -> (n, classes)
        return scores


@dataclass(frozen=True)
class Inversion:
    """What the attack made of the mean gradient of some silos."""

    silos: int
    records: int
    """Records behind the update, over all silos."""
    looked_for: int
    """Pictures that the adversary looked for."""
    truth: Pictures
    """(k, channels, side, side): of what the silos trained on, the pictures nearest to those that were found."""
    found: Pictures
    """The pictures that the attack came up with, in the same order."""
    distance: float
    """What is left between the gradients."""
    chance: float
    """The loss of as many other records, matched in the same way: what any pictures of this kind would score."""

    @property
    def loss(self) -> float:
        """Mean squared error per pixel, the pixels being 0..1."""
        return float(np.mean((self.found - self.truth) ** 2))

    def json(self) -> dict[str, Any]:
        """Return it for a program, without the pictures."""
        sizes = {"silos": self.silos, "records": self.records, "looked_for": self.looked_for}
        return {**sizes, "loss": self.loss, "chance": self.chance, "distance": self.distance}


def gradients(net: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the gradient of the mean loss: what silos with one record each add up to."""
    loss = functional.cross_entropy(net(x), y)
    return [g.detach() for g in torch.autograd.grad(loss, list(net.parameters()))]


def leaky(shape: Sequence[int], classes: int, seed: int) -> Leaky:
    """Make the network, with weights in -0.5..0.5 as the attack's authors draw them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Leaky(shape[0], shape[1], classes)
        for parameter in net.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    return net


def invert(
    net: nn.Module,
    target: Sequence[Tensor],
    count: int,
    shape: Sequence[int],
    classes: int,
    seed: int,
    *,
    steps: int = STEPS,
    tries: int = TRIES,
) -> tuple[Tensor, float]:
    """Look for `count` pictures, with labels, whose mean gradient is the target."""
    parameters = list(net.parameters())
    best: tuple[Tensor, float] | None = None
    for attempt in range(tries):
        rng = torch.Generator().manual_seed(seed * 1000 + attempt)
        x = torch.rand((count, *shape), generator=rng).requires_grad_()
        labels = torch.randn((count, classes), generator=rng).requires_grad_()
        optimiser = torch.optim.LBFGS([x, labels], lr=1.0, line_search_fn="strong_wolfe")
        distance = _closure(net, parameters, target, x, labels, optimiser)
        left = float("inf")
        for _ in range(steps):
            left = optimiser.step(distance).item()  # type: ignore[no-untyped-call]
            if left < 1e-9 or not np.isfinite(left):
                break
        if np.isfinite(left) and (best is None or left < best[1]):
            best = x.detach().clamp(0, 1), left
        if best is not None and best[1] < 1e-6:
            break
    if best is None:
        raise AttackError("the descent left the numbers in every try: lower the network's weights")
    return best


def _closure(
    net: nn.Module,
    parameters: list[nn.Parameter],
    target: Sequence[Tensor],
    x: Tensor,
    labels: Tensor,
    optimiser: torch.optim.Optimizer,
) -> Callable[[], Tensor]:
    def distance() -> Tensor:
        optimiser.zero_grad()
        loss = -(labels.softmax(1) * net(x).log_softmax(1)).sum(1).mean()
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        left = torch.stack([((f - t) ** 2).sum() for f, t in zip(found, target, strict=True)]).sum()
        left.backward()  # type: ignore[no-untyped-call]
        return left

    return distance


def attack(
    records: Records,
    silos: int,
    seed: int,
    *,
    per_silo: int = 1,
    look_for: int | None = None,
    steps: int = STEPS,
    tries: int = TRIES,
) -> Inversion:
    """Attack the mean update of so many silos, each after one step on a few of the given records.

    look_for  pictures to look for; by default as many as there are records behind the update
    """
    x, y = records
    if x.dim() != 4 or x.shape[2] != x.shape[3]:
        raise AttackError(f"the attack draws square pictures; these records have the shape {tuple(x.shape[1:])}")
    low, high = x.min(), x.max()  # pixels may be normalised
    x = (x - low) / (high - low).clamp_min(1e-9)
    pixels, count = x, silos * per_silo
    if count > len(y):
        raise AttackError(f"{silos} silos with {per_silo} records each: there are only {len(y)}")
    rng = np.random.default_rng([seed, count])
    picked = torch.from_numpy(rng.choice(len(y), count, replace=False))
    x, y = x[picked], y[picked]
    classes = int(records[1].max()) + 1
    net = leaky(x.shape[1:], classes, seed)
    sought = count if look_for is None else look_for
    found, distance = invert(net, gradients(net, x, y), sought, x.shape[1:], classes, seed, steps=steps, tries=tries)
    others = np.setdiff1d(np.arange(len(records[1])), picked.numpy())
    strangers = pixels[torch.from_numpy(rng.choice(others, min(sought, len(others)), replace=False))]
    truth, made = matched(x.numpy(), found.numpy())
    chance = float(np.mean(np.subtract(*matched(x.numpy(), strangers.numpy())) ** 2)) if len(strangers) else np.nan
    return Inversion(silos, count, sought, truth, made, distance, chance)


def matched(truth: Pictures, made: Pictures) -> tuple[Pictures, Pictures]:
    """Put pictures beside the true ones that they are nearest to, one to one. A mean has no order: be kind."""
    costs = ((truth[:, None] - made[None]) ** 2).mean(axis=(2, 3, 4))
    # scipy has no type stubs, so it is imported by name.
    rows, columns = importlib.import_module("scipy.optimize").linear_sum_assignment(costs)
    return truth[rows], made[columns]
