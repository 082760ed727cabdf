"""Rule R3: what all sign before a pad is shown, and what a hop and the aggregator do when they have, and only then."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from tests.core.protocol.federations import (
    AGGREGATOR,
    MODEL,
    agreement,
    bond,
    cohort,
    federation,
    flipped,
    headers,
    identity,
    manifest,
    pad,
    ready,
)
from tests.core.protocol.hops import SILOS, F, Hop, opened, passed_on
from tests.core.protocol.test_aggregator import Node

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.protocol.aggregator import AgreedIn, AskPads, GiveUp, Keep, PadIn, PadRefused, Phase, Sealed
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Bond, Cohort, Manifest
from silomix.runtime.core.protocol.release import (
    Ready,
    Trail,
    check_agreed,
    check_pads,
    check_ready,
    check_trails,
    pad_digest,
)
from silomix.runtime.core.protocol.shuffler import (
    Agree,
    CohortIn,
    Delivered,
    ReadyIn,
    Released,
    Reveal,
    RevealIn,
    Signed,
)

THREE = federation(hops=3)
M = manifest(THREE)
C = cohort(M, headers(M, THREE))
R = ready(M, C)


def refused(check: Callable[[], None]) -> Reason:
    with pytest.raises(PeerFault) as caught:
        check()
    return caught.value.reason


def resigned(trail: Trail, **changes: Any) -> Trail:
    """A trail with changes that its hop has signed."""
    return replace(trail, **changes).signed(identity(trail.hop))


# Trails

FIRST, SECOND, THIRD = R.trails
TRAILS: dict[str, tuple[tuple[Trail, ...], Reason]] = {
    "none": ((), Reason.WRONG_CHAIN),
    "another order": ((SECOND, FIRST, THIRD), Reason.WRONG_CHAIN),
    "one is left out": ((FIRST, THIRD), Reason.WRONG_CHAIN),
    "one too many": ((*R.trails, THIRD), Reason.WRONG_CHAIN),
    "in another's name": ((FIRST, replace(FIRST, hop="hop-2"), THIRD), Reason.BAD_SIGNATURE),
    "nobody's signature": ((FIRST, replace(SECOND, signature=bytes(64)), THIRD), Reason.BAD_SIGNATURE),
    "a bit of a signature": ((replace(FIRST, signature=flipped(FIRST.signature)), SECOND), Reason.BAD_SIGNATURE),
    "another cohort": (tuple(resigned(t, cohort=bytes(32)) for t in R.trails), Reason.WRONG_MANIFEST),
    "one of another cohort": ((FIRST, resigned(SECOND, cohort=bytes(32)), THIRD), Reason.WRONG_MANIFEST),
    "one of another grouping": ((FIRST, resigned(SECOND, grouping=bytes(32)), THIRD), Reason.WRONG_MANIFEST),
    "something else came in": ((FIRST, resigned(SECOND, came=bytes(32)), THIRD), Reason.ROOT_MISMATCH),
    "a pad of zeros, which is on nothing": (
        (FIRST, resigned(SECOND, pad=pad_digest(Secret(bytes(32)))), THIRD),
        Reason.WRONG_PAD,
    ),
    "something else went out": ((FIRST, resigned(SECOND, sent=bytes(32)), THIRD), Reason.ROOT_MISMATCH),
}


def test_trails_of_an_honest_chain_are_accepted_as_they_grow() -> None:
    for hops in (1, 2, 3):
        check_trails(R.trails[:hops], C.digest, M.chain, THREE)
    check_ready(R, C.digest, M.chain, THREE)


@pytest.mark.parametrize("case", TRAILS)
def test_trails_that_cannot_be_are_refused(case: str) -> None:
    trails, reason = TRAILS[case]
    assert refused(lambda: check_trails(trails, C.digest, M.chain, THREE)) is reason


def test_a_release_needs_the_trails_of_the_whole_chain() -> None:
    for hops in (0, 1, 2):
        short = Ready(M.digest, MODEL, R.trails[:hops])
        assert refused(lambda r=short: check_ready(r, C.digest, M.chain, THREE)) is Reason.WRONG_CHAIN  # type: ignore[misc]
    assert refused(lambda: check_ready(R, bytes(32), M.chain, THREE)) is Reason.WRONG_MANIFEST


def test_no_part_of_a_release_can_change_without_its_digest() -> None:
    seen = {
        R.digest,
        replace(R, manifest=bytes(32)).digest,
        replace(R, model=bytes(32)).digest,
        Ready(M.digest, MODEL, R.trails[:2]).digest,
    }
    for name in ("came", "sent", "pad"):
        for place in range(3):
            trails = tuple(resigned(t, **{name: bytes(32)}) if i == place else t for i, t in enumerate(R.trails))
            seen.add(Ready(M.digest, MODEL, trails).digest)
    for name in ("cohort", "grouping"):
        seen.add(Ready(M.digest, MODEL, tuple(resigned(t, **{name: bytes(32)}) for t in R.trails)).digest)
    assert len(seen) == 4 + 9 + 2


def test_no_part_of_a_trail_can_change_without_its_digest() -> None:
    names = [f.name for f in fields(Trail) if f.name != "signature"]
    values: dict[str, Any] = {name: "hop-2" if name == "hop" else bytes(32) for name in names}
    assert len({FIRST.digest, *(replace(FIRST, **{k: v}).digest for k, v in values.items())}) == len(names) + 1


# Signatures and pads


def test_a_release_needs_every_signature_in_its_place() -> None:
    good = agreement(R.digest, M.chain)
    check_agreed(R.digest, good, M.chain, THREE)
    for bad in (
        (),
        good[:-1],  # the aggregator has not signed
        good[1:],
        good[::-1],
        (*good, good[-1]),
        (*good[:2], good[1], good[3]),
        (*good[:3], ("silo-1", identity("silo-1").sign(R.digest))),
        (*good[:3], (AGGREGATOR, identity("hop-1").sign(R.digest))),
        (*good[:3], (AGGREGATOR, flipped(good[3][1]))),
        agreement(bytes(32), M.chain),  # over something else
    ):
        assert refused(lambda s=bad: check_agreed(R.digest, s, M.chain, THREE)) is Reason.BAD_SIGNATURE  # type: ignore[misc]


def test_pads_are_those_that_were_committed_to() -> None:
    pads = {hop: pad(hop, M.digest) for hop in M.chain}
    check_pads(R, pads)
    for hop in M.chain:
        for bad in ({**pads, hop: pad("another")}, {h: p for h, p in pads.items() if h != hop}):
            assert refused(lambda p=bad: check_pads(R, p)) is Reason.WRONG_PAD  # type: ignore[misc]


# A hop


def padded(name: str = "hop-2") -> tuple[Hop, Manifest, Cohort]:
    """A hop whose padded sum has left it."""
    hop, m = opened("hop-1")
    of = headers(m, F)
    if name == "hop-1":
        found = passed_on(hop.submit(*of))
        assert found is not None
        return hop, m, found.cohort
    hop, m = opened(name)
    hop.relayed(m, of)
    hop.feed(CohortIn(cohort(m, of)))
    return hop, m, cohort(m, of)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", ["hop-1", "hop-2"])
def test_a_hop_signs_one_release_of_an_attempt_and_remembers_it_first(name: str, restart: bool) -> None:
    hop, m, c = padded(name)
    made = hop.ready(m, c)
    effects = hop.feed(ReadyIn(m.digest, made.trails))
    fact = Signed(1, 1, m.digest, made.digest, c.silos, m.model)
    assert effects == [Remember(fact), Agree(identity(name).sign(made.digest))]
    if restart:
        hop.restart()
    assert hop.feed(ReadyIn(m.digest, made.trails)) == effects[1:]  # asked again
    place = 1 if name == "hop-1" else 0
    trails = list(made.trails)
    trails[place] = resigned(trails[place], pad=bytes(32))  # the other hop commits to another pad
    assert hop.refuses(ReadyIn(m.digest, tuple(trails))) is Reason.ALREADY_RELEASED


@pytest.mark.parametrize("crash", [0, 1])
def test_a_hop_that_is_killed_while_it_signs_signs_no_other(crash: int) -> None:
    hop, m, c = padded()
    made = hop.ready(m, c)
    hop.feed(ReadyIn(m.digest, made.trails), crash)
    other = (resigned(made.trails[0], pad=bytes(32)), made.trails[1])
    if crash:
        assert hop.refuses(ReadyIn(m.digest, other)) is Reason.ALREADY_RELEASED
    else:
        assert hop.feed(ReadyIn(m.digest, other))


def test_a_hop_signs_only_what_it_has_passed_on_itself() -> None:
    hop, m, c = padded()
    first, own = hop.ready(m, c).trails
    for trails, reason in (
        ((first, resigned(own, pad=bytes(32))), Reason.WRONG_PAD),
        ((resigned(first, grouping=bytes(32)), resigned(own, grouping=bytes(32))), Reason.WRONG_PAD),
        ((resigned(first, cohort=bytes(32)), resigned(own, cohort=bytes(32))), Reason.WRONG_MANIFEST),
        ((first,), Reason.WRONG_CHAIN),
        ((first, replace(own, sent=bytes(32))), Reason.BAD_SIGNATURE),
    ):
        assert hop.refuses(ReadyIn(m.digest, trails)) is reason
    assert hop.refuses(ReadyIn(bytes(32), (first, own))) is Reason.FENCED
    assert not hop.core.signed


def test_a_pad_is_shown_with_all_signatures_and_after_the_fact_is_written() -> None:
    hop, m, c = padded()
    made = hop.ready(m, c)
    everybody = agreement(made.digest, m.chain)
    assert hop.refuses(RevealIn(m.digest, everybody)) is Reason.WRONG_SEQUENCE  # it has not signed itself
    hop.feed(ReadyIn(m.digest, made.trails))
    for missing in range(3):
        assert hop.refuses(RevealIn(m.digest, everybody[:missing] + everybody[missing + 1 :])) is Reason.BAD_SIGNATURE
    assert hop.refuses(RevealIn(m.digest, agreement(bytes(32), m.chain))) is Reason.BAD_SIGNATURE
    assert not hop.core.released
    remember, reveal = hop.feed(RevealIn(m.digest, everybody))
    assert remember == Remember(Released(1, 1, m.digest, made.digest, SILOS, m.model, ()))
    assert isinstance(reveal, Reveal)
    assert reveal.pad == hop.core.padded[m.digest].pad
    assert hop.feed(RevealIn(m.digest, everybody)) == [reveal]
    hop.restart()
    assert hop.feed(RevealIn(m.digest, everybody)) == [reveal]


@pytest.mark.parametrize("crash", [0, 1])
def test_a_hop_that_is_killed_before_it_shows_its_pad_has_the_fact_or_has_shown_nothing(crash: int) -> None:
    hop, m, c = padded()
    made = hop.agree(m, c)
    hop.feed(RevealIn(m.digest, agreement(made.digest, m.chain)), crash)
    assert bool(hop.core.released) is bool(crash)
    again = manifest(F, 1, 2, bound=bond(SILOS[:3]))
    if crash:
        assert hop.refuses_to_open(again) is Reason.ALREADY_RELEASED
    else:
        hop.open(again)


def test_of_two_stories_of_one_attempt_one_is_released() -> None:
    """The hop was killed, made other keys for the same attempt, and passed another cohort's sum on."""
    hop, m, c = padded()
    hop.feed(Delivered(m.digest))
    first = hop.agree(m, c)
    hop.restart()
    told = manifest(F, minimum_cohort=4, deadline_s=60)
    assert told.digest != m.digest
    of = headers(told, F)
    hop.open(told)
    hop.relayed(told, of)
    c_again = cohort(told, of)
    hop.feed(CohortIn(c_again))
    second = hop.agree(told, c_again)
    assert hop.feed(RevealIn(told.digest, agreement(second.digest, told.chain)))
    assert hop.feed(RevealIn(m.digest, agreement(first.digest, m.chain)))  # for the same silos: the same sum
    fact = hop.core.released[m.model][0]
    hop.core.released[m.model] = [replace(fact, silos=SILOS[:3])]
    assert hop.refuses(RevealIn(m.digest, agreement(first.digest, m.chain))) is Reason.ALREADY_RELEASED


