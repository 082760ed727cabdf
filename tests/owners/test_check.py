"""`silomix check`: what is wrong is found on the host where it can be mended, and each line says what to do."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
from tests.config.written import edit
from tests.nodes.federations import make, manifest_at
from tests.owners.hospitals import Hospitals, run
from tests.tools import root

from silomix.runtime.checkup import host
from silomix.runtime.checkup.findings import Finding, looked
from silomix.runtime.checkup.report import checkup
from silomix.runtime.config.load import load_node
from silomix.runtime.local import InProcess
from silomix.runtime.net import version


def quick(node: Path) -> dict[str, Finding]:
    return {finding.what: finding for finding in checkup(node, quick=True, offline=True)}


def test_all_is_well(hospitals: Hospitals, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("check", "--config", hospitals.node("silo-02"), "--quick", "--offline", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["well"]
    assert {finding["what"] for finding in said["findings"]} == {
        *("configuration", "federation file", "agreement", "key files", "certificate", "pins", "clock", "disk", "task")
    }
    shown = next(finding["found"] for finding in said["findings"] if finding["what"] == "federation file")
    assert "holds against 1 that collude with the aggregator, and needs all 2" in shown


@pytest.mark.parametrize(
    ("spoil", "what", "found", "do"),
    [
        (lambda home: (home / ".." / "hospital-c.accepted").unlink(), "agreement", "hospital-c of 3", "ask hospital-c"),
        (lambda home: (home / ".." / "hospital-b.accepted").unlink(), "agreement", "hospital-b", "accept` yourself"),
        (lambda home: (home / ".." / "silo-03.pin").unlink(), "pins", "no pin of silo-03", "ask hospital-c"),
        (lambda home: home.chmod(0o777), "key files", "others may write", "chmod 700"),
        (lambda home: (home / "tls.key").chmod(0o644), "configuration", "open to others", "mend this first"),
        (lambda home: edit(home / "node.toml", 'name = "silo-02"', 'name = "silo-2"'), "configuration", "did", "mend"),
        (lambda home: (home / "identity.key").unlink(), "configuration", "identity.key", "mend this first"),
        (lambda home: (home / "identity.key").write_text("gibberish"), "configuration", "not an Ed25519", "mend"),
        (lambda home: edit(home / "node.toml", "# before_round = []", 'before_round = ["/no/such"]'), "before_round",
         "would never take part", "correct before_round"),
    ],
)  # fmt: skip
def test_each_trouble_is_named_with_what_to_do(
    hospitals: Hospitals, spoil: Callable[[Path], Any], what: str, found: str, do: str
) -> None:
    spoil(hospitals.node("silo-02"))
    finding = quick(hospitals.node("silo-02"))[what]
    assert not finding.well
    assert found in finding.found
    assert do in finding.do


@pytest.mark.parametrize(
    ("now", "what", "found", "do"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), "clock", "thinks that it is 1970-01-01", "set the clock"),
        (datetime.now(UTC) - timedelta(days=2), "clock", "the certificate is good from", "set the clock"),
        (datetime.now(UTC) + timedelta(days=3000), "certificate", "runs out on", "silomix rotate"),
    ],
)
def test_a_clock_that_is_wrong(
    hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch, now: datetime, what: str, found: str, do: str
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Clock":
            return cls.fromtimestamp(now.timestamp(), tz)

    monkeypatch.setattr(host, "datetime", Clock)
    finding = quick(hospitals.node("silo-02"))[what]
    assert not finding.well
    assert found in finding.found
    assert do in finding.do


def test_a_disk_that_is_full(hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(hospitals.place)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    finding = quick(hospitals.node("silo-02"))["disk"]
    assert not finding.well
    assert "0.0 GB free" in finding.found
    assert "make room" in finding.do


def test_what_the_user_that_runs_the_node_cannot_read(hospitals: Hospitals) -> None:
    """Root can read everything: what counts is whose the node's directory is."""
    root()
    home = hospitals.node("silo-02")
    for path in (home, *home.iterdir()):
        os.chown(path, 12345, 12345)
    assert quick(home)["key files"].well
    os.chown(home / "tls.key", 0, 0)
    finding = quick(home)["key files"]
    assert not finding.well
    assert f"{home / 'tls.key'} is root's, and {home} user 12345's" in finding.found
    assert finding.do == f"chown -R --reference={home} {home / 'tls.key'}"


@pytest.mark.parametrize(
    ("option", "found", "do"),
    [
        ("parameters = 60", "60 values, and the policy pins 50", "options differ"),
        ('parameters = "many"', "not of type int", "`task_options` in node.toml"),
        ("rows = 1", "has no option rows", "`task_options` in node.toml"),
        ("broken = true", "trained b to NaN", "missing values"),
    ],
)
def test_a_task_that_cannot_be_trained(hospitals: Hospitals, option: str, found: str, do: str) -> None:
    home = hospitals.node("silo-02")
    edit(home / "node.toml", "silo = 1", f"silo = 1\n{option}")
    finding = looked("task", lambda: host.task(load_node(home)))
    assert not finding.well
    assert found in finding.found
    assert do in finding.do


def test_an_aggregator_without_its_first_model(hospitals: Hospitals, capsys: pytest.CaptureFixture[str]) -> None:
    node = hospitals.node("aggregator")
    finding = quick(node)["initial model"]
    assert not finding.well
    assert f"silomix model init --config {node}" in finding.do
    assert run("model", "init", "--config", node) == 0
    assert quick(node)["initial model"].well
    assert run("check", "--config", node, "--quick") == 1  # nobody is there
    assert "FAIL  peer shuffler-1" in capsys.readouterr().out


async def test_peers_are_greeted_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions, federation files and certificates of those who are dialled, with this node's own certificate."""
    home = tmp_path / "f"
    make(home, 4, 1, deadline_s=600)

    async def peers(node: str) -> dict[str, Finding]:
        found = await asyncio.to_thread(checkup, home / node, quick=True, timeout_s=20.0)
        return {finding.what: finding for finding in found if finding.what.startswith("peer ")}

    async with InProcess(home, without=("silo-04",)) as running:
        await manifest_at(running)
        found = await peers("silo-04")
        assert set(found) == {"peer aggregator", "peer shuffler-1"}
        assert all(finding.well for finding in found.values()), found
        assert f"protocol {version.PROTOCOL}, same file" in found["peer aggregator"].found

        edit(home / "federation.toml", "rounds = 1", "rounds = 2")
        finding = (await peers("silo-04"))["peer shuffler-1"]
        assert not finding.well
        for digest in (load_node(home / "silo-04").federation.digest, running.federation.digest):
            assert digest.hex()[:16] in finding.found
        edit(home / "federation.toml", "rounds = 2", "rounds = 1")

        ours = version.PROTOCOL
        for theirs, older, newest in (("1", "aggregator", ours), ("9", "silo-04", 9)):
            monkeypatch.setattr("silomix.runtime.net.meeting.PROTOCOL", theirs)
            finding = (await peers("silo-04"))["peer aggregator"]
            monkeypatch.undo()
            assert finding.found == f"aggregator speaks protocol {theirs}, and silo-04 speaks protocol {ours}"
            assert finding.do == f"upgrade {older} to a silomix of protocol {newest}"

        assert run("rotate", "--config", home / "silo-04", "--now") == 0  # nobody has heard of it
        finding = (await peers("silo-04"))["peer aggregator"]
        assert "TLS handshake" in finding.found
        assert "silo-04.pin" in finding.do
