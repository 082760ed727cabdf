"""`silomix simulate`: a whole federation in this process, its rounds on disk, its progress on the terminal."""

import argparse
import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.runtime.cli.options import BadOption, Commands
from silomix.runtime.cli.policy_options import add_policy, flag, given_policy, wrong
from silomix.runtime.core.numbers.plan import Granularity
from silomix.runtime.core.policy import MAX_SILOS, Policy
from silomix.runtime.terminal import console, say, say_json

if TYPE_CHECKING:
    from silomix.models.simulation.record import RunDirectory
    from silomix.runtime.core.protocol.federation import Federation

EPILOG = """\
The models are those that a networked federation makes from the same options, bit for bit. DIR gets rounds.jsonl,
accuracy.png, best.safetensors and last.safetensors; the same command goes on where an interrupted run stopped.

examples:
  silomix simulate --silos 10 --rounds 20 --out run
  silomix simulate --rounds 20 --option alpha=0.5 --option epochs=2 --precision 3 --update weights --out run-3
  silomix simulate --server adam --server-lr 0.01 --subsample 0.6 --silos 20 --out run-adam
  silomix simulate --clip-norm 1 --noise-multiplier 0.5 --precision 3 --out run-noise
  silomix simulate --config fed --out run-fed          the federation that `silomix init fed` wrote
  silomix simulate --rounds 5 --out run --json | jq .accuracy
"""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command to the parser."""
    cmd = commands.add_parser(
        "simulate",
        help="run a whole federation in one process: the same models, no sockets",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    given = cmd.add_argument
    given("--out", type=Path, required=True, metavar="DIR", help="where to; a run in it goes on")
    given("--config", type=Path, help="take silos and policy from this federation's directory or file")
    given("--silos", type=int, metavar="N", help="silos (default: 10)")
    given(
        "--delta", type=float, default=1e-5, help="at which the epsilon of the noise is reported (default: %(default)s)"
    )
    given("--seed", type=int, default=0, help="of masks, noise, groups and draws (default: %(default)s)")
    given("--vanilla", action="store_true", help="the mean of the floats, without encoding: to compare with")
    given("--no-masks", action="store_true", help="skip the masks, which cancel: the same models, a little sooner")
    given("--workers", type=int, metavar="N", help="processes that train (default: the cores, at most the silos)")
    given("--evaluate-every", type=int, default=1, metavar="N", help="measure every N rounds (default: %(default)s)")
    given("--tensorboard", action="store_true", help="write DIR/tensorboard too, if tensorboard is installed")
    json_flag(cmd)
    add_policy(cmd)
    cmd.set_defaults(handler=_simulate)


def _simulate(args: argparse.Namespace) -> int:
    from silomix.models.simulation.record import RunDirectory
    from silomix.models.simulation.simulate import simulate
    from silomix.runtime.cli.start.board import DIRECTORY, Board
    from silomix.runtime.config.tables import ConfigError
    from silomix.runtime.core.learning.optimise import Optimiser
    from silomix.runtime.core.protocol.rules import pin_problem
    from silomix.runtime.local import interrupt_on_sigterm
    from silomix.runtime.task import load_task

    federation, policy, silos = _asked(args)
    if policy.granularity is not Granularity.SUM:
        raise wrong("granularity", f'found "{policy.granularity}"; a simulation makes sums: give "sum"')
    settings = {f.name: getattr(policy, f.name) for f in fields(policy)}
    settings |= {"task_options": dict(policy.task_options), "silos": silos, "seed": args.seed, "vanilla": args.vanilla}
    if args.workers is not None and args.workers < 1:
        raise BadOption("--workers", f"found {args.workers}; give 1 or more")
    if not 0 < args.delta < 1:
        raise BadOption("--delta", f"found {args.delta}; give a number between 0 and 1")
    workers = args.workers or min(len(os.sched_getaffinity(0)), silos)
    task = load_task(policy.task, policy.task_options)  # before anything is written
    schema, optimiser = task.schema(), Optimiser.of(policy)
    if pinned := pin_problem(schema, policy):
        problem = f"the task's model {pinned}"
        raise ConfigError(args.config, "", problem) if args.config else BadOption("--schema", problem)
    interrupt_on_sigterm()
    with ExitStack() as stack:
        record = stack.enter_context(RunDirectory(args.out, settings))
        stack.callback(record.plot)
        board = Board(args.out / DIRECTORY, record.done) if args.tensorboard else None
        if board is not None:
            stack.callback(board.close)
        rounds = simulate(
            policy,
            silos,
            seed=args.seed,
            protect=not args.no_masks,
            vanilla=args.vanilla,
            workers=workers,
            evaluate_every=args.evaluate_every,
            federation=federation,
            start=record.start(schema, optimiser),
        )
        if record.done < policy.rounds:
            show = stack.enter_context(_progress(policy.rounds, record))
            for done in rounds:
                line = record.add(done, schema, optimiser)
                if board is not None:
                    board.write(done.round, {**line["metrics"], "training_share": line["training_share"]})
                show.update(0, completed=done.round, description=_now(line))
    _report(args, record, silos, workers, _spent(args, record, policy, schema.parameters, silos))
    return 0


def _asked(args: argparse.Namespace) -> "tuple[Federation | None, Policy, int]":
    """Return what to simulate: a federation's file, or a policy from the options, checked as a file's is."""
    from silomix.models.simulation.simulate import pretend
    from silomix.runtime.config.load import LEAST_SILOS, load_federation
    from silomix.runtime.config.tables import ConfigError

    given = given_policy(args)
    if args.config is not None:
        for name in [*(["silos"] if args.silos is not None else []), *given]:
            raise ConfigError(args.config, "", f"the policy stands there; leave {flag(name)} out")
        federation = load_federation(args.config)
        return federation, federation.policy, len(federation.silos)
    silos = 10 if args.silos is None else args.silos
    if not LEAST_SILOS <= silos <= MAX_SILOS:
        raise BadOption("--silos", f"found {silos}; give {LEAST_SILOS} to {MAX_SILOS}")
    policy = Policy(**given)
    if _takes(policy.task, "silos"):
        policy = replace(policy, task_options={"silos": silos, **policy.task_options})
    if conflict := pretend(policy, silos, args.seed).conflict():
        raise wrong(*conflict)
    return None, policy, silos


def _takes(path: str, option: str) -> bool:
    """Tell whether a task's factory has an option; what is wrong with the task is said where it is loaded."""
    module, _, name = path.partition(":")
    try:
        return option in inspect.signature(getattr(importlib.import_module(module), name)).parameters
    except Exception:
        return False


