"""The tamper check as messages: what each party says and signs, and what everybody checks before anybody signs T.

1. `Subject`: all hops have signed what came in and what went out, and every silo its body. From here on all of it is
   fixed, and so are the commitments to the coin, which stand in the headers that the cohort names.
2. `Toss`: each silo of the cohort shows its share, once for an attempt. The shares of all make the coin.
3. `Statement`: each silo, each hop and the aggregator signs its scalars under that coin, once for an attempt.
   Where the policy has traps, each hop then proves what it removed there (`trapped.py`, `proofs.py`).
4. `CheckTranscript`: all of it. Whoever is to sign for the release first checks that every equation holds, and signs
   the transcript's digest with it.

Everything is signed, so it does not matter who carries it: the aggregator does. runtime/core/numbers/tamper.py has the
arithmetic, runtime/core/protocol/check/blame.py what happens if an equation fails.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers import tamper
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.plan import Level, Plan
from silomix.runtime.core.numbers.tamper import Finding, Scalars
from silomix.runtime.core.numbers.traps import POINT_BYTES
from silomix.runtime.core.protocol.check.forms import SCALAR_BYTES, read_scalars, write_scalars
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS, Trapped, TrapProof
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity, verify
from silomix.runtime.core.protocol.messages import Cohort, Header, Manifest, trailer_digest
from silomix.runtime.core.protocol.release import Ready, bodies_root, check_ready
from silomix.runtime.core.protocol.rules import check_cohort, check_header


def checks(federation: Federation) -> bool:
    """Whether sums are released only after the tamper check."""
    return federation.policy.level is Level.MALICIOUS


@dataclass(frozen=True)
class SignedRoot:
    """A silo's word for its body, as its trailer had it."""

    root: bytes
    signature: bytes


def check_bodies(bodies: Sequence[SignedRoot], cohort: Cohort, came: bytes, federation: Federation) -> None:
    """Check that what hop 1 took in are the bodies that the silos of the cohort have signed."""
    if len(bodies) != len(cohort.participants):
        raise PeerFault(Reason.WRONG_SEQUENCE, f"{len(bodies)} bodies are named of {len(cohort.participants)} silos")
    if bodies_root(body.root for body in bodies) != came:
        raise PeerFault(Reason.ROOT_MISMATCH, "the bodies that are named are not those that hop 1 signed for")
    for one, body in zip(cohort.participants, bodies, strict=True):
        verify(federation.member(one.silo).key, trailer_digest(one.header, body.root), body.signature, one.silo)


@dataclass(frozen=True)
class Subject:
    """What a check is about: everything that was signed until the padded sum had come through."""

    cohort: Cohort
    headers: tuple[Header, ...]
    """In the order of the cohort."""
    bodies: tuple[SignedRoot, ...]
    """In the order of the cohort."""
    ready: Ready
    """Without a transcript."""

    @property
    def context(self) -> bytes:
        """What every hop has signed: manifest, model, cohort, roots and the digests of the pads."""
        return replace(self.ready, check=b"").digest

    @property
    def commitments(self) -> dict[str, bytes]:
        """To the shares of the coin, by silo."""
        return {header.silo: header.coin for header in self.headers}

    def root_of(self, silo: str) -> bytes:
        """The root of the body that a silo signed."""
        return self.bodies[self.cohort.silos.index(silo)].root

    def header_of(self, silo: str) -> Header:
        """The header of a silo of the cohort."""
        return self.headers[self.cohort.silos.index(silo)]


