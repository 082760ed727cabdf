"""R7: what one hostile member can take of a hop, over real connections that keep to nothing of HTTP/2."""

import asyncio
import gzip
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.net import hostile
from tests.net.hostile import RELAY, SUBMIT, dial
from tests.nodes.federations import make, manifest_at, rejections, shuffler, until

from silomix.attacks.active.liars.wire import Wire, message
from silomix.runtime.core.errors import Reason
from silomix.runtime.local import InProcess
from silomix.runtime.net.limits import STREAMS
from silomix.runtime.nodes.shuffler import SILO_STREAMS, ShufflerNode

HOSTILE, HONEST, HOP = "silo-03", "silo-01", "shuffler-1"
CHECK = "/grpc.health.v1.Health/Check"


@asynccontextmanager
async def besieged(home: Path) -> AsyncIterator[ShufflerNode]:
    """A hop with an open attempt for which silos train without end."""
    make(home, 3, 1, silo_options=lambda i: {"silo": i, "slow_s": 300.0})
    async with InProcess(home, without=(HOSTILE, HONEST)) as federation:
        await manifest_at(federation)
        yield shuffler(federation)


async def ask(home: Path, wire: Wire) -> bytes:
    """Ask for the hop's health; return what the call ended with."""
    stream = await wire.open(CHECK)
    await wire.send(stream, message(b""), end=True)
    return await wire.answer(stream)


async def test_a_message_longer_than_any_honest_one_is_refused_when_it_is_announced(tmp_path: Path) -> None:
    seen: list[int] = []
    async with besieged(tmp_path) as node, await dial(tmp_path, HOSTILE, HOP) as wire:
        node.crossed = lambda *about: seen.append(len(about[-1]))  # type: ignore[method-assign]
        stream = await wire.open(SUBMIT)
        sent = await wire.send(stream, message(hostile.empty_planes((8 << 20) - 32)), seconds=2.0)
        assert b"larger than max" in await wire.answer(stream)
        assert sent < 8 << 20
        await until(lambda: rejections(node, Reason.WRONG_SEQUENCE), "the hop knows of it")
        assert b"grpc-status\x010" in await ask(tmp_path, wire)
    assert all(size <= node.limits.at_shuffler for size in seen)


async def test_calls_left_open_take_a_members_own_places_and_nobody_elses(tmp_path: Path) -> None:
    async with besieged(tmp_path) as node, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(await dial(tmp_path, HOSTILE, HOP)) for _ in range(4)]
        assert {wire.most_streams for wire in wires} == {STREAMS}
        opened = [(wire, await wire.open(SUBMIT)) for wire in wires for _ in range(STREAMS)]
        await until(lambda: rejections(node, Reason.BUSY) == len(opened) - SILO_STREAMS, "all but a few are refused")
        assert node.submitting.open == {HOSTILE: SILO_STREAMS}
        answers = await asyncio.gather(*(wire.answer(stream, 0.5) for wire, stream in opened))
        assert sum(b"busy" in answer for answer in answers) == len(opened) - SILO_STREAMS
        honest = await stack.enter_async_context(await dial(tmp_path, HONEST, HOP))
        await honest.open(SUBMIT)
        await until(lambda: node.submitting.open[HONEST] == 1, "another silo has its place")


async def test_a_call_that_sends_no_first_message_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silomix.runtime.net.streams.FIRST_S", 0.2)
    async with besieged(tmp_path) as node, await dial(tmp_path, HOSTILE, HOP) as wire:
        nothing = await wire.open(SUBMIT)
        half = await wire.open(SUBMIT)
        await wire.send(half, message(b"half of it", announced=500))
        for stream in (nothing, half):
            assert b"too_slow" in await wire.answer(stream)
        await until(lambda: not node.submitting.open.total(), "their places are free")


async def test_one_member_may_take_every_free_connection_and_those_that_stand_go_on(tmp_path: Path) -> None:
    """Conceded: who has no connection gets none meanwhile. What is bounded is what it costs the hop."""
    async with besieged(tmp_path) as node, AsyncExitStack() as stack:
        honest = await stack.enter_async_context(await dial(tmp_path, HONEST, HOP))
        taken = 0
        while taken <= node.limits.connections:
            try:
                await stack.enter_async_context(await dial(tmp_path, HOSTILE, HOP))
            except OSError:
                break
            taken += 1
        assert taken < node.limits.connections
        assert b"grpc-status\x010" in await ask(tmp_path, honest)


async def test_what_no_method_is_and_what_is_compressed_is_refused(tmp_path: Path) -> None:
    async with besieged(tmp_path), await dial(tmp_path, HOSTILE, HOP) as wire:
        unknown = await wire.open("/silomix.v1.ShufflerService/Nothing")
        assert b"no such method" in await wire.answer(unknown)
        bomb = gzip.compress(bytes(10 << 20))
        stream = await wire.open(CHECK, [("grpc-encoding", "gzip")])
        await wire.send(stream, b"\1" + struct.pack(">I", len(bomb)) + bomb, end=True)
        assert b"is disabled" in await wire.answer(stream)
        wrong = await wire.open(RELAY)
        assert b"wrong_chain" in await wire.answer(wrong)
