"""The aggregator's decisions: which attempt is next, when one is over, and what to announce.

It proposes and never commands: each silo and each hop checks what it announces against its own federation file. It
resumes where its journal ends: at the round after the last one that it applied.
"""

from dataclasses import dataclass, field
from math import inf

from silomix.runtime.core.codec import Schema
from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.federation import Federation
from silomix.runtime.core.identity import Identity
from silomix.runtime.core.masks import Rng, Secret, public_key
from silomix.runtime.core.messages import Cohort, Group, Header, Manifest, RoundKey
from silomix.runtime.core.plan import Level
from silomix.runtime.core.rules import check_cohort, check_header, check_round_key, check_sizes


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
class CohortIn:
    """The chain says who is in the sum that follows, or in the sums of these groups together."""

    cohort: Cohort
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True)
class SumApplied:
    """The sum of this attempt was decoded, checked and made into a model that is durable."""

    manifest: bytes
    model: bytes
    cohort: int
    now: float


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    now: float


Event = Start | KeysIn | OpenedAt | HopFailed | HopLost | HeaderIn | CohortIn | SumApplied | Tick


# Effects


@dataclass(frozen=True)
class Remember:
    """Write a fact to the journal, durably, before anything else happens."""

    fact: Tried | Applied | HopReleased


@dataclass(frozen=True)
class AskKeys:
    """Ask every hop of the chain for the round's keys."""

    round: int
    attempt: int
    chain: tuple[str, ...]
    silos: tuple[str, ...]


@dataclass(frozen=True)
class OpenAt:
    """Open the attempt at every hop of the chain."""

    manifest: Manifest
    private: Secret = field(repr=False)


@dataclass(frozen=True)
class Announce:
    """Tell the silos."""

    manifest: Manifest


@dataclass(frozen=True)
class Expand:
    """Begin to expand the aggregator's layer of this silo's masks."""

    header: Header


@dataclass(frozen=True)
class Take:
    """Take in the sum over this cohort."""

    cohort: Cohort


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


Effect = Remember | AskKeys | OpenAt | Announce | Expand | Take | GiveUp | Finish


