"""What an owner agreed to run: the task's source, found and hashed before a line of it is executed.

The policy may pin the package and version that a task comes from, and a digest of its source. For a package that is
every .py file of it, for a file of one's own that file; for a task that comes with silomix its module, so that another
version of silomix with the same task is the same. A silo refuses to run anything else. What the task imports from other
packages is not covered.
"""

import sys
from dataclasses import dataclass
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from silomix.runtime.core.digest import digest
from silomix.runtime.core.policy import Policy
from silomix.runtime.factory import TaskError

OURS = "silomix"
_MOST_FILES = 10_000


@dataclass(frozen=True)
class Source:
    """Where a task comes from."""

    package: str
    """"name==version", or nothing for a file that no package has, and for what comes with silomix."""
    digest: str
    """Of the source, in hex."""


def source_of(task: str) -> Source:
    """Find a task's source, without running any of it."""
    module = task.partition(":")[0]
    top = module.partition(".")[0]
    specs = _specs(module, task)
    file = Path(specs[-1].origin or "")
    if not file.is_file():
        raise TaskError(f"task {task}: {module} has no source of its own; name a module that is a file")
    if top == OURS:
        return Source("", _hash({module: file}))
    packages = [Path(spec.origin).parent for spec in specs if spec.origin and spec.submodule_search_locations]
    if not packages:
        return Source(_package(top, file), _hash({module: file}))
    files = sorted(path for path in packages[0].rglob("*.py") if path.is_file())
    if len(files) > _MOST_FILES:
        where = f"{packages[0]} has {len(files)} files of source"
        raise TaskError(f"task {task}: {where}; put the task into a package of its own")
    return Source(_package(top, file), _hash({path.relative_to(packages[0]).as_posix(): path for path in files}))


def task_problem(policy: Policy) -> str:
    """Say in what the task that is here is not the one that the policy pins, or nothing."""
    if not policy.task_package and not policy.task_digest:
        return ""
    found = source_of(policy.task)
    if policy.task_package and found.package != policy.task_package:
        return (
            f"task {policy.task} is from {found.package or 'no package'} here, and the owners agreed on "
            f"{policy.task_package}: install that"
        )
    if policy.task_digest and found.digest != policy.task_digest:
        return (
            f"the source of task {policy.task} has the digest {found.digest[:16]} here, and the owners agreed on "
            f"{policy.task_digest[:16]}: install the source that all have, or have the owners agree on this one"
        )
    return ""


def check_task(policy: Policy) -> None:
    """Refuse to run a task that the owners have not agreed on."""
    if problem := task_problem(policy):
        raise TaskError(problem)


def _package(top: str, file: Path) -> str:
    """Name the installed package that a file belongs to; a checkout or a file of one's own has none."""
    if not {"site-packages", "dist-packages"} & set(file.parts):
        return ""
    for name in packages_distributions().get(top, ()):
        try:
            return f"{name}=={version(name)}"
        except PackageNotFoundError:
            continue
    return ""


def _specs(module: str, task: str) -> list[ModuleSpec]:
    """Find a module as Python would, with the packages that it is in, but import nothing, not even those."""
    places: list[str] | None = None
    found: list[ModuleSpec] = []
    parts = module.split(".")
    for i in range(len(parts)):
        spec = _find(".".join(parts[: i + 1]), places)
        if spec is None:
            raise TaskError(f"task {task}: there is no module {module}; install its package or correct the task's name")
        found.append(spec)
        places = list(spec.submodule_search_locations or ())
    return found


def _find(name: str, places: list[str] | None) -> ModuleSpec | None:
    """Find one module: at the top as Python would, below that in the places that its package has."""
    if places is None:
        for finder in sys.meta_path:
            if (spec := finder.find_spec(name, None, None)) is not None:
                return spec
        if sys.flags.safe_path:
            return None
        places = [str(Path.cwd())]  # ./mytask.py needs no installation
    kinds = ((SourceFileLoader, SOURCE_SUFFIXES), (ExtensionFileLoader, EXTENSION_SUFFIXES))
    found = (FileFinder(place, *kinds).find_spec(name) for place in places)
    return next((spec for spec in found if spec is not None), None)


def _hash(files: dict[str, Path]) -> str:
    parts: list[str | bytes] = []
    for name, path in sorted(files.items()):
        parts += [name, path.read_bytes()]
    return digest("task", *parts).hex()
