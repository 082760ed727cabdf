"""The command line itself: its help, what it says to bad input, and the codes that it ends with."""

import argparse
import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest

from silomix.runtime.cli import entry
from silomix.runtime.cli.exits import Exit, code_of
from silomix.runtime.cli.manual import GROUPS
from silomix.runtime.cli.options import BadOption, read_pairs
from silomix.runtime.core.errors import LocalFault, Passing, PeerFault, Reason, RunError, UserError
from silomix.runtime.store.journal import Journal, JournalError

ROOT = Path(__file__).resolve().parents[2]


def commands(parser: argparse.ArgumentParser) -> list[str]:
    """The names of a parser's own commands."""
    (found,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return list(found.choices)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        entry.main(["--help"])
    out = capsys.readouterr().out
    for word in ("plan", "bench", "demo", "warm", "examples:", "silomix plan --silos 10 --precision 4", "--version"):
        assert word in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        entry.main(["--version"])
    assert capsys.readouterr().out.startswith("silomix ")


def test_every_command_is_in_a_group_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        entry.main(["--help"])
    out = capsys.readouterr().out
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(commands(entry.make_parser()))
    for title, names in GROUPS.items():
        section = out.split(f"\n{title}:\n")[1].split("\n\n")[0]
        assert re.findall(r"^  (\w+) +\S", section, re.MULTILINE) == list(names)


def test_help_has_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        entry.main(["--help"])
    said = capsys.readouterr().out.split("exit codes:\n")[1]
    assert [int(line.split()[0]) for line in said.splitlines()] == [int(code) for code in Exit]
    listed = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert [int(code) for code in listed] == [int(code) for code in Exit]


@pytest.mark.parametrize("argv", [[], *([name] for name in ("bench", "render", "attack", "model", "data"))])
def test_without_a_command_the_help_goes_to_stderr(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"usage: {' '.join(['silomix', *argv])} ")
    assert len(err.splitlines()) > 8


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--precision", "0"], "--precision: found 0; give a whole number from 1 to 18"),
        (["--precision", "19"], "--precision: found 19; give a whole number from 1 to 18"),
        (["--silos", "1000000000000"], "--silos: found 1000000000000; a plan is computed for 100,000 at most"),
        (["--precision", "18", "--headroom", "64"], "lower n_max"),
        (["--headroom", "99"], "--headroom: found 99; give a whole number from 0 to 64"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_infeasible_plan_is_one_line_and_exit_code_2(
    argv: list[str], form: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(["plan", *argv, *form]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["plan", "--level", "paranoid"], "semi-honest"),
        (["plan", "--silos", "0"], "whole number"),
        (["plan", "--parameters", "0"], "whole number"),
        (["plan", "--parameters", "-5"], "whole number"),
        (["plan", "--parameters", "5", "--model", "mlp"], "not allowed with"),
        (["plan", "--silos", "ten"], "--silos"),
        (["plan", "--paper", "--silos", "10", "--weight-levels", "2"], "leave out --silos, --weight-levels"),
        (["plam"], "plan"),
    ],
)
def test_bad_arguments_say_what_to_do(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        entry.main(argv)
    assert says in capsys.readouterr().err


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Stand in for the modules that measure, which load a compiler."""
    seen: list[tuple[object, ...]] = []

    def recorder(name: str) -> Callable[..., int]:
        def record(*args: object) -> int:
            seen.append((name, *args))
            return 0

        return record

    for name in ("codec", "warm"):
        fake = ModuleType(f"silomix.runtime.bench.{name}")
        setattr(fake, name, recorder(name))
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    return seen


def test_commands_reach_their_handlers(calls: list[tuple[object, ...]]) -> None:
    argv: list[list[str]] = [
        ["bench", "codec"],
        ["bench", "codec", "--parameters", "7", "--silos", "3", "--precision", "2", "--json"],
        ["warm"],
        ["warm", "--json"],
    ]
    assert [entry.main(a) for a in argv] == [0] * 4
    assert calls == [
        ("codec", 11_237_432, 10, 4, False),
        ("codec", 7, 3, 2, True),
        ("warm", False),
        ("warm", True),
    ]


def raising(error: BaseException) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
        (PeerFault(Reason.WRONG_LENGTH, "plane 0 has 3 bytes and needs 4"), 2, "plane 0 has 3 bytes and needs 4"),
    ],
)
def test_how_a_command_ends(
    error: BaseException,
    code: int,
    said: str,
    calls: list[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.modules["silomix.runtime.bench.warm"], "warm", raising(error))
    assert entry.main(["warm"]) == code
    err = capsys.readouterr().err
    assert (said in err and err.count("\n") == 1) if said else err == ""
    assert calls == []


class Closed(StringIO):
    """A pipe whose reader went away."""

    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_news(
    form: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Closed())
    assert entry.main(["plan", *form]) == 141
    assert capsys.readouterr().err == ""


def test_plan_loads_no_compiler_and_no_network() -> None:
    code = (
        "import sys; from silomix.runtime.cli import main; code = main(['plan', '--paper', '--json']); "
        "sys.exit(code or ' '.join({'numba', 'numpy', 'grpc', 'torch'} & set(sys.modules)) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# --- how a command ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunError("two silos of five were left"), 1),
        (UserError("no such file"), 2),
        (LocalFault(Reason.BAD_BOUND, "a bound of 0"), 2),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), 2),
        (OSError(errno.ENOSPC, "No space left on device"), 75),
        (Passing("cannot listen on 127.0.0.1:7000"), 75),
        (PeerFault(Reason.WRONG_FEDERATION, "silo-01 has another federation file"), 75),
        (PeerFault(Reason.MALFORMED, "this is no manifest"), 2),
        (KeyError("a bug"), 70),
    ],
)
def test_trouble_that_may_pass_has_a_code_of_its_own(error: BaseException, code: int) -> None:
    assert code_of(error) == code


def test_a_fault_of_ours_is_shown_whole(
    calls: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["silomix.runtime.bench.warm"], "warm", raising(KeyError("a bug")))
    assert entry.main(["warm"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_journal_in_use_may_be_free_later_and_a_damaged_one_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silomix.runtime.store.journal.BUSY_S", 0.01)
    first = Journal(tmp_path / "journal.sqlite")
    first.put("kind", 1, "", b"")
    with pytest.raises(JournalError) as busy:
        Journal(tmp_path / "journal.sqlite")
    first.close()
    assert code_of(busy.value) == 75
    (tmp_path / "broken.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(JournalError) as damaged:
        Journal(tmp_path / "broken.sqlite")
    assert code_of(damaged.value) == 2


def test_an_option_is_reported_as_an_option() -> None:
    assert str(BadOption("weight_levels", "found 0")) == "--weight-levels: found 0"
    with pytest.raises(BadOption, match=r"^--option: found 'lr'; give KEY=VALUE$"):
        read_pairs("--option", ["lr"])
    assert read_pairs("--option", ["lr=0.1", "a=b=c", "on=true"]) == {"lr": 0.1, "a": "b=c", "on": True}
