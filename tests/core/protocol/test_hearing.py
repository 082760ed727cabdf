"""Protocol section 6: an aggregator signs nothing before hops have shown it what they know."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.core.protocol.federations import (
    AGGREGATOR,
    MODEL,
    OTHER_MODEL,
    SCHEMA,
    STATE,
    bond,
    counted,
    federation,
    flipped,
    identity,
    lived,
    past,
    recorded,
)
from tests.core.protocol.nets import Net
from tests.core.protocol.test_aggregator import Node
from tests.core.protocol.test_epochs import AFTER, BOTH, E1, E2, IN_E2, LOG, SWITCH

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.protocol import shuffler
from silomix.runtime.core.protocol.aggregator import (
    Aggregator,
    AskHeads,
    AskKeys,
    AskStore,
    Awake,
    HeadIn,
    HopBack,
    HopReleased,
    Lived,
    Load,
    Phase,
    Recorded,
    Start,
    Tick,
)
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.hearing import (
    HEAR_S,
    MOST_AHEAD,
    MOST_MISSED,
    MOST_RAISES,
    Life,
    Lives,
    Shown,
    Standing,
    Told,
    check_asked,
    check_later,
    check_made,
    check_shown,
    counts,
    holds,
    life_after,
    missing_records,
    number_of,
    until_change,
)
from silomix.runtime.core.protocol.machine import IGNORES, Remember
from silomix.runtime.core.protocol.roundlog import Outcome, Record, RoundLog, check_countersigned
from silomix.runtime.core.protocol.rules import MOST_ATTEMPTS

F = federation()
FOUR = federation(4, 4, minimum_hops=3)


def outcomes(net: Net) -> list[Outcome]:
    return [record.outcome for record in net.core.log.records]


def forks(net: Net) -> int:
    hops, silos = net.hops.values(), net.silos.values()
    return sum(len(hop.core.forks) for hop in hops) + sum(len(silo.core.forks) for silo in silos)


def awake(node: Node) -> None:
    node.feed(Awake(0.0))
    assert node.core.phase is Phase.HEARING


# What is lost comes back


def test_an_emptied_aggregator_takes_the_history_from_its_hops_and_goes_on() -> None:
    net = Net(rounds=3)
    for _ in range(2):
        net.submit()
    before = net.core.log.head
    assert outcomes(net) == [Outcome.GENESIS, Outcome.APPLIED, Outcome.APPLIED]
    net.aggregator.restored()
    assert net.core.log.round == 0
    net.settle()
    assert net.core.log.head == before
    for record in net.core.log.records:
        check_countersigned(record, net.f)
    assert (net.core.round, net.core.phase) == (3, Phase.COLLECTING)  # in one step, whatever it lacked
    net.submit()
    assert outcomes(net)[1:] == [Outcome.APPLIED] * 3
    assert forks(net) == 0
    transcript, body = net.aggregator.sums[3, net.core.log.records[3].attempts[-1].attempt]
    assert net.digits(transcript, body.copy()) == net.once(*range(5))


def test_an_old_copy_of_any_age_makes_no_fork_and_no_second_cohort() -> None:
    """Taken after each of its writes, and put back in the middle of a release that hop 1 has shown its pad for."""
    whole = Net(silos=4, hops=2, rounds=2)
    whole.submit()
    whole.submit(until=Phase.REVEALING)
    for facts in range(len(whole.aggregator.journal) + 1):
        net = Net(silos=4, hops=2, rounds=2)
        net.submit()
        net.submit("silo-1", "silo-2", "silo-3")
        net.wait(60)
        net.settle(Phase.REVEALING)
        if net.core.phase is Phase.REVEALING:
            net.settle()
        net.aggregator.restored(facts)
        net.settle()
        assert forks(net) == 0, facts
        for cohorts in net.shown.values():
            assert len(cohorts) == 1
        assert net.core.phase in (Phase.COLLECTING, Phase.FINISHED), facts


def test_a_hop_tells_for_whom_it_has_released_the_model_with_the_proof() -> None:
    net = Net(silos=5, hops=3, rounds=1)
    net.submit("silo-1", "silo-2", "silo-3", "silo-4")
    for hop in ("hop-1", "hop-3"):
        net.hops[hop].core.TABLE = {state: {**row, shuffler.RevealIn: IGNORES} for state, row in shuffler.TABLE.items()}
    net.aggregator.refused = lambda *_: None  # type: ignore[method-assign]
    net.aggregator.shown = lambda *_: None  # type: ignore[method-assign]
    net.wait(60)
    assert net.core.phase is Phase.REVEALING
    assert [bool(hop.core.released) for hop in net.hops.values()] == [False, True, False]
    bound = net.core.bound
    assert len(bound) == 4
    net.aggregator.restored()
    net.settle()
    assert str(net.core.phase) == "collecting"
    assert net.core.bound == net.manifest.bound_to == bound
    assert net.manifest.attempt > 1  # silos have joined the first
    assert forks(net) == 0


def told(attempt: int, silos: tuple[str, ...] = ("silo-1", "silo-2", "silo-3"), model: bytes = MODEL) -> Told:
    """A hop's word, with the proof, that it has released a model for these silos over the whole pool of two."""
    return Told(1, attempt, model, bond(silos, model))