def test_pads_do_not_print() -> None:
    hop, m, c = padded()
    shown = hop.core.padded[m.digest].pad
    for what in (hop.core.padded, Reveal(shown), PadIn("hop-1", m.digest, shown), hop.ready(m, c)):
        assert shown.value.hex() not in repr(what)
        assert repr(shown.value) not in repr(what)


# The aggregator


def test_the_aggregator_signs_last_and_has_kept_the_sum_before() -> None:
    node = Node()
    node.start()
    m, made = node.gather()
    assert node.feed(AgreedIn("hop-2", m.digest, identity("hop-2").sign(made.digest))) == []
    assert not node.of(Sealed)
    effects = node.feed(AgreedIn("hop-1", m.digest, identity("hop-1").sign(made.digest)))
    everybody = agreement(made.digest, m.chain)
    sealed = Sealed(1, 1, m.model, Bond.of(cohort(m, headers(m, F)), made, everybody))
    assert effects == [Keep(m, made, everybody), Remember(sealed), AskPads(made, everybody, sealed.bond)]


def test_a_signature_counts_only_if_it_is_that_hops_and_under_this_release() -> None:
    node = Node()
    node.start()
    m, made = node.gather()
    for signature in (identity("hop-2").sign(made.digest), identity("hop-1").sign(bytes(32)), b""):
        assert node.refuses(AgreedIn("hop-1", m.digest, signature)) is Reason.BAD_SIGNATURE
    good = identity("hop-1").sign(made.digest)
    assert node.feed(AgreedIn("hop-1", bytes(32), good)) == []
    assert node.feed(AgreedIn("hop-9", m.digest, good)) == []
    assert node.core.phase is Phase.READY


