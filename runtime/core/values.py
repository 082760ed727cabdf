"""What a value may be: in words, for messages, comments and manuals, and as a check.

A kind knows nothing of files and flags, so the same one serves a key of a file, an option of a command and a row of a
document. Nothing here loads more than the standard library: a command's manual is made of kinds, and starts at once.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from typing import Any

Scalar = str | int | float | bool
"""What a task option may be: what TOML, JSON and a keyword argument all have."""


def printable(text: str) -> str:
    """Escape what is not printable: what a peer says must not forge a line or steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Unfit(ValueError):  # noqa: N818 - no error of ours: what a value is
    """A value has the right form and still will not do; the message goes on from "which"."""


@dataclass(frozen=True)
class Kind:
    """What a value may be: in words, and as a function that raises ValueError."""

    allowed: str
    parse: Callable[[Any], Any]
    reads: type | None = None
    """What a word on a command line is read as, if one word can say such a value."""
    words: tuple[str, ...] = ()
    """All values, if they are a few words."""
    name: str = ""
    """A word that may be said in place of one value, and is written for it."""
    named: Any = None
    """That value."""

    def shown(self, value: Any) -> Any:
        """Return what is written for a value: itself, or its name."""
        return self.name if self.name and value == self.named else value


def whole(low: int, high: int, step: int = 1, *, zero: bool = False) -> Kind:
    """Whole numbers of a range; with `zero`, 0 as well, which then means something else than a number."""

    def parse(value: Any) -> int:
        if type(value) is not int or not (low <= value <= high or (zero and value == 0)) or value % step:
            raise ValueError
        return value

    words = f"a {f'multiple of {step}' if step > 1 else 'whole number'} from {low} to {high}"
    return Kind(f"0, or {words}" if zero else words, parse, int)


def number(allowed: str, holds: Callable[[float], bool]) -> Kind:
    """Finite numbers of which something holds."""

    def parse(value: Any) -> float:
        # A whole number becomes a float: 1 and 1.0 are the same policy and must have the same digest.
        if type(value) not in (int, float) or not isfinite(value) or not holds(value):
            raise ValueError
        return float(value)

    return Kind(allowed, parse, float)


def or_named(kind: Kind, name: str, value: float) -> Kind:
    """Return a kind that also takes a word, which stands for a value that the kind itself does not allow."""
    return replace(
        kind,
        allowed=f'{kind.allowed}, or "{name}"',
        parse=lambda given: value if given == name else kind.parse(given),
        name=name,
        named=value,
    )


def one_of(words: type[StrEnum]) -> Kind:
    """The words of an enumeration."""
    return Kind("one of " + ", ".join(f'"{word}"' for word in words), words, str, tuple(map(str, words)))


def text(allowed: str, pattern: str = ".+", refused: tuple[str, ...] = ()) -> Kind:
    """Text that matches a pattern from end to end."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII) or value in refused:
            raise ValueError
        return value

    return Kind(allowed, parse, str)


def _options(value: Any) -> dict[str, Scalar]:
    if not isinstance(value, dict):
        raise ValueError
    for name, option in value.items():
        if not name.isidentifier() or type(option) not in (str, int, float, bool):
            raise ValueError
        if not isinstance(option, str) and not (isfinite(option) and abs(option) < 1 << 63):
            raise ValueError
    return dict(value)


SHARE = number("a number above 0 and at most 1", lambda x: 0 < x <= 1)
POSITIVE = number("a finite number above 0", lambda x: x > 0)
PART = number("a number from 0 to 1", lambda x: 0 <= x <= 1)
FADING = number("a number from 0 to below 1", lambda x: 0 <= x < 1)
LIMIT = number("a finite number from 0", lambda x: x >= 0)
OPTIONS = Kind("a table of names with strings, booleans or numbers below 2^63", _options)
