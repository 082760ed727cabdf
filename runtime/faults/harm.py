"""What befalls real nodes besides being killed: connections are cut, disks are full, bits are flipped."""

import asyncio
import errno
import os
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from random import Random

BEHIND = "127.0.0.2"
"""Where servers listen that are reached through a `Wire`, on the port that the federation file names."""
DISK = "48m"
_PIECE = 1 << 16


class Wire:
    """The way to one server: it passes on whatever comes, until it is cut."""

    def __init__(self, address: str) -> None:
        """`address` is the server's on the roster; the server itself listens at the same port of another address."""
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], int] = {}
        """What is being passed on, with the port at which the client's end is."""

    async def lay(self) -> None:
        """Begin to pass things on."""
        self._server = await asyncio.start_server(self._client, self.host, self.port)

    async def cut(self, ports: set[int] | None = None, seconds: float = 0.0) -> None:
        """Break the connections of these clients, or all; then let nobody through for a while."""
        if ports is None and self._server is not None:
            self._server.close()
        for task, port in list(self._open.items()):
            if ports is None or port in ports:
                task.cancel()
        if ports is None:
            await asyncio.sleep(seconds)
            await self.lay()

    async def end(self) -> None:
        """Pass nothing on any more."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer.get_extra_info("peername")[1]
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection(BEHIND, self.port)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass(reader, there))
                both.create_task(_pass(back, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # whoever is at either end sees a broken connection
        finally:
            del self._open[task]
            for one in (writer, there):
                if one is not None:
                    one.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    writer.write_eof()


def ports_of(pid: int) -> set[int]:
    """The local ports of a process's TCP connections."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return {int(line.split()[1].rpartition(":")[2], 16) for line in lines if line.split()[9] in inodes}


class SmallDisk:
    """A file system in memory, small enough to be filled. Mounting one takes the rights of root."""

    def __init__(self, path: Path) -> None:
        """Mount it on a directory, which is made if need be."""
        path.mkdir(parents=True, exist_ok=True)
        subprocess.run(  # noqa: S603
            ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "silomix-chaos", str(path)],  # noqa: S607
            check=True,
            capture_output=True,
        )
        self.path = path

    def fill(self) -> None:
        """Leave no room."""
        with open(self.path / "ballast", "wb", buffering=0) as file:
            size = 1 << 20
            while size >= 1:
                try:
                    file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def free(self) -> None:
        """Make room again."""
        (self.path / "ballast").unlink(missing_ok=True)

    def unmount(self) -> None:
        """Take it away, with all that is on it."""
        subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)  # noqa: S603, S607


def can_mount(path: Path) -> bool:
    """Whether small disks can be had here."""
    try:
        SmallDisk(path).unmount()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


Fact = tuple[str, int, str, bytes]
"""Kind, round, key and value."""


def flip_fact(journal: Path, random: Random) -> Fact | None:
    """Flip a bit of some durable fact, and return it as it was; nothing if there is none."""
    with closing(sqlite3.connect(journal)) as db:
        facts = db.execute("SELECT kind, round, key, value FROM facts WHERE length(value) > 0").fetchall()
    if not facts:
        return None
    kind, round_, key, value = random.choice(facts)
    spoiled = bytearray(value)
    spoiled[random.randrange(len(spoiled))] ^= 1 << random.randrange(8)
    put_fact(journal, (kind, round_, key, bytes(spoiled)))
    return kind, round_, key, bytes(value)


def put_fact(journal: Path, fact: Fact) -> None:
    """Write a fact's value, and leave its checksum as it is."""
    kind, round_, key, value = fact
    with closing(sqlite3.connect(journal)) as db:
        db.execute("UPDATE facts SET value = ? WHERE kind = ? AND round = ? AND key = ?", (value, kind, round_, key))
        db.commit()
