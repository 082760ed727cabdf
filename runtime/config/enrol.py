"""Enrolment: make the keys, certificates and files of a federation whose nodes are all in one hand.

Owners who do not share a machine use the same pieces: each makes its own identity and certificate request, and one
writes the federation file from the public halves. What `init` makes is complete, and good for trials and for one
operator; whoever holds its ca.key can enrol anybody.
"""

import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from textwrap import wrap

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from silomix.runtime.config.load import (
    FEDERATION_FILE,
    FLAG,
    LEAST_SILOS,
    MQTT_KEYS,
    NAME,
    NODE_FILE,
    NODE_KEYS,
    PATH,
    POLICY_KEYS,
    ConfigError,
    Key,
    Role,
    load_identity,
    parse_federation,
)
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.core.protocol.policy import MAX_SHUFFLERS, MAX_SILOS, Policy
from silomix.runtime.core.values import Scalar

__all__ = ["CertificateAuthority", "Value", "dump_federation", "init", "load_identity", "peer_name_from_cert"]

ANCHOR_FILE = "ca.pem"
ANCHOR_KEY_FILE = "ca.key"
STATE_DIRECTORY = "state"
IDENTITY_FILE = "identity.key"
CERTIFICATE_FILE = "tls.pem"
CERTIFICATE_KEY_FILE = "tls.key"
CERTIFICATE_DAYS = 825
ANCHOR_DAYS = 3650
CLOCK_SKEW = timedelta(hours=1)
"""Certificates are good from an hour ago, so that a node with a slow clock can start at once."""
PUBLIC, PRIVATE = 0o644, 0o600

Value = Scalar | tuple[str, ...] | list[str] | Mapping[str, Scalar]


def init(
    directory: Path,
    silos: int,
    shufflers: int,
    *,
    name: str,
    policy: Policy,
    insecure: bool = False,
    host: str = "127.0.0.1",
    base_port: int = 0,
    listen_host: str = "",
    metrics_base_port: int = 0,
    silo_options: Callable[[int], Mapping[str, Scalar]] = lambda index: {},
    settings: Mapping[Role, Mapping[str, Value]] | None = None,
) -> Federation:
    """Write a complete federation into an empty directory: the federation file, and a directory for each node.

    host               where nodes are reached; "{name}" in it stands for the node's name, as container networks have it
    base_port          the aggregator's port, with the shufflers on the next ones; 0 to take any that are free now
    listen_host        where nodes listen if that is not `host`, such as "0.0.0.0"
    metrics_base_port  the first of consecutive metrics ports, one for each node; 0 for no metrics
    silo_options       a silo's own task options by its index from 0, such as its share of a data set
    settings           further keys of the node files, by role

    The federation file is written last, so a directory that has one is complete.
    """
    for key, number, least, most in (
        ("silos", silos, LEAST_SILOS, MAX_SILOS),
        ("shufflers", shufflers, 1, MAX_SHUFFLERS),
    ):
        if not least <= number <= most:
            raise ConfigError(directory, key, f"found {number}; give {least} to {most}")
    hops = [f"shuffler-{i}" for i in range(1, shufflers + 1)]
    trainers = [f"silo-{i:0{max(2, len(str(silos)))}}" for i in range(1, silos + 1)]
    servers, nodes = ["aggregator", *hops], ["aggregator", *hops, *trainers]
    hosts = {node: host.replace("{name}", node) for node in nodes}
    _check_ports(directory, "base_port", base_port, len(servers))
    _check_ports(directory, "metrics_base_port", metrics_base_port, len(nodes))
    _check_empty(directory)
    ports = range(base_port, base_port + len(servers)) if base_port else _free_ports(directory, host, len(servers))
    addresses = {node: f"{_bracketed(hosts[node])}:{port}" for node, port in zip(servers, ports, strict=True)}

    identities = {node: Ed25519PrivateKey.generate() for node in nodes}
    members = {
        node: Member(node, key.public_key().public_bytes_raw(), addresses.get(node, ""))
        for node, key in identities.items()
    }
    authority = None if insecure else CertificateAuthority(name)
    federation = Federation(
        name=name,
        aggregator=members["aggregator"],
        shufflers=tuple(members[hop] for hop in hops),
        silos=tuple(members[silo] for silo in trainers),
        policy=policy,
        anchor=authority.anchor if authority else b"",
    )
    checked = _check(federation, directory / FEDERATION_FILE)  # before anything is written

    directory.mkdir(parents=True, exist_ok=True)
    for index, node in enumerate(nodes):
        home = directory / node
        home.mkdir(mode=0o700)
        write_file(home / IDENTITY_FILE, private_pem(identities[node]), PRIVATE)
        role = Role.AGGREGATOR if index == 0 else Role.SHUFFLER if node in addresses else Role.SILO
        keys: dict[str, Value] = {
            **((settings or {}).get(role) or {}),
            "role": role,
            "name": node,
            "federation": f"../{FEDERATION_FILE}",
            "directory": STATE_DIRECTORY,
            "identity": IDENTITY_FILE,
        }
        if authority:
            private = ec.generate_private_key(ec.SECP256R1())
            write_file(home / CERTIFICATE_KEY_FILE, private_pem(private), PRIVATE)
            write_file(home / CERTIFICATE_FILE, authority.issue(node, private.public_key(), [hosts[node]]), PUBLIC)
            keys |= {"certificate": CERTIFICATE_FILE, "key": CERTIFICATE_KEY_FILE}
        else:
            keys["insecure"] = True
        if listen_host and node in addresses:
            keys["listen"] = f"{_bracketed(listen_host)}:{addresses[node].rpartition(':')[2]}"
        if metrics_base_port:
            keys["metrics_port"] = metrics_base_port + index
        options = silo_options(index - len(servers)) if node not in addresses else {}
        write_file(home / NODE_FILE, node_text(keys, options).encode(), PUBLIC)
    if authority:
        write_file(directory / ANCHOR_KEY_FILE, authority.private_pem(), PRIVATE)
    dump_federation(checked, directory / FEDERATION_FILE)
    return checked


