"""R7: who calls is known, may, and has room, before anything of theirs is read; then each message has its measure."""

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from tests.net.contexts import Context, Ended, Host

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net import calls
from silomix.runtime.net.calls import (
    CALLS_A_SECOND,
    CALLS_AT_ONCE,
    CALLS_EACH,
    LONGEST_WAIT_S,
    Call,
    Method,
    Pace,
    Room,
    check_length,
    parse,
)
from silomix.runtime.net.framing import one_field
from silomix.runtime.net.version import PROTOCOL, PROTOCOL_NAME
from silomix.v1 import services_pb2

ADDRESS = "ipv4:192.0.2.7:4321"
REQUEST = services_pb2.GetStatusRequest
ANSWER = services_pb2.GetStatusResponse


def anybody(_: str) -> None:
    """Let everybody in."""


async def run(
    context: Context,
    answer: Callable[[Call], Awaitable[None]],
    host: Host | None = None,
    admit: Callable[[str], object] = anybody,
    *,
    room: Room | None = None,
    seen: bool = True,
) -> Host:
    """Let a node answer a call, and return the node."""
    host = host or Host()
    method = Method(admit, answer, room or Room(), seen)
    handler: Any = method.handler(host, "GetStatus", Pace(lambda: 0.0))
    with contextlib.suppress(Ended):
        await handler.stream_stream(None, context)
    return host


async def tell(call: Call) -> None:
    await call.request(REQUEST, 100)
    await call.answer(ANSWER(federation=call.peer))


async def test_a_call_is_answered_and_both_messages_are_counted() -> None:
    context = Context([b""])
    host = await run(context, tell)
    (raw,) = context.sent
    assert ANSWER.FromString(raw).federation == "silo-1"
    assert context.status is None
    kinds = ("silomix.v1.GetStatusRequest", "silomix.v1.GetStatusResponse")
    assert host.seen == [
        ("received", "silo-1", "GetStatus", kinds[0], 0),
        ("sent", "silo-1", "GetStatus", kinds[1], len(raw)),
    ]
    assert (await run(Context([b""]), tell, seen=False)).seen == []


async def test_a_stranger_is_refused_by_address_before_anything_is_read() -> None:
    context = Context([b""])
    host = await run(context, tell, Host(""))
    assert host.refusals == [("GetStatus", Reason.UNKNOWN_PEER, "", ADDRESS)]
    assert (context.status, context.reads) == (grpc.StatusCode.PERMISSION_DENIED, 0)


async def test_a_member_in_the_wrong_place_is_refused_by_name_before_anything_is_read() -> None:
    def hops_only(peer: str) -> None:
        raise PeerFault(Reason.WRONG_CHAIN, f"{peer} is no hop", peer=peer)

    context = Context([b""])
    host = await run(context, tell, admit=hops_only)
    assert host.refusals == [("GetStatus", Reason.WRONG_CHAIN, "silo-1", ADDRESS)]
    assert (context.status, context.reads) == (grpc.StatusCode.FAILED_PRECONDITION, 0)
    assert context.details == "wrong_chain: silo-1 is no hop"


async def test_a_call_beyond_a_members_share_is_refused_before_anything_is_read_and_may_be_made_again() -> None:
    room, go_on = Room(), asyncio.Event()

    async def hold(_: Call) -> None:
        await go_on.wait()

    held = [asyncio.create_task(run(Context(), hold, room=room)) for _ in range(CALLS_EACH)]
    await asyncio.sleep(0)
    context = Context([b""])
    host = await run(context, tell, room=room)
    assert [reason for _, reason, _, _ in host.refusals] == [Reason.BUSY]
    assert (context.status, context.reads) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 0)
    other = Context([b""])
    await run(other, tell, Host("silo-2"), room=room)
    assert other.sent
    go_on.set()
    await asyncio.gather(*held)
    again = Context([b""])
    await run(again, tell, room=room)
    assert again.sent