def test_a_release_that_a_hop_tells_of_is_listed_with_the_attempts_of_its_round() -> None:
    """Its number is used, and its round's record will say for whom the model was released."""
    node = Node()
    log, release = past(node.f), told(2)
    awake(node)
    node.feed(HeadIn("hop-1", node.shown(log.records, told=(release,)), 0.0))
    node.feed(HeadIn("hop-2", node.shown(log.records), 0.0))
    assert node.feed(Start(MODEL, STATE, SCHEMA, 0.0)) == [AskKeys(1, 3, node.f.chain, node.f.silo_names, log.head)]
    m = node.propose()
    assert (m.earlier, m.bound_to) == ((release.bond.manifest,), release.bond.silos)
    while node.core.phase is not Phase.RECORDING:
        node.feed(Tick(node.core.wake_at() or 0.0))
    first, *others = node.records[-1].attempts
    assert (first.attempt, first.manifest, first.silos) == (2, release.bond.manifest, release.bond.silos)
    assert not any(one.agreed for one in others)


def test_no_number_is_used_again_that_one_hop_tells_of_and_another_has_forgotten() -> None:
    node = Node()
    log = past(node.f)
    awake(node)
    node.feed(HeadIn("hop-1", node.shown(log.records, told=(told(9),)), 0.0))  # it was started again since
    node.feed(HeadIn("hop-2", node.shown(log.records, attempt=3), 0.0))
    (asked,) = node.feed(Start(MODEL, STATE, SCHEMA, 0.0))
    assert isinstance(asked, AskKeys)
    assert asked.attempt == 10


def test_attempts_that_a_hop_knows_of_an_earlier_round_use_up_none_of_this_one() -> None:
    """A hop that was away for the end of a round still counts the attempts of that one."""
    node = Node()
    log = past(node.f, 1)
    awake(node)
    node.feed(HeadIn("hop-1", node.shown(log.records), 0.0))
    node.feed(HeadIn("hop-2", node.shown(log.records[:1], attempt=100, total=1), 0.0))
    effects = node.feed(Start(MODEL, STATE, SCHEMA, 0.0))
    assert effects[-1] == AskKeys(2, 1, node.f.chain, node.f.silo_names, log.head)


def test_a_hop_that_lacks_the_newest_record_gets_it_from_a_process_that_begins() -> None:
    """It was away when the record was stored, and so was lost for good: without it, it opens nothing, and where another
    hop cannot come back, no chain was ever formed again."""
    node = Node()
    log = past(node.f, 1)
    awake(node)
    node.feed(HeadIn("hop-1", node.shown(log.records), 0.0))
    node.feed(HeadIn("hop-2", node.shown(log.records[:1], total=1), 0.0))
    asked = node.feed(Start(MODEL, STATE, SCHEMA, 0.0))[0]
    assert asked == AskStore(node.core.log.records[1], ("hop-2",))


@pytest.mark.parametrize("total", [1, 2])
def test_a_hop_that_is_heard_late_gets_the_newest_record_if_it_lacks_it(total: int) -> None:
    node = Node(FOUR)
    node.start()
    node.run_round()
    node.restart()
    awake(node)
    for hop in FOUR.chain[:3]:
        node.feed(HeadIn(hop, node.shown(), 0.0))
    node.feed(Tick(HEAR_S + 1))
    node.feed(Start(*node.newest, SCHEMA, HEAR_S + 1, node.kept))
    newest = node.core.log.records[1]
    effects = node.feed(HeadIn("hop-4", node.shown(total=total), HEAR_S + 2))
    assert effects == ([AskStore(newest, ("hop-4",))] if total == 1 else [])


@pytest.mark.parametrize("begun", [False, True], ids=["there is no record yet", "every hop is asked already"])
def test_a_hop_that_is_heard_late_is_asked_to_store_nothing_while(begun: bool) -> None:
    node = Node(FOUR)
    awake(node)
    for hop in FOUR.chain[:3]:
        node.feed(HeadIn(hop, node.shown(), 0.0))
    node.feed(Tick(HEAR_S + 1))
    if begun:
        effects = node.feed(Start(MODEL, STATE, SCHEMA, HEAR_S + 2))
        assert effects[-1] == AskStore(node.core.log.records[0], FOUR.chain)
    assert node.feed(HeadIn("hop-4", node.shown(total=0), HEAR_S + 3)) == []


