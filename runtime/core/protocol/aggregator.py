"""The aggregator's decisions: which attempt is next, when one is over, and what to announce.

It proposes and never commands: each silo and each hop checks what it announces against its own federation file and its
own round log. It signs nothing before hops have shown it what they know, since its journal may be an old copy. Then it
resumes where the history ends: at the round after the last record, or in the middle of a release that all have signed
for, which it never gives up on its own: somebody may have shown a pad.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from math import inf
from typing import get_args

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.masks import Rng, Secret, public_key
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.core.numbers.tamper import Finding
from silomix.runtime.core.protocol.check.blame import Case, Charge, Defence, Verdict, decide
from silomix.runtime.core.protocol.check.hearing import Hearing
from silomix.runtime.core.protocol.check.said import (
    CheckTranscript,
    FalseShareError,
    SignedRoot,
    Statement,
    Subject,
    Toss,
    check_subject,
    checks,
)
from silomix.runtime.core.protocol.check.trapped import TrapProof
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.hearing import (
    HEAR_S,
    MOST_RAISES,
    WAY_OUT,
    Life,
    Shown,
    check_later,
    check_shown,
    counts,
    holds,
    life_after,
    missing_records,
    number_of,
)
from silomix.runtime.core.protocol.identity import Identity, verify
from silomix.runtime.core.protocol.machine import IGNORES, Answer, Machine, Remember, Table, does, refuses
from silomix.runtime.core.protocol.messages import Bond, Cohort, Evidence, Group, Header, Manifest, RoundKey
from silomix.runtime.core.protocol.release import Ready, Signatures, Trail, check_ready, pad_digest
from silomix.runtime.core.protocol.roundlog import (
    Attempted,
    Outcome,
    Record,
    RoundLog,
    check_countersigned,
    countersign_digest,
    genesis,
)
from silomix.runtime.core.protocol.rules import (
    MOST_ATTEMPTS,
    MOST_HEADERS,
    check_cohort,
    check_header,
    check_round_key,
    check_sizes,
)

# Facts


@dataclass(frozen=True)
class Lived:
    """The durable fact that a process of this aggregator began: the next one has a higher number."""

    life: bytes


@dataclass(frozen=True)
class Tried:
    """The durable fact that an attempt was proposed: its number is never used again."""

    round: int
    attempt: int
    manifest: bytes
    chain: tuple[str, ...]


@dataclass(frozen=True)
class Sealed:
    """The durable fact that this aggregator signed a release, last of all: from now on pads may be out."""

    round: int
    attempt: int
    model: bytes
    bond: Bond
    """The proof for everybody else, should the model have to be released once more."""

    @cached_property
    def agreed(self) -> bytes:
        """What all signed."""
        return self.bond.agreed(self.model)


@dataclass(frozen=True)
class Recorded:
    """The durable fact of a round's record, first as it was signed, then with the hops' countersignatures."""

    record: Record


@dataclass(frozen=True)
class HopReleased:
    """The durable fact that a hop once said what it had released: an older story is refused."""

    hop: str
    round: int


@dataclass(frozen=True)
class Convicted:
    """The durable fact that somebody was shown to have lied in an attempt, by evidence that is kept."""

    round: int
    attempt: int
    culprit: str
    evidence: bytes
    """Digest of the case."""


Fact = Lived | Tried | Sealed | Recorded | HopReleased | Convicted


# Events


@dataclass(frozen=True)
class Pending:
    """A release that was kept on the disk before it was signed for."""

    manifest: Manifest
    ready: Ready


@dataclass(frozen=True)
class Awake:
    """The process is there, with what its journal has: that may be all, or nothing, or an old copy."""

    now: float


@dataclass(frozen=True)
class HeadIn:
    """A hop has shown what it knows."""

    hop: str
    shown: Shown
    now: float


@dataclass(frozen=True)
class Start:
    """Go on with this model, which is the one on record; in the middle of a release, if one was kept."""

    model: bytes
    state: bytes
    schema: Schema
    now: float
    pending: Pending | None = None
    bounds: tuple[float, ...] = ()
    """Those that follow from the model; without them, the policy's."""


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
    """A hop does not have an attempt any more, or no longer has its keys: no sum will come."""

    hop: str
    manifest: bytes
    why: str
    now: float
    restarted: bool = False
    """Whether the hop was merely started again: that uses up no attempt."""


@dataclass(frozen=True)
class HopGone:
    """A hop has not answered for so long that it counts as lost, until it answers again."""

    hop: str
    why: str
    now: float
    present: tuple[str, ...] = ()
    """The silos that are there: a release that waits for the hop may be begun anew for them."""


@dataclass(frozen=True)
class HopBack:
    """A hop answers again: the next attempt is to pass it."""

    hop: str
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
    """The whole padded sum of this attempt is here, with the trails of all hops."""

    manifest: bytes
    trails: tuple[Trail, ...]
    now: float
    bodies: tuple[SignedRoot, ...] = ()
    """At level malicious: what each silo of the cohort has signed of its body."""


@dataclass(frozen=True)
class TossIn:
    """A silo has shown its share of the coin."""

    toss: Toss
    now: float


@dataclass(frozen=True)
class StatedIn:
    """Somebody has answered the coin with its scalars; this node too."""

    statement: Statement
    now: float


@dataclass(frozen=True)
class ProofIn:
    """A hop has proved what it removed at the traps."""

    proof: TrapProof
    now: float


@dataclass(frozen=True)
class DefenceIn:
    """The node at which an equation fails, or which can prove nothing, has opened what it has to open."""

    defence: Defence
    now: float
    vector: Bytes | None = field(default=None, compare=False, repr=False)
    """If it is one."""


@dataclass(frozen=True)
class PadsFalse:
    """A hop has stated scalars of another pad than it showed: its sum does not count."""

    case: Case
    now: float


@dataclass(frozen=True)
class LieSeen:
    """The last hop has signed two stories of one sum."""

    verdict: Verdict
    now: float


@dataclass(frozen=True)
class AgreedIn:
    """A hop has signed for the release."""

    hop: str
    manifest: bytes
    signature: bytes


@dataclass(frozen=True)
class PadIn:
    """A hop has shown its pad."""

    hop: str
    manifest: bytes
    pad: Secret = field(repr=False)


@dataclass(frozen=True)
class PadRefused:
    """A hop has no pad of this attempt, and never will have."""

    hop: str
    manifest: bytes
    why: str
    now: float


@dataclass(frozen=True)
class SumApplied:
    """The sum of this attempt was decoded, checked and made into a model that is durable."""

    manifest: bytes
    model: bytes
    state: bytes
    now: float
    bounds: tuple[float, ...] = ()
    """Those of the next round, if they follow from the model; without them, the policy's."""


@dataclass(frozen=True)
class CountersignedIn:
    """A hop has stored a record."""

    hop: str
    record: bytes
    signature: bytes
    now: float


@dataclass(frozen=True)
class SumRefused:
    """No model can be made of the sum of this attempt."""

    manifest: bytes
    why: str
    now: float


