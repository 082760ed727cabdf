"""A node's own certificate, which nobody else has signed: others pin it.

Such certificates are each other's trust store, so none may be good for signing another. Without a critical KeyUsage a
certificate that one member signs for another's name would pass; with `ca=True` too. Neither is let in, whoever made it.

TLS reads the store with another library than this one, and reads no further than to the first certificate that it
cannot take: whoever is behind that is known no more. So none is let in that is not written, byte for byte, as here.
"""

from datetime import UTC, datetime
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from silomix.runtime.config.authority import CERTIFICATE_DAYS, blank, usage

MAX_BYTES = 2048
"""Of a certificate, DER. Those that are made here have about 400."""
_ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
"""What stands before a signature: how it was made."""


def self_signed(name: str, key: ec.EllipticCurvePrivateKey, days: int = CERTIFICATE_DAYS) -> x509.Certificate:
    """Make a node's certificate: its name, for both ends of a connection, good for signing nothing."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    return (
        blank(subject, subject, key.public_key(), datetime.now(UTC), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, SHA256())
    )


def form_problem(der: bytes, name: str) -> str:
    """Say why a certificate cannot be pinned for a node, or nothing. It goes on from "the certificate"."""
    if len(der) > MAX_BYTES:
        return f"has {len(der)} bytes, where {MAX_BYTES} are the most"
    try:
        found = x509.load_der_x509_certificate(der)
        subject, key, extensions = found.subject, found.public_key(), found.extensions
    except Exception:  # of a dozen kinds that have nothing in common: anybody may have written these bytes
        return "cannot be read"
    if found.public_bytes(Encoding.DER) != der:
        return "cannot be read"
    if found.version is not x509.Version.v3:  # gRPC's library reads none with extensions, nor any that stands behind it
        return "has another version than 3"
    named = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    if subject != named:
        return f"is for {subject.rfc4514_string()}, not for CN={name}"
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        return "has a key other than P-256"
    wanted: tuple[tuple[x509.ExtensionType, bool], ...] = (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (usage(sign_certificates=False), True),
        (x509.SubjectAlternativeName([x509.DNSName(name)]), False),
    )
    for value, critical in wanted:
        try:
            extension = extensions.get_extension_for_class(type(value))
        except x509.ExtensionNotFound:
            return f"has no {type(value).__name__}"
        if extension.value != value or extension.critical < critical:
            return f"has another {type(value).__name__} than a node's own may have"
    try:
        found.verify_directly_issued_by(found)
    except Exception:  # an algorithm that nobody knows, too
        return "was not signed by its own key"
    return "" if _written_as_here(found, der, named, key) else "is not written as nodes' own are"


def _written_as_here(found: x509.Certificate, der: bytes, name: x509.Name, key: ec.EllipticCurvePublicKey) -> bool:
    """Whether what a certificate says makes the same bytes when it is written anew, but for the signature."""
    signature = found.signature
    try:
        builder = (
            x509.CertificateBuilder(name, name, key)
            .serial_number(found.serial_number)
            .not_valid_before(found.not_valid_before_utc)
            .not_valid_after(found.not_valid_after_utc)
        )
        for extension in found.extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        anew = builder.sign(_somebody(), SHA256()).tbs_certificate_bytes
    except Exception:  # as above: what cannot be written was not written here
        return False
    return der.endswith(anew + _ECDSA_SHA256 + b"\x03" + bytes([len(signature) + 1]) + b"\0" + signature)


@cache
def _somebody() -> ec.EllipticCurvePrivateKey:
    """A key to sign with where only what is signed matters."""
    return ec.generate_private_key(ec.SECP256R1())


def run_out(der: bytes) -> str:
    """Say when a certificate ran out, or nothing if it has not."""
    end = x509.load_der_x509_certificate(der).not_valid_after_utc
    return f"ran out on {end:%Y-%m-%d}" if end < datetime.now(UTC) else ""


def pem(der: bytes) -> bytes:
    """Write a certificate as text."""
    return x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)


def der(text: bytes) -> bytes:
    """Read a certificate that is text: the first, if there are several."""
    return x509.load_pem_x509_certificates(text)[0].public_bytes(Encoding.DER)
