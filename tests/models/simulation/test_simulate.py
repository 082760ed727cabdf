"""The simulation is the federation: the same models as the nodes make, bit for bit, in any number of processes."""

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nodes.toy import Toy

from silomix.models.simulation.simulate import SimulatedRound, simulate
from silomix.models.simulation.workers import Silos, SimulationError
from silomix.runtime.core.numbers.masks import Stream
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Level, Quantiser
from silomix.runtime.core.numbers.schema import Dtype, Schema, TensorSpec, as_float, round_to
from silomix.runtime.core.policy import AUTO, Policy, Server, UpdateKind
from silomix.runtime.core.protocol.aggregator import Aggregator, Effect
from silomix.runtime.local import InProcess, create
from silomix.runtime.nodes import aggregator
from silomix.runtime.task import Tensors, Trained

SILOS = 4
OPTIONS: Mapping[str, str | int | float | bool] = {"silos": SILOS, "model": "linear", "epochs": 1, "alpha": 1.0}
POLICY = Policy(task_options=OPTIONS, rounds=2, deadline_s=60, release_s=60, chunk_parameters=256)
TOY = Policy(task="tests.nodes.toy:task", task_options={"parameters": 500}, rounds=2, chunk_parameters=256)


def run(policy: Policy, silos: int = SILOS, **options: Any) -> list[SimulatedRound]:
    return list(simulate(policy, silos, **options))


def assert_same(left: Tensors, right: Tensors) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert left[name].tobytes() == right[name].tobytes(), f"{name} differs"


# --- the same as the nodes --------------------------------------------------------------------------------------------


async def _finish(directory: Path) -> InProcess:
    async with InProcess(directory) as federation:
        await asyncio.wait_for(federation.finished(), 60)
    return federation


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"update": UpdateKind.WEIGHTS, "level": Level.TRUSTED},
        {"weight_levels": 500, "precision": 3, "subsample": 0.75, "rounds": 3},
        {"quantiser": Quantiser.INT8, "server": Server.YOGI, "server_lr": 0.1, "clip_norm": 0.5},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())) or "default",
)
def test_the_model_is_the_networked_one_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)
    policy = replace(POLICY, **changes)
    federation = create(tmp_path / "f", SILOS, 2, policy=policy, insecure=True)
    done = asyncio.run(_finish(tmp_path / "f"))
    assert [r.attempts for r in done.aggregator.history] == [1] * policy.rounds
    rounds = run(policy, federation=federation)
    assert_same(rounds[-1].after, done.aggregator.tensors)
    assert any((rounds[-1].after[name] != rounds[0].before[name]).any() for name in rounds[-1].after)


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_an_aggregator_that_restarts_goes_on_with_its_optimisers_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """What its disk has lost, a silo has computed as well."""
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)
    policy = replace(TOY, server=Server.ADAM, server_lr=0.1, rounds=3, deadline_s=60, release_s=60)
    federation = create(tmp_path / "f", SILOS, 1, policy=policy, insecure=True)
    models = tmp_path / "f" / "aggregator" / "state" / "models"

    async def interrupted() -> InProcess:
        async with InProcess(tmp_path / "f") as running:
            while len(running.aggregator.history) < 2:  # noqa: ASYNC110 - what has no event is polled
                await asyncio.sleep(0.01)
            await running.stop("aggregator")
            for path in models.glob("*.moments") if lost else ():
                path.unlink()
            running.start("aggregator")
            await asyncio.wait_for(running.finished(), 60)
        return running

    done = asyncio.run(interrupted())
    rounds = run(policy, federation=federation)
    assert_same(rounds[-1].after, done.aggregator.tensors)
    assert len(list(models.glob("*.moments"))) == 1  # the newest, and none before it


def test_noise_in_a_networked_round_is_the_policys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is off the mean by noise of the right size, and a sum beyond the bound is not taken for an overflow."""
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)
    policy = replace(TOY, rounds=1, clip_norm=20.0, noise_multiplier=0.05, precision=3, deadline_s=60, release_s=60)
    create(tmp_path / "f", SILOS, 1, policy=policy, insecure=True)
    done = asyncio.run(_finish(tmp_path / "f"))
    (quiet,) = run(replace(policy, noise_multiplier=0.0))
    off = np.concatenate([done.aggregator.tensors[n] - quiet.after[n] for n in quiet.after]) * SILOS  # of the sum
    # Four silos add their noise where three would do.
    expected = 0.05 * 20.0 * np.sqrt(SILOS / 3)
    assert 0.8 * expected < off.std() < 1.2 * expected


# --- what does not show in the model ----------------------------------------------------------------------------------


def test_neither_masks_nor_their_seed_nor_the_level_show_in_the_model() -> None:
    first = run(TOY)[-1].after
    for options in ({"seed": 7}, {"protect": False}):
        assert_same(run(TOY, **options)[-1].after, first)
    assert_same(run(replace(TOY, level=Level.TRUSTED))[-1].after, first)


def test_what_comes_over_the_wire_is_covered_by_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one mask left on, the sum is noise: so masks were there, and each was taken off."""
    left: list[int] = []

    apply = Stream.apply

    def forgetful(stream: Stream, planes: Bytes, index: int, length: int, sign: int = 1) -> None:
        left.extend([1] * (sign < 0))
        if sign > 0 or len(left) > 2:
            apply(stream, planes, index, length, sign)

    monkeypatch.setattr(Stream, "apply", forgetful)
    with pytest.raises(SimulationError, match="out_of_range"):
        run(TOY)
    assert len(left) > 2


