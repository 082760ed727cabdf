"""The commands that run a federation: what they leave behind, and what they print."""

import json
from pathlib import Path
from typing import Any

import pytest

from silomix.runtime.cli import entry
from silomix.runtime.cli.federation.status import as_json_value, closes, render
from silomix.runtime.terminal import console
from silomix.v1 import services_pb2


@pytest.mark.parametrize(
    "flags",
    [
        ["--task", "no.such.module:task"],
        ["--task", "tests.nodes.toy:task", "--option", "parameters=many"],
        ["--task", "tests.nodes.toy:task", "--precision", "40"],
        ["--silos", "2"],
    ],
)
def test_an_init_that_fails_leaves_nothing_behind(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "federation"
    assert entry.main(["init", str(home), *flags]) == 2
    assert capsys.readouterr().err.startswith("silomix: ")
    assert not home.exists()


def test_init_writes_a_federation_and_its_first_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "federation"
    assert entry.main(["init", str(home), "--silos", "3", "--shufflers", "1", "--task", "tests.nodes.toy:task"]) == 0
    said = capsys.readouterr().out
    for node in ("aggregator", "shuffler-1", "silo-01", "silo-02", "silo-03"):
        assert (home / node / "node.toml").is_file()
        assert f"--config {home / node}" in said
    first = (home / "aggregator" / "initial.safetensors").read_bytes()
    other = tmp_path / "again.safetensors"
    assert entry.main(["model", "init", "--config", str(home / "aggregator"), "--out", str(other)]) == 0
    assert other.read_bytes() == first


def test_init_says_what_its_chain_holds_against(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--silos", "3", "--shufflers", "5", "--minimum-hops", "4", "--task", "tests.nodes.toy:task", "--insecure"]
    assert entry.main(["init", str(tmp_path / "federation"), *flags]) == 0
    numbers = "holds against 2 that collude with the aggregator, and can be formed without 1"
    assert f"chain of 4 or more of 5 hops: {numbers}\n" in capsys.readouterr().out


def test_a_directory_that_cannot_be_made_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["init", "/proc/no/such", "--task", "tests.nodes.toy:task"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_status_says_when_the_cohort_closes() -> None:
    def said(**status: Any) -> str:
        return closes(services_pb2.GetStatusResponse(**status))

    assert said(phase="preparing", closes_s=9) == ""
    assert said(phase="collecting", closes_s=9).endswith("closes in 9 s at the latest")
    assert said(phase="collecting", closes_s=9, closes_early=True).endswith("if enough silos are in")
    assert "as soon as enough silos are in" in said(phase="collecting", closes_early=True)


def test_a_status_steers_no_terminal_and_forges_no_line() -> None:
    """Its words are the aggregator's, and hops' on the way through it."""
    steering = "x\x1b]0;owned\x07\x1b[2J\n\r\x9b1m"
    hop = services_pb2.HopStatus(name=steering, state=steering, trouble=steering)
    said: dict[str, Any] = {"federation": steering, "phase": steering, "stuck": steering, "hops": [hop]}
    plain: dict[str, Any] = {
        "federation": "x",
        "phase": "x",
        "stuck": "x",
        "hops": [services_pb2.HopStatus(trouble="x")],
    }
    out = console()
    drawn, expected = list[str](), list[str]()
    for found, status in ((drawn, said), (expected, plain)):
        with out.capture() as captured:
            out.print(render(services_pb2.GetStatusResponse(**status)))
        found += captured.get().split("\n")
    assert all(line.isprintable() for line in drawn)
    assert len(drawn) == len(expected)


def test_a_status_has_numbers_as_numbers() -> None:
    done = services_pb2.RoundStatus(round=3, attempts=1, cohort=5, seconds=1.5, bits_per_parameter=18.0)
    status = services_pb2.GetStatusResponse(federation="f", round=4, rounds=9, attempt=1, history=[done])
    value = json.loads(json.dumps(as_json_value(status)))
    assert (value["round"], value["rounds"], value["history"][0]["round"]) == (4, 9, 3)
    assert "score" not in value["history"][0]  # nobody measured it
    assert value["present"] == []
