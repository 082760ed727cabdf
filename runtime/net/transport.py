"""grpc.aio with the settings this protocol needs: mutual TLS, names from the roster, limits, keepalives.

What the C core is asked to hold, it holds before any of our code runs: how long a handshake may take, how many
connections there are and how many calls on each, how long a message or the headers of a call may be.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ssl import PEM_cert_to_DER_cert
from typing import Any

import grpc
from cryptography import x509

from silomix.runtime.config.certificates import peer_name_from_cert
from silomix.runtime.config.load import NodeConfig
from silomix.runtime.config.owners.pins import Pins, known_pins
from silomix.runtime.core.errors import Passing, PeerFault, Reason
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.net.calls import Call, Context, Host, Method, Pace
from silomix.runtime.net.health import NAMES, Health, anybody, reflect
from silomix.runtime.net.limits import HANDSHAKE_S, METADATA_BYTES, STREAMS, Limits
from silomix.runtime.net.names import INSECURE_NAME
from silomix.runtime.net.version import SAID

RECEIVE_BYTES = 4 << 20
"""The longest message that a caller takes who has no federation at hand: gRPC's own default."""

SOON_S, SOON_PAUSE_S = 20.0, 0.8
"""For how long a peer that does not answer may just be starting again, and the longest pause between two tries then."""

WINDOW_BYTES = 6 << 20
"""What all streams to a server may have in flight together: a hop's memory must not grow with the silos."""

_PING_MS = 30_000
Options = tuple[tuple[str, int | str], ...]
_OPTIONS: Options = (
    ("grpc.keepalive_time_ms", _PING_MS),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * METADATA_BYTES),
    # Nothing that travels can be compressed, and what is compressed can be a thousand times longer than it looks.
    ("grpc.compression_enabled_algorithms_bitset", 1),
)
_SERVER_OPTIONS: Options = (
    *_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS // 3),  # so that our own pings are never too many
    ("grpc.max_concurrent_streams", STREAMS),
    ("grpc.http2.ping_on_rst_stream_percent", 100),  # who takes calls back makes new ones no faster than it answers
    ("grpc.so_reuseport", 0),
    ("grpc.http2.bdp_probe", 0),  # else a hundred streams at once may each have megabytes in flight
)
_CLIENT_OPTIONS: Options = (
    *_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_retries", 0),  # retries are ours: a stream is not repeatable by the library
    ("grpc.use_local_subchannel_pool", 1),  # several nodes in one process have a connection each, as anywhere else
)


@dataclass(eq=False)
class Tls:
    """A node's certificate and key, and what its peers are known by: their pins, or CAs that vouch for them.

    It changes while the node runs: servers and channels that are made of it ask again.
    """

    anchor: bytes
    """Certificates that a peer's must lead to, PEM. Where nodes are pinned, their own: each vouches for itself."""
    certificate: bytes
    key: bytes = field(repr=False)
    pins: Pins | None = field(default=None, repr=False)
    """The nodes' pins, or nothing where CAs vouch."""
    version: int = 0
    """How often it has changed."""

    @property
    def expires(self) -> float:
        """When the certificate runs out, in Unix time."""
        return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc.timestamp()

    def roots(self, peer: str) -> bytes:
        """What one peer's certificate must lead to: where nodes are pinned, its own and nobody else's."""
        return self.anchor if self.pins is None else self.pins.roots([peer])

    def dials(self, peer: str) -> tuple[bytes, bytes, bytes]:
        """What a channel to a peer is made of: as long as that is the same, the channel may stay."""
        return self.roots(peer), self.certificate, self.key

    def trust(self) -> bool:
        """Take up what the pins say by now; return whether another certificate is known, or one no more."""
        assert self.pins is not None
        if (roots := self.pins.roots()) == self.anchor:
            return False
        self.anchor = roots
        self.version += 1
        return True

    def renew(self, other: "Tls") -> bool:
        """Take over what was read anew; return whether anything has changed."""
        mine, theirs = (self.anchor, self.certificate, self.key), (other.anchor, other.certificate, other.key)
        if mine == theirs:
            return False
        self.pins = other.pins
        self.anchor, self.certificate, self.key = theirs
        self.version += 1
        return True

    def check(self, name: str, auth_context: Mapping[str, Iterable[bytes]]) -> None:
        """Refuse a caller whose certificate is not the one that it is known by now, whatever the handshake said."""
        if self.pins is None:
            return
        shown = list(auth_context.get("x509_pem_cert", ()))
        if len(shown) != 1 or not self.pins.known_by(name, PEM_cert_to_DER_cert(shown[0].decode("ascii"))):
            raise PeerFault(
                Reason.UNKNOWN_PEER, f"the certificate of {name} is not the one that {name} is known by now", peer=name
            )


def tls_of(config: NodeConfig) -> Tls | None:
    """Read a node's TLS material, if its federation has TLS."""
    if config.insecure or config.certificate is None or config.key is None:
        return None
    certificate, key = config.certificate.read_bytes(), config.key.read_bytes()
    if not config.federation.pinned:
        return Tls(config.federation.anchor, certificate, key)
    pins = known_pins(config.federation, config.agreement, config.state)
    return Tls(pins.roots(), certificate, key, pins)


def channel(address: str, peer: str, tls: Tls | None, receive_bytes: int = RECEIVE_BYTES) -> grpc.aio.Channel:
    """Open a channel to a member. Its certificate must carry the name that the roster has for it."""
    options = (*_CLIENT_OPTIONS, ("grpc.max_receive_message_length", receive_bytes))
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    roots, certificate, key = tls.dials(peer)
    credentials = grpc.ssl_channel_credentials(roots, key, certificate)
    return grpc.aio.secure_channel(address, credentials, options=(*options, ("grpc.ssl_target_name_override", peer)))


