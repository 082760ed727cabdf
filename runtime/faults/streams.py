"""What nodes in memory say to each other, and the vectors in it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Context, Secret, commitment, mask_streams, unseal
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Cohort, Header, Manifest, body_root, chunk_digest
from silomix.runtime.core.protocol.release import Trail, check_trails
from silomix.runtime.core.protocol.roundlog import Record
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.faults.world import World


@dataclass(frozen=True)
class Event:
    """An event of the target's machine, to be answered with what it decided."""

    event: Any


@dataclass(frozen=True)
class Store:
    """Records that a hop may lack."""

    records: tuple[Record, ...]
    life: bytes


@dataclass(frozen=True)
class Probe:
    """Whether a hop still has an attempt."""

    manifest: bytes


@dataclass(frozen=True)
class Submit:
    """A silo's body, as a stream: header, chunks, and at the end the trailer."""

    header: Header
    chunks: tuple[Bytes, ...]
    trailer: tuple[bytes, bytes] | None


@dataclass(frozen=True)
class Relay:
    """What a hop has for the next, or the last one for the aggregator, as a stream."""

    manifest: bytes
    headers: tuple[Header, ...]
    cohort: Cohort | None
    chunks: tuple[Bytes, ...]
    trails: tuple[Trail, ...]


@dataclass(frozen=True)
class Watch:
    """A silo asks what is new, and says how many records it has, and whether it has computed the last one's model."""

    records: int
    record: bytes = b""
    signature: bytes = b""


@dataclass(frozen=True)
class News:
    """What is new."""

    records: tuple[Record, ...]
    manifest: Manifest | None
    finished: bool


@dataclass(frozen=True)
class Wanted:
    """The aggregator has lost a model."""

    model: bytes


@dataclass(frozen=True)
class GetModel:
    """A silo asks for the newest model, and for the word of those who have computed it."""

    record: bytes


@dataclass(frozen=True)
class GetSum:
    """A silo asks for a released sum."""

    round: int


Delivered = bytes
"""The digest of the attempt whose sum has come through."""


def planes_of(part: Bytes, m: Manifest, index: int) -> list[memoryview]:
    """The planes of a chunk."""
    return layout(m).planes(part.data, index)


def chunk_of(part: Bytes, m: Manifest, index: int) -> bytes:
    """The digest of a chunk."""
    return chunk_digest(index, layout(m).start(index), planes_of(part, m, index))


def parts_of(body: Bytes, m: Manifest) -> tuple[Bytes, ...]:
    """A body's chunks, each a copy."""
    return tuple(layout(m).part(body, i).copy() for i in range(layout(m).chunks))


def cover(sign: int, body: Bytes, m: Manifest, secrets: Iterable[tuple[Secret, Context]]) -> None:
    """Add masks or pads to a body, or take them off."""
    shape = layout(m)
    for stream in mask_streams(list(secrets), m.plan.moduli):
        for i in range(shape.chunks):
            stream.apply(shape.part(body, i), i, shape.length(i), sign)


def opened(h: Header, m: Manifest, name: str, private: Secret) -> Secret:
    """Open the seed of a header that is for this node."""
    context = m.context(m.layer(name))
    sealed = next(s for s in h.seeds if s.recipient == name)
    seed = unseal(sealed.sealed, private, context)
    if commitment(seed, context) != sealed.commitment:
        raise PeerFault(Reason.SEAL_BROKEN, "another seed was committed to")
    return seed


@dataclass
class Passage:
    """The vector of one attempt at one node."""

    manifest: Manifest
    total: Bytes
    headers: dict[bytes, Header]
    seeds: dict[bytes, Secret]
    came: list[bytes]
    """Digests of the chunks that came."""
    cohort: Cohort | None = None
    pad: Secret | None = None
    root: bytes = b""
    """Root of what came in, once all of it is here."""
    trails: tuple[Trail, ...] = ()
    out: Relay | None = None
    said: Relay | None = None
    """The newest stream to the next node."""
    delivered: bool = False
    refused: PeerFault | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> "Passage":
        """Make room."""
        return cls(manifest, layout(manifest).body(), {}, {}, [])

    def take(self, index: int, part: Bytes) -> None:
        """Take in one chunk of the sum; one that comes again must be the same."""
        digest = chunk_of(part, self.manifest, index)
        if index < len(self.came):
            if self.came[index] != digest:
                raise PeerFault(Reason.ROOT_MISMATCH, f"chunk {index} came a second time with another content")
            return
        self.came.append(digest)
        layout(self.manifest).add(self.total, index, planes_of(part, self.manifest, index))

    def end(self, trails: tuple[Trail, ...], federation: Federation) -> None:
        """Check that all has come, and what the hops before have signed."""
        m, cohort = self.manifest, self.cohort
        if cohort is None or len(self.came) != layout(m).chunks:
            raise PeerFault(Reason.WRONG_SEQUENCE, "the stream ended early")
        check_trails(trails, cohort.digest, m.chain, federation)
        if trails[-1].sent != body_root(self.came):
            raise PeerFault(Reason.ROOT_MISMATCH, "the chunks are not those that were signed")
        self.root, self.trails = trails[-1].sent, trails


def cut(stream: Any, world: World) -> Any:
    """A stream as it comes through: all of it, or no more than its beginning."""
    if not world.strikes("cut"):
        return stream
    random = world.random
    chunks = stream.chunks[: random.randint(0, len(stream.chunks))]
    if isinstance(stream, Submit):
        return replace(stream, chunks=chunks, trailer=None)
    headers = stream.headers[: random.randint(0, len(stream.headers))]
    known = stream.cohort if len(headers) == len(stream.headers) else None
    return replace(stream, headers=headers, cohort=known, chunks=chunks if known else (), trails=())
