"""`silomix attack active` at the command line."""

import json

import pytest

from silomix.attacks.active.registry import all_attacks
from silomix.runtime.cli import main


def test_the_list_names_every_attack(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "active", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(attack.name in shown for attack in all_attacks())
    assert main(["attack", "active", "--list", "--json"]) == 0
    assert {one["name"] for one in json.loads(capsys.readouterr().out)["attacks"]} == {a.name for a in all_attacks()}


def test_one_attack_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "active", "--only", "short-chain", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["succeeded"], told["conceded"], told["open"]) == (1, 0, 0, 0)
    one = told["by_attack"]["short-chain"]
    assert (one["outcome"], one["rule"]) == ("refused", "R1")
    assert {r["node"] for r in one["refused_by"]} == {f"silo-0{i}" for i in range(1, 7)}


@pytest.mark.full
def test_what_succeeds_shows_in_the_table_and_in_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "active", "--only", "short-chain", "--without", "r1"]) == 1
    shown = capsys.readouterr().out
    assert "Without R1." in shown
    assert "SUCCEEDED: short-chain: every silo's update" in shown


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "which attacks?"),
        (["--only", "no-such-thing"], "there is no attack 'no-such-thing'"),
        (["--all", "--without", "R9"], "give one of R1"),
    ],
)
def test_what_is_wrong_is_said(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "active", *given]) == 2
    assert said in capsys.readouterr().err
