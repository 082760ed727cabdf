"""`import silomix`: what it offers, what it costs, and that every example in its documentation runs."""

import ast
import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest

import silomix

ROOT = Path(__file__).resolve().parents[1]


def alone(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".src")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_importing_silomix_loads_nothing(tmp_path: Path) -> None:
    heavy = "{'torch', 'numba', 'numpy', 'grpc', 'rich', 'google', 'cryptography'} & set(sys.modules)"
    done = alone(f"import sys, silomix; dir(silomix); sys.exit(' '.join({heavy}) or 0)", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_nodes_are_run_without_torch(tmp_path: Path) -> None:
    names = ", ".join(f"silomix.{name}" for name in silomix.__all__ if name not in ("TorchTask", "simulate"))
    done = alone(f"import sys, silomix; {names}; sys.exit('torch' in sys.modules)", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", silomix.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(silomix, name).__doc__
    assert name in dir(silomix)


def test_what_a_type_checker_sees_is_what_is_loaded() -> None:
    """The imports under TYPE_CHECKING, and the table that they are loaded by, name the same things."""
    tree = ast.parse(Path(silomix.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            own = f":{alias.name}" if alias.asname else ""
            seen[alias.asname or alias.name] = f"{statement.module}{own}"
    assert seen == silomix._PLACES
    assert sorted(seen) == silomix.__all__


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'silomix' has no attribute 'trane'"):
        _ = silomix.trane


SLOW = {"LocalFederation", "audit"}
"""Examples that take as long as what they show."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.full) if n in SLOW else n for n in silomix.__all__])
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = doctest.DocTestParser().get_doctest(getattr(silomix, name).__doc__, {}, name, None, None)
    assert examples.examples, f"{name} has no example"
    assert not doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples).failed


def test_python_m_silomix_is_the_command_line(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".src")}
    command = [sys.executable, "-m", "silomix", "plan", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert '"rows"' in done.stdout
