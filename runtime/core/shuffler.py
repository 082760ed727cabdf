"""A shuffler's decisions: what it accepts, when it closes the cohort, and what it may never do again.

``step`` takes one event and returns effects, in the order in which they are to be carried out; a `Remember` is durable
before the next effect begins. The machine holds no vectors, and opens no sockets: runtime/nodes/shuffler.py does.

The invariant: for each round a shuffler releases for at most one cohort. The release is remembered before the first
byte leaves, so a restart knows of it, and a later attempt at that round can only be of the same silos and model.
"""

from dataclasses import dataclass, field, replace
from math import ceil

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.federation import Federation
from silomix.runtime.core.identity import Identity, verify
from silomix.runtime.core.masks import Rng, Secret, public_key
from silomix.runtime.core.messages import (
    Cohort,
    Grouping,
    Header,
    Manifest,
    Participant,
    Receipt,
    RoundKey,
    trailer_digest,
)
from silomix.runtime.core.plan import Level
from silomix.runtime.core.rules import check_cohort, check_grouping, check_header, check_manifest, check_round, invited

UNFIT_ROUNDS = 10
"""Rounds that a silo sits out whose seed a later hop could not open, this one included."""
MOST_HEADERS = 16
"""Headers of one silo in one attempt: it makes a new one when it restarts, and each costs every hop a mask."""


@dataclass(frozen=True)
class Released:
    """The durable fact that a round's sum was released: over whom, on which model."""

    round: int
    silos: tuple[str, ...]
    model: bytes
    groups: tuple[int, ...] = ()
    """The group of each silo, where sums leave by group."""


@dataclass(frozen=True)
class KeyMade:
    """The durable fact that a key was made for a silo and a round."""

    round: int
    silo: str
    private: Secret = field(repr=False)


@dataclass(frozen=True)
class KeysGone:
    """The durable fact that a round's keys are deleted, and with them what its masks hid."""

    round: int


# Events


@dataclass(frozen=True)
class Prepare:
    """The aggregator asks for a round's keys."""

    federation: bytes
    round: int
    silos: tuple[str, ...]
    known_released: int


@dataclass(frozen=True)
class Open:
    """The aggregator opens an attempt."""

    manifest: Manifest
    now: float


@dataclass(frozen=True)
class HeaderIn:
    """A header came: from the silo itself, or passed on by the hop before."""

    header: Header
    sender: str


@dataclass(frozen=True)
class BodyIn:
    """All chunks of a body came, in order, and hash to this root; the trailer says the rest."""

    header: Header
    root: bytes
    signed_root: bytes
    signature: bytes


@dataclass(frozen=True)
class CohortIn:
    """The hop before closed the cohort; with its groups, if the round has any."""

    cohort: Cohort
    grouping: Grouping | None = None


@dataclass(frozen=True)
class Unfit:
    """The next hop, or one behind it, cannot open what a silo sealed to it in this attempt."""

    manifest: bytes
    silo: str


@dataclass(frozen=True)
class Delivered:
    """What was released in this attempt has come through to the aggregator: its round is over."""

    manifest: bytes


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    now: float


Event = Prepare | Open | HeaderIn | BodyIn | CohortIn | Unfit | Delivered | Tick


# Effects


@dataclass(frozen=True)
class Remember:
    """Write a fact to the journal, durably, before anything else happens."""

    fact: Released | KeyMade | KeysGone


@dataclass(frozen=True)
class Keys:
    """Answer with the round's keys."""

    keys: tuple[RoundKey, ...]
    last_released: int


@dataclass(frozen=True)
class Begin:
    """Make room for an attempt, and throw away what an earlier one left."""

    manifest: Manifest


@dataclass(frozen=True)
class Pass:
    """Relay a header to the next hop, and begin to expand its mask."""

    header: Header


@dataclass(frozen=True)
class Drop:
    """Take back what was relayed of a silo's headers."""

    silo: str


@dataclass(frozen=True)
class Count:
    """Add a body to the sum and give the silo its receipt."""

    header: Header
    receipt: Receipt


@dataclass(frozen=True)
class Again:
    """Give a silo the receipt that it already has: nothing is counted."""

    receipt: Receipt


