"""Section 2, "Attempts, restarts, lost hops": a silo sends one set of integers, or none."""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nodes.federations import Tensors, assert_model, make, run, until
from tests.nodes.toy import Toy

from silomix.runtime.capture.reader import read
from silomix.runtime.config.kinds import Role
from silomix.runtime.core.digest import DIGEST_BYTES
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.local import InProcess
from silomix.runtime.nodes import silo as module
from silomix.runtime.nodes.silo import SiloNode
from silomix.runtime.store.frozen import Frozen
from silomix.runtime.store.home import CAPTURE_DIRECTORY, Home
from silomix.v1 import body_pb2

WHO = "silo-01"
CHUNKS = 4


def file_of(home: Path) -> Path:
    (found,) = Home(home / WHO).state.frozen.glob("*.planes")
    return found


async def killed_before_its_body_counts(running: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one silo train and freeze, and stop it before it has sent anything."""

    async def nothing(manifest: Any) -> None:
        await asyncio.Event().wait()

    node = running.start(WHO)
    assert isinstance(node, SiloNode)
    monkeypatch.setattr(node, "_submit", nothing)
    await until(lambda: node._durable is not None and node._durable.done(), "it has frozen its integers")
    await running.stop(WHO)


def sent(home: Path) -> list[bytes]:
    """The bodies of the silo as hop 1 got them, at a level where nothing masks them."""
    streams: dict[int, bytearray] = {}
    for record in read(Home(home / "shuffler-1").capture):
        if record.kind == "Frame.chunk" and record.peer == WHO:
            chunk: Any = record.message
            streams.setdefault(record.stream, bytearray()).extend(b"".join(chunk.chunk.planes))
    return [bytes(stream) for stream in streams.values()]


def test_after_a_restart_the_same_integers_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task has chance in it, so whoever trained again would send others."""
    home, real = tmp_path / "f", Toy.update

    def by_chance(self: Toy, round_: int) -> Tensors:
        shake = np.frombuffer(os.urandom(2 * (self.parameters - 7)), np.uint16) / 2**20
        update = real(self, round_)
        return {**update, "a": (update["a"] + shake).astype(np.float32)}

    async def go() -> None:
        async with InProcess(home, without=(WHO,)) as running:
            await killed_before_its_body_counts(running, monkeypatch)
            frozen.append(file_of(home).read_bytes())
            running.start(WHO)
            await running.finished()

    frozen: list[bytes] = []
    monkeypatch.setattr(Toy, "update", by_chance)
    settings = {Role.SHUFFLER: {"capture": CAPTURE_DIRECTORY}}
    make(home, 3, 1, level=Level.TRUSTED, settings=settings)
    run(go())
    assert sent(home) == [frozen[0][:-DIGEST_BYTES]]
    assert file_of(home).read_bytes() == frozen[0]


def test_a_silo_whose_file_is_damaged_sits_the_round_out_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home, trained = tmp_path / "f", 0
    real = SiloNode._train

    def count(self: SiloNode, *arguments: Any) -> Bytes:
        nonlocal trained
        trained += self.config.name == WHO
        return real(self, *arguments)

    async def go() -> None:
        async with InProcess(home, without=(WHO,)) as running:
            await killed_before_its_body_counts(running, monkeypatch)
            data = bytearray(file_of(home).read_bytes())
            for at in range(100, 140):
                data[at] ^= 0xFF
            file_of(home).write_bytes(data)
            running.start(WHO)
            await running.finished()
            assert [done.cohort for done in running.aggregator.history] == [3, 4]
            assert_model(running.aggregator.tensors, [[1, 2, 3], range(4)], federation.policy)

    monkeypatch.setattr(SiloNode, "_train", count)
    federation = make(home, 4, 1, deadline_s=3, rounds=2)
    with caplog.at_level(logging.ERROR):
        run(go())
    (said,) = {record.getMessage() for record in caplog.records if "is damaged" in record.getMessage()}
    assert f"{Home(home / WHO).state.frozen}/" in said
    assert "not in this round" in said
    assert trained == 2  # once for each round, and not again for the first: its own difference would be in two sums


def test_no_chunk_leaves_before_the_integers_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hop 1 that colludes can have a sum released over what has left, without a trailer. Were the silo to train again
    after a restart, a second sum over the same silos would show what sets its two trainings apart."""
    home, written = tmp_path / "f", threading.Event()
    real, frames = Frozen.write, SiloNode._frames
    seen: list[tuple[str, bool]] = []

    def slow(self: Frozen, name: str, body: Bytes) -> None:
        if WHO in str(self.directory):
            assert written.wait(20)
        real(self, name, body)

    async def watched(self: SiloNode, *arguments: Any) -> AsyncIterator[Any]:
        async for frame in frames(self, *arguments):
            if self.config.name == WHO:
                kind = frame.WhichOneof("kind") if isinstance(frame, body_pb2.Frame) else "chunk"
                seen.append((kind, written.is_set()))
            yield frame

    async def go() -> None:
        async with InProcess(home) as running:
            await until(lambda: seen, "the header is on its way, and others may begin with it")
            await asyncio.sleep(0.1)  # time in which a chunk that does not wait would leave
            written.set()
            await running.finished()
            assert [done.cohort for done in running.aggregator.history] == [3]

    monkeypatch.setattr(Frozen, "write", slow)
    monkeypatch.setattr(SiloNode, "_frames", watched)
    make(home, 3, 1)
    try:
        run(go())
    finally:
        written.set()
    assert seen == [("header", False), *[("chunk", True)] * CHUNKS, ("trailer", True)]


def test_a_full_disk_holds_a_silo_up_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, full, real = tmp_path / "f", [True, True], Frozen.write

    def write(self: Frozen, name: str, body: Bytes) -> None:
        if WHO in str(self.directory) and full:
            full.pop()
            raise OSError(28, "No space left on device")
        real(self, name, body)

    async def go() -> None:
        async with InProcess(home) as running:
            await running.finished()
            assert [done.cohort for done in running.aggregator.history] == [3]

    monkeypatch.setattr(Frozen, "write", write)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    make(home, 3, 1)
    run(go())
    assert not full
    assert file_of(home).is_file()
