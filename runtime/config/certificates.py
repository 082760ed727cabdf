"""A node's private keys and certificates: read, and checked against what the federation file says of the node."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from silomix.runtime.config.kinds import NAME, PATH
from silomix.runtime.config.owners.pins import known_pins
from silomix.runtime.config.owners.selfsigned import form_problem, run_out
from silomix.runtime.config.signer import signer_of
from silomix.runtime.config.tables import ConfigError, Where, read, read_private, show
from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import PeerFault, Reason, UserError
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.store.home import NEXT_CERTIFICATE_FILE, State


def load_identity(path: Path) -> Secret:
    """Read a node's Ed25519 private key, and refuse one that others on this machine could read."""
    try:
        key = load_pem_private_key(read_private(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(path, "", "is not an Ed25519 private key; give PEM (PKCS 8) without a passphrase")
    return Secret(key.private_bytes_raw())


def check_identity(where: Where, values: Mapping[str, Any], member: Member) -> None:
    """Check that a private key is the one whose public half the federation file lists, wherever it is."""
    path, command, token = (values[key] for key in ("identity", "identity_command", "identity_token"))
    if command and token:
        raise where.wrong("identity_token", "found beside identity_command; keep one of the two")
    if command or token:
        try:
            signer_of(command, token, member.key).sign(digest("signer"))  # what means nothing, to see whether it works
        except UserError as error:
            raise where.wrong("identity_token" if token else "identity_command", str(error)) from None
        return
    try:
        found = Identity(member.name, load_identity(path)).public
    except ConfigError as error:
        raise where.wrong("identity", str(error)) from None
    if found != member.key:
        raise where.wrong(
            "identity",
            f"{path} has the public key {found.hex()}, and the federation file lists {member.key.hex()} for "
            f"{member.name}; give the key that belongs to this entry, or have the owners change the entry",
        )


def check_tls(where: Where, values: Mapping[str, Any], federation: Federation) -> None:
    """Check a node's certificate and key, so that what would fail at the first handshake fails when it starts."""
    insecure, name = values["insecure"], values["name"]
    if insecure == federation.secure:
        other = "has TLS" if federation.secure else "says tls.insecure = true"
        raise where.wrong("insecure", f"found {show(insecure)}, and the federation file {other}; they must agree")
    for key in ("certificate", "key"):
        if insecure and values[key] is not None:
            raise where.wrong(key, "found a path beside insecure = true; keep one of the two")
        if not insecure and values[key] is None:
            raise where.wrong(key, f"missing; give {PATH.allowed}")
    if insecure:
        return
    try:
        private = load_pem_private_key(read_private(values["key"]), password=None)
    except ConfigError as error:
        raise where.wrong("key", str(error)) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        problem = f"{values['key']} is not a private key; give PEM without a passphrase"
        raise where.wrong("key", problem) from None
    try:
        chain = x509.load_pem_x509_certificates(read(values["certificate"]))
    except ConfigError as error:
        raise where.wrong("certificate", str(error)) from None
    except ValueError:
        raise where.wrong("certificate", f"{values['certificate']} holds no certificates; give a PEM file") from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*form) != chain[0].public_key().public_bytes(*form):
        do = "give the one that does"
        if values["key"].with_name(NEXT_CERTIFICATE_FILE).is_file():
            do += ", or run `silomix rotate --finish` again if that was interrupted"
        raise where.wrong("key", f"{values['key']} does not belong to {values['certificate']}; {do}")
    if federation.pinned:
        pins = known_pins(federation, values["agreement"], State(values["directory"]))
        problem = _pin_problem(chain[0].public_bytes(Encoding.DER), pins.get(name), name)
    else:
        problem = _certificate_problem(chain, name, federation.anchor)
    if problem:
        raise where.wrong("certificate", f"{values['certificate']} {problem}")


def _pin_problem(certificate: bytes, pin: Pin | None, name: str) -> str:
    if problem := form_problem(certificate, name) or run_out(certificate):
        return f"{problem}; `silomix rotate` makes a new one"
    if pin is None:
        return f"has no {name}.pin beside the federation file, by which others know it: put it back"
    if certificate not in pin.certificates:
        return (
            f"is not the one that {name}.pin number {pin.counter} pins; others would refuse it. `silomix rotate` helps"
        )
    return ""


def _certificate_problem(chain: list[x509.Certificate], name: str, anchor: bytes) -> str:
    leaf = chain[0]
    common = [attribute.value for attribute in leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    try:
        sans = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dns = sans.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        dns = []
    if common != [name] or name not in dns:
        return f"is for {common} and the DNS names {dns}; give one with the common name and the DNS name {name}"
    if leaf.not_valid_after_utc < datetime.now(UTC):
        return f"ran out on {leaf.not_valid_after_utc:%Y-%m-%d}; have the federation's CA issue a new one"
    for root in x509.load_pem_x509_certificates(anchor):
        try:
            chain[-1].verify_directly_issued_by(root)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return ""
    return "was not issued by the federation's anchor; have that CA issue one"


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
