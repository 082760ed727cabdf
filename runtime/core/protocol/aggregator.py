"""The aggregator's decisions: which attempt is next, when one is over, and what to announce.

It proposes and never commands: each silo and each hop checks what it announces against its own federation file. It
resumes where its journal ends: at the round after the last one that it applied.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.masks import Rng, Secret, public_key
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.machine import IGNORES, Machine, Remember, Table, does, refuses
from silomix.runtime.core.protocol.messages import Cohort, Evidence, Group, Header, Manifest, RoundKey
from silomix.runtime.core.protocol.rules import check_cohort, check_header, check_round_key, check_sizes

# Facts


@dataclass(frozen=True)
class Tried:
    """The durable fact that an attempt was announced: its number is never used again."""

    round: int
    attempt: int


@dataclass(frozen=True)
class Applied:
    """The durable fact that a round is over: with the model that came of it, or the old one if it was abandoned."""

    round: int
    model: bytes
    cohort: int
    abandoned: bool = False


@dataclass(frozen=True)
class HopReleased:
    """The durable fact that a hop once said what it had released: an older story is refused."""

    hop: str
    round: int


Fact = Tried | Applied | HopReleased


# Events


@dataclass(frozen=True)
class Start:
    """Begin, or go on after a restart, with this model."""

    model: bytes
    schema: Schema
    now: float


@dataclass(frozen=True)
class KeysIn:
    """A hop has made its keys."""

    hop: str
    keys: tuple[RoundKey, ...]
    last_released: int
    now: float


@dataclass(frozen=True)
class OpenedAt:
    """A hop has opened the attempt."""

    hop: str
    manifest: bytes
    now: float


@dataclass(frozen=True)
class HopFailed:
    """A hop could not be reached in time, or refused."""

    hop: str
    why: str
    now: float


@dataclass(frozen=True)
class HopLost:
    """A hop was asked in the middle of an attempt, and does not have it any more: no sum will come."""

    hop: str
    manifest: bytes
    why: str
    now: float


@dataclass(frozen=True)
class HeaderIn:
    """A silo's header came down the chain."""

    header: Header


@dataclass(frozen=True)
class Unopened:
    """The seed in this header that is ours does not open, or is not the one that was committed to."""

    header: Header


@dataclass(frozen=True)
class CohortIn:
    """The chain says who is in the sum that follows, or in the sums of these groups together."""

    cohort: Cohort
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True)
class SumIn:
    """The whole sum of this attempt is here, as the last hop signed it."""

    manifest: bytes


@dataclass(frozen=True)
class SumApplied:
    """The sum of this attempt was decoded, checked and made into a model that is durable."""

    manifest: bytes
    model: bytes
    cohort: int
    now: float


@dataclass(frozen=True)
class SumRefused:
    """No model can be made of the sum of this attempt."""

    manifest: bytes
    why: str
    now: float


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    now: float


Event = (
    Start
    | KeysIn
    | OpenedAt
    | HopFailed
    | HopLost
    | HeaderIn
    | Unopened
    | CohortIn
    | SumIn
    | SumApplied
    | SumRefused
    | Tick
)


# Effects


@dataclass(frozen=True)
class AskKeys:
    """Ask every hop of the chain for the attempt's keys."""

    round: int
    attempt: int
    chain: tuple[str, ...]
    silos: tuple[str, ...]


@dataclass(frozen=True)
class OpenAt:
    """Open the attempt at every hop of the chain."""

    manifest: Manifest
    unnamed: Secret | None = field(repr=False)
    """What opens the seeds of groups, which come without names."""


@dataclass(frozen=True)
class Announce:
    """Tell the silos."""

    manifest: Manifest


@dataclass(frozen=True)
class Expand:
    """Open the seed in a header that is ours, and begin to expand its mask."""

    header: Header
    key: Secret | None = field(repr=False)


@dataclass(frozen=True)
class Accuse:
    """Refuse the stream that brought a header, and show the last hop why."""

    evidence: Evidence


@dataclass(frozen=True)
class Take:
    """Take in the sum over this cohort."""

    cohort: Cohort


@dataclass(frozen=True)
class Apply:
    """Make the next model of the sum."""

    manifest: Manifest


@dataclass(frozen=True)
class GiveUp:
    """An attempt, or the whole round, is over without a sum: say why, and forget what it left."""

    round: int
    attempt: int
    why: str
    abandoned: bool


@dataclass(frozen=True)
class Finish:
    """All rounds are done."""

    round: int


Effect = Remember[Fact] | AskKeys | OpenAt | Announce | Expand | Accuse | Take | Apply | GiveUp | Finish


