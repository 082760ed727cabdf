"""The commands that ask: how is this host (check), the federation (status), its history (log), this node (health)?"""

import argparse
from collections.abc import Callable
from pathlib import Path

from silomix.runtime.cli.options import Commands, seconds

STATUS_EPILOG = """\
examples:
  silomix status --config fed/silo-01          live, until all rounds are done
  silomix status --config fed/silo-01 --once
  silomix status --config fed/silo-01 --json | jq '.history[-1].score'
"""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to the parser. What they need is imported when they run."""
    cmd = commands.add_parser(
        "check",
        help="check everything that a node needs, on its host, and say what to do",
        description="Look at configuration, keys, clock, disk, kernels, task, agreement, and every peer that this node "
        "dials. Each line that fails says what to do. The exit code is 0 if all is well, else 1.",
    )
    cmd.add_argument("--config", type=Path, required=True, help="the node's directory, or its node.toml")
    cmd.add_argument("--quick", action="store_true", help="skip what takes long: kernels, and training a step")
    cmd.add_argument("--offline", action="store_true", help="skip the peers, for when they are not running yet")
    cmd.add_argument("--timeout-s", type=seconds, default=5.0, metavar="S", help="for each peer (default: %(default)s)")
    json_flag(cmd)
    cmd.set_defaults(handler=_check)

    cmd = commands.add_parser(
        "status",
        help="show the federation live: round, cohort, hops, bits, latency, accuracy",
        epilog=STATUS_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cmd.add_argument(
        "--config", type=Path, required=True, help="any member's directory: the question is asked in its name"
    )
    cmd.add_argument("--once", action="store_true", help="show it once and end")
    json_flag(cmd)
    cmd.set_defaults(handler=_status)

    cmd = commands.add_parser(
        "log",
        help="show a node's round log, and check every link and signature in it",
        description="Read the round log from the node's own disk, whether it runs or not: what became of each round, "
        "over which cohort, and which model came of it. Every link and signature is checked against the federation "
        "file, and nobody is asked. The exit code is 1 if anything does not hold, or if the aggregator was found to "
        "tell two stories.",
    )
    cmd.add_argument("--config", type=Path, required=True, help="the node's directory, or its node.toml")
    json_flag(cmd)
    cmd.set_defaults(handler=_log)

    cmd = commands.add_parser(
        "health",
        help="ask a node on this host whether it is well: exit code 0 or 1",
        description="Ask this node's own gRPC health service, with its own certificate. A silo serves nothing but its "
        "metrics, so it is asked there.",
    )
    cmd.add_argument("--config", type=Path, required=True, help="the node's directory, or its node.toml")
    cmd.add_argument("--peers", action="store_true", help="ask all whom this node dials instead, from here")
    cmd.add_argument("--timeout-s", type=seconds, default=5.0, metavar="S", help="for each (default: %(default)s)")
    json_flag(cmd)
    cmd.set_defaults(handler=_health)


def _check(args: argparse.Namespace) -> int:
    from silomix.runtime.checkup.report import show

    return show(args.config, quick=args.quick, offline=args.offline, timeout_s=args.timeout_s, as_json=args.json)


def _status(args: argparse.Namespace) -> int:
    from silomix.runtime.cli.federation.status import show

    return show(args.config, once=args.once, as_json=args.json)


def _log(args: argparse.Namespace) -> int:
    from silomix.runtime.cli.federation.history import show

    return show(args.config, as_json=args.json)


def _health(args: argparse.Namespace) -> int:
    from silomix.runtime.observe.health import show

    return show(args.config, peers=args.peers, as_json=args.json, timeout_s=args.timeout_s)
