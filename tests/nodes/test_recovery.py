"""An aggregator that lost its disk, or has an old copy of it, or a double: no fork, no second sum, no round lost."""

import asyncio
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from tests.nodes.federations import assert_model, make, run, shuffler, until

from silomix.runtime.cli import main
from silomix.runtime.config.load import load_node
from silomix.runtime.core.errors import LocalFault, Reason
from silomix.runtime.core.policy import Server
from silomix.runtime.local import InProcess, make_node
from silomix.runtime.nodes import pause
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.silo import SiloNode

SILOS, HOPS = 3, 2
WAIT_S = 120.0


async def held(running: InProcess, rounds: int) -> None:
    """Wait until an operator's pause holds the federation after so many rounds, and all silos have the model."""
    await until(
        lambda: running.aggregator.pause.on and len(running.aggregator.history) == rounds, "it is held", seconds=60
    )
    silos = [node for node in running.nodes.values() if isinstance(node, SiloNode)]
    await until(lambda: all(silo.follower.at == rounds for silo in silos), "silos have the model", seconds=60)


def forks(running: InProcess) -> int:
    return sum(len(shuffler(running, f"shuffler-{i + 1}").core.forks) for i in range(HOPS))


async def run_and_hold(running: InProcess, home: str) -> None:
    """Run one round, and hold the federation before the next."""
    await until(lambda: running.aggregator.core.phase == "collecting", "a round is open", seconds=60)
    assert main(["pause", "--config", home]) == 0
    await held(running, 1)


@pytest.mark.parametrize("emptied", [True, False], ids=["emptied", "old copy"])
def test_an_aggregator_without_its_disk_takes_log_and_model_back_and_loses_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emptied: bool
) -> None:
    """The server's rule keeps a state beside the model: that is given back too.

    A silo that has lost its models cannot compute them either, since the old sums are gone. It takes the newest one on
    the word of the others, who have to say it to the new process of the aggregator again.
    """
    monkeypatch.setattr(pause, "LOOK_S", 0.02)
    federation = make(tmp_path / "f", SILOS, HOPS, rounds=3, server=Server.MOMENTUM, deadline_s=60, release_s=60)
    home = tmp_path / "f" / "aggregator"

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            await until(lambda: running.aggregator.core.round == 1, "it has begun", seconds=60)
            if not emptied:  # of before the first round
                shutil.copytree(home / "state", tmp_path / "copy")
            await run_and_hold(running, str(home))
            head, model = running.aggregator.core.log.head, running.aggregator.model
            await running.stop("aggregator")
            shutil.rmtree(home / "state")
            if not emptied:
                shutil.copytree(tmp_path / "copy", home / "state")
            await running.stop("silo-03")
            shutil.rmtree(tmp_path / "f" / "silo-03" / "state" / "models")
            running.start("aggregator")
            running.start("silo-03")
            await until(lambda: running.aggregator.core.round == 2, "the record is back", seconds=60)
            assert running.aggregator.core.log.records[1].digest == head
            assert running.aggregator.core.log.records[1].model_after == model
            done = await running.finished()
            assert [(one.round, one.cohort) for one in done] == [(t, SILOS) for t in (1, 2, 3)]
            assert forks(running) == 0
            for node in running.nodes.values():
                if isinstance(node, SiloNode):
                    assert node.follower.at >= 2  # it computed what the restored aggregator made
                    assert not node.follower.liar

    run(go(), WAIT_S)
    assert federation.policy.rounds == 3


def test_of_two_aggregators_with_one_identity_the_newer_is_served_and_the_other_ends_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause, "LOOK_S", 0.02)
    federation = make(tmp_path / "f", SILOS, HOPS, rounds=2, deadline_s=60, release_s=60)
    home, double = tmp_path / "f" / "aggregator", tmp_path / "f" / "double"

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            await run_and_hold(running, str(home))
            shutil.copytree(home, double)
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{free.getsockname()[1]}"
            second = make_node(replace(load_node(double), listen=address))
            assert isinstance(second, AggregatorNode)
            beside = asyncio.create_task(second.run())
            await until(lambda: second.pause.on, "the second one has heard the hops", seconds=60)
            assert second.core.log.head == running.aggregator.core.log.head
            assert main(["resume", "--config", str(home)]) == 0
            with pytest.raises(BaseExceptionGroup) as caught:
                await running.tasks.pop("aggregator")
            error: BaseException = caught.value
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            assert isinstance(error, LocalFault)
            assert error.reason is Reason.SUPERSEDED
            assert "run one process" in str(error)
            second.stopping.set()
            await beside
            running.start("aggregator")  # now the newer one
            done = await running.finished()
            assert [(one.round, one.cohort) for one in done] == [(1, SILOS), (2, SILOS)]
            assert_model(running.aggregator.tensors, [range(SILOS)] * 2, federation.policy)
            assert forks(running) == 0

    run(go(), WAIT_S)
