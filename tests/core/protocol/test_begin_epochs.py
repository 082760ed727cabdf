"""When an epoch begins, and how an aggregator that is epochs behind comes back. docs/protocol.md, section 5."""

from dataclasses import replace

import pytest
from tests.core.protocol.federations import AGGREGATOR, federation, identity, rng
from tests.core.protocol.test_epochs import AFTER, BOTH, E1, E2, LOG, SWITCH, following, owned, step, switches

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol import aggregator as aggregating
from silomix.runtime.core.protocol.epochs import Epochs, may_begin
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.core.protocol.hearing import Shown, until_change
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.roundlog import RoundLog

FOUR = owned(federation(4, 4, minimum_hops=3, minimum_cohort=3))
SILOS = FOUR.silo_names
SAME = following(FOUR)


def begins(new: Federation, *away: str, patient: bool, listening: tuple[str, ...] = SILOS) -> bool:
    ready = {*FOUR.chain, *SILOS} - {*away}
    return may_begin(new, FOUR, ready, listening, patient=patient)


def test_an_epoch_begins_at_once_when_all_are_ready_who_stay_and_are_there() -> None:
    assert begins(SAME, patient=True)
    assert not begins(SAME, "hop-2", patient=True)
    assert not begins(SAME, "silo-2", patient=True)
    assert begins(SAME, "silo-2", patient=True, listening=("silo-1", "silo-3", "silo-4"))  # it is not there anyway
    without = following(FOUR, shufflers=tuple(m for m in FOUR.shufflers if m.name != "hop-2"))
    assert begins(without, "hop-2", patient=True)  # nobody waits for whom it takes out


def test_no_hops_owner_puts_an_epoch_off_for_ever() -> None:
    assert begins(SAME, "hop-2", patient=False)
    assert begins(SAME, "hop-2", "silo-2", patient=False)


def test_an_epoch_never_begins_without_a_chain_and_a_cohort() -> None:
    """The record that names it would not count, or the rounds after it would not run."""
    assert not begins(SAME, "hop-2", "hop-3", patient=False)
    assert not begins(SAME, "silo-1", "silo-2", patient=False)
    strict = replace(SAME, policy=replace(SAME.policy, minimum_hops=4))
    assert begins(strict, patient=False)
    assert not begins(strict, "hop-2", patient=False)
    fresh = Member("hop-9", identity("hop-9").public, "h9:1", "b")
    assert not begins(following(FOUR, shufflers=(*FOUR.shufflers[2:], fresh)), "hop-1", "hop-2", patient=False)


def test_nobody_waits_for_a_hop_or_a_silo_that_is_new() -> None:
    """They are in no epoch that they could be ready in: they come when this one has begun."""
    hop = Member("hop-9", identity("hop-9").public, "h9:1", "b")
    silo = Member("silo-9", identity("silo-9").public, owner="c")
    wider = following(FOUR, shufflers=(*FOUR.shufflers, hop), silos=(*FOUR.silos, silo))
    assert begins(wider, patient=True)
    assert begins(wider, "silo-1", "silo-2", patient=False)  # with the new one, three are left
    assert not begins(SAME, "silo-1", "silo-2", patient=False)


def test_silos_that_are_away_put_no_epoch_off() -> None:
    """They hear of it when they are back; rounds wait for them in either epoch."""
    for patient in (True, False):
        assert begins(SAME, patient=patient, listening=("silo-1",))
        assert begins(SAME, patient=patient, listening=())


# An aggregator that is behind


E3 = following(E2, policy=replace(E2.policy, rounds=50))
ALL = Epochs((E1, E2, E3))
INTO_E3 = step(RoundLog(E2, AFTER.records, ALL), E2, next=E3.digest)
IN_E3 = step(RoundLog(E3, [*AFTER.records, INTO_E3], ALL), E3)
AHEAD = Shown(b"", 5, 0, (*LOG.records, SWITCH, INTO_E3, IN_E3), 2, 40, ())


def test_whoever_is_behind_takes_in_what_ends_its_own_epoch_and_no_more() -> None:
    told = until_change(AHEAD, LOG)
    assert told.records == (*LOG.records, SWITCH)
    assert told.last_released == SWITCH.round  # of later rounds it cannot tell whether they can be
    assert until_change(AHEAD, RoundLog(E2, epochs=ALL)).records == AHEAD.records[:3]
    assert until_change(AHEAD, RoundLog(E3, epochs=ALL)) == AHEAD
    with pytest.raises(PeerFault, match="does not count here yet") as caught:
        until_change(AHEAD, RoundLog(E1))
    assert caught.value.reason is Reason.WRONG_EPOCH


def test_an_aggregator_two_epochs_behind_goes_from_one_to_the_next_before_it_asks_for_any_model() -> None:
    """The model at the end of its epoch may be nobody's any more: only the newest one is asked for."""
    for f, epochs, known, expected in ((E1, BOTH, LOG.records, E2), (E2, ALL, AFTER.records, E3)):
        machine = aggregating.Aggregator(f, identity(AGGREGATOR), rng(), epochs)
        for record in known[:1]:
            machine.recall(aggregating.Recorded(record))
        machine.step(aggregating.Awake(0.0))
        effects = []
        for name in f.chain:
            shown = until_change(replace(AHEAD, life=machine.life), machine.log)
            effects = machine.step(aggregating.HeadIn(name, shown, 0.0))
        assert machine.phase is aggregating.Phase.CHANGING
        assert switches(effects) == [expected.digest]
        facts = [e.fact for e in effects if isinstance(e, Remember)]
        kept = [fact.record for fact in facts if isinstance(fact, aggregating.Recorded)]
        assert kept[-1].next == expected.digest
        assert not any(isinstance(e, aggregating.Load) for e in effects)


def test_a_record_that_too_few_hops_have_stored_ends_no_epoch() -> None:
    machine = aggregating.Aggregator(E1, identity(AGGREGATOR), rng(), BOTH)
    machine.recall(aggregating.Recorded(LOG.records[0]))
    machine.step(aggregating.Awake(0.0))
    bare = replace(SWITCH, countersignatures=())
    effects = []
    for name in E1.chain:
        effects = machine.step(aggregating.HeadIn(name, Shown(machine.life, 2, 0, (*LOG.records, bare), 0, 0, ()), 0.0))
    assert machine.phase is aggregating.Phase.LOADING
    assert not switches(effects)
