"""The command `data`: which data sets there are, and fetching them. Also `model export`."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Commands = Any  # argparse keeps the type of its subparsers to itself

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
    kinds = data.add_subparsers(title="commands", metavar="COMMAND", required=True)
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


def add_export(kinds: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add `model export` to the kinds of `model`."""
    cmd = kinds.add_parser(
        "export",
        help="write a model as a torch state dict",
        description="Write a model file of a federation as a plain torch state dict.",
    )
    cmd.add_argument("--model", type=Path, required=True, metavar="FILE", help="a .safetensors file of ours")
    cmd.add_argument("--out", type=Path, required=True, metavar="FILE.pt", help="file to write")
    cmd.add_argument(
        "--config", type=Path, help="the federation: its task adds what did not travel, such as frozen tensors"
    )
    json_flag(cmd)
    cmd.set_defaults(handler=_export)


def _export(args: argparse.Namespace) -> int:
    from silomix.models.training.export import export

    return export(args)


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
        sys.stdout.write(json.dumps({"datasets": rows}) + "\n")
        return 0
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False, markup=False, emoji=False)
    table = Table()
    for column in ("name", "state", "source", "about"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["state"], row["source"], row["about"])
    console.print(table)
    console.print(f"they lie in {Path(rows[0]['directory']).parent}", soft_wrap=True)
    return 0


def _get(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from silomix.models.data.catalogue import load
    from silomix.models.data.get import get

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        line = progress.add_task(args.name, total=None)

        def report(what: str, done: int, total: int) -> None:
            progress.update(line, description=what, completed=done, total=total or None)

        where = get(args.name, args.dir, again=args.again, report=report)
        report("reading it", 0, 0)
        data = load(args.name, args.dir)
    counts = {"records": len(data.y), "test_records": len(data.test_y), "classes": data.classes}
    if args.json:
        sys.stdout.write(json.dumps({"name": args.name, "directory": str(where), **counts}) + "\n")
    else:
        numbers = f"{len(data.y):,} records, {len(data.test_y):,} to test on, {data.classes} classes"
        sys.stdout.write(f"{args.name}: {numbers}, in {where}\n")
    return 0
