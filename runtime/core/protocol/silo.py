"""A silo's decisions: which history it follows, which attempts it joins, and what it will not do twice.

A silo trains once per model and freezes the integers; every attempt on that model sends the same ones under fresh
masks. It joins a round only if that goes on from the round log it knows, with the model that it has computed itself. It
joins a further attempt only if no hop of an earlier one can have released, or is there to refuse a second cohort.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Rng, Secret, commitment, seal
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.tamper import Scalars, combined
from silomix.runtime.core.protocol.check import said
from silomix.runtime.core.protocol.check.said import Statement, Subject, Toss, check_subject, coin_of, relayed
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS, Trapped
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


@dataclass(frozen=True)
class Tossed:
    """The durable fact that a silo has shown its share of an attempt's coin, and for which check: for no other."""

    round: int
    attempt: int
    manifest: bytes
    context: bytes


@dataclass(frozen=True)
class Stated:
    """The durable fact that a silo has answered a coin, and how: after a restart it says the same again.

    A second coin in that attempt would give its values away.
    """

    round: int
    attempt: int
    manifest: bytes
    statement: Statement


Fact = Joined | Stored | Forked | Tossed | Stated


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


@dataclass(frozen=True)
class CheckIn:
    """A tamper check is open. The driver adds what it has of this silo's own body in that attempt."""

    subject: Subject
    header: bytes
    root: bytes
    share: Secret = field(repr=False)


@dataclass(frozen=True)
class CoinIn:
    """All silos of the cohort have shown their shares."""

    tosses: tuple[Toss, ...]


@dataclass(frozen=True)
class Measured:
    """The scalars of this silo's body, and of its mask for each hop, are computed."""

    manifest: bytes
    coin: bytes
    scalars: tuple[Scalars, ...]
    trapped: Trapped = NO_TRAPS


Event = RecordsIn | ForkSeen | EpochsIn | Announced | ReceiptIn | CheckIn | CoinIn | Measured


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
class Show:
    """Show the share of the coin."""

    toss: Toss


@dataclass(frozen=True)
class Measure:
    """Compute the scalars of the body, and of the mask for each hop, under this coin."""

    manifest: bytes
    coin: bytes


@dataclass(frozen=True)
class Answer:
    """Answer the coin. From here on the seeds and blinders of that attempt are of no use."""

    statement: Statement


@dataclass(frozen=True)
class Switch:
    """The next round is in another epoch: this machine is done, and one of that epoch goes on from the journal."""

    epoch: bytes


Effect = Remember[Fact] | Follow | TakePart | Done | Show | Measure | Answer | Switch


class State(StrEnum):
    """Where a silo is."""

    WAITING = "waiting"
    """Nothing is under way."""
    TAKING_PART = "taking part"
    """It trains, or sends its body."""
    COUNTED = "counted"
    """Hop 1 has its body."""


_HEARS = does("_announced", State.TAKING_PART, State.COUNTED)
_HISTORY = {RecordsIn: does("_records"), ForkSeen: does("_fork"), EpochsIn: does("_epochs")}
_NO_CHECK = refuses(Reason.WRONG_MANIFEST, "a check, and this silo's body does not count")
_NO_PART = {CheckIn: _NO_CHECK, CoinIn: _NO_CHECK, Measured: _NO_CHECK}
TABLE: Table = {
    State.WAITING: {
        **_HISTORY,
        Announced: _HEARS,
        ReceiptIn: refuses(Reason.WRONG_MANIFEST, "a receipt, and nothing was sent"),
        **_NO_PART,
    },
    State.TAKING_PART: {
        **_HISTORY,
        Announced: _HEARS,
        ReceiptIn: does("_receipt", State.COUNTED),
        **_NO_PART,
    },
    State.COUNTED: {
        **_HISTORY,
        Announced: _HEARS,
        ReceiptIn: does("_receipt"),
        CheckIn: does("_check"),
        CoinIn: does("_coin"),
        Measured: does("_measured"),
    },
}


