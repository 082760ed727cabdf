"""Streams of frames: what a silo or a hop sends chunk by chunk, on its way in and on its way out."""

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net.calls import Call, Witness, check_length, parse
from silomix.runtime.net.framing import only_field, read_chunk
from silomix.runtime.net.limits import FIRST_S, Limits

M = TypeVar("M", bound=Message)


class Inbox(Generic[M]):
    """What a peer streams in: counted and captured as the bytes that came, measured, and only then parsed.

    The first frame has little time, and so has each one after it, unless whoever reads says that there is no hurry.
    """

    def __init__(self, call: Call, kind: type[M], limits: Limits) -> None:
        """One stream of one kind of frames."""
        self.bytes = 0
        self.stream, self.peer = call.stream, call.peer
        self.patience: float | None = FIRST_S
        """Seconds that the next frame may take; None where the peer waits for others, and the whole has its time."""
        self._call, self._kind, self._limits = call, kind, limits
        self._kinds = {number: field.name for number, field in kind.DESCRIPTOR.fields_by_number.items()}
        self._longest = max(limits.frame(name) for name in self._kinds.values())

    def __aiter__(self) -> "Inbox[M]":
        return self

    async def __anext__(self) -> Any:
        """Return the next frame, of whatever kind."""
        raw = await self._next()
        if raw is None:
            raise StopAsyncIteration
        kind = self._kind_of(raw)
        if not kind:
            raise PeerFault(Reason.MALFORMED, f"{self.peer} sent a frame of no kind, or of two", peer=self.peer)
        return self._read(kind, raw)

    async def due(self, kind: str) -> Any:
        """Return the next frame, which must be of a kind: another is refused for what it is, and never parsed."""
        raw = await self._next()
        found = "the end" if raw is None else self._kind_of(raw) or "nothing that it could be"
        if raw is None or found != kind:
            raise PeerFault(Reason.WRONG_SEQUENCE, f"a {kind} was due and {found} came", peer=self.peer)
        return self._read(kind, raw)

    async def _next(self) -> bytes | None:
        raw = await self._call.next(self._kind.DESCRIPTOR.full_name, self._longest, self.patience)
        if self.patience is not None:
            self.patience = self._limits.frame_s("chunk")
        self.bytes += 0 if raw is None else len(raw)
        return raw

    def _kind_of(self, raw: bytes) -> str:
        return self._kinds.get(only_field(raw), "")

    def _read(self, kind: str, raw: bytes) -> Any:
        check_length(raw, self._limits.frame(kind), self.peer)
        if kind != "chunk":
            return parse(self._kind, raw, self.peer)
        chunk = read_chunk(only_field(raw), raw, self._limits.planes)
        if chunk is None:
            raise PeerFault(Reason.MALFORMED, f"{self.peer} sent a chunk that is not written as one", peer=self.peer)
        return chunk


class Outbox(AsyncIterator[bytes]):
    """What this node streams out: made bytes once, if it is not yet, and counted and captured as such."""

    def __init__(
        self, witness: Witness, frames: AsyncIterator[M | bytes], kind: type[M], peer: str, method: str
    ) -> None:
        """One stream, which gets a number of its own."""
        self.bytes = 0
        self.stream = witness.stream()
        self._witness, self._frames, self._peer, self._method = witness, frames, peer, method
        self._name = kind.DESCRIPTOR.full_name

    async def __anext__(self) -> bytes:
        frame = await anext(self._frames)
        raw = frame if isinstance(frame, bytes) else frame.SerializeToString()
        self.bytes += len(raw)
        self._witness.crossed("sent", self._peer, self._method, self.stream, self._name, raw)
        return raw
