"""`silomix run`: from an empty directory and a file of one's own to a trained model, in one command."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.front.tasks import CONV, FAILING, LORA, ODD, SLOW
from tests.nodes.federations import make

from silomix.runtime.cli import main
from silomix.runtime.local import LocalFederation
from silomix.runtime.results import find
from silomix.runtime.store.modelfile import read_model
from silomix.runtime.task import load_task

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 900.0  # a bound, many times what a busy machine takes
WEIGHTS = ("weight", "bias")


def silomix(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command as a user does: the script, which does not have the working directory on its path."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".src")}
    script = directory / "bin" / "silomix"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        "import sys\nfrom silomix.runtime.cli import main\nif __name__ == '__main__':\n    sys.exit(main())"
    )
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        cwd=directory,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(directory: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run a command to its end, and return what it wrote."""
    process = silomix(directory, *arguments)
    try:
        out, err = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # it stops its nodes, which would otherwise slow down all that comes after
        out, err = process.communicate(timeout=WAIT_S)
        raise AssertionError(f"not done after {WAIT_S:.0f} s: {err[-3000:]}") from None
    assert process.returncode == code, err[-3000:]
    return out, err


@pytest.mark.full
def test_a_network_with_batch_norm_from_a_file_to_a_trained_and_audited_model(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CONV)
    out, err = done(
        tmp_path,
        "run",
        "--task",
        "mine:task",
        "--silos",
        "3",
        "--rounds",
        "4",
        "--bound",
        "auto",
        "--out",
        "run",
        "--audit",
    )
    assert "verdict: protected" in out
    assert "clipped" not in err
    run = tmp_path / "run"
    rounds = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [(one["round"], one["cohort"]) for one in rounds] == [(t, 3) for t in range(1, 5)]
    assert rounds[-1]["accuracy"] > 0.8
    assert f"accuracy {rounds[-1]['accuracy']:.3f}" in out
    assert "the trained model: run/final.safetensors" in out
    assert (run / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "round 4 of 4: accuracy" in err

    models = find(run).models()
    best = max(rounds, key=lambda one: one["accuracy"])["round"]
    assert (run / "final.safetensors").read_bytes() == models[4].read_bytes()
    assert (run / "best.safetensors").read_bytes() == models[best].read_bytes()

    out, _ = done(tmp_path, "model", "export", "--config", "run")
    assert "run/model.pt" in out
    torch = pytest.importorskip("torch")
    state = torch.load(run / "model.pt")
    final = read_model((run / "final.safetensors").read_bytes())[1]
    assert all(np.array_equal(state[name].numpy(), final[name]) for name in final)
    assert "1.num_batches_tracked" in state  # complete: load_state_dict takes it


@pytest.mark.full
def test_a_network_with_adapters_is_trained_and_audited_and_exported_whole(tmp_path: Path) -> None:
    (tmp_path / "lora.py").write_text(LORA)
    told, _ = done(
        tmp_path,
        *("run", "--task", "lora:task", "--silos", "3", "--rounds", "3", "--bound", "2", "--out", "run"),
        *("--audit", "--vanilla", "--json"),
    )
    summary: dict[str, Any] = json.loads(told)
    assert summary["verdict"]["protected"]
    assert summary["accuracy"] > summary["accuracy_before"] + 0.3
    assert summary["accuracy"] == pytest.approx(summary["vanilla_accuracy"], abs=0.05)
    rounds = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert all(isinstance(one["vanilla_accuracy"], float) for one in rounds)
    done(tmp_path, "model", "export", "--config", "run")
    torch = pytest.importorskip("torch")
    state = torch.load(tmp_path / "run" / "model.pt")
    final = read_model((tmp_path / "run" / "final.safetensors").read_bytes())[1]
    assert {name for name in state if name not in final} == {f"{i}.base.{part}" for i in (0, 2) for part in WEIGHTS}
    assert np.array_equal(state["2.up"].numpy(), final["2.up"])


@pytest.mark.full
def test_a_model_with_everything_in_it_is_trained_and_simulated_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    told, err = done(
        tmp_path,
        *("run", "--task", "odd:task", "--silos", "3", "--rounds", "3", "--bound", "4", "--out", "run"),
        *("--audit", "--json"),
    )
    summary: dict[str, Any] = json.loads(told)
    assert summary["verdict"]["protected"]
    assert err.count("bfloat16 holds 8 bits of a value") == 1  # said once, however often the model is made
    assert summary["rounds"] == 3
    assert summary["model"] == "run/final.safetensors"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    schema, trained = read_model((tmp_path / "run" / "final.safetensors").read_bytes())
    first = load_task("odd:task", {}).initial()
    moved = {spec.name: bool((trained[spec.name] != first[spec.name]).any()) for spec in schema.tensors if spec.size}
    assert moved.pop("scale")
    assert moved.pop("level")
    assert all(moved.values()), moved
    assert trained["scale"].shape == ()
    assert not {"tied.weight", "seen", "frozen.weight"} & set(trained)
    assert main(["simulate", "--config", "run/federation", "--workers", "1", "--out", "same"]) == 0
    simulated = read_model(next((tmp_path / "same" / "state").glob("*.safetensors")).read_bytes())[1]
    assert all(np.array_equal(simulated[name], trained[name]) for name in trained)


def test_what_silos_clip_is_said_in_the_first_round(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    arguments = ["--task", "slow:task", "--silos", "3", "--rounds", "2", "--bound", "0.001", "--plot", "none"]
    out, err = done(tmp_path, "run", *arguments)
    assert "the trained model: run/final.safetensors" in out
    assert (tmp_path / "run" / "final.safetensors").read_bytes() == find(tmp_path / "run").models()[2].read_bytes()
    (warning,) = [line for line in err.splitlines() if "clipped" in line]
    assert warning.startswith("! 3 silos clipped ")
    assert "(up to 100% of its values)" in warning
    assert "to the bound 0.001" in warning
    assert "policy.bound = 0.5 would hold all of it" in warning
    assert err.index("! 3 silos") < err.index("round 2 of 2")
    assert not (tmp_path / "run" / "accuracy.png").exists()
    log = (tmp_path / "run" / "federation" / "silo-01" / "log.txt").read_text()
    assert "WARNING silo-01  clipped: " in log
    for server in ("aggregator", "shuffler-1", "shuffler-2"):
        assert "clipped" not in (tmp_path / "run" / "federation" / server / "log.txt").read_text()


def test_a_task_that_fails_at_every_silo_ends_the_run_with_its_sentence(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "failing.py").write_text(FAILING)
    _, err = done(tmp_path, "run", "--task", "failing:task", "--silos", "3", code=1)
    assert "silomix: round 1 cannot come to a sum" in err
    assert "the table of patients is not mounted" in err
    assert not (tmp_path / "run" / "final.safetensors").exists()


@pytest.mark.full
def test_an_interrupted_run_leaves_its_model_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    process = silomix(tmp_path, "run", "--task", "slow:task", "--silos", "3", "--rounds", "40", "--plot", "none")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 2 of 40"):
            process.send_signal(signal.SIGINT)
            break
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    place = find(tmp_path / "run")
    before = len(place.history())
    assert 2 <= before < 40
    value = float(read_model((tmp_path / "run" / "final.safetensors").read_bytes())[1]["w"][0])
    assert value == pytest.approx(before / 4, abs=1e-3)
    process = silomix(tmp_path, "run", "run", "--plot", "none")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(f"round {before + 2} of 40"):
            process.send_signal(signal.SIGTERM)
            break
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert len(place.history()) >= before + 2


# --- what an aggregator says of a federation that came to nothing -----------------------------------------------------


@pytest.mark.full
def test_an_aggregator_to_which_no_silo_ever_came_ends_with_an_error(tmp_path: Path) -> None:
    make(tmp_path / "f", 3, 1, rounds=2, deadline_s=1, release_s=5, attempts=1)

    async def go() -> int:
        running = LocalFederation(tmp_path / "f")
        try:
            for name in ("shuffler-1", "aggregator"):
                await running.start(name)
            return await asyncio.wait_for(running.processes["aggregator"].wait(), WAIT_S)
        finally:
            await running.stop()

    assert asyncio.run(go()) == 1
    log = (tmp_path / "f" / "aggregator" / "log.txt").read_text()
    assert "all rounds are done" not in log
    assert "no silo contributed to any: there is no trained model" in log.splitlines()[-1]


# --- what is asked for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", "nowhere:task"], "there is no module nowhere"),
        (["--task", "tests.nodes.toy:task", "--option", "paramters=3"], "did you mean parameters"),
        (["--task", "tests.nodes.toy:task", "--silos", "2"], "--silos: found 2; give 3 to 1000"),
        (["--task", "tests.nodes.toy:task", "--precision", "40"], "--precision: found 40"),
        (["--task", "tests.nodes.toy:task", "--server", "median"], "--server: found"),
        (["--task", "tests.nodes.toy:task", "--audit"], "Toy has no net and no share and no test"),
        (["--task", "tests.cli.test_cli_run:silomix"], "has no option silo, so all silos would train on the same"),
        (["nowhere"], "nowhere: is not there"),
        (["."], "holds no federation.toml"),
        (["nowhere", "--silos", "5"], "--silos: nowhere says it already"),
        (["nowhere", "--rounds", "5"], "--rounds: nowhere says it already"),
        (["--task", "tests.nodes.toy:task", "--out", "full"], "full: is not empty, and no model is overwritten"),
    ],
)
def test_bad_input_is_said_in_a_line(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    assert main(["run", *arguments]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.rglob("federation.toml"))


@pytest.mark.parametrize("arguments", [[], ["fed", "--task", "mine:task"]])
def test_a_run_is_of_a_task_or_of_a_directory(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", *arguments])
    assert "give --task with what to train, or the directory" in capsys.readouterr().err


def test_flags_of_init_are_reported_as_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file that they would have stood in is not there, and the user has never seen it."""
    toy = ["--task", "tests.nodes.toy:task"]
    for arguments, says in (
        (["--silos", "2"], "--silos: found 2; give 3 to 1000"),
        (["--shufflers", "0"], "--shufflers: found 0"),
        (["--base-port", "70000"], "--base-port: found 70000"),
        (["--minimum-cohort", "9", "--silos", "5"], "--minimum-cohort: found 9"),
        (["--name", "No Name"], "--name: found 'No Name'"),
    ):
        assert main(["init", str(tmp_path / "fed"), *toy, *arguments]) == 2
        assert capsys.readouterr().err.startswith(f"silomix: {says}")
