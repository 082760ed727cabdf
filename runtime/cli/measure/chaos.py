"""`silomix chaos`: a federation of real processes, of which one after the other is killed."""

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from silomix.runtime.cli.exits import Exit
from silomix.runtime.cli.options import Commands, positive
from silomix.runtime.terminal import console, say_json

EPILOG = """\
A federation of 4 silos and 2 hops runs on this machine, a process for each node. As many of them as there are rounds
are killed as by a power cut, at random moments, and started again. In between something else befalls a node too:

  stop      it is held up for seconds
  cut       its connections break, and a server is not reached for seconds
  full      its disk has no room for seconds (only with the rights of root, which mounting a small disk takes)
  damage    it is killed and a bit of its disk is flipped; a server must then refuse to start until that is put right
  restore   it is killed and its state put back to an earlier copy (not a hop's: it would rightly not serve any more;
            the aggregator's only while a silo has its newest model: nobody else could give that back)
  double    a second process is started with its identity and its state, and must refuse to run

Each silo adds a number to the model that shows how often it was counted. The report has

  wrong_sums      rounds whose sum is not that of the cohort on record, each silo once
  rounds_lost     rounds without a record
  applied_twice   rounds that stepped from a model which another round had stepped from
  not_refused     processes that ran though they had to refuse
  abandoned       rounds that were given up, and are on record as such
  kills           by role

and medians in seconds, from when a fault is over or a process is started again:

  startup_s         by role: until the process is up
  beyond_startup_s  by role: from then on until it takes part again
  recovery_s        by role and fault: until the node takes part again, start-up included
  next_round_s      by role and fault: until the next round is over, with its training and with any other fault

The exit code is 1 if one of the first four is not 0. The seed fixes which faults come in which order, but not how far
each process has got by then.

examples:
  silomix chaos --rounds 20
  silomix chaos --rounds 100 --seed 7 --json | jq '{wrong_sums, rounds_lost, applied_twice, abandoned, kills}'
  silomix chaos --rounds 20 --keep chaos          leave the federation and its logs in ./chaos
"""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command to the parser."""
    about = "kill, stop and damage the processes of a local federation at random, and check every sum"
    cmd = commands.add_parser(
        "chaos",
        help=about,
        description=about.capitalize() + ".",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cmd.add_argument("--rounds", type=positive, default=20, metavar="N", help="with a fault in each (default: 20)")
    cmd.add_argument("--seed", type=int, default=0, metavar="S", help="which faults (default: %(default)s)")
    cmd.add_argument("--keep", type=Path, default=None, metavar="DIR", help="an empty directory for the federation")
    json_flag(cmd)
    cmd.set_defaults(handler=_chaos)


def _chaos(args: argparse.Namespace) -> int:
    from silomix.runtime.faults.chaos import Chaos
    from silomix.runtime.local import interrupt_on_sigterm

    interrupt_on_sigterm()
    out = console(stderr=True)

    def told(what: str) -> None:
        if not args.json:
            out.print(what, style="dim")

    with tempfile.TemporaryDirectory() as place:
        report = asyncio.run(Chaos(args.keep or Path(place) / "chaos", args.rounds, args.seed, told).run())
    if args.json:
        say_json(vars(report))
    else:
        table = Table(title=f"{report.rounds} rounds in {report.seconds:.0f} s, seed {report.seed}")
        table.add_column("what")
        table.add_column("how much", justify="right")
        for name in (
            "wrong_sums",
            "rounds_lost",
            "applied_twice",
            "not_refused",
            "abandoned",
            "applied",
            "sums_checked",
        ):
            table.add_row(name.replace("_", " "), str(getattr(report, name)))
        for role, number in sorted(report.kills.items()):
            table.add_row(f"kills: {role}", str(number))
        for title, medians in (
            ("start-up", report.startup_s),
            ("beyond start-up", report.beyond_startup_s),
            ("recovery", report.recovery_s),
            ("next round", report.next_round_s),
        ):
            for what, seconds in medians.items():
                table.add_row(f"{title}: {what}", f"{seconds:.1f} s")
        console().print(table)
    return Exit.NO if report.broken else Exit.DONE