def test_a_pad_counts_only_if_it_is_the_one_that_was_committed_to() -> None:
    node = Node()
    node.start()
    m, _ = node.seal()
    assert node.refuses(PadIn("hop-1", m.digest, pad("another"))) is Reason.WRONG_PAD
    assert node.refuses(PadIn("hop-1", m.digest, pad("hop-2", m.digest))) is Reason.WRONG_PAD
    assert node.feed(PadIn("hop-1", bytes(32), pad("hop-1", m.digest))) == []
    assert node.feed(PadIn("hop-9", m.digest, pad("hop-1", m.digest))) == []
    assert node.core.unrevealed == m.chain
    assert node.feed(PadIn("hop-2", m.digest, pad("hop-2", m.digest))) == []
    assert node.core.unrevealed == ("hop-1",)


def test_a_hop_without_its_pad_leads_to_another_attempt_for_the_same_silos() -> None:
    """Others may have shown theirs. That holds in the next round too, and after a restart."""
    node = Node(federation(attempts=2))
    node.start()
    m, made = node.seal(silos=3)
    assert node.feed(PadRefused("hop-2", bytes(32), "of another attempt", 1.0)) == []
    effects = node.feed(PadRefused("hop-2", m.digest, "it is fenced", 1.0))
    assert effects[0] == GiveUp(1, 1, "hop-2: it is fenced", abandoned=False)
    again, _ = node.seal(1.0, silos=3)
    assert (again.attempt, again.bound_to, again.earlier) == (2, SILOS[:3], (m.digest,))
    node.feed(PadRefused("hop-2", again.digest, "it is fenced", 2.0))
    assert node.abandoned() == [1]
    record = node.records[-1]
    assert (record.attempts[0].agreed, record.attempts[0].silos) == (made.digest, SILOS[:3])
    node.store()
    node.restart()
    node.start()
    last = node.announce()
    assert (last.round, last.bound_to) == (2, SILOS[:3])


