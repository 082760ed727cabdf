"""One attempt on its way through a node: headers and the cohort, then chunk after chunk in, and out to the next hop.

A hop and the aggregator do the same thing with a sum: expand the masks that were sealed to them while silos still
upload, then add what comes in. One packed body holds it all: at first what the masks take off, then, body after body
at hop 1 and chunk after chunk at the others, the sum. It is kept until the attempt is over, so that a broken
stream to the next hop can be sent again. `runtime/nodes/rows.py` does the same with whole bodies, for the paper's
literal modes.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.codec import Aggregate, Codec
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.masks import Context, Overwritten, Secret, commitment, expanding, unseal
from silomix.runtime.core.numbers.packing import Bytes, slice_bytes
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.check.blame import check_told_once
from silomix.runtime.core.protocol.check.said import SignedRoot, check_bodies, checks
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.messages import (
    Cohort,
    Group,
    Grouping,
    Header,
    Manifest,
    SealedSeed,
    body_root,
    chunk_digest,
)
from silomix.runtime.core.protocol.release import PadContext, Ready, Trail, check_trails
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.net.check.said import read_bodies, write_bodies
from silomix.runtime.net.framing import RELAY, ChunkView, chunk_frame
from silomix.runtime.net.history import read_trails, write_trail
from silomix.runtime.net.wire import read_cohort, read_header, write_cohort, write_header
from silomix.runtime.nodes.node import whole
from silomix.v1 import body_pb2, services_pb2

T = TypeVar("T")
Partition = Grouping | tuple[Group, ...] | None
"""The cohort's groups: with names between hops, without at the aggregator, or none."""
Slack = Callable[[int], int]
AnyChunk = body_pb2.Chunk | ChunkView
Writer = Callable[[int], tuple[bytes, bytes]]
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None] | None"]


@dataclass(frozen=True)
class Cover:
    """The pad that a hop puts on what it passes on, and what it is bound to."""

    pad: Secret = field(repr=False)
    """This attempt's own copy, which goes with it."""
    context: PadContext
    digest: bytes
    """What the hop has committed to."""


def no_slack(_: int) -> int:
    """No noise: a sum lies within its range."""
    return 0


