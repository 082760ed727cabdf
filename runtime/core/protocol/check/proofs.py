"""What a hop proves at the traps, when everybody has answered the coin, and how everybody checks it.

A proof is about what was stated: the silos' commitments, the hop's own to its pad, and what the hop says came in and
went out. By the equations between neighbours, both ends say the same of the last two. A commitment that is not to the
mask is seen by the hop alone, which has the seed: it proves nothing then, and opens that silo's key (`blame.accuse`).
So whoever signs a proof that does not hold is to blame for it, whatever the commitments are.
"""

from collections.abc import Mapping

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers import traps as arithmetic
from silomix.runtime.core.numbers.masks import Context, Rng, Secret
from silomix.runtime.core.numbers.plan import Plan
from silomix.runtime.core.protocol.check.said import CheckTranscript, check_equations, check_said
from silomix.runtime.core.protocol.check.trapped import TrapProof, Traps, committed, points
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import verify

Sealed = Mapping[str, tuple[Secret, Context]]
"""By silo: the seed that it sealed to a hop, and what its mask is bound to."""


def statements(check: CheckTranscript, hop: str, chain: tuple[str, ...], plan: Plan) -> list[arithmetic.Statement]:
    """Say what a hop has to prove, plane after plane and in each for one trap after the other."""
    place, own = chain.index(hop), check.of(hop).trapped
    silos = [points(one.trapped.commitments[place]) for one in check.statements[: -len(chain) - 1]]
    columns = list(zip(*silos, points(own.commitments[0]), strict=True))
    taken, sent = own.residues
    made: list[arithmetic.Statement] = []
    for p, came, went in zip(plan.moduli, taken, sent, strict=True):
        for trap, (one, other) in enumerate(zip(came, went, strict=True)):
            removed = (one - other) % p
            made.append(arithmetic.Statement(check.said, hop, trap, p, removed, columns[len(made)]))
    return made


def false_commitments(traps: Traps, check: CheckTranscript, layer: int, sealed: Sealed) -> tuple[str, ...]:
    """Name the silos that have committed to something else than the masks that they sealed to a hop."""
    return tuple(
        silo
        for silo, (seed, context) in sealed.items()
        if committed(traps.mask_openings(seed, context)) != check.of(silo).trapped.commitments[layer - 1]
    )


def prove(
    traps: Traps,
    check: CheckTranscript,
    hop: str,
    chain: tuple[str, ...],
    sealed: Sealed,
    pad: tuple[Secret, Context],
    rng: Rng,
) -> bytes:
    """Prove, for a hop whose silos have all committed to their masks, that it removed those and added its pad."""
    opened = [traps.mask_openings(*one) for one in sealed.values()]
    columns = zip(*opened, traps.pad_openings(*pad), strict=True)
    wanted = statements(check, hop, chain, traps.shape.plan)
    return b"".join(arithmetic.prove(*one, rng) for one in zip(wanted, columns, strict=True))


def check_proof(proof: TrapProof, check: CheckTranscript, chain: tuple[str, ...], federation: Federation) -> None:
    """Check a hop's proofs: signed, about what was said in this check, and each of them holds."""
    who = proof.hop
    if who not in chain or proof.check != check.said:
        raise PeerFault(Reason.WRONG_SEQUENCE, f"{who} proves something about another check", peer=who)
    verify(federation.member(who).key, proof.digest, proof.signature, who)
    check_claims(proof, check, chain, federation)


def check_claims(proof: TrapProof, check: CheckTranscript, chain: tuple[str, ...], federation: Federation) -> None:
    """Check that what a hop has signed for this check is a proof; whatever is wrong with it is the hop's doing."""
    wanted = statements(check, proof.hop, chain, federation.plan)
    each = arithmetic.proof_bytes(len(wanted[0].commitments))
    try:
        if len(proof.proofs) != each * len(wanted):
            expected = each * len(wanted)
            raise PeerFault(Reason.WRONG_LENGTH, f"proofs have {expected} bytes, not {len(proof.proofs)}")
        for number, statement in enumerate(wanted):
            arithmetic.verify(statement, proof.proofs[number * each : (number + 1) * each])
    except PeerFault as fault:
        why = f"{proof.hop} did not prove what it removed at the traps: {fault.message}"
        raise PeerFault(Reason.TAMPERED, why, peer=proof.hop) from None


def check_proofs(check: CheckTranscript, chain: tuple[str, ...], federation: Federation) -> None:
    """Check that every hop has proved what it removed, where the policy has traps; where it has none, nobody does."""
    due = chain if federation.policy.traps else ()
    if tuple(proof.hop for proof in check.proofs) != due:
        raise PeerFault(Reason.WRONG_SEQUENCE, f"proofs of {len(check.proofs)} hops came, and {len(due)} are due")
    for proof in check.proofs:
        check_proof(proof, check, chain, federation)


def check_holds(
    check: CheckTranscript, context: bytes, silos: tuple[str, ...], chain: tuple[str, ...], federation: Federation
) -> None:
    """Check a whole transcript: that everybody answered, that every equation holds, and what hops have proved."""
    check_said(check, context, silos, chain, federation)
    check_equations(check, silos, chain, federation)
    check_proofs(check, chain, federation)
