"""What an aggregator asks of hops, for how long it wants to know, and what it makes of the answers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.core.protocol.federations import federation, manifest
from tests.nodes.federations import make
from tests.nodes.leads import OneLine, leading, refused

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Overwritten
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.messages import Evidence, Manifest
from silomix.runtime.net.health import GAVE_UP, NOT_OPEN
from silomix.runtime.nodes import aggregator
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.lead import asking
from silomix.runtime.nodes.lead.rollcall import SILENT_S
from silomix.runtime.nodes.node import RETRY_S
from silomix.runtime.nodes.passage import LastPassage, SumPassage
from silomix.v1 import services_pb2

MANIFEST = manifest(federation())
OTHER = replace(MANIFEST, attempt=MANIFEST.attempt + 1)
FIRST, LATER = MANIFEST.chain[0], MANIFEST.chain[-1]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("asks") / "f"
    make(directory, 3, 2, insecure=True)
    return directory / "aggregator"


def hearing(node: AggregatorNode, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the machine would be told."""
    told: list[Any] = []

    async def insist(event: Any) -> None:
        told.append(event)

    monkeypatch.setattr(node, "insist", insist)
    return told


def on_line(node: AggregatorNode, monkeypatch: pytest.MonkeyPatch, *given: Any) -> OneLine:
    line = OneLine(given)
    monkeypatch.setattr(node, "line", lambda _: line)
    return line


