"""The commands that run a whole federation on this machine: demo."""

import argparse
from collections.abc import Callable
from pathlib import Path

from silomix.runtime.cli.options import Commands


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to the parser. What they need is imported when they run."""
    cmd = commands.add_parser(
        "demo", help="run a real federation on this machine: 10 silos, 3 shufflers, one aggregator, mutual TLS"
    )
    cmd.add_argument("--silos", type=int, default=10, metavar="N", help="silos (default: %(default)s)")
    cmd.add_argument("--shufflers", type=int, default=3, metavar="N", help="hops (default: %(default)s)")
    cmd.add_argument("--rounds", type=int, default=20, metavar="N", help="rounds (default: %(default)s)")
    cmd.add_argument("--keep", type=Path, metavar="DIR", help="keep the federation's directory here")
    json_flag(cmd)
    cmd.set_defaults(handler=_demo)


def _demo(args: argparse.Namespace) -> int:
    from silomix.runtime.cli.demo import demo

    return demo(args.silos, args.shufflers, args.rounds, keep=args.keep, as_json=args.json)
