"""Epochs: which file follows which, who has to sign, what the round log makes of it. docs/protocol.md, section 5."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.core.protocol.federations import (
    AGGREGATOR,
    MODEL,
    STATE,
    applied,
    counted,
    extended,
    federation,
    headers,
    identity,
    lived,
    manifest,
    ready,
    recorded,
    rng,
)
from tests.core.protocol.federations import cohort as cohort_of

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.plan import Granularity
from silomix.runtime.core.policy import Server
from silomix.runtime.core.protocol import aggregator as aggregating
from silomix.runtime.core.protocol import shuffler, silo
from silomix.runtime.core.protocol.epochs import (
    Epochs,
    agrees,
    change_problem,
    check_first,
    check_successor,
    consents,
    differences,
    signers,
)
from silomix.runtime.core.protocol.federation import SHOWN, Federation, Member, Owner
from silomix.runtime.core.protocol.hearing import Shown
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.owners import epoch_digest
from silomix.runtime.core.protocol.roundlog import Outcome, Record, RoundLog, check_record, genesis

OWNERS = ("a", "b", "c")


def owned(f: Federation, **changes: Any) -> Federation:
    """The same federation in the hands of three owners."""
    owners = tuple(Owner(name, identity(f"owner {name}").public) for name in OWNERS)
    give = {
        "aggregator": replace(f.aggregator, owner="a"),
        "shufflers": tuple(replace(m, owner="b") for m in f.shufflers),
        "silos": tuple(replace(m, owner=OWNERS[i % 3]) for i, m in enumerate(f.silos)),
    }
    return replace(f, owners=owners, **{**give, **changes})


def following(old: Federation, **changes: Any) -> Federation:
    """The next epoch, with some changes."""
    return replace(old, **{"epoch": old.epoch + 1, "genesis": old.first, "predecessor": old.digest, **changes})


def accepted(f: Federation, *names: str) -> dict[str, bytes]:
    """The signatures of some owners."""
    return {name: identity(f"owner {name}").sign(epoch_digest(f)) for name in names or OWNERS}


def more(f: Federation, **changes: Any) -> Federation:
    """The next epoch with some keys of the policy changed."""
    return following(f, policy=replace(f.policy, **changes))


NEW = Member("silo-9", identity("silo-9").public, owner="c")
E1 = owned(federation())
E2 = more(following(E1, silos=(*E1.silos, NEW)), rounds=9)
E2 = replace(E2, epoch=2, genesis=E1.digest, predecessor=E1.digest)
OTHER = more(E1, rounds=8)
E3 = following(E2, silos=E1.silos)
BOTH = Epochs((E1, E2))


def refused(call: Callable[[], object]) -> Reason:
    with pytest.raises(PeerFault) as caught:
        call()
    return caught.value.reason


# Who signs what


def test_every_owner_signs_the_first_epoch_and_a_majority_a_later_one() -> None:
    check_first(E1, accepted(E1))
    for missing in OWNERS:
        some = {name: signature for name, signature in accepted(E1).items() if name != missing}
        assert refused(lambda s=some: check_first(E1, s)) is Reason.WRONG_EPOCH  # type: ignore[misc]
    assert refused(lambda: check_first(E2, accepted(E2))) is Reason.WRONG_EPOCH
    check_successor(E2, E1, accepted(E2, "a", "c"))
    for few in (("a",), ("b",), ("c",)):
        assert refused(lambda f=few: check_successor(E2, E1, accepted(E2, *f))) is Reason.WRONG_EPOCH  # type: ignore[misc]
    assert refused(lambda: check_successor(E2, E1, {})) is Reason.WRONG_EPOCH


@pytest.mark.parametrize("changes", [{"epoch": 2}, {"predecessor": bytes(32)}, {"genesis": bytes(32)}])
def test_a_file_that_says_it_follows_another_is_no_first_epoch_whoever_signs(changes: dict[str, Any]) -> None:
    """Else a node that begins would take a later epoch for the first, and never ask who agreed to the change."""
    new = replace(E1, **changes)
    assert refused(lambda: check_first(new, accepted(new))) is Reason.WRONG_EPOCH


def test_a_first_epoch_needs_signatures_that_hold() -> None:
    for other in (accepted(E1, "a")["a"], accepted(OTHER, "b")["b"]):
        assert refused(lambda s=other: check_first(E1, {**accepted(E1), "b": s})) is Reason.WRONG_EPOCH  # type: ignore[misc]


def test_a_quorum_is_the_one_that_the_epoch_before_says() -> None:
    strict = replace(E1, owners_quorum=3)
    assert strict.digest != E1.digest
    new = more(strict, rounds=5)
    new = replace(new, owners_quorum=2)
    assert refused(lambda: check_successor(new, strict, accepted(new, "a", "b"))) is Reason.WRONG_EPOCH
    check_successor(new, strict, accepted(new))


@pytest.mark.parametrize(
    "signatures",
    [
        {**accepted(E2, "a"), "b": accepted(OTHER, "b")["b"]},  # of another file
        {**accepted(E2, "a"), "b": accepted(E2, "a")["a"]},  # of another owner
        {**accepted(E2, "a"), "d": identity("owner d").sign(epoch_digest(E2))},  # of nobody
        {**accepted(E2, "a"), "b": identity("owner b").sign(E2.digest)},  # of the content alone
    ],
)
def test_a_signature_counts_for_its_owner_and_its_file_alone(signatures: dict[str, bytes]) -> None:
    assert signers(E2, E1, signatures) == ["a"]
    assert refused(lambda: check_successor(E2, E1, signatures)) is Reason.WRONG_EPOCH


def test_owners_of_the_epoch_before_decide_and_not_those_of_the_new_one() -> None:
    """Else whoever writes a file could put in as many owners as it needs."""
    mine = tuple(Owner(f"x{i}", identity(f"owner x{i}").public) for i in range(5))
    new = following(E1, owners=(*E1.owners, *mine))
    forged = accepted(new, "a", *(o.name for o in mine))
    assert refused(lambda: check_successor(new, E1, forged)) is Reason.WRONG_EPOCH
    check_successor(new, E1, {**forged, **accepted(new, "b")})
    assert agrees("x1", new, E1, forged)
    assert not agrees("c", new, E1, forged)


def test_an_owner_may_change_its_key_by_its_old_one() -> None:
    other = identity("owner b, later")
    new = following(E1, owners=tuple(replace(o, key=other.public) if o.name == "b" else o for o in E1.owners))
    old_key = accepted(new, "a", "b")
    check_successor(new, E1, old_key)
    new_key = {**old_key, "b": other.sign(epoch_digest(new))}
    assert refused(lambda: check_successor(new, E1, new_key)) is Reason.WRONG_EPOCH
    assert agrees("b", new, E1, old_key)
    assert agrees("b", new, E1, new_key)


def test_nobody_agrees_by_the_signature_of_another_owner() -> None:
    for other in ("a", "b"):
        assert not agrees("c", E2, E1, {"c": accepted(E2, other)[other]})
    assert agrees("c", E2, E1, accepted(E2, "c"))


def test_a_node_goes_along_when_its_own_owner_has_signed_and_by_nobody_elses_signature() -> None:
    assert E1.member("silo-1").owner == "a"
    assert consents("silo-1", E2, E1, accepted(E2, "a"))
    assert not consents("silo-1", E2, E1, accepted(E2, "b", "c"))
    assert not consents("silo-1", E2, E1, {"a": accepted(E2, "b")["b"]})


def test_a_node_of_a_new_owner_goes_along_by_the_key_that_the_new_epoch_has() -> None:
    owner = Owner("d", identity("owner d").public)
    new = following(E1, owners=(*E1.owners, owner), silos=(*E1.silos, replace(NEW, owner="d")))
    assert consents("silo-9", new, E1, accepted(new, "d"))
    assert not consents("silo-9", new, E1, accepted(new))
    assert not consents("silo-9", new, E1, {"d": accepted(new, "a")["a"]})


def test_a_node_goes_along_by_the_key_that_its_owner_had_and_not_by_one_that_a_file_gives_it() -> None:
    """Else whoever writes a file could put its own key under the owner's name."""
    other = identity("owner b, later")
    new = following(E1, owners=tuple(replace(o, key=other.public) if o.name == "b" else o for o in E1.owners))
    assert consents("hop-1", new, E1, accepted(new, "b"))
    assert not consents("hop-1", new, E1, {"b": other.sign(epoch_digest(new))})


