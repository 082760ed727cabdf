"""Rule R2: one history. Each record links to the one before, counts when enough hops hold it, and has no twin."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from tests.core.protocol.federations import (
    AGGREGATOR,
    MODEL,
    OTHER_MODEL,
    OTHER_STATE,
    SCHEMA,
    STATE,
    agreement,
    applied,
    attempted,
    cohort,
    counted,
    extended,
    federation,
    flipped,
    headers,
    identity,
    manifest,
    past,
    ready,
    recorded,
)
from tests.core.protocol.hops import SILOS, F, Hop, opened, opening, passed_on, release_round
from tests.core.protocol.test_aggregator import Node

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.aggregator import AskKeys, AskStore, Phase, Publish, Start, Tick
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.roundlog import (
    Attempted,
    Fork,
    Outcome,
    Record,
    RoundLog,
    check_countersigned,
    check_record,
    computed_digest,
    countersign_digest,
    genesis,
)
from silomix.runtime.core.protocol.shuffler import Countersign, Forked, ForkSeen, RecordIn, Stored

FIRST = past(F)
M = manifest(F)
R = ready(M, cohort(M, headers(M, F)))
GOOD = applied(FIRST, M, R, SILOS)
TOLD = attempted(M, R, SILOS)


def refused(check: Callable[[], object]) -> Reason:
    with pytest.raises(PeerFault) as caught:
        check()
    return caught.value.reason


def changed(record: Record = GOOD, **changes: Any) -> Record:
    """The record with changes that the aggregator has signed and all hops have stored."""
    return counted(replace(record, **changes).signed(identity(AGGREGATOR)), F)


def bound_by(**changes: Any) -> Record:
    """The record of a round that was given up, with this to say of an attempt that was released."""
    return changed(recorded(FIRST), attempts=(replace(TOLD, **changes),))


# The end


def test_no_round_is_left_when_all_are_over_whatever_came_of_them() -> None:
    """Silos end on their own log, and on no word of the aggregator's."""
    rounds = F.policy.rounds
    assert [past(F, done).over for done in range(rounds + 1)] == [*[False] * rounds, True]
    assert not RoundLog(F).over
    shorter = replace(F, policy=replace(F.policy, rounds=rounds - 1))  # the epoch that has begun has fewer
    assert RoundLog(shorter, past(F, rounds - 1).records).over


def test_no_round_is_left_when_the_last_one_changed_nothing() -> None:
    same = replace(GOOD, model_after=GOOD.model_before)
    assert RoundLog(F, [*FIRST.records, same]).over
    assert not RoundLog(F, [*FIRST.records, GOOD]).over
    assert not RoundLog(F, [*FIRST.records, same, recorded(past(F, 1))]).over


def test_no_round_is_left_when_no_chain_is_without_a_liar() -> None:
    f = federation(4, 4, minimum_hops=3)

    def named(*culprits: str) -> RoundLog:
        told = [Attempted(1, bytes(32), f.chain, culprit=one, evidence=bytes(32)) for one in culprits]
        return RoundLog(f, [*past(f).records, *(recorded(past(f), attempts=(one,)) for one in told)])

    assert not named("hop-1").over
    assert not named("hop-1", "hop-1").over
    assert not named("hop-1", "silo-1", AGGREGATOR).over
    assert named("hop-1", "hop-3").over


# One record


def test_what_an_honest_aggregator_records_is_accepted() -> None:
    for record in (*past(F, 2).records, GOOD, counted(recorded(FIRST, attempts=(attempted(M),)), F)):
        check_record(record, F)
        check_countersigned(record, F)
    assert (GOOD.silos, FIRST.records[0].silos) == (SILOS, ())


