"""Attempts in which several rows pass side by side: sums by group, and the paper's literal modes.

A stream between two nodes holds, for each chunk of a body, that chunk of every row, row after row. A hop writes its
output to a file, from which a broken stream is sent again, byte for byte.

With groups, row k is the sum of group k. In the literal modes there is a row for each silo, and every hop permutes a
chunk of all rows when it is complete; in mode `none` row i is that of the cohort's i-th silo, in all others nobody
behind hop 1 is told whose a row was.
"""

import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.baseline import Baseline, Row
from silomix.runtime.core.numbers.codec import Aggregate, Codec
from silomix.runtime.core.numbers.masks import Overwritten, Secret, Stream, mask_stream, mask_streams
from silomix.runtime.core.numbers.packing import Bytes, slice_bytes
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.messages import Cohort, Group, Grouping, Header, Manifest, chunk_digest
from silomix.runtime.core.protocol.release import Ready
from silomix.runtime.core.protocol.rules import baseline
from silomix.runtime.net.framing import RELAY, chunk_frame
from silomix.runtime.net.wire import read_grouping, read_groups, write_cohort, write_grouping, write_groups
from silomix.runtime.nodes.passage import (
    AnyChunk,
    LastPassage,
    Partition,
    Passage,
    Slack,
    Spawn,
    SumPassage,
    Writer,
    check_place,
    no_slack,
)
from silomix.runtime.store.files import naming
from silomix.v1 import services_pb2


def make_passage(
    manifest: Manifest,
    name: str,
    workers: Executor,
    spool: Path | None = None,
    private: Secret | None = None,
    kept: Path | None = None,
) -> Passage:
    """Make what an attempt needs at a node.

    Hops have a directory to spool to; the aggregator has none, but a file to keep a sum in as it came, and a key that
    opens the seeds of groups.
    """
    mode = baseline(manifest)
    path = None if spool is None else spool / f"{manifest.digest.hex()[:32]}.rows"
    if mode is not None:
        return RowsPassage(mode, manifest, name, workers, path)
    if manifest.group_size:
        return GroupsPassage(manifest, name, workers, path, private)
    return SumPassage(manifest, name, workers) if kept is None else LastPassage(manifest, name, workers, kept)


class TablePassage(Passage):
    """Several rows. A hop has a file for its output; the aggregator has none, and keeps what it makes of them."""

    def __init__(self, manifest: Manifest, name: str, workers: Executor, path: Path | None) -> None:
        """The file is made with the first chunk."""
        super().__init__(manifest, name, workers)
        self._path = path
        self._file: BinaryIO | None = None

    @property
    def rows(self) -> int:
        """How many rows pass, once the cohort is known."""
        raise NotImplementedError

    def _sizes(self, lot: int) -> tuple[int, ...]:
        """Bytes of each plane of a row's chunk."""
        raise NotImplementedError

    def _take_lot(self, lot: int, paths: list[Path]) -> None:
        """Make the output's rows of one chunk of the silos' bodies, which lie in files in the order of the cohort."""
        raise NotImplementedError

    @property
    def chunks(self) -> int:
        """Every chunk of every row."""
        return self.layout.chunks * self.rows

    def close(self) -> None:
        """Delete what was spooled."""
        super().close()
        if self._file is not None and self._path is not None:
            with suppress(OSError):  # what is still buffered does not fit on a full disk, and need not
                self._file.close()
            self._path.unlink(missing_ok=True)

    async def take_bodies(self, paths: list[Path]) -> None:
        """Take in the silos' bodies: hop 1's."""
        for lot in range(self.layout.chunks):
            await self._work(self._take_lot, lot, paths)
            await self._advance((lot + 1) * self.rows)

    def _body(self, path: Path, lot: int) -> Row:
        with open(path, "rb") as body:
            body.seek(lot * sum(self._sizes(0)))
            return [body.read(size) for size in self._sizes(lot)]

    def _at(self, lot: int, row: int) -> int:
        return lot * self.rows * sum(self._sizes(0)) + row * sum(self._sizes(lot))

    def _store(self, lot: int, row: int, planes: Row) -> None:
        assert self._path is not None
        if self._file is None:
            self._file = open(self._path, "wb")  # noqa: SIM115 - closed with the attempt
        with naming(self._path):
            self._file.seek(self._at(lot, row))
            self._file.writelines(planes)
            self._file.flush()

    def _writer(self) -> Writer:
        return self._read

    def _read(self, index: int) -> tuple[bytes, bytes]:
        assert self._path is not None
        lot, row = divmod(index, self.rows)
        start = self.layout.start(lot)
        with open(self._path, "rb") as spooled:  # not the handle that writes: both may be at work
            spooled.seek(self._at(lot, row))
            planes = [spooled.read(size) for size in self._sizes(lot)]
        return chunk_frame(RELAY, index, start, planes), chunk_digest(index, start, planes)

    def _place(self, chunk: AnyChunk, index: int) -> tuple[int, int]:
        """Check that a chunk is the one that is due; return its lot and its row."""
        if index >= self.chunks:
            raise PeerFault(Reason.WRONG_SEQUENCE, f"chunk {chunk.index} came after the last", found=chunk.index)
        lot, row = divmod(index, self.rows)
        check_place(chunk, index, self.layout.start(lot))
        return lot, row