class Aggregator:
    """The federation's progress: round, attempt, phase."""

    def __init__(self, federation: Federation, identity: Identity, rng: Rng) -> None:
        """Start empty; `recall` what the journal has before the first step."""
        self.federation = federation
        self.identity = identity
        self.round = 1
        self.attempt = 0
        self.tried_here = 0
        self.phase = "preparing"
        self.model = b""
        self.manifest: Manifest | None = None
        self.hop_released: dict[str, int] = {}
        self.trouble: dict[str, str] = {}
        self._schema = Schema(())
        self._rng = rng
        self._keys: dict[str, tuple[RoundKey, ...]] = {}
        self._opened: set[str] = set()
        self._headers: dict[bytes, Header] = {}
        self._cohort_digest = b""
        self._groups: tuple[Group, ...] = ()
        self._tried: dict[int, int] = {}
        self._past: set[bytes] = set()  # the manifests of this round that were given up
        self._until = inf

    def recall(self, fact: Tried | Applied | HopReleased) -> None:
        """Take a fact in: on start-up from the journal, and later as it is remembered."""
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

    def step(self, event: Event) -> list[Effect]:
        """Take one event; raise a PeerFault if it is to be refused, and then nothing has changed."""
        match event:
            case Start():
                if self.model not in (b"", event.model):
                    raise LocalFault(
                        Reason.WRONG_MODEL,
                        f"the journal ends with model {self.model.hex()[:32]} and the one that was loaded is "
                        f"{event.model.hex()[:32]}: put the file of the former back",
                    )
                self.model, self._schema = event.model, event.schema
                return self._begin(event.now)
            case KeysIn():
                return self._keys_in(event)
            case OpenedAt():
                return self._opened_at(event)
            case HopFailed():
                return self._failed(event)
            case HopLost():
                return self._lost(event)
            case HeaderIn():
                return self._header(event.header)
            case CohortIn():
                return self._cohort(event.cohort, event.groups)
            case SumApplied():
                return self._applied(event)
            case Tick():
                return self._tick(event.now)

    def wake_at(self) -> float | None:
        """When the next `Tick` is due."""
        return None if self.phase in ("finished", "applying") else self._until

    @property
    def chain(self) -> tuple[str, ...]:
        """The hops of the next attempt."""
        return self.federation.chain

    def _invited(self) -> tuple[str, ...]:
        return self.federation.draw(self.round)

    def _begin(self, now: float) -> list[Effect]:
        self.manifest = None
        if self.round > self.federation.policy.rounds:
            self.phase = "finished"
            return [Finish(self.round - 1)]
        self.attempt += 1
        self.tried_here += 1
        self.phase = "preparing"
        self._keys, self._opened, self._headers, self._cohort_digest, self._groups = {}, set(), {}, b"", ()
        self._until = now + self.federation.policy.release_s
        return [
            Remember(Tried(self.round, self.attempt)),
            AskKeys(self.round, self.attempt, self.chain, self._invited()),
        ]

    def _keys_in(self, event: KeysIn) -> list[Effect]:
        if self.phase != "preparing" or self.manifest is not None or event.hop not in self.chain:
            return []
        if event.last_released > self.round:
            raise PeerFault(
                Reason.WRONG_ROUND, f"{event.hop} says that it has released round {event.last_released}", peer=event.hop
            )
        invited = self._invited() if self.federation.plan.level is not Level.TRUSTED else ()
        if tuple(k.silo for k in event.keys) != invited or any(k.hop != event.hop for k in event.keys):
            raise PeerFault(Reason.WRONG_KEYS, f"{event.hop} did not make one key per silo", peer=event.hop)
        for key in event.keys:
            check_round_key(key, self.federation, self.round)
        self._keys[event.hop] = event.keys
        self.trouble.pop(event.hop, None)
        effects: list[Effect] = []
        if event.last_released > self.hop_released.get(event.hop, 0):
            effects.append(Remember(HopReleased(event.hop, event.last_released)))
        if set(self._keys) == set(self.chain):
            effects.append(self._propose())
        return effects

    def _propose(self) -> OpenAt:
        policy, plan = self.federation.policy, self.federation.plan
        private = Secret.draw(self._rng)
        own = None
        if plan.level is not Level.TRUSTED:
            own = RoundKey(self.identity.name, "", self.round, public_key(private), self.round - 1)
            own = own.signed(self.identity, self.federation.digest)
        invited = self._invited()
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
            aggregator_key=own,
            group_size=policy.group_size,
            invited=() if invited == self.federation.silo_names else invited,
            minimum_cohort=policy.minimum_cohort,
            chunk_parameters=policy.chunk_parameters,
            deadline_s=policy.deadline_s,
        )
        self.manifest = manifest.signed(self.identity)
        return OpenAt(self.manifest, private)

    def _opened_at(self, event: OpenedAt) -> list[Effect]:
        if self.phase != "preparing" or self.manifest is None or event.manifest != self.manifest.digest:
            return []
        if event.hop not in self.chain:
            return []
        self._opened.add(event.hop)
        if self._opened != set(self.chain):
            return []
        self.phase = "collecting"
        self._until = event.now + self.federation.policy.deadline_s + self.federation.policy.release_s
        return [Announce(self.manifest)]

    def _failed(self, event: HopFailed) -> list[Effect]:
        self.trouble[event.hop] = event.why
        return []  # the driver goes on trying until the attempt's time is up

    def _lost(self, event: HopLost) -> list[Effect]:
        if self.phase not in ("collecting", "releasing"):
            return []
        if self.manifest is None or event.manifest != self.manifest.digest or event.hop not in self.manifest.chain:
            return []  # of an attempt that is over
        self.trouble[event.hop] = event.why
        return self._give_up(event.now)

    def _header(self, header: Header) -> list[Effect]:
        if self.manifest is None or self.phase not in ("collecting", "releasing"):
            raise PeerFault(Reason.WRONG_MANIFEST, "no attempt is open")
        check_header(header, self.manifest, self.federation)
        if header.digest in self._headers:
            return []
        self._headers[header.digest] = header
        return [Expand(header)]

    def forget(self, header: Header) -> None:
        """Take back a header whose seed did not open: if it comes again, it is looked at again."""
        self._headers.pop(header.digest, None)

    def _cohort(self, cohort: Cohort, groups: tuple[Group, ...]) -> list[Effect]:
        if self.manifest is None or self.phase not in ("collecting", "releasing"):
            raise PeerFault(Reason.WRONG_MANIFEST, "no attempt is open")
        check_cohort(cohort, self.manifest, self.federation, None if self.manifest.group_size else self._headers)
        if self.manifest.group_size:
            check_sizes(tuple(group.size for group in groups), cohort, self.manifest)
            masked = self.manifest.plan.level is not Level.TRUSTED
            if any(len(group.seeds) != group.size * masked for group in groups):
                raise PeerFault(Reason.WRONG_KEYS, "a group has another number of seeds than silos")
        elif groups:
            raise PeerFault(Reason.WRONG_SEQUENCE, "groups came, and this round has none")
        if self._cohort_digest not in (b"", cohort.digest) or self._groups not in ((), groups):
            raise PeerFault(Reason.ALREADY_RELEASED, "the chain has named another cohort for this attempt")
        self._cohort_digest, self._groups = cohort.digest, groups
        self.phase = "releasing"
        return [Take(cohort)]

    def _applied(self, event: SumApplied) -> list[Effect]:
        effects: list[Effect] = []
        if self.manifest is None or event.manifest != self.manifest.digest:
            if event.manifest not in self._past:
                return []  # its round is over: the model is not the federation's
            why = "the sum of an earlier attempt was applied after all"
            effects.append(GiveUp(self.round, self.attempt, why, abandoned=False))
        effects.append(Remember(Applied(self.round, event.model, event.cohort)))
        effects += [Remember(HopReleased(hop, self.round)) for hop in self.chain]  # or no sum would be here
        self.model = event.model
        return effects + self._next(event.now)

    def _next(self, now: float) -> list[Effect]:
        # The driver recalls the `Applied` fact only when it carries the effects out, so the counters move here too.
        self.round, self.attempt, self.tried_here = self.round + 1, 0, 0
        self._past = set()
        return self._begin(now)

    def _tick(self, now: float) -> list[Effect]:
        wake = self.wake_at()
        if wake is None or now < wake:
            return []
        return self._give_up(now)

    def _give_up(self, now: float) -> list[Effect]:
        if self.phase == "preparing":
            silent = [hop for hop in self.chain if hop not in self._keys]
            if self.manifest is not None:  # an attempt is opened from the last hop to the first: one is asked at a time
                silent = [hop for hop in self.chain if hop not in self._opened][-1:]
            for hop in silent:
                self.trouble.setdefault(hop, "no answer while preparing")
        why = "; ".join(f"{hop}: {what}" for hop, what in self.trouble.items()) or f"no sum came while {self.phase}"
        abandoned = self.tried_here >= self.federation.policy.attempts
        effects: list[Effect] = [GiveUp(self.round, self.attempt, why, abandoned)]
        if self.manifest is not None:
            self._past.add(self.manifest.digest)
        if abandoned:
            effects.append(Remember(Applied(self.round, self.model, 0, abandoned=True)))
            return effects + self._next(now)
        return effects + self._begin(now)
