"""The command `model`: write a task's first model, or a trained one as a torch state dict."""

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from silomix.runtime.cli.options import Commands
from silomix.runtime.terminal import say, say_json

EPILOG = """\
examples:
  silomix model export --config run                            run/final.safetensors as run/model.pt
  silomix model export --config run --model run/best.safetensors --out best.pt
  silomix model init --config fed                              the model that round 1 begins with
"""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add `model init` and `model export`. What they need is imported when they run."""
    model = commands.add_parser(
        "model",
        help="write a trained model as a torch state dict, or a task's initial model",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = model.add_subparsers(title="commands", metavar="COMMAND")
    cmd = kinds.add_parser("init", help="write the task's initial model", description="Write the task's initial model.")
    cmd.add_argument("--config", type=Path, required=True, help="the aggregator's directory, or the federation's")
    cmd.add_argument("--out", type=Path, help="file to write (default: initial.safetensors beside the configuration)")
    cmd.set_defaults(handler=_init)
    cmd = kinds.add_parser(
        "export",
        help="write a model as a torch state dict",
        description="Write a model file of a federation as a plain torch state dict, for load_state_dict(). With "
        "--config it is complete: the task adds what did not travel, such as frozen tensors.",
    )
    cmd.add_argument("--config", type=Path, metavar="DIR", help="the federation's directory, or that of `silomix run`")
    cmd.add_argument("--model", type=Path, metavar="FILE", help="a .safetensors file (default: DIR's trained model)")
    cmd.add_argument("--out", type=Path, metavar="FILE.pt", help="file to write (default: DIR/model.pt)")
    json_flag(cmd)
    cmd.set_defaults(handler=_export, fail=cmd.error)


def _init(args: argparse.Namespace) -> int:
    from silomix.runtime.config.load import load_federation, load_node
    from silomix.runtime.core.errors import UserError
    from silomix.runtime.core.protocol.roundlog import beginning_problem
    from silomix.runtime.local import initial_model
    from silomix.runtime.store.files import write_atomically
    from silomix.runtime.store.home import INITIAL_MODEL, NODE_FILE
    from silomix.runtime.store.modelfile import model_digest, read_model

    home = args.config if args.config.is_dir() else args.config.parent
    federation = load_node(home).federation if (home / NODE_FILE).exists() else load_federation(args.config)
    out = args.out or home / INITIAL_MODEL
    model = initial_model(federation.policy)
    if problem := beginning_problem(model_digest(*read_model(model)), federation):
        raise UserError(
            f"the model that {federation.policy.task} makes here {problem}: other versions of its libraries may make "
            f"another. Take the {INITIAL_MODEL} that `silomix assemble` or `init` wrote"
        )
    write_atomically(out, model)
    say(f"{out}: the model that {federation.policy.task} begins with")
    return 0


def _export(args: argparse.Namespace) -> int:
    if args.config is None and (args.model is None or args.out is None):
        args.fail("give --config with the federation's directory, or both --model and --out")
    from silomix.models.export import export

    done = export(args.config, args.model, args.out)
    if args.json:
        say_json({**asdict(done), "out": str(done.out), "model": str(done.model)})
        return 0
    say(f"{done.out}: {done.tensors} tensors with {done.values:,} values of {done.model}, for load_state_dict()")
    if done.lacks:
        say(f"it lacks {', '.join(done.lacks)}: name the federation with --config to have them")
    return 0
