"""The aggregator's part in a check: it collects shares and scalars, and passes on what holds."""

from dataclasses import replace

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.tamper import Finding
from silomix.runtime.core.protocol.check.blame import Case, Charge, first_finding
from silomix.runtime.core.protocol.check.proofs import check_proof
from silomix.runtime.core.protocol.check.said import (
    CheckTranscript,
    Statement,
    Subject,
    Toss,
    check_statement,
    check_toss,
    coin_of,
)
from silomix.runtime.core.protocol.check.trapped import TrapProof
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Manifest


class Hearing:
    """One check: who has said what so far. Nobody is heard twice."""

    def __init__(self, manifest: Manifest, subject: Subject, federation: Federation) -> None:
        """Begin with nothing said about a subject that was checked."""
        self.manifest, self.subject, self.federation = manifest, subject, federation
        self.coin = b""
        self.tosses: dict[str, Toss] = {}
        self.statements: dict[str, Statement] = {}
        self.proofs: dict[str, TrapProof] = {}
        """By hop, where the policy has traps."""

    @property
    def names(self) -> tuple[str, ...]:
        """Everybody who has to answer the coin, in the order of the transcript."""
        return (*self.subject.cohort.silos, *self.manifest.chain, self.federation.aggregator.name)

    @property
    def silent(self) -> tuple[str, ...]:
        """Whom the check waits for."""
        if not self.coin:
            return tuple(silo for silo in self.subject.cohort.silos if silo not in self.tosses)
        return tuple(name for name in self.names if name not in self.statements)

    @property
    def unproved(self) -> tuple[str, ...]:
        """The hops that have yet to prove what they removed at the traps."""
        due = self.manifest.chain if self.federation.policy.traps else ()
        return tuple(hop for hop in due if hop not in self.proofs)

    def needs(self, name: str) -> bool:
        """Whether the check waits for this node: for its scalars, or for its defence or proofs when all have spoken."""
        if name not in self.statements:
            return True
        if self.silent:
            return False
        finding = self.finding
        return name in self.unproved if finding is None else finding.where == name

    def toss(self, one: Toss) -> bool:
        """Take a share in; say whether it was the last, and all of them make the coin now."""
        check_toss(one, self.subject, self.federation)
        if self.coin or one.silo in self.tosses:
            return False
        self.tosses[one.silo] = one
        if self.silent:
            return False
        self.coin = coin_of(self.subject, self.shares, self.federation)
        return True

    def charge(self, one: Toss) -> Case:
        """Make a case of a share that its silo has signed and had not committed to."""
        return Case(Charge.SHARE, self.manifest, self.subject, toss=one)

    @property
    def shares(self) -> tuple[Toss, ...]:
        """All shares, in the order of the cohort."""
        return tuple(self.tosses[silo] for silo in self.subject.cohort.silos)

    def state(self, one: Statement) -> bool:
        """Take scalars in; say whether they were the last."""
        if not self.coin or one.name not in self.names:
            raise PeerFault(Reason.WRONG_SEQUENCE, f"{one.name} answers a coin that is not tossed", peer=one.name)
        check_statement(one, self.subject.context, self.coin, self.manifest.chain, self.federation)
        if one.name in self.statements:
            return False
        self.statements[one.name] = one
        return not self.silent

    def prove(self, one: TrapProof) -> bool:
        """Take a hop's proofs in; say whether they were the last."""
        check_proof(one, self.transcript, self.manifest.chain, self.federation)
        if one.hop in self.proofs:
            return False
        self.proofs[one.hop] = one
        return not self.unproved

    def false_proof(self, one: TrapProof) -> Case:
        """Make a case of proofs that a hop has signed and that do not hold."""
        return Case(Charge.PROOF, self.manifest, self.subject, check=replace(self.transcript, proofs=(one,)))

    @property
    def transcript(self) -> CheckTranscript:
        """All that was said, when everybody has spoken, and proved so far."""
        proofs = tuple(self.proofs[hop] for hop in self.manifest.chain if hop in self.proofs)
        return CheckTranscript(self.shares, tuple(self.statements[name] for name in self.names), proofs)

    @property
    def finding(self) -> Finding | None:
        """The first equation that fails."""
        return first_finding(self.transcript, self.federation, self.subject.cohort.silos, self.manifest.chain)