@dataclass(frozen=True)
class Sealing:
    """A header, and the secrets behind it: one seed for each layer, to be added to the frozen integers."""

    header: Header
    seeds: tuple[tuple[int, Secret], ...] = field(repr=False)
    share: Secret | None = field(default=None, repr=False)
    """At level malicious: the silo's share of the coin, which the header commits to."""

    def wipe(self) -> None:
        """Overwrite the seeds: whoever reads this process's memory later finds none of them."""
        for _, seed in self.seeds:
            seed.wipe()
        if self.share is not None:
            self.share.wipe()


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
        self.tossed: dict[bytes, bytes] = {}
        """By manifest: the check that this silo has shown its share for."""
        self.stated: dict[bytes, Statement] = {}
        """By manifest: the one answer that it has given to a coin."""
        self._subject: Subject | None = None

    def recall(self, fact: Fact) -> None:
        """Take a fact in."""
        match fact:
            case Joined():
                self.joined.setdefault(fact.round, []).append(fact)
            case Stored():
                self.log.append(fact.record)
            case Forked():
                self.forks[fact.known.round] = fact
            case Tossed():
                self.tossed[fact.manifest] = fact.context
            case Stated():
                self.stated[fact.manifest] = fact.statement

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
        self._subject = None
        if manifest.digest in self.stated:  # before a restart: what it sent counts, and the seeds are gone
            self.current, self.state, self.counted = manifest, State.COUNTED, manifest.digest
            return [Answer(self.stated[manifest.digest])]
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
            seeds.append((layer, seed))
            sealed.append(SealedSeed(name, seal(seed, key.public_key, context), commitment(seed, context)))
        header = Header(self.identity.name, manifest.digest, tuple(sealed), layout(manifest).chunks)
        if manifest.plan.level is not Level.MALICIOUS:
            return Sealing(header.signed(self.identity), tuple(seeds))
        share = Secret.draw(rng)
        header = replace(header, coin=said.commitment(share, self.identity.name, manifest.digest))
        return Sealing(header.signed(self.identity), tuple(seeds), share)

    # The tamper check, at level malicious

    def _check(self, event: CheckIn) -> list[Effect]:
        """Show the share of the coin, once for an attempt, when all is fixed: by every hop, and with this very body."""
        manifest, subject = self.current, event.subject
        if manifest is None or subject.ready.manifest != manifest.digest or self.counted != manifest.digest:
            raise PeerFault(Reason.WRONG_MANIFEST, "a check of another attempt")
        with relayed(self.federation):
            check_subject(subject, manifest, self.federation)
        name, hop = self.identity.name, manifest.chain[0]
        if name not in subject.cohort.silos:
            return []
        if (subject.header_of(name).digest, subject.root_of(name)) != (event.header, event.root):
            raise PeerFault(Reason.ROOT_MISMATCH, f"{hop} took in another body than this silo sent", peer=hop)
        known = self.tossed.get(manifest.digest)
        if known not in (None, subject.context):
            raise PeerFault(Reason.SHARE_MISMATCH, "this silo has shown its share for another check of this attempt")
        # If the round ended while this waited, the share is zeros, or will be any moment: signed, they would be a lie.
        shown = said.toss(subject, event.share.copy().keyed(), self.identity)
        self._subject = subject
        fact = Tossed(manifest.round, manifest.attempt, manifest.digest, subject.context)
        remember: list[Effect] = [] if known else [Remember(fact)]
        return [*remember, Show(shown)]

    def _coin(self, event: CoinIn) -> list[Effect]:
        """Answer the coin that the shares of all make, and no other: two answers would cancel the blinders."""
        manifest, subject = self.current, self._subject
        known = None if manifest is None else self.stated.get(manifest.digest)
        if known is not None:  # also after a restart
            self._check_one(known, combined(known.context, {one.silo: one.share for one in event.tosses}))
            return [Answer(known)]
        if manifest is None or subject is None or subject.ready.manifest != manifest.digest:
            raise PeerFault(Reason.WRONG_MANIFEST, "a coin, and this silo has tossed none")
        with relayed(self.federation):
            coin = coin_of(subject, event.tosses, self.federation)
        return [Measure(manifest.digest, coin)]

    def _measured(self, event: Measured) -> list[Effect]:
        manifest, subject = self.current, self._subject
        if manifest is None or subject is None or event.manifest != manifest.digest:
            return []  # of an attempt that is over
        known = self.stated.get(manifest.digest)
        if known is not None:
            self._check_one(known, event.coin)
            return [Answer(known)]
        made = Statement(self.identity.name, subject.context, event.coin, event.scalars, trapped=event.trapped)
        made = made.signed(self.identity)
        return [Remember(Stated(manifest.round, manifest.attempt, manifest.digest, made)), Answer(made)]

    def _check_one(self, known: Statement, coin: bytes) -> None:
        if known.coin != coin:
            raise PeerFault(Reason.SHARE_MISMATCH, "this silo has answered another coin of this attempt")

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
