"""Every key of the policy is an option of `init`, `run`, `simulate` and `plan`, made of what policy.py says of it."""

import argparse
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from silomix.runtime.cli import main, make_parser
from silomix.runtime.cli.options import BadOption
from silomix.runtime.cli.policy_options import OPTIONS, add_policy, flag, given_policy, policy_of
from silomix.runtime.cli.start import run
from silomix.runtime.config.keys import POLICY_KEYS
from silomix.runtime.config.load import load_federation
from silomix.runtime.core.policy import KEYS, Policy, Server

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "init": ["init", "somewhere"],
    "run": ["run", "--out", "somewhere"],
    "simulate": ["simulate", "--out", "somewhere"],
    "plan": ["plan"],
}
OWN = {"run": "task", "plan": "parameters"}
"""Keys that a command asks for in words of its own: whose task to run, and how large the model is to be planned for."""
SUGGESTED = {"run": run.DEFAULTS}
GIVEN: dict[str, tuple[str, Any]] = {
    "task": ("my.package:task", "my.package:task"),
    "rounds": ("7", 7),
    "minimum_cohort": ("4", 4),
    "minimum_hops": ("2", 2),
    "quorum": ("0.75", 0.75),
    "cohort_step": ("3", 3),
    "server": ("adam", Server.ADAM),
    "clip_norm": ("2", 2.0),
}


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_policy(parser)
    return parser.parse_args(arguments)


def test_every_field_has_its_text_its_range_and_a_default_within_it() -> None:
    assert list(KEYS) == [f.name for f in fields(Policy)] == list(POLICY_KEYS)
    plain = Policy()
    for name, key in KEYS.items():
        assert key.what[0].isupper() or key.what[0].isdigit(), name
        assert key.what.endswith("."), name
        assert key.default == getattr(plain, name) == POLICY_KEYS[name].default
        assert key.kind.parse(key.default) == key.default, name
        assert type(key.kind.parse(key.default)) is type(key.default), name
        assert POLICY_KEYS[name].kind is key.kind
        assert POLICY_KEYS[name].what is key.what


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_is_an_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, key in KEYS.items():
        assert f" {flag(name)} " in text
        if name not in (OPTIONS, "chunk_parameters", "encoding", OWN.get(command)):
            default = SUGGESTED.get(command, {}).get(name, key.default)
            assert f"(default: {default})" in text.partition("policy: What")[2].partition(f" {flag(name)} ")[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_given_becomes_the_policy(command: str) -> None:
    words = [word for name, (text, _) in GIVEN.items() for word in (flag(name), text)]
    args = make_parser().parse_args([*COMMANDS[command], *words, "--option", "lr=0.5", "--option", "note=a b"])
    expected = {name: value for name, (_, value) in GIVEN.items()} | {OPTIONS: {"lr": 0.5, "note": "a b"}}
    assert given_policy(args) == expected
    assert policy_of(args) == Policy(**expected)


def test_what_is_given_goes_before_what_a_command_suggests_and_that_before_the_default() -> None:
    assert policy_of(parsed()) == Policy()
    assert policy_of(parsed(), rounds=3, precision=5) == Policy(rounds=3, precision=5)
    assert policy_of(parsed("--rounds", "2"), rounds=3, precision=5) == Policy(rounds=2, precision=5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--quorum", "0"], "--quorum: found 0.0; give a number above 0 and at most 1"),
        (["--minimum-cohort", "2"], "--minimum-cohort: found 2; give 0, or a whole number from 3 to 1000"),
        (["--chunk-parameters", "17"], "--chunk-parameters: found 17; give a multiple of 16"),
        (["--server-lr", "nan"], "--server-lr: found nan; give a finite number above 0"),
        (["--task", "nothing"], '--task: found nothing; give "package.module:factory"'),
        (["--option", "lr"], "--option: found 'lr'; give KEY=VALUE"),
        (["--option", "lr=[1]"], "--option: found {'lr': [1]}; give a table of names"),
    ],
)
def test_what_is_wrong_is_named_by_its_option(arguments: list[str], says: str) -> None:
    with pytest.raises(BadOption) as caught:
        given_policy(parsed(*arguments))
    assert str(caught.value).startswith(says)


def test_a_command_may_leave_keys_out() -> None:
    parser = argparse.ArgumentParser()
    add_policy(parser, without=("rounds", OPTIONS))
    args = parser.parse_args(["--precision", "3"])
    assert not hasattr(args, "rounds")
    assert not hasattr(args, "option")
    assert given_policy(args) == {"precision": 3}


def test_init_writes_what_was_given(tmp_path: Path) -> None:
    home, toy = tmp_path / "fed", ["--task", "tests.nodes.toy:task", "--silos", "4", "--insecure"]
    words = ["--shufflers", "5", "--minimum-hops", "4", "--quorum", "0.8", "--cohort-step", "3", "--attempts", "2"]
    assert main(["init", str(home), *toy, *words]) == 0
    policy = load_federation(home).policy
    assert (policy.minimum_hops, policy.quorum, policy.cohort_step, policy.attempts) == (4, 0.8, 3, 2)
    assert policy.minimum_cohort == 0
    assert policy.chunk_parameters == 262144


@pytest.mark.parametrize("arguments", [["--help"], ["init", "--help"], ["simulate", "--help"], ["plan", "--help"]])
def test_a_manual_loads_no_compiler(arguments: list[str]) -> None:
    """A policy's texts are data: to show them takes neither numpy nor a network, and no certificates."""
    code = (
        "import sys\nfrom silomix.runtime.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "heavy = {'numba', 'numpy', 'torch', 'grpc', 'cryptography'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: silomix" in done.stdout
