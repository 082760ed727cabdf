"""A member of the federation who calls what it likes, in its own name and with its own keys."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from silomix.attacks.active.witness import Refusal
from silomix.runtime.config.certificates import load_identity
from silomix.runtime.config.load import load_node
from silomix.runtime.core.errors import Fault, Reason
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.net.answers import ANSWERS
from silomix.runtime.net.transport import tls_of
from silomix.runtime.net.version import SAID
from silomix.v1 import services_pb2, services_pb2_grpc

SERVICES = services_pb2.DESCRIPTOR.services_by_name
ABOUT, EVIDENCE = "silomix-about", "silomix-evidence-bin"
"""Metadata of a refusal, as docs/protocol.md has it."""
ANSWER_S = 20.0
"""How long an honest node has to answer a call that it does not refuse."""
GRACE_S = 0.1
"""Time that calls have to end by themselves."""
AGAIN_S = 0.2
TRIES = 8
"""A refusal that overtakes the frames shows as INTERNAL in grpc.aio now and then: then the call is made again."""


class Refused(Exception):  # noqa: N818 - what happened
    """An honest node refused a call."""

    def __init__(self, refusal: Refusal) -> None:
        """Keep who refused, and why."""
        super().__init__(f"{refusal.node}: {refusal.reason}: {refusal.sentence}")
        self.refusal = refusal


class Silent(Exception):  # noqa: N818 - what happened
    """A node neither answered nor refused in time."""


class _Named:
    """A line whose calls name the protocol, as those of every node do: a liar that did not would not get far."""

    def __init__(self, line: grpc.aio.Channel) -> None:
        self._line = line

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._line, name)
        if name not in ("unary_unary", "unary_stream", "stream_unary"):
            return found
        return lambda *given, **named: functools.partial(found(*given, **named), metadata=SAID)


def _answered(kind: str, answers: Any) -> Any:
    """Let an answer name the protocol too."""

    async def one(request: Any, context: Any) -> Any:
        answer = await answers(request, context)
        await context.send_initial_metadata(SAID)
        return answer

    async def many(request: Any, context: Any) -> AsyncIterator[Any]:
        named = False
        async for answer in answers(request, context):
            if not named:
                await context.send_initial_metadata(SAID)
                named = True
            yield answer

    return many if kind == "told" else one


class Member:
    """What one owner has: a node's directory. Nobody else's."""

    def __init__(self, home: Path) -> None:
        """Read the node's keys."""
        self.config = load_node(home)
        self.name = self.config.name
        self.federation = self.config.federation
        self.identity = Identity(self.name, load_identity(self.config.identity))
        self.tls = tls_of(self.config)
        self._lines: dict[str, grpc.aio.Channel] = {}
        self._server: grpc.aio.Server | None = None

    def line(self, target: str) -> grpc.aio.Channel:
        """Return the line to a member, dialled once."""
        if target not in self._lines:
            self._lines[target] = self.dial(target)
        return self._lines[target]

    def dial(self, target: str) -> grpc.aio.Channel:
        """Dial a member on a connection of its own, without the limits of honest callers; the caller closes it."""
        assert self.tls is not None, "drills run under TLS"
        credentials = grpc.ssl_channel_credentials(self.tls.anchor, self.tls.key, self.tls.certificate)
        options = (
            ("grpc.ssl_target_name_override", target),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.enable_retries", 0),
        )
        line = grpc.aio.secure_channel(self.federation.member(target).address, credentials, options=options)
        return cast("grpc.aio.Channel", _Named(line))

    def shuffler(self, target: str) -> Any:
        """Return what calls a hop."""
        return services_pb2_grpc.ShufflerServiceStub(self.line(target))  # type: ignore[no-untyped-call]

    def aggregator(self, target: str = "aggregator") -> Any:
        """Return what calls the aggregator."""
        return services_pb2_grpc.AggregatorServiceStub(self.line(target))  # type: ignore[no-untyped-call]

    async def ask(self, target: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call and return the answer, or raise what came of it."""
        for _ in range(TRIES):
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                code, (reason, _, sentence) = error.code(), (error.details() or "").partition(": ")
                if reason in list(Reason):
                    raise Refused(Refusal(target, reason, sentence)) from None
                if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise Silent(f"{target} did not answer") from None
                if code is grpc.StatusCode.UNAVAILABLE:  # it may be starting
                    await asyncio.sleep(AGAIN_S)
                elif code is not grpc.StatusCode.INTERNAL:
                    raise Refused(Refusal(target, code.name.lower(), error.details() or "")) from None
        raise Refused(Refusal(target, code.name.lower(), "the call was ended, and why got lost on the way"))

    async def stream(self, target: str, method: str, frames: Sequence[Message | bytes]) -> bytes:
        """Stream frames to a node, and return its answer, or raise what came of it."""
        raw = [frame if isinstance(frame, bytes) else frame.SerializeToString() for frame in frames]

        async def told() -> AsyncIterator[bytes]:
            for frame in raw:
                yield frame

        call: Any = self.line(target).stream_unary(path(method))
        answer: bytes = await self.ask(target, lambda: call(told(), timeout=ANSWER_S))
        return answer

    # Serving: in bytes, so that those which are no message can be said too.

    def handlers(self) -> dict[str, tuple[str, Any]]:
        """Return the calls that this member answers: by name, the kind of call and what answers it."""
        return {}

    async def serve(self) -> None:
        """Listen where the federation file says."""
        service = SERVICES["AggregatorService" if self.name == self.federation.aggregator.name else "ShufflerService"]
        kinds = {
            "unary": grpc.unary_unary_rpc_method_handler,
            "told": grpc.unary_stream_rpc_method_handler,
            "streamed": grpc.stream_unary_rpc_method_handler,
        }
        made: dict[str, Any] = {
            name: kinds[kind](_answered(kind, answers)) for name, (kind, answers) in self.handlers().items()
        }
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, made),))
        assert self.tls is not None
        pair = [(self.tls.key, self.tls.certificate)]
        credentials = grpc.ssl_server_credentials(pair, self.tls.anchor, require_client_auth=True)
        self._server.add_secure_port(self.config.listen, credentials)
        await self._server.start()

    async def close(self) -> None:
        """Hang up, and serve no more."""
        if self._server is not None:
            await self._server.stop(GRACE_S)
        for line in self._lines.values():
            await line.close()
        self._lines = {}


async def abort(context: Any, fault: Fault, evidence: bytes = b"") -> None:
    """Refuse a call as an honest node would, with whatever evidence."""
    trailing: list[tuple[str, str | bytes]] = [*SAID, (ABOUT, str(fault.details.get("peer", "")))]
    if evidence:
        trailing.append((EVIDENCE, evidence))
    await context.abort(ANSWERS[fault.reason].status, f"{fault.reason}: {fault.message}", tuple(trailing))


def path(method: str) -> str:
    """Return where a call goes, by its name."""
    service = next(s for s in SERVICES.values() if method in s.methods_by_name)
    return f"/{service.full_name}/{method}"