def test_a_hop_that_shows_again_and_again_that_it_lacks_the_newest_record_is_asked_once() -> None:
    """Each question is asked until it is answered: a hop that refuses it, and shows as often what it lacks, would have
    the aggregator ask ever more at once."""
    node = Node(FOUR)
    node.start()
    node.run_round()
    node.restart()
    awake(node)
    for hop in FOUR.chain[:3]:
        node.feed(HeadIn(hop, node.shown(), 0.0))
    node.feed(Tick(HEAR_S + 1))
    node.feed(Start(*node.newest, SCHEMA, HEAR_S + 1, node.kept))
    lacks = [node.feed(HeadIn("hop-4", node.shown(total=1), HEAR_S + 2)) for _ in range(3)]
    assert lacks == [[AskStore(node.core.log.records[1], ("hop-4",))], [], []]
    assert node.feed(HeadIn("hop-1", node.shown(total=1), HEAR_S + 2)) == []


def test_only_what_may_be_missing_is_asked_for() -> None:
    node = Node()
    node.start()
    node.run_round()
    node.restart()
    asked = node.feed(Awake(0.0))[-1]
    assert asked == AskHeads(node.core.life, 1, node.f.chain)  # the newest too: it may count, unknown to this node


# Nothing is signed before that


def test_a_node_that_is_no_hop_is_not_heard() -> None:
    node = Node()
    awake(node)
    assert node.feed(HeadIn("hop-1", node.shown(), 0.0)) == []
    for stranger in ("silo-1", "hop-3", AGGREGATOR):
        for life in (node.core.life, life_after(41, bytes)):
            assert node.feed(HeadIn(stranger, node.shown(life=life), 0.0)) == []
    assert (node.core.phase, set(node.core.heard), node.core.wake_at()) == (Phase.HEARING, {"hop-1"}, None)


def test_an_answer_to_an_earlier_question_is_not_heard() -> None:
    """Between the two a hop may have served another process, and have more to show."""
    node = Node()
    awake(node)
    before = node.shown()
    node.feed(HeadIn("hop-1", node.shown(life=life_after(41, bytes)), 0.0))
    for hop in node.f.chain:
        assert node.feed(HeadIn(hop, before, 0.0)) == []
    assert not node.core.heard
    assert node.core.phase is Phase.HEARING


def test_a_hop_that_is_back_has_not_been_heard_by_that() -> None:
    node = Node(FOUR)
    awake(node)
    node.feed(HeadIn("hop-1", node.shown(), 0.0))
    assert node.feed(HopBack("hop-2", 1.0)) == []
    assert node.core.wake_at() is None
    assert node.feed(Tick(1e6)) == []
    assert node.core.phase is Phase.HEARING


def test_fewer_hops_than_a_chain_needs_are_not_enough_and_the_others_have_some_time() -> None:
    node = Node(FOUR)
    awake(node)
    for hop in ("hop-1", "hop-3"):
        assert node.feed(HeadIn(hop, node.shown(), 1.0)) == []
        assert node.core.wake_at() is None
    assert node.feed(HeadIn("hop-4", node.shown(), 1.0)) == []
    assert node.core.wake_at() == 1.0 + HEAR_S
    assert node.feed(Tick(HEAR_S)) == []
    assert node.feed(Tick(1.0 + HEAR_S)) == [Load(0)]
    assert not node.of(Recorded)


def test_all_hops_at_once_need_no_patience() -> None:
    node = Node(FOUR)
    awake(node)
    for hop in ("hop-1", "hop-2", "hop-3"):
        assert node.feed(HeadIn(hop, node.shown(), 1.0)) == []
    assert node.feed(HeadIn("hop-4", node.shown(), 1.0)) == [Load(0)]


def test_a_record_that_one_hop_has_countersigned_is_gone_on_with() -> None:
    """It counts with nobody yet, and another of the same round would be a fork."""
    node = Node()
    log = past(node.f, 1)
    pending = recorded(log)
    awake(node)
    assert node.feed(HeadIn("hop-1", node.shown([*log.records, pending], last_released=1), 0.0)) == []
    effects = node.feed(HeadIn("hop-2", node.shown(log.records), 0.0))
    assert [e.fact.record.round for e in effects if isinstance(e, Remember) and isinstance(e.fact, Recorded)] == [
        0,
        1,
        2,
    ]
    assert Remember(HopReleased("hop-1", 1)) in effects
    assert effects[-1] == Load(3)
    assert node.core.log.head == pending.digest
    assert not node.core.counts


def test_countersignatures_of_all_hops_are_put_together() -> None:
    node = Node()
    first = past(node.f).records[0]
    awake(node)
    for hop in node.f.chain:
        node.feed(HeadIn(hop, node.shown([counted(first, node.f, (hop,))]), 0.0))
    assert node.core.counts


