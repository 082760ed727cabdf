"""Protocol section 5: what a silo joins, what it seals to whom, and what it does not do twice."""

from copy import copy
from dataclasses import replace
from typing import Any

import pytest
from tests.core.protocol.federations import (
    AGGREGATOR,
    LOGS,
    MODEL,
    OTHER_MODEL,
    OTHER_STATE,
    applied,
    attempted,
    cohort,
    counted,
    extended,
    federation,
    fence,
    flipped,
    headers,
    identity,
    manifest,
    past,
    private,
    ready,
    recorded,
    rng,
)

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import commitment, unseal
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Manifest, Receipt
from silomix.runtime.core.protocol.roundlog import Fork
from silomix.runtime.core.protocol.rules import check_header
from silomix.runtime.core.protocol.silo import (
    Announced,
    Done,
    Effect,
    Event,
    Fact,
    Follow,
    Forked,
    ForkSeen,
    Joined,
    ReceiptIn,
    RecordsIn,
    Silo,
    State,
    Stored,
    TakePart,
)

F = federation(hops=3, minimum_hops=1)
"""Three hops, of which any one would do: for chains that are formed anew. No federation file allows that."""
ROOT = bytes([9]) * 32


class Node:
    """A silo with a journal."""

    def __init__(self, required: tuple[str, ...] = ()) -> None:
        self.required = required
        self.journal: list[Fact] = []
        self.restart()
        self.feed(RecordsIn(tuple(past(F).records)))

    def restart(self) -> None:
        self.core = Silo(F, identity("silo-1"), self.required)
        for fact in self.journal:
            self.core.recall(fact)

    def snapshot(self) -> dict[str, Any]:
        state = {name: copy(value) for name, value in vars(self.core).items()}
        joined = {r: list(j) for r, j in self.core.joined.items()}
        return {**state, "joined": joined, "log": list(self.core.log.records)}

    def feed(self, event: Event) -> list[Effect]:
        before = self.snapshot()
        try:
            effects = self.core.step(event)
        except PeerFault:
            assert self.snapshot() == before
            raise
        for effect in effects:
            if isinstance(effect, Remember):
                self.journal.append(effect.fact)
        return effects

    def hears(self, m: Manifest) -> list[Effect]:
        """Get the records that lead to an attempt, and then hear of it."""
        self.feed(RecordsIn(tuple(LOGS[m.head].records)))
        return self.feed(Announced(m))

    def refuses(self, event: Event) -> Reason:
        with pytest.raises(PeerFault) as caught:
            self.feed(event)
        return caught.value.reason


# Joining


def test_a_silo_remembers_before_it_takes_part() -> None:
    silo, m = Node(), manifest(F)
    assert silo.hears(m) == [Remember(Joined(1, 1, MODEL, F.chain)), TakePart(m)]
    assert silo.core.state is State.TAKING_PART
    assert silo.hears(m) == []


def test_after_a_restart_the_same_attempt_is_joined_again_and_remembered_once() -> None:
    silo, m = Node(), manifest(F)
    silo.hears(m)
    silo.restart()
    assert silo.hears(m) == [TakePart(m)]


def test_a_silo_joins_only_with_the_hops_that_it_requires() -> None:
    silo = Node(("hop-3",))
    assert silo.refuses(Announced(manifest(F, chain=("hop-1", "hop-2")))) is Reason.WRONG_CHAIN
    assert silo.hears(manifest(F, chain=("hop-1", "hop-3")))
    both = Node(("hop-1", "hop-2"))
    assert both.refuses(Announced(manifest(F, chain=("hop-2", "hop-3")))) is Reason.WRONG_CHAIN
    assert both.hears(manifest(F))


