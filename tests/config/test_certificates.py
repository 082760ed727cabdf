"""Private keys and certificates: for their node and no other, and checked when it starts."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree
from typing import Any, cast

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from tests.config.written import NODES, error_of

from silomix.runtime.config.authority import CertificateAuthority, blank, private_pem
from silomix.runtime.config.certificates import check_identity, load_identity, peer_name_from_cert
from silomix.runtime.config.load import load_federation, load_node, reload_tls
from silomix.runtime.config.owners.pins import write_pin
from silomix.runtime.config.owners.selfsigned import self_signed
from silomix.runtime.config.owners.trial import init
from silomix.runtime.config.tables import ConfigError, Where
from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.federation import Member
from silomix.runtime.core.protocol.identity import Identity, verify
from silomix.runtime.core.protocol.owners import Pin


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


@pytest.mark.parametrize(("common", "dns"), [("silo-02", "silo-01"), ("silo-01", "silo-02"), ("silo-01", "")])
def test_a_certificate_has_its_nodes_name_in_both_places(home: Path, common: str, dns: str) -> None:
    """Peers look at the common name, and TLS at the DNS names."""
    anchor = load_pem_private_key((home / "ca.key").read_bytes(), None)
    private = load_pem_private_key((home / "silo-01" / "tls.key").read_bytes(), None)
    assert isinstance(anchor, ec.EllipticCurvePrivateKey)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])
    made = blank(subject, certificate(home / "ca.pem").subject, private.public_key(), datetime.now(UTC), 9)
    if dns:
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(dns)]), critical=False)
    (home / "silo-01" / "tls.pem").write_bytes(made.sign(anchor, SHA256()).public_bytes(Encoding.PEM))
    error = error_of(load_node, home / "silo-01")
    assert error.key == "certificate"
    assert "the common name and the DNS name silo-01" in str(error)


def test_a_tls_key_that_is_none_is_found_at_the_start(home: Path) -> None:
    (home / "silo-01" / "tls.key").write_text("no key\n", encoding="utf-8")
    error = error_of(load_node, home / "silo-01")
    assert error.key == "key"
    assert "is not a private key" in str(error)


# Certificates that others pin


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation without a CA, whose first silo's files a test may change."""
    directory = tmp_path_factory.mktemp("pinned") / "federation"
    init(directory, 3, 1, name="demo", policy=Policy())
    return directory


def show_instead(node: Path, name: str = "silo-01", days: int = 9, *, pins: bool = True) -> None:
    """Give a node another certificate of its own, and have its identity pin it."""
    private = ec.generate_private_key(ec.SECP256R1())
    made = self_signed(name, private, days)
    (node / "tls.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (node / "tls.key").write_bytes(private_pem(private))
    if pins:
        identity = Identity("silo-01", load_identity(node / "identity.key"))
        write_pin(Pin("silo-01", 2, made.public_bytes(Encoding.DER)).signed(identity), node.parent)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda node: show_instead(node, "silo-02", pins=False), "is for CN=silo-02"),
        (lambda node: show_instead(node, days=0), "ran out on"),
        (lambda node: (node.parent / "silo-01.pin").unlink(), "has no silo-01.pin"),
        (lambda node: show_instead(node, pins=False), "others would refuse it"),
    ],
    ids=["another name", "run out", "no pin", "another pin"],
)
def test_a_certificate_that_others_do_not_know_is_found_at_the_start(
    pinned: Path, tmp_path: Path, spoil: Callable[[Path], None], problem: str
) -> None:
    home = copytree(pinned, tmp_path / "federation")
    node = home / "silo-01"
    config = load_node(node)
    spoil(node)
    with pytest.raises(ConfigError) as caught:
        reload_tls(config)
    assert caught.value.key == "certificate"
    assert problem in str(caught.value)


def test_a_certificate_that_its_node_has_pinned_is_taken(pinned: Path, tmp_path: Path) -> None:
    home = copytree(pinned, tmp_path / "federation")
    config = load_node(home / "silo-01")
    show_instead(home / "silo-01")
    reload_tls(config)


# Identities that are in no file

SIGNER = Identity("silo-01", Secret(bytes([1]) * 32))
MEMBER = Member("silo-01", SIGNER.public)
NOTHING = SIGNER.sign(digest("signer")).hex()
"""A signature that means nothing to anybody: the digest's purpose is this one alone."""


def checked(**values: object) -> None:
    given = {"identity": Path("nowhere"), "identity_command": (), "identity_token": "", **values}
    check_identity(Where(Path("silo.toml")), given, MEMBER)


def test_a_command_that_signs_is_tried_with_what_means_nothing_and_no_file_is_looked_for() -> None:
    checked(identity_command=("echo", NOTHING))


@pytest.mark.parametrize(
    ("values", "key", "problem"),
    [
        (
            {"identity_command": ("echo", NOTHING), "identity_token": "pkcs11:token=a"},
            "identity_token",
            "one of the two",
        ),
        ({"identity_command": ("echo", "no signature")}, "identity_command", "where a signature is 128 hex digits"),
        ({"identity_command": ("echo", "00" * 64)}, "identity_command", "signs with another key"),
        ({"identity_token": "pkcs11:token=a"}, "identity_token", "a token's URI lacks"),
        ({}, "identity", "nowhere"),
    ],
    ids=["both", "nonsense", "another key", "no token", "no file"],
)
def test_an_identity_that_does_not_sign_is_found_at_the_start(
    values: Mapping[str, object], key: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(**values)
    assert caught.value.key == key
    assert problem in str(caught.value)


# Peers


@pytest.mark.parametrize(("common", "found"), [([], "none"), ([b"a b"], "b'a b'"), ([b"a", b"b"], "b'a', b'b'")])
def test_whoever_is_refused_for_a_name_is_told_the_one_that_was_found(common: list[bytes], found: str) -> None:
    with pytest.raises(PeerFault) as caught:
        peer_name_from_cert({"x509_common_name": common, "x509_subject_alternative_name": common})
    assert caught.value.details["found"] == found
    assert f"(common name: {found})" in caught.value.message


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
