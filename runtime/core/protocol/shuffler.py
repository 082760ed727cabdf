"""A shuffler's decisions: what it accepts, when it closes the cohort, and what it may never do again.

``step`` takes one event and returns effects, in the order in which they are to be carried out; a `Remember` is durable
before the next effect begins. The machine holds no vectors, and opens no sockets: runtime/nodes/shuffler.py does.

The invariant: for each model a shuffler releases for at most one cohort. What it passes on lies under a pad of its own.
It shows the pad once everybody has signed for the same cohort, and remembers first, for ever, for which silos it
releases this model. An attempt that ends before that has released nothing: its pad is destroyed, and the model is free.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from math import ceil, inf

from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Rng, Secret, public_key
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.tamper import EquationKind, Finding, Scalars, combined
from silomix.runtime.core.pace import Pace
from silomix.runtime.core.protocol.check.blame import (
    Case,
    Charge,
    Defence,
    Verdict,
    accuse,
    decide,
    defend,
    first_finding,
    signed_root,
)
from silomix.runtime.core.protocol.check.proofs import check_proofs
from silomix.runtime.core.protocol.check.said import (
    CheckTranscript,
    SignedRoot,
    Statement,
    Subject,
    Toss,
    check_equations,
    check_said,
    check_subject,
    checks,
    coin_of,
    relayed,
)
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS, Trapped, TrapProof
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.hearing import (
    MOST_AHEAD,
    MOST_SHOWN,
    MOST_TOLD,
    Life,
    Shown,
    Told,
    number_of,
)
from silomix.runtime.core.protocol.identity import Identity, verify
from silomix.runtime.core.protocol.machine import IGNORES, Machine, Remember, Table, does, refuses
from silomix.runtime.core.protocol.messages import (
    Accusation,
    Bond,
    Cohort,
    Evidence,
    Grouping,
    Header,
    Manifest,
    Participant,
    Receipt,
    RoundKey,
    trailer_digest,
)
from silomix.runtime.core.protocol.release import (
    Ready,
    Signatures,
    Trail,
    check_agreed,
    check_ready,
    pad_digest,
)
from silomix.runtime.core.protocol.roundlog import (
    Attempted,
    Fork,
    Outcome,
    Record,
    RoundLog,
    check_countersigned,
    countersign_digest,
)
from silomix.runtime.core.protocol.rules import (
    MOST_ATTEMPTS,
    MOST_HEADERS,
    check_cohort,
    check_evidence,
    check_grouping,
    check_header,
    check_manifest,
    check_round,
    check_step,
    invited,
)

PATIENCE_S, PATIENCE_ROUNDS = 7 * 86_400.0, 3
"""For how long, and for how many applied rounds, a hop goes on in an epoch whose successor counts: owners of other hops
take their time. An aggregator that goes on for longer withholds the new epoch, and whoever it removes stays in."""
UNFIT_ROUNDS = 10
"""Rounds that a silo sits out that was shown to have sealed garbage, this one included."""


# Facts


@dataclass(frozen=True)
class Padded:
    """The durable fact of the one cohort that an attempt is for, and the pad on what this hop passes on of it."""

    round: int
    attempt: int
    manifest: bytes
    model: bytes
    chain: tuple[str, ...]
    cohort: bytes
    silos: tuple[str, ...]
    groups: tuple[int, ...]
    """The group of each silo, where sums leave by group."""
    grouping: bytes
    """The seal of the grouping."""
    pad: Secret = field(repr=False)


@dataclass(frozen=True)
class PadGone:
    """The durable fact that an attempt's pad is destroyed: what it lies on is never read."""

    round: int
    attempt: int
    manifest: bytes


@dataclass(frozen=True)
class Closed:
    """The durable fact that no attempt before this one is signed for any more: a fence round all of them."""

    round: int
    attempt: int


@dataclass(frozen=True)
class Signed:
    """The durable fact that this hop signed for a release, once for the attempt: for whose sum, on which model."""

    round: int
    attempt: int
    manifest: bytes
    agreed: bytes
    silos: tuple[str, ...]
    model: bytes


@dataclass(frozen=True)
class Released:
    """The durable fact that a pad was shown: for whose sum, on which model. It is kept for ever."""

    round: int
    attempt: int
    manifest: bytes
    agreed: bytes
    silos: tuple[str, ...]
    model: bytes
    groups: tuple[int, ...] = ()
    bond: Bond | None = None
    """The proof for everybody else, should the aggregator have lost it."""


@dataclass(frozen=True)
class Heard:
    """The durable fact that an aggregator process has begun: nothing is taken from one that began before."""

    life: bytes
    signature: bytes
    """The proof for one that began before."""


@dataclass(frozen=True)
class Stored:
    """The durable fact that a record is in this hop's round log: it countersigns no other of that round."""

    record: Record


@dataclass(frozen=True)
class Forked:
    """The durable fact that the aggregator signed two records of one round: evidence for everybody."""

    known: Record
    other: Record


@dataclass(frozen=True)
class KeysMade:
    """The durable fact that keys were made for an attempt, one for each silo."""

    round: int
    attempt: int
    keys: tuple[tuple[str, Secret], ...] = field(repr=False)


@dataclass(frozen=True)
class KeysGone:
    """The durable fact that an attempt's keys are deleted, and with them what its masks hid."""

    round: int
    attempt: int


@dataclass(frozen=True)
class Accused:
    """The durable fact that a silo was shown to have sealed garbage, with the evidence."""

    round: int
    evidence: Evidence


@dataclass(frozen=True)
class Stated:
    """The durable fact that this hop has answered a coin, and how: an attempt has no second one."""

    round: int
    attempt: int
    manifest: bytes
    statement: Statement


@dataclass(frozen=True)
class Proved:
    """The durable fact that this hop has proved what it removed at an attempt's traps, and how."""

    round: int
    attempt: int
    manifest: bytes
    proof: TrapProof


@dataclass(frozen=True)
class Convicted:
    """The durable fact that somebody was shown to have lied in a tamper check. A silo sits out."""

    round: int
    silo: str
    """Or a hop, or the aggregator."""
    evidence: bytes
    """Digest of the case."""


Fact = (
    Padded
    | PadGone
    | Closed
    | Signed
    | Released
    | Heard
    | Stored
    | Forked
    | KeysMade
    | KeysGone
    | Accused
    | Stated
    | Proved
    | Convicted
)


# Events


@dataclass(frozen=True)
class Show:
    """An aggregator process begins, and asks what this hop knows: its round log from a record on, and the rest."""

    federation: bytes
    life: bytes
    start: int
    signature: bytes
    """The aggregator's, under its life."""


@dataclass(frozen=True)
class Prepare:
    """The aggregator asks for an attempt's keys."""

    federation: bytes
    round: int
    attempt: int
    silos: tuple[str, ...]
    known_released: int
    head: bytes
    now: float
    life: bytes = b""
    """Of the process that asks; so in all that follow."""


@dataclass(frozen=True)
class Open:
    """The aggregator opens an attempt, and shows that the round before it is on record."""

    manifest: Manifest
    head: Record
    now: float
    life: bytes = b""


@dataclass(frozen=True)
class HeaderIn:
    """A header came: from the silo itself, or passed on by the hop before."""

    header: Header
    sender: str


@dataclass(frozen=True)
class Unopened:
    """The seed in this header that is ours does not open, or is not the one that was committed to."""

    header: Header


@dataclass(frozen=True)
class BodyIn:
    """All chunks of a body came, in order, and hash to this root; the trailer says the rest."""

    header: Header
    root: bytes
    signed_root: bytes
    signature: bytes


@dataclass(frozen=True)
class Counted:
    """A body that was to be counted is in the sum."""

    header: Header
    now: float | None = None
    """When, if anybody is to learn from it how long silos take."""


@dataclass(frozen=True)
class Spoiled:
    """A body may be in the sum in part: this attempt must release nothing."""

    manifest: bytes
    why: str


@dataclass(frozen=True)
class CohortIn:
    """The hop before closed the cohort; with its groups, if the round has any."""

    cohort: Cohort
    grouping: Grouping | None = None


@dataclass(frozen=True)
class EvidenceIn:
    """The next hop, or one behind it, shows that it cannot open what a silo sealed to it."""

    evidence: Evidence


@dataclass(frozen=True)
class SendRefused:
    """The next hop refused what this one has to send, for good."""

    manifest: bytes
    fault: PeerFault


@dataclass(frozen=True)
class Delivered:
    """What was released in this attempt has come through to the aggregator: its round is over."""

    manifest: bytes


@dataclass(frozen=True)
class ReadyIn:
    """The aggregator has the whole padded sum, and the trails of all hops: this one is to sign for the release."""

    manifest: bytes
    trails: tuple[Trail, ...]
    life: bytes = b""
    check: CheckTranscript | None = None
    """At level malicious: all that was said in the tamper check."""


@dataclass(frozen=True)
class CoinIn:
    """The silos have tossed the coin: this hop is to answer it."""

    manifest: bytes
    trails: tuple[Trail, ...]
    bodies: tuple[SignedRoot, ...]
    tosses: tuple[Toss, ...]


