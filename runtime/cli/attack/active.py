"""`silomix attack active`: adversaries that do not keep to the protocol, at live honest nodes on this machine."""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from silomix.runtime.core.errors import UserError
from silomix.runtime.terminal import console, say_json

if TYPE_CHECKING:  # the rest is loaded when the command runs: `silomix plan` starts without a compiler
    from silomix.attacks.active.registry import Attack, Result, Rule

EXIT_FINDING = 1
ATTACK_WIDTH = 34
"""The longest name there is."""
STYLES = {"succeeded": "bold red", "broken": "bold red", "open": "yellow", "conceded": "yellow"}
EPILOG = """\
A lying aggregator, lying hops and hostile silos, each with the keys of its own node, attack honest nodes that run on
this machine under TLS. For each attack the table says which node refused it with which reason, and what the adversary
got: measured, for the drill knows the truth.

  refused     an honest node said no, and the adversary got nothing
  useless     it went through, and the adversary got nothing by it
  conceded    it works, and the threat model says so
  open        it works today; the rule that closes it is not built yet
  succeeded   it works, and must not: the exit code is 1
  broken      the drill itself failed and proves nothing: the exit code is 1

--without switches one rule off in the drill's own nodes, to show that its attacks then succeed. No configuration does
that to a federation.

examples:
  silomix attack active --all
  silomix attack active --list
  silomix attack active --only short-chain --only second-cohort
  silomix attack active --without R1              the attacks on R1, where it does not hold
  silomix attack active --all --json | jq '.by_attack | map_values(.outcome)'
"""


def add(kinds: Any, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command to the parser."""
    about = "attack live honest nodes with a lying aggregator, lying hops and hostile silos"
    cmd = kinds.add_parser(
        "active",
        help=about,
        description=about.capitalize() + ".",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cmd.add_argument("--all", action="store_true", help="every attack: about two minutes")
    cmd.add_argument("--list", action="store_true", help="list every attack, its rule, and what should come of it")
    cmd.add_argument("--only", action="append", default=[], metavar="NAME", help="this attack; may be repeated")
    cmd.add_argument(
        "--without", default="", metavar="RULE", help="switch a rule off: R1, history, facts, agreement, ..."
    )
    json_flag(cmd)
    cmd.set_defaults(handler=_active)


def _active(args: argparse.Namespace) -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # lines that are cut are what a drill is made of
    from silomix.attacks.active.drill import run
    from silomix.attacks.active.registry import all_attacks, find
    from silomix.attacks.active.report import summary
    from silomix.runtime.local import interrupt_on_sigterm

    without = _rule(args.without)
    if args.list:
        return _list(all_attacks(), args.json)
    if args.only:
        chosen = find(args.only)
    elif args.all or without is not None:
        chosen = tuple(one for one in all_attacks() if args.all or one.rule == without)
    else:
        raise UserError("which attacks? --all runs every one, --list names them, --only NAME runs one")
    interrupt_on_sigterm()
    with Progress(*_COLUMNS, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("making federations", total=len(chosen))

        def told(attack: "Attack", result: "Result | None") -> None:
            bar.update(task, description=attack.name, advance=int(result is not None))

        results = run(chosen, without, told)
    if args.json:
        say_json(summary(results, str(without or "")))
    else:
        _show(results, without)
    return 0 if all(result.held for result in results) else EXIT_FINDING


_COLUMNS = (
    TextColumn("{task.description:<36}"),
    BarColumn(),
    TextColumn("{task.completed}/{task.total}"),
    TimeElapsedColumn(),
)


def _rule(name: str) -> "Rule | None":
    from silomix.attacks.active.without import ALSO, SWITCHABLE

    if not name:
        return None
    names = {str(rule).lower(): rule for rule in SWITCHABLE} | ALSO
    found = names.get(name.lower())
    if found is None:
        raise UserError(f"--without {name}: give one of {', '.join((*SWITCHABLE, *ALSO))}")
    return found


def _list(attacks: "Sequence[Attack]", as_json: bool) -> int:
    from silomix.attacks.active.registry import MEANINGS

    if as_json:
        rows = [
            {"name": a.name, "rule": a.rule, "adversary": a.adversary, "expected": a.expect, "about": a.about}
            for a in attacks
        ]
        say_json({"attacks": rows, "rules": MEANINGS})
        return 0
    table = Table(title=f"{len(attacks)} attacks")
    for column in ("attack", "rule", "adversary", "should be", "what it does"):
        table.add_column(column, overflow="fold")
    for one in attacks:
        closed = f" (to be closed by {one.closed_by})" if one.expect == "open" else ""
        table.add_row(one.name, one.rule, one.adversary, f"{one.expect}{closed}", one.about)
    out = console()
    out.print(table)
    for rule, text in MEANINGS.items():
        out.print(f"{rule:<9} {text}", soft_wrap=True, highlight=False)
    return 0


def _show(results: "list[Result]", without: "Rule | None") -> None:
    from silomix.attacks.active.registry import MEANINGS
    from silomix.attacks.active.report import got, refusers, sentence

    out = console()
    for rule, meaning in MEANINGS.items():
        mine = [result for result in results if result.attack.rule == rule]
        table = Table(box=SIMPLE_HEAD, title=f"{rule}: {meaning}", title_justify="left", title_style="bold")
        table.add_column("attack", width=ATTACK_WIDTH, overflow="fold")
        table.add_column("outcome", width=max(map(len, STYLES)))
        table.add_column("by whom, who refused, and what was got", overflow="fold")
        for result in mine:
            nodes, reasons = refusers(result)
            refused = f"{nodes} refused: {reasons}. " if nodes else ""
            told = f"{result.attack.adversary}. {refused}Got: {got(result)}"
            table.add_row(result.attack.name, str(result.outcome), told, style=STYLES.get(result.outcome))
        if mine:
            out.print(table)
    out.print(sentence(results) + (f" Without {without}." if without else ""), soft_wrap=True)
    for result in results:
        if not result.held:
            out.print(f"{result.outcome.upper()}: {result.attack.name}: {result.loot.said}", style="bold red")
