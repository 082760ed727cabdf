"""The one way into a node: who calls, whether they may, whether there is room; only then is anything of theirs read.

gRPC would read a whole request, and parse it, before it asks anybody who sent it. So every method is served as a stream
of bytes, whatever its .proto says: on the wire there is no difference, and here the node decides when to read. What
comes is measured before it is parsed, and each message has its time.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

from silomix.runtime.core.errors import Fault, PeerFault, Reason
from silomix.runtime.net.answers import refuse
from silomix.runtime.net.limits import FIRST_S, READ_S, SLOWEST_BYTES_S
from silomix.runtime.net.parts import check_parts
from silomix.runtime.net.version import SAID, check_protocol

Context = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message)

CALLS_EACH = 2
"""Calls of one method that a member may have open: one, and one that broke and is not yet known to have."""
QUESTIONS_EACH = 8
"""The same of short questions for anybody: a member's probes and people may ask at one time."""


CALLS_AT_ONCE, CALLS_A_SECOND = 100, 50.0
"""Calls that a member has answered at once, and then in each second: many times what rounds and probes take."""
LONGEST_WAIT_S = 10.0
"""Time for which a call waits at most that comes too soon."""
ASIDE_BYTES = 512 << 10
"""A message that is longer than chunks and parts of models are is taken apart in a thread: one that is written for that
takes a tenth of a second for each mebibyte, and in a large federation it may have many."""


class Witness(Protocol):
    """Who counts what crosses the wire, and may record it."""

    def stream(self) -> int:
        """Number a stream."""
        ...

    def crossed(self, direction: str, peer: str, method: str, stream: int, kind: str, raw: bytes) -> None:
        """Take note of a message: its kind is the full name of its type."""
        ...


class Host(Witness, Protocol):
    """The node that answers."""

    @property
    def callers(self) -> "Callers":
        """Who calls."""
        ...

    def caller(self, context: Context) -> str:
        """Return the name of whoever calls, or refuse a stranger."""
        ...

    def refused(self, method: str, fault: Fault, peer: str, address: str) -> None:
        """Count a refusal and log it. Who calls is empty if TLS could not tell."""
        ...

    def failed(self, method: str, error: OSError) -> None:
        """Log that this node could not do its part."""
        ...


class Callers:
    """The calls that are open, with who makes them: one whose certificate is replaced is cut off in mid-call."""

    def __init__(self) -> None:
        """Nobody calls yet."""
        self._open: dict[asyncio.Task[Any], tuple[Context, str]] = {}
        self._cut: set[asyncio.Task[Any]] = set()

    @contextmanager
    def present(self, context: Context, peer: str) -> Iterator[None]:
        """Know of a call as long as it is open."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = (context, peer)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._cut:
                raise
            task.uncancel()  # gRPC would leave whoever calls without an answer
            raise ConnectionAbortedError(f"{peer} is no longer known by the certificate of this call") from None
        finally:
            self._cut.discard(task)
            del self._open[task]

    def drop(self, still: Callable[[Context], object]) -> list[str]:
        """End every call whose caller would be refused by now; return who they are."""
        gone = []
        for task, (context, peer) in list(self._open.items()):
            try:
                still(context)
            except PeerFault:
                gone.append(peer)
                self._cut.add(task)
                task.cancel()
        return gone


class Unseen:
    """Counts and records nothing: health checks and the like are not part of the protocol."""

    def stream(self) -> int:
        """Have no number."""
        return 0

    def crossed(self, direction: str, peer: str, method: str, stream: int, kind: str, raw: bytes) -> None:
        """Look away."""


class Pace:
    """How often each caller is answered. Whoever calls more often waits, and meanwhile uses up what calls it may hold.

    A refusal costs a node as much as an answer does, so refusing such a caller would be of no use.
    """

    def __init__(
        self, now: Callable[[], float], at_once: int = CALLS_AT_ONCE, a_second: float = CALLS_A_SECOND
    ) -> None:
        """`now` is a clock that is never set."""
        self._now, self._ahead, self._each = now, at_once / a_second, 1 / a_second
        self._next: dict[str, float] = {}
        """By caller: when its next call would be due, if it made them evenly."""

    async def turn(self, peer: str) -> None:
        """Wait until it is a caller's turn."""
        now = self._now()
        due = max(now, self._next.get(peer, now))
        wait = due - now - self._ahead + self._each
        self._next[peer] = min(due, now + self._ahead + LONGEST_WAIT_S) + self._each
        if wait > 0:
            await asyncio.sleep(min(wait, LONGEST_WAIT_S))


