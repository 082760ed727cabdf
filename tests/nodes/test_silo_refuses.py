"""What a silo's process refuses: other tasks, a second training, other receipts. What it overwrites when it is done."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tests.core.protocol.checks import F as CHECKED
from tests.core.protocol.checks import bodies as checked_bodies
from tests.core.protocol.checks import committed_header
from tests.core.protocol.checks import trails as checked_trails
from tests.core.protocol.federations import (
    AGGREGATOR,
    SCHEMA,
    applied,
    cohort,
    counted,
    federation,
    headers,
    identity,
    manifest,
    past,
    ready,
    recorded,
    rng,
    secret,
)
from tests.nodes.alone import Little, Peers, alone, config_of, ended
from tests.nodes.federations import rejections, until

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.learning.bounds import bounds_of
from silomix.runtime.core.learning.optimise import Optimiser
from silomix.runtime.core.numbers.masks import Stream, mask_streams
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.policy import AUTO
from silomix.runtime.core.protocol import silo as core
from silomix.runtime.core.protocol.check.said import Subject
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Manifest, Receipt
from silomix.runtime.core.protocol.release import Ready
from silomix.runtime.core.protocol.roundlog import Attempted, Fork, Record, RoundLog, genesis
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.factory import TaskError
from silomix.runtime.net.check.case import write_subject
from silomix.runtime.net.history import read_records, write_batch
from silomix.runtime.net.limits import FRAME_S, SLOWEST_BYTES_S, Limits
from silomix.runtime.net.wire import read_receipt, write_manifest, write_receipt
from silomix.runtime.nodes import silo as module
from silomix.runtime.nodes.check.silo import Held, measure
from silomix.runtime.nodes.silo import SiloNode
from silomix.runtime.store.frozen import frozen_name
from silomix.runtime.store.modelfile import model_digest, write_model
from silomix.runtime.task import Trained
from silomix.v1 import body_pb2, case_pb2, check_pb2, history_pb2, manifest_pb2, services_pb2

F = federation()
FIRST = {t.name: np.zeros(t.shape, np.float32) for t in SCHEMA.tensors}
News = services_pb2.Announcement
OVER = News(finished=services_pb2.Finished(round=4))
"""An aggregator's word that all is over: what comes before it, see `done`, says whether that is so."""


class Counting(Little):
    """A task that notes in which rounds it is trained."""

    def __init__(self, schema: Schema = SCHEMA) -> None:
        super().__init__(schema)
        self.trained: list[int] = []

    def train(self, tensors: Mapping[str, Any], round: int) -> Trained:  # noqa: A002 - as tasks have it
        self.trained.append(round)
        return super().train(tensors, round)


def silo(
    directory: Path,
    work: Callable[[SiloNode], Coroutine[Any, Any, Any]],
    f: Federation = F,
    task: Any = None,
    **stories: Any,
) -> Any:
    """Have something done with a silo to which others tell these stories, method by method."""
    data = write_model(SCHEMA, FIRST)
    stories = {
        "Confirm": [services_pb2.ConfirmResponse()],
        "GetModel": [[services_pb2.ModelPart(data=data, total_bytes=len(data))]],
        **stories,
    }

    async def go(node: SiloNode) -> Any:
        node.line = Peers(**stories)  # type: ignore[method-assign, assignment]
        return await work(node)

    return alone(lambda: SiloNode(config_of(directory, f, "silo-1"), task or Little()), go)


def begun(f: Federation = F) -> RoundLog:
    """A log whose first model is zeros."""
    rest = Optimiser.of(f.policy)
    state = model_digest(rest.state_schema(SCHEMA), rest.start(SCHEMA))
    return RoundLog(f, [counted(genesis(f, model_digest(SCHEMA, FIRST), state).signed(identity(AGGREGATOR)), f)])


async def joined(node: SiloNode, **changes: Any) -> Manifest:
    """Have a silo take part in the first attempt, but for what its process does about it."""
    log = begun(node.federation)
    await node.step(core.RecordsIn(tuple(log.records)))
    return manifest(node.federation, log=log, **changes)


def done(f: Federation = F, rounds: int | None = None) -> News:
    """The records of all rounds, or of some: they were given up."""
    log = begun(f)
    for _ in range(f.policy.rounds if rounds is None else rounds):
        log = RoundLog(f, [*log.records, counted(recorded(log), f)])
    return News(records=history_pb2.Records(records=write_batch(log.records)))


# News


def test_a_silo_ends_when_the_federation_is_done(tmp_path: Path) -> None:
    silo(tmp_path, SiloNode.main, Watch=[[done(), OVER], [RuntimeError("it asks again")]])


def test_records_are_not_read_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []

    def note(wire: list[history_pb2.Record], names: int) -> tuple[Record, ...]:
        read.append(threading.current_thread() is threading.main_thread())
        assert names == Limits.of(F).names
        return read_records(wire, names)

    monkeypatch.setattr(module, "read_records", note)
    silo(tmp_path, SiloNode.main, Watch=[[done(), OVER], [RuntimeError("it asks again")]])
    assert read == [False]


@pytest.mark.parametrize("rounds", [0, F.policy.rounds - 1])
def test_a_silo_does_not_end_on_the_aggregators_word_before_its_own_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rounds: int
) -> None:
    """Else one word would send every silo of the federation away, and nothing would start them again."""
    monkeypatch.setattr(module, "REFUSED_S", 0.0)
    what, many = f"says that the federation is done, and {rounds} of {F.policy.rounds} rounds are on record here", 20

    async def go(node: SiloNode) -> None:
        await node.main()
        assert node.core.log.round == F.policy.rounds + 1
        assert rejections(node, Reason.WRONG_ROUND) == many + 1

    silo(tmp_path, go, Watch=[[done(rounds=rounds), *[OVER] * many], [OVER, done(), OVER]])
    assert said(caplog, what) == 1


