"""Who calls, and who is called: their certificates say, and the roster; under TLS nobody's word does."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.core.protocol.federations import federation

from silomix.runtime.core.errors import Fault, PeerFault, Reason
from silomix.runtime.net.answers import fault_of
from silomix.runtime.net.calls import Call, Callers, Context, Method, Unseen
from silomix.runtime.net.health import anybody
from silomix.runtime.net.limits import SMALL_BYTES, Limits
from silomix.runtime.net.lines import Line, method
from silomix.runtime.net.names import INSECURE_NAME
from silomix.runtime.net.transport import Server, Tls, caller, channel, metadata
from silomix.runtime.net.version import SAID
from silomix.v1 import services_pb2

F = federation()
SERVICE = "silomix.v1.AggregatorService"
WHO = method("AggregatorService", "GetStatus")
DAY = timedelta(days=1)
_KEY = ec.generate_private_key(ec.SECP256R1())
_PEM = _KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Authority:
    """A CA that certifies whatever a test likes."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        made = self._builder(self._name).public_key(self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.anchor = made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def _builder(self, subject: x509.Name) -> x509.CertificateBuilder:
        now, number = datetime.now(UTC), x509.random_serial_number()
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).serial_number(number)
        return made.not_valid_before(now - DAY).not_valid_after(now + DAY)

    def certify(self, common: str, names: Sequence[str] = ()) -> Tls:
        """Certify a common name and DNS names, which are the same unless told otherwise."""
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])
        everybodys = x509.IPAddress(IPv4Address("127.0.0.1"))  # as `silomix init` issues them
        alternatives = x509.SubjectAlternativeName([everybodys, *map(x509.DNSName, names or (common,))])
        made = self._builder(subject).public_key(_KEY.public_key()).add_extension(alternatives, critical=False)
        return Tls(self.anchor, made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM), _PEM)


CA = Authority()


class Host(Unseen):
    """A node that tells a caller what it takes them for."""

    def __init__(self, tls: Tls | None) -> None:
        self.tls = tls
        self.callers = Callers()

    def caller(self, context: Context) -> str:
        return caller(context, F, self.tls)

    def refused(self, method: str, fault: Fault, peer: str, address: str) -> None:
        assert not peer, "a stranger has no name"

    def failed(self, method: str, error: OSError) -> None:
        raise AssertionError(error)


async def tell(call: Call) -> None:
    await call.request(services_pb2.GetStatusRequest, SMALL_BYTES)
    await call.answer(services_pb2.GetStatusResponse(federation=call.peer))


@asynccontextmanager
async def serving(tls: Tls | None) -> AsyncIterator[str]:
    server = Server("127.0.0.1:0", tls, Limits.of(F), SMALL_BYTES)
    server.serve(Host(tls), SERVICE, {WHO.name: Method(anybody, tell, seen=False)})
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(0)


def who(server: Tls | None, dialled: str, client: Tls | None, said: str = "") -> str:
    """Dial a node by a name, and return who it says is calling."""

    async def go() -> str:
        async with serving(server) as address, channel(address, dialled, client) as line:
            word = (*SAID, (INSECURE_NAME, said)) if said else SAID
            asked = services_pb2.GetStatusRequest()
            kind = services_pb2.GetStatusResponse
            return (await Line(line, dialled, word, Unseen()).ask(WHO, asked, kind, SMALL_BYTES, 10.0)).federation

    return asyncio.run(go())


def refused(server: Tls | None, dialled: str, client: Tls | None, said: str = "") -> Reason | grpc.StatusCode:
    """Why a call is refused: for a reason, or for want of a connection."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        who(server, dialled, client, said)
    fault = fault_of(caught.value)
    assert fault is None or isinstance(fault, PeerFault)
    return caught.value.code() if fault is None else fault.reason


def test_a_member_is_known_by_its_certificate() -> None:
    assert who(CA.certify("hop-1"), "hop-1", CA.certify("silo-1")) == "silo-1"
    assert metadata("silo-1", CA.certify("silo-1")) == SAID


def test_under_tls_a_word_in_the_metadata_counts_for_nothing() -> None:
    assert who(CA.certify("hop-1"), "hop-1", CA.certify("silo-1"), said="silo-2") == "silo-1"
    assert refused(CA.certify("hop-1"), "hop-1", CA.certify("intruder"), said="silo-2") is Reason.UNKNOWN_PEER


@pytest.mark.parametrize(
    ("common", "names"),
    [
        ("intruder", ["intruder"]),
        ("silo-1", ["silo-2"]),
        ("intruder", ["silo-1"]),
        ("silo-1", ["localhost"]),
        ("hop-3", ["hop-3"]),
    ],
)
def test_a_certificate_counts_if_both_its_names_are_one_on_the_roster(common: str, names: list[str]) -> None:
    """The CA is ours in every case, so TLS lets them in: it is the node that refuses them."""
    assert refused(CA.certify("hop-1"), "hop-1", CA.certify(common, names)) is Reason.UNKNOWN_PEER


def test_a_certificate_of_another_authority_gets_no_connection() -> None:
    stranger = Authority().certify("silo-1")
    ours = Tls(CA.anchor, stranger.certificate, stranger.key)
    assert refused(CA.certify("hop-1"), "hop-1", ours) is grpc.StatusCode.UNAVAILABLE


def test_a_client_without_a_certificate_gets_no_connection() -> None:
    async def go() -> None:
        async with serving(CA.certify("hop-1")) as address:
            options = (("grpc.ssl_target_name_override", "hop-1"),)
            bare = grpc.ssl_channel_credentials(CA.anchor)
            async with grpc.aio.secure_channel(address, bare, options) as line:
                word, asked = ((INSECURE_NAME, "silo-1"),), services_pb2.GetStatusRequest()
                await Line(line, "hop-1", word, Unseen()).ask(
                    WHO, asked, services_pb2.GetStatusResponse, SMALL_BYTES, 10.0
                )

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        asyncio.run(go())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("found", ["hop-2", "silo-1", "localhost"])
def test_whoever_answers_must_be_the_member_that_was_dialled(found: str) -> None:
    """Any member could otherwise stand in for another, wherever it can have packets sent to itself."""
    assert refused(CA.certify(found), "hop-1", CA.certify("silo-1")) is grpc.StatusCode.UNAVAILABLE


def test_without_tls_a_word_is_all_there_is_and_must_be_on_the_roster() -> None:
    assert metadata("silo-1", None) == (*SAID, (INSECURE_NAME, "silo-1"))
    assert who(None, "hop-1", None, said="silo-1") == "silo-1"
    assert refused(None, "hop-1", None, said="intruder") is Reason.UNKNOWN_PEER
    assert refused(None, "hop-1", None) is Reason.UNKNOWN_PEER
