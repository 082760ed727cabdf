"""A federation's own certificate authority: needed to enrol nodes, and by no node that runs."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from silomix.runtime.config.tables import ConfigError
from silomix.runtime.store.home import ANCHOR_FILE, ANCHOR_KEY_FILE

CERTIFICATE_DAYS = 825
ANCHOR_DAYS = 3650
CLOCK_SKEW = timedelta(hours=1)
"""Certificates are good from an hour ago, so that a node with a slow clock can start at once."""


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
            blank(subject, subject, self._key.public_key(), now, ANCHOR_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage(sign_certificates=True), critical=True)
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
            blank(subject, self._certificate.subject, public, datetime.now(UTC), CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
            .public_bytes(Encoding.PEM)
        )


def blank(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    """Begin a certificate: whose, by whom, and how long it is good."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def usage(*, sign_certificates: bool) -> x509.KeyUsage:
    """Say what a key is for: certificates of others, or handshakes and nothing else."""
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