async def test_a_place_is_free_again_however_a_call_ends() -> None:
    heard: list[int] = []
    room = Room(1, told=heard.append)

    async def fail(_: Call) -> None:
        raise PeerFault(Reason.MALFORMED, "no")

    for _ in range(3):
        host = await run(Context(), fail, room=room)
        assert [reason for _, reason, _, _ in host.refusals] == [Reason.MALFORMED]
    assert heard == [1, 0] * 3


class Much:
    """What a node sends, or has at hand while it does."""


@pytest.mark.parametrize("ends", ["too slow", "leaving", "full"])
async def test_a_call_that_nobody_reads_keeps_its_callers_place_and_nothing_of_what_was_sent(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "READ_S", 0.0)
    kept: list[weakref.ref[Much]] = []

    async def deep(call: Call) -> None:
        much = Much()
        kept.append(weakref.ref(much))
        match ends:
            case "too slow":
                await call.answer(ANSWER(federation=call.peer))
            case "leaving":
                raise ConnectionAbortedError("this node is leaving")
        raise OSError(f"no space left for {much}")

    room, context = Room(1), Context(deaf=True)
    held = asyncio.create_task(run(context, deep, room=room))
    await context.aborted.wait()
    gc.collect()
    assert [ref() for ref in kept] == [None]
    host = await run(Context([b""]), tell, room=room)
    assert [reason for _, reason, _, _ in host.refusals] == [Reason.BUSY]
    context.gone.set()
    with pytest.raises(asyncio.CancelledError):  # gRPC logs any other error, with all its traceback
        await held
    assert not room.open.total()


def test_the_last_places_are_for_those_who_have_none() -> None:
    room = Room(each=3, in_all=4)
    held = [room.place("greedy") for _ in range(3)] + [room.place("modest")]
    for place in held:
        place.__enter__()
    with pytest.raises(PeerFault, match="try again"):
        room.place("modest").__enter__()  # it has one, and the room is full
    newcomer = room.place("newcomer")
    newcomer.__enter__()
    assert room.open.total() == 5
    last = room.place("fourth")
    last.__enter__()
    with pytest.raises(PeerFault, match="open already"):
        room.place("fifth").__enter__()  # everybody who may have one has one
    with pytest.raises(PeerFault, match="greedy has 3"):
        room.place("greedy").__enter__()


async def test_a_disk_that_is_full_is_this_nodes_trouble_and_the_peer_may_call_again() -> None:
    async def full(_: Call) -> None:
        raise OSError("no space left")

    context = Context()
    host = await run(context, full)
    assert (host.refusals, host.failures) == ([], ["GetStatus: no space left"])
    assert context.status is grpc.StatusCode.UNAVAILABLE
    assert "no space" not in context.details


async def test_a_node_that_leaves_says_so_and_blames_nobody() -> None:
    async def leave(_: Call) -> None:
        raise ConnectionAbortedError("this node is leaving")

    context = Context()
    host = await run(context, leave)
    assert (host.refusals, host.failures) == ([], [])
    assert (context.status, context.details) == (grpc.StatusCode.UNAVAILABLE, "this node is leaving")


@pytest.mark.parametrize("named", [(), ((PROTOCOL_NAME, str(PROTOCOL - 1)),)])
async def test_a_call_of_another_protocol_is_refused_before_anything_is_read(
    named: tuple[tuple[str, str], ...],
) -> None:
    context = Context([b""])
    context.metadata = named
    host = await run(context, tell)
    assert host.refusals == [("GetStatus", Reason.WRONG_PROTOCOL, "silo-1", ADDRESS)]
    assert (context.status, context.reads) == (grpc.StatusCode.FAILED_PRECONDITION, 0)
    other = Context([b""])
    other.metadata = named
    await run(other, tell, seen=False)  # what is no part of rounds is for finding such things out
    assert other.sent


async def open_call(host: Host, context: Context) -> asyncio.Task[Host]:
    """Begin a call that is never answered."""

    async def hold(_: Call) -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(run(context, hold, host))
    await asyncio.sleep(0)
    return task


