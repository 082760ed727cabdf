"""The federation as every node pins it: who takes part, with which keys, under which policy.

Nothing in it is ever learned from the aggregator. Its digest is in every manifest, so two nodes with different files
never take part in the same round.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property

from silomix.runtime.core.chain import ChainRule
from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.learning.noise import Noise
from silomix.runtime.core.learning.optimise import Optimiser, Server
from silomix.runtime.core.numbers.plan import CHUNK_PARAMETERS, Encoding, Level, Plan, Quantiser, largest_value, plan

LEAST_COHORT = 3
"""No sum is ever released over fewer silos: with two, each would learn the other's update."""


class UpdateKind(StrEnum):
    """What a silo encodes."""

    DELTA = "delta"
    """The trained values less the global model's: small numbers, so fewer digits do."""
    WEIGHTS = "weights"
    """The trained values themselves, as in the paper."""


class Granularity(StrEnum):
    """What leaves the chain. Only `sum` protects; the others are what the paper compares with."""

    NONE = "none"
    MODEL = "model"
    LAYER = "layer"
    PARAMETER = "parameter"
    UNARY = "unary"
    SUM = "sum"


@dataclass(frozen=True)
class Member:
    """A node on the roster: its name (also the name in its certificate), where it listens, and its Ed25519 key."""

    name: str
    key: bytes
    address: str = ""
    """host:port; empty for a silo, which only dials out."""


