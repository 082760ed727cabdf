"""`silomix health`: asked with the node's own certificate, quick to start, and honest about who is not there."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.nodes.federations import make

from silomix.runtime.cli import main
from silomix.runtime.config.kinds import Role
from silomix.runtime.local import InProcess
from silomix.runtime.observe.health import Answer, own_health, peers_health

WAIT_S = 5.0


async def ask(path: Path) -> Answer:
    return await asyncio.to_thread(own_health, path, WAIT_S)


async def until_healthy(path: Path) -> Answer:
    """Ask until the node has begun to serve."""
    while not (answer := await ask(path)).healthy:  # noqa: ASYNC110 - another process would have no event either
        await asyncio.sleep(0.02)
    return answer


@pytest.mark.parametrize("insecure", [False, True], ids=["tls", "insecure"])
async def test_a_server_that_runs_is_well_and_one_that_does_not_is_not(tmp_path: Path, insecure: bool) -> None:
    home = tmp_path / "f"
    make(home, 3, 2, insecure=insecure, rounds=1000, silo_options=lambda i: {"silo": i, "slow_s": 300.0})

    async with InProcess(home, without=("shuffler-2", "silo-01", "silo-02", "silo-03")):
        for name in ("aggregator", "shuffler-1"):
            answer = await until_healthy(home / name)
            assert (answer.node, answer.state, answer.healthy) == (name, "SERVING", True)
        assert not (await ask(home / "shuffler-2")).healthy
        answers = {a.node: a.healthy for a in await asyncio.to_thread(peers_health, home / "aggregator", WAIT_S)}
        assert answers == {"shuffler-1": True, "shuffler-2": False}
        answers = {a.node: a.healthy for a in await asyncio.to_thread(peers_health, home / "silo-01", WAIT_S)}
        assert answers == {"aggregator": True, "shuffler-1": True}
    assert not (await ask(home / "aggregator")).healthy


async def test_a_certificate_of_somebody_else_gets_no_answer(tmp_path: Path) -> None:
    """The health service is behind mutual TLS: another federation's member is told nothing."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    make(ours, 3, 1)
    make(theirs, 3, 1)

    async with InProcess(ours, without=("aggregator", "silo-01", "silo-02", "silo-03")):
        await until_healthy(ours / "shuffler-1")
        for file in ("tls.pem", "tls.key"):
            (ours / "shuffler-1" / file).write_bytes((theirs / "shuffler-1" / file).read_bytes())
        answer = await asyncio.to_thread(own_health, ours / "shuffler-1", 1.0)
    assert not answer.healthy
    assert answer.state in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


async def test_a_silo_is_asked_where_its_metrics_are(tmp_path: Path, unused_port: int) -> None:
    home = tmp_path / "f"
    make(home, 3, 1, settings={Role.SILO: {"metrics_port": unused_port, "metrics_host": "0.0.0.0"}})

    async with InProcess(home, without=("aggregator", "shuffler-1", "silo-02", "silo-03")):
        assert (await until_healthy(home / "silo-01")).address == f"127.0.0.1:{unused_port}"
        other = await ask(home / "silo-02")  # on the same port, for lack of a host of its own
        assert other.state == "silo-01 has this port"
        assert not other.healthy
    assert not (await ask(home / "silo-01")).healthy


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_exit_codes_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "f", 3, 1)
    hop = str(tmp_path / "f" / "shuffler-1")
    assert main(["health", "--config", hop, "--json", "--timeout-s", "2"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["healthy"] is False
    assert said["nodes"][0]["node"] == "shuffler-1"
    assert main(["health", "--config", str(tmp_path / "f" / "silo-01")]) == 2
    assert "metrics_port" in capsys.readouterr().err
    assert main(["health", "--config", str(tmp_path / "nowhere")]) == 2
    (tmp_path / "node.toml").write_text("role = 'shuffler")
    assert main(["health", "--config", str(tmp_path)]) == 2
    (tmp_path / "node.toml").write_text("role = 'shuffler'\nname = 3\n")
    assert main(["health", "--config", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e9", "soon"])
def test_a_timeout_that_is_none_is_refused(seconds: str) -> None:
    with pytest.raises(SystemExit):
        main(["health", "--config", "x", "--timeout-s", seconds])


def test_a_probe_loads_no_compiler() -> None:
    """It runs every few seconds beside a node: what it does not need would cost the node its processor."""
    code = (
        "import sys; import silomix.runtime.observe.health; from silomix.runtime.cli import make_parser; make_parser();"
        "sys.exit(' '.join({'numba', 'numpy', 'torch', 'yaml', 'cryptography'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
