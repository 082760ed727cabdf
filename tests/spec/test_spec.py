"""The specification in docs/spec: the rules hold, and each of them is needed."""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from tests.spec import tlc
from tests.spec.tlc import SPEC, Outcome


@dataclass(frozen=True)
class Check:
    """One run of TLC. `fails` names the one invariant to check, which must fail; without it what is checked must hold.

    That is all invariants, or `only` one, or one `temporal` property.
    """

    name: str
    module: str
    changes: Mapping[str, str] = field(hash=False)
    fails: str | None = None
    full: bool = False
    only: str | None = None
    temporal: str | None = None

    def run(self) -> Outcome:
        text = tlc.configuration(self.module, self.changes, self.fails or self.only, self.temporal)
        return tlc.check(self.module, text, timeout_s=1800 if self.full else 300, long=self.full)


def hops(honest: int, colluding: int, minimum: int) -> dict[str, str]:
    """The constants for a pool of so many hops."""

    def named(letter: str, count: int) -> str:
        return "{" + ", ".join(f"{letter}{i + 1}" for i in range(count)) + "}"

    return {"Honest": named("h", honest), "Colluding": named("c", colluding), "MinimumHops": str(minimum)}


OFF = "FALSE"
# One honest hop of three, and every step of it on its own, over two rounds.
ONE = hops(1, 2, 3) | {"Rounds": "2", "Records": "2", "Fine": "TRUE"}
TWO_ROUNDS = {"Rounds": "2", "Records": "2", "Attempts": "1"}
# Releases on one model, without the log.
BARE = {"Records": "0"}
# Two of three hops make a chain, and one may be lost.
TWO = {"MinimumHops": "2", "Losses": "1"}
# No cohort leaves, and an attempt is parked when a reveal is heard of.
LATE = {"Park": OFF, "Leaving": OFF}
# Three of four, one of which colludes.
FOUR = hops(3, 1, 3) | {"Losses": "1"}

HOLD = [
    Check("release, one honest hop of three", "Release", ONE),
    Check("progress, one attempt before the calm", "Progress", {"Attempts": "1"}),
    Check("restore", "Restore", {}),
    Check("release", "Release", {}, full=True),
    Check("progress", "Progress", {}, full=True),
    Check("release, two rounds", "Release", TWO_ROUNDS, full=True),
    Check("release, three attempts", "Release", BARE | {"Attempts": "3"}, full=True),
    Check("release, chains of any length", "Release", {"LongChains": "TRUE"}, full=True),
    Check("release, all steps, any two of three hops", "Release", BARE | hops(3, 0, 2) | {"Fine": "TRUE"}, full=True),
    Check("release, all steps, two honest hops", "Release", hops(2, 1, 3) | TWO_ROUNDS | {"Fine": "TRUE"}, full=True),
    Check(
        "release, revealed before all have signed",
        "Release",
        hops(2, 1, 3) | TWO_ROUNDS | {"Fine": "TRUE", "SignedFirst": OFF},
        only="OneCohortPerModel",
        full=True,
    ),
    Check("release, five hops, two rounds", "Release", hops(3, 2, 4) | TWO_ROUNDS, full=True),
    Check("progress, a hop lost", "Progress", hops(4, 0, 3) | {"Losses": "1"}, full=True),
    Check("progress, a hop colludes", "Progress", FOUR, full=True),
    Check("progress, a seed does not open", "Progress", {"Spoilt": "TRUE", "Leaving": OFF}, full=True),
    Check("progress, parked late, but all cohorts stay", "Progress", TWO | LATE | {"SealLast": OFF}, full=True),
    Check("restore, emptied twice", "Restore", {"Lives": "3"}, full=True),
]

