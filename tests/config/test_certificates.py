"""Private keys and certificates: for their node and no other, and checked when it starts."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from tests.config.written import NODES, error_of

from silomix.runtime.config.authority import CertificateAuthority
from silomix.runtime.config.certificates import load_identity, peer_name_from_cert
from silomix.runtime.config.load import load_federation, load_node
from silomix.runtime.config.owners.trial import init
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.identity import Identity, verify


def test_modes_are_right_from_the_start(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        init(tmp_path, 3, 1, name="demo", policy=Policy())
    finally:
        os.umask(before)
    private = set(tmp_path.rglob("*.key"))
    assert len(private) == 1 + 2 * 5  # the owner's, and two of each node
    for path in tmp_path.rglob("*"):
        expected = 0o700 if path.is_dir() else 0o600 if path in private else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
@pytest.mark.parametrize(("file", "key"), [("identity.key", "identity"), ("tls.key", "key")])
def test_a_private_key_that_others_may_read_is_refused(home: Path, mode: int, file: str, key: str) -> None:
    path = home / "silo-01" / file
    path.chmod(mode)
    error = error_of(load_node, home / "silo-01")
    assert error.key == key
    assert f"run chmod 600 {path}" in str(error)
    path.chmod(0o400)
    load_node(home / "silo-01")


def test_secrets_never_print(home: Path) -> None:
    config = load_node(home / "silo-01")
    secret = load_identity(config.identity)
    pem = config.identity.read_text(encoding="utf-8").splitlines()[1]
    printed = [f"{x!r} {x}" for x in (config, config.federation, secret, Identity(config.name, secret))]
    config.identity.write_text(f"-----BEGIN PRIVATE KEY-----\n{pem}x\n-----END PRIVATE KEY-----\n", encoding="utf-8")
    printed.append(str(error_of(load_node, home / "silo-01")))
    for text in printed:
        assert pem not in text
        assert secret.value.hex() not in text
        assert repr(secret.value) not in text


def test_an_identity_signs_for_its_entry(made: Path) -> None:
    federation = load_federation(made)
    identity = Identity("silo-01", load_identity(made / "silo-01" / "identity.key"))
    verify(federation.member("silo-01").key, b"digest", identity.sign(b"digest"), "silo-01")


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.mark.parametrize("node", NODES)
def test_certificates_verify_for_their_node_and_no_other(made: Path, node: str) -> None:
    leaf, store = certificate(made / node / "tls.pem"), Store([certificate(made / "ca.pem")])
    builder = PolicyBuilder().store(store)
    for name in (node, "localhost"):
        builder.build_server_verifier(x509.DNSName(name)).verify(leaf, [])
    other = NODES[NODES.index(node) - 1]
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName(other)).verify(leaf, [])
    subjects = builder.build_client_verifier().verify(leaf, []).subjects
    assert subjects is not None
    assert x509.DNSName(node) in subjects
    assert timedelta(days=824) < leaf.not_valid_after_utc - datetime.now(UTC) <= timedelta(days=825)
    private = load_pem_private_key((made / node / "tls.key").read_bytes(), None)
    assert private.public_key() == leaf.public_key()


def test_a_node_cannot_certify_another(made: Path) -> None:
    leaf = certificate(made / "silo-01" / "tls.pem")
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not constraints.ca
    assert not leaf.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def reissue(home: Path, authority: CertificateAuthority, name: str) -> None:
    private = load_pem_private_key((home / "silo-01" / "tls.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    (home / "silo-01" / "tls.pem").write_bytes(
        authority.issue(name, private.public_key(), ["10.0.0.1", "host.example"])
    )


def test_a_certificate_that_peers_would_refuse_is_found_at_the_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = CertificateAuthority("demo")
    reissue(home, stranger, "silo-01")
    assert "not issued by the federation's anchor" in str(error_of(load_node, home / "silo-01"))
    (home / "ca.pem").write_bytes(stranger.anchor)
    load_node(home / "silo-01")
    reissue(home, stranger, "silo-02")
    assert "the common name and the DNS name silo-01" in str(error_of(load_node, home / "silo-01"))
    monkeypatch.setattr("silomix.runtime.config.authority.CERTIFICATE_DAYS", 0)
    reissue(home, stranger, "silo-01")
    assert "ran out on" in str(error_of(load_node, home / "silo-01"))


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"x509_common_name": [b"silo-01"]},
        {"x509_common_name": [b"silo-01"], "x509_subject_alternative_name": [b"localhost"]},
        {"x509_common_name": [b"a", b"b"], "x509_subject_alternative_name": [b"a", b"b"]},
        {"x509_common_name": [b"localhost"], "x509_subject_alternative_name": [b"localhost"]},
        {"x509_common_name": [b"silo-01\x00"], "x509_subject_alternative_name": [b"silo-01\x00"]},
        {"x509_common_name": [b"\xff"], "x509_subject_alternative_name": [b"\xff"]},
    ],
)
def test_a_certificate_without_a_name_is_nobody(context: Mapping[str, Sequence[bytes]]) -> None:
    with pytest.raises(PeerFault) as caught:
        peer_name_from_cert(context)
    assert caught.value.reason is Reason.UNKNOWN_PEER


@pytest.fixture
def names_seen(made: Path) -> Iterator[tuple[int, list[str]]]:
    """A gRPC server of the aggregator that notes who calls."""
    seen: list[str] = []

    def call(request: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append(peer_name_from_cert(cast("Mapping[str, Sequence[bytes]]", context.auth_context())))
        return request

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        handlers: dict[str, Any] = {"Call": grpc.unary_unary_rpc_method_handler(call)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Names", handlers),))
        home = made / "aggregator"
        pair = (home / "tls.key").read_bytes(), (home / "tls.pem").read_bytes()
        anchor = (made / "ca.pem").read_bytes()
        credentials = grpc.ssl_server_credentials([pair], anchor, require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        yield port, seen
        server.stop(0).wait()


def dial(made: Path, port: int, caller: str, target: str) -> bytes:
    home = made / caller
    credentials = grpc.ssl_channel_credentials(
        (made / "ca.pem").read_bytes(), (home / "tls.key").read_bytes(), (home / "tls.pem").read_bytes()
    )
    options = [("grpc.ssl_target_name_override", target)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        call: Callable[..., bytes] = channel.unary_unary("/test.Names/Call")
        return call(b"hello", timeout=5)


def test_grpc_takes_the_certificates_and_tells_the_name(made: Path, names_seen: tuple[int, list[str]]) -> None:
    port, seen = names_seen
    assert dial(made, port, "silo-02", "aggregator") == b"hello"
    assert seen == ["silo-02"]
    with pytest.raises(grpc.RpcError) as caught:
        dial(made, port, "silo-02", "shuffler-1")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert seen == ["silo-02"]
