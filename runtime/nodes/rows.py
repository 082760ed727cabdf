"""One attempt in which whole bodies pass, permuted at every hop: the paper's literal modes, for comparison.

A stream between two nodes holds, for each chunk of a body, that chunk of every row, row after row. A hop permutes such
a lot when it is complete and writes it to a file, from which a broken stream is sent again, byte for byte. In mode
`none` row i is that of the cohort's i-th silo; in all others nobody behind hop 1 is told whose a row was.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import BinaryIO

from silomix.runtime.core.baseline import Baseline, Row
from silomix.runtime.core.codec import Array
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.federation import Granularity
from silomix.runtime.core.masks import Secret
from silomix.runtime.core.messages import Manifest, chunk_digest
from silomix.runtime.framing import RELAY, chunk_frame
from silomix.runtime.nodes.passage import AnyChunk, Passage, SumPassage, Writer, check_place


def baseline(manifest: Manifest) -> Baseline | None:
    """Return the literal mode of an attempt; None if a sum leaves the chain, as it should."""
    if manifest.granularity is Granularity.SUM:
        return None
    return Baseline(manifest.granularity, manifest.schema, manifest.plan, manifest.chunk_parameters)


def make_passage(manifest: Manifest, name: str, workers: Executor, spool: Path | None = None) -> Passage:
    """Make what an attempt needs at a node. Hops have a directory to spool to; the aggregator adds up and has none."""
    mode = baseline(manifest)
    if mode is None:
        return SumPassage(manifest, name, workers)
    path = None if spool is None else spool / f"{manifest.digest.hex()[:32]}.rows"
    return RowsPassage(mode, manifest, name, workers, path)


class RowsPassage(Passage):
    """The bodies of one attempt: in, permuted, and out; at the aggregator, their mean."""

    def __init__(self, mode: Baseline, manifest: Manifest, name: str, workers: Executor, path: Path | None) -> None:
        """A hop spools its output to `path`; the aggregator has none, and adds up."""
        super().__init__(manifest, name, workers)
        self.mode = mode
        self._seed = Secret.draw(os.urandom)  # gone with the attempt: nobody undoes a permutation later
        self._path = path
        self._file: BinaryIO | None = None
        self._lot: list[Row] = []
        self._tally = mode.tally() if path is None else None

    @property
    def rows(self) -> int:
        """How many bodies pass: one for each silo of the cohort."""
        assert self.cohort is not None
        return len(self.cohort.participants)

    @property
    def chunks(self) -> int:
        """Every chunk of every row."""
        return self.layout.chunks * self.rows

    def decode(self, size: int, slack: int = 0) -> dict[str, Array]:
        """Return the mean of the rows."""
        assert self._tally is not None
        return self.mode.mean(self._tally, size, self.manifest.bounds)

    def close(self) -> None:
        """Delete what was spooled."""
        if self._file is not None and self._path is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)

    def _open(self, chunk: AnyChunk, index: int) -> tuple[list[bytes | memoryview], bytes]:
        if index >= self.chunks:
            raise PeerFault(Reason.WRONG_SEQUENCE, f"chunk {chunk.index} came after the last", found=chunk.index)
        lot = index // self.rows
        check_place(chunk, index, self.layout.start(lot))
        planes = list(chunk.planes)
        self.mode.check(lot, planes)
        return planes, chunk_digest(index, chunk.first_parameter, planes)

    def _put(self, index: int, content: Row) -> None:
        lot = index // self.rows
        if self._tally is not None:
            self.mode.add(self._tally, lot, content)
            return
        self._lot.append(content)
        if len(self._lot) == self.rows:
            self._write(lot, self._lot)
            self._lot = []

    def _write(self, lot: int, rows: Sequence[Row]) -> None:
        if self._file is None:
            assert self._path is not None
            self._file = open(self._path, "wb")  # noqa: SIM115 - closed with the attempt
        self._file.seek(self._at(lot, 0))
        for row in self.mode.shuffle(lot, rows, self._seed):
            self._file.writelines(row)
        self._file.flush()

    def _at(self, lot: int, row: int) -> int:
        return lot * self.rows * sum(self.mode.sizes(0)) + row * sum(self.mode.sizes(lot))

    async def _advance(self, ready: int) -> None:
        """A chunk can be sent when all rows of its lot have come: before, there is nothing to permute it with."""
        await super()._advance(ready - ready % self.rows)

    async def take_bodies(self, paths: list[Path]) -> None:
        """Take in the silos' bodies, which lie in files in the order of the cohort: hop 1's."""
        for lot in range(self.layout.chunks):
            await self._work(self._take_lot, lot, paths)
            await self._advance((lot + 1) * self.rows)

    def _take_lot(self, lot: int, paths: list[Path]) -> None:
        rows: list[Row] = []
        for path in paths:
            with open(path, "rb") as body:
                body.seek(lot * sum(self.mode.sizes(0)))
                rows.append([body.read(size) for size in self.mode.sizes(lot)])
        self._write(lot, rows)

    def _writer(self) -> Writer:
        return self._read

    def _read(self, index: int) -> tuple[bytes, bytes]:
        assert self._file is not None
        assert self._path is not None
        lot, row = divmod(index, self.rows)
        start = self.layout.start(lot)
        with open(self._path, "rb") as spooled:  # not the handle that writes: both may be at work
            spooled.seek(self._at(lot, row))
            planes = [spooled.read(size) for size in self.mode.sizes(lot)]
        return chunk_frame(RELAY, index, start, planes), chunk_digest(index, start, planes)