BAD: dict[str, tuple[Record, Reason]] = {
    "another federation": (changed(federation=bytes(32)), Reason.WRONG_FEDERATION),
    "nobody signed it": (replace(GOOD, signature=bytes(64)), Reason.BAD_SIGNATURE),
    "a hop signed it": (GOOD.signed(identity("hop-1")), Reason.BAD_SIGNATURE),
    "altered afterwards": (replace(GOOD, model_after=OTHER_MODEL), Reason.BAD_SIGNATURE),
    "attempts twice": (changed(attempts=(TOLD, TOLD)), Reason.MALFORMED),
    "attempts in another order": (
        changed(attempts=(replace(attempted(M), attempt=2), replace(TOLD, attempt=1))),
        Reason.MALFORMED,
    ),
    "a genesis later on": (changed(outcome=Outcome.GENESIS), Reason.MALFORMED),
    "no genesis at the beginning": (changed(past(F).records[0], outcome=Outcome.ABANDONED), Reason.MALFORMED),
    "abandoned, and another model": (
        changed(recorded(FIRST), model_after=OTHER_MODEL),
        Reason.WRONG_STEP,
    ),
    "abandoned, and another state": (changed(recorded(FIRST), state_after=OTHER_STATE), Reason.WRONG_STEP),
    "a genesis with another model": (changed(FIRST.records[0], model_after=OTHER_MODEL), Reason.WRONG_STEP),
    "applied without an attempt": (changed(attempts=()), Reason.MALFORMED),
    "applied without a release": (changed(attempts=(attempted(M),)), Reason.MALFORMED),
    "applied without a root": (changed(root=b""), Reason.MALFORMED),
    "abandoned with another model, and an epoch begins": (
        changed(recorded(FIRST), model_after=OTHER_MODEL, next=bytes(32)),
        Reason.WRONG_EPOCH,
    ),
    "applied to no effect, and an epoch begins": (
        changed(model_after=GOOD.model_before, next=bytes(32)),
        Reason.WRONG_EPOCH,
    ),
    "a signature is missing": (
        changed(attempts=(replace(TOLD, signatures=TOLD.signatures[:-1]),)),
        Reason.BAD_SIGNATURE,
    ),
    "a signature is under something else": (changed(attempts=(replace(TOLD, agreed=bytes(32)),)), Reason.BAD_SIGNATURE),
    "an earlier release that not all signed": (
        changed(attempts=(replace(TOLD, signatures=()), replace(TOLD, attempt=2))),
        Reason.BAD_SIGNATURE,
    ),
    "attempt 0": (changed(attempts=(replace(TOLD, attempt=0),)), Reason.MALFORMED),
    "a release that the aggregator alone has signed": (
        bound_by(chain=(), signatures=TOLD.signatures[-1:]),
        Reason.WRONG_CHAIN,
    ),
    "a release for too few": (bound_by(silos=SILOS[:2]), Reason.COHORT_TOO_SMALL),
    "a release for nobody": (bound_by(silos=()), Reason.COHORT_TOO_SMALL),
    "a release for silos that there are not": (bound_by(silos=(*SILOS, "silo-9")), Reason.MALFORMED),
    "a release for silos in another order": (bound_by(silos=SILOS[::-1]), Reason.MALFORMED),
    "silos and no release": (bound_by(agreed=b"", signatures=()), Reason.MALFORMED),
    "signatures and no release": (bound_by(agreed=b"", silos=()), Reason.MALFORMED),
    "abandoned with a sum": (changed(recorded(FIRST), root=bytes(32)), Reason.MALFORMED),
    "a culprit without evidence": (bound_by(culprit="hop-1"), Reason.MALFORMED),
    "evidence without a culprit": (bound_by(evidence=bytes(32)), Reason.MALFORMED),
    "a culprit where nobody can be shown to lie": (bound_by(culprit="hop-1", evidence=bytes(32)), Reason.WRONG_POLICY),
    "a chain of one hop": (
        changed(attempts=(replace(TOLD, chain=("hop-1",), signatures=agreement(R.digest, ("hop-1",))),)),
        Reason.WRONG_CHAIN,
    ),
    "a chain the other way round": (
        changed(attempts=(replace(TOLD, chain=F.chain[::-1], signatures=agreement(R.digest, F.chain[::-1])),)),
        Reason.WRONG_CHAIN,
    ),
}


