"""The sum of a simulated round, made as the nodes make it: encoded, masked by silos, unmasked hop by hop, decoded."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from silomix.models.simulation.workers import SimulationError
from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import Fault
from silomix.runtime.core.numbers.codec import Aggregate, Clips, Codec
from silomix.runtime.core.numbers.masks import AGGREGATOR, MaskContext, Rng, Secret, mask_stream
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.schema import Array, Schema, as_float, round_to
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.store.modelfile import model_digest
from silomix.runtime.task import Tensors

Update = tuple[int, dict[str, Array], int]
"""What a silo sends: its number, its update, its weight."""
Lap = Callable[[str], None]
"""Told when a phase ends."""


class Sums:
    """How updates become their mean."""

    def __init__(self, federation: Federation, schema: Schema, seed: int, *, masked: bool) -> None:
        """The seed is that of masks and noise."""
        self.federation, self.schema, self.seed, self.masked = federation, schema, seed, masked
        self.codec = self._with((1.0,) * len(schema.tensors))
        self.noise = federation.noise

    def begin(self, bounds: tuple[float, ...]) -> None:
        """Begin a round, with the bound of each tensor."""
        self.codec = self._with(bounds)

    def _with(self, bounds: tuple[float, ...]) -> Codec:
        return Codec(self.schema, bounds, self.federation.plan, self.federation.policy.chunk_parameters)

    def warm(self, model: Tensors) -> None:
        """Load the compiled kernels, which the first round would wait for."""
        zeros = {name: np.zeros_like(array) for name, array in model.items()}
        body = self._encode(zeros, 1, Clips(), self._bytes(0, 0))
        for context in self._contexts(model, 0)[:1] if self.masked else []:
            self._mask(body, context, Secret(bytes([1] * 32)), 1)

    def mean(self, model: Tensors, round_: int, updates: Iterable[Update], clips: Clips, lap: Lap) -> Aggregate:
        """Return the mean of the updates, by way of the sum of their integers."""
        total = self.codec.layout.body()
        seeds: list[tuple[MaskContext, Secret]] = []
        contexts = self._contexts(model, round_) if self.masked else []
        silos = 0
        for silo, update, weight in updates:
            silos += 1
            rng = self._bytes(round_, silo)
            try:
                body = self._encode(update, weight, clips, rng)
            except Fault as fault:
                raise SimulationError(f"silo {silo} in round {round_}: {fault}") from fault
            lap("encode")
            for context in contexts:
                seeds.append((context, Secret.draw(rng)))
                self._mask(body, *seeds[-1], 1)
            self.codec.layout.add_body(total, body)
            lap("mask")
        for context, secret in seeds:
            self._mask(total, context, secret, -1)
        lap("mask")
        return self.codec.decode(total, silos, self.noise.slack(silos))

    def _encode(self, update: Mapping[str, Array], weight: int, clips: Clips, rng: Rng) -> Bytes:
        """Return a silo's frozen body."""
        body = self.codec.layout.body()
        own = Clips()
        noise = partial(self.noise.draw, rng=rng) if self.noise.variance else None
        for _ in self.codec.encode(update, weight=weight, clips=own, noise=noise, body=body):
            pass
        for name, count in own.by_tensor.items():
            clips.by_tensor[name] = clips.by_tensor.get(name, 0) + count
        return body

    def _contexts(self, model: Tensors, round_: int) -> list[MaskContext]:
        """What the masks of each layer are bound to: the hops' layers, and the aggregator's."""
        # No manifest is signed here. Masks cancel whatever they are bound to, and no two rounds share one.
        manifest = digest("simulated", self.federation.digest, round_, model_digest(self.schema, model))
        layers = [*range(1, len(self.federation.chain) + 1), AGGREGATOR]
        return [MaskContext(manifest, layer, self.codec.chunk_parameters) for layer in layers]

    def _mask(self, body: Bytes, context: MaskContext, secret: Secret, sign: int) -> None:
        layout = self.codec.layout
        stream = mask_stream(secret, context, self.codec.plan.moduli)
        for i in range(layout.chunks):
            stream.apply(layout.part(body, i), i, layout.length(i), sign)

    def _bytes(self, round_: int, silo: int) -> Rng:
        return generator("silo", self.seed, round_, silo).bytes


def plain_mean(
    schema: Schema, round_: int, updates: Iterable[Update], rounding: Callable[[Array], Array] | None = None
) -> Aggregate:
    """Return the mean of the floats, in float64 until the end: what unprotected federated learning computes."""
    sums: dict[str, npt.NDArray[np.float64]] = {t.name: np.zeros(t.shape) for t in schema.tensors}
    total = 0
    for silo, update, weight in updates:
        total += weight
        for t in schema.tensors:
            value = as_float(update[t.name], t.dtype).astype(np.float64)
            if not np.isfinite(value).all():
                raise SimulationError(f"silo {silo} in round {round_}: {t.name} holds a value that is not finite")
            sums[t.name] += weight * (value if rounding is None else rounding(value))
    return Aggregate({t.name: round_to(sums[t.name] / total, t.dtype) for t in schema.tensors}, total)


def generator(purpose: str, seed: int, *numbers: int) -> np.random.Generator:
    """Return a generator for one purpose: chance that can be repeated."""
    return np.random.default_rng(list(digest(purpose, seed, *numbers)))