class Phase(StrEnum):
    """Where the attempt is."""

    STARTING = "starting"
    """The model is not loaded yet."""
    PREPARING = "preparing"
    """Hops make keys."""
    OPENING = "opening"
    """The manifest is signed, and hops open the attempt."""
    COLLECTING = "collecting"
    """Silos train and submit."""
    RELEASING = "releasing"
    """The cohort is known, and its sum is on its way."""
    APPLYING = "applying"
    """The sum is here, and is being made into a model: no clock abandons it now."""
    FINISHED = "finished"
    """All rounds are done."""


_NONE = refuses(Reason.WRONG_MANIFEST, "no attempt is open")
_ON = (Phase.PREPARING, Phase.FINISHED)
"""Where the next attempt begins, or the end."""
_FAILED = does("_failed")
_TICK = does("_tick", *_ON)
TABLE: Table = {
    Phase.STARTING: {
        Start: does("_start", *_ON),
        KeysIn: IGNORES,
        OpenedAt: IGNORES,
        HopFailed: IGNORES,
        HopLost: IGNORES,
        HeaderIn: _NONE,
        Unopened: IGNORES,
        CohortIn: _NONE,
        SumIn: IGNORES,
        SumApplied: IGNORES,
        SumRefused: IGNORES,
        Tick: IGNORES,
    },
    Phase.PREPARING: {
        Start: IGNORES,
        KeysIn: does("_keys_in", Phase.OPENING),
        OpenedAt: IGNORES,
        HopFailed: _FAILED,
        HopLost: IGNORES,
        HeaderIn: _NONE,
        Unopened: IGNORES,
        CohortIn: _NONE,
        SumIn: IGNORES,
        SumApplied: IGNORES,
        SumRefused: IGNORES,
        Tick: _TICK,
    },
    Phase.OPENING: {
        Start: IGNORES,
        KeysIn: IGNORES,
        OpenedAt: does("_opened_at", Phase.COLLECTING),
        HopFailed: _FAILED,
        HopLost: IGNORES,
        HeaderIn: _NONE,
        Unopened: IGNORES,
        CohortIn: _NONE,
        SumIn: IGNORES,
        SumApplied: IGNORES,
        SumRefused: IGNORES,
        Tick: _TICK,
    },
    Phase.COLLECTING: {
        Start: IGNORES,
        KeysIn: IGNORES,
        OpenedAt: IGNORES,
        HopFailed: _FAILED,
        HopLost: does("_lost", *_ON),
        HeaderIn: does("_header"),
        Unopened: does("_unopened"),
        CohortIn: does("_cohort", Phase.RELEASING),
        SumIn: IGNORES,
        SumApplied: IGNORES,
        SumRefused: IGNORES,
        Tick: _TICK,
    },
    Phase.RELEASING: {
        Start: IGNORES,
        KeysIn: IGNORES,
        OpenedAt: IGNORES,
        HopFailed: _FAILED,
        HopLost: does("_lost", *_ON),
        HeaderIn: does("_header"),
        Unopened: does("_unopened"),
        CohortIn: does("_cohort"),
        SumIn: does("_sum_in", Phase.APPLYING),
        SumApplied: IGNORES,
        SumRefused: IGNORES,
        Tick: _TICK,
    },
    Phase.APPLYING: {
        Start: IGNORES,
        KeysIn: IGNORES,
        OpenedAt: IGNORES,
        HopFailed: IGNORES,
        HopLost: IGNORES,
        HeaderIn: _NONE,
        Unopened: IGNORES,
        CohortIn: _NONE,
        SumIn: IGNORES,
        SumApplied: does("_applied", *_ON),
        SumRefused: does("_refused", *_ON),
        Tick: IGNORES,
    },
    Phase.FINISHED: {
        Start: IGNORES,
        KeysIn: IGNORES,
        OpenedAt: IGNORES,
        HopFailed: IGNORES,
        HopLost: IGNORES,
        HeaderIn: _NONE,
        Unopened: IGNORES,
        CohortIn: _NONE,
        SumIn: IGNORES,
        SumApplied: IGNORES,
        SumRefused: IGNORES,
        Tick: IGNORES,
    },
}
"""What an event does in each phase. An attempt that is given up begins the next one, so there is no state for it."""


