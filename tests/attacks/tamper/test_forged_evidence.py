"""Evidence in which one thing is not as it was: it names nobody, least of all somebody honest.

Whoever forges has the keys of liars alone. What an honest node has signed for another check, of another kind or about
something else is the forger's to use, so some of it is signed by the node that it would convict.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.attacks.tamper.recorded import (
    FIRST,
    LAST,
    PLAIN,
    TRAPPED,
    again,
    at_edge,
    at_end,
    at_hop,
    false_commitment,
    false_mask,
    forged,
    honest,
    key_of,
    put,
    trapped,
)

from silomix.attacks.tamper.ring import AGGREGATOR, identity
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.tamper import EquationKind
from silomix.runtime.core.protocol.check.blame import Case, Charge, Defence, decide, vector_root
from silomix.runtime.core.protocol.check.said import CheckTranscript, Toss, toss
from silomix.runtime.core.protocol.check.trapped import TrapProof
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.release import Trail
from silomix.runtime.net.check.case import read_case, write_case

OTHER = bytes(32)


def reason(case: Case, f: Federation, vector: Bytes | None = None) -> Reason:
    with pytest.raises(PeerFault) as caught:
        decide(case, f, vector)
    return caught.value.reason


def case(charge: Charge, check: CheckTranscript | None = None, defence: Defence | None = None) -> Case:
    """A case about the honest check, or about one that differs from it by a lie."""
    of = honest()
    return Case(charge, of.manifest, of.subject, check=check, defence=defence)


def at_trap(
    check: CheckTranscript | None = None, defence: Defence | None = None, charge: Charge = Charge.COMMITMENT
) -> Case:
    """A case about the honest check that has a trap."""
    of = trapped()
    return Case(charge, of.manifest, of.subject, check=check, defence=defence)


# What every case is about


def unsigned_manifest() -> Case:
    made = false_mask()
    return replace(made, manifest=replace(made.manifest, signature=bytes(64)))


def unsigned_body() -> Case:
    made = false_mask()
    assert made.subject is not None
    first, *others = made.subject.bodies
    return replace(made, subject=replace(made.subject, bodies=(replace(first, signature=bytes(64)), *others)))


@pytest.mark.parametrize("made", [unsigned_manifest, unsigned_body])
def test_evidence_about_an_attempt_that_was_not_signed_for_names_nobody(made: Callable[[], Case]) -> None:
    assert decide(false_mask(), PLAIN).culprit == "silo-2"
    assert reason(made(), PLAIN) is Reason.BAD_SIGNATURE


# Shares of the coin


def test_the_share_that_a_silo_has_shown_in_another_check_is_no_evidence_against_it() -> None:
    one = Toss("silo-1", bytes(32), ballot=bytes(32))
    one = replace(one, signature=identity("silo-1").sign(one.digest))
    assert reason(replace(case(Charge.SHARE), toss=one), PLAIN) is Reason.FALSE_EVIDENCE


@pytest.mark.parametrize("size", [0, 31, 32, 33])
def test_a_silo_that_shows_a_share_of_any_other_length_or_value_is_named(size: int) -> None:
    one = toss(honest().subject, bytes(size), identity("silo-1"))
    assert decide(replace(case(Charge.SHARE), toss=one), PLAIN).culprit == "silo-1"


# Equations


OTHERS: dict[str, Callable[[], Case]] = {
    "a defence of another check": lambda: replace(false_mask(), defence=again(false_mask().defence, check=OTHER)),
    "a defence of another kind": lambda: replace(
        false_mask(), defence=again(false_mask().defence, kind=EquationKind.EDGE)
    ),
    "an accusation at a trap": lambda: replace(
        false_mask(), defence=again(false_mask().defence, kind=EquationKind.TRAP)
    ),
    "no transcript": lambda: replace(false_mask(), check=None),
    "no defence": lambda: replace(false_mask(), defence=None),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_a_hop_has_opened_elsewhere_names_neither_the_hop_nor_a_silo(what: str) -> None:
    assert reason(OTHERS[what](), PLAIN) is Reason.FALSE_EVIDENCE


OPENINGS: dict[str, dict[str, object]] = {
    "nothing": {"name": "", "private": b""},
    "another key": {"private": bytes(32)},
    "half a key": {"private": bytes(16)},
    "another silo's name": {"name": "silo-1"},
    "a silo that is not in the cohort": {"name": "silo-4"},
    "a silo that is not in the cohort, without a key": {"name": "silo-4", "private": b""},
    "nobody's name": {"name": "nobody"},
    "its own name": {"name": FIRST},
}


@pytest.mark.parametrize("what", OPENINGS)
def test_a_hop_that_opens_no_false_claim_is_named_itself(what: str) -> None:
    made = again(false_mask().defence, **OPENINGS[what])
    assert made.node == FIRST
    assert decide(replace(false_mask(), defence=made), PLAIN).culprit == FIRST


@pytest.mark.parametrize("silo", ["silo-1", "silo-3", "silo-4"])
def test_a_hop_that_opens_the_key_of_a_silo_that_did_not_lie_is_named_itself(silo: str) -> None:
    """The last one of them is invited, and not in the cohort: it has sealed nothing."""
    right = false_mask().defence
    assert right is not None
    assert key_of(right.name) == right.private
    made = again(right, name=silo, private=key_of(silo))
    assert decide(replace(false_mask(), defence=made), PLAIN).culprit == FIRST


def edge() -> tuple[Case, Bytes]:
    """The last hop has lied about what it sent, and the aggregator shows what came."""
    check, of = at_end(honest().check), honest()
    root = of.subject.ready.root
    made = Defence(AGGREGATOR, check.digest, EquationKind.EDGE, LAST, root=root).signed(identity(AGGREGATOR))
    return case(Charge.EQUATION, check, made), of.vector


def other(vector: Bytes) -> Bytes:
    """Another vector, of the same length."""
    made = vector.copy()
    made[0] ^= 1
    return made


def longer(vector: Bytes) -> Bytes:
    return np.append(vector, np.uint8(0))


VECTORS: dict[str, Callable[[Bytes], Bytes | None]] = {
    "none": lambda vector: None,
    "another": other,
    "a shorter one": lambda vector: vector[:-1],
    "a longer one": longer,
}


@pytest.mark.parametrize("what", VECTORS)
def test_a_vector_that_was_not_signed_for_is_no_evidence_of_what_was_sent(what: str) -> None:
    made, vector = edge()
    assert decide(made, PLAIN, vector).culprit == LAST
    assert reason(made, PLAIN, VECTORS[what](vector)) is Reason.FALSE_EVIDENCE


def test_a_vector_of_another_length_has_no_root() -> None:
    of = honest()
    assert vector_root(of.vector, of.manifest) == of.subject.ready.root
    for vector in (longer(of.vector), of.vector[:-1], of.vector[:0]):
        assert vector_root(vector, of.manifest) == b""


# What reached the aggregator


@pytest.mark.parametrize("liar", [LAST, AGGREGATOR])
def test_whoever_lied_about_what_reached_the_aggregator_is_named(liar: str) -> None:
    assert decide(case(Charge.ARRIVAL, at_end(honest().check, liar)), PLAIN, honest().vector).culprit == liar


ARRIVALS: dict[str, tuple[Callable[[], CheckTranscript | None], Reason]] = {
    "no transcript": (lambda: None, Reason.FALSE_EVIDENCE),
    "every equation holds": (lambda: honest().check, Reason.FALSE_EVIDENCE),
    "a hop's equation fails": (lambda: at_hop(honest().check), Reason.FALSE_EVIDENCE),
    "another edge fails": (lambda: at_edge(honest().check), Reason.FALSE_EVIDENCE),
    "another edge fails first": (lambda: at_edge(at_end(honest().check)), Reason.FALSE_EVIDENCE),
    "scalars that were not signed": (lambda: forged(honest().check, AGGREGATOR, [0]), Reason.BAD_SIGNATURE),
}


@pytest.mark.parametrize("what", ARRIVALS)
def test_neither_end_of_the_last_edge_is_named_for_what_is_not_about_it(what: str) -> None:
    check, expected = ARRIVALS[what]
    assert reason(case(Charge.ARRIVAL, check()), PLAIN, honest().vector) is expected


@pytest.mark.parametrize("what", VECTORS)
def test_a_vector_that_was_not_signed_for_is_no_evidence_of_what_arrived(what: str) -> None:
    made = case(Charge.ARRIVAL, at_end(honest().check, AGGREGATOR))
    assert reason(made, PLAIN, VECTORS[what](honest().vector)) is Reason.FALSE_EVIDENCE


# Pads


def about_pad(hop: str = FIRST, pad: bytes = b"", check: CheckTranscript | None = None) -> Case:
    return replace(case(Charge.PAD, check), hop=hop, pad=pad or honest().pads[FIRST])


PADS: dict[str, tuple[Callable[[], Case], Reason]] = {
    "no transcript": (about_pad, Reason.FALSE_EVIDENCE),
    "a silo's": (lambda: about_pad("silo-1", check=honest().check), Reason.FALSE_EVIDENCE),
    "nobody's": (lambda: about_pad("", check=honest().check), Reason.FALSE_EVIDENCE),
    "one that it did not commit to": (lambda: about_pad(pad=OTHER, check=honest().check), Reason.FALSE_EVIDENCE),
    "another hop's": (lambda: about_pad(LAST, check=honest().check), Reason.FALSE_EVIDENCE),
    "its own": (lambda: about_pad(check=honest().check), Reason.FALSE_EVIDENCE),
    "scalars that were not signed": (
        lambda: about_pad(check=forged(honest().check, FIRST, [2])),
        Reason.BAD_SIGNATURE,
    ),
}


@pytest.mark.parametrize("what", PADS)
def test_a_hop_is_not_named_for_a_pad_that_it_did_not_lie_about(what: str) -> None:
    made, expected = PADS[what]
    assert reason(made(), PLAIN) is expected


@pytest.mark.parametrize("made", [lambda one: one, lambda one: read_case(write_case(one))], ids=["core", "wire"])
def test_what_has_not_the_length_of_a_pad_is_refused(made: Callable[[Case], Case]) -> None:
    one = made(replace(about_pad(check=honest().check), pad=b""))
    assert reason(one, PLAIN) is Reason.FALSE_EVIDENCE


# Trails


def test_nobody_is_named_for_trails_who_had_no_part_in_the_attempt() -> None:
    cohort = honest().subject.cohort.digest
    for name in ("silo-1", AGGREGATOR):
        trails = tuple(
            Trail(name, cohort, b"", OTHER, bytes([number]) * 32, OTHER).signed(identity(name)) for number in (1, 2)
        )
        assert reason(Case(Charge.TRAILS, honest().manifest, trails=trails), PLAIN) is Reason.FALSE_EVIDENCE


# Traps


def said() -> CheckTranscript:
    """The honest check before anything was proved."""
    return replace(trapped().check, proofs=())


def accusation(node: str = LAST, check: bytes = b"", kind: EquationKind = EquationKind.TRAP) -> Defence:
    """What a node says when it accuses the second silo, and shows nothing."""
    return Defence(node, check or said().said, kind, "silo-2").signed(identity(node))


def of_proof(proof: TrapProof | None, check: CheckTranscript | None = None) -> Case:
    proofs = () if proof is None else (proof.signed(identity(proof.hop)),)
    return at_trap(replace(check or said(), proofs=proofs), charge=Charge.PROOF)


def failing(check: CheckTranscript) -> Case:
    return at_trap(check, accusation(check=check.said))


AT_TRAPS: dict[str, Callable[[], Case]] = {
    "nothing opened": lambda: at_trap(said()),
    "no transcript": lambda: at_trap(None, accusation()),
    "opened by a silo": lambda: at_trap(said(), accusation("silo-1")),
    "opened by the aggregator": lambda: at_trap(said(), accusation(AGGREGATOR)),
    "everything was proved": lambda: at_trap(trapped().check, accusation()),
    "opened in another check": lambda: at_trap(said(), accusation(check=OTHER)),
    "opened for a hop's equation": lambda: at_trap(said(), accusation(kind=EquationKind.HOP)),
    "opened for an edge": lambda: at_trap(said(), accusation(kind=EquationKind.EDGE)),
    "a hop's equation fails": lambda: failing(at_hop(said())),
    "an edge fails": lambda: failing(at_edge(said())),
    "no proof": lambda: of_proof(None),
    "no transcript of a proof": lambda: at_trap(charge=Charge.PROOF),
    "a silo's proof": lambda: of_proof(TrapProof("silo-1", said().said, b"proof")),
    "the aggregator's proof": lambda: of_proof(TrapProof(AGGREGATOR, said().said, b"proof")),
    "a proof in another check": lambda: of_proof(TrapProof(LAST, OTHER, b"proof")),
    "a proof where a hop's equation fails": lambda: of_proof(
        TrapProof(LAST, at_hop(said()).said, b"proof"), at_hop(said())
    ),
    "a proof that holds": lambda: of_proof(trapped().check.proofs[1]),
}


@pytest.mark.parametrize("what", AT_TRAPS)
def test_nobody_is_named_at_a_trap_without_a_word_for_this_very_check(what: str) -> None:
    assert reason(AT_TRAPS[what](), TRAPPED) is Reason.FALSE_EVIDENCE


def test_a_hop_that_accuses_a_silo_and_shows_nothing_is_named() -> None:
    assert decide(at_trap(said(), accusation()), TRAPPED).culprit == LAST


def test_a_hop_that_signs_anything_for_a_proof_is_named() -> None:
    assert decide(of_proof(TrapProof(LAST, said().said, b"proof")), TRAPPED).culprit == LAST


@pytest.mark.parametrize("charge", [Charge.COMMITMENT, Charge.PROOF])
def test_where_the_policy_has_no_traps_nobody_is_named_at_one(charge: Charge) -> None:
    check = honest().check
    proof = TrapProof(LAST, check.said, b"proof").signed(identity(LAST))
    shown = check if charge is Charge.COMMITMENT else replace(check, proofs=(proof,))
    assert reason(case(charge, shown, accusation(check=check.said)), PLAIN) is Reason.FALSE_EVIDENCE


def test_a_silo_is_not_named_for_commitments_that_it_did_not_sign() -> None:
    made = false_commitment()
    assert decide(made, TRAPPED).culprit == "silo-2"
    assert made.check is not None
    check = put(made.check, replace(made.check.of("silo-2"), signature=bytes(64)))
    opened = again(made.defence, check=check.said)
    assert reason(replace(made, check=check, defence=opened), TRAPPED) is Reason.BAD_SIGNATURE