def test_two_records_of_one_round_stop_it() -> None:
    node = Node()
    log = past(node.f)
    one = recorded(log)
    other = replace(one, previous=bytes(32)).signed(identity(AGGREGATOR))
    awake(node)
    node.feed(HeadIn("hop-1", node.shown([*log.records, one]), 0.0))
    with pytest.raises(LocalFault) as caught:
        node.feed(HeadIn("hop-2", node.shown([*log.records, other]), 0.0))
    assert caught.value.reason is Reason.FORKED
    assert "docs/operations.md" in str(caught.value)
    assert node.core.phase is Phase.HEARING


def test_of_two_records_the_one_that_counts_is_the_history() -> None:
    node = Node(FOUR)
    log = past(FOUR)
    one = counted(recorded(log), FOUR, ("hop-1", "hop-2", "hop-3"))
    other = replace(one, previous=bytes(32), countersignatures=()).signed(identity(AGGREGATOR))
    awake(node)
    for hop in ("hop-1", "hop-2", "hop-3"):
        node.feed(HeadIn(hop, node.shown([*log.records, one]), 0.0))
    assert node.feed(HeadIn("hop-4", node.shown([*log.records, other]), 0.0))[-1] == Load(2)
    assert node.core.log.head == one.digest


def test_what_a_hop_makes_up_is_not_believed() -> None:
    node = Node()
    log = past(node.f, 1)
    awake(node)
    forged = replace(log.records[1], signature=bytes(64))
    for shown, reason in (
        (node.shown([log.records[0], forged]), Reason.BAD_SIGNATURE),
        (node.shown([log.records[1]]), Reason.WRONG_HEAD),
    ):
        with pytest.raises(PeerFault) as caught:
            node.feed(HeadIn("hop-1", shown, 0.0))
        assert caught.value.reason is reason
        assert not node.core.heard


def test_a_hop_that_comes_late_with_more_than_was_heard_stops_it() -> None:
    node = Node(FOUR)
    node.start()
    node.run_round()
    ahead = [node.core.log.records[-1], recorded(RoundLog(FOUR, node.core.log.records))]
    with pytest.raises(LocalFault) as caught:
        node.feed(HeadIn("hop-4", node.shown(ahead), 0.0))
    assert "start this aggregator again" in str(caught.value)


# What is shown, piece by piece


def shown(*records: Record, **changes: Any) -> Shown:
    """What a hop shows that has these records and no news."""
    start = records[0].round if records else 0
    known: dict[str, Any] = {"life": b"", "attempt": 0, "last_released": 0, "told": (), "total": start + len(records)}
    return Shown(start=start, records=records, **{**known, **changes})


def refused(check: Callable[[], object]) -> Reason:
    with pytest.raises(PeerFault) as caught:
        check()
    return caught.value.reason


ROUNDS = F.policy.rounds
EVERY = past(F, ROUNDS).records
"""As many records as there can be: that of the first model, and one for each round."""


@pytest.mark.parametrize(
    "most",
    [
        shown(attempt=MOST_ATTEMPTS),
        shown(last_released=ROUNDS + 1),
        shown(*EVERY),
    ],
    ids=["attempts", "last released", "records"],
)
def test_as_much_as_there_can_be_is_believed(most: Shown) -> None:
    check_shown(most, RoundLog(F))


@pytest.mark.parametrize(
    "more",
    [
        shown(attempt=MOST_ATTEMPTS + 1),
        shown(last_released=ROUNDS + 2),
        shown(*EVERY, recorded(past(F, ROUNDS))),
    ],
    ids=["attempts", "last released", "records"],
)
def test_more_than_there_can_be_is_not_believed(more: Shown) -> None:
    assert refused(lambda: check_shown(more, RoundLog(F))) is Reason.MALFORMED


def later(number: int, f: Federation = F, signer: str = AGGREGATOR) -> Shown:
    """What a hop shows that serves a process with this number."""
    life = life_after(number - 1, bytes)
    return shown(life=life, signature=lived(life, f, signer))


def test_a_later_process_is_one_that_the_aggregator_has_signed_in_an_epoch_that_counts() -> None:
    """Its key may have changed since. A hop has no such key, so it can make no process up."""
    renewed = replace(E2, aggregator=replace(E2.aggregator, key=identity("new key").public))
    both = Epochs((E1, renewed))
    for one in (later(9, E1), later(9, renewed, "new key")):
        check_later("hop-1", one, 7, both)
    unsigned = replace(later(9, E1), signature=bytes(64))
    moved = replace(later(9, E1), life=life_after(9, bytes))
    for one in (unsigned, moved, later(9, E1, "hop-1"), later(9, FOUR), replace(unsigned, signature=b"")):
        with pytest.raises(PeerFault, match="hop-1 shows a later process") as caught:
            check_later("hop-1", one, 7, both)
        assert caught.value.reason is Reason.BAD_SIGNATURE
        assert caught.value.details["peer"] == "hop-1"
    assert refused(lambda: check_later("hop-1", later(9, E1, "new key"), 7, BOTH)) is Reason.BAD_SIGNATURE


