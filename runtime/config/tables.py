"""Reading a file, table by table, against the keys that exist; what is wrong is named with its place."""

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from silomix.runtime.config.kinds import Key
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.values import Unfit

MOST_DOTS, MOST_DEEP, MOST_MARKS = 4, 8, 10_000
"""How many dots a key may have, how many brackets may be in each other, and how many of both a file may have.

Our own files have keys with one dot, two brackets in each other, and two marks for each node and owner. What tomllib
takes for a key, in time and memory, grows with the square of its dots.
"""
_QUOTED = re.compile(
    r'''"""(?:[^"\\]++|\\.|"(?!""))*+"{0,5}'''
    r"""|'{3}(?:[^']++|'(?!''))*+'{0,5}"""
    r"""|"(?:[^"\\\n]++|\\[^\n])*+"?"""
    r"""|'[^'\n]*+'?"""
    r"""|\#[^\n]*+""",
    re.DOTALL,
)
"""A string or a comment, as tomllib finds them: also one without an end, which it reads no further than."""
_APART = re.compile(r"[\n,=\[\]{}]")


class ConfigError(UserError):
    """A file that cannot be used: which one, at which key, and what to do about it."""

    def __init__(self, file: Path, key: str, problem: str) -> None:
        """The key is a dotted path, or empty if the file as a whole is at fault."""
        super().__init__(f"{file}: {key}: {problem}" if key else f"{file}: {problem}")
        self.file = file
        self.key = key
        self.problem = problem


@dataclass(frozen=True)
class Where:
    """A table of a file: what its errors name. `places` says in which table a key belongs that is in the wrong one."""

    file: Path
    table: str = ""
    places: Mapping[str, str] = field(default_factory=dict)

    def wrong(self, key: str, problem: str) -> ConfigError:
        """Say what is wrong with a key of this table."""
        return ConfigError(self.file, f"{self.table}.{key}" if self.table else key, problem)

    def under(self, table: str) -> "Where":
        """Another table of the same file."""
        return Where(self.file, table, self.places)

    def take(self, data: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
        """Check a table's keys and values against those that exist, and fill in defaults."""
        for name in data:
            if name not in keys:
                raise self.wrong(name, f"no such key here; {self._hint(name, keys)}")
        values = {}
        for name, key in keys.items():
            if name not in data:
                if key.required:
                    raise self.wrong(name, f"missing; give {key.kind.allowed}")
                values[name] = key.default
                continue
            try:
                values[name] = key.kind.parse(data[name])
            except Unfit as unfit:
                raise self.wrong(name, f"found {show(data[name])}, which {unfit}; give {key.kind.allowed}") from None
            except (ValueError, OverflowError):
                raise self.wrong(name, f"found {show(data[name])}; give {key.kind.allowed}") from None
        return values

    def _hint(self, name: str, keys: Iterable[str]) -> str:
        if place := self.places.get(name):
            return f"it belongs in {place}"
        if near := get_close_matches(name.lower(), keys, 1):
            return f'did you mean "{near[0]}"?'
        if near := get_close_matches(name.lower(), self.places, 1):
            return f'did you mean "{near[0]}" in {self.places[near[0]]}?'
        return f"known are {', '.join(keys)}"


def show(value: object) -> str:
    """Show what was found, as the file has it and not at any length."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    try:
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:
        return "a list with a number that is too long to show"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def read(path: Path, missing: str = "is not there") -> bytes:
    """Read a file, or say why that cannot be; `missing` may say what to do if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(path, "", missing) from None
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from None


def parse(content: str, file: Path) -> dict[str, Any]:
    """Read TOML, or say where it is none. Some of it comes from peers, before anybody knows who has signed it."""
    if problem := _excess(content):
        raise ConfigError(file, "", problem)
    try:
        return tomllib.loads(content)
    except (ValueError, RecursionError) as error:  # also a number or a nesting that Python will not read
        raise ConfigError(file, "", f"is not TOML: {error}") from None


def _excess(content: str) -> str:
    """Say what a file has more of than any honest one, in time that only its length decides; empty if nothing."""
    bare = _QUOTED.sub("_", content)
    if any(key.count(".") > MOST_DOTS for key in _APART.split(bare)):
        return f"has a key with more than {MOST_DOTS} dots"
    deep = deepest = 0
    for mark in re.finditer(r"[\[\]{}]", bare):
        deep += 1 if mark[0] in "[{" else -1
        deepest = max(deepest, deep)
    if deepest > MOST_DEEP:
        return f"has more than {MOST_DEEP} brackets in each other"
    if sum(map(bare.count, "[{.")) > MOST_MARKS:
        return f"has more than {MOST_MARKS} tables, arrays and dots"
    return ""


def read_text(file: Path, missing: str = "is not there") -> str:
    """Read a file of text, or say why that cannot be; `missing` may say what to do if there is none."""
    try:
        return read(file, missing).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(file, "", f"is not UTF-8 at byte {error.start}: save it as UTF-8") from None


def read_private(path: Path) -> bytes:
    """Read a file that nobody but its owner may read."""
    try:
        with path.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(path, "", f"is open to others (mode {mode:o}): run chmod 600 {path}")
            return stream.read()
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from None
