"""The command line: arguments in, one handler each, faults turned into a line and an exit code.

Handlers import what they need when they run, so that `silomix plan` starts at once and never loads a compiler.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

from rich.console import Console
from rich.table import Table

from silomix.attacks.paper.tables import Comparison, Mark, Number, PaperReport, Section, paper_report
from silomix.runtime.cli import attacks as attacks_cli
from silomix.runtime.cli import deploy, nodes
from silomix.runtime.cli import models as models_cli
from silomix.runtime.core.chain import ChainRule
from silomix.runtime.core.errors import Fault, Reason, UserError
from silomix.runtime.core.numbers.costs import DEFAULT_CHAIN, DEFAULT_MODEL, MODELS, Model, PlanReport, report
from silomix.runtime.core.numbers.plan import Level, Quantiser

EXIT_FAULT = 2
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE: what a shell reports of any other program whose reader went away."""
PIPE_WIDTH = 1000
"""Columns when nobody watches: wide enough that no cell is folded and a pipe loses nothing."""
SHOWN_SILOS = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
"""Points of a long curve that the table shows; the JSON has them all."""

DESCRIPTION = """\
silomix averages the models that several silos train, so that the aggregator cannot tell which of them a record was
trained on. Silos send residues of their parameters, masked, through a chain of shufflers, and only the sum over all
silos comes out.
"""
EPILOG = """\
examples:
  silomix plan --silos 10 --precision 4                what a parameter costs, by encoding
  silomix plan --silos 40 --precision 6 --level malicious --weight-levels 1000
  silomix plan --silos 10 --precision 4 --json | jq '.rows[] | {encoding, bits_per_parameter}'
  silomix plan --paper                                 the paper's figures beside ours, differences marked
  silomix demo                                         a real federation on this machine, from start to end
  silomix init fed --silos 10 --shufflers 3            write a federation; then one process for each node
  silomix status --config fed/silo-01                  watch it
  silomix bench codec --parameters 1000000             the codec against memcpy

`silomix COMMAND --help` explains a command. Exit codes: 0 done, 2 bad input or a policy that cannot hold.
"""
PLAN_EPILOG = """\
A policy holds when the moduli multiply to at least 2 n W v + 1 (n silos, W weight levels, v = 10^r - 1), times
2^headroom. A chain of at least M of K hops holds against 2M - K - 1 that collude with the aggregator, and can
be formed without K - M. Bits are those of one silo for one parameter; bytes are one silo's model, without framing.

examples:
  silomix plan --silos 10 --precision 4
  silomix plan --shufflers 5 --minimum-hops 4
  silomix plan --silos 10 --quantiser int8 --parameters 110000000
  silomix plan --paper --json
"""
POLICY = (
    "silos",
    "precision",
    "level",
    "shufflers",
    "minimum_hops",
    "weight_levels",
    "headroom",
    "quantiser",
    "model",
    "parameters",
)
"""What --paper does not take: it has policies of its own."""