def test_every_member_may_be_named_as_the_one_who_lied_and_nobody_else() -> None:
    f = federation(level=Level.MALICIOUS)

    def named(culprit: str) -> Record:
        told = Attempted(1, bytes(32), f.chain, culprit=culprit, evidence=bytes(32))
        return recorded(past(f), attempts=(told,))

    for member in (*f.silo_names, *f.chain, AGGREGATOR):
        check_record(named(member), f)
    assert refused(lambda: check_record(named("hop-9"), f)) is Reason.MALFORMED


@pytest.mark.parametrize("case", BAD)
def test_a_record_that_cannot_be_is_refused(case: str) -> None:
    record, reason = BAD[case]
    assert refused(lambda: check_record(record, F)) is reason


def test_an_epoch_may_begin_after_a_round_that_changed_the_model() -> None:
    check_record(changed(next=bytes(32)), F)


def test_a_refusal_shows_digests_as_people_compare_them() -> None:
    with pytest.raises(PeerFault) as caught:
        check_record(changed(federation=bytes(32)), F)
    assert f"federation: {'0' * 16} instead of {F.digest.hex()[:16]}" in str(caught.value)
    with pytest.raises(PeerFault) as caught:
        FIRST.check_next(changed(round=2))
    assert "round of the next record: 2 instead of 1" in str(caught.value)


def test_no_field_can_change_without_the_digest() -> None:
    values: dict[str, Any] = {
        "federation": bytes(32),
        "round": 2,
        "outcome": Outcome.ABANDONED,
        "attempts": (),
        "root": bytes(32),
        "model_before": OTHER_MODEL,
        "model_after": OTHER_MODEL,
        "state_before": OTHER_STATE,
        "state_after": OTHER_STATE,
        "previous": bytes(32),
        "next": bytes(32),
    }
    assert set(values) == {f.name for f in fields(Record)} - {"signature", "countersignatures"}
    assert len({GOOD.digest, *(replace(GOOD, **{k: v}).digest for k, v in values.items())}) == len(values) + 1
    inner: dict[str, Any] = {
        "attempt": 2,
        "manifest": bytes(32),
        "chain": ("hop-1",),
        "agreed": bytes(32),
        "silos": SILOS[:3],
        "signatures": TOLD.signatures[:-1],
        "culprit": "hop-1",
        "evidence": bytes(32),
    }
    assert set(inner) == {f.name for f in fields(Attempted)}
    seen = {replace(GOOD, attempts=(replace(TOLD, **{k: v}),)).digest for k, v in inner.items()}
    assert len({GOOD.digest, *seen}) == len(inner) + 1
    assert replace(GOOD, countersignatures=()).digest == GOOD.digest


def test_a_record_counts_with_as_many_hops_as_a_chain_has_at_least() -> None:
    five = federation(hops=5, minimum_hops=4)
    record = past(five).records[0]
    check_countersigned(counted(record, five), five)
    for out in range(5):
        check_countersigned(counted(record, five, five.chain[:out] + five.chain[out + 1 :]), five)
    for hops in ((), five.chain[:3], (*five.chain[:3], "hop-1"), (*five.chain[:3], "silo-1"), (*five.chain, "hop-5")):
        made = counted(record, five, hops)
        assert refused(lambda r=made: check_countersigned(r, five)) is Reason.WRONG_HEAD  # type: ignore[misc]


def test_a_countersignature_is_one_hops_for_one_record() -> None:
    first, second = GOOD.countersignatures
    for bad in (
        (first, (second[0], flipped(second[1]))),
        (first, (second[0], first[1])),
        (first, (second[0], identity("hop-2").sign(GOOD.digest))),
        counted(FIRST.records[0], F).countersignatures,
        tuple((hop, identity(hop).sign(computed_digest(GOOD.digest, hop))) for hop in F.chain),
    ):
        record = replace(GOOD, countersignatures=bad)
        assert refused(lambda r=record: check_countersigned(r, F)) is Reason.BAD_SIGNATURE  # type: ignore[misc]


# The log

