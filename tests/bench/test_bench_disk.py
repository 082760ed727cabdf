"""`silomix bench disk`: the same round with its state on a disk and in memory, in turns."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from silomix.runtime.bench.disk import MEMORY
from silomix.runtime.cli.entry import main


@pytest.mark.full
def test_both_are_measured_and_nothing_is_left_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sync = os.fsync
    given = ["--silos", "3", "--hops", "1", "--parameters", "1000", "--rounds", "1", "--disk", str(tmp_path)]
    assert main(["bench", "disk", *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["disk_s"] > 0
    assert found["memory_s"] > 0
    assert found["ratio"] == pytest.approx(found["disk_s"] / found["memory_s"], rel=0.01)
    assert found["files_synced"] > 3  # bodies, integers, the sum, the model
    assert not list(tmp_path.iterdir())
    assert os.fsync is sync


def test_nothing_is_left_behind_by_one_that_is_ended(tmp_path: Path) -> None:
    """By SIGTERM: what lies in memory would stay there until the machine is started again."""
    given = ["--silos", "3", "--hops", "1", "--parameters", "1000", "--rounds", "1000", "--disk", str(tmp_path)]
    before = set(MEMORY.glob("silomix-bench-*"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(Path.cwd() / ".src")])}
    process = subprocess.Popen([sys.executable, "-m", "silomix.runtime.cli", "bench", "disk", *given], env=environment)
    while process.poll() is None and not list(tmp_path.glob("*/*/*/state")):
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    mine = set(MEMORY.glob("silomix-bench-*")) - before
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert not list(tmp_path.iterdir())
    assert not any(place.exists() for place in mine)