@dataclass(frozen=True)
class Measured:
    """The scalars of what came in, of what went out and of the pad are computed."""

    manifest: bytes
    context: bytes
    coin: bytes
    scalars: tuple[Scalars, ...]
    trapped: Trapped = NO_TRAPS


@dataclass(frozen=True)
class ProveIn:
    """Everybody has answered the coin, and every equation holds: this hop is to prove what it removed at the traps."""

    manifest: bytes
    trails: tuple[Trail, ...]
    bodies: tuple[SignedRoot, ...]
    check: CheckTranscript


@dataclass(frozen=True)
class Proven:
    """The proofs are made; or some silos have committed to other masks than they sealed to this hop."""

    manifest: bytes
    check: CheckTranscript
    proofs: bytes
    false: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChargeIn:
    """An equation of the check fails at this hop: it is to defend itself."""

    manifest: bytes
    trails: tuple[Trail, ...]
    bodies: tuple[SignedRoot, ...]
    check: CheckTranscript


@dataclass(frozen=True)
class Investigated:
    """What is true of the claims of others, by their names: of their masks, or of what they sent."""

    manifest: bytes
    finding: Finding
    subject: Subject
    check: CheckTranscript
    truth: tuple[tuple[str, Scalars], ...]


@dataclass(frozen=True)
class CaseIn:
    """Somebody is said to have lied in a tamper check, with the evidence."""

    case: Case


@dataclass(frozen=True)
class RevealIn:
    """Everybody has signed for the release: this hop is to show its pad."""

    manifest: bytes
    signatures: Signatures
    life: bytes = b""
    bond: Bond | None = None
    """The same as a proof for others, to be kept."""


@dataclass(frozen=True)
class RecordIn:
    """A round is over, and this is its record."""

    record: Record
    life: bytes = b""


@dataclass(frozen=True)
class LieSeen:
    """The hop before has signed two stories of one sum."""

    verdict: Verdict


@dataclass(frozen=True)
class ForkSeen:
    """Two records of one round were found, both signed by the aggregator."""

    fork: Fork


@dataclass(frozen=True)
class EpochsIn:
    """Another epoch counts at this node."""

    epochs: Epochs
    now: float


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    now: float


Event = (
    Show
    | Prepare
    | Open
    | HeaderIn
    | Unopened
    | BodyIn
    | Counted
    | Spoiled
    | CohortIn
    | EvidenceIn
    | SendRefused
    | Delivered
    | CoinIn
    | Measured
    | ProveIn
    | Proven
    | ChargeIn
    | Investigated
    | CaseIn
    | ReadyIn
    | RevealIn
    | RecordIn
    | LieSeen
    | ForkSeen
    | EpochsIn
    | Tick
)


# Effects


@dataclass(frozen=True)
class Shows:
    """Answer with what this hop knows."""

    shown: Shown


@dataclass(frozen=True)
class Keys:
    """Answer with the attempt's keys."""

    keys: tuple[RoundKey, ...]
    last_released: int


@dataclass(frozen=True)
class Begin:
    """Make room for an attempt, and throw away what an earlier one left."""

    manifest: Manifest


@dataclass(frozen=True)
class Pass:
    """Open the seed in a header that is ours, begin to expand its mask, and relay the header to the next hop."""

    header: Header
    key: Secret | None = field(repr=False)


@dataclass(frozen=True)
class Drop:
    """Take back what was relayed of a silo's headers."""

    silo: str


@dataclass(frozen=True)
class Accuse:
    """Refuse the stream that brought a header, and show the hop before why."""

    evidence: Evidence


@dataclass(frozen=True)
class Count:
    """Add a body to the sum."""

    header: Header


@dataclass(frozen=True)
class Acknowledge:
    """Give the silo its receipt, for the first time or again."""

    receipt: Receipt


@dataclass(frozen=True)
class Release:
    """Take the masks of this cohort off the sum, and of nobody else, put the pad on, and send it on.

    By group, if there are groups. At hop 1, `roots` are those of the bodies, in the order of the cohort.
    """

    cohort: Cohort
    grouping: Grouping | None
    pad: Secret = field(repr=False)
    roots: tuple[bytes, ...] = ()
    bodies: tuple[SignedRoot, ...] = ()
    """At hop 1 and level malicious: what the silos have signed of their bodies, in the same order."""


@dataclass(frozen=True)
class Measure:
    """Compute the scalars of what came in, of what went out and of the pad, under this coin."""

    manifest: bytes
    context: bytes
    coin: bytes
    own: Trail
    """What this hop has signed for, maybe before it was started again: of nothing else does it state anything."""


@dataclass(frozen=True)
class Answer:
    """Answer the coin."""

    statement: Statement


@dataclass(frozen=True)
class Prove:
    """Make the silos' commitments at the traps again, and prove what this hop removed there."""

    manifest: bytes
    subject: Subject
    check: CheckTranscript


@dataclass(frozen=True)
class ShowProof:
    """Answer with the proofs."""

    proof: TrapProof


@dataclass(frozen=True)
class Investigate:
    """Find out which claims are true: of the masks that were sealed to this hop, or of what came in."""

    manifest: bytes
    finding: Finding
    subject: Subject
    check: CheckTranscript


@dataclass(frozen=True)
class Defend:
    """Answer a charge, with the vector that came from whoever is named, if it names one."""

    defence: Defence


@dataclass(frozen=True)
class Convict:
    """Somebody has lied, as this hop can show: keep the evidence, and tell operators. If it is about what went out of
    here, that goes with it."""

    round: int
    attempt: int
    verdict: Verdict


@dataclass(frozen=True)
class Agree:
    """Answer with the signature under the release."""

    signature: bytes


@dataclass(frozen=True)
class Reveal:
    """Answer with the pad."""

    pad: Secret = field(repr=False)


@dataclass(frozen=True)
class Countersign:
    """Answer with the signature for having stored a record."""

    record: Record
    signature: bytes


@dataclass(frozen=True)
class Switch:
    """The next round is in another epoch: this machine is done, and one of that epoch goes on from the journal."""

    epoch: bytes


@dataclass(frozen=True)
class Abort:
    """Give the attempt up and say why; the aggregator will try again."""

    fault: PeerFault


@dataclass(frozen=True)
class Forget:
    """The attempt is over: leave nothing of it in memory or on the disk."""


Effect = (
    Remember[Fact]
    | Shows
    | Keys
    | Begin
    | Pass
    | Drop
    | Accuse
    | Count
    | Acknowledge
    | Release
    | Measure
    | Answer
    | Prove
    | ShowProof
    | Investigate
    | Defend
    | Convict
    | Agree
    | Reveal
    | Countersign
    | Switch
    | Abort
    | Forget
)


class State(StrEnum):
    """Where a hop is with the newest attempt that it knows."""

    IDLE = "idle"
    """No attempt is open, or time ran out on it."""
    OPEN = "open"
    """Headers come, and at hop 1 bodies."""
    RELEASING = "releasing"
    """The cohort is closed and remembered; the padded sum is on its way."""
    DONE = "done"
    """The padded sum has come through to the aggregator: only the pad is left to show."""
    GIVEN_UP = "given up"
    """Nothing is released in this attempt any more."""


