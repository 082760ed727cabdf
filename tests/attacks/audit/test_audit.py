"""Audits from the command line: of the digits, of one's own task, with one's own attack, and from captures."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.audit.doubling import double, fail

from silomix.attacks.audit import mounted
from silomix.attacks.audit.attack import Attack, Size
from silomix.attacks.audit.mounted.by_mode import bits
from silomix.attacks.audit.pool import Done, Job, run_jobs
from silomix.attacks.audit.registry import ATTACKS, attacks, load
from silomix.attacks.audit.subject import DIGITS, SILOS, subject_for
from silomix.attacks.errors import AttackError, Unfit
from silomix.attacks.views.view import Mode
from silomix.runtime.cli import main
from silomix.runtime.core.policy import Policy

TINY = Size("quick", 300, 2)
OWN = "tests.attacks.own:task"


def test_every_registered_attack_loads_and_has_a_name_of_its_own() -> None:
    found = attacks()
    assert [type(one) for one in found] == [Attack] * len(ATTACKS)
    modules = {path.stem for path in Path(mounted.__path__[0]).glob("[!_]*.py")}
    assert {address.partition(":")[0].rpartition(".")[2] for address in ATTACKS} == modules  # one line for each
    assert len({one.name for one in found}) == len(found)
    assert all(re.fullmatch(r"[a-z][a-z-]*", one.name) and one.doing for one in found)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nothing", "form"),
        ("no.such.module:ATTACK", "cannot be imported"),
        ("tests.attacks.audit.guess_one:nothing", "NoneType"),
        ("tests.attacks.audit.guess_one:always_the_first", "Attack"),
    ],
)
def test_an_address_that_is_none_is_refused(address: str, message: str) -> None:
    with pytest.raises(AttackError, match=message):
        load(address)


def test_attacks_are_chosen_by_name_and_never_two_of_one() -> None:
    assert [one.name for one in attacks(only=["captures"])] == ["captures"]
    with pytest.raises(AttackError, match="did you mean captures"):
        attacks(only=["capture"])
    with pytest.raises(AttackError, match="two attacks"):
        attacks([ATTACKS[0]])


def test_a_quick_audit_asks_about_enough_records_in_every_mode() -> None:
    size = Size("quick", 1000, 8)
    subject = subject_for(DIGITS, SILOS, size, own=False)
    assert sum(subject.splits.values()) >= size.targets
    assert len(subject.splits) > 1
    jobs = {one.name: one.jobs(subject, size) for one in attacks()}
    assert all(jobs.values())
    for job in jobs["by-mode"]:
        assert job.arguments["campaign"].modes == tuple(Mode)
    assert len({job.arguments["campaign"].seed for job in jobs["by-mode"]}) == len(subject.splits)
    assert {job.arguments["silos"] for job in jobs["residue-sums"]} == {2, 3, 5, 10}


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_run_in_any_number_of_processes_and_report_how_far_they_are(workers: int) -> None:
    seen: list[Done] = []
    todo = [Job(f"n {i}", double, {"number": i}, float(i)) for i in range(4)]
    assert run_jobs(todo, workers, seen.append) == [0, 2, 4, 6]
    assert seen[0].job is None
    assert seen[-1].done == pytest.approx(1.0)
    assert seen[-1].left_s == pytest.approx(0.0, abs=1e-6)
    assert [d.done for d in seen] == sorted(d.done for d in seen)
    with pytest.raises(ValueError, match="job 1"):
        run_jobs([*todo, Job("bad", fail, {"number": 1}, 9.0)], workers, seen.append)


def test_bits_are_those_of_the_plan() -> None:
    assert bits(10, 4) == {
        "none": 32,
        "model": 32,
        "layer": 32,
        "parameter": 32,
        "unary": 53,
        "trusted": 18,
        "semi-honest": 18,
    }


# A task of one's own.


def own(**options: Any) -> Policy:
    return Policy(task=OWN, task_options={"silos": 5, **options})


def test_a_task_with_a_seed_is_split_until_there_are_records_enough() -> None:
    subject = subject_for(own(), 5, TINY, own=True)
    assert sum(subject.splits.values()) >= TINY.targets
    assert subject.about["task"] == OWN
    first = next(iter(subject.splits))
    assert subject.about["options"]["seed"] == first
    assert len(subject.about["data"]["counts"]) == 5


def test_a_task_with_one_split_is_asked_about_more_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that the split does not depend on would make the same records count twice."""
    import tests.attacks.own as module

    made = module.task

    def fixed(silos: int = 5, silo: int = -1, seed: int = 1) -> Any:
        return made(silos=silos, silo=silo, seed=2, alpha=100.0)

    def unseeded(silos: int = 5, silo: int = -1) -> Any:
        return made(silos=silos, silo=silo, seed=2, alpha=100.0)

    for task in (fixed, unseeded):
        monkeypatch.setattr(module, "once", task, raising=False)
        subject = subject_for(Policy(task="tests.attacks.own:once"), 5, Size("quick", 900, 2), own=True)
        assert list(subject.splits.values()) == [900]