def dump_federation(federation: Federation, path: Path) -> None:
    """Write a federation file with every policy key explained, and its trust anchor beside it.

    What is written is read back by the rules of loading first, so an invalid federation leaves no file.
    """
    _check(federation, path)
    if federation.anchor:
        write_file(path.parent / ANCHOR_FILE, federation.anchor, PUBLIC)
    write_file(path, _federation_text(federation).encode(), PUBLIC)


def _check(federation: Federation, path: Path) -> Federation:
    return parse_federation(_federation_text(federation), path, federation.anchor)


def _check_empty(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ConfigError(directory, "", "is a file; give a directory that is empty or does not exist yet")
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(
            directory, "", "is not empty, and keys are never overwritten; give another directory, or move this one away"
        )


def _check_ports(directory: Path, key: str, base: int, count: int) -> None:
    most = 65536 - count
    if not 0 <= base <= most:
        raise ConfigError(directory, key, f"found {base}, and {count} ports are needed; give 1 to {most}, or 0")


def _free_ports(directory: Path, host: str, count: int) -> list[int]:
    with ExitStack() as held:  # all at once, else the same port is free twice
        ports = []
        for _ in range(count):
            probe = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            try:
                probe.bind((host, 0))
            except OSError as error:
                problem = f"no free port can be found on {host} ({error.strerror or error}); give the first port"
                raise ConfigError(directory, "base_port", problem) from None
            ports.append(int(probe.getsockname()[1]))
        return ports


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# --- keys and certificates --------------------------------------------------------------------------------------------


class CertificateAuthority:
    """A federation's own CA. Its certificate is the anchor that nodes pin; its key is needed only to enrol."""

    def __init__(self, federation: str) -> None:
        """Make a new key and a certificate that can sign nodes and no other CAs."""
        self._key = ec.generate_private_key(ec.SECP256R1())  # gRPC's TLS library takes no Ed25519 certificates
        subject = x509.Name(
            [
                x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, federation[:64]),
                x509.NameAttribute(x509.NameOID.COMMON_NAME, "silomix federation CA"),
            ]
        )
        now = datetime.now(UTC)
        self._certificate = (
            _blank(subject, subject, self._key.public_key(), now, ANCHOR_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )

    @classmethod
    def load(cls, directory: Path) -> "CertificateAuthority":
        """Take up the CA of a federation that `init` has written, to certify one more."""
        authority = cls.__new__(cls)
        key = load_pem_private_key((directory / ANCHOR_KEY_FILE).read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(directory / ANCHOR_KEY_FILE, "", "is not a key that `silomix init` makes")
        authority._key = key
        authority._certificate = x509.load_pem_x509_certificate((directory / ANCHOR_FILE).read_bytes())
        return authority

    @property
    def anchor(self) -> bytes:
        """The certificate as PEM: what the federation file refers to."""
        return self._certificate.public_bytes(Encoding.PEM)

    def private_pem(self) -> bytes:
        """Return the private key as PEM, to be kept where no node runs."""
        return private_pem(self._key)

    def issue(self, name: str, public: ec.EllipticCurvePublicKey, hosts: Iterable[str] = ()) -> bytes:
        """Certify a node by its name on the roster, as a client and as a server, also for where it is reached."""
        alternatives: list[x509.GeneralName] = [
            x509.DNSName(name),
            x509.DNSName("localhost"),
            x509.IPAddress(IPv4Address("127.0.0.1")),
        ]
        for host in hosts:
            if (alternative := _general_name(host)) not in alternatives:
                alternatives.append(alternative)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        return (
            _blank(subject, self._certificate.subject, public, datetime.now(UTC), CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
            .public_bytes(Encoding.PEM)
        )


def _blank(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def private_pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    """Write a private key as PEM, without a passphrase: the file's mode protects it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def peer_name_from_cert(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """Return the name in the certificate of a gRPC peer, from the context's `auth_context()`, or refuse the peer.

    The CA vouches for the common name, and it counts only if it is a DNS name of the certificate too. It says which
    node this is, not that the node is on the roster: `Federation.member` says that.
    """
    common = list(auth_context.get("x509_common_name", ()))
    found = ", ".join(repr(value) for value in common) or "none"
    if len(common) == 1 and common[0] in auth_context.get("x509_subject_alternative_name", ()):
        try:
            name: str = NAME.parse(common[0].decode("ascii"))
        except ValueError:
            pass
        else:
            return name
    raise PeerFault(
        Reason.UNKNOWN_PEER, f"the peer's certificate does not name a node (common name: {found})", found=found
    )


# --- files ------------------------------------------------------------------------------------------------------------


def write_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file whole or not at all, with its mode from the first byte: a key is never readable for a moment."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _federation_text(federation: Federation) -> str:
    return "\n".join((*_federation_lines(federation), ""))


def _federation_lines(federation: Federation) -> Iterator[str]:
    yield "# The federation file: who takes part, with which keys, under which policy."
    yield "# Every node pins its own copy. A digest of all that it says is in every message, so the copies must agree;"
    yield "# comments and the order of keys may differ, the order of nodes may not."
    yield ""
    yield f"name = {_toml(federation.name)}"
    yield ""
    yield "[tls]"
    if federation.anchor:
        yield "# Certificates of the CAs that vouch for nodes. Each node needs a copy of this file, beside this one."
        yield f"anchor = {_toml(ANCHOR_FILE)}"
    else:
        yield "# No TLS: for trials on one machine only."
        yield "insecure = true"
    yield ""
    yield "[policy]"
    for name, key in POLICY_KEYS.items():
        if name != "task_options":
            yield from _entry(key, name, getattr(federation.policy, name))
    yield from _options("policy.task_options", POLICY_KEYS["task_options"], federation.policy.task_options)
    yield from _member("[aggregator]", federation.aggregator)
    yield ""
    yield "# The pool of hops. Bodies pass them in this order."
    for member in federation.shufflers:
        yield from _member("[[shufflers]]", member)
    for member in federation.silos:
        yield from _member("[[silos]]", member)


def _member(header: str, member: Member) -> Iterator[str]:
    yield ""
    yield header
    yield f"name = {_toml(member.name)}"
    yield f"key = {_toml(member.key.hex())}"
    if member.address:
        yield f"address = {_toml(member.address)}"


def node_text(settings: Mapping[str, Value], options: Mapping[str, Scalar]) -> str:
    """Write what is set, and what is not as a comment, so that the file is its own manual."""
    lines = ["# This node's own settings. Paths are relative to this file."]
    for name, key in NODE_KEYS.items():
        if settings["role"] not in key.roles or name in ("task_options", "mqtt"):
            continue
        set_here = name in settings
        example = "" if key.default is None else key.default
        lines += _entry(key, name, settings[name] if set_here else example, commented=not set_here)
    if settings["role"] is Role.SILO:
        lines += _options("task_options", NODE_KEYS["task_options"], options)
    lines += _broker(settings.get("mqtt"))
    return "\n".join((*lines, ""))


def _broker(given: Value | None) -> Iterator[str]:
    """Write the table of the broker, or how one would be given: last, since a table ends only with the next."""
    broker = given if isinstance(given, Mapping) else {}
    yield ""
    yield f"# {NODE_KEYS['mqtt'].what}"
    yield "[mqtt]" if broker else "# [mqtt]"
    for name, key in MQTT_KEYS.items():
        example = "" if key.default is None else key.default
        yield from _entry(key, name, broker.get(name, example), commented=name not in broker)


def _entry(key: Key, name: str, value: Value, *, commented: bool = False) -> Iterator[str]:
    yield ""
    yield from (f"# {line}" for line in wrap(key.what, 100, break_on_hyphens=False))
    if key.kind not in (PATH, FLAG):
        yield f"# Allowed: {key.kind.allowed}."
    yield f"{'# ' if commented else ''}{name} = {_toml(value)}"


def _options(header: str, key: Key, options: Mapping[str, Scalar]) -> Iterator[str]:
    yield ""
    yield f"# {key.what}"
    yield f"[{header}]"
    for name, value in options.items():
        yield f"{name if re.fullmatch('[A-Za-z0-9_-]+', name) else _toml(name)} = {_toml(value)}"


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # a JSON string is a TOML string, but for one character
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    return f"[{', '.join(map(_toml, value))}]"