class Passage:
    """One attempt at one node, and what is known of it so far. What passes is the business of subclasses."""

    def __init__(self, manifest: Manifest, name: str, workers: Executor) -> None:
        """Begin with nothing."""
        self.manifest = manifest
        self.layout = layout(manifest)
        self.layer = manifest.layer(name)
        self.headers: list[Header] = []
        """All that came, in order: a stream that is under way counts them."""
        self.cohort: Cohort | None = None
        self.ready = 0
        """Chunks of the output that are done."""
        self.received_bytes = 0
        self.cover: Cover | None = None
        """A hop's pad: set when the cohort is decided, before anything of it is sent."""
        self.came = b""
        """Root of what came in, once all of it has: at hop 1, of the bodies."""
        self.trails: tuple[Trail, ...] = ()
        """What the hops before have signed."""
        self.bodies: tuple[SignedRoot, ...] = ()
        """At level malicious: what the silos of the cohort have signed of their bodies."""
        self.sent_root = b""
        """Root of the output, once all of it has been sent."""
        self._refused: asyncio.Future[PeerFault] = asyncio.get_running_loop().create_future()
        self._dropped: set[str] = set()
        self._came: list[bytes] = []
        self._changed = asyncio.Condition()
        self._settling = asyncio.Lock()
        self._taking = asyncio.Lock()
        self._workers = workers
        self._closed = False

    async def _work(self, run: Callable[..., T], *arguments: object) -> T:
        """Have a worker do something.

        The attempt may be over meanwhile. Then the worker finds files deleted and secrets gone: whatever it stumbles
        over means only that, and what it leaves behind goes too.
        """
        try:
            done = await whole(asyncio.get_running_loop().run_in_executor(self._workers, run, *arguments))
        except Exception:
            if not self._closed:
                raise
        if self._closed:
            self.close()
        self._check_open()
        return done

    def _check_open(self) -> None:
        if self._closed:
            raise Overwritten

    @property
    def chunks(self) -> int:
        """How many chunks pass, once the cohort is known."""
        raise NotImplementedError

    def decode(self, size: int, slack: Slack = no_slack) -> list[Aggregate]:
        """Make the mean over a cohort of this size of what arrived, or of each group's.

        Noise may carry a sum over n silos out of range by slack(n).
        """
        raise NotImplementedError

    def uncover(self, pads: Sequence[tuple[str, Secret]], ready: Ready) -> None:
        """Take the hops' pads off what arrived: the aggregator's, when all are out."""

    def close(self) -> None:
        """Leave nothing behind when the attempt is over: no file, no seed and no pad in memory."""
        self._closed = True
        if self.cover is not None:
            self.cover.pad.wipe()

    def _open(self, chunk: AnyChunk, index: int) -> tuple[Any, bytes]:
        """Check a chunk that came in; return what is in it, and its digest."""
        raise NotImplementedError

    def _put(self, index: int, content: Any) -> None:
        """Make this node's output of a chunk's content."""
        raise NotImplementedError

    def _writer(self) -> Writer:
        """Make what writes the output for one stream: from a chunk's number to its frame and its digest."""
        raise NotImplementedError

    async def add_header(self, header: Header, private: Secret | None, spawn: Spawn) -> None:
        """Take a header in."""
        async with self._changed:
            self.headers.append(header)
            self._changed.notify_all()

    def drop(self, silo: str) -> None:
        """Pass none of a silo's headers on any more. Its masks are put back as all absentees' are."""
        self._dropped.add(silo)

    def refuse(self, fault: PeerFault) -> None:
        """Refuse the stream that is coming in, for a reason that was found further down the chain."""
        refused, self._refused = self._refused, asyncio.get_running_loop().create_future()
        refused.set_result(fault)

    async def unless_refused(self, receiving: Coroutine[Any, Any, T]) -> T:
        """Take a stream in, unless it is refused meanwhile."""
        refused, task = self._refused, asyncio.ensure_future(receiving)
        try:
            first: set[asyncio.Future[Any]] = {task, refused}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise refused.result()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def settle(self, cohort: Cohort, partition: Partition = None) -> None:
        """Learn who is in the output, and by which groups."""
        async with self._settling:
            self._check_open()
            if self.cohort is not None:
                return
            await self._prepare(cohort, partition)
            async with self._changed:
                self.cohort = cohort
                self._changed.notify_all()

    async def _prepare(self, cohort: Cohort, partition: Partition) -> None:
        """Do what must be done before the first chunk comes."""

    async def _partition(self, frames: AsyncIterator[services_pb2.RelayFrame]) -> Partition:
        """Read the groups, if there are any: they come behind the cohort."""
        return None

    def _opening(self, last: bool) -> list[services_pb2.RelayFrame]:
        """What goes out between the headers and the chunks, to a hop or from the last one to the aggregator."""
        assert self.cohort is not None
        return [services_pb2.RelayFrame(cohort=write_cohort(self.cohort))]

    def own_seed(self, header: Header, private: Secret) -> Secret:
        """Open the seed in a header that is for this node."""
        sealed = header.seeds[self.layer - 1 if self.layer else len(self.manifest.chain)]
        return self.open_seed(sealed, private, header.silo)

    def open_seed(self, sealed: SealedSeed, private: Secret, whose: str) -> Secret:
        """Open a seed that was sealed to this node, or refuse it."""
        context = self.manifest.context(self.layer)
        try:
            seed = unseal(sealed.sealed, private, context)
        except PeerFault as fault:
            raise PeerFault(fault.reason, f"{whose}: {fault.message}", **{**fault.details, "peer": whose}) from None
        if commitment(seed, context) != sealed.commitment:
            raise PeerFault(Reason.SEAL_BROKEN, f"{whose} committed to another seed", peer=whose)
        return seed

    async def receive(
        self,
        frames: AsyncIterator[services_pb2.RelayFrame],
        sender: str,
        federation: Federation,
        on_header: Callable[[Header], Awaitable[object]],
        on_cohort: Callable[[Cohort, Partition], Awaitable[object]],
    ) -> bytes:
        """Take in all that the hop before passes on, let the core decide on each part, and return the sum's root."""
        closed = False  # in this stream: a broken one begins anew when the cohort is known here
        async for frame in frames:
            kind = frame.WhichOneof("kind")
            if kind == "header" and not closed:
                if self.cohort is None:  # else the headers are known
                    await on_header(read_header(frame.header))
            elif kind == "cohort" and not closed:
                closed = True
                cohort, partition = read_cohort(frame.cohort), await self._partition(frames)
                await on_cohort(cohort, partition)
                await self.settle(cohort, partition)
            elif kind == "chunk" and closed:
                await self.take(frame.chunk)
            elif kind == "trailer":
                async with self._taking:  # one end after the other: each is compared with those that came before
                    end = await asyncio.to_thread(self.check_trailer, frame.trailer, sender, federation)
                    await self.trailed(*end)
                return self.came
            else:
                raise PeerFault(Reason.WRONG_SEQUENCE, f"a {kind} out of turn", peer=sender)
        raise PeerFault(Reason.WRONG_SEQUENCE, f"the stream of {sender} ended early", peer=sender)

    async def take(self, chunk: AnyChunk) -> bytes:
        """Take in one chunk of the sum, and make the output of it. A chunk that comes again must be the same."""
        async with self._taking:  # a broken stream and the one that replaces it may overlap
            digest = await self._work(self._take, chunk)
        await self._advance(chunk.index + 1)
        return digest

    def _take(self, chunk: AnyChunk) -> bytes:
        # A gap would pass on the places that were left out, where the masks still lie.
        content, digest = self._open(chunk, min(chunk.index, len(self._came)))
        if chunk.index < len(self._came):
            if self._came[chunk.index] != digest:
                raise PeerFault(Reason.ROOT_MISMATCH, f"chunk {chunk.index} came a second time with another content")
            return digest
        self._put(chunk.index, content)
        self._came.append(digest)  # only now: what found no room on the disk did not come, and is to come again
        return digest

    async def _advance(self, ready: int) -> None:
        async with self._changed:
            self.ready = max(self.ready, ready)
            self._changed.notify_all()

    async def frames(self, identity: Identity, *, last: bool) -> AsyncIterator[services_pb2.RelayFrame | bytes]:
        """Yield what the next hop is to get, or the aggregator, as it becomes known; from the beginning each time."""
        opening = services_pb2.RelayOpen(hop=identity.name, manifest_digest=self.manifest.digest)
        yield services_pb2.RelayFrame(open=opening)
        sent = 0
        while True:
            await self._until(partial(self._news, sent))
            while sent < len(self.headers):
                header, sent = self.headers[sent], sent + 1
                in_groups = last and self.manifest.group_size  # else it would know whose seed it opens
                if not in_groups and header.silo not in self._dropped:
                    yield services_pb2.RelayFrame(header=write_header(header))
            if self.cohort is not None:
                break
        for frame in self._opening(last):
            yield frame
        digests, write = [], self._writer()
        for i in range(self.chunks):
            await self._until(partial(self._done, i))
            raw, digest = await self._work(write, i)
            digests.append(digest)
            yield raw
        await self._until(lambda: bool(self.came))
        assert self.cover is not None
        self.sent_root, context = body_root(digests), self.cover.context
        parts = context.cohort, context.grouping, self.came, self.sent_root, self.cover.digest
        own = Trail(identity.name, *parts).signed(identity)
        trails = [write_trail(trail) for trail in (*self.trails, own)]
        trailer = services_pb2.RelayTrailer(trails=trails, bodies=write_bodies(self.bodies))
        yield services_pb2.RelayFrame(trailer=trailer)

    async def trailed(self, came: bytes, trails: tuple[Trail, ...] = (), bodies: tuple[SignedRoot, ...] = ()) -> None:
        """Know that all has come in, and what the hops before have signed, and the silos."""
        async with self._changed:
            self.came, self.trails, self.bodies = came, trails, bodies
            self._changed.notify_all()

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(holds)

    def _news(self, sent: int) -> bool:
        return len(self.headers) > sent or self.cohort is not None

    def _done(self, index: int) -> bool:
        return self.ready > index

    def check_trailer(
        self, trailer: services_pb2.RelayTrailer, sender: str, federation: Federation
    ) -> tuple[bytes, tuple[Trail, ...], tuple[SignedRoot, ...]]:
        """Compare what came with what the sender signed, and all signatures before it; return its root, and them."""
        if self.cohort is None or len(self._came) != self.chunks:
            raise PeerFault(Reason.WRONG_SEQUENCE, f"{sender} ended after {len(self._came)} chunks, which is early")
        root, trails = body_root(self._came), read_trails(list(trailer.trails))
        before = self.manifest.chain[: self.layer - 1] if self.layer else self.manifest.chain
        if len(trails) != len(before):
            raise PeerFault(Reason.WRONG_CHAIN, f"{len(trails)} trails came of {len(before)} hops", peer=sender)
        check_trails(trails, self.cohort.digest, before, federation)
        if trails[-1].sent != root:
            raise PeerFault(Reason.ROOT_MISMATCH, f"the chunks are not those that {sender} signed", peer=sender)
        if self.cover is not None and trails[-1].grouping != self.cover.context.grouping:
            raise PeerFault(Reason.WRONG_MANIFEST, f"{sender} signed for another grouping", peer=sender)
        bodies = read_bodies(list(trailer.bodies)) if checks(federation) else ()
        if checks(federation):
            check_bodies(bodies, self.cohort, trails[0].came, federation)
            # A broken stream that begins anew ends as it would have ended.
            check_told_once(self.trails, trails, self.manifest, federation)
        return root, trails, bodies