LINKS: dict[str, tuple[Record, Reason]] = {
    "a round is skipped": (changed(round=2), Reason.WRONG_HEAD),
    "it goes on from another record": (changed(previous=bytes(32)), Reason.WRONG_HEAD),
    "it goes on from another model": (changed(model_before=OTHER_MODEL), Reason.WRONG_MODEL),
    "it goes on from another state": (changed(state_before=OTHER_STATE), Reason.WRONG_MODEL),
    "it is here": (FIRST.records[0], Reason.WRONG_HEAD),
    "it is refused by itself": (replace(GOOD, signature=bytes(64)), Reason.BAD_SIGNATURE),
}


@pytest.mark.parametrize("case", LINKS)
def test_a_record_that_does_not_go_on_from_the_log_is_refused(case: str) -> None:
    record, reason = LINKS[case]
    assert refused(lambda: FIRST.check_next(record)) is reason
    FIRST.check_next(GOOD)


def test_the_first_record_belongs_to_this_federation() -> None:
    RoundLog(F).check_next(FIRST.records[0])
    other = genesis(F, MODEL, STATE)
    wrong = replace(other, previous=bytes(32)).signed(identity(AGGREGATOR))
    assert refused(lambda: RoundLog(F).check_next(wrong)) is Reason.WRONG_HEAD
    assert refused(lambda: RoundLog(F).check_next(GOOD)) is Reason.WRONG_HEAD
    assert RoundLog(F).head != RoundLog(federation(5)).head


def test_two_records_of_one_round_are_a_fork_and_prove_it() -> None:
    log = past(F, 2)
    for known in log.records:
        other = counted(
            replace(known, state_after=OTHER_STATE, state_before=OTHER_STATE).signed(identity(AGGREGATOR)), F
        )
        with pytest.raises(Fork) as caught:
            log.check_next(other)
        assert caught.value.reason is Reason.FORKED
        assert (caught.value.known, caught.value.other) == (known, other)
        check_record(caught.value.other, F)  # anybody sees that the aggregator signed both
    forged = replace(other, signature=bytes(64))
    assert refused(lambda: log.check_next(forged)) is Reason.BAD_SIGNATURE


def test_a_log_is_extended_by_records_that_count_and_only_as_a_whole() -> None:
    log, new = RoundLog(F).extended(past(F, 3).records)
    assert (log.round, log.head, len(new)) == (4, past(F, 3).head, 4)
    assert log.extended(past(F, 3).records)[1] == ()
    start = RoundLog(F)
    uncounted = [*past(F, 1).records, replace(past(F, 2).records[2], countersignatures=())]
    for records in (uncounted, past(F, 3).records[1:], [past(F).records[0], past(F, 2).records[2]]):
        assert refused(lambda r=records: start.extended(r)) is Reason.WRONG_HEAD  # type: ignore[misc]
        assert start.round == 0
    other = counted(recorded(past(F), attempts=(attempted(M),)), F)
    with pytest.raises(Fork):
        log.extended([other])


def test_what_a_log_knows_follows_from_its_records() -> None:
    log = RoundLog(F)
    assert (log.last, log.round, log.applied, log.model, log.cohort) == (None, 0, 0, b"", ())
    three = extended(FIRST, GOOD)
    four = extended(three, counted(recorded(three), F))
    assert (four.round, four.applied, four.model, four.cohort) == (3, 1, GOOD.model_after, SILOS)
    assert (log.before, FIRST.before, three.before, four.before) == (b"", b"", MODEL, MODEL)
    four.check_link(manifest(F, 3, log=four))
    for changes, reason in (
        ({"head": three.head}, Reason.WRONG_HEAD),
        ({"model": MODEL}, Reason.WRONG_MODEL),
        ({"state": OTHER_STATE}, Reason.WRONG_MODEL),
        ({"applied": 2}, Reason.WRONG_HEAD),
    ):
        m = manifest(F, 3, log=four, **changes)
        assert refused(lambda m=m: four.check_link(m)) is reason  # type: ignore[misc]
    for round_ in (2, 4):
        m = manifest(F, round_, log=four)
        assert refused(lambda m=m: four.check_link(m)) is Reason.WRONG_HEAD  # type: ignore[misc]