def after_one(f: Federation, **changes: Any) -> News:
    """The records of a first round that was applied."""
    log = begun(f)
    m = manifest(f, log=log)
    c = cohort(m, headers(m, f))
    record = applied(log, m, ready(m, c), c.silos, **changes)
    return News(records=history_pb2.Records(records=write_batch([*log.records, record])))


@pytest.mark.parametrize(
    ("rounds", "seen", "ends"),
    [(4, False, False), (2, False, False), (4, True, True), (1, False, True)],
    ids=["not seen", "not seen, and one round is left", "seen", "no round is left anyway"],
)
def test_a_silo_ends_because_a_round_has_changed_nothing_only_if_it_has_seen_that_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rounds: int, seen: bool, ends: bool
) -> None:
    """Hops countersign whatever model a record names: a single false one would send every silo away."""
    f = federation(rounds=rounds)
    unchanged = after_one(f, model_after=begun(f).model)

    async def go(node: SiloNode) -> None:
        async def follow(wanted: bytes = b"") -> Any:
            node.follower.at, node.follower.liar = (1, "") if seen else (-1, "it named another model")

        node.follower.follow = follow  # type: ignore[method-assign]
        try:
            await node.main()
        finally:
            assert rejections(node, Reason.WRONG_ROUND) == (not ends)

    with nullcontext() if ends else pytest.raises(RuntimeError, match="it watches on"):
        silo(tmp_path, go, f, Watch=[[unchanged, OVER], [RuntimeError("it watches on")]])
    assert said(caplog, "which this silo has not found") == (not ends)


def test_a_silo_without_the_last_model_ends_all_the_same_where_too_many_hops_have_lied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = federation(rounds=4)
    monkeypatch.setattr(RoundLog, "over", True)

    async def go(node: SiloNode) -> None:
        async def follow(wanted: bytes = b"") -> None:
            node.follower.liar = "it named another model"

        node.follower.follow = follow  # type: ignore[method-assign, assignment]
        await node.main()

    silo(tmp_path, go, f, Watch=[[after_one(f), OVER]])


@pytest.mark.parametrize(("liar", "tries"), [("", 3), ("it lied", 1)], ids=["honest", "a liar"])
def test_a_silo_that_cannot_have_the_last_model_yet_asks_again_unless_the_aggregator_lied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, liar: str, tries: int
) -> None:
    """Whoever comes late adopts it on the word of a majority, which may have to compute it first."""
    asked: list[int] = []

    async def at_once() -> Any:
        for number in range(20):
            yield number

    async def go(node: SiloNode) -> None:
        await joined(node)
        follow, node.follower.liar = node.follower.follow, liar

        async def too_early(wanted: bytes = b"") -> Any:
            asked.append(len(asked))
            if len(asked) < 3:
                raise PeerFault(Reason.WRONG_STEP, "a majority is needed")
            return await follow(wanted)

        node.follower.follow = too_early  # type: ignore[method-assign]
        await node._finish(1)
        assert node.follower.at_head == (not liar)

    monkeypatch.setattr(module, "backoff", at_once)
    silo(tmp_path, go)
    assert len(asked) == tries


