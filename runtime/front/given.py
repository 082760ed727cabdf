"""What may be given as a task: its name, a function that makes it, or the tasks themselves."""

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, runtime_checkable

from silomix.runtime.factory import file_of, find_factory, takes
from silomix.runtime.task import Option, Task, TaskError, Tensors, Trained, check_task, load_task, make_task

DEFAULT_SILOS = 5
UNNAMED = f"{__name__}:unnamed"
"""What a federation file says of tasks that are in no module."""

Given = str | Callable[..., Task] | Task | Sequence[Task]
"""'package.module:factory'; a function that makes the task of the silo whose number it gets; one task, whose records
are dealt out; or one task for each silo."""


@runtime_checkable
class Dealable(Protocol):
    """A task whose records can be dealt out to several silos, as a TorchTask's can."""

    def deal(self, silos: int) -> Sequence[Task]:
        """Return a task for each silo."""
        ...


@dataclass(frozen=True)
class Tasks:
    """The tasks of a federation on this machine."""

    path: str
    """What the federation file says."""
    options: dict[str, Option]
    judge: Task = field(repr=False)
    """Makes the first model, and measures each."""
    silos: tuple[Task, ...] | None = field(repr=False)
    """Of each silo, by number; none if each process makes its own."""


def tasks_of(given: Given, silos: int | None, options: Mapping[str, Option]) -> tuple[Tasks, int]:
    """Make the tasks of a federation of so many silos, and return how many there are."""
    if isinstance(given, str):
        count = silos or DEFAULT_SILOS
        factory = find_factory(given)
        own = _options(given, factory, count, options)
        return Tasks(given, own, load_task(given, own), None), count
    if isinstance(given, Sequence):
        if silos not in (None, len(given)):
            raise TaskError(f"{len(given)} tasks for {silos} silos: give one for each silo")
        first, *others = [check_task(f"{i} of the list", task) for i, task in enumerate(given)]
        shared = OneAtATime(first)  # the first silo's task also measures: both are in this process
        return Tasks(UNNAMED, {}, shared, (shared, *others)), len(given)
    count = silos or DEFAULT_SILOS
    if isinstance(given, Task) and not isinstance(given, type):  # a class with the methods is a function that makes one
        check_task(type(given).__name__, given)
        if not isinstance(given, Dealable):
            raise TaskError(
                f"{type(given).__name__} is one task, and {count} silos need one each, with their own records: give a "
                "list of tasks, or a function task(silo) that makes them"
            )
        return Tasks(UNNAMED, {}, given, tuple(given.deal(count))), count
    if not callable(given):
        raise TaskError(
            f"a task is given as {type(given).__name__}: give 'package.module:factory', a function task(silo), a "
            "TorchTask, or a list with one task for each silo"
        )
    return _from_function(given, count, options), count


def _options(path: str, factory: Callable[..., object], silos: int, options: Mapping[str, Option]) -> dict[str, Option]:
    if not takes(factory, "silo"):
        raise TaskError(
            f"task {path} has no option silo, so all silos would train on the same records: let it take its silo's "
            f"number, as in `def task(silo=-1)`, and -1 for whoever only evaluates (in {file_of(factory)})"
        )
    return {**({"silos": silos} if takes(factory, "silos") else {}), **options}


def _from_function(factory: Callable[..., Task], silos: int, options: Mapping[str, Option]) -> Tasks:
    path = f"{factory.__module__}:{factory.__qualname__}"
    name = path if "<" not in path and "." not in factory.__qualname__ and factory.__module__ != "__main__" else UNNAMED
    own = _options(path, factory, silos, options)
    needed = inspect.signature(factory).parameters.get("silo")
    nobody: dict[str, Option] = {"silo": 0} if needed is not None and needed.default is needed.empty else {}
    judge = make_task(path, factory, {**own, **nobody})
    return Tasks(name, own, judge, tuple(make_task(path, factory, {**own, "silo": silo}) for silo in range(silos)))


class OneAtATime:
    """A task that two nodes share: a task does one thing at a time."""

    def __init__(self, task: Task) -> None:
        """Share a task."""
        self.task = task
        self._lock = threading.Lock()

    @property  # type: ignore[misc] # nobody sets it
    def __class__(self) -> Any:
        """What it passes for, so that messages name the user's own class."""
        return self.task.__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def schema(self) -> Any:
        """Name the tensors."""
        return self.task.schema()

    def initial(self) -> Any:
        """Return the model before round 1."""
        return self.task.initial()

    def train(self, tensors: Tensors, round: int) -> Trained:  # noqa: A002 - the protocol's word for it
        """Train, when nobody evaluates."""
        with self._lock:
            return self.task.train(tensors, round)

    def evaluate(self, tensors: Tensors) -> dict[str, float]:
        """Measure, when nobody trains."""
        with self._lock:
            return self.task.evaluate(tensors)


def unnamed(**_: Option) -> NoReturn:
    """Stand in a federation file for tasks that were given as objects."""
    raise TaskError(
        "the tasks of this federation were objects of a Python program, and no file says how to make them: "
        "give 'package.module:factory' to have that"
    )
