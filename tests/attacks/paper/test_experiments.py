"""The experiments on accuracy: each runs from end to end on a task that costs nothing, and their claim in little."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from tests.nodes.toy import Toy

from silomix.attacks.paper import accuracy_trials
from silomix.attacks.paper.accuracy import EXPERIMENTS
from silomix.attacks.paper.accuracy_trials import Setting, floor_to, measure, policy_for
from silomix.models.simulation.experiment import Experiment, Scale
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.policy import UpdateKind

SCALE = Scale("quick", (1,), 1)
TINY = Setting("tests.attacks.paper.test_experiments:tiny", light=True, about="tiny")
T = TypeVar("T")


def tiny(silo: int = -1, **options: Any) -> Toy:
    """A task that takes any option and heeds none."""
    return Toy(silo, 60)


class Counting:
    """Counts the points that were announced and asked for, and checks that they are plain JSON by unique keys."""

    def __init__(self) -> None:
        self.planned = 0
        self.keys: list[str] = []

    def plan(self, points: int) -> None:
        self.planned += points

    def point(self, key: str, compute: Callable[[], T]) -> T:
        self.keys.append(key)
        value = compute()
        assert json.loads(json.dumps(value)) == value
        return value


RUNNABLE = [e for e in EXPERIMENTS if e.state == "runs here" and e.id != "accuracy-synthetic"]


@pytest.mark.parametrize("experiment", RUNNABLE, ids=lambda e: e.id)
def test_an_experiment_runs_and_its_tables_are_whole(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(accuracy_trials.SETTINGS, "digits", TINY)
    progress = Counting()
    assert experiment.run is not None
    result = experiment.run(SCALE, progress)
    assert len(progress.keys) == len(set(progress.keys)) == progress.planned
    assert result.notes
    for table in result.tables:
        assert len(table.rows) > 2
        assert all(len(row) == len(table.columns) for row in table.rows)
    json.dumps(result.json())


def test_the_registry_has_no_id_twice_and_names_data_that_exists() -> None:
    assert len({e.id for e in EXPERIMENTS}) == len(EXPERIMENTS)
    for experiment in EXPERIMENTS:
        assert set(experiment.data) <= set(accuracy_trials.SETTINGS)


def test_data_that_is_not_there_is_said() -> None:
    experiment = next(e for e in EXPERIMENTS if e.id == "accuracy-by-precision")
    assert experiment.run is not None
    with pytest.raises(UserError, match="one of digits"):
        experiment.run(Scale("quick", (1,), 1, data="imagenet"), Counting())


def test_rounding_down_is_the_papers() -> None:
    values = np.array([0.19, -0.11, -0.95, 0.0, 0.1])
    assert floor_to(1)(values).tolist() == pytest.approx([0.1, -0.2, -1.0, 0.0, 0.1])


@pytest.mark.full
def test_three_digits_are_as_good_as_floats_and_one_rounded_down_is_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim "accuracy is preserved" in little: a few rounds on the digits, whole models as the paper sends them."""
    setting = Setting("silomix.models.digits:task", {"epochs": 2, "lr": 0.1, "alpha": 1.0}, light=True)
    monkeypatch.setitem(accuracy_trials.SETTINGS, "digits", setting)
    base = replace(policy_for("digits", Scale("test", (1,), 4), 1), update=UpdateKind.WEIGHTS)
    vanilla = measure("digits", base, 10, 1, vanilla=True)
    three = measure("digits", replace(base, precision=3), 10, 1)
    down = measure("digits", base, 10, 1, floor=1)
    assert vanilla["accuracies"][-1] > 0.5
    assert abs(three["accuracy"] - vanilla["accuracy"]) < 0.02
    assert down["accuracy"] < 0.15
    assert vanilla["range"][0] < 0 < vanilla["range"][1]
    assert vanilla["outside"] == 0.0
