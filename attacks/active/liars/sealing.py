"""HPKE by hand, for what no library does: sealing to a point of small order, and opening that without any key.

A Diffie-Hellman exchange with such a point gives nought, whatever the other key is. RFC 9180, base mode, with X25519,
HKDF-SHA256 and AES-128-GCM, as everywhere here.
"""

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from silomix.runtime.core.numbers.masks import KEY_BYTES, MaskContext, Secret, public_key

NOUGHT = bytes(32)
"""What everybody and a point of small order agree on."""
SMALL = bytes([1]) + bytes(31)
"""One such point."""
_KEM = b"KEM" + (0x0020).to_bytes(2, "big")
_SUITE = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in (0x0020, 0x0001, 0x0001))


def _extract(salt: bytes, suite: bytes, label: bytes, what: bytes) -> bytes:
    return hmac.new(salt or bytes(32), b"HPKE-v1" + suite + label + what, hashlib.sha256).digest()


def _expand(key: bytes, suite: bytes, label: bytes, info: bytes, size: int) -> bytes:
    what = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.new(key, what + b"\1", hashlib.sha256).digest()[:size]  # 32 bytes or fewer: one block


def _schedule(agreed: bytes, encapsulated: bytes, to: bytes, info: bytes) -> tuple[AESGCM, bytes]:
    shared = _expand(_extract(b"", _KEM, b"eae_prk", agreed), _KEM, b"shared_secret", encapsulated + to, 32)
    no_psk, about = _extract(b"", _SUITE, b"psk_id_hash", b""), _extract(b"", _SUITE, b"info_hash", info)
    context, secret = b"\0" + no_psk + about, _extract(shared, _SUITE, b"secret", b"")
    key = _expand(secret, _SUITE, b"key", context, 16)
    return AESGCM(key), _expand(secret, _SUITE, b"base_nonce", context, 12)


def seal_carelessly(seed: Secret, to: bytes, context: MaskContext) -> bytes:
    """Seal a seed to a point of small order, as a library would that does not look at what was agreed on."""
    encapsulated = public_key(Secret.draw(os.urandom))
    key, nonce = _schedule(NOUGHT, encapsulated, to, context.info())
    return encapsulated + key.encrypt(nonce, seed.value, b"")


def open_without_key(sealed: bytes, to: bytes, context: MaskContext, agreed: bytes = NOUGHT) -> Secret | None:
    """Open what was sealed to a point of small order, as anybody can; nothing if it was sealed to a real key."""
    encapsulated, rest = sealed[:KEY_BYTES], sealed[KEY_BYTES:]
    key, nonce = _schedule(agreed, encapsulated, to, context.info())
    try:
        return Secret(key.decrypt(nonce, rest, b""))
    except InvalidTag:
        return None


def agreed_with(private: Secret, encapsulated: bytes) -> bytes:
    """Return what a real key agrees on with whoever encapsulated: so that the arithmetic here can be checked."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    ours = X25519PrivateKey.from_private_bytes(private.value)
    return ours.exchange(X25519PublicKey.from_public_bytes(encapsulated))
