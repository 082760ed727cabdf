"""The commands that train and fetch: simulate, data."""

import argparse
from collections.abc import Callable
from typing import Any

from silomix.runtime.cli import data, simulate

Commands = Any  # argparse keeps the type of its subparsers to itself


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to the parser. What they need is imported when they run: `silomix --help` has no torch."""
    simulate.add(commands, json_flag)
    _add_data(commands, json_flag)


def _add_data(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    data.add(commands, json_flag)
