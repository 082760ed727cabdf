"""What an aggregator hears from hops before it signs anything: it may have been emptied, or restored from an old copy.

It cannot tell by itself. So each time that it starts it asks every hop to show what it knows: the round log, the newest
attempt, and for whom it has released the model. Records are signed by this aggregator and countersigned by hops, so
nobody can make one up; and of as many hops as a chain has at least, one that is honest has every record that counts.

Each start has a number, its life, which the aggregator signs. A hop that has been shown a higher one takes nothing more
from a lower: what is still on its way from before, or comes from a second process with the same identity, is refused.
Whoever is refused is shown the signature: without one, a single hop could claim a number so high that no other hop
would follow an aggregator there.

Processes of a hop have lives too, signed by the hop. When members greet one another, they show the highest of each hop
that they know of. A hop that is shown a higher one with its own signature was started twice, or from an old copy of its
disk: it must not serve beside the other. Nobody else can make such a signature, so nobody can end a hop by claiming
that there is another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.masks import Rng
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.federation import SHOWN, Federation
from silomix.runtime.core.protocol.identity import Identity, verify
from silomix.runtime.core.protocol.messages import Bond
from silomix.runtime.core.protocol.release import check_agreed
from silomix.runtime.core.protocol.roundlog import (
    Record,
    RoundLog,
    check_countersigned,
    check_record,
    countersign_digest,
)
from silomix.runtime.core.protocol.rules import MOST_ATTEMPTS, check_chain

NUMBER_BYTES, TOKEN_BYTES = 8, 16
LIFE_BYTES = NUMBER_BYTES + TOKEN_BYTES
"""A number, and random bytes that tell two processes with the same number apart. The higher of two is served."""
MOST_SHOWN = 64
"""Records in one answer: whoever lacks more asks again."""
MOST_TOLD = 16
"""Releases of one model in one answer: those of the newest attempts."""
MOST_AHEAD = 1 << 32
"""How far above the last number a hop follows: who has the key for a moment could else leave no number above it."""
MOST_MISSED = MOST_AHEAD // 2
"""Starts that an aggregator can have missed. Half, so that it stays in reach of hops that have missed as many."""
MOST_RAISES = 2
"""How often one hop may show a later process while an aggregator begins: two that begin at once would outdo each other
for ever, each with a signature."""
HEAR_S = 10.0
"""Time that the other hops have to be heard in, once as many as a chain needs have been."""
WAY_OUT = 'see "An aggregator that was restored" in docs/operations.md'


@dataclass(frozen=True)
class Told:
    """A hop's word, with the proof, that it has released a model."""

    round: int
    attempt: int
    model: bytes
    bond: Bond


@dataclass(frozen=True)
class Shown:
    """What a hop shows an aggregator that begins."""

    life: bytes
    """The highest that it has been shown: if that is another than the asker's, the asker is not served."""
    total: int
    """How many records it has."""
    start: int
    records: tuple[Record, ...]
    """Those from one on, each with its own countersignature; of many, the first."""
    attempt: int
    """The newest attempt that it knows of the round that comes next."""
    last_released: int
    told: tuple[Told, ...]
    signature: bytes = b""
    """The aggregator's, under that life: a hop has nothing else to show for it."""


def life_after(number: int, rng: Rng) -> bytes:
    """Make a life above a number."""
    return (number + 1).to_bytes(NUMBER_BYTES, "big") + rng(TOKEN_BYTES)


def number_of(life: bytes) -> int:
    """The number in a life; 0 if there was none."""
    return int.from_bytes(life[:NUMBER_BYTES], "big")


def counts(record: Record, log: RoundLog) -> bool:
    """Whether enough hops have stored a record."""
    try:
        check_countersigned(record, log.of(record))
    except PeerFault:
        return False
    return True


def check_shown(shown: Shown, log: RoundLog) -> None:
    """Check what a hop shows, before any of it is believed: records each under the epoch in which they were made.

    Of the rest nothing is signed but the life, so it is held to what can be.
    """
    most = most_records(log)
    if shown.attempt > MOST_ATTEMPTS or shown.last_released > most or len(shown.records) > most:
        raise PeerFault(Reason.MALFORMED, "a hop shows more rounds or attempts than there can be")
    _check_order(shown.records, shown.start)
    for record in shown.records:
        check_record(record, log.of(record))


