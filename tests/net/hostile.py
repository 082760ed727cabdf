"""What members that misbehave send by hand: floods of calls, and messages that are costly to parse."""

import asyncio
from contextlib import suppress
from pathlib import Path

from silomix.attacks.active.liars.wire import Wire, message
from silomix.runtime.config.load import load_node
from silomix.runtime.net.framing import one_field

SUBMIT = "/silomix.v1.ShufflerService/Submit"
RELAY = "/silomix.v1.ShufflerService/Relay"
PREPARE = "/silomix.v1.ShufflerService/Prepare"
WATCH = "/silomix.v1.AggregatorService/Watch"
GET_MODEL = "/silomix.v1.AggregatorService/GetModel"


def empty_planes(size: int, kind: int = 2) -> bytes:
    """A frame with a chunk of so many bytes, which are empty planes and nothing else: two bytes for each."""
    return one_field(kind, one_field(3, b"") * (size // 2))


def empty_seeds(size: int) -> bytes:
    """A frame with a header of so many bytes, which are empty seeds and nothing else."""
    return one_field(1, one_field(3, b"") * (size // 2))


async def dial(directory: Path, name: str, target: str, *, read: bool = True, window: int = 0) -> Wire:
    """Connect to a node of a federation in a member's name."""
    return await Wire.dial(load_node(directory / name), target, read=read, window=window)


async def half_open(directory: Path, name: str, target: str, count: int, path: str = SUBMIT) -> list[Wire]:
    """Open so many calls and leave them alone, over as many connections as that takes; return these."""
    wires: list[Wire] = []
    opened = 0
    while opened < count:
        try:
            wire = await dial(directory, name, target)
        except OSError:  # no more connections: the node has its limits
            break
        wires.append(wire)
        for _ in range(min(count - opened, wire.most_streams)):
            await wire.open(path)
            opened += 1
    return wires


async def first_frames(directory: Path, name: str, target: str, count: int, size: int, path: str = SUBMIT) -> int:
    """Begin so many calls with a first message of so many bytes, a few connections at a time; return what was taken."""
    content, taken, left = message(bytes(size)), 0, count

    async def calls() -> None:
        nonlocal taken, left
        while left > 0:
            with suppress(OSError):
                async with await dial(directory, name, target) as wire:
                    while left > 0 and not wire.gone:
                        left -= 1
                        stream = await wire.open(path)
                        taken += await wire.send(stream, content, seconds=2.0)
                        await wire.answer(stream, 2.0)

    await asyncio.gather(*(calls() for _ in range(8)))
    return taken