class RowsPassage(TablePassage):
    """The bodies of one attempt: in, permuted, and out; at the aggregator, their mean."""

    def __init__(self, mode: Baseline, manifest: Manifest, name: str, workers: Executor, path: Path | None) -> None:
        """A hop draws the seed of its permutations; the aggregator adds up."""
        super().__init__(manifest, name, workers, path)
        self.mode = mode
        self._seed = Secret.draw(os.urandom)  # gone with the attempt: nobody undoes a permutation later
        self._lot: list[Row] = []
        self._tally = mode.tally() if path is None else None

    @property
    def rows(self) -> int:
        """One for each silo of the cohort."""
        assert self.cohort is not None
        return len(self.cohort.participants)

    def _sizes(self, lot: int) -> tuple[int, ...]:
        return self.mode.sizes(lot)

    def decode(self, size: int, slack: Slack = no_slack) -> list[Aggregate]:
        """Return the mean of the rows."""
        assert self._tally is not None
        return [Aggregate(self.mode.mean(self._tally, size, self.manifest.bounds), size)]

    def _open(self, chunk: AnyChunk, index: int) -> tuple[list[bytes | memoryview], bytes]:
        lot, _ = self._place(chunk, index)
        planes = list(chunk.planes)
        self.mode.check(lot, planes)
        return planes, chunk_digest(index, chunk.first_parameter, planes)

    def _put(self, index: int, content: Row) -> None:
        lot = index // self.rows
        if self._tally is not None:
            self.mode.add(self._tally, lot, content)
            return
        rows = [*self._lot, content]
        if len(rows) == self.rows:
            self._shuffle(lot, rows)
            rows = []
        self._lot = rows  # only now: if the disk is full, the last row comes again

    def _shuffle(self, lot: int, rows: Sequence[Row]) -> None:
        for row, planes in enumerate(self.mode.shuffle(lot, rows, self._seed)):
            self._store(lot, row, planes)

    async def _advance(self, ready: int) -> None:
        """A chunk can be sent when all rows of its lot have come: before, there is nothing to permute it with."""
        await super()._advance(ready - ready % self.rows)

    def _take_lot(self, lot: int, paths: list[Path]) -> None:
        self._shuffle(lot, [self._body(path, lot) for path in paths])


