"""Bodies and sums as an adversary handles them: made, taken apart, opened with whatever keys it has, and passed on."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from silomix.attacks.active.measure import Vector
from silomix.runtime.core.errors import PeerFault
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.masks import Context, Secret, mask_stream, unseal
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol import silo as core
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.messages import (
    Cohort,
    Grouping,
    Header,
    Manifest,
    Participant,
    body_root,
    chunk_digest,
    trailer_digest,
)
from silomix.runtime.core.protocol.release import PadContext, Trail, pad_digest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.net.history import write_trail
from silomix.runtime.net.wire import write_cohort, write_grouping, write_header
from silomix.v1 import body_pb2, services_pb2

Keys = Mapping[str, Mapping[str, Secret]]
"""Private round keys that colluders have put together: by node, then by silo."""


@dataclass(frozen=True)
class Body:
    """A silo's body, masked."""

    header: Header
    planes: Bytes = field(repr=False)


def planes_of(chunks: Iterable[body_pb2.Chunk]) -> Bytes:
    """Put chunks together again."""
    return np.frombuffer(b"".join(plane for chunk in chunks for plane in chunk.planes), np.uint8).copy()


def seed_for(header: Header, name: str, private: Secret, manifest: Manifest) -> Secret | None:
    """Open the seed that a silo sealed to a node, if this key opens it."""
    sealed = next(s for s in header.seeds if s.recipient == name)
    try:
        return unseal(sealed.sealed, private, manifest.context(manifest.layer(name)))
    except PeerFault:
        return None


def take_off(planes: Bytes, headers: Iterable[Header], keys: Keys, manifest: Manifest) -> Bytes:
    """Take the masks of these silos off for which there are keys, and leave the others on."""
    out = planes.copy()
    for header in headers:
        for name, own in keys.items():
            private = own.get(header.silo) or own.get("")
            seed = seed_for(header, name, private, manifest) if private is not None else None
            if seed is None:
                continue
            cover(out, seed, manifest.context(manifest.layer(name)), manifest, -1)
    return out


def cover(
    planes: Bytes, secret: Secret, context: Context, manifest: Manifest, sign: int = 1, place: tuple[int, int] = (0, 1)
) -> None:
    """Put what a secret expands to on a vector, or take it off; on a group's, by its number and how many there are."""
    shape, stream = layout(manifest), mask_stream(secret, context, manifest.plan.moduli)
    row, rows = place
    for i in range(shape.chunks):
        stream.apply(shape.part(planes, i), i * rows + row, shape.length(i), sign)


def sum_of(bodies: Iterable[Body], manifest: Manifest) -> Bytes:
    """Add bodies up."""
    shape = layout(manifest)
    total = shape.body()
    for body in bodies:
        shape.add_body(total, body.planes)
    return total


def values(planes: Bytes, manifest: Manifest) -> Vector:
    """Decode to values, whether they can be right or not: an adversary has no scruples about ranges."""
    integers = residue.decode_sum(layout(manifest).residues(planes), manifest.plan)
    found: Vector = integers[: manifest.schema.parameters].astype(np.float64)
    bounds = np.repeat(manifest.bounds, [spec.size for spec in manifest.schema.tensors])
    return found * (bounds / manifest.plan.v)


def make_body(
    identity: Identity,
    manifest: Manifest,
    federation: Any,
    update: Mapping[str, Any],
    header: Header | None = None,
    times: int = 1,
) -> Body:
    """Make a silo's body as it should be: fresh seeds, the update's residues, and the masks of every layer on top.

    Or one with so many times the update, beyond any bound: under masks nobody sees that.
    """
    sealing = core.Silo(federation, identity).sealing(manifest, os.urandom)
    codec = Codec(manifest.schema, manifest.bounds, manifest.plan, manifest.chunk_parameters)
    shape = codec.layout
    plain, planes = shape.body(), shape.body()
    for _ in codec.encode(update, body=plain):
        pass
    for _ in range(times):
        shape.add_body(planes, plain)
    for i in range(shape.chunks):
        for layer, seed in sealing.seeds:
            stream = mask_stream(seed, manifest.context(layer), manifest.plan.moduli)
            stream.apply(shape.part(planes, i), i, shape.length(i))
    return Body(header or sealing.header, planes)