# What may follow what


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"epoch": 3}, "does not say that it follows epoch 1"),
        ({"genesis": bytes(32)}, "does not say that it follows epoch 1"),
        ({"predecessor": bytes(32)}, "does not say that it follows epoch 1"),
        ({"name": "other"}, "calls the federation other"),
        ({"pinned": True}, "what certificates are trusted by"),
        ({"anchor": b"pem"}, "what certificates are trusted by"),
        ({"aggregator": replace(E1.aggregator, name="agg")}, "another aggregator"),
        ({"aggregator": replace(E1.aggregator, address="b:2")}, "another aggregator"),
        ({"policy": replace(E1.policy, parameters=9)}, "policy.parameters"),
        ({"policy": replace(E1.policy, schema="0" * 64)}, "policy.schema"),
        ({"policy": replace(E1.policy, initial_model="0" * 64)}, "policy.initial_model"),
        ({"policy": replace(E1.policy, server=Server.ADAM)}, "policy.server"),
        ({"policy": replace(E1.policy, granularity=Granularity.MODEL)}, "policy.granularity"),
        ({"silos": (*E1.silos, replace(NEW, name="hop-1"))}, "another role"),
        ({"shufflers": (*E1.shufflers, replace(NEW, name="silo-1"))}, "another role"),
    ],
)
def test_what_an_epoch_cannot_change_is_refused_whoever_signs(changes: dict[str, Any], says: str) -> None:
    new = following(E1, **changes)
    assert says in change_problem(new, E1)
    assert refused(lambda: check_successor(new, E1, accepted(new))) is Reason.WRONG_EPOCH