def answering(node: AggregatorNode, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Have every hop answer the same, once; whoever asks again is not answered any more."""
    given = [answer]

    async def until_answered(*_: Any, **__: Any) -> Any:
        return given.pop() if given else None

    monkeypatch.setattr(node.asking, "until_answered", until_answered)


# Who wants to know


async def test_a_hop_is_not_called_when_nobody_wants_to_know(home: Path) -> None:
    async with leading(home) as node:

        def call(_: Any) -> Awaitable[None]:
            raise AssertionError("it was called")

        assert await node.asking.until_answered("shuffler-1", lambda: False, call, first=False) is None


async def test_an_attempt_is_this_one_by_round_and_number_and_until_all_is_finished(home: Path) -> None:
    async with leading(home) as node:
        node.core.round, node.core.attempt, node.core.state = 3, 2, core.Phase.PREPARING
        assert node.asking._is_now(3, 2)
        assert not node.asking._is_now(4, 2)
        assert not node.asking._is_now(3, 1)
        node.core.state = core.Phase.FINISHED
        assert not node.asking._is_now(3, 2)


async def test_an_attempt_is_in_a_phase_by_its_manifest(home: Path) -> None:
    async with leading(home) as node:
        node.core.state = core.Phase.READY
        assert not node.is_in(core.Phase.READY, MANIFEST.digest)
        node.core.manifest = MANIFEST
        assert node.is_in(core.Phase.READY, MANIFEST.digest)
        assert not node.is_in(core.Phase.REVEALING, MANIFEST.digest)
        assert not node.is_in(core.Phase.READY, OTHER.digest)


async def test_what_a_hop_knows_is_asked_in_this_life_while_hops_are_heard_and_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(home) as node:
        asked: list[str] = []

        async def show(hop: str) -> None:
            assert not asked, "it was asked again"
            asked.append(hop)
            node.core.heard = {hop: cast("Any", None)}

        monkeypatch.setattr(node.recovery, "show", show)
        on_line(node, monkeypatch)
        node.core.life, node.core.state = b"now", core.Phase.LOADING
        await node.asking.head("shuffler-1", b"now")
        node.core.state = core.Phase.HEARING
        await node.asking.head("shuffler-1", b"before")
        assert not asked
        await node.asking.head("shuffler-1", b"now")
        assert asked == ["shuffler-1"]


async def test_a_record_is_to_be_stored_while_it_is_the_newest_and_until_all_is_finished(home: Path) -> None:
    async with leading(home) as node:
        record = cast("Any", SimpleNamespace(digest=b"one"))
        log = node.core.log = cast("Any", SimpleNamespace(last=None))
        assert not node.asking.wants_stored(record)
        log.last = SimpleNamespace(digest=b"two")
        assert not node.asking.wants_stored(record)
        log.last = record
        assert node.asking.wants_stored(record)
        node.core.state = core.Phase.FINISHED
        assert not node.asking.wants_stored(record)


# Keys


async def test_keys_that_come_when_their_attempt_is_over_are_not_held_against_the_hop(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the next attempt they would be refused, as keys of another one."""
    async with leading(home) as node:
        told = hearing(node, monkeypatch)
        effect = core.AskKeys(1, 1, ("shuffler-1",), (), bytes(32))
        node.core.round, node.core.attempt, node.core.state = 1, 2, core.Phase.PREPARING
        answering(node, monkeypatch, services_pb2.PrepareResponse())
        await node.asking.keys("shuffler-1", effect)
        assert not told
        node.core.attempt = 1
        answering(node, monkeypatch, services_pb2.PrepareResponse())
        await node.asking.keys("shuffler-1", effect)
        assert [type(event) for event in told] == [core.KeysIn]


# Hops that are lost


def opened(node: AggregatorNode, which: Manifest = MANIFEST) -> None:
    node.asking._opening = (which, services_pb2.OpenRequest())


OPEN = services_pb2.OpenResponse(manifest_digest=MANIFEST.digest)


async def test_only_a_later_hop_of_the_newest_attempt_is_opened_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(home) as node:
        line = on_line(node, monkeypatch, OPEN)
        assert not await node.asking.opened_again(LATER, MANIFEST.digest)
        opened(node, OTHER)
        assert not await node.asking.opened_again(LATER, MANIFEST.digest)
        opened(node)
        assert not await node.asking.opened_again(FIRST, MANIFEST.digest)
        assert not line.asked
        assert await node.asking.opened_again(LATER, MANIFEST.digest)


async def test_an_attempt_that_a_hop_gave_up_is_not_opened_there_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(home) as node:
        told = hearing(node, monkeypatch)
        line = on_line(node, monkeypatch, OPEN, OPEN)
        opened(node)
        await node._lost(LATER, MANIFEST.digest, NOT_OPEN)
        assert (len(line.asked), told) == (1, [])
        await node._lost(LATER, MANIFEST.digest, GAVE_UP)
        assert len(line.asked) == 1
        assert [type(event) for event in told] == [core.HopLost]


async def test_a_hop_that_is_silent_is_named_until_it_answers_and_not_when_all_is_finished(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(home) as node:
        told = hearing(node, monkeypatch)
        node.core.state = core.Phase.FINISHED
        await node._called("shuffler-1", "silence", SILENT_S)
        assert not node.missing_hops
        node.core.state = core.Phase.COLLECTING
        await node._called("shuffler-1", "silence", SILENT_S)
        assert node.missing_hops == {"shuffler-1": "silence"}
        await node._called("shuffler-1", "", 0.0)
        assert not node.missing_hops
        assert [type(event) for event in told] == [core.HopBack]


async def test_rounds_spare_a_hop_that_is_gone_if_enough_others_are_here(home: Path) -> None:
    async with leading(home) as node:
        rule = SimpleNamespace(minimum=2)
        node.federation = cast("Any", SimpleNamespace(chain=("a", "b", "c"), chain_rule=rule))
        node.core.gone = {"a"}
        assert node._spared("a")
        assert not node._spared("b")
        node.core.gone = {"a", "b"}
        assert not node._spared("a")


# Pads and records


async def test_a_hop_that_has_no_pad_is_believed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with leading(home) as node:
        told = hearing(node, monkeypatch)
        answering(node, monkeypatch, PeerFault(Reason.WRONG_PAD, "it is gone"))
        bond = cast("Any", None)
        monkeypatch.setattr(asking, "write_bond", lambda _: None)
        await node.asking.pad("shuffler-1", MANIFEST.digest, (), bond)
        assert [type(event) for event in told] == [core.PadRefused]


@pytest.mark.parametrize(
    ("answer", "kinds"),
    [
        (PeerFault(Reason.FORKED, "another history"), [core.HopFailed]),
        (None, []),
        (services_pb2.StoreResponse(records=3), [core.HopFailed]),
        (services_pb2.StoreResponse(records=2), [core.CountersignedIn]),
    ],
    ids=["forked", "not wanted", "ahead", "stored"],
)
async def test_a_record_is_stored_by_a_hop_with_the_same_history_and_no_longer_one(
    home: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, kinds: list[type]
) -> None:
    async with leading(home) as node:
        told = hearing(node, monkeypatch)
        record = SimpleNamespace(round=1, digest=bytes(32))
        node.core.log = cast("Any", SimpleNamespace(records=[record, record]))
        answering(node, monkeypatch, answer)
        await node.asking.store("shuffler-1", cast("Any", record))
        assert [type(event) for event in told] == kinds


async def test_a_hop_that_has_now_more_records_and_now_fewer_is_not_asked_again_at_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(home) as node:
        told, paused = hearing(node, monkeypatch), list[float]()
        record = SimpleNamespace(round=9, digest=bytes(32))
        node.core.log = cast("Any", SimpleNamespace(records=[record] * 10))
        said = [2, 5, 2, 5, 2, 6, 7]

        async def until_answered(*_: Any, **__: Any) -> Any:
            return services_pb2.StoreResponse(records=said.pop(0)) if said else None

        async def sleep(seconds: float) -> None:
            paused.append(seconds)

        monkeypatch.setattr(node.asking, "until_answered", until_answered)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await node.asking.store("shuffler-1", cast("Any", record))
        monkeypatch.undo()
        assert [type(event) for event in told] == [core.HopFailed] * 3  # for the second 2 and 5, and the third 2
        assert paused == [RETRY_S] * 3


# Sums


@pytest.mark.parametrize("make_one", [None, SumPassage, LastPassage], ids=["none", "of groups", "without a cohort"])
async def test_nothing_is_kept_but_a_whole_sum_for_silos(
    home: Path, tmp_path: Path, make_one: Callable[..., Any] | None
) -> None:
    async with leading(home) as node:
        if make_one is not None:
            more = (tmp_path / "kept",) if make_one is LastPassage else ()
            node.passage = make_one(MANIFEST, "aggregator", node.workers, *more)
        if make_one is SumPassage:
            cast("Any", node.passage).cohort = SimpleNamespace(participants=())
        await node._keep(cast("Any", None))
        assert node.sums.read(MANIFEST.round, MANIFEST.attempt) is None


async def test_a_stream_names_an_attempt_that_is_open(home: Path) -> None:
    async with leading(home) as node:

        def opening(digest: bytes) -> services_pb2.RelayFrame:
            return services_pb2.RelayFrame(open=services_pb2.RelayOpen(hop=LATER, manifest_digest=digest))

        node._taken = (OTHER, services_pb2.Delivery())
        assert (await refused(node, "Deliver", LATER, opening(MANIFEST.digest)))[0] is Reason.WRONG_MANIFEST
        node.passage = SumPassage(MANIFEST, "aggregator", node.workers)
        third = replace(MANIFEST, attempt=MANIFEST.attempt + 2)
        assert (await refused(node, "Deliver", LATER, opening(third.digest)))[0] is Reason.WRONG_MANIFEST
        assert (await refused(node, "Deliver", LATER, opening(b"short")))[0] is Reason.WRONG_LENGTH


async def test_a_sum_with_a_false_pad_makes_no_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with leading(home) as node:
        told = hearing(node, monkeypatch)
        monkeypatch.setattr(aggregator, "checks", lambda _: True)
        monkeypatch.setattr(node.checking, "false_pad", lambda *_: "a case")
        await node._apply(MANIFEST, cast("Any", None), (), None)
        assert [type(event) for event in told] == [core.PadsFalse]


@pytest.mark.parametrize("what", ["false_pad", "_next_model"])
async def test_pads_that_cannot_be_judged_end_the_attempt_and_not_the_process(
    home: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def raises(*_: object) -> None:
        raise Overwritten

    async with leading(home) as node:
        told = hearing(node, monkeypatch)
        monkeypatch.setattr(aggregator, "checks", lambda _: what == "false_pad")
        monkeypatch.setattr(node.checking if what == "false_pad" else node, what, raises)
        passage = SumPassage(MANIFEST, "aggregator", node.workers)
        await node._apply(MANIFEST, cast("Any", None), (), passage)
        assert [type(event) for event in told] == [core.SumRefused]
        assert passage._closed


async def test_who_makes_an_aggregator_accuse_or_refuse_again_and_again_fills_no_log(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def false() -> core.Event:
        raise PeerFault(Reason.BAD_SIGNATURE, "that is none")

    async with leading(home) as node:
        for _ in range(20):
            await node.perform(core.Accuse(Evidence(bytes(32), "aggregator", "silo-01", bytes(32), bytes(32))))
            assert not await node.asking.tell_core("shuffler-1", false)
    said = [one.getMessage() for one in caplog.records]
    assert sum("silo-01 sealed a seed" in one for one in said) == 1
    assert sum("what a hop answered does not hold" in one for one in said) == 1


async def test_without_a_task_no_model_is_measured(home: Path) -> None:
    async with leading(home) as node:
        assert await node._evaluate({}) is None


async def test_it_is_stuck_on_a_model_that_is_lost_and_else_on_one_that_is_bound(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(home) as node:
        monkeypatch.setattr(core.Aggregator, "bound", ("silo-01",))
        assert "signed for 1 silos" in node._stuck()
        monkeypatch.setattr(type(node.recovery), "waits_for", "a model is lost")
        assert node._stuck() == "a model is lost"


async def test_an_aggregator_without_a_task_measures_no_model_and_takes_that_for_no_error(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with leading(home) as node:
        node.task = None
        assert await node._evaluate({}) is None
    assert not [one for one in caplog.records if "not measured" in one.getMessage()]
