"""What the options of several commands share: how they are read, and how a wrong one is reported."""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from silomix.runtime.core.errors import UserError

Commands = Any
"""Where a family adds its commands; argparse keeps the type of its subparsers to itself."""


class BadOption(UserError):  # noqa: N818 - what it is
    """An option of the command line that cannot be used: which, and what to give instead."""

    def __init__(self, option: str, problem: str) -> None:
        """The option is given by its name, such as "silos" or "--silos"."""
        self.flag = option if option.startswith("-") else flag(option)
        super().__init__(f"{self.flag}: {problem}")


def flag(name: str) -> str:
    """Return how an option is written on the command line."""
    return f"--{name.replace('_', '-')}"


def json_flag(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="write one JSON object instead of tables")


def positive(text: str) -> int:
    """Read a size."""
    if not text.isascii() or not text.isdigit() or len(text) > 15 or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: give a whole number from 1 to 10^15 - 1")
    return int(text)


def seconds(text: str) -> float:
    """Read a time to wait."""
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: give more than 0 and at most 600 seconds")
    return value


def matching(pattern: str, what: str) -> Callable[[str], str]:
    """Return what reads a text of a certain form."""

    def parse(text: str) -> str:
        if text and not re.fullmatch(pattern, text, re.ASCII):  # argparse asks about an empty default as well
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return text

    return parse


def read_pairs(option: str, pairs: Sequence[str]) -> dict[str, str | int | float | bool]:
    """Read KEY=VALUE pairs: a value is JSON if it can be, else a string."""
    found: dict[str, str | int | float | bool] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise BadOption(option, f"found {pair!r}; give KEY=VALUE")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found
