"""Rule R6: nothing outlives the round. Keys go when its sum has come through, pads with its record or its time."""

import pytest
from tests.core.protocol.federations import (
    agreement,
    applied,
    bond,
    cohort,
    federation,
    header,
    headers,
    manifest,
    past,
    recorded,
)
from tests.core.protocol.hops import SILOS, F, Hop, opened, opening, passed_on, released

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.shuffler import (
    Closed,
    CohortIn,
    Countersign,
    Delivered,
    Event,
    Forget,
    HeaderIn,
    Keys,
    KeysGone,
    KeysMade,
    Padded,
    PadGone,
    Prepare,
    ReadyIn,
    RecordIn,
    Reveal,
    RevealIn,
    SendRefused,
    Spoiled,
    State,
    Stored,
    Tick,
)

WHOLE_ROUND_S = F.policy.attempts * (F.policy.deadline_s + F.policy.release_s)


def ask(hop: Hop, round_: int, attempt: int = 1, now: float = 0.0) -> Prepare:
    return Prepare(F.digest, round_, attempt, SILOS, 0, hop.log.head, now)


def secrets(hop: Hop) -> list[Secret]:
    """All private keys that a hop has in memory now."""
    return [key for keys in hop.core.keys.values() for key in keys.values()]


def in_journal(hop: Hop) -> list[tuple[int, int]]:
    return [(f.round, f.attempt) for f in hop.journal if isinstance(f, KeysMade)]


@pytest.mark.parametrize("name", ["hop-1", "hop-2"])
def test_keys_and_passage_go_when_the_sum_has_come_through(name: str) -> None:
    hop, m = opened(name)
    assert hop.feed(Delivered(m.digest)) == []  # nothing was released
    of = headers(m, F)
    if name == "hop-1":
        hop.submit(*of)
    else:
        hop.relayed(m, of)
        hop.feed(CohortIn(cohort(m, of)))
    assert hop.feed(Delivered(bytes(32))) == []
    held = secrets(hop)
    assert held
    assert all(any(key.value) for key in held)
    assert hop.feed(Delivered(m.digest)) == [Remember(KeysGone(1, 1)), Forget()]
    assert hop.core.state is State.DONE
    assert not hop.core.keys
    assert not any(any(key.value) for key in held)  # overwritten where they lay
    assert in_journal(hop) == []
    assert set(hop.core.padded) == {m.digest}  # the 32 bytes of its pad are all that is left
    assert hop.core.wake_at() == WHOLE_ROUND_S
    hop.restart()
    assert not hop.core.keys
    assert hop.feed(Delivered(m.digest)) == []


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("over", ["a fence", "a record", "the clock"])
@pytest.mark.parametrize("name", ["hop-1", "hop-2"])
def test_a_sum_is_covered_though_its_pad_is_destroyed_before_it_is_put_on(name: str, over: str, restart: bool) -> None:
    """It may wait for its pad while the pad is destroyed. Under zeros it would leave in clear, unsigned for."""
    hop, m = opened(name)
    of = headers(m, F)
    if restart:  # with a pad that it remembers
        hop.relayed(m, of) if name == "hop-2" else None
        passed_on(hop.submit(*of) if name == "hop-1" else hop.feed(CohortIn(cohort(m, of))))
        hop.restart()
        hop.open(m)
    if name == "hop-2":
        hop.relayed(m, of)
    found = passed_on(hop.submit(*of) if name == "hop-1" else hop.feed(CohortIn(cohort(m, of))))
    assert found is not None
    held, before = hop.core.padded[m.digest].pad, found.pad.copy()
    assert held == before
    ends: dict[str, Event] = {
        "a fence": ask(hop, 1, 2),
        "a record": RecordIn(recorded(hop.log)),
        "the clock": Tick(2 * WHOLE_ROUND_S),
    }
    hop.feed(ends[over])
    assert not any(held.value)
    assert found.pad == before


