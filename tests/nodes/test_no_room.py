"""Disks without room where no fact is written but sums are: what found no room is tried again, and no node ends."""

from pathlib import Path
from typing import Any, BinaryIO

import pytest
from tests.nodes.federations import assert_model, make, run, shuffler
from tests.nodes.leads import OneLine, leading

from silomix.runtime.core.numbers.plan import Granularity, Level
from silomix.runtime.core.protocol.lineage import check_root
from silomix.runtime.local import InProcess
from silomix.runtime.nodes.passage import LastPassage
from silomix.runtime.nodes.rows import TablePassage
from silomix.runtime.nodes.sums import KeptSums
from silomix.runtime.store.home import Home
from silomix.v1 import services_pb2

NO_ROOM = OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("node", "shuffler", "aggregator"):
        monkeypatch.setattr(f"silomix.runtime.nodes.{module}.RETRY_S", 0.01, raising=False)


@pytest.mark.parametrize(
    "settings",
    [{"group_size": 3}, {"level": Level.TRUSTED, "granularity": Granularity.MODEL}],
    ids=["groups", "literal"],
)
@pytest.mark.parametrize("layer", [1, 2])
def test_a_hop_whose_rows_find_no_room_passes_them_on_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], layer: int
) -> None:
    federation, full, store = make(tmp_path / "f", 7, 2, **settings), [True] * 3, TablePassage._store

    def on_a_full_disk(self: TablePassage, lot: int, row: int, planes: Any) -> None:
        if self.layer == layer and row == 1 and full:
            full.pop()
            raise NO_ROOM
        store(self, lot, row, planes)

    monkeypatch.setattr(TablePassage, "_store", on_a_full_disk)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 7)]
            assert not full
            assert_model(running.aggregator.tensors, [range(7)], federation.policy)
            assert shuffler(running).core.log.round == 2

    run(go(), 60)


class Nearly:
    """A file on a disk that takes a part of what is written, then nothing for a while, and then all."""

    def __init__(self, file: BinaryIO, full: list[bool]) -> None:
        self._file, self._full, self._parted = file, full, False

    def write(self, data: memoryview) -> int:
        if not self._parted:
            self._parted = True
            return self._file.write(data[:3])
        if self._full:
            self._full.pop()
            raise NO_ROOM
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_sum_that_finds_no_room_at_the_aggregator_comes_again_and_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, full, make_passage = make(tmp_path / "f", 3, 2), [True] * 3, LastPassage.__init__

    def on_a_full_disk(self: Any, *arguments: Any) -> None:
        make_passage(self, *arguments)
        self._file = Nearly(self._file, full)

    monkeypatch.setattr(LastPassage, "__init__", on_a_full_disk)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 3)]
            assert not full
            assert_model(running.aggregator.tensors, [range(3)], federation.policy)
            found = running.aggregator.sums.read(1, 1)
            assert found is not None
            check_root(running.aggregator.sums.vector(found.manifest), found)  # what silos are given, too

    run(go())


def test_an_aggregator_that_cannot_keep_what_silos_compute_with_waits_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, full, write = make(tmp_path / "f", 3, 2), [True] * 3, KeptSums.write

    def on_a_full_disk(self: KeptSums, transcript: Any) -> None:
        if transcript.pads and full:
            full.pop()
            raise NO_ROOM
        write(self, transcript)

    monkeypatch.setattr(KeptSums, "write", on_a_full_disk)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 3)]
            assert not full
            assert_model(running.aggregator.tensors, [range(3)], federation.policy)

    run(go())


def test_a_body_counts_though_its_silo_has_no_room_for_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At level malicious the round needs that silo again: it has to answer the coin."""
    federation = make(tmp_path / "f", 3, 2, level=Level.MALICIOUS)
    write_text = Path.write_text

    def on_a_full_disk(self: Path, *arguments: Any) -> int:
        if self == Home(tmp_path / "f" / "silo-01").state.last_body:
            raise NO_ROOM
        return write_text(self, *arguments)

    monkeypatch.setattr(Path, "write_text", on_a_full_disk)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 3)]
            assert_model(running.aggregator.tensors, [range(3)], federation.policy)

    run(go())


async def test_an_aggregator_goes_on_in_the_next_epoch_when_it_can_write_that_down(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, switched = [True] * 3, list[bytes]()

    def enter(epoch: bytes) -> None:
        if full:
            full.pop()
            raise NO_ROOM
        switched.append(epoch)

    async with leading(led) as node:
        monkeypatch.setattr(node, "line", lambda _: OneLine(services_pb2.StoreResponse() for _ in "12"))
        monkeypatch.setattr(node, "switch", enter)
        await node._hand_over(b"next")
    assert (full, switched) == ([], [b"next"])
