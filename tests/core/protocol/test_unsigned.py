"""Lies with true signatures: an old release as a new round, another's node taken along, numbers that nobody signs."""

from dataclasses import replace
from typing import Any

import pytest
from tests.core.protocol.federations import AGGREGATOR, federation, identity
from tests.core.protocol.nets import Net
from tests.core.protocol.test_aggregator import Node
from tests.core.protocol.test_epochs import E1, accepted, following

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol import shuffler
from silomix.runtime.core.protocol.aggregator import Awake, HeadIn
from silomix.runtime.core.protocol.epochs import consents, owner_of
from silomix.runtime.core.protocol.hearing import MOST_RAISES, life_after
from silomix.runtime.core.protocol.lineage import check_transcript
from silomix.runtime.core.protocol.owners import epoch_digest
from silomix.runtime.core.protocol.roundlog import Outcome, Record, countersign_digest
from silomix.runtime.core.protocol.rules import MOST_ATTEMPTS


def refused(what: object) -> Reason:
    with pytest.raises(PeerFault) as caught:
        what()  # type: ignore[operator]
    return caught.value.reason


def replayed(net: Net) -> Record:
    """Round 3, said to have been applied with what was released in round 1."""
    old, last = net.core.log.records[1], net.core.log.records[2]
    return Record(
        net.f.digest,
        3,
        Outcome.APPLIED,
        old.attempts,
        old.root,
        last.model_after,
        old.model_after,
        last.state_after,
        old.state_after,
        last.digest,
    ).signed(identity(AGGREGATOR))


def test_what_was_released_in_one_round_is_not_applied_in_another() -> None:
    """The aggregator would invent a step: every signature in the record is a true one."""
    net = Net(silos=4, hops=2, rounds=4)
    net.submit()
    net.submit()
    record = replayed(net)
    for hop in net.hops.values():
        assert refused(lambda h=hop: h.core.step(shuffler.RecordIn(record, net.core.life))) is Reason.WRONG_ROUND
    transcript, _ = net.aggregator.sums[1, record.attempts[-1].attempt]
    check_transcript(transcript, net.core.log.records[1], net.f)
    assert refused(lambda: check_transcript(transcript, record, net.f)) is Reason.WRONG_MANIFEST


def test_a_model_is_bound_by_the_log_too() -> None:
    """A hop that is new has no facts of its own, and a model may come back."""
    net = Net(silos=4, hops=2, rounds=4)
    net.submit()
    log = net.core.log
    assert log.released(log.records[1].model_before) == net.f.silo_names
    assert log.released(log.model) == ()


def test_a_copy_that_counts_brings_countersignatures_and_nothing_else() -> None:
    """Without the aggregator's signature, the record would be no evidence against it."""
    net = Net(silos=4, hops=2, rounds=2)
    net.submit()
    hop, last = net.hops["hop-1"], net.core.log.last
    assert last is not None
    hop.core.log.records[-1], hop.core.counts = replace(last, countersignatures=()), False
    signatures = tuple((h, identity(h).sign(countersign_digest(last.digest, h))) for h in net.f.chain)
    hop.core.step(shuffler.RecordIn(replace(last, signature=bytes(64), countersignatures=signatures), net.core.life))
    assert hop.core.counts
    assert hop.core.log.last == last
    assert hop.core.log.last.countersignatures == signatures


def test_a_node_goes_along_with_its_present_owners_signature_alone() -> None:
    """Else a majority would give the node to one of its own, or its owner another key, and sign as that one."""
    node = E1.silo_names[-1]
    owner = owner_of(node, E1, E1)
    thief = next(o for o in E1.owners if o.name != owner)
    taken = following(E1, silos=tuple(replace(s, owner=thief.name) if s.name == node else s for s in E1.silos))
    assert not consents(node, taken, E1, accepted(taken, thief.name))
    assert consents(node, taken, E1, accepted(taken, owner))
    assert owner_of(node, taken, E1) == owner
    another = identity("somebody else")
    owners = tuple(replace(o, key=another.public) if o.name == owner else o for o in E1.owners)
    rekeyed = following(E1, owners=owners)
    assert not consents(node, rekeyed, E1, {owner: another.sign(epoch_digest(rekeyed))})


def awake() -> Node:
    node = Node()
    node.feed(Awake(0.0))
    return node


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": MOST_ATTEMPTS + 1},
        {"last_released": 1 << 60},
    ],
)
def test_numbers_that_nobody_signs_are_held_to_what_can_be(changes: dict[str, Any]) -> None:
    node = awake()
    assert refused(lambda: node.feed(HeadIn("hop-1", node.shown(**changes), 0.0))) is Reason.MALFORMED


def test_a_hop_that_always_knows_of_a_later_process_stops_nobody_who_can_do_without_it() -> None:
    node = Node(federation(hops=4, minimum_hops=3))
    node.feed(Awake(0.0))
    for _ in range(MOST_RAISES):
        life = life_after(int.from_bytes(node.core.life[:8], "big"), node.core._rng)
        node.feed(HeadIn("hop-1", node.shown(life=life), 0.0))
    life = life_after(int.from_bytes(node.core.life[:8], "big"), node.core._rng)
    assert refused(lambda: node.feed(HeadIn("hop-1", node.shown(life=life), 0.0))) is Reason.SUPERSEDED
    for hop in ("hop-2", "hop-3", "hop-4"):
        node.feed(HeadIn(hop, node.shown(), 0.0))
    assert set(node.core.heard) == {"hop-2", "hop-3", "hop-4"}