def test_a_silo_that_is_not_invited_keeps_out() -> None:
    few = federation(subsample=0.75, rounds=50)
    log = past(few)
    while "silo-1" in few.draw(log.round, log.model):  # the draw follows from the rounds that were applied
        m = manifest(few, log.round, log=log)
        of = headers(m, few)
        log = extended(log, applied(log, m, ready(m, cohort(m, of)), m.invited))
    silo = Silo(few, identity("silo-1"))
    silo.step(RecordsIn(tuple(log.records)))
    m = manifest(few, log.round, log=log)
    assert m.invited == few.draw(log.round, log.model)
    assert silo.step(Announced(m)) == []
    assert not silo.joined


def test_a_manifest_is_checked_before_anything_is_done() -> None:
    forged = manifest(F).signed(identity("hop-1"))
    assert Node().refuses(Announced(forged)) is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("restart", [False, True])
def test_a_silo_joins_only_what_goes_on_from_the_history_that_it_follows(restart: bool) -> None:
    """Rule R2: with that model and that server state, in the next round, whatever the aggregator signs."""
    silo = Node()
    silo.hears(manifest(F))
    if restart:
        silo.restart()
    for attempt in (1, 2, 3):
        for changes, reason in (
            ({"model": OTHER_MODEL}, Reason.WRONG_MODEL),
            ({"state": OTHER_STATE}, Reason.WRONG_MODEL),
            ({"applied": 1}, Reason.WRONG_HEAD),
        ):
            assert silo.refuses(Announced(manifest(F, 1, attempt, **changes))) is reason
    assert silo.refuses(Announced(manifest(F, 2))) is Reason.WRONG_HEAD  # its record has not come
    assert silo.hears(manifest(F, 1, 2))
    assert silo.hears(manifest(F, 2))
    assert silo.refuses(Announced(manifest(F, 1, 3))) is Reason.WRONG_ROUND


def test_a_silo_that_knows_no_record_joins_nothing() -> None:
    silo = Silo(F, identity("silo-1"))
    with pytest.raises(PeerFault) as caught:
        silo.step(Announced(manifest(F)))
    assert caught.value.reason is Reason.WRONG_HEAD


# The history


def test_records_are_remembered_before_models_are_computed_from_them() -> None:
    silo, log = Node(), past(F, 3)
    effects = silo.feed(RecordsIn(tuple(log.records)))
    assert effects == [*(Remember(Stored(record)) for record in log.records[1:]), Follow()]
    assert silo.feed(RecordsIn(tuple(log.records))) == []
    silo.restart()
    assert silo.core.log.head == log.head


def test_a_record_that_does_not_count_or_link_is_not_stored() -> None:
    silo, log = Node(), past(F, 2)
    _, first, second = log.records
    uncounted = replace(first, countersignatures=())
    for records in ((uncounted,), (second,), (uncounted, second), (first, replace(second, countersignatures=()))):
        assert silo.refuses(RecordsIn(records)) is Reason.WRONG_HEAD
        assert silo.core.log.round == 1


def test_two_records_of_one_round_are_kept_as_evidence_once() -> None:
    silo, log = Node(), past(F, 1)
    silo.feed(RecordsIn(tuple(log.records)))
    other = counted(recorded(past(F), attempts=(attempted(manifest(F)),)), F)
    with pytest.raises(Fork) as caught:
        silo.feed(RecordsIn((other,)))
    assert caught.value.reason is Reason.FORKED
    assert silo.feed(ForkSeen(caught.value)) == [Remember(Forked(log.records[1], other))]
    assert silo.feed(ForkSeen(caught.value)) == []
    silo.restart()
    assert silo.feed(ForkSeen(caught.value)) == []
    assert set(silo.core.forks) == {1}


@pytest.mark.parametrize("restart", [False, True])
def test_old_rounds_and_attempts_are_refused(restart: bool) -> None:
    silo = Node()
    silo.hears(manifest(F, 2, 2))
    if restart:
        silo.restart()
    assert silo.refuses(Announced(manifest(F, 1, 5))) is Reason.WRONG_ROUND
    assert silo.refuses(Announced(manifest(F, 2, 1))) is Reason.WRONG_ATTEMPT