def test_a_model_is_bound_to_those_that_all_have_signed_for() -> None:
    """An attempt that nobody signed for binds it to nobody, whatever the record says of that attempt."""
    given_up = replace(attempted(M), silos=SILOS[:3])
    told = replace(TOLD, attempt=2)
    free = RoundLog(F, [*FIRST.records, changed(recorded(FIRST), attempts=(given_up,))])
    assert (free.released(MODEL), free.bound) == ((), ())
    bound = RoundLog(F, [*FIRST.records, changed(recorded(FIRST), attempts=(given_up, told))])
    assert (bound.released(MODEL), bound.bound) == (SILOS, SILOS)
    assert bound.released(OTHER_MODEL) == ()


# A hop


def test_a_hop_countersigns_what_it_has_stored_and_one_record_for_each_round() -> None:
    hop = Hop("hop-1")
    bare = replace(past(F, 1).records[1], countersignatures=())
    remember, answer = hop.feed(RecordIn(bare))
    assert remember == Remember(Stored(bare))
    assert answer == Countersign(bare, identity("hop-1").sign(countersign_digest(bare.digest, "hop-1")))
    assert hop.feed(RecordIn(bare)) == [answer]
    hop.restart()
    assert hop.feed(RecordIn(bare)) == [answer]
    other = recorded(past(F), attempts=(attempted(M),))
    for restart in (False, True):
        if restart:
            hop.restart()
        with pytest.raises(Fork) as caught:
            hop.feed(RecordIn(other))
    assert hop.feed(ForkSeen(caught.value)) == [Remember(Forked(bare, other))]
    assert hop.feed(ForkSeen(caught.value)) == []
    hop.restart()
    assert hop.feed(ForkSeen(caught.value)) == []


def test_a_record_that_counts_takes_the_place_of_one_that_did_not_and_is_not_countersigned() -> None:
    """Point 9 of the model: else the hop would be shut out for ever. That there were two is kept."""
    hop = Hop("hop-1")
    bare = replace(past(F, 1).records[1], countersignatures=())
    hop.feed(RecordIn(bare))
    other = counted(recorded(past(F), attempts=(attempted(M),)), F)
    assert hop.feed(RecordIn(other)) == [Remember(Forked(bare, other)), Remember(Stored(other))]
    for _ in range(2):
        assert (hop.core.log.head, hop.core.counts, set(hop.core.forks)) == (other.digest, True, {1})
        assert hop.feed(RecordIn(other)) == []  # nor when it comes again
        hop.restart()
    with pytest.raises(Fork):
        hop.feed(RecordIn(past(F, 1).records[1]))  # a third one does not: this one counts


def test_a_hop_opens_nothing_before_the_record_before_counts() -> None:
    hop = Hop("hop-1")
    bare = replace(past(F, 1).records[1], countersignatures=())
    hop.feed(RecordIn(bare))
    m = manifest(F, 2)
    hop.prepare(m)
    good = opening(m)
    assert hop.refuses(replace(good, head=bare)) is Reason.WRONG_HEAD
    assert hop.refuses(replace(good, head=past(F).records[0])) is Reason.WRONG_HEAD
    forged = replace(bare, countersignatures=tuple((hop, bytes(64)) for hop in F.chain))
    assert hop.refuses(replace(good, head=forged)) is Reason.BAD_SIGNATURE
    assert not hop.core.counts
    assert hop.feed(good)[0] == Remember(Stored(good.head))
    assert hop.core.counts
    hop.restart()
    assert hop.core.counts  # the proof is kept


def test_a_hop_stores_no_record_that_leaves_out_what_it_released() -> None:
    hop, m = opened()
    found = passed_on(hop.submit(*headers(m, F)))
    assert found is not None
    agreed = hop.show(m, found.cohort)
    for restart in (False, True):
        if restart:
            hop.restart()
        for attempts in ((), (attempted(m),), (replace(attempted(m, R, SILOS), manifest=m.digest),)):
            assert hop.refuses(RecordIn(counted(recorded(hop.log, attempts=attempts), F))) is Reason.WRONG_HEAD
    told = attempted(m, agreed, SILOS)
    assert hop.feed(RecordIn(counted(recorded(hop.log, attempts=(told,)), F)))