def check_asked(life: bytes, asked: bytes) -> None:
    """Check that a hop answers the process that asks it: it has seen that one's life, so it shows no lower one."""
    if life < asked:
        raise PeerFault(
            Reason.MALFORMED,
            "a hop shows an earlier process than the one that asks it",
            found=number_of(life),
            expected=number_of(asked),
        )


def check_later(hop: str, shown: Shown, number: int, epochs: Epochs) -> None:
    """Check that a process which a hop shows as a later one than that with this number was this aggregator's.

    It was signed under the key that the aggregator has in an epoch, or had in an earlier one.
    """
    if not any(_lived(shown, federation) for federation in epochs.chain):
        raise PeerFault(
            Reason.BAD_SIGNATURE,
            f"{hop} shows a later process of this aggregator (number {number_of(shown.life)}) which the aggregator has "
            "not signed: it is not believed",
            peer=hop,
        )
    if number_of(shown.life) > number + MOST_MISSED:
        raise PeerFault(
            Reason.MALFORMED,
            f"{hop} shows a process with number {number_of(shown.life)}, and no aggregator was ever started that "
            "often: somebody else has signed with its key",
            peer=hop,
            found=number_of(shown.life),
        )


def _lived(shown: Shown, federation: Federation) -> bool:
    try:
        Life(federation.aggregator.name, shown.life, shown.signature).check(federation)
    except PeerFault:
        return False
    return True


def check_made(records: Sequence[Record], start: int, log: RoundLog) -> None:
    """Check that records were made by this aggregator, and are those from one round on, before more is asked for.

    A hop can neither make one up nor show one twice, nor make one longer by more than a few signatures: whatever it
    answers, no more comes of it than there is.
    """
    _check_order(records, start)
    for record in records:
        federation = log.of(record)
        if len(record.countersignatures) > len(federation.chain) + 1:  # a hop of a later pool may add its own
            raise PeerFault(Reason.WRONG_LENGTH, f"round {record.round} has more countersignatures than there are hops")
        verify(federation.aggregator.key, record.digest, record.signature, federation.aggregator.name)


def _check_order(records: Sequence[Record], start: int) -> None:
    for place, record in enumerate(records):
        if record.round != start + place:
            raise PeerFault(Reason.WRONG_HEAD, "the records that were shown are not in order", found=record.round)


def until_change(shown: Shown, log: RoundLog) -> Shown:
    """Leave out what comes after the record that ends this node's epoch: it may be epochs behind, of which it knows
    the next alone. It goes on there, asks again, and hears the rest."""
    ours = log.federation.digest
    for place, record in enumerate(shown.records):
        if record.federation == ours and record.next:
            if log.epochs.find(record.next) is None:
                raise PeerFault(
                    Reason.WRONG_EPOCH,
                    f"round {record.round} was the last of epoch {log.federation.epoch}, and the epoch after it, "
                    f"{record.next.hex()[:SHOWN]}, does not count here yet",
                    round=record.round,
                )
            kept = shown.records[: place + 1]
            return replace(shown, records=kept, last_released=min(shown.last_released, record.round))
    return shown


def most_records(log: RoundLog) -> int:
    """How many records there can be, whatever a hop says."""
    return max(epoch.policy.rounds for epoch in log.epochs.chain) + 1


def holds(told: Told, federation: Federation) -> bool:
    """Whether a hop's word that a model was released has its proof. That of an earlier epoch's chain has none here."""
    if not 1 <= told.attempt <= MOST_ATTEMPTS:
        return False
    try:
        check_chain(told.bond.chain, federation)
        signatures = told.bond.signed_by(federation.aggregator.name)
        check_agreed(told.bond.agreed(told.model), signatures, told.bond.chain, federation)
    except PeerFault:
        return False
    return True