class GroupsPassage(TablePassage):
    """One sum for each group, less this node's masks. Who is in which group the aggregator is not told."""

    def __init__(
        self, manifest: Manifest, name: str, workers: Executor, path: Path | None, private: Secret | None
    ) -> None:
        """Masks wait for the groups; then they are expanded chunk by chunk, as sums go by."""
        super().__init__(manifest, name, workers, path)
        self._masked = manifest.plan.level is not Level.TRUSTED
        self._private = private
        self._seeds: dict[bytes, Secret] = {}
        self._masks: list[list[Stream]] = []
        self._pad: Stream | None = None
        self._grouping: Grouping | None = None
        self._sizes_of: tuple[int, ...] = ()
        self._unnamed: tuple[Group, ...] = ()
        self._sums: list[Bytes] = []

    @property
    def rows(self) -> int:
        """One for each group."""
        return len(self._sizes_of)

    def _sizes(self, lot: int) -> tuple[int, ...]:
        return self.layout.plan.plane_bytes(self.layout.length(lot))

    def decode(self, size: int, slack: Slack = no_slack) -> list[Aggregate]:
        """Decode each group's sum to its mean."""
        m = self.manifest
        codec = Codec(m.schema, m.bounds, m.plan, m.chunk_parameters)
        pairs = zip(self._sums, self._sizes_of, strict=True)
        return [codec.decode(body, n, slack(n)) for body, n in pairs]

    async def add_header(self, header: Header, private: Secret | None, spawn: Spawn) -> None:
        """Take a header in, and open the seed in it that is ours."""
        if self._masked and private is not None:
            self._seeds[header.digest] = self.own_seed(header, private)
        await super().add_header(header, private, spawn)

    def close(self) -> None:
        """Overwrite the seeds, and delete what was spooled."""
        super().close()
        for seed in self._seeds.values():
            seed.wipe()
        for stream in (*(mask for group in self._masks for mask in group), *filter(None, [self._pad])):
            stream.wipe()
        self._seeds, self._masks, self._pad = {}, [], None

    async def _partition(self, frames: AsyncIterator[services_pb2.RelayFrame]) -> Partition:
        frame = await anext(frames, None)
        kind = None if frame is None else frame.WhichOneof("kind")
        if frame is None or kind != ("grouping" if self.layer else "groups"):
            raise PeerFault(Reason.WRONG_SEQUENCE, f"the groups were due and {kind or 'the end'} came")
        return read_grouping(frame.grouping) if self.layer else read_groups(frame.groups)

    async def _prepare(self, cohort: Cohort, partition: Partition) -> None:
        if isinstance(partition, Grouping):
            self._grouping, self._sizes_of = partition, partition.sizes
            seeds: list[list[Secret]] = [[] for _ in partition.sizes]
            for participant, number in zip(cohort.participants, partition.groups, strict=True):
                if self._masked:
                    seeds[number].append(self._seeds[participant.header])
            self._unnamed = self._without_names(cohort, partition)
            await self._work(self._make_masks, seeds)
        else:
            assert partition is not None
            self._sizes_of = tuple(group.size for group in partition)
            await self._work(self._open_all, partition)
            self._sums = [self.layout.body() for _ in partition]

    def _open_all(self, groups: tuple[Group, ...]) -> None:
        """Open the seeds that came without names, at the aggregator: a hop has its own until the attempt is over."""
        private = self._private
        seeds = [[self.open_seed(s, private, "a silo") for s in g.seeds] if private else [] for g in groups]
        self._make_masks(seeds)
        for seed in (seed for group in seeds for seed in group):
            seed.wipe()

    def _make_masks(self, seeds: list[list[Secret]]) -> None:
        """Make what is taken off each group's sum, and the pad."""
        context, moduli = self.manifest.context(self.layer), self.manifest.plan.moduli
        self._masks = [mask_streams([(seed, context) for seed in group], moduli) for group in seeds]
        if self.cover is not None:
            self._pad = mask_stream(self.cover.pad, self.cover.context, moduli)

    def _without_names(self, cohort: Cohort, grouping: Grouping) -> tuple[Group, ...]:
        """What the aggregator gets, in the order of the commitments: as good as random, and the same each time."""
        headers = {header.digest: header for header in self.headers}
        groups = []
        for number, size in enumerate(grouping.sizes):
            members = [p for p, g in zip(cohort.participants, grouping.groups, strict=True) if g == number]
            seeds = [headers[p.header].seeds[-1] for p in members if self._masked]
            groups.append(Group(size, tuple(sorted(seeds, key=lambda seed: seed.commitment))))
        return tuple(groups)

    def _opening(self, last: bool) -> list[services_pb2.RelayFrame]:
        assert self.cohort is not None
        assert self._grouping is not None
        cohort = services_pb2.RelayFrame(cohort=write_cohort(self.cohort))
        if last:
            return [cohort, services_pb2.RelayFrame(groups=write_groups(self._unnamed))]
        return [cohort, services_pb2.RelayFrame(grouping=write_grouping(self._grouping))]

    def _open(self, chunk: AnyChunk, index: int) -> tuple[Bytes, bytes]:
        lot, _ = self._place(chunk, index)
        planes = list(chunk.planes)
        return np.concatenate(self.layout.check(lot, planes)), chunk_digest(index, chunk.first_parameter, planes)

    def _put(self, index: int, content: Bytes) -> None:
        self._finish(*divmod(index, self.rows), content)

    def _finish(self, lot: int, row: int, content: Bytes) -> None:
        """Take the group's masks off a chunk of its sum, and keep it."""
        for stream in self._masks[row]:
            stream.apply(content, lot, self.layout.length(lot), -1)
        pad = self._pad
        if pad is not None:  # a stream for each chunk of each group
            pad.apply(content, lot * self.rows + row, self.layout.length(lot), 1)
        elif self.cover is not None:
            raise Overwritten
        if self._path is None:
            self.layout.part(self._sums[row], lot)[:] = content
        else:
            self._store(lot, row, self.layout.planes(content.data, lot))

    def uncover(self, pads: Sequence[tuple[str, Secret]], ready: Ready) -> None:
        """Take the hops' pads off."""
        length = self.manifest.chunk_parameters
        covers = [(pad, ready.pad_context(hop, length)) for hop, pad in pads]
        for stream in mask_streams(covers, self.manifest.plan.moduli):
            for row, total in enumerate(self._sums):
                for lot in range(self.layout.chunks):
                    part = self.layout.part(total, lot)
                    stream.apply(part, lot * self.rows + row, self.layout.length(lot), -1)

    def _take_lot(self, lot: int, paths: list[Path]) -> None:
        assert self._grouping is not None
        size = slice_bytes(self.layout.length(lot))
        sums: list[Bytes] = [np.zeros(sum(self._sizes(lot)), np.uint8) for _ in range(self.rows)]
        for path, number in zip(paths, self._grouping.groups, strict=True):
            self.layout.sum(sums[number], [np.frombuffer(plane, np.uint8) for plane in self._body(path, lot)], size)
        for row, content in enumerate(sums):
            self._finish(lot, row, content)