def test_a_hop_stores_no_record_of_a_release_that_it_took_no_part_in() -> None:
    """It stands in that chain: either its journal is an old copy, or the aggregator lies."""
    for name in F.chain:
        assert Hop(name).refuses(RecordIn(GOOD)) is Reason.WRONG_ROUND
    hop, m = opened()
    found = passed_on(hop.submit(*headers(m, F)))
    assert found is not None
    agreed = hop.show(m, found.cohort)
    for wrong in (
        applied(hop.log, m, agreed, SILOS[:3]),
        applied(hop.log, replace(m, attempt=2), agreed, SILOS),
    ):
        assert hop.refuses(RecordIn(wrong)) is Reason.WRONG_ROUND
    assert hop.feed(RecordIn(applied(hop.log, m, agreed, SILOS)))


def test_a_hop_stores_no_record_of_a_sum_whose_pad_it_still_has() -> None:
    """It signed for the release and showed nothing: nobody can have made the next model of that sum."""
    hop, m = opened()
    found = passed_on(hop.submit(*headers(m, F)))
    assert found is not None
    agreed = hop.agree(m, found.cohort)
    record = applied(hop.log, m, agreed, SILOS)
    for restart in (False, True):
        if restart:
            hop.restart()
        with pytest.raises(PeerFault, match="applied with this hop's pad"):
            hop.feed(RecordIn(record))
    assert hop.feed(RecordIn(recorded(hop.log, attempts=(attempted(m, agreed, SILOS),))))


def test_no_hop_countersigns_that_a_model_is_bound_to_others_than_it_signed_for() -> None:
    """The record of a round that was given up binds the model too: the aggregator could leave a silo out with it."""
    hop, m = opened()
    found = passed_on(hop.submit(*headers(m, F)))
    assert found is not None
    agreed = hop.agree(m, found.cohort)
    honest = attempted(m, agreed, SILOS)
    other = ready(m, cohort(m, headers(m, F)[1:]))
    lies = (
        replace(honest, silos=SILOS[1:]),  # the very signatures, and other silos
        attempted(m, other, SILOS[1:]),  # a release that this hop did not sign for
        replace(honest, manifest=bytes(32)),  # nor in an attempt that there was not
    )
    for restart in (False, True):
        if restart:
            hop.restart()
        for lie in lies:
            assert hop.refuses(RecordIn(recorded(hop.log, attempts=(lie,)))) is Reason.WRONG_ROUND
    again = replace(honest, attempt=3)  # an aggregator that has lost its disk gives what it is told of another number
    assert hop.feed(RecordIn(recorded(hop.log, attempts=(again,))))
    assert hop.core.log.released(m.model) == SILOS


def test_no_release_is_taken_for_that_of_another_model() -> None:
    hop, m = opened()
    found = passed_on(hop.submit(*headers(m, F)))
    assert found is not None
    agreed = hop.show(m, found.cohort)
    record = applied(hop.log, m, agreed, SILOS)
    log = extended(hop.log, record)
    hop.feed(RecordIn(record))
    assert hop.core.log.model != m.model
    again = recorded(log, attempts=(attempted(m, agreed, SILOS),))
    assert hop.refuses(RecordIn(again)) is Reason.WRONG_ROUND


def test_a_hop_that_was_not_in_the_chain_stores_the_record_all_the_same() -> None:
    f = federation(hops=4, minimum_hops=3)
    m = manifest(f, chain=f.chain[:3])
    r = ready(m, cohort(m, headers(m, f)))
    record = applied(past(f), m, r, f.silo_names)
    assert Hop("hop-4", f).feed(RecordIn(record))
    assert Hop("hop-2", f).refuses(RecordIn(record)) is Reason.WRONG_ROUND


