"""Calls to another member. What it answers is taken as bytes, measured, and parsed here.

gRPC hands over nothing at all where a response does not parse, and whoever goes on with that falls over it. Here it is
a fault of the peer, by name, like any other message that it should not have sent.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net.answers import fault_of
from silomix.runtime.net.calls import Witness, check_length, parse
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
        answering = call(raw, metadata=self._metadata, timeout=timeout_s, wait_for_ready=wait)
        with self._refusing():
            answer = await answering
        await self._check(answering)
        return self._taken(what, stream, answer, kind, limit)

    async def listen(
        self, what: MethodDescriptor, request: Message, kind: type[M], limit: Longest, timeout_s: float | None = None
    ) -> AsyncIterator[M]:
        """Ask, and yield answer after answer."""
        stream = self._witness.stream()
        call: Any = self._to.unary_stream(_path(what), None, None)
        answers = call(self._sent(what, stream, request), metadata=self._metadata, timeout=timeout_s)
        checked = False
        try:
            with self._refusing():
                async for raw in answers:
                    if not checked:
                        await self._check(answers)
                        checked = True
                    yield self._taken(what, stream, raw, kind, limit)
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
        answering = call(frames, metadata=self._metadata, timeout=timeout_s)
        with self._refusing():
            raw = await answering
        await self._check(answering)
        return self._taken(what, stream, raw, GetMessageClass(what.output_type), limit)

    async def _check(self, call: Any) -> None:
        """Refuse an answer of a node that speaks another protocol, before any of it is read."""
        if not self._any_protocol:
            check_protocol(await call.initial_metadata(), self._peer)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Take a refusal for what it is: one by a node of another protocol may have any reason, and means only that."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            if not self._any_protocol and fault_of(error) is not None:
                check_protocol(error.trailing_metadata(), self._peer)
            raise

    def _sent(self, what: MethodDescriptor, stream: int, request: Message) -> bytes:
        raw = request.SerializeToString()
        self._witness.crossed("sent", self._peer, what.name, stream, request.DESCRIPTOR.full_name, raw)
        return raw

    def _taken(self, what: MethodDescriptor, stream: int, raw: object, kind: type[M], limit: Longest) -> M:
        if not isinstance(raw, bytes):
            raise PeerFault(Reason.MALFORMED, f"{self._peer} answered {what.name} with nothing", peer=self._peer)
        self._witness.crossed("received", self._peer, what.name, stream, kind.DESCRIPTOR.full_name, raw)
        check_length(raw, limit if isinstance(limit, int) else limit(raw), self._peer)
        return parse(kind, raw, self._peer)


def _path(what: MethodDescriptor) -> str:
    return f"/{what.containing_service.full_name}/{what.name}"
