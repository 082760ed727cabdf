"""The drill: honest nodes withstand every attack that a built rule forbids, and none of them where the rule is off."""

import re
from pathlib import Path

import pytest

from silomix.attacks.active import drill
from silomix.attacks.active.acts.casts import AGGREGATOR, LAST_HOP, WITH_FIRST
from silomix.attacks.active.acts.cost.roles import BETWEEN_HOPS
from silomix.attacks.active.measure import READ
from silomix.attacks.active.registry import Outcome, Result, Rule, all_attacks, find
from silomix.attacks.active.report import refusers, section, summary
from silomix.attacks.active.stage import FIRST, LAST, SECOND
from silomix.attacks.active.without import SWITCHABLE
from silomix.runtime.net.edges import FROM_SILOS, TO_HOPS
from silomix.runtime.net.lines import SERVICES

PAGE = (Path(__file__).parents[3] / "docs" / "attacks.md").read_text()
ALSO = ("invented-model", "forked-log", "cohort-of-friends", "copied-residues")
QUICK = tuple(one for one in all_attacks() if one.cast in (AGGREGATOR, WITH_FIRST, LAST_HOP) or one.name in ALSO)
"""Most attacks share a few federations. Those that need one for themselves have it in the full tests."""
BITING = {rule: [one for one in all_attacks() if one.rule is rule and one.bites] for rule in SWITCHABLE}

REFUSALS = {
    ("shuffler-1", "already_released"): ("same-model-twice",),
    ("shuffler-2", "already_released"): (
        "second-cohort",
        "two-cohorts-in-one-attempt",
        "regrouping",
        "two-releases-of-one-attempt",
    ),
    ("silo-01", "bad_bound"): ("bounds-of-its-own",),
    ("aggregator", "bad_signature"): ("invented-process", "sum-the-aggregator-cannot-trust"),
    ("shuffler-1", "bad_signature"): ("pad-before-all-have-signed", "signed-by-all-but-one"),
    ("shuffler-2", "bad_signature"): ("trailer-by-another",),
    ("shuffler-3", "bad_signature"): (
        "bound-on-a-bare-word",
        "delivery-by-another",
        "delivery-for-another",
        "cohort-changed-on-the-way",
    ),
    ("aggregator", "busy"): ("many-watches",),
    ("shuffler-1", "busy"): ("silent-uploads", "half-open-uploads", "half-sent-messages", "thousands-of-calls"),
    ("shuffler-2", "cohort_too_small"): ("cohort-of-one", "cohort-below-the-minimum"),
    ("shuffler-1", "false_evidence"): (
        "false-evidence-of-a-hop",
        "another-key-as-evidence",
        "evidence-for-another-attempt",
    ),
    ("shuffler-3", "false_evidence"): ("false-evidence-of-the-aggregator",),
    ("shuffler-1", "fenced"): ("pad-of-a-fenced-attempt", "pad-after-the-record"),
    ("shuffler-1", "forked"): ("forked-log", "second-genesis"),
    ("silo-03", "forked"): ("rolled-back-log",),
    ("shuffler-1", "malformed"): ("unparsable-delivery",),
    ("silo-03", "malformed"): ("unparsable-sum", "unparsable-announcement", "unparsable-model", "unparsable-receipt"),
    ("shuffler-2", "not_invited"): ("not-invited",),
    ("shuffler-2", "root_mismatch"): ("trailer-for-another-sum", "chunk-twice"),
    ("shuffler-3", "root_mismatch"): ("delivery-of-an-old-round",),
    ("shuffler-1", "resource_exhausted"): ("first-messages-of-7-mib",),
    ("shuffler-1", "seal_broken"): ("copied-seeds",),
    ("shuffler-2", "seal_broken"): ("copied-body",),
    ("shuffler-1", "unavailable"): ("strangers",),
    ("aggregator", "unknown_peer"): ("hop-asks-for-models",),
    ("shuffler-1", "unknown_peer"): ("silo-in-a-hops-place",),
    ("shuffler-1", "wrong_attempt"): ("attempts-without-end", "old-attempt"),
    ("aggregator", "wrong_chain"): ("silent-deliveries",),
    ("shuffler-1", "wrong_chain"): ("one-hop-left-out", "disjoint-chains", "chain-reordered", "bound-in-the-record"),
    ("shuffler-2", "wrong_chain"): ("silent-relays",),
    ("silo-01", "wrong_chain"): ("short-chain",),
    ("shuffler-1", "wrong_head"): ("far-round", "skipped-round"),
    ("silo-01", "wrong_head"): ("record-without-hops",),
    ("shuffler-1", "wrong_keys"): ("small-order-key-of-a-hop",),
    ("shuffler-2", "wrong_keys"): ("small-order-key-of-the-aggregator",),
    ("aggregator", "wrong_length"): ("pad-too-short",),
    ("shuffler-1", "wrong_length"): ("empty-planes", "giant-first-frame"),
    ("silo-03", "wrong_length"): ("endless-model",),
    ("shuffler-1", "wrong_manifest"): ("old-body",),
    ("shuffler-2", "wrong_manifest"): ("release-of-another-cohort", "two-manifests-of-one-attempt"),
    ("silo-03", "wrong_manifest"): ("old-receipt",),
    ("shuffler-1", "wrong_model"): ("crafted-initial-model",),
    ("shuffler-2", "wrong_model"): ("different-manifests-by-hop",),
    ("silo-01", "wrong_model"): ("different-models", "different-models-with-a-hop"),
    ("silo-03", "wrong_model"): ("odd-status-for-a-model",),
    ("aggregator", "wrong_pad"): ("another-pad",),
    ("silo-03", "wrong_pad"): ("wrong-sum-for-one-silo",),
    ("shuffler-1", "wrong_policy"): ("chosen-draws", "ended-on-a-named-hop"),
    ("aggregator", "wrong_round"): ("seeds-of-a-failed-attempt",),
    ("shuffler-1", "wrong_round"): ("other-silos-in-the-record", "old-manifest"),
    ("silo-03", "wrong_round"): ("ended-on-a-word",),
    ("shuffler-3", "wrong_schema"): ("invented-size",),
    ("silo-01", "wrong_schema"): ("genesis-of-another-shape",),
    ("shuffler-2", "wrong_sequence"): ("three-names", "trailer-missing"),
    ("silo-01", "wrong_step"): ("invented-model", "wrong-mean", "model-moved-by-a-bit", "model-repeated"),
    ("silo-03", "wrong_step"): ("adopted-on-few-words",),
}
"""Who refuses an attack, and why: the one refusal, of those that it meets, that it is about."""


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return drill.run(QUICK)


