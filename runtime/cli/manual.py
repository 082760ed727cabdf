"""The parser's help as a manual: commands by what one wants to do, and how a command ends."""

import argparse
import shutil
import sys
from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from silomix.runtime.cli.exits import MEANINGS, Exit

GROUPS = {
    "start here": ("demo", "run", "simulate", "data", "model"),
    "agree": ("keygen", "assemble", "enrol", "accept", "digest", "rotate"),
    "run nodes": ("init", "aggregator", "shuffler", "silo", "pause", "resume"),
    "look": ("check", "status", "log", "verify", "health", "dashboard"),
    "attack": ("audit", "attack", "drill", "reproduce"),
    "deploy": ("render",),
    "measure": ("plan", "capacity", "bench", "warm", "simulate-faults", "chaos"),
}
"""The commands in the order in which one meets them. A test holds it to the commands that exist."""
MOST_COLUMNS = 120
INDENT = 19
"""Where the lines about commands begin: the longest name fits before it."""


class Catalogue:
    """Where families add their commands: argparse's own list has no groups, so each command's line is kept here."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        """Give the parser commands."""
        self._commands = parser.add_subparsers(metavar="COMMAND", help=argparse.SUPPRESS, prog="silomix")
        self.lines: dict[str, str] = {}
        """What each command does, in a line."""

    def add_parser(self, name: str, *, help: str, **settings: Any) -> argparse.ArgumentParser:  # noqa: A002
        """Add a command, as argparse's own `add_parser` does."""
        self.lines[name] = help
        return self._commands.add_parser(name, **{"description": f"{help[:1].upper()}{help[1:]}.", **settings})

    def text(self) -> str:
        """List the commands by group, as wide as the terminal."""
        return "\n".join(self._listed(min(MOST_COLUMNS, shutil.get_terminal_size().columns)))

    def _listed(self, columns: int) -> Iterator[str]:
        for title, names in GROUPS.items():
            yield f"{title}:"
            for name in names:
                first, *more = wrap(self.lines[name], max(30, columns - INDENT))
                yield f"  {name}".ljust(INDENT) + first
                yield from (" " * INDENT + line for line in more)
            yield ""


def exit_codes() -> str:
    """List how commands end."""
    return "\n".join(["exit codes:", *(f"  {int(code):<4}{MEANINGS[code]}" for code in Exit)])


def show_help_if_bare(parser: argparse.ArgumentParser) -> None:
    """Let a command that needs another one behind it show its help, since that is what the user lacks."""

    def usage(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return Exit.BAD_INPUT

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.required = False
            parser.set_defaults(handler=usage)
            for command in action.choices.values():
                show_help_if_bare(command)
