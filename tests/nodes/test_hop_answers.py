"""How a hop answers and passes on: with the decision that was asked for, and again if the next hop was only busy."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from tests.core.protocol.checks import F as CHECKED
from tests.core.protocol.federations import AGGREGATOR, federation, manifest
from tests.nodes.alone import Peers, alone, call, config_of, ended

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.tamper import EquationKind
from silomix.runtime.core.protocol import shuffler as core
from silomix.runtime.core.protocol.check.blame import Defence
from silomix.runtime.core.protocol.check.said import Statement
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.hearing import LIFE_BYTES, Shown
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.nodes import shuffler as module
from silomix.runtime.nodes.rows import make_passage
from silomix.runtime.nodes.shuffler import ShufflerNode, _Service
from silomix.v1 import check_pb2, history_pb2, services_pb2

F = federation(level=Level.TRUSTED)
NOTED: core.Effect = Remember(core.KeysGone(1, 1))
"""A decision that comes before the one which was asked for, as most do."""


def hop(directory: Path, work: Callable[[ShufflerNode], Coroutine[Any, Any, Any]], f: Federation = F) -> Any:
    return alone(lambda: ShufflerNode(config_of(directory, f, "hop-1")), work)


ASKED: dict[str, tuple[Message, core.Effect, type[Message], str]] = {
    "_show": (
        services_pb2.ShowRequest(life=bytes(LIFE_BYTES), signature=bytes(64)),
        core.Shows(Shown(bytes(LIFE_BYTES), 1, 0, (), 1, 7, ())),
        services_pb2.ShowResponse,
        "last_released: 7",
    ),
    "_prepare": (
        services_pb2.PrepareRequest(head_digest=bytes(32)),
        core.Keys((), 7),
        services_pb2.PrepareResponse,
        "last_released: 7",
    ),
    "_answer": (
        services_pb2.AnswerRequest(manifest_digest=bytes(32)),
        core.Answer(Statement("hop-1", bytes(32), bytes(32), (), signature=bytes(64))),
        services_pb2.AnswerResponse,
        'name: "hop-1"',
    ),
    "_reveal": (
        services_pb2.RevealRequest(manifest_digest=bytes(32)),
        core.Reveal(Secret(b"p" * 32)),
        services_pb2.RevealResponse,
        f'pad: "{"p" * 32}"',
    ),
}


@pytest.mark.parametrize("method", ASKED)
def test_a_call_is_answered_with_what_was_asked_for_and_not_with_what_was_noted_first(
    tmp_path: Path, method: str
) -> None:
    request, effect, kind, said = ASKED[method]

    async def go(node: ShufflerNode) -> str:
        async def step(event: core.Event) -> list[core.Effect]:
            return [NOTED, effect]

        node.step = step  # type: ignore[method-assign]
        made, context = call(AGGREGATOR, request)
        await getattr(_Service(node), method)(made)
        (raw,) = context.sent
        return str(kind.FromString(raw))

    assert said in hop(tmp_path, go, CHECKED)


@pytest.mark.parametrize(
    ("method", "reader", "request_"),
    [
        ("_store", "read_records", services_pb2.StoreRequest()),
        ("_open", "read_records", services_pb2.OpenRequest(head=history_pb2.Record())),
        (
            "_agree",
            "read_check",
            services_pb2.AgreeRequest(manifest_digest=bytes(32), check=check_pb2.CheckTranscript()),
        ),
        ("_prove", "read_check", services_pb2.ProveRequest(manifest_digest=bytes(32))),
        ("_defend", "read_check", services_pb2.DefendRequest(manifest_digest=bytes(32))),
    ],
)
def test_what_may_be_long_is_not_read_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, reader: str, request_: Message
) -> None:
    """Records of as many names as fit into a message took half a second to read with a hundred silos."""
    read: list[bool] = []

    def note(*_: object) -> None:
        read.append(threading.current_thread() is threading.main_thread())
        raise PeerFault(Reason.MALFORMED, "that is enough")

    monkeypatch.setattr(module, reader, note)
    monkeypatch.setattr(module, "read_manifest", lambda _: None)

    async def go(node: ShufflerNode) -> None:
        made, _ = call(AGGREGATOR, request_)
        with pytest.raises(PeerFault, match="that is enough"):
            await getattr(_Service(node), method)(made)

    hop(tmp_path, go, CHECKED)
    assert read == [False]


def test_no_record_is_hashed_on_the_event_loop(tmp_path: Path) -> None:
    """It may have thousands of names."""
    hashed: list[bool] = []

    class Later:
        """A record of a round that is still to come."""

        round = 7

        @property
        def digest(self) -> bytes:
            hashed.append(threading.current_thread() is threading.main_thread())
            return bytes(32)

    async def go(node: ShufflerNode) -> int:
        later: Any = Later()
        return (await node.store((later,), b"")).records

    assert hop(tmp_path, go) == 0
    assert hashed == [False]


@pytest.mark.parametrize("state", core.State)
def test_an_attempt_is_open_at_a_hop_until_it_is_given_up(tmp_path: Path, state: core.State) -> None:
    """A hop that has passed its sum on still answers for it: whoever looks after hops must not count it as lost."""

    async def go(node: ShufflerNode) -> tuple[bytes, bytes]:
        node.core.attempt, node.core.state = core._Attempt(manifest(F), 0.0), state
        return node._open_attempt(), node._given_up()

    alive = state in (core.State.OPEN, core.State.RELEASING, core.State.DONE)
    assert hop(tmp_path, go) == ((manifest(F).digest, b"") if alive else (b"", manifest(F).digest))


@pytest.mark.parametrize(("name", "who"), [("silo-2", "silo-2"), ("", "nobody else")])
def test_a_hop_that_is_charged_says_in_its_log_whom_it_shows_to_have_lied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, who: str
) -> None:
    async def go(node: ShufflerNode) -> None:
        for _ in range(20):  # whoever charges it again and again fills no log
            await node.perform(core.Defend(Defence("hop-1", bytes(32), next(iter(EquationKind)), name)))

    hop(tmp_path, go, CHECKED)
    assert sum(f"shows that {who} lied" in one.getMessage() for one in caplog.records) == 1


@pytest.mark.parametrize(
    ("reason", "again"),
    [(Reason.BUSY, True), (Reason.WRONG_MANIFEST, True), (Reason.ROOT_MISMATCH, False)],
)
def test_a_sum_is_sent_again_to_a_hop_that_is_busy_or_behind_and_not_to_one_that_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Reason, again: bool
) -> None:
    monkeypatch.setattr(module, "backoff", _at_once)
    refused: list[core.Event] = []

    async def go(node: ShufflerNode) -> int:
        tries, second = 0, asyncio.Event()

        async def stream_to(*_: object, last: bool) -> Any:
            nonlocal tries
            tries += 1
            if tries > 1:
                second.set()
                await asyncio.Event().wait()
            raise ended(grpc.StatusCode.FAILED_PRECONDITION, f"{reason}: no")

        async def insist(event: core.Event) -> None:
            refused.append(event)

        node.line = Peers()  # type: ignore[method-assign, assignment]
        node._stream_to, node.insist = stream_to, insist  # type: ignore[method-assign, assignment]
        passage = make_passage(manifest(F), "hop-1", node.workers, node.spool)
        sending = asyncio.create_task(node._send(passage, asyncio.Event()))
        came = asyncio.create_task(second.wait())
        await asyncio.wait([sending, came], return_when=asyncio.FIRST_COMPLETED, timeout=10)
        for task in (sending, came):
            task.cancel()
        return tries

    assert hop(tmp_path, go) == (2 if again else 1)
    assert [type(event) for event in refused] == ([] if again else [core.SendRefused])


async def _at_once() -> Any:
    for number in range(3):
        yield number