class PipeConsole(Console):
    """A console that leaves a broken pipe to `main`; rich would end the process on its own terms."""

    def on_broken_pipe(self) -> NoReturn:
        """Pass the error on."""
        raise BrokenPipeError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; only argparse leaves by SystemExit."""
    parser = make_parser()
    try:
        args = parser.parse_args(argv)
        handler: Callable[[argparse.Namespace], int] = args.handler
        code = handler(args)
        sys.stdout.flush()
    except Fault as fault:
        hint = " (n_max is --silos, r is --precision)" if fault.reason is Reason.PLAN_INFEASIBLE else ""
        sys.stderr.write(f"silomix: {fault}{hint}\n")
        return EXIT_FAULT
    except UserError as error:
        sys.stderr.write(f"silomix: {error}\n")
        return EXIT_FAULT
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # else the interpreter flushes into the same pipe on its way out
            stdout = sys.stdout.fileno()
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
        return EXIT_BROKEN_PIPE
    except (OSError, MemoryError) as error:
        sys.stderr.write(f"silomix: {error or 'not enough memory for that'}\n")
        return EXIT_FAULT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def make_parser() -> argparse.ArgumentParser:
    """Build the parser: its help is the manual."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("silomix", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"silomix {_version()}")
    commands = _commands(parser)

    cmd = commands.add_parser(
        "plan",
        help="show what a policy costs in bits, before anything runs",
        description="Show the moduli, bits and bytes of each way to send a parameter.",
        epilog=PLAN_EPILOG,
        formatter_class=raw,
    )
    cmd.add_argument("--silos", type=int, metavar="N", help="silos on the roster (default: 10)")
    cmd.add_argument("--precision", type=int, metavar="R", help="decimal digits kept of a parameter (default: 4)")
    levels = [str(level) for level in Level]
    cmd.add_argument("--level", choices=levels, help="whom a silo has to trust (default: semi-honest)")
    cmd.add_argument("--weight-levels", type=int, metavar="W", help="weights run from 1 to W (default: 1, plain mean)")
    cmd.add_argument("--shufflers", type=int, metavar="K", help="hops in the pool (default: 3)")
    cmd.add_argument("--minimum-hops", type=int, metavar="M", help="hops that a chain has at least (default: all)")
    cmd.add_argument("--headroom", type=int, metavar="BITS", help="spare range, so that an overflow shows (default: 0)")
    quantisers = [str(quantiser) for quantiser in Quantiser]
    cmd.add_argument("--quantiser", choices=quantisers, help="float to integer (default: decimal)")
    size = cmd.add_mutually_exclusive_group()
    size.add_argument("--model", choices=list(MODELS), help=f"one of the paper's models (default: {DEFAULT_MODEL})")
    size.add_argument("--parameters", type=_positive, metavar="N", help="a model of N parameters instead")
    cmd.add_argument("--paper", action="store_true", help="the paper's tables and figures beside ours; takes no policy")
    _json_flag(cmd)
    cmd.set_defaults(handler=_plan, fail=cmd.error)

    bench = commands.add_parser("bench", help="measure: `bench codec` times the codec against memcpy")
    kinds = _commands(bench)
    cmd = kinds.add_parser(
        "codec",
        help="time encoding, masks, adding up and decoding, on one thread",
        description="Time every step that the protocol adds to a round, beside a copy of the same vector.",
    )
    size18 = MODELS[DEFAULT_MODEL].parameters
    cmd.add_argument(
        "--parameters", type=_positive, default=size18, metavar="N", help="length of the vector (default: %(default)s)"
    )
    cmd.add_argument("--silos", type=int, default=10, metavar="N", help="silos on the roster (default: %(default)s)")
    cmd.add_argument("--precision", type=int, default=4, metavar="R", help="decimal digits (default: %(default)s)")
    _json_flag(cmd)
    cmd.set_defaults(handler=_bench_codec)

    cmd = kinds.add_parser(
        "round",
        help="time a protected round against an unprotected one, in separate processes",
        description="Time a round from float32 updates to the decoded mean: unprotected, protected, the bytes alone.",
    )
    cmd.add_argument("--silos", type=int, default=10, metavar="N", help="silos (default: %(default)s)")
    cmd.add_argument("--parameters", type=_positive, default=size18, metavar="N", help="model (default: %(default)s)")
    cmd.add_argument("--hops", type=int, default=3, metavar="N", help="hops of the chain (default: %(default)s)")
    cmd.add_argument("--precision", type=int, default=4, metavar="R", help="decimal digits (default: %(default)s)")
    cmd.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds of each arm (default: %(default)s)")
    cmd.add_argument(
        "--silos-per-process", type=_positive, default=1, metavar="N", help="light clients (default: %(default)s)"
    )
    cmd.add_argument(
        "--mbit",
        type=_positive,
        default=0,
        metavar="N",
        help="share a network of so many Mbit/s, as root, with tc (default: the machine's loopback, without limit)",
    )
    _json_flag(cmd)
    cmd.set_defaults(handler=_bench_round)

    for group in (nodes, deploy, models_cli, attacks_cli):
        group.add(commands, _json_flag)

    cmd = commands.add_parser("warm", help="compile the kernels now, so that a node starts at once")
    _json_flag(cmd)
    cmd.set_defaults(handler=_warm)
    return parser


def _commands(parser: argparse.ArgumentParser) -> "argparse._SubParsersAction[argparse.ArgumentParser]":
    """Give a parser subcommands; without one it shows its help, since that is what the user lacks."""

    def usage(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return EXIT_FAULT

    parser.set_defaults(handler=usage)
    return parser.add_subparsers(title="commands", metavar="COMMAND")


def _json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write one JSON object instead of tables")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: give a whole number from 1 to 10^18 - 1")
    return int(text)


def _version() -> str:
    try:
        return version("silomix")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "(not installed)"


# --- handlers ---------------------------------------------------------------------------------------------------------


