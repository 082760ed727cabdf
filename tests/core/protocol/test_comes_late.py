"""What the aggregator takes in of an attempt: what is signed, of this very attempt, and from whom it was asked."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.core.protocol.federations import cohort, federation, flipped, header, headers, identity, ready
from tests.core.protocol.test_aggregator import Node

from silomix.runtime.core.errors import Reason
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.aggregator import (
    AgreedIn,
    AskReady,
    CohortIn,
    Expand,
    HeaderIn,
    HopGone,
    HopReleased,
    Phase,
    SumIn,
    Tick,
    Unopened,
)
from silomix.runtime.core.protocol.messages import Group, Manifest
from silomix.runtime.core.protocol.release import Trail

F = federation()
FOUR = federation(4, 4, minimum_hops=3)


def releasing(node: Node, now: float = 0.0) -> Manifest:
    """Run an attempt up to the moment at which the cohort is known, and its sum on its way."""
    m = node.announce(now)
    for one in headers(m, node.f):
        node.feed(HeaderIn(one))
    node.feed(CohortIn(cohort(m, headers(m, node.f))))
    assert node.core.phase is Phase.RELEASING
    return m


def trails(m: Manifest) -> tuple[Trail, ...]:
    """What hops have signed of the sum over all silos."""
    return ready(m, cohort(m, headers(m, F))).trails


@pytest.mark.parametrize("name", ["hop-3", "silo-1"])
def test_keys_of_whoever_was_not_asked_are_not_taken_in(name: str) -> None:
    """A hop that is lost, or a node that is no hop: nothing that it says of itself is remembered."""
    node = Node(FOUR)
    node.feed(HopGone("hop-3", "it does not answer", 0.0))
    node.start()
    before = node.snapshot()
    assert node.feed(node.keys(name, 1)) == []
    assert node.snapshot() == before
    assert not node.of(HopReleased)


def test_a_header_that_its_silo_has_not_signed_for_this_attempt_costs_no_mask() -> None:
    node = Node()
    node.start()
    first = node.announce()
    node.feed(Tick(80.0))
    m = node.announce(80.0)
    assert node.refuses(HeaderIn(header(m, "silo-1", signer="silo-2"))) is Reason.BAD_SIGNATURE
    assert node.refuses(HeaderIn(header(first, "silo-1"))) is Reason.WRONG_MANIFEST
    assert [type(effect) for effect in node.feed(HeaderIn(header(m, "silo-1")))] == [Expand]


def test_nobody_is_accused_where_nothing_is_sealed() -> None:
    node = Node(federation(level=Level.TRUSTED))
    node.start()
    m = node.announce()
    one = header(m, "silo-1")
    node.feed(HeaderIn(one))
    assert node.feed(Unopened(one)) == []


def test_groups_are_refused_in_a_round_that_has_none() -> None:
    """A sum over some of the silos would show more of them than the policy lets anybody see."""
    node = Node()
    node.start()
    m = node.announce()
    of = headers(m, F)
    for one in of:
        node.feed(HeaderIn(one))
    seeds = tuple(one.seeds[-1] for one in of)
    assert node.refuses(CohortIn(cohort(m, of), (Group(4, seeds),))) is Reason.WRONG_SEQUENCE
    assert node.core.phase is Phase.COLLECTING


LIES: dict[str, tuple[Callable[[tuple[Trail, ...]], tuple[Trail, ...]], Reason]] = {
    "the last hop's is missing": (lambda t: t[:1], Reason.WRONG_CHAIN),
    "in another order": (lambda t: t[::-1], Reason.WRONG_CHAIN),
    "not signed": (lambda t: (t[0], replace(t[1], signature=flipped(t[1].signature))), Reason.BAD_SIGNATURE),
    "of another cohort": (
        lambda t: (t[0], replace(t[1], cohort=bytes(32)).signed(identity("hop-2"))),
        Reason.WRONG_MANIFEST,
    ),
    "that do not meet": (
        lambda t: (t[0], replace(t[1], came=bytes(32)).signed(identity("hop-2"))),
        Reason.ROOT_MISMATCH,
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_no_hop_is_asked_to_sign_for_a_sum_whose_trails_do_not_hold(lie: str) -> None:
    tell, reason = LIES[lie]
    node = Node()
    node.start()
    m = releasing(node)
    assert node.refuses(SumIn(m.digest, tell(trails(m)), 1.0)) is reason
    assert node.core.phase is Phase.RELEASING
    assert [type(effect) for effect in node.feed(SumIn(m.digest, trails(m), 1.0))] == [AskReady]


def test_what_comes_of_an_attempt_that_is_over_is_nobodys_fault_and_changes_nothing() -> None:
    node = Node()
    node.start()
    first = releasing(node)
    late = ready(first, cohort(first, headers(first, F)))
    node.feed(Tick(80.0))
    releasing(node, 80.0)
    before = node.snapshot()
    assert node.feed(SumIn(first.digest, late.trails, 81.0)) == []
    assert node.snapshot() == before
    node = Node()
    node.start()
    first, made = node.gather()
    node.feed(Tick(20.0))
    node.gather(20.0)
    before = node.snapshot()
    assert node.feed(AgreedIn("hop-1", first.digest, identity("hop-1").sign(made.digest))) == []
    assert node.snapshot() == before
