"""Who says what: Ed25519 over the digest of framed fields, with keys from the federation file and no others."""

from dataclasses import dataclass, field
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret

SIGNATURE_BYTES = 64


class Signer(Protocol):
    """What signs with a key that this process does not hold: a token, or somebody's command."""

    @property
    def public(self) -> bytes:
        """The key that its signatures verify with."""
        ...

    def sign(self, what: bytes) -> bytes:
        """Sign a digest."""
        ...


@dataclass(frozen=True)
class Identity:
    """A node's name and its private key, which never prints, or what signs in its place."""

    name: str
    secret: Secret | Signer = field(repr=False)

    def sign(self, what: bytes) -> bytes:
        """Sign a digest."""
        if isinstance(self.secret, Secret):
            return Ed25519PrivateKey.from_private_bytes(self.secret.value).sign(what)
        return self.secret.sign(what)

    @property
    def public(self) -> bytes:
        """The key that the federation file lists."""
        if isinstance(self.secret, Secret):
            return Ed25519PrivateKey.from_private_bytes(self.secret.value).public_key().public_bytes_raw()
        return self.secret.public


def verify(key: bytes, what: bytes, signature: bytes, signer: str) -> None:
    """Check a signature over a digest, or refuse it and name whose it was said to be."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, what)
    except (InvalidSignature, ValueError):
        raise PeerFault(Reason.BAD_SIGNATURE, f"the signature of {signer} does not verify", peer=signer) from None
