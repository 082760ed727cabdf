"""DP-SGD: differential privacy for each record of a silo, through opacus.

Every step clips each record's gradient and adds Gaussian noise to their sum; the records of a step are drawn by chance,
each with the same probability, which is what the accounting assumes. The promise is to the record, whatever leaves the
silo afterwards, so encoding and masks do not touch it. What was spent is a number in the silo's own metrics.

The noise is as good as the source that it comes from. The seed of a task stands in the federation file, and who knows
the seed could take the noise off again: so noise comes from the operating system's generator, and two runs differ,
unless the option dp_seeded says that this is an experiment.
"""

import math
import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from silomix.runtime.task import TaskError

Source = Callable[[int], bytes]
"""Gives n random bytes."""
ORDERS = (1.25, 1.5, 1.75, *range(2, 64), 80, 128, 256, 512)
"""Orders of the Renyi divergence that the account tries: each gives a bound that holds. Whole numbers are fast."""
RANGES = ("clamp", "truncate", "off")
"""What the option dp_range may say."""


class DpOptions(TypedDict, total=False):
    """The options of private training, beside those of `Training`. Without dp_epsilon and dp_noise there is none."""

    dp_epsilon: float
    """Epsilon that dp_rounds rounds may spend: the noise follows from it."""
    dp_noise: float
    """The noise itself, as a multiple of dp_clip, instead of dp_epsilon."""
    dp_delta: float
    dp_clip: float
    """Largest norm of a record's gradient."""
    dp_rounds: int
    """Rounds that dp_epsilon is for: the federation's."""
    dp_bound: float
    """Magnitude that parameters stay within."""
    dp_range: str
    """How they do: "clamp" cuts them after a step, which costs no privacy; "truncate" draws the noise from a Gaussian
    that is cut where it would carry a parameter too far, as the paper has it; "off" lets them go."""
    dp_seeded: bool
    """For experiments: draw the noise from the task's seed, so that a run can be repeated, and protects nobody."""


@dataclass(frozen=True)
class Privacy:
    """How one silo trains in private."""

    noise: float
    clip: float
    delta: float
    bound: float
    range: str
    seeded: bool
    sample_rate: float
    steps: int
    """Steps of a round."""

    @classmethod
    def of(cls, options: DpOptions, records: int, batch: int, epochs: int) -> "Privacy | None":
        """Work the noise out for a silo with so many records, or refuse what does not fit together."""
        target, noise = options.get("dp_epsilon", 0.0), options.get("dp_noise", 0.0)
        delta, clip = options.get("dp_delta", 1e-5), options.get("dp_clip", 1.0)
        rounds, bound = options.get("dp_rounds", 0), options.get("dp_bound", 1.0)
        how = options.get("dp_range", "clamp")
        if not target and not noise:
            if options:
                raise TaskError(f"{next(iter(options))} without dp_epsilon or dp_noise: give one of them")
            return None
        if target and noise:
            raise TaskError("dp_epsilon and dp_noise both say how much noise: give one of them")
        for name, value in {"dp_epsilon": target, "dp_noise": noise}.items():
            if not 0 <= value < math.inf:
                raise TaskError(f"{name} = {value}: it must be above 0")
        if not 0 < delta < 1 or not 0 < clip < math.inf or not 0 < bound < math.inf:
            found = f"dp_delta = {delta}, dp_clip = {clip}, dp_bound = {bound}"
            raise TaskError(f"{found}: it takes 0 < dp_delta < 1, and the others above 0")
        if how not in RANGES:
            raise TaskError(f"dp_range = {how!r}: it is one of {', '.join(RANGES)}")
        if target and rounds < 1:
            raise TaskError("dp_epsilon is for a number of rounds: give dp_rounds, the federation's rounds")
        rate = min(1.0, batch / max(1, records))
        steps = epochs * math.ceil(1 / rate)
        if target and records:
            noise = _noise_for(target, delta, rate, steps * rounds)
        return cls(noise, clip, delta, bound, how, options.get("dp_seeded", False), rate, steps)

    def spent(self, rounds: int) -> float:
        """Return the epsilon that so many rounds of training have spent, by the moments accountant."""
        return _epsilon(self.noise, self.delta, self.sample_rate, self.steps * rounds)

    def source(self, rng: np.random.Generator) -> Source:
        """Return where the noise and the choice of records come from."""
        return rng.bytes if self.seeded else os.urandom


class Trainable(Protocol):
    """What private training needs of a task: a TorchTask has it."""

    net: nn.Module
    share: tuple[Tensor, Tensor]
    lr: float
    momentum: float
    weight_decay: float


