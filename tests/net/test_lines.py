"""R7: what a peer answers is measured and parsed here, and what is no answer is a fault of that peer's, by name."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from typing import Any

import grpc
import pytest
from tests.net.contexts import Host

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net import calls
from silomix.runtime.net.answers import transient
from silomix.runtime.net.calls import parse
from silomix.runtime.net.framing import one_field
from silomix.runtime.net.lines import Line, method
from silomix.runtime.net.version import PROTOCOL, PROTOCOL_NAME, SAID, check_protocol
from silomix.v1 import body_pb2, services_pb2

Named = tuple[tuple[str, str], ...]

STATUS = method("AggregatorService", "GetStatus")
WATCH = method("AggregatorService", "Watch")
SUBMIT = method("ShufflerService", "Submit")
GOOD = services_pb2.GetStatusResponse(federation="f")


class Answers:
    """A stream of answers that can be hung up on."""

    def __init__(self, answers: Iterable[Any], named: Named) -> None:
        self._answers, self._named = iter(answers), named
        self.cancelled = False

    async def initial_metadata(self) -> Named:
        return self._named

    def __aiter__(self) -> "Answers":
        return self

    async def __anext__(self) -> Any:
        try:
            answer = next(self._answers)
        except StopIteration:
            raise StopAsyncIteration from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def cancel(self) -> None:
        self.cancelled = True


class Calling:
    """A call under way: awaited, it is the answer."""

    def __init__(self, answer: Awaitable[Any], named: Named) -> None:
        self._answer, self._named = answer, named

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer.__await__()

    async def initial_metadata(self) -> Named:
        return self._named


class Channel:
    """A peer that answers what a test says, whatever it is asked."""

    def __init__(self, *answers: Any, named: Named = SAID) -> None:
        self.answers = Answers(answers, named)
        self.named = named
        self.asked: list[tuple[str, Any, dict[str, Any]]] = []

    def unary_unary(self, path: str, *_: Any) -> Any:
        async def call(raw: bytes, **options: Any) -> Any:
            self.asked.append((path, raw, options))
            return await self._answer()

        return lambda raw, **options: Calling(call(raw, **options), self.named)

    async def _answer(self) -> Any:
        return await anext(self.answers)

    def unary_stream(self, path: str, *_: Any) -> Any:
        def call(raw: bytes, **options: Any) -> Any:
            self.asked.append((path, raw, options))
            return self.answers

        return call

    def stream_unary(self, path: str, *_: Any) -> Any:
        async def call(frames: AsyncIterator[bytes], **options: Any) -> Any:
            self.asked.append((path, [frame async for frame in frames], options))
            return await self._answer()

        return lambda frames, **options: Calling(call(frames, **options), self.named)


def line(to: Any, host: Host | None = None, *, any_protocol: bool = False) -> Line:
    return Line(to, "hop-1", (("who", "me"),), host or Host(), any_protocol=any_protocol)


async def ask(answer: Any, limit: int = 100) -> services_pb2.GetStatusResponse:
    request, kind = services_pb2.GetStatusRequest(), services_pb2.GetStatusResponse
    return await line(Channel(answer)).ask(STATUS, request, kind, limit, 1.0)


async def test_a_question_goes_where_its_method_is_with_what_each_call_carries() -> None:
    to, host = Channel(GOOD.SerializeToString()), Host()
    found = await line(to, host).ask(STATUS, services_pb2.GetStatusRequest(), type(GOOD), 100, 3.0, wait=True)
    assert found == GOOD
    options = {"metadata": (("who", "me"),), "timeout": 3.0, "wait_for_ready": True}
    assert to.asked == [("/silomix.v1.AggregatorService/GetStatus", b"", options)]
    assert [(d, p, m, s) for d, p, m, _, s in host.seen] == [
        ("sent", "hop-1", "GetStatus", 0),
        ("received", "hop-1", "GetStatus", GOOD.ByteSize()),
    ]


@pytest.mark.parametrize(
    ("answer", "reason"), [(b"\xff" * 9, Reason.MALFORMED), (None, Reason.MALFORMED), (bytes(101), Reason.WRONG_LENGTH)]
)
async def test_an_answer_that_is_none_is_the_peers_fault_by_name(answer: Any, reason: Reason) -> None:
    """Whatever way it came: gRPC has nothing where a response does not parse."""

    async def frames() -> AsyncIterator[bytes]:
        yield b"frame"

    async def listened() -> None:
        async for _ in line(Channel(answer)).listen(WATCH, services_pb2.WatchRequest(), type(GOOD), 100):
            raise AssertionError("that was no answer")

    for asked in (ask(answer), line(Channel(answer)).send(SUBMIT, frames(), 1, 100), listened()):
        with pytest.raises(PeerFault) as caught:
            await asked
        assert (caught.value.reason, caught.value.details["peer"]) == (reason, "hop-1")


async def test_an_answer_may_be_as_long_as_it_may() -> None:
    raw = services_pb2.GetStatusResponse(federation="f" * 98).SerializeToString()
    assert len(raw) == 100
    assert (await ask(raw)).federation == "f" * 98


async def test_a_long_answer_does_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hop that shows records, or a member that greets, may answer with many mebibytes of small parts."""
    read: list[bool] = []

    def note(*about: Any) -> Any:
        read.append(threading.current_thread() is threading.main_thread())
        return parse(*about)

    monkeypatch.setattr(calls, "parse", note)
    raw = one_field(15, bytes(calls.ASIDE_BYTES))
    await ask(raw, len(raw))
    answers = line(Channel(raw)).listen(WATCH, services_pb2.WatchRequest(), type(GOOD), len(raw))
    await anext(answers)
    await answers.aclose()
    assert read == [False, False]


