"""One way to hash structured data, used wherever two nodes must agree on what they mean.

Protobuf's bytes are not canonical, so nothing here hashes them: each part is prefixed with its length, so that no two
lists of parts collide, and the first part names the purpose, so that no two purposes do.
"""

import hashlib

DIGEST_BYTES = 32


def frame(domain: str, *parts: bytes | int | str) -> bytes:
    """Encode parts unambiguously: a tag for the type, a 64-bit little-endian length, the bytes.

    Integers are written in decimal: they have no width to disagree about.
    """
    out = bytearray()
    for part in (f"silomix/v1/{domain}", *parts):
        if isinstance(part, bytes):
            tag, raw = b"b", part
        elif isinstance(part, str):
            tag, raw = b"s", part.encode()
        else:
            tag, raw = b"i", str(int(part)).encode()
        out += tag + len(raw).to_bytes(8, "little") + raw
    return bytes(out)


def digest(domain: str, *parts: bytes | int | str) -> bytes:
    """Hash parts under a purpose with SHA-256."""
    return hashlib.sha256(frame(domain, *parts)).digest()
