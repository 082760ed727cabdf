"""The app of docs/flower.md in Flower's own runtimes: its simulation, and a SuperLink with SuperNodes as processes."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

if os.environ.get("CI") != "true":  # there, a missing Flower is a failure and not a reason to skip
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'silomix[flower]'")

from tests.flower.apps import patched

from silomix.runtime import outside
from silomix.runtime.core.policy import Policy

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

BIN = Path(sys.executable).parent
POLICY = Policy(rounds=1000, weight_levels=1000, deadline_s=600, release_s=300)
WAIT_S = 900.0
"""Bound on everything: a Flower process takes seconds to start, and every message to a client starts one."""


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    own = {"FLWR_HOME": str(tmp_path / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "NO_PROXY": "127.0.0.1"}
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **own, "no_proxy": "127.0.0.1", "PATH": path, "RAY_DEDUP_LOGS": "0", **more}


def accuracy_in(text: str) -> float:
    printed = re.findall(r"^accuracy ([\d.]+)", text, re.MULTILINE)
    assert printed, text[-4000:]
    return float(printed[-1])


SIMULATION = """
from flwr.simulation.run_simulation import _run_simulation
from flwr.app import Context, RecordDict
from flwr.supercore.telemetry import EventType
from quickstart.client_app import app as client
from quickstart.server_app import app as server
if __name__ == "__main__":
    config = {"num-server-rounds": 2, "federation": "fed"}
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    _run_simulation(
        num_supernodes=3, exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE, client_app=client, server_app=server,
        server_app_context=context, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
"""


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None and os.environ.get("CI") != "true",
    reason="Flower's simulation needs ray: pip install 'flwr[simulation]'",
)
def test_the_app_runs_in_flowers_simulation(tmp_path: Path) -> None:
    app = patched(tmp_path / "app")
    outside.create(app / "fed", 3, 2, 650, policy=POLICY, dtype="F32")
    (app / "simulate.py").write_text(SIMULATION)
    env = environment(tmp_path, PYTHONPATH=os.pathsep.join([str(app), *filter(None, sys.path)]))
    command = [sys.executable, "simulate.py"]
    done = subprocess.run(command, cwd=app, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert accuracy_in(done.stdout) > 0.8
    assert len(re.findall(r"Received 1 results and 0 failures", done.stdout + done.stderr)) == 2


@contextmanager
def process(log: Path, env: Mapping[str, str], *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with whatever it starts, ended together."""
    with log.open("wb") as out:
        started = subprocess.Popen(command, stdout=out, stderr=out, env=env, cwd=log.parent, start_new_session=True)
    try:
        yield started
    finally:
        for number in (15, 9):
            try:
                os.killpg(started.pid, number)
                started.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until_said(log: Path, what: str) -> None:
    end = time.monotonic() + WAIT_S
    while what not in log.read_text(errors="replace"):
        assert time.monotonic() < end, log.read_text(errors="replace")[-3000:]
        time.sleep(0.2)


def test_the_app_runs_with_a_superlink_and_supernodes(tmp_path: Path) -> None:
    from contextlib import ExitStack

    app, fed, env = patched(tmp_path / "app"), tmp_path / "fed", environment(tmp_path)
    outside.create(fed, 3, 2, 650, policy=POLICY, dtype="F32")
    link = f"127.0.0.1:{free_port()}"
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{link}"\ninsecure = true\n'
    )
    with ExitStack() as stack:

        def start(name: str, *command: str) -> Path:
            stack.enter_context(process(tmp_path / f"{name}.log", env, *command))
            return tmp_path / f"{name}.log"

        for hop in ("shuffler-1", "shuffler-2"):
            start(hop, str(BIN / "silomix"), "shuffler", "--config", str(fed / hop))
        for silo in ("silo-01", "silo-02", "silo-03"):
            start(silo, sys.executable, "-m", "silomix.runtime.outside", str(fed / silo))
        server = ("--insecure", "--port", link.rpartition(":")[2], "--disable-runtime-dependency-installation")
        health = ("--health-server-address", f"127.0.0.1:{free_port()}")
        until_said(start("superlink", str(BIN / "flower-superlink"), *server, *health), "Uvicorn running")
        for i in range(3):
            own = f'partition-id={i} num-partitions=3 silomix="{fed / f"silo-0{i + 1}"}"'
            node = ("--insecure", "--superlink", link, "--port", str(free_port()), "--node-config", own)
            until_said(start(f"node-{i}", str(BIN / "flower-supernode"), *node), "Uvicorn running")
        command = [str(BIN / "flwr"), "run", str(app), "here", "--stream", "--run-config"]
        settings = f'federation="{fed / "aggregator"}" num-server-rounds=2'
        for _ in range(10):  # Flower's own command waits five seconds for an answer, and a busy machine takes longer
            done = subprocess.run(
                [*command, settings], env=env, cwd=app, capture_output=True, text=True, timeout=WAIT_S, check=False
            )
            if "SuperLink is unavailable" not in done.stdout + done.stderr:
                break
        said = done.stdout + done.stderr
        assert len(re.findall(r"Received 1 results and 0 failures", said)) == 2, said[-4000:]
        assert accuracy_in(re.sub(r"^.*?(accuracy [\d.]+)\s*$", r"\1", said, flags=re.MULTILINE)) > 0.8
