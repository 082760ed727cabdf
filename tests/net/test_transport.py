"""What lines between nodes promise: certificates that are known by their pins, and limits that gRPC keeps for us."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from ssl import DER_cert_to_PEM_cert
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from tests.core.protocol.federations import federation, identity
from tests.net.test_names import CA, SERVICE, WHO, Host

from silomix.attacks.active.liars.wire import INITIAL_WINDOW_SIZE, PREFACE, SETTINGS, frame
from silomix.runtime.config.owners.pins import Pins
from silomix.runtime.config.owners.selfsigned import self_signed
from silomix.runtime.core.errors import Passing, PeerFault, Reason
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.net import transport
from silomix.runtime.net.calls import Call, Context, Method
from silomix.runtime.net.health import anybody
from silomix.runtime.net.limits import METADATA_BYTES, SMALL_BYTES, Limits
from silomix.runtime.net.names import INSECURE_NAME
from silomix.runtime.net.transport import WINDOW_BYTES, Server, Tls, caller, channel, tls_of

F = federation()
LIMITS = Limits.of(F)
PATH = f"/{SERVICE}/{WHO.name}"


# Certificates


@cache
def certificate(name: str, number: int = 1) -> bytes:
    """A certificate of a node's own making, DER: one for each number."""
    return self_signed(name, ec.generate_private_key(ec.SECP256R1())).public_bytes(Encoding.DER)


def pinned(*pins: Pin) -> Tls:
    known = Pins(F)
    for pin in pins:
        known.take(pin.signed(identity(pin.name)))
    return Tls(b"", b"", b"", known)


def shown(*certificates: bytes) -> dict[str, list[bytes]]:
    """What a handshake tells of whoever calls."""
    return {"x509_pem_cert": [DER_cert_to_PEM_cert(one).encode() for one in certificates]}


def test_a_caller_is_known_by_the_certificates_of_its_pin_and_by_no_other() -> None:
    """A handshake may be older than the pin, so that what it has found does not count."""
    old, new, newest = (certificate("silo-1", number) for number in (1, 2, 3))
    tls = pinned(Pin("silo-1", 1, old, new), Pin("silo-2", 1, certificate("silo-2")))
    tls.check("silo-1", shown(old))
    tls.check("silo-1", shown(new))
    for what in (shown(newest), shown(certificate("silo-2")), shown(old, new), shown(), {}):
        with pytest.raises(PeerFault, match="known by now") as caught:
            tls.check("silo-1", what)
        assert (caught.value.reason, caught.value.details["peer"]) == (Reason.UNKNOWN_PEER, "silo-1")
    assert tls.pins is not None
    tls.pins.take(Pin("silo-1", 2, new).signed(identity("silo-1")))
    with pytest.raises(PeerFault):
        tls.check("silo-1", shown(old))


def test_a_call_on_a_connection_that_is_older_than_the_pin_is_refused() -> None:
    old, new = certificate("silo-1", 1), certificate("silo-1", 2)
    tls = pinned(Pin("silo-1", 1, old))
    names = {"x509_common_name": [b"silo-1"], "x509_subject_alternative_name": [b"silo-1"]}
    context = SimpleNamespace(auth_context=lambda: {**shown(old), **names})
    assert caller(cast("Context", context), F, tls) == "silo-1"
    assert tls.pins is not None
    tls.pins.take(Pin("silo-1", 2, new).signed(identity("silo-1")))
    with pytest.raises(PeerFault, match="known by now"):
        caller(cast("Context", context), F, tls)


def test_where_authorities_vouch_the_handshake_counts() -> None:
    Tls(CA.anchor, b"", b"").check("silo-1", shown(certificate("silo-1")))


def test_certificates_are_read_anew_for_a_handshake_when_they_have_changed_and_only_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Anybody can begin a handshake, and a trust store of a thousand pins takes long to read."""
    made: list[Callable[[], object]] = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda _first, fetch, _ask: made.append(fetch))
    tls, other = CA.certify("hop-1"), CA.certify("hop-1")
    transport._live(tls)
    (fetch,) = made
    assert tls.renew(Tls(tls.anchor, tls.certificate, tls.key)) is False
    assert (tls.version, fetch()) == (0, None)
    assert tls.renew(other) is True
    assert (tls.version, tls.certificate) == (1, other.certificate)
    assert fetch() is not None
    assert fetch() is None


def test_a_newer_pin_of_the_same_certificates_has_none_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member may sign as many as it likes, and each would cost everybody a trust store."""
    made: list[Callable[[], object]] = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda _first, fetch, _ask: made.append(fetch))
    tls = pinned(Pin("silo-1", 1, certificate("silo-1")))
    tls.certificate, tls.key = CA.certify("hop-1").certificate, CA.certify("hop-1").key
    assert tls.trust() is True
    transport._live(tls)
    (fetch,) = made
    assert tls.pins is not None
    tls.pins.take(Pin("silo-1", 2, certificate("silo-1")).signed(identity("silo-1")))
    assert (tls.trust(), fetch()) == (False, None)
    tls.pins.take(Pin("silo-1", 3, certificate("silo-1", 2)).signed(identity("silo-1")))
    assert tls.trust() is True
    assert fetch() is not None


