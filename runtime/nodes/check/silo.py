"""A silo's part in the tamper check: what it keeps of a body until the coin is answered, and its scalars."""

import os
from dataclasses import dataclass, field

import numpy as np

from silomix.runtime.core.numbers.masks import mask_streams
from silomix.runtime.core.numbers.packing import Bytes, slice_bytes
from silomix.runtime.core.numbers.tamper import Scalars
from silomix.runtime.core.protocol.check.forms import Forms, put_blinders
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
        if not shape.blinders:
            return cls(manifest, sealing, body, None)
        room = shape.body()
        put_blinders(room, shape, os.urandom)
        return cls(manifest, sealing, body, shape.part(room, shape.value_chunks).copy())

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


def measure(held: Held, coin: bytes) -> tuple[Scalars, ...]:
    """Fold the body as it was sent, and the mask for each hop: one pass, with each mask expanded once."""
    manifest, shape = held.manifest, layout(held.manifest)
    layers = [layer for layer, _ in held.sealing.seeds]
    streams = mask_streams(
        [(seed, manifest.context(layer)) for layer, seed in held.sealing.seeds], manifest.plan.moduli
    )
    forms = Forms(coin, shape, 1 + len(manifest.chain))
    for i in range(shape.chunks):
        n, masked = shape.length(i), held.plain(i).copy()
        for layer, stream in zip(layers, streams, strict=True):
            mask = stream.packed(i, n)
            planes = [np.frombuffer(plane, np.uint8) for plane in shape.planes(mask.data, i)]
            shape.sum(masked, planes, slice_bytes(n))
            if layer:
                forms.update(layer, i, mask)
        forms.update(0, i, masked)
    return tuple(forms.finish())