@pytest.mark.parametrize("restart", [False, True])
def test_everything_goes_with_the_record_of_the_round(restart: bool) -> None:
    """Keys too, if the word that the sum came through never arrived; what stays is for whom it was released."""
    hop, m = opened()
    found = passed_on(hop.submit(*headers(m, F)))
    assert found is not None
    agreed = hop.show(m, found.cohort)
    pad = hop.core.padded[m.digest].pad
    if restart:
        hop.restart()
        pad = hop.core.padded[m.digest].pad
    assert any(pad.value)
    effects = hop.feed(RecordIn(applied(hop.log, m, agreed, SILOS)))
    gone = [Remember(PadGone(1, 1, m.digest)), Remember(KeysGone(1, 1))]
    assert effects[:2] == gone  # first: whoever is killed in between is asked again
    assert (Forget() in effects) is not restart
    assert isinstance(effects[2], Remember)
    assert isinstance(effects[2].fact, Stored)
    assert isinstance(effects[-1], Countersign)
    assert not hop.core.padded
    assert not any(pad.value)  # overwritten where it lay
    assert not hop.core.keys
    assert not [f for f in hop.journal if isinstance(f, Padded | KeysMade)]
    assert hop.core.wake_at() is None
    assert hop.refuses(RevealIn(m.digest, agreement(agreed.digest, m.chain))) is Reason.FENCED
    assert [f.silos for f in hop.core.released[m.model]] == [SILOS]


@pytest.mark.parametrize("signed_for", [False, True])
def test_a_clock_takes_a_pad_that_was_not_signed_for_and_no_other(signed_for: bool) -> None:
    """The others may have shown theirs, if all have signed: this one is wanted however long it takes."""
    hop, m = opened()
    found = passed_on(hop.submit(*headers(m, F)))
    assert found is not None
    hop.feed(Delivered(m.digest))
    agreed = hop.agree(m, found.cohort) if signed_for else hop.ready(m, found.cohort)
    pad = hop.core.padded[m.digest].pad
    assert hop.core.wake_at() == (None if signed_for else WHOLE_ROUND_S)
    effects = hop.feed(Tick(WHOLE_ROUND_S))
    if signed_for:
        assert effects == []
        hop.restart()
        hop.feed(Tick(1e9))
        hop.feed(Tick(2e9))
        assert isinstance(hop.feed(RevealIn(m.digest, agreement(agreed.digest, m.chain)))[-1], Reveal)
    else:
        assert effects == [Remember(PadGone(1, 1, m.digest)), Forget()]
        assert not any(pad.value)
        assert hop.refuses(ReadyIn(m.digest, agreed.trails)) is Reason.FENCED


def test_a_further_attempt_destroys_the_pads_of_earlier_ones_before_it_is_answered() -> None:
    hop, m = opened()
    hop.submit(*headers(m, F))
    pad = hop.core.padded[m.digest].pad
    effects = hop.feed(ask(hop, 1, 2))
    assert effects[:2] == [Remember(Closed(1, 2)), Remember(PadGone(1, 1, m.digest))]
    assert isinstance(effects[-1], Keys)
    assert not any(pad.value)
    assert not [f for f in hop.journal if isinstance(f, Padded)]
    assert not [e for e in hop.feed(ask(hop, 1, 2)) if isinstance(e, Remember)]  # once is enough
    hop.restart()
    assert hop.refuses(opening(m)) is Reason.FENCED
    assert not [e for e in hop.feed(ask(hop, 1, 2)) if isinstance(e, Remember)]


@pytest.mark.parametrize("crash", range(4))
def test_no_crash_leaves_a_pad_behind_a_fence(crash: int) -> None:
    """Killed anywhere on the way, the hop is asked again; once it has answered, the pad is gone."""
    hop, m = opened()
    found = passed_on(hop.submit(*headers(m, F)))
    assert found is not None
    agreed = hop.agree(m, found.cohort)
    hop.feed(ask(hop, 1, 2), crash)
    if crash < 3:
        assert isinstance(hop.feed(ask(hop, 1, 2))[-1], Keys)
    assert not hop.core.padded
    assert hop.refuses(ReadyIn(m.digest, agreed.trails)) is Reason.FENCED
    assert hop.refuses(RevealIn(m.digest, agreement(agreed.digest, m.chain))) is Reason.FENCED
    assert not [f for f in hop.journal if isinstance(f, Padded)]


@pytest.mark.parametrize("crash", range(5))
def test_no_crash_leaves_anything_of_a_round_that_is_on_record(crash: int) -> None:
    hop, m = opened()
    found = passed_on(hop.submit(*headers(m, F)))
    assert found is not None
    record = applied(hop.log, m, hop.show(m, found.cohort), SILOS)
    hop.feed(RecordIn(record), crash)
    if hop.core.log.round == 1:
        assert isinstance(hop.feed(RecordIn(record))[-1], Countersign)
    assert hop.core.log.head == record.digest
    assert not hop.core.padded
    assert not hop.core.keys
    assert not [f for f in hop.journal if isinstance(f, Padded | KeysMade)]