def test_an_attempt_has_one_story() -> None:
    silo = Node()
    silo.hears(manifest(F))
    assert silo.refuses(Announced(manifest(F, minimum_cohort=4))) is Reason.WRONG_ATTEMPT
    shorter = manifest(F, chain=("hop-1", "hop-2"))
    assert silo.refuses(Announced(shorter)) is Reason.WRONG_ATTEMPT
    silo.restart()
    assert silo.refuses(Announced(shorter)) is Reason.WRONG_ATTEMPT


# Fences: section 5, attempts


def test_a_chain_without_an_earlier_hop_needs_that_hops_fence() -> None:
    silo = Node()
    silo.hears(manifest(F))
    anew = ("hop-1", "hop-3")
    assert silo.refuses(Announced(manifest(F, 1, 2, chain=anew))) is Reason.FENCE_MISSING
    other = fence(F, "hop-1", 1, 1)
    assert silo.refuses(Announced(manifest(F, 1, 2, chain=anew, fences=(other,)))) is Reason.FENCE_MISSING
    forged = replace(fence(F, "hop-1", 1, 1), hop="hop-2")
    assert silo.refuses(Announced(manifest(F, 1, 2, chain=anew, fences=(forged,)))) is Reason.BAD_SIGNATURE
    old = fence(F, "hop-2", 2, 1)
    assert silo.refuses(Announced(manifest(F, 1, 2, chain=anew, fences=(old,)))) is Reason.WRONG_ROUND
    assert silo.hears(manifest(F, 1, 2, chain=anew, fences=(fence(F, "hop-2", 1, 1),)))


def test_every_earlier_attempt_needs_its_fence_also_after_a_restart() -> None:
    silo = Node()
    silo.hears(manifest(F))
    silo.hears(manifest(F, 1, 2))
    silo.restart()
    anew = ("hop-1", "hop-3")
    one = (fence(F, "hop-2", 1, 1),)
    assert silo.refuses(Announced(manifest(F, 1, 3, chain=anew, fences=one))) is Reason.FENCE_MISSING
    both = (*one, fence(F, "hop-2", 1, 2))
    assert silo.hears(manifest(F, 1, 3, chain=anew, fences=both))
    assert silo.refuses(Announced(manifest(F, 1, 4, chain=("hop-2",)))) is Reason.FENCE_MISSING


def test_a_longer_chain_and_a_new_round_need_no_fence() -> None:
    silo = Node()
    silo.hears(manifest(F, chain=("hop-1", "hop-2")))
    assert silo.hears(manifest(F, 1, 2))
    assert silo.hears(manifest(F, 2, 1, chain=("hop-3",)))


# Sealing


def test_a_seed_opens_where_it_should_and_nowhere_else() -> None:
    m = manifest(F)
    sealing = Silo(F, identity("silo-1")).sealing(m, rng())
    check_header(sealing.header, m, F)
    assert [layer for layer, _ in sealing.seeds] == [1, 2, 3, 0]
    owners = [(name, silo) for name in (*F.chain, AGGREGATOR) for silo in F.silo_names]
    for sealed, (layer, seed) in zip(sealing.header.seeds, sealing.seeds, strict=True):
        context = m.context(layer)
        assert sealed.commitment == commitment(seed, context)
        for owner, silo in owners:
            key = private(owner, silo, 1)
            if (owner, silo) == (sealed.recipient, "silo-1"):
                assert unseal(sealed.sealed, key, context) == seed
            else:
                with pytest.raises(PeerFault) as caught:
                    unseal(sealed.sealed, key, context)
                assert caught.value.reason is Reason.SEAL_BROKEN


