"""`silomix attack resend`: captured traffic, replayed at live nodes."""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress
from rich.table import Table

from silomix.runtime.core.errors import UserError
from silomix.runtime.terminal import console, say_json

if TYPE_CHECKING:  # the rest is loaded when the command runs: `silomix plan` starts without a compiler
    from silomix.attacks.resend import Replay
    from silomix.runtime.config.load import NodeConfig

EXIT_FINDING = 1
EPILOG = """\
Each call is made again as it was, in another member's name, with a byte changed, with frames swapped, missing or
doubled. A node must refuse all of it; the exit code is 1 if one accepted anything.

examples:
  silomix shuffler --config fed/shuffler-1 --capture traffic        on the host that captures
  silomix attack resend traffic --federation fed                    at the nodes that the calls went to
  silomix attack resend traffic --federation fed --to 10.0.0.7:7001 at another address, such as a test's
"""


def add(kinds: Any, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command to the parser."""
    about = "replay captured traffic at live nodes, as it was and spoiled, and report what each refused"
    cmd = kinds.add_parser(
        "resend",
        help=about,
        description=about.capitalize() + ".",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cmd.add_argument("capture", type=Path, help="a node's capture: a file or a directory")
    cmd.add_argument(
        "--federation",
        type=Path,
        required=True,
        metavar="DIR",
        help="the nodes' directories: whose names we can call in",
    )
    cmd.add_argument("--to", default="", metavar="HOST:PORT", help="where the captured node is now")
    cmd.add_argument("--calls", type=int, default=3, metavar="N", help="calls of each kind (default: %(default)s)")
    json_flag(cmd)
    cmd.set_defaults(handler=_resend)


def _resend(args: argparse.Namespace) -> int:
    from silomix.attacks.resend import run

    members = _members(args.federation)
    addresses = dict.fromkeys(members, args.to) if args.to else {}
    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying", total=None)

        def told(outcome: "Replay") -> None:
            bar.update(task, advance=1, description=f"{outcome.method} at {outcome.target}: {outcome.variant}")

        outcomes = run(args.capture, members, addresses, args.calls, told)
    counts = Counter(outcome.result for outcome in outcomes)
    if args.json:
        rows = [asdict(outcome) for outcome in outcomes]
        say_json({"findings": counts["accepted"], "results": counts, "replays": rows})
    else:
        _show(outcomes, counts)
    if counts["unreachable"] == len(outcomes):
        raise UserError("no node could be reached: start the federation, or give --to")
    return EXIT_FINDING if counts["accepted"] else 0


def _members(directory: Path) -> "dict[str, NodeConfig]":
    from silomix.runtime.config.load import load_node
    from silomix.runtime.config.tables import ConfigError

    members = {}
    for file in sorted(directory.glob("*/node.toml")):
        try:
            config = load_node(file)
        except ConfigError:
            continue  # a node whose keys are elsewhere: we cannot call in its name
        members[config.name] = config
    if not members:
        raise UserError(f"{directory} holds no node's directory with its keys: give the one that `silomix init` made")
    return members


def _show(outcomes: "list[Replay]", counts: Counter[str]) -> None:
    table = Table(title="replays")
    for column in ("call", "at", "of", "in the name of", "how", "result", "reason"):
        table.add_column(column)
    for o in outcomes:
        style = "bold red" if o.finding else None
        table.add_row(o.method, o.target, o.sender, o.identity, o.variant, o.result, o.reason, style=style)
    out = console()
    out.print(table)
    said = ", ".join(f"{number} {result}" for result, number in counts.most_common())
    out.print(f"{len(outcomes)} replays: {said}")
    if counts["accepted"]:
        out.print(f"FINDING: {counts['accepted']} were accepted", style="bold red")
