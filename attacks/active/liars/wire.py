"""A connection by hand, under a member's certificate: one call on it, in HTTP/2 frames that no library would send."""

import asyncio
import ssl
import struct
from types import TracebackType

from silomix.attacks.active.liars.member import Member
from silomix.runtime.net.version import SAID

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
DIAL_S = 5.0


def message(content: bytes, announced: int = 0) -> bytes:
    """A gRPC message: five bytes before the content say how long it is, or pretend to."""
    return b"\0" + struct.pack(">I", announced or len(content)) + content


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    """A header as it is; both parts are short."""
    return b"\0" + b"".join(bytes([len(raw)]) + raw for raw in (name.encode(), value.encode()))


class Wire:
    """One connection, and what a member says on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """It stands: nothing was said yet."""
        self._reader, self._writer = reader, writer
        self._reading = asyncio.create_task(self._read())
        self._greeted = asyncio.Event()
        self.over = False
        """Whether the node has ended the call, or hung up."""

    @classmethod
    async def dial(cls, us: Member, target: str) -> "Wire":
        """Connect to a node, and wait until it answers; an OSError says that it does not."""
        assert us.tls is not None, "drills run under TLS"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=us.tls.roots(target).decode())
        context.load_cert_chain(str(us.config.certificate), us.config.key)
        context.set_alpn_protocols(["h2"])
        host, _, port = us.federation.member(target).address.rpartition(":")
        async with asyncio.timeout(DIAL_S):
            wire = cls(*await asyncio.open_connection(host, int(port), ssl=context, server_hostname=target))
            try:
                wire._writer.write(PREFACE + _frame(SETTINGS, 0, 0))
                await wire._greeted.wait()
            except BaseException:
                await wire.close()
                raise
        if wire.over:
            await wire.close()
            raise ConnectionResetError
        return wire

    async def __aenter__(self) -> "Wire":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up at once."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.transport.abort()

    def call(self, path: str, content: bytes) -> None:
        """Begin the call and send so much of it, and no end."""
        fields = (
            (":method", "POST"),
            (":scheme", "https"),
            (":path", path),
            (":authority", "x"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *SAID,
        )
        headers = b"".join(_literal(*each) for each in fields)
        self._writer.write(_frame(HEADERS, END_HEADERS, 1, headers) + _frame(DATA, 0, 1, content))

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags = head[3], head[4]
                if kind == SETTINGS and not flags & ACK:
                    self._writer.write(_frame(SETTINGS, ACK, 0))
                    self._greeted.set()
                self.over |= kind in (RST_STREAM, GOAWAY) or (kind == HEADERS and bool(flags & END_STREAM))
        except (asyncio.IncompleteReadError, OSError):
            self.over = True
            self._greeted.set()
