"""The rooms of docs/architecture.md: who may import whom, and how large a folder may get."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import silomix

SRC = Path(silomix.__file__).parent
ROOT = SRC.parents[1]

# A room is a folder with all below it, or a file; the longest name that fits a module is its room. A room may import
# itself, what is named beside it, and what those may import.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    # the core: pure
    "runtime.core.errors": (),
    "runtime.core.digest": (),
    "runtime.core.values": (),
    "runtime.core.chain": (),
    "runtime.core.pace": (),
    "runtime.core.numbers": ("runtime.core.errors", "runtime.core.digest", "runtime.core.chain"),
    "runtime.core.policy": ("runtime.core.numbers", "runtime.core.values"),
    "runtime.core.learning": ("runtime.core.policy",),
    "runtime.core.protocol": ("runtime.core.learning", "runtime.core.pace"),
    "v1": (),
    "runtime.terminal": (),
    # what a node is made of
    "runtime.store": ("runtime.core.protocol",),
    "runtime.config": ("runtime.store",),
    "runtime.net": ("runtime.config", "v1"),
    "runtime.observe": ("runtime.net",),
    "runtime.capture": ("runtime.observe",),
    "runtime.factory": ("runtime.core.errors",),
    "runtime.task": ("runtime.factory", "runtime.core.numbers"),
    "runtime.consent": ("runtime.factory", "runtime.core.policy"),
    "runtime.nodes": ("runtime.capture", "runtime.task", "runtime.consent"),
    "runtime.local": ("runtime.nodes",),
    "runtime.results": ("runtime.nodes",),
    "runtime.outside": ("runtime.local",),
    "runtime.flower": ("runtime.outside",),
    # what is trained, and what attacks it
    "models.data": ("runtime.task",),
    "models.training": ("runtime.task",),
    "models": ("models.data", "models.training", "runtime.results"),
    "models.simulation": ("models",),
    "attacks.errors": ("runtime.core.errors",),
    "attacks.views": ("attacks.errors", "runtime.nodes"),
    "attacks": ("attacks.views", "runtime.local"),
    "attacks.tamper": ("runtime.local",),
    "attacks.active": ("runtime.local",),
    "attacks.audit": ("attacks", "attacks.active", "models.simulation"),
    "attacks.paper": ("attacks.audit",),
    # what stands beside, and the doors
    "runtime.render": ("runtime.observe", "runtime.terminal"),
    "runtime.dashboard": ("runtime.core.errors", "runtime.terminal"),
    "runtime.bench": ("runtime.local", "runtime.terminal"),
    "runtime.faults": ("runtime.local",),
    "runtime.checkup": ("runtime.bench",),
    "runtime.front": ("runtime.bench", "attacks.audit"),
    "runtime.cli": (
        "runtime.front",
        "runtime.checkup",
        "runtime.faults",
        "runtime.render",
        "runtime.dashboard",
        "attacks.active",
        "attacks.paper",
        "attacks.tamper",
    ),
}
PACKAGES = {"runtime", "runtime.core"}
"""Packages that hold rooms, and no code of their own."""
MOST_MODULES = 15
"""In a folder, `__init__` aside: with more of them a newcomer finds nothing."""


def modules() -> dict[str, Path]:
    """Every module of ours by its name."""
    found = {}
    for top in ("runtime", "models", "attacks"):
        for path in sorted((SRC / top).rglob("*.py")):
            parts = path.relative_to(SRC).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def room(name: str) -> str:
    """The room of a module, which is named without the package."""
    fits = [one for one in MAY_IMPORT if f"{name}.".startswith(f"{one}.")]
    assert fits, f"{name} is in no room: give it one in {Path(__file__).name} and in docs/architecture.md"
    return max(fits, key=len)


def allowed(name: str) -> set[str]:
    """What a room may import, and what those may."""
    found, todo = {name}, [*MAY_IMPORT[name]]
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += MAY_IMPORT[one]
    return found


def imports(text: str) -> Iterator[tuple[int, str]]:
    """Every module of ours that a file imports, wherever in it, with the line; without the package's name."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        prefix = ""
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: imports are absolute"
            prefix = f"{node.module}."
        for name in (f"{prefix}{alias.name}" for alias in node.names):
            if name.split(".")[0] == "silomix":
                yield node.lineno, name.removeprefix("silomix").removeprefix(".")


def wrong(name: str, text: str) -> list[str]:
    """The imports of a module that go the wrong way."""
    may = allowed(room(name))
    return [
        f"line {line}: {room(name)} may not import {room(target)} ({target})"
        for line, target in imports(text)
        if target not in PACKAGES and (not target or room(target) not in may)
    ]


@pytest.mark.parametrize("name", sorted(set(MODULES) - PACKAGES))
def test_a_module_imports_only_what_its_room_may(name: str) -> None:
    assert not wrong(name, MODULES[name].read_text())


def test_an_import_in_the_wrong_direction_is_found() -> None:
    for name, line in {
        "runtime.core.numbers.plan": "from silomix.runtime.core.policy import Policy",
        "runtime.core.learning.noise": "import silomix.runtime.core.protocol.rules",
        "runtime.store.journal": "from silomix.runtime.config import load",
        "runtime.net.wire": "def late():\n    from silomix.runtime.nodes.node import Node",
        "runtime.capture.reader": "from silomix.runtime.nodes import rows",
        "runtime.nodes.silo": "from silomix.models.torch_task import TorchTask",
        "runtime.task": "from silomix.runtime.local import create",
        "models.torch_task": "from silomix.attacks.sia import losses",
        "attacks.views.view": "from silomix.attacks import remap",
        "attacks.sia": "from silomix.attacks.audit.attack import Attack",
        "attacks.audit.page": "from silomix.runtime.cli.exits import Exit",
    }.items():
        assert name in MODULES
        assert len(wrong(name, line)) == 1, name


def test_no_two_rooms_may_import_each_other() -> None:
    for name in MAY_IMPORT:
        assert not {other for other in allowed(name) - {name} if name in allowed(other)}, name


def test_every_room_exists() -> None:
    for name in MAY_IMPORT:
        path = SRC / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), name


def test_no_folder_has_more_modules_than_one_can_take_in() -> None:
    folders = {path.parent for path in MODULES.values()}
    sizes = {folder: len([p for p in folder.glob("*.py") if not p.stem.startswith("__")]) for folder in folders}
    assert not {folder: size for folder, size in sizes.items() if size > MOST_MODULES}


def test_the_page_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("## The rooms")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    for name in MAY_IMPORT:
        assert any(f"`{name.replace('.', '/')}`" in row.split("|")[1] for row in rows), name


def test_there_is_one_console() -> None:
    """Elsewhere a pipe would fold lines, or a peer's message pass for markup."""
    for name, path in MODULES.items():
        if name != "runtime.terminal":
            assert "Console(" not in path.read_text().replace("_Console(", ""), name