def test_roster_pool_policy_addresses_and_keys_can_change() -> None:
    hop = Member("hop-3", identity("hop-3").public, "h3:1", "b")
    for new in (
        E2,
        following(E1, silos=E1.silos[:3]),
        following(E1, shufflers=(E1.shufflers[0], hop)),
        following(E1, shufflers=(replace(E1.shufflers[0], address="h9:1"), E1.shufflers[1])),
        following(E1, silos=(replace(E1.silos[0], key=identity("silo-1, later").public), *E1.silos[1:])),
        following(E1, aggregator=replace(E1.aggregator, key=identity("aggregator, later").public)),
        more(E1, rounds=40, precision=5, minimum_cohort=4, quorum=0.5),
    ):
        check_successor(new, E1, accepted(new, "a", "b"))
        assert differences(new, E1)
    assert not differences(following(E1), E1)


def test_differences_are_said_in_words() -> None:
    new = following(
        E1,
        silos=(replace(E1.silos[0], key=identity("x").public), *E1.silos[2:], NEW),
        shufflers=(E1.shufflers[1], replace(E1.shufflers[0], address="h9:1")),
        policy=replace(E1.policy, rounds=9, precision=5),
        owners_quorum=3,
    )
    assert differences(new, E1) == [
        "shuffler hop-1: address h0:1 -> h9:1",
        "silo silo-2 is REMOVED",
        "silo silo-9 is NEW",
        "silo silo-1: another key",
        "the order of the pool: hop-1, hop-2 -> hop-2, hop-1",
        "policy.rounds: 4 -> 9",
        "policy.precision: 4 -> 5",
        "owners who have to sign the next epoch: 2 -> 3",
    ]


def test_the_order_of_the_pool_is_no_difference_where_those_who_stay_keep_theirs() -> None:
    hop = Member("hop-0", identity("hop-0").public, "h9:1", "b")
    assert differences(following(E1, shufflers=E1.shufflers[1:]), E1) == ["shuffler hop-1 is REMOVED"]
    assert differences(following(E1, shufflers=(hop, *E1.shufflers)), E1) == ["shuffler hop-0 is NEW"]


