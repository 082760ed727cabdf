"""Masks: seeds, their sealing to a hop, and their expansion to uniform residues.

For each hop of the chain, and once more for the aggregator, a silo draws a seed, seals it to that node's round key
and adds the seed's expansion to its residues. What travels is uniform to everyone who lacks one of the seeds, and a
node that takes its own masks off a sum learns nothing else of it.

The expansion is bound to the whole context of the round. Two silos that were shown different models expand to masks
that no hop can take off together, so a server that equivocates gets noise and not a difference.
"""

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from typing import Protocol

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from silomix.runtime.core.digest import digest, frame
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.kernels import compiled
from silomix.runtime.core.numbers.packing import Bytes, Residues, packed_bytes, residue_dtype, slice_bytes, unpack
from silomix.runtime.core.numbers.slices import add_plane, redraw, subtract_plane

Rng = Callable[[int], bytes]
"""A source of n random bytes. Production passes os.urandom; tests pass what they can repeat."""

Moduli = npt.NDArray[np.int64]

SEED_BYTES = 32
KEY_BYTES = 32
SEALED_BYTES = 80
"""A sealed seed: the 32-byte encapsulated key, the seed, and a 16-byte tag."""
TAG_BYTES = 16
MATERIAL_BYTES = 32
"""What a stream is keyed with: one AES-128 key for the draws and one for the redraws."""

AGGREGATOR = 0
"""The layer of the aggregator's own mask. Hops are layers 1, 2, ... in the order of the chain."""
UPLOAD = "upload"
"""Direction of a mask that goes from a silo up the chain."""

_BYTES_AT = bytes.__basicsize__ - 1
"""Where the content of a bytes object begins in memory."""
_GONE = bytes(SEED_BYTES)
"""What lies where a secret was."""

_SMALL_ORDER = frozenset(
    bytes.fromhex(point)
    for point in (
        "00" * 32,
        "01" + "00" * 31,
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    )
)
"""The points of Curve25519 whose order divides 8, and their second encodings: with one, everybody knows the secret."""

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)


def overwrite(value: bytes) -> None:
    """Write zeros over bytes where they lie.

    Python would leave them in memory until something else happens to be written there. A `bytes` cannot be changed by
    other means than this; it works in CPython, and elsewhere it is not tried.
    """
    if sys.implementation.name == "cpython":
        ctypes.memset(id(value) + _BYTES_AT, 0, len(value))


@dataclass(frozen=True)
class Secret:
    """32 secret bytes that never print."""

    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.value) != SEED_BYTES:
            raise ValueError(f"a secret has {SEED_BYTES} bytes, not {len(self.value)}")

    def wipe(self) -> None:
        """Overwrite the bytes where they lie, in this object and in all that share them."""
        overwrite(self.value)

    def copy(self) -> "Secret":
        """Return the same secret in bytes of its own, which outlive these."""
        return Secret(bytes(bytearray(self.value)))

    def keyed(self) -> bytes:
        """Return the bytes to derive a key from, unless they were overwritten: what follows from zeros is no secret."""
        if self.value == _GONE:
            raise Overwritten
        return self.value

    @classmethod
    def draw(cls, rng: Rng) -> "Secret":
        """Draw a fresh secret: a seed for one (silo, layer, attempt), or a round's private key."""
        return cls(rng(SEED_BYTES))


class Overwritten(PeerFault):
    """A secret is gone, and what it was for is over: nothing is masked with the zeros that lie in its place."""

    def __init__(self) -> None:
        """Say so to whoever still asks for it."""
        super().__init__(Reason.FENCED, "this attempt is over here, and its secrets are overwritten")


@dataclass(frozen=True)
class MaskContext:
    """What a mask is bound to. All of it is public, and every party derives it from its own view of the round.

    No silo is named: the aggregator may be given seeds unnamed and in random order, and must still expand them.
    """

    manifest: bytes
    """Digest of the manifest, which covers federation, history, model and everything else of the attempt."""
    layer: int
    chunk_parameters: int
    direction: str = UPLOAD

    def info(self) -> bytes:
        """Encode the context for HKDF and HPKE, which bind it."""
        return frame("mask", self.manifest, self.layer, self.chunk_parameters, self.direction)


def small_order(key: bytes) -> bool:
    """Whether a public key agrees on the same secret with everybody. Its highest bit counts for nothing."""
    return key[:-1] + bytes([key[-1] & 0x7F]) in _SMALL_ORDER


def public_key(private: Secret) -> bytes:
    """Return the X25519 public half of a round key."""
    return X25519PrivateKey.from_private_bytes(private.value).public_key().public_bytes_raw()


