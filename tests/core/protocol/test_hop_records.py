"""What a hop owes when a round ends: the pad it shows, the records it stores, the keys it keeps, who it says has lied."""

from dataclasses import replace

import pytest
from tests.core.protocol.checks import F as CHECKED
from tests.core.protocol.checks import bodies, committed_header, share, trails
from tests.core.protocol.federations import (
    AGGREGATOR,
    agreement,
    cohort,
    counted,
    extended,
    federation,
    flipped,
    headers,
    identity,
    manifest,
    past,
    recorded,
)
from tests.core.protocol.hops import SILOS, F, Hop, opened
from tests.core.protocol.test_forgetting import WHOLE_ROUND_S, ask, in_journal
from tests.core.protocol.test_grouping import F as GROUPED
from tests.core.protocol.test_grouping import grouping
from tests.core.protocol.test_pads import padded, resigned
from tests.core.protocol.test_two_stories import POOL, _stories

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.tamper import Scalars, rhos
from silomix.runtime.core.protocol.check.blame import Case, Charge, Verdict
from silomix.runtime.core.protocol.check.said import HOP_SCALARS, CheckTranscript, Statement, toss
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Bond, Cohort, Manifest
from silomix.runtime.core.protocol.release import Ready, pad_digest
from silomix.runtime.core.protocol.roundlog import Fork
from silomix.runtime.core.protocol.shuffler import (
    UNFIT_ROUNDS,
    Agree,
    Answer,
    CaseIn,
    ChargeIn,
    CohortIn,
    CoinIn,
    Convict,
    Convicted,
    Countersign,
    Delivered,
    ForkSeen,
    Forget,
    Investigate,
    Investigated,
    KeysGone,
    LieSeen,
    Measure,
    Measured,
    ReadyIn,
    RecordIn,
    Reveal,
    RevealIn,
    SendRefused,
    State,
    Stored,
    Tick,
)

# The pad


def test_a_hop_keeps_no_proof_of_another_release_than_it_signed_for() -> None:
    """It shows the proof to an aggregator that lost its own, and to everybody else through it."""
    hop, m, c = padded()
    made = hop.agree(m, c)
    everybody = agreement(made.digest, m.chain)
    right = Bond.of(c, made, everybody)
    for wrong in (
        replace(right, participants=right.participants[1:]),
        replace(right, signatures=(flipped(right.signatures[0]), *right.signatures[1:])),
        replace(right, signatures=right.signatures[:-1]),
    ):
        assert hop.refuses(RevealIn(m.digest, everybody, bond=wrong)) is Reason.WRONG_SEQUENCE
    assert not hop.core.released
    hop.feed(RevealIn(m.digest, everybody, bond=right))
    assert [fact.bond for fact in hop.core.released[m.model]] == [right]


def test_of_two_partitions_of_one_cohort_one_is_released() -> None:
    """The hop was killed between two stories of one attempt, and has signed for both: it shows one pad."""
    hop, told = Hop("hop-2", GROUPED), []
    for groups, minimum in (((0, 0, 0, 1, 1, 1, 1), 3), ((1, 0, 0, 0, 1, 1, 1), 4)):
        m = manifest(GROUPED, minimum_cohort=minimum)
        of = headers(m, GROUPED)
        hop.restart()
        hop.open(m)
        hop.relayed(m, of)
        c = cohort(m, of)
        hop.feed(CohortIn(c, grouping(c, *groups)))
        told.append(RevealIn(m.digest, agreement(hop.agree(m, c).digest, m.chain)))
    first, second = told
    assert isinstance(hop.feed(first)[-1], Reveal)
    assert hop.refuses(second) is Reason.ALREADY_RELEASED
    assert isinstance(hop.feed(first)[-1], Reveal)


def test_the_clock_takes_the_keys_of_a_release_that_was_signed_for_and_leaves_its_pad() -> None:
    """Word that the sum came through never arrived: the keys go in time, and the others may have shown their pads."""
    hop, m, c = padded()
    made = hop.agree(m, c)
    assert hop.feed(Tick(WHOLE_ROUND_S)) == [Remember(KeysGone(1, 1)), Forget()]
    assert isinstance(hop.feed(RevealIn(m.digest, agreement(made.digest, m.chain)))[-1], Reveal)


# Keys, and what the next hop says


def test_keys_of_an_attempt_that_is_prepared_stay_when_the_sum_of_the_one_before_comes_through() -> None:
    hop, m, _ = padded()
    hop.feed(ask(hop, 1, 2))
    assert hop.feed(Delivered(m.digest)) == [Remember(KeysGone(1, 1)), Forget()]
    assert set(hop.core.keys) == {(1, 2)} == set(in_journal(hop))


def test_what_the_next_hop_refused_of_an_earlier_attempt_does_not_end_this_one() -> None:
    hop, m = opened()
    hop.open(manifest(F, attempt=2))
    late = PeerFault(Reason.WRONG_ATTEMPT, "attempt 1 is over")
    assert hop.feed(SendRefused(m.digest, late)) == []
    assert hop.core.state is State.OPEN


# Records


def test_a_record_that_counts_replaces_another_only_if_it_goes_on_from_the_same_history() -> None:
    one, other = _stories(POOL)
    hop = Hop("hop-1", POOL)
    hop.feed(RecordIn(one))
    lead = identity(AGGREGATOR)
    for wrong, reason in (
        (replace(other, previous=bytes(32)).signed(lead), Reason.WRONG_HEAD),
        (replace(other, model_before=bytes(32), model_after=bytes(32)).signed(lead), Reason.WRONG_MODEL),
        (replace(other, signature=bytes(64)), Reason.BAD_SIGNATURE),
    ):
        assert hop.refuses(RecordIn(counted(wrong, POOL, ("hop-2", "hop-3")))) is reason
    assert hop.core.log.head == one.digest


def test_a_hop_goes_on_from_a_record_that_it_does_not_know_to_count_with_one_that_does() -> None:
    hop, (one, _) = Hop("hop-1", POOL), _stories(POOL)
    hop.feed(RecordIn(one))
    assert not hop.core.counts
    following = counted(recorded(extended(past(POOL), one)), POOL, ("hop-2", "hop-3"))
    effects = hop.feed(RecordIn(following))
    assert effects[0] == Remember(Stored(following))
    assert isinstance(effects[-1], Countersign)
    assert hop.core.log.records[1:] == [one, following]


def test_a_hop_that_was_told_two_stories_countersigns_the_one_that_it_has_stored_as_often_as_it_is_asked() -> None:
    hop, (one, other) = Hop("hop-1"), _stories(F)
    (*_, signed) = hop.feed(RecordIn(one))
    assert isinstance(signed, Countersign)
    with pytest.raises(Fork) as caught:
        hop.feed(RecordIn(other))
    hop.feed(ForkSeen(caught.value))
    for _ in range(2):
        assert hop.feed(RecordIn(one)) == [signed]
        hop.restart()