def test_no_two_epochs_have_one_digest() -> None:
    many = [E1, E2, E3, OTHER, replace(E1, owners_quorum=3), replace(E2, predecessor=bytes(32))]
    assert len({f.digest for f in many}) == len(many)
    assert len({epoch_digest(f) for f in many}) == len(many)
    assert epoch_digest(replace(E2, genesis=bytes(32))) != epoch_digest(E2)


# The round log


def begun(f: Federation = E1) -> RoundLog:
    """The log that has the initial model and no round."""
    return extended(RoundLog(f), counted(genesis(f, MODEL, STATE).signed(identity(AGGREGATOR)), f))


def step(log: RoundLog, f: Federation, **changes: Any) -> Record:
    """The record of the next round, applied in an epoch."""
    m = manifest(f, log.round, log=log)
    some = headers(m, f)
    made = RoundLog(f, log.records, log.epochs)
    return applied(made, m, ready(m, cohort_of(m, some)), tuple(h.silo for h in some), **changes)


LOG = RoundLog(E1, begun().records, BOTH)
SWITCH = step(LOG, E1, next=E2.digest)
AFTER = RoundLog(E2, [*LOG.records, SWITCH], BOTH)
IN_E2 = step(AFTER, E2)


def test_a_record_is_checked_under_the_epoch_in_which_it_was_made() -> None:
    log, new = RoundLog(E2, epochs=BOTH).extended([*LOG.records, SWITCH, IN_E2])
    assert [record.federation for record in new] == [E1.digest, E1.digest, E2.digest]
    assert log.epoch == E2.digest
    assert (LOG.epoch, AFTER.epoch) == (E1.digest, E2.digest)
    assert log.of(new[1]) == E1
    assert "silo-9" in new[2].silos


def test_the_digest_of_a_record_covers_the_next_epoch() -> None:
    plain = step(LOG, E1)
    assert plain.digest != SWITCH.digest
    assert refused(lambda: check_record(replace(plain, next=E2.digest), E1)) is Reason.BAD_SIGNATURE


def test_a_record_of_an_epoch_that_does_not_count_here_is_refused() -> None:
    assert refused(lambda: RoundLog(E1, LOG.records).check_next(SWITCH)) is Reason.WRONG_EPOCH
    assert refused(lambda: RoundLog(E1, AFTER.records).check_next(IN_E2)) is Reason.WRONG_FEDERATION


def test_a_record_names_the_very_successor_that_counts_here() -> None:
    other = Epochs((E1, OTHER))
    assert refused(lambda: RoundLog(E1, LOG.records, other).check_next(SWITCH)) is Reason.WRONG_EPOCH
    assert refused(lambda: LOG.check_next(step(LOG, E1, next=E3.digest))) is Reason.WRONG_EPOCH
    assert refused(lambda: LOG.check_next(step(LOG, E1, next=E1.digest))) is Reason.WRONG_EPOCH


@pytest.mark.parametrize(
    ("epochs", "ours"), [(BOTH, f"epoch 2, {E2.digest.hex()[:SHOWN]}"), (Epochs((E1,)), "none")], ids=["other", "none"]
)
def test_whoever_is_shown_another_successor_is_told_which_one_counts_here(epochs: Epochs, ours: str) -> None:
    with pytest.raises(PeerFault) as caught:
        epochs.check_next(E1.digest, OTHER.digest)
    assert OTHER.digest.hex()[:SHOWN] in str(caught.value)
    assert f"what counts here as the next is {ours}:" in str(caught.value)


def test_no_round_is_of_an_older_epoch_or_of_a_newer_one_than_the_log_says() -> None:
    old = step(AFTER, E1)  # the epoch is over
    assert refused(lambda: AFTER.check_next(old)) is Reason.WRONG_EPOCH
    early = step(LOG, E2)  # it has not begun
    assert refused(lambda: LOG.check_next(early)) is Reason.WRONG_EPOCH
    assert refused(lambda: AFTER.check_link(manifest(E1, 2, log=AFTER))) is Reason.WRONG_EPOCH
    assert refused(lambda: LOG.check_link(manifest(E2, 1, log=LOG))) is Reason.WRONG_EPOCH
    AFTER.check_link(manifest(E2, 2, log=AFTER))