def test_a_silo_stays_until_its_word_on_the_last_model_is_heard(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> None:
        await joined(node)
        await node.follower.follow()
        heard = asyncio.Event()

        async def confirm() -> None:
            await heard.wait()

        node.follower._telling = asyncio.create_task(confirm())
        leaving = asyncio.create_task(node._finish(1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not leaving.done()
        heard.set()
        await leaving

    silo(tmp_path, go)


def test_a_silo_comes_back_ever_less_often_to_an_aggregator_that_says_no_more_than_that_all_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFUSED_S", 0.0)
    begun_anew: list[bool] = []

    async def at_once(wake: asyncio.Event | None = None, worked: asyncio.Event | None = None) -> Any:
        for number in range(20):
            yield number
            if worked is not None:
                begun_anew.append(worked.is_set())
                worked.clear()

    monkeypatch.setattr(module, "backoff", at_once)
    silo(tmp_path, SiloNode.main, Watch=[[OVER], [OVER], [done(rounds=1)], [done(), OVER]])
    assert begun_anew == [False, False, True]


@pytest.mark.parametrize("reason", [Reason.UNKNOWN_PEER, Reason.WRONG_FEDERATION])
def test_a_silo_that_is_not_wanted_ends_with_the_reason(tmp_path: Path, reason: Reason) -> None:
    refusal = ended(grpc.StatusCode.PERMISSION_DENIED, f"{reason}: go away")
    with pytest.raises(PeerFault, match="go away") as caught:
        silo(tmp_path, SiloNode.main, Watch=[[refusal], [done(), OVER]])
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    "error",
    [
        ended(grpc.StatusCode.UNAVAILABLE, "nobody there"),
        ended(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{Reason.BUSY}: later"),
        ended(grpc.StatusCode.FAILED_PRECONDITION, f"{Reason.WRONG_PROTOCOL}: upgrade"),
    ],
    ids=["nobody there", "busy", "another protocol"],
)
def test_a_silo_comes_back_where_that_may_be_of_use(tmp_path: Path, error: grpc.aio.AioRpcError) -> None:
    silo(tmp_path, SiloNode.main, Watch=[[error], [done(), OVER]])


def test_a_silo_of_a_later_epoch_comes_back_to_an_aggregator_that_is_not_there_yet(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> None:
        node.federation = replace(node.federation, epoch=2)
        await node.main()

    refusal = ended(grpc.StatusCode.PERMISSION_DENIED, f"{Reason.UNKNOWN_PEER}: go away")
    silo(tmp_path, go, Watch=[[refusal], [done(), OVER]])


def test_a_silo_joins_what_is_announced_and_gives_back_what_is_wanted(tmp_path: Path) -> None:
    async def never(frames: Any) -> None:
        await asyncio.Event().wait()

    given: list[bytes] = []

    async def gives(frames: Any) -> Any:
        given.extend([services_pb2.GivenPart.FromString(raw).data async for raw in frames])
        got.set()
        return services_pb2.GiveModelResponse()

    got = asyncio.Event()

    async def go(node: SiloNode) -> None:
        m = await joined(node)
        await node.follower.follow()
        wanted = services_pb2.Wanted(model_digest=m.model)
        node.line = Peers(  # type: ignore[method-assign, assignment]
            Watch=[[News(manifest=write_manifest(m)), News(wanted=wanted), done(), OVER]],
            GiveModel=[gives],
            Submit=[never],
        )
        await node.main()
        assert node.core.joined[1]
        await asyncio.wait_for(got.wait(), 10)

    silo(tmp_path, go)
    assert b"".join(given) == write_model(SCHEMA, FIRST)


def test_a_silo_gives_back_nothing_that_it_has_not_and_looks_again_after_its_next_step(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> None:
        m = await joined(node)
        wanted = services_pb2.Wanted(model_digest=m.model)
        looked: list[bytes] = []
        got = asyncio.Event()

        async def gives(frames: Any) -> Any:
            got.set()
            return services_pb2.GiveModelResponse()

        async def file_of(digest: bytes, *, state: bool) -> bytes | None:
            looked.append(digest)
            return None if len(looked) == 1 else b"here now"

        node.follower.file_of = file_of  # type: ignore[method-assign]
        node.line = Peers(GiveModel=[gives], GetModel=[[]])  # type: ignore[method-assign, assignment]
        node._wanted = wanted
        await node._give_wanted()
        assert node._wanted is wanted
        assert looked == [m.model]
        await node._follow()
        await asyncio.wait_for(got.wait(), 10)
        assert looked == [m.model] * 2

    silo(tmp_path, go)


@pytest.mark.parametrize(
    "first",
    [
        ended(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{Reason.BUSY}: another silo is at it"),
        ended(grpc.StatusCode.UNAVAILABLE),
    ],
    ids=["busy", "gone"],
)
def test_a_silo_that_could_not_give_what_is_wanted_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: grpc.aio.AioRpcError
) -> None:
    """The other silo may have nothing to give."""
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    refusal = ended(grpc.StatusCode.FAILED_PRECONDITION, f"{Reason.WRONG_MODEL}: not wanted")

    async def file_of(digest: bytes, *, state: bool) -> bytes:
        return b"a model"

    async def go(node: SiloNode) -> None:
        node.follower.file_of = file_of  # type: ignore[method-assign]
        peers = node.line = Peers(GiveModel=[first, first, refusal])  # type: ignore[method-assign, assignment]
        node._wanted = services_pb2.Wanted(model_digest=bytes(32))
        await node._give_wanted()
        assert len(peers.asked) == 3
        assert node._wanted is None

    silo(tmp_path, go)


@pytest.mark.parametrize(
    "answer",
    [
        ended(grpc.StatusCode.FAILED_PRECONDITION, f"{Reason.WRONG_MODEL}: not wanted"),
        PeerFault(Reason.MALFORMED, "no answer that can be read"),
    ],
    ids=["not wanted", "unreadable"],
)
def test_a_silo_that_was_answered_gives_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)

    async def file_of(digest: bytes, *, state: bool) -> bytes:
        return b"a model"

    async def go(node: SiloNode) -> None:
        node.follower.file_of = file_of  # type: ignore[method-assign]
        peers = node.line = Peers(GiveModel=[answer])  # type: ignore[method-assign, assignment]
        node._wanted = services_pb2.Wanted(model_digest=bytes(32))
        await node._give_wanted()
        assert len(peers.asked) == 1
        assert node._wanted is None

    silo(tmp_path, go)


def test_what_is_wanted_while_a_silo_looks_for_something_else_is_looked_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    first, second = (services_pb2.Wanted(model_digest=bytes([i]) * 32) for i in (1, 2))
    looked: list[bytes] = []

    async def go(node: SiloNode) -> None:
        async def file_of(digest: bytes, *, state: bool) -> None:
            looked.append(digest)
            node._wanted = second

        node.follower.file_of = file_of  # type: ignore[method-assign]
        node._wanted = first
        await node._give_wanted()
        assert looked == [first.model_digest, second.model_digest]

    silo(tmp_path, go)


# What an aggregator can have done at will


MANY = 500
"""As often as an aggregator says something for which once is enough."""


def busy_with(node: SiloNode, work: str) -> int:
    """How many of a node's tasks do this."""
    names = (task.get_coro().__qualname__ for task in node.tasks._tasks)  # type: ignore[union-attr]
    return sum(name == f"SiloNode.{work}" for name in names)


def test_a_silo_gives_one_model_at_a_time_and_then_the_newest_that_was_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole model is in memory for each, and a node that never reads would have as many as it likes."""
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    goes_on = asyncio.Event()

    async def slow(frames: Any) -> Any:
        given.extend([services_pb2.GivenPart.FromString(raw).what.model_digest async for raw in frames])
        await goes_on.wait()
        return services_pb2.GiveModelResponse()

    async def file_of(digest: bytes, *, state: bool) -> bytes:
        looked.append(digest)
        return bytes(1 << 20)

    given: list[bytes] = []
    looked: list[bytes] = []
    digests = [i.to_bytes(32, "big") for i in range(MANY)]

    async def go(node: SiloNode) -> None:
        node.follower.file_of = file_of  # type: ignore[method-assign]
        peers = node.line = Peers(GiveModel=[slow])  # type: ignore[method-assign, assignment]
        for digest in digests:
            await node._take_in(News(wanted=services_pb2.Wanted(model_digest=digest)))
            await asyncio.sleep(0)
        await until(lambda: given, "the first is on its way")
        assert busy_with(node, "_give_wanted") == 1
        assert len(looked) == 1
        patience = peers.patience["GiveModel"]
        assert patience == FRAME_S + (1 << 20) / SLOWEST_BYTES_S
        goes_on.set()
        await until(lambda: not busy_with(node, "_give_wanted"), "the newest was given")
        assert looked[1:] == [digests[-1]]

    silo(tmp_path, go)


def test_a_silo_that_was_told_to_give_a_model_takes_its_time_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an aggregator that refuses what it wants has a worker write models without end."""
    monkeypatch.setattr(module, "RETRY_S", 3600.0)
    looked: list[bytes] = []

    async def file_of(digest: bytes, *, state: bool) -> bytes:
        looked.append(digest)
        return b"a model"

    async def go(node: SiloNode) -> None:
        node.follower.file_of = file_of  # type: ignore[method-assign]
        refusal = ended(grpc.StatusCode.FAILED_PRECONDITION, f"{Reason.WRONG_MODEL}: not wanted")
        peers = node.line = Peers(GiveModel=[refusal])  # type: ignore[method-assign, assignment]
        for _ in range(MANY):
            await node._take_in(News(wanted=services_pb2.Wanted(model_digest=bytes(32))))
            await asyncio.sleep(0)
        assert len(looked) == len(peers.asked) == 1

    silo(tmp_path, go)


def test_of_a_tamper_check_a_silo_keeps_no_more_than_the_newest_that_it_has_not_taken_in(tmp_path: Path) -> None:
    heard: list[str] = []

    async def hear(news: services_pb2.Announcement) -> None:
        digest = news.check.manifest_digest.decode()
        heard.append(f"{news.WhichOneof('news')} {digest}".strip())
        await goes_on.wait()

    goes_on = asyncio.Event()

    async def go(node: SiloNode) -> None:
        node._hear = hear  # type: ignore[method-assign]
        for number in range(MANY):
            await node._take_in(News(check=case_pb2.Subject(manifest_digest=str(number).encode())))
            await node._take_in(News(coin=services_pb2.Coin()))
            await asyncio.sleep(0)
            assert busy_with(node, "_hear_all") == 1
            assert len(node._unheard) <= 2
        goes_on.set()
        await until(lambda: not busy_with(node, "_hear_all"), "all were heard")
        assert heard == ["check 0", f"check {MANY - 1}", "coin"]

    silo(tmp_path, go, CHECKED)


def test_a_silo_says_its_part_once_however_often_a_check_is_heard(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> None:
        node.line = Peers(Say=[ended(grpc.StatusCode.UNAVAILABLE)])  # type: ignore[method-assign, assignment]
        for _ in range(MANY):
            node._speak(services_pb2.SayRequest(toss=check_pb2.Toss()))
            node._speak(services_pb2.SayRequest(statement=check_pb2.Statement()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert busy_with(node, "_say") == 2

    silo(tmp_path, go, CHECKED)


def test_a_silo_whose_part_is_refused_as_often_as_it_is_asked_fills_no_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def go(node: SiloNode) -> None:
        refusal = ended(grpc.StatusCode.FAILED_PRECONDITION, f"{Reason.MALFORMED}: no")
        peers = node.line = Peers(Say=[refusal])  # type: ignore[method-assign, assignment]
        for asked in range(20):
            node._speak(services_pb2.SayRequest(toss=check_pb2.Toss()))
            await until(lambda asked=asked: len(peers.asked) > asked, "it was refused")  # type: ignore[misc]
        await until(lambda: not busy_with(node, "_say"), "all were refused")

    silo(tmp_path, go, CHECKED)
    assert capsys.readouterr().err.count("refused this silo's part") == 1


def test_a_silo_whose_receipts_cannot_be_read_fills_no_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(*_: Any, **__: Any) -> Any:
        for number in range(20):
            yield number

    async def go(node: SiloNode) -> None:
        m = await joined(node)
        node.line.stories["Submit"] = [PeerFault(Reason.MALFORMED, "that is none")]  # type: ignore[attr-defined]
        node.keep(m, np.zeros(layout(m).body_bytes, np.uint8))
        await node._submit(m)

    monkeypatch.setattr(module, "backoff", at_once)
    silo(tmp_path, go)
    assert capsys.readouterr().err.count("is no receipt") == 1


def test_a_silo_that_is_dialled_anew_tells_once_what_it_has_computed(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> None:
        node.follower.tell_again = asyncio.Event().wait  # type: ignore[method-assign, assignment]
        lines = [[News(records=history_pb2.Records()), ended(grpc.StatusCode.UNAVAILABLE)]] * 2
        node.line = Peers(Watch=[*lines, [ended(grpc.StatusCode.UNAVAILABLE)]])  # type: ignore[method-assign, assignment]
        main = asyncio.create_task(node.main())
        await until(lambda: len(node.line.asked) >= 3, "it came back twice")  # type: ignore[attr-defined]
        assert busy_with(node, "_tell_again") == 1
        main.cancel()

    silo(tmp_path, go)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", Reason.MALFORMED),
        (News(finished=services_pb2.Finished()).SerializeToString() * 2, Reason.MALFORMED),
        (b"\x7a\x00", Reason.MALFORMED),  # a field that no announcement has
        (News(check=case_pb2.Subject()).SerializeToString(), Reason.WRONG_POLICY),
        (News(coin=services_pb2.Coin()).SerializeToString(), Reason.WRONG_POLICY),
    ],
    ids=["nothing", "two", "no kind", "a check", "a coin"],
)
def test_what_is_no_announcement_under_this_policy_is_not_parsed(tmp_path: Path, raw: bytes, reason: Reason) -> None:
    async def go(node: SiloNode) -> None:
        with pytest.raises(PeerFault) as caught:
            node._longest(raw)
        assert caught.value.reason is reason

    silo(tmp_path, go)


def test_an_announcement_may_be_as_long_as_its_kind_and_no_longer(tmp_path: Path) -> None:
    news = News(wanted=services_pb2.Wanted(model_digest=bytes(32)))
    check = News(check=case_pb2.Subject())

    async def go(node: SiloNode) -> None:
        limits = node.limits
        assert node._longest(news.SerializeToString()) == limits.announcement("wanted") < limits.manifest
        assert node._longest(check.SerializeToString()) == limits.subject

    silo(tmp_path, go, CHECKED)


def test_a_silo_hangs_up_on_what_is_no_announcement(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> None:
        await node.main()
        assert rejections(node, Reason.MALFORMED) == 1
        assert rejections(node, Reason.WRONG_LENGTH) == 1

    long = News(wanted=services_pb2.Wanted(model_digest=bytes(2048)))
    never = RuntimeError("it listens on")
    silo(tmp_path, go, Watch=[[News(), never], [long, never], [done(), OVER]])


def said(caplog: pytest.LogCaptureFixture, what: str) -> int:
    return sum(what in one.getMessage() for one in caplog.records)


def test_an_aggregator_cannot_fill_a_silos_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each kind of refusal is said once, with its sentence, and then now and then with how often it was not."""
    monkeypatch.setattr(module, "REFUSED_S", 0.0)
    now = 0.0

    async def go(node: SiloNode) -> None:
        nonlocal now
        node.steady = lambda: now
        for _ in range(MANY):
            await node._take_in(News(manifest=manifest_pb2.Manifest()))
            node._say_refused(PeerFault(Reason.BAD_SIGNATURE, "it is forged"), 1, "cannot be read")
            await node._hear(News(coin=services_pb2.Coin()))
        assert said(caplog, "this silo does not join: a manifest without schema or plan") == 1
        assert said(caplog, "cannot be read: it is forged") == 1
        assert said(caplog, "this silo takes no part in the tamper check") == 1
        assert sum(rejections(node, reason) for reason in Reason) == 2 * MANY
        now = 5.0
        caplog.clear()
        await node._take_in(News(manifest=manifest_pb2.Manifest()))
        (line,) = caplog.records
        assert vars(line)["silomix_fields"]["unsaid"] == MANY - 1

    silo(tmp_path, go)


def test_a_fork_is_said_once_however_often_it_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = replace(recorded(past(F)), attempts=(Attempted(1, bytes(32), F.chain),)).signed(identity(AGGREGATOR))

    async def go(node: SiloNode) -> None:
        node.steady = lambda: 0.0
        await node._records(tuple(past(F, 1).records))
        for _ in range(10):
            with pytest.raises(Fork):
                await node._records((counted(other, F),))
        assert said(caplog, "FORK") == 1

    silo(tmp_path, go)


def test_an_aggregator_waits_for_an_announcement_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To refuse costs as much as to accept: signatures are looked at, and a line is written."""
    monkeypatch.setattr(module, "REFUSED_S", 3600.0)

    async def go(node: SiloNode) -> None:
        node.line = Peers(  # type: ignore[method-assign, assignment]
            Watch=[[News(manifest=manifest_pb2.Manifest()), RuntimeError("it reads on")]]
        )
        main = asyncio.create_task(node.main())
        await until(lambda: sum(rejections(node, reason) for reason in Reason), "the first is refused")
        await asyncio.sleep(0)
        assert not main.done()
        main.cancel()

    silo(tmp_path, go)


def test_a_silo_does_not_start_with_a_task_that_the_owners_have_not_agreed_on(tmp_path: Path) -> None:
    """Not even what stands at the top of its module is run."""
    f = federation(task="silomix.runtime.bench.workers:task", task_digest="00" * 32)
    with pytest.raises(TaskError, match="agreed"):
        SiloNode(config_of(tmp_path, f, "silo-1"))


# Records


def test_a_silo_that_is_started_again_knows_what_it_knew(tmp_path: Path) -> None:
    async def hears(node: SiloNode) -> None:
        await node._records(tuple(past(F, 2).records))
        await node._records(())

    async def again(node: SiloNode) -> None:
        assert [record.digest for record in node.core.log.records] == [one.digest for one in past(F, 2).records]

    silo(tmp_path, hears)
    silo(tmp_path, again)


def test_two_stories_of_a_round_are_kept_and_refused(tmp_path: Path) -> None:
    one = past(F, 1).records[1]
    other = replace(recorded(past(F)), attempts=(Attempted(1, bytes(32), F.chain),)).signed(identity(AGGREGATOR))

    async def go(node: SiloNode) -> None:
        await node._records(tuple(past(F, 1).records))
        with pytest.raises(Fork):
            await node._records((counted(other, F),))
        assert [record.digest for record in node.core.log.records][1] == one.digest
        assert node.core.forks

    silo(tmp_path, go)


def test_a_silo_says_that_a_round_ran_without_it_when_one_did_and_not_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = begun()
    m = manifest(F, log=log)
    everybody, others = cohort(m, headers(m, F)), cohort(m, headers(m, F)[1:])
    with_it, without = (applied(log, m, ready(m, c), c.silos) for c in (everybody, others))
    abandoned = counted(recorded(log), F)
    for number, (record, said) in enumerate(((with_it, False), (abandoned, False), (without, True))):

        async def go(node: SiloNode, record: Any = record) -> None:
            await node._records((*log.records, record))

        caplog.clear()
        silo(tmp_path / str(number), go, GetSum=[[ended(grpc.StatusCode.UNIMPLEMENTED)]])
        assert any("ran without this silo" in one.getMessage() for one in caplog.records) is said


def test_a_round_that_ran_without_a_silo_is_said_once_however_often_its_record_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = begun()
    m = manifest(F, log=log)
    others = cohort(m, headers(m, F)[1:])

    async def go(node: SiloNode) -> None:
        for _ in range(10):
            await node._records((*log.records, applied(log, m, ready(m, others), others.silos)))

    silo(tmp_path, go, GetSum=[[ended(grpc.StatusCode.UNIMPLEMENTED)]])
    assert sum("ran without this silo" in one.getMessage() for one in caplog.records) == 1


# Freezing


def test_a_silo_does_not_train_the_model_of_another_task(tmp_path: Path) -> None:
    task = Counting(Schema((TensorSpec("c", (7,)),)))

    async def go(node: SiloNode) -> None:
        with pytest.raises(LocalFault) as caught:
            await node._freeze(await joined(node))
        assert caught.value.reason is Reason.WRONG_SCHEMA
        assert task.trained == []

    silo(tmp_path, go, task=task)


def test_nothing_is_frozen_or_sent_for_an_aggregator_that_was_seen_to_lie(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> None:
        m = await joined(node)
        node._body = (frozen_name(m, F), layout(m).body())
        node.follower.liar = "it lied"
        with pytest.raises(PeerFault, match="it lied"):
            await node._freeze(m)

    silo(tmp_path, go)


def body_of(node: SiloNode) -> tuple[str, Bytes]:
    assert node._body is not None
    return node._body


def test_a_silo_trains_once_for_a_model_whatever_it_still_has_of_it(tmp_path: Path) -> None:
    """In memory, before the file is written; on the disk, after a restart; and never the integers of another model."""
    task = Counting()

    async def go(node: SiloNode) -> None:
        m = await joined(node)
        name, other = frozen_name(m, F), layout(m).body()
        node._body = ("another model", other)
        await node._freeze(m)
        assert task.trained == [1]
        found, first = body_of(node)
        assert found == name
        assert first is not other
        assert node._durable is not None
        await node._durable
        node.frozen.path(name).rename(tmp_path / "kept")
        await node._freeze(m)
        assert task.trained == [1], "what is in memory is not trained again"
        assert body_of(node)[1] is first
        (tmp_path / "kept").rename(node.frozen.path(name))
        node._body = None
        await node._freeze(m)
        assert task.trained == [1], "nor is what is on the disk"
        assert (body_of(node)[1] == first).all()

    silo(tmp_path, go, task=task)


def test_a_silo_does_not_train_under_bounds_that_do_not_follow(tmp_path: Path) -> None:
    f, task = federation(bound=AUTO), Counting()
    right = bounds_of(f.policy, SCHEMA, FIRST, None)

    async def go(node: SiloNode) -> None:
        m = await joined(node, bounds=right)
        with pytest.raises(PeerFault):
            await node._freeze(replace(m, bounds=tuple(2 * bound for bound in right)))
        assert task.trained == []
        await node._freeze(m)
        assert task.trained == [1]

    silo(tmp_path, go, f, task)


def test_false_bounds_do_not_have_a_silo_train_twice_on_one_model(tmp_path: Path) -> None:
    """Were its integers deleted for such an attempt, it would make others after a restart: what two sums for the same
    silos then differ by is its own."""
    f, task = federation(bound=AUTO), Counting()
    right = bounds_of(f.policy, SCHEMA, FIRST, None)

    async def before(node: SiloNode) -> None:
        m = await joined(node, bounds=right)
        await node._freeze(m)
        assert node._durable is not None
        await node._durable
        with pytest.raises(PeerFault) as caught:
            await node._freeze(replace(m, attempt=2, bounds=tuple(2 * bound for bound in right)))
        assert caught.value.reason is Reason.BAD_BOUND

    async def after_a_restart(node: SiloNode) -> None:
        await node._freeze(await joined(node, attempt=3, bounds=right))

    silo(tmp_path, before, f, task)
    silo(tmp_path, after_a_restart, f, task)
    assert task.trained == [1]


def test_a_silo_that_is_leaving_sends_nothing_that_it_cannot_write_down(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> None:
        m = await joined(node)

        def ends(work: Any) -> None:
            work.close()

        node.spawn = ends  # type: ignore[method-assign]
        with pytest.raises(ConnectionAbortedError):
            node.keep(m, layout(m).body())

    silo(tmp_path, go)


# Sending


def receipt(m: Manifest, root: bytes) -> body_pb2.Receipt:
    made = Receipt("silo-1", m.digest, root, "hop-1")
    return write_receipt(replace(made, signature=identity("hop-1").sign(made.digest)))


async def taking_part(node: SiloNode) -> Manifest:
    """A silo that has frozen its integers, and is to send them."""
    log = begun(node.federation)
    m = manifest(node.federation, log=log)
    await node.step(core.RecordsIn(tuple(log.records)))
    node._attempt = _nothing  # type: ignore[method-assign, assignment]
    await node.step(core.Announced(m))
    node._body = (frozen_name(m, node.federation), layout(m).body())
    return m


async def _nothing(*_: object) -> None:
    pass


def answers(make: Callable[[bytes], Any], *, early: bool = False) -> Any:
    """Hop 1 as it answers to a body with this root."""

    async def answer(frames: Any) -> Any:
        root = b""
        if not early:
            root = [body_pb2.Frame.FromString(raw) async for raw in frames][-1].trailer.root
        return make(root)

    return answer


def test_a_receipt_is_for_the_body_that_was_sent(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> None:
        m = await taking_part(node)
        other = secret("another body").value
        node.line = Peers(Submit=[answers(lambda _: receipt(m, other))])  # type: ignore[method-assign, assignment]
        with pytest.raises(PeerFault) as caught:
            await node._submit(m)
        assert caught.value.reason is Reason.ROOT_MISMATCH
        node.line = Peers(Submit=[answers(lambda root: receipt(m, root))])  # type: ignore[method-assign, assignment]
        await node._submit(m)
        assert node.core.counted == m.digest

    silo(tmp_path, go)


@pytest.mark.parametrize("whole", [True, False], ids=["a whole stream", "one that broke"])
def test_nothing_that_masks_are_made_with_outlives_the_stream_that_they_are_for(tmp_path: Path, whole: bool) -> None:
    """The seeds go when the attempt is over. Keys that follow from them would take off the masks as well."""

    async def go(node: SiloNode) -> None:
        m = await taking_part(node)
        held = Held.of(m, node.core.sealing(m, rng("seeds")), body_of(node)[1])
        frames = node._frames(m, held, [])
        assert isinstance(await anext(frames), body_pb2.Frame)
        sent = [await anext(frames)]
        if whole:
            sent += [frame async for frame in frames]
            assert isinstance(sent[-1], body_pb2.Frame)
        await frames.aclose()  # type: ignore[attr-defined]
        assert keyed
        assert all(stream._wiped for stream in keyed)

    keyed: list[Stream] = []

    def keying(*of: Any) -> list[Stream]:
        keyed.extend(mask_streams(*of))
        return keyed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "mask_streams", keying)
        silo(tmp_path, go)


def test_a_receipt_may_come_before_the_body_is_sent_again(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> None:
        m = await taking_part(node)
        early = answers(lambda _: receipt(m, secret("sent before").value), early=True)
        node.line = Peers(Submit=[early])  # type: ignore[method-assign, assignment]
        await node._submit(m)
        assert node.core.counted == m.digest

    silo(tmp_path, go)


def _same(error: Any, root: bytes) -> Any:
    return error


def test_a_body_that_hop_1_refuses_is_not_sent_again(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> None:
        m = await taking_part(node)
        for error, reason in (
            (ended(grpc.StatusCode.FAILED_PRECONDITION, f"{Reason.COHORT_CLOSED}: too late"), Reason.COHORT_CLOSED),
            (ended(grpc.StatusCode.UNIMPLEMENTED), Reason.WRONG_SEQUENCE),
        ):
            stories = [answers(partial(_same, error)), answers(lambda root: receipt(m, root))]
            node.line = Peers(Submit=stories)  # type: ignore[method-assign, assignment]
            with pytest.raises(PeerFault) as caught:
                await node._submit(m)
            assert caught.value.reason is reason

    silo(tmp_path, go)


# What it overwrites


def held_of(m: Manifest) -> Held:
    return Held.of(m, core.Silo(CHECKED, identity("silo-1")).sealing(m, rng("seeds")), layout(m).body())


def secrets_of(held: Held) -> list[bytes]:
    share = [] if held.sealing.share is None else [held.sealing.share.value]
    return [*(seed.value for _, seed in held.sealing.seeds), *share]


def test_nothing_that_scalars_are_made_with_outlives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    keyed, wiped = list[Stream](), list[Stream]()
    real = Stream.__init__, Stream.wipe

    def init(self: Stream, *of: Any) -> None:
        keyed.append(self)
        real[0](self, *of)

    def wipe(self: Stream) -> None:
        wiped.append(self)
        real[1](self)

    monkeypatch.setattr(Stream, "__init__", init)
    monkeypatch.setattr(Stream, "wipe", wipe)
    held = held_of(manifest(CHECKED))
    assert len(measure(held, bytes(32))) == 3
    assert len(keyed) == 3 + 2  # and the two of the coin, which everybody has
    assert len(wiped) == 3


def test_what_is_held_of_a_body_is_overwritten_whole() -> None:
    held = held_of(manifest(CHECKED))
    assert held.blinders is not None
    assert held.blinders.any()
    assert len(secrets_of(held)) == 4
    held.wipe()
    assert secrets_of(held) == [bytes(32)] * 4
    assert not held.blinders.any()


def test_a_coin_is_answered_with_the_body_of_its_own_attempt_or_not_at_all(tmp_path: Path) -> None:
    m, other, coin = manifest(CHECKED), manifest(CHECKED, attempt=2), bytes(32)

    async def go(node: SiloNode) -> None:
        measure = core.Measure(m.digest, coin)
        assert await node.perform(measure) is None
        node._held = held_of(other)
        assert await node.perform(measure) is None
        node._held = held_of(m)
        measured = await node.perform(measure)
        assert isinstance(measured, core.Measured)
        assert measured.manifest == m.digest

    silo(tmp_path, go, CHECKED)


def test_scalars_of_a_body_that_was_overwritten_meanwhile_are_not_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk holds the record of that round up, and lets it in when a worker is at it: without its blinders a body
    would show through."""
    m = manifest(CHECKED)

    async def go(node: SiloNode) -> None:
        node._held = held = held_of(m)

        def overwritten(held_: Held, coin: bytes) -> Any:
            assert held_ is held
            node._drop_held()
            return ()

        monkeypatch.setattr(module, "measure", overwritten)
        monkeypatch.setattr(module, "trapped", lambda *_: NO_TRAPS)
        assert await node.perform(core.Measure(m.digest, bytes(32))) is None

    silo(tmp_path, go, CHECKED)


def test_a_check_that_waits_for_the_record_of_its_round_gets_no_share(tmp_path: Path) -> None:
    f = CHECKED
    log = begun(f)
    m = manifest(f, log=log)
    sealing = core.Silo(f, identity("silo-1")).sealing(m, rng("seeds"))
    of = (sealing.header, *(committed_header(m, silo) for silo in f.silo_names[1:]))
    c = cohort(m, list(of))
    about = Subject(c, of, checked_bodies(c), Ready(m.digest, m.model, checked_trails(m, c)))

    async def go(node: SiloNode) -> None:
        node._attempt = _nothing  # type: ignore[method-assign, assignment]
        await node.step(core.RecordsIn(tuple(log.records)))
        await node.step(core.Announced(m))
        root = about.root_of("silo-1")
        await node.step(core.ReceiptIn(read_receipt(receipt(m, root)), root))
        node._held = Held(m, sealing, layout(m).body(), None, root)
        async with node.lock:  # a record is being written
            hears = asyncio.ensure_future(node._hear(News(check=write_subject(about))))
            await until(lambda: bool(node.lock._waiters), "the check waits")
            node._drop_held()  # the record was that of this round
        await hears
        assert not node.core.tossed

    silo(tmp_path, go, f, Say=[services_pb2.SayResponse()])


@pytest.mark.parametrize(
    ("held", "hears"),
    [("this attempt's", True), ("another's", False), ("no share", False), ("nothing", False)],
)
def test_a_silo_takes_part_in_the_check_of_the_body_that_it_still_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str, hears: bool
) -> None:
    m = manifest(CHECKED)
    heard: list[core.Event] = []

    async def insist(event: core.Event) -> None:
        heard.append(event)

    async def go(node: SiloNode) -> None:
        monkeypatch.setattr(module, "read_subject", lambda _: SimpleNamespace(ready=ready(m, cohort(m, headers(m, F)))))
        node.insist = insist  # type: ignore[method-assign]
        if held != "nothing":
            node._held = held_of(manifest(CHECKED, attempt=2) if held == "another's" else m)
        if held == "no share":
            assert node._held is not None
            node._held.sealing = replace(node._held.sealing, share=None)
        node._counted.set()
        await node._hear(News(check=case_pb2.Subject()))

    silo(tmp_path, go, CHECKED)
    assert [type(event) for event in heard] == [core.CheckIn] * hears


def test_a_silo_says_nothing_of_an_attempt_that_is_over(tmp_path: Path) -> None:
    async def go(node: SiloNode) -> int:
        asked = Peers(Say=[services_pb2.SayResponse()])
        node.line = asked  # type: ignore[method-assign, assignment]
        await node._say(services_pb2.SayRequest(), manifest(CHECKED))
        assert not asked.asked
        await node._say(services_pb2.SayRequest(), node.core.current)
        return len(asked.asked)

    assert silo(tmp_path, go, CHECKED) == 1


@pytest.mark.parametrize("accepted", [True, False], ids=["sent", "refused"])
@pytest.mark.parametrize("f", [F, CHECKED], ids=["semi-honest", "malicious"])
def test_seeds_are_overwritten_when_the_body_is_sent_or_refused_unless_a_check_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, f: Federation, accepted: bool
) -> None:
    made: list[Held] = []
    of = Held.of

    def spied(*given: Any) -> Held:
        made.append(of(*given))
        return made[-1]

    monkeypatch.setattr(Held, "of", spied)

    async def go(node: SiloNode) -> None:
        m = await taking_part(node)
        error = ended(grpc.StatusCode.FAILED_PRECONDITION, f"{Reason.COHORT_CLOSED}: too late")
        story = answers((lambda root: receipt(m, root)) if accepted else (lambda _: error))
        node.line = Peers(Submit=[story])  # type: ignore[method-assign, assignment]
        if accepted:
            await node._submit(m)
        else:
            with pytest.raises(PeerFault):
                await node._submit(m)
        (held,) = made
        kept = accepted and f is CHECKED
        assert (node._held is held) is kept
        assert any(map(any, secrets_of(held))) is kept
        await node._records((*begun(f).records, counted(recorded(begun(f)), f)))
        assert node._held is None
        assert not any(map(any, secrets_of(held))), "nothing outlives the round"

    silo(tmp_path, go, f)
