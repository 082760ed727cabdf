"""What it costs a round that nothing is lost: everything is synced to a disk before it counts.

Two federations, alike but for where their state is, take turns at a round inside this process: one on a disk, where a
sync waits until the bytes are there, and one on a file system in memory, where it costs nothing. Both write the same
files, spooled bodies included; the difference is the disk's.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from silomix.runtime.bench.rules import Vector
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.policy import Policy
from silomix.runtime.local import InProcess, create, interrupt_on_sigterm
from silomix.runtime.store.home import Home
from silomix.runtime.terminal import console, say_json

MEMORY = Path("/dev/shm")  # noqa: S108 - what it is there for
WARM_UP = 1
"""Rounds at the beginning that do not count."""


def bench_disk(silos: int, parameters: int, hops: int, rounds: int, where: Path, as_json: bool) -> int:
    """Print what a round takes with its state on a disk, and with it in memory."""
    if not MEMORY.is_dir():
        raise UserError(f"{MEMORY} is not there: without a file system in memory there is nothing to compare with")
    interrupt_on_sigterm()
    progress = console(stderr=True, quiet=as_json)
    with _places(where) as places, progress.status("running rounds in turns"), _counted() as syncs:
        took, synced = asyncio.run(_take_turns(places, silos, parameters, hops, rounds, syncs))
    medians = {name: round(median(seconds), 4) for name, seconds in took.items()}
    result = {
        "silos": silos,
        "parameters": parameters,
        "hops": hops,
        "rounds": rounds,
        "disk_s": medians["disk"],
        "memory_s": medians["memory"],
        "ratio": round(medians["disk"] / medians["memory"], 3),
        "files_synced": round(median(synced)),
    }
    if as_json:
        say_json(result)
        return 0
    table = Table(title=f"{silos} silos, {hops} hops, {parameters:,} parameters: {rounds} rounds each, in turns")
    for column in ("state", "a round, s"):
        table.add_column(column, justify="right" if "," in column else "left")
    table.add_row(f"on the disk of {where}", f"{result['disk_s']:.3f}")
    table.add_row("in memory", f"{result['memory_s']:.3f}")
    console().print(table)
    console().print(f"ratio {result['ratio']}; besides journals, {result['files_synced']} files are synced in a round")
    return 0


@contextmanager
def _places(where: Path) -> Iterator[dict[str, Path]]:
    """Make a directory on the disk and one in memory."""
    made = {
        "disk": Path(tempfile.mkdtemp(prefix="silomix-bench-", dir=where)),
        "memory": Path(tempfile.mkdtemp(prefix="silomix-bench-", dir=MEMORY)),
    }
    try:
        yield made
    finally:
        for path in made.values():
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Count how often a file is synced; SQLite does its own."""
    count, sync = [0], os.fsync

    def counting(fd: Any) -> None:
        count[0] += 1
        sync(fd)

    os.fsync = counting
    try:
        yield count
    finally:
        os.fsync = sync


async def _take_turns(
    places: dict[str, Path], silos: int, parameters: int, hops: int, rounds: int, syncs: list[int]
) -> tuple[dict[str, list[float]], list[int]]:
    """Run one round here and one there, again and again. Return how long each took, and what was synced."""
    task = Vector(parameters)
    took: dict[str, list[float]] = {name: [] for name in places}
    synced: list[int] = []
    for turn in range(rounds + WARM_UP):
        for name, place in places.items():
            home = place / str(turn)
            policy = Policy(task=f"{__name__}:bench_disk", rounds=1, minimum_cohort=silos)
            federation = create(home, silos, hops, policy=policy, task=task, silo_options=lambda _: {})
            tasks = dict.fromkeys((federation.aggregator.name, *federation.silo_names), task)
            async with InProcess(home, tasks=tasks, log=Home(place).log) as running:
                before = syncs[0]
                (done,) = await running.finished()
                if turn >= WARM_UP:
                    took[name].append(done.seconds)
                    synced.append(syncs[0] - before)
            shutil.rmtree(home)
    return took, synced
