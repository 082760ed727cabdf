"""The plug-in interface: what a silo trains, seen by a runtime that knows only names and arrays.

A federation names its task as 'package.module:factory' with options. The runtime imports it, calls the factory and
checks the result before the first round: a task that is wrong fails when the node starts, not after an hour's training.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.errors import Fault, UserError
from silomix.runtime.core.numbers.schema import NUMPY_TYPES, Schema, TensorSpec, as_float
from silomix.runtime.factory import (
    Option,
    TaskError,
    check_options,
    file_of,
    find_factory,
    not_importable,
    said,
    where,
)

__all__ = [
    "Option",
    "Task",
    "TaskError",
    "Tensors",
    "Trained",
    "check_task",
    "check_tensors",
    "difference",
    "evaluate_task",
    "load_task",
    "make_task",
    "train_task",
]

Tensors = Mapping[str, npt.NDArray[Any]]
"""A model: its tensors by the names that the schema gives them."""

_METHODS = {"schema": 0, "initial": 0, "train": 2, "evaluate": 1}


@dataclass(frozen=True)
class Trained:
    """What one round of training gave a silo.

    >>> import numpy as np, silomix
    >>> silomix.Trained({"mean": np.zeros(1, np.float32)}, examples=40, metrics={"loss": 0.5}).examples
    40
    """

    tensors: dict[str, npt.NDArray[Any]]
    """The whole model after training; what is sent of it, and how, is the runtime's business."""
    examples: int
    """How many records it was trained on: a weight, which never travels in clear."""
    metrics: dict[str, float]
    """Loss and the like. They help an attacker, so they stay on the silo."""


@runtime_checkable
class Task(Protocol):
    """A model with its data. Calls may come from a worker thread, one at a time.

    >>> import numpy as np, silomix
    >>> class Mean:  # learns the mean of each silo's numbers
    ...     def __init__(self, numbers):
    ...         self.numbers = np.array(numbers, np.float32)
    ...     def schema(self):
    ...         return silomix.Schema((silomix.TensorSpec("mean", (1,)),))
    ...     def initial(self):
    ...         return {"mean": np.zeros(1, np.float32)}
    ...     def train(self, tensors, round):
    ...         return silomix.Trained({"mean": self.numbers.mean(keepdims=True)}, len(self.numbers), {})
    ...     def evaluate(self, tensors):
    ...         return {"accuracy": 0.0, "loss": 0.0}
    >>> done = silomix.run([Mean([0.1, 0.3]), Mean([0.3, 0.5]), Mean([0.9])], rounds=1)
    >>> round(float(done.model["mean"][0]), 3)
    0.5
    """

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
    return make_task(path, find_factory(path), options)


def make_task(path: str, factory: Callable[..., object], options: Mapping[str, Option]) -> Task:
    """Call a factory with the options, and refuse whatever would fail later; `path` is what messages call it."""
    check_options(path, factory, options)
    try:
        task = factory(**options)
    except (TypeError, ValueError) as error:
        raise TaskError(f"task {path} does not accept its options: {error}{where(error)}") from error
    except ImportError as error:
        raise not_importable(path, error) from error
    except UserError as error:
        raise TaskError(f"task {path}: {error}") from error
    except Exception as error:
        raise TaskError(f"task {path} cannot be made: {said(error)}{where(error)}") from error
    return check_task(path, task, f" (made by {path}, in {file_of(factory)})")


def check_task(path: str, task: object, home: str = "") -> Task:
    """Return a task, or refuse what is none, or has a first model that is not its own schema's."""
    for method, arguments in _METHODS.items():
        _check_method(path, task, method, arguments, home)
    assert isinstance(task, Task)
    try:
        schema, first = task.schema(), task.initial()
    except UserError as error:
        raise TaskError(f"task {path}: {error}") from error
    except Exception as error:
        raise TaskError(f"task {path} cannot show its model: {said(error)}{where(error)}") from error
    if not isinstance(schema, Schema):
        found = type(schema).__name__
        raise TaskError(
            f"task {path}: schema() returns {found}; return a silomix.runtime.core.numbers.codec.Schema{home}"
        )
    if not isinstance(first, Mapping):
        found = type(first).__name__
        raise TaskError(f"task {path}: initial() returns {found}; return a dict of numpy arrays by name{home}")
    check_tensors(path, schema, first)
    return task