def refused_for_something_else(results: list[Result]) -> dict[str, list[tuple[str, str]]]:
    """The attacks that another refusal has stopped than the one that they are about."""
    about = {name: refusal for refusal, names in REFUSALS.items() for name in names}
    met = {r.attack.name: [(one.node, str(one.reason)) for one in r.loot.refusals] for r in results}
    refused = [r.attack.name for r in results if r.outcome is Outcome.REFUSED]
    return {name: met[name] for name in refused if about[name] not in met[name]}


def page_differs(results: list[Result]) -> dict[str, object]:
    """Where the page says something else of attacks than the drill does: who refused them and why, or what was got."""
    refused = re.findall(r"^\| (`.+`) \| ([^|]+) \| ([a-z_, ]+) \| [^|]+ \|$", PAGE, re.MULTILINE)
    got = re.findall(r"^\| (`[a-z-]+`) \| .*`apart` ([0-9.]+) \|$", PAGE, re.MULTILINE)
    assert len(refused) > 9
    assert len(got) > 2
    by_name = {result.attack.name: result for result in results}
    found: dict[str, object] = {}
    for names, who, why in refused:
        for result in (by_name[name] for name in re.findall(r"`(.+?)`", names) if name in by_name):
            nodes, reasons = refusers(result)
            nodes = "all hops" if set(nodes.split(", ")) == {FIRST, SECOND, LAST} else nodes
            if (nodes, set(reasons.split(", "))) != (who, set(why.split(", "))):
                found[result.attack.name] = (nodes, reasons)
    for name, apart in got:
        measured = by_name.get(name.strip("`"))
        if measured is not None and abs(measured.loot.figures["apart"] - float(apart)) > 0.05:
            found[name] = measured.loot.figures
    return found


@pytest.mark.full
def test_all_others_end_as_the_registry_says() -> None:
    found = drill.run([one for one in all_attacks() if one not in QUICK])
    assert {r.attack.name: (r.outcome, r.loot.said) for r in found if r.outcome is not r.attack.expect} == {}
    assert refused_for_something_else(found) == {}
    assert page_differs(found) == {}


def test_the_page_says_what_the_drill_finds(results: list[Result]) -> None:
    assert page_differs(results) == {}


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


def test_an_attack_is_refused_for_what_it_does_and_not_on_its_way_there(results: list[Result]) -> None:
    assert refused_for_something_else(results) == {}


def test_a_silo_refuses_a_model_only_when_it_has_asked_for_one(results: list[Result]) -> None:
    by_name = {result.attack.name: result.loot.figures for result in results}
    assert by_name["unparsable-model"]["asked"]
    assert by_name["odd-status-for-a-model"]["asked"]
    assert by_name["endless-model"]["parts_of_256_kib"]


def test_somebody_has_said_of_each_attack_why_it_is_refused() -> None:
    known = sorted(name for names in REFUSALS.values() for name in names)
    assert known == sorted(one.name for one in all_attacks() if one.expect is Outcome.REFUSED)


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


def test_what_is_conceded_is_what_the_page_of_threats_says_and_no_more(results: list[Result]) -> None:
    by_name = {result.attack.name: result.loot for result in results}
    assert by_name["not-announced"].figures["told"]
    assert by_name["left-out-with-a-receipt"].figures["told"]
    assert by_name["pad-withheld"].figures["sums"] == 1
    assert by_name["pad-withheld"].figures["cosine_with_the_sum"] > 0.99


def test_the_page_has_the_numbers_that_are_no_cosines(results: list[Result]) -> None:
    by_name = {result.attack.name: result.loot.figures for result in results}
    assert f"no pad in {by_name['pad-before-all-have-signed']['tried']} tries" in PAGE
    assert by_name["wrong-sum-for-one-silo"]["tried"] == 10
    assert "none of ten variants was accepted" in PAGE


def test_somebody_tries_each_method_whose_caller_has_a_role() -> None:
    methods = {name for s in ("AggregatorService", "ShufflerService") for name in SERVICES[s].methods_by_name}
    assert methods == {*FROM_SILOS, *TO_HOPS, *BETWEEN_HOPS, "Submit", "GetStatus"}


def test_without_r6_the_search_of_a_hops_memory_finds_secrets_of_every_kind() -> None:
    """Else it would prove nothing that it finds none."""
    (result,) = drill.run(find(["hop-seized-memory"]), Rule.R6)
    assert {kind: result.loot.figures[kind] > 0 for kind in ("keys", "seeds", "masks")} == dict.fromkeys(
        ("keys", "seeds", "masks"), True
    )


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
