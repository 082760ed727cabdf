"""DP-SGD: what is spent, where the noise comes from, and that parameters stay in their bound."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]
from torch import nn

from silomix.models.torch_task import TorchTask, from_seed
from silomix.models.training.dp import Privacy, truncated_normal
from silomix.runtime.task import TaskError, load_task

SHARE = (torch.randn(60, 5, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 3)


def make(net: nn.Module | None = None, **options: Any) -> TorchTask:
    return TorchTask(net or from_seed(1, lambda: nn.Linear(5, 3)), SHARE, SHARE, silo=0, seed=1, batch=20, **options)


def change(task: TorchTask, round_: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    first = task.initial()
    return {name: array - first[name] for name, array in task.train(first, round_).tensors.items()}


def test_the_target_is_spent_by_the_last_round_and_no_more() -> None:
    for target in (1.0, 5.0):
        task = make(dp_epsilon=target, dp_rounds=8, epochs=2, dp_seeded=True)
        assert task.privacy is not None
        assert (task.privacy.sample_rate, task.privacy.steps) == (1 / 3, 6)
        spent = [task.train(task.initial(), round_).metrics["epsilon"] for round_ in (1, 4, 8)]
        assert spent == sorted(spent)
        assert 0.97 * target < spent[-1] <= target


def test_the_account_is_the_gaussian_mechanisms_where_every_record_is_in_every_step() -> None:
    """One step with all records and noise z is the Gaussian mechanism: its exact delta is known."""
    privacy = Privacy.of({"dp_noise": 2.0}, records=20, batch=20, epochs=1)
    assert privacy is not None
    assert privacy.sample_rate == 1.0

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    eps = privacy.spent(1)
    exact = phi(1 / 4 - eps * 2) - math.exp(eps) * phi(-1 / 4 - eps * 2)
    assert exact <= 1e-5
    assert eps < 3.5  # the exact one is 2.0


def test_noise_comes_from_the_system_unless_it_is_an_experiment() -> None:
    seeded = make(dp_noise=1.0, dp_seeded=True)
    assert all(np.array_equal(a, b) for a, b in zip(change(seeded).values(), change(seeded).values(), strict=True))
    assert not np.array_equal(change(seeded)["weight"], change(seeded, 2)["weight"])
    secret = make(dp_noise=1.0)
    assert not np.array_equal(change(secret)["weight"], change(secret)["weight"])


def test_no_record_moves_the_model_further_than_its_clipped_gradient() -> None:
    """One step, nearly no noise, records that ask for a huge step: each is cut to the clip."""
    x, y = SHARE[0] * 1e4, SHARE[1]
    net = from_seed(1, lambda: nn.Linear(5, 3))
    options: dict[str, Any] = {"dp_noise": 1e-9, "dp_clip": 0.5, "dp_range": "off", "dp_seeded": True}
    task = TorchTask(net, (x, y), SHARE, silo=0, seed=1, batch=60, lr=1.0, momentum=0.0, **options)
    moved = math.sqrt(sum(float(np.square(a).sum()) for a in change(task).values()))
    assert 0.01 < moved <= 0.5 * (1 + 1e-5)  # the mean of vectors of at most 0.5
    plain = TorchTask(net, (x, y), SHARE, silo=0, seed=1, batch=60, lr=1.0, momentum=0.0)
    assert math.sqrt(sum(float(np.square(a).sum()) for a in change(plain).values())) > 100


def test_the_noise_has_its_size() -> None:
    """Without a gradient to speak of, a step moves each value by lr * noise * clip / batch."""
    net = from_seed(1, lambda: nn.Linear(5, 3000))
    options: dict[str, Any] = {"dp_noise": 3.0, "dp_clip": 0.01, "dp_range": "off", "dp_seeded": True}
    task = TorchTask(net, SHARE, SHARE, silo=0, seed=1, batch=60, lr=1.0, momentum=0.0, **options)
    moved = np.concatenate([a.ravel() for a in change(task).values()])
    assert moved.std() == pytest.approx(3.0 * 0.01 / 60, rel=0.03)


@pytest.mark.parametrize("how", ["clamp", "truncate", "off"])
def test_parameters_stay_in_their_bound(how: str) -> None:
    options: dict[str, Any] = {"dp_noise": 20.0, "dp_bound": 0.45, "dp_range": how, "dp_seeded": True}
    task = make(lr=0.5, epochs=3, **options)
    assert max(np.abs(a).max() for a in task.initial().values()) < 0.45
    trained = task.train(task.initial(), 1).tensors
    reach = max(float(np.abs(a).max()) for a in trained.values())
    assert reach <= 0.45 * (1 + 1e-6) if how != "off" else reach > 1.0
    if how == "truncate":  # cut noise leaves no heap of values at the bound, as cutting values does
        assert np.mean([np.mean(np.abs(a) > 0.4499) for a in trained.values()]) < 0.1


def test_truncated_noise_fits_its_distribution() -> None:
    rng = np.random.default_rng(1)
    n = 20_000
    low, high = torch.full((n,), -0.5, dtype=torch.float64), torch.full((n,), 4.0, dtype=torch.float64)
    found = truncated_normal(torch.Size([n]), 2.0, rng.bytes, low, high).numpy()
    assert found.min() >= -0.5
    assert found.max() <= 4.0
    assert stats.kstest(found, stats.truncnorm(-0.25, 2.0, scale=2.0).cdf).pvalue > 1e-4
    free = truncated_normal(torch.Size([n]), 2.0, rng.bytes).numpy()
    assert stats.kstest(free, stats.norm(scale=2.0).cdf).pvalue > 1e-4
    far = truncated_normal(torch.Size([n]), 1.0, rng.bytes, low + 100, high + 100)  # beyond what floats tell apart
    assert bool(((far >= 99.5) & (far <= 104)).all())


def test_a_step_without_records_is_a_step_of_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Privacy, "source", lambda self, rng: lambda n: b"\xff" * n)  # every draw is close to 1: nobody
    task = make(dp_noise=0.001, dp_range="off")
    before = task.initial()
    done = task.train(before, 1)
    assert done.metrics["loss"] == 0.0
    assert all((done.tensors[name] != before[name]).all() for name in before)


def test_the_network_is_left_as_it_was() -> None:
    task = make(dp_noise=1.0)
    names = list(task.net.state_dict())
    task.train(task.initial(), 1)
    assert list(task.net.state_dict()) == names
    assert not any(hasattr(p, "grad_sample") or p.grad is not None for p in task.net.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in task.net.modules())
    task.train(task.initial(), 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dp_epsilon": 1.0}, "dp_rounds"),
        ({"dp_epsilon": 1.0, "dp_noise": 1.0, "dp_rounds": 3}, "give one of them"),
        ({"dp_clip": 1.0}, "dp_clip without"),
        ({"dp_noise": -1.0}, "above 0"),
        ({"dp_noise": math.nan}, "above 0"),
        ({"dp_noise": 1.0, "dp_delta": 1.0}, "dp_delta"),
        ({"dp_noise": 1.0, "dp_range": "cut"}, "clamp, truncate, off"),
        ({"dp_noise": 1.0, "mu": 0.1}, "plain sgd"),
        ({"dp_noise": 1.0, "algorithm": "fedsgd"}, "plain sgd"),
        ({"dp_epsilon": 1e-9, "dp_rounds": 1}, "out of reach"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError, match=says):
        make(**options)


def test_a_network_that_mixes_records_is_refused() -> None:
    task = make(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), dp_noise=1.0)
    with pytest.raises(TaskError, match="BatchNorm"):
        task.train(task.initial(), 1)


def test_the_options_reach_a_built_in_task() -> None:
    task = load_task("silomix.models.digits:task", {"model": "linear", "silo": 0, "dp_noise": 1.0})
    assert task.train(task.initial(), 1).metrics["epsilon"] > 0
    nobody = load_task("silomix.models.digits:task", {"model": "linear", "dp_epsilon": 1.0, "dp_rounds": 5})
    assert nobody.evaluate(nobody.initial())["accuracy"] < 0.5
