"""The commands that measure: bench codec, round, rules, check, disk, onion; and warm, which compiles kernels."""

import argparse
from collections.abc import Callable
from pathlib import Path

from silomix.runtime.cli.options import Commands, positive
from silomix.runtime.core.numbers.costs import DEFAULT_MODEL, MODELS

EPILOG = """\
examples:
  silomix bench codec                         every step of the codec against memcpy
  silomix bench round --silos 10 --hops 3     a protected round against an unprotected one, in separate processes
  silomix bench round --mbit 1000             the same on a network of 1 Gbit/s, as root
  silomix bench rules                         what each rule of the protocol costs each role
  silomix bench check                         what the tamper check adds to a round, and what a trap costs
  silomix bench disk --disk /var/lib/silomix  how much longer a round takes for waiting until all is on a disk
  silomix bench onion                         the paper's literal MixNet, a bit in an onion, beside ours
"""

Handler = Callable[[argparse.Namespace], int]
NUMBERS = {
    "silos": ("N", "silos"),
    "parameters": ("N", "parameters of the model"),
    "hops": ("N", "hops of the chain"),
    "precision": ("R", "decimal digits"),
    "repeats": ("N", "rounds of each arm"),
    "rounds": ("N", "rounds of each arm"),
}
"""The options that several kinds share: how their value is called, and what it is."""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to the parser. What they need is imported when they run."""
    bench = commands.add_parser(
        "bench",
        help="time the codec, or a whole round",
        description="Measure what protection costs on this machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = bench.add_subparsers(title="commands", metavar="COMMAND")

    def kind(name: str, handler: Handler, says: str, description: str, **defaults: int) -> argparse.ArgumentParser:
        """Add a kind with those of the common options that it has a default for."""
        cmd: argparse.ArgumentParser = kinds.add_parser(name, help=says, description=description)
        for option, default in defaults.items():
            metavar, what = NUMBERS[option]
            says = f"{what} (default: %(default)s)"
            cmd.add_argument(f"--{option}", type=positive, default=default, metavar=metavar, help=says)
        json_flag(cmd)
        cmd.set_defaults(handler=handler)
        return cmd

    size18 = MODELS[DEFAULT_MODEL].parameters
    kind(
        "codec",
        _bench_codec,
        "time encoding, masks, adding up and decoding, on one thread",
        "Time every step that the protocol adds to a round, beside a copy of the same vector.",
        silos=10,
        parameters=size18,
        precision=4,
    )
    cmd = kind(
        "round",
        _bench_round,
        "time a protected round against an unprotected one, in separate processes",
        "Time a round from float32 updates to the decoded mean: unprotected, protected, the bytes alone.",
        silos=10,
        parameters=size18,
        hops=3,
        precision=4,
        repeats=3,
    )
    cmd.add_argument(
        "--silos-per-process", type=positive, default=1, metavar="N", help="light clients (default: %(default)s)"
    )
    cmd.add_argument(
        "--mbit",
        type=positive,
        default=0,
        metavar="N",
        help="share a network of this many Mbit/s, as root, with tc (default: the machine's loopback, without limit)",
    )
    kind(
        "rules",
        _bench_rules,
        "what each rule of the protocol costs each role",
        "Run one round, and time the steps that each rule adds to it, on one thread.",
        silos=10,
        parameters=size18,
        hops=3,
        precision=4,
    )
    kind(
        "check",
        _bench_check,
        "what the tamper check of level malicious adds to a round, and what a trap costs",
        "Run protected rounds in separate processes, and beside them the passes that the check adds.",
        silos=10,
        parameters=size18,
        hops=3,
        precision=4,
        repeats=3,
    )
    cmd = kind(
        "disk",
        _bench_disk,
        "how much longer a round takes because everything is on a disk before it counts",
        "Run rounds in turns with their state on a disk and in memory, inside this process.",
        silos=4,
        parameters=size18,
        hops=2,
        rounds=5,
    )
    cmd.add_argument(
        "--disk", type=Path, default=Path(), metavar="DIR", help="a directory on the disk (default: this one)"
    )
    kind(
        "onion",
        _bench_onion,
        "the paper's MixNet, with every bit in an onion of its own, beside ours",
        "Wrap and peel a sample of real onions, and encode, mask and add up a vector, on one thread.",
        silos=10,
        hops=3,
        precision=4,
    )

    cmd = commands.add_parser("warm", help="compile the kernels now, so that a node starts at once")
    json_flag(cmd)
    cmd.set_defaults(handler=_warm)


def _bench_disk(args: argparse.Namespace) -> int:
    from silomix.runtime.bench.disk import bench_disk

    return bench_disk(args.silos, args.parameters, args.hops, args.rounds, args.disk, args.json)


def _bench_codec(args: argparse.Namespace) -> int:
    from silomix.runtime.bench.codec import codec

    return codec(args.parameters, args.silos, args.precision, args.json)


def _bench_round(args: argparse.Namespace) -> int:
    from silomix.runtime.bench.round import Bench, bench_round

    bench = Bench(args.silos, args.parameters, args.hops, args.precision, args.silos_per_process, args.mbit)
    return bench_round(bench, args.repeats, args.json)


def _bench_rules(args: argparse.Namespace) -> int:
    from silomix.runtime.bench.rules import bench_rules

    return bench_rules(args.silos, args.parameters, args.hops, args.precision, args.json)


def _bench_check(args: argparse.Namespace) -> int:
    from silomix.runtime.bench.check import bench_check

    return bench_check(args.silos, args.parameters, args.hops, args.precision, args.repeats, args.json)


def _bench_onion(args: argparse.Namespace) -> int:
    from silomix.runtime.bench.onion import onion

    return onion(args.silos, args.hops, args.precision, args.json)


def _warm(args: argparse.Namespace) -> int:
    from silomix.runtime.bench.warm import warm

    return warm(args.json)
