"""Real processes that are killed at random: every sum is that of its cohort, and no round is lost."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from silomix.runtime.cli.entry import main
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.faults.chaos import SILOS, Chaos
from silomix.runtime.faults.checkable import UNIT, VALUES, Checkable
from silomix.runtime.faults.recovery import Before, takes_part
from silomix.runtime.store.home import Home
from silomix.runtime.store.modelfile import model_digest, write_model
from silomix.v1 import services_pb2


def test_a_round_that_adds_something_else_than_its_cohort_sent_is_noticed(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path / "f", 1, 0)
    home, names = Home(tmp_path / "f" / "aggregator"), tuple(f"silo-0{i + 1}" for i in range(SILOS))
    schema, first = Checkable(0, 0).schema(), Checkable(0, 0).initial()
    digests = []
    for wrong in (0, 1):
        after = {"values": first["values"] + (4**0 + 4**1 + 4**2 + wrong) * UNIT / 3}
        digests.append(model_digest(schema, after))
        path = home.state.model(digests[-1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(write_model(schema, {"values": after["values"].astype("float32")}))
    assert len(first["values"]) == VALUES
    before = model_digest(schema, first)
    record = Record(b"", 1, Outcome.ABANDONED, (), b"", before, digests[0], b"", b"", b"")
    for digest, expected in zip(digests, (0, 1), strict=True):
        chaos.report.wrong_sums = 0
        chaos._check(_For(replace(record, model_after=digest), names[:3]), home, names)  # type: ignore[arg-type]
        assert chaos.report.wrong_sums == expected
    assert chaos.report.sums_checked == 2


class _For:
    """A record of a round for some silos."""

    def __init__(self, record: Record, silos: tuple[str, ...]) -> None:
        self.model_before, self.model_after, self.silos = record.model_before, record.model_after, silos


@pytest.mark.full
def test_a_federation_outlives_what_befalls_it(tmp_path: Path) -> None:
    report = asyncio.run(Chaos(tmp_path / "f", 2, 5).run())
    assert (report.wrong_sums, report.rounds_lost, report.applied_twice) == (0, 0, 0)
    assert report.applied + report.abandoned == report.rounds == 2
    assert report.sums_checked == report.applied >= 1
    assert sum(report.faults.values()) >= 1
    assert set(report.recovery_s) <= set(report.next_round_s) <= set(report.faults)
    assert set(report.beyond_startup_s) <= set(report.startup_s) <= {"aggregator", "hop", "silo"}


@pytest.mark.full
def test_the_command_says_what_befell_a_longer_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--rounds", "25", "--seed", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["wrong_sums"], report["rounds_lost"], report["applied_twice"]) == (0, 0, 0)
    assert sum(report["kills"].values()) >= 10
    assert report["seconds"] > 0


@pytest.mark.parametrize(
    ("role", "status", "expected"),
    [
        ("silo", {"present": ["x"]}, True),
        ("silo", {"present": ["y"], "history": [{}]}, False),
        ("aggregator", {"phase": "hearing"}, False),
        ("aggregator", {"phase": "collecting"}, True),
        ("hop", {"phase": "collecting", "attempt": 1, "hops": [{"name": "x", "state": "open"}]}, False),  # it lost that
        ("hop", {"phase": "opening", "attempt": 2, "hops": [{"name": "x", "state": "open"}]}, False),
        ("hop", {"phase": "collecting", "attempt": 2, "hops": [{"name": "x", "state": "unreachable"}]}, False),
        ("hop", {"phase": "collecting", "attempt": 2, "hops": [{"name": "x", "state": "open"}]}, True),
        ("hop", {"phase": "preparing", "round": 2, "history": [{}]}, True),
    ],
)
def test_a_node_has_recovered_when_it_takes_part_again(role: str, status: dict[str, Any], expected: bool) -> None:
    now = services_pb2.GetStatusResponse(**{"round": 1, **status})
    before = Before.of(services_pb2.GetStatusResponse(round=1, attempt=1, phase="collecting"))
    assert takes_part(now, "x", role, before) is expected
