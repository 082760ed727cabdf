"""Which tests pass which lines, and how long each takes: found once, with no mutant, and kept until something changes.

A mutant is shown only to the tests that pass its line, the fastest first. What a test helper caches, or a fixture makes
for several tests, counts as passed by each test that uses it.
"""

import functools
import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from tests.mutants.scope import BUILD, ROOT
from tests.mutants.source import Mutant
from tests.mutants.trial import end, run_in_child

Lines = set[tuple[str, int]]


@dataclass
class Test:
    """What is known of a test: in which file it is, whether it passes, how long it takes, and which lines it passes."""

    __test__ = False
    file: str
    passed: bool
    seconds: float
    lines: dict[str, set[int]]

    def notices(self, mutant: Mutant) -> bool:
        """Whether it may notice a mutant."""
        passed = self.lines.get(mutant.module, set())
        first, last = mutant.lines
        return bool(passed) if mutant.everywhere else any(line in passed for line in range(first, last + 1))


class Tracer:
    """A plugin of pytest that notes the lines of some modules that each test passes."""

    def __init__(self, modules: Mapping[str, Path], out: Path) -> None:
        self._files = {os.path.realpath(path): module for module, path in modules.items()}
        self._out = out
        self._known: dict[CodeType, str] = {}
        self._now: Lines = set()
        self._shared: dict[object, Lines] = {}
        self._tests: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        """Trace every thread from now on, and see through what test helpers cache."""
        functools.cache = self._cache  # type: ignore[assignment]
        threading.settrace(self._call)
        sys.settrace(self._call)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        module = self._known.get(code)
        if module is None:
            module = self._known[code] = self._files.get(os.path.realpath(code.co_filename), "")
        if not module:
            return None

        def line(frame: FrameType, event: str, argument: object) -> Any:
            self._now.add((module, frame.f_lineno))
            return line

        return line(frame, event, argument)

    @contextmanager
    def _apart(self, key: object) -> Generator[None, None, None]:
        """Note what is passed meanwhile under a key as well."""
        before, self._now = self._now, set()
        try:
            yield
        finally:
            self._shared[key] = self._now
            self._now = before | self._now

    def _cache(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not function.__module__.startswith("tests."):
            return functools.lru_cache(maxsize=None)(function)
        kept: dict[Any, Any] = {}

        @functools.wraps(function)
        def cached(*args: Any, **kwargs: Any) -> Any:
            key = (function, args, tuple(sorted(kwargs.items())))
            if key not in kept:
                with self._apart(key):
                    kept[key] = function(*args, **kwargs)
            self._now |= self._shared[key]
            return kept[key]

        return cached

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        with self._apart(fixturedef):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._now, started = set(), time.monotonic()
        found = self._tests[item.nodeid] = {"passed": True, "seconds": 0.0, "lines": {}}
        result = yield
        for definitions in getattr(item, "_fixtureinfo").name2fixturedefs.values():  # noqa: B009 - mypy knows it not
            self._now |= self._shared.get(definitions[-1], set())
        lines: dict[str, list[int]] = {}
        for module, line in sorted(self._now):
            lines.setdefault(module, []).append(line)
        found |= {"seconds": time.monotonic() - started, "lines": lines}
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tests[report.nodeid]["passed"] = False

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        self._out.write_text(json.dumps(self._tests))


def tests_of(
    files: Iterable[str], modules: Iterable[str], progress: Callable[[str], None], jobs: int
) -> dict[str, Test]:
    """Return all tests of some files; those of files that have changed are traced anew, so many at once."""
    shared = _shared_digest()
    (BUILD / "reach").mkdir(parents=True, exist_ok=True)
    paths = {
        file: BUILD / "reach" / f"{hashlib.sha256(f'{file} {shared}'.encode() + content).hexdigest()[:24]}.json"
        for file, content in ((file, (ROOT / file).read_bytes()) for file in files)
    }
    trace_all({file: path for file, path in paths.items() if not path.exists()}, modules, progress, jobs)
    found: dict[str, Test] = {}
    for file, path in paths.items():
        tests = read(file, path)
        if not tests:
            progress(f"{file} has no test that can be run, and is left out")
        found |= tests
    return found


def trace_all(wanted: Mapping[str, Path], modules: Iterable[str], progress: Callable[[str], None], jobs: int) -> None:
    """Trace several files of tests, so many at once."""
    sources = {module: ROOT / module for module in modules}
    pending, running = list(wanted.items()), dict[int, Tracing]()
    try:
        while pending or running:
            while pending and len(running) < jobs:
                file, path = pending.pop(0)
                progress(f"tracing {file}")
                begun = Tracing(file, sources, path)
                running[begun.pid] = begun
            running.pop(os.wait()[0]).finish()
    finally:
        for one in running.values():
            end(one.pid)


def read(file: str, path: Path) -> dict[str, Test]:
    """Read what was found out about a file of tests."""
    return {
        nodeid: Test(file, test["passed"], test["seconds"], {m: set(lines) for m, lines in test["lines"].items()})
        for nodeid, test in json.loads(path.read_text()).items()
    }


def _shared_digest() -> str:
    """Digest of what all tests share: the code, and the tests' helpers."""
    hasher = hashlib.sha256()
    files = [*(ROOT / "runtime").rglob("*.py"), *(p for p in (ROOT / "tests").rglob("*.py") if p.name[:5] != "test_")]
    for path in sorted(path for path in files if path.parent != Path(__file__).parent):
        hasher.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return hasher.hexdigest()


class Tracing:
    """A process that runs a file's tests with no mutant, and writes down what they pass."""

    def __init__(self, file: str, modules: Mapping[str, Path], out: Path) -> None:
        self._file, self._out = file, out
        self._temporary = tempfile.TemporaryDirectory(prefix="reach-")
        self._written = Path(self._temporary.name, "reach.json")
        tracer = Tracer(modules, self._written)
        self.pid = os.fork()
        if self.pid == 0:
            run_in_child(tracer.start, [file], tracer, self._temporary.name, stop=False)

    def finish(self) -> None:
        """Keep what was written by a process that has ended."""
        with self._temporary:
            if not self._written.exists():
                text = Path(self._temporary.name, "output").read_text()
                raise RuntimeError(f"{self._file} cannot be run:\n{text}")
            os.replace(self._written, self._out)


def trace(file: str, modules: Mapping[str, Path], out: Path) -> None:
    """Run a file's tests with no mutant, and write down what they pass."""
    one = Tracing(file, modules, out)
    try:
        os.waitpid(one.pid, 0)
    except BaseException:
        end(one.pid)
        raise
    one.finish()
