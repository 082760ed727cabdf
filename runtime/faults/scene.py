"""One federation in memory: who is in it, what silos send, and what may be read of a sum.

Silo i sends 4^i in two of its values, so that a digit of the sum in base 4 is how often it was counted. Another value
tells on which model it was trained, and another holds a number that the silo drew when it trained: whatever is lost,
doubled, of another round or trained twice shows in the sum.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from silomix.runtime.core.learning.optimise import Optimiser
from silomix.runtime.core.numbers.masks import Rng, Secret
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.schema import Array, Schema, TensorSpec
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.aggregator import Aggregator
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.lineage import Transcript, check_root, check_transcript, decode, next_model, uncover
from silomix.runtime.core.protocol.messages import Bond
from silomix.runtime.core.protocol.roundlog import Record
from silomix.runtime.core.protocol.shuffler import Shuffler
from silomix.runtime.core.protocol.silo import Silo
from silomix.runtime.faults.mutants import ForgetsCohorts, Mutant
from silomix.runtime.faults.world import World
from silomix.runtime.store.modelfile import model_digest

if TYPE_CHECKING:
    from silomix.runtime.faults.watch import Watcher

LEAD = "aggregator"
SCHEMA = Schema((TensorSpec("values", (6,)),))
CHUNK = 4
Tensors = dict[str, Array]
Vector = tuple[int, ...]


@cache
def identity(name: str) -> Identity:
    """A node's identity: the same in every run."""
    return Identity(name, Secret(hashlib.sha256(f"simulated {name}".encode()).digest()))


@cache
def federation(silos: int, hops: int, minimum: int, level: Level, rounds: int, quorum: float) -> Federation:
    """A federation of so many."""
    members = [Member(f"hop-{i + 1}", identity(f"hop-{i + 1}").public, f"hop-{i + 1}:1") for i in range(hops)]
    names = [f"silo-{i + 1}" for i in range(silos)]
    policy = Policy(
        level=level,
        rounds=rounds,
        quorum=quorum,
        precision=3,
        bound=1.0,
        minimum_cohort=3,
        minimum_hops=minimum,
        chunk_parameters=CHUNK,
        deadline_s=60,
        release_s=20,
        attempts=3,
    )
    return Federation(
        name="simulated",
        aggregator=Member(LEAD, identity(LEAD).public, f"{LEAD}:1"),
        shufflers=tuple(members),
        silos=tuple(Member(name, identity(name).public) for name in names),
        policy=policy,
    )


@dataclass(frozen=True)
class Shape:
    """What a schedule's federation is like."""

    silos: int
    hops: int
    minimum: int
    """Hops that a chain has at least."""
    level: Level
    rounds: int
    quorum: float
    lies: bool
    colluder: str
    """A hop that helps an aggregator that lies."""

    @classmethod
    def draw(cls, random: Random, lies: float) -> "Shape":
        """Draw one: most without masks, which cost time and are the same for all faults."""
        silos, hops = random.choice((3, 4, 4, 5)), random.choice((2, 2, 3, 4))
        level = Level.SEMI_HONEST if random.random() < 0.08 else Level.TRUSTED
        liar = random.random() < lies
        if liar:
            silos = max(silos, 4)  # one may be left out
        colluder = f"hop-{random.randint(1, hops)}" if liar and random.random() < 0.7 else ""
        return cls(silos, hops, min(hops, 3), level, 2, random.choice((1.0, 1.0, 0.6)), liar, colluder)