def _plan(args: argparse.Namespace) -> int:
    result: PlanReport | PaperReport
    if args.paper:
        if given := [name for name in POLICY if getattr(args, name) is not None]:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            args.fail(f"--paper shows the paper's own policies: leave out {flags}")
        result = paper_report()
    else:
        pool = DEFAULT_CHAIN.pool if args.shufflers is None else args.shufflers
        result = report(
            10 if args.silos is None else args.silos,
            4 if args.precision is None else args.precision,
            Level(args.level or Level.SEMI_HONEST),
            1 if args.weight_levels is None else args.weight_levels,
            args.headroom or 0,
            Quantiser(args.quantiser or Quantiser.DECIMAL),
            Model(None, args.parameters) if args.parameters else MODELS[args.model or DEFAULT_MODEL],
            ChainRule(pool, args.minimum_hops or pool),
        )
    if args.json:
        sys.stdout.write(json.dumps(result.as_json()) + "\n")
    elif isinstance(result, PlanReport):
        _print_plan(_console(), result)
    else:
        _print_paper(_console(), result)
    return 0


def _bench_codec(args: argparse.Namespace) -> int:
    from silomix.runtime.bench.codec import codec

    return codec(args.parameters, args.silos, args.precision, args.json)


def _bench_round(args: argparse.Namespace) -> int:
    from silomix.runtime.bench.round import Bench, bench_round

    bench = Bench(args.silos, args.parameters, args.hops, args.precision, args.silos_per_process, args.mbit)
    return bench_round(bench, args.repeats, args.json)


def _warm(args: argparse.Namespace) -> int:
    from silomix.runtime.bench.warm import warm

    return warm(args.json)


# --- rendering --------------------------------------------------------------------------------------------------------


def _console() -> Console:
    return PipeConsole(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def _print_table(console: Console, title: str, columns: dict[str, str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table; columns are names with their alignment, and numbers stand on the right and are never folded."""
    console.print(title, style="bold", soft_wrap=True)
    table = Table()
    for name, side in columns.items():
        number = side == "right"
        table.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_plan(console: Console, result: PlanReport) -> None:
    policy, model = result.policy, result.model
    chain = ChainRule(result.chain["pool"], result.chain["minimum"])
    digits = "int8" if policy["quantiser"] == Quantiser.INT8 else f"r = {policy['precision']}"
    title = (
        f"{policy['silos']} silos, {digits}, level {policy['level']}, weight levels {policy['weight_levels']}, "
        f"headroom {policy['headroom']} bits: {policy['sums']} sums to tell apart\n"
        f"chain of {chain.minimum} or more of {chain.pool} hops: {chain.sentence()}\n"
        f"{model.name or 'model'}, {model.parameters:,} parameters"
    )
    columns = {"encoding": "", "moduli": "", "bits": "right", "expansion": "right", "bytes": "right", "how": ""}
    _print_table(
        console,
        title,
        columns,
        (
            (
                str(row.encoding),
                " ".join(map(str, row.moduli)) or "-",
                str(row.bits_per_parameter),
                f"{row.expansion:.2f}x",
                f"{row.bytes:,}",
                row.note,
            )
            for row in result.rows
        ),
    )
    for note in result.notes:
        console.print(f"* {note}", soft_wrap=True)


def _print_paper(console: Console, result: PaperReport) -> None:
    for section in result.sections:
        if section.comparisons:
            _print_comparisons(console, section)
        for series in section.series:
            title = f"{section.title}, {series.title} ({section.source}: {series.mark})"
            shown = [row for row in series.rows if len(series.rows) <= 30 or row[0] in SHOWN_SILOS]
            _print_table(console, title, dict.fromkeys(series.columns, "right"), (map(str, row) for row in shown))
            if len(shown) < len(series.rows):
                console.print(f"{len(shown)} of {len(series.rows)} points; --json has them all", soft_wrap=True)
        console.print()
    agrees, differs = result.count(Mark.AGREES), result.count(Mark.DIFFERS)
    console.print(f"{agrees} of the paper's figures agree with ours, {differs} differ.", soft_wrap=True)


def _print_comparisons(console: Console, section: Section) -> None:
    reasons: dict[str, int] = {}

    def cells(c: Comparison) -> tuple[str, ...]:
        r = "-" if c.precision is None else str(c.precision)
        number = f" ({reasons.setdefault(c.why, len(reasons) + 1)})" if c.why else ""
        also = ", ".join(f"{name} {_number(value)}" for name, value in c.also.items())
        return (c.what, str(c.silos), r, _number(c.paper), _number(c.computed), f"{c.mark}{number}", also)

    columns = {"what": "", "silos": "right", "r": "right", "paper": "right", "ours": "right", "mark": "", "also": ""}
    _print_table(console, f"{section.title} ({section.source})", columns, map(cells, section.comparisons))
    for why, number in reasons.items():
        console.print(f"({number}) {why}", soft_wrap=True)


def _number(value: Number | str) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
