"""Logs with fields: for a person one line with key=value at its end, for a collector one JSON object per line.

What is logged may be read by many, so a value is shown only if its type is known to be harmless. Bytes and arrays
appear as their sizes, secrets and everything else as the name of their type. A peer's text cannot break a line.
"""

import json
import logging
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TextIO

from google.protobuf.message import Message

from silomix.runtime.core.errors import Fault, LocalFault
from silomix.runtime.core.values import printable

STYLES = ("console", "json")
"""Whom a log is for: a person at a terminal, or a collector."""

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
"""What a field becomes before it is written."""

HERE = "local"
"""Whose log it is when no node speaks, but the program that runs them all."""
_elsewhere: list[TextIO] = []
"""Where logs go in place of standard error, while `redirected`: the last one. Any of them may end first."""
_ROOT = "silomix"
_FIELDS = "silomix_fields"
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", _FIELDS}


def setup(style: str, node: str, level: int | str = "INFO", stream: TextIO | None = None) -> None:
    """Send all logs of this process to stderr in the given style. A later call replaces an earlier one.

    Other libraries log through the same handler, but only from WARNING on.
    """
    if style not in STYLES:
        raise ValueError(f"the style of a log is one of {', '.join(STYLES)}, not {style!r}")
    handler = _Handler(stream or (_elsewhere[-1] if _elsewhere else sys.stderr))
    handler.setFormatter((_Json if style == "json" else _Console)(node))
    root = logging.getLogger()
    _let_go(root)
    root.addHandler(handler)
    logging.getLogger(_ROOT).setLevel(level.upper() if isinstance(level, str) else level)


def _let_go(root: logging.Logger) -> None:
    for old in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(old)
        old.close()


@contextmanager
def redirected(stream: TextIO) -> Iterator[None]:
    """Send the logs of the nodes in this process to a stream, and afterwards to whoever else redirects them, if any."""
    _elsewhere.append(stream)
    try:
        setup("console", HERE)
        yield
    finally:
        _elsewhere.remove(stream)
        if _elsewhere:
            setup("console", HERE)
        else:
            _let_go(logging.getLogger())


