"""`silomix bench disk`: the same round with its state on a disk and in memory, in turns."""

import json
import os
from pathlib import Path

import pytest

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
