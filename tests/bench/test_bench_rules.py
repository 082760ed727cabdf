"""`silomix bench rules`: every rule has its price, for the roles that pay it."""

import json

import pytest

from silomix.runtime.cli import main

SMALL = ("--silos", "3", "--hops", "2", "--parameters", "20000")


def test_every_rule_is_timed_on_a_round_that_really_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rules", *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    costs = found["costs"]
    assert {cost["rule"].split()[0] for cost in costs} == {"R1", "R2", "R3", "R4", "R5"}
    assert all(cost["seconds"] >= 0 for cost in costs)
    (lineage,) = (cost for cost in costs if cost["rule"].startswith("R5"))
    assert 16 <= 8 * lineage["bytes"] / found["parameters"] < 19  # a sum of three silos, and its transcript


def test_the_table_names_the_roles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rules", *SMALL]) == 0
    shown = capsys.readouterr().out
    for word in ("silo", "hop", "aggregator", "R3 release"):
        assert word in shown
