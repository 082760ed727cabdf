"""The core is pure (no network, clock, file or chance of its own), documented, and runs where nothing can be cached."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import silomix.runtime.core as core

CORE = Path(core.__file__).parent
MODULES = sorted(CORE.rglob("*.py"))
IMPURE = {
    *("asyncio", "concurrent", "contextvars", "datetime", "glob", "grpc", "http", "io", "logging", "multiprocessing"),
    *("os", "pathlib", "random", "secrets", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess"),
    *("tempfile", "threading", "time", "urllib", "uuid"),
}

modules = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_core_is_where_we_look() -> None:
    expected = {
        "plan",
        "residue",
        "packing",
        "slices",
        "codec",
        "masks",
        "fold",
        "tamper",
        "digest",
        "errors",
        "kernels",
    }
    assert {path.stem for path in MODULES} >= expected


@modules
def test_a_core_module_imports_nothing_impure(path: Path) -> None:
    names = set(imported(path))
    assert not {name for name in names if name.split(".")[0] in IMPURE}
    assert not {name for name in names if name.startswith("numpy.random")}


@modules
def test_a_core_module_imports_nothing_of_ours_but_the_core(path: Path) -> None:
    ours = {
        name for name in imported(path) if name.split(".")[0] in ("silomix", "runtime", "models", "attacks", "tests")
    }
    assert not {name for name in ours if not name.startswith("silomix.runtime.core.")}


@modules
def test_a_core_module_calls_no_randomness_and_opens_no_file(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "input", "print", "__import__", "exec", "eval"), node.lineno
        if isinstance(node, ast.Attribute) and node.attr == "random":
            assert not (isinstance(node.value, ast.Name) and node.value.id == "np"), node.lineno


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Public names without a docstring: the module, its functions and classes, their methods."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if not ast.get_docstring(tree):
        yield "the module"
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_"):
            members = node.body if isinstance(node, ast.ClassDef) else []
            public = [m for m in members if isinstance(m, kinds) and not m.name.startswith("_")]
            yield from (f"{node.name}: {m.name}" for m in (node, *public) if not ast.get_docstring(m))


@modules
def test_every_public_name_of_the_core_has_a_docstring(path: Path) -> None:
    assert not list(undocumented(ast.parse(path.read_text())))


# The cache of compiled kernels.

ROUND_TRIP = """
import numpy as np
from silomix.runtime.core.numbers import packing

def pack():
    plane = packing.pack(np.arange(100, dtype=np.uint16), 9)
    assert packing._pack.signatures
    return plane

def round_trip():
    assert packing.unpack(pack(), 511, 100).tolist() == list(range(100))
"""


def run(script: str, **environment: str) -> str:
    """Run a script in a process of its own and return what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "PYTHON"))}
    kept["PYTHONPATH"] = str(CORE.parents[2])  # this checkout's packages, wherever others are installed
    command = [sys.executable, "-W", "error", "-c", ROUND_TRIP + script]
    done = subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.full
def test_kernels_start_when_the_cache_directory_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    run("round_trip()", NUMBA_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.full
def test_kernels_start_when_no_directory_at_all_can_be_written(tmp_path: Path) -> None:
    # A copy of the core with a file where its cache would be: not even root can write there.
    copy = tmp_path / "silomix" / "runtime" / "core"
    shutil.copytree(CORE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for package in (CORE.parent, CORE.parents[1]):
        shutil.copy(package / "__init__.py", tmp_path / package.relative_to(CORE.parents[2]))
    (copy / "numbers" / "__pycache__").write_text("no directory")
    nowhere = str(copy / "numbers" / "__pycache__" / "cache")
    printed = run(
        "round_trip(); print(packing.__file__, packing._pack.stats.cache_path)",
        PYTHONPATH=str(tmp_path),
        PYTHONDONTWRITEBYTECODE="1",
        XDG_CACHE_HOME=nowhere,
        HOME=nowhere,
    )
    assert printed == f"{copy / 'numbers' / 'packing.py'} None"
    assert not list(tmp_path.rglob("*.nb?"))


def test_kernels_run_when_the_disk_is_full(tmp_path: Path) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); pack()"
    run(full, NUMBA_CACHE_DIR=str(tmp_path))
    assert not [path for path in tmp_path.rglob("*.nb?") if path.stat().st_size]


def test_a_warm_cache_is_used(tmp_path: Path) -> None:
    count = "pack(); print(sum(packing._pack.stats.cache_hits.values()))"
    assert run(count, NUMBA_CACHE_DIR=str(tmp_path)) == "0"
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}
    assert {path.suffix for path in written} == {".nbi", ".nbc"}
    assert run(count, NUMBA_CACHE_DIR=str(tmp_path)) == "1"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")} == written


@pytest.mark.full
def test_a_warm_cache_is_used_where_it_can_only_be_read(tmp_path: Path) -> None:
    count = "pack(); print(sum(packing._pack.stats.cache_hits.values()))"
    assert run(count, NUMBA_CACHE_DIR=str(tmp_path)) == "0"
    # Numba finds out by making a temporary file; permissions would not stop root.
    read_only = """
import errno, tempfile
def refuse(*_, **__):
    raise OSError(errno.EROFS, "read-only")
tempfile.TemporaryFile = refuse
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", read_only + ROUND_TRIP + count],
        env={**os.environ, "PYTHONPATH": str(CORE.parents[2]), "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "1", done.stderr


@pytest.mark.full
def test_a_torn_cache_is_as_good_as_none(tmp_path: Path) -> None:
    run("pack()", NUMBA_CACHE_DIR=str(tmp_path))
    for index in tmp_path.rglob("*.nbi"):
        index.write_bytes(index.read_bytes()[:20])
    run("round_trip()", NUMBA_CACHE_DIR=str(tmp_path))
