"""The policy: what the owners of a federation agreed on, and everything that there is to say about each key of it.

A key's text, range and default stand once, beside its field. The federation file and its comments, the options of
commands and the table in docs/operations.md are made of them. So that a command's manual starts at once, nothing here
loads numpy or a compiler; what follows from a policy in numbers stands with the numbers.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, get_type_hints

from silomix.runtime.core.numbers.plan import CHUNK_PARAMETERS, Encoding, Granularity, Level, Quantiser
from silomix.runtime.core.values import (
    FADING,
    LIMIT,
    OPTIONS,
    PART,
    POSITIVE,
    SHARE,
    Kind,
    Scalar,
    one_of,
    or_named,
    text,
    whole,
)

LEAST_COHORT = 3
"""No sum is ever released over fewer silos: with two, each would learn the other's update."""
MAX_SILOS = 1000
"""Upper bound of a roster. The protocol is made for up to 100; beyond 1,000 nothing has been measured."""
MAX_SHUFFLERS = 100
MAX_PRECISION = 18
"""Decimal digits that one 64-bit integer holds."""
MAX_SECONDS = 7 * 24 * 3600
CHUNK_STEP = 16
"""Full chunks hold a multiple of this many parameters, so that their planes end on a byte in any width."""
MAX_CHUNK = 1 << 20
MAX_PARAMETERS = 1 << 33
"""Values that a model may have, pinned or not. A hop holds one packed sum and works on copies of its parts: that takes
4 to 6 bytes for each value, so about 50 GB here. No hop holds more; an aggregator that announces more means harm."""


MOST_TRAPS = 100
"""A hundred traps take whoever verifies them more than a second, with 10 silos and 3 hops; ten times that many would
take longer than all the rest of a round."""
AUTO = 0.0
"""The `bound` that stands for bounds which follow from the model (core/learning/bounds.py). It is written "auto"."""


class UpdateKind(StrEnum):
    """What a silo encodes."""

    DELTA = "delta"
    """The trained values less the global model's: small numbers, so fewer digits do."""
    WEIGHTS = "weights"
    """The trained values themselves, as in the paper."""


class TrapPlacement(StrEnum):
    """Among which parameters the coin draws traps."""

    RANDOM = "random"
    """Among all."""
    LAST_LAYER = "last-layer"
    """Among those of the last layer, where a model remembers its training data best."""


class Server(StrEnum):
    """How the aggregator makes the next model of a round's mean."""

    AVERAGE = "average"
    """FedAvg: the mean is the model, or with a rate other than 1 a part of the way there."""
    MOMENTUM = "momentum"
    """FedAvgM: changes add up, and old ones fade."""
    ADAM = "adam"
    """FedAdam: each value's step is scaled by how much it has changed of late."""
    YOGI = "yogi"
    """FedYogi: Adam with a scale that grows slowly."""
    MEDIAN = "median"
    """FedMedian: the median of the groups' means, value by value. It needs groups."""


@dataclass(frozen=True)
class PolicyKey:
    """What there is to say about a key. The first sentence of its text is its line in a command's manual."""

    kind: Kind
    what: str
    default: Any
    shapes: bool
    """Whether a silo's integers depend on it: all do that are not marked as `APART`."""
    later: bool
    """Whether it came after version 1.0 of the protocol: the digest has it only where it is not at its default."""


APART = "apart"
"""Marks a key on which a silo's integers do not depend, but for the share of the noise that falls to it."""
LATER = "later"
"""Marks a key that earlier nodes do not know. At its default, which never changes, it says what they do anyway: it is
not written to a file and not part of the digest, so that nodes of both versions run together."""

