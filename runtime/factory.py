"""Where a task comes from: 'package.module:factory', imported, with its options checked before it is called.

Everything that can be wrong with a user's module is said with its file and line, and with what to change.
"""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Unpack, get_args, get_origin, get_type_hints

from silomix.runtime.core.errors import UserError

Option = str | int | float | bool
"""What a federation file can say about a task: no tables, no lists."""

_OURS = {__file__, __file__.replace("factory.py", "task.py")}
_TRAIN_EXTRA = {"torch", "sklearn", "opacus", "PIL"}


class TaskError(UserError):
    """The task cannot be used as configured. The message says what to change, and the node does not start."""


def takes(factory: Callable[..., object], option: str) -> bool:
    """Tell whether a factory has an option."""
    try:
        return option in inspect.signature(factory).parameters or option in _handed_on(factory)
    except (TypeError, ValueError):
        return False


def find_factory(path: str) -> Callable[..., object]:
    """Import what 'package.module:factory' names: from where packages are, or else from the working directory."""
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute) or module_name.startswith("."):
        raise TaskError(f"task {path!r} is not of the form 'package.module:factory'")
    try:
        module = _import(module_name)
    except ImportError as error:
        raise not_importable(path, error) from error
    except Exception as error:
        raise TaskError(f"task {path} cannot be imported: {said(error)}{where(error)}") from error
    factory = getattr(module, attribute, None)
    if factory is None:
        raise TaskError(f"task {path}: the module {module_name} has no {attribute}; name a function that makes a task")
    if not callable(factory):
        raise TaskError(f"task {path}: {attribute} is a {type(factory).__name__}, not a function that makes a task")
    made: Callable[..., object] = factory
    return made


def _import(name: str) -> ModuleType:
    """Import a module. One that is in no package is looked for beside the user: ./mytask.py needs no installation.

    The working directory comes last, so that a file there never takes the place of an installed module.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        if error.name != name.partition(".")[0] or here in sys.path or sys.flags.safe_path:
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        return importlib.import_module(name)


def not_importable(path: str, error: ImportError) -> TaskError:
    """Say which module is missing, and what to install."""
    if not isinstance(error, ModuleNotFoundError):
        return TaskError(f"task {path} cannot be imported: {error}")
    missing = error.name or str(error)
    if missing.partition(".")[0] in _TRAIN_EXTRA:
        return TaskError(f"task {path} needs {missing}, which is not installed: pip install 'silomix[train]'")
    return TaskError(f"task {path}: there is no module {missing}; install its package or correct the task's name")


def check_options(path: str, factory: Callable[..., object], options: Mapping[str, Option]) -> None:
    """Refuse options that the factory does not have, or of another type than their defaults."""
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


def file_of(thing: Any) -> str:
    """Name the file that a class or a function is in."""
    try:
        return inspect.getsourcefile(thing) or "?"
    except TypeError:
        return "?"


def said(error: BaseException) -> str:
    """Say an exception in a line."""
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"


def where(error: BaseException) -> str:
    """Name the line that raised: the last one outside of installed packages, which is the user's own."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in _OURS and "<" not in f.filename]
    own = [f for f in frames if not {"site-packages", "dist-packages", "importlib"} & set(Path(f.filename).parts)]
    return f" ({(own or frames)[-1].filename}, line {(own or frames)[-1].lineno})" if frames else ""
