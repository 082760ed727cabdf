"""The tamper check with the real machines, in memory: what is applied, who is named, and what is answered once."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from silomix.attacks.tamper.drill import Result, judge, run_one, without_check
from silomix.attacks.tamper.lies import Honest
from silomix.attacks.tamper.registry import MISBEHAVIOURS, Ends, FlipsResidue, Misbehaviour
from silomix.attacks.tamper.ring import AGGREGATOR, Ring, federation, identity
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.tamper import EquationKind, Scalars
from silomix.runtime.core.protocol import shuffler, silo
from silomix.runtime.core.protocol.check.blame import Case, Charge, Defence, decide
from silomix.runtime.core.protocol.check.forms import scalars_of
from silomix.runtime.core.protocol.check.said import CheckTranscript
from silomix.runtime.core.protocol.lineage import check_transcript
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.roundlog import Outcome
from silomix.runtime.core.protocol.rules import layout

SMALL = federation(3, 2)
BY_NAME = {one.name: one for one in MISBEHAVIOURS}
QUICK = [one for one in MISBEHAVIOURS if not one.name.endswith(("-1", "-3")) and "silent-at" not in one.name]


def refused(what: Any) -> Reason:
    with pytest.raises(PeerFault) as caught:
        what()
    return caught.value.reason


@cache
def honest() -> Ring:
    """A round in which everybody keeps to the protocol."""
    return Ring(f=SMALL).run()


def named(which: str) -> Ring:
    """A round with a misbehaviour, in a federation of 4 silos and 3 hops."""
    one = BY_NAME[which]
    return Ring({one.node: one.lie(one.node, Random(0))}).run()


def test_an_honest_round_is_applied_and_nobody_is_named() -> None:
    ring = honest()
    assert ring.applied
    assert not ring.verdicts
    assert not ring.refusals
    assert not ring.gave_up
    assert {one.at for one in ring.silos.values()} == {1}


def test_the_model_is_that_of_level_semi_honest() -> None:
    """The moduli differ, and the integers do not: sums and models are the same to the last bit."""
    plain = Ring(f=federation(3, 2, level=Level.SEMI_HONEST)).run()
    assert plain.f.plan.moduli != SMALL.plan.moduli
    assert plain.digests(plain.model, plain.first[1]) == honest().digests(honest().model, plain.first[1])
    assert any(np.abs(values).max() > 0 for values in plain.model.values())


def test_the_last_hop_and_the_aggregator_together_do_not_get_another_sum_past_silos() -> None:
    """The two sign for one vector, and state the scalars of another: all equations hold, and pads are shown."""
    last = SMALL.chain[-1]
    kept: list[Any] = []

    def of_what_it_should_be(coin: bytes) -> Scalars:
        vector, manifest = kept
        return scalars_of(coin, layout(manifest), [vector])[0]

    class Sends(FlipsResidue):
        def sends(self, vector: Bytes, manifest: Manifest) -> Bytes:
            kept[:] = [vector.copy(), manifest]
            return super().sends(vector, manifest)

        def measures(self, scalars: tuple[Scalars, ...]) -> tuple[Scalars, ...]:
            return scalars[0], of_what_it_should_be(ring.hops[last].measuring), scalars[2]

    class Agrees(Honest):
        def measures(self, scalars: tuple[Scalars, ...]) -> tuple[Scalars, ...]:
            return (of_what_it_should_be(ring.lead.measuring),)

    ring = Ring({last: Sends(last, Random(2)), AGGREGATOR: Agrees()}, f=SMALL)  # a sum that is not out of range
    ring.run()
    assert not ring.verdicts  # the pads are out
    assert {one.at for one in ring.silos.values()} == {0}  # none has the model
    said = [fault for node, fault in ring.refusals if node in ring.silos and fault.reason is Reason.TAMPERED]
    assert any(f"{last} and {AGGREGATOR} stated other scalars" in fault.message for fault in said)


def check_run(found: Result) -> None:
    assert not found.missed, found
    assert not found.wrongly, found
    if found.expected is Ends.LISTED:
        assert not found.named


def test_a_silo_is_not_left_out_as_it_should_be_unless_the_others_sum_is_applied() -> None:
    found = run_one(BY_NAME["silo-seals-another-seed"])
    assert found.applied
    assert not found.missed
    assert replace(found, applied=False).missed


@pytest.mark.parametrize("one", QUICK, ids=lambda one: one.name)
def test_whoever_misbehaves_is_named_and_nobody_else(one: Misbehaviour) -> None:
    check_run(run_one(one))


@pytest.mark.full
@pytest.mark.parametrize("one", [one for one in MISBEHAVIOURS if one not in QUICK], ids=lambda one: one.name)
def test_wherever_in_the_chain(one: Misbehaviour) -> None:
    check_run(run_one(one))


@pytest.mark.parametrize("seed", range(6))
def test_one_changed_residue_is_found(seed: int) -> None:
    hop = SMALL.chain[seed % 2]
    found = run_one(Misbehaviour("single", hop, FlipsResidue, Ends.PROVEN, ""), seed, SMALL)
    assert found.proven
    assert found.named == (hop,)
    assert not found.applied


def test_without_the_equations_it_goes_through() -> None:
    one = Misbehaviour("single", SMALL.chain[1], FlipsResidue, Ends.PROVEN, "")
    with without_check():
        found = run_one(one, 3, SMALL)
    assert found.missed
    assert not found.named


def test_a_sum_that_was_altered_is_never_readable_and_the_model_stays_free() -> None:
    """No hop has signed T, so none has shown its pad, and no fact binds the model."""
    ring = named("flips-a-residue-2")
    for hop in ring.hops.values():
        assert not any(isinstance(fact, shuffler.Signed | shuffler.Released) for fact in hop.journal)
    assert not ring.lead.sums
    last = ring.lead.core.log.last
    assert last is not None
    assert last.outcome is Outcome.ABANDONED
    assert [(one.culprit, len(one.evidence)) for one in last.attempts] == [("shuffler-2", 32)]
    assert ring.finished is not None
    assert ring.finished.barred == ("shuffler-2",)
    assert ring.lead.core.log.over  # silos end on what is on record


def test_the_next_round_runs_without_a_hop_that_was_named() -> None:
    """Where the pool has hops to spare: the round ends, since that hop has a part in it, and the next one goes on."""
    f = federation(3, 4, minimum_hops=3, rounds=2)
    ring = Ring({"shuffler-2": FlipsResidue("shuffler-2", Random(0))}, f=f).run()
    first, second = ring.lead.core.log.records[1:]
    assert (first.outcome, second.outcome) == (Outcome.ABANDONED, Outcome.APPLIED)
    assert [one.culprit for one in first.attempts] == ["shuffler-2"]
    assert second.attempts[-1].chain == ("shuffler-1", "shuffler-3", "shuffler-4")
    assert ring.finished is not None
    assert not ring.finished.barred


def test_a_silo_that_lied_sits_out_and_the_others_go_on() -> None:
    for which, liar in (("silo-lies-about-a-mask", "silo-2"), ("silo-lies-about-its-body", "silo-2")):
        ring = named(which)
        last = ring.lead.core.log.last
        assert last is not None
        assert last.outcome is Outcome.APPLIED
        assert last.silos == tuple(name for name in ring.f.silo_names if name != liar)
        assert [one.culprit for one in last.attempts] == [liar, ""]


@pytest.mark.parametrize("which", ["silo-lies-about-a-mask", "flips-a-residue-2", "states-false-scalars-2"])
def test_no_key_of_two_honest_nodes_is_opened(which: str) -> None:
    ring = named(which)
    for verdict in ring.verdicts:
        defence = verdict.case.defence
        assert defence is not None
        assert not defence.private or defence.name == verdict.culprit


# Once for an attempt, across restarts


def pieces() -> tuple[Ring, Any, Any]:
    """A ring that stopped before anybody signed for the release, and what was said in its check."""
    lie = BY_NAME["silent-at-readyin-2"]
    ring = Ring({"shuffler-2": lie.lie("shuffler-2", Random(0))}, f=SMALL)
    ring.settle()
    hearing = ring.lead.core.hearing
    assert hearing is not None
    return ring, hearing, ring.lead.open


def test_a_hop_answers_one_coin_and_the_same_after_a_restart() -> None:
    ring, hearing, m = pieces()
    hop = ring.hops["shuffler-1"]
    trails, bodies = hearing.subject.ready.trails, hearing.subject.bodies
    right = shuffler.CoinIn(m.digest, trails, bodies, hearing.shares)
    said = hearing.statements["shuffler-1"]
    other = shuffler.CoinIn(
        m.digest, trails, bodies, (replace(hearing.shares[0], share=bytes(32)), *hearing.shares[1:])
    )
    for _ in range(2):
        assert hop.core.step(right) == [shuffler.Answer(said)]
        assert refused(lambda: hop.core.step(other)) is Reason.WRONG_SEQUENCE
        hop.restart()


def test_a_silo_tosses_once_and_answers_once_across_restarts() -> None:
    ring, hearing, m = pieces()
    one = ring.silos["silo-1"]
    facts = [fact for fact in one.journal if isinstance(fact, silo.Tossed | silo.Stated)]
    assert [type(fact) for fact in facts] == [silo.Tossed, silo.Stated]
    again = silo.Silo(ring.f, identity("silo-1"))
    for fact in one.journal:
        again.recall(fact)
    again.current, again.state, again.counted = m, silo.State.COUNTED, m.digest
    again.tossed[m.digest] = bytes(32)  # for another check of this attempt
    assert one.sealing is not None
    assert one.sealing.share is not None
    event = silo.CheckIn(hearing.subject, one.sealing_digest, one.root, one.sealing.share)
    assert refused(lambda: again.step(event)) is Reason.SHARE_MISMATCH
    again.tossed[m.digest] = hearing.subject.context
    again.step(event)
    assert again.step(silo.CoinIn(hearing.shares)) == [silo.Answer(hearing.statements["silo-1"])]
    other = (replace(hearing.shares[0], share=bytes(32)), *hearing.shares[1:])
    assert refused(lambda: again.step(silo.CoinIn(other))) is Reason.SHARE_MISMATCH
    measured = silo.Measured(m.digest, bytes(32), hearing.statements["silo-1"].scalars)
    assert refused(lambda: again.step(measured)) is Reason.SHARE_MISMATCH


def test_a_silo_that_has_answered_says_the_same_after_a_restart_and_sends_no_other_body() -> None:
    ring, hearing, m = pieces()
    again = silo.Silo(ring.f, identity("silo-1"))
    for fact in ring.silos["silo-1"].journal:
        again.recall(fact)
    assert again.step(silo.Announced(m)) == [silo.Answer(hearing.statements["silo-1"])]
    assert again.step(silo.CoinIn(hearing.shares)) == [silo.Answer(hearing.statements["silo-1"])]


def test_a_silo_shows_no_share_for_a_body_that_it_did_not_send() -> None:
    ring, hearing, _ = pieces()
    one = ring.silos["silo-2"]
    assert one.sealing is not None
    assert one.sealing.share is not None
    event = silo.CheckIn(hearing.subject, one.sealing_digest, bytes(32), one.sealing.share)
    with pytest.raises(PeerFault) as caught:
        one.core.step(event)
    assert caught.value.details["peer"] == "shuffler-1"


def test_a_hop_signs_nothing_without_the_check() -> None:
    ring, hearing, m = pieces()
    hop, trails, life = ring.hops["shuffler-1"].core, hearing.subject.ready.trails, ring.lead.core.life
    assert refused(lambda: hop.step(shuffler.ReadyIn(m.digest, trails, life))) is Reason.WRONG_SEQUENCE
    right = hearing.transcript
    mine = right.of("shuffler-1")
    forged = replace(mine, scalars=(mine.scalars[1], *mine.scalars[1:])).signed(identity("shuffler-1"))
    others = tuple(forged if one.name == mine.name else one for one in right.statements)
    assert (
        refused(lambda: hop.step(shuffler.ReadyIn(m.digest, trails, life, CheckTranscript(right.tosses, others))))
        is Reason.WRONG_SEQUENCE
    )
    silo_1 = right.of("silo-1")
    lie = replace(silo_1, scalars=(silo_1.scalars[1], *silo_1.scalars[1:])).signed(identity("silo-1"))
    others = tuple(lie if one.name == "silo-1" else one for one in right.statements)
    tampered = shuffler.ReadyIn(m.digest, trails, life, CheckTranscript(right.tosses, others))
    assert refused(lambda: hop.step(tampered)) is Reason.TAMPERED
    assert isinstance(hop.step(shuffler.ReadyIn(m.digest, trails, life, right))[-1], shuffler.Agree)


# Evidence


def spoiled(case: Case) -> Iterator[Case]:
    """A case with one thing otherwise, each of which its author has not signed, or proves nothing."""
    defence = case.defence
    assert defence is not None
    yield replace(case, defence=None)
    yield replace(case, check=None)
    yield replace(case, charge=Charge.PAD)
    yield replace(case, charge=Charge.SHARE)
    yield replace(case, defence=replace(defence, name="silo-1"))
    yield replace(case, defence=replace(defence, node="shuffler-1"))
    for other in ("shuffler-1", AGGREGATOR):
        yield replace(case, defence=Defence(other, defence.check, defence.kind).signed(identity(other)))
    check, manifest, subject = case.check, case.manifest, case.subject
    assert check is not None
    assert subject is not None
    yield replace(case, subject=None)
    yield replace(case, charge=Charge.ARRIVAL)
    yield replace(case, charge=Charge.TRAILS)
    fewer = CheckTranscript(check.tosses, check.statements[:-1])
    yield replace(case, check=fewer)
    one = check.statements[0]
    changed = replace(one, scalars=(one.scalars[1], *one.scalars[1:]))
    yield replace(case, check=CheckTranscript(check.tosses, (changed, *check.statements[1:])))
    yield replace(case, manifest=replace(manifest, attempt=7))
    yield replace(case, subject=replace(subject, bodies=subject.bodies[::-1]))
    yield replace(case, subject=replace(subject, headers=subject.headers[::-1]))


def test_evidence_that_was_tampered_with_names_nobody() -> None:
    (verdict,) = named("flips-a-residue-2").verdicts
    cases = list(spoiled(verdict.case))
    assert decide(verdict.case, federation()).culprit == "shuffler-2"
    for case in cases:
        refused(lambda case=case: decide(case, federation()))


def test_false_scalars_of_the_aggregator_are_shown_by_the_hop_that_sent_the_sum() -> None:
    """It conceals that the check fails at itself, and asks for signatures: the last hop has what it sent."""
    ring = named("aggregator-states-false-scalars")
    verdict, vector = ring.verdicts[0], ring.vectors[0]
    case = verdict.case
    assert (verdict.culprit, case.charge) == (AGGREGATOR, Charge.ARRIVAL)
    assert vector is not None
    assert decide(case, ring.f, vector).culprit == AGGREGATOR
    assert refused(lambda: decide(case, ring.f)) is Reason.FALSE_EVIDENCE
    other = vector.copy()
    other[0] ^= 1
    assert refused(lambda: decide(case, ring.f, other)) is Reason.FALSE_EVIDENCE
    facts = [fact for fact in ring.hops["shuffler-3"].journal if isinstance(fact, shuffler.Convicted)]
    assert [fact.silo for fact in facts] == [AGGREGATOR] * ring.f.policy.attempts  # once in each, however often asked
    assert facts[0].evidence == case.digest
    for hop in ring.hops.values():
        assert not any(isinstance(fact, shuffler.Signed | shuffler.Released) for fact in hop.journal)


def test_a_hop_that_lies_on_the_last_edge_cannot_blame_the_aggregator() -> None:
    """The vector that both have signed for decides, whoever brings it forward."""
    ring = named("states-false-scalars-3")
    case = replace(ring.verdicts[0].case, charge=Charge.ARRIVAL, defence=None)
    check, subject = case.check, case.subject
    assert check is not None
    assert subject is not None
    assert ring.verdicts[0].culprit == "shuffler-3"
    assert refused(lambda: decide(case, ring.f, ring.hops["shuffler-3"].out)) is Reason.FALSE_EVIDENCE


@pytest.mark.parametrize("hop", ["shuffler-2", "shuffler-3"])
def test_two_trails_of_one_sum_are_evidence(hop: str) -> None:
    ring = named(f"equivocates-{hop[-1]}")
    verdict = ring.verdicts[0]
    one, other = verdict.case.trails
    assert (verdict.culprit, verdict.case.charge) == (hop, Charge.TRAILS)
    assert decide(verdict.case, ring.f).culprit == hop
    elsewhere = replace(other, cohort=bytes(32)).signed(identity(hop))
    # A hop that was started again may have been given another vector by the one before it, and is honest.
    given = replace(other, came=bytes(32)).signed(identity(hop))
    for trails in ((one,), (one, one), (one, replace(other, signature=one.signature)), (one, elsewhere), (one, given)):
        case = replace(verdict.case, trails=trails)
        assert refused(lambda case=case: decide(case, ring.f)) in (Reason.FALSE_EVIDENCE, Reason.BAD_SIGNATURE)
    for each in ring.hops.values():
        assert not any(isinstance(fact, shuffler.Signed | shuffler.Released) for fact in each.journal)


def test_no_two_misbehaviours_of_the_drill_do_the_same() -> None:
    """What a hop does otherwise is told apart by what it takes off, adds and sends, not by its name."""
    silos = ("silo-1", "silo-2", "silo-3")
    for hop in ("shuffler-1", "shuffler-2"):
        lies = [BY_NAME[f"{name}-{hop[-1]}"].lie(hop, Random(0)) for name in ("adds-twice", "drops-a-silo")]
        lies.append(BY_NAME[f"does-not-add-{hop[-1]}"].lie(hop, Random(0)))
        done = {(tuple(map(lie.counts, silos)), tuple(sorted(lie.removes(silos)))) for lie in lies}
        assert len(done) == len(lies)


def test_an_honest_check_makes_no_case() -> None:
    ring = honest()
    transcript, _ = ring.lead.sums[1, 1]
    check, m = transcript.check, transcript.manifest
    assert check is not None
    opened = Defence("shuffler-1", check.digest, EquationKind.HOP, "silo-1", bytes(32)).signed(identity("shuffler-1"))
    case = Case(Charge.EQUATION, m, transcript.subject, check=check, defence=opened)
    assert refused(lambda: decide(case, SMALL)) is Reason.FALSE_EVIDENCE
    case = Case(Charge.PAD, m, transcript.subject, check=check, hop=m.chain[0], pad=transcript.pads[0].value)
    assert refused(lambda: decide(case, SMALL)) is Reason.FALSE_EVIDENCE
    case = Case(Charge.SHARE, m, transcript.subject, toss=check.tosses[0])
    assert refused(lambda: decide(case, SMALL)) is Reason.FALSE_EVIDENCE


def test_a_released_sum_carries_its_check() -> None:
    """Lineage: a silo takes no model from a release whose check is missing, other, or was not signed for."""
    ring = honest()
    transcript, _ = ring.lead.sums[1, 1]
    record = ring.lead.core.log.records[1]
    check_transcript(transcript, record, SMALL)
    assert refused(lambda: check_transcript(replace(transcript, check=None), record, SMALL)) is Reason.TAMPERED
    check = transcript.check
    assert check is not None
    swapped = replace(transcript, check=CheckTranscript(check.tosses, check.statements[::-1]))
    assert refused(lambda: check_transcript(swapped, record, SMALL)) is Reason.TAMPERED
    bare = replace(transcript, ready=replace(transcript.ready, check=b""))
    assert refused(lambda: check_transcript(bare, record, SMALL)) is Reason.WRONG_MANIFEST


def test_judging_counts_an_honest_node_that_is_named() -> None:
    """The drill's own figures can be bad: a ring in which somebody honest is refused is counted as such."""
    one = BY_NAME["flips-a-residue-2"]
    ring = named(one.name)
    ring.refused("silo-1", PeerFault(Reason.TAMPERED, "a slip", peer="shuffler-1"))
    assert judge(one, ring).wrongly == ("shuffler-1",)