class Aggregator(Machine[Phase, Event, Effect, Fact]):
    """The federation's progress: round, attempt, phase."""

    TABLE = TABLE

    def __init__(self, federation: Federation, identity: Identity, rng: Rng) -> None:
        """Start empty; `recall` what the journal has before the first step."""
        self.federation = federation
        self.identity = identity
        self.state = Phase.STARTING
        self.round = 1
        self.attempt = 0
        self.tried_here = 0
        self.model = b""
        self.manifest: Manifest | None = None
        self.hop_released: dict[str, int] = {}
        self.trouble: dict[str, str] = {}
        self._schema = Schema(())
        self._rng = rng
        self._keys: dict[str, tuple[RoundKey, ...]] = {}
        self._private: dict[str, Secret] = {}
        """By silo, or one for all of them where sums leave by group."""
        self._opened: set[str] = set()
        self._headers: dict[bytes, Header] = {}
        self._cohort_digest = b""
        self._groups: tuple[Group, ...] = ()
        self._tried: dict[int, int] = {}
        self._until = inf

    def recall(self, fact: Fact) -> None:
        """Take a fact in."""
        match fact:
            case Tried():
                self._tried[fact.round] = max(fact.attempt, self._tried.get(fact.round, 0))
                if fact.round == self.round:
                    self.attempt = self._tried[fact.round]
            case Applied():
                if fact.round >= self.round:
                    self.round, self.attempt = fact.round + 1, self._tried.get(fact.round + 1, 0)
                    self.model = fact.model
            case HopReleased():
                self.hop_released[fact.hop] = max(fact.round, self.hop_released.get(fact.hop, 0))

    def wake_at(self) -> float | None:
        """When the next `Tick` is due."""
        return None if self.TABLE[self.state][Tick] == IGNORES else self._until

    @property
    def phase(self) -> Phase:
        """Where the attempt is."""
        return self.state

    @property
    def chain(self) -> tuple[str, ...]:
        """The hops of the next attempt."""
        return self.federation.chain

    @property
    def _masked(self) -> bool:
        return self.federation.plan.level is not Level.TRUSTED

    def _invited(self) -> tuple[str, ...]:
        return self.federation.draw(self.round)

    def _start(self, event: Start) -> list[Effect]:
        if self.model not in (b"", event.model):
            raise LocalFault(
                Reason.WRONG_MODEL,
                f"the journal ends with model {self.model.hex()[:32]} and the one that was loaded is "
                f"{event.model.hex()[:32]}: put the file of the former back",
            )
        self.model, self._schema = event.model, event.schema
        return self._begin(event.now)

    def _begin(self, now: float) -> list[Effect]:
        self.manifest = None
        for secret in self._private.values():
            secret.wipe()
        self._keys, self._private, self._opened, self._headers, self._cohort_digest, self._groups = (
            {},
            {},
            set(),
            {},
            b"",
            (),
        )
        if self.round > self.federation.policy.rounds:
            self.state = Phase.FINISHED
            return [Finish(self.round - 1)]
        self.state = Phase.PREPARING
        self.attempt += 1
        self.tried_here += 1
        self._until = now + self.federation.policy.release_s
        return [
            Remember(Tried(self.round, self.attempt)),
            AskKeys(self.round, self.attempt, self.chain, self._invited()),
        ]

    def _keys_in(self, event: KeysIn) -> list[Effect]:
        if event.hop not in self.chain:
            return []
        if event.last_released > self.round:
            raise PeerFault(
                Reason.WRONG_ROUND, f"{event.hop} says that it has released round {event.last_released}", peer=event.hop
            )
        invited = self._invited() if self._masked else ()
        if tuple(k.silo for k in event.keys) != invited or any(k.hop != event.hop for k in event.keys):
            raise PeerFault(Reason.WRONG_KEYS, f"{event.hop} did not make one key per silo", peer=event.hop)
        for key in event.keys:
            check_round_key(key, self.federation, self.round, self.attempt)
        self._keys[event.hop] = event.keys
        self.trouble.pop(event.hop, None)
        effects: list[Effect] = []
        if event.last_released > self.hop_released.get(event.hop, 0):
            effects.append(Remember(HopReleased(event.hop, event.last_released)))
        if set(self._keys) == set(self.chain):
            effects.append(self._propose())
        return effects

    def _propose(self) -> OpenAt:
        policy, plan, invited = self.federation.policy, self.federation.plan, self._invited()
        names = ("",) if policy.group_size else invited
        self._private = {name: Secret.draw(self._rng) for name in (names if self._masked else ())}
        own = (
            RoundKey(self.identity.name, silo, self.round, self.attempt, public_key(private), self.round - 1)
            for silo, private in self._private.items()
        )
        manifest = Manifest(
            federation=self.federation.digest,
            round=self.round,
            attempt=self.attempt,
            model=self.model,
            schema=self._schema,
            plan=plan,
            bounds=(policy.bound,) * len(self._schema.tensors),
            update=policy.update,
            granularity=policy.granularity,
            chain=self.chain,
            hop_keys=tuple(key for hop in self.chain for key in self._keys[hop]),
            aggregator_keys=tuple(key.signed(self.identity, self.federation.digest) for key in own),
            group_size=policy.group_size,
            invited=() if invited == self.federation.silo_names else invited,
            minimum_cohort=self.federation.minimum_cohort,
            chunk_parameters=policy.chunk_parameters,
            deadline_s=policy.deadline_s,
        )
        self.manifest, self.state = manifest.signed(self.identity), Phase.OPENING
        return OpenAt(self.manifest, self._private.get(""))

    def _opened_at(self, event: OpenedAt) -> list[Effect]:
        manifest = self._open_manifest
        if event.manifest != manifest.digest or event.hop not in self.chain:
            return []
        self._opened.add(event.hop)
        if self._opened != set(self.chain):
            return []
        self.state = Phase.COLLECTING
        self._until = event.now + self.federation.policy.deadline_s + self.federation.policy.release_s
        return [Announce(manifest)]

    @property
    def _open_manifest(self) -> Manifest:
        assert self.manifest is not None, "the table lets nothing come here before a manifest is signed"
        return self.manifest

    def _failed(self, event: HopFailed) -> list[Effect]:
        self.trouble[event.hop] = event.why
        return []  # the driver goes on trying until the attempt's time is up

    def _lost(self, event: HopLost) -> list[Effect]:
        manifest = self._open_manifest
        if event.manifest != manifest.digest or event.hop not in manifest.chain:
            return []  # of an attempt that is over
        self.trouble[event.hop] = event.why
        return self._give_up(event.now)

    def _header(self, event: HeaderIn) -> list[Effect]:
        header = event.header
        check_header(header, self._open_manifest, self.federation)
        if header.digest in self._headers:
            return []
        self._headers[header.digest] = header
        return [Expand(header, self._private.get(header.silo))]

    def _unopened(self, event: Unopened) -> list[Effect]:
        """Forget the header: if it comes again, it is looked at again. The key that was made for it is evidence."""
        header = event.header
        self._headers.pop(header.digest, None)
        key = self._private.get(header.silo)
        if key is None:
            return []
        return [Accuse(Evidence.of(self._open_manifest.digest, self.identity.name, header, key))]

    def _cohort(self, event: CohortIn) -> list[Effect]:
        manifest, cohort, groups = self._open_manifest, event.cohort, event.groups
        check_cohort(cohort, manifest, self.federation, None if manifest.group_size else self._headers)
        if manifest.group_size:
            check_sizes(tuple(group.size for group in groups), cohort, manifest)
            if any(len(group.seeds) != group.size * self._masked for group in groups):
                raise PeerFault(Reason.WRONG_KEYS, "a group has another number of seeds than silos")
        elif groups:
            raise PeerFault(Reason.WRONG_SEQUENCE, "groups came, and this round has none")
        if self._cohort_digest not in (b"", cohort.digest) or self._groups not in ((), groups):
            raise PeerFault(Reason.ALREADY_RELEASED, "the chain has named another cohort for this attempt")
        self._cohort_digest, self._groups, self.state = cohort.digest, groups, Phase.RELEASING
        return [Take(cohort)]

    def _sum_in(self, event: SumIn) -> list[Effect]:
        manifest = self._open_manifest
        if event.manifest != manifest.digest:
            return []
        self.state = Phase.APPLYING
        return [Apply(manifest)]

    def _applied(self, event: SumApplied) -> list[Effect]:
        if event.manifest != self._open_manifest.digest:
            return []
        effects: list[Effect] = [Remember(Applied(self.round, event.model, event.cohort))]
        effects += [Remember(HopReleased(hop, self.round)) for hop in self.chain]  # or no sum would be here
        return effects + self._next(event.model, event.now)

    def _refused(self, event: SumRefused) -> list[Effect]:
        if event.manifest != self._open_manifest.digest:
            return []
        self.trouble[self.identity.name] = event.why
        effects = self._give_up(event.now)
        self.trouble.pop(self.identity.name, None)
        return effects

    def _next(self, model: bytes, now: float) -> list[Effect]:
        self.model = model
        self.round, self.attempt, self.tried_here = self.round + 1, self._tried.get(self.round + 1, 0), 0
        return self._begin(now)

    def _tick(self, event: Tick) -> list[Effect]:
        return self._give_up(event.now) if event.now >= self._until else []

    def _give_up(self, now: float) -> list[Effect]:
        silent: list[str] = []
        if self.state is Phase.PREPARING:
            silent = [hop for hop in self.chain if hop not in self._keys]
        elif self.state is Phase.OPENING:  # from the last hop to the first: one is asked at a time
            silent = [hop for hop in self.chain if hop not in self._opened][-1:]
        for hop in silent:
            self.trouble.setdefault(hop, f"no answer while {self.state}")
        why = "; ".join(f"{hop}: {what}" for hop, what in self.trouble.items()) or f"no sum came while {self.state}"
        abandoned = self.tried_here >= self.federation.policy.attempts
        effects: list[Effect] = [GiveUp(self.round, self.attempt, why, abandoned)]
        if abandoned:
            effects.append(Remember(Applied(self.round, self.model, 0, abandoned=True)))
            return effects + self._next(self.model, now)
        return effects + self._begin(now)