@pytest.mark.parametrize("without", ["", "certificate", "key", "tls"])
def test_a_node_has_tls_if_its_federation_has_and_it_has_both_certificate_and_key(tmp_path: Path, without: str) -> None:
    there = {name: tmp_path / name for name in ("certificate", "key")}
    for name, path in there.items():
        path.write_bytes(name.encode())
    files = {name: None if name == without else path for name, path in there.items()}
    config: Any = SimpleNamespace(federation=F, insecure=without == "tls", **files)
    tls = tls_of(config)
    assert (tls is not None) is (without == "")
    assert tls is None or (tls.certificate, tls.key) == (b"certificate", b"key")


# Servers


class Listing(Host):
    """A node that keeps from where it is called."""

    def __init__(self, tls: Tls | None) -> None:
        super().__init__(tls)
        self.addresses: set[str] = set()

    def caller(self, context: Context) -> str:
        self.addresses.add(context.peer())
        return super().caller(context)


@asynccontextmanager
async def serving(receive_bytes: int = SMALL_BYTES, tls: Tls | None = None, **options: int) -> AsyncIterator[Any]:
    """A node that answers whatever it is sent with the same; what comes is as long as gRPC lets it be."""

    async def echo(call: Call) -> None:
        await call.send("bytes", await call.next("bytes", 1 << 30, 5.0) or b"")

    server = Server("127.0.0.1:0", tls, LIMITS, receive_bytes, **options)
    host = Listing(tls)
    server.serve(host, SERVICE, {WHO.name: Method(anybody, echo, seen=False)})
    await server.start()
    try:
        yield SimpleNamespace(host=host, port=server.port, address=f"127.0.0.1:{server.port}")
    finally:
        await server.stop(0)


async def echoed(to: grpc.aio.Channel, size: int) -> int:
    """Send so many bytes, and return how many come back."""
    call: Any = to.unary_unary(PATH, None, None)
    return len(await call(bytes(size), metadata=((INSECURE_NAME, "silo-1"),), timeout=5.0))


async def too_long(calling: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await calling
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return str(caught.value.details())


async def test_a_message_longer_than_the_longest_is_refused_by_whoever_is_sent_it() -> None:
    async with serving(1000) as node, channel(node.address, "hop-1", None, 500) as to:
        assert await echoed(to, 500) == 500
        assert "1001 vs. 1000" in await too_long(echoed(to, 1001))  # by the node
        assert "501 vs. 500" in await too_long(echoed(to, 501))  # by whoever asked


async def test_a_port_that_another_process_has_is_not_shared_with_it() -> None:
    """Calls would come to either of them."""
    async with serving() as node:
        with pytest.raises(Passing, match="another process has the port"):
            Server(node.address, None, LIMITS, SMALL_BYTES)


async def test_each_node_of_a_process_has_a_connection_of_its_own() -> None:
    async with serving() as node:
        async with channel(node.address, "hop-1", None) as one, channel(node.address, "hop-1", None) as two:
            assert [await echoed(one, 1), await echoed(two, 1)] == [1, 1]
        assert len(node.host.addresses) == 2


async def test_whoever_dials_and_does_not_finish_the_handshake_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HANDSHAKE_S", 0.05)
    async with serving(tls=CA.certify("hop-1")) as node:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(("streams", "window"), [(1, 1 << 20), (10, WINDOW_BYTES // 10), (1000, 1 << 17)])
async def test_a_stream_has_its_share_of_the_bytes_in_flight_within_reason(streams: int, window: int) -> None:
    """The server says so in its first frame, and probes for no larger one."""
    async with serving(streams=streams) as node:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        head = await reader.readexactly(9)
        assert head[3] == SETTINGS
        said = dict(struct.iter_unpack(">HI", await reader.readexactly(int.from_bytes(head[:3], "big"))))
        writer.close()
    assert said[INITIAL_WINDOW_SIZE] == window


PROMISED: dict[str, tuple[int, str]] = {
    "grpc.keepalive_time_ms": (30_000, "a peer that is gone without a word is noticed"),
    "grpc.keepalive_timeout_ms": (20_000, "and soon"),
    "grpc.keepalive_permit_without_calls": (1, "while nobody calls, too"),
    "grpc.http2.max_pings_without_data": (0, "however long: gRPC would stop after two"),
    "grpc.max_metadata_size": (METADATA_BYTES, "headers that are longer than ours may be refused"),
    "grpc.absolute_max_metadata_size": (2 * METADATA_BYTES, "headers are held before it is known whose they are"),
}
SERVER = PROMISED | {
    "grpc.http2.min_ping_interval_without_data_ms": (10_000, "our own pings count as too many at five minutes"),
    "grpc.http2.ping_on_rst_stream_percent": (100, "calls made and taken back come no faster than they are answered"),
    "grpc.max_connection_idle_ms": (1000 * LIMITS.idle_s, "whoever takes every connection gives them back"),
}
CLIENT = PROMISED | {
    "grpc.enable_retries": (0, "a call that may have been served is repeated by us, or by nobody"),
    "grpc.max_reconnect_backoff_ms": (5_000, "a node that is back is found within seconds, not in two minutes"),
}


def test_what_takes_long_to_see_is_asked_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, int | str]] = []

    def ask(*_: str, options: transport.Options) -> object:
        asked.append(dict(options))
        return SimpleNamespace(add_insecure_port=len)

    monkeypatch.setattr(grpc.aio, "server", ask)
    monkeypatch.setattr(grpc.aio, "insecure_channel", ask)
    Server("127.0.0.1:0", None, LIMITS, SMALL_BYTES)
    channel("127.0.0.1:1", "hop-1", None)
    for options, promised in zip(asked, (SERVER, CLIENT), strict=True):
        for name, (value, why) in promised.items():
            assert options.get(name) == value, why
