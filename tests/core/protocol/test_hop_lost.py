"""An attempt ends at once when a hop is known to have lost it, and only then."""

import pytest
from tests.core.protocol.federations import cohort, federation, headers
from tests.core.protocol.test_aggregator import Node

from silomix.runtime.core.protocol.aggregator import (
    AskKeys,
    CohortIn,
    GiveUp,
    HeaderIn,
    HopGone,
    HopLost,
    Phase,
    Tick,
)

WHY = "it was started again and has lost the attempt, or gave it up"


@pytest.mark.parametrize("hop", ["hop-1", "hop-2"])
@pytest.mark.parametrize("releasing", [False, True])
def test_a_lost_hop_ends_the_attempt_long_before_its_deadline(hop: str, releasing: bool) -> None:
    node = Node()
    node.start()
    m = node.announce()
    if releasing:
        for header in headers(m, node.f):
            node.feed(HeaderIn(header))
        node.feed(CohortIn(cohort(m, headers(m, node.f))))
    effects = node.feed(HopLost(hop, m.digest, WHY, 1.0))
    assert effects[0] == GiveUp(1, 1, f"{hop}: {WHY}", abandoned=False)
    head = node.core.log.head
    assert [e for e in effects if isinstance(e, AskKeys)] == [AskKeys(1, 2, node.f.chain, node.f.silo_names, head)]
    assert node.core.phase is Phase.PREPARING
    assert node.core.trouble == {hop: WHY}
    again = node.announce(2.0)
    assert (again.round, again.attempt) == (1, 2)


@pytest.mark.parametrize("came", [0, 1, 2])
def test_if_too_few_silos_came_until_the_deadline_they_are_named_and_not_the_hop_that_gave_up(came: int) -> None:
    node = Node()
    node.start()
    m = node.announce()
    for header in headers(m, node.f)[:came]:
        node.feed(HeaderIn(header))
    deadline = node.f.policy.deadline_s
    missing = node.f.silo_names[came:]
    assert node.core.missing(0.8 * deadline) == ()  # they may still come
    assert node.core.missing(deadline) == missing
    (gave_up, *_) = node.feed(HopLost("hop-1", m.digest, WHY, deadline))
    assert isinstance(gave_up, GiveUp)
    assert gave_up.why == f"{came} silos came, and a sum needs 3: {', '.join(missing)} did not come in time"
    assert not node.core.trouble


def test_a_later_hop_that_is_lost_at_the_deadline_is_named_too() -> None:
    node = Node()
    node.start()
    m = node.announce()
    (gave_up, *_) = node.feed(HopLost("hop-2", m.digest, WHY, node.f.policy.deadline_s))
    assert isinstance(gave_up, GiveUp)
    assert gave_up.why.endswith(f"did not come in time; hop-2: {WHY}")


def test_with_enough_silos_on_their_way_it_is_the_hop() -> None:
    node = Node()
    node.start()
    m = node.announce()
    for header in headers(m, node.f)[:3]:
        node.feed(HeaderIn(header))
    (gave_up, *_) = node.feed(HopLost("hop-1", m.digest, WHY, node.f.policy.deadline_s))
    assert gave_up == GiveUp(1, 1, f"hop-1: {WHY}", abandoned=False)


def test_a_hop_that_will_never_open_the_attempt_ends_it_at_once() -> None:
    """Its keys are gone, since another hop was waited for too long: new ones are asked for."""
    node = Node()
    node.start()
    m = node.propose()
    effects = node.feed(HopLost("hop-1", m.digest, "the key for silo-1 is not one that this hop made", 1.0))
    assert isinstance(effects[0], GiveUp)
    assert not effects[0].abandoned
    assert [e.attempt for e in effects if isinstance(e, AskKeys)] == [2]
    assert node.core.phase is Phase.PREPARING


def test_an_attempt_whose_keys_were_waited_for_without_end_has_its_time_to_be_opened() -> None:
    node = Node()
    node.start()
    node.feed(node.keys("hop-2"))
    node.feed(HopGone("hop-1", "it does not answer", 1.0))
    node.feed(Tick(node.f.policy.release_s))
    assert node.core.wake_at() is None  # hop-1 is needed, and waited for
    node.feed(node.keys("hop-1", now=10_000.0))
    assert node.core.phase is Phase.OPENING
    assert node.core.wake_at() == 10_000.0 + node.f.policy.release_s


def test_news_of_another_attempt_or_another_hop_changes_nothing() -> None:
    node = Node()
    node.start()
    first = node.announce()
    node.feed(HopLost("hop-1", first.digest, WHY, 1.0))
    second = node.announce(2.0)
    before = node.snapshot()
    assert node.feed(HopLost("hop-1", first.digest, WHY, 3.0)) == []  # of the attempt that is over
    assert node.feed(HopLost("hop-3", second.digest, WHY, 3.0)) == []  # of a hop that is not in the pool
    assert node.feed(HopLost("silo-1", second.digest, WHY, 3.0)) == []
    assert node.snapshot() == before


def test_after_so_many_attempts_the_round_is_abandoned() -> None:
    node = Node(federation(attempts=2))
    node.start()
    for attempt in (1, 2):
        m = node.announce()
        assert m.attempt == attempt
        effects = node.feed(HopLost("hop-2", m.digest, WHY, 1.0))
    assert isinstance(effects[0], GiveUp)
    assert effects[0].abandoned
    assert node.abandoned() == [1]
    assert node.core.round == 2


def test_the_sum_is_worth_more_than_the_hop_that_brought_it() -> None:
    """A hop that is lost when all have signed costs nothing: its pad is in its journal."""
    node = Node()
    node.start()
    m, _ = node.seal()
    assert node.feed(HopLost("hop-1", m.digest, WHY, 1.0)) == []
    node.pads(m)
    assert node.feed(HopLost("hop-1", m.digest, WHY, 1.0)) == []
    node.feed(node.sum_applied(m, 2.0))
    assert node.core.round == 2
    assert node.feed(HopLost("hop-1", m.digest, WHY, 3.0)) == []


def test_a_hop_that_never_answers_is_named_when_the_time_is_up() -> None:
    """Also if nobody has told the machine of a failed call: a hop that is cut off lets a call wait, not fail."""
    node = Node()
    node.start()
    node.feed(node.keys("hop-1"))
    (gave_up, *_) = node.feed(Tick(20.0))
    assert gave_up == GiveUp(1, 1, "hop-2: no answer while preparing", abandoned=False)
    node.feed(node.keys("hop-2"))
    assert node.core.trouble == {}
    node.feed(node.keys("hop-1"))
    (gave_up, *_) = node.feed(Tick(60.0))
    assert isinstance(gave_up, GiveUp)
    assert gave_up.why == "hop-2: no answer while opening"  # the last hop is asked first to open the attempt
