"""`silomix drill`: hops, silos and aggregators that misbehave at level malicious, and who is named for it."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from rich.table import Table

from silomix.runtime.cli.exits import Exit
from silomix.runtime.cli.options import Commands, positive
from silomix.runtime.core.errors import UserError, nearest
from silomix.runtime.terminal import console, say, say_json

EPILOG = """\
Each misbehaviour runs in a federation of its own: the real state machines, masks, pads and signatures of 4 silos and 3
hops at level malicious, in memory. One node lies, all others are honest. What has to come of it:

  proven     the liar is named, with evidence that a third party checks
  refused    a neighbour refuses it, and names the sender
  left out   a silo is left out on evidence, and the others' sum is applied
  listed     silence: the edge is listed, and nobody is named

A run is missed if that does not happen, and wrongly named if anybody honest is named. The exit code is 1 if there is
one of either. --all also changes one residue of one value in 200 further runs, each with a seed of its own.

examples:
  silomix drill --all
  silomix drill --only flips-a-residue-2
  silomix drill --all --json | jq '{runs, missed, wrongly_named}'
  silomix drill --all --without-check      the same without the check's equations: tampering goes through
"""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command to the parser."""
    about = "let nodes misbehave in the tamper check, and see who is named"
    cmd = commands.add_parser(
        "drill",
        help=about,
        description=about.capitalize() + ".",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cmd.add_argument("--all", action="store_true", help="every misbehaviour, and the single-coordinate changes")
    cmd.add_argument("--list", action="store_true", help="list every misbehaviour, and what has to come of it")
    cmd.add_argument("--only", action="append", default=[], metavar="NAME", help="this one; may be repeated")
    cmd.add_argument(
        "--runs", type=positive, default=200, metavar="N", help="single-coordinate changes of --all (default: 200)"
    )
    cmd.add_argument(
        "--without-check", action="store_true", help="do not look at the check's equations, in the drill's own nodes"
    )
    json_flag(cmd)
    cmd.set_defaults(handler=_drill)


def _drill(args: argparse.Namespace) -> int:
    from silomix.attacks.tamper.drill import drill, summary, without_check
    from silomix.attacks.tamper.registry import MISBEHAVIOURS

    known = {one.name: one for one in MISBEHAVIOURS}
    if args.list:
        return _list(known, args.json)
    if bad := [name for name in args.only if name not in known]:
        all_of_them = "`silomix drill --list` names them all"
        raise UserError(f"there is no misbehaviour {bad[0]!r}{nearest(bad[0], known)} {all_of_them}")
    if not args.all and not args.only:
        raise UserError("which misbehaviours? --all runs every one, --list names them, --only NAME runs one")
    chosen = tuple(known.values()) if args.all else tuple(known[name] for name in args.only)
    if problem := _no_curve(chosen):
        if args.only and not args.all:
            raise UserError(problem)
        console(stderr=True).print(f"{problem}; what is about traps is left out", highlight=False, soft_wrap=True)
        chosen = tuple(one for one in chosen if not one.traps)
    if args.without_check:  # those that the equations find; the others are refused before
        if not args.all and (other := [one.name for one in chosen if not one.without]):
            raise UserError(f"--without-check: leave out {', '.join(other)}, found even without the check's equations")
        chosen = tuple(one for one in chosen if one.without)
    quiet = args.json or not sys.stderr.isatty()
    with console(stderr=True).status("...") if not quiet else nullcontext() as status:
        told = None if status is None else (lambda name: status.update(name))
        with without_check() if args.without_check else nullcontext():
            results = drill(chosen, args.runs if args.all else 0, told)
    found = summary(results)
    if args.json:
        say_json({**found, "without_check": args.without_check})
    else:
        _show(found)
    return Exit.DONE if not found["missed"] and not found["wrongly_named"] else Exit.NO


def _no_curve(chosen: Sequence[Any]) -> str:
    """Say what is missing for the misbehaviours that are about traps, if any of these is."""
    from silomix.runtime.core.errors import LocalFault
    from silomix.runtime.core.numbers.traps import secp256k1

    try:
        if any(one.traps for one in chosen):
            secp256k1()
    except LocalFault as fault:
        return fault.message
    return ""


def _list(known: dict[str, Any], as_json: bool) -> int:
    if as_json:
        rows = [
            {"name": one.name, "node": one.node, "expected": str(one.ends), "about": one.about}
            for one in known.values()
        ]
        say_json({"misbehaviours": rows})
        return Exit.DONE
    table = Table()
    for column in ("misbehaviour", "by", "has to be", "what it does"):
        table.add_column(column, overflow="fold")
    for one in known.values():
        table.add_row(one.name, one.node, str(one.ends), one.about)
    console().print(table)
    return Exit.DONE


def _show(found: dict[str, Any]) -> None:
    table = Table()
    for column in ("misbehaviour", "has to be", "runs", "detected", "named", "what was said"):
        table.add_column(column, overflow="fold")
    for name, row in found["by_misbehaviour"].items():
        named = ", ".join(f"{who} ({count})" if count > 1 else who for who, count in row["named"].items())
        bad = row["missed"] or row["wrongly_named"]
        cells = (name, row["expected"], str(row["runs"]), str(row["detected"]), named or "-", row["said"])
        table.add_row(*cells, style="bold red" if bad else None)
    console().print(table)
    say(f"{found['runs']} runs: {found['missed']} missed, {found['wrongly_named']} with an honest node named")