class Room:
    """How many calls of a method may be open: some of each caller, and so many in all.

    The last places are for those who have none: one member cannot take everybody's.
    """

    def __init__(
        self, each: int = CALLS_EACH, in_all: int = 1 << 30, told: Callable[[int], None] | None = None
    ) -> None:
        """`told` hears how many are open whenever that changes."""
        self.open: Counter[str] = Counter()
        self._each, self._in_all, self._told = each, in_all, told

    @contextmanager
    def place(self, peer: str) -> Iterator[None]:
        """Hold a place for a call, or refuse it: there will be room again."""
        mine = self.open[peer]
        full = self.open.total() >= self._in_all and (mine or len(+self.open) >= self._in_all)
        if mine >= self._each or full:
            raise PeerFault(Reason.BUSY, f"{peer} has {mine} of these calls open already: try again", peer=peer)
        self._change(peer, 1)
        try:
            yield
        finally:
            self._change(peer, -1)

    def _change(self, peer: str, by: int) -> None:
        self.open[peer] += by
        if self._told is not None:
            self._told(self.open.total())


class Call:
    """One call that was let in: who makes it, and its messages, each in time and no longer than it may be."""

    def __init__(self, context: Context, witness: Witness, peer: str, method: str) -> None:
        """It gets a number of its own."""
        self.peer, self.method, self.stream = peer, method, witness.stream()
        self._context, self._witness = context, witness
        self._named = False

    async def next(self, kind: str, limit: int, seconds: float | None) -> bytes | None:
        """Return the next message as bytes, which are counted; None if there is none. None also means no hurry."""
        try:
            async with asyncio.timeout(seconds):
                raw = await self._context.read()
        except TimeoutError:
            raise PeerFault(
                Reason.TOO_SLOW, f"{self.peer} called and was silent for {seconds:.0f} s", peer=self.peer
            ) from None
        if raw is grpc.aio.EOF:
            return None
        message = cast("bytes", raw)
        self._witness.crossed("received", self.peer, self.method, self.stream, kind, message)
        check_length(message, limit, self.peer)
        return message

    async def request(self, kind: type[M], limit: int, pace: Pace | None = None) -> M:
        """Return the one request of a call. By a pace each mebibyte of it takes a turn, before it is looked at."""
        raw = await self.next(kind.DESCRIPTOR.full_name, limit, FIRST_S + limit / SLOWEST_BYTES_S)
        if raw is None:
            if self._context.cancelled():  # whoever hangs up before the request is here wants no answer
                raise asyncio.CancelledError
            raise PeerFault(Reason.MALFORMED, f"{self.peer} called and asked nothing", peer=self.peer)
        if pace is not None:
            for _ in range(len(raw) >> 20):
                await pace.turn(self.peer)
        return await parse_aside(kind, raw, self.peer)

    async def answer(self, message: Message) -> None:
        """Send a message."""
        await self.send(message.DESCRIPTOR.full_name, message.SerializeToString())

    async def send(self, kind: str, raw: bytes) -> None:
        """Send a message that is bytes already. A reader that does not read is hung up on."""
        self._witness.crossed("sent", self.peer, self.method, self.stream, kind, raw)
        seconds = READ_S + len(raw) / SLOWEST_BYTES_S
        try:
            async with asyncio.timeout(seconds):
                if not self._named:  # a refusal names it where it says why
                    await self._context.send_initial_metadata(SAID)
                    self._named = True
                await self._context.write(raw)
        except TimeoutError:
            raise PeerFault(Reason.TOO_SLOW, f"{self.peer} did not read for {seconds:.0f} s", peer=self.peer) from None

    async def end(self, status: grpc.StatusCode, why: str) -> None:
        """End the call with a status that is no refusal."""
        await self._context.abort(status, why)