def _progress(rounds: int, record: "RunDirectory") -> Any:
    """Make a bar with the time left; where nobody watches, it stays silent until the end."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console(stderr=True),
    )
    bar.add_task(_now(record.lines[-1]) if record.lines else "round 1", total=rounds, completed=record.done)
    return bar


def _now(line: dict[str, Any]) -> str:
    accuracy = line["metrics"].get("accuracy")
    return f"round {line['round']}" + ("" if accuracy is None else f", accuracy {accuracy:.3f}")


def _spent(
    args: argparse.Namespace, record: "RunDirectory", policy: "Policy", parameters: int, silos: int
) -> dict[str, float]:
    """Return the epsilons: of a silo as a whole, by the noise in the sums, and of a record, by a task with DP-SGD."""
    from silomix.runtime.core.learning.noise_account import spent

    found: dict[str, float] = {}
    if policy.noise_multiplier and not args.vanilla:
        found["silo_epsilon"] = spent(policy, parameters, record.done, args.delta, policy.contributors(silos))
    records = [own["epsilon"] for own in record.lines[-1]["training"] if own.get("epsilon") is not None]
    if records:
        found["record_epsilon"] = max(records)
    return found


def _report(
    args: argparse.Namespace, record: "RunDirectory", silos: int, workers: int, epsilons: Mapping[str, float]
) -> None:
    """Say what came of it."""
    from silomix.models.simulation.record import BEST, LAST, PLOT, ROUNDS

    measured = record.accuracies()
    best = max(measured, key=lambda round_: measured[round_], default=None)
    total = sum(line["seconds"]["total"] for line in record.lines)
    share = sum(line["seconds"]["train"] for line in record.lines) / total
    summary = {
        "out": str(args.out),
        "silos": silos,
        "rounds": record.done,
        "seconds": round(total, 3),
        "accuracy": measured.get(record.done),
        "best_accuracy": None if best is None else measured[best],
        "best_round": best,
        "training_share": round(share, 4),
        "workers": workers,
        **epsilons,
    }
    if args.json:
        say_json(summary)
        return
    say(f"{record.done} rounds of {silos} silos in {total:.1f} s, {100 * share:.1f}% of it in training")
    if best is not None:
        last = measured.get(record.done)
        shown = "" if last is None else f"accuracy {last:.3f}; "
        say(f"{shown}the best was {measured[best]:.3f} after round {best}")
    for name, value in epsilons.items():
        say(f"{name.replace('_', ' ')} spent: {value:.3g}")
    kept = [ROUNDS, LAST, *([BEST, PLOT] if best is not None else [])]
    say(f"{args.out}: {', '.join(kept)}")
