"""The command line: arguments in, one handler each, faults turned into a line and an exit code.

Each family of commands has a file. Handlers import what they need when they run, so that `silomix plan` starts at once
and never loads a compiler.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from silomix.runtime.cli.attack import attacks, drill
from silomix.runtime.cli.exits import Exit, code_of
from silomix.runtime.cli.federation import dashboard, look, nodes, owners, render, verify
from silomix.runtime.cli.manual import Catalogue, exit_codes, show_help_if_bare
from silomix.runtime.cli.measure import bench, chaos, faults, plan
from silomix.runtime.cli.options import json_flag
from silomix.runtime.cli.start import data, model, run, simulate
from silomix.runtime.core.errors import Fault, Reason

FAMILIES = (
    *(run, simulate, data, model, owners, nodes, look, verify, dashboard, attacks, drill, render, plan, bench, faults),
    chaos,
)

DESCRIPTION = """\
silomix averages the models that several silos train, so that the aggregator cannot tell which silo a record came from.
Silos send masked residues of their parameters through a chain of shufflers, and only the sum over all silos comes out.
"""
EPILOG = """\
examples:
  silomix demo                                         a real federation on this machine, from start to end
  silomix run --task mytask:task --silos 5 --out run   the same with a task of your own, in ./mytask.py
  silomix init fed --silos 10 --shufflers 3            write a federation; then one process for each node
  silomix status --config fed/silo-01                  watch it
  silomix audit --quick                                attack it
  silomix plan --silos 10 --precision 4                what a parameter costs, by encoding
  silomix plan --silos 10 --precision 4 --json | jq '.rows[] | {encoding, bits_per_parameter}'

`silomix COMMAND --help` explains a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; only argparse leaves by SystemExit."""
    parser = make_parser()
    try:
        args = parser.parse_args(argv)
        handler: Callable[[argparse.Namespace], int] = args.handler
        code = handler(args)
        sys.stdout.flush()
    except BrokenPipeError as error:
        with suppress(OSError, ValueError):  # else the interpreter flushes into the same pipe on its way out
            stdout = sys.stdout.fileno()
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
        return code_of(error)
    except KeyboardInterrupt as error:
        return code_of(error)
    except Exception as error:
        code = code_of(error)
        if code is Exit.FAULTY:
            traceback.print_exc()
        else:
            sys.stderr.write(f"silomix: {_sentence(error)}\n")
    return code


def _sentence(error: Exception) -> str:
    """Say an error to whoever typed the command."""
    if isinstance(error, Fault) and error.reason is Reason.PLAN_INFEASIBLE:
        return f"{error} (n_max is --silos, r is --precision)"
    return str(error) or "not enough memory for that"


def make_parser() -> argparse.ArgumentParser:
    """Build the parser: its help is the manual."""
    parser = argparse.ArgumentParser(
        "silomix",
        usage="silomix COMMAND [options]",
        epilog=f"{EPILOG}\n{exit_codes()}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"silomix {_version()}")
    catalogue = Catalogue(parser)
    for family in FAMILIES:
        family.add(catalogue, json_flag)
    parser.description = f"{DESCRIPTION}\n{catalogue.text()}"
    show_help_if_bare(parser)
    return parser


def _version() -> str:
    try:
        return version("silomix")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "(not installed)"
