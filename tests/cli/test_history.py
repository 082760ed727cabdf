"""`silomix log`: the round log from a node's own disk, checked link by link, with nobody asked."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from tests.nodes.federations import make, run

from silomix.runtime.cli.entry import main
from silomix.runtime.local import InProcess
from silomix.runtime.nodes.facts import read_log, write_record_fact
from silomix.runtime.store.home import Home
from silomix.runtime.store.journal import Journal


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log") / "f"
    make(directory, 3, 1, rounds=2)

    async def go() -> None:
        async with InProcess(directory) as running:
            await running.finished()
            assert main(["log", "--config", str(directory / "shuffler-1")]) == 0  # while the node runs

    run(go())
    return directory


@pytest.mark.parametrize("name", ["aggregator", "shuffler-1", "silo-01"])
def test_every_role_has_the_same_log_and_it_holds(home: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "--config", str(home / name), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["problems"] == []
    assert [(r["round"], r["outcome"], len(r["silos"])) for r in shown["records"]] == [
        (0, "genesis", 0),
        (1, "applied", 3),
        (2, "applied", 3),
    ]
    assert shown["records"][2]["previous"] == shown["records"][1]["digest"]
    assert main(["log", "--config", str(home / name)]) == 0
    assert "every link and every signature holds" in capsys.readouterr().out


def test_a_log_that_was_tampered_with_is_found_out(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = Home(home / "silo-02").state
    with closing(Journal(state.journal)) as journal:
        record = list(read_log(journal))[1]
        write_record_fact(journal, replace(record, model_after=bytes(32)))
    assert main(["log", "--config", str(home / "silo-02")]) == 1
    assert "signature of aggregator does not verify" in capsys.readouterr().out


def test_a_node_that_never_ran_has_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "f", 3, 1)
    assert main(["log", "--config", str(tmp_path / "f" / "silo-01")]) == 2
    assert "has not run yet" in capsys.readouterr().err


def test_a_damaged_journal_is_named_and_not_the_copy_that_is_read(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(home, tmp_path / "f")
    journal = Home(tmp_path / "f" / "silo-01").state.journal
    journal.write_bytes(b"no journal" * 500)
    assert main(["log", "--config", str(tmp_path / "f" / "silo-01")]) == 2
    assert f"{journal} is damaged" in capsys.readouterr().err
