"""What chaos does to nodes is what it says: otherwise that they survive it shows nothing."""

import asyncio
import os
import socket
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from silomix.runtime.core.errors import UserError
from silomix.runtime.faults.harm import BEHIND, SmallDisk, Wire, can_mount, flip_fact, ports_of, put_fact
from silomix.runtime.store.journal import Journal


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say what was said."""
    with suppress(OSError):
        while piece := await reader.read(100):
            writer.write(piece)
    writer.transport.abort()


@pytest.mark.parametrize("ours", [True, False], ids=["all", "one client"])
async def test_a_wire_passes_everything_on_until_it_is_cut(ours: bool) -> None:
    port = free_port()
    wire = Wire(f"127.0.0.1:{port}")
    async with await asyncio.start_server(answer, BEHIND, port):
        await wire.lay()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert writer.get_extra_info("sockname")[1] in ports_of(os.getpid())
        await wire.cut(None if ours else {1})
        writer.write(b"again")
        if ours:
            with pytest.raises((asyncio.IncompleteReadError, OSError)):
                await reader.readexactly(5)
        else:
            assert await reader.readexactly(5) == b"again"
        other, sends = await asyncio.open_connection("127.0.0.1", port)  # and it passes things on again
        sends.write(b"hello")
        assert await other.readexactly(5) == b"hello"
        for one in (writer, sends):
            one.close()
        await wire.end()
        for _ in range(10):  # both ends of every connection hear of it
            await asyncio.sleep(0)


def test_a_small_disk_can_be_filled_and_freed(tmp_path: Path) -> None:
    if not can_mount(tmp_path / "may"):
        pytest.skip("mounting takes the rights of root")
    disk = SmallDisk(tmp_path / "disk")
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space"):
            (disk.path / "file").write_bytes(bytes(100_000))
        disk.free()
        (disk.path / "other").write_bytes(bytes(100_000))
    finally:
        disk.unmount()


def test_a_flipped_fact_is_refused_until_it_is_put_right(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with closing(Journal(path)) as journal:
        journal.put("kind", 1, "key", b"value")
    fact = flip_fact(path, Random(0))
    assert fact == ("kind", 1, "key", b"value")
    with pytest.raises(UserError), closing(Journal(path)) as journal:
        list(journal.facts("kind"))
    put_fact(path, fact)
    with closing(Journal(path)) as journal:
        assert list(journal.facts("kind")) == [(1, "key", b"value")]