def chunks_of(planes: Bytes | Sequence[Bytes], manifest: Manifest) -> list[body_pb2.Chunk]:
    """Cut a body into chunks, as they travel; or the sums of groups."""
    shape = layout(manifest)
    sums = [planes] if isinstance(planes, np.ndarray) else planes
    return [
        body_pb2.Chunk(
            index=i * len(sums) + row,
            first_parameter=shape.start(i),
            planes=[bytes(plane) for plane in shape.planes(shape.part(one, i).data, i)],
        )
        for i in range(shape.chunks)
        for row, one in enumerate(sums)
    ]


def root_of(chunks: Sequence[body_pb2.Chunk]) -> bytes:
    """Return what the sender of these chunks signs."""
    return body_root([chunk_digest(c.index, c.first_parameter, c.planes) for c in chunks])


def body_frames(body: Body, identity: Identity, manifest: Manifest) -> list[body_pb2.Frame]:
    """Write a body as frames to hop 1."""
    chunks = chunks_of(body.planes, manifest)
    root = root_of(chunks)
    signature = identity.sign(trailer_digest(body.header.digest, root))
    return [
        body_pb2.Frame(header=write_header(body.header)),
        *(body_pb2.Frame(chunk=chunk) for chunk in chunks),
        body_pb2.Frame(trailer=body_pb2.Trailer(root=root, signature=signature)),
    ]


def cohort_of(headers: Mapping[str, Header], manifest: Manifest, first: Identity) -> Cohort:
    """Close a cohort as hop 1 does, under whatever names."""
    participants = tuple(Participant(name, headers[name].digest) for name in sorted(headers))
    cohort = Cohort(manifest.digest, participants)
    return replace(cohort, signature=first.sign(cohort.digest))


@dataclass(frozen=True)
class Passed:
    """What a hop passes on, in pieces that can be spoiled before they are sent."""

    manifest: Manifest
    hop: Identity
    headers: tuple[Header, ...]
    cohort: Cohort
    chunks: tuple[body_pb2.Chunk, ...] = field(repr=False)
    came: bytes
    """Root of what came in."""
    pad: Secret = field(repr=False)
    before: tuple[Trail, ...] = ()
    """What the hops before have signed."""
    root: bytes = b""
    signature: bytes = b""
    grouping: Grouping | None = None
    whole: bool = True
    """Whether a trailer ends it."""

    @property
    def trail(self) -> Trail:
        """What the hop signs of it."""
        seal = b"" if self.grouping is None else self.grouping.seal
        root = self.root or root_of(self.chunks)
        made = Trail(self.hop.name, self.cohort.digest, seal, self.came, root, pad_digest(self.pad)).signed(self.hop)
        return replace(made, signature=self.signature) if self.signature else made

    def frames(self) -> list[services_pb2.RelayFrame]:
        """Write it as frames to the next hop, or to the aggregator."""
        frame = services_pb2.RelayFrame
        opening = services_pb2.RelayOpen(hop=self.hop.name, manifest_digest=self.manifest.digest)
        out = [frame(open=opening), *(frame(header=write_header(h)) for h in self.headers)]
        out.append(frame(cohort=write_cohort(self.cohort)))
        if self.grouping is not None:
            out.append(frame(grouping=write_grouping(self.grouping)))
        out += [frame(chunk=chunk) for chunk in self.chunks]
        if self.whole:
            trails = [write_trail(trail) for trail in (*self.before, self.trail)]
            out.append(frame(trailer=services_pb2.RelayTrailer(trails=trails)))
        return out


def pad_context(cohort: Cohort, grouping: Grouping | None, hop: str, manifest: Manifest) -> PadContext:
    """What a hop's pad is bound to."""
    return PadContext(cohort.digest, b"" if grouping is None else grouping.seal, hop, manifest.chunk_parameters)