def test_whoever_has_had_the_key_for_a_moment_gets_no_aggregator_further_than_hops_follow() -> None:
    """Not those either which have missed as many starts as an aggregator may."""
    check_later("hop-1", later(7 + MOST_MISSED), 7, Epochs((F,)))
    too_far = later(8 + MOST_MISSED)
    assert refused(lambda: check_later("hop-1", too_far, 7, Epochs((F,)))) is Reason.MALFORMED
    for missed in (0, MOST_MISSED - 1):
        hop = shuffler.Shuffler(F, identity("hop-1"), bytes)
        hop.recall(shuffler.Heard(life_after(MOST_AHEAD - missed - 1, bytes), bytes(64)))
        begun = life_after(MOST_AHEAD + MOST_MISSED, bytes)  # by one with the number MOST_AHEAD, which was raised
        assert hop.step(shuffler.Show(F.digest, begun, 0, lived(begun, F)))


def test_a_hop_that_was_shown_a_process_shows_none_that_began_earlier() -> None:
    first, second = (life_after(number, bytes) for number in range(2))
    check_asked(second, first)
    check_asked(first, first)
    assert refused(lambda: check_asked(first, second)) is Reason.MALFORMED


def test_the_records_that_more_is_asked_for_were_made_by_this_aggregator() -> None:
    """They are those from one round on, with no more signatures than there can be."""
    log, records = RoundLog(F), EVERY[:3]
    check_made(records, 0, log)
    check_made(records[1:], 1, log)
    assert refused(lambda: check_made(records, 1, log)) is Reason.WRONG_HEAD
    assert refused(lambda: check_made((records[0], records[2]), 0, log)) is Reason.WRONG_HEAD
    last = records[-1]
    own = (("hop-9", bytes(64)),)
    assert len(last.countersignatures) == len(F.chain)
    check_made((replace(last, countersignatures=last.countersignatures + own),), 2, log)
    longer = replace(last, countersignatures=last.countersignatures + 2 * own)
    assert refused(lambda: check_made((longer,), 2, log)) is Reason.WRONG_LENGTH
    made_up = last.signed(identity("hop-1"))
    assert refused(lambda: check_made((made_up,), 2, log)) is Reason.BAD_SIGNATURE


@pytest.mark.parametrize(("said", "kept"), [(0, 0), (1, 1), (2, 1)])
def test_what_comes_after_the_end_of_an_epoch_is_left_for_later(said: int, kept: int) -> None:
    """A hop that has released less than it has stored has not released more for that."""
    assert SWITCH.round == 1
    found = until_change(shown(*LOG.records, SWITCH, IN_E2, last_released=said), LOG)
    assert found == shown(*LOG.records, SWITCH, last_released=kept, total=3)


def test_in_the_newest_epoch_nothing_is_left_for_later() -> None:
    everything = shown(*LOG.records, SWITCH, IN_E2, last_released=2)
    assert until_change(everything, AFTER) == everything


PROOF = bond(F.silo_names)
TOLD = Told(1, 1, MODEL, PROOF)


def test_a_hops_word_for_a_release_holds_with_its_proof() -> None:
    for attempt in (1, MOST_ATTEMPTS):
        assert holds(replace(TOLD, attempt=attempt), F)


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": 0},
        {"attempt": MOST_ATTEMPTS + 1},
        {"model": OTHER_MODEL},
        {"bond": replace(PROOF, participants=PROOF.participants[:3])},
        {"bond": replace(PROOF, signatures=(*PROOF.signatures[:-1], flipped(PROOF.signatures[-1])))},
        {"bond": bond(F.silo_names, chain=("hop-1",))},  # all of these signed, and they are no chain
        {"bond": bond(F.silo_names, chain=("hop-2", "hop-1"))},
    ],
    ids=["attempt 0", "too many", "another model", "a silo less", "forged", "one hop", "another order"],
)
def test_a_hops_word_for_a_release_is_nothing_without(changes: dict[str, Any]) -> None:
    assert not holds(replace(TOLD, **changes), F)


def test_a_record_of_ones_own_that_does_not_count_gives_way_to_no_other() -> None:
    """Hops hold on to another one, which counts: this aggregator has signed both."""
    log = past(F)
    own = replace(recorded(log), countersignatures=())
    other = counted(recorded(log, previous=bytes(32)), F)
    here = RoundLog(F, [*log.records, own])
    with pytest.raises(LocalFault) as caught:
        missing_records(here, {"hop-1": shown(other)})
    assert caught.value.reason is Reason.FORKED


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"previous": bytes(32)}, Reason.WRONG_HEAD),
        ({"model_before": OTHER_MODEL, "model_after": OTHER_MODEL}, Reason.WRONG_MODEL),
    ],
)
def test_records_that_do_not_go_on_from_what_is_here_stop_it(changes: dict[str, Any], reason: Reason) -> None:
    log = past(F, 1)
    with pytest.raises(LocalFault) as caught:
        missing_records(log, {"hop-1": shown(counted(recorded(log, **changes), F))})
    assert caught.value.reason is reason
    assert "does not go on from what is here" in str(caught.value)
    assert caught.value.details["round"] == 2