def test_processes_do_not_show_in_the_model_and_one_that_dies_ends_the_run() -> None:
    policy = replace(TOY, server=Server.MOMENTUM, subsample=0.8, rounds=3)
    alone = run(policy, 5)
    rounds = simulate(policy, 5, workers=2)
    for expected in alone[:2]:
        found = next(rounds)
        assert found.cohort == expected.cohort
        assert_same(found.after, expected.after)
        for a, b in zip(found.trained, expected.trained, strict=True):
            assert_same(a, b)
    team = rounds.gi_frame.f_locals["team"]  # type: ignore[attr-defined]
    assert isinstance(team, Silos)
    processes = [worker.process for worker in team._workers]
    os.kill(processes[0].pid, signal.SIGKILL)
    processes[0].join()
    with pytest.raises(SimulationError, match="a worker process ended with code -9"):
        list(rounds)
    assert not any(process.is_alive() for process in processes)


# --- what a round holds -----------------------------------------------------------------------------------------------


def test_a_round_shows_each_silos_model_and_the_mean_of_what_it_encodes() -> None:
    first, second = run(TOY)
    assert first.cohort == tuple(range(SILOS))
    for silo, trained in zip(first.cohort, first.trained, strict=True):
        update = Toy(silo, 500).update(1)
        assert all(np.array_equal(trained[name], first.before[name] + update[name]) for name in update)
    assert_same(second.before, first.after)
    exact = run(TOY, vanilla=True)[0]
    for name in exact.after:
        assert np.abs(first.after[name] - exact.after[name]).max() <= 0.5 / 9999 + 1e-7
    assert first.metrics == {"accuracy": 0.5, "loss": 1.0}
    assert first.training == ({"loss": 1.0},) * SILOS
    assert set(first.seconds) == {"wait", "train", "encode", "mask", "apply", "evaluate", "total"}
    parts = sum(seconds for phase, seconds in first.seconds.items() if phase != "total")
    assert parts == pytest.approx(first.seconds["total"], abs=0.05)
    assert 0 < first.training_share < 1


def test_the_seed_draws_the_silos_of_a_round() -> None:
    policy = replace(TOY, subsample=0.5, minimum_cohort=4, rounds=6)
    cohorts = [[r.cohort for r in run(policy, 8, seed=seed)] for seed in (1, 1, 2)]
    assert cohorts[0] == cohorts[1] != cohorts[2]
    assert all(len(cohort) == 4 for cohort in cohorts[0])
    assert len(set(cohorts[0])) > 1


def test_a_run_goes_on_from_its_state_as_if_it_had_not_stopped() -> None:
    policy = replace(TOY, server=Server.ADAM, rounds=4, clip_norm=1.0, noise_multiplier=0.1)
    whole = run(policy, seed=3)
    resumed = run(policy, seed=3, start=whole[1].state)
    assert [r.round for r in resumed] == [3, 4]
    assert_same(resumed[-1].after, whole[-1].after)
    assert run(policy, start=whole[-1].state) == []


class Statistics:
    """A batch norm's statistics in little: a weight that hardly moves, and a buffer that goes to 30 and beyond."""

    def __init__(self, silo: int) -> None:
        self.silo = silo

    def schema(self) -> Schema:
        return Schema((TensorSpec("weight", (4,)), TensorSpec("running_var", (4,), buffer=True)))

    def initial(self) -> dict[str, Any]:
        return {"weight": np.full(4, 0.05, np.float32), "running_var": np.ones(4, np.float32)}

    def train(self, tensors: Tensors, round: int) -> Trained:  # noqa: A002
        moved = tensors["weight"] + np.float32(0.0123 / (self.silo + round))
        seen = np.full(4, 30 + self.silo, np.float32)
        return Trained({"weight": moved, "running_var": seen}, 1, {})

    def evaluate(self, tensors: Tensors) -> dict[str, float]:
        return {"accuracy": 0.0, "loss": 0.0}


