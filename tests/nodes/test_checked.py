"""Level malicious live: real nodes, the model of level semi-honest, and a round that is checked afterwards."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.nodes.federations import make
from tests.nodes.federations import run as run_node

from silomix.attacks.tamper.live import TamperingShuffler
from silomix.runtime.cli.entry import main
from silomix.runtime.cli.exits import Exit, code_of
from silomix.runtime.cli.federation.nodes import check_end
from silomix.runtime.config.load import load_node
from silomix.runtime.core.errors import RunError
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.tamper import Scalars
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.check.forms import scalars_of
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.roundlog import Record
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.local import InProcess, create
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.node import Node
from silomix.runtime.nodes.passage import SumPassage
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.runtime.store.home import Home


def made(directory: Path, level: Level, traps: int = 0) -> None:
    task = {"task": "silomix.models.digits:task", "task_options": {"silos": 3, "model": "linear"}}
    policy = Policy(**task, rounds=1, level=level, release_s=60, traps=traps)  # type: ignore[arg-type]
    create(directory, 3, 2, policy=policy)


async def to_the_end(directory: Path) -> tuple[list[Record], InProcess]:
    async with InProcess(directory, log=directory.parent / f"{directory.name}.log") as running:
        await running.finished()
        return running.aggregator.core.log.records, running


def run(directory: Path, level: Level, traps: int = 0) -> tuple[list[Record], InProcess]:
    made(directory, level, traps)
    return asyncio.run(to_the_end(directory))


def verified(directory: Path, capsys: pytest.CaptureFixture[str], round_: int = 1) -> tuple[int, dict[str, Any]]:
    code = main(["verify", str(round_), "--config", str(directory), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_model_is_the_same_and_the_round_can_be_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, _ = run(tmp_path / "plain", Level.SEMI_HONEST)
    checked, running = run(tmp_path / "checked", Level.MALICIOUS)
    assert [r.model_after for r in checked] == [r.model_after for r in plain]
    assert str(checked[1].outcome) == "applied"
    trapped, _ = run(tmp_path / "trapped", Level.MALICIOUS, traps=2)
    assert [r.model_after for r in trapped] == [r.model_after for r in plain]
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
    assert "traps" not in found["checked"]
    code, found = verified(tmp_path / "trapped" / "aggregator", capsys)
    assert code == Exit.DONE
    assert not found["problems"]
    assert {"traps", "scalars of the pads", "scalars of the vector"} <= set(found["checked"])
    for suffix in (".sum", ".transcript"):  # a byte of either is found
        (path,) = Home(aggregator).state.sums.glob(f"*{suffix}")
        kept = path.read_bytes()
        path.write_bytes(kept[:-40] + bytes([kept[-40] ^ 1]) + kept[-39:])
        code, found = verified(aggregator, capsys)
        assert code == Exit.NO, suffix
        assert len(found["problems"]) == 1
        path.write_bytes(kept)


class TampersLater(TamperingShuffler):
    """A hop that is honest in the first round."""

    def _tamper(self, passage: SumPassage) -> None:
        if passage.manifest.round > 1:
            super()._tamper(passage)


class Concealing(AggregatorNode):
    """An aggregator that states false scalars, sees that the check fails at itself, and has hops sign all the same."""

    async def perform(self, effect: core.Effect) -> core.Event | None:
        """Lie where it would have to defend itself."""
        match effect:
            case core.AskScalars():
                self.checking._fold = self._false  # type: ignore[method-assign]
            case core.AskDefence(manifest, _, subject, check):
                ready = replace(subject.ready, check=check.digest)
                return await super().perform(core.AskReady(ready, manifest.chain, check))
        return await super().perform(effect)

    def _false(self, manifest: Manifest, coin: bytes) -> list[Scalars]:
        return scalars_of(bytes(32), layout(manifest), [self.sums.vector(manifest)])

    def is_in(self, phase: core.Phase, manifest: bytes) -> bool:
        """Go on as if nothing had failed."""
        return super().is_in(core.Phase.BLAMING if phase is core.Phase.READY else phase, manifest)


class WithLiar(InProcess):
    """A federation one of whose nodes lies."""

    def __init__(self, directory: Path, log: Path, liar: str, of: type[ShufflerNode | AggregatorNode]) -> None:
        """The liar's name, and what it is."""
        super().__init__(directory, log=log)
        self.liar, self.of = liar, of

    def start(self, name: str) -> Node:
        """Start the liar as what it is."""
        if name != self.liar:
            return super().start(name)
        node = self.nodes[name] = self.of(load_node(self.directory / name))
        self.tasks[name] = asyncio.create_task(node.run(), name=name)
        return node


def test_a_hop_that_tampers_is_named_live_and_whoever_has_the_file_can_check_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "f"
    make(home, 3, 3, level=Level.MALICIOUS, rounds=3, deadline_s=60, release_s=60)

    async def go() -> AggregatorNode:
        async with WithLiar(home, tmp_path / "log.txt", "shuffler-2", TampersLater) as running:
            history = await running.finished()  # no chain is left without the liar: the federation stops
            assert [done.cohort for done in history] == [3, 0]
            return running.aggregator

    ended = run_node(go(), 120.0)
    assert ended.core.barred == ("shuffler-2",)
    with pytest.raises(RunError, match="shuffler-2 lied, and no chain") as stopped:
        check_end(ended, home / "aggregator")
    assert code_of(stopped.value) is Exit.NO  # though there is a model of round 1, which it names
    assert str(Home(home / "aggregator").state.model(ended.core.log.model)) in str(stopped.value)
    assert f"`silomix verify 2 --config {home / 'aggregator'}`" in str(stopped.value)
    assert "TAMPERED: shuffler-2 altered the sum" in caplog.text
    capsys.readouterr()
    code, found = verified(home / "aggregator", capsys, 2)
    assert code == Exit.DONE
    assert found["outcome"] == "abandoned"
    assert [(row["culprit"], row["evidence"]) for row in found["culprits"]] == [("shuffler-2", "holds")]
    assert main(["log", "--config", str(home / "shuffler-1")]) == Exit.DONE  # which has nothing but the record
    shown = " ".join(capsys.readouterr().out.split())
    assert "the aggregator says that shuffler-2 lied" in shown
    assert f"`silomix verify 2 --config {home / 'shuffler-1'}` looks at the evidence" in shown


def test_an_aggregator_that_lies_in_the_check_is_shown_to_have_lied_by_the_last_hop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "f"
    make(home, 3, 2, level=Level.MALICIOUS, attempts=1, deadline_s=60, release_s=6)

    async def go() -> None:
        async with WithLiar(home, tmp_path / "log.txt", "aggregator", Concealing) as running:
            await running.finished()

    run_node(go(), 120.0)
    assert "TAMPERED: aggregator signed false scalars" in caplog.text
    capsys.readouterr()
    code, found = verified(home / "shuffler-2", capsys)  # the record says nothing of it
    assert code == Exit.DONE
    assert found["outcome"] == "abandoned"
    assert [(row["culprit"], row["evidence"]) for row in found["culprits"]] == [("aggregator", "holds")]
    vector = Home(home / "shuffler-2").state.evidence / "1-1.vector"
    kept = vector.read_bytes()
    vector.write_bytes(bytes([kept[0] ^ 1]) + kept[1:])
    assert verified(home / "shuffler-2", capsys)[0] == Exit.NO
