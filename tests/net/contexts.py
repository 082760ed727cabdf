"""A call's context without a network: it hands out what a test says a peer sends, and keeps what the peer is sent."""

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc

from silomix.runtime.core.errors import Fault, PeerFault, Reason
from silomix.runtime.net.calls import Callers, Unseen
from silomix.runtime.net.version import SAID


class Ended(Exception):  # noqa: N818 - as grpc ends a call
    """The call was ended with a status."""


class Context:
    """What a peer sends in one call. After its last message it hangs up, or stays silent."""

    def __init__(self, messages: Iterable[bytes] = (), *, silent: bool = False, deaf: bool = False) -> None:
        self._messages = list(messages)
        self._silent, self._deaf = silent, deaf
        self.reads = 0
        self.sent: list[bytes] = []
        self.status: grpc.StatusCode | None = None
        self.details = ""
        self.trailing: dict[str, Any] = {}
        self.metadata: tuple[tuple[str, str], ...] = SAID
        """What the caller names with its call."""
        self.aborted, self.gone = asyncio.Event(), asyncio.Event()
        """The second is set when a deaf caller hangs up: until then no status gets past what it does not read."""
        self.hung_up = False
        self.named: dict[str, str] = {}
        """What it is told before anything else."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.metadata

    async def send_initial_metadata(self, named: Iterable[tuple[str, str]]) -> None:
        self.named = dict(named)

    async def read(self) -> Any:
        self.reads += 1
        if not self._messages and self._silent:
            await asyncio.Event().wait()
        return self._messages.pop(0) if self._messages else grpc.aio.EOF

    async def write(self, raw: bytes) -> None:
        if self._deaf:
            await asyncio.Event().wait()
        self.sent.append(raw)

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Iterable[tuple[str, Any]] = ()) -> None:
        self.status, self.details, self.trailing = code, details, dict(trailing)
        self.aborted.set()
        if self._deaf:
            await self.gone.wait()
            raise grpc.aio.InternalError
        raise Ended

    def cancelled(self) -> bool:
        return self.hung_up

    def peer(self) -> str:
        return "ipv4:192.0.2.7:4321"


class Host(Unseen):
    """A node that knows one caller, and keeps what it is told."""

    def __init__(self, name: str = "silo-1") -> None:
        self.name = name
        self.callers = Callers()
        self.refusals: list[tuple[str, Reason, str, str]] = []
        self.failures: list[str] = []
        self.seen: list[tuple[str, str, str, str, int]] = []

    def caller(self, _: object) -> str:
        if not self.name:
            raise PeerFault(Reason.UNKNOWN_PEER, "a stranger")
        return self.name

    def refused(self, method: str, fault: Fault, peer: str, address: str) -> None:
        self.refusals.append((method, fault.reason, peer, address))

    def failed(self, method: str, error: OSError) -> None:
        self.failures.append(f"{method}: {error}")

    def crossed(self, direction: str, peer: str, method: str, stream: int, kind: str, raw: bytes) -> None:
        self.seen.append((direction, peer, method, kind, len(raw)))