class Log:
    """A node's log with fields that stay: bind the round once, and every line below it says which round.

    Fields are keyword arguments and may have any name; stdlib's `extra` would collide with a record's own attributes.
    """

    def __init__(self, node: str, **fields: object) -> None:
        """The node is a field too, so that several nodes can log in one process."""
        self._logger = logging.getLogger(_ROOT)
        self._fields: dict[str, object] = {"node": node, **fields}

    def bind(self, **fields: object) -> "Log":
        """Return a log that also has these fields."""
        log = Log.__new__(Log)
        log._logger = self._logger
        log._fields = {**self._fields, **fields}
        return log

    def info(self, message: str, /, **fields: object) -> None:
        """Say what an operator wants to see on a good day."""
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """Say what went wrong and was dealt with."""
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        """Say what somebody has to mend."""
        self._log(logging.ERROR, message, fields)

    def exception(self, message: str, /, **fields: object) -> None:
        """Say what somebody has to mend, with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, message, fields, traceback=True)

    def fault(self, message: str, fault: Fault, /, **fields: object) -> None:
        """Log a refusal with its reason and details: an error if it is ours to mend, else a warning.

        A detail never hides a field: whom a fault is about and who sent it may be two.
        """
        known = {**self._fields, **fields, "reason": fault.reason}
        details = {f"fault_{key}" if key in known else key: value for key, value in fault.details.items()}
        level = logging.ERROR if isinstance(fault, LocalFault) else logging.WARNING
        self._log(level, f"{message}: {fault.message}", {**fields, "reason": fault.reason, **details})

    def _log(self, level: int, message: str, fields: Mapping[str, object], traceback: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            extra = {_FIELDS: {**self._fields, **fields}}
            # No arguments are given, so a percent sign in the message is only a percent sign.
            self._logger.log(level, message, extra=extra, stacklevel=3, exc_info=traceback)


class Sparing:
    """Says when to speak of what happens again and again: once, then now and then, with how often it was not said."""

    def __init__(self, most: int = 4096) -> None:
        """Remember so many different things at most, and then begin anew."""
        self._most = most
        self._said: dict[object, tuple[float, int]] = {}

    def spare(self, what: object, now: float, every_s: float) -> int | None:
        """Return how often it went unsaid before, if it is to be said now; None if it is not."""
        last, unsaid = self._said.get(what, (now - every_s, 0))
        if now - last < every_s:
            self._said[what] = (last, unsaid + 1)
            return None
        if len(self._said) >= self._most:
            self._said.clear()
        self._said[what] = (now, 0)
        return unsaid


def plain(value: object) -> Plain:
    """Reduce a value to what may be logged. Types are allowed one by one: what is unknown might hold a payload."""
    match value:
        case None | bool() | str():
            return value if not isinstance(value, Enum) else str(value.value)
        case bytes() | bytearray():
            return f"<{len(value)} bytes>"
        case memoryview():
            return f"<{value.nbytes} bytes>"
        case Enum():
            return value.name
        case Integral():
            return int(value)
        case Real():
            number = float(value)
            return number if math.isfinite(number) else str(number)  # JSON has no NaN
        case Path() | datetime():
            return str(value)
        case BaseException():
            harmless = all(isinstance(argument, str | int | None) for argument in value.args)
            return f"{type(value).__name__}: {value}" if harmless else type(value).__name__
        case Message():
            return f"<{value.DESCRIPTOR.name}, {value.ByteSize()} bytes>"
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case Mapping():
            return {str(plain(key)): plain(item) for key, item in value.items()}
        case _:
            size = getattr(value, "nbytes", None)  # arrays and tensors
            return f"<{type(value).__name__}, {size} bytes>" if isinstance(size, int) else f"<{type(value).__name__}>"


class _Handler(logging.StreamHandler[TextIO]):
    """A type of our own, so that a second setup finds and replaces what the first one added."""


class _Formatter(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self.node = node

    def taken_apart(self, record: logging.LogRecord) -> tuple[str, str, dict[str, Plain]]:
        """Return the node, the message and the fields of a record, all fit to be shown."""
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        fields.update(getattr(record, _FIELDS, {}))
        shown = {key: plain(value) for key, value in fields.items()}
        return str(shown.pop("node", self.node)), _message(record), shown

    def traceback(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


class _Console(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        node, message, fields = self.taken_apart(record)
        pairs = "".join(f"  {printable(key)}={_word(value)}" for key, value in fields.items())
        line = f"{_time(record)} {record.levelname:<7} {printable(node)}  {printable(message)}{pairs}"
        traceback = self.traceback(record)
        return f"{line}\n{traceback}" if traceback else line


class _Json(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        node, message, fields = self.taken_apart(record)
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "node": node,
            "logger": record.name,
            "message": message,
        }
        traceback = self.traceback(record)
        if traceback:
            line["exception"] = traceback
        line.update({f"field_{key}" if key in line else key: value for key, value in fields.items()})
        return json.dumps(line, ensure_ascii=True)


def _time(record: logging.LogRecord) -> str:
    """UTC, since the logs of one federation come from several time zones."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    """Fill the arguments in as plain values: a payload in `log("got %s", body)` is a payload all the same."""
    arguments = record.args
    if not arguments:
        return str(record.msg)
    if isinstance(arguments, Mapping):
        return str(record.msg) % {key: _argument(value) for key, value in arguments.items()}
    return str(record.msg) % tuple(_argument(value) for value in arguments)


def _argument(value: object) -> object:
    """Leave numbers alone, for which the message may have a format."""
    return value if isinstance(value, Real) else plain(value)


def _word(value: Plain) -> str:
    """Show a value after its key: as it is where that is clear, quoted where it could be taken for something else."""
    if not isinstance(value, str):
        return json.dumps(value)
    if value and value.isprintable() and not any(c in ' "=\\' for c in value):
        return value
    return json.dumps(value, ensure_ascii=not value.isprintable())
