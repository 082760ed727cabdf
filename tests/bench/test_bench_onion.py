"""`silomix bench onion`: real onions beside ours, in bytes and time."""

import json

import pytest

from silomix.runtime.bench import onion
from silomix.runtime.cli import main


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onion, "REPEATS", 1)
    monkeypatch.setattr(onion, "SAMPLE_BITS", 4)
    monkeypatch.setattr(onion, "SAMPLE_PARAMETERS", 5000)


def test_bytes_and_times_are_those_of_what_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "onion", "--silos", "10", "--hops", "3", "--precision", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    theirs, ours = found["onion"], found["ours"]
    assert (theirs["bytes_per_bit"], theirs["bits_per_parameter"]) == (145, 53)
    assert theirs["wire_bits_per_parameter"] == 145 * 53 * 8
    assert ours["wire_bits_per_parameter"] == 18
    assert found["ratios"]["wire_bits_per_parameter"] == pytest.approx(145 * 53 * 8 / 18)
    for figures in (theirs, ours):
        assert min(figures.values()) > 0


def test_the_table_says_what_is_not_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "onion", "--hops", "2"]) == 0
    shown = capsys.readouterr().out
    assert "One bit is 97 bytes" in shown
    assert "Shuffling and proofs are not in it" in shown