def metadata(name: str, tls: Tls | None) -> tuple[tuple[str, str], ...]:
    """What a caller adds to each call: the protocol that it speaks, and without TLS its bare word for who it is."""
    return SAID if tls else (*SAID, (INSECURE_NAME, name))


def caller(context: Context, federation: Federation, tls: Tls | None) -> str:
    """Return the name of whoever calls: the one in the certificate, which the federation file must know."""
    if tls is None:
        given = dict(context.invocation_metadata() or ())
        name = str(given.get(INSECURE_NAME, ""))
    else:
        shown = context.auth_context()
        name = federation.member(peer_name_from_cert(shown)).name
        tls.check(name, shown)
    return federation.member(name).name


class _Rest(grpc.GenericRpcHandler):
    """Answers what nothing else does, so that whoever calls it is known and waits their turn as with any other call."""

    def __init__(self, answers: "grpc.RpcMethodHandler[Any, Any]") -> None:
        self._answers = answers

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        return self._answers


async def _no_such_method(call: Call) -> None:
    await call.end(grpc.StatusCode.UNIMPLEMENTED, "there is no such method here")


class Server:
    """A gRPC server with health checking and reflection that can be told when it is ready."""

    def __init__(self, listen: str, tls: Tls | None, limits: Limits, receive_bytes: int, streams: int = 10) -> None:
        """Bind the address; `add` services before `start`. `streams` is how many may upload at once."""
        window = min(1 << 20, max(1 << 17, WINDOW_BYTES // streams))
        options: Options = (
            *_SERVER_OPTIONS,
            ("grpc.max_receive_message_length", receive_bytes),
            ("grpc.http2.lookahead_bytes", window),
            ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE_S)),
            ("grpc.max_allowed_incoming_connections", limits.connections),
            ("grpc.max_connection_idle_ms", 1000 * limits.idle_s),
        )
        self._server = grpc.aio.server(options=options)
        self._health = Health()
        self._names: list[str] = []
        self._rest: grpc.GenericRpcHandler | None = None
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(listen)
            else:
                self.port = self._server.add_secure_port(listen, _live(tls))
        except RuntimeError:
            raise Passing(
                f"cannot listen on {listen}: another process has the port, or the address is not this host's"
            ) from None

    def serve(
        self,
        host: Host,
        service: str,
        methods: Mapping[str, Method],
        others: Mapping[str, Mapping[str, Method]] | None = None,
    ) -> None:
        """Let a node answer the calls of a service, and be asked for its health and for what else there is to ask."""
        self._names = [*NAMES, service, *(others or {})]
        pace = Pace(time.monotonic)
        answering = (self._health.methods, reflect(self._names, pace), methods, *(others or {}).values())
        for name, answers in zip(self._names, answering, strict=True):
            handlers = {method: answer.handler(host, method, pace) for method, answer in answers.items()}
            self.add_generic(grpc.method_handlers_generic_handler(name, handlers))
        self._rest = _Rest(Method(anybody, _no_such_method, seen=False).handler(host, "an unknown method", pace))

    def add_generic(self, handler: grpc.GenericRpcHandler) -> None:
        """Add handlers that no .proto describes, as the benchmarks do."""
        self._server.add_generic_rpc_handlers((handler,))

    def answer_for_attempt(self, digest: Callable[[], bytes], given_up: Callable[[], bytes] = bytes) -> None:
        """Let health checks ask whether an attempt is open here, or was given up, by its manifest's digest."""
        self._health.attempt, self._health.given_up = digest, given_up

    async def start(self) -> None:
        """Serve, and say so to whoever asks for health."""
        if self._rest is not None:
            self.add_generic(self._rest)  # behind all others: the first that knows a method answers
        await self._server.start()
        await self._health.set(("", *self._names), serving=True)

    async def stop(self, grace_s: float) -> None:
        """Say that this node is leaving, let calls end, and stop."""
        await self._health.set(("", *self._names), serving=False)
        await self._server.stop(grace_s)


def _live(tls: Tls) -> grpc.ServerCredentials:
    """Make credentials that follow a node's TLS material: each handshake has what is there by then."""
    shown = tls.version

    def configuration() -> Any:
        return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], tls.anchor)

    def fetch() -> Any:
        nonlocal shown
        if tls.version == shown:
            return None
        shown = tls.version
        return configuration()

    return grpc.dynamic_ssl_server_credentials(configuration(), fetch, True)


async def backoff(
    first_s: float = 0.2,
    most_s: float = 5.0,
    wake: asyncio.Event | None = None,
    worked: asyncio.Event | None = None,
) -> AsyncIterator[int]:
    """Yield try after try without end, each after a longer pause, with jitter so that nobody marches in step.

    A process that is started again is back within seconds, so pauses are short at first. Whoever sets `wake` ends a
    pause, but not its first part: there is no haste that could make a flood. Whoever sets `worked` says that the last
    try was a success while it lasted: pauses begin anew.
    """
    pause, number, waited = first_s, 0, 0.0
    while True:
        yield number
        if worked is not None and worked.is_set():
            worked.clear()
            pause, number, waited = first_s, 0, 0.0
        length = pause * (0.5 + random.random() / 2)  # noqa: S311 - jitter is no secret
        waited += length
        await asyncio.sleep(min(first_s, length))
        if wake is None:
            await asyncio.sleep(max(0.0, length - first_s))
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), max(0.0, length - first_s))
            wake.clear()
        pause, number = min(pause * 2, most_s if waited >= SOON_S else SOON_PAUSE_S), number + 1