@dataclass(frozen=True)
class EpochsIn:
    """Another epoch counts at this node; with its digest, if the next applied record is to name it."""

    epochs: Epochs
    following: bytes = b""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    now: float


Event = (
    Awake
    | HeadIn
    | Start
    | KeysIn
    | OpenedAt
    | HopFailed
    | HopLost
    | HopGone
    | HopBack
    | HeaderIn
    | Unopened
    | CohortIn
    | SumIn
    | TossIn
    | StatedIn
    | ProofIn
    | DefenceIn
    | PadsFalse
    | LieSeen
    | AgreedIn
    | PadIn
    | PadRefused
    | CountersignedIn
    | SumApplied
    | SumRefused
    | EpochsIn
    | Tick
)


# Effects


@dataclass(frozen=True)
class AskHeads:
    """Ask every hop what it knows: records from one on, and the rest."""

    life: bytes
    start: int
    hops: tuple[str, ...]


@dataclass(frozen=True)
class Load:
    """Get the model that the newest record names: from the disk, or from a silo if it is not there. Then `Start`."""

    found: int
    """Records that were not here."""


@dataclass(frozen=True)
class AskKeys:
    """Ask every hop of the chain for the attempt's keys."""

    round: int
    attempt: int
    chain: tuple[str, ...]
    silos: tuple[str, ...]
    head: bytes


@dataclass(frozen=True)
class OpenAt:
    """Open the attempt at every hop of the chain."""

    manifest: Manifest
    head: Record
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
class AskTosses:
    """Ask every silo of the cohort for its share of the coin."""

    manifest: Manifest
    subject: Subject


@dataclass(frozen=True)
class AskScalars:
    """Show everybody the shares, and ask for scalars: the silos, every hop, and this node itself."""

    manifest: Manifest
    subject: Subject
    tosses: tuple[Toss, ...]
    coin: bytes


@dataclass(frozen=True)
class AskProofs:
    """Ask every hop to prove what it removed at the traps."""

    manifest: Manifest
    subject: Subject
    check: CheckTranscript


@dataclass(frozen=True)
class AskDefence:
    """An equation fails at a node: ask it to open what is false. It may be this node."""

    manifest: Manifest
    finding: Finding
    subject: Subject
    check: CheckTranscript


@dataclass(frozen=True)
class Convict:
    """Somebody has lied: keep the evidence, tell operators, and let hop 1 see it if it is a silo."""

    round: int
    attempt: int
    verdict: Verdict
    vector: Bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class AskReady:
    """Ask every hop to sign for the release."""

    ready: Ready
    chain: tuple[str, ...]
    check: CheckTranscript | None = None


@dataclass(frozen=True)
class Keep:
    """Make the padded sum durable, with all that it takes to read it but the pads: a restart goes on from there."""

    manifest: Manifest
    ready: Ready
    signatures: Signatures
    bodies: tuple[SignedRoot, ...] = ()
    check: CheckTranscript | None = None


@dataclass(frozen=True)
class AskPads:
    """Ask every hop for its pad, with everybody's signatures."""

    ready: Ready
    signatures: Signatures
    bond: Bond


@dataclass(frozen=True)
class Apply:
    """Take the pads off, and make the next model of the sum."""

    manifest: Manifest
    ready: Ready
    pads: tuple[tuple[str, Secret], ...] = field(repr=False)


@dataclass(frozen=True)
class AskStore:
    """Ask every hop to store a record and to countersign it."""

    record: Record
    hops: tuple[str, ...]


@dataclass(frozen=True)
class Publish:
    """A round's record counts: let silos have it, and what they need to compute the model."""

    record: Record


@dataclass(frozen=True)
class Switch:
    """The next round is in another epoch: this machine is done, and one of that epoch goes on from the journal."""

    epoch: bytes


@dataclass(frozen=True)
class GiveUp:
    """An attempt, or the whole round, is over without a sum: say why, and forget what it left."""

    round: int
    attempt: int
    why: str
    abandoned: bool


@dataclass(frozen=True)
class Finish:
    """All rounds are done, or the model does not change any more."""

    round: int
    converged: bool = False
    barred: tuple[str, ...] = ()
    """Hops that were shown to have lied, and without which there is no chain: the federation stops."""


Effect = (
    Remember[Fact]
    | AskHeads
    | Load
    | AskKeys
    | OpenAt
    | Announce
    | Expand
    | Accuse
    | Take
    | AskTosses
    | AskScalars
    | AskProofs
    | AskDefence
    | Convict
    | AskReady
    | Keep
    | AskPads
    | Apply
    | AskStore
    | Publish
    | Switch
    | GiveUp
    | Finish
)


class Phase(StrEnum):
    """Where the attempt is."""

    STARTING = "starting"
    """Nothing is known but the journal."""
    HEARING = "hearing"
    """Hops show what they know: this journal may be an old copy."""
    LOADING = "loading"
    """The history is known, and the model is not loaded yet."""
    PREPARING = "preparing"
    """Hops make keys."""
    OPENING = "opening"
    """The manifest is signed, and hops open the attempt."""
    COLLECTING = "collecting"
    """Silos train and submit."""
    RELEASING = "releasing"
    """The cohort is known, and its padded sum is on its way."""
    CHECKING = "checking"
    """The padded sum is here, and everybody answers the coin, at level malicious. Nothing is released yet."""
    PROVING = "proving"
    """Every equation of the check holds, and hops prove what they removed at the traps, where the policy has some."""
    BLAMING = "blaming"
    """An equation of the check fails, and the node where it does is to defend itself."""
    READY = "ready"
    """The padded sum is here, and hops sign for its release. Nothing is released yet."""
    REVEALING = "revealing"
    """All have signed, and hops show their pads: no clock abandons the attempt from here on."""
    APPLYING = "applying"
    """The sum can be read, and is being made into a model."""
    RECORDING = "recording"
    """The round's record is signed, and hops store it."""
    CHANGING = "changing"
    """The next round is in another epoch, and another machine's."""
    FINISHED = "finished"
    """All rounds are done."""


_NONE = refuses(Reason.WRONG_MANIFEST, "no attempt is open")
_NO_CHECK = refuses(Reason.WRONG_MANIFEST, "no check is open")
_ON = (Phase.PREPARING, Phase.RECORDING, Phase.CHANGING, Phase.FINISHED)
"""Where the next attempt begins, the round ends, or all of it."""
_FAILED = does("_failed")
_LATE = does("_late_head")
_TICK = does("_tick", *_ON)
_LOST = does("_lost", *_ON)
_GONE = does("_gone", *_ON)
_LIE = does("_lie", *_ON)


def _row(**answers: Answer) -> dict[type, Answer]:
    """Answer the events that matter in a phase. A stream is refused in all others, and everything else ignored."""
    named = {kind.__name__: kind for kind in get_args(Event)}
    row: dict[type, Answer] = dict.fromkeys(named.values(), IGNORES)
    row |= {HeaderIn: _NONE, CohortIn: _NONE, TossIn: _NO_CHECK, StatedIn: _NO_CHECK, EpochsIn: does("_epochs")}
    row |= {HopGone: does("_gone"), HopBack: does("_back")}
    return row | {named[name]: answer for name, answer in answers.items()}


