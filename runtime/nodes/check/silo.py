"""A silo's part in the tamper check: what it keeps of a body until the coin is answered, and its scalars."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from silomix.runtime.core.numbers.masks import Stream
from silomix.runtime.core.numbers.packing import Bytes, slice_bytes
from silomix.runtime.core.numbers.tamper import Scalars
from silomix.runtime.core.protocol.check.forms import put_blinders, scalars_of
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.core.protocol.silo import Sealing


@dataclass
class Held:
    """A body that was sent: its integers, blinders and seeds, and the bytes. It goes when the coin is answered."""

    manifest: Manifest
    sealing: Sealing = field(repr=False)
    body: Bytes = field(repr=False)
    blinders: Bytes | None = field(repr=False)
    """The chunk of blinders, packed; none below level malicious."""
    sent: Bytes | None = field(repr=False, default=None)
    """At level malicious, the body under its masks, as it is sent."""
    masks: tuple[Bytes, ...] = field(repr=False, default=())
    """At level malicious, the mask for each hop: to expand one again would take longer than to fold it."""
    root: bytes = b""

    @classmethod
    def of(cls, manifest: Manifest, sealing: Sealing, body: Bytes) -> "Held":
        """Draw the blinders of a body."""
        shape = layout(manifest)
        if not shape.blinders:
            return cls(manifest, sealing, body, None)
        room = shape.body()
        put_blinders(room, shape, os.urandom)
        masks = tuple(shape.body() for _ in manifest.chain)
        return cls(manifest, sealing, body, shape.part(room, shape.value_chunks).copy(), room, masks)

    def plain(self, index: int) -> Bytes:
        """A chunk without masks."""
        shape = layout(self.manifest)
        if self.blinders is not None and index == shape.value_chunks:
            return self.blinders
        return shape.part(self.body, index)

    def cover(self, index: int, masked: Bytes, streams: Sequence[Stream]) -> None:
        """Put the masks on a chunk, and keep them and it. A stream that begins anew writes the same bytes again."""
        shape = layout(self.manifest)
        n = shape.length(index)
        for (layer, _), stream in zip(self.sealing.seeds, streams, strict=True):
            if self.sent is None or not layer:
                stream.apply(masked, index, n)
                continue
            mask = stream.packed(index, n)
            shape.part(self.masks[layer - 1], index)[:] = mask
            shape.sum(
                masked, [np.frombuffer(plane, np.uint8) for plane in shape.planes(mask.data, index)], slice_bytes(n)
            )
        if self.sent is not None:
            shape.part(self.sent, index)[:] = masked

    def wipe(self) -> None:
        """Overwrite what must not outlive the check."""
        self.sealing.wipe()
        if self.blinders is not None:
            self.blinders[:] = 0
        for mask in self.masks:
            mask[:] = 0


def measure(held: Held, coin: bytes) -> tuple[Scalars, ...]:
    """Fold the body as it was sent, and the mask for each hop, in one pass."""
    assert held.sent is not None, "there is no coin below level malicious"
    return tuple(scalars_of(coin, layout(held.manifest), [held.sent, *held.masks]))