@dataclass(frozen=True)
class Release:
    """Take the masks of this cohort off the sum, and of nobody else, and send it on; by group, if there are groups."""

    cohort: Cohort
    grouping: Grouping | None = None


@dataclass(frozen=True)
class Abort:
    """Give the attempt up and say why; the aggregator will try again."""

    fault: PeerFault


Effect = Remember | Keys | Begin | Pass | Drop | Count | Again | Release | Abort


@dataclass
class _Attempt:
    manifest: Manifest
    opened: float
    headers: dict[bytes, Header] = field(default_factory=dict)
    counted: dict[str, tuple[bytes, Receipt]] = field(default_factory=dict)  # silo -> header digest, receipt
    closed: bool = False
    cohort: bytes = b""  # digest of the one that was released


def _conflict(silo: str) -> PeerFault:
    return PeerFault(Reason.BODY_CONFLICT, f"{silo} has sent another body already: the first is kept", peer=silo)


def _behind(known: int, own: int) -> PeerFault:
    return PeerFault(
        Reason.WRONG_ROUND,
        f"this hop once released round {known} and its journal ends at {own}: "
        "it was restored from an old copy and does not serve",
        found=own,
        expected=known,
    )


def deal(silos: int, size: int, rng: Rng) -> tuple[int, ...]:
    """Partition a cohort at random: as many groups as can have `size` silos, none larger than another by two."""
    order = sorted(range(silos), key=lambda _: rng(16))
    count = max(1, silos // size)
    groups = [0] * silos
    for place, silo in enumerate(order):
        groups[silo] = place % count
    return tuple(groups)


class Shuffler:
    """One hop's state: its keys, what it has released, and the attempt that is open."""

    def __init__(self, federation: Federation, identity: Identity, rng: Rng) -> None:
        """Start empty; `recall` what the journal has before the first step."""
        self.federation = federation
        self.identity = identity
        self.keys: dict[tuple[int, str], Secret] = {}
        self.released: dict[int, Released] = {}
        self.last_released = 0
        self.attempt: _Attempt | None = None
        self.unfit: dict[str, int] = {}
        """Silos that sit out, with the last round that they do."""
        self._rng = rng

    def recall(self, fact: Released | KeyMade | KeysGone) -> None:
        """Take a fact in: on start-up from the journal, and later as it is remembered."""
        if isinstance(fact, Released):
            self.released[fact.round] = fact
            self.last_released = max(self.last_released, fact.round)
        elif isinstance(fact, KeyMade):
            self.keys[fact.round, fact.silo] = fact.private
        else:
            self.keys = {key: secret for key, secret in self.keys.items() if key[0] > fact.round}

    def step(self, event: Event) -> list[Effect]:
        """Take one event; raise a PeerFault if it is to be refused, and then nothing has changed."""
        match event:
            case Prepare():
                return self._prepare(event)
            case Open():
                return self._open(event)
            case HeaderIn():
                return self._header(event)
            case BodyIn():
                return self._body(event)
            case CohortIn():
                return self._cohort(event)
            case Unfit():
                return self._unfit(event)
            case Delivered():
                return self._delivered(event.manifest)
            case Tick():
                return self._tick(event.now)

    def wake_at(self) -> float | None:
        """When the next `Tick` is due, if one is: hop 1 closes the cohort at its deadline."""
        attempt = self.attempt
        if attempt is None or attempt.closed or not self._first(attempt.manifest):
            return None
        return attempt.opened + attempt.manifest.deadline_s

    def _first(self, manifest: Manifest) -> bool:
        return manifest.chain[0] == self.identity.name

    def _prepare(self, event: Prepare) -> list[Effect]:
        if event.federation != self.federation.digest:
            raise PeerFault(Reason.WRONG_FEDERATION, "the aggregator has another federation file")
        if event.known_released > self.last_released:
            raise _behind(event.known_released, self.last_released)
        opened = 1 if self.attempt is None else self.attempt.manifest.round
        if event.round < max(opened, self.last_released):
            raise PeerFault(Reason.WRONG_ROUND, f"round {event.round} is over", found=event.round)
        check_round(event.round, self.federation)
        if list(event.silos) != sorted(set(event.silos)):
            raise PeerFault(Reason.MALFORMED, "the silos are not in order, or one is there twice")
        masked = self.federation.plan.level is not Level.TRUSTED
        effects: list[Effect] = []
        keys: list[RoundKey] = []
        for silo in event.silos if masked else ():
            if silo not in self.federation.silo_names:
                raise PeerFault(Reason.UNKNOWN_PEER, f"{silo!r} is not on the roster", peer=silo)
            private = self.keys.get((event.round, silo))
            if private is None:
                private = Secret.draw(self._rng)
                effects.append(Remember(KeyMade(event.round, silo, private)))
            key = RoundKey(self.identity.name, silo, event.round, public_key(private), self.last_released)
            keys.append(key.signed(self.identity, self.federation.digest))
        return [*effects, Keys(tuple(keys), self.last_released)]

    def _open(self, event: Open) -> list[Effect]:
        manifest = event.manifest
        check_manifest(manifest, self.federation)
        if self.identity.name not in manifest.chain:
            raise PeerFault(Reason.WRONG_CHAIN, f"{self.identity.name} is not in this chain")
        if manifest.round < self.last_released:
            raise PeerFault(Reason.WRONG_ROUND, f"round {manifest.round} is over", found=manifest.round)
        before = self.released.get(manifest.round)
        if before is not None and before.model != manifest.model:
            raise PeerFault(
                Reason.ALREADY_RELEASED, f"round {manifest.round} was released on another model", round=manifest.round
            )
        if self.attempt is not None:
            old = self.attempt.manifest
            if old.digest == manifest.digest:
                return []
            if (manifest.round, manifest.attempt) <= (old.round, old.attempt):
                raise PeerFault(
                    Reason.WRONG_ATTEMPT,
                    f"attempt {manifest.attempt} of round {manifest.round} is not newer than "
                    f"attempt {old.attempt} of round {old.round}",
                )
        for key in manifest.hop_keys:
            if key.hop == self.identity.name:
                private = self.keys.get((manifest.round, key.silo))
                if private is None or public_key(private) != key.public_key:
                    raise PeerFault(Reason.WRONG_KEYS, f"the key for {key.silo} is not one that this hop made")
                if key.last_released > self.last_released:
                    raise _behind(key.last_released, self.last_released)
        effects: list[Effect] = []
        over = min((r for r, _ in self.keys), default=manifest.round)
        if over < manifest.round:
            effects.append(Remember(KeysGone(manifest.round - 1)))
        self.attempt = _Attempt(manifest, event.now)
        effects.append(Begin(manifest))
        absent = [s for s in before.silos if self._sits_out(s, self.attempt)] if before is not None else []
        if absent and self._first(manifest):
            self.attempt.closed = True
            why = f"round {manifest.round} was released for a cohort with {', '.join(absent)}, who sit out"
            effects.append(Abort(PeerFault(Reason.ALREADY_RELEASED, why)))
        return effects

    def _current(self) -> _Attempt:
        if self.attempt is None:
            raise PeerFault(Reason.WRONG_MANIFEST, "no attempt is open here")
        return self.attempt

    def _header(self, event: HeaderIn) -> list[Effect]:
        attempt, header = self._current(), event.header
        first = self._first(attempt.manifest)
        sender = header.silo if first else attempt.manifest.chain[attempt.manifest.layer(self.identity.name) - 2]
        if event.sender != sender:
            raise PeerFault(Reason.UNKNOWN_PEER, f"{event.sender} sent what {sender} should", peer=event.sender)
        check_header(header, attempt.manifest, self.federation)
        self._check_fit(header.silo, attempt)
        digest = header.digest
        counted = attempt.counted.get(header.silo)
        if counted is not None and counted[0] == digest:
            return [Again(counted[1])]
        if digest in attempt.headers and not first:
            return []  # the hop before begins a broken stream anew
        if attempt.closed:
            raise PeerFault(Reason.COHORT_CLOSED, "the cohort is closed", peer=header.silo)
        if counted is not None:
            raise _conflict(header.silo)
        if first:
            self._check_cohort_has(header.silo, attempt)
        if digest in attempt.headers:
            return []
        if sum(h.silo == header.silo for h in attempt.headers.values()) >= MOST_HEADERS:
            raise PeerFault(
                Reason.WRONG_SEQUENCE,
                f"{header.silo} has begun {MOST_HEADERS} bodies in this attempt, and begins no other",
                peer=header.silo,
            )
        attempt.headers[digest] = header
        return [Pass(header)]

    def _sits_out(self, silo: str, attempt: _Attempt) -> bool:
        return self.unfit.get(silo, 0) >= attempt.manifest.round

    def _check_fit(self, silo: str, attempt: _Attempt) -> None:
        if self._sits_out(silo, attempt):
            raise PeerFault(
                Reason.SEAL_BROKEN,
                f"{silo} sealed a seed that a later hop could not open: it sits out until round {self.unfit[silo] + 1}",
                peer=silo,
            )

    def _unfit(self, event: Unfit) -> list[Effect]:
        """Go on without a silo. If it is in the sum already, this attempt is lost, and the next is without it."""
        attempt = self._current()
        if event.manifest != attempt.manifest.digest or self._sits_out(event.silo, attempt):
            return []
        if event.silo not in invited(attempt.manifest, self.federation):
            raise PeerFault(Reason.NOT_INVITED, f"{event.silo!r} is not in this attempt", peer=event.silo)
        self.unfit[event.silo] = attempt.manifest.round + UNFIT_ROUNDS - 1
        before = self.released.get(attempt.manifest.round)
        if attempt.closed and (before is None or event.silo in before.silos):
            return []
        attempt.headers = {digest: h for digest, h in attempt.headers.items() if h.silo != event.silo}
        effects: list[Effect] = [Drop(event.silo)]
        if attempt.closed:
            return effects
        if event.silo in attempt.counted:
            attempt.closed = True
            why = f"{event.silo} is in the sum, and a later hop cannot take its mask off"
            return [*effects, Abort(PeerFault(Reason.SEAL_BROKEN, why, peer=event.silo))]
        if self._first(attempt.manifest) and attempt.counted and self._complete(attempt):
            effects += self._close(attempt)
        return effects

    def _check_cohort_has(self, silo: str, attempt: _Attempt) -> None:
        """Keep a silo out of the sum of a round that was released without it."""
        before = self.released.get(attempt.manifest.round)
        if before is not None and silo not in before.silos:
            raise PeerFault(
                Reason.ALREADY_RELEASED,
                f"round {before.round} was released for a cohort without {silo}, and is for no other",
                peer=silo,
            )

    def _body(self, event: BodyIn) -> list[Effect]:
        attempt, header = self._current(), event.header
        if header.manifest != attempt.manifest.digest:
            raise PeerFault(Reason.WRONG_MANIFEST, "the attempt ended while the body was on its way", peer=header.silo)
        if not self._first(attempt.manifest):
            raise PeerFault(Reason.WRONG_CHAIN, "bodies go to the first hop, and this is another", peer=header.silo)
        self._check_fit(header.silo, attempt)
        if header.digest not in attempt.headers:
            raise PeerFault(Reason.WRONG_SEQUENCE, "a body whose header never came", peer=header.silo)
        if event.root != event.signed_root:
            raise PeerFault(
                Reason.ROOT_MISMATCH, f"the chunks of {header.silo} are not those that it signed", peer=header.silo
            )
        counted = attempt.counted.get(header.silo)
        if counted is not None and counted[0] == header.digest and counted[1].root == event.root:
            return [Again(counted[1])]
        if attempt.closed:
            raise PeerFault(Reason.COHORT_CLOSED, "the cohort is closed", peer=header.silo)
        if counted is not None:
            raise _conflict(header.silo)
        self._check_cohort_has(header.silo, attempt)
        silo = self.federation.member(header.silo)
        verify(silo.key, trailer_digest(header.digest, event.root), event.signature, header.silo)
        receipt = Receipt(header.silo, header.manifest, event.root, self.identity.name)
        receipt = replace(receipt, signature=self.identity.sign(receipt.digest))
        attempt.counted[header.silo] = (header.digest, receipt)
        effects: list[Effect] = [Count(header, receipt)]
        if self._complete(attempt):
            effects += self._close(attempt)
        return effects

    def _complete(self, attempt: _Attempt) -> bool:
        """Whether the cohort can close before its deadline: all are in, or a quorum is."""
        before = self.released.get(attempt.manifest.round)
        if before is not None:
            return set(before.silos) <= set(attempt.counted)
        names = [s for s in invited(attempt.manifest, self.federation) if not self._sits_out(s, attempt)]
        quorum = max(attempt.manifest.minimum_cohort, ceil(round(len(names) * self.federation.policy.quorum, 6)))
        return len(attempt.counted) >= max(attempt.manifest.minimum_cohort, min(quorum, len(names)))

    def _close(self, attempt: _Attempt) -> list[Effect]:
        manifest = attempt.manifest
        before = self.released.get(manifest.round)
        silos = sorted(attempt.counted if before is None else before.silos)
        missing = [s for s in silos if s not in attempt.counted]
        if before is not None and missing:
            attempt.closed = True
            return [
                Abort(
                    PeerFault(
                        Reason.ALREADY_RELEASED,
                        f"round {manifest.round} was released for a cohort with {', '.join(missing)}, who are not here",
                    )
                )
            ]
        cohort = Cohort(manifest.digest, tuple(Participant(s, attempt.counted[s][0]) for s in silos))
        cohort = replace(cohort, signature=self.identity.sign(cohort.digest))
        attempt.closed = True
        grouping = None
        if manifest.group_size:
            groups = before.groups if before is not None else deal(len(silos), manifest.group_size, self._rng)
            grouping = Grouping(groups, self.identity.sign(Grouping(groups).digest(cohort.digest)))
        try:
            self._check(cohort, grouping, attempt)
        except PeerFault as fault:
            return [Abort(fault)]
        return self._release(cohort, grouping, attempt)

    def _check(self, cohort: Cohort, grouping: Grouping | None, attempt: _Attempt) -> None:
        check_cohort(cohort, attempt.manifest, self.federation, attempt.headers)
        if (grouping is not None) is not bool(attempt.manifest.group_size):
            raise PeerFault(Reason.WRONG_SEQUENCE, "a grouping is missing, or spare")
        if grouping is not None:
            check_grouping(grouping, cohort, attempt.manifest, self.federation)

    @staticmethod
    def _release(cohort: Cohort, grouping: Grouping | None, attempt: _Attempt) -> list[Effect]:
        attempt.closed, attempt.cohort = True, cohort.digest
        manifest = attempt.manifest
        groups = () if grouping is None else grouping.groups
        # The keys stay until the sum has come through: what does not is asked for again in a later attempt.
        released = Released(manifest.round, cohort.silos, manifest.model, groups)
        return [Remember(released), Release(cohort, grouping)]

    def _cohort(self, event: CohortIn) -> list[Effect]:
        attempt = self._current()
        manifest = attempt.manifest
        if self._first(manifest):
            raise PeerFault(Reason.WRONG_CHAIN, "this is the first hop: it closes the cohort itself")
        self._check(event.cohort, event.grouping, attempt)
        before = self.released.get(manifest.round)
        groups = () if event.grouping is None else event.grouping.groups
        other = attempt.cohort not in (b"", event.cohort.digest)
        if other or (before is not None and (before.silos, before.groups) != (event.cohort.silos, groups)):
            raise PeerFault(
                Reason.ALREADY_RELEASED,
                f"round {manifest.round} was released for another cohort, and is for no second one, ever",
                round=manifest.round,
            )
        return self._release(event.cohort, event.grouping, attempt)

    def _delivered(self, manifest: bytes) -> list[Effect]:
        attempt = self.attempt
        if attempt is None or attempt.manifest.digest != manifest or not attempt.cohort:
            return []
        known = any(round_ <= attempt.manifest.round for round_, _ in self.keys)
        return [Remember(KeysGone(attempt.manifest.round))] if known else []

    def _tick(self, now: float) -> list[Effect]:
        wake = self.wake_at()
        if wake is None or now < wake or self.attempt is None:
            return []
        return self._close(self.attempt)