TABLE: Table = {
    Phase.STARTING: _row(Awake=does("_awake", Phase.HEARING, Phase.CHANGING)),
    Phase.HEARING: _row(
        HeadIn=does("_head", Phase.LOADING, Phase.CHANGING),
        HopFailed=_FAILED,
        Tick=does("_heard_enough", Phase.LOADING, Phase.CHANGING),
    ),
    Phase.LOADING: _row(
        HeadIn=_LATE, CountersignedIn=does("_countersigned_early"), Start=does("_start", Phase.REVEALING, *_ON)
    ),
    Phase.PREPARING: _row(
        HeadIn=_LATE,
        KeysIn=does("_keys_in", Phase.OPENING, *_ON),
        HopFailed=_FAILED,
        HopGone=does("_gone", Phase.OPENING, *_ON),
        Tick=does("_tick", Phase.OPENING, *_ON),
    ),
    Phase.OPENING: _row(
        HeadIn=_LATE,
        OpenedAt=does("_opened_at", Phase.COLLECTING),
        HopFailed=_FAILED,
        HopLost=_LOST,
        HopGone=_GONE,
        Tick=_TICK,
    ),
    Phase.COLLECTING: _row(
        HeadIn=_LATE,
        HeaderIn=does("_header"),
        Unopened=does("_unopened"),
        CohortIn=does("_cohort", Phase.RELEASING),
        HopFailed=_FAILED,
        HopLost=_LOST,
        HopGone=_GONE,
        Tick=_TICK,
    ),
    Phase.RELEASING: _row(
        HeadIn=_LATE,
        HeaderIn=does("_late_header"),
        CohortIn=does("_cohort"),
        SumIn=does("_sum_in", Phase.READY, Phase.CHECKING),
        LieSeen=_LIE,
        HopFailed=_FAILED,
        HopLost=_LOST,
        HopGone=_GONE,
        Tick=_TICK,
    ),
    Phase.CHECKING: _row(
        HeadIn=_LATE,
        TossIn=does("_toss", *_ON),
        StatedIn=does("_stated", Phase.READY, Phase.PROVING, Phase.BLAMING),
        LieSeen=_LIE,
        HopFailed=_FAILED,
        HopLost=_LOST,
        HopGone=_GONE,
        Tick=_TICK,
    ),
    Phase.PROVING: _row(
        HeadIn=_LATE,
        ProofIn=does("_proof", Phase.READY, *_ON),
        DefenceIn=does("_accusation", *_ON),
        LieSeen=_LIE,
        HopFailed=_FAILED,
        HopLost=_LOST,
        HopGone=_GONE,
        Tick=_TICK,
    ),
    Phase.BLAMING: _row(
        HeadIn=_LATE,
        DefenceIn=does("_defence", *_ON),
        HopFailed=_FAILED,
        HopLost=_LOST,
        HopGone=_GONE,
        Tick=_TICK,
    ),
    Phase.READY: _row(
        HeadIn=_LATE,
        AgreedIn=does("_agreed", Phase.REVEALING),
        HopFailed=_FAILED,
        HopLost=_LOST,
        HopGone=_GONE,
        Tick=_TICK,
    ),
    Phase.REVEALING: _row(
        HeadIn=_LATE,
        PadIn=does("_pad", Phase.APPLYING),
        PadRefused=does("_pad_refused", *_ON),
        HopFailed=_FAILED,
        HopGone=_GONE,
    ),
    Phase.APPLYING: _row(
        HeadIn=_LATE,
        SumApplied=does("_applied", Phase.RECORDING),
        SumRefused=does("_refused", *_ON),
        PadsFalse=does("_pads_false", *_ON),
    ),
    Phase.RECORDING: _row(HeadIn=_LATE, CountersignedIn=does("_countersigned_in", *_ON), HopFailed=_FAILED),
    Phase.CHANGING: _row(),
    Phase.FINISHED: _row(),
}
"""What an event does in each phase. An attempt that is given up begins the next one, so there is no state for it."""


