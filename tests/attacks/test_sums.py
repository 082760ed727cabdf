"""Attacks on sums alone: colluding silos, and rounds with changing cohorts."""

from dataclasses import replace

import numpy as np
import pytest
from tests.attacks.networks import truth

from silomix.attacks.errors import AttackError
from silomix.attacks.sums import disaggregate, without_colluders
from silomix.attacks.views.simulated import view_of
from silomix.attacks.views.view import Mode, View
from silomix.runtime.task import Tensors


def summed(n: int = 5) -> tuple[View, tuple[Tensors, ...]]:
    true = truth(n)
    return view_of(true, Mode.TRUSTED, np.random.default_rng(0)), true.trained


def test_all_other_silos_together_know_the_last_ones_model() -> None:
    view, trained = summed()
    models = without_colluders(view, {i: trained[i] for i in range(4)})
    assert all(np.abs(models[4][n] - trained[4][n]).max() < 5e-4 for n in trained[4])
    assert models[2] is trained[2]


def test_two_honest_silos_stay_alike() -> None:
    view, trained = summed()
    models = without_colluders(view, {i: trained[i] for i in range(3)})
    assert models[3] is models[4]
    for name in trained[0]:
        middle = (trained[3][name] + trained[4][name]) / 2
        assert np.abs(models[3][name] - middle).max() < 5e-4


def rounds(cohorts: list[tuple[int, ...]], silos: int = 6) -> tuple[list[View], np.ndarray]:
    """Sums of silos that move by the same update in every round."""
    true = truth(silos)
    names = [t.name for t in true.schema.tensors]
    updates = np.stack([np.concatenate([u[n].reshape(-1) for n in names]) for u in true.updates])
    empty = true.empty()
    views = []
    for cohort in cohorts:
        mean = empty.whole(updates[list(cohort)].mean(axis=0))
        views.append(replace(empty, cohort=cohort, mean=mean))
    return views, updates


def test_changing_cohorts_of_steady_silos_are_taken_apart() -> None:
    """The limit that docs/threat-model.md names: sums over many different cohorts determine the silos."""
    picks = np.random.default_rng(3)
    cohorts = [tuple(sorted(picks.choice(6, 3, replace=False).tolist())) for _ in range(24)]
    views, updates = rounds(cohorts)
    models = disaggregate(views)
    names = [t.name for t in views[0].schema.tensors]
    for silo, model in zip(views[0].cohort, models[0], strict=True):
        found = np.concatenate([(model[n] - views[0].before[n]).reshape(-1) for n in names])
        assert np.corrcoef(found, updates[silo])[0, 1] > 0.9


def test_the_same_cohort_every_time_tells_nothing_apart() -> None:
    views, _ = rounds([(0, 1, 2, 3, 4, 5)] * 8)
    for models in disaggregate(views):
        assert all(np.array_equal(m[n], models[0][n]) for m in models for n in m)


def test_a_view_without_a_sum_is_refused() -> None:
    true = truth()
    with pytest.raises(AttackError, match="sum"):
        disaggregate([true.empty()])
    with pytest.raises(AttackError, match="sum"):
        without_colluders(true.empty(), {})
