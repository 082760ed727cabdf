"""What a federation costs before anything runs: plan, capacity."""

import argparse
from collections.abc import Callable
from typing import Any

from rich.console import Console

from silomix.attacks.paper.tables import Comparison, Mark, Number, PaperReport, Section, paper_report
from silomix.runtime.cli.options import Commands, flag, positive
from silomix.runtime.cli.policy_options import add_policy, given_policy
from silomix.runtime.core.chain import ChainRule
from silomix.runtime.core.numbers.costs import DEFAULT_MODEL, MODELS, Model, PlanReport
from silomix.runtime.core.numbers.plan import Quantiser
from silomix.runtime.core.pace import SLACK
from silomix.runtime.terminal import console, print_table, say_json

SHOWN_SILOS = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
"""Points of a long curve that the table shows; the JSON has them all."""
PLAN_EPILOG = """\
A policy holds when the moduli multiply to at least 2 n W v + 1 (n silos, W weight levels, v = 10^r - 1), times
2^headroom. A chain of at least M of K hops holds against 2M - K - 1 that collude with the aggregator, and can
be formed without K - M. Bits are those of one silo for one parameter; bytes are one silo's model, without framing.

examples:
  silomix plan --silos 10 --precision 4
  silomix plan --shufflers 5 --minimum-hops 4
  silomix plan --silos 10 --quantiser int8 --parameters 110000000
  silomix plan --clip-norm 1 --noise-multiplier 0.5 --rounds 20 --precision 3
  silomix plan --level malicious --traps 100
  silomix plan --paper --json
"""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to the parser."""
    cmd = commands.add_parser(
        "plan",
        help="show what a policy costs in bits",
        description="Show the moduli, bits and bytes of each way to send a parameter.",
        epilog=PLAN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cmd.add_argument("--silos", type=positive, metavar="N", help="silos on the roster (default: 10)")
    cmd.add_argument("--shufflers", type=positive, metavar="K", help="hops in the pool (default: 3)")
    size = cmd.add_mutually_exclusive_group()
    size.add_argument("--model", choices=list(MODELS), help=f"one of the paper's models (default: {DEFAULT_MODEL})")
    size.add_argument("--parameters", type=positive, metavar="N", help="a model of N parameters instead")
    cmd.add_argument("--paper", action="store_true", help="the paper's tables and figures beside ours; takes no policy")
    json_flag(cmd)
    add_policy(cmd, without=("parameters",))
    cmd.set_defaults(handler=_plan, fail=cmd.error)
    _add_capacity(commands, json_flag)


def _add_capacity(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    cmd = commands.add_parser(
        "capacity",
        help="show what a round costs each host: bytes, processor, memory, disk",
        description="Show what a round takes of each place in the chain. Bytes follow from the plan; time and memory "
        "were measured on one machine. What training takes is not in it.",
    )
    cmd.add_argument("--silos", type=positive, default=10, metavar="N", help="silos (default: %(default)s)")
    cmd.add_argument("--shufflers", type=positive, default=3, metavar="N", help="hops (default: %(default)s)")
    cmd.add_argument(
        "--parameters",
        type=positive,
        default=11_237_432,
        metavar="N",
        help="parameters (default: %(default)s, ResNet-18)",
    )
    cmd.add_argument("--precision", type=int, default=4, metavar="R", help="decimal digits (default: %(default)s)")
    cmd.add_argument("--rounds", type=positive, default=100, metavar="N", help="for the disk (default: %(default)s)")
    json_flag(cmd)
    cmd.set_defaults(handler=_capacity)


def _plan(args: argparse.Namespace) -> int:
    result: PlanReport | PaperReport
    if args.paper:
        others = ("silos", "shufflers", "model")
        if given := [*(name for name in others if getattr(args, name) is not None), *given_policy(args)]:
            args.fail(f"--paper shows the paper's own policies: leave out {', '.join(map(flag, given))}")
        result = paper_report()
    else:
        from silomix.runtime.cli.measure.planned import asked, report  # what a silo computes with is loaded no sooner

        model = Model(None, args.parameters) if args.parameters else MODELS[args.model or DEFAULT_MODEL]
        result = report(asked(args), model)
    if args.json:
        say_json(result.as_json())
    elif isinstance(result, PlanReport):
        _print_plan(console(), result)
    else:
        _print_paper(console(), result)
    return 0


def _capacity(args: argparse.Namespace) -> int:
    from silomix.runtime.render.capacity_report import show

    return show(args.silos, args.shufflers, args.parameters, args.precision, args.rounds, as_json=args.json)


def _print_plan(out: Console, result: PlanReport) -> None:
    policy, model = result.policy, result.model
    chain = ChainRule(result.chain["pool"], result.chain["minimum"])
    digits = "int8" if policy["quantiser"] == Quantiser.INT8 else f"r = {policy['precision']}"
    title = (
        f"{policy['silos']} silos, {digits}, level {policy['level']}, weight levels {policy['weight_levels']}, "
        f"headroom {policy['headroom']} bits: {policy['sums']} sums to tell apart\n"
        f"chain of {chain.minimum} or more of {chain.pool} hops: {chain.sentence()}\n"
        f"{_of_round(result.round)}"
        f"{model.name or 'model'}, {model.parameters:,} parameters"
    )
    columns = {"encoding": "", "moduli": "", "bits": "right", "expansion": "right", "bytes": "right", "how": ""}
    print_table(
        out,
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
    for note in (*result.notes, *_of_check(result.check), *_of_traps(result.traps)):
        out.print(f"* {note}", soft_wrap=True)


def _of_round(found: dict[str, int | float]) -> str:
    """Say what a round is like, in a line, or nothing where no federation can be made."""
    if not found:
        return ""
    groups = f" in {found['groups']} groups" if found["groups"] > 1 else ""
    noise = f"; noise spends epsilon {found['epsilon']:.3g} at delta {found['delta']:g}" if "epsilon" in found else ""
    early = ""
    if "early_close" in found:
        early = (
            f"; closed early, {SLACK:g} times as long after its opening as {found['early_close']:.0%} of the silos "
            f"took in past rounds, for {found['minimum_cohort']} silos or more"
        )
    return (
        f"{found['rounds']} rounds, each of {found['minimum_cohort']} to {found['invited']} silos{groups}, given up "
        f"after {found['longest_s']:g} s{early}{noise}\n"
    )


def _of_check(found: dict[str, Any]) -> list[str]:
    """Say what the tamper check costs, and how sure it is."""
    if not found:
        return []
    says = (
        f"The tamper check finds any change, except with probability 2^-{min(found['error_bits']):.1f}. It adds "
        f"{found['blinder_bytes']} bytes of blinders to each body and {found['silo_bytes']} bytes of messages to each "
        f"silo; a silo goes over {found['silo_passes']} vectors, a hop over {found['hop_passes']}. "
        "`silomix bench check` times it."
    )
    return [says]


def _of_traps(found: dict[str, Any]) -> list[str]:
    """Say what the traps cost, and what they find."""
    if not found:
        return []
    chances = ", ".join(
        f"{'one parameter' if name == 'one' else f'{float(name):.1%} of them'} {chance:.3g}"
        for name, chance in found["detection"].items()
    )
    where = "" if "one" in found["detection"] else " of the last layer"
    costs = (
        f"{found['traps']:,} traps{where} send {found['silo_bytes']:,} bytes from each silo and {found['hop_bytes']:,} "
        f"from each hop, and take {found['silo_multiplications']:,} multiplications on the curve at a silo, "
        f"{found['hop_multiplications']:,} at a hop and {found['verifier_multiplications']:,} at whoever verifies."
    )
    return [costs, f"A hop that changes parameters{where} is found by the traps with probability: {chances}."]


def _print_paper(out: Console, result: PaperReport) -> None:
    for section in result.sections:
        if section.comparisons:
            _print_comparisons(out, section)
        for series in section.series:
            title = f"{section.title}, {series.title} ({section.source}: {series.mark})"
            shown = [row for row in series.rows if len(series.rows) <= 30 or row[0] in SHOWN_SILOS]
            print_table(out, title, dict.fromkeys(series.columns, "right"), (map(str, row) for row in shown))
            if len(shown) < len(series.rows):
                out.print(f"{len(shown)} of {len(series.rows)} points; --json has them all", soft_wrap=True)
        out.print()
    agrees, differs = result.count(Mark.AGREES), result.count(Mark.DIFFERS)
    out.print(f"{agrees} of the paper's figures agree with ours, {differs} differ.", soft_wrap=True)


def _print_comparisons(out: Console, section: Section) -> None:
    reasons: dict[str, int] = {}

    def cells(c: Comparison) -> tuple[str, ...]:
        r = "-" if c.precision is None else str(c.precision)
        number = f" ({reasons.setdefault(c.why, len(reasons) + 1)})" if c.why else ""
        also = ", ".join(f"{name} {_number(value)}" for name, value in c.also.items())
        return (c.what, str(c.silos), r, _number(c.paper), _number(c.computed), f"{c.mark}{number}", also)

    columns = {"what": "", "silos": "right", "r": "right", "paper": "right", "ours": "right", "mark": "", "also": ""}
    print_table(out, f"{section.title} ({section.source})", columns, map(cells, section.comparisons))
    for why, number in reasons.items():
        out.print(f"({number}) {why}", soft_wrap=True)


def _number(value: Number | str) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