_TASK = text('"package.module:factory"', r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_DIGEST = text("64 hex digits of 0-9 and a-f, or nothing", "(?:[0-9a-f]{64})?")
_PACKAGE = text('"name==version", or nothing', r"(?:[A-Za-z0-9][\w.-]*==[\w.!+-]+)?")
_SECONDS = whole(1, MAX_SECONDS)
_GROUP = whole(LEAST_COHORT, MAX_SILOS, zero=True)


@dataclass(frozen=True)
class Policy:
    """What the owners agreed on: each field with its type, what it may be, what it is for, and its default.

    docs/operations.md says how to choose.

    >>> import silomix
    >>> policy = silomix.Policy(task="mytask:task", rounds=20, precision=5, minimum_cohort=5)
    >>> policy.level, policy.bound
    (<Level.SEMI_HONEST: 'semi-honest'>, 1.0)
    """

    task: Annotated[str, _TASK, "What silos train: a Python factory."] = "silomix.models.digits:task"
    rounds: Annotated[int, whole(1, 1_000_000), "Rounds until the federation is done.", APART] = 10
    precision: Annotated[
        int, whole(1, MAX_PRECISION), "Decimal digits kept of a value within its bound. The int8 quantiser ignores it."
    ] = 4
    quantiser: Annotated[
        Quantiser, one_of(Quantiser), "How a value becomes an integer: by decimal digits, or as one signed byte."
    ] = Quantiser.DECIMAL
    encoding: Annotated[
        Encoding,
        one_of(Encoding),
        "How moduli are chosen: for the fewest packed bits (counts), or as the paper's Alg. 1 or its tables have it.",
    ] = Encoding.COUNTS
    level: Annotated[
        Level,
        one_of(Level),
        "Whom a silo has to trust: every hop (trusted), or one hop that keeps to the protocol (semi-honest). At level "
        "malicious every sum is checked before it can be read, and whoever tampers with it is named.",
    ] = Level.SEMI_HONEST
    update: Annotated[
        UpdateKind, one_of(UpdateKind), "What a silo sends: the change to the global model, or its trained weights."
    ] = UpdateKind.DELTA
    bound: Annotated[
        float,
        or_named(POSITIVE, "auto", AUTO),
        "Magnitude that values are scaled by and clipped to. With auto each tensor has its own, which follows from the "
        "global model and its last change.",
    ] = 1.0
    weight_levels: Annotated[
        int,
        whole(1, 1_000_000),
        "1 for the plain mean; W > 1 weighs a silo by its examples, at most W, and nobody is told.",
    ] = 1
    headroom: Annotated[
        int, whole(0, 64), "Bits of range beyond the largest honest sum, so that an overflow shows."
    ] = 0
    granularity: Annotated[
        Granularity,
        one_of(Granularity),
        "What leaves the chain: only sum protects. The others are what the paper compares with, at level trusted.",
    ] = Granularity.SUM
    minimum_cohort: Annotated[
        int,
        _GROUP,
        "Silos that a released sum holds at least; 0 for a majority of the roster. Every hop counts for itself.",
        APART,
    ] = 0
    cohort_step: Annotated[
        int,
        whole(0, MAX_SILOS),
        "Silos by which two successive cohorts differ at least, if they differ at all; 0 for any difference. A step "
        "keeps the difference of two sums from being one silo's, and costs rounds when a single silo is missing.",
        APART,
    ] = 0
    quorum: Annotated[float, SHARE, "Share of the invited silos that closes a cohort before the deadline.", APART] = 1.0
    early_close: Annotated[
        float,
        PART,
        "Share of past rounds' silos by whose times hop 1 closes a cohort before the deadline; 0 waits for the "
        "deadline. It waits half as long again as that share took, and never closes for fewer than minimum_cohort.",
        APART,
        LATER,
    ] = 0.0
    minimum_hops: Annotated[
        int,
        whole(0, MAX_SHUFFLERS),
        "Hops that a chain has at least; 0 for the whole pool. With m of p hops a round holds against 2m - p - 1 that "
        "collude with the aggregator.",
        APART,
    ] = 0
    deadline_s: Annotated[
        int, _SECONDS, "Seconds that silos have to train and submit, from the announcement.", APART
    ] = 600
    release_s: Annotated[int, _SECONDS, "Seconds that the chain has to deliver after the cohort closes.", APART] = 120
    attempts: Annotated[int, whole(1, 100), "Tries at a round before it is abandoned.", APART] = 3
    group_size: Annotated[
        int, _GROUP, "Silos per group if one sum per group leaves the chain; 0 for one sum over all.", APART
    ] = 0
    subsample: Annotated[float, SHARE, "Share of the roster that is invited to a round.", APART] = 1.0
    chunk_parameters: Annotated[int, whole(CHUNK_STEP, MAX_CHUNK, CHUNK_STEP), "Parameters in one chunk of a body."] = (
        CHUNK_PARAMETERS
    )
    server: Annotated[
        Server,
        one_of(Server),
        "How the next model is made of a round's mean: the mean itself, or a step of momentum, adam or yogi along it.",
        APART,
    ] = Server.AVERAGE
    server_lr: Annotated[float, POSITIVE, "Rate of the server's step; 1 takes the mean as it is.", APART] = 1.0
    server_momentum: Annotated[
        float, FADING, "What is kept of the last direction, for momentum, adam and yogi.", APART
    ] = 0.9
    server_beta2: Annotated[float, FADING, "What is kept of the last scale, for adam and yogi.", APART] = 0.99
    server_epsilon: Annotated[float, POSITIVE, "Keeps the steps of adam and yogi finite.", APART] = 1e-3
    clip_norm: Annotated[
        float, LIMIT, "Largest Euclidean norm of a silo's update, which is scaled down to it; 0 for no limit."
    ] = 0.0
    noise_multiplier: Annotated[
        float,
        LIMIT,
        "Noise in a sum, as a multiple of clip_norm; 0 for none. It makes sums differentially private for whole silos.",
    ] = 0.0
    schema: Annotated[
        str,
        _DIGEST,
        "Digest of the schema of the task's model, in hex; empty for any. A manifest with another schema is refused "
        "before anything is allocated for it.",
        APART,
    ] = ""
    parameters: Annotated[
        int,
        whole(0, MAX_PARAMETERS),
        "Values that the task's model has; 0 for any number. A manifest with another number is refused likewise.",
        APART,
    ] = 0
    task_package: Annotated[
        str,
        _PACKAGE,
        "Package and version that the task comes from; empty for a file of one's own, and for any. A silo refuses to "
        "run another.",
        APART,
        LATER,
    ] = ""
    task_digest: Annotated[
        str,
        _DIGEST,
        "Digest of the task's source, in hex; empty for any. A silo refuses to run another.",
        APART,
        LATER,
    ] = ""
    initial_model: Annotated[
        str,
        _DIGEST,
        "Digest of the model that the federation begins with, in hex; empty for any. Silos and shufflers refuse a "
        "history that begins with another.",
        APART,
        LATER,
    ] = ""
    traps: Annotated[
        int,
        whole(0, MOST_TRAPS),
        "Parameters at which each hop proves in zero knowledge, as in the paper, that it removed exactly its masks; 0 "
        "for none. Only at level malicious, whose check finds more and costs less; every node needs silomix[traps].",
        APART,
        LATER,
    ] = 0
    trap_placement: Annotated[
        TrapPlacement,
        one_of(TrapPlacement),
        "Among which parameters traps are drawn: all of them, or those of the model's last layer.",
        APART,
        LATER,
    ] = TrapPlacement.RANDOM
    task_options: Annotated[Mapping[str, Scalar], OPTIONS, "Arguments of the factory, the same at every silo."] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        if str(self.bound) == "auto":  # as a file says it, and a program may
            object.__setattr__(self, "bound", AUTO)

    def cohort_of(self, silos: int) -> int:
        """Silos that a sum holds at least, with so many on the roster: a majority, unless the policy has a number.

        Of two majorities one silo is in both.
        """
        return self.minimum_cohort or max(LEAST_COHORT, silos // 2 + 1)

    def contributors(self, silos: int) -> int:
        """Silos whose noise a released sum holds at least, with so many on the roster."""
        return self.group_size or self.cohort_of(silos)

    def conflict(self) -> tuple[str, str] | None:
        """Return a key and the trouble with it, if the keys do not go together; `Federation.conflict` has the rest."""
        return self._baseline_conflict() or self._learning_conflict() or self._trap_conflict()

    def _trap_conflict(self) -> tuple[str, str] | None:
        if not self.traps and self.trap_placement is not TrapPlacement.RANDOM:
            return "trap_placement", f'found "{self.trap_placement}" beside policy.traps = 0; give that too'
        if self.traps and self.level is not Level.MALICIOUS:
            return "traps", f'found {self.traps} at level "{self.level}"; give 0, or policy.level = "malicious"'
        if 0 < self.parameters < self.traps:
            return "traps", f"found {self.traps}; give at most {self.parameters}, the parameters of the model"
        return None

    def _baseline_conflict(self) -> tuple[str, str] | None:
        if self.granularity is Granularity.SUM:
            return None
        if self.level is not Level.TRUSTED:
            return "granularity", (
                f'found "{self.granularity}" at level "{self.level}"; give "sum", or policy.level = "trusted": '
                "the others are baselines for comparison, and protect nobody"
            )
        if self.group_size:
            return "group_size", f'found {self.group_size}; give 0 unless granularity is "sum"'
        unary = self.granularity is Granularity.UNARY
        if unary and self.encoding is Encoding.COUNTS:
            return "encoding", 'found "counts"; granularity "unary" takes "unary" or "first-primes"'
        if not unary and self.weight_levels > 1:
            return "weight_levels", (
                f'found {self.weight_levels}; give 1 with granularity "{self.granularity}": plain values have no '
                "place for a weight"
            )
        return None

    def _learning_conflict(self) -> tuple[str, str] | None:
        if self.server is Server.MEDIAN and not self.group_size:
            return "server", 'found "median" of one mean; give policy.group_size, or another rule'
        if self.bound == AUTO and self.clip_norm:
            return "bound", (
                'found "auto" beside policy.clip_norm, which limits an update in units of one bound; give a number, '
                "or no clip_norm"
            )
        if not self.noise_multiplier:
            return None
        if not self.clip_norm:
            return "noise_multiplier", f"found {self.noise_multiplier}, in units of policy.clip_norm = 0; give that too"
        for key, found, wanted in (
            ("update", self.update, UpdateKind.DELTA),
            ("granularity", self.granularity, Granularity.SUM),
            ("weight_levels", self.weight_levels, 1),
        ):
            if found != wanted:
                return "noise_multiplier", f"found noise beside policy.{key} = {found}; it needs {wanted}"
        if self.level is Level.TRUSTED:
            why = "hop 1 would see each silo's update with no more than its own share of the noise"
            return "noise_multiplier", f"found noise beside policy.level = trusted, where {why}; it needs masks"
        return None

    def canonical(self) -> bytes:
        """Encode the policy for the digest: its fields by name, sorted, as JSON.

        Without the later ones that are at their default.
        """
        return self._encoded(n for n, key in KEYS.items() if not key.later or getattr(self, n) != key.default)

    def shape(self) -> bytes:
        """Encode the keys on which a silo's integers depend, in the same way."""
        return self._encoded(name for name, key in KEYS.items() if key.shapes)

    def _encoded(self, names: Iterable[str]) -> bytes:
        values = {name: getattr(self, name) for name in names}
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
        return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def _keys() -> Iterator[tuple[str, PolicyKey]]:
    """Read the fields' annotations: the type, the kind, the text, and a mark."""
    plain = Policy()
    for name, hint in get_type_hints(Policy, include_extras=True).items():
        kind, what, *marks = hint.__metadata__
        yield name, PolicyKey(kind, what, getattr(plain, name), APART not in marks, LATER in marks)


KEYS: Mapping[str, PolicyKey] = dict(_keys())
"""What there is to say about each key, in the order in which a file has them."""