def missing_records(log: RoundLog, heard: Mapping[str, Shown]) -> tuple[Record, ...]:
    """Put together what hops know and a log lacks: later records, and countersignatures under its newest.

    Two records of one round, both signed here, are more than an aggregator can mend: it says so and goes no further.
    """
    made, new = RoundLog(log.federation, log.records, log.epochs), list[Record]()
    shown: dict[int, dict[bytes, list[Record]]] = {}
    for one in heard.values():
        for record in one.records:
            shown.setdefault(record.round, {}).setdefault(record.digest, []).append(record)
    for round_, stories in sorted(shown.items()):
        own = made.records[round_] if round_ < made.round else None
        if own is not None:
            stories.setdefault(own.digest, []).append(own)
        united = [_united(copies, log) for copies in stories.values()]
        counted = [record for record in united if counts(record, log)]
        told = counted or united
        if len(told) != 1 or (own is not None and told[0].digest != own.digest):
            raise LocalFault(
                Reason.FORKED,
                f"two records of round {round_} are signed in the name of this aggregator, and hops hold different "
                f"ones: it goes no further, since that would make it worse; {WAY_OUT}",
                round=round_,
            )
        record = told[0]
        if own is None:
            _check_goes_on(made, record)
        if own is None or (not counts(own, log) and counted):
            made.append(record)
            new.append(record)
    return tuple(new)


def _check_goes_on(log: RoundLog, record: Record) -> None:
    try:
        log.check_next(record)
    except PeerFault as fault:
        raise LocalFault(
            fault.reason,
            f"what hops have of round {record.round} does not go on from what is here: {fault.message}; {WAY_OUT}",
            round=record.round,
        ) from None


def _united(copies: list[Record], log: RoundLog) -> Record:
    """One record with the countersignatures of all copies that hold."""
    federation = log.of(copies[0])
    signatures: dict[str, bytes] = {}
    for copy in copies:
        for name, signature in copy.countersignatures:
            if name in federation.chain and name not in signatures:
                try:
                    verify(federation.member(name).key, countersign_digest(copy.digest, name), signature, name)
                except PeerFault:
                    continue
                signatures[name] = signature
    in_order = tuple((name, signatures[name]) for name in federation.chain if name in signatures)
    return replace(copies[0], countersignatures=in_order)


# Processes, and who signs for them


@dataclass(frozen=True)
class Life:
    """One process of a hop, or of the aggregator."""

    name: str
    life: bytes
    """The number of the process, and its token."""
    signature: bytes = b""

    def digest(self, federation: Federation) -> bytes:
        """What its node signs."""
        return digest("life", federation.first, self.name, self.life)

    def signed(self, identity: Identity, federation: Federation) -> "Life":
        """The same with its node's signature."""
        return replace(self, signature=identity.sign(self.digest(federation)))

    def check(self, federation: Federation) -> None:
        """Refuse a life that its node has not signed [bad_signature]."""
        verify(federation.member(self.name).key, self.digest(federation), self.signature, self.name)


class Standing(Enum):
    """How a process stands to those that are known."""

    KNOWN = "known"
    NEW = "new"
    OLD = "old"


class Lives:
    """The newest process of each hop that a node has heard of."""

    def __init__(self, federation: Federation, own: Life | None = None) -> None:
        """`own` is this node's, if it is a hop."""
        self._federation = federation
        self.own = own
        self._newest = {} if own is None else {own.name: own}

    @property
    def known(self) -> tuple[Life, ...]:
        """What others are shown."""
        return tuple(self._newest.values())

    def take(self, life: Life) -> Standing:
        """Take in a process that somebody knows of. Raise if it is of this very hop, and came after this one."""
        known = self._newest.get(life.name)
        if known is not None and known.life == life.life:
            return Standing.KNOWN
        life.check(self._federation)
        if known is not None and life.life < known.life:
            return Standing.OLD
        if self.own is not None and self.own.name == life.name:
            raise self._superseded(self.own, life)
        self._newest[life.name] = life
        return Standing.NEW

    def _superseded(self, own: Life, life: Life) -> LocalFault:
        return LocalFault(
            Reason.SUPERSEDED,
            f"another process with the identity of {own.name} has begun (number {number_of(life.life)}; this is number "
            f"{number_of(own.life)}), or this one's state is an old copy: this one ends. Run one process, with the "
            "newest state; if that is lost, the hop needs a new name, in another epoch",
        )