class Aggregator(Machine[Phase, Event, Effect, Fact]):
    """The federation's progress: round, attempt, phase."""

    TABLE = TABLE

    def __init__(self, federation: Federation, identity: Identity, rng: Rng, epochs: Epochs | None = None) -> None:
        """Start empty; `recall` what the journal has before the first step."""
        self.federation = federation
        self.identity = identity
        self.state = Phase.STARTING
        self.round = 1
        self.attempt = 0
        self.tried_here = 0
        self.life = b""
        """Of this process: hops serve the highest that they were shown."""
        self.life_signature = b""
        """What hops believe it by, and a process that comes before it."""
        self.heard: dict[str, Shown] = {}
        """Hops that have shown this process what they know."""
        self.gone: set[str] = set()
        """Hops that count as lost: rounds go on without them, where the policy allows."""
        self._asked: tuple[str, ...] = ()
        """The hops that this attempt's keys are asked of."""
        self._elsewhere: dict[str, bytes] = {}
        """Hops that have released a model for other silos than the rest, by that model: of no use before the next."""
        self._raised: dict[str, int] = {}
        """How often a hop has shown a process with a higher number."""
        self._resume_after = 0
        self._lost_to: set[str] = set()
        """Hops that serve another process."""
        self.log = RoundLog(federation, epochs=epochs)
        self.following = b""
        """The epoch that the next applied record names."""
        self.model = b""
        self.server_state = b""
        self.manifest: Manifest | None = None
        self.hop_released: dict[str, int] = {}
        self.trouble: dict[str, str] = {}
        self._schema = Schema(())
        self._bounds: tuple[float, ...] = ()
        self._rng = rng
        self._keys: dict[str, tuple[RoundKey, ...]] = {}
        self._private: dict[str, Secret] = {}
        """By silo, or one for all of them where sums leave by group."""
        self._opened: set[str] = set()
        self._headers: dict[bytes, Header] = {}
        self._summed: Cohort | None = None
        self._groups: tuple[Group, ...] = ()
        self._ready: Ready | None = None
        self.hearing: Hearing | None = None
        self.convicted: dict[str, Convicted] = {}
        self._signatures: dict[str, bytes] = {}
        self._pads: dict[str, Secret] = {}
        self._countersigned: dict[str, bytes] = {}
        self._tried: dict[int, dict[int, Tried]] = {}
        self._sealed: list[Sealed] = []
        self._until = inf

    def recall(self, fact: Fact) -> None:
        """Take a fact in."""
        match fact:
            case Lived():
                self.life = max(self.life, fact.life)
            case Tried():
                self._tried.setdefault(fact.round, {})[fact.attempt] = fact
                if fact.round == self.round:
                    self.attempt = max(self.attempt, fact.attempt)
            case Sealed():
                self._sealed.append(fact)
            case Recorded():
                self.log.append(fact.record)
                if fact.record.round >= self.round:
                    self.round = fact.record.round + 1
                    self.attempt = max(self._tried.get(self.round, {}), default=0)
            case Convicted():
                self.convicted.setdefault(fact.culprit, fact)
            case HopReleased():
                self.hop_released[fact.hop] = max(fact.round, self.hop_released.get(fact.hop, 0))

    def wake_at(self) -> float | None:
        """When the next `Tick` is due."""
        return None if self.TABLE[self.state][Tick] == IGNORES or self._until == inf else self._until

    @property
    def phase(self) -> Phase:
        """Where the attempt is."""
        return self.state

    @property
    def chain(self) -> tuple[str, ...]:
        """The hops of this attempt; while keys are made, those that are asked for them."""
        return self._asked if self.manifest is None else self.manifest.chain

    @property
    def available(self) -> tuple[str, ...]:
        """The hops that a chain can have now: the whole pool, unless the policy allows to go on without the lost."""
        lost = self.gone | {hop for hop, model in self._elsewhere.items() if model == self.model} | set(self.convicted)
        here = tuple(hop for hop in self.federation.chain if hop not in lost)
        enough = len(here) >= self.federation.chain_rule.minimum
        if self.federation.policy.group_size and self.bond is not None:
            enough = enough and self.bond.chain[0] in here  # nobody else can deal the same groups again
        innocent = tuple(hop for hop in self.federation.chain if hop not in self.convicted)
        waits = innocent if len(innocent) >= self.federation.chain_rule.minimum else self.federation.chain
        return here if enough else waits

    @property
    def _masked(self) -> bool:
        return self.federation.plan.level is not Level.TRUSTED

    @property
    def barred(self) -> tuple[str, ...]:
        """The hops that were shown to have lied, and that no chain can do without: no attempt runs over them."""
        return tuple(hop for hop in self.available if hop in self.convicted)

    def _invited(self) -> tuple[str, ...]:
        return self.federation.draw(self.log.applied + 1, self.model)

    @property
    def counts(self) -> bool:
        """Whether the newest record is stored by enough hops."""
        if self.log.last is None:
            return True
        try:
            check_countersigned(self.log.last, self.log.of(self.log.last))
        except PeerFault:
            return False
        return True

    @property
    def bond(self) -> Bond | None:
        """The proof of whom this model is bound to, if some hop may have shown its pad."""
        return next((fact.bond for fact in self._sealed if fact.model == self.model), None)

    @property
    def bound(self) -> tuple[str, ...]:
        """The silos that some hop may have shown its pad for, on this model."""
        return () if self.bond is None else self.bond.silos

    @property
    def unrevealed(self) -> tuple[str, ...]:
        """The hops whose pads a release waits for."""
        waits = self.state is Phase.REVEALING
        return tuple(hop for hop in self._open_manifest.chain if hop not in self._pads) if waits else ()

    # Before anything is signed: what do hops know?

    def _awake(self, event: Awake) -> list[Effect]:
        known = self.log.last
        if known is not None and self.counts and known.next and known.next != self.federation.digest:
            return self._change(known)  # killed before it went on there
        self.state, self._until = Phase.HEARING, inf
        return self._ask_heads(number_of(self.life))

    def _ask_heads(self, number: int) -> list[Effect]:
        """Begin a life above a number. The newest record is asked for too: it may count without this node knowing."""
        life = life_after(number, self._rng)
        self.life_signature = Life(self.identity.name, life).signed(self.identity, self.federation).signature
        self.heard = {}
        return [Remember(Lived(life)), AskHeads(life, max(0, self.log.round - 1), self.federation.chain)]

    def _head(self, event: HeadIn) -> list[Effect]:
        hop, shown = event.hop, event.shown
        if hop not in self.federation.chain or shown.life < self.life:
            return []  # an answer to an earlier question
        check_shown(shown, self.log)
        if shown.life > self.life:
            return self._outlived(hop, shown)
        heard = {**self.heard, hop: shown}
        effects = self._go_on(heard) if len(heard) == len(self.federation.chain) else []
        self.heard = heard
        self.trouble.pop(hop, None)
        if effects:
            return effects
        if len(self.heard) == self.federation.chain_rule.minimum:
            self._until = event.now + HEAR_S
        return []

    def _outlived(self, hop: str, shown: Shown) -> list[Effect]:
        """A hop has seen a process with a higher number: this one was restored, or there is a second one."""
        check_later(hop, shown, number_of(self.life), self.log.epochs)
        raised = {**self._raised, hop: self._raised.get(hop, 0) + 1}
        often = tuple(name for name in self.federation.chain if raised.get(name, 0) > MOST_RAISES)
        if len(self.federation.chain) - len(often) < self.federation.chain_rule.minimum:
            raise self._superseded(often)
        if hop in often:
            raise PeerFault(Reason.SUPERSEDED, f"{hop} shows ever higher numbers of processes", peer=hop)
        self._raised = raised
        return self._ask_heads(number_of(shown.life))

    def _superseded(self, hops: tuple[str, ...]) -> LocalFault:
        return LocalFault(
            Reason.SUPERSEDED,
            f"another aggregator process with this identity has begun since, and {', '.join(hops)} serve that one: "
            f"this one ends, and signs nothing more; run one process, and start that again; {WAY_OUT}",
        )

    def _heard_enough(self, event: Tick) -> list[Effect]:
        return self._go_on(self.heard) if event.now >= self._until else []

    def _go_on(self, heard: dict[str, Shown]) -> list[Effect]:
        """Take in what was lost: records, attempts, and for whom hops have released the model."""
        new = missing_records(self.log, heard)
        self.state = Phase.LOADING
        effects: list[Effect] = [Remember(Recorded(record)) for record in new]
        last = new[-1] if new else self.log.last
        if last is not None and last.next and last.federation == self.federation.digest and counts(last, self.log):
            return [*effects, *self._change(last)]  # the epoch is over: what else was lost is asked for in the next
        model, round_ = (b"", 0) if last is None else (last.model_after, last.round + 1)
        for hop, shown in heard.items():
            if shown.last_released > self.hop_released.get(hop, 0):
                effects.append(Remember(HopReleased(hop, shown.last_released)))
        sealed = {fact.bond.manifest for fact in self._sealed}
        records = (*self.log.records, *new)
        on_record = {one.manifest for record in records for one in record.attempts}
        numbers = set(self._tried.get(round_, {}))
        for told in (told for shown in heard.values() for told in shown.told):
            manifest = told.bond.manifest
            if told.model != model or manifest in sealed | on_record or not holds(told, self.federation):
                continue
            # What is on no record is of the round that comes next, whatever a hop says: nobody signs these numbers.
            number = told.attempt if told.attempt not in numbers else max(numbers) + 1
            sealed, numbers = sealed | {manifest}, numbers | {number}
            effects.append(Remember(Tried(round_, number, manifest, told.bond.chain)))
            effects.append(Remember(Sealed(round_, number, told.model, told.bond)))
        here = max(self._tried.get(round_, {}), default=0)
        # Silos may have joined one more than hops remember, if those were started again.
        newest = max((s.attempt + 1 for s in heard.values() if s.total == round_ and s.attempt > here), default=0)
        self._resume_after = newest
        effects.append(Load(sum(record.round >= self.log.round for record in new)))
        if new or self.log.last is None or self.counts:
            return effects
        # What is lost here, silos can only compute, and bring, once the record counts.
        self._countersigned = {}
        return [*effects, AskStore(self.log.last, self.federation.chain)]

    def _late_head(self, event: HeadIn) -> list[Effect]:
        """Hear a hop that was away when this process began, or that another process was at."""
        hop, shown = event.hop, event.shown
        if hop not in self.federation.chain or shown.life < self.life:
            return []
        if shown.life > self.life:
            check_later(hop, shown, number_of(self.life), self.log.epochs)
            served = tuple(h for h in self.federation.chain if h == hop or h in self._lost_to)
            if len(self.federation.chain) - len(served) < self.federation.chain_rule.minimum:
                raise self._superseded(served)
            self._lost_to = {*self._lost_to, hop}
            return self._failed(HopFailed(hop, "it serves another aggregator process with this identity", event.now))
        check_shown(shown, self.log)
        if any(record.round >= self.log.round for record in missing_records(self.log, {hop: shown})):
            raise LocalFault(
                Reason.FORKED,
                f"{hop} was not heard when this process began, and has records that are missing here: start this "
                f"aggregator again while {hop} is there; {WAY_OUT}",
            )
        known, self.heard = hop in self.heard, {**self.heard, hop: shown}
        own = [told for told in shown.told if told.model == self.model and holds(told, self.federation)]
        silos = {told.bond.silos for told in own} - {self.bound}
        if silos:  # it has released this model in an earlier life of this aggregator, unheard by it
            self._elsewhere = {**self._elsewhere, hop: self.model}
        last = self.log.last
        if known or last is None or not self.counts or shown.total > last.round:
            return []  # one that was heard before is asked to store each record anyway, until it has
        return [AskStore(last, (hop,))]

    def _start(self, event: Start) -> list[Effect]:
        known = self.log.last
        if known is not None and (known.model_after, known.state_after) != (event.model, event.state):
            raise LocalFault(
                Reason.WRONG_MODEL,
                f"the round log ends with model {known.model_after.hex()[:32]} and the one that was loaded is "
                f"{event.model.hex()[:32]}, or the server's state beside it is another: put the former's files back",
            )
        self.model, self.server_state = event.model, event.state
        self._schema, self._bounds = event.schema, event.bounds
        if known is None:
            if self.federation.predecessor:
                raise LocalFault(
                    Reason.WRONG_EPOCH,
                    f"a history begins in the first epoch, and this node is in epoch {self.federation.epoch}: start "
                    "with the federation's first file, or put the journal back",
                )
            first = genesis(self.federation, event.model, event.state).signed(self.identity)
            return self._record(first)
        if not self.counts:
            self.state = Phase.RECORDING  # hops were asked before the model was loaded, and may have answered in part
            return [AskStore(known, self.federation.chain)]
        following = self.log.epochs.find(self.log.epoch)
        if following is not None and following.epoch > self.federation.epoch:  # its records came from hops just now
            self.state = Phase.CHANGING
            return [Switch(following.digest)]
        told: list[Effect] = []
        if known.federation != self.federation.digest:  # hops that are new, or do not know that it counts, get it now
            told = [AskStore(known, self.federation.chain)]
        elif behind := tuple(hop for hop, shown in self.heard.items() if shown.total <= known.round):
            told = [AskStore(known, behind)]  # they were away when it was stored, and can open nothing without it
        if self._resume_after:  # a hop knows of later attempts than this journal: what they left is theirs to say
            self.attempt, self._resume_after = max(self.attempt, self._resume_after), 0
            return [*told, *self._begin(event.now)]
        # One that a later attempt came after was given up: a hop has destroyed its pad.
        newest = (fact for fact in self._sealed if (fact.round, fact.attempt) == (self.round, self.attempt))
        sealed, pending = next(newest, None), event.pending
        if sealed is not None and pending is not None and pending.ready.digest == sealed.agreed:
            return [*told, *self._resume(pending, sealed)]
        return [*told, *self._begin(event.now)]

    def _resume(self, pending: Pending, sealed: Sealed) -> list[Effect]:
        """Go on with a release that all had signed for."""
        self.manifest, self._ready = pending.manifest, pending.ready
        self.attempt, self.state = pending.manifest.attempt, Phase.REVEALING
        return [AskPads(pending.ready, sealed.bond.signed_by(self.identity.name), sealed.bond)]

    def _begin(self, now: float) -> list[Effect]:
        self.manifest = None
        for secret in self._private.values():
            secret.wipe()
        for secret in self._pads.values():
            secret.wipe()
        self._keys, self._private, self._opened, self._headers = {}, {}, set(), {}
        self._summed, self._groups, self._ready, self.hearing = None, (), None, None
        self._signatures, self._pads, self._countersigned = {}, {}, {}
        if self.barred:
            tried = self._tried.get(self.round, {})
            if any(one.round == self.round and one.attempt in tried for one in self.convicted.values()):
                # Killed before the record was made that says so: without it, silos believe in no end.
                after = (self.model, self.server_state)
                return self._record(self._make_record(Outcome.ABANDONED, b"", *after).signed(self.identity))
            self.state = Phase.FINISHED
            return [Finish(self.round - 1, barred=self.barred)]
        if self.round > self.federation.policy.rounds:
            self.state = Phase.FINISHED
            return [Finish(self.round - 1)]
        if self.log.converged:
            self.state = Phase.FINISHED
            return [Finish(self.round - 1, converged=True)]
        self.state = Phase.PREPARING
        self.attempt += 1
        self.tried_here += 1
        self._until = now + self.federation.policy.release_s
        self._asked = self.available
        return [AskKeys(self.round, self.attempt, self._asked, self._invited(), self.log.head)]

    def _keys_in(self, event: KeysIn) -> list[Effect]:
        if event.hop not in self._asked:
            return []
        if event.last_released > self.round:
            raise PeerFault(
                Reason.WRONG_ROUND, f"{event.hop} says that it has released round {event.last_released}", peer=event.hop
            )
        invited = self._invited() if self._masked else ()
        if tuple(k.silo for k in event.keys) != invited or any(k.hop != event.hop for k in event.keys):
            raise PeerFault(Reason.WRONG_KEYS, f"{event.hop} did not make one key per silo", peer=event.hop)
        for key in event.keys:
            check_round_key(key, self.federation, self.log.head, self.round, self.attempt)
        self._keys[event.hop] = event.keys
        self.trouble.pop(event.hop, None)
        effects: list[Effect] = []
        if event.last_released > self.hop_released.get(event.hop, 0):
            effects.append(Remember(HopReleased(event.hop, event.last_released)))
        return effects + self._form(event.now)

    def _form(self, now: float, *, late: bool = False) -> list[Effect]:
        """Form a chain of the hops that have made keys, once those that have not are lost, or their time is up.

        Whoever joined an earlier attempt of this round joins no chain without its hops: then the round is over.
        """
        silent = [hop for hop in self._asked if hop not in self._keys]
        chain = tuple(hop for hop in self._asked if hop in self._keys)
        if not (late or set(silent) <= self.gone):
            return []
        if len(chain) < self.federation.chain_rule.minimum:
            return []
        if self._passed() - set(chain):
            return self._give_up(now, over=True)
        if self._until == inf:  # a hop was waited for, however long: opening has its time again
            self._until = now + self.federation.policy.release_s
        return self._propose(chain)

    def _passed(self) -> set[str]:
        """The hops of all earlier attempts at this round."""
        return {hop for tried in self._tried.get(self.round, {}).values() for hop in tried.chain}

    def _propose(self, chain: tuple[str, ...]) -> list[Effect]:
        policy, plan, invited = self.federation.policy, self.federation.plan, self._invited()
        names = ("",) if policy.group_size else invited
        self._private = {name: Secret.draw(self._rng) for name in (names if self._masked else ())}
        own = (
            RoundKey(self.identity.name, silo, self.round, self.attempt, public_key(private), self.round - 1)
            for silo, private in self._private.items()
        )
        manifest = Manifest(
            federation=self.federation.digest,
            head=self.log.head,
            applied=self.log.applied,
            round=self.round,
            attempt=self.attempt,
            earlier=tuple(one.manifest for _, one in sorted(self._tried.get(self.round, {}).items())),
            model=self.model,
            state=self.server_state,
            schema=self._schema,
            plan=plan,
            bounds=self._bounds or (policy.bound,) * len(self._schema.tensors),
            update=policy.update,
            granularity=policy.granularity,
            chain=chain,
            hop_keys=tuple(key for hop in chain for key in self._keys[hop]),
            aggregator_keys=tuple(key.signed(self.identity, self.federation.digest, self.log.head) for key in own),
            group_size=policy.group_size,
            invited=() if invited == self.federation.silo_names else invited,
            minimum_cohort=self.federation.minimum_cohort,
            chunk_parameters=policy.chunk_parameters,
            deadline_s=policy.deadline_s,
            bound=self.bond,
        )
        self.manifest, self.state = manifest.signed(self.identity), Phase.OPENING
        assert self.log.last is not None, "round 0 is on record before any round opens"
        return [
            Remember(Tried(self.round, self.attempt, self.manifest.digest, self.manifest.chain)),
            OpenAt(self.manifest, self.log.last, self._private.get("")),
        ]

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
        if event.hop != manifest.chain[0] or not self.missing(event.now):
            self.trouble[event.hop] = event.why
        if event.restarted:
            self.tried_here -= 1
        return self._give_up(event.now)

    def _gone(self, event: HopGone) -> list[Effect]:
        """Go on without a hop that is lost, if the policy has others: over another chain, or in the next round."""
        if event.hop not in self.federation.chain:
            return []
        self.gone = {*self.gone, event.hop}
        self.trouble[event.hop] = event.why
        if event.hop not in self.chain or event.hop in self.available:
            return []  # it is needed, and waited for
        if self.state is Phase.PREPARING:
            return self._form(event.now) or self._ask_others(event.now)
        if self.state in (Phase.OPENING, Phase.COLLECTING, Phase.RELEASING, Phase.READY):
            return self._give_up(event.now, over=True)
        if self.state in (Phase.CHECKING, Phase.PROVING, Phase.BLAMING) and self._hearing.needs(event.hop):
            return self._give_up(event.now, over=True)  # whoever has spoken does not end a check by leaving
        if self.state is Phase.REVEALING and event.hop not in self._pads and set(self.bound) <= set(event.present):
            return self._give_up(event.now, over=True)  # the same silos, over the others; else it waits for the hop
        return []

    def _back(self, event: HopBack) -> list[Effect]:
        self.gone = self.gone - {event.hop}
        self.trouble.pop(event.hop, None)
        if self.state is not Phase.PREPARING:
            return []
        if self._until == inf:
            self._until = event.now + self.federation.policy.release_s
        return self._ask_others(event.now)

    def _ask_others(self, now: float) -> list[Effect]:
        """Begin anew where a hop that was not asked can stand in for one that is lost: nothing was tried yet."""
        if not self.gone & set(self._asked) or set(self.available) <= set(self._asked):
            return []
        self.tried_here -= 1
        return self._begin(now)

    def missing(self, now: float) -> tuple[str, ...]:
        """The silos that did not come until the deadline, if too few for a sum did: then hop 1 is right to give up."""
        manifest, policy = self.manifest, self.federation.policy
        late = now >= self._until - policy.release_s - policy.deadline_s / 10  # hop 1 has opened it a little earlier
        if manifest is None or self.state is not Phase.COLLECTING or manifest.group_size or not late:
            return ()  # in groups no header comes here
        came = {header.silo for header in self._headers.values()}
        if len(came) >= manifest.minimum_cohort:
            return ()
        return tuple(silo for silo in manifest.invited or self.federation.silo_names if silo not in came)

    def _header(self, event: HeaderIn) -> list[Effect]:
        header = event.header
        check_header(header, self._open_manifest, self.federation)
        if header.digest in self._headers:
            return []
        if sum(known.silo == header.silo for known in self._headers.values()) >= MOST_HEADERS:
            why = f"{header.silo} has begun {MOST_HEADERS} bodies in this attempt, and begins no other"
            raise PeerFault(Reason.WRONG_SEQUENCE, why, peer=header.silo)
        self._headers[header.digest] = header
        return [Expand(header, self._private.get(header.silo))]

    def _late_header(self, event: HeaderIn) -> list[Effect]:
        """Take no mask off for a header behind the cohort: those of absentees are being put back, and it would stay."""
        if event.header.digest in self._headers:
            return []  # a broken stream begins anew
        last = self._open_manifest.chain[-1]
        raise PeerFault(Reason.COHORT_CLOSED, f"{last} sent a header behind the cohort", peer=last)

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
        other = self._summed is not None and self._summed.digest != cohort.digest
        if other or self._groups not in ((), groups):
            raise PeerFault(Reason.ALREADY_RELEASED, "the chain has named another cohort for this attempt")
        self._summed, self._groups, self.state = cohort, groups, Phase.RELEASING
        return [Take(cohort)]

    def _sum_in(self, event: SumIn) -> list[Effect]:
        manifest = self._open_manifest
        if event.manifest != manifest.digest:
            return []
        ready = Ready(manifest.digest, manifest.model, event.trails)
        check_ready(ready, self._released_for.digest, manifest.chain, self.federation)
        if checks(self.federation):
            effects = self._hear(manifest, ready, event.bodies)
        else:
            effects = [AskReady(ready, manifest.chain)]
            self._ready, self.state = ready, Phase.READY
        self._until = event.now + self.federation.policy.release_s
        return effects

    # The check, at level malicious

    def _hear(self, manifest: Manifest, ready: Ready, bodies: tuple[SignedRoot, ...]) -> list[Effect]:
        cohort = self._released_for
        subject = Subject(cohort, tuple(self._headers[p.header] for p in cohort.participants), bodies, ready)
        check_subject(subject, manifest, self.federation)
        self._ready, self.state = ready, Phase.CHECKING
        self.hearing = Hearing(manifest, subject, self.federation)
        return [AskTosses(manifest, subject)]

    @property
    def _hearing(self) -> Hearing:
        assert self.hearing is not None, "the table lets nothing come here before a check is open"
        return self.hearing

    def _toss(self, event: TossIn) -> list[Effect]:
        """Take a share in. The last one makes the coin; one that was not committed to names its silo.

        No other refusal is worth the hundreds of signatures of a verdict: a silo may ask for one as often as it likes.
        """
        hearing, manifest = self._hearing, self._open_manifest
        try:
            complete = hearing.toss(event.toss)
        except FalseShareError:
            return self._convict(decide(hearing.charge(event.toss), self.federation), event.now)
        if not complete:
            return []
        self._until = event.now + self.federation.policy.release_s
        return [AskScalars(manifest, hearing.subject, hearing.shares, hearing.coin)]

    def _stated(self, event: StatedIn) -> list[Effect]:
        """Take scalars in. When all are here, the equations hold, or the node where the first fails is asked why."""
        hearing, manifest = self._hearing, self._open_manifest
        complete = hearing.state(event.statement)
        self.trouble.pop(event.statement.name, None)
        if not complete:
            return []
        self._until = event.now + self.federation.policy.release_s
        transcript, finding = hearing.transcript, hearing.finding
        if finding is not None:
            self.state = Phase.BLAMING
            return [AskDefence(manifest, finding, hearing.subject, transcript)]
        if hearing.unproved:
            self.state = Phase.PROVING
            return [AskProofs(manifest, hearing.subject, transcript)]
        return self._ask_ready(transcript)

    def _ask_ready(self, transcript: CheckTranscript) -> list[Effect]:
        self._ready, self.state = replace(self._release, check=transcript.digest), Phase.READY
        return [AskReady(self._ready, self._open_manifest.chain, transcript)]

    def _proof(self, event: ProofIn) -> list[Effect]:
        """Take a hop's proofs in. When all are here, hops sign; proofs that do not hold name their hop."""
        hearing = self._hearing
        try:
            complete = hearing.prove(event.proof)
        except PeerFault as fault:
            try:
                verdict = decide(hearing.false_proof(event.proof), self.federation)
            except PeerFault:
                raise fault from None  # nothing that anybody would have to answer for
            return self._convict(verdict, event.now)
        self.trouble.pop(event.proof.hop, None)
        if not complete:
            return []
        self._until = event.now + self.federation.policy.release_s
        return self._ask_ready(hearing.transcript)

    def _accusation(self, event: DefenceIn) -> list[Effect]:
        """Look at what a hop has opened in place of a proof, and name the silo, or the hop."""
        hearing = self._hearing
        check = replace(hearing.transcript, proofs=())
        case = Case(Charge.COMMITMENT, hearing.manifest, hearing.subject, check=check, defence=event.defence)
        return self._convict(decide(case, self.federation), event.now)

    def _defence(self, event: DefenceIn) -> list[Effect]:
        """Look at what was opened, and name whoever lied."""
        hearing = self._hearing
        case = Case(
            Charge.EQUATION,
            hearing.manifest,
            hearing.subject,
            check=hearing.transcript,
            defence=event.defence,
        )
        return self._convict(decide(case, self.federation, event.vector), event.now, event.vector)

    def _lie(self, event: LieSeen) -> list[Effect]:
        """End an attempt in which a hop has told two stories, before anybody signs for either."""
        if event.verdict.case.manifest.digest != self._open_manifest.digest:
            return []
        return self._convict(event.verdict, event.now)

    def _pads_false(self, event: PadsFalse) -> list[Effect]:
        """Discard a sum whose hop has lied about its pad: everybody can see it now."""
        if event.case.manifest.digest != self._open_manifest.digest:
            return []
        return self._convict(decide(event.case, self.federation), event.now)

    def _convict(self, verdict: Verdict, now: float, vector: Bytes | None = None) -> list[Effect]:
        """Name a culprit. Without a hop that it needs, the federation stops; a silo is hop 1's to leave out."""
        fact = Convicted(self.round, self.attempt, verdict.culprit, verdict.case.digest)
        self.trouble[verdict.culprit] = verdict.sentence
        self.convicted.setdefault(verdict.culprit, fact)
        remember: list[Effect] = [Remember(fact), Convict(self.round, self.attempt, verdict, vector)]
        effects = self._give_up(now, over=verdict.culprit in self.federation.chain)
        self.trouble.pop(verdict.culprit, None)
        return remember + effects

    @property
    def _convicted_now(self) -> bool:
        """Whether somebody was named in this attempt."""
        return any((one.round, one.attempt) == (self.round, self.attempt) for one in self.convicted.values())

    @property
    def _released_for(self) -> Cohort:
        assert self._summed is not None, "the table lets nothing come here before the cohort is known"
        return self._summed

    @property
    def _release(self) -> Ready:
        assert self._ready is not None, "the table lets nothing come here before the padded sum is here"
        return self._ready

    def _agreed(self, event: AgreedIn) -> list[Effect]:
        """Take a hop's signature. This node signs last: whoever has signed before may still have given up."""
        manifest, ready = self._open_manifest, self._release
        if event.manifest != manifest.digest or event.hop not in manifest.chain:
            return []
        verify(self.federation.member(event.hop).key, ready.digest, event.signature, event.hop)
        self._signatures[event.hop] = event.signature
        self.trouble.pop(event.hop, None)
        if set(self._signatures) != set(manifest.chain):
            return []
        own = (self.identity.name, self.identity.sign(ready.digest))
        signatures = (*((hop, self._signatures[hop]) for hop in manifest.chain), own)
        self.state = Phase.REVEALING
        sealed = Sealed(self.round, self.attempt, self.model, Bond.of(self._released_for, ready, signatures))
        keep = Keep(manifest, ready, signatures)
        if self.hearing is not None:
            keep = replace(keep, bodies=self.hearing.subject.bodies, check=self.hearing.transcript)
        return [keep, Remember(sealed), AskPads(ready, signatures, sealed.bond)]

    def _pad(self, event: PadIn) -> list[Effect]:
        manifest, ready = self._open_manifest, self._release
        if event.manifest != manifest.digest or event.hop not in manifest.chain:
            return []
        if pad_digest(event.pad) != ready.trails[manifest.chain.index(event.hop)].pad:
            raise PeerFault(Reason.WRONG_PAD, f"{event.hop} showed another pad than it committed to", peer=event.hop)
        self._pads[event.hop] = event.pad
        self.trouble.pop(event.hop, None)
        if set(self._pads) != set(manifest.chain):
            return []
        self.state = Phase.APPLYING
        return [Apply(manifest, ready, tuple((hop, self._pads[hop]) for hop in manifest.chain))]

    def _pad_refused(self, event: PadRefused) -> list[Effect]:
        """Try again for the same silos: others may have shown their pads, and release this model for nobody else."""
        if event.manifest != self._open_manifest.digest:
            return []
        self.trouble[event.hop] = event.why
        return self._give_up(event.now)

    def _applied(self, event: SumApplied) -> list[Effect]:
        manifest, ready = self._open_manifest, self._release
        if event.manifest != manifest.digest:
            return []
        hops: list[Effect] = [Remember(HopReleased(hop, self.round)) for hop in manifest.chain]  # or no sum were here
        after, self._bounds = (event.model, event.state), event.bounds
        return hops + self._record(self._make_record(Outcome.APPLIED, ready.root, *after).signed(self.identity))

    def _make_record(self, outcome: Outcome, root: bytes, model: bytes, state: bytes) -> Record:
        sealed = {fact.bond.manifest: fact for fact in self._sealed}
        attempts = []
        for number, tried in sorted(self._tried.get(self.round, {}).items()):
            fact = sealed.get(tried.manifest)
            attempt = Attempted(number, tried.manifest, tried.chain)
            if fact is not None:
                signatures = fact.bond.signed_by(self.identity.name)
                attempt = replace(attempt, agreed=fact.agreed, silos=fact.bond.silos, signatures=signatures)
            named = next((c for c in self.convicted.values() if (c.round, c.attempt) == (self.round, number)), None)
            if named is not None:
                attempt = replace(attempt, culprit=named.culprit, evidence=named.evidence)
            attempts.append(attempt)
        return Record(
            self.federation.digest,
            self.round,
            outcome,
            tuple(attempts),
            root,
            self.model,
            model,
            self.server_state,
            state,
            self.log.head,
            self.following if outcome is Outcome.APPLIED else b"",
        )

    def _record(self, record: Record) -> list[Effect]:
        """Write a round's record, and have hops store it."""
        self.model, self.server_state = record.model_after, record.state_after
        return [Remember(Recorded(record)), *self._ask_store(record)]

    def _ask_store(self, record: Record) -> list[Effect]:
        self.state, self._countersigned = Phase.RECORDING, {}
        return [AskStore(record, self.federation.chain)]

    def _countersigned_by(self, record: Record) -> Record:
        names = [hop for hop in self.federation.chain if hop in self._countersigned]
        return replace(record, countersignatures=tuple((hop, self._countersigned[hop]) for hop in names))

    def _countersigned_early(self, event: CountersignedIn) -> list[Effect]:
        """Take in that hops have stored the newest record, while the model that it names may still be missing here."""
        record = None if self.counts else self._stored(event)
        return [] if record is None else [Remember(Recorded(record)), Publish(record)]

    def _countersigned_in(self, event: CountersignedIn) -> list[Effect]:
        record = self._stored(event)
        if record is None:
            return []
        told: list[Effect] = [Remember(Recorded(record)), Publish(record)]
        return [*told, *(self._change(record) if record.next else self._begin(event.now))]

    def _stored(self, event: CountersignedIn) -> Record | None:
        """Add a hop's word to the newest record, and return that once enough of them have stored it."""
        record = self.log.last
        assert record is not None, "a record is written before hops are asked to store it"
        if event.record != record.digest or event.hop not in self.federation.chain:
            return None
        what = countersign_digest(record.digest, event.hop)
        verify(self.federation.member(event.hop).key, what, event.signature, event.hop)
        self._countersigned[event.hop] = event.signature
        self.trouble.pop(event.hop, None)
        if len(self._countersigned) < self.federation.chain_rule.minimum:
            return None
        self.tried_here = 0
        return self._countersigned_by(record)

    def _change(self, record: Record) -> list[Effect]:
        self.state = Phase.CHANGING
        return [Switch(record.next)]

    def _epochs(self, event: EpochsIn) -> list[Effect]:
        self.log.epochs = event.epochs
        if event.following:
            event.epochs.check_next(self.federation.digest, event.following)
            self.following = event.following
        return []

    def _refused(self, event: SumRefused) -> list[Effect]:
        if event.manifest != self._open_manifest.digest:
            return []
        self.trouble[self.identity.name] = event.why
        effects = self._give_up(event.now)
        self.trouble.pop(self.identity.name, None)
        return effects

    def _tick(self, event: Tick) -> list[Effect]:
        if event.now < self._until:
            return []
        if self.state is Phase.PREPARING:
            if formed := self._form(event.now, late=True):
                return formed
            if self.gone & set(self._asked):  # nothing was tried yet: whatever time it takes to be back uses up nothing
                self._until = inf
                return []
        return self._give_up(event.now)

    def _give_up(self, now: float, *, over: bool = False) -> list[Effect]:
        """End an attempt without a sum, and begin the next one: in the next round, if this one is `over`."""
        silent: list[str] = []
        if self.state is Phase.PREPARING:
            silent = [hop for hop in self.chain if hop not in self._keys]
        elif self.state is Phase.OPENING:  # from the last hop to the first: one is asked at a time
            silent = [hop for hop in self.chain if hop not in self._opened][-1:]
        elif self.state is Phase.READY:
            silent = [hop for hop in self.chain if hop not in self._signatures]
        for hop in silent:
            self.trouble.setdefault(hop, f"no answer while {self.state}")
        troubles = [f"{hop}: {what}" for hop, what in self.trouble.items()]
        if self.hearing is not None and self.state is Phase.CHECKING:
            own = self.identity.name
            troubles += [f"{name} or {own}: no word in the check" for name in self.hearing.silent if name != own]
        elif self.hearing is not None and self.state is Phase.PROVING and not self._convicted_now:
            own = self.identity.name
            troubles += [f"{hop} or {own}: no proof at the traps" for hop in self.hearing.unproved]
        elif self.hearing is not None and self.state is Phase.BLAMING and not over:
            finding = self.hearing.finding
            troubles += [f"{finding.where} or {self.identity.name}: no defence"] if finding is not None else []
        if missing := self.missing(now):
            came, needed = {header.silo for header in self._headers.values()}, self._open_manifest.minimum_cohort
            names = ", ".join(missing)
            troubles.insert(0, f"{len(came)} silos came, and a sum needs {needed}: {names} did not come in time")
        why = "; ".join(troubles) or f"no sum came while {self.state}"
        used_up = self.tried_here >= self.federation.policy.attempts or self.attempt >= MOST_ATTEMPTS
        abandoned = over or used_up or bool(self._passed() - set(self.available))
        effects: list[Effect] = [GiveUp(self.round, self.attempt, why, abandoned)]
        if abandoned:
            after = (self.model, self.server_state)
            return effects + self._record(self._make_record(Outcome.ABANDONED, b"", *after).signed(self.identity))
        return effects + self._begin(now)
