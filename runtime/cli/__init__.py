"""The command line: one file for each family of commands, behind one parser."""

from silomix.runtime.cli.entry import main, make_parser

__all__ = ["main", "make_parser"]