def seal(seed: Secret, to: bytes, context: MaskContext) -> bytes:
    """Seal a seed with HPKE to a node's round key, bound to the context, or refuse a key that hides nothing."""
    if len(to) != KEY_BYTES:
        raise PeerFault(
            Reason.WRONG_LENGTH, f"a round key has {KEY_BYTES} bytes, not {len(to)}", found=len(to), expected=KEY_BYTES
        )
    try:
        return _SUITE.encrypt(seed.value, X25519PublicKey.from_public_bytes(to), context.info())
    except ValueError:  # a point of small order: everybody would know the shared secret
        raise PeerFault(
            Reason.WRONG_KEYS,
            f"the key for layer {context.layer} is unusable",
            layer=context.layer,
        ) from None


def unseal(sealed: bytes, private: Secret, context: MaskContext) -> Secret:
    """Open a sealed seed, or refuse it: another key, another context and a changed byte look the same."""
    if len(sealed) != SEALED_BYTES:
        raise PeerFault(
            Reason.WRONG_LENGTH,
            f"a sealed seed has {SEALED_BYTES} bytes, not {len(sealed)}",
            found=len(sealed),
            expected=SEALED_BYTES,
        )
    try:
        key = X25519PrivateKey.from_private_bytes(private.value)
        seed = Secret(_SUITE.decrypt(sealed, key, context.info()))
    except (InvalidTag, ValueError):
        raise PeerFault(
            Reason.SEAL_BROKEN,
            f"the seed for layer {context.layer} does not open: it was sealed to another key or for another manifest",
            layer=context.layer,
        ) from None
    if seed.value == _GONE:
        raise PeerFault(Reason.SEAL_BROKEN, f"the seed for layer {context.layer} is all zeros", layer=context.layer)
    return seed


def commitment(seed: Secret, context: MaskContext) -> bytes:
    """Return the H(seed) of a header, which a seed that is opened as evidence must match."""
    return digest("seed", context.info(), seed.value)


class Context(Protocol):
    """What a stream is bound to."""

    @property
    def chunk_parameters(self) -> int:
        """Coordinates of a full chunk."""
        ...

    def info(self) -> bytes:
        """Encode it for HKDF."""
        ...


def mask_streams(seeds: Iterable[tuple[Secret, Context]], moduli: tuple[int, ...]) -> list["Stream"]:
    """Key streams with seeds and what they are bound to. They share room: one thread at a time uses them."""
    scratch = Scratch()
    return [_keyed(seed, context, moduli, scratch) for seed, context in seeds]


def _keyed(seed: Secret, context: Context, moduli: tuple[int, ...], scratch: "Scratch") -> "Stream":
    material = derive(seed.keyed(), context.info())
    try:
        return Stream(material, moduli, context.chunk_parameters, scratch)
    finally:
        overwrite(material)


@contextmanager
def expanding(seeds: Iterable[tuple[Secret, Context]], moduli: tuple[int, ...]) -> Iterator[list["Stream"]]:
    """Key streams for as long as they are used: a hop that is seized later has neither their keys nor a mask."""
    streams, scratch = list[Stream](), Scratch()
    try:
        for seed, context in seeds:
            streams.append(_keyed(seed, context, moduli, scratch))
        yield streams
    finally:
        for stream in streams:
            stream.wipe()


def mask_stream(seed: Secret, context: Context, moduli: tuple[int, ...]) -> "Stream":
    """Key one stream."""
    return mask_streams([(seed, context)], moduli)[0]


def derive(secret: bytes, info: bytes) -> bytes:
    """Derive a stream's key material with HKDF-SHA256."""
    return HKDF(SHA256(), MATERIAL_BYTES, salt=None, info=info).derive(secret)


