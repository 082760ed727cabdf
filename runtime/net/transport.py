"""grpc.aio with the settings this protocol needs: mutual TLS, names from the roster, limits, keepalives, reasons.

A refusal travels as a gRPC status whose message starts with the reason, so a `PeerFault` raised on one side is the same
`PeerFault` on the other.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from cryptography import x509
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from silomix.runtime.config.certificates import peer_name_from_cert
from silomix.runtime.core.errors import Fault, Passing, PeerFault, Reason
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Accusation
from silomix.runtime.net.answers import ANSWERS
from silomix.runtime.net.wire import read_evidence, write_evidence
from silomix.v1 import body_pb2, services_pb2, services_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]

MAX_MESSAGE_BYTES = 8 << 20
"""Largest message: a chunk is 150 to 600 KB, a manifest for a hundred silos and a few hops well below a megabyte."""
MAX_STREAMS = 256
"""Calls that one connection may have open."""

WINDOW_BYTES = 6 << 20
"""What all streams to a server may have in flight together: a hop's memory must not grow with the silos."""

_PING_MS = 30_000
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _PING_MS),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER_OPTIONS = (
    *_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS // 3),  # so that our own pings are never too many
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.bdp_probe", 0),  # else a hundred streams at once may each have megabytes in flight
)
_CLIENT_OPTIONS = (
    *_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_retries", 0),  # retries are ours: a stream is not repeatable by the library
)

SERVICES = services_pb2.DESCRIPTOR.services_by_name
"""The protocol's services by name, with their methods."""

ATTEMPT = "silomix.attempt"
"""Health checks ask for "silomix.attempt/DIGEST": whether this very attempt is open at a hop."""

NOT_OPEN = "it was started again and has lost the attempt, or gave it up"
"""What is wrong with a hop that answers and has not the attempt open."""

INSECURE_NAME = "silomix-node"
"""Metadata that names the caller in a federation without TLS, where nobody can prove anything."""

ABOUT = "silomix-about"
"""Metadata of a refusal: the member whose fault it is."""

EVIDENCE = "silomix-evidence-bin"
"""Metadata of a refusal: the proof that a silo sealed garbage."""


@dataclass(frozen=True)
class Tls:
    """A node's certificate and key, and the anchor that its peers' certificates must lead to."""

    anchor: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    @property
    def expires(self) -> float:
        """When the certificate runs out, in Unix time."""
        return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc.timestamp()


def channel(address: str, peer: str, tls: Tls | None) -> grpc.aio.Channel:
    """Open a channel to a member. Its certificate must carry the name that the roster has for it."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_CLIENT_OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.anchor, tls.key, tls.certificate)
    options = (*_CLIENT_OPTIONS, ("grpc.ssl_target_name_override", peer))
    return grpc.aio.secure_channel(address, credentials, options=options)


def aggregator_stub(to: grpc.aio.Channel) -> Any:
    """Return what calls an aggregator. The generated stubs have no types."""
    return services_pb2_grpc.AggregatorServiceStub(to)  # type: ignore[no-untyped-call]


def shuffler_stub(to: grpc.aio.Channel) -> Any:
    """Return what calls a shuffler."""
    return services_pb2_grpc.ShufflerServiceStub(to)  # type: ignore[no-untyped-call]


def metadata(name: str, tls: Tls | None) -> tuple[tuple[str, str], ...]:
    """What a caller adds to each call: nothing under TLS, its bare word without."""
    return () if tls else ((INSECURE_NAME, name),)


def _serialise(message: Message) -> bytes:
    return message.SerializeToString()


_HANDLERS: dict[tuple[bool, bool], Any] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
}


def upload(to: grpc.aio.Channel, method: MethodDescriptor) -> Any:
    """Return what calls a method with a stream of messages that are bytes already."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    return to.stream_unary(path, None, GetMessageClass(method.output_type).FromString)