_NONE = refuses(Reason.WRONG_MANIFEST, "no attempt is open here")
_OVER = refuses(Reason.COHORT_CLOSED, "this attempt was given up")
_PREPARE = does("_prepare")
_OPEN = does("_open", State.OPEN, State.GIVEN_UP)
_CLOSING = (State.RELEASING, State.GIVEN_UP)
_ALWAYS = {
    Show: does("_show"),
    CoinIn: does("_coin"),
    Measured: does("_measured"),
    ProveIn: does("_prove"),
    Proven: does("_proven"),
    ChargeIn: does("_charge"),
    Investigated: does("_investigated"),
    CaseIn: does("_case"),
    ReadyIn: does("_ready"),
    RevealIn: does("_reveal"),
    RecordIn: does("_record", State.DONE),
    LieSeen: does("_lie", State.GIVEN_UP),
    ForkSeen: does("_fork"),
    EpochsIn: does("_epochs"),
}
"""What is answered from the journal alone, whatever is in memory: so a restart does not matter."""
TABLE: Table = {
    State.IDLE: {
        Prepare: _PREPARE,
        Open: _OPEN,
        HeaderIn: _NONE,
        Unopened: IGNORES,
        BodyIn: _NONE,
        Counted: IGNORES,
        Spoiled: IGNORES,
        CohortIn: _NONE,
        EvidenceIn: _NONE,
        SendRefused: IGNORES,
        Delivered: IGNORES,
        **_ALWAYS,
        Tick: does("_expire"),
    },
    State.OPEN: {
        Prepare: _PREPARE,
        Open: _OPEN,
        HeaderIn: does("_header"),
        Unopened: does("_unopened", *_CLOSING),
        BodyIn: does("_body"),
        Counted: does("_counted", *_CLOSING),
        Spoiled: does("_spoiled", State.GIVEN_UP),
        CohortIn: does("_cohort", State.RELEASING),
        EvidenceIn: does("_evidence", *_CLOSING),
        SendRefused: does("_send_refused", State.GIVEN_UP),
        Delivered: IGNORES,
        **_ALWAYS,
        Tick: does("_tick", *_CLOSING, State.IDLE),
    },
    State.RELEASING: {
        Prepare: _PREPARE,
        Open: _OPEN,
        HeaderIn: does("_late_header"),
        Unopened: IGNORES,
        BodyIn: does("_late_body"),
        Counted: IGNORES,
        Spoiled: does("_spoiled", State.GIVEN_UP),
        CohortIn: does("_cohort"),
        EvidenceIn: does("_evidence", State.GIVEN_UP),
        SendRefused: does("_send_refused", State.GIVEN_UP),
        Delivered: does("_delivered", State.DONE),
        **_ALWAYS,
        Tick: does("_expire", State.IDLE),
    },
    State.DONE: {
        Prepare: _PREPARE,
        Open: _OPEN,
        HeaderIn: does("_late_header"),
        Unopened: IGNORES,
        BodyIn: does("_late_body"),
        Counted: IGNORES,
        Spoiled: IGNORES,
        CohortIn: _NONE,
        EvidenceIn: IGNORES,
        SendRefused: IGNORES,
        Delivered: IGNORES,
        **_ALWAYS,
        Tick: does("_expire"),
    },
    State.GIVEN_UP: {
        Prepare: _PREPARE,
        Open: _OPEN,
        HeaderIn: _OVER,
        Unopened: IGNORES,
        BodyIn: _OVER,
        Counted: IGNORES,
        Spoiled: IGNORES,
        CohortIn: _OVER,
        EvidenceIn: does("_evidence"),
        SendRefused: IGNORES,
        Delivered: IGNORES,
        **_ALWAYS,
        Tick: does("_expire", State.IDLE),
    },
}
"""What an event does in each state. Whatever the state, a newer attempt may be opened."""


