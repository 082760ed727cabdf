"""Drivers tell a machine what happened, and change nothing of it: all that changes a state is in its own file."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import silomix.runtime.nodes
from silomix.attacks import collusion

DRIVERS = [*sorted(Path(silomix.runtime.nodes.__file__).parent.glob("*.py")), Path(collusion.__file__)]
MACHINES = {"core", "machine", "_machine"}
"""The names under which a driver holds its machine."""
ALLOWED = {"allows", "step", "wake_at", "recall", "sealing", "missing"}
"""What a driver may call of a machine: `recall` on start-up; `sealing` for a header and `missing` for a log line, which
change nothing."""
CHANGING = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove",
    "setdefault", "update", "wipe",
}  # fmt: skip


def _of_machine(node: ast.expr, aliases: frozenset[str] = frozenset()) -> str | None:
    """The path behind `self.core`, `node.machine` and the like, if this expression leads through a machine."""
    path: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            if node.attr in MACHINES and isinstance(node.value, ast.Name | ast.Attribute):
                return ".".join(reversed(path))
            path.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript | ast.Starred):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Name) and node.id in aliases and path:
            return ".".join((node.id, *reversed(path)))
        else:
            return None


def _aliases(function: ast.AST) -> frozenset[str]:
    """Names that stand for a part of a machine: `attempt = self.core.attempt`."""
    found = set()
    for node in ast.walk(function):
        match node:
            case ast.Assign([ast.Name(name)], ast.Attribute() | ast.Subscript() as value) if _of_machine(value):
                found.add(name)
    return frozenset(found)


def _targets(statement: ast.AST) -> Iterator[ast.expr]:
    match statement:
        case ast.Assign(targets) | ast.Delete(targets):
            todo = list(targets)
        case ast.AugAssign(target) | ast.AnnAssign(target) | ast.For(target) | ast.AsyncFor(target):
            todo = [target]
        case ast.NamedExpr(target):
            todo = [target]
        case ast.withitem(optional_vars=ast.expr() as target):
            todo = [target]
        case _:
            return
    while todo:
        target = todo.pop()
        if isinstance(target, ast.Tuple | ast.List):
            todo += target.elts
        else:
            yield target


def edits(source: str) -> list[str]:
    """Every place at which a driver changes its machine."""
    tree, found = ast.parse(source), set()
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module)]
    for function in functions:
        aliases = frozenset() if isinstance(function, ast.Module) else _aliases(function)
        for node in ast.walk(function):
            # An empty path is the machine itself, which a driver makes.
            found |= {ast.unparse(target) for target in _targets(node) if _of_machine(target, aliases)}
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute):
                path = _of_machine(node.func, aliases)
                if path and (node.func.attr in CHANGING or ("." not in path and path not in ALLOWED)):
                    found.add(ast.unparse(node.func))
            elif isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
                found.add(ast.unparse(node))
    return sorted(found)


def test_the_drivers_are_where_we_look() -> None:
    assert {"node.py", "silo.py", "shuffler.py", "aggregator.py", "collusion.py"} <= {path.name for path in DRIVERS}


@pytest.mark.parametrize("path", DRIVERS, ids=lambda path: path.name)
def test_no_driver_changes_its_machine(path: Path) -> None:
    assert edits(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "self.core.attempt = None",
        "self.passage = self.core.attempt = None",
        "node.core.state, x = y",
        "self.machine.round += 1",
        "self.core.keys[1, 2] = {}",
        "self.core.attempt.closed = True",
        "del self.core.keys[1]",
        "del self.node.core.attempt",
        "self.core.attempt.headers.pop(digest)",
        "self.core.released.clear()",
        "self.machine.attempt.counted.update(x)",
        "self.core.unfit.setdefault(silo, 3)",
        "self.core.keys[1].pop(silo).wipe()",
        "for self.core.round in range(3): pass",
        "self.core._give_up(fault)",
        "self.machine._release(cohort)",
        "setattr(self.core, 'state', 3)",
        "def f(self):\n    attempt = self.core.attempt\n    attempt.closed = True",
        "def f(self):\n    attempt = self.core.attempt\n    attempt.headers.pop(digest)",
    ],
)
def test_a_change_is_found_out(line: str) -> None:
    assert edits(line)


@pytest.mark.parametrize(
    "line",
    [
        "self.core = self.machine = core.Silo(f, i)",
        "self.core.recall(fact)",
        "effects = self.machine.step(event)",
        "wake = self.machine.wake_at()",
        "x = self.core.attempt.headers",
        "known = self.core.hop_released.get(hop, 0)",
        "self.trouble = dict(self.core.trouble)",
        "sealing = self.core.sealing(manifest, os.urandom)",
        "self.passage.headers.append(header)",
        "def f(self):\n    attempt = self.core.attempt\n    return attempt.manifest.digest",
        "def f(self):\n    attempt = self.core.attempt\n    attempt = None",
    ],
)
def test_looking_is_no_change(line: str) -> None:
    assert not edits(line)
