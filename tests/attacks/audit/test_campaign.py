"""Whole federations under attack, small: the claims of an audit, and each beside a variant that succeeds."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from silomix.attacks.audit.campaign import DISAGGREGATED, Campaign, Findings, options_of, run, splits
from silomix.attacks.errors import AttackError
from silomix.attacks.prior import CLASSES, INVENTED
from silomix.attacks.sia import Outcome, pooled
from silomix.attacks.views.view import CONTROLS, PROTECTED, Mode
from silomix.runtime.core.policy import Policy

SMALL = Policy(rounds=2, task_options={"model": "linear", "epochs": 3, "lr": 0.2})
"""Logistic regression: trains in a blink, and gives its silos away all the same."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def found() -> Findings:
    return run(Campaign(SMALL, seed=6, baselines=True))


def test_unprotected_and_shuffled_silos_give_themselves_away(found: Findings) -> None:
    assert found.targets == 340
    for mode in (Mode.NONE, Mode.MODEL, Mode.LAYER):
        assert found.outcomes[mode].best.interval[0] > 0.2
    assert found.outcomes[Mode.PARAMETER].best.interval[0] > 0.1


@pytest.mark.parametrize("mode", PROTECTED)
def test_protected_silos_do_not(found: Findings, mode: Mode) -> None:
    outcome = found.outcomes[mode]
    assert all(score.holds(0.1) for score in (*outcome.rounds, outcome.together))


@pytest.mark.parametrize("mode", CONTROLS)
def test_the_same_attack_succeeds_when_one_assumption_is_taken_away(found: Findings, mode: Mode) -> None:
    assert found.outcomes[mode].best.accuracy > 0.4
    assert found.outcomes[mode].best.accuracy == pytest.approx(found.outcomes[Mode.NONE].best.accuracy, abs=0.02)


def test_ties_are_broken_by_another_die_in_every_mode(found: Findings) -> None:
    assert len({tuple(s.hits for s in found.outcomes[mode].rounds) for mode in PROTECTED}) == len(PROTECTED)


def test_shadow_sets_tell_something_without_any_traffic(found: Findings) -> None:
    assert found.outcomes[CLASSES].last.interval[0] > 0.2
    assert found.outcomes[INVENTED].best.accuracy <= found.outcomes[Mode.PARAMETER].best.accuracy


@pytest.mark.full
def test_changing_cohorts_leak_over_rounds_and_a_constant_cohort_does_not() -> None:
    """The limit that docs/threat-model.md names. The same attack on the same sums, but for who is in them."""
    policy = replace(SMALL, rounds=14, subsample=0.5)
    outcomes = run(Campaign(policy, seed=6, modes=(Mode.SEMI_HONEST,))).outcomes
    assert outcomes[DISAGGREGATED].together.interval[0] > 0.1
    constant = run(Campaign(replace(SMALL, rounds=4), seed=6, modes=(Mode.SEMI_HONEST,))).outcomes
    assert constant[Mode.SEMI_HONEST].together.holds(0.1)


def test_splits_with_a_tiny_silo_are_passed_over() -> None:
    campaign = Campaign(SMALL)
    first, second = (one for _, one in zip(range(2), splits(campaign, 25), strict=False))
    assert (first.seed, second.seed) == (6, 8)
    with pytest.raises(AttackError, match="fewer silos"):
        next(splits(campaign, 1000, tries=2))


def test_outcomes_pool_and_are_read_back(found: Findings) -> None:
    one = found.outcomes[Mode.NONE]
    assert pooled([one, one]).best.targets == 680
    assert Outcome.of(one.counts()) == Outcome.read(one.json()) == one


def test_options_of_the_task_are_added_to() -> None:
    assert options_of(SMALL, epochs=9).task_options == {"model": "linear", "epochs": 9, "lr": 0.2}


def test_a_task_that_is_no_torch_network_is_refused() -> None:
    campaign = Campaign(Policy(task="tests.nodes.toy:task"), silos=3)
    with pytest.raises(AttackError, match="TorchTask"):
        replace(campaign, policy=Policy(task="tests.attacks.audit.plain:task")).victims()