def test_a_pad_that_was_shown_survives_a_further_attempt() -> None:
    """It is out: to destroy it helps nobody, and another hop may still have to be shown what all signed for."""
    hop, m = opened()
    found = passed_on(hop.submit(*headers(m, F)))
    assert found is not None
    agreed = hop.show(m, found.cohort)
    pad = bytes(bytearray(hop.core.padded[m.digest].pad.value))
    assert Remember(Closed(1, 2)) in hop.feed(ask(hop, 1, 2))
    hop.restart()
    (reveal,) = hop.feed(RevealIn(m.digest, agreement(agreed.digest, m.chain)))  # no second fact
    assert isinstance(reveal, Reveal)
    assert reveal.pad.value == pad


@pytest.mark.parametrize("name", ["hop-1", "hop-2"])
def test_a_round_that_nobody_ends_is_let_go_by_the_hops_own_clock(name: str) -> None:
    """Nothing more is ever heard: too few came, the aggregator is gone, or it waits for the keys to pile up."""
    hop, m = Hop(name), manifest(F)
    hop.open(m, 100.0)
    held = secrets(hop)
    wake = hop.core.wake_at()
    assert wake is not None
    hop.feed(Tick(100.0 + F.policy.deadline_s))
    meanwhile: State = State.GIVEN_UP if name == "hop-1" else State.OPEN
    assert hop.core.state is meanwhile
    assert hop.core.wake_at() == 100.0 + WHOLE_ROUND_S
    assert hop.feed(Tick(100.0 + WHOLE_ROUND_S - 0.1)) == []
    assert hop.feed(Tick(100.0 + WHOLE_ROUND_S)) == [Remember(KeysGone(1, 1)), Forget()]
    assert hop.core.state is State.IDLE
    assert hop.core.wake_at() is None
    assert not any(any(key.value) for key in held)
    assert in_journal(hop) == []
    assert hop.refuses(HeaderIn(header(m, "silo-1"), "silo-1")) is Reason.WRONG_MANIFEST


def test_a_padded_sum_that_never_comes_through_is_let_go_too() -> None:
    hop, m = opened()
    hop.submit(*headers(m, F))
    assert hop.core.state is State.RELEASING
    assert hop.core.wake_at() == WHOLE_ROUND_S
    assert hop.feed(Tick(WHOLE_ROUND_S)) == [
        Remember(KeysGone(1, 1)),
        Remember(PadGone(1, 1, m.digest)),
        Forget(),
    ]
    assert not hop.core.released


def test_the_clock_of_a_round_begins_with_its_first_attempt() -> None:
    hop = Hop("hop-1")
    hop.open(manifest(F, 1, 1), 0.0)
    hop.open(manifest(F, 1, 2), 100.0)
    hop.open(manifest(F, 1, 3), WHOLE_ROUND_S - 10.0)
    assert hop.core.wake_at() == WHOLE_ROUND_S  # before the deadline of this attempt
    effects = hop.feed(Tick(WHOLE_ROUND_S + 60.0))  # both are due, and nothing is released any more
    assert effects == [Remember(KeysGone(1, 3)), Forget()]


def test_a_later_round_does_not_set_the_clock_of_an_earlier_one_back() -> None:
    """No round is asked for before the record of the one before, and that takes the keys: both clocks end."""
    hop = Hop("hop-1")
    hop.open(manifest(F, 1), 0.0)
    hop.feed(Tick(60.0))  # given up
    for round_ in (2, 3, 4):
        assert hop.refuses(ask(hop, round_, now=50.0 * round_)) is Reason.WRONG_HEAD
    assert set(hop.core.keys) == {(1, 1)}
    assert hop.core.wake_at() == WHOLE_ROUND_S
    hop.catch_up(past(F, 1).head)
    assert not hop.core.keys
    hop.feed(ask(hop, 2, now=100.0))
    assert hop.core.wake_at() == 100.0 + WHOLE_ROUND_S
    assert hop.feed(Tick(WHOLE_ROUND_S)) == []
    assert hop.feed(Tick(100.0 + WHOLE_ROUND_S)) == [Remember(KeysGone(2, 1))]
    assert hop.core.wake_at() is None


def test_a_further_attempt_does_not_set_the_clock_of_its_round_back() -> None:
    """An aggregator that asks for keys again and again would keep a round alive that it never ends."""
    hop = Hop("hop-1")
    for attempt in (1, 2, 3):
        hop.feed(ask(hop, 1, attempt, now=50.0 * attempt))
    assert hop.core.wake_at() == 50.0 + WHOLE_ROUND_S
    assert hop.feed(Tick(50.0 + WHOLE_ROUND_S)) == [Remember(KeysGone(1, 3))], "those before were never opened"


