"""A small HTTP CONNECT proxy, as stands at the edge of a hospital's network.

python proxy.py HOST PORT LOG NAME:PORT=HOST:PORT ...    it connects to the names that it is given, and to nothing else
"""

import asyncio
import ctypes
import signal
import sys
from contextlib import suppress

HEAD_BYTES = 16_384
CALL_S = 10.0


class Proxy:
    """Tunnels bytes for whoever asks with CONNECT, and writes down whom they asked for."""

    def __init__(self, targets: dict[str, tuple[str, int]], log: str) -> None:
        self.targets, self.log = targets, log

    async def serve(self, host: str, port: int) -> None:
        """Listen until ended."""
        async with await asyncio.start_server(self._call, host, port, limit=HEAD_BYTES) as server:
            await server.serve_forever()

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(CALL_S):
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    there = await self._connect(head.split("\r\n")[0], writer)
                if there is not None:
                    await asyncio.gather(_pipe(reader, there[1]), _pipe(there[0], writer))
        finally:
            writer.close()

    async def _connect(
        self, line: str, writer: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        method, _, rest = line.partition(" ")
        target = rest.partition(" ")[0]
        known = self.targets.get(target) if method == "CONNECT" else None
        with open(self.log, "a") as log:  # noqa: ASYNC230 - one short line
            log.write(f"{line if known is None else target}\n")
        if known is None:
            writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            await writer.drain()
            return None
        try:
            there = await asyncio.open_connection(*known)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            await writer.drain()
            return None
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return there


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # end with the parent
    pairs = dict(argument.split("=", 1) for argument in sys.argv[4:])
    known = {name: _address(address) for name, address in pairs.items()}
    asyncio.run(Proxy(known, sys.argv[3]).serve(sys.argv[1], int(sys.argv[2])))
