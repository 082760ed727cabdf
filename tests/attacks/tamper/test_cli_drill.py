"""`silomix drill` at the command line."""

import json

import pytest

from silomix.runtime.cli import main


def test_one_misbehaviour_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", "--only", "flips-a-residue-2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["missed"], told["wrongly_named"]) == (1, 0, 0)


def test_what_goes_through_without_the_check_shows_in_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", "--only", "flips-a-residue-2", "--without-check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["missed"] == 1


def test_nothing_is_run_in_vain(capsys: pytest.CaptureFixture[str]) -> None:
    """No run at all would look like one in which nothing was missed."""
    assert main(["drill", "--only", "silo-seals-another-seed", "--without-check"]) == 2
    assert "leave out silo-seals-another-seed" in capsys.readouterr().err
