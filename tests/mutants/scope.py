"""Which modules are mutated, and which tests should notice."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
MODULES = (
    "runtime/config/certificates.py",
    "runtime/core/protocol/**/*.py",
    "runtime/core/chain.py",
    "runtime/net/**/*.py",
    "runtime/nodes/**/*.py",
    "runtime/store/**/*.py",
)
"""What decides about the protocol, and what carries it."""
ASIDE = ("runtime/net/edges.py", "runtime/nodes/memory.py", "runtime/store/modelfile.py")
"""No checks of the protocol."""
STAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "runtime/config/": (("tests/config",), ("tests/net", "tests/owners", "tests/nodes")),
    "runtime/core/protocol/check/": (("tests/core/protocol", "tests/attacks/tamper"), ("tests/nodes",)),
    "runtime/core/": (
        ("tests/core/test_chain.py", "tests/core/protocol", "tests/vectors", "tests/net"),
        ("tests/attacks/tamper", "tests/faults", "tests/owners", "tests/config", "tests/nodes"),
    ),
    "runtime/net/": (("tests/net",), ("tests/attacks/tamper", "tests/owners", "tests/nodes")),
    "runtime/nodes/": (("tests/nodes",), ("tests/owners", "tests/faults", "tests/attacks")),
    "runtime/store/": (("tests/store",), ("tests/nodes",)),
}
"""Tests by the modules that they are for: those of a later stage see only what the earlier ones let pass."""


def modules(only: str = "") -> list[str]:
    """The modules, or those of them whose path has a text in it."""
    found = sorted(str(path.relative_to(ROOT)) for pattern in MODULES for path in ROOT.glob(pattern))
    return [name for name in found if not name.endswith("__init__.py") and name not in ASIDE and only in name]


def stages(module: str) -> list[list[str]]:
    """The test files for a module, stage by stage."""
    patterns = next(stages for prefix, stages in STAGES.items() if module.startswith(prefix))
    return [[file for pattern in stage for file in _files(pattern)] for stage in patterns]


def _files(pattern: str) -> list[str]:
    found = (ROOT / pattern).rglob("test_*.py") if (ROOT / pattern).is_dir() else ROOT.glob(pattern)
    return sorted(str(path.relative_to(ROOT)) for path in found)


def import_name(module: str) -> str:
    """The name by which code imports a module."""
    return "silomix." + module.removesuffix(".py").replace("/", ".")


def imported_from(module: str) -> Path:
    """The path by which code imports a module: through the links in .src."""
    return ROOT / ".src" / "silomix" / module
