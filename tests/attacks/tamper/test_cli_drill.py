"""`silomix drill` at the command line."""

import json
from collections.abc import Sequence

import pytest

from silomix.attacks.tamper import drill as tamper
from silomix.attacks.tamper.registry import Misbehaviour
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


def test_with_all_of_them_those_that_the_equations_do_not_find_are_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def drill(chosen: Sequence[Misbehaviour], *_: object) -> list[tamper.Result]:
        ran.extend(one.name for one in chosen)
        return []

    monkeypatch.setattr(tamper, "drill", drill)
    assert main(["drill", "--all", "--only", "silo-seals-another-seed", "--without-check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 0
    assert "flips-a-residue-2" in ran
    assert "silo-seals-another-seed" not in ran
