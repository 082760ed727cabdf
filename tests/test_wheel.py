"""What `pip install` gets: a wheel that has everything in it, and runs in an environment that has nothing else."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACES = {"runtime": "silomix/runtime", "models": "silomix/models", "attacks": "silomix/attacks"}
LEFT_OUT = shutil.ignore_patterns(
    ".*cache*", ".venv", ".git", ".hypothesis", "build", "dist", "*.egg-info", "__pycache__"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built beside it."""
    here = tmp_path_factory.mktemp("wheel")
    source = here / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=LEFT_OUT)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(here), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    [built] = here.glob("*.whl")
    return built


def test_everything_that_a_node_needs_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for top, place in PLACES.items():
        for path in (ROOT / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".nbi", ".nbc"):
                assert f"{place}/{path.relative_to(ROOT / top)}" in names
    protocol = {path.name for path in (ROOT / "proto" / "silomix" / "v1").iterdir() if path.is_file()}
    assert protocol == {Path(name).name for name in names if name.startswith("silomix/v1/")}
    assert any(name.endswith(".pyi") for name in names)
    assert any(name.endswith(".proto") for name in names)
    assert {"silomix/__init__.py", "silomix/__main__.py", "silomix/py.typed"} <= names
    others = {name.partition("/")[0] for name in names} - {"silomix"}
    assert len(others) == 1, "no tests, no documents"
    assert others.pop().endswith(".dist-info")


def test_the_wheel_has_its_licence_and_says_what_it_needs(wheel: Path) -> None:
    inside = zipfile.ZipFile(wheel)
    [metadata] = [name for name in inside.namelist() if name.endswith(".dist-info/METADATA")]
    said = Parser().parsestr(inside.read(metadata).decode())
    assert said["License-Expression"] == "Apache-2.0"
    licence = metadata.replace("METADATA", "licenses/LICENSE")
    assert inside.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert set(said.get_all("Provides-Extra") or []) == {"train", "flower", "traces", "pkcs11", "traps", "fuzz", "dev"}
    needed = [need for need in said.get_all("Requires-Dist") or [] if "extra ==" not in need]
    assert not any(re.search(r"==|<", need) for need in needed), "a library pins nothing: constraints.txt does"
    assert not any(need.startswith(("torch", "flwr")) for need in needed), "a shuffler has neither"


@pytest.mark.full
def test_the_demo_runs_in_an_environment_that_has_the_wheel_and_nothing_else(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=300)
    python = tmp_path / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), f"{wheel}[train]"]
    subprocess.run(install, cwd=tmp_path, check=True, timeout=3600)
    asked = [str(python), "-c", "import silomix; print(silomix.__file__)"]
    where = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(where.stdout.strip()).is_relative_to(tmp_path)
    command = [str(python.parent / "silomix"), "demo", "--silos", "3", "--shufflers", "2", "--rounds", "2", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False)
    found = json.loads(done.stdout)  # the verdict of two rounds may be either: what counts is that all of it ran
    assert (found["rounds"], found["cohort"]) == (2, 3), done.stderr[-3000:]
    assert found["max_abs_error_vs_plain"] < 1e-4