@dataclass(frozen=True)
class Method:
    """A method that a node answers: who may call it, how many at once, and what then happens."""

    admit: Callable[[str], object]
    """Refuses a caller by name, before anything is read."""
    answer: Callable[[Call], Awaitable[None]]
    room: Room = field(default_factory=Room)
    seen: bool = True
    """Whether its messages are those of rounds: counted, captured, and taken from nodes of the same protocol alone."""
    pace: Pace | None = None
    """How often each caller is answered, if that is to be less often than by the pace of all methods."""

    def handler(self, host: Host, name: str, pace: Pace) -> "grpc.RpcMethodHandler[Any, Any]":
        """Make what gRPC calls. The pace is that of all methods of a node together."""

        async def run(_: object, context: Context) -> None:
            peer, fault, why = "", None, ""
            with ExitStack() as places:  # a place is held until the call is over, not only until it is answered
                try:
                    try:
                        peer = host.caller(context)
                    finally:
                        await pace.turn(peer)  # strangers, who have no name, share one
                    if self.seen:
                        check_protocol(context.invocation_metadata(), peer)
                    self.admit(peer)
                    places.enter_context(self.room.place(peer))
                    if self.pace is not None:
                        await self.pace.turn(peer)
                    with host.callers.present(context, peer):
                        await self.answer(Call(context, host if self.seen else Unseen(), peer, name))
                except Fault as raised:
                    fault = _bare(raised)
                    host.refused(name, fault, peer, context.peer())
                except ConnectionAbortedError as leaving:
                    why = str(leaving)
                except OSError as error:  # a full disk, most likely: nothing was promised, and the peer may call again
                    why = "this node cannot write: its log says why"
                    host.failed(name, error)
                else:
                    return
                await _end(context, fault, why)

        made: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(run)
        return made


def _bare(fault: Fault) -> Fault:
    """Take from a fault what it says of where it was raised: that keeps every frame on the way there, and its data."""
    fault.__context__ = fault.__cause__ = None
    return fault.with_traceback(None)


async def _end(context: Context, fault: Fault | None, why: str) -> None:
    """Refuse a call, or say why this node cannot answer it.

    The status waits behind a message that the caller does not read, and nothing but the caller can end such a call:
    gRPC cannot reset a single one. So what waits here holds nothing but the caller's own place.
    """
    try:
        if fault is not None:
            await refuse(context, fault)
        else:
            await context.abort(grpc.StatusCode.UNAVAILABLE, why)
    except grpc.aio.InternalError:  # the caller hung up meanwhile, and nobody waits for the status
        raise asyncio.CancelledError from None


def check_length(raw: bytes, limit: int, peer: str) -> None:
    """Refuse a message that is longer than any honest one, before it is parsed."""
    if len(raw) > limit:
        raise PeerFault(
            Reason.WRONG_LENGTH,
            f"{peer} sent a message of {len(raw)} bytes where {limit} are the most",
            peer=peer,
            found=len(raw),
            expected=limit,
        )


def parse(kind: type[M], raw: bytes, peer: str) -> M:
    """Parse a message, or refuse it: one of too many parts before they are made."""
    check_parts(kind, raw, peer)
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise PeerFault(Reason.MALFORMED, f"{peer} sent what is no {kind.DESCRIPTOR.full_name}", peer=peer) from None


async def parse_aside(kind: type[M], raw: bytes, peer: str) -> M:
    """The same for a message that may be long: then the event loop serves others meanwhile."""
    return parse(kind, raw, peer) if len(raw) <= ASIDE_BYTES else await asyncio.to_thread(parse, kind, raw, peer)
