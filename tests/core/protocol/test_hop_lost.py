"""An attempt ends at once when a hop is known to have lost it, and only then."""

import pytest
from tests.core.protocol.federations import cohort, federation, headers
from tests.core.protocol.test_aggregator import Node

from silomix.runtime.core.protocol.aggregator import (
    AskKeys,
    CohortIn,
    GiveUp,
    HeaderIn,
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


def test_a_hop_that_is_lost_before_the_attempt_is_announced_is_waited_for() -> None:
    """While keys are made, the aggregator calls the hop itself: there is nothing to give up."""
    node = Node()
    node.start()
    m = node.propose()
    assert node.feed(HopLost("hop-1", m.digest, WHY, 1.0)) == []
    assert node.core.phase is Phase.OPENING


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
