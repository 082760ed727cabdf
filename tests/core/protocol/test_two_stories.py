"""Two records of one round are evidence, also where neither of them has come to count yet."""

from dataclasses import replace

import pytest
from tests.core.protocol.federations import counted, federation, identity, past, recorded
from tests.core.protocol.hops import F, Hop

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.roundlog import Attempted, Fork, Record
from silomix.runtime.core.protocol.rules import MOST_ATTEMPTS
from silomix.runtime.core.protocol.shuffler import Countersign, Forked, ForkSeen, Prepare, RecordIn, Stored

POOL = federation(hops=3, minimum_hops=2)


def _stories(f: Federation) -> tuple[Record, Record]:
    """Two records of round 1, without countersignatures."""
    log = past(f)
    one = replace(recorded(log), countersignatures=())
    tried = (Attempted(1, bytes(32), log.federation.chain),)
    other = replace(one, attempts=tried).signed(identity(log.federation.aggregator.name))
    assert one.digest != other.digest
    return one, other


def test_a_second_record_is_evidence_although_the_first_does_not_count_yet() -> None:
    hop, (one, other) = Hop("hop-1"), _stories(F)
    hop.feed(RecordIn(one))
    assert not hop.core.counts
    with pytest.raises(Fork) as caught:
        hop.feed(RecordIn(other))
    assert hop.feed(ForkSeen(caught.value)) == [Remember(Forked(one, other))]
    assert hop.core.log.head == one.digest


def test_what_replaces_a_record_that_did_not_count_leaves_evidence_too() -> None:
    hop, (one, other) = Hop("hop-1", POOL), _stories(POOL)
    hop.feed(RecordIn(one))
    counts = counted(other, POOL, ("hop-2", "hop-3"))
    effects = hop.feed(RecordIn(counts))
    assert effects[:2] == [Remember(Forked(one, counts)), Remember(Stored(counts))]
    assert not any(isinstance(effect, Countersign) for effect in effects)
    assert (hop.core.log.head, hop.core.counts) == (other.digest, True)
    assert set(hop.core.forks) == {1}
    hop.restart()
    assert hop.core.log.head == other.digest


def test_nobody_makes_a_hop_write_down_attempts_without_end() -> None:
    hop = Hop("hop-1")
    log = hop.core.log

    def asked(attempt: int) -> Prepare:
        return Prepare(F.digest, 1, attempt, F.silo_names, 0, log.head, 0.0)

    with pytest.raises(PeerFault) as caught:
        hop.feed(asked(MOST_ATTEMPTS + 1))
    assert caught.value.reason is Reason.WRONG_ATTEMPT
    assert hop.core.closed == (0, 0)
    hop.feed(asked(MOST_ATTEMPTS))
    assert hop.core.closed == (1, MOST_ATTEMPTS)
