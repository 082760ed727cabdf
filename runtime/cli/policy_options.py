"""The keys of the policy as options of a command: one for each key, made of what core/protocol/policy.py says of it.

>>> add_policy(command)                                     # --rounds, --minimum-hops, --quorum, ..., --option
>>> policy_of(args, chunk_parameters=chunk_for(args.silos))  # what the user gave, else this, else the key's default
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from silomix.runtime.cli import options
from silomix.runtime.cli.options import BadOption, read_pairs
from silomix.runtime.core.policy import KEYS, Policy, PolicyKey
from silomix.runtime.core.values import Kind

OPTIONS = "task_options"
"""The one key whose value is no single word: it is given as --option KEY=VALUE, once for each."""
COUNTS = ("silos", "shufflers", "base_port", "metrics_base_port")
"""What else is said of a federation in numbers when it is made."""
_METAVARS = {int: "N", float: "X", str: "TEXT"}


def add_policy(
    parser: argparse.ArgumentParser, *, without: Iterable[str] = (), defaults: Mapping[str, str] | None = None
) -> None:
    """Give a command an option for each key of the policy.

    without   keys that the command has no use for
    defaults  in words, of keys for which the command suggests something else than their default
    """
    group = parser.add_argument_group("policy", "What the owners agree on; docs/operations.md says how to choose.")
    for name, key in KEYS.items():
        if name in without:
            continue
        if name == OPTIONS:
            what = "an option of the task; may be repeated"
            group.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help=what)
            continue
        kind = key.kind
        assert kind.reads is not None
        told = _help(key, (defaults or {}).get(name))
        if kind.words:
            group.add_argument(flag(name), choices=kind.words, help=told)
        elif kind.name:
            metavar = f"{_METAVARS[kind.reads]}|{kind.name}"
            group.add_argument(flag(name), type=partial(_word_or, kind), metavar=metavar, help=told)
        else:
            group.add_argument(flag(name), type=kind.reads, metavar=_METAVARS[kind.reads], help=told)


def _word_or(kind: Kind, word: str) -> Any:
    """Read a word of the command line: a kind's own name for a value, or a value."""
    assert kind.reads is not None
    try:
        return word if word == kind.name else kind.reads(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {word}; give {kind.allowed}") from None


def flag(name: str) -> str:
    """The option that a key is given by."""
    return options.flag("option" if name == OPTIONS else name)


def given_policy(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keys that the user gave, checked as a file's are."""
    found: dict[str, Any] = {}
    for name, key in KEYS.items():
        value = (
            read_pairs("--option", getattr(args, "option", [])) or None
            if name == OPTIONS
            else getattr(args, name, None)
        )
        if value is None:
            continue
        try:
            found[name] = key.kind.parse(value)
        except (ValueError, OverflowError):
            raise wrong(name, f"found {value}; give {key.kind.allowed}") from None
    return found


def policy_of(args: argparse.Namespace, **suggested: Any) -> Policy:
    """Make the policy of a command: what the user gave, else what the command suggests, else the keys' defaults."""
    return Policy(**{**suggested, **given_policy(args)})


def wrong(name: str, problem: str) -> BadOption:
    """Say what is wrong with a key, by the option that it was given by."""
    return BadOption(flag(name), problem)


@contextmanager
def by_option() -> Iterator[None]:
    """Report what is wrong with a federation that is only just being made by the option that said so.

    The file that it would have stood in does not exist, and the user has never seen it.
    """
    from silomix.runtime.config.tables import ConfigError

    try:
        yield
    except ConfigError as error:
        name = error.key.removeprefix("policy.")
        if error.file.is_file() or not (name in KEYS or name in ("name", *COUNTS)):
            raise
        raise wrong(name, error.problem) from None


def _help(key: PolicyKey, default: str | None) -> str:
    """The first sentence of a key's text, and its default."""
    first = re.split(r"\.(?: (?=[A-Z])|$)", key.what, maxsplit=1)[0]
    return f"{first[0].lower()}{first[1:]} (default: {default or key.default})".replace("%", "%%")