def check_subject(subject: Subject, manifest: Manifest, federation: Federation) -> None:
    """Check everything that was signed before the coin is tossed."""
    if len(subject.headers) != len(subject.cohort.participants):
        raise PeerFault(Reason.WRONG_SEQUENCE, "the headers are not those of the cohort")
    check_cohort(subject.cohort, manifest, federation, {header.digest: header for header in subject.headers})
    for header, one in zip(subject.headers, subject.cohort.participants, strict=True):
        if header.silo != one.silo:
            raise PeerFault(Reason.WRONG_SEQUENCE, "the headers are not in the order of the cohort")
        check_header(header, manifest, federation)
    ready = subject.ready
    if (ready.manifest, ready.model, ready.check) != (manifest.digest, manifest.model, b""):
        raise PeerFault(Reason.WRONG_MANIFEST, "the check is about another attempt")
    check_ready(ready, subject.cohort.digest, manifest.chain, federation)
    check_bodies(subject.bodies, subject.cohort, ready.trails[0].came, federation)


# The coin


@dataclass(frozen=True)
class Toss:
    """A silo's share of the coin, shown and signed with all commitments that it has seen."""

    silo: str
    share: bytes = field(repr=False)
    ballot: bytes
    signature: bytes = b""

    @cached_property
    def digest(self) -> bytes:
        """What the silo signs. The ballot covers the subject."""
        return digest("toss", self.silo, self.ballot, self.share)


class FalseShareError(PeerFault):
    """A refusal of a share that its silo has signed for this very check and had not committed to: that is evidence.

    All other refusals of a share show nothing, so that nobody need look any further.
    """


def commitment(share: Secret, silo: str, manifest: bytes) -> bytes:
    """What a silo's header says of its share: it serves one attempt."""
    return tamper.commit(share.value, silo, manifest)


def toss(subject: Subject, share: bytes, identity: Identity) -> Toss:
    """Show a share."""
    made = Toss(identity.name, share, tamper.ballot(subject.context, subject.commitments))
    return replace(made, signature=identity.sign(made.digest))


def check_toss(one: Toss, subject: Subject, federation: Federation) -> None:
    """Check one share by itself: whoever signed another than it committed to is named by that."""
    if one.silo not in subject.cohort.silos:
        raise PeerFault(Reason.SHARE_MISMATCH, f"{one.silo} has no part in this coin", peer=one.silo)
    verify(federation.member(one.silo).key, one.digest, one.signature, one.silo)
    if one.ballot != tamper.ballot(subject.context, subject.commitments):
        raise PeerFault(Reason.SHARE_MISMATCH, f"{one.silo} tossed for another check", peer=one.silo)
    if not matches(one, subject):
        why = f"{one.silo} showed a share of the coin that it had not committed to"
        raise FalseShareError(Reason.SHARE_MISMATCH, why, peer=one.silo)


def matches(one: Toss, subject: Subject) -> bool:
    """Whether a share is the one that the silo's header commits to."""
    if len(one.share) != tamper.SHARE_BYTES:
        return False
    return tamper.commit(one.share, one.silo, subject.ready.manifest) == subject.header_of(one.silo).coin


def coin_of(subject: Subject, tosses: Sequence[Toss], federation: Federation) -> bytes:
    """Combine the shares of the whole cohort, or refuse: a coin that lacks one could be chosen."""
    if tuple(one.silo for one in tosses) != subject.cohort.silos:
        raise PeerFault(Reason.SHARE_MISSING, "the coin needs the share of every silo of the cohort, once")
    for one in tosses:
        check_toss(one, subject, federation)
    shares = {one.silo: tamper.Share(one.share, one.ballot) for one in tosses}
    return tamper.coin(subject.context, subject.cohort.silos, subject.commitments, shares, subject.ready.manifest)


# Scalars


@dataclass(frozen=True)
class Statement:
    """The scalars that somebody publishes under a coin.

    A silo's are of its body and of its mask for each hop, a hop's of what came in, what went out, and its pad, the
    aggregator's of what reached it.
    """

    name: str
    context: bytes
    coin: bytes
    scalars: tuple[Scalars, ...]
    signature: bytes = b""
    trapped: Trapped = NO_TRAPS
    """What it states at the traps, where the policy has some."""

    @cached_property
    def digest(self) -> bytes:
        """What is signed."""
        parts: list[int | bytes] = []
        lots = (self.scalars, self.trapped.residues) if self.trapped.residues else (self.scalars,)
        for lot in lots:
            parts += [len(lot), *(write_scalars(one) for one in lot)]
        if self.trapped.residues:
            parts += [len(self.trapped.commitments), *self.trapped.commitments]
        return digest("scalars", self.context, self.coin, self.name, *parts)

    def passed_on(self, *, hop: bool) -> Scalars:
        """What a sender states of the vector that it sent: its scalars, and its residues at the traps."""
        which = 1 if hop else 0
        return tamper.joined(self.scalars[which], self.trapped.residues[which] if self.trapped.residues else ())

    def signed(self, identity: Identity) -> "Statement":
        """Sign it."""
        return replace(self, signature=identity.sign(self.digest))


