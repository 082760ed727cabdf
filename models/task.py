"""The plug-in interface: what a silo trains, seen by a runtime that knows only names and arrays.

A federation names its task as 'package.module:factory' with options. The runtime imports it, calls the factory and
checks the result before the first round: a task that is wrong fails when the node starts, not after an hour's training.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.codec import NUMPY_TYPES, Schema
from silomix.runtime.core.errors import UserError

Tensors = Mapping[str, npt.NDArray[Any]]
"""A model: its tensors by the names that the schema gives them."""

Option = str | int | float | bool
"""What a federation file can say about a task: no tables, no lists."""

_TRAIN_EXTRA = {"torch", "sklearn", "opacus"}


class TaskError(UserError):
    """The task cannot be used as configured. The message says what to change, and the node does not start."""


@dataclass(frozen=True)
class Trained:
    """What one round of training gave a silo."""

    tensors: dict[str, npt.NDArray[Any]]
    """The whole model after training; what is sent of it, and how, is the runtime's business."""
    examples: int
    """How many records it was trained on: a weight, which never travels in clear."""
    metrics: dict[str, float]
    """Loss and the like. They help an attacker, so they stay on the silo."""


@runtime_checkable
class Task(Protocol):
    """A model with its data. Calls may come from a worker thread, one at a time."""

    def schema(self) -> Schema:
        """Name the tensors in the order in which they travel: every node must say the same."""
        ...

    def initial(self) -> dict[str, npt.NDArray[Any]]:
        """Return the model before round 1, the same wherever the options are the same."""
        ...

    def train(self, tensors: Tensors, round: int) -> Trained:  # noqa: A002 - the protocol's word for it
        """Train the global model on this silo's records, the same way for the same round: a retry must not differ."""
        ...

    def evaluate(self, tensors: Tensors) -> dict[str, float]:
        """Measure at least "accuracy" and "loss" on held-out records."""
        ...


def load_task(path: str, options: Mapping[str, Option]) -> Task:
    """Import 'package.module:factory', call it with the options, and refuse whatever would fail later."""
    factory = _factory(path)
    _check_options(path, factory, options)
    try:
        task = factory(**options)
    except (TypeError, ValueError) as error:
        raise TaskError(f"task {path} does not accept its options: {error}") from error
    except ImportError as error:
        raise _not_importable(path, error) from error
    for method in ("schema", "initial", "train", "evaluate"):
        if not callable(getattr(task, method, None)):
            raise TaskError(f"task {path} returned {type(task).__name__}, which has no method {method}()")
    assert isinstance(task, Task)
    check_tensors(path, task.schema(), task.initial())
    return task


def check_tensors(path: str, schema: Schema, tensors: Tensors) -> None:
    """Refuse a model that is not the schema's: a wrong shape would otherwise appear as a wrong sum."""
    specs = {spec.name: spec for spec in schema.tensors}
    if len(specs) != len(schema.tensors):
        names = [spec.name for spec in schema.tensors]
        twice = next(name for name in names if names.count(name) > 1)
        raise TaskError(f"task {path}: the schema has the tensor {twice} twice; give every tensor its own name")
    for name in [*specs, *tensors]:
        if name not in tensors:
            raise TaskError(f"task {path}: the schema has the tensor {name}, and initial() does not return it")
        if name not in specs:
            raise TaskError(f"task {path}: initial() returns the tensor {name}, and the schema does not have it")
        found, spec = tensors[name], specs[name]
        if not isinstance(found, np.ndarray):
            raise TaskError(f"task {path}: initial() returns {name} as {type(found).__name__}, not as a numpy array")
        if found.shape != spec.shape:
            raise TaskError(f"task {path}: initial() returns {name} of shape {found.shape}, the schema: {spec.shape}")
        if found.dtype != NUMPY_TYPES[spec.dtype]:
            expected = f"{spec.dtype} ({np.dtype(NUMPY_TYPES[spec.dtype])})"
            raise TaskError(f"task {path}: initial() returns {name} as {found.dtype}, the schema: {expected}")


def _factory(path: str) -> Callable[..., object]:
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute) or module_name.startswith("."):
        raise TaskError(f"task {path!r} is not of the form 'package.module:factory'")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise _not_importable(path, error) from error
    factory = getattr(module, attribute, None)
    if factory is None:
        raise TaskError(f"task {path}: the module {module_name} has no {attribute}; name a function that makes a task")
    if not callable(factory):
        raise TaskError(f"task {path}: {attribute} is a {type(factory).__name__}, not a function that makes a task")
    made: Callable[..., object] = factory
    return made


def _not_importable(path: str, error: ImportError) -> TaskError:
    if not isinstance(error, ModuleNotFoundError):
        return TaskError(f"task {path} cannot be imported: {error}")
    missing = error.name or str(error)
    if missing.partition(".")[0] in _TRAIN_EXTRA:
        return TaskError(f"task {path} needs {missing}, which is not installed: pip install 'silomix[train]'")
    return TaskError(f"task {path}: there is no module {missing}; install its package or correct the task's name")


def _check_options(path: str, factory: Callable[..., object], options: Mapping[str, Option]) -> None:
    parameters = inspect.signature(factory).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    accepted = f"accepted: {', '.join(str(p) for p in named.values()) or 'none'}"
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in options:
            if name not in named:
                near = get_close_matches(name, named, n=1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                raise TaskError(f"task {path} has no option {name}{hint}; {accepted}")
    for name, p in named.items():
        if p.default is p.empty and name not in options:
            raise TaskError(f"task {path} needs the option {name}; {accepted}")
        # A string where a number is expected would otherwise fail in the middle of training.
        if name in options and type(p.default) in (str, int, float, bool) and not _fits(options[name], p.default):
            expected, found = type(p.default).__name__, options[name]
            raise TaskError(f"task {path}: option {name} is {found!r}, which is not of type {expected}; {accepted}")


def _fits(value: Option, default: Option) -> bool:
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(default)