class _Health(health.aio.HealthServicer):
    """Health of the services, and of the attempt that is open here: a process that was started again has lost it."""

    def __init__(self) -> None:
        super().__init__()
        self.attempt: Callable[[], bytes] = bytes

    async def Check(  # noqa: N802 - gRPC names its methods
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        kind, found, digest = request.service.partition("/")
        if not found or kind != ATTEMPT:
            answer: health_pb2.HealthCheckResponse = await super().Check(request, context)
            return answer
        if digest != self.attempt().hex():
            await context.abort(grpc.StatusCode.NOT_FOUND, "that attempt is not open here")
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


class Server:
    """A gRPC server with health checking and reflection that can be told when it is ready."""

    def __init__(self, listen: str, tls: Tls | None, streams: int = 10) -> None:
        """Bind the address; `add` services before `start`. `streams` is how many may upload at once."""
        window = min(1 << 20, max(1 << 17, WINDOW_BYTES // streams))
        self._server = grpc.aio.server(options=(*_SERVER_OPTIONS, ("grpc.http2.lookahead_bytes", window)))
        self._health = _Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names = [health.SERVICE_NAME, reflection.SERVICE_NAME]
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(listen)
            else:
                credentials = grpc.ssl_server_credentials(
                    [(tls.key, tls.certificate)], tls.anchor, require_client_auth=True
                )
                self.port = self._server.add_secure_port(listen, credentials)
        except RuntimeError:
            raise Passing(
                f"cannot listen on {listen}: another process has the port, or the address is not this host's"
            ) from None

    def add(self, servicer: Any, service: ServiceDescriptor) -> None:
        """Add a service. What a client streams in is handed over as bytes: these are counted, captured, then parsed."""
        handlers: dict[str, Any] = {}
        for method in service.methods:
            request = None if method.client_streaming else GetMessageClass(method.input_type).FromString
            make = _HANDLERS[method.client_streaming, method.server_streaming]
            handlers[method.name] = make(getattr(servicer, method.name), request, _serialise)
        self.add_generic(grpc.method_handlers_generic_handler(service.full_name, handlers))
        self._names.append(service.full_name)

    def add_generic(self, handler: grpc.GenericRpcHandler) -> None:
        """Add handlers that no .proto describes, as the benchmarks do."""
        self._server.add_generic_rpc_handlers((handler,))

    def answer_for_attempt(self, digest: Callable[[], bytes]) -> None:
        """Let health checks ask whether an attempt is open here, by its manifest's digest."""
        self._health.attempt = digest

    async def start(self) -> None:
        """Serve, and say so to whoever asks for health."""
        reflection.enable_server_reflection(self._names, self._server)
        await self._server.start()
        for name in ("", *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """Say that this node is leaving, let calls end, and stop."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


async def has_attempt(to: grpc.aio.Channel, manifest: bytes, timeout_s: float) -> str:
    """Ask a hop whether it still has an attempt open; return what is wrong, or nothing."""
    request = health_pb2.HealthCheckRequest(service=f"{ATTEMPT}/{manifest.hex()}")
    stub: Any = health_pb2_grpc.HealthStub(to)
    try:
        await stub.Check(request, timeout=timeout_s, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return NOT_OPEN
        return f"not reachable ({error.code().name.lower()})"
    return ""


def caller(context: Context, federation: Federation, tls: Tls | None) -> str:
    """Return the name of whoever calls: the one in the certificate, which the federation file must know."""
    if tls is None:
        given = dict(context.invocation_metadata() or ())
        name = str(given.get(INSECURE_NAME, ""))
    else:
        name = peer_name_from_cert(context.auth_context())
    return federation.member(name).name


async def refuse(context: Context, fault: Fault) -> None:
    """End a call with a fault's reason and sentence, the name of whose fault it is, and any evidence."""
    code = ANSWERS[fault.reason].status
    peer = str(fault.details.get("peer", ""))
    trailing: list[tuple[str, str | bytes]] = []
    if peer and peer.isascii() and peer.isprintable():
        trailing.append((ABOUT, peer))
    if isinstance(fault, Accusation):
        trailing.append((EVIDENCE, write_evidence(fault.evidence).SerializeToString()))
    await context.abort(code, f"{fault.reason}: {fault.message}", tuple(trailing))


def fault_of(error: grpc.aio.AioRpcError) -> PeerFault | None:
    """Return the peer's reason for a failed call, or nothing if the call failed for want of a connection or time."""
    reason, _, message = (error.details() or "").partition(": ")
    trailing = dict(error.trailing_metadata() or ())
    about, evidence = trailing.get(ABOUT), trailing.get(EVIDENCE)
    if reason == Reason.SEAL_BROKEN and isinstance(evidence, bytes):
        try:
            return Accusation(read_evidence(body_pb2.Evidence.FromString(evidence)))
        except (DecodeError, PeerFault):
            return PeerFault(Reason.FALSE_EVIDENCE, "what came as evidence cannot be read")
    try:
        return PeerFault(Reason(reason), message, **({"peer": str(about)} if about else {}))
    except ValueError:
        return None


def transient(error: grpc.aio.AioRpcError) -> bool:
    """Whether to call again: the peer was busy, or not there, or not fast enough, and refused nothing."""
    fault = fault_of(error)
    if fault is not None:
        return ANSWERS[fault.reason].again
    return error.code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    )


async def backoff(first_s: float = 0.2, most_s: float = 5.0, wake: asyncio.Event | None = None) -> AsyncIterator[int]:
    """Yield try after try without end, each after a longer pause, with jitter so that nobody marches in step.

    Whoever sets `wake` ends a pause, but not its first part: there is no haste that could make a flood.
    """
    pause, number = first_s, 0
    while True:
        yield number
        length = pause * (0.5 + random.random() / 2)  # noqa: S311 - jitter is no secret
        await asyncio.sleep(min(first_s, length))
        if wake is None:
            await asyncio.sleep(max(0.0, length - first_s))
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), max(0.0, length - first_s))
            wake.clear()
        pause, number = min(pause * 2, most_s), number + 1
