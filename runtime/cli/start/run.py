"""The commands that run a whole federation on this machine: run, and demo, which is `run` on a built-in task."""

import argparse
from collections.abc import Callable
from pathlib import Path

from silomix.runtime.cli.options import BadOption, Commands
from silomix.runtime.cli.policy_options import add_policy, by_option, flag, given_policy, policy_of

RUN_EPILOG = """\
Every node is a process of its own, with its own keys, over mutual TLS; they end with the run. The task is a function in
a Python module: ./mytask.py needs no installation. DIR gets final.safetensors (the trained model), best.safetensors,
history.jsonl and accuracy.png, and in DIR/federation the files and logs of the nodes. `silomix run DIR` goes on where
an interrupted run stopped.

examples:
  silomix run --task mytask:task --silos 5 --rounds 20 --out run
  silomix run --task mytask:task --option lr=0.01 --bound 4 --server adam --server-lr 0.01
  silomix run --task mytask:task --audit --vanilla     attack it at the end, and train without protection to compare
  silomix run fed                                      the federation that `silomix init fed` wrote
  silomix model export --config run                    then: the trained model as a torch state dict
"""
DEMO_EPILOG = """\
Ten silos hold shares of scikit-learn's digits that differ as much as Dirichlet(0.1) makes them. At the end the model is
compared with the plain mean of the same updates, and source inference is mounted on what the server captured and on
those updates. The exit code is 1 if the silos are not protected.
"""
DEFAULTS = {"deadline_s": 3600, "release_s": 600}
"""Of the policy, where it suggests others than `init`: all silos share this machine, and who fails says so at once."""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to the parser. What they need is imported when they run."""
    raw = argparse.RawDescriptionHelpFormatter
    cmd = commands.add_parser(
        "demo",
        help="watch a real federation on this machine: 10 silos, 3 shufflers, one aggregator",
        epilog=DEMO_EPILOG,
        formatter_class=raw,
    )
    cmd.add_argument("--silos", type=int, default=10, metavar="N", help="silos (default: %(default)s)")
    cmd.add_argument("--shufflers", type=int, default=3, metavar="N", help="hops (default: %(default)s)")
    cmd.add_argument("--rounds", type=int, default=20, metavar="N", help="rounds (default: %(default)s)")
    cmd.add_argument("--keep", type=Path, metavar="DIR", help="keep the model and the federation's files here")
    cmd.add_argument(
        "--level",
        choices=["trusted", "semi-honest", "malicious"],
        default="semi-honest",
        help="whom silos have to trust; at malicious every sum is checked for tampering (default: %(default)s)",
    )
    cmd.add_argument(
        "--tamper", default="", metavar="HOP", help="let this hop change one residue of each sum: see who is named"
    )
    json_flag(cmd)
    cmd.set_defaults(handler=_demo)

    cmd = commands.add_parser(
        "run",
        help="train a task of your own with a federation on this machine",
        description="Train a task with a federation on this machine, from start to end: one command to a model.",
        epilog=RUN_EPILOG,
        formatter_class=raw,
    )
    given = cmd.add_argument
    given("directory", type=Path, nargs="?", help="a federation that `silomix init` wrote, in place of --task")
    given("--task", metavar="MODULE:FUNCTION", help="what to train: `def task(silo=-1)` in ./MODULE.py or a package")
    given("--silos", type=int, metavar="N", help="silos (default: 5)")
    given("--shufflers", type=int, metavar="N", help="hops of the chain (default: 2)")
    given(
        "--out",
        type=Path,
        metavar="DIR",
        help="where to write (default: run, run-2 and so on; a federation's own directory)",
    )
    given("--audit", action="store_true", help="attack it at the end; the exit code is 1 if silos are not protected")
    given("--vanilla", action="store_true", help="train without protection too, to compare")
    given("--plot", choices=["png", "svg", "none"], default="png", help="accuracy by round (default: %(default)s)")
    given("--tensorboard", action="store_true", help="write DIR/tensorboard too, if tensorboard is installed")
    json_flag(cmd)
    add_policy(cmd, without=("task",), defaults={key: str(value) for key, value in DEFAULTS.items()})
    cmd.set_defaults(handler=_run, fail=cmd.error)


def _demo(args: argparse.Namespace) -> int:
    from silomix.runtime.cli.start.demo import demo

    if args.tamper:
        if args.level != "malicious":
            raise BadOption("--tamper", "nothing finds tampering out below --level malicious; give both")
        from silomix.runtime.cli.start.tampered import tampered

        return tampered(args.tamper, args.silos, args.shufflers, keep=args.keep, as_json=args.json)
    return demo(args.silos, args.shufflers, args.rounds, level=args.level, keep=args.keep, as_json=args.json)


def _run(args: argparse.Namespace) -> int:
    if (args.directory is None) == (args.task is None):
        args.fail("give --task with what to train, or the directory of a federation")
    if args.directory is not None:
        said = [name for name in ("silos", "shufflers") if getattr(args, name) is not None]
        for name in (*said, *given_policy(args)):
            raise BadOption(flag(name), f"{args.directory} says it already; leave this out")
    from silomix.runtime.cli.start.running import Asked, run_command

    out = args.out if args.out or args.directory else _free()
    asked = Asked(
        task=args.directory or args.task,
        silos=args.silos,
        shufflers=2 if args.shufflers is None else args.shufflers,
        policy=None if args.directory else policy_of(args, **DEFAULTS),
        out=out,
        audit=args.audit,
        vanilla=args.vanilla,
        plot="" if args.plot == "none" else args.plot,
        tensorboard=args.tensorboard,
    )
    with by_option():
        return run_command(asked, as_json=args.json)


def _free() -> Path:
    """Return the first of run, run-2, run-3 and so on that is not there."""
    number = 1
    while (place := Path("run" if number == 1 else f"run-{number}")).exists():
        number += 1
    return place