def test_an_epoch_begins_after_an_applied_round_alone() -> None:
    """Else two pools that share no honest hop could each release a sum of one model."""
    record = counted(recorded(LOG, Outcome.ABANDONED, next=E2.digest), E1)
    assert refused(lambda: LOG.check_next(record)) is Reason.WRONG_EPOCH
    first = replace(genesis(E1, MODEL, STATE), next=E2.digest).signed(identity(AGGREGATOR))
    assert refused(lambda: RoundLog(E1, epochs=BOTH).check_next(first)) is Reason.WRONG_EPOCH


def listened(f: Federation, *records: Record) -> aggregating.Aggregator:
    """An aggregator with these records that has heard every hop, and no news."""
    machine = aggregating.Aggregator(f, identity(AGGREGATOR), rng(), BOTH)
    for record in records:
        machine.recall(aggregating.Recorded(record))
    machine.step(aggregating.Awake(0.0))
    for name in f.chain:
        machine.step(aggregating.HeadIn(name, Shown(machine.life, len(records), len(records), (), 0, 0, ()), 0.0))
    assert machine.phase == "loading"
    return machine


def test_a_history_begins_in_the_first_epoch() -> None:
    first = genesis(E2, MODEL, STATE).signed(identity(AGGREGATOR))
    assert refused(lambda: RoundLog(E2, epochs=BOTH).check_next(first)) in (Reason.WRONG_EPOCH, Reason.WRONG_HEAD)
    forged = replace(genesis(E2, MODEL, STATE), previous=RoundLog(E1).head).signed(identity(AGGREGATOR))
    assert refused(lambda: RoundLog(E2, epochs=BOTH).check_next(forged)) is Reason.WRONG_EPOCH
    machine = listened(E2)
    with pytest.raises(LocalFault, match="a history begins in the first epoch"):
        machine.step(aggregating.Start(MODEL, STATE, manifest(E1).schema, 0.0))


def test_an_old_record_is_countersigned_by_the_hops_of_its_own_time() -> None:
    moved = following(E1, shufflers=tuple(replace(m, name=f"{m.name}-new") for m in E1.shufflers))
    epochs = Epochs((E1, moved))
    record = step(LOG, E1, next=moved.digest)
    _, new = RoundLog(moved, epochs=epochs).extended([*LOG.records, record])
    assert len(new) == 2


# The machines


def hop(f: Federation = E1, name: str = "hop-1", epochs: Epochs = BOTH, log: RoundLog = LOG) -> shuffler.Shuffler:
    machine = shuffler.Shuffler(f, identity(name), rng(), epochs)
    for record in log.records:
        machine.recall(shuffler.Stored(record))
    return machine


def released(machine: shuffler.Shuffler, record: Record) -> shuffler.Shuffler:
    """The hop, having signed for and released what a record names."""
    one = record.attempts[-1]
    machine.recall(shuffler.Signed(record.round, 1, one.manifest, one.agreed, one.silos, record.model_before))
    machine.recall(shuffler.Released(record.round, 1, one.manifest, one.agreed, one.silos, record.model_before))
    return machine


def switches(effects: list[Any]) -> list[bytes]:
    return [e.epoch for e in effects if isinstance(e, shuffler.Switch | silo.Switch | aggregating.Switch)]


def test_a_hop_goes_on_in_the_next_epoch_once_the_record_counts() -> None:
    machine = released(hop(), SWITCH)
    effects = machine.step(shuffler.RecordIn(replace(SWITCH, countersignatures=())))
    assert not switches(effects)
    assert any(isinstance(e, shuffler.Countersign) for e in effects)
    assert switches(machine.step(shuffler.RecordIn(replace(SWITCH, countersignatures=())))) == []
    effects = machine.step(shuffler.RecordIn(SWITCH))
    assert switches(effects) == [E2.digest]
    assert isinstance(effects[0], Remember)
    assert effects[0].fact == shuffler.Stored(SWITCH)
    again = released(hop(log=AFTER), SWITCH)  # after a restart nothing is forgotten, whichever epoch it is in
    assert again.counts
    assert again.released[SWITCH.model_before]


