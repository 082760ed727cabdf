"""The command reproduce: list the paper's tables and figures, run them, and write what came of it."""

import argparse
from dataclasses import replace

import rich.table
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from silomix.attacks.paper.document import record, shown, write_figures
from silomix.attacks.paper.registry import REGISTRY, ReproduceError, Run, find, listing, run
from silomix.models.simulation.experiment import FULL, QUICK, RUNS
from silomix.runtime.cli.options import BadOption
from silomix.runtime.local import interrupt_on_sigterm
from silomix.runtime.terminal import console, say_json


def reproduce_command(args: argparse.Namespace) -> int:
    """List, or run what was asked for."""
    if args.list:
        return _list(as_json=args.json)
    if args.all == bool(args.id):
        raise ReproduceError("name what to repeat, or give --all; `silomix reproduce --list` names everything")
    interrupt_on_sigterm()
    chosen = [one for one in REGISTRY if one.state == RUNS] if args.all else [find(name) for name in args.id]
    scale = QUICK if args.quick else FULL
    if args.rounds is not None:
        if args.rounds < 1:
            raise BadOption("--rounds", f"found {args.rounds}; give 1 or more")
        scale = replace(scale, rounds=args.rounds)
    out = console(stderr=args.json)
    done: list[Run] = []
    columns = (
        TextColumn("{task.description:<28.28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), speed_estimate_period=3600) as bar:
        for one in chosen:
            task = bar.add_task(one.id, total=None)

            def show(points: int, total: int, what: str, task=task) -> None:  # type: ignore[no-untyped-def]
                bar.update(task, completed=points, total=total or None)

            data = args.data if not args.all or args.data in one.data else "digits"
            done.append(run(one, scale, data=data, fresh=args.fresh, show=show))
            bar.update(task, completed=1, total=1)
            if args.out:
                record(args.out, done[-1])
            if args.figures:
                write_figures(args.figures, done[-1])
            if not args.json:
                _print(out, done[-1])
    if args.json:
        say_json([one.json() for one in done])
    return 0


def _list(*, as_json: bool) -> int:
    rows = listing()
    if as_json:
        say_json(rows)
        return 0
    table = rich.table.Table()
    table.add_column("id", no_wrap=True)
    for name in ("state", "in the paper", "also on"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(row["id"], row["state"], row["paper"], row["data"])
    out = console()
    out.print(table)
    ready = sum(row["state"] == RUNS for row in rows)
    out.print(f"{ready} of {len(rows)} run here; {len(rows) - ready} do not, each with the reason.", soft_wrap=True)
    return 0


def _print(out: Console, done: Run) -> None:
    out.print(f"\n{done.experiment.id}: {done.experiment.title}, {done.experiment.paper}", style="bold", soft_wrap=True)
    for table in done.result.tables:
        shape = rich.table.Table(title=table.title)
        for i, name in enumerate(table.columns):
            shape.add_column(name, justify="right" if i else "left")
        for row in table.rows:
            shape.add_row(*(shown(cell) for cell in row))
        out.print(shape)
    for note in done.result.notes:
        out.print(note, soft_wrap=True)
    before = f", {done.from_before} point(s) from an earlier run" if done.from_before else ""
    out.print(f"{done.date}, {done.machine}; {done.seconds:.0f} s{before}", soft_wrap=True)
