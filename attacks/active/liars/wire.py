"""A connection by hand, under a member's certificate: HTTP/2 frames as no client library would send them.

A client library keeps to the server's limits, waits where it should and hangs up in order. Here nothing does: calls are
opened and left alone, messages are announced and never sent, and what the server sends need not be read. The
certificate is a member's, so that what stops such a member is the node and not TLS.
"""

import asyncio
import ssl
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from silomix.runtime.config.load import NodeConfig
from silomix.runtime.net.framing import varint
from silomix.runtime.net.names import INSECURE_NAME
from silomix.runtime.net.transport import tls_of
from silomix.runtime.net.version import SAID

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4
MOST_STREAMS = 3
FIRST_WINDOW = 65_535
DATA_BYTES = 16_384
DIAL_S = 5.0


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def message(content: bytes, announced: int | None = None) -> bytes:
    """A gRPC message: five bytes before the content say how long it is, or pretend to."""
    return b"\0" + struct.pack(">I", len(content) if announced is None else announced) + content


def _literal(name: str, value: str) -> bytes:
    def text(raw: bytes) -> bytes:
        if len(raw) < 127:
            return bytes([len(raw)]) + raw
        return b"\x7f" + varint(len(raw) - 127) + raw

    return b"\0" + text(name.encode()) + text(value.encode())


class Wire:
    """One connection, under the certificate of a member, that keeps to as little of HTTP/2 as it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        """It stands: nothing was said yet. The name is for a federation without TLS."""
        self._reader, self._writer, self._name = reader, writer, name
        self._next = 1
        self._first_window = FIRST_WINDOW
        self._window = FIRST_WINDOW
        self._windows: dict[int, int] = {}
        self._changed = asyncio.Condition()
        self.ended: dict[int, bytes] = {}
        """What the server ended each stream with: trailers, or the code of a reset."""
        self.gone = False
        self.most_streams = 0
        """Calls that the server allows on one connection."""
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def dial(cls, config: NodeConfig, target: str, *, read: bool = True, window: int = 0) -> "Wire":
        """Connect to a node in a member's name. `window` is what the server may send before it is read.

        A node that is full, or does not answer, raises an OSError.
        """
        host, port = config.federation.member(target).address.rsplit(":", 1)
        context = None
        if not config.insecure:
            assert config.certificate is not None
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            tls = tls_of(config)
            assert tls is not None
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(cadata=tls.roots(target).decode())
            context.load_cert_chain(config.certificate, config.key)
            context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=context, server_hostname=target if context else None
        )
        wire = cls(reader, writer, config.name if context is None else "")
        wanted = struct.pack(">HI", INITIAL_WINDOW_SIZE, window) if window else b""
        writer.write(PREFACE + frame(SETTINGS, 0, 0, wanted))
        if window:
            writer.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", window)))
        await writer.drain()
        if read:
            wire._reading = asyncio.create_task(wire._read())
            await wire._until(lambda: wire.most_streams > 0 or wire.gone, DIAL_S)
            if wire.gone or not wire.most_streams:
                await wire.close()
                raise ConnectionResetError(f"{target} does not answer")
        return wire

    async def __aenter__(self) -> "Wire":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.transport.abort()  # in order it would take half a minute: the server says no goodbye to TLS

    async def open(self, path: str, metadata: Sequence[tuple[str, str]] = ()) -> int:
        """Begin a call, and send nothing of it."""
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._first_window
        given = [(INSECURE_NAME, self._name)] if self._name else []
        fields = [
            (":method", "POST"),
            (":scheme", "https"),
            (":path", path),
            (":authority", "x"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *SAID,
            *given,
            *metadata,
        ]
        block = b"".join(_literal(*each) for each in fields)
        self._writer.write(frame(HEADERS, END_HEADERS, stream, block))
        await self._writer.drain()
        return stream

    async def send(self, stream: int, content: bytes, *, seconds: float = 5.0, end: bool = False) -> int:
        """Send as much as the server takes, and return how much that was. A call that is over takes nothing."""
        at = 0
        while at < len(content) and await self._until(lambda: self._room(stream) > 0, seconds):
            size = min(self._room(stream), DATA_BYTES, len(content) - at)
            if self.over(stream):
                break
            self._window -= size
            self._windows[stream] -= size
            last = end and at + size == len(content)
            self._writer.write(frame(DATA, END_STREAM if last else 0, stream, content[at : at + size]))
            at += size
            with suppress(ConnectionError):
                await self._writer.drain()
            await asyncio.sleep(0)  # or what comes back meanwhile would wait for all of it
        return at

    async def reset(self, stream: int) -> None:
        """Take a call back."""
        self._writer.write(frame(RST_STREAM, 0, stream, struct.pack(">I", 8)))
        await self._writer.drain()

    async def answer(self, stream: int, seconds: float = 10.0) -> bytes:
        """Return what a call ended with, or nothing if it goes on."""
        await self._until(lambda: self.over(stream), seconds)
        return self.ended.get(stream, b"gone" if self.gone else b"")

    def over(self, stream: int) -> bool:
        """Whether the server has ended a call, or hung up."""
        return stream in self.ended or self.gone

    def _room(self, stream: int) -> int:
        return DATA_BYTES if self.over(stream) else min(self._window, self._windows[stream])

    async def _until(self, holds: Callable[[], bool], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            return False
        return True

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                stream = int.from_bytes(head[5:], "big")
                payload = await self._reader.readexactly(size)
                async with self._changed:
                    self._take(kind, flags, stream, payload)
                    self._changed.notify_all()
        except (asyncio.IncompleteReadError, OSError):
            async with self._changed:
                self.gone = True
                self._changed.notify_all()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                key, value = struct.unpack(">HI", payload[at : at + 6])
                if key == INITIAL_WINDOW_SIZE:
                    for each in self._windows:
                        self._windows[each] += value - self._first_window
                    self._first_window = value
                if key == MOST_STREAMS:
                    self.most_streams = value
            self.most_streams = self.most_streams or 1 << 31
            self._writer.write(frame(SETTINGS, ACK, 0))
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == PING and not flags & ACK:
            self._writer.write(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self.gone = True
        elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            self.ended.setdefault(stream, payload)