def prepare(f: Federation, log: RoundLog, now: float = 0.0) -> shuffler.Prepare:
    return shuffler.Prepare(f.digest, log.round, 1, f.draw(log.applied + 1, log.model), 0, log.head, now)


def test_a_hop_opens_nothing_under_an_epoch_that_is_over() -> None:
    machine = hop(log=AFTER)
    assert refused(lambda: machine.step(prepare(E1, AFTER))) is Reason.WRONG_EPOCH
    old = shuffler.Open(manifest(E1, 2, log=AFTER), SWITCH, 0.0)
    assert refused(lambda: machine.step(old)) is Reason.WRONG_EPOCH
    assert refused(lambda: machine.step(prepare(E2, AFTER))) is Reason.WRONG_FEDERATION  # it has to switch first
    assert hop(E2, log=AFTER).step(prepare(E2, AFTER))


def test_an_aggregator_that_withholds_an_epoch_is_refused_in_the_end() -> None:
    machine = hop(epochs=Epochs((E1,)))
    machine.step(prepare(E1, LOG, 0.0))
    machine.step(shuffler.EpochsIn(BOTH, 10.0))
    late = 10.0 + shuffler.PATIENCE_S
    log = LOG
    for _ in range(shuffler.PATIENCE_ROUNDS):
        machine.step(prepare(E1, log, late))  # for some rounds the word may be on its way
        record = step(log, E1)
        released(machine, record).step(shuffler.RecordIn(record))
        log = RoundLog(E1, [*log.records, record], BOTH)
    machine.step(prepare(E1, log, late - 1.0))
    assert refused(lambda: machine.step(prepare(E1, log, late))) is Reason.WRONG_EPOCH
    late_open = shuffler.Open(manifest(E1, log.round, log=log), log.records[-1], late)
    assert refused(lambda: machine.step(late_open)) is Reason.WRONG_EPOCH


def test_a_new_hop_takes_the_log_in_and_signs_for_none_of_the_past() -> None:
    pool = (*E1.shufflers, Member("hop-3", identity("hop-3").public, "h3:1", "b"))
    wide = following(E1, shufflers=pool)
    epochs = Epochs((E1, wide))
    record = step(LOG, E1, next=wide.digest)
    machine = shuffler.Shuffler(wide, identity("hop-3"), rng(), epochs)
    for one in (*LOG.records, record):
        effects = machine.step(shuffler.RecordIn(one))
        assert not switches(effects)
        assert not any(isinstance(e, shuffler.Countersign) for e in effects)
    assert machine.counts
    after = RoundLog(wide, [*LOG.records, record], epochs)
    assert machine.step(prepare(wide, after))


def test_a_silo_goes_on_in_the_next_epoch_with_its_record() -> None:
    machine = silo.Silo(E1, identity("silo-1"), epochs=Epochs((E1,)))
    machine.step(silo.RecordsIn(tuple(LOG.records)))
    assert refused(lambda: machine.step(silo.RecordsIn((SWITCH,)))) is Reason.WRONG_EPOCH
    machine.step(silo.EpochsIn(BOTH))
    assert switches(machine.step(silo.RecordsIn((SWITCH,)))) == [E2.digest]
    assert refused(lambda: machine.step(silo.Announced(manifest(E1, 2, log=AFTER)))) is Reason.WRONG_EPOCH
    other = silo.Silo(E2, identity("silo-9"), epochs=BOTH)  # which was in no earlier epoch
    effects = other.step(silo.RecordsIn((*LOG.records, SWITCH)))
    assert isinstance(effects[-1], silo.Follow)
    assert isinstance(other.step(silo.Announced(manifest(E2, 2, log=AFTER)))[-1], silo.TakePart)