HOP_SCALARS = 3


def read_statement_scalars(blobs: Sequence[bytes], plan: Plan) -> tuple[Scalars, ...]:
    """Read the scalars of a statement, as many for each plane as the plan has."""
    shape = tamper.rhos(plan)
    return tuple(read_scalars(blob, shape) for blob in blobs)


def read_residues(blobs: Sequence[bytes], plan: Plan) -> tuple[Scalars, ...]:
    """Read the residues of a statement at the traps; how many there have to be, `check_statement` says."""
    planes = len(plan.moduli)
    return tuple(read_scalars(blob, (len(blob) // (SCALAR_BYTES * planes),) * planes) for blob in blobs)


def check_statement(
    one: Statement, context: bytes, coin: bytes, chain: tuple[str, ...], federation: Federation
) -> None:
    """Check that somebody has signed scalars for this coin, as many as its role has, each a residue."""
    if (one.context, one.coin) != (context, coin):
        raise PeerFault(Reason.WRONG_SEQUENCE, f"{one.name} answers another coin", peer=one.name)
    member = federation.member(one.name)
    verify(member.key, one.digest, one.signature, one.name)
    count = 1 if one.name == federation.aggregator.name else HOP_SCALARS if one.name in chain else 1 + len(chain)
    if len(one.scalars) != count:
        raise PeerFault(
            Reason.WRONG_LENGTH,
            f"{one.name} published {len(one.scalars)} lots of scalars where {count} are due",
            peer=one.name,
            found=len(one.scalars),
            expected=count,
        )
    for scalars in one.scalars:
        tamper.check_scalars(federation.plan, one.name, scalars)
    _check_trapped(one, chain, federation)


def _check_trapped(one: Statement, chain: tuple[str, ...], federation: Federation) -> None:
    """Check that somebody states as much at the traps as its role has, and nothing where there are none."""
    plan, traps, stated = federation.plan, federation.policy.traps, one.trapped
    lots, points = (2, 1) if one.name in chain else (1, 0 if one.name == federation.aggregator.name else len(chain))
    due = [[traps] * len(plan.moduli)] * lots if traps else []
    found = [[len(row) for row in lot] for lot in stated.residues]
    blobs = [traps * len(plan.moduli) * POINT_BYTES] * points if traps else []
    if found != due or [len(blob) for blob in stated.commitments] != blobs:
        why = f"{one.name} states other residues or commitments than {traps} traps have"
        raise PeerFault(Reason.WRONG_LENGTH, why, peer=one.name)
    for lot in stated.residues:
        if not all(0 <= x < p for p, row in zip(plan.moduli, lot, strict=True) for x in row):
            why = f"{one.name} states a residue at a trap that is not below its modulus"
            raise PeerFault(Reason.RESIDUE_RANGE, why, peer=one.name)


@dataclass(frozen=True)
class CheckTranscript:
    """All that was said in a check."""

    tosses: tuple[Toss, ...]
    """In the order of the cohort."""
    statements: tuple[Statement, ...]
    """Of the silos in the order of the cohort, of the hops in that of the chain, and the aggregator's."""
    proofs: tuple[TrapProof, ...] = ()
    """Where the policy has traps: of the hops in the order of the chain."""

    @cached_property
    def said(self) -> bytes:
        """The digest of all that was said before anything was proved."""
        return self.digest if not self.proofs else replace(self, proofs=()).digest

    @cached_property
    def digest(self) -> bytes:
        """What T has of it."""
        parts: list[str | bytes | int] = [len(self.tosses)]
        for one in self.tosses:
            parts += [one.digest, one.signature]
        parts.append(len(self.statements))
        for said in self.statements:
            parts += [said.digest, said.signature]
        if self.proofs:
            parts.append(len(self.proofs))
        for proof in self.proofs:
            parts += [proof.digest, proof.signature]
        return digest("check", *parts)

    @property
    def coin(self) -> bytes:
        """The coin that all answered."""
        return self.statements[-1].coin

    def of(self, name: str) -> Statement:
        """What somebody has stated."""
        return next(one for one in self.statements if one.name == name)

    def arithmetic(self, chain: tuple[str, ...]) -> tamper.Transcript:
        """Return the bare numbers."""
        silos, hops, lead = (
            self.statements[: -len(chain) - 1],
            self.statements[-len(chain) - 1 : -1],
            self.statements[-1],
        )
        return tamper.Transcript(
            tuple(tamper.Submission(s.name, s.scalars[0], s.scalars[1:], *s.trapped.residues) for s in silos),
            tuple(tamper.Passage(h.name, *h.scalars, *h.trapped.residues) for h in hops),
            tamper.Arrival(lead.name, lead.scalars[0], *lead.trapped.residues),
        )

    def findings(self, plan: Plan, silos: tuple[str, ...], chain: tuple[str, ...]) -> list[Finding]:
        """Return the equations that fail, along the chain: the sum may be released only if there is none."""
        return tamper.verify(plan, silos, chain, self.arithmetic(chain))


def check_said(
    check: CheckTranscript, context: bytes, silos: tuple[str, ...], chain: tuple[str, ...], federation: Federation
) -> None:
    """Check that everybody has answered, and answered the coin that the shares make. Says nothing of the equations."""
    names = (*silos, *chain, federation.aggregator.name)
    if tuple(one.name for one in check.statements) != names or tuple(one.silo for one in check.tosses) != silos:
        raise PeerFault(Reason.WRONG_SEQUENCE, "a check needs the word of every silo, every hop and the aggregator")
    coin = tamper.combined(context, {one.silo: one.share for one in check.tosses})
    for one in check.tosses:
        verify(federation.member(one.silo).key, one.digest, one.signature, one.silo)
    for said in check.statements:
        check_statement(said, context, coin, chain, federation)


def check_equations(
    check: CheckTranscript, silos: tuple[str, ...], chain: tuple[str, ...], federation: Federation
) -> None:
    """Check that every equation of a transcript holds whose signatures were checked."""
    findings = check.findings(federation.plan, silos, chain)
    if findings:
        first = findings[0]
        raise PeerFault(
            Reason.TAMPERED, f"the tamper check failed: {told(first, chain, federation)}", where=first.where
        )


def told(finding: Finding, chain: tuple[str, ...], federation: Federation) -> str:
    """Say in words where an equation fails. It names no culprit: evidence does."""
    if finding.kind is tamper.EquationKind.HOP:
        return f"{finding.where} did not pass on what it took in less its masks, or a silo misstates a mask"
    names = (*chain, federation.aggregator.name)
    place = names.index(finding.where)
    sender = names[place - 1] if place else "the silos"
    return f"{sender} and {finding.where} differ about what passed between them"


def pad_claims(check: CheckTranscript, chain: tuple[str, ...]) -> Mapping[str, Scalars]:
    """What each hop has stated of its pad."""
    return {hop: check.of(hop).scalars[HOP_SCALARS - 1] for hop in chain}


@contextmanager
def relayed(federation: Federation) -> Iterator[None]:
    """Blame the aggregator for what it passes on: an honest one has checked it before."""
    try:
        yield
    except PeerFault as fault:
        who = federation.aggregator.name
        raise PeerFault(fault.reason, f"{who} passes on what does not hold: {fault.message}", peer=who) from None