def statistics(silo: int = -1) -> Statistics:
    return Statistics(silo)


def test_automatic_bounds_clip_no_statistics_and_keep_the_digits_of_weights() -> None:
    task = f"{__name__}:statistics"
    fixed, auto = Policy(task=task, rounds=3), Policy(task=task, rounds=3, bound=AUTO)
    clipped, rounds, plain = run(fixed, 3), run(auto, 3), run(fixed, 3, vanilla=True)
    assert [done.clipped for done in clipped] == [12, 12, 12]
    assert [done.clipped for done in rounds] == [0, 0, 0]
    # Round 1: room for what is not known. Then: the largest value, or four times the last change (29 or so, then 0).
    assert [done.bounds for done in rounds] == [(1.0, 64.0), (0.0625, 128.0), (0.0625, 32.0)]
    for ours, theirs in zip(rounds, plain, strict=True):
        for name, bound in zip(("weight", "running_var"), ours.bounds, strict=True):
            step = bound / 9999
            error = np.abs(ours.after[name] - ours.before[name] - (theirs.after[name] - theirs.before[name]))
            assert error.max() <= step * 1.01 + 1e-6
    first, *_ = rounds
    again = list(simulate(auto, 3, seed=1, start=first.state))
    assert [done.bounds for done in again] == [done.bounds for done in rounds[1:]]
    assert_same(again[-1].after, rounds[-1].after)


def test_automatic_bounds_are_the_networked_ones_through_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aggregator and silos compute the same bounds from what they kept, and the models are those of the simulation."""
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)
    policy = Policy(task=f"{__name__}:statistics", rounds=5, bound=AUTO, deadline_s=60, release_s=60)
    federation = create(tmp_path / "f", SILOS, 1, policy=policy, insecure=True)
    bounds: dict[int, tuple[float, ...]] = {}

    async def interrupted() -> InProcess:
        async with InProcess(tmp_path / "f") as running:
            for round_, name in ((2, "aggregator"), (3, "silo-02"), (4, "silo-03")):
                while running.aggregator.core.round < round_:  # noqa: ASYNC110 - what has no event is polled
                    await asyncio.sleep(0.005)
                await running.stop(name)
                if name == "silo-03":  # it has lost all models, and gets both from the aggregator
                    shutil.rmtree(tmp_path / "f" / name / "state" / "models")
                running.start(name)
            await asyncio.wait_for(running.finished(), 60)
        return running

    def proposed(self: Aggregator, chain: tuple[str, ...]) -> list[Effect]:
        effects = propose(self, chain)
        assert self.manifest is not None
        bounds[self.manifest.round] = self.manifest.bounds
        return effects

    propose = Aggregator._propose
    monkeypatch.setattr(Aggregator, "_propose", proposed)
    done = asyncio.run(interrupted())
    rounds = run(policy, federation=federation)
    assert [r.cohort for r in done.aggregator.history] == [SILOS] * 5
    assert list(bounds.values()) == [r.bounds for r in rounds]
    assert len(set(bounds.values())) > 2
    assert_same(rounds[-1].after, done.aggregator.tensors)


def test_the_model_is_measured_when_asked() -> None:
    policy = replace(TOY, rounds=5)
    assert [bool(r.metrics) for r in run(policy, evaluate_every=2)] == [False, True, False, True, True]
    assert not any(r.metrics for r in run(policy, evaluate_every=0))


def test_noise_repeats_with_its_seed_and_has_its_size() -> None:
    policy = replace(TOY, rounds=1, clip_norm=50.0, noise_multiplier=0.02, precision=3)
    one, again, other = (run(policy, seed=seed)[0].after["a"] for seed in (1, 1, 2))
    (quiet,) = run(replace(policy, noise_multiplier=0.0))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    off = (one - quiet.after["a"]) * SILOS
    assert off.std() == pytest.approx(0.02 * 50 * np.sqrt(SILOS / 3), rel=0.2)


def test_groups_give_the_median_of_their_means() -> None:
    """Nine toy silos differ by their number: the median of three groups' means lies between the outer ones."""
    policy = replace(TOY, rounds=1, group_size=3, server=Server.MEDIAN)
    (found,) = run(policy, 9, seed=5)
    (plain,) = run(replace(policy, group_size=0, server=Server.AVERAGE), 9)
    (grouped,) = run(replace(policy, server=Server.AVERAGE), 9, seed=5)
    assert np.allclose(grouped.after["a"], plain.after["a"], atol=1e-6)
    assert not np.allclose(found.after["a"], plain.after["a"], atol=1e-6)
    updates = np.stack([Toy(i, 500).update(1)["b"] for i in range(9)])
    lowest, highest = np.sort(updates[:, 0])[[2, 6]]
    assert lowest < found.after["b"][0] < highest
    assert not np.array_equal(run(policy, 9, seed=6)[0].after["a"], found.after["a"])