def test_the_aggregator_names_a_successor_only_if_it_counts() -> None:
    machine = aggregating.Aggregator(E1, identity(AGGREGATOR), rng(), BOTH)
    assert refused(lambda: machine.step(aggregating.EpochsIn(BOTH, OTHER.digest))) is Reason.WRONG_EPOCH
    assert not machine.following
    machine.step(aggregating.EpochsIn(BOTH, E2.digest))
    assert machine.following == E2.digest


def test_the_aggregator_of_the_next_epoch_sends_the_record_to_every_hop_and_goes_on() -> None:
    machine = listened(E2, *AFTER.records)
    start = aggregating.Start(SWITCH.model_after, SWITCH.state_after, manifest(E1).schema, 0.0)
    store, ask = machine.step(start)
    assert store == aggregating.AskStore(SWITCH, E2.chain)
    assert isinstance(ask, aggregating.AskKeys)
    assert (ask.round, ask.silos) == (2, E2.silo_names)


def test_an_emptied_aggregator_begins_in_the_first_epoch_and_goes_on_where_the_hops_are() -> None:
    machine = aggregating.Aggregator(E1, identity(AGGREGATOR), rng(), BOTH)
    machine.step(aggregating.Awake(0.0))
    total, records = AFTER.round, tuple(AFTER.records)
    for hop in E1.chain:
        effects = machine.step(aggregating.HeadIn(hop, Shown(machine.life, total, 0, records, 0, 0, ()), 0.0))
    assert [e.fact for e in effects if isinstance(e, Remember)] == [aggregating.Recorded(r) for r in records]
    assert switches(effects[-1:]) == [E2.digest]
    assert machine.phase == "changing"


def test_the_aggregator_is_done_with_an_epoch_when_the_record_counts() -> None:
    machine = listened(E1, *LOG.records, replace(SWITCH, countersignatures=()))
    machine.step(aggregating.Start(SWITCH.model_after, SWITCH.state_after, manifest(E1).schema, 0.0))
    assert machine.phase == "recording"
    effects: list[aggregating.Effect] = []
    for name, signature in SWITCH.countersignatures:
        assert not switches(effects)
        effects = machine.step(aggregating.CountersignedIn(name, SWITCH.digest, signature, 0.0))
    assert switches(effects) == [E2.digest]
    assert machine.phase == "changing"
    assert not any(isinstance(e, aggregating.AskKeys) for e in effects)


def test_an_aggregator_that_died_before_it_went_on_does_so_before_it_asks_anybody() -> None:
    """Its hops may be in the next epoch already, where nobody answers an aggregator of this one."""
    machine = aggregating.Aggregator(E1, identity(AGGREGATOR), rng(), BOTH)
    for record in AFTER.records:
        machine.recall(aggregating.Recorded(record))
    assert machine.step(aggregating.Awake(0.0)) == [aggregating.Switch(E2.digest)]
    assert machine.phase == "changing"


@pytest.mark.parametrize(("of", "asks"), [(E1, E2), (E2, E1)])
def test_a_hop_shows_what_it_knows_also_to_an_aggregator_of_the_epoch_before_or_after(
    of: Federation, asks: Federation
) -> None:
    """After a change, one of them is first: a hop that waits for the record would never be heard."""
    machine = hop(of, log=AFTER)
    life = bytes(24)
    shows = machine.step(shuffler.Show(asks.digest, life, 0, lived(life, asks)))[-1]
    assert isinstance(shows, shuffler.Shows)
    assert shows.shown.total == len(AFTER.records)
    assert (
        refused(lambda: machine.step(shuffler.Show(bytes(32), life, 0, lived(life, asks)))) is Reason.WRONG_FEDERATION
    )


def test_the_aggregator_names_the_epoch_in_a_record_that_was_applied_and_in_no_other() -> None:
    machine = aggregating.Aggregator(E1, identity(AGGREGATOR), rng(), BOTH)
    machine.step(aggregating.EpochsIn(BOTH, E2.digest))
    assert machine._make_record(Outcome.APPLIED, bytes(32), MODEL, STATE).next == E2.digest
    assert machine._make_record(Outcome.ABANDONED, b"", MODEL, STATE).next == b""