@pytest.mark.parametrize("survives", [0, 1, 2, 3])
def test_a_restart_goes_on_with_a_release_that_was_signed_for_and_with_no_other(survives: int) -> None:
    """The signature is on the disk before it is anywhere else: without it, nobody can have shown a pad."""
    node = Node()
    node.start()
    m, made = node.gather()
    node.feed(AgreedIn("hop-2", m.digest, identity("hop-2").sign(made.digest)))
    node.feed(AgreedIn("hop-1", m.digest, identity("hop-1").sign(made.digest)), survives)
    node.restart()
    effects = node.start()
    if survives < 2:
        assert node.core.phase is Phase.PREPARING
        again = node.announce()
        assert (again.attempt, again.bound_to) == (2, ())
    else:
        (sealed,) = node.of(Sealed)
        assert effects == [AskPads(made, agreement(made.digest, m.chain), sealed.bond)]
        assert node.core.phase is Phase.REVEALING
        node.pads(m)
        node.feed(node.sum_applied(m))
        node.store()
        assert node.applied() == [(1, node.newest[0])]


def test_a_release_that_was_given_up_is_not_gone_back_to() -> None:
    """Its number is not used again, and what is kept of it does not count."""
    node = Node()
    node.start()
    first, _ = node.seal()
    node.feed(PadRefused("hop-2", first.digest, "it is fenced", 1.0))
    second = node.announce(1.0)
    node.restart()
    assert node.kept is not None
    node.start()
    assert node.core.phase is Phase.PREPARING
    third = node.announce()
    assert (second.attempt, third.attempt, third.bound_to) == (2, 3, F.silo_names)
    assert third.earlier == (first.digest, second.digest)


def test_the_newest_of_two_releases_is_the_one_to_go_on_with() -> None:
    node = Node()
    node.start()
    first, _ = node.seal()
    node.feed(PadRefused("hop-2", first.digest, "it is fenced", 1.0))
    second, made = node.seal(1.0)
    node.restart(backwards=True)
    assert node.start() == [AskPads(made, agreement(made.digest, second.chain), node.of(Sealed)[-1].bond)]
