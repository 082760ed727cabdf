"""An attempt ends at once when a hop is known to have lost it, and only then."""

import pytest
from tests.core.protocol.federations import cohort, federation, headers, identity
from tests.core.protocol.test_aggregator import Node

from silomix.runtime.core.protocol.aggregator import (
    AgreedIn,
    AskKeys,
    CohortIn,
    GiveUp,
    HeaderIn,
    HopGone,
    HopLost,
    OpenedAt,
    Phase,
    Tick,
    Tried,
)
from silomix.runtime.core.protocol.rules import MOST_ATTEMPTS

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
    assert node.feed(HopGone("silo-1", WHY, 3.0)) == []
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


def test_the_hop_that_has_not_opened_the_attempt_is_named_and_not_the_one_after_it() -> None:
    node = Node()
    node.start()
    m = node.propose()
    node.feed(OpenedAt("hop-2", m.digest, 1.0))
    (gave_up, *_) = node.feed(Tick(20.0))
    assert gave_up == GiveUp(1, 1, "hop-1: no answer while opening", abandoned=False)


def test_the_hop_that_has_not_signed_is_named_and_none_that_has() -> None:
    node = Node()
    node.start()
    m, made = node.gather()
    node.feed(AgreedIn("hop-1", m.digest, identity("hop-1").sign(made.digest)))
    (gave_up, *_) = node.feed(Tick(20.0))
    assert gave_up == GiveUp(1, 1, "hop-2: no answer while ready", abandoned=False)


def test_whoever_reads_why_an_attempt_failed_is_told_something_also_if_nobody_is_known_to_have_failed() -> None:
    node = Node()
    node.start()
    m = node.announce()
    for header in headers(m, node.f):
        node.feed(HeaderIn(header))
    node.feed(CohortIn(cohort(m, headers(m, node.f))))
    (gave_up, *_) = node.feed(Tick(80.0))
    assert gave_up == GiveUp(1, 1, "no sum came while releasing", abandoned=False)


def test_no_attempt_is_begun_that_hops_would_make_no_keys_for() -> None:
    """A hop that was merely started again uses up no attempt of the policy's, and still each leaves facts behind."""
    node = Node(federation(attempts=5))
    node.journal.append(Tried(1, MOST_ATTEMPTS - 2, bytes(32), node.f.chain))
    node.restart()
    node.start()
    for attempt in (MOST_ATTEMPTS - 1, MOST_ATTEMPTS):
        m = node.propose()
        assert m.attempt == attempt
        gave_up, *_ = node.feed(HopLost("hop-2", m.digest, WHY, 1.0, restarted=True))
        assert isinstance(gave_up, GiveUp)
        assert gave_up.abandoned is (attempt == MOST_ATTEMPTS)