def test_a_history_that_was_rolled_back_is_not_gone_along_with() -> None:
    """An aggregator that was restored from an old copy offers a round again, or its record anew."""
    hop = Hop("hop-1")
    m = release_round(hop, 1)
    release_round(hop, 2)
    assert hop.refuses_to_open(m) is Reason.WRONG_ROUND
    with pytest.raises(Fork):
        hop.feed(RecordIn(past(F, 1).records[1]))


# The aggregator


def test_the_aggregator_counts_countersignatures_of_different_hops_only() -> None:
    node = Node(federation(hops=5, minimum_hops=4))
    node.hear()
    node.feed(Start(MODEL, STATE, SCHEMA, 0.0))
    for _ in range(3):
        assert node.feed(node.countersigned("hop-1")) == []
    wrong = replace(node.countersigned("hop-2"), signature=bytes(64))
    assert node.refuses(wrong) is Reason.BAD_SIGNATURE
    assert node.feed(replace(node.countersigned("hop-2"), hop="hop-9")) == []
    assert node.feed(replace(node.countersigned("hop-2"), record=bytes(32))) == []
    assert node.feed(node.countersigned("hop-5")) == []
    assert node.feed(node.countersigned("hop-2")) == []
    effects = node.feed(node.countersigned("hop-4"))
    record = node.core.log.last
    assert record is not None
    assert [name for name, _ in record.countersignatures] == ["hop-1", "hop-2", "hop-4", "hop-5"]
    assert effects[1] == Publish(record)
    assert isinstance(effects[2], AskKeys)


@pytest.mark.parametrize("outcome", [Outcome.GENESIS, Outcome.APPLIED, Outcome.ABANDONED])
def test_an_aggregator_that_comes_back_with_a_record_that_does_not_count_has_that_one_stored(outcome: Outcome) -> None:
    """It makes no other of that round: hops may have countersigned it."""
    node = Node(federation(attempts=1))
    node.hear()
    node.feed(Start(MODEL, STATE, SCHEMA, 0.0))
    if outcome is not Outcome.GENESIS:
        node.store()
        if outcome is Outcome.APPLIED:
            node.feed(node.sum_applied(node.receive()))
        else:
            node.feed(Tick(20.0))
    record = node.core.log.last
    assert record is not None
    assert record.outcome is outcome
    assert node.core.phase is Phase.RECORDING
    node.restart()
    node.hear()
    assert node.feed(Start(*node.newest, SCHEMA, 0.0, node.kept)) == [AskStore(record, node.f.chain)]
    (ask,) = node.store()
    assert ask == AskKeys(record.round + 1, 1, node.f.chain, node.f.silo_names, record.digest)


def test_a_record_counts_while_the_model_that_it_names_is_still_missing() -> None:
    """Silos can bring what this disk has lost only if they may compute it, and they compute what counts."""
    node = Node(federation(attempts=1))
    node.start()
    node.feed(node.sum_applied(node.receive()))
    record = node.core.log.last
    assert record is not None
    node.restart()
    node.hear()
    signed = [node.countersigned(hop) for hop in node.f.chain]
    assert node.feed(signed[0]) == []
    remembered, published = node.feed(signed[1])
    assert isinstance(remembered, Remember)
    assert isinstance(published, Publish)
    assert published.record.digest == record.digest
    assert node.feed(signed[1]) == []  # asked twice, told once
    assert node.core.phase is Phase.LOADING
    (ask,) = node.feed(Start(*node.newest, SCHEMA, 0.0, node.kept))
    assert isinstance(ask, AskKeys)
    assert ask.round == record.round + 1


def test_a_log_says_whom_the_newest_model_is_bound_to() -> None:
    """R3: pads may have been shown in a round that was given up. A step leaves that behind."""
    assert FIRST.bound == ()
    free = extended(FIRST, counted(recorded(FIRST, attempts=(attempted(M),)), F))
    assert free.bound == ()
    bound = extended(FIRST, counted(recorded(FIRST, attempts=(TOLD,)), F))
    assert bound.bound == SILOS
    assert extended(bound, counted(recorded(bound), F)).bound == SILOS
    assert extended(FIRST, GOOD).bound == ()
