"""The drill: honest nodes withstand every attack that a built rule forbids, and none of them where the rule is off."""

import pytest

from silomix.attacks.active import drill
from silomix.attacks.active.acts.casts import AGGREGATOR, LAST_HOP, WITH_FIRST
from silomix.attacks.active.measure import READ
from silomix.attacks.active.registry import Outcome, Result, Rule, all_attacks, find
from silomix.attacks.active.report import section, summary
from silomix.attacks.active.without import SWITCHABLE

ALSO = ("invented-model", "forked-log", "cohort-of-friends", "copied-residues")
QUICK = tuple(one for one in all_attacks() if one.cast in (AGGREGATOR, WITH_FIRST, LAST_HOP) or one.name in ALSO)
"""Most attacks share a few federations. Those that need one for themselves have it in the full tests."""
BITING = {rule: [one for one in all_attacks() if one.rule is rule and one.bites] for rule in SWITCHABLE}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return drill.run(QUICK)


@pytest.mark.full
def test_all_others_end_as_the_registry_says() -> None:
    found = drill.run([one for one in all_attacks() if one not in QUICK])
    assert {r.attack.name: (r.outcome, r.loot.said) for r in found if r.outcome is not r.attack.expect} == {}


def test_nothing_succeeds(results: list[Result]) -> None:
    assert not [(r.attack.name, r.loot.said) for r in results if r.outcome is Outcome.BROKEN]
    assert not [r.attack.name for r in results if r.outcome is Outcome.SUCCEEDED]


def test_each_attack_ends_as_the_registry_says(results: list[Result]) -> None:
    """What is better than the registry says has to be written there: an attack that is closed is not open."""
    other = {r.attack.name: r.outcome for r in results if r.outcome is not r.attack.expect}
    assert not other


def test_a_refusal_names_a_node_and_a_reason(results: list[Result]) -> None:
    for result in results:
        if result.outcome is Outcome.REFUSED:
            assert all(r.node and r.reason for r in result.loot.refusals), result.attack.name


def test_what_is_conceded_or_open_is_measured(results: list[Result]) -> None:
    """These are promises that nobody makes: the figures say how much they give away."""
    given_away = [r for r in results if r.outcome in (Outcome.CONCEDED, Outcome.OPEN)]
    assert [r.attack.name for r in given_away if not r.loot.figures] == []
    apart = {r.attack.name: r.loot.figures["apart"] for r in given_away if "apart" in r.loot.figures}
    assert apart["successive-models"] > READ
    assert {name for name, found in apart.items() if found > READ} >= {"cohort-of-friends", "successive-models"}
    by_name = {result.attack.name: result.loot.figures for result in results}
    assert by_name["cohort-of-friends"]["error"] < 0.01
    assert abs(by_name["copied-residues"]["apart"]) < 0.3  # noise


def test_an_attack_is_open_only_for_as_long_as_a_rule_is_missing() -> None:
    for one in all_attacks():
        if one.expect is Outcome.OPEN:
            assert one.closed_by, one.name
            assert not one.bites, one.name


def test_the_summary_and_the_section_tell_the_same(results: list[Result]) -> None:
    told, shown = summary(results), section(results)
    assert told["runs"] == len(results) == len(shown["rows"]) == len(told["by_attack"])
    for outcome in ("succeeded", "conceded", "open"):
        names = [name for name, one in told["by_attack"].items() if one["outcome"] == outcome]
        assert told[outcome] == len(names) == shown["counts"][outcome]
    assert shown["held"] is not bool(told["succeeded"] + told["broken"])
    assert all(len(row) == len(shown["columns"]) for row in shown["rows"])
    refused = told["by_attack"]["same-model-twice"]["refused_by"]
    assert {one["reason"] for one in refused} == {"already_released"}


def test_who_lies_about_a_model_is_named_by_every_silo(results: list[Result]) -> None:
    (found,) = (r for r in results if r.attack.name == "invented-model")
    named = {(r.node, r.reason) for r in found.loot.refusals}
    assert named == {(f"silo-0{i}", "wrong_step") for i in range(1, 7)}
    assert any("aggregator signed that round" in r.sentence for r in found.loot.refusals)


def test_two_stories_leave_evidence_at_whoever_hears_both(results: list[Result]) -> None:
    by_name = {result.attack.name: result.loot.figures for result in results}
    assert by_name["forked-log"]["evidence"] == 3
    assert by_name["rolled-back-log"]["evidence"] == 4


@pytest.mark.parametrize("rule", SWITCHABLE)
def test_without_a_rule_an_attack_on_it_succeeds(rule: Rule) -> None:
    assert BITING[rule], "a rule that no attack is about"
    (result,) = drill.run(BITING[rule][:1], rule)
    assert result.outcome is Outcome.SUCCEEDED, result.loot.said


@pytest.mark.full
@pytest.mark.parametrize("rule", SWITCHABLE)
def test_without_a_rule_all_attacks_on_it_succeed(rule: Rule) -> None:
    found = drill.run(BITING[rule][1:], rule)
    assert {r.attack.name: r.outcome for r in found} == {one.name: Outcome.SUCCEEDED for one in BITING[rule][1:]}


def test_attacks_are_told_of_as_they_begin_and_end() -> None:
    heard: list[tuple[str, bool]] = []
    drill.run(find(["second-genesis"]), told=lambda attack, result: heard.append((attack.name, result is None)))
    assert heard == [("second-genesis", True), ("second-genesis", False)]
