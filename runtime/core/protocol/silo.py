"""A silo's decisions: which history it follows, which attempts it joins, and what it will not do twice.

A silo trains once per model and freezes the integers; every attempt on that model sends the same ones under fresh
masks. It joins a round only if that goes on from the round log it knows, with the model that it has computed itself. It
joins a further attempt only if no hop of an earlier one can have released, or is there to refuse a second cohort.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Rng, Secret, commitment, seal
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity, verify
from silomix.runtime.core.protocol.machine import Machine, Remember, Table, does, refuses
from silomix.runtime.core.protocol.messages import Header, Manifest, Receipt, SealedSeed
from silomix.runtime.core.protocol.roundlog import Fork, Record, RoundLog
from silomix.runtime.core.protocol.rules import check_manifest, invited, layout


@dataclass(frozen=True)
class Joined:
    """The durable fact that a silo joined an attempt: on which model, through which hops."""

    round: int
    attempt: int
    model: bytes
    chain: tuple[str, ...]


@dataclass(frozen=True)
class Stored:
    """The durable fact that a record is in this silo's round log."""

    record: Record


@dataclass(frozen=True)
class Forked:
    """The durable fact that the aggregator signed two records of one round: evidence for everybody."""

    known: Record
    other: Record


Fact = Joined | Stored | Forked


# Events


@dataclass(frozen=True)
class RecordsIn:
    """Rounds are over, and these are their records, with the signatures of the hops that have stored them."""

    records: tuple[Record, ...]


@dataclass(frozen=True)
class ForkSeen:
    """Two records of one round were found, both signed by the aggregator."""

    fork: Fork


@dataclass(frozen=True)
class EpochsIn:
    """Another epoch counts at this node."""

    epochs: Epochs


@dataclass(frozen=True)
class Announced:
    """The aggregator opened an attempt."""

    manifest: Manifest


@dataclass(frozen=True)
class ReceiptIn:
    """Hop 1 says that it has the body with this root."""

    receipt: Receipt
    root: bytes


Event = RecordsIn | ForkSeen | EpochsIn | Announced | ReceiptIn


# Effects


@dataclass(frozen=True)
class Follow:
    """Compute the models of the rounds that were applied since, from the sums that were released."""


@dataclass(frozen=True)
class TakePart:
    """Train unless the round's integers are frozen already, then send them under fresh masks."""

    manifest: Manifest


@dataclass(frozen=True)
class Done:
    """The body counts."""

    manifest: Manifest


@dataclass(frozen=True)
class Switch:
    """The next round is in another epoch: this machine is done, and one of that epoch goes on from the journal."""

    epoch: bytes


Effect = Remember[Fact] | Follow | TakePart | Done | Switch


class State(StrEnum):
    """Where a silo is."""

    WAITING = "waiting"
    """Nothing is under way."""
    TAKING_PART = "taking part"
    """It trains, or sends its body."""
    COUNTED = "counted"
    """Hop 1 has its body."""


_HEARS = does("_announced", State.TAKING_PART)
_HISTORY = {RecordsIn: does("_records"), ForkSeen: does("_fork"), EpochsIn: does("_epochs")}
TABLE: Table = {
    State.WAITING: {
        **_HISTORY,
        Announced: _HEARS,
        ReceiptIn: refuses(Reason.WRONG_MANIFEST, "a receipt, and nothing was sent"),
    },
    State.TAKING_PART: {
        **_HISTORY,
        Announced: _HEARS,
        ReceiptIn: does("_receipt", State.COUNTED),
    },
    State.COUNTED: {
        **_HISTORY,
        Announced: _HEARS,
        ReceiptIn: does("_receipt"),
    },
}


@dataclass(frozen=True)
class Sealing:
    """A header, and the secrets behind it: one seed for each layer, to be added to the frozen integers."""

    header: Header
    seeds: tuple[tuple[int, Secret], ...] = field(repr=False)

    def wipe(self) -> None:
        """Overwrite the seeds: whoever reads this process's memory later finds none of them."""
        for _, seed in self.seeds:
            seed.wipe()