class SumPassage(Passage):
    """The vector of one attempt: what comes in, less this node's masks."""

    def __init__(self, manifest: Manifest, name: str, workers: Executor) -> None:
        """Make room for the sum."""
        super().__init__(manifest, name, workers)
        self.masked = manifest.plan.level is not Level.TRUSTED
        self.sum: Bytes = self.layout.body()
        checked = manifest.plan.level is Level.MALICIOUS and self.layer > 0
        self.taken: Bytes | None = self.layout.body() if checked else None
        """At level malicious, at a hop: what came in, as it came, to answer the coin with."""
        self._seeds: dict[bytes, Secret] = {}
        self._waiting: list[Secret] = []
        self._pending: list[asyncio.Task[None]] = []
        self._busy = asyncio.Lock()

    @property
    def chunks(self) -> int:
        """As many as a body has."""
        return self.layout.chunks

    def decode(self, size: int, slack: Slack = no_slack) -> list[Aggregate]:
        """Decode the sum to the cohort's mean, or refuse it if it cannot be one of this cohort."""
        m = self.manifest
        return [Codec(m.schema, m.bounds, m.plan, m.chunk_parameters).decode(self.sum, size, slack(size))]

    async def add_header(self, header: Header, private: Secret | None, spawn: Spawn) -> None:
        """Take a header in, open the seed in it that is ours, and begin to expand its mask."""
        if self.masked and private is not None:
            self._seeds[header.digest] = seed = self.own_seed(header, private)
            self._waiting.append(seed)
            task = spawn(self._expand())
            if task is not None:  # else the node is ending
                self._pending.append(task)
        await super().add_header(header, private, spawn)

    async def _expand(self) -> None:
        async with self._busy:
            seeds, self._waiting = self._waiting, []
            if seeds:  # else they went with those before
                with suppress(Overwritten):  # the attempt is over: nothing of it will leave
                    await self._work(self._apply, seeds, -1)

    def _apply(self, seeds: list[Secret], sign: int) -> None:
        """Add masks or take them off, all of them chunk by chunk: a chunk is fetched from memory once."""
        context = self.manifest.context(self.layer)
        self._put_on([(seed, context) for seed in seeds], sign)

    def _put_on(self, secrets: Sequence[tuple[Secret, Context]], sign: int) -> None:
        with expanding(secrets, self.manifest.plan.moduli) as streams:
            for i in range(self.layout.chunks):
                for stream in streams:
                    stream.apply(self.layout.part(self.sum, i), i, self.layout.length(i), sign)

    async def _prepare(self, cohort: Cohort, partition: Partition) -> None:
        """Wait for the masks, and put those of silos outside the cohort back."""
        if self._pending:
            await asyncio.wait(self._pending)  # not `gather`: a stream that is refused now must not cancel them
        for task in self._pending:
            task.result()
        wanted = {p.header for p in cohort.participants}
        for digest in self._seeds.keys() - wanted:
            async with self._busy:
                self._check_open()
                seed = self._seeds.pop(digest)  # it is put back, also if the stream breaks now
                try:
                    await self._work(self._apply, [seed], 1)
                finally:
                    seed.wipe()
        if self.cover is not None:
            async with self._busy:
                await self._work(self._put_on, [(self.cover.pad, self.cover.context)], 1)

    def _open(self, chunk: AnyChunk, index: int) -> tuple[list[Bytes], bytes]:
        return open_chunk(chunk, self.layout, index)

    def _put(self, index: int, content: list[Bytes]) -> None:
        self.layout.sum(self.layout.part(self.sum, index), content, slice_bytes(self.layout.length(index)))
        if self.taken is not None:
            at, part = 0, self.layout.part(self.taken, index)
            for plane in content:
                part[at : at + len(plane)] = plane
                at += len(plane)

    def seed_of(self, header: bytes) -> Secret:
        """The seed that a header of the cohort sealed to this node."""
        return self._seeds[header]

    async def count(self, add_to: Callable[[Bytes], None]) -> None:
        """Take in one silo's whole body: hop 1's. Masks are being taken off the same array, hence the turns."""
        async with self._busy:
            await self._work(add_to, self.sum if self.taken is None else self.taken)

    def close(self) -> None:
        """Overwrite the secrets, and the vectors: of an attempt that came to nothing they are sums of masks."""
        super().close()
        for seed in (*self._seeds.values(), *self._waiting):
            seed.wipe()
        self._seeds, self._waiting = {}, []
        self.sum[:] = 0
        if self.taken is not None:
            self.taken[:] = 0

    def uncover(self, pads: Sequence[tuple[str, Secret]], ready: Ready) -> None:
        """Take the hops' pads off."""
        length = self.manifest.chunk_parameters
        self._put_on([(pad, ready.pad_context(hop, length)) for hop, pad in pads], -1)

    async def change(self, how: "Callable[[SumPassage], None]") -> None:
        """Let something else happen to the sum, in turn with what is under way: misbehaving hops of drills."""
        async with self._busy:
            await self._work(how, self)

    async def take_all(self) -> None:
        """Be done: all bodies of the cohort are in."""
        if self.taken is not None:
            await self._work(self.layout.add_body, self.sum, self.taken)
        await self._advance(self.chunks)

    def _writer(self) -> Writer:
        return self._write

    def _write(self, index: int) -> tuple[bytes, bytes]:
        start, planes = self.layout.start(index), self.layout.planes(self.layout.part(self.sum, index).data, index)
        return chunk_frame(RELAY, index, start, planes), chunk_digest(index, start, planes)