async def test_who_is_no_longer_known_is_told_so_in_mid_call() -> None:
    def unknown(_: object) -> None:
        raise PeerFault(Reason.UNKNOWN_PEER, "no longer")

    host, context = Host(), Context()
    task = await open_call(host, context)
    assert host.callers.drop(lambda _: None) == []
    assert host.callers.drop(unknown) == ["silo-1"]
    assert await task is host
    assert context.status is grpc.StatusCode.UNAVAILABLE
    assert "silo-1 is no longer known" in context.details
    assert host.callers.drop(unknown) == []


async def test_a_call_that_ends_for_any_other_cause_is_over() -> None:
    context = Context()
    task = await open_call(Host(), context)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert context.status is None


# Messages


def call(context: Any, host: Host | None = None) -> Call:
    return Call(context, host or Host(), "silo-1", "Submit")


async def test_a_message_has_its_length() -> None:
    assert await call(Context([b"x" * 10])).next("kind", 10, 1.0) == b"x" * 10
    with pytest.raises(PeerFault, match="11 bytes where 10 are the most") as refused:
        await call(Context([b"x" * 11])).next("kind", 10, 1.0)
    assert (refused.value.reason, refused.value.details["peer"]) == (Reason.WRONG_LENGTH, "silo-1")


async def test_a_message_that_is_too_long_is_counted_all_the_same() -> None:
    """What came over the wire was paid for, and whoever captures wants to see it."""
    host = Host()
    with pytest.raises(PeerFault):
        await call(Context([b"xx"]), host).next("kind", 1, 1.0)
    assert host.seen == [("received", "silo-1", "Submit", "kind", 2)]


async def test_a_peer_that_says_nothing_is_refused_when_its_time_is_up() -> None:
    with pytest.raises(PeerFault, match="silent") as refused:
        await call(Context(silent=True)).next("kind", 10, 0.0)
    assert (refused.value.reason, refused.value.details["peer"]) == (Reason.TOO_SLOW, "silo-1")


async def test_a_peer_that_hangs_up_has_sent_nothing() -> None:
    host = Host()
    assert await call(Context(), host).next("kind", 10, 1.0) is None
    assert host.seen == []
    with pytest.raises(PeerFault, match="asked nothing") as refused:
        await call(Context()).request(REQUEST, 10)
    assert refused.value.reason is Reason.MALFORMED


async def test_a_peer_that_takes_its_call_back_is_not_blamed() -> None:
    """A silo that is stopped does so: nobody waits for an answer, and there is nothing to warn of."""
    context = Context()
    context.hung_up = True
    with pytest.raises(asyncio.CancelledError):
        await call(context).request(REQUEST, 10)


async def test_a_request_that_does_not_parse_or_is_too_long_is_refused() -> None:
    with pytest.raises(PeerFault, match=r"no silomix\.v1\.GetStatusRequest") as refused:
        await call(Context([b"\xff"])).request(REQUEST, 10)
    assert (refused.value.reason, refused.value.details["peer"]) == (Reason.MALFORMED, "silo-1")
    with pytest.raises(PeerFault) as long:
        await call(Context([bytes(11)])).request(REQUEST, 10)
    assert long.value.reason is Reason.WRONG_LENGTH