class Scene:
    """A federation, the world that it is in, and who watches."""

    def __init__(self, shape: Shape, mutant: Mutant, world: World) -> None:
        """Make everybody's parts; `watch` is set by whoever makes the nodes."""
        self.shape, self.mutant, self.world = shape, mutant, world
        self.federation = federation(shape.silos, shape.hops, shape.minimum, shape.level, shape.rounds, shape.quorum)
        self.schema, self.lead = SCHEMA, LEAD
        self.rng: Rng = Random(world.random.randbytes(16)).randbytes  # noqa: S311 - one seed is one run
        self.checked = mutant.checked
        self.watch: Watcher
        optimiser = Optimiser.of(self.federation.policy)
        self._state_schema = optimiser.state_schema(SCHEMA)
        zeros: Tensors = {t.name: np.zeros(t.shape, np.float32) for t in SCHEMA.tensors}
        self.first: tuple[Tensors, Tensors] = (zeros, optimiser.start(SCHEMA))
        self._restored: set[str] = set()
        self.lost: set[str] = set()
        """Hops that never come back."""

    def identity(self, name: str) -> Identity:
        """A node's identity."""
        return identity(name)

    # Machines

    def make_shuffler(self, name: str) -> Shuffler:
        """A hop's machine: the mutant's, or that of a hop which colludes."""
        kind = ForgetsCohorts if name == self.shape.colluder else self.mutant.hop
        return kind(self.federation, identity(name), self.rng)

    def make_silo(self, name: str) -> Silo:
        """A silo's machine."""
        return self.mutant.member(self.federation, identity(name))

    def make_aggregator(self) -> Aggregator:
        """The aggregator's machine: honest, or one that tells nobody whom a model is bound to."""
        return (_Unbound if self.shape.lies else Aggregator)(self.federation, identity(LEAD), self.rng)

    def may_restore(self, name: str) -> bool:
        """Whether one more node may get an old disk: a hop that does counts as colluding, and one stays honest."""
        hops = {*self._restored, self.shape.colluder, name} & set(self.federation.chain)
        if name in self.federation.chain and len(hops) > self.federation.chain_rule.colluding:
            return False
        self._restored.add(name)
        return True

    def may_lose(self, name: str) -> bool:
        """Whether one more hop may be lost for good: the policy says how many a chain can be formed without."""
        hops = {*self.lost, *self._restored, self.shape.colluder, name} & set(self.federation.chain)
        if name not in self.federation.chain or len(hops) > self.federation.chain_rule.lost:
            return False
        self.lost.add(name)
        return True

    # Numbers

    def vector(self, silo: str, applied: int, drawn: int) -> Vector:
        """What a silo sends: its digit, the model's, the number that it drew; each once in either chunk."""
        digit = 4 ** self.federation.silo_names.index(silo)
        return (digit, digit * (applied % 3 + 1), digit * drawn, 0, digit, digit * drawn)

    def digests(self, model: Tensors, state: Tensors) -> tuple[bytes, bytes]:
        """The digests of a model and of the server's state beside it."""
        return model_digest(SCHEMA, model), model_digest(self._state_schema, state)

    def compute(
        self, transcript: Transcript, body: Bytes, record: Record | None, model: Tensors, state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Make the next model of a released sum; a silo checks it against a record first."""
        if record is not None:
            check_transcript(transcript, record, self.federation)
        check_root(body, transcript)
        uncover(body, transcript)
        mean = decode(body, transcript.manifest, len(transcript.cohort.participants), self.federation)
        return next_model(self.federation, transcript.manifest, [mean], model, state)

    def total(self, transcript: Transcript, body: Bytes) -> Vector:
        """The integers of a released sum."""
        uncover(body, transcript)
        mean = decode(body, transcript.manifest, len(transcript.cohort.participants), self.federation)
        scale = mean.weight * transcript.manifest.plan.v
        return tuple(round(float(x) * scale) for tensor in mean.tensors.values() for x in tensor.flat)


class _Unbound(Aggregator):
    """Forgets whom a model was signed for, and tries one chain after the other."""

    @property
    def bond(self) -> Bond | None:
        return None

    @property
    def available(self) -> tuple[str, ...]:
        hops = self.federation.chain
        without = {hops[self._rng(1)[0] % len(hops)]} if self.federation.chain_rule.lost else set()
        return tuple(hop for hop in hops if hop not in (self.gone or without))

    def _passed(self) -> set[str]:
        return set()