class LastPassage(SumPassage):
    """The vector at the aggregator, which also keeps it as it came: silos are to make the sum of it themselves."""

    def __init__(self, manifest: Manifest, name: str, workers: Executor, path: Path) -> None:
        """The file is as long as a body."""
        super().__init__(manifest, name, workers)
        self.path = path
        self._file = open(path, "wb", 0)  # noqa: SIM115 - closed with the attempt

    def _put(self, index: int, content: list[Bytes]) -> None:
        self._file.seek(self.layout.offset(index))
        for plane in content:
            left = plane.data
            while left:  # a disk that is nearly full takes a part, and says no only to the next
                left = left[self._file.write(left) :]
        super()._put(index, content)

    def seeds_of(self, cohort: Cohort) -> tuple[Secret, ...]:
        """The seeds of this layer, in the order of the cohort."""
        return tuple(self._seeds[p.header] for p in cohort.participants) if self._seeds else ()

    def keep(self) -> None:
        """Make the file durable."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file, which outlives the attempt, and overwrite the seeds."""
        super().close()
        self._file.close()


def open_chunk(chunk: AnyChunk, shape: Layout, index: int) -> tuple[list[Bytes], bytes]:
    """Check a chunk in full; return its planes and its digest."""
    check_place(chunk, index, shape.start(index))
    planes = list(chunk.planes)
    return shape.check(index, planes), chunk_digest(index, chunk.first_parameter, planes)


def check_place(chunk: AnyChunk, index: int, start: int) -> None:
    """Refuse a chunk that is not the one that is due."""
    if chunk.index != index or chunk.first_parameter != start:
        raise PeerFault(
            Reason.WRONG_SEQUENCE, f"chunk {chunk.index} came where {index} was due", found=chunk.index, expected=index
        )