class Silo(Machine[State, Event, Effect, Fact]):
    """One silo's state: the history that it follows, and the attempts that it has joined."""

    TABLE = TABLE

    def __init__(
        self,
        federation: Federation,
        identity: Identity,
        required: tuple[str, ...] = (),
        epochs: Epochs | None = None,
    ) -> None:
        """`required` are hops that this silo trusts, typically its own: it joins no chain without them."""
        self.federation = federation
        self.identity = identity
        self.required = required
        self.state = State.WAITING
        self.log = RoundLog(federation, epochs=epochs)
        self.joined: dict[int, list[Joined]] = {}
        self.current: Manifest | None = None
        self.counted = b""
        """The last attempt that hop 1 has signed a receipt for."""
        self.forks: dict[int, Forked] = {}

    def recall(self, fact: Fact) -> None:
        """Take a fact in."""
        match fact:
            case Joined():
                self.joined.setdefault(fact.round, []).append(fact)
            case Stored():
                self.log.append(fact.record)
            case Forked():
                self.forks[fact.known.round] = fact

    def wake_at(self) -> float | None:
        """A silo has no clock of its own: the aggregator announces, and hop 1 closes."""
        return None

    def _records(self, event: RecordsIn) -> list[Effect]:
        log, new = self.log.extended(event.records)
        stored: list[Effect] = [Remember(Stored(record)) for record in new]
        following = log.epochs.find(log.epoch)
        if new and following is not None and following.epoch > self.federation.epoch:
            return [*stored, Switch(following.digest)]
        return [*stored, Follow()] if new else []

    def _epochs(self, event: EpochsIn) -> list[Effect]:
        self.log.epochs = event.epochs
        return []

    def _fork(self, event: ForkSeen) -> list[Effect]:
        fork = event.fork
        return [] if fork.known.round in self.forks else [Remember(Forked(fork.known, fork.other))]

    def _announced(self, event: Announced) -> list[Effect]:
        manifest = event.manifest
        if self.current is not None and self.current.digest == manifest.digest:
            return []
        check_manifest(manifest, self.federation)
        if manifest.round < self.log.round:
            raise PeerFault(Reason.WRONG_ROUND, f"round {manifest.round} is over here", found=manifest.round)
        self.log.check_link(manifest)
        missing = [hop for hop in self.required if hop not in manifest.chain]
        if missing:
            raise PeerFault(
                Reason.WRONG_CHAIN,
                f"the chain lacks {', '.join(missing)}, which this silo requires to submit",
            )
        if self.identity.name not in invited(manifest, self.federation):
            return []
        earlier = self.joined.get(manifest.round, [])
        fact = Joined(manifest.round, manifest.attempt, manifest.model, manifest.chain)
        now = self.current
        told_twice = now is not None and (now.round, now.attempt) == (manifest.round, manifest.attempt)
        if told_twice or any(j.attempt >= manifest.attempt and j != fact for j in earlier):
            raise PeerFault(Reason.WRONG_ATTEMPT, f"attempt {manifest.attempt} is over here", found=manifest.attempt)
        self._check_fences(manifest, earlier)
        self.current, self.state = manifest, State.TAKING_PART
        remember: list[Effect] = [] if fact in earlier else [Remember(fact)]
        return [*remember, TakePart(manifest)]

    def _check_fences(self, manifest: Manifest, earlier: list[Joined]) -> None:
        fenced = {(fence.attempt, fence.hop) for fence in manifest.fences}
        for past in earlier:
            for hop_name in past.chain:
                if hop_name not in manifest.chain and (past.attempt, hop_name) not in fenced:
                    raise PeerFault(
                        Reason.FENCE_MISSING,
                        f"{hop_name} may have released attempt {past.attempt} of round {manifest.round}: "
                        "this silo joins no other chain for that round",
                        peer=hop_name,
                    )

    def sealing(self, manifest: Manifest, rng: Rng) -> Sealing:
        """Draw a fresh seed for every layer, seal each to its hop, and sign the header."""
        seeds: list[tuple[int, Secret]] = []
        sealed: list[SealedSeed] = []
        masked = manifest.plan.level is not Level.TRUSTED
        for name in (*manifest.chain, self.federation.aggregator.name) if masked else ():
            key = manifest.key_for(name, self.identity.name)
            if key is None:
                raise PeerFault(Reason.WRONG_KEYS, f"{name} has made no key for this silo", peer=name)
            layer = manifest.layer(name)
            context = manifest.context(layer)
            seed = Secret.draw(rng)
            try:
                blob = seal(seed, key.public_key, context)
            except ValueError:
                raise PeerFault(Reason.WRONG_KEYS, f"the round key of {name} is unusable", peer=name) from None
            seeds.append((layer, seed))
            sealed.append(SealedSeed(name, blob, commitment(seed, context)))
        header = Header(self.identity.name, manifest.digest, tuple(sealed), layout(manifest).chunks)
        return Sealing(header.signed(self.identity), tuple(seeds))

    def _receipt(self, event: ReceiptIn) -> list[Effect]:
        receipt, manifest = event.receipt, self.current
        if manifest is None or receipt.manifest != manifest.digest:
            raise PeerFault(Reason.WRONG_MANIFEST, "a receipt for another attempt")
        if receipt.hop != manifest.chain[0] or receipt.silo != self.identity.name:
            raise PeerFault(Reason.WRONG_CHAIN, f"a receipt of {receipt.hop} for {receipt.silo}")
        if receipt.root != event.root:
            raise PeerFault(Reason.ROOT_MISMATCH, "a receipt for another body", peer=receipt.hop)
        verify(self.federation.member(receipt.hop).key, receipt.digest, receipt.signature, receipt.hop)
        self.state, self.counted = State.COUNTED, manifest.digest
        return [Done(manifest)]
