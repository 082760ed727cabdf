"""A federation of processes under attack by one of its members, and the same left in peace: time and memory of hop 1.

`python -m tests.net.siege` prints both side by side.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.net import hostile
from tests.nodes.federations import make

from silomix.runtime.config.load import load_node
from silomix.runtime.local import LocalFederation, fetch_status

REPOSITORY = Path(__file__).parents[2]
HOSTILE, HOP = "silo-05", "shuffler-1"
Attack = Callable[[Path], Awaitable[object]]


class Siege(LocalFederation):
    """All nodes but the hostile one's run as processes."""

    @property
    def names(self) -> list[str]:
        """All but one."""
        return [name for name in super().names if name != HOSTILE]

    async def __aenter__(self) -> "Siege":
        await super().__aenter__()
        return self

    def memory(self, key: str = "VmHWM") -> float:
        """MiB of hop 1: the most that it ever had, or what it has now (VmRSS)."""
        status = Path(f"/proc/{self.processes[HOP].pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith(key)).split()[1]) / 1024

    def processor(self) -> float:
        """Seconds of processor time that hop 1 has used."""
        fields = Path(f"/proc/{self.processes[HOP].pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settle(directory: Path, rounds: int, parameters: int) -> None:
    """Write a federation of five silos, of which four are enough."""
    make(
        directory,
        5,
        2,
        rounds=rounds,
        quorum=0.8,
        minimum_cohort=4,
        deadline_s=120,
        release_s=120,
        chunk_parameters=131_072,
        task_options={"parameters": parameters},
    )


def begin(directory: Path) -> Siege:
    """Make what starts the processes."""
    return Siege(directory, env={"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / ".src")])})


@dataclass
class Outcome:
    """What a federation went through."""

    rounds: list[float]
    memory: float
    processor: float

    @property
    def seconds(self) -> float:
        """A round's, the first aside."""
        return median(self.rounds[1:] or self.rounds)


async def endure(directory: Path, rounds: int, attack: Attack | None) -> Outcome:
    """Run rounds while the attack goes on, again and again."""
    config = load_node(directory / HOSTILE)
    async with begin(directory) as running:
        attacking: asyncio.Task[None] | None = None
        try:
            while True:
                running.check()
                with suppress(Exception):
                    status = await fetch_status(config, 5.0)
                    if len(status.history) >= rounds:
                        seconds = [row.seconds for row in status.history]
                        return Outcome(seconds, running.memory(), running.processor())
                    if attack is not None and attacking is None and status.phase == "collecting":
                        attacking = asyncio.create_task(_again(attack, directory))
                await asyncio.sleep(0.2)
        finally:
            if attacking is not None:
                attacking.cancel()
                await asyncio.gather(attacking, return_exceptions=True)


async def _again(attack: Attack, directory: Path) -> None:
    while True:
        with suppress(OSError):
            await attack(directory)
        await asyncio.sleep(0.05)


async def half_open(directory: Path) -> None:
    """1,000 calls that send nothing, held for as long as the node lets them."""
    wires = await hostile.half_open(directory, HOSTILE, HOP, 1000)
    try:
        await asyncio.sleep(5)
    finally:
        await asyncio.gather(*(wire.close() for wire in wires), return_exceptions=True)


async def first_frames(directory: Path) -> None:
    """500 calls whose first message has 7 MiB."""
    await hostile.first_frames(directory, HOSTILE, HOP, 500, 7 << 20)


async def empty_planes(directory: Path) -> None:
    """One call whose first message is 8 MiB of empty planes."""
    content = hostile.message(hostile.empty_planes((8 << 20) - 32))
    async with await hostile.Wire.dial(directory, HOSTILE, HOP) as wire:
        stream = await wire.open(hostile.SUBMIT)
        await wire.send(stream, content)
        await wire.answer(stream, 30.0)


async def resets(directory: Path) -> None:
    """Calls that are taken back as soon as they are made."""
    async with await hostile.Wire.dial(directory, HOSTILE, HOP) as wire:
        for _ in range(2000):
            await wire.reset(await wire.open(hostile.SUBMIT))
            if wire.gone:
                return


ATTACKS: dict[str, Attack] = {
    "half-open": half_open,
    "first-frames": first_frames,
    "empty-planes": empty_planes,
    "resets": resets,
}


async def one_frame(directory: Path) -> tuple[float, float, bytes]:
    """Let a hop refuse one frame of 8 MiB of empty planes; return the seconds and the MiB that it cost."""
    content = hostile.message(hostile.empty_planes((8 << 20) - 32))
    async with begin(directory) as running:
        config = load_node(directory / HOSTILE)
        while True:
            with suppress(Exception):
                if (await fetch_status(config, 5.0)).phase == "collecting":
                    break
            await asyncio.sleep(0.1)
        async with await hostile.Wire.dial(directory, HOSTILE, HOP) as wire:
            before = running.memory("VmRSS")
            spent = running.processor()
            stream = await wire.open(hostile.SUBMIT)
            began = time.monotonic()
            await wire.send(stream, content)
            answer = await wire.answer(stream, 60.0)
            took = time.monotonic() - began
            await asyncio.sleep(0.5)
            sys.stdout.write(f"processor {running.processor() - spent:.2f} s\n")
            return took, running.memory() - before, answer


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--parameters", type=int, default=2_000_000)
    parser.add_argument("--attack", action="append", choices=ATTACKS, default=[])
    parser.add_argument("--frame", action="store_true")
    args = parser.parse_args()
    out = sys.stdout.write
    with tempfile.TemporaryDirectory() as where:
        if args.frame:
            settle(Path(where) / "frame", args.rounds, args.parameters)
            took, more, answer = asyncio.run(one_frame(Path(where) / "frame"))
            out(f"one frame of 8 MiB of empty planes: {took * 1000:.0f} ms, {more:.1f} MiB more; {answer[-80:]!r}\n")
        quiet: Outcome | None = None
        for name in ("quiet", *args.attack):
            directory = Path(where) / name
            settle(directory, args.rounds, args.parameters)
            found = asyncio.run(endure(directory, args.rounds, ATTACKS.get(name)))
            quiet = quiet or found
            out(
                f"{name:14} round {found.seconds:6.2f} s ({found.seconds / quiet.seconds:4.2f}x)  "
                f"hop 1 {found.memory:6.0f} MiB ({found.memory / quiet.memory:4.2f}x), {found.processor:5.1f} s\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
