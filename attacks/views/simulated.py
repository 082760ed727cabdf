"""What an adversary would hold of a round, made of the silos' trained models with the core's own code.

The shuffles are those that hops do in the literal modes, the residues and masks those that travel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from silomix.attacks.views.body import read_body, with_bodies
from silomix.attacks.views.view import Mode, View, floats
from silomix.runtime.core.learning.update import update_of
from silomix.runtime.core.numbers.baseline import Baseline
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.masks import AGGREGATOR, MaskContext, Secret, mask_stream
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Encoding, Granularity, Level, Plan, plan
from silomix.runtime.core.numbers.schema import Array, Schema, add
from silomix.runtime.task import Tensors

HOPS = 3
"""Hops of the chain: the demo's."""


@dataclass(frozen=True)
class Truth:
    """A round seen from above: what every silo trained. Views are made of it; no adversary has it."""

    schema: Schema
    cohort: tuple[int, ...]
    before: Tensors
    trained: tuple[Tensors, ...]
    precision: int = 4
    bound: float = 1.0
    """Of every tensor, unless each has its own."""
    roster: int = 0
    """Silos on the roster, which the plan has room for; 0 for the cohort."""
    own_bounds: tuple[float, ...] = ()

    @property
    def bounds(self) -> tuple[float, ...]:
        """The bound of each tensor."""
        return self.own_bounds or (self.bound,) * len(self.schema.tensors)

    @property
    def updates(self) -> list[dict[str, Array]]:
        """What each silo's training changed, in the schema's own types, as silos encode it."""
        return [update_of(self.schema, self.before, model, change=True) for model in self.trained]

    def plan(self, encoding: Encoding, level: Level) -> Plan:
        """Return the numbers of a mode."""
        return plan(max(self.roster, len(self.cohort)), self.precision, encoding, level)

    def codec(self, numbers: Plan) -> Codec:
        """Return what silos encode with."""
        return Codec(self.schema, self.bounds, numbers)

    def empty(self) -> View:
        """Return what everybody knows."""
        return View(self.schema, self.cohort, floats(self.schema, self.before))

    def moved(self, mean: Tensors) -> dict[str, Array]:
        """Return the next model, made of a mean of changes as the aggregator makes it."""
        added = {s.name: add(self.before[s.name], mean[s.name], s.dtype) for s in self.schema.tensors}
        return floats(self.schema, added)


def view_of(truth: Truth, mode: Mode, rng: np.random.Generator) -> View:
    """Make the adversary's view of a round."""
    return _MAKERS[mode](truth, rng)


def _shuffled(granularity: Granularity) -> Callable[[Truth, np.random.Generator], View]:
    """Make the bodies as a silo does, and permute them as a hop does."""

    def make(truth: Truth, rng: np.random.Generator) -> View:
        numbers = truth.plan(Encoding.COUNTS, Level.TRUSTED)
        chunk = truth.schema.parameters  # one chunk: a permutation may not depend on how bodies are cut
        mode = Baseline(granularity, truth.schema, numbers, chunk)
        bodies = [[bytes(mode.encode(update, truth.bounds))] for update in truth.updates]
        rows = mode.shuffle(0, bodies, Secret.draw(rng.bytes))
        return replace(truth.empty(), rows=np.stack([np.frombuffer(row[0], "<f4") for row in rows]), mixed=granularity)

    return make


def _bodies(truth: Truth, codec: Codec) -> list[Bytes]:
    """Return each silo's frozen body."""
    bodies = [codec.layout.body() for _ in truth.updates]
    for body, update in zip(bodies, truth.updates, strict=True):
        for _ in codec.encode(update, body=body):
            pass
    return bodies


def _add_up(bodies: list[Bytes], codec: Codec) -> Bytes:
    total = codec.layout.body()
    for body in bodies:
        codec.layout.add_body(total, body)
    return total


def _unary(truth: Truth, rng: np.random.Generator) -> View:
    """Shuffled bits tell what their number tells, so the view is the numbers of ones. They are not reduced."""
    numbers = truth.plan(Encoding.UNARY, Level.TRUSTED)
    codec = truth.codec(numbers)
    sums = np.sum([codec.layout.residues(body).astype(np.int64) for body in _bodies(truth, codec)], axis=0)
    reduced = sums % np.array(numbers.moduli)[:, None]
    mean = codec.decode(codec.layout.pack(reduced), len(truth.cohort)).tensors
    return replace(truth.empty(), mean=truth.moved(mean), residue_sums=sums)


def _trusted(truth: Truth, rng: np.random.Generator) -> View:
    codec = truth.codec(truth.plan(Encoding.COUNTS, Level.TRUSTED))
    total = _add_up(_bodies(truth, codec), codec)
    return replace(truth.empty(), mean=truth.moved(codec.decode(total, len(truth.cohort)).tensors))


