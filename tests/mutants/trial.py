"""Tests that run in a process of their own, on a source that was never written to the disk.

The parent has imported what is slow to import and is not mutated; each trial is a fork of it, so that it begins at
once, and leaves nothing behind when it is killed. It says on a pipe which test it is at.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NoReturn

import pytest

OPTIONS = ("-q", "-p", "no:cacheprovider", "-m", "not full", "-W", "ignore::pytest.PytestAssertRewriteWarning")


class Overlay(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a text; tracebacks name its file."""

    def __init__(self, name: str, path: Path, text: bytes) -> None:
        assert name not in sys.modules, f"{name} was imported before it could be mutated"
        self.name, self.path = name, path
        self._code = compile(text, str(path), "exec")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)

    def get_filename(self, fullname: str) -> str:
        return str(self.path)


class Told:
    """A plugin of pytest that runs the chosen tests in the given order, and tells the parent what happens."""

    def __init__(self, pipe: BinaryIO, chosen: Sequence[str]) -> None:
        self._pipe, self._order = pipe, {test: place for place, test in enumerate(chosen)}

    def _tell(self, what: str, text: str, why: str = "") -> None:
        self._pipe.write(json.dumps([what, text, why]).encode() + b"\n")
        self._pipe.flush()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self._order), key=lambda item: self._order[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell("failed", report.nodeid, _last_line(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell("begins", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tell("failed", report.nodeid, _last_line(report))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._tell("ends", str(int(exitstatus)))


def _last_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr).strip()
    return (text.splitlines() or [""])[0 if crash is not None else -1][:200]


@dataclass
class Verdict:
    """What became of a mutant, and which test noticed."""

    verdict: str
    by: str = ""
    why: str = ""


class Trial:
    """One process that runs tests against a mutant, as its parent sees it."""

    def __init__(self, prepare: Callable[[], None], files: Sequence[str], limits: dict[str, float]) -> None:
        """`limits` are the tests to run, in this order, with the seconds that each may take."""
        self._limits, self._rest = limits, b""
        self._at = ""
        self.verdict: Verdict | None = None
        self.deadline = time.monotonic() + 60.0
        """When it is too late: for the imports first, then for each test."""
        self._temporary = tempfile.mkdtemp(prefix="mutant-")
        self.pipe, end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            run_in_child(prepare, files, Told(os.fdopen(end, "wb"), list(limits)), self._temporary)
        os.close(end)

    def read(self) -> None:
        """Take in what the process tells."""
        data = os.read(self.pipe, 1 << 16)
        if not data:
            self._end(Verdict("killed", self._at, "the process ended"))
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            what, text, why = json.loads(line)
            if what == "begins":
                self._at, self.deadline = text, time.monotonic() + self._limits[text]
            elif what == "failed":
                self._end(Verdict("killed", text, why))
            elif self.verdict is None:
                found = Verdict("survived") if text == "0" else Verdict("error", self._at, f"pytest ended with {text}")
                self._end(found)

    def overrun(self) -> None:
        """Give up on a test that takes too long."""
        self._end(Verdict("timed out", self._at or "import"))

    def _end(self, verdict: Verdict) -> None:
        if self.verdict is None:
            self.verdict = verdict

    def close(self) -> None:
        """End the process, and leave nothing of it behind."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # it had no time to become a group's leader
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)
        shutil.rmtree(self._temporary, ignore_errors=True)


def run_in_child(
    prepare: Callable[[], None], files: Sequence[str], plugin: Any, temporary: str, *, stop: bool = True
) -> NoReturn:
    """Run tests in a process that was forked for it, and end it; with the first failure, unless told otherwise."""
    code = 1
    try:
        os.setsid()
        output = os.open(f"{temporary}/output", os.O_CREAT | os.O_WRONLY)
        for number in (1, 2):
            os.dup2(output, number)
        prepare()
        options = [*OPTIONS, "--basetemp", f"{temporary}/tests", *(["-x"] if stop else [])]
        code = pytest.main([*files, *options], plugins=[plugin])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))
