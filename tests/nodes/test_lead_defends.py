"""An aggregator at which an equation fails, or whose sum is not here: it answers for itself, and charges nobody."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.core.protocol.federations import federation, manifest
from tests.nodes.federations import make, rejections
from tests.nodes.leads import leading

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS
from silomix.runtime.nodes.check import lead as module

MANIFEST = manifest(federation())
HERE = cast("Any", SimpleNamespace(where="aggregator"))
NONE = cast("Any", None)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("defends") / "f"
    make(directory, 3, 2, insecure=True, level=Level.MALICIOUS)
    return directory / "aggregator"


async def test_an_aggregator_defends_itself_without_a_call(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with leading(home) as node:
        told: list[Any] = []

        async def insist(event: Any) -> None:
            told.append(event)

        monkeypatch.setattr(node, "insist", insist)
        monkeypatch.setattr(node.checking, "_defend", lambda *_: "its defence")
        node.core.state, node.core.manifest = core.Phase.BLAMING, MANIFEST
        for attempt in (MANIFEST, replace(MANIFEST, attempt=2)):  # nobody wants to know of the one that is over
            await node.checking.ask_defence(attempt, HERE, NONE, NONE)
        assert told == ["its defence"]


@pytest.mark.parametrize("what", ["scalars", "a defence"])
async def test_a_check_may_end_while_the_aggregator_waits_for_its_turn_to_answer(
    home: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its answer is refused, as that of anybody who comes late; nothing falls over."""
    async with leading(home) as node:
        checking, subject = node.checking, cast("Any", SimpleNamespace(context=bytes(32)))
        monkeypatch.setattr(checking, "_fold", lambda *_: [])
        monkeypatch.setattr(checking, "_trapped", lambda *_: NO_TRAPS)
        monkeypatch.setattr(checking, "_defend", lambda *_: core.StatedIn(NONE, 0.0))  # refused like a late defence
        phase = core.Phase.CHECKING if what == "scalars" else core.Phase.BLAMING
        work = checking.measure(MANIFEST, subject, bytes(32)), checking.ask_defence(MANIFEST, HERE, subject, NONE)
        work[phase is core.Phase.CHECKING].close()
        node.core.state, node.core.manifest = phase, MANIFEST
        queued, insist = asyncio.Event(), node.insist

        async def insisting(event: core.Event) -> None:
            queued.set()
            await insist(event)

        monkeypatch.setattr(node, "insist", insisting)
        async with node.lock:
            answering = asyncio.create_task(work[phase is core.Phase.BLAMING])
            await queued.wait()
            node.core.state = core.Phase.PREPARING  # a hop was lost, or the time was up
        await answering


async def test_what_a_hop_answers_to_evidence_may_be_unreadable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with leading(home) as node:

        async def ask(*_: Any) -> Any:
            raise PeerFault(Reason.MALFORMED, "that is no answer")

        monkeypatch.setattr(node, "line", lambda _: SimpleNamespace(ask=ask))
        monkeypatch.setattr(module, "write_case", lambda _: None)
        await node.checking._show(cast("Any", SimpleNamespace(manifest=MANIFEST)))
        assert rejections(node, Reason.MALFORMED) == 1


async def test_nobody_is_charged_with_a_false_pad_where_no_sum_is_kept(home: Path) -> None:
    async with leading(home) as node:
        assert node.checking.false_pad(MANIFEST, ()) is None
