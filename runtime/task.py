"""The plug-in interface: what a silo trains, seen by a runtime that knows only names and arrays.

A federation names its task as 'package.module:factory' with options. The runtime imports it, calls the factory and
checks the result before the first round: a task that is wrong fails when the node starts, not after an hour's training.
"""

import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, Unpack, get_args, get_origin, get_type_hints, runtime_checkable

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.errors import Fault, UserError
from silomix.runtime.core.numbers.codec import NUMPY_TYPES, Schema, as_float

Tensors = Mapping[str, npt.NDArray[Any]]
"""A model: its tensors by the names that the schema gives them."""

Option = str | int | float | bool
"""What a federation file can say about a task: no tables, no lists."""

_TRAIN_EXTRA = {"torch", "sklearn", "opacus", "PIL"}
_METHODS = {"schema": 0, "initial": 0, "train": 2, "evaluate": 1}


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
        raise TaskError(f"task {path} does not accept its options: {error}{_where(error)}") from error
    except ImportError as error:
        raise _not_importable(path, error) from error
    except UserError as error:
        raise TaskError(f"task {path}: {error}") from error
    except Exception as error:
        raise TaskError(f"task {path} cannot be made: {_said(error)}{_where(error)}") from error
    home = f" (made by {path}, in {_file(factory)})"
    for method, arguments in _METHODS.items():
        _check_method(path, task, method, arguments, home)
    assert isinstance(task, Task)
    try:
        schema, first = task.schema(), task.initial()
    except UserError as error:
        raise TaskError(f"task {path}: {error}") from error
    except Exception as error:
        raise TaskError(f"task {path} cannot show its model: {_said(error)}{_where(error)}") from error
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


def takes(path: str, option: str) -> bool:
    """Tell whether a task's factory names an option: what it does not name is left out, and not guessed at."""
    factory = _factory(path)
    try:
        return option in inspect.signature(factory).parameters or option in _handed_on(factory)
    except (TypeError, ValueError):
        return False


def train_task(task: Task, tensors: Tensors, round: int) -> Trained:  # noqa: A002 - the protocol's word for it
    """Train, and make whatever goes wrong a TaskError that says where: a task is its user's code, and may do anything.

    A silo that gets one stays out of the round; the round goes on without it. NaN is the codec's to find.
    """
    name = type(task).__name__
    try:
        trained = task.train(tensors, round)
    except (UserError, Fault):
        raise
    except Exception as error:
        raise TaskError(f"{name}.train failed in round {round}: {_said(error)}{_where(error)}") from error
    at = f" ({name}.train in {_file(type(task))})"
    if not isinstance(trained, Trained):
        raise TaskError(f"train() returned {type(trained).__name__}; return silomix.runtime.task.Trained{at}")
    if not isinstance(trained.tensors, Mapping):
        raise TaskError(f"train() returned tensors as {type(trained.tensors).__name__}; return a dict by name{at}")
    if type(trained.examples) is not int or trained.examples < 0:
        raise TaskError(f"train() returned examples = {trained.examples!r}; return how many records it trained on{at}")
    if problem := _problem("train()", task.schema(), trained.tensors):
        raise TaskError(f"{problem}{at}")
    return trained


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


def _file(thing: Any) -> str:
    try:
        return inspect.getsourcefile(thing) or "?"
    except TypeError:
        return "?"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"


def _where(error: BaseException) -> str:
    """Name the line that raised: the last one outside of installed packages, which is the user's own."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__ and "<" not in f.filename]
    own = [f for f in frames if not {"site-packages", "dist-packages", "importlib"} & set(Path(f.filename).parts)]
    return f" ({(own or frames)[-1].filename}, line {(own or frames)[-1].lineno})" if frames else ""


def _factory(path: str) -> Callable[..., object]:
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute) or module_name.startswith("."):
        raise TaskError(f"task {path!r} is not of the form 'package.module:factory'")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise _not_importable(path, error) from error
    except Exception as error:
        raise TaskError(f"task {path} cannot be imported: {_said(error)}{_where(error)}") from error
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
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        raise TaskError(f"task {path} does not say which options it takes; name a function that makes a task") from None
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    types = {name: type(p.default) for name, p in named.items() if type(p.default) in (str, int, float, bool)}
    shown = [str(p) for p in named.values()]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if handed_on := _handed_on(factory):  # **training: Unpack[Training]
        types |= handed_on
        shown += [f"{name}: {kind.__name__}" for name, kind in handed_on.items()]
        anything = False
    accepted = f"accepted: {', '.join(shown) or 'none'}"
    for name, value in options.items():
        if name not in named and name not in types and not anything:
            near = get_close_matches(name, [*named, *types], n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise TaskError(f"task {path} has no option {name}{hint}; {accepted}")
        # A string where a number is expected would otherwise fail in the middle of training.
        if name in types and not _fits(value, types[name]):
            raise TaskError(
                f"task {path}: option {name} is {value!r}, which is not of type {types[name].__name__}; {accepted}"
            )
    for name, p in named.items():
        if p.default is p.empty and name not in options:
            raise TaskError(f"task {path} needs the option {name}; {accepted}")


def _handed_on(factory: Callable[..., object]) -> dict[str, type]:
    """Return the options that a factory takes as `**options: Unpack[...]` of a TypedDict, with their types."""
    try:
        for hint in get_type_hints(factory).values():
            if get_origin(hint) is Unpack:
                return get_type_hints(get_args(hint)[0])
    except (NameError, TypeError):  # hints that cannot be looked up say nothing
        pass
    return {}


def _fits(value: Option, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind
