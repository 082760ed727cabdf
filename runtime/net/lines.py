"""Calls to another member. What it answers is taken as bytes, measured, and parsed here.

gRPC hands over nothing at all where a response does not parse, and whoever goes on with that falls over it. Here it is
a fault of the peer, by name, like any other message that it should not have sent.

A call also ends when its channel is closed on this side, as when a certificate is replaced. gRPC has two words for
that, and neither is one that callers try again on: a cancellation that nobody asked for, which ends a task without a
trace, and an error in the use of the library. Here it is a line that broke, like any other.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net.answers import fault_of
from silomix.runtime.net.calls import Witness, check_length, parse_aside
from silomix.runtime.net.version import check_protocol
from silomix.v1 import services_pb2

M = TypeVar("M", bound=Message)
Metadata = Sequence[tuple[str, str]]
Longest = int | Callable[[bytes], int]
"""How long an answer may be: one length for all, or what a function says of its bytes, which may refuse them too."""

SERVICES = services_pb2.DESCRIPTOR.services_by_name
"""The protocol's services by name, with their methods."""


def method(service: str, name: str) -> MethodDescriptor:
    """Look a method of the protocol up."""
    return SERVICES[service].methods_by_name[name]


class _Sending(AsyncIterator[bytes]):
    """A stream that ends with its call: where a peer ends a call, gRPC goes on waiting for what is to be sent next."""

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        self._frames = frames
        self._next: asyncio.Future[bytes] | None = None
        self._over = False

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        self._next = asyncio.ensure_future(anext(self._frames))
        return await self._next

    def end(self) -> None:
        """Send no more, and let go of what would have been sent."""
        self._over = True
        if self._next is not None:
            self._next.cancel()


class Line:
    """What calls one member."""

    def __init__(
        self, to: grpc.aio.Channel, peer: str, metadata: Metadata, witness: Witness, *, any_protocol: bool = False
    ) -> None:
        """Each call carries the metadata, and is counted by the witness.

        `any_protocol` is for questions that do not belong to rounds: a member of another protocol may answer them.
        """
        self._to, self._peer, self._metadata, self._witness = to, peer, metadata, witness
        self._any_protocol = any_protocol

    async def ask(
        self,
        what: MethodDescriptor,
        request: Message,
        kind: type[M],
        limit: int,
        timeout_s: float,
        *,
        wait: bool = False,
    ) -> M:
        """Ask once; the answer is of a kind, and no longer than it may be. `wait` for a connection if there is none."""
        stream = self._witness.stream()
        call: Any = self._to.unary_unary(_path(what), None, None)
        raw = self._sent(what, stream, request)
        with self._ending():
            answering = call(raw, metadata=self._metadata, timeout=timeout_s, wait_for_ready=wait)
            answer = await answering
            await self._check(answering)
        return await self._taken(what, stream, answer, kind, limit)

    async def listen(
        self, what: MethodDescriptor, request: Message, kind: type[M], limit: Longest, timeout_s: float | None = None
    ) -> AsyncGenerator[M, None]:
        """Ask, and yield answer after answer."""
        stream = self._witness.stream()
        call: Any = self._to.unary_stream(_path(what), None, None)
        raw, checked = self._sent(what, stream, request), False
        with self._ending():
            answers = call(raw, metadata=self._metadata, timeout=timeout_s)
        try:
            with self._ending():
                async for raw in answers:
                    if not checked:
                        await self._check(answers)
                        checked = True
                    yield await self._taken(what, stream, raw, kind, limit)
        finally:
            answers.cancel()  # whoever stops listening hangs up

    async def send(
        self,
        what: MethodDescriptor,
        frames: AsyncIterator[bytes],
        stream: int,
        limit: int,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a stream of messages that are bytes already and are counted, and return the answer."""
        call: Any = self._to.stream_unary(_path(what), None, None)
        sending = _Sending(frames)
        try:
            with self._ending():
                answering = call(sending, metadata=self._metadata, timeout=timeout_s)
                raw = await answering
                await self._check(answering)
        finally:
            sending.end()
        return await self._taken(what, stream, raw, GetMessageClass(what.output_type), limit)

    async def _check(self, call: Any) -> None:
        """Refuse an answer of a node that speaks another protocol, before any of it is read."""
        if not self._any_protocol:
            check_protocol(await call.initial_metadata(), self._peer)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Take the end of a call for what it is.

        A refusal by a node of another protocol may have any reason, and means only that. An end that gRPC made here is
        a line that broke: whoever calls tries again, over another.
        """
        try:
            yield
        except asyncio.CancelledError:
            if told_to_end():
                raise
            raise _broken("the call was ended on this side") from None
        except grpc.aio.UsageError as error:  # the channel was closed before the call began
            raise _broken(str(error)) from None
        except grpc.aio.AioRpcError as error:
            if not self._any_protocol and fault_of(error) is not None:
                check_protocol(error.trailing_metadata(), self._peer)
            raise

    def _sent(self, what: MethodDescriptor, stream: int, request: Message) -> bytes:
        raw = request.SerializeToString()
        self._witness.crossed("sent", self._peer, what.name, stream, request.DESCRIPTOR.full_name, raw)
        return raw

    async def _taken(self, what: MethodDescriptor, stream: int, raw: object, kind: type[M], limit: Longest) -> M:
        if not isinstance(raw, bytes):
            raise PeerFault(Reason.MALFORMED, f"{self._peer} answered {what.name} with nothing", peer=self._peer)
        self._witness.crossed("received", self._peer, what.name, stream, kind.DESCRIPTOR.full_name, raw)
        check_length(raw, limit if isinstance(limit, int) else limit(raw), self._peer)
        return await parse_aside(kind, raw, self._peer)


def told_to_end() -> bool:
    """Whether somebody has cancelled the task that runs: gRPC raises the same error where nobody has."""
    task = asyncio.current_task()
    assert task is not None, "whoever was cancelled is a task"
    return task.cancelling() > 0


def _broken(why: str) -> grpc.aio.AioRpcError:
    """Make the error of a call whose line broke."""
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), why)


def _path(what: MethodDescriptor) -> str:
    return f"/{what.containing_service.full_name}/{what.name}"