def fit(task: Trainable, privacy: Privacy, rng: np.random.Generator, loss_of: Callable[[Tensor], Tensor]) -> float:
    """Train the task's network for a round in private, and return the mean loss of what was drawn.

    loss_of gives the mean loss over the records with these numbers.
    """
    from opacus.grad_sample import GradSampleHooks
    from opacus.validators import ModuleValidator

    errors = ModuleValidator.validate(task.net, strict=False)
    if errors:
        raise TaskError(f"{type(task.net).__name__} cannot be trained with dp_ options: {errors[0]}")
    source, n = privacy.source(rng), len(task.share[1])
    parameters = [p for p in task.net.parameters() if p.requires_grad]
    sgd = torch.optim.SGD(parameters, lr=task.lr, momentum=task.momentum, weight_decay=task.weight_decay)
    optimiser = _optimiser(sgd, privacy, max(1, round(privacy.sample_rate * n)), source)
    hooks = GradSampleHooks(task.net)
    loss_sum, seen = 0.0, 0
    try:
        for _ in range(privacy.steps):
            picked = torch.from_numpy(np.flatnonzero(_uniform(source, n).numpy() < privacy.sample_rate))
            optimiser.zero_grad()
            if len(picked):
                # For good: other silos may train in other threads, and torch's filters are all threads' at once.
                warnings.filterwarnings("ignore", "Full backward hook is firing")
                loss = loss_of(picked)
                loss.backward()  # type: ignore[no-untyped-call]
                loss_sum, seen = loss_sum + loss.item() * len(picked), seen + len(picked)
            else:  # nobody was drawn: a step of noise, or the absence would show
                for p in parameters:
                    p.grad_sample = torch.zeros((0, *p.shape), dtype=p.dtype, device=p.device)  # type: ignore[attr-defined]
            optimiser.step()
            if privacy.range == "clamp":
                with torch.no_grad():
                    for p in parameters:
                        p.clamp_(-privacy.bound, privacy.bound)
    finally:
        hooks.remove_hooks()
        _forget(parameters)
    return loss_sum / max(1, seen)


def _optimiser(sgd: torch.optim.SGD, privacy: Privacy, batch: int, source: Source) -> Any:
    """Wrap SGD in opacus's optimiser, with our noise."""
    from opacus.optimizers import DPOptimizer

    class Private(DPOptimizer):  # type: ignore[misc]
        """Draws noise from the silo's source, cut where it would carry a parameter out of its bound."""

        def add_noise(self) -> None:
            std = privacy.noise * privacy.clip
            for p in self.params:
                low, high = _limits(p, sgd, privacy.bound, batch) if privacy.range == "truncate" else (None, None)
                noise = truncated_normal(p.shape, std, source, low, high)
                p.grad = p.summed_grad.view_as(p) + noise.to(p.device, p.dtype)
                p.summed_grad._processed = True

    return Private(sgd, noise_multiplier=privacy.noise, max_grad_norm=privacy.clip, expected_batch_size=batch)


def _limits(p: nn.Parameter, sgd: torch.optim.SGD, bound: float, batch: int) -> tuple[Tensor, Tensor]:
    """Return the noise that would carry each value to -bound and to bound: a step is linear in it."""
    group = sgd.param_groups[0]
    lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
    value = p.detach().double().cpu()
    rest = decay * value
    moving = sgd.state.get(p, {}).get("momentum_buffer")
    if moving is not None:
        rest = rest + momentum * moving.double().cpu()
    summed = p.summed_grad.view_as(p).double().cpu()  # type: ignore[attr-defined]
    return ((value - bound) / lr - rest) * batch - summed, ((value + bound) / lr - rest) * batch - summed


def truncated_normal(
    shape: torch.Size, std: float, source: Source, low: Tensor | None = None, high: Tensor | None = None
) -> Tensor:
    """Draw normal values, of those between low and high if these are given, from 52 random bits each."""
    uniform = _uniform(source, math.prod(shape)).reshape(shape)
    if low is None or high is None:
        return std * math.sqrt(2) * torch.erfinv(2 * uniform - 1)
    if not std:
        return torch.zeros(shape, dtype=torch.float64).clamp(low, high)
    at_low, at_high = (torch.erf(limit / (std * math.sqrt(2))) for limit in (low, high))
    drawn = std * math.sqrt(2) * torch.erfinv(at_low + (at_high - at_low) * uniform)
    return drawn.clamp(low, high)  # in the far tail all of the interval rounds to one end


def _uniform(source: Source, n: int) -> Tensor:
    """Draw values strictly between 0 and 1."""
    words = np.frombuffer(source(8 * n), "<u8") >> np.uint64(12)
    return torch.from_numpy((words.astype(np.float64) + 0.5) * 2.0**-52)


def _forget(parameters: list[nn.Parameter]) -> None:
    """Take off the network what opacus has hung on it."""
    for p in parameters:
        p.grad = None
        for name in ("grad_sample", "summed_grad", "_forward_counter", "_current_grad_sample"):
            if hasattr(p, name):
                delattr(p, name)


@lru_cache(maxsize=256)
def _noise_for(target: float, delta: float, rate: float, steps: int) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    with _quiet():
        try:
            return float(
                get_noise_multiplier(
                    target_epsilon=target,
                    target_delta=delta,
                    sample_rate=rate,
                    steps=steps,
                    epsilon_tolerance=min(0.01, target / 100),
                    alphas=ORDERS,
                )
            )
        except ValueError as error:
            raise TaskError(f"dp_epsilon = {target} is out of reach in {steps} steps: {error}") from None


@lru_cache(maxsize=1024)
def _epsilon(noise: float, delta: float, rate: float, steps: int) -> float:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise, rate, steps)]
    with _quiet():
        return float(accountant.get_epsilon(delta=delta, alphas=ORDERS))


def _quiet() -> AbstractContextManager[Any]:
    """Keep the accountant's remarks on the orders that it tried to itself: the bound holds for any."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)
