"""The adversary's commands: attack, audit, reproduce."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from silomix.runtime.cli.attack import active, resend

Commands = Any  # argparse keeps the type of its subparsers to itself

AUDIT_EPILOG = """\
The exit code is 0 if every attack did what it should: it failed where silomix protects, and worked where it does not.

It is 1 if one did not, and the page says which. Without --task it is about scikit-learn's digits.

examples:
  silomix audit --quick                       the verdict in minutes, and audit.html
  silomix audit --quick --json > audit.json   the same for a program
  silomix audit --quick --task mytask:task --silos 5 --option lr=0.1    a task of your own, from mytask.py
  silomix audit --quick --figures figures     the charts too, as SVG and PDF
  silomix audit --federation fed              judge a federation that has run with --capture, from its captures
"""
REPRODUCE_EPILOG = """\
A run that is interrupted goes on where it stopped: every finished point is kept.

examples:
  silomix reproduce --list
  silomix reproduce sia-by-alpha --quick
  silomix reproduce sia-by-alpha --data mnist
  silomix reproduce sia-paper-size --data mnist --quick --rounds 2    all of MNIST: hours without a GPU
  silomix reproduce --all --out docs          writes docs/reproduction.md, with JSON and plots in docs/reproduction
"""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to the parser. What they need is imported when they run: `silomix --help` has no torch."""
    raw = argparse.RawDescriptionHelpFormatter
    _add_attack(commands, json_flag)

    cmd = commands.add_parser(
        "audit",
        help="attack federations in every mode, and say what is protected",
        epilog=AUDIT_EPILOG,
        formatter_class=raw,
    )
    given = cmd.add_argument
    given("--quick", action="store_true", help="within ten minutes on two cores")
    given("--task", help="audit this task, package.module:factory; a module may lie in the working directory")
    given("--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the task; may be repeated")
    given("--silos", type=int, metavar="N", help="silos (default: 10)")
    given("--rounds", type=int, metavar="N", help="rounds of training (default: 8 if quick, else 15)")
    given("--attack", action="append", default=[], metavar="ADDRESS", help="mount this attack too, package.module:NAME")
    given("--only", action="append", default=[], metavar="NAME", help="mount this attack and no other; may be repeated")
    given("--out", type=Path, default=Path("audit.html"), help="the page to write (default: %(default)s)")
    given("--figures", type=Path, metavar="DIR", help="write the page's charts here too, as SVG and PDF")
    cmd.add_argument(
        "--federation", type=Path, action="append", default=[], metavar="DIR", help="judge this one; may be repeated"
    )
    cmd.add_argument("--workers", type=int, default=0, metavar="N", help="processes (default: one for each core)")
    json_flag(cmd)
    cmd.set_defaults(handler=_audit)

    cmd = commands.add_parser(
        "reproduce",
        help="repeat the paper's tables and figures, next to its numbers",
        epilog=REPRODUCE_EPILOG,
        formatter_class=raw,
    )
    cmd.add_argument("id", nargs="*", help="what to repeat; --list names them")
    cmd.add_argument("--list", action="store_true", help="every table and figure of the paper, each with its state")
    cmd.add_argument("--all", action="store_true", help="everything that needs only the embedded data")
    cmd.add_argument("--quick", action="store_true", help="one seed and few rounds")
    cmd.add_argument("--rounds", type=int, metavar="N", help="number of rounds (default: 6 if quick, else 15)")
    cmd.add_argument("--data", default="digits", help="data set, where an experiment takes several (default: digits)")
    cmd.add_argument("--out", type=Path, metavar="DIR", help="also write JSON, plots and reproduction.md here")
    cmd.add_argument("--figures", type=Path, metavar="DIR", help="write the plots here too, as SVG and PDF")
    cmd.add_argument("--fresh", action="store_true", help="forget what earlier runs have finished")
    json_flag(cmd)
    cmd.set_defaults(handler=_reproduce)


def _add_attack(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    attack = commands.add_parser(
        "attack",
        help="`attack replay` attacks a capture; `attack resend` replays it at nodes; `attack active` lies to them",
    )
    kinds = attack.add_subparsers(title="commands", metavar="COMMAND", required=True)
    about = "feed captured traffic to the adversary, and mount every attack that applies to what it holds"
    cmd = kinds.add_parser("replay", help=about, description=about.capitalize() + ".")
    cmd.add_argument("capture", type=Path, help="an aggregator's capture: a file or a directory")
    cmd.add_argument("--federation", type=Path, metavar="DIR", help="the federation's directory (default: above it)")
    json_flag(cmd)
    cmd.set_defaults(handler=_replay)
    resend.add(kinds, json_flag)
    active.add(kinds, json_flag)


def _audit(args: argparse.Namespace) -> int:
    from silomix.runtime.cli.attack.audit import audit_command

    return audit_command(args)


def _reproduce(args: argparse.Namespace) -> int:
    from silomix.runtime.cli.attack.reproduce import reproduce_command

    return reproduce_command(args)


def _replay(args: argparse.Namespace) -> int:
    from silomix.runtime.cli.attack.audit import replay_command

    return replay_command(args)