def test_a_forged_countersignature_does_not_stand_in_the_way_of_a_true_one() -> None:
    log = past(F)
    record = counted(recorded(log), F)
    first, second = record.countersignatures
    forged = replace(record, countersignatures=(first, (second[0], flipped(second[1]))))
    whole = replace(record, countersignatures=(second,))
    (found,) = missing_records(log, {"hop-1": shown(forged), "hop-2": shown(whole)})
    assert found.countersignatures == record.countersignatures
    assert counts(found, log)
    (alone,) = missing_records(log, {"hop-1": shown(forged)})
    assert alone.countersignatures == (first,)


# Processes of a hop


def process(hop: str, number: int, signer: str = "") -> Life:
    return Life(hop, life_after(number - 1, bytes)).signed(identity(signer or hop), F)


@pytest.mark.parametrize(
    "forged",
    [
        process("hop-1", 2, signer="hop-2"),
        replace(process("hop-1", 2), life=life_after(2, bytes)),
        replace(process("hop-1", 2), name="hop-2"),
        Life("hop-1", life_after(1, bytes)),
    ],
    ids=["another signed", "another number", "another hop", "nobody signed"],
)
def test_nobody_but_the_hop_tells_of_its_processes(forged: Life) -> None:
    assert refused(lambda: forged.check(F)) is Reason.BAD_SIGNATURE
    for own in (None, process("hop-1", 1), process("hop-2", 1)):
        lives = Lives(F, own)
        assert refused(lambda lives=lives: lives.take(forged)) is Reason.BAD_SIGNATURE  # type: ignore[misc]
        assert lives.known == (() if own is None else (own,))


@pytest.mark.parametrize("own", [None, process("hop-2", 9)], ids=["an aggregator", "another hop"])
def test_the_newest_process_of_each_hop_is_known(own: Life | None) -> None:
    lives = Lives(F, own)
    mine = () if own is None else (own,)
    first, second, third = (process("hop-1", number) for number in (1, 2, 3))
    assert lives.take(second) is Standing.NEW
    assert lives.take(second) is Standing.KNOWN
    assert lives.take(first) is Standing.OLD
    assert lives.known == (*mine, second)
    assert lives.take(third) is Standing.NEW
    assert lives.known == (*mine, third)


def test_a_hop_ends_when_it_is_shown_a_later_process_of_its_own() -> None:
    own = process("hop-1", 2)
    lives = Lives(F, own)
    assert lives.take(own) is Standing.KNOWN
    assert lives.take(process("hop-1", 1)) is Standing.OLD
    with pytest.raises(LocalFault) as caught:
        lives.take(process("hop-1", 3))
    assert caught.value.reason is Reason.SUPERSEDED
    assert "number 3; this is number 2" in str(caught.value)
    assert lives.known == (own,)


def test_nothing_that_a_late_hop_makes_up_stops_the_aggregator() -> None:
    node = Node(FOUR)
    node.start()
    last = node.core.log.records[-1]
    forged = replace(recorded(RoundLog(FOUR, node.core.log.records)), signature=bytes(64))
    assert node.refuses(HeadIn("hop-4", node.shown([last, forged]), 0.0)) is Reason.BAD_SIGNATURE
    assert node.refuses(HeadIn("hop-4", node.shown([last], attempt=1 << 40), 0.0)) is Reason.MALFORMED
    assert node.core.phase is Phase.PREPARING


def test_a_late_answer_of_a_stranger_or_to_an_earlier_process_changes_nothing() -> None:
    node = Node(FOUR)
    node.start()
    node.restart()
    node.start()
    chain, later = FOUR.chain, life_after(41, bytes)
    release = Told(1, 1, MODEL, bond(("silo-1", "silo-2", "silo-3"), chain=chain))
    before = node.snapshot()
    for hop, life in (("silo-1", node.core.life), ("silo-1", later), ("hop-4", life_after(0, bytes))):
        assert node.feed(HeadIn(hop, node.shown(life=life, told=(release,)), 0.0)) == []
        assert node.snapshot() == before
    node.feed(HeadIn("hop-4", node.shown(told=(release,)), 0.0))
    assert node.core.available == chain[:3]  # it has released the model, and nobody here knew


