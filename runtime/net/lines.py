"""Calls to another member. What it answers is taken as bytes, measured, and parsed here.

gRPC hands over nothing at all where a response does not parse, and whoever goes on with that falls over it. Here it is
a fault of the peer, by name, like any other message that it should not have sent.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net.calls import Witness, check_length, parse
from silomix.v1 import services_pb2

M = TypeVar("M", bound=Message)
Metadata = Sequence[tuple[str, str]]

SERVICES = services_pb2.DESCRIPTOR.services_by_name
"""The protocol's services by name, with their methods."""


def method(service: str, name: str) -> MethodDescriptor:
    """Look a method of the protocol up."""
    return SERVICES[service].methods_by_name[name]


class Line:
    """What calls one member."""

    def __init__(self, to: grpc.aio.Channel, peer: str, metadata: Metadata, witness: Witness) -> None:
        """Each call carries the metadata, and is counted by the witness."""
        self._to, self._peer, self._metadata, self._witness = to, peer, metadata, witness

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
        answer = await call(raw, metadata=self._metadata, timeout=timeout_s, wait_for_ready=wait)
        return self._taken(what, stream, answer, kind, limit)

    async def listen(
        self, what: MethodDescriptor, request: Message, kind: type[M], limit: int, timeout_s: float | None = None
    ) -> AsyncIterator[M]:
        """Ask, and yield answer after answer."""
        stream = self._witness.stream()
        call: Any = self._to.unary_stream(_path(what), None, None)
        answers = call(self._sent(what, stream, request), metadata=self._metadata, timeout=timeout_s)
        try:
            async for raw in answers:
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
        raw = await call(frames, metadata=self._metadata, timeout=timeout_s)
        return self._taken(what, stream, raw, GetMessageClass(what.output_type), limit)

    def _sent(self, what: MethodDescriptor, stream: int, request: Message) -> bytes:
        raw = request.SerializeToString()
        self._witness.crossed("sent", self._peer, what.name, stream, request.DESCRIPTOR.full_name, raw)
        return raw

    def _taken(self, what: MethodDescriptor, stream: int, raw: object, kind: type[M], limit: int) -> M:
        if not isinstance(raw, bytes):
            raise PeerFault(Reason.MALFORMED, f"{self._peer} answered {what.name} with nothing", peer=self._peer)
        self._witness.crossed("received", self._peer, what.name, stream, kind.DESCRIPTOR.full_name, raw)
        check_length(raw, limit, self._peer)
        return parse(kind, raw, self._peer)


def _path(what: MethodDescriptor) -> str:
    return f"/{what.containing_service.full_name}/{what.name}"