async def test_a_long_request_does_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is written for it takes a tenth of a second for each mebibyte, and some may have many."""
    read: list[bool] = []

    def note(*about: Any) -> Any:
        read.append(threading.current_thread() is threading.main_thread())
        return parse(*about)

    monkeypatch.setattr(calls, "parse", note)
    for size in (calls.ASIDE_BYTES, calls.ASIDE_BYTES + 1):
        later = one_field(15, bytes(size - 4))
        assert len(later) == size
        await call(Context([later])).request(REQUEST, size)
    assert read == [True, False]
    with pytest.raises(PeerFault) as refused:
        await call(Context([b"\xff" * size])).request(REQUEST, size)
    assert (refused.value.reason, refused.value.details["peer"]) == (Reason.MALFORMED, "silo-1")


async def test_a_request_has_time_for_its_length_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float | None] = []

    async def next_(self: Call, kind: str, limit: int, seconds: float | None) -> bytes:
        given.append(seconds)
        return b""

    monkeypatch.setattr(Call, "next", next_)
    for limit in (0, 1 << 20):
        await call(Context()).request(REQUEST, limit)
    assert given == [10.0, 42.0]


async def test_a_peer_that_does_not_read_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "READ_S", 0.0)
    with pytest.raises(PeerFault, match="did not read") as refused:
        await call(Context(deaf=True)).answer(ANSWER())
    assert (refused.value.reason, refused.value.details["peer"]) == (Reason.TOO_SLOW, "silo-1")


def test_a_message_may_be_as_long_as_the_longest_and_parses_to_itself() -> None:
    check_length(bytes(5), 5, "silo-1")
    with pytest.raises(PeerFault):
        check_length(bytes(6), 5, "silo-1")
    sent = ANSWER(federation="f", rounds=3)
    assert parse(ANSWER, sent.SerializeToString(), "silo-1") == sent


# The pace


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What callers waited, in place of waiting."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(round(seconds, 6))

    monkeypatch.setattr("silomix.runtime.net.calls.asyncio.sleep", sleep)
    return found


async def test_many_calls_at_once_are_answered_and_more_wait_their_turn(waits: list[float]) -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(CALLS_AT_ONCE):
        await pace.turn("silo-1")
    assert waits == []
    for _ in range(3):
        await pace.turn("silo-1")
    assert waits == [round(i / CALLS_A_SECOND, 6) for i in (1, 2, 3)]
    await pace.turn("silo-2")
    assert len(waits) == 3  # others do not wait for it
    clock.now += 3 / CALLS_A_SECOND
    await pace.turn("silo-1")
    assert waits[3:] == [round(1 / CALLS_A_SECOND, 6)]
    clock.now += 60
    for _ in range(CALLS_AT_ONCE):
        await pace.turn("silo-1")
    assert len(waits) == 4


async def test_nobody_waits_longer_than_a_while_however_often_they_called(waits: list[float]) -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(10_000):
        await pace.turn("silo-1")
    assert max(waits) == LONGEST_WAIT_S
    clock.now += LONGEST_WAIT_S + CALLS_AT_ONCE / CALLS_A_SECOND + 1
    waits.clear()
    await pace.turn("silo-1")
    assert waits == []


async def test_a_method_may_have_a_slower_pace_by_which_nothing_is_read_before_its_turn(waits: list[float]) -> None:
    read: list[int] = []

    async def answer(call: Call) -> None:
        read.append(len(waits))

    method = Method(anybody, answer, pace=Pace(Clock(), 3, 1.0))
    for name in ("silo-1", "silo-2"):
        handler: Any = method.handler(Host(name), "Meet", Pace(Clock()))
        for _ in range(5):
            await handler.stream_stream(None, Context([b""]))
    assert waits == [1.0, 2.0] * 2
    assert read == [0, 0, 0, 1, 2, 2, 2, 2, 3, 4]


async def test_whoever_calls_waits_its_turn_before_it_is_refused_or_answered(waits: list[float]) -> None:
    """A refusal costs what an answer does; strangers share one turn, whatever their addresses."""
    pace = Pace(Clock())

    def nobody(peer: str) -> None:
        raise PeerFault(Reason.WRONG_CHAIN, "no")

    for name, admit in (("silo-1", nobody), ("silo-2", anybody), ("", anybody)):
        handler: Any = Method(admit, tell).handler(Host(name), "GetStatus", pace)
        for i in range(CALLS_AT_ONCE + 1):
            assert bool(waits) is False, (name, i)
            with_room: Any = Context([b""])
            with contextlib.suppress(Ended):
                await handler.stream_stream(None, with_room)
        assert waits == [round(1 / CALLS_A_SECOND, 6)], name
        waits.clear()
