"""SIGTERM ends a node in order whenever it comes: while it starts, in a round, while it stops already."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.nodes.federations import make, run

from silomix.runtime.local import LocalFederation
from silomix.runtime.store.journal import Journal

REPOSITORY = Path(__file__).parents[2]
ENV = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / ".src")])}
ORDERLY = {0, -signal.SIGTERM}
"""Nothing else: the latter is a process that had not come as far as to hear of signals."""
TROUBLE = re.compile(r"Traceback|exception was never retrieved|was destroyed but it is pending|Fatal|core dumped")

INSIDE = """
import asyncio, sys
from silomix.runtime.local import InProcess, interrupt_on_sigterm

async def main():
    async with InProcess(sys.argv[1]) as running:
        await running.finished()

interrupt_on_sigterm()
asyncio.run(main())
"""


async def in_a_round(running: LocalFederation) -> None:
    """Wait until a round is open, or for some seconds: a node that was just stopped may hold it up."""
    aggregator = running.log(running.federation.aggregator.name)
    before = aggregator.read_text().count("announced")
    for _ in range(200):
        if aggregator.read_text().count("announced") > before:
            return
        await asyncio.sleep(0.025)


async def stop_at_random(running: LocalFederation, rng: random.Random, times: int) -> None:
    """Tell one node after the other to stop, at some moment of its life, some of them twice, and start it again."""
    for i in range(times):
        name = rng.choice(running.names)
        process = running.processes[name]
        if i % 2:  # in the midst of a round, not while it starts
            await in_a_round(running)
        await asyncio.sleep(rng.choice([0.0, 0.3, 1.0, 3.0]) * rng.random())
        with suppress(ProcessLookupError):  # it has ended, and nobody has looked yet
            process.send_signal(signal.SIGTERM)
            if rng.random() < 0.3:
                await asyncio.sleep(0.05 * rng.random())
                process.send_signal(signal.SIGTERM)
        code = await process.wait()
        assert code in ORDERLY, f"{name} ended with {code}: {running.log(name).read_text()[-2000:]}"
        await running.start(name)


@pytest.mark.parametrize("times", [3, pytest.param(60, marks=pytest.mark.full)])
def test_a_node_that_is_told_to_stop_at_any_moment_says_nothing_untoward(tmp_path: Path, times: int) -> None:
    make(tmp_path / "f", 3, 2, rounds=100_000, deadline_s=20, release_s=5, attempts=50)
    seed = random.randrange(1 << 32)

    async def go() -> None:
        async with LocalFederation(tmp_path / "f", env=ENV) as running:
            await stop_at_random(running, random.Random(seed), times)
        assert {process.returncode for process in running.processes.values()} <= ORDERLY
        for name in running.names:
            log = running.log(name).read_text()
            assert not TROUBLE.search(log), f"seed {seed}, {name}: {log[-4000:]}"

    run(go(), 60 + 10 * times)
    journal = Journal(tmp_path / "f" / "aggregator" / "state" / "journal.sqlite")
    applied = [round_ for round_, _, value in journal.facts("applied") if json.loads(value)["cohort"]]
    journal.close()
    assert applied == sorted(set(applied))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_with_a_whole_federation_in_it_ends_when_it_is_told_to(tmp_path: Path, number: int) -> None:
    """Signals are the program's, and no node's: one of the nodes took them for itself, and all others went on."""
    make(tmp_path / "f", 3, 2, rounds=100_000)
    with subprocess.Popen(
        [sys.executable, "-c", INSIDE, str(tmp_path / "f")], env=os.environ | ENV, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "announced" in line:
                process.send_signal(number)
                break
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT, said[-2000:]
    assert "KeyboardInterrupt" in said