@dataclass
class _Attempt:
    manifest: Manifest
    opened: float
    headers: dict[bytes, Header] = field(default_factory=dict)
    counting: dict[str, tuple[bytes, Receipt]] = field(default_factory=dict)  # silo -> header digest, receipt
    counted: dict[str, tuple[bytes, Receipt]] = field(default_factory=dict)
    cohort: bytes = b""  # digest of the one that it is for, once it is closed
    released: Cohort | None = None  # the same, once its sum is on its way from here
    trailers: dict[bytes, SignedRoot] = field(default_factory=dict)  # by header digest, at hop 1
    took: dict[str, float] = field(default_factory=dict)  # by silo, at hop 1
    no_cohort: int = -1  # how many bodies were here when it was not to close early
    subject: Subject | None = None  # what the coin was tossed about that this hop has answered


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
    many = max(1, silos // size)
    groups = [0] * silos
    for place, silo in enumerate(order):
        groups[silo] = place % many
    return tuple(groups)


class Shuffler(Machine[State, Event, Effect, Fact]):
    """One hop's state: its keys, what it has released, and the newest attempt."""

    TABLE = TABLE

    def __init__(self, federation: Federation, identity: Identity, rng: Rng, epochs: Epochs | None = None) -> None:
        """Start empty; `recall` what the journal has before the first step."""
        self.federation = federation
        self.identity = identity
        self.state = State.IDLE
        self.keys: dict[tuple[int, int], dict[str, Secret]] = {}
        """By round and attempt, then by silo."""
        self.log = RoundLog(federation, epochs=epochs)
        self._successor: tuple[float, int] | None = None
        """Since when another epoch counts here that has not begun, and after how many applied rounds."""
        self.counts = False
        """Whether the log's newest record is known to count."""
        self.padded: dict[bytes, Padded] = {}
        """By manifest: attempts whose pad is still here."""
        self.signed: dict[bytes, Signed] = {}
        """By manifest: the release that this hop signed for."""
        self.closed = (0, 0)
        """The round and attempt before which nothing is signed any more."""
        self.released: dict[bytes, list[Released]] = {}
        """By model."""
        self.last_released = 0
        self.life = b""
        """The highest that an aggregator has shown: no other is served."""
        self._life_signature = b""
        self.forks: dict[int, Forked] = {}
        self.stated: dict[bytes, Statement] = {}
        """By manifest: the one coin that this hop has answered."""
        self.proved: dict[bytes, TrapProof] = {}
        """By manifest: what it has proved at the traps."""
        self.attempt: _Attempt | None = None
        self.unfit: dict[str, int] = {}
        """Silos that sit out, with the last round that they do."""
        self.convicted: set[bytes] = set()
        """Evidence from tamper checks that is known here."""
        self._evidence_on: dict[str, Evidence] = {}
        """By silo: the last evidence against it."""
        self._rng = rng
        self._began: dict[int, float] = {}
        """By round: when this process first heard of it."""
        self.pace = Pace(federation.policy.early_close)

    def recall(self, fact: Fact) -> None:
        """Take a fact in."""
        match fact:
            case Padded():
                self.padded[fact.manifest] = fact
            case PadGone():
                gone = self.padded.pop(fact.manifest, None)
                if gone is not None:
                    gone.pad.wipe()
            case Closed():
                self.closed = max(self.closed, (fact.round, fact.attempt))
            case Signed():
                self.signed[fact.manifest] = fact
            case Released():
                self.released.setdefault(fact.model, []).append(fact)
                self.last_released = max(self.last_released, fact.round)
            case Heard():
                self.life, self._life_signature = fact.life, fact.signature
            case Stored():
                self._take_record(fact.record)
            case Forked():
                self.forks[fact.known.round] = fact
            case KeysMade():
                self.keys[fact.round, fact.attempt] = dict(fact.keys)
            case KeysGone():
                for secret in self.keys.pop((fact.round, fact.attempt), {}).values():
                    secret.wipe()
            case Stated():
                self.stated[fact.manifest] = fact.statement
            case Proved():
                self.proved[fact.manifest] = fact.proof
            case Convicted():
                self.convicted.add(fact.evidence)
                self.unfit[fact.silo] = max(self.unfit.get(fact.silo, 0), fact.round + UNFIT_ROUNDS - 1)
            case Accused():
                silo = fact.evidence.silo
                self.unfit[silo] = max(self.unfit.get(silo, 0), fact.round + UNFIT_ROUNDS - 1)
                self._evidence_on[silo] = fact.evidence

    def wake_at(self) -> float | None:
        """When the next `Tick` is due: hop 1 closes the cohort at its deadline, and no secret outlives its round."""
        times = [self._expires(round_) for round_ in self._held()]
        if self.state is State.OPEN and self._first(self._now_open.manifest):
            times.append(min(self._closes, self._closes_early))
        return min(times, default=None)

    @property
    def _closes(self) -> float:
        return self._now_open.opened + self._now_open.manifest.deadline_s

    @property
    def waits_s(self) -> float:
        """How long hop 1 means to wait for the silos of the open attempt; 0 at any other hop."""
        manifest = self.manifest
        if not self._first(manifest):
            return 0.0
        bound = bool(self._said_bound(manifest))
        return float(manifest.deadline_s if bound else min(manifest.deadline_s, self.pace.patience_s))

    @property
    def _closes_early(self) -> float:
        """When enough silos came in past rounds; never, as long as those that are here now are no cohort."""
        attempt = self._now_open
        early = attempt.opened + self.pace.patience_s
        here = len(attempt.counted)
        may = here >= attempt.manifest.minimum_cohort and here != attempt.no_cohort
        return early if may and early < self._closes else inf

    def _close_early(self) -> list[Effect]:
        """Close before the deadline, if all hops would take the silos that are here for a cohort, or wait for more."""
        attempt = self._now_open
        attempt.no_cohort = len(attempt.counted)
        if self._said_bound(attempt.manifest) or attempt.cohort:
            return []  # those silos and no others
        try:
            self._check(*self._proposed(sorted(attempt.counted)))
        except PeerFault:
            return []
        return self._close()

    def _held(self) -> set[int]:
        """The rounds of which there is something to forget."""
        rounds = {round_ for round_, _ in list(self.keys)}  # copies: the driver's clock asks while a step may run
        rounds |= {p.round for p in list(self.padded.values()) if p.manifest not in self.signed}
        if self.attempt is not None and self.state in (State.OPEN, State.RELEASING, State.GIVEN_UP):
            rounds.add(self.attempt.manifest.round)
        return rounds

    def _expires(self, round_: int) -> float:
        """When a round's secrets go at the latest. Of one whose keys were made before a restart: ask at once."""
        policy = self.federation.policy
        began = self._began.get(round_)
        return -inf if began is None else began + policy.attempts * (policy.deadline_s + policy.release_s)

    def _begins(self, round_: int, now: float) -> None:
        """Start a round's clock with the first that this process hears of it; no later round sets it back."""
        self._began.setdefault(round_, now)

    def _first(self, manifest: Manifest) -> bool:
        return manifest.chain[0] == self.identity.name

    @property
    def _now_open(self) -> _Attempt:
        assert self.attempt is not None, "the table lets nothing come here while no attempt is open"
        return self.attempt

    @property
    def manifest(self) -> Manifest:
        """The attempt that is open, or was last; refused if there is none."""
        if self.attempt is None:
            raise PeerFault(Reason.WRONG_MANIFEST, "no attempt is open here")
        return self.attempt.manifest

    # An aggregator that begins

    def _show(self, event: Show) -> list[Effect]:
        """Show an aggregator process what it may have lost, and take nothing more from one that began before.

        It may be in another epoch already, or still: whichever comes first learns from the other. It signs with the key
        that it has there.
        """
        asks = self.log.epochs.find(event.federation) or self.federation
        asks.check_same(event.federation, asks.aggregator.name)
        Life(asks.aggregator.name, event.life, event.signature).check(asks)
        if number_of(event.life) > number_of(self.life) + MOST_AHEAD:  # no later process could go beyond it
            raise PeerFault(Reason.MALFORMED, "an aggregator process has a number far beyond that of the last one")
        log, attempts = self.log, [a for round_, a in (*self.keys, self.closed) if round_ == self.log.round]
        if self.attempt is not None and self.attempt.manifest.round == log.round:
            attempts.append(self.attempt.manifest.attempt)
        facts = [f for f in self.released.get(log.model, ()) if f.bond is not None]
        told = tuple(Told(f.round, f.attempt, f.model, f.bond) for f in facts[-MOST_TOLD:] if f.bond is not None)
        records = tuple(self._with_own(record) for record in log.records[event.start : event.start + MOST_SHOWN])
        newer: list[Effect] = []
        life, signature = self.life, self._life_signature
        if event.life > life:
            life, signature = event.life, event.signature
            newer.append(Remember(Heard(life, signature)))
        attempt = max(attempts, default=0)
        shown = Shown(life, log.round, event.start, records, attempt, self.last_released, told, signature)
        return [*newer, Shows(shown)]

    def _with_own(self, record: Record) -> Record:
        """The record with this hop's countersignature, unless it has countersigned another of that round."""
        name = self.identity.name
        if self._signed_other(record) or name in dict(record.countersignatures):
            return record
        own = tuple((name, one.signature) for one in self._countersign(record))
        return replace(record, countersignatures=(*record.countersignatures, *own))

    def _check_life(self, life: bytes) -> None:
        """Refuse an aggregator process that this hop has not heard, or that another has come after."""
        if life != self.life:
            after = f"one that began later (number {number_of(self.life)}) is served" if life < self.life else "show it"
            raise PeerFault(
                Reason.SUPERSEDED,
                f"this aggregator process (number {number_of(life)}) is not the one that was heard here last: {after}",
                peer=self.federation.aggregator.name,
                found=number_of(life),
                expected=number_of(self.life),
            )

    # Keys, and opening an attempt

    def _prepare(self, event: Prepare) -> list[Effect]:
        self._check_life(event.life)
        self.federation.check_same(event.federation, self.federation.aggregator.name)
        self._check_epoch(event.now)
        if event.known_released > self.last_released:
            raise _behind(event.known_released, self.last_released)
        newest = (0, 0)
        if self.attempt is not None:
            newest = (self.attempt.manifest.round, self.attempt.manifest.attempt)
        asked = (event.round, event.attempt)
        if event.round < self.log.round:
            raise PeerFault(Reason.WRONG_ROUND, f"round {event.round} is over", found=event.round)
        if asked < self.closed:  # keys that were made for a later attempt have closed this one, and so has its opening
            raise PeerFault(Reason.WRONG_ATTEMPT, f"attempt {event.attempt} is over", found=event.attempt)
        check_round(event.round, self.federation)
        if not 1 <= event.attempt <= MOST_ATTEMPTS:  # each leaves a fact behind
            raise PeerFault(Reason.WRONG_ATTEMPT, f"a round's attempts are 1 to {MOST_ATTEMPTS}", found=event.attempt)
        if (event.round, event.head) != (self.log.round, self.log.head):
            raise self._unlinked(event.round)
        if event.silos != self.federation.draw(self.log.applied + 1, self.log.model):
            raise PeerFault(Reason.WRONG_POLICY, "the silos of this round are not those that the policy draws")
        effects = self._close_before(*asked)
        made = self.keys.get(asked)
        if made is None and self.federation.plan.level is not Level.TRUSTED:
            if asked == newest:  # deleted, since its sum has come through
                raise PeerFault(Reason.WRONG_ATTEMPT, f"attempt {event.attempt} is over", found=event.attempt)
            made = {silo: Secret.draw(self._rng) for silo in event.silos}
            # Those that were never opened go: nobody makes a hop pile up keys.
            effects += [Remember(KeysGone(*number)) for number in self.keys if number != newest]
            effects.append(Remember(KeysMade(event.round, event.attempt, tuple(made.items()))))
        self._begins(event.round, event.now)
        keys = [
            RoundKey(
                self.identity.name, silo, event.round, event.attempt, public_key(private), self.last_released
            ).signed(self.identity, self.federation.digest, event.head)
            for silo, private in (made or {}).items()
        ]
        return [*effects, Keys(tuple(keys), self.last_released)]

    def _check_epoch(self, now: float) -> None:
        """Open no round under an epoch that is over, or that the aggregator keeps up though another counts for long."""
        if self.log.records and self.log.epoch != self.federation.digest:
            raise PeerFault(
                Reason.WRONG_EPOCH,
                f"the round log goes on in another epoch than {self.federation.epoch}, in which this hop is",
            )
        if self._successor is None:
            return
        since, applied = self._successor
        if now - since >= PATIENCE_S and self.log.applied - applied >= PATIENCE_ROUNDS:
            raise PeerFault(
                Reason.WRONG_EPOCH,
                f"epoch {self.federation.epoch + 1} has counted here for {self.log.applied - applied} rounds, and the "
                f"aggregator goes on in epoch {self.federation.epoch}: this hop does not",
                peer=self.federation.aggregator.name,
            )

    def _close_before(self, round_: int, attempt: int) -> list[Effect]:
        """Fence all earlier attempts: what was not released in one of them never will be."""
        if attempt == 1:  # earlier rounds are closed by their records
            return []
        gone = [p for p in self.padded.values() if (p.round, p.attempt) < (round_, attempt) and not self._shown(p)]
        closed: list[Effect] = [] if self.closed >= (round_, attempt) else [Remember(Closed(round_, attempt))]
        return closed + [Remember(PadGone(p.round, p.attempt, p.manifest)) for p in gone]

    def _shown(self, padded: Padded) -> bool:
        return any(fact.manifest == padded.manifest for fact in self.released.get(padded.model, ()))

    def _unlinked(self, round_: int) -> PeerFault:
        return PeerFault(
            Reason.WRONG_HEAD,
            f"round {round_} does not go on from the round log here, which ends with round {self.log.round - 1}",
            found=round_,
            expected=self.log.round,
        )

    def _open(self, event: Open) -> list[Effect]:
        self._check_life(event.life)
        manifest = event.manifest
        check_manifest(manifest, self.federation)
        if self.identity.name not in manifest.chain:
            raise PeerFault(Reason.WRONG_CHAIN, f"{self.identity.name} is not in this chain")
        if manifest.round < self.log.round:
            raise PeerFault(Reason.WRONG_ROUND, f"round {manifest.round} is over", found=manifest.round)
        self.log.check_link(manifest)
        self._check_epoch(event.now)
        counted = self._check_counts(event.head)
        before = self._bound_to(manifest)
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
        self._check_fence(manifest.round, manifest.attempt)
        own = self.keys.get((manifest.round, manifest.attempt), {})
        for key in manifest.hop_keys:
            if key.hop == self.identity.name:
                private = own.get(key.silo)
                if private is None or public_key(private) != key.public_key:
                    raise PeerFault(Reason.WRONG_KEYS, f"the key for {key.silo} is not one that this hop made")
                if key.last_released > self.last_released:
                    raise _behind(key.last_released, self.last_released)
        effects = [*counted, *self._close_before(manifest.round, manifest.attempt)]
        effects += [Remember(KeysGone(*number)) for number in self.keys if number != (manifest.round, manifest.attempt)]
        self._begins(manifest.round, event.now)
        padded = self.padded.get(manifest.digest)  # before a restart
        cohort = b"" if padded is None else padded.cohort
        self.attempt, self.state = _Attempt(manifest, event.now, cohort=cohort), State.OPEN
        effects.append(Begin(manifest))
        absent = [s for s in before if self._sits_out(s)]
        if absent and self._first(manifest):
            why = f"this model was released for a cohort with {', '.join(absent)}, who sit out"
            effects += self._give_up(PeerFault(Reason.ALREADY_RELEASED, why))
        return effects

    def _check_counts(self, head: Record) -> list[Effect]:
        """Check that the round log's head is stored by enough hops, and keep the proof."""
        if self.counts:
            return []
        if head.digest != self.log.head:
            raise self._unlinked(head.round + 1)
        check_countersigned(head, self.log.of(head))
        return [Remember(Stored(self._proved(head)))]

    def _proved(self, record: Record) -> Record:
        """The newest record as it is here, signed, with the countersignatures of a copy that counts."""
        assert self.log.last is not None, "the copy is one of it"
        return replace(self.log.last, countersignatures=record.countersignatures)

    def _said_bound(self, manifest: Manifest) -> tuple[str, ...]:
        """The silos that a model can still be released for, or nobody if it is free.

        The log says so too: this hop may be new, and have released nothing yet.
        """
        facts = self.released.get(manifest.model, ())
        return facts[0].silos if facts else self.log.released(manifest.model) or manifest.bound_to

    def _bound_to(self, manifest: Manifest) -> tuple[str, ...]:
        """The same, unless the manifest contradicts it: a pad may have been shown since it was opened."""
        silos = self._said_bound(manifest)
        if manifest.bound_to not in ((), silos):
            raise PeerFault(
                Reason.ALREADY_RELEASED, "this model was released for another cohort, and is for no second one, ever"
            )
        return silos

    # Headers

    def _header(self, event: HeaderIn) -> list[Effect]:
        attempt, header = self._check_header(event)
        first = self._first(attempt.manifest)
        digest = header.digest
        if digest in attempt.headers and not first:
            return []  # the hop before begins a broken stream anew
        counted = attempt.counted.get(header.silo) or attempt.counting.get(header.silo)
        if counted is not None:
            if counted[0] != digest:
                raise _conflict(header.silo)
            return [Acknowledge(counted[1])] if header.silo in attempt.counted else []
        if first:
            self._check_cohort_has(header.silo)
        if digest in attempt.headers:
            return []
        if sum(h.silo == header.silo for h in attempt.headers.values()) >= MOST_HEADERS:
            raise PeerFault(
                Reason.WRONG_SEQUENCE,
                f"{header.silo} has begun {MOST_HEADERS} bodies in this attempt, and begins no other",
                peer=header.silo,
            )
        attempt.headers[digest] = header
        return [Pass(header, self._key_for(header.silo))]

    def _late_header(self, event: HeaderIn) -> list[Effect]:
        attempt, header = self._check_header(event)
        if header.digest in attempt.headers and not self._first(attempt.manifest):
            return []
        counted = attempt.counted.get(header.silo)
        if counted is not None and counted[0] == header.digest:
            return [Acknowledge(counted[1])]
        raise PeerFault(Reason.COHORT_CLOSED, "the cohort is closed", peer=header.silo)

    def _check_header(self, event: HeaderIn) -> tuple[_Attempt, Header]:
        attempt, header = self._now_open, event.header
        place = attempt.manifest.layer(self.identity.name)
        sender = header.silo if place == 1 else attempt.manifest.chain[place - 2]
        if event.sender != sender:
            raise PeerFault(Reason.UNKNOWN_PEER, f"{event.sender} sent what {sender} should", peer=event.sender)
        check_header(header, attempt.manifest, self.federation)
        self._check_fit(header.silo, first=place == 1)
        return attempt, header

    def _key_for(self, silo: str) -> Secret | None:
        manifest = self._now_open.manifest
        return self.keys.get((manifest.round, manifest.attempt), {}).get(silo)

    def _sits_out(self, silo: str) -> bool:
        return self.unfit.get(silo, 0) >= self._now_open.manifest.round

    def _check_fit(self, silo: str, *, first: bool) -> None:
        """Refuse a silo that sealed garbage: in the same attempt with the evidence, since the word may have been lost.

        In later attempts it is hop 1 that lets it sit out: a hop that never saw the evidence would take a refusal
        without it for the end of the attempt.
        """
        shown = self._evidence_on.get(silo)
        if shown is not None and shown.manifest == self._now_open.manifest.digest:
            raise Accusation(shown)
        if first and self._sits_out(silo):
            raise PeerFault(
                Reason.SEAL_BROKEN,
                f"{silo} was shown to have sealed garbage, or to have lied: it sits out until round "
                f"{self.unfit[silo] + 1}",
                peer=silo,
            )

    def _check_cohort_has(self, silo: str) -> None:
        """Keep a silo out of the sum on a model that was released without it."""
        before = self._bound_to(self._now_open.manifest)
        if before and silo not in before:
            raise PeerFault(
                Reason.ALREADY_RELEASED,
                f"this model was released for a cohort without {silo}, and is for no other",
                peer=silo,
            )

    # A silo that sealed garbage: nobody is left out on a bare word

    def _unopened(self, event: Unopened) -> list[Effect]:
        """Open the key that was made for this silo and attempt: whoever has the manifest sees that it opens nothing."""
        attempt, header = self._now_open, event.header
        key = self._key_for(header.silo)
        if header.digest not in attempt.headers or key is None:
            return []
        evidence = Evidence.of(attempt.manifest.digest, self.identity.name, header, key)
        return [*self._leave_out(evidence, header), Accuse(evidence)]

    def _evidence(self, event: EvidenceIn) -> list[Effect]:
        """Look at the evidence oneself, then go on without the silo."""
        attempt, evidence = self._now_open, event.evidence
        if evidence.manifest != attempt.manifest.digest:
            raise PeerFault(Reason.FALSE_EVIDENCE, "the evidence is about another attempt")
        header = attempt.headers.get(evidence.header)
        if header is None:  # a stream that was begun anew may have brought evidence before, and the header is dropped
            known = self._evidence_on.get(evidence.silo)
            if known is not None and known.manifest == evidence.manifest:
                return []
            raise PeerFault(Reason.FALSE_EVIDENCE, "the evidence is about a header that never came")
        check_evidence(evidence, header, attempt.manifest)
        if self._sits_out(evidence.silo):
            return []
        return self._leave_out(evidence, header)

    def _leave_out(self, evidence: Evidence, header: Header) -> list[Effect]:
        """Go on without a silo. If it is in the sum already, this attempt is lost, and the next is without it."""
        attempt, silo = self._now_open, header.silo
        effects: list[Effect] = [Remember(Accused(attempt.manifest.round, evidence))]
        if self.state is State.GIVEN_UP:
            return effects
        in_sum = silo in attempt.counted or silo in attempt.counting
        if self.state is State.RELEASING:
            padded = self.padded.get(attempt.manifest.digest)  # gone, if a further attempt is being prepared
            in_sum = padded is not None and silo in padded.silos
        effects.append(self._drop(silo))
        if in_sum:
            why = f"{silo} is in the sum, and a hop cannot take its mask off"
            return [*effects, *self._give_up(PeerFault(Reason.SEAL_BROKEN, why, peer=silo))]
        if self.state is State.OPEN and self._first(attempt.manifest) and self._complete(attempt, silo):
            effects += self._close()
        return effects

    def _drop(self, silo: str) -> Drop:
        attempt = self._now_open
        attempt.headers = {digest: h for digest, h in attempt.headers.items() if h.silo != silo}
        return Drop(silo)

    # Bodies, and closing the cohort: hop 1's

    def _body(self, event: BodyIn) -> list[Effect]:
        attempt, header = self._check_body(event)
        counted = attempt.counted.get(header.silo) or attempt.counting.get(header.silo)
        if counted is not None:
            if counted[0] != header.digest or counted[1].root != event.root:
                raise _conflict(header.silo)
            return [Acknowledge(counted[1])] if header.silo in attempt.counted else []
        self._check_cohort_has(header.silo)
        silo = self.federation.member(header.silo)
        verify(silo.key, trailer_digest(header.digest, event.root), event.signature, header.silo)
        receipt = Receipt(header.silo, header.manifest, event.root, self.identity.name)
        receipt = replace(receipt, signature=self.identity.sign(receipt.digest))
        attempt.counting[header.silo] = (header.digest, receipt)
        attempt.trailers[header.digest] = SignedRoot(event.root, event.signature)
        return [Count(header)]

    def _late_body(self, event: BodyIn) -> list[Effect]:
        attempt, header = self._check_body(event)
        counted = attempt.counted.get(header.silo)
        if counted is not None and counted[0] == header.digest and counted[1].root == event.root:
            return [Acknowledge(counted[1])]
        raise PeerFault(Reason.COHORT_CLOSED, "the cohort is closed", peer=header.silo)

    def _check_body(self, event: BodyIn) -> tuple[_Attempt, Header]:
        attempt, header = self._now_open, event.header
        if header.manifest != attempt.manifest.digest:
            raise PeerFault(Reason.WRONG_MANIFEST, "the attempt ended while the body was on its way", peer=header.silo)
        if not self._first(attempt.manifest):
            raise PeerFault(Reason.WRONG_CHAIN, "bodies go to the first hop, and this is another", peer=header.silo)
        self._check_fit(header.silo, first=True)
        if header.digest not in attempt.headers:
            raise PeerFault(Reason.WRONG_SEQUENCE, "a body whose header never came", peer=header.silo)
        if event.root != event.signed_root:
            raise PeerFault(
                Reason.ROOT_MISMATCH, f"the chunks of {header.silo} are not those that it signed", peer=header.silo
            )
        return attempt, header

    def _counted(self, event: Counted) -> list[Effect]:
        attempt, silo = self._now_open, event.header.silo
        counting = attempt.counting.get(silo)
        if counting is None or counting[0] != event.header.digest:
            return []
        attempt.counted[silo] = attempt.counting.pop(silo)
        if event.now is not None:
            attempt.took[silo] = max(0.0, event.now - attempt.opened)
        effects: list[Effect] = [Acknowledge(counting[1])]
        if self._complete(attempt):
            effects += self._close()
        return effects

    def _spoiled(self, event: Spoiled) -> list[Effect]:
        if event.manifest != self._now_open.manifest.digest:
            return []
        return self._give_up(PeerFault(Reason.WRONG_SEQUENCE, f"a body could not be added: {event.why}"))

    def _complete(self, attempt: _Attempt, without: str = "") -> bool:
        """Whether the cohort can close before its deadline: all are in, or a quorum is."""
        before = self._said_bound(attempt.manifest)
        if before:
            return set(before) <= set(attempt.counted)
        names = [s for s in invited(attempt.manifest, self.federation) if not self._sits_out(s) and s != without]
        quorum = max(attempt.manifest.minimum_cohort, ceil(round(len(names) * self.federation.policy.quorum, 6)))
        return len(attempt.counted) >= max(attempt.manifest.minimum_cohort, min(quorum, len(names)))

    def _check_fence(self, round_: int, attempt: int) -> None:
        """Refuse an attempt that this hop has closed, though it may still be open here: the next is being prepared."""
        if (round_, attempt) < self.closed:
            raise PeerFault(Reason.FENCED, f"attempt {attempt} of round {round_} is fenced here")

    def _close(self) -> list[Effect]:
        attempt = self._now_open
        manifest = attempt.manifest
        try:
            self._check_fence(manifest.round, manifest.attempt)
            before = self._bound_to(manifest)
        except PeerFault as fault:
            return self._give_up(fault)
        silos = sorted(before or attempt.counted)
        missing = [s for s in silos if s not in attempt.counted]
        if missing:
            why = f"this model was released for a cohort with {', '.join(missing)}, who are not here"
            return self._give_up(PeerFault(Reason.ALREADY_RELEASED, why))
        cohort, grouping = self._proposed(silos)
        if attempt.cohort not in (b"", cohort.digest):
            why = "this attempt closed for another cohort before a restart, and is for no second one"
            return self._give_up(PeerFault(Reason.ALREADY_RELEASED, why))
        try:
            self._check(cohort, grouping)
        except PeerFault as fault:
            return self._give_up(fault)
        if manifest.attempt == 1 and not before and len(attempt.took) == len(silos):
            # In a further attempt most have trained already, and those who are bound are no measure for the others.
            names = [s for s in invited(manifest, self.federation) if not self._sits_out(s)]
            self.pace = self.pace.after(tuple(attempt.took.values()), len(names))
        return self._release(cohort, grouping)

    def _proposed(self, silos: list[str]) -> tuple[Cohort, Grouping | None]:
        """The cohort of some silos whose bodies are here, signed, with their groups."""
        attempt = self._now_open
        manifest = attempt.manifest
        cohort = Cohort(manifest.digest, tuple(Participant(s, attempt.counted[s][0]) for s in silos))
        cohort = replace(cohort, signature=self.identity.sign(cohort.digest))
        if not manifest.group_size:
            return cohort, None
        facts = (*self.released.get(manifest.model, ()), *filter(None, [self.padded.get(manifest.digest)]))
        groups = facts[0].groups if facts else self._deal(manifest, silos)
        return cohort, Grouping(groups, self.identity.sign(Grouping(groups).digest(cohort.digest)))

    def _deal(self, manifest: Manifest, silos: list[str]) -> tuple[int, ...]:
        """Deal the groups of these silos on this model: random to all others, and the same however often it is done.

        Another hop may be bound to groups that were dealt in an earlier attempt, of which nothing is left here. An
        Ed25519 signature is a function of what is signed, and nobody else can make it: it is the seed.
        """
        seed = self.identity.sign(digest("deal", manifest.model, manifest.group_size, *silos))
        drawn = count()
        return deal(len(silos), manifest.group_size, lambda size: digest("dealt", seed, next(drawn))[:size])

    # Releasing

    def _check(self, cohort: Cohort, grouping: Grouping | None) -> None:
        attempt = self._now_open
        check_cohort(cohort, attempt.manifest, self.federation, attempt.headers)
        if self.log.applied:
            check_step(cohort.silos, self.log.cohort, self.federation)
        if (grouping is not None) is not bool(attempt.manifest.group_size):
            raise PeerFault(Reason.WRONG_SEQUENCE, "a grouping is missing, or spare")
        if grouping is not None:
            check_grouping(grouping, cohort, attempt.manifest, self.federation)

    def _cohort(self, event: CohortIn) -> list[Effect]:
        attempt = self._now_open
        manifest = attempt.manifest
        if self._first(manifest):
            raise PeerFault(Reason.WRONG_CHAIN, "this is the first hop: it closes the cohort itself")
        self._check_fence(manifest.round, manifest.attempt)
        self._check(event.cohort, event.grouping)
        groups = () if event.grouping is None else event.grouping.groups
        padded = self.padded.get(manifest.digest)
        other = attempt.cohort not in (b"", event.cohort.digest) or (padded is not None and padded.groups != groups)
        if other or not self._free_for(manifest, event.cohort.silos, groups):
            raise PeerFault(
                Reason.ALREADY_RELEASED,
                "this model was released, or this attempt closed, for another cohort, and is for no second one, ever",
                round=manifest.round,
            )
        if self.state is State.RELEASING:
            return []  # a broken stream begins anew
        return self._release(event.cohort, event.grouping)

    def _free_for(self, manifest: Manifest, silos: tuple[str, ...], groups: tuple[int, ...]) -> bool:
        """Whether a model can be released for these silos in these groups: it was for nobody, or for just them."""
        bound = self._bound_to(manifest)
        return bound in ((), silos) and all(f.groups == groups for f in self.released.get(manifest.model, ()))

    def _release(self, cohort: Cohort, grouping: Grouping | None) -> list[Effect]:
        """Pass the sum on under a pad. Cohort, grouping and pad are one fact, before the first byte leaves."""
        attempt = self._now_open
        manifest = attempt.manifest
        attempt.cohort, attempt.released, self.state = cohort.digest, cohort, State.RELEASING
        roots = tuple(attempt.counted[s][1].root for s in cohort.silos) if self._first(manifest) else ()
        bodies: tuple[SignedRoot, ...] = ()
        if roots and checks(self.federation):
            bodies = tuple(attempt.trailers[p.header] for p in cohort.participants)
        padded = self.padded.get(manifest.digest)
        if padded is not None:  # a restart goes on with what was remembered
            return [Release(cohort, grouping, padded.pad.copy(), roots, bodies)]
        padded = Padded(
            manifest.round,
            manifest.attempt,
            manifest.digest,
            manifest.model,
            manifest.chain,
            cohort.digest,
            cohort.silos,
            () if grouping is None else grouping.groups,
            b"" if grouping is None else grouping.seal,
            Secret.draw(self._rng),
        )
        # A copy: the pad that is remembered may be destroyed at any time, and the sum be on its way to be covered.
        return [Remember(padded), Release(cohort, grouping, padded.pad.copy(), roots, bodies)]

    # Ready, and showing the pad

    def _padded(self, manifest: bytes) -> Padded:
        padded = self.padded.get(manifest)
        if padded is None:
            raise PeerFault(Reason.FENCED, "this hop holds no pad of that attempt: it is fenced, or never passed here")
        return padded

    def _ready(self, event: ReadyIn) -> list[Effect]:
        """Sign for a release, once for an attempt, when every hop has passed the same cohort's sum on."""
        self._check_life(event.life)
        padded = self._padded(event.manifest)
        ready = Ready(event.manifest, padded.model, event.trails)
        check_ready(ready, padded.cohort, padded.chain, self.federation)
        own = ready.trails[padded.chain.index(self.identity.name)]
        if own.pad != pad_digest(padded.pad) or own.grouping != padded.grouping:
            raise PeerFault(Reason.WRONG_PAD, "the trail that is said to be this hop's has another pad or grouping")
        if checks(self.federation):
            try:
                ready = replace(ready, check=self._checked(padded, ready, event.check))
            except PeerFault as fault:
                if seen := self._arrival(padded, event.check, fault):
                    return seen
                raise
        signed = self.signed.get(event.manifest)
        if signed is not None and signed.agreed != ready.digest:
            raise PeerFault(Reason.ALREADY_RELEASED, "this hop has signed another release of this attempt")
        if signed is None:
            self._check_fence(padded.round, padded.attempt)
        fact = Signed(padded.round, padded.attempt, event.manifest, ready.digest, padded.silos, padded.model)
        remember: list[Effect] = [] if signed else [Remember(fact)]
        if checks(self.federation) and self.attempt is not None and self.attempt.manifest.digest == event.manifest:
            remember += self._forget_keys()
        return [*remember, Agree(self.identity.sign(ready.digest))]

    # The tamper check, at level malicious

    def _coin(self, event: CoinIn) -> list[Effect]:
        """Answer the coin of an attempt, once: what was answered is in the journal before it leaves."""
        padded = self._padded(event.manifest)
        ready = Ready(event.manifest, padded.model, event.trails)
        with relayed(self.federation):
            check_ready(ready, padded.cohort, padded.chain, self.federation)
        said = self.stated.get(event.manifest)
        if said is not None:  # also after a restart
            shares = {one.silo: one.share for one in event.tosses}
            if (said.context, said.coin) != (ready.digest, combined(ready.digest, shares)):
                raise PeerFault(Reason.WRONG_SEQUENCE, "this hop has answered another coin of this attempt")
            return [Answer(said)]
        subject = self._subject(event.manifest, ready, event.bodies)
        with relayed(self.federation):
            coin = coin_of(subject, event.tosses, self.federation)
        self._now_open.subject = subject
        own = subject.ready.trails[self._now_open.manifest.layer(self.identity.name) - 1]
        return [Measure(event.manifest, subject.context, coin, own)]

    def _subject(self, manifest: bytes, ready: Ready, bodies: tuple[SignedRoot, ...]) -> Subject:
        """Put together what a check is about, from what is here and what was passed on; refuse if it is gone."""
        attempt = self.attempt
        here = attempt is not None and attempt.manifest.digest == manifest and attempt.released is not None
        if attempt is None or attempt.released is None or not here or self.state not in (State.RELEASING, State.DONE):
            raise PeerFault(Reason.WRONG_SEQUENCE, "this hop was started again, and no longer has what passed here")
        self._check_fence(attempt.manifest.round, attempt.manifest.attempt)
        cohort = attempt.released
        subject = Subject(cohort, tuple(attempt.headers[p.header] for p in cohort.participants), bodies, ready)
        own = ready.trails[attempt.manifest.layer(self.identity.name) - 1]
        padded = self._padded(manifest)
        if own.pad != pad_digest(padded.pad):
            raise PeerFault(Reason.WRONG_PAD, "the trail that is said to be this hop's has another pad")
        with relayed(self.federation):
            check_subject(subject, attempt.manifest, self.federation)
        return subject

    def _measured(self, event: Measured) -> list[Effect]:
        said = self.stated.get(event.manifest)
        if said is not None and (said.context, said.coin) != (event.context, event.coin):
            raise PeerFault(Reason.WRONG_SEQUENCE, "this hop has answered another coin of this attempt")
        if said is not None:
            return [Answer(said)]
        padded = self._padded(event.manifest)
        made = Statement(self.identity.name, event.context, event.coin, event.scalars, trapped=event.trapped)
        made = made.signed(self.identity)
        return [Remember(Stated(padded.round, padded.attempt, event.manifest, made)), Answer(made)]

    def _prove(self, event: ProveIn) -> list[Effect]:
        """Prove what was removed at the traps, once for an attempt, when all the rest of the check holds."""
        padded, own, check = self._padded(event.manifest), self.stated.get(event.manifest), event.check
        ready = Ready(event.manifest, padded.model, event.trails)
        if not self.federation.policy.traps or own is None or own not in check.statements or check.proofs:
            raise PeerFault(Reason.WRONG_SEQUENCE, "there is nothing to prove, or not about this hop's own scalars")
        with relayed(self.federation):
            check_ready(ready, padded.cohort, padded.chain, self.federation)
            check_said(check, ready.digest, padded.silos, padded.chain, self.federation)
            check_equations(check, padded.silos, padded.chain, self.federation)
        known = self.proved.get(event.manifest)
        if known is None:
            return [Prove(event.manifest, self._subject(event.manifest, ready, event.bodies), check)]
        if known.check != check.said:
            raise PeerFault(Reason.WRONG_SEQUENCE, "this hop has proved something about another check of this attempt")
        return [ShowProof(known)]

    def _proven(self, event: Proven) -> list[Effect]:
        """Sign the proofs; or open the key of one silo that has committed to another mask, and of no other."""
        manifest = self._now_open.manifest
        known = self.proved.get(event.manifest)
        if known is not None:
            return [ShowProof(known)]
        if manifest.digest != event.manifest:
            raise PeerFault(Reason.WRONG_SEQUENCE, "another attempt is open by now")
        if event.false:
            silo = event.false[0]
            made = accuse(event.check, silo, self.keys[manifest.round, manifest.attempt][silo], self.identity)
            fact = Convicted(manifest.round, silo, made.digest)
            return [*([Remember(fact)] if self._first(manifest) else []), Defend(made)]
        proof = TrapProof(self.identity.name, event.check.said, event.proofs).signed(self.identity)
        return [Remember(Proved(manifest.round, manifest.attempt, event.manifest, proof)), ShowProof(proof)]

    def _checked(self, padded: Padded, ready: Ready, check: CheckTranscript | None) -> bytes:
        """Check everybody's scalars before this hop signs anything: a sum that was altered stays under its pad."""
        own = self.stated.get(padded.manifest)
        if check is None or own is None or own not in check.statements or own.context != ready.digest:
            raise PeerFault(
                Reason.WRONG_SEQUENCE,
                "a release needs the tamper check's transcript, with this hop's own answer in it",
                peer=self.federation.aggregator.name,
            )
        with relayed(self.federation):
            check_said(check, ready.digest, padded.silos, padded.chain, self.federation)
        check_equations(check, padded.silos, padded.chain, self.federation)
        with relayed(self.federation):
            check_proofs(check, padded.chain, self.federation)
        return check.digest

    def _arrival(self, padded: Padded, check: CheckTranscript | None, fault: PeerFault) -> list[Effect]:
        """Make a case of it, once, if the aggregator states other scalars of what this hop sent it than that has.

        An honest aggregator would have shown what came, and not have asked for a signature.
        """
        attempt, who = self.attempt, self.federation.aggregator.name
        if fault.reason is not Reason.TAMPERED or fault.details.get("where") != who:
            return []
        if padded.chain[-1] != self.identity.name or attempt is None or attempt.manifest.digest != padded.manifest:
            return []
        case = Case(Charge.ARRIVAL, attempt.manifest, attempt.subject, check=check)
        if attempt.subject is None or case.digest in self.convicted:
            return []
        return self._witness(Verdict(who, f"{who} signed false scalars of what reached it", case))

    def _lie(self, event: LieSeen) -> list[Effect]:
        """Pass nothing on that was told twice: the attempt ends here."""
        if event.verdict.case.digest in self.convicted:
            return []
        effects = self._witness(event.verdict)
        if self.attempt is not None and self.attempt.manifest == event.verdict.case.manifest:
            effects += self._give_up(PeerFault(Reason.TAMPERED, event.verdict.sentence, peer=event.verdict.culprit))
        return effects

    def _witness(self, verdict: Verdict) -> list[Effect]:
        of = verdict.case.manifest
        fact = Convicted(of.round, verdict.culprit, verdict.case.digest)
        return [Remember(fact), Convict(of.round, of.attempt, verdict)]

    def _charge(self, event: ChargeIn) -> list[Effect]:
        """Find out who lied, if an equation fails at this hop; a charge that does not hold is refused."""
        padded, own = self._padded(event.manifest), self.stated.get(event.manifest)
        ready = Ready(event.manifest, padded.model, event.trails)
        with relayed(self.federation):
            check_ready(ready, padded.cohort, padded.chain, self.federation)
            check_said(event.check, ready.digest, padded.silos, padded.chain, self.federation)
        first = first_finding(event.check, self.federation, padded.silos, padded.chain)
        if own is None or own not in event.check.statements or first is None or first.where != self.identity.name:
            why = "a charge that is none: no equation fails here first, or these are not this hop's scalars"
            raise PeerFault(Reason.FALSE_EVIDENCE, why, peer=self.federation.aggregator.name)
        subject = self._subject(event.manifest, ready, event.bodies)
        return [Investigate(event.manifest, first, subject, event.check)]

    def _investigated(self, event: Investigated) -> list[Effect]:
        """Open one claim that is false. No other key is ever opened, so no honest silo's mask is."""
        manifest, truth, chain = self._now_open.manifest, dict(event.truth), self._now_open.manifest.chain
        if manifest.digest != event.manifest:
            raise PeerFault(Reason.WRONG_SEQUENCE, "another attempt is open by now")
        keys = self.keys.get((manifest.round, manifest.attempt), {})
        roots = {}
        if event.finding.kind is EquationKind.EDGE:
            roots = {name: signed_root(event.subject, self.identity.name, name, manifest) for name in truth}
        made = defend(event.finding, event.check, chain, truth, keys, roots, self.identity)
        effects: list[Effect] = []
        if made.name and self._first(manifest):
            effects.append(Remember(Convicted(manifest.round, made.name, made.digest)))
        return [*effects, Defend(made)]

    def _case(self, event: CaseIn) -> list[Effect]:
        """Look at evidence against a silo oneself, and let it sit out. One of a vector is known where that came in."""
        verdict = decide(event.case, self.federation)
        round_ = event.case.manifest.round
        if verdict.culprit not in self.federation.silo_names or round_ < self.log.round - UNFIT_ROUNDS:
            return []
        if self.unfit.get(verdict.culprit, 0) >= round_ + UNFIT_ROUNDS - 1:  # a silo can sign as many lies as it likes
            return []
        return [Remember(Convicted(round_, verdict.culprit, event.case.digest))]

    def _reveal(self, event: RevealIn) -> list[Effect]:
        """Show the pad when all have signed: but first remember, for ever, for whom this model is released."""
        self._check_life(event.life)
        padded, bond = self._padded(event.manifest), event.bond
        signed = self.signed.get(event.manifest)
        if signed is None:
            raise PeerFault(Reason.WRONG_SEQUENCE, "this hop has not signed for that release")
        agreed = signed.agreed
        check_agreed(agreed, event.signatures, padded.chain, self.federation)
        if bond is not None and (
            bond.agreed(padded.model) != agreed or bond.signatures != tuple(s for _, s in event.signatures)
        ):
            raise PeerFault(Reason.WRONG_SEQUENCE, "the proof of a release is not that of the one that was signed for")
        facts = self.released.get(padded.model, ())
        if any((f.silos, f.groups) != (padded.silos, padded.groups) for f in facts):
            raise PeerFault(
                Reason.ALREADY_RELEASED, "this model was released for another cohort, and is for no second one, ever"
            )
        fact = Released(
            padded.round, padded.attempt, event.manifest, agreed, padded.silos, padded.model, padded.groups, bond
        )
        known = any(f.manifest == fact.manifest for f in facts)
        remember: list[Effect] = [] if known else [Remember(fact)]
        return [*remember, Reveal(padded.pad.copy())]

    # The round log

    def _record(self, event: RecordIn) -> list[Effect]:
        """Store a round's record, and countersign it: one for each round."""
        record = event.record
        if not self._is_counted(record):  # one that counts is true, whoever brings it
            self._check_life(event.life)
        if record.digest == self.log.head:
            known: list[Effect] = []
            if not self.counts and self._is_counted(record):
                known = [Remember(Stored(self._proved(record))), *self._switch(record)]
            return known if self._signed_other(record) else [*known, *self._countersign(record)]
        replaced = self.log.last if self._replaces(record) else None
        if replaced is not None:
            RoundLog(self.federation, self.log.records[:-1], self.log.epochs).check_next(record)
        else:
            self.log.check_next(record)
        self._check_own(record)
        gone = [p for p in self.padded.values() if p.round <= record.round]
        keys = [number for number in self.keys if number[0] <= record.round]
        effects: list[Effect] = [Remember(PadGone(p.round, p.attempt, p.manifest)) for p in gone]
        effects += [Remember(KeysGone(*number)) for number in keys]
        if replaced is not None:  # both are signed: it told two stories, whichever of them counts
            effects += self._fork(ForkSeen(Fork(replaced, record)))
        effects.append(Remember(Stored(record)))  # last: a hop that is killed before is asked again, and forgets all
        if self.attempt is not None and self.attempt.manifest.round == record.round:
            self.state = State.DONE
            effects.append(Forget())
        effects += self._switch(record) if self._is_counted(record) else []
        return effects if replaced is not None else [*effects, *self._countersign(record)]

    def _switch(self, record: Record) -> list[Effect]:
        """Go on in the epoch that a record names, once it counts; a hop that came later may be there already."""
        following = self.log.epochs.find(record.next)
        return [] if following is None or following.epoch <= self.federation.epoch else [Switch(record.next)]

    def _signed_other(self, record: Record) -> bool:
        """Whether this hop has countersigned another record of that round: it signs for one, whatever came to count."""
        fork = self.forks.get(record.round)
        return fork is not None and fork.known.digest != record.digest

    def _replaces(self, record: Record) -> bool:
        """Whether the newest record here did not come to count, and this one of the same round did."""
        return not self.counts and record.round == self.log.round - 1 and self._is_counted(record)

    def _countersign(self, record: Record) -> list[Countersign]:
        """Sign for having stored a record of an epoch in whose pool this hop is."""
        if self.identity.name not in self.log.of(record).chain:
            return []
        return [Countersign(record, self.identity.sign(countersign_digest(record.digest, self.identity.name)))]

    def _take_record(self, record: Record) -> None:
        if record.round == self.log.round - 1:
            self.log.records.pop()
        self.log.append(record)
        self.counts = self._is_counted(record)

    def _is_counted(self, record: Record) -> bool:
        try:
            check_countersigned(record, self.log.of(record))
        except PeerFault:
            return False
        return True

    def _check_own(self, record: Record) -> None:
        """Refuse a record that contradicts what this hop has written down itself."""
        told = {one.agreed for one in record.attempts if one.agreed}
        facts = [f for each in self.released.values() for f in each]
        for fact in facts:
            if fact.round == record.round and fact.agreed not in told:
                raise PeerFault(
                    Reason.WRONG_HEAD, f"the record of round {record.round} leaves out what this hop released in it"
                )
        for one in record.attempts:
            if one.agreed and self.identity.name in one.chain:
                self._check_signed(one, record)
        last = record.attempts[-1] if record.attempts else None
        if record.outcome is not Outcome.APPLIED or last is None or self.identity.name not in last.chain:
            return
        known = (record.round, record.model_before, last.manifest, last.agreed, last.silos)
        if not any((f.round, f.model, f.manifest, f.agreed, f.silos) == known for f in facts):
            raise PeerFault(
                Reason.WRONG_ROUND,
                f"round {record.round} was applied with this hop's pad, and its journal knows nothing of it: it was "
                "restored from an old copy and does not serve, or the aggregator lies",
                found=record.round,
            )

    def _check_signed(self, one: Attempted, record: Record) -> None:
        """Refuse a release that this hop did not sign for: it would bind the model to silos that somebody chose."""
        fact = self.signed.get(one.manifest)
        said = (one.agreed, one.silos, record.model_before)
        if fact is None or (fact.agreed, fact.silos, fact.model) != said:
            raise PeerFault(
                Reason.WRONG_ROUND,
                f"attempt {one.attempt} of round {record.round} is said to have this hop's signature, and its journal "
                "knows nothing of it, or of other silos: it was restored from an old copy and does not serve, or the "
                "aggregator lies",
                found=record.round,
            )

    def _fork(self, event: ForkSeen) -> list[Effect]:
        fork = event.fork
        return [] if fork.known.round in self.forks else [Remember(Forked(fork.known, fork.other))]

    def _epochs(self, event: EpochsIn) -> list[Effect]:
        self.log.epochs = event.epochs
        if self._successor is None and event.epochs.after(self.federation.digest) is not None:
            self._successor = (event.now, self.log.applied)
        return []

    def _give_up(self, fault: PeerFault) -> list[Effect]:
        self.state = State.GIVEN_UP
        return [Abort(fault)]

    def _send_refused(self, event: SendRefused) -> list[Effect]:
        if event.manifest != self._now_open.manifest.digest:
            return []
        return self._give_up(event.fault)

    # The end: nothing outlives the round

    def _delivered(self, event: Delivered) -> list[Effect]:
        """The release needs none of the keys: they, and the vector, go as soon as the padded sum has come through."""
        manifest = self._now_open.manifest
        if manifest.digest != event.manifest:
            return []
        self.state = State.DONE
        if checks(self.federation):  # they answer the coin first, and go when this hop has signed
            return []
        return self._forget_keys()

    def _forget_keys(self) -> list[Effect]:
        manifest = self._now_open.manifest
        over = (manifest.round, manifest.attempt)  # keys for the next round may be made already
        return [*(Remember(KeysGone(*number)) for number in self.keys if number <= over), Forget()]

    def _tick(self, event: Tick) -> list[Effect]:
        manifest = self._now_open.manifest
        if self._first(manifest) and self._closes <= event.now < self._expires(manifest.round):
            return self._close()
        if self._first(manifest) and self._closes_early <= event.now and (effects := self._close_early()):
            return effects
        return self._expire(event)

    def _expire(self, event: Tick) -> list[Effect]:
        """Let go of rounds that nobody has brought to their end, by this hop's own clock."""
        held = self._held()
        self._began = {round_: self._began.get(round_, event.now) for round_ in held}  # made before a restart: anew
        over = {round_ for round_ in held if event.now >= self._expires(round_)}
        for round_ in over:  # were it tried once more, by an aggregator that was away, it would have all its time
            del self._began[round_]
        effects: list[Effect] = [Remember(KeysGone(*number)) for number in self.keys if number[0] in over]
        # A pad that was signed for stays: the others may have shown theirs.
        lapsed = [p for p in self.padded.values() if p.round in over and p.manifest not in self.signed]
        effects += [Remember(PadGone(p.round, p.attempt, p.manifest)) for p in lapsed]
        if self.attempt is not None and self.attempt.manifest.round in over:
            if self.state is not State.DONE:
                self.state = State.IDLE
            effects.append(Forget())
        return effects