def test_keys_that_were_made_and_never_used_go_too() -> None:
    hop = Hop("hop-1")
    hop.feed(ask(hop, 1, now=7.0))
    assert hop.core.wake_at() == 7.0 + WHOLE_ROUND_S
    assert hop.feed(Tick(7.0 + WHOLE_ROUND_S)) == [Remember(KeysGone(1, 1))]
    assert not hop.core.keys
    assert hop.core.wake_at() is None


@pytest.mark.parametrize("now", [0.0, 5.0, 1e6])
def test_keys_in_the_journal_of_a_hop_that_comes_back_go_in_time(now: float) -> None:
    """Its clock may begin anywhere: it counts from the moment at which the hop is back, called or not."""
    hop, _ = opened()
    hop.restart()
    assert set(hop.core.keys) == {(1, 1)}
    wake = hop.core.wake_at()
    assert wake is not None
    assert wake <= now  # it wants to know what time it is
    assert hop.feed(Tick(now)) == []
    assert hop.core.wake_at() == now + WHOLE_ROUND_S
    assert hop.feed(Tick(now + WHOLE_ROUND_S - 0.1)) == []
    assert hop.feed(Tick(now + WHOLE_ROUND_S)) == [Remember(KeysGone(1, 1))]
    assert in_journal(hop) == []
    assert hop.core.wake_at() is None


def test_keys_of_attempts_that_were_never_opened_do_not_pile_up() -> None:
    hop = Hop("hop-1")
    hop.open(manifest(F, 1, 1))
    for attempt in range(2, 50):
        hop.feed(ask(hop, 1, attempt))
        assert set(hop.core.keys) == {(1, 1), (1, attempt)} == set(in_journal(hop))
    for attempt in range(50, 60):  # also if the hop forgets each time what is open
        hop.restart()
        hop.feed(ask(hop, 1, attempt))
        assert len(hop.core.keys) <= 2
    hop.catch_up(past(F, 1).head)
    hop.feed(ask(hop, 2))
    assert set(hop.core.keys) == {(2, 1)}


def test_a_given_up_attempt_keeps_its_keys_until_its_time_is_up_or_another_opens() -> None:
    """They are evidence until then: a silo that sealed garbage may still be named."""
    m = manifest(F)
    refused = PeerFault(Reason.BAD_SIGNATURE, "the next hop has another key")
    for event in (Spoiled(m.digest, "the disk is full"), SendRefused(m.digest, refused)):
        hop, _ = opened()
        hop.feed(event)
        assert hop.core.state is State.GIVEN_UP
        assert set(hop.core.keys) == {(1, 1)}
        assert hop.feed(Tick(WHOLE_ROUND_S)) == [Remember(KeysGone(1, 1)), Forget()]


def test_after_its_time_is_up_a_round_may_be_tried_again_and_only_for_the_same_silos() -> None:
    hop, m = opened()
    hop.submit(*headers(m, F)[:3])
    found = passed_on(hop.feed(Tick(60.0)))
    assert found is not None
    hop.show(m, found.cohort)
    hop.feed(Tick(WHOLE_ROUND_S))
    assert hop.core.state is State.IDLE
    again = manifest(F, 1, 2)
    hop.open(again, WHOLE_ROUND_S + 1000)
    assert hop.core.wake_at() == WHOLE_ROUND_S + 1000 + F.policy.deadline_s  # it has all its time again
    assert hop.feed(Tick(WHOLE_ROUND_S + 1000)) == []
    assert hop.refuses(HeaderIn(header(again, "silo-4"), "silo-4")) is Reason.ALREADY_RELEASED
    assert released(hop.submit(*headers(again, F)[:3])) == SILOS[:3]
    assert hop.refuses(opening(manifest(F, 1, 3, bound=bond(SILOS[1:])))) is Reason.ALREADY_RELEASED


def test_a_trusted_federation_lets_go_of_its_passage() -> None:
    f = federation(level=Level.TRUSTED)
    hop, m = opened("hop-2", f)
    assert not hop.core.keys
    assert hop.core.wake_at() == WHOLE_ROUND_S
    assert hop.feed(Tick(WHOLE_ROUND_S)) == [Forget()]
    assert hop.refuses(HeaderIn(header(m, "silo-1"), "hop-1")) is Reason.WRONG_MANIFEST