def test_silos_that_are_small_by_nature_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    import tests.attacks.own as module

    made = module.task

    def small(silos: int = 5, silo: int = -1, seed: int = 1) -> Any:
        task = made(silos=silos, silo=silo, seed=seed, alpha=100.0)
        if silo == 4:
            task.share = (task.share[0][:3], task.share[1][:3])
        return task

    monkeypatch.setattr(module, "small", small, raising=False)
    subject = subject_for(Policy(task="tests.attacks.own:small"), 5, TINY, own=True)
    assert list(subject.splits.values()) == [4 * 100]


def test_what_cannot_be_mounted_on_a_task_is_refused_with_the_reason() -> None:
    subject = subject_for(own(), 5, TINY, own=True)
    named = {one.name: one for one in attacks()}
    with pytest.raises(Unfit, match=r"square pictures.*\(64,\)"):
        named["inversion"].jobs(subject, TINY)
    with pytest.raises(Unfit, match="--option alpha"):
        named["by-skew"].jobs(subject, TINY)
    three = subject_for(own(silos=3), 3, TINY, own=True)
    with pytest.raises(Unfit, match="all take part"):
        named["changing-cohorts"].jobs(three, TINY)


def run_cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    out = tmp_path / "audit.html"
    code = main(["audit", "--quick", "--json", "--out", str(out), "--workers", "1", *words])
    return code, json.loads(capsys.readouterr().out)


TASK = """\
import torch
from sklearn.datasets import load_digits
from torch import nn
from silomix.models.data.partition import dirichlet
from silomix.models.torch_task import TorchTask

def task(silo=-1, silos=5, seed=1):
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.bfloat16), torch.tensor(y)
    share = dirichlet(y[400:], silos, 0.2, seed)[silo] + 400
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).bfloat16()
    net[0].requires_grad_(False)
    own = None if silo < 0 else (x[share], y[share])
    return TorchTask(net, own, (x[:400], y[:400]), silo=silo, epochs=5, batch=16, lr=0.1)
"""


@pytest.mark.full
def test_an_audit_of_a_file_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A frozen layer and bfloat16, in a directory with nothing else: simulated, over gRPC, and on a page."""
    (tmp_path / "my_digits.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    words = ["--task", "my_digits:task", "--silos", "5", "--rounds", "2", "--figures", "figures"]
    code, found = run_cli(tmp_path, capsys, *words, "--only", "by-mode", "--only", "captures")
    assert code == 0
    assert found["verdict"]["protected"]
    assert found["sia"]["none"]["low"] > 0.2
    assert found["sia"]["semi-honest-all-collude"]["low"] > 0.2
    assert found["real"][0]["all_collude"]["last"]["low"] > 0.2
    assert found["subject"]["model"]["sent"] == 330
    assert {t["name"]: t["sent"] for t in found["subject"]["model"]["tensors"]}["0.weight"] is False
    assert "my_digits:task" in found["setting"]["command"]
    text = (tmp_path / "audit.html").read_text()
    assert "bfloat16" in text
    assert stat.S_IMODE((tmp_path / "audit.html").stat().st_mode) == 0o644
    assert (tmp_path / "figures" / "by-mode-1.pdf").exists()


def test_an_attack_of_ones_own_is_mounted_beside_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = "tests.attacks.audit.guess_one"
    words = ["--attack", f"{mine}:ATTACK", "--attack", f"{mine}:PICKY", "--only", "first-silo", "--only", "picky"]
    code, found = run_cli(tmp_path, capsys, "--task", OWN, "--silos", "5", *words)
    assert code == 0
    assert found["attacks"] == ["first-silo"]
    assert found["verdict"]["text"] == "PROTECTED. A fixed guess is no guess."
    assert found["skipped"] == {"picky": "5 silos are not to its taste"}
    assert "The first silo" in (tmp_path / "audit.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--silos", "2"], "3 or more"),
        (["--rounds", "0"], "1 or more"),
        (["--workers", "-1"], "1 or more"),
        (["--task", "no_such_module:task"], "no module no_such_module"),
        (["--task", "tests.attacks.audit.plain:task"], "TorchTask"),
        (["--federation", "fed", "--silos", "5"], "leave out --silos"),
        (["--only", "nothing"], "They are by-mode"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["audit", "--quick", "--out", str(tmp_path / "audit.html"), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.full
def test_a_small_audit_of_the_digits_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All attacks on all modes and a real federation, at a size that shows that they run."""
    monkeypatch.setattr("silomix.runtime.cli.attack.audit.QUICK", TINY)
    code, found = run_cli(tmp_path, capsys)
    assert code == (0 if found["verdict"]["protected"] else 1)
    assert not found["verdict"]["leak"]
    assert not found["skipped"]
    assert found["attacks"] == [load(address).name for address in ATTACKS]
    assert found["sia"]["semi-honest-all-collude"]["accuracy"] > 0.4
    assert found["real"][0]["all_collude"]["last"]["low"] > 0.1
    assert "picture" not in found["dlg"][0]
    assert "data:image/png" in (tmp_path / "audit.html").read_text()