@pytest.mark.parametrize(
    "release",
    [
        Told(1, 1, OTHER_MODEL, bond(("silo-1", "silo-2", "silo-3"), OTHER_MODEL, FOUR.chain)),
        replace(told(1), bond=replace(bond(("silo-1", "silo-2", "silo-3"), chain=FOUR.chain), signatures=())),
        replace(told(1), bond=bond(("silo-1", "silo-2", "silo-3"), OTHER_MODEL, FOUR.chain)),
    ],
    ids=["of another model", "that nobody signed", "with the proof of another model"],
)
def test_a_late_hop_stands_aside_for_a_release_of_this_model_that_it_can_prove_and_for_no_other(release: Told) -> None:
    node = Node(FOUR)
    node.start()
    assert node.feed(HeadIn("hop-4", node.shown(told=(release,)), 0.0)) == []
    assert node.core.available == FOUR.chain


def test_a_hop_that_stood_aside_is_in_the_chain_again_with_the_next_model() -> None:
    node = Node(FOUR)
    node.start()
    release = Told(1, 1, MODEL, bond(("silo-1", "silo-2", "silo-3"), chain=FOUR.chain))
    node.feed(HeadIn("hop-4", node.shown(told=(release,)), 0.0))
    assert node.core.available == FOUR.chain[:3]
    (asked,) = node.run_round()
    assert isinstance(asked, AskKeys)
    assert asked.chain == FOUR.chain


# Lives


def test_a_number_is_on_the_disk_before_any_hop_hears_it() -> None:
    """Were it the other way round, the next process would begin with the same one."""
    node = Node()
    remember, ask = node.feed(Awake(0.0))
    assert remember == Remember(Lived(node.core.life))
    assert ask == AskHeads(node.core.life, 0, node.f.chain)


def test_a_number_is_above_all_earlier_ones_in_whatever_order_the_journal_is_read() -> None:
    node = Node()
    for _ in range(3):
        node.restart()
        awake(node)
    highest = node.core.life
    node.restart(backwards=True)
    awake(node)
    assert node.core.life > highest


def test_while_it_begins_a_hop_may_show_higher_numbers_twice_and_no_oftener() -> None:
    """Two processes would else go on outdoing each other; and one hop alone cannot end this one."""
    node = Node(FOUR)
    awake(node)

    def higher(hop: str) -> HeadIn:
        return HeadIn(hop, node.shown(life=life_after(number_of(node.core.life), bytes)), 0.0)

    for hop in ("hop-1", "hop-2"):
        for _ in range(MOST_RAISES):
            assert isinstance(node.feed(higher(hop))[-1], AskHeads)
    assert node.refuses(higher("hop-1")) is Reason.SUPERSEDED
    for hop in ("hop-2", "hop-3", "hop-4"):
        node.feed(HeadIn(hop, node.shown(), 0.0))
    assert node.feed(Tick(HEAR_S)) == [Load(0)]


def invented(node: Node, hop: str = "hop-4") -> HeadIn:
    """A process that never was, as far ahead as an honest one could be."""
    life = life_after(number_of(node.core.life) + MOST_MISSED - 1, bytes)
    return HeadIn(hop, node.shown(life=life, signature=lived(life, node.f, hop)), 0.0)


def test_a_hop_that_makes_a_later_process_up_is_not_heard_and_the_others_serve_this_one() -> None:
    """Believed, it would have the aggregator go where no other hop follows: one hop would end the federation."""
    node = Node(FOUR)
    awake(node)
    life = node.core.life
    assert node.refuses(invented(node)) is Reason.BAD_SIGNATURE
    assert (node.core.life, node.core.heard) == (life, {})
    for hop in FOUR.chain[:3]:
        served = shuffler.Shuffler(FOUR, identity(hop), bytes)
        answer = served.step(shuffler.Show(FOUR.digest, life, 0, node.core.life_signature))[-1]
        assert isinstance(answer, shuffler.Shows)
        node.feed(HeadIn(hop, answer.shown, 0.0))
    assert node.refuses(invented(node)) is Reason.BAD_SIGNATURE
    assert node.feed(Tick(HEAR_S)) == [Load(0)]


def test_hops_that_make_a_later_process_up_end_none_that_has_begun() -> None:
    """They serve nobody: they are missed as if they were silent, and say no more than that."""
    node = Node(FOUR)
    node.start()
    for hop in FOUR.chain:
        assert node.refuses(invented(node, hop)) is Reason.BAD_SIGNATURE
    assert node.core.phase is Phase.PREPARING


def test_what_a_hop_was_shown_is_believed_by_a_process_that_comes_before() -> None:
    """It comes to it from a hop that keeps the signature on its disk."""
    newer, node = Node(FOUR), Node(FOUR)
    for _ in range(3):
        newer.restart()
        awake(newer)
    hop = shuffler.Shuffler(FOUR, identity("hop-1"), bytes)
    heard = shuffler.Heard(newer.core.life, newer.core.life_signature)
    assert hop.step(shuffler.Show(FOUR.digest, heard.life, 0, heard.signature))[0] == Remember(heard)
    again = shuffler.Shuffler(FOUR, identity("hop-1"), bytes)
    again.recall(heard)
    awake(node)
    answer = again.step(shuffler.Show(FOUR.digest, node.core.life, 0, node.core.life_signature))[-1]
    assert isinstance(answer, shuffler.Shows)
    node.feed(HeadIn("hop-1", answer.shown, 0.0))
    assert number_of(node.core.life) == number_of(newer.core.life) + 1