@dataclass
class _Masked:
    """A masked round: each silo's body as it travels, and the seeds behind it."""

    codec: Codec
    bodies: list[Bytes]
    seeds: list[dict[int, Secret]]
    """By silo and layer: 0 is the aggregator's own, 1 and up are the hops'."""

    @classmethod
    def of(cls, truth: Truth, rng: np.random.Generator) -> "_Masked":
        codec = truth.codec(truth.plan(Encoding.COUNTS, Level.SEMI_HONEST))
        made = cls(codec, _bodies(truth, codec), [])
        for body in made.bodies:
            made.seeds.append({layer: Secret.draw(rng.bytes) for layer in (AGGREGATOR, *range(1, HOPS + 1))})
            for layer, seed in made.seeds[-1].items():
                made.mask(body, layer, seed, 1)
        return made

    def mask(self, body: Bytes, layer: int, seed: Secret, sign: int) -> None:
        """Put a layer on (1), or take it off (-1)."""
        layout, numbers = self.codec.layout, self.codec.plan
        context = MaskContext(bytes(32), layer, self.codec.chunk_parameters)
        stream = mask_stream(seed, context, numbers.moduli)
        for i in range(layout.chunks):
            stream.apply(layout.part(body, i), i, layout.length(i), sign)

    def total(self, truth: Truth) -> View:
        """Follow the sum through the chain: each hop takes off its own layer, the aggregator the last one."""
        codec = self.codec
        total = _add_up(self.bodies, codec)
        for layer in (*range(1, HOPS + 1), AGGREGATOR):
            for seeds in self.seeds:
                self.mask(total, layer, seeds[layer], -1)
        return replace(truth.empty(), mean=truth.moved(codec.decode(total, len(truth.cohort)).tensors))

    def opened(self, silo: int, layers: Sequence[int]) -> Bytes:
        """Return a silo's body with the masks of some layers taken off: noise, unless these are all."""
        body = self.bodies[silo].copy()
        for layer in layers:
            self.mask(body, layer, self.seeds[silo][layer], -1)
        return body


def _semi_honest(truth: Truth, rng: np.random.Generator) -> View:
    return _Masked.of(truth, rng).total(truth)


def _colluding(hops: Sequence[int]) -> Callable[[Truth, np.random.Generator], View]:
    """Hop 1 hands over the bodies, these hops their seeds; the aggregator adds its own, and the sum that it holds."""

    def make(truth: Truth, rng: np.random.Generator) -> View:
        masked = _Masked.of(truth, rng)
        bodies = [masked.opened(i, (AGGREGATOR, *hops)) for i in range(len(truth.cohort))]
        return with_bodies(masked.total(truth), [read_body(masked.codec, body) for body in bodies])

    return make


def _opened_one_by_one(level: Level) -> Callable[[Truth, np.random.Generator], View]:
    """Each silo's integers for themselves: what hop 1 reads at level trusted, and what a sum over one silo is."""

    def make(truth: Truth, rng: np.random.Generator) -> View:
        codec = truth.codec(truth.plan(Encoding.COUNTS, level))
        return with_bodies(truth.empty(), [read_body(codec, body) for body in _bodies(truth, codec)])

    return make


_MAKERS: dict[Mode, Callable[[Truth, np.random.Generator], View]] = {
    Mode.NONE: _shuffled(Granularity.NONE),
    Mode.MODEL: _shuffled(Granularity.MODEL),
    Mode.LAYER: _shuffled(Granularity.LAYER),
    Mode.PARAMETER: _shuffled(Granularity.PARAMETER),
    Mode.UNARY: _unary,
    Mode.TRUSTED: _trusted,
    Mode.SEMI_HONEST: _semi_honest,
    Mode.ALL_COLLUDE: _colluding(range(1, HOPS + 1)),
    Mode.ALL_BUT_ONE: _colluding(range(1, HOPS)),  # the last hop keeps quiet
    Mode.TRUSTED_HOP_1: _opened_one_by_one(Level.TRUSTED),
    Mode.COHORT_OF_ONE: _opened_one_by_one(Level.SEMI_HONEST),
}


def group_means(
    truth: Truth, size: int, rng: np.random.Generator
) -> tuple[list[tuple[int, ...]], list[dict[str, npt.NDArray[np.float32]]]]:
    """Partition the cohort at random into groups of at least a size, and return each group with the mean of its models.

    The groups are in random order: to whoever is not told the members, that is all there is.
    """
    order, tensors = rng.permutation(len(truth.cohort)), truth.schema.tensors
    parts = np.array_split(order, max(1, len(order) // size))
    members = [tuple(truth.cohort[i] for i in sorted(part)) for part in parts]
    trained = [floats(truth.schema, model) for model in truth.trained]
    means = [
        {s.name: np.asarray(np.mean([trained[i][s.name] for i in part], axis=0), np.float32) for s in tensors}
        for part in parts
    ]
    return members, means
