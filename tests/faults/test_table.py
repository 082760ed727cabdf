"""The table of docs/faults.md: every test that it names is there, and a row says what shows it or what is missing."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAST_ROWS = 20
"""The design has so many rows."""


FAULTS = (
    "duplicate identical submission",
    "same silo and round, different body",
    "replay from an old round or attempt",
    "replay from an old epoch",
    "hop killed before its journal write",
    "hop killed after the write",
    "second cohort after a release",
    "hop restored from an old backup",
    "aggregator restored from an old backup",
    "disk full",
    "torn write",
    "flipped bits on a disk",
    "silo gone mid-stream",
    "hop slow or gone",
    "aggregator killed at any point",
    "partition; clock an hour off",
    "wrong length, schema or modulus",
    "NaN or infinity",
    "bad signature, unknown key, wrong TLS name",
    "revoked key",
    "bit flipped in transit",
    "bit flipped by a hop",
    "aggregate out of range",
    "a published sum that is not the chain's",
    "flood, slow-loris, giant body, unparsable message, many streams",
    "cohort below the minimum",
    "two processes with one identity",
)
"""What the design owes an outcome for: a row that is left out would not be missed otherwise."""


def rows() -> list[list[str]]:
    page = (ROOT / "docs" / "faults.md").read_text()
    section = page.partition("## What fails, and what then")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def found_in(path: str) -> frozenset[str]:
    text = (ROOT / "tests" / path).read_text()
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE))


def test_every_test_that_the_table_names_is_there() -> None:
    named = [name for row in rows() for name in re.findall(r"`([^`]+)`", row[2])]
    assert len(named) > LEAST_ROWS
    for name in named:
        path, _, test = name.partition("::")
        assert (ROOT / "tests" / path).is_file(), name
        assert test in found_in(path), name


def test_every_fault_has_a_test_or_says_that_it_is_not_held_yet() -> None:
    assert len(rows()) >= LEAST_ROWS
    for fault, outcome, shown, missing in rows():
        assert fault, "a row without a fault"
        assert outcome, fault
        assert "::" in shown or missing, fault


def test_no_fault_of_the_design_is_left_out() -> None:
    for fault in FAULTS:
        assert any(row[0].startswith(fault) for row in rows()), fault
