"""One history: an append-only log with a record for every round that is over, which all nodes hold alike.

A record names the one before it, and is signed by the aggregator. It counts once `minimum_hops` hops have stored and
countersigned it, one record for each round. Every manifest names the head. So an aggregator cannot go back to a model,
skip rounds until it likes the draw, or tell two silos two stories: whoever is shown a second record of a round has
both with the aggregator's signature on them, which anybody can check.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from silomix.runtime.core.digest import DIGEST_BYTES, digest
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity, verify
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.release import Signatures, check_agreed
from silomix.runtime.core.protocol.rules import check_chain


class Outcome(StrEnum):
    """How a round ended."""

    GENESIS = "genesis"
    """Round 0: the model that the federation begins with."""
    APPLIED = "applied"
    """A sum was released, and the next model follows from it."""
    ABANDONED = "abandoned"
    """No sum was applied: the model is the same as before."""


@dataclass(frozen=True)
class Attempted:
    """One attempt at a round, as its record has it."""

    attempt: int
    manifest: bytes
    chain: tuple[str, ...]
    agreed: bytes = b""
    """The digest of what all signed, if they did: then pads may have been shown."""
    silos: tuple[str, ...] = ()
    """Whom the release was for."""
    signatures: Signatures = ()
    culprit: str = ""
    """Who was shown to have lied in it, if the tamper check failed."""
    evidence: bytes = b""
    """Digest of what shows it."""


@dataclass(frozen=True)
class Record:
    """A round that is over."""

    federation: bytes
    round: int
    outcome: Outcome
    attempts: tuple[Attempted, ...]
    root: bytes
    """Root of what left the chain, for a round that was applied."""
    model_before: bytes
    model_after: bytes
    state_before: bytes
    state_after: bytes
    previous: bytes
    next: bytes = b""
    """Digest of the epoch in which the next round is, if it is another."""
    signature: bytes = b""
    countersignatures: Signatures = field(default=(), compare=False)

    @cached_property
    def digest(self) -> bytes:
        """What names the record: the next one, every manifest and every countersignature refer to it."""
        parts: list[str | bytes | int] = [len(self.attempts)]
        for one in self.attempts:
            parts += [one.attempt, one.manifest, len(one.chain), *one.chain, one.agreed, len(one.silos), *one.silos]
            parts.append(len(one.signatures))
            for name, signature in one.signatures:
                parts += [name, signature]
            if one.culprit or one.evidence:
                parts += [one.culprit, one.evidence]
        return digest(
            "record",
            self.federation,
            self.round,
            str(self.outcome),
            *parts,
            self.root,
            self.model_before,
            self.model_after,
            self.state_before,
            self.state_after,
            self.previous,
            *([self.next] if self.next else ()),
        )

    def signed(self, identity: Identity) -> "Record":
        """Sign it."""
        return replace(self, signature=identity.sign(self.digest))

    @property
    def silos(self) -> tuple[str, ...]:
        """The cohort of a round that was applied."""
        return self.attempts[-1].silos if self.outcome is Outcome.APPLIED else ()

    @property
    def epoch_after(self) -> bytes:
        """Digest of the epoch in which the next round is."""
        return self.next or self.federation


def genesis(federation: Federation, model: bytes, state: bytes) -> Record:
    """Make the record before round 1, which fixes the initial model."""
    first = digest("genesis", federation.digest)
    return Record(federation.digest, 0, Outcome.GENESIS, (), b"", model, model, state, state, first)


def countersign_digest(record: bytes, hop: str) -> bytes:
    """What a hop signs for having stored a record."""
    return digest("countersigned", record, hop)


def computed_digest(record: bytes, silo: str) -> bytes:
    """What a silo signs for having computed the model that a record names, from the sum that was released."""
    return digest("computed", record, silo)


def check_countersigned(record: Record, federation: Federation) -> None:
    """Check that a record counts: that as many hops as a chain has at least have stored it."""
    names = [name for name, _ in record.countersignatures]
    least = federation.chain_rule.minimum
    if len(set(names)) != len(names) or not set(names) <= set(federation.chain) or len(names) < least:
        raise PeerFault(
            Reason.WRONG_HEAD,
            f"the record of round {record.round} is countersigned by {', '.join(names) or 'nobody'}: "
            f"it counts with {least} hops of the pool",
            found=len(names),
            expected=least,
        )
    for name, signature in record.countersignatures:
        verify(federation.member(name).key, countersign_digest(record.digest, name), signature, name)


def beginning_problem(model: bytes, federation: Federation) -> str:
    """What is wrong with a model to begin with, by what the owners have agreed on, or nothing."""
    pinned = federation.policy.initial_model
    if not pinned or model.hex() == pinned:
        return ""
    return f"has the digest {model.hex()[:16]}..., and the owners have agreed to begin with {pinned[:16]}..."


def check_beginning(record: Record, federation: Federation) -> None:
    """Check that a history begins with the model that all owners have agreed on: it is the one that no sum has made."""
    if record.round == 0 and (problem := beginning_problem(record.model_after, federation)):
        raise PeerFault(Reason.WRONG_MODEL, f"the model of record 0 {problem}", peer=federation.aggregator.name)


def check_record(record: Record, federation: Federation) -> None:
    """Check what a record says by itself: whose it is, and that a round that was applied was released by all."""
    _expect(Reason.WRONG_FEDERATION, "federation", record.federation, federation.digest)
    verify(federation.aggregator.key, record.digest, record.signature, federation.aggregator.name)
    numbers = [one.attempt for one in record.attempts]
    if numbers != sorted(set(numbers)) or numbers[:1] == [0]:
        raise PeerFault(Reason.MALFORMED, f"the attempts of round {record.round} are not numbered from 1 on, in order")
    if (record.outcome is Outcome.GENESIS) is not (record.round == 0):
        raise PeerFault(Reason.MALFORMED, f"round {record.round} cannot have ended as {record.outcome}")
    if record.next and record.outcome is not Outcome.APPLIED:  # else two pools would have one model between them
        raise PeerFault(Reason.WRONG_EPOCH, f"round {record.round} was not applied, and no epoch begins after it")
    if record.next and record.model_before == record.model_after:
        raise PeerFault(Reason.WRONG_EPOCH, f"round {record.round} changed nothing, and no epoch begins after it")
    check_beginning(record, federation)
    for one in record.attempts:
        _check_attempt(one, record.round, federation)
    if record.outcome is not Outcome.APPLIED:
        if record.root:
            raise PeerFault(Reason.MALFORMED, f"round {record.round} was not applied, and has the root of a sum")
        if (record.model_before, record.state_before) != (record.model_after, record.state_after):
            raise PeerFault(Reason.WRONG_STEP, f"round {record.round} was not applied, and changed the model")
        return
    last = record.attempts[-1] if record.attempts else None
    if last is None or len(last.agreed) != DIGEST_BYTES or len(record.root) != DIGEST_BYTES:
        raise PeerFault(Reason.MALFORMED, f"round {record.round} was applied, and no release is named")


def _check_culprit(one: Attempted, round_: int, federation: Federation) -> None:
    """Check whom a record names as a liar: without a hop that it needs the federation is over, and silos end."""
    if bool(one.culprit) is not bool(one.evidence):
        raise PeerFault(Reason.MALFORMED, f"attempt {one.attempt} of round {round_} has a culprit without evidence")
    if not one.culprit:
        return
    if federation.policy.level is not Level.MALICIOUS:
        raise PeerFault(
            Reason.WRONG_POLICY,
            f"attempt {one.attempt} of round {round_} has a culprit, and the policy has no tamper check that shows one",
            peer=federation.aggregator.name,
        )
    if one.culprit not in (*federation.silo_names, *one.chain, federation.aggregator.name):
        raise PeerFault(Reason.MALFORMED, f"{one.culprit!r} was no part of attempt {one.attempt} of round {round_}")


def _check_attempt(one: Attempted, round_: int, federation: Federation) -> None:
    """Check what a record says of an attempt: a release that is said of it binds the model, whatever came of it.

    Whether those silos are the ones that were signed for is known to the hops: they countersign nothing else.
    """
    _check_culprit(one, round_, federation)
    if not one.agreed:
        if one.silos or one.signatures:
            raise PeerFault(Reason.MALFORMED, f"attempt {one.attempt} of round {round_} has silos and no release")
        return
    check_chain(one.chain, federation)
    if list(one.silos) != sorted(set(one.silos)) or not set(one.silos) <= set(federation.silo_names):
        raise PeerFault(Reason.MALFORMED, f"the silos of attempt {one.attempt} of round {round_} are no cohort")
    if len(one.silos) < federation.minimum_cohort:
        raise PeerFault(
            Reason.COHORT_TOO_SMALL,
            f"attempt {one.attempt} of round {round_} was released for {len(one.silos)} silos",
            found=len(one.silos),
            expected=federation.minimum_cohort,
        )
    check_agreed(one.agreed, one.signatures, one.chain, federation)


class RoundLog:
    """The records that a node holds, from round 0 on, without a gap."""

    def __init__(self, federation: Federation, records: Iterable[Record] = (), epochs: Epochs | None = None) -> None:
        """Start with records that were checked before, or with none; `epochs` are those that count at this node."""
        self.federation = federation
        self.epochs = Epochs((federation,)) if epochs is None else epochs
        self.records: list[Record] = list(records)

    @property
    def last(self) -> Record | None:
        """The newest record."""
        return self.records[-1] if self.records else None

    @property
    def head(self) -> bytes:
        """Digest of the newest record, or what the first one names as the one before it."""
        return self.records[-1].digest if self.records else digest("genesis", self.epochs.first)

    @property
    def epoch(self) -> bytes:
        """Digest of the epoch in which the next round is."""
        return self.records[-1].epoch_after if self.records else self.epochs.first

    def of(self, record: Record) -> Federation:
        """The federation as it was when a record was made."""
        return self.epochs.get(record.federation, f"the record of round {record.round}")

    @property
    def round(self) -> int:
        """The round that comes next; 0 while the initial model is not recorded."""
        return len(self.records)

    @property
    def applied(self) -> int:
        """Rounds that were applied."""
        return sum(record.outcome is Outcome.APPLIED for record in self.records)

    @property
    def model(self) -> bytes:
        """Digest of the model that the next round starts from."""
        return self.records[-1].model_after if self.records else b""

    @property
    def before(self) -> bytes:
        """Digest of the model that the last round which was applied has changed; empty while none was."""
        return next((r.model_before for r in reversed(self.records) if r.outcome is Outcome.APPLIED), b"")

    @property
    def cohort(self) -> tuple[str, ...]:
        """The silos of the last round that was applied."""
        return next((r.silos for r in reversed(self.records) if r.outcome is Outcome.APPLIED), ())

    @property
    def converged(self) -> bool:
        """Whether the last round left the model as it was: the same would be released again, for the same sum."""
        last = self.last
        return last is not None and last.outcome is Outcome.APPLIED and last.model_before == last.model_after

    @property
    def over(self) -> bool:
        """Whether no round is left: all are over, the last changed nothing, or no chain is without a liar."""
        culprits = {one.culprit for record in self.records for one in record.attempts}
        innocent = set(self.federation.chain) - culprits
        barred = len(innocent) < self.federation.chain_rule.minimum
        return self.round > self.federation.policy.rounds or self.converged or barred

    @property
    def bound(self) -> tuple[str, ...]:
        """The silos that the newest model was signed for, in rounds that were given up all the same; or nobody."""
        for record in reversed(self.records):
            if record.outcome is not Outcome.ABANDONED:
                break
            for one in record.attempts:
                if one.agreed:
                    return one.silos
        return ()

    def released(self, model: bytes) -> tuple[str, ...]:
        """The silos that a model was signed for in a round that is over, whichever it was; or nobody."""
        told = (one for r in self.records if r.model_before == model for one in r.attempts if one.agreed)
        return next((one.silos for one in told), ())

    def check_next(self, record: Record) -> None:
        """Check that a record is the next one, or refuse it. A second one of a round is evidence: `Fork`."""
        check_record(record, self.of(record))
        if record.round < self.round:
            known = self.records[record.round]
            if known.digest == record.digest:
                raise PeerFault(Reason.WRONG_HEAD, f"the record of round {record.round} is here", found=record.round)
            raise Fork(known, record)
        _expect(Reason.WRONG_HEAD, "round of the next record", record.round, self.round)
        _expect(Reason.WRONG_HEAD, f"what the record of round {record.round} goes on from", record.previous, self.head)
        _expect(Reason.WRONG_EPOCH, f"the epoch of round {record.round}", record.federation, self.epoch)
        if record.next:
            self.epochs.check_next(record.federation, record.next)
        if self.records:
            before = self.records[-1]
            _expect(Reason.WRONG_MODEL, "the record's model", record.model_before, before.model_after)
            _expect(Reason.WRONG_MODEL, "the record's server state", record.state_before, before.state_after)

    def append(self, record: Record) -> None:
        """Add a record that was checked; the newest may be replaced by itself with more countersignatures."""
        if record.round == self.round - 1 and self.records[-1].digest == record.digest:
            self.records[-1] = record
        else:
            assert record.round == self.round, f"record {record.round} where {self.round} is next"
            self.records.append(record)

    def extended(self, records: Sequence[Record]) -> "tuple[RoundLog, tuple[Record, ...]]":
        """Return the log with records that count added to it, and which of them are new. Nothing is changed here."""
        log, new = RoundLog(self.federation, self.records, self.epochs), []
        for record in records:
            if record.round < log.round and log.records[record.round].digest == record.digest:
                continue
            log.check_next(record)
            check_countersigned(record, self.of(record))
            log.append(record)
            new.append(record)
        return log, tuple(new)

    def check_link(self, manifest: Manifest) -> None:
        """Check that an attempt goes on from this very history: no round is skipped, no model comes again."""
        if manifest.round != self.round or manifest.head != self.head:
            raise PeerFault(
                Reason.WRONG_HEAD,
                f"round {manifest.round} goes on from {manifest.head.hex()[:16]}, and the round log here ends with "
                f"round {self.round - 1}, {self.head.hex()[:16]}",
                found=manifest.round,
                expected=self.round,
            )
        assert self.records, "round 0 is no manifest's"
        _expect(Reason.WRONG_EPOCH, f"the epoch of round {manifest.round}", manifest.federation, self.epoch)
        _expect(Reason.WRONG_MODEL, "the model", manifest.model, self.records[-1].model_after)
        _expect(Reason.WRONG_MODEL, "the server's state", manifest.state, self.records[-1].state_after)
        _expect(Reason.WRONG_HEAD, "the number of rounds that were applied", manifest.applied, self.applied)


class Fork(PeerFault):
    """Two records of one round, both signed by the aggregator: it told two stories, and this proves it."""

    def __init__(self, known: Record, other: Record) -> None:
        """The sentence is for people; what counts are the records."""
        super().__init__(
            Reason.FORKED,
            f"the aggregator signed two records of round {known.round}: {known.digest.hex()[:16]} and "
            f"{other.digest.hex()[:16]}",
            round=known.round,
        )
        self.known, self.other = known, other


def _expect(reason: Reason, what: str, found: object, expected: object) -> None:
    if found != expected:
        shown = (f.hex()[:16] if isinstance(f, bytes) else f for f in (found, expected))
        raise PeerFault(reason, "{}: {} instead of {}".format(what, *shown))
