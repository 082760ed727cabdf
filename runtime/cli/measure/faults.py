"""`silomix simulate-faults`: the whole chain in memory, under thousands of schedules of faults."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.progress import Progress
from rich.table import Table

from silomix.runtime.cli.exits import Exit
from silomix.runtime.cli.options import BadOption, Commands, positive
from silomix.runtime.terminal import console, say_json

if TYPE_CHECKING:  # the rest is loaded when the command runs
    from silomix.runtime.faults.campaign import Report

EPILOG = """\
Every schedule is a federation of 3 to 5 silos and 2 or 3 hops, made of the machines that real nodes run, with their
facts in the bytes of their journals. Messages are lost, doubled, held back, overtaken, cut short or come again. Nodes
are killed before any effect and any write, and come back with a full, damaged or older disk, or another time on their
clocks. In one schedule of seven the aggregator lies, mostly with the help of a hop. After every step it must hold that

  - of each model at most one cohort's sum can be read, and never that of fewer silos than the minimum;
  - no pad is shown before all have signed, and before it is on disk for which cohort;
  - a sum is exactly that of its cohort: every silo sends a number that tells if it was lost, doubled or trained twice;
  - a round is applied once, every log goes on from its head, and nobody takes part behind a fence;
  - when the faults end, the federation goes on, and every round that begins then is applied.

A schedule that breaks one of these is printed with its number, and runs again as it was with --schedule.
--mutant takes one rule out of all nodes, to show that this is noticed. The exit code is 1 if a promise was broken.

examples:
  silomix simulate-faults --schedules 10000 --seed 7
  silomix simulate-faults --seed 7 --schedule 4711              one of them again
  silomix simulate-faults --mutant pad-before-record --schedules 1000
  silomix simulate-faults --schedules 10000 --json | jq '.violations, .faults_by_kind'

mutants:
"""
EXIT_FINDING = 1


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command to the parser."""
    about = "run a federation in memory under thousands of schedules of faults, and look for a broken promise"
    cmd = commands.add_parser(
        "simulate-faults",
        help=about,
        description=about.capitalize() + ".",
        epilog=EPILOG + _mutants(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cmd.add_argument("--schedules", type=positive, default=1000, metavar="N", help="how many (default: %(default)s)")
    cmd.add_argument("--seed", type=int, default=0, metavar="S", help="which ones (default: %(default)s)")
    cmd.add_argument("--schedule", type=int, default=None, metavar="K", help="run this one alone, once more")
    cmd.add_argument("--mutant", default="", metavar="NAME", help="take one rule out; stop at the first violation")
    cmd.add_argument("--workers", type=positive, default=None, metavar="N", help="processes (default: one per core)")
    json_flag(cmd)
    cmd.set_defaults(handler=_simulate)


MUTANTS = {
    "pad-before-record": "a hop shows its pad, and remembers for whom only then",
    "pad-before-all-signed": "a hop shows its pad before all have signed",
    "count-before-end": "hop 1 counts what it has of a stream that broke",
    "old-attempt": "a hop opens an attempt that it has closed",
    "log-unchecked": "records and rounds need not go on from the log",
    "cohort-uncompared": "a model is released for any cohort, however often",
    "checksum-unchecked": "what a disk gives back is taken as it comes",
    "no-fence": "a new chain is formed without a fence",
}
"""The same as in `runtime/faults/mutants.py`, which is not loaded for the sake of a help text; a test compares them."""


def _mutants() -> str:
    return "\n".join(f"  {name:<22} {about}" for name, about in MUTANTS.items())


def _simulate(args: argparse.Namespace) -> int:
    from silomix.runtime.faults.campaign import Report, campaign, run_lot
    from silomix.runtime.faults.mutants import MUTANTS as ALL

    if args.mutant and args.mutant not in ALL:
        raise BadOption("mutant", f"there is no {args.mutant!r}; give one of {', '.join(ALL)}")
    if args.schedule is not None:
        report = Report(args.seed, args.mutant)
        for result in run_lot(args.seed, (args.schedule,), args.mutant):
            report.take(result)
    else:
        with Progress(console=console(stderr=True), transient=True, disable=args.json) as bar:
            task = bar.add_task("schedules", total=args.schedules)

            def told(so_far: "Report") -> None:
                bar.update(task, completed=so_far.schedules, description=f"{so_far.violations} violations")

            report = campaign(
                args.seed, args.schedules, args.mutant, args.workers or 0, until_caught=bool(args.mutant), told=told
            )
    if args.json:
        say_json(vars(report))
    else:
        _show(report)
    return EXIT_FINDING if report.violations else Exit.DONE


def _show(report: "Report") -> None:
    out = console()
    table = Table("fault", "how often", title=f"{report.schedules} schedules in {report.seconds:.0f} s")
    table.columns[1].justify = "right"
    for kind, number in sorted(report.faults_by_kind.items()):
        table.add_row(kind, f"{number:,}")
    out.print(table)
    out.print(f"{report.applied:,} rounds applied, {report.abandoned:,} abandoned, {report.steps:,} steps")
    for why, number in report.stopped.most_common():
        out.print(f"{number:,} ended early, as they should: {why}")
    for one in report.failed:
        out.print(f"schedule {one['schedule']}: {one['violation']}", style="bold red")
        again = f" --mutant {report.mutant}" if report.mutant else ""
        out.print(f"  again: silomix simulate-faults --seed {report.seed} --schedule {one['schedule']}{again}")
    out.print(f"{report.violations} violations", style="bold")
