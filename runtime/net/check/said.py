"""Protobuf <-> the tamper check: what `wire.py` does for the other messages."""

from silomix.runtime.core.digest import DIGEST_BYTES
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import SEED_BYTES
from silomix.runtime.core.numbers.plan import Level, Plan
from silomix.runtime.core.numbers.tamper import SHARE_BYTES, EquationKind
from silomix.runtime.core.policy import MAX_SHUFFLERS
from silomix.runtime.core.protocol.check.blame import Defence
from silomix.runtime.core.protocol.check.forms import write_scalars
from silomix.runtime.core.protocol.check.said import (
    CheckTranscript,
    SignedRoot,
    Statement,
    Toss,
    read_residues,
    read_statement_scalars,
)
from silomix.runtime.core.protocol.check.trapped import Trapped, TrapProof
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES
from silomix.runtime.net.wire import digest_field, fixed_field, name_field
from silomix.v1 import check_pb2

MOST_LOTS = MAX_SHUFFLERS + 1
"""Of scalars, residues or commitments in one statement: a silo's are of its body, and of its mask for each hop."""


def write_bodies(bodies: tuple[SignedRoot, ...]) -> list[check_pb2.SignedRoot]:
    """Write what silos have signed of their bodies."""
    return [check_pb2.SignedRoot(root=body.root, signature=body.signature) for body in bodies]


def read_bodies(wire: list[check_pb2.SignedRoot]) -> tuple[SignedRoot, ...]:
    """Read what silos have signed of their bodies."""
    return tuple(
        SignedRoot(
            digest_field(body.root, "a root"), fixed_field(body.signature, SIGNATURE_BYTES, "a trailer's signature")
        )
        for body in wire
    )


def write_toss(one: Toss) -> check_pb2.Toss:
    """Write a share."""
    return check_pb2.Toss(silo=one.silo, share=one.share, ballot=one.ballot, signature=one.signature)


def read_toss(wire: check_pb2.Toss) -> Toss:
    """Read a share."""
    return Toss(
        name_field(wire.silo, "a silo's name"),
        fixed_field(wire.share, SHARE_BYTES, "a share of the coin"),
        digest_field(wire.ballot, "a ballot"),
        fixed_field(wire.signature, SIGNATURE_BYTES, "a share's signature"),
    )


def read_tosses(wire: list[check_pb2.Toss]) -> tuple[Toss, ...]:
    """Read shares."""
    return tuple(read_toss(one) for one in wire)


def write_statement(one: Statement) -> check_pb2.Statement:
    """Write scalars."""
    return check_pb2.Statement(
        name=one.name,
        context=one.context,
        coin=one.coin,
        scalars=[write_scalars(scalars) for scalars in one.scalars],
        signature=one.signature,
        residues=[write_scalars(residues) for residues in one.trapped.residues],
        commitments=one.trapped.commitments,
    )


def read_statement(wire: check_pb2.Statement, plan: Plan) -> Statement:
    """Read scalars, as many as the plan has."""
    if plan.level is not Level.MALICIOUS:
        raise PeerFault(Reason.MALFORMED, f"scalars of a tamper check, and there is none at level {plan.level}")
    lots = max(len(wire.scalars), len(wire.residues), len(wire.commitments))
    if lots > MOST_LOTS:  # they may be empty, and take a hundred times their length to read
        raise PeerFault(Reason.WRONG_LENGTH, f"{lots} lots in one statement: {MOST_LOTS} are the most", found=lots)
    return Statement(
        name_field(wire.name, "a member's name"),
        digest_field(wire.context, "the digest of a release"),
        fixed_field(wire.coin, DIGEST_BYTES, "a coin"),
        read_statement_scalars(list(wire.scalars), plan),
        fixed_field(wire.signature, SIGNATURE_BYTES, "the signature under scalars"),
        Trapped(read_residues(list(wire.residues), plan), tuple(wire.commitments)),
    )


def write_proof(one: TrapProof) -> check_pb2.TrapProof:
    """Write a hop's proofs."""
    return check_pb2.TrapProof(hop=one.hop, check_digest=one.check, proofs=one.proofs, signature=one.signature)


def read_proof(wire: check_pb2.TrapProof) -> TrapProof:
    """Read a hop's proofs. How long they have to be depends on the cohort."""
    return TrapProof(
        name_field(wire.hop, "a hop's name"),
        digest_field(wire.check_digest, "the digest of a check"),
        wire.proofs,
        fixed_field(wire.signature, SIGNATURE_BYTES, "the signature under proofs"),
    )


def write_check(check: CheckTranscript) -> check_pb2.CheckTranscript:
    """Write all that was said."""
    return check_pb2.CheckTranscript(
        tosses=[write_toss(one) for one in check.tosses],
        statements=[write_statement(one) for one in check.statements],
        proofs=[write_proof(one) for one in check.proofs],
    )


def read_check(wire: check_pb2.CheckTranscript, plan: Plan) -> CheckTranscript:
    """Read all that was said."""
    if not wire.statements:
        raise PeerFault(Reason.MALFORMED, "a check in which nobody has said anything")
    return CheckTranscript(
        read_tosses(list(wire.tosses)),
        tuple(read_statement(one, plan) for one in wire.statements),
        tuple(read_proof(one) for one in wire.proofs),
    )


def write_defence(d: Defence) -> check_pb2.Defence:
    """Write what a node opens."""
    return check_pb2.Defence(
        node=d.node,
        check_digest=d.check,
        kind=str(d.kind),
        name=d.name,
        private_key=d.private,
        root=d.root,
        signature=d.signature,
    )


def read_defence(wire: check_pb2.Defence) -> Defence:
    """Read what a node opens."""
    if wire.kind not in list(EquationKind):
        raise PeerFault(Reason.MALFORMED, "a defence about an equation of which there is none", field="kind")
    return Defence(
        name_field(wire.node, "a node's name"),
        digest_field(wire.check_digest, "the digest of a check"),
        EquationKind(wire.kind),
        wire.name and name_field(wire.name, "a name"),
        wire.private_key and fixed_field(wire.private_key, SEED_BYTES, "a key"),
        wire.root and digest_field(wire.root, "a root"),
        fixed_field(wire.signature, SIGNATURE_BYTES, "a defence's signature"),
    )
