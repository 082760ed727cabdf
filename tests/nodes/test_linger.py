"""`linger = true`: a node that is done stays until it is told to stop: for schedulers that start again what ends."""

import asyncio
from pathlib import Path

from tests.nodes.federations import make, run, until

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_node
from silomix.runtime.local import InProcess, fetch_status
from silomix.runtime.observe.health import own_health

STAY = {Role.AGGREGATOR: {"linger": True}, Role.SILO: {"linger": True}}


def test_nodes_that_linger_answer_after_the_last_round(tmp_path: Path) -> None:
    home = tmp_path / "f"
    make(home, 3, 1, rounds=2, settings=STAY)

    async def go() -> None:
        async with InProcess(home) as running:
            await until(lambda: running.aggregator.core.phase == "finished", "the last round")
            await until(lambda: not running.aggregator.present, "silos that have heard so")
            status = await fetch_status(load_node(home / "silo-01"))
            assert (status.phase, len(status.history)) == ("finished", 2)
            assert (await asyncio.to_thread(own_health, home / "aggregator", 5.0)).healthy
            assert not any(task.done() for task in running.tasks.values())
            for name in ("silo-01", "aggregator"):
                await running.stop(name)  # in order, when told to
                assert running.tasks[name].done()

    run(go(), 60)


def test_without_it_they_end(tmp_path: Path) -> None:
    home = tmp_path / "f"
    make(home, 3, 1, rounds=1)

    async def go() -> None:
        async with InProcess(home) as running:
            await running.finished()
            await asyncio.gather(*(running.tasks[name] for name in running.federation.silo_names))

    run(go(), 60)
