"""The commands audit and attack replay: run, show progress, write the page."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from silomix.attacks.audit.attack import Attack, Section
from silomix.attacks.audit.audit import FULL, QUICK, audit, audit_captures
from silomix.attacks.audit.figures import write_figures
from silomix.attacks.audit.mounted import captures
from silomix.attacks.audit.page import page, sections
from silomix.attacks.audit.pool import Done
from silomix.attacks.audit.registry import attacks
from silomix.attacks.audit.replay import replay
from silomix.attacks.audit.subject import DIGITS, SILOS, subject_for
from silomix.attacks.audit.verdict import Json
from silomix.attacks.errors import AttackError
from silomix.attacks.views.captured import Scene, scene_of
from silomix.models.simulation.experiment import Table as Figures
from silomix.runtime.cli.options import read_pairs
from silomix.runtime.core.policy import LEAST_COHORT, Policy
from silomix.runtime.local import interrupt_on_sigterm
from silomix.runtime.results import find
from silomix.runtime.store.files import write_atomically
from silomix.runtime.terminal import console, say_json


def audit_command(args: argparse.Namespace) -> int:
    """Run an audit, write its page, and print the verdict."""
    interrupt_on_sigterm()
    sys.path.append(str(Path.cwd()))  # where a task of one's own lies
    out = console(stderr=args.json)
    _check(args)
    if args.federation:
        mounted: Sequence[Attack] = [captures.ATTACK]
        report = audit_captures(args.federation, _command(args))
    else:
        mounted = attacks(args.attack, args.only)
        report = _run(args, mounted)
    write_atomically(args.out, page(report, mounted).encode())
    args.out.chmod(0o644)  # a report is for others
    parts = sections(report, mounted)
    figures = write_figures(parts, args.figures) if args.figures else []
    if args.json:
        say_json(_plain(report))
    else:
        _print(out, report, [parts[one.name] for one in mounted if one.name in parts and _counts(one, report)])
        out.print(f"the page: {args.out}", soft_wrap=True)
        if figures:
            out.print(f"{len(figures)} figures: {args.figures}", soft_wrap=True)
    return 0 if report["verdict"]["protected"] else 1


def _check(args: argparse.Namespace) -> None:
    """Find out now what would otherwise be found out after minutes."""
    if args.workers < 0:
        raise AttackError(f"--workers {args.workers}: give 1 or more, or nothing for one for each core")
    given = {"--task": args.task, "--option": args.option, "--silos": args.silos, "--rounds": args.rounds}
    if args.federation:
        for flag in [name for name, value in given.items() if value]:
            raise AttackError(f"--federation has its own task, silos and rounds: leave out {flag}")
    if args.silos is not None and args.silos < LEAST_COHORT:
        raise AttackError(f"--silos {args.silos}: a federation has {LEAST_COHORT} or more")
    if args.rounds is not None and args.rounds < 1:
        raise AttackError(f"--rounds {args.rounds}: give 1 or more")
    for flag, path in (("--out", args.out.parent), ("--figures", args.figures)):
        try:
            if path is not None:
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AttackError(f"{flag} {path}: the directory cannot be made: {error.strerror}") from None
    if args.out.is_dir() or not os.access(args.out.parent, os.W_OK):
        raise AttackError(f"--out {args.out}: it cannot be written; name a file in a directory that is yours")


def _command(args: argparse.Namespace) -> str:
    """Write down how to do it again."""
    words = ["silomix", "audit"]
    for home in args.federation:
        words += ["--federation", str(home)]
    words += ["--quick"] if args.quick else []
    for name in ("task", "silos", "rounds"):
        if (value := getattr(args, name)) is not None:
            words += [f"--{name}", str(value)]
    for name in ("option", "attack", "only"):
        words += [word for value in getattr(args, name) for word in (f"--{name}", value)]
    return shlex.join(words)


def _run(args: argparse.Namespace, mounted: Sequence[Attack]) -> Json:
    size = QUICK if args.quick else FULL
    size = size if args.rounds is None else replace(size, rounds=args.rounds)
    own, options = args.task is not None, read_pairs("--option", args.option)
    policy = Policy(task=args.task) if own else DIGITS
    policy = replace(policy, task_options={**policy.task_options, **options})
    workers = args.workers or os.cpu_count() or 1
    columns = (
        TextColumn("{task.description:<40}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console(stderr=True)) as bar:
        task = bar.add_task("drawing splits of the data", total=1.0, left="")

        def show(done: Done) -> None:
            what = "federations are training" if done.job is None else f"done: {done.job.name}"
            left = f"about {done.left_s / 60:.0f} min left" if done.left_s >= 90 else f"{done.left_s:.0f} s left"
            bar.update(task, completed=done.done, description=what, left=left)

        subject = subject_for(policy, _silos(args, policy), size, own=own)
        return audit(subject, size, mounted, workers, _command(args), show)


def _silos(args: argparse.Namespace, policy: Policy) -> int:
    """How many silos: as said, or as the task's option says, or ten."""
    if args.silos is not None:
        return int(args.silos)
    return int(policy.task_options.get("silos", SILOS))


def _counts(attack: Attack, report: Json) -> bool:
    """Whether the verdict rests on an attack: those are shown here, the page has all."""
    return bool(list(attack.expected(report)))


def _plain(report: Json) -> Json:
    """Leave the pictures out: they are in the page."""
    if "dlg" not in report:
        return report
    return {**report, "dlg": [{k: v for k, v in one.items() if k != "picture"} for one in report["dlg"]]}


def _print(out: Console, report: Json, shown: Sequence[Section]) -> None:
    for section in shown:
        for block in section.blocks:
            if isinstance(block, Figures):
                out.print(_table(section.title, block))
    for name, why in report["skipped"].items():
        out.print(f"left out: {name}: {why}", soft_wrap=True, markup=False, highlight=False)
    verdict = report["verdict"]
    out.print(verdict["text"], style="bold", soft_wrap=True, markup=False, highlight=False)
    for finding in verdict["findings"]:
        out.print(f"- {finding}", soft_wrap=True, markup=False, highlight=False)


def _table(title: str, figures: Figures) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)  # it fits into 80 columns
    for i, name in enumerate(figures.columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=not i, overflow="fold")
    for row in figures.rows:
        first, *cells = ("-" if cell is None else str(cell) for cell in row)
        table.add_row(first.partition("\n")[0], *(_cell(cell) for cell in cells))
    return table


def _cell(text: str) -> str:
    """Put on one line what the page has on two: a share, and its interval."""
    value, _, interval = text.partition("\n")
    return f"{value} {interval}" if interval else value


def _score(score: Json) -> str:
    return f"{score['accuracy']:.1%} ({score['low']:.1%} to {score['high']:.1%}), {score['targets']} records"


def replay_command(args: argparse.Namespace) -> int:
    """Attack a capture, and print what came of it."""
    scene = Scene(find(args.federation).home) if args.federation else scene_of(args.capture)
    found = replay(args.capture, scene)
    if args.json:
        say_json(found)
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
