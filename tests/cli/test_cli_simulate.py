"""`silomix simulate`: a run on disk that goes on after any interruption, and says what is wrong with its input."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.nodes.toy import Toy

from silomix.models.simulation.record import RecordError, RunDirectory
from silomix.runtime.cli import main
from silomix.runtime.core.policy import Policy
from silomix.runtime.local import create
from silomix.runtime.store.modelfile import model_digest, read_model

TOY = ["--task", "tests.nodes.toy:task", "--option", "parameters=300", "--silos", "4", "--workers", "1"]


def simulate(out: Path, *arguments: str) -> int:
    return main(["simulate", "--out", str(out), *TOY, *arguments])


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    return summary


def test_a_run_leaves_its_rounds_models_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(tmp_path / "run", "--rounds", "3", "--json") == 0
    summary = said(capsys)
    assert (summary["rounds"], summary["silos"], summary["accuracy"], summary["workers"]) == (3, 4, 0.5, 1)
    assert 0 < summary["training_share"] < 1
    rows = lines(tmp_path / "run")
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[0]["cohort"] == [0, 1, 2, 3]
    assert {"metrics", "seconds", "training_share", "clipped", "training"} <= rows[0].keys()
    assert (tmp_path / "run" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    _, best = read_model((tmp_path / "run" / "best.safetensors").read_bytes())
    _, last = read_model((tmp_path / "run" / "last.safetensors").read_bytes())
    assert best["a"].mean() < last["a"].mean()  # the toy's accuracy stays, so the first model is the best, and it grows
    assert sorted(p.name for p in (tmp_path / "run" / "state").iterdir()) == ["3.safetensors"]


def test_a_run_goes_on_where_it_was_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A crash can leave half a line, and a state beyond the last line: neither counts."""
    policy = ["--server", "adam", "--clip-norm", "1", "--noise-multiplier", "0.1"]
    simulate(tmp_path / "whole", "--rounds", "4", *policy)
    simulate(tmp_path / "cut", "--rounds", "2", *policy)
    with open(tmp_path / "cut" / "rounds.jsonl", "a") as file:
        file.write('{"round": 3, "cohort": [0,')
    (tmp_path / "cut" / "state" / "3.safetensors").write_bytes(b"half of it")
    simulate(tmp_path / "cut", "--rounds", "4", *policy)
    assert [row["round"] for row in lines(tmp_path / "cut")] == [1, 2, 3, 4]
    one, two = ((tmp_path / name / "last.safetensors").read_bytes() for name in ("whole", "cut"))
    assert one == two
    capsys.readouterr()
    assert simulate(tmp_path / "cut", "--rounds", "4", *policy, "--json") == 0  # done: it says so again
    summary = said(capsys)
    assert summary["rounds"] == 4
    assert summary["silo_epsilon"] == pytest.approx(293.4, rel=0.001)  # zCDP of 4 / (2 * 0.1^2), at delta 1e-5


def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    """By SIGTERM in the middle of training, in its own process, with workers."""
    slow = ["--option", "slow_s=0.05"]
    arguments = ["simulate", "--out", str(tmp_path / "run"), *TOY[:-1], "2", *slow, "--rounds", "30"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(Path.cwd() / ".src")])}
    process = subprocess.Popen([sys.executable, "-m", "silomix.runtime.cli", *arguments], env=environment)
    file = tmp_path / "run" / "rounds.jsonl"
    while process.poll() is None and not (file.exists() and file.read_text().count("\n") >= 2):
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert (tmp_path / "run" / "accuracy.png").exists()
    before = len(lines(tmp_path / "run"))
    assert 2 <= before < 30
    rounds = str(before + 2)
    assert simulate(tmp_path / "run", *slow, "--rounds", rounds) == 0
    assert [row["round"] for row in lines(tmp_path / "run")] == list(range(1, before + 3))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--precision", "3"], "precision = 4, and this one has 3"),
        (["--seed", "1"], "seed = 0, and this one has 1"),
        (["--vanilla"], "vanilla = false"),
        (["--option", "parameters=301"], "task_options"),
    ],
)
def test_another_run_in_the_same_place_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    simulate(tmp_path, "--rounds", "1")
    assert simulate(tmp_path, "--rounds", "1", *arguments) == 2
    assert says in capsys.readouterr().err


def test_more_rounds_are_refused_where_their_number_draws_the_silos(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(tmp_path, "--rounds", "1", "--subsample", "0.75")
    assert simulate(tmp_path, "--rounds", "2", "--subsample", "0.75") == 2
    assert "rounds = 1, and this one has 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda run: (run / "settings.json").write_text("{"), "settings.json is not JSON"),
        (lambda run: (run / "settings.json").unlink(), "settings.json is missing"),
        (lambda run: (run / "state" / "2.safetensors").unlink(), "2.safetensors cannot be read"),
        (lambda run: (run / "state" / "2.safetensors").write_bytes(b"x" * 99), "2.safetensors cannot be read"),
        (lambda run: (run / "rounds.jsonl").write_text("nonsense\n"), "line 1"),
        (lambda run: (run / "rounds.jsonl").write_text('{"round": 2}\n'), "line 1"),
    ],
)
def test_a_spoilt_directory_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, says: str
) -> None:
    simulate(tmp_path, "--rounds", "2")
    spoil(tmp_path)
    assert simulate(tmp_path, "--rounds", "3") == 2
    message = capsys.readouterr().err
    assert says in message
    assert "delete the directory to begin anew" in message


def test_one_process_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(tmp_path / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert simulate(tmp_path, "--rounds", "1") == 2
    assert "another process is at work" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="give another directory"):
        RunDirectory(tmp_path / "file", {})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--silos", "2"], "--silos: found 2; give 3"),
        (["--precision", "0"], "--precision: found 0; give a whole number from 1"),
        (["--subsample", "1.5"], "--subsample: found 1.5"),
        (["--noise-multiplier", "1"], "clip_norm"),
        (["--server", "median"], "group_size"),
        (["--task", "nowhere:task"], "there is no module nowhere"),
        (["--option", "paramters=3"], "did you mean parameters"),
        (["--config", "x", "--rounds", "3"], "leave --rounds out"),
    ],
)
def test_bad_input_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    base = [] if "--config" in arguments else TOY
    assert main(["simulate", "--out", str(tmp_path / "run"), *base, *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_silo_that_fails_in_a_round_is_no_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(tmp_path / "run", "--rounds", "1", "--option", "broken=true") == 1
    assert "silo 0 in round 1: b holds" in capsys.readouterr().err


def test_a_federations_own_file_can_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = Policy(task="tests.nodes.toy:task", task_options={"parameters": 300}, rounds=2, subsample=0.75)
    federation = create(tmp_path / "fed", 4, 1, policy=policy, insecure=True)
    out = ["--out", str(tmp_path / "run"), "--workers", "1", "--json"]
    assert main(["simulate", "--config", str(tmp_path / "fed"), *out]) == 0
    assert said(capsys)["silos"] == 4
    toy = Toy(-1, 300)
    first = federation.draw(1, model_digest(toy.schema(), toy.initial()))
    cohorts = [row["cohort"] for row in lines(tmp_path / "run")]
    assert cohorts[0] == [int(name[-2:]) - 1 for name in first]
    assert [len(cohort) for cohort in cohorts] == [3, 3]