@pytest.mark.parametrize(
    "other",
    [manifest(F, 1, 2), manifest(F, model=OTHER_MODEL), manifest(F, chain=("hop-2", "hop-3"))],
    ids=["attempt", "model", "place"],
)
def test_a_seed_is_bound_to_its_attempt_model_and_place(other: Manifest) -> None:
    m = manifest(F)
    sealed = Silo(F, identity("silo-1")).sealing(m, rng()).header.seeds[1]
    with pytest.raises(PeerFault) as caught:
        unseal(sealed.sealed, private("hop-2", "silo-1", 1), other.context(other.layer("hop-2")))
    assert caught.value.reason is Reason.SEAL_BROKEN


def test_seeds_are_fresh_in_every_sealing() -> None:
    silo, m, draw = Silo(F, identity("silo-1")), manifest(F), rng()
    seeds = [seed.value for _ in range(5) for _, seed in silo.sealing(m, draw).seeds]
    assert len(set(seeds)) == 20


def test_a_sealing_prints_no_secret() -> None:
    sealing = Silo(F, identity("silo-1")).sealing(manifest(F), rng())
    for shown in (repr(sealing), str(sealing), repr(sealing.seeds)):
        for _, seed in sealing.seeds:
            assert seed.value.hex() not in shown
            assert repr(seed.value) not in shown


def test_a_silo_does_not_seal_to_a_key_that_hides_nothing() -> None:
    m = manifest(F)
    weak = replace(m.hop_keys[0], public_key=bytes(32)).signed(identity("hop-1"), F.digest, m.head)
    told = manifest(F, hop_keys=(weak, *m.hop_keys[1:]))
    with pytest.raises(PeerFault) as caught:
        Silo(F, identity("silo-1")).sealing(told, rng())
    assert caught.value.reason is Reason.WRONG_KEYS
    with pytest.raises(PeerFault) as caught:
        Silo(F, identity("silo-1")).sealing(replace(m, hop_keys=m.hop_keys[1:]), rng())
    assert caught.value.reason is Reason.WRONG_KEYS


def test_a_trusted_federation_has_no_seeds() -> None:
    f = federation(level=Level.TRUSTED)
    m = manifest(f)
    sealing = Silo(f, identity("silo-1")).sealing(m, rng())
    assert sealing.seeds == ()
    check_header(sealing.header, m, f)


# Receipts


def receipt(m: Manifest, **changes: Any) -> Receipt:
    made = replace(Receipt("silo-1", m.digest, ROOT, m.chain[0]), **changes)
    return replace(made, signature=identity("hop-1").sign(made.digest))


def test_a_receipt_of_hop_1_for_this_body_is_the_end() -> None:
    silo, m = Node(), manifest(F)
    silo.hears(m)
    assert silo.feed(ReceiptIn(receipt(m), ROOT)) == [Done(m)]
    assert silo.core.state is State.COUNTED


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"silo": "silo-2"}, Reason.WRONG_CHAIN),
        ({"hop": "hop-2"}, Reason.WRONG_CHAIN),
        ({"manifest": bytes(32)}, Reason.WRONG_MANIFEST),
        ({"root": bytes(32)}, Reason.ROOT_MISMATCH),
    ],
)
def test_a_receipt_for_something_else_is_refused(changes: dict[str, Any], reason: Reason) -> None:
    silo, m = Node(), manifest(F)
    silo.hears(m)
    assert silo.refuses(ReceiptIn(receipt(m, **changes), ROOT)) is reason


def test_a_receipt_that_hop_1_did_not_sign_is_refused() -> None:
    silo, m = Node(), manifest(F)
    good = receipt(m)
    assert silo.refuses(ReceiptIn(good, ROOT)) is Reason.WRONG_MANIFEST  # nothing was joined
    silo.hears(m)
    for signature in (flipped(good.signature), b"", identity("hop-2").sign(good.digest)):
        assert silo.refuses(ReceiptIn(replace(good, signature=signature), ROOT)) is Reason.BAD_SIGNATURE