BROKEN = [
    # The rules as they are written, each left out.
    Check("reveal before the fact is durable", "Release", ONE | {"DurableFirst": OFF}, "OneCohortPerModel"),
    Check("reveal before all have signed", "Release", {"Fine": "TRUE", "SignedFirst": OFF}, "ReadyBeforeReveal"),
    Check("facts by round number", "Release", ONE | {"FactsByModel": OFF}, "OneCohortPerModel"),
    Check("log not linked", "Release", ONE | {"Attempts": "1", "Fine": OFF, "Linked": OFF}, "AppliedOnce"),
    Check("fences do not hold", "Release", BARE | {"FencesHold": OFF}, "OneCohortPerModel"),
    Check("void after too few fences", "Release", BARE | {"VoidByEnough": OFF}, "OneCohortPerModel", full=True),
    Check("silos take any model", "Release", ONE | {"Lineage": OFF}, "OneCohortPerModel", full=True),
    Check("any cohort will do", "Release", ONE | {"MinimumKept": OFF}, "NoneBelowMinimum", full=True),
    Check("two countersignatures", "Release", ONE | {"OneCountersignature": OFF}, "AppliedOnce", full=True),
    Check("nobody tells", "Progress", TWO | {"Tell": OFF}, "BoundAlike", full=True),
    Check("nothing is resumed", "Progress", {"Resume": OFF}, "NeverStuck"),
    Check(
        "nothing is resumed, as a temporal property",
        "Progress",
        {"Attempts": "1", "Resume": OFF},
        "temporal",
        full=True,
        temporal="Applies",
    ),
    Check("no fences", "Progress", TWO | {"Fences": OFF, "AnswerFirst": OFF}, "BoundAlike", full=True),
    Check(
        "stuck after a reveal before all have signed",
        "Progress",
        {"Attempts": "1", "Spoilt": "TRUE", "Leaving": OFF, "SignedFirst": OFF},
        "NeverStuck",
        full=True,
    ),
    Check("facts are never void", "Progress", TWO | LATE | {"Voids": OFF}, "NeverStuck", full=True),
    # What the model taught: readings of the rules that do not hold.
    Check(
        "facts of the first attempt alone",
        "Release",
        BARE | hops(3, 0, 2) | {"Attempts": "3", "FactsPerAttempt": OFF},
        "OneCohortPerModel",
    ),
    Check(
        "facts of the first attempt alone, three of four",
        "Release",
        BARE | {"Attempts": "3", "FactsPerAttempt": OFF},
        "OneCohortPerModel",
        full=True,
    ),
    Check("silos step before the record counts", "Release", ONE | {"CountedFirst": OFF}, "OneHistory", full=True),
    Check("the aggregator signs T before the hops", "Progress", {"SealLast": OFF}, "NeverStuck", full=True),
    Check("parked only when a reveal is heard of", "Progress", {"Park": OFF}, "NeverStuck"),
    Check("a clock takes pads", "Progress", {"Leaving": OFF, "PadsKept": OFF}, "NeverStuck", full=True),
    Check("fences up to an attempt", "Progress", TWO | {"FenceEach": OFF}, "NeverStuck", full=True),
    Check("opened without answers", "Progress", {"AnswerFirst": OFF}, "BoundAlike", full=True),
    Check("opened without a colluder's answer", "Progress", FOUR | {"EveryHopAnswers": OFF}, "BoundAlike", full=True),
    Check("pending records are not shown", "Restore", {"ShowPending": OFF}, "NeverStuck", full=True),
    Check("m hops are heard", "Restore", {"HearAll": OFF}, "NeverStuck"),
    Check("heard, and yet bound to an earlier life", "Restore", {"HeardIsPromise": OFF}, "NeverStuck", full=True),
]

# What must be possible, lest the rules hold for want of anything happening.
REACHED = [
    Check("two models in a row", "Release", TWO_ROUNDS, "NeverTwoSteps", full=True),
    Check("a step after an abandoned round", "Release", TWO_ROUNDS, "NeverAfterAbandoned", full=True),
    Check("another cohort after a fact is void", "Release", BARE, "NeverVoid", full=True),
]

# R1: one sum per model holds against 2m - |P| - 1 colluding hops, and not against one more.
POOLS = [(3, 2), (4, 3), (5, 3), (5, 4)]
TIGHT = [
    check
    for pool, minimum in POOLS
    for most in [2 * minimum - pool - 1]
    for check in [
        Check(
            f"{most} colluding, {minimum} of {pool}", "Release", BARE | hops(pool - most, most, minimum), full=pool != 4
        ),
        Check(
            f"{most + 1} colluding, {minimum} of {pool}",
            "Release",
            BARE | hops(pool - most - 1, most + 1, minimum),
            "OneCohortPerModel",
            full=pool != 4,
        ),
    ]
]

TEMPORAL = [
    Check("progress", "Progress", {"Attempts": "1"}, temporal="Applies", full=True),
    Check("restore", "Restore", {}, temporal="GoesOn", full=True),
]

Runs = dict[Check, Future[Outcome]]


def cases(checks: list[Check]) -> list[object]:
    return [pytest.param(c, id=c.name, marks=[pytest.mark.full] if c.full else []) for c in checks]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """All runs that were asked for, two at a time: most of a short one is the start of java."""
    tlc.tools()
    asked = [item.callspec.params.get("check") for item in request.session.items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(2) as pool:
        futures = {check: pool.submit(check.run) for check in asked if isinstance(check, Check)}
        yield futures
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("check", cases(HOLD + [c for c in TIGHT if not c.fails]))
def test_the_rules_hold(check: Check, runs: Runs) -> None:
    found = runs[check].result()
    assert found.violated is None, found.text


@pytest.mark.parametrize("check", cases(TEMPORAL))
def test_the_end_comes(check: Check, runs: Runs) -> None:
    """What NeverStuck says of states without a next step, as a temporal property: there is no other way to go on."""
    found = runs[check].result()
    assert found.violated is None, found.text


@pytest.mark.parametrize("check", cases(BROKEN + [c for c in TIGHT if c.fails]))
def test_without_a_rule_it_breaks(check: Check, runs: Runs) -> None:
    found = runs[check].result()
    assert found.violated == check.fails, found.text


@pytest.mark.parametrize("check", cases(REACHED))
def test_things_happen(check: Check, runs: Runs) -> None:
    found = runs[check].result()
    assert found.violated == check.fails, found.text


@pytest.mark.parametrize("module", ["Release", "Progress", "Restore"])
def test_every_rule_is_left_out_once(module: str) -> None:
    """A switch that no broken variant turns off is a rule of which nobody knows whether it is needed."""
    switches = set(re.findall(r"^    (\w+) = TRUE$", (SPEC / f"{module}.cfg").read_text(), re.MULTILINE)) - {"Leaving"}
    assert switches == {k for c in BROKEN if c.module == module for k, v in c.changes.items() if v == OFF} - {
        "Fine",
        "Leaving",
    }
