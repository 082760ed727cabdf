"""The paper's traps in a round: the same sum, proofs that everybody checks, and whoever lies about them is named."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from silomix.attacks.tamper.drill import run_one
from silomix.attacks.tamper.registry import MISBEHAVIOURS, CommitsToOtherMask, Ends, ForgesProof, Misbehaviour
from silomix.attacks.tamper.ring import Ring, federation, identity
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers import traps as arithmetic
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.numbers.traps import Opening
from silomix.runtime.core.policy import TrapPlacement
from silomix.runtime.core.protocol import shuffler
from silomix.runtime.core.protocol.aggregator import Phase
from silomix.runtime.core.protocol.check.blame import Case, Charge, decide, false_pads
from silomix.runtime.core.protocol.check.proofs import check_holds, check_proofs, statements
from silomix.runtime.core.protocol.check.said import CheckTranscript, Statement, check_said
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS, Trapped, Traps, committed, points
from silomix.runtime.core.protocol.lineage import Transcript
from silomix.runtime.core.protocol.rules import layout, pin_problem
from silomix.runtime.net.check.case import read_case, write_case
from silomix.runtime.net.check.said import read_check, write_check
from silomix.runtime.nodes.facts import read_shuffler, read_silo, write_shuffler, write_silo
from silomix.runtime.store.journal import Journal

TRAPPED = federation(3, 2, traps=3)
ABOUT_TRAPS = [one for one in MISBEHAVIOURS if one.traps]


@cache
def honest() -> Ring:
    """A round with traps in which everybody keeps to the protocol."""
    return Ring(f=TRAPPED).run()


def kept() -> Transcript:
    return next(iter(honest().lead.sums.values()))[0]


def said() -> CheckTranscript:
    check = kept().check
    assert check is not None
    return check


def refused(what: Callable[[], Any]) -> Reason:
    with pytest.raises(PeerFault) as fault:
        what()
    return fault.value.reason


def drawn() -> Traps:
    return Traps.drawn(said().coin, kept().manifest, TRAPPED.policy)


# A round


def test_the_sum_is_that_without_traps_and_nobody_is_named() -> None:
    ring, plain = honest(), Ring(f=federation(3, 2)).run()
    assert ring.applied
    assert not ring.verdicts
    assert not ring.refusals
    assert not ring.gave_up
    assert {one.at for one in ring.silos.values()} == {1}  # every silo has checked the proofs
    assert all((ring.model[name] == values).all() for name, values in plain.model.items())
    assert [proof.hop for proof in said().proofs] == list(TRAPPED.chain)


def test_without_traps_nothing_is_stated_proved_or_signed_for_them() -> None:
    check = next(iter(Ring(f=federation(3, 2)).run().lead.sums.values()))[0].check
    assert check is not None
    assert not check.proofs
    assert check.said == check.digest
    assert {one.trapped for one in check.statements} == {NO_TRAPS}
    wire = write_check(check)
    assert not any(one.residues or one.commitments for one in wire.statements)


def test_traps_of_the_last_layer_are_there() -> None:
    ring = Ring(f=federation(3, 2, traps=2, trap_placement=TrapPlacement.LAST_LAYER)).run()
    assert ring.applied
    schema = Schema((TensorSpec("first.w", (30,)), TensorSpec("last.w", (8,)), TensorSpec("last.b", (2,))))
    m = replace(kept().manifest, schema=schema)
    every = replace(ring.f.policy, traps=10)
    assert Traps.drawn(b"coin", m, every).at == tuple(range(30, 40))
    assert not pin_problem(schema, every)
    assert "has 10 parameters among which traps are drawn" in pin_problem(schema, replace(every, traps=11))
    assert "has 40 parameters" in pin_problem(schema, replace(TRAPPED.policy, traps=41))


def test_the_residues_are_those_that_travelled() -> None:
    """What the aggregator states is read off the vector another way."""
    body = next(iter(honest().lead.sums.values()))[1]
    rows = layout(kept().manifest).residues(body)
    stated = said().statements[-1].trapped.residues[0]
    assert stated == tuple(tuple(int(rows[plane, at]) for at in drawn().at) for plane in range(len(rows)))


# Nothing is told that should not be


def test_no_commitment_opens_to_the_mask_with_what_others_know() -> None:
    """A residue has few values: whoever could make a blinding would find it. With the coin, the context and another
    node's secret nobody can; with the seed the first value that is tried fits.
    """
    traps, check, m = drawn(), said(), kept().manifest
    silo = honest().silos["silo-1"]
    assert silo.sealing is not None
    seeds = dict(silo.sealing.seeds)
    first = points(check.of("silo-1").trapped.commitments[0])[0]
    p = m.plan.moduli[0]

    def found(secret: Secret, layer: int) -> list[int]:
        made = arithmetic.blinding(secret, m.context(layer).info(), check.coin, 0, 0)
        return [value for value in range(p) if arithmetic.commit(Opening(value, made)) == first]

    assert len(found(seeds[1], 1)) == 1
    assert found(seeds[2], 1) == found(seeds[1], 2) == found(Secret(bytes([1] * 32)), 1) == []
    assert traps.mask_openings(seeds[1], m.context(1))[0].value == found(seeds[1], 1)[0]


def test_no_two_commitments_of_a_check_share_a_blinding() -> None:
    every = [point for one in said().statements for blob in one.trapped.commitments for point in points(blob)]
    assert len(every) == len(set(every)) == 3 * 2 * (3 * 2 + 2)  # traps, planes; three silos for two hops, two pads


def test_what_is_stated_of_a_silo_is_masked() -> None:
    """Its values at the traps are in no statement: the residues differ from its own by masks that nobody opened."""
    m, traps = kept().manifest, drawn()
    for name in TRAPPED.silo_names:
        own = traps.vectors([honest().frozen(name, m)])[0]
        stated = said().of(name).trapped.residues[0]
        assert sum(a != b for x, y in zip(own, stated, strict=True) for a, b in zip(x, y, strict=True)) >= 4


# Whoever lies is named


@pytest.mark.parametrize(
    "which", [one for one in ABOUT_TRAPS if not one.name.endswith(("-1", "-3"))], ids=lambda one: one.name
)
def test_a_lie_about_traps_is_found_and_its_author_named(which: Misbehaviour) -> None:
    result = run_one(which)
    assert not result.missed
    assert not result.wrongly
    assert not result.applied or which.node.startswith("silo")


def convicted(lie: type, node: str) -> Case:
    """The case against a liar, as it came off the wire."""
    ring = Ring({node: lie(node, Random(0))}, f=TRAPPED).run()
    (verdict,) = ring.verdicts
    case = read_case(write_case(verdict.case))
    assert case.digest == verdict.case.digest
    assert decide(case, TRAPPED).culprit == node
    return case


def test_evidence_against_a_forger_cannot_be_turned_against_another() -> None:
    case = convicted(ForgesProof, "shuffler-2")
    assert case.charge is Charge.PROOF
    assert case.check is not None
    (proof,) = case.check.proofs
    true = said().proofs
    for other in ((), true, (replace(proof, hop="shuffler-1"),), (replace(proof, check=bytes(32)),), (proof, proof)):
        forged = replace(case, check=replace(case.check, proofs=other))
        assert refused(lambda forged=forged: decide(forged, TRAPPED)) is not Reason.TAMPERED  # type: ignore[misc]
    honest_case = replace(
        case, subject=kept().subject, manifest=kept().manifest, check=replace(said(), proofs=true[:1])
    )
    assert refused(lambda: decide(honest_case, TRAPPED)) is Reason.FALSE_EVIDENCE


def test_evidence_against_a_silo_needs_the_key_that_its_hop_made_for_it() -> None:
    case = convicted(CommitsToOtherMask, "silo-2")
    assert case.charge is Charge.COMMITMENT
    assert case.defence is not None
    assert case.defence.name == "silo-2"
    for change in ({"name": "silo-1"}, {"private": bytes(32)}, {"private": b""}, {"name": ""}):
        other = replace(case, defence=replace(case.defence, **change).signed(identity("shuffler-2")))
        assert decide(other, TRAPPED).culprit == "shuffler-2"  # whoever accuses, and shows nothing
    unsigned = replace(case, defence=replace(case.defence, name="silo-1"))
    assert refused(lambda: decide(unsigned, TRAPPED)) is Reason.BAD_SIGNATURE


def test_a_pad_that_was_not_committed_to_is_found_when_it_is_shown() -> None:
    transcript, check, hop = kept(), said(), "shuffler-1"
    pads = dict(zip(TRAPPED.chain, transcript.pads, strict=True))
    given = (transcript.manifest, transcript.subject)
    assert false_pads(*given, check, pads, TRAPPED) == ()
    context = transcript.ready.pad_context(hop, transcript.manifest.chunk_parameters)
    other = committed(drawn().mask_openings(pads[hop], context))  # to the pad, and not to what is added less of it
    lied = replace(check.of(hop), trapped=replace(check.of(hop).trapped, commitments=(other,)))
    forged = replace(check, statements=tuple(lied if one.name == hop else one for one in check.statements))
    assert false_pads(*given, forged, pads, TRAPPED) == (hop,)


# What is refused


def restated(check: CheckTranscript, name: str, trapped: Trapped) -> CheckTranscript:
    one = replace(check.of(name), trapped=trapped).signed(identity(name))
    return replace(check, statements=tuple(one if s.name == name else s for s in check.statements))


@pytest.mark.parametrize("name", ["silo-1", "shuffler-1", "aggregator"])
def test_a_statement_has_what_its_role_has_at_the_traps(name: str) -> None:
    check, context, silos = replace(said(), proofs=()), kept().subject.context, kept().cohort.silos
    given = (context, silos, TRAPPED.chain)
    check_said(check, *given, TRAPPED)
    stated = check.of(name).trapped
    big = ((999_999, *stated.residues[0][0][1:]), *stated.residues[0][1:])
    for trapped, reason in (
        (NO_TRAPS, Reason.WRONG_LENGTH),
        (replace(stated, residues=stated.residues[:-1]), Reason.WRONG_LENGTH),
        (replace(stated, residues=(*stated.residues, stated.residues[0])), Reason.WRONG_LENGTH),
        (replace(stated, commitments=(*stated.commitments, b"")), Reason.WRONG_LENGTH),
        (replace(stated, residues=(tuple(row[1:] for row in stated.residues[0]),)), Reason.WRONG_LENGTH),
        (replace(stated, residues=(big, *stated.residues[1:])), Reason.RESIDUE_RANGE),
    ):
        other = restated(check, name, trapped)
        assert refused(lambda other=other: check_said(other, *given, TRAPPED)) is reason  # type: ignore[misc]
    assert refused(lambda: check_said(check, *given, federation(3, 2))) is Reason.WRONG_LENGTH  # a policy without traps


def test_a_hop_signs_for_nothing_that_was_not_proved() -> None:
    ring = Ring(f=TRAPPED)
    for _ in range(200):
        if ring.lead.core.phase is Phase.READY:
            break
        ring.queue.popleft()()
    check, hop = ring.lead.core.hearing.transcript, ring.hops["shuffler-1"]
    m, trails = ring.lead.open, ring.lead.trails

    def ready(proofs: Any) -> Callable[[], Any]:
        shown = replace(check, proofs=proofs)
        return lambda: hop.core.step(shuffler.ReadyIn(m.digest, trails, ring.lead.core.life, shown))

    one, other = check.proofs
    lie = replace(one, proofs=bytes(len(one.proofs))).signed(identity(one.hop))
    assert refused(ready(())) is Reason.WRONG_SEQUENCE
    assert refused(ready((other, one))) is Reason.WRONG_SEQUENCE
    assert refused(ready((lie, other))) is Reason.TAMPERED
    assert refused(ready((replace(one, signature=bytes(64)), other))) is Reason.BAD_SIGNATURE
    assert any(isinstance(effect, shuffler.Agree) for effect in ready((one, other))())


def test_a_transcript_without_proofs_does_not_hold() -> None:
    """As every silo checks it, and `silomix verify`."""
    given = (kept().subject.context, kept().cohort.silos, TRAPPED.chain, TRAPPED)
    check_holds(said(), *given)
    for proofs in ((), said().proofs[:1], said().proofs[::-1]):
        check = replace(said(), proofs=proofs)
        assert refused(lambda check=check: check_holds(check, *given)) is Reason.WRONG_SEQUENCE  # type: ignore[misc]


def test_proofs_are_of_this_check_alone() -> None:
    check = said()
    check_proofs(check, TRAPPED.chain, TRAPPED)
    (first, *_) = check.statements
    moved = restated(check, first.name, replace(first.trapped, commitments=first.trapped.commitments[::-1]))
    assert moved.said != check.said
    assert refused(lambda: check_proofs(moved, TRAPPED.chain, TRAPPED)) is Reason.WRONG_SEQUENCE
    assert len(statements(check, "shuffler-1", TRAPPED.chain, TRAPPED.plan)) == 3 * 2
    again = read_check(write_check(check), TRAPPED.plan)
    assert again == check
    assert again.digest == check.digest != check.said


# After a restart


def test_a_hop_that_is_started_again_shows_the_same_proofs_and_no_others(tmp_path: Any) -> None:
    """From its journal, as bytes on a disk: a second proof would be one that T does not cover."""
    ring = honest()
    hop, one = ring.hops["shuffler-2"], ring.silos["silo-1"]
    journal = Journal(tmp_path / "hop.db")
    for fact in hop.journal:
        if isinstance(fact, shuffler.Proved | shuffler.Stated):
            write_shuffler(journal, fact)
    found = list(read_shuffler(journal))
    assert found == [fact for fact in hop.journal if isinstance(fact, shuffler.Stated | shuffler.Proved)]
    assert [fact.proof for fact in found if isinstance(fact, shuffler.Proved)] == [said().proofs[1]]
    silos = Journal(tmp_path / "silo.db")
    stated = [fact for fact in one.journal if isinstance(getattr(fact, "statement", None), Statement)]
    for fact in stated:
        write_silo(silos, fact)
    assert list(read_silo(silos)) == stated


@pytest.mark.parametrize("node", ["shuffler-1", "aggregator"])
def test_killed_around_its_proof_a_node_ends_the_round_or_the_attempt(node: str) -> None:
    kinds = {"shuffler-1": ("Prove", "ShowProof"), "aggregator": ("AskProofs", "AskReady")}[node]
    places = [number for name, number, kind in honest().trace if name == node and kind in kinds]
    assert len(places) == 2
    for place in places:
        ring = Ring(kills=(node, place), f=TRAPPED).run()
        assert ring.applied
        assert not ring.verdicts
        proved = [fact for hop in ring.hops.values() for fact in hop.journal if isinstance(fact, shuffler.Proved)]
        assert len({(fact.manifest, fact.proof.hop) for fact in proved}) == len(proved)  # one for an attempt


def test_a_listed_misbehaviour_is_not_named() -> None:
    silent = next(one for one in ABOUT_TRAPS if one.ends is Ends.LISTED)
    assert run_one(silent).named == ()


def test_picked_residues_are_those_of_the_chunks_that_they_are_in() -> None:
    shape = layout(kept().manifest)
    body = honest().frozen("silo-1", kept().manifest)
    rows = shape.residues(body)
    every = Traps(b"", shape, tuple(range(shape.coordinates)))
    assert (np.array(every.vectors([body])[0]) == rows).all()