@dataclass(frozen=True)
class Policy:
    """What the owners agreed on. Each field says what it does; docs/operations.md says how to choose."""

    task: str = "silomix.models.digits:task"
    """package.module:factory of what silos train."""
    task_options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Keyword arguments of the factory."""
    rounds: int = 10
    """Rounds until the federation is done."""
    precision: int = 4
    """Decimal digits kept of a value within its bound."""
    quantiser: Quantiser = Quantiser.DECIMAL
    encoding: Encoding = Encoding.COUNTS
    level: Level = Level.SEMI_HONEST
    update: UpdateKind = UpdateKind.DELTA
    bound: float = 1.0
    """Magnitude that values are scaled by and clipped to."""
    weight_levels: int = 1
    """1 is the plain mean; W > 1 weighs a silo by its examples, at most W of them."""
    headroom: int = 0
    """Bits of range beyond the largest honest sum."""
    granularity: Granularity = Granularity.SUM
    minimum_cohort: int = 0
    """Silos that a sum holds at least; 0 for a majority of the roster. Every hop counts for itself."""
    cohort_step: int = 0
    """Silos by which two successive cohorts differ at least, if they differ; 0 for any difference."""
    quorum: float = 1.0
    """Share of the invited silos that closes the cohort before the deadline."""
    minimum_hops: int = 0
    """Hops that a chain has at least; 0 for the whole pool. core/chain.py says what it holds against."""
    deadline_s: int = 600
    """Seconds that silos have to train and submit, from the announcement."""
    release_s: int = 120
    """Seconds that the chain has to deliver after the cohort has closed."""
    attempts: int = 3
    """Tries at a round before it is abandoned."""
    group_size: int = 0
    """Silos per group if a sum per group leaves the chain; 0 for one sum."""
    subsample: float = 1.0
    """Share of the roster that is invited to a round."""
    chunk_parameters: int = CHUNK_PARAMETERS
    server: Server = Server.AVERAGE
    """How the aggregator makes the next model of a round's mean."""
    server_lr: float = 1.0
    """Share of the way to the mean that the model goes; the rate of the server's optimiser."""
    server_momentum: float = 0.9
    """How much of the last round's direction is kept, for momentum, adam and yogi."""
    server_beta2: float = 0.99
    """How much of the last round's scale is kept, for adam and yogi."""
    server_epsilon: float = 1e-3
    """Keeps the steps of adam and yogi finite."""
    clip_norm: float = 0.0
    """Largest Euclidean norm of a silo's update: a longer one is scaled down. 0 for no limit."""
    noise_multiplier: float = 0.0
    """Standard deviation of the noise in a sum, in units of clip_norm: differential privacy for whole silos."""

    @property
    def optimiser(self) -> Optimiser:
        """The server's rule, from the keys that begin with `server`."""
        return Optimiser(self.server, self.server_lr, self.server_momentum, self.server_beta2, self.server_epsilon)

    def cohort_of(self, silos: int) -> int:
        """Silos that a sum holds at least, with so many on the roster: a majority, unless the policy has a number.

        Of two majorities one silo is in both.
        """
        return self.minimum_cohort or max(LEAST_COHORT, silos // 2 + 1)

    def contributors(self, silos: int) -> int:
        """Silos whose noise a released sum holds at least, with so many on the roster."""
        return self.group_size or self.cohort_of(silos)

    def noise(self, contributors: int) -> Noise:
        """What each silo adds to its integers, if a released sum holds the noise of so many at least."""
        if not self.noise_multiplier:
            return Noise()
        sensitivity = self.clip_norm * largest_value(self.precision, self.quantiser) / self.bound
        return Noise.of(self.noise_multiplier, sensitivity, contributors)

    def conflict(self) -> tuple[str, str] | None:
        """Return the key and the trouble if keys about learning do not go together: the rest is config.py's."""
        if self.server is Server.MEDIAN and not self.group_size:
            return "server", 'found "median" of one mean; give policy.group_size, or another rule'
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
        """Encode the policy for the digest: its fields by name, sorted, as JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["task_options"] = dict(self.task_options)
        return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Federation:
    """One federation file, parsed and checked. runtime/config/load.py reads it."""

    name: str
    aggregator: Member
    shufflers: tuple[Member, ...]
    """The pool of hops, in the order in which a chain passes them."""
    silos: tuple[Member, ...]
    policy: Policy
    anchor: bytes = b""
    """The TLS trust anchor, PEM; empty for a federation that was made without TLS."""

    @cached_property
    def digest(self) -> bytes:
        """What every manifest carries, and every node compares with its own."""
        parts: list[str | bytes | int] = [self.name, self.anchor, self.policy.canonical()]
        for member in (self.aggregator, *self.shufflers, *self.silos):
            parts += [member.name, member.key, member.address]
        return digest("federation", *parts, len(self.shufflers), len(self.silos))

    @cached_property
    def plan(self) -> Plan:
        """The numbers that follow from the policy: every node computes them itself."""
        p, silos = self.policy, len(self.silos)
        largest = silos * p.weight_levels * largest_value(min(p.precision, 100), p.quantiser)
        headroom = p.headroom + self.noise.headroom(silos, largest)
        return plan(silos, p.precision, p.encoding, p.level, p.weight_levels, headroom, p.quantiser)

    @cached_property
    def minimum_cohort(self) -> int:
        """Silos that a sum holds at least."""
        return self.policy.cohort_of(len(self.silos))

    @cached_property
    def contributors(self) -> int:
        """Silos whose noise a released sum holds at least."""
        return self.policy.contributors(len(self.silos))

    @cached_property
    def noise(self) -> Noise:
        """What each silo adds to its integers."""
        return self.policy.noise(self.contributors)

    @cached_property
    def chain(self) -> tuple[str, ...]:
        """The hops that bodies pass: the whole pool."""
        return tuple(s.name for s in self.shufflers)

    @cached_property
    def chain_rule(self) -> ChainRule:
        """How many hops a chain must have, and what that holds against."""
        return ChainRule(len(self.shufflers), self.policy.minimum_hops or len(self.shufflers))

    @cached_property
    def members(self) -> dict[str, Member]:
        """Everybody by name."""
        return {m.name: m for m in (self.aggregator, *self.shufflers, *self.silos)}

    def member(self, name: str) -> Member:
        """Look somebody up, or refuse them."""
        try:
            return self.members[name]
        except KeyError:
            raise PeerFault(Reason.UNKNOWN_PEER, f"{name!r} is not in the federation file", peer=name) from None

    def draw(self, round_: int) -> tuple[str, ...]:
        """Draw the silos of a round, in the order of their names.

        Everybody computes the draw, so nobody chooses whom to invite. It is the same in every attempt at a round, so
        that a cohort that was released can be formed again.
        """
        names = self.silo_names
        count = max(self.minimum_cohort, round(len(names) * self.policy.subsample))
        if count >= len(names):
            return names
        order = sorted(names, key=lambda name: digest("subsample", self.digest, round_, name))
        return tuple(sorted(order[:count]))

    @cached_property
    def silo_names(self) -> tuple[str, ...]:
        """The silos in the order of their names, as messages list them."""
        return tuple(sorted(s.name for s in self.silos))