def train_task(task: Task, tensors: Tensors, round: int) -> Trained:  # noqa: A002 - the protocol's word for it
    """Train, and make whatever goes wrong a TaskError that says where: a task is its user's code, and may do anything.

    A silo that gets one stays out of the round; the round goes on without it. NaN is the codec's to find.
    """
    name = task.__class__.__name__
    try:
        trained = task.train(tensors, round)
    except (UserError, Fault):
        raise
    except Exception as error:
        raise TaskError(f"{name}.train failed in round {round}: {said(error)}{where(error)}") from error
    at = f" ({name}.train in {file_of(task.__class__)})"
    if not isinstance(trained, Trained):
        raise TaskError(f"train() returned {type(trained).__name__}; return silomix.runtime.task.Trained{at}")
    if not isinstance(trained.tensors, Mapping):
        raise TaskError(f"train() returned tensors as {type(trained.tensors).__name__}; return a dict by name{at}")
    if type(trained.examples) is not int or trained.examples < 0:
        raise TaskError(f"train() returned examples = {trained.examples!r}; return how many records it trained on{at}")
    if problem := _problem("train()", task.schema(), trained.tensors):
        raise TaskError(f"{problem}{at}")
    return trained


def evaluate_task(task: Task, tensors: Tensors) -> dict[str, float]:
    """Measure a model, and make whatever goes wrong a TaskError that says where."""
    name = task.__class__.__name__
    try:
        scores = task.evaluate(tensors)
    except (UserError, Fault):
        raise
    except Exception as error:
        raise TaskError(f"{name}.evaluate failed: {said(error)}{where(error)}") from error
    at = f" ({name}.evaluate in {file_of(task.__class__)})"
    if not isinstance(scores, Mapping) or "accuracy" not in scores:
        found = sorted(map(str, scores)) if isinstance(scores, Mapping) else type(scores).__name__
        raise TaskError(
            f'evaluate() returned {found}; return a dict with "accuracy", or whatever is better the larger it is, '
            f'under that name, and "loss"{at}'
        )
    try:
        return {str(key): float(value) for key, value in scores.items()}
    except (TypeError, ValueError) as error:
        raise TaskError(f"evaluate() returned something that is no number: {error}{at}") from None


def difference(ours: Schema, theirs: Schema) -> str:
    """Say in what two schemas differ, by the first tensor that does; nothing if they are the same."""
    for i, (one, other) in enumerate(zip_longest(ours.tensors, theirs.tensors)):
        if one is None:
            return f"{other.name} of shape {other.shape} is one tensor more than this task has"
        if other is None:
            return f"this task's {one.name} of shape {one.shape} is not in it"
        if one.name != other.name:
            return f"tensor {i} is {other.name}, and this task's is {one.name}"
        if one.shape != other.shape:
            return f"{one.name} has the shape {other.shape}, and this task's has {one.shape}"
        if one != other:
            return f"{one.name} is {_kind(other)}, and this task's is {_kind(one)}"
    return ""


def _kind(spec: TensorSpec) -> str:
    return f"{'a buffer' if spec.buffer else 'a parameter'} of type {spec.dtype}"


def check_tensors(path: str, schema: Schema, tensors: Tensors) -> None:
    """Refuse a model that is not the schema's: a wrong shape would otherwise appear as a wrong sum."""
    names = [spec.name for spec in schema.tensors]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TaskError(f"task {path}: the schema has the tensor {twice} twice; give every tensor its own name")
    if problem := _problem("initial()", schema, tensors):
        raise TaskError(f"task {path}: {problem}")
    for spec in schema.tensors:
        if not np.isfinite(as_float(tensors[spec.name], spec.dtype)).all():
            raise TaskError(
                f"task {path}: initial() returns {spec.name} with NaN or infinity in it; begin with numbers"
            )


def _problem(who: str, schema: Schema, tensors: Tensors) -> str:
    """Say in what a model is not the schema's, or nothing."""
    specs = {spec.name: spec for spec in schema.tensors}
    for name in [*specs, *tensors]:
        if name not in tensors:
            return f"the schema has the tensor {name}, and {who} does not return it"
        if name not in specs:
            return f"{who} returns the tensor {name}, and the schema does not have it"
        found, spec = tensors[name], specs[name]
        if not isinstance(found, np.ndarray):
            return f"{who} returns {name} as {type(found).__name__}, not as a numpy array"
        if found.shape != spec.shape:
            return f"{who} returns {name} of shape {found.shape}, the schema: {spec.shape}"
        if found.dtype != NUMPY_TYPES[spec.dtype]:
            expected = f"{spec.dtype} ({np.dtype(NUMPY_TYPES[spec.dtype])})"
            return f"{who} returns {name} as {found.dtype}, the schema: {expected}"
    return ""


def _check_method(path: str, task: object, method: str, arguments: int, home: str) -> None:
    bound = getattr(task, method, None)
    if not callable(bound):
        raise TaskError(f"task {path} returned {type(task).__name__}, which has no method {method}(){home}")
    try:
        inspect.signature(bound).bind(*range(arguments))
    except TypeError:
        wanted = {0: "nothing", 1: "(tensors)", 2: "(tensors, round)"}[arguments]
        raise TaskError(
            f"task {path}: {type(task).__name__}.{method}{inspect.signature(bound)} must take {wanted}{home}"
        ) from None
    except ValueError:  # a builtin without a signature
        return
