"""The commands that train and fetch: simulate, data."""

import argparse
from collections.abc import Callable
from typing import Any

Commands = Any  # argparse keeps the type of its subparsers to itself


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to the parser. What they need is imported when they run: `silomix --help` has no torch."""