async def test_whoever_stops_listening_hangs_up() -> None:
    to = Channel(GOOD.SerializeToString(), GOOD.SerializeToString(), b"\xff")
    answers = line(to).listen(WATCH, services_pb2.WatchRequest(), type(GOOD), 100, 7.0)
    assert await anext(answers) == GOOD
    await answers.aclose()
    assert to.answers.cancelled
    assert to.asked[0][2]["timeout"] == 7.0


async def test_a_stream_is_sent_as_it_is_and_its_answer_read() -> None:
    async def frames() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    receipt = body_pb2.Receipt(silo="silo-1")
    to, host = Channel(receipt.SerializeToString()), Host()
    assert await line(to, host).send(SUBMIT, frames(), 5, 100, 9.0) == receipt
    assert to.asked == [
        ("/silomix.v1.ShufflerService/Submit", [b"one", b"two"], {"metadata": (("who", "me"),), "timeout": 9.0})
    ]
    assert [(d, m) for d, _, m, _, _ in host.seen] == [("received", "Submit")]  # frames are counted as they are made


async def test_nothing_waits_to_be_sent_once_the_peer_has_ended_the_call() -> None:
    """With gRPC itself, which goes on waiting for the next frame: a task was left behind, and all that it holds."""
    let_go = asyncio.Event()

    async def refuse(frames: AsyncIterator[bytes], context: Any) -> bytes:
        await anext(frames)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no more")
        return b""

    async def frames() -> AsyncIterator[bytes]:
        try:
            yield b"frame"
            await asyncio.Event().wait()
        finally:
            let_go.set()

    server = grpc.aio.server()
    sent: dict[str, Any] = {"Submit": grpc.stream_unary_rpc_method_handler(refuse)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("silomix.v1.ShufflerService", sent),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as to:
            with pytest.raises(grpc.aio.AioRpcError, match="no more"):
                await line(to).send(SUBMIT, frames(), 1, 100, 60.0)
            async with asyncio.timeout(20):
                await let_go.wait()
    finally:
        await server.stop(0)


async def test_each_answer_is_measured_by_what_it_is_and_none_that_is_refused_is_parsed() -> None:
    seen: list[bytes] = []

    def longest(raw: bytes) -> int:
        seen.append(raw)
        if raw == b"\xff":
            raise PeerFault(Reason.MALFORMED, "it is nothing")
        return GOOD.ByteSize()

    good = GOOD.SerializeToString()
    longer = services_pb2.GetStatusResponse(federation="longer").SerializeToString()
    for bad, reason in ((b"\xff", Reason.MALFORMED), (longer, Reason.WRONG_LENGTH)):
        answers = line(Channel(good, bad)).listen(WATCH, services_pb2.WatchRequest(), type(GOOD), longest)
        assert await anext(answers) == GOOD
        with pytest.raises(PeerFault) as caught:
            await anext(answers)
        assert caught.value.reason is reason
    assert seen == [good, b"\xff", good, longer]


# A line that is closed on this side


async def test_a_call_that_grpc_ends_on_this_side_is_a_line_that_broke() -> None:
    """Callers try again on that. A cancellation that nobody asked for would end their task without a trace."""
    ends = (asyncio.CancelledError(), grpc.aio.UsageError("Channel is closed."))
    for asked in (asked for end in ends for asked in every_way(lambda end=end: Channel(end))):  # type: ignore[misc]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked
        assert transient(caught.value)


async def test_whoever_is_told_to_end_ends_in_the_middle_of_a_call() -> None:
    class Silent(Channel):
        """A peer that never answers."""

        async def _answer(self) -> Any:
            await asyncio.Event().wait()

    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await ask_of(Silent())

    async def ask_of(to: Channel) -> None:
        await line(to).ask(STATUS, services_pb2.GetStatusRequest(), type(GOOD), 100, 1.0)

    task = asyncio.create_task(cancelled())
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_channel_that_is_closed_breaks_its_lines_in_mid_call_and_those_that_are_made_later() -> None:
    """With gRPC itself: what it raises here is its own affair, and may change with its version."""
    called = asyncio.Event()

    async def silent(request: bytes, context: Any) -> bytes:
        called.set()
        await asyncio.Event().wait()
        return b""

    async def sends_nothing(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield await silent(request, context)

    async def frames() -> AsyncIterator[bytes]:
        yield b"frame"

    async def first(answers: AsyncIterator[object]) -> object:
        return await anext(answers)

    server = grpc.aio.server()
    asked: dict[str, Any] = {
        "GetStatus": grpc.unary_unary_rpc_method_handler(silent),
        "Watch": grpc.unary_stream_rpc_method_handler(sends_nothing),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("silomix.v1.AggregatorService", asked),))
    sent: dict[str, Any] = {"Submit": grpc.stream_unary_rpc_method_handler(silent)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("silomix.v1.ShufflerService", sent),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    request, kind = services_pb2.GetStatusRequest(), services_pb2.GetStatusResponse
    ways: list[Callable[[Line], Awaitable[object]]] = [
        lambda to: to.ask(STATUS, request, kind, 100, 60.0),
        lambda to: to.send(SUBMIT, frames(), 1, 100, 60.0),
        lambda to: first(to.listen(WATCH, services_pb2.WatchRequest(), kind, 100, 60.0)),
    ]
    try:
        for way in ways:
            called.clear()
            to = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            under_way = asyncio.ensure_future(way(line(to)))
            await called.wait()
            await to.close()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await under_way
            assert transient(caught.value)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await way(line(to))
            assert transient(caught.value)
    finally:
        await server.stop(None)


# The protocol's number

OTHERS: list[Named] = [(), ((PROTOCOL_NAME, str(PROTOCOL + 1)),)]


def every_way(to: Callable[[], Channel], *, any_protocol: bool = False) -> Iterator[Awaitable[object]]:
    """Call a peer in each of the ways that there are."""

    async def frames() -> AsyncIterator[bytes]:
        yield b"frame"

    async def listened() -> object:
        answers = line(to(), any_protocol=any_protocol).listen(WATCH, services_pb2.WatchRequest(), type(GOOD), 100)
        return [answer async for answer in answers]

    request = services_pb2.GetStatusRequest()
    yield line(to(), any_protocol=any_protocol).ask(STATUS, request, type(GOOD), 100, 1.0)
    yield line(to(), any_protocol=any_protocol).send(SUBMIT, frames(), 1, 100)
    yield listened()


@pytest.mark.parametrize("named", OTHERS)
async def test_nothing_is_taken_from_a_node_that_answers_under_another_protocol(named: Named) -> None:
    for asked in every_way(lambda: Channel(b"\xff", named=named)):  # which is no answer, and is not read
        with pytest.raises(PeerFault, match="upgrade") as caught:
            await asked
        assert (caught.value.reason, caught.value.details["peer"]) == (Reason.WRONG_PROTOCOL, "hop-1")
    for asked in every_way(lambda: Channel(b"", named=named), any_protocol=True):
        await asked


@pytest.mark.parametrize("named", OTHERS)
async def test_a_refusal_under_another_protocol_says_that_and_nothing_else(named: Named) -> None:
    """Its reason would send people looking in the wrong place."""

    def refusing(named: Named, details: str) -> Callable[[], Channel]:
        trailing = grpc.aio.Metadata(*named)
        code = grpc.StatusCode.FAILED_PRECONDITION
        return lambda: Channel(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details), named=())

    for asked in every_way(refusing(named, "wrong_head: no")):
        with pytest.raises(PeerFault) as caught:
            await asked
        assert caught.value.reason is Reason.WRONG_PROTOCOL
    others = [
        *every_way(refusing(SAID, "wrong_head: no")),
        *every_way(refusing(named, "wrong_head: no"), any_protocol=True),
        *every_way(refusing(named, "there is no connection")),  # the library's word, which has no number
    ]
    for asked in others:
        with pytest.raises(grpc.aio.AioRpcError):
            await asked


def test_a_number_that_is_no_text_is_none() -> None:
    with pytest.raises(PeerFault, match="names no protocol number"):
        check_protocol(((PROTOCOL_NAME, str(PROTOCOL).encode()),), "hop-1")
    check_protocol(SAID, "hop-1")