class Stream:
    """Exactly uniform residues from AES-128-CTR, chunk by chunk in any order, as packed planes.

    The stream of chunk c begins at the counter block (c in 12 bytes, big-endian; 2 in 4 bytes) and is the chunk's
    planes, one behind the other, as they travel. A value that is not below its modulus is drawn again from the redraw
    key's stream for plane j, which begins at (c in 8 bytes, j in 4, 2 in 4): the low bits of its 32-bit little-endian
    words go to the places in order, and a word that is itself no residue is passed over.

    AES-GCM over zeros is this very stream, and a tag that nobody needs. On processors that do several blocks at once
    the library's code for it is much faster than that for CTR.
    """

    def __init__(
        self, material: bytes, moduli: tuple[int, ...], chunk_parameters: int, scratch: "Scratch | None" = None
    ) -> None:
        """Material is 32 secret bytes, from `derive`."""
        if len(material) != MATERIAL_BYTES:
            raise ValueError(f"a stream is keyed with {MATERIAL_BYTES} bytes, not {len(material)}")
        self._moduli, self._widths = moduli, tuple((m - 1).bit_length() for m in moduli)
        self._chunk_parameters = chunk_parameters
        self._keys = material[:16], material[16:]
        self._main, self._redraw = map(AESGCM, self._keys)
        self._scratch = scratch or Scratch()
        self._numbers = np.array(moduli), np.array(self._widths)
        self._wiped = False

    def __repr__(self) -> str:
        return f"Stream(moduli={self._moduli})"

    def wipe(self) -> None:
        """Overwrite the keys, which the ciphers share, and what was drawn last. The stream is of no more use.

        A thread that is expanding meanwhile is told afterwards: what it has made is not masked.
        """
        self._wiped = True
        for key in self._keys:
            overwrite(key)
        self._scratch.wipe()

    def chunk(self, index: int, length: int) -> Residues:
        """Expand one chunk to a row of residues per plane. Only the last chunk is shorter than the others."""
        packed = self.packed(index, length)
        out: Residues = np.empty((len(self._moduli), length), residue_dtype(max(self._widths)))
        at = 0
        for row, m, width in zip(out, self._moduli, self._widths, strict=True):
            size = packed_bytes(length, width)
            unpack(packed.data[at : at + size], m, length, row)
            at += size
        return out

    def packed(self, index: int, length: int) -> Bytes:
        """Expand one chunk to packed planes, in room that this stream and its companions use again and again."""
        size = self._size(length)
        self._expand(_NO_PLANES, index, length, 0)
        return self._scratch.room(size)[1][:size]

    def apply(self, planes: Bytes, index: int, length: int, sign: int = 1) -> None:
        """Add one chunk of residues to packed planes, mod m_j, or take it off if the sign is -1."""
        if len(planes) != (size := self._size(length)):
            raise ValueError(f"{length} residues per plane are {size} bytes, not {len(planes)}")
        self._expand(planes, index, length, sign)

    def _size(self, length: int) -> int:
        if not 0 <= length <= self._chunk_parameters:
            raise ValueError(f"a chunk has at most {self._chunk_parameters} parameters, not {length}")
        return sum(self._widths) * slice_bytes(length)

    def _expand(self, planes: Bytes, index: int, length: int, sign: int) -> None:
        done, room = 0, 1.0
        zeros, drawn = self._scratch.room(self._size(length))
        while done < len(self._moduli):  # a second time only if a lot of redraws was too small
            self._main.encrypt_into(index.to_bytes(12, "big"), zeros, None, drawn.data)
            spare, ends = self._spare(index, length, room)
            done = _apply(drawn, *self._numbers, spare, ends, planes, length, sign, done if sign else 0)
            room *= 4
        if self._wiped:  # before this began, or in the middle of it
            raise Overwritten

    def _spare(self, index: int, length: int, room: float) -> tuple[Bytes, Moduli]:
        """Draw what the planes' redraws will take, with much to spare; return it, and where each plane's ends."""
        ends, parts = np.zeros(len(self._moduli), np.int64), []
        total = 0
        for j, (m, width) in enumerate(zip(self._moduli, self._widths, strict=True)):
            if excess := (1 << width) - m:
                expected = length * excess / m
                words = int(room * (expected + _MARGIN * sqrt(expected) + 1))
                nonce = index.to_bytes(8, "big") + j.to_bytes(4, "big")
                parts.append(self._redraw.encrypt(nonce, bytes(4 * words), None)[:-TAG_BYTES])
                total += 4 * words
            ends[j] = total
        return np.frombuffer(b"".join(parts), np.uint8), ends


class Scratch:
    """Room for one chunk, which all streams of a thread share, so that it stays in the second-level cache."""

    def __init__(self) -> None:
        """Make room when it is asked for."""
        self._found = b"", np.empty(TAG_BYTES, np.uint8)

    def room(self, size: int) -> tuple[bytes, Bytes]:
        """Return so many zeros, and room for them encrypted."""
        if len(self._found[0]) != size:
            self._found = bytes(size), np.empty(size + TAG_BYTES, np.uint8)
        return self._found

    def wipe(self) -> None:
        """Overwrite what was drawn last."""
        self._found[1][:] = 0


_NO_PLANES: Bytes = np.empty(0, np.uint8)
_MARGIN = 8  # standard deviations that the first lot of redraws has to spare


@compiled
def _apply(
    drawn: Bytes,
    moduli: Moduli,
    widths: Moduli,
    spare: Bytes,
    ends: Moduli,
    planes: Bytes,
    length: int,
    sign: int,
    done: int,
) -> int:
    """Make residues of what was drawn and add them, or take them off, or only that; return how many planes are done.

    All that a chunk takes, in one call: every call costs a turn of the GIL. A plane for which `spare` does not suffice
    is left alone, with all that follow.
    """
    size = (length + 7) // 8
    at = 0
    for j in range(len(moduli)):
        if j >= done:
            lot = spare[ends[j - 1] if j else 0 : ends[j]]
            if not redraw(drawn, at, length, moduli[j], widths[j], lot):
                return j
            if length & 7:
                for b in range(widths[j]):  # what was drawn behind the last residue
                    drawn[at + (b + 1) * size - 1] &= (1 << (length & 7)) - 1
            if sign > 0:
                add_plane(planes, at, drawn, at, size, moduli[j], widths[j])
            elif sign < 0:
                subtract_plane(planes, at, drawn, at, size, moduli[j], widths[j])
        at += widths[j] * size
    return len(moduli)
