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
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median

from tests.net import hostile
from tests.nodes.federations import make

from silomix.attacks.active.liars.wire import Wire, message
from silomix.runtime.config.load import NodeConfig, load_node
from silomix.runtime.local import LocalFederation, fetch_status
from silomix.runtime.nodes.node import LOG_EVERY_S
from silomix.runtime.store.home import Home

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
        threads = Path(f"/proc/{self.processes[HOP].pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def settle(directory: Path, rounds: int, parameters: int, slow_s: float = 0.0) -> None:
    """Write a federation of five silos, of which four are enough, and which train for so long."""
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
        silo_options=lambda i: {"silo": i, "slow_s": slow_s},
    )


def begin(directory: Path) -> Siege:
    """Make what starts the processes."""
    return Siege(directory, env={"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / ".src")])})


@dataclass
class Outcome:
    """What a federation went through: rounds left in peace and rounds under attack, by turns, in the same processes.

    By turns, because a machine that has other work to do would else be busier for the one kind than for the other.
    """

    quiet: list[float]
    attacked: list[float]
    memory_quiet: float
    """The most that hop 1 ever had before the first attack."""
    memory: float
    processor_quiet: float
    """Seconds of processor time that hop 1 used in a round."""
    processor: float
    attacks: int
    """How often the attack was carried out to its end."""


async def endure(directory: Path, turns: int, each: int, attack: Attack) -> Outcome:
    """Run so many rounds in peace and so many under attack, by turns; one of attack ends when the attack has."""
    config = load_node(directory / HOSTILE)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    spent: dict[bool, list[float]] = {False: [], True: []}
    count, quiet_memory = [0], 0.0
    async with begin(directory) as running:
        done = len(await _rounds(running, config, 0, 2))  # the first ones warm up
        for turn in range(2 * turns):
            attacked, before, wanted = bool(turn % 2), running.processor(), count[0] + turn % 2
            if turn == 1:
                quiet_memory = running.memory()
            task = asyncio.create_task(_again(attack, directory, count)) if attacked else None
            try:
                took = await _rounds(running, config, done, each, partial(_reached, count, wanted))
            finally:
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            seconds[attacked] += took[1:]  # an attack begins and ends within a round
            spent[attacked].append((running.processor() - before) / len(took))
            done += len(took)
        return Outcome(
            seconds[False],
            seconds[True],
            quiet_memory,
            running.memory(),
            median(spent[False]),
            median(spent[True]),
            count[0],
        )


async def _rounds(
    running: Siege, config: NodeConfig, done: int, more: int, enough: Callable[[], bool] = lambda: True
) -> list[float]:
    """Wait until so many more rounds are done or more, and return how long each took."""
    while True:
        running.check()
        with suppress(Exception):
            history = (await fetch_status(config, 5.0)).history  # the last ones
            over = history[-1].round
            if over >= done + more and enough():
                return [row.seconds for row in history if row.round > done]
        await asyncio.sleep(0.1)


def _reached(count: list[int], wanted: int) -> bool:
    return count[0] >= wanted


async def _again(attack: Attack, directory: Path, count: list[int]) -> None:
    while True:
        with suppress(OSError):
            await attack(directory)
        count[0] += 1
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
    content = message(hostile.empty_planes((8 << 20) - 32))
    async with await hostile.dial(directory, HOSTILE, HOP) as wire:
        stream = await wire.open(hostile.SUBMIT)
        await wire.send(stream, content)
        await wire.answer(stream, 30.0)


async def resets(directory: Path) -> None:
    """Calls that are taken back as soon as they are made."""
    async with await hostile.dial(directory, HOSTILE, HOP) as wire:
        for _ in range(2000):
            await wire.reset(await wire.open(hostile.SUBMIT))
            if wire.gone:
                return


async def calls(directory: Path) -> None:
    """Calls as fast as they are refused, over eight connections, for five seconds."""

    async def one() -> None:
        async with await hostile.dial(directory, HOSTILE, HOP) as wire:
            end = time.monotonic() + 5
            while time.monotonic() < end and not wire.gone:
                streams = [await wire.open(hostile.RELAY) for _ in range(min(8, wire.most_streams))]
                for stream in streams:
                    await wire.answer(stream, 1.0)

    await asyncio.gather(*(one() for _ in range(8)), return_exceptions=True)


async def connections(directory: Path) -> None:
    """As many connections as the node takes, held for a while."""
    wires: list[Wire] = []
    try:
        with suppress(OSError):
            while len(wires) < 1000:
                wires.append(await hostile.dial(directory, HOSTILE, HOP))
        await asyncio.sleep(5)
    finally:
        await asyncio.gather(*(wire.close() for wire in wires), return_exceptions=True)


ATTACKS: dict[str, Attack] = {
    "half-open": half_open,
    "first-frames": first_frames,
    "empty-planes": empty_planes,
    "resets": resets,
    "calls": calls,
    "connections": connections,
}


@dataclass
class Cost:
    """What one message cost a hop that had nothing else to do."""

    seconds: float
    processor: float
    memory: float
    refused: float
    """Seconds until the hop refused it, by its log; the sender may hear of it later."""
    answer: bytes


async def cost_of(directory: Path, content: bytes, tries: int = 5) -> Cost:
    """Send a hop a call's first message while silos train; return the least time of a few tries, and all memory."""
    async with begin(directory) as running:
        config = load_node(directory / HOSTILE)
        while True:
            with suppress(Exception):
                status = await fetch_status(config, 5.0)
                if status.phase == "collecting" and len(status.present) == 4:
                    break
            await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)  # until all processes have settled
        found: list[Cost] = []
        before = running.memory("VmRSS")
        for _ in range(tries):
            async with await hostile.dial(directory, HOSTILE, HOP) as wire:
                spent = running.processor()
                stream = await wire.open(hostile.SUBMIT)
                began, said_at = time.monotonic(), time.time()
                await wire.send(stream, message(content))
                answer = await wire.answer(stream, 60.0)
                took = time.monotonic() - began
                await asyncio.sleep(0.2)
                used, more = running.processor() - spent, running.memory() - before
                found.append(Cost(took, used, more, _logged(directory) - said_at, answer))
                await asyncio.sleep(LOG_EVERY_S)  # or its log would spare the next
        return Cost(
            min(each.seconds for each in found),
            min(each.processor for each in found),
            max(each.memory for each in found),
            min(each.refused for each in found),
            found[0].answer,
        )


def _logged(directory: Path) -> float:
    """When hop 1 logged its last refusal."""
    lines = Home(directory / HOP).log.read_text().splitlines()
    last = [line for line in lines if "refused Submit" in line][-1]
    return datetime.fromisoformat(last.split()[0]).timestamp()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="of peace, and of attacks")
    parser.add_argument("--rounds", type=int, default=4, help="in each turn")
    parser.add_argument("--parameters", type=int, default=2_000_000)
    parser.add_argument("--attack", action="append", choices=ATTACKS, default=[])
    parser.add_argument("--frame", action="store_true", help="what one frame of 8 MiB of empty planes costs")
    parser.add_argument("--tries", type=int, default=6, help="of the frame")
    args = parser.parse_args()
    out = sys.stdout.write
    with tempfile.TemporaryDirectory() as where:
        if args.frame:
            settle(Path(where) / "frame", 1, args.parameters, 300.0)
            cost = asyncio.run(cost_of(Path(where) / "frame", hostile.empty_planes((8 << 20) - 32), args.tries))
            out(
                f"one frame of 8 MiB of empty planes: refused after {cost.refused * 1000:.0f} ms, of which the sender "
                f"heard after {cost.seconds * 1000:.0f} ms; {cost.processor * 1000:.0f} ms of the processor, "
                f"{cost.memory:.1f} MiB more; {cost.answer[-80:]!r}\n"
            )
            sys.stdout.flush()
        for name in args.attack:
            directory = Path(where) / name
            settle(directory, 100_000, args.parameters)
            found = asyncio.run(endure(directory, args.turns, args.rounds, ATTACKS[name]))
            quiet, attacked = median(found.quiet), median(found.attacked)
            out(
                f"{name:14} round {quiet:5.2f} s, attacked {attacked:5.2f} s ({attacked / quiet:4.2f}x)  "
                f"hop 1 {found.memory_quiet:4.0f} MiB, {found.memory:4.0f} MiB "
                f"({found.memory / found.memory_quiet:4.2f}x), {found.processor_quiet:4.2f} s, "
                f"{found.processor:4.2f} s of the processor a round; {len(found.attacked)} rounds, "
                f"{found.attacks} attacks\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
