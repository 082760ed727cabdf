"""A cohort closes before its deadline once nobody else is likely to come, by what hop 1 has seen itself."""

from math import inf

import pytest
from tests.core.protocol.federations import body, cohort, federation, headers, manifest
from tests.core.protocol.hops import Hop

from silomix.runtime.core.errors import Reason
from silomix.runtime.core.pace import LEAST, ROUNDS, SLACK, Pace
from silomix.runtime.core.protocol.messages import Header
from silomix.runtime.core.protocol.shuffler import Count, Counted, Effect, HeaderIn, Release, State, Tick

EARLY = federation(5, early_close=0.8)
TIMES = (1.0, 2.0, 3.0, 4.0)
"""One of five did not come."""


def known(pace: Pace, times: tuple[float, ...] = TIMES, rounds: int = LEAST) -> Pace:
    for _ in range(rounds):
        pace = pace.after(times, 5)
    return pace


def released(effects: list[Effect]) -> tuple[str, ...]:
    return next((effect.cohort.silos for effect in effects if isinstance(effect, Release)), ())


def opened(**policy: object) -> tuple[Hop, list[Header]]:
    f = federation(5, early_close=0.8, **policy)
    hop, m = Hop("hop-1", f), manifest(f)
    hop.core.pace = known(hop.core.pace)
    hop.open(m)
    return hop, headers(m, f)


def test_nothing_is_waited_for_longer_than_the_share_of_silos_took_and_half_as_long_again() -> None:
    assert known(Pace(0.8)).patience_s == SLACK * 4.0
    assert known(Pace(0.4)).patience_s == SLACK * 2.0


def test_too_little_is_known_or_nothing_is_to_be_learned() -> None:
    assert known(Pace(0.8), rounds=LEAST - 1).patience_s == inf
    assert known(Pace(0.0)).patience_s == inf


def test_whoever_is_left_out_counts_as_slow_so_that_rounds_do_not_get_shorter_and_shorter() -> None:
    """Else those who came in time would be the measure, and the slowest of them left out next."""
    pace = known(Pace(0.8), TIMES[:3])  # two of five are missing: more than the policy allows
    assert pace.patience_s == inf
    assert known(pace, (1.0,) * 5, ROUNDS).patience_s == SLACK  # old rounds are forgotten


def test_a_cohort_closes_early_for_those_who_are_here() -> None:
    hop, of = opened()
    assert hop.core.wake_at() == 60  # nobody is here: there is nothing to close for
    hop.submit(*of[:4])
    assert hop.core.wake_at() == SLACK * 4.0
    assert hop.feed(Tick(5.9)) == []
    assert released(hop.feed(Tick(6.0))) == tuple(h.silo for h in of[:4])
    assert hop.refuses(HeaderIn(of[4], of[4].silo)) is Reason.COHORT_CLOSED


def test_never_for_fewer_than_the_minimum() -> None:
    hop, of = opened()
    hop.submit(*of[:2])
    assert hop.core.wake_at() == 60
    assert hop.feed(Tick(30.0)) == []
    assert hop.core.state is State.OPEN
    hop.submit(of[2])
    assert released(hop.feed(Tick(30.0))) == tuple(h.silo for h in of[:3])


def test_never_for_a_cohort_that_hops_would_refuse() -> None:
    """It differs from the last one by a single silo: it waits for the others, and does not give up."""
    f = federation(5, early_close=0.8, cohort_step=2)
    hop, first = Hop("hop-1", f), manifest(f)
    hop.open(first)
    hop.submit(*headers(first, f))
    hop.conclude(first, cohort(first, headers(first, f)))
    hop.core.pace = known(hop.core.pace)
    m = manifest(f, 2, log=hop.log)
    hop.open(m)
    of = headers(m, f)
    hop.submit(*of[:4])
    assert hop.core.wake_at() == SLACK * 4.0
    assert hop.feed(Tick(6.0)) == []
    assert hop.core.state is State.OPEN
    assert hop.core.wake_at() == 60  # it is not looked at again before somebody comes
    assert len(released(hop.submit(of[4]))) == 5


def test_a_first_attempt_teaches_how_long_silos_take_and_no_other() -> None:
    f = federation(4, early_close=1.0)
    for attempt in (1, 2):
        hop, m = Hop("hop-1", f), manifest(f, attempt=attempt)
        hop.open(m, now=10.0)
        for place, h in enumerate(headers(m, f)):
            hop.core.step(HeaderIn(h, h.silo))
            assert [type(effect) for effect in hop.core.step(body(h))] == [Count]
            hop.core.step(Counted(h, 11.0 + place))
        assert hop.core.pace.rounds == (((1.0, 2.0, 3.0, 4.0),) if attempt == 1 else ())


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_without_the_key_only_the_deadline_closes(share: float) -> None:
    hop, m = Hop("hop-1", federation(5, early_close=share)), manifest(federation(5, early_close=share))
    hop.open(m)
    hop.submit(*headers(m, hop.f)[:4])
    assert hop.core.wake_at() == 60
    assert hop.feed(Tick(59.0)) == []
    assert len(released(hop.feed(Tick(60.0)))) == 4


def test_only_the_first_hop_waits_and_never_beyond_the_deadline() -> None:
    """So long whoever asks is told to wait."""
    m = manifest(EARLY)
    for name, pace, waits in (
        ("hop-2", known(Pace(0.8)), 0.0),
        ("hop-1", Pace(0.8), 60.0),
        ("hop-1", known(Pace(0.8)), SLACK * 4.0),
        ("hop-1", known(Pace(0.8), (100.0,) * 5), 60.0),
    ):
        hop = Hop(name, EARLY)
        hop.core.pace = pace
        hop.open(m)
        assert hop.core.waits_s == waits


@pytest.mark.parametrize("shown", [False, True])
def test_silos_for_whom_a_sum_has_left_are_waited_for_until_the_deadline(shown: bool) -> None:
    """For fewer of them nothing is released any more: to close early would be to give up."""
    hop, m = Hop("hop-1", EARLY), manifest(EARLY)
    hop.open(m)
    hop.submit(*headers(m, EARLY)[:4])
    assert len(released(hop.feed(Tick(60.0)))) == 4
    if shown:
        hop.show(m, cohort(m, headers(m, EARLY)[:4]))
        m = manifest(EARLY, attempt=2)
    hop.restart()
    hop.core.pace = known(hop.core.pace)
    hop.open(m)
    of = headers(m, EARLY)
    hop.submit(*of[:3])
    assert hop.feed(Tick(30.0)) == []
    assert hop.core.state is State.OPEN
    if shown:
        assert hop.core.waits_s == 60.0
    hop.submit(of[3])
    assert hop.core.state is (State.RELEASING if shown else State.OPEN)
    if not shown:
        assert len(released(hop.feed(Tick(60.0)))) == 4
