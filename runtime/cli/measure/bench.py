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
  silomix bench disk --disk /var/lib/silomix  what it adds that everything is on a disk before it counts
  silomix bench onion                         the paper's literal MixNet, a bit in an onion, beside ours
"""


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
    cmd = kinds.add_parser(
        "codec",
        help="time encoding, masks, adding up and decoding, on one thread",
        description="Time every step that the protocol adds to a round, beside a copy of the same vector.",
    )
    size18 = MODELS[DEFAULT_MODEL].parameters
    cmd.add_argument(
        "--parameters", type=positive, default=size18, metavar="N", help="length of the vector (default: %(default)s)"
    )
    cmd.add_argument("--silos", type=int, default=10, metavar="N", help="silos on the roster (default: %(default)s)")
    cmd.add_argument("--precision", type=int, default=4, metavar="R", help="decimal digits (default: %(default)s)")
    json_flag(cmd)
    cmd.set_defaults(handler=_bench_codec)

    cmd = kinds.add_parser(
        "round",
        help="time a protected round against an unprotected one, in separate processes",
        description="Time a round from float32 updates to the decoded mean: unprotected, protected, the bytes alone.",
    )
    cmd.add_argument("--silos", type=int, default=10, metavar="N", help="silos (default: %(default)s)")
    cmd.add_argument("--parameters", type=positive, default=size18, metavar="N", help="model (default: %(default)s)")
    cmd.add_argument("--hops", type=int, default=3, metavar="N", help="hops of the chain (default: %(default)s)")
    cmd.add_argument("--precision", type=int, default=4, metavar="R", help="decimal digits (default: %(default)s)")
    cmd.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds of each arm (default: %(default)s)")
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
    json_flag(cmd)
    cmd.set_defaults(handler=_bench_round)

    cmd = kinds.add_parser(
        "rules",
        help="what each rule of the protocol costs each role",
        description="Run one round, and time the steps that each rule adds to it, on one thread.",
    )
    cmd.add_argument("--silos", type=positive, default=10, metavar="N", help="silos (default: %(default)s)")
    cmd.add_argument("--parameters", type=positive, default=size18, metavar="N", help="model (default: %(default)s)")
    cmd.add_argument("--hops", type=positive, default=3, metavar="N", help="hops of the chain (default: %(default)s)")
    cmd.add_argument("--precision", type=positive, default=4, metavar="R", help="decimal digits (default: %(default)s)")
    json_flag(cmd)
    cmd.set_defaults(handler=_bench_rules)

    cmd = kinds.add_parser(
        "check",
        help="what the tamper check of level malicious adds to a round, and what a trap costs",
        description="Run protected rounds in separate processes, and beside them the passes that the check adds.",
    )
    cmd.add_argument("--silos", type=positive, default=10, metavar="N", help="silos (default: %(default)s)")
    cmd.add_argument("--parameters", type=positive, default=size18, metavar="N", help="model (default: %(default)s)")
    cmd.add_argument("--hops", type=positive, default=3, metavar="N", help="hops of the chain (default: %(default)s)")
    cmd.add_argument("--precision", type=positive, default=4, metavar="R", help="decimal digits (default: %(default)s)")
    cmd.add_argument("--repeats", type=positive, default=3, metavar="N", help="rounds (default: %(default)s)")
    json_flag(cmd)
    cmd.set_defaults(handler=_bench_check)

    cmd = kinds.add_parser(
        "disk",
        help="what it adds to a round that everything is on a disk before it counts",
        description="Run rounds in turns with their state on a disk and in memory, inside this process.",
    )
    cmd.add_argument("--silos", type=positive, default=4, metavar="N", help="silos (default: %(default)s)")
    cmd.add_argument("--parameters", type=positive, default=size18, metavar="N", help="model (default: %(default)s)")
    cmd.add_argument("--hops", type=positive, default=2, metavar="N", help="hops of the chain (default: %(default)s)")
    cmd.add_argument("--rounds", type=positive, default=5, metavar="N", help="rounds of each (default: %(default)s)")
    cmd.add_argument(
        "--disk", type=Path, default=Path(), metavar="DIR", help="a directory on the disk (default: this one)"
    )
    json_flag(cmd)
    cmd.set_defaults(handler=_bench_disk)

    cmd = kinds.add_parser(
        "onion",
        help="the paper's MixNet, with every bit in an onion of its own, beside ours",
        description="Wrap and peel a sample of real onions, and encode, mask and add up a vector, on one thread.",
    )
    cmd.add_argument("--silos", type=positive, default=10, metavar="N", help="silos (default: %(default)s)")
    cmd.add_argument("--hops", type=positive, default=3, metavar="N", help="hops of the chain (default: %(default)s)")
    cmd.add_argument("--precision", type=positive, default=4, metavar="R", help="decimal digits (default: %(default)s)")
    json_flag(cmd)
    cmd.set_defaults(handler=_bench_onion)

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
