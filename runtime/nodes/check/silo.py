"""A silo's part in the tamper check: what it keeps of a body until the coin is answered, and its scalars."""

import os
from dataclasses import dataclass, field

from silomix.runtime.core.numbers.packing import Bytes
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
    """At level malicious, the body under its masks: to mask it once more would take as long as to fold two masks."""
    root: bytes = b""

    @classmethod
    def of(cls, manifest: Manifest, sealing: Sealing, body: Bytes) -> "Held":
        """Draw the blinders of a body."""
        shape = layout(manifest)
        if not shape.blinders:
            return cls(manifest, sealing, body, None)
        room = shape.body()
        put_blinders(room, shape, os.urandom)
        return cls(manifest, sealing, body, shape.part(room, shape.value_chunks).copy(), room)

    def plain(self, index: int) -> Bytes:
        """A chunk without masks."""
        shape = layout(self.manifest)
        if self.blinders is not None and index == shape.value_chunks:
            return self.blinders
        return shape.part(self.body, index)

    def keep(self, index: int, masked: Bytes) -> None:
        """Keep a chunk as it is sent; a stream that begins anew sends the same bytes again."""
        if self.sent is not None:
            layout(self.manifest).part(self.sent, index)[:] = masked

    def wipe(self) -> None:
        """Overwrite what must not outlive the check."""
        self.sealing.wipe()
        if self.blinders is not None:
            self.blinders[:] = 0


def measure(held: Held, coin: bytes) -> tuple[Scalars, ...]:
    """Fold the body as it was sent, and the mask for each hop: one pass, with each mask expanded once."""
    manifest, sent = held.manifest, held.sent
    assert sent is not None, "there is no coin below level malicious"
    masks = [(seed, manifest.context(layer)) for layer, seed in held.sealing.seeds if layer]
    return tuple(scalars_of(coin, layout(manifest), [sent], masks))