# --- what goes wrong --------------------------------------------------------------------------------------------------


class Greedy(Toy):
    """Writes into the model that it is given."""

    def train(self, tensors: Mapping[str, np.ndarray[Any, Any]], round: int) -> Trained:  # noqa: A002
        tensors["b"][:] = 1.0
        return super().train(tensors, round)


def greedy(silo: int = -1, parameters: int = 500) -> Toy:
    return Greedy(silo, parameters)


def wrong_in_one(silo: int = -1) -> Toy:
    return Toy(silo, 500, broken=silo == 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"task": "tests.models.simulation.test_simulate:wrong_in_one", "task_options": {}},
            "silo 2 in round 1: b holds 1 value",
        ),
        ({"task": "tests.models.simulation.test_simulate:greedy"}, "silo 0 in round 1: .*read-only"),
        ({"task": "tests.nodes.nowhere:task"}, "there is no module"),
        ({"task_options": {"paramters": 3}}, "did you mean parameters"),
        ({"noise_multiplier": 1.0}, "clip_norm"),
        ({"server": Server.MEDIAN}, "group_size"),
    ],
)
def test_what_is_wrong_is_said_with_the_silo_and_the_round(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Exception, match=says) as caught:
        run(replace(TOY, **changes))
    assert "UserError" in [kind.__name__ for kind in type(caught.value).__mro__]


def test_a_value_that_is_not_finite_is_found_without_encoding_too() -> None:
    policy = replace(TOY, task="tests.models.simulation.test_simulate:wrong_in_one", task_options={})
    with pytest.raises(SimulationError, match="silo 2 in round 1: b holds a value that is not finite"):
        run(policy, vanilla=True)


@pytest.mark.full
def test_evaluation_in_parts_is_the_same() -> None:
    """2,000 test records in lots of 1,024, each in a process of its own."""
    options: Mapping[str, str | int | float | bool] = {"silos": 3, "records": 300, "test_records": 2000}
    with Silos("silomix.models.mlp:task", options, workers=2) as team:
        model = team.judge.initial()
        assert len(team.judge.test[1]) == 2000  # type: ignore[attr-defined]
        assert team.evaluate(model) == team.judge.evaluate(model)


class Dot:
    """A model of one number, without a dimension."""

    def __init__(self, silo: int, dtype: str) -> None:
        self.silo, self.dtype = silo, Dtype(dtype)

    def schema(self) -> Schema:
        return Schema((TensorSpec("dot", (), self.dtype), TensorSpec("buffer", (), self.dtype, buffer=True)))

    def initial(self) -> dict[str, Any]:
        return {t.name: round_to(np.array(0.5), t.dtype) for t in self.schema().tensors}

    def train(self, tensors: Any, round: int) -> Trained:  # noqa: A002
        moved = {t.name: as_float(tensors[t.name], t.dtype) + 0.125 * (self.silo + 1) for t in self.schema().tensors}
        return Trained({t.name: round_to(np.asarray(moved[t.name]), t.dtype) for t in self.schema().tensors}, 1, {})

    def evaluate(self, tensors: Any) -> dict[str, float]:
        return {"accuracy": 0.0, "loss": 0.0}


def dot(silo: int = -1, dtype: str = "F32") -> Dot:
    return Dot(silo, dtype)


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"server": Server.ADAM, "server_lr": 0.01},
        {"server": Server.MEDIAN, "group_size": 3},
        {"clip_norm": 1.0},
        {"update": UpdateKind.WEIGHTS},
        {"vanilla": True},
    ],
    ids=str,
)
def test_a_tensor_without_a_dimension_stays_a_tensor(dtype: Dtype, changes: dict[str, Any]) -> None:
    """What numpy computes of arrays without a dimension is no array, and has no flags to set."""
    options = {"vanilla": changes["vanilla"]} if "vanilla" in changes else {}
    policy = Policy(task=f"{__name__}:dot", task_options={"dtype": str(dtype)}, rounds=2, bound=4.0)
    policy = replace(policy, **{key: value for key, value in changes.items() if key != "vanilla"})
    first, second = simulate(policy, 6, **options)
    for model in (first.after, second.before, second.after):
        assert all(isinstance(array, np.ndarray) and array.shape == () for array in model.values())
    before, after = (float(as_float(np.asarray(one.after["dot"]), dtype)) for one in (first, second))
    assert after > before
