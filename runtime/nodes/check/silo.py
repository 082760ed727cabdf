"""A silo's part in the tamper check: what it keeps of a body until the coin is answered, and its scalars."""

import os
from dataclasses import dataclass, field

import numpy as np

from silomix.runtime.core.numbers.masks import expanding
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.tamper import Scalars, total
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.check.forms import Forms, draw_blinders
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS, Trapped, Traps
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.core.protocol.silo import Sealing


@dataclass
class Held:
    """A body that was sent: its integers, blinders and seeds. It goes when the coin is answered."""

    manifest: Manifest
    sealing: Sealing = field(repr=False)
    body: Bytes = field(repr=False)
    blinders: Bytes | None = field(repr=False)
    """The chunk of blinders, packed; none below level malicious."""
    root: bytes = b""

    @classmethod
    def of(cls, manifest: Manifest, sealing: Sealing, body: Bytes) -> "Held":
        """Draw the blinders of a body."""
        shape = layout(manifest)
        return cls(manifest, sealing, body, draw_blinders(shape, os.urandom) if shape.blinders else None)

    def plain(self, index: int) -> Bytes:
        """A chunk without masks."""
        shape = layout(self.manifest)
        if self.blinders is not None and index == shape.value_chunks:
            return self.blinders
        return shape.part(self.body, index)

    def wipe(self) -> None:
        """Overwrite what must not outlive the check."""
        self.sealing.wipe()
        if self.blinders is not None:
            self.blinders[:] = 0


def trapped(held: Held, coin: bytes, policy: Policy) -> Trapped:
    """State what was sent at the traps, and commit to the mask for each hop there."""
    manifest = held.manifest
    traps = Traps.drawn(coin, manifest, policy)
    if not traps:
        return NO_TRAPS
    seeds = [(layer, seed, manifest.context(layer)) for layer, seed in held.sealing.seeds]
    return traps.of_silo(traps.picked(held.plain), seeds)


def measure(held: Held, coin: bytes) -> tuple[Scalars, ...]:
    """Fold the body as it was sent, and the mask for each hop, in one pass in which each mask is expanded once.

    Forms are linear: what was sent is the body, the aggregator's mask and those for the hops. Masks are made again,
    chunk by chunk: to keep them would take several times the body's memory, and fresh memory costs more than they do.
    """
    manifest = held.manifest
    shape = layout(manifest)
    layers = [layer for layer, _ in held.sealing.seeds]
    forms = Forms(coin, shape, 1 + sum(map(bool, layers)))
    room = np.empty(shape.chunk_bytes, np.uint8)
    seeds = [(seed, manifest.context(layer)) for layer, seed in held.sealing.seeds]
    with expanding(seeds, shape.plan.moduli) as streams:
        for index in range(shape.chunks):
            n, plain = shape.length(index), held.plain(index)
            inner = room[: len(plain)]
            inner[:] = plain
            for layer, stream in zip(layers, streams, strict=True):
                if layer:
                    forms.update(layer, index, stream.packed(index, n))
                else:
                    stream.apply(inner, index, n)
            forms.update(0, index, inner)
    inside, *masks = forms.finish()
    return (total(shape.plan, (inside, *masks)), *masks)
