"""The terminal, once for all commands: results go to standard output, and what is happening to standard error."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 1000
"""Columns when nobody watches: wide enough that no cell is folded and a pipe loses nothing."""


class _Terminal(Console):
    """A console that leaves a broken pipe to `main`; rich would end the process on its own terms."""

    def on_broken_pipe(self) -> NoReturn:
        """Pass the error on."""
        raise BrokenPipeError


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return the console of results, or that of progress and remarks, which is silent if `quiet`.

    Text is printed as it is: a tensor's name or a peer's message may look like markup.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return _Terminal(stderr=stderr, quiet=quiet, width=width, highlight=False, markup=False, emoji=False)


def print_table(out: Console, title: str, columns: Mapping[str, str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table; columns are names with their alignment, and numbers stand on the right and are never folded."""
    if title:
        out.print(title, style="bold", soft_wrap=True)
    table = Table()
    for name, side in columns.items():
        number = side == "right"
        table.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in rows:
        table.add_row(*row)
    out.print(table)


def say(line: str) -> None:
    """Write one line of a result."""
    sys.stdout.write(f"{line}\n")


def say_json(value: Any) -> None:
    """Write a result for a program."""
    say(json.dumps(value))
