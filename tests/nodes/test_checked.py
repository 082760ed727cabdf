"""Level malicious live: real nodes, the model of level semi-honest, and a round that is checked afterwards."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.nodes.federations import make
from tests.nodes.federations import run as run_node

from silomix.attacks.tamper.live import TamperingShuffler
from silomix.runtime.cli.entry import main
from silomix.runtime.cli.exits import Exit
from silomix.runtime.config.load import load_node
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.roundlog import Record
from silomix.runtime.local import InProcess, create
from silomix.runtime.nodes.node import Node
from silomix.runtime.nodes.passage import SumPassage
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.runtime.store.home import Home


def made(directory: Path, level: Level) -> None:
    task = {"task": "silomix.models.digits:task", "task_options": {"silos": 3, "model": "linear"}}
    policy = Policy(**task, rounds=1, level=level, release_s=60)  # type: ignore[arg-type]
    create(directory, 3, 2, policy=policy)


async def to_the_end(directory: Path) -> tuple[list[Record], InProcess]:
    async with InProcess(directory, log=directory.parent / f"{directory.name}.log") as running:
        await running.finished()
        return running.aggregator.core.log.records, running


def run(directory: Path, level: Level) -> tuple[list[Record], InProcess]:
    made(directory, level)
    return asyncio.run(to_the_end(directory))


def verified(directory: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["verify", "1", "--config", str(directory), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_model_is_the_same_and_the_round_can_be_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, _ = run(tmp_path / "plain", Level.SEMI_HONEST)
    checked, running = run(tmp_path / "checked", Level.MALICIOUS)
    assert [r.model_after for r in checked] == [r.model_after for r in plain]
    assert str(checked[1].outcome) == "applied"
    for name in running.federation.chain:  # nothing outlives the check
        hop = running.nodes[name]
        assert isinstance(hop, ShufflerNode)
        assert not isinstance(hop.passage, SumPassage)
        assert not hop.core.keys
    capsys.readouterr()
    aggregator = tmp_path / "checked" / "aggregator"
    code, found = verified(aggregator, capsys)
    assert code == Exit.DONE
    assert not found["problems"]
    assert {"coin", "scalars", "equations", "scalars of the pads", "scalars of the vector"} <= set(found["checked"])
    for suffix in (".sum", ".transcript"):  # a byte of either is found
        (path,) = Home(aggregator).state.sums.glob(f"*{suffix}")
        kept = path.read_bytes()
        path.write_bytes(kept[:-40] + bytes([kept[-40] ^ 1]) + kept[-39:])
        code, found = verified(aggregator, capsys)
        assert code == Exit.NO, suffix
        assert len(found["problems"]) == 1
        path.write_bytes(kept)


class WithTampering(InProcess):
    """A federation whose second hop changes one residue of each sum."""

    def start(self, name: str) -> Node:
        """Start the liar as what it is."""
        if name != "shuffler-2":
            return super().start(name)
        node = self.nodes[name] = TamperingShuffler(load_node(self.directory / name))
        self.tasks[name] = asyncio.create_task(node.run(), name=name)
        return node


def test_a_hop_that_tampers_is_named_live_and_whoever_has_the_file_can_check_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "f"
    make(home, 3, 3, level=Level.MALICIOUS, rounds=2, deadline_s=60, release_s=60)

    async def go() -> None:
        async with WithTampering(home, log=tmp_path / "log.txt") as running:
            await running.finished()  # no chain is left without the liar: the federation stops
            assert running.aggregator.core.barred == ("shuffler-2",)

    run_node(go(), 120.0)
    assert "TAMPERED: shuffler-2 altered the sum" in caplog.text
    capsys.readouterr()
    code, found = verified(home / "aggregator", capsys)
    assert code == Exit.DONE
    assert found["outcome"] == "abandoned"
    assert [(row["culprit"], row["evidence"]) for row in found["culprits"]] == [("shuffler-2", "holds")]
