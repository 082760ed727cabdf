"""Traps in the tamper check: what is stated at the parameters that the coin has drawn, and how it is made.

Where a policy has traps, whoever answers the coin also states, at each trap, the residues of what it sent and took in.
These have travelled: at every hop they are under the masks of the hops to come and the pads of those before. They
count in the equations between a sender and a receiver like the scalars do. What a hop removed and added is secret, so
masks and pads are committed to. `proofs.py` has what a hop then proves of them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from silomix.runtime.core.digest import digest
from silomix.runtime.core.numbers import traps as arithmetic
from silomix.runtime.core.numbers.fold import Scalars
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.masks import Context, Secret, expanding
from silomix.runtime.core.numbers.packing import Bytes, slice_bytes
from silomix.runtime.core.numbers.tamper import joined, negative, total
from silomix.runtime.core.numbers.traps import POINT_BYTES, Opening
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.check.forms import scalars_of
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.rules import layout, trap_span

PartOf = Callable[[int], Bytes]
"""A chunk of a vector by its number, packed."""


@dataclass(frozen=True)
class Trapped:
    """What somebody states at the traps; nothing where there are none."""

    residues: tuple[Scalars, ...] = ()
    """One for each trap and plane. A silo's: of its body. A hop's: of what came in and what went out. The
    aggregator's: of what reached it."""
    commitments: tuple[bytes, ...] = ()
    """Points, plane after plane and in each one for each trap. A silo's: to its mask for each hop. A hop's: to its
    negated pad."""


NO_TRAPS = Trapped()


@dataclass(frozen=True)
class TrapProof:
    """A hop's proofs for all traps, signed: that it removed exactly its masks and added exactly its pad there."""

    hop: str
    check: bytes
    """Digest of all that was said before."""
    proofs: bytes
    """One after the other, plane after plane and in each one for each trap."""
    signature: bytes = b""

    @cached_property
    def digest(self) -> bytes:
        """What the hop signs."""
        return digest("trap-proof", self.hop, self.check, self.proofs)

    def signed(self, identity: Identity) -> "TrapProof":
        """Sign it."""
        return replace(self, signature=identity.sign(self.digest))


@dataclass(frozen=True)
class Traps:
    """The traps of one attempt: where they are, and what a vector or a secret has there."""

    coin: bytes
    shape: Layout
    at: tuple[int, ...]

    @classmethod
    def drawn(cls, coin: bytes, manifest: Manifest, policy: Policy) -> "Traps":
        """Draw them; there are none if the policy has none."""
        at: tuple[int, ...] = ()
        if policy.traps:
            at = arithmetic.positions(coin, policy.traps, *trap_span(manifest, policy))
        return cls(coin, layout(manifest), at)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.at)

    def picked(self, part_of: PartOf) -> Scalars:
        """Read the residues of a vector at the traps, from no other chunks than they are in."""
        plan, length = self.shape.plan, self.shape.chunk_parameters
        rows: list[list[int]] = [[] for _ in plan.moduli]
        for index in sorted({at // length for at in self.at}):
            columns = np.array([at % length for at in self.at if at // length == index])
            part, size, start = part_of(index), slice_bytes(self.shape.length(index)), 0
            for row, width in zip(rows, plan.widths, strict=True):
                slices = part[start : start + width * size].reshape(width, size)
                bits = (slices[:, columns >> 3] >> (columns & 7).astype(np.uint8) & 1).astype(np.int64)
                row += (bits << np.arange(width)[:, None]).sum(axis=0).tolist()
                start += width * size
        return tuple(tuple(row) for row in rows)

    def vectors(self, bodies: Iterable[Bytes]) -> list[Scalars]:
        """Read whole vectors at the traps."""
        return [self.picked(lambda index, body=body: self.shape.part(body, index)) for body in bodies]  # type: ignore[misc]

    def expanded(self, secrets: Iterable[tuple[Secret, Context]]) -> list[Scalars]:
        """Expand seeds or pads at the traps."""
        with expanding(secrets, self.shape.plan.moduli) as streams:
            return [
                self.picked(lambda index, stream=stream: stream.packed(index, self.shape.length(index)))  # type: ignore[misc]
                for stream in streams
            ]

    def openings(self, secret: Secret, context: Context, values: Scalars) -> list[Opening]:
        """Put values together with the blindings that follow from the secret which they are the expansion of."""
        info = context.info()
        return [
            Opening(value, arithmetic.blinding(secret, info, self.coin, trap, plane))
            for plane, row in enumerate(values)
            for trap, value in enumerate(row)
        ]

    # What each role states

    def of_silo(self, inside: Scalars, seeds: Sequence[tuple[int, Secret, Context]]) -> Trapped:
        """State what a silo sent, and commit to its mask for each hop. `inside` is its body without any masks."""
        if not self:
            return NO_TRAPS
        values = self.expanded((seed, context) for _, seed, context in seeds)
        made = tuple(
            committed(self.openings(seed, context, found))
            for (layer, seed, context), found in zip(seeds, values, strict=True)
            if layer
        )
        return Trapped((total(self.shape.plan, (inside, *values)),), made)

    def of_hop(self, taken: Bytes, sent: Bytes, pad: Secret, context: Context) -> Trapped:
        """State what came in and what went out, and commit to the pad."""
        if not self:
            return NO_TRAPS
        return Trapped(tuple(self.vectors((taken, sent))), (committed(self.pad_openings(pad, context)),))

    def of_aggregator(self, vector: Bytes) -> Trapped:
        """State what reached the aggregator."""
        return Trapped(tuple(self.vectors((vector,)))) if self else NO_TRAPS

    def mask_openings(self, seed: Secret, context: Context) -> list[Opening]:
        """Open a silo's commitments to its mask for a hop, as both can."""
        return self.openings(seed, context, self.expanded([(seed, context)])[0])

    def pad_openings(self, pad: Secret, context: Context) -> list[Opening]:
        """Open a hop's commitments to its negated pad: before the pad is shown only the hop can, afterwards anybody."""
        values = self.expanded([(pad, context)])[0]
        return self.openings(pad, context, negative(self.shape.plan, values))  # added where masks are removed

    # What passes between two nodes: the scalars of a vector, and its residues at the traps

    def forms(self, bodies: Sequence[Bytes]) -> list[Scalars]:
        """Compute what both ends of an edge state of each vector."""
        scalars = scalars_of(self.coin, self.shape, bodies)
        return [joined(*both) for both in zip(scalars, self.vectors(bodies), strict=True)] if self else scalars


def committed(openings: Sequence[Opening]) -> bytes:
    """Commit to each value, one point after the other."""
    return b"".join(arithmetic.commit(opening) for opening in openings)


def points(blob: bytes) -> list[bytes]:
    """Cut commitments apart."""
    return [blob[at : at + POINT_BYTES] for at in range(0, len(blob), POINT_BYTES)]
