"""One way to hash structured data, used wherever two nodes must agree on what they mean.

Protobuf's bytes are not canonical, so nothing here hashes them: each part is prefixed with its length, so that no two
lists of parts collide, and the first part names the purpose, so that no two purposes do.
"""

import hashlib
from collections.abc import Iterator

from blake3 import blake3

DIGEST_BYTES = 32


Part = bytes | memoryview | int | str


def frame(domain: str, *parts: Part) -> bytes:
    """Encode parts unambiguously: a tag for the type, a 64-bit little-endian length, the bytes.

    Integers are written in decimal: they have no width to disagree about.
    """
    return b"".join(_pieces(domain, parts))


def digest(domain: str, *parts: Part) -> bytes:
    """Hash parts under a purpose with SHA-256. Long parts are hashed where they lie and not copied."""
    hasher = hashlib.sha256()
    for piece in _pieces(domain, parts):
        hasher.update(piece)
    return hasher.digest()


def fast_hash(content: bytes | memoryview) -> bytes:
    """Hash something long with BLAKE3, which is several times as fast. It has no purpose: `digest` gives it one."""
    return blake3(content).digest()


def _pieces(domain: str, parts: tuple[Part, ...]) -> Iterator[bytes | memoryview]:
    raw: bytes | memoryview
    for part in (f"silomix/v1/{domain}", *parts):
        if isinstance(part, bytes | memoryview):
            tag, raw = b"b", part
        elif isinstance(part, str):
            tag, raw = b"s", part.encode()
        elif isinstance(part, int):
            tag, raw = b"i", str(int(part)).encode()
        else:
            raise TypeError(f"cannot frame a {type(part).__name__}: give bytes, str or int")
        yield tag + len(raw).to_bytes(8, "little")
        yield raw
