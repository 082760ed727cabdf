"""A hop in a process of its own, so that its memory can be searched as whoever seizes the machine would.

Linux shows a process's memory to whoever started it, in /proc.
"""

import argparse
import asyncio
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from silomix.attacks.active.registry import Rule
from silomix.runtime.config.load import load_node
from silomix.runtime.local import LocalFederation, make_node, run_alone

READY_S = 60.0
MOST_BYTES = 1 << 30
"""Mappings that are larger are room that was set aside, and mostly never used."""
PIECE_BYTES = 16 << 20
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw.. \S+ \S+ (\d+) *(.*)$")


class Apart(LocalFederation):
    """One honest node in a process of its own, with the same rule switched off as in the drill's."""

    def __init__(self, home: Path, without: str = "") -> None:
        """Nothing is started yet."""
        super().__init__(home.parent)
        self.home, self._without = home, without

    def command(self, name: str) -> list[str]:
        """Start it by this module."""
        given = ["--without", self._without] if self._without else []
        return [sys.executable, "-m", "silomix.attacks.active.seized", str(self.home), *given]

    @property
    def pid(self) -> int:
        """The process."""
        return self.processes[self.home.name].pid

    async def ready(self) -> None:
        """Wait until the node listens."""
        host, _, port = load_node(self.home).listen.rpartition(":")
        async with asyncio.timeout(READY_S):
            while True:
                self.check()
                with suppress(OSError):
                    _, line = await asyncio.open_connection(host, int(port))
                    line.close()
                    return
                await asyncio.sleep(0.05)


def in_memory(pid: int, wanted: Mapping[str, bytes]) -> dict[str, int]:
    """Look for secrets in all that a process can write to; return how often each was found.

    Raises OSError where the system does not let us look.
    """
    found = dict.fromkeys(wanted, 0)
    longest = max(map(len, wanted.values()))
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            place = _MAPPING.match(line)
            if place is None:
                continue
            at, end = int(place[1], 16), int(place[2], 16)
            if end - at > MOST_BYTES or place[4].startswith("/dev/"):
                continue
            while at < end:
                size = min(PIECE_BYTES, end - at)
                try:
                    memory.seek(at)
                    piece = memory.read(size + longest - 1 if at + size < end else size)
                except OSError:  # it went while we looked
                    break
                for name, what in wanted.items():
                    found[name] += piece.count(what)
                at += size
    return found


def in_files(home: Path, wanted: Mapping[str, bytes]) -> dict[str, int]:
    """Look for secrets in all files below a directory."""
    pieces: Iterable[bytes] = [path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()]
    return {name: sum(piece.count(what) for piece in pieces) for name, what in wanted.items()}


async def _serve(home: Path) -> None:
    await run_alone(make_node(load_node(home)))


def main() -> None:
    """Run a node until it is told to stop."""
    from silomix.attacks.active.without import switched_off

    parser = argparse.ArgumentParser(description="One node of a drill.")
    parser.add_argument("home", type=Path)
    parser.add_argument("--without", default="")
    args = parser.parse_args()
    with switched_off(Rule(args.without) if args.without else None):
        asyncio.run(_serve(args.home))


if __name__ == "__main__":
    main()
