"""The commands audit and attack replay: run, show progress, write the page."""

import argparse
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from silomix.attacks.audit.audit import FULL, QUICK, audit, audit_captures
from silomix.attacks.audit.jobs import Json, judged
from silomix.attacks.audit.pool import Done
from silomix.attacks.audit.replay import replay
from silomix.attacks.audit.report import page
from silomix.attacks.sia import AttackError
from silomix.attacks.views.captured import Scene, scene_of
from silomix.runtime.local import interrupt_on_sigterm
from silomix.runtime.store.files import write_atomically

NAMES = {
    "campaign": "source inference",
    "real": "a federation over gRPC",
    "game": "residue sums",
    "dlg": "gradient inversion",
    "collusion": "colluding silos",
    "changing": "changing cohorts",
}


def audit_command(args: argparse.Namespace) -> int:
    """Run an audit, write its page, and print the verdict."""
    interrupt_on_sigterm()
    console = Console(stderr=args.json)
    _check(args)
    report = audit_captures([judged(home) for home in args.federation]) if args.federation else _run(args)
    write_atomically(args.out, page(report).encode())
    args.out.chmod(0o644)  # a report is for others
    if args.json:
        sys.stdout.write(json.dumps(_plain(report)) + "\n")
    else:
        _print(console, report, args.out)
    return 0 if report["verdict"]["protected"] else 1


def _check(args: argparse.Namespace) -> None:
    """Find out now what would otherwise be found out after minutes."""
    if args.workers < 0:
        raise AttackError(f"--workers {args.workers}: give 1 or more, or nothing for one for each core")
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttackError(f"--out {args.out}: its directory cannot be made: {error.strerror}") from None
    if args.out.is_dir() or not os.access(args.out.parent, os.W_OK):
        raise AttackError(f"--out {args.out}: it cannot be written; name a file in a directory that is yours")


def _run(args: argparse.Namespace) -> Json:
    size = QUICK if args.quick else FULL
    workers = args.workers or os.cpu_count() or 1
    columns = (
        TextColumn("{task.description:<40}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("drawing splits of the data", total=1.0, left="")

        def show(done: Done) -> None:
            what = "federations are training" if done.job is None else f"done: {NAMES[done.job.name.partition(' ')[0]]}"
            left = f"about {done.left_s / 60:.0f} min left" if done.left_s >= 90 else f"{done.left_s:.0f} s left"
            bar.update(task, completed=done.done, description=what, left=left)

        return audit(size, workers, show)


def _plain(report: Json) -> Json:
    """Leave the pictures out: they are in the page."""
    if "dlg" not in report:
        return report
    return {**report, "dlg": [{k: v for k, v in one.items() if k != "picture"} for one in report["dlg"]]}


def _print(console: Console, report: Json, out: Path) -> None:
    if "sia" in report:
        table = Table(title="source inference: how often the guess names the right silo")
        for name in ("mode", "best round", "99.9% interval", "last round", "records"):
            table.add_column(name, justify="left" if name == "mode" else "right")
        for mode, score in report["sia"].items():
            interval = f"{score['low']:.1%} to {score['high']:.1%}"
            last = f"{score['last']['accuracy']:.1%}"
            table.add_row(mode, f"{score['accuracy']:.1%}", interval, last, f"{score['targets']:,}")
        console.print(table)
    for one in report["real"]:
        _print_judged(console, one)
    console.print(f"[bold]{report['verdict']['text']}[/bold]", soft_wrap=True)
    for finding in report["verdict"]["findings"]:
        console.print(f"- {finding}", soft_wrap=True)
    console.print(f"the page: {out}", soft_wrap=True)


def _print_judged(console: Console, one: Json) -> None:
    title = f"from captures: {one['granularity']}, level {one['level']}, {one['silos']} silos, {one['hops']} hops"
    console.print(title, soft_wrap=True)
    names = {
        "captured": "what the aggregator captured",
        "unprotected": "the unprotected updates",
        "all_but_one": "with all hops but one",
        "all_collude": "with every hop",
    }
    for key, name in names.items():
        if one[key]:
            console.print(f"  {name:<30} {_score(one[key]['last'])}", soft_wrap=True)


def _score(score: Json) -> str:
    return f"{score['accuracy']:.1%} ({score['low']:.1%} to {score['high']:.1%}), {score['targets']} records"


def replay_command(args: argparse.Namespace) -> int:
    """Attack a capture, and print what came of it."""
    scene = Scene(args.federation) if args.federation else scene_of(args.capture)
    found = replay(args.capture, scene)
    if args.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    out = sys.stdout.write
    out(f"{found['node']} held, in each of {found['rounds']} rounds: {found['held']}\n")
    for name, one in found["attacks"].items():
        for which, score in (("best round", one), ("last round", one["last"]), ("all rounds", one["together"])):
            out(f"{name}, {which}: {_score(score)}\n")
    beaten = ", ".join(found["beats_random"])
    out(f"a random guess among {found['silos']} silos: {found['random']:.1%}; ")
    out(f"beaten by {beaten}\n" if beaten else "not beaten\n")
    return 0
