"""The one judge: protected, a leak, or nothing settled."""

from typing import Any

import pytest
from tests.attacks.audit.made_up import ALL, active, judged, outcome, report

from silomix.attacks.active.registry import Outcome
from silomix.attacks.audit.page import page
from silomix.attacks.audit.verdict import Expectation, judge
from silomix.attacks.sia import Score

RANDOM = 0.2


def expect(rate: float, *, hidden: bool, ours: bool = True, targets: int = 1000) -> Expectation:
    return Expectation("it", Score(round(rate * targets), targets), RANDOM, hidden, ours)


def test_all_as_expected_is_protected() -> None:
    verdict = judge([expect(0.2, hidden=True), expect(0.5, hidden=False)])
    assert verdict.protected
    assert verdict.text("All is well.") == "PROTECTED. All is well."


@pytest.mark.parametrize("rate", [0.3, 0.1])
def test_a_guess_that_is_not_a_random_one_where_silomix_hides_is_a_leak(rate: float) -> None:
    """One that is wrong too often tells something too: turn it round."""
    verdict = judge([expect(rate, hidden=True), expect(0.5, hidden=False)])
    assert verdict.word == "LEAK"
    assert f"{rate:.1%}" in verdict.text("")
    elsewhere = judge([expect(rate, hidden=True, ours=False)])
    assert elsewhere.word == "NOT SETTLED"
    assert not elsewhere.leaks


def test_a_control_that_fails_settles_nothing_and_neither_does_an_empty_audit() -> None:
    verdict = judge([expect(0.2, hidden=True), expect(0.22, hidden=False)])
    assert verdict.word == "NOT SETTLED"
    assert not verdict.leaks
    assert "does not beat" in str(verdict.findings[0])
    assert judge([]).word == "NOT SETTLED"
    assert "nothing was measured" in judge([]).text("")


def test_few_records_are_not_taken_for_protection() -> None:
    assert judge([expect(0.4, hidden=False, targets=20)]).word == "NOT SETTLED"


def test_what_was_not_measured_is_not_expected() -> None:
    assert Expectation.of("it", None, RANDOM, hidden=True) == []


def test_an_audit_in_which_all_is_as_it_should_be() -> None:
    verdict = report()["verdict"]
    assert verdict["protected"]
    assert not verdict["findings"]
    assert verdict["text"].startswith("PROTECTED. ")
    assert "10.0%" in verdict["text"]
    assert "50.0%" in verdict["text"]


@pytest.mark.parametrize(
    ("where", "rate", "leak"),
    [
        (("sia", "semi-honest"), 0.3, True),
        (("sia", "trusted"), 0.3, True),
        (("sia", "semi-honest-all-but-one"), 0.3, True),
        (("real", 0, "captured"), 0.3, True),
        (("real", 0, "all_but_one"), 0.3, True),
        (("sia", "unary"), 0.3, False),
        (("sia", "none"), 0.1, False),
        (("sia", "layer"), 0.1, False),
        (("sia", "semi-honest-all-collude"), 0.1, False),
        (("real", 0, "unprotected"), 0.1, False),
        (("real", 0, "all_collude"), 0.1, False),
    ],
)
def test_every_number_that_the_verdict_rests_on_can_change_it(
    where: tuple[str | int, ...], rate: float, leak: bool
) -> None:
    changed: Any = report()
    place = changed
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = outcome(rate)
    found = judged(changed)
    verdict = found["verdict"]
    assert not verdict["protected"]
    assert verdict["leak"] == leak
    assert len(verdict["findings"]) == 1
    assert verdict["text"].startswith("LEAK. " if leak else "NOT SETTLED. ")
    assert ("LEAK" if leak else "NOT SETTLED") in page(found, ALL)


def test_on_a_task_of_ones_own_a_shuffle_that_is_not_undone_settles_nothing_else() -> None:
    changed = report(own=True)
    changed["sia"]["layer"] = outcome(0.1)
    assert judged(changed)["verdict"]["protected"]


def test_an_active_attack_that_succeeds_is_a_leak_and_one_that_could_not_be_mounted_settles_nothing() -> None:
    assert report()["verdict"]["protected"]
    succeeded = report(active=active(Outcome.SUCCEEDED, Outcome.CONCEDED))
    assert succeeded["verdict"]["leak"]
    assert succeeded["verdict"]["findings"] == ["active attack short-chain: it succeeded"]
    broken = report(active=active(Outcome.REFUSED, Outcome.BROKEN))
    assert not broken["verdict"]["leak"]
    assert broken["verdict"]["findings"] == ["active attack smallest-cohort: it could not be mounted"]
    shown = page(report(), ALL)
    assert "Attacks that do not keep to the protocol" in shown
    assert "wrong_chain" in shown
    assert "apart 0.1" in shown
