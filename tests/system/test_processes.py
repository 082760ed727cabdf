"""A federation of separate processes: started, stopped, killed, and spoken to by the command line."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
from tests.nodes.federations import assert_model, make, model_of, policy, run

from silomix.runtime.cli import main
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_node
from silomix.runtime.core.protocol.roundlog import Outcome
from silomix.runtime.local import LocalFederation, create
from silomix.runtime.nodes.facts import read_log
from silomix.runtime.nodes.node import GRACE_S
from silomix.runtime.store.journal import Journal
from silomix.v1 import services_pb2

REPOSITORY = Path(__file__).parents[2]
WAIT_S = 60.0
"""Bound on each test; a process takes a second or two to start."""


def _local(directory: Path) -> LocalFederation:
    return LocalFederation(directory, env={"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / ".src")])})


async def _status(running: LocalFederation, rounds: int) -> services_pb2.GetStatusResponse:
    """Wait until so many rounds are done."""
    while True:
        running.check()
        status = await running.status()
        if status is not None and len(status.history) >= rounds:
            return status
        await asyncio.sleep(0.05)


def _gone(running: LocalFederation) -> bool:
    return all(p.returncode is not None and not Path(f"/proc/{p.pid}").exists() for p in running.processes.values())


async def test_processes_make_the_mean_of_all_silos_and_end(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 3, 2, rounds=2)

    async with _local(tmp_path / "f") as running:
        await running.finished()
        for silo in federation.silo_names:
            assert await running.processes[silo].wait() == 0  # they hear that all is done
    assert {p.returncode for p in running.processes.values()} == {0}
    assert _gone(running)
    assert_model(model_of(tmp_path / "f"), [range(3)] * 2, federation.policy)


def test_processes_end_in_order_when_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGTERM ends every role with code 0, also a silo in the middle of training; `status` shows what runs."""
    make(tmp_path / "f", 3, 1, rounds=1000, silo_options=lambda i: {"silo": i, "slow_s": 300.0 * (i == 2)}, quorum=0.6)

    async def go() -> str:
        async with _local(tmp_path / "f") as running:
            status = await fetch_when_up(running)
            for name in ("silo-03", "silo-01", "shuffler-1", "aggregator"):
                process = running.processes[name]
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(GRACE_S + 5):
                    assert await process.wait() == 0, running.log(name).read_text()
            return status

    async def fetch_when_up(running: LocalFederation) -> str:
        while True:
            running.check()
            status = await running.status()
            if status is not None and status.phase == "collecting" and len(status.present) == 3:
                break
            await asyncio.sleep(0.05)
        code = await asyncio.to_thread(
            main, ["status", "--config", str(tmp_path / "f" / "silo-01"), "--once", "--json"]
        )
        assert code == 0
        return capsys.readouterr().out

    shown = json.loads(run(go(), WAIT_S))
    assert shown["federation"] == "local"
    assert [hop["name"] for hop in shown["hops"]] == ["shuffler-1"]
    assert shown["present"] == ["silo-01", "silo-02", "silo-03"]


async def test_nothing_is_left_running_when_the_body_raises(tmp_path: Path) -> None:
    make(tmp_path / "f", 3, 1, rounds=1000)

    running = _local(tmp_path / "f")
    with contextlib.suppress(LookupError):
        async with running:
            await _status(running, 0)
            raise LookupError
    assert len(running.processes) == 5
    assert _gone(running)


@pytest.mark.full
@pytest.mark.parametrize("victim", ["aggregator", "shuffler-1", "shuffler-2", "silo-01"])
async def test_a_process_that_is_killed_and_started_again_costs_no_round(tmp_path: Path, victim: str) -> None:
    """Killed as by a power cut, in the middle of a federation: no round is lost, and none is applied twice."""
    federation = make(tmp_path / "f", 3, 2, rounds=6, deadline_s=10, release_s=2, attempts=10)

    async with _local(tmp_path / "f") as running:
        for done in (1, 3):
            await _status(running, done)
            running.kill(victim)
            await running.processes[victim].wait()
            await running.start(victim)
        await running.finished()
    journal = Journal(tmp_path / "f" / "aggregator" / "state" / "journal.sqlite")
    facts = [(record.round, len(record.silos)) for record in read_log(journal) if record.outcome is Outcome.APPLIED]
    journal.close()
    assert facts == [(t, 3) for t in range(1, 7)]
    assert_model(model_of(tmp_path / "f"), [range(3)] * 6, federation.policy)


# --- the command line -------------------------------------------------------------------------------------------------


def _refused(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    assert main([str(a) for a in arguments]) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_init_writes_a_federation_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = ["--task", "tests.nodes.toy:task", "--option", "parameters=50"]
    assert main(["init", str(tmp_path / "f"), "--silos", "3", "--shufflers", "2", "--rounds", "1", *task]) == 0
    shown = capsys.readouterr().out
    assert f"silomix shuffler --config {tmp_path / 'f' / 'shuffler-2'}" in shown
    config = load_node(tmp_path / "f" / "aggregator")
    assert config.role is Role.AGGREGATOR
    assert config.initial_model is not None
    assert config.initial_model.exists()
    assert "not empty" in _refused(capsys, "init", tmp_path / "f", "--silos", 3, *task)


def test_commands_with_a_wrong_configuration_say_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "f", 3, 1)
    silo = tmp_path / "f" / "silo-01"
    assert "is not there" in _refused(capsys, "silo", "--config", tmp_path / "nowhere")
    assert "silomix silo" in _refused(capsys, "aggregator", "--config", silo)
    assert "does not answer" in _refused(capsys, "status", "--config", silo, "--once", "--json", code=75)
    text = (silo / "node.toml").read_text()
    (silo / "node.toml").write_text(f"nmae = 'x'\n{text}")
    assert 'did you mean "name"' in _refused(capsys, "silo", "--config", silo)


async def test_a_port_that_is_taken_is_an_error_in_one_line(tmp_path: Path) -> None:
    """Two nodes on one address: the second says which, and ends."""
    first = create(tmp_path / "f", 3, 1, policy=policy())
    home = tmp_path / "f" / "shuffler-1"

    assert load_node(home).listen == first.shufflers[0].address
    async with asyncio.timeout(WAIT_S):
        host, _, port = first.shufflers[0].address.rpartition(":")
        holder = await asyncio.start_server(lambda *_: None, host, int(port))
        async with holder:
            running = _local(tmp_path / "f")
            try:
                await running.start("shuffler-1")
                code = await running.processes["shuffler-1"].wait()
            finally:
                await running.stop()
        code, log = code, running.log("shuffler-1").read_text()
    assert code == 75  # it may be free later
    assert f"cannot listen on {first.shufflers[0].address}" in log.splitlines()[-1]
    assert "Traceback" not in log