def test_it_ends_when_too_few_hops_are_left_that_another_process_has_not_come_to() -> None:
    node = Node()
    awake(node)
    for number in range(MOST_RAISES):
        node.feed(HeadIn("hop-1", node.shown(life=life_after(100 * number + 100, bytes)), 0.0))
    with pytest.raises(LocalFault) as caught:
        node.feed(HeadIn("hop-1", node.shown(life=life_after(1000, bytes)), 0.0))
    assert caught.value.reason is Reason.SUPERSEDED
    assert "run one process" in str(caught.value)


def test_hops_that_serve_another_process_are_missed_one_by_one_until_too_few_are_left() -> None:
    node = Node(FOUR)
    node.start()
    later = life_after(41, bytes)
    for _ in range(2):  # the same one again is not one more
        assert node.feed(HeadIn("hop-1", node.shown(life=later), 0.0)) == []
        assert "another aggregator process" in node.core.trouble["hop-1"]
    with pytest.raises(LocalFault) as caught:
        node.feed(HeadIn("hop-3", node.shown(life=later), 0.0))
    assert caught.value.reason is Reason.SUPERSEDED
    assert "hop-1, hop-3 serve that one" in str(caught.value)


def test_each_start_has_a_higher_number() -> None:
    node = Node()
    awake(node)
    first = node.core.life
    node.restart()
    awake(node)
    assert node.core.life > first
    assert [fact.life for fact in node.of(Lived)] == [first, node.core.life]


def test_a_restored_aggregator_goes_above_the_number_that_hops_know() -> None:
    node = Node()
    awake(node)
    later = life_after(41, bytes)
    effects = node.feed(HeadIn("hop-1", node.shown(life=later), 0.0))
    assert node.core.life > later
    assert not node.core.heard
    assert len(effects) == 2


def test_a_hop_takes_nothing_from_a_process_that_another_came_after() -> None:
    net = Net(silos=4, hops=2, rounds=1)
    old, new = net.core.life, life_after(9, net.rng)
    hop = net.hops["hop-1"]
    hop.step(shuffler.Show(net.f.digest, new, 0, lived(new, net.f)))
    head = net.core.log.last
    assert head is not None
    asked = shuffler.Prepare(net.f.digest, 1, 2, net.f.silo_names, 0, head.digest, 0.0, old)
    for event in (
        asked,
        shuffler.Open(net.manifest, head, 0.0, old),
        shuffler.ReadyIn(bytes(32), (), old),
        shuffler.RevealIn(bytes(32), (), old),
        shuffler.RecordIn(replace(head, countersignatures=()), old),
    ):
        with pytest.raises(PeerFault) as caught:
            hop.step(event)
        assert caught.value.reason is Reason.SUPERSEDED
    hop.step(shuffler.RecordIn(head, old))  # it counts, and is true whoever brings it
    hop.restart()  # it is on its disk
    with pytest.raises(PeerFault):
        hop.step(asked)
    assert hop.step(replace(asked, life=new))


def test_of_two_processes_with_one_identity_the_first_ends_and_there_is_one_sum() -> None:
    net = Net(silos=4, hops=2, rounds=1)
    m = net.manifest
    second = Aggregator(net.f, identity(AGGREGATOR), net.rng)
    second.step(Awake(0.0))
    for name, hop in net.hops.items():
        answer = hop.step(shuffler.Show(net.f.digest, second.life, 0, second.life_signature))[-1]
        assert isinstance(answer, shuffler.Shows)
        second.step(HeadIn(name, answer.shown, 0.0))
    # Its number is no higher than the first one's: it goes above it, and is heard.
    for name, hop in net.hops.items():
        answer = hop.step(shuffler.Show(net.f.digest, second.life, 0, second.life_signature))[-1]
        assert isinstance(answer, shuffler.Shows)
        second.step(HeadIn(name, answer.shown, 0.0))
    assert second.phase is Phase.LOADING
    assert second.log.head == net.core.log.head
    net.submit()  # bodies still come to hop 1, and the padded sum to the first process
    assert net.core.phase is Phase.READY
    assert Reason.SUPERSEDED in net.refusals  # no hop signs for it
    answer = net.hops["hop-1"].step(shuffler.Show(net.f.digest, net.core.life, 0, net.core.life_signature))[-1]
    assert isinstance(answer, shuffler.Shows)
    with pytest.raises(LocalFault) as caught:
        net.core.step(HeadIn("hop-1", answer.shown, 0.0))
    assert caught.value.reason is Reason.SUPERSEDED
    assert "run one process" in str(caught.value)
    assert not any(hop.core.released for hop in net.hops.values())
    assert m.digest == net.manifest.digest
