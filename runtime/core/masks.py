"""Masks: seeds, their sealing to a hop, and their expansion to uniform residues.

For each hop of the chain, and once more for the aggregator, a silo draws a seed, seals it to that node's round key
and adds the seed's expansion to its residues. What travels is uniform to everyone who lacks one of the seeds, and a
node that takes its own masks off a sum learns nothing else of it.

The expansion is bound to the whole context of the round. Two silos that were shown different models expand to masks
that no hop can take off together, so a server that equivocates gets noise and not a difference.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from silomix.runtime.core.digest import digest, frame
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.kernels import compiled, load_word
from silomix.runtime.core.packing import Residues, residue_dtype
from silomix.runtime.core.residue import add_residues, subtract_residues

Rng = Callable[[int], bytes]
"""A source of n random bytes. Production passes os.urandom; tests pass what they can repeat."""

Fields = npt.NDArray[np.unsignedinteger[Any]]
Moduli = npt.NDArray[np.int64]

SEED_BYTES = 32
KEY_BYTES = 32
SEALED_BYTES = 80
"""A sealed seed: the 32-byte encapsulated key, the seed, and a 16-byte tag."""
MATERIAL_BYTES = 32
"""What a stream is keyed with: one AES-128 key for the draws and one for the redraws."""

AGGREGATOR = 0
"""The layer of the aggregator's own mask. Hops are layers 1, 2, ... in the order of the chain."""
UPLOAD = "upload"
"""Direction of a mask that goes from a silo up the chain."""

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)


@dataclass(frozen=True)
class Secret:
    """32 secret bytes that never print."""

    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.value) != SEED_BYTES:
            raise ValueError(f"a secret has {SEED_BYTES} bytes, not {len(self.value)}")

    @classmethod
    def draw(cls, rng: Rng) -> "Secret":
        """Draw a fresh secret: a seed for one (silo, layer, attempt), or a round's private key."""
        return cls(rng(SEED_BYTES))


@dataclass(frozen=True)
class MaskContext:
    """What a mask is bound to. All of it is public, and every party derives it from its own view of the round.

    No silo is named: the aggregator may be given seeds unnamed and in random order, and must still expand them.
    """

    federation: bytes
    round: int
    attempt: int
    layer: int
    model: bytes
    schema: bytes
    plan: bytes
    chunk_parameters: int
    direction: str = UPLOAD

    def info(self) -> bytes:
        """Encode the context for HKDF and HPKE, which bind it."""
        return frame(
            "mask",
            self.federation,
            self.round,
            self.attempt,
            self.layer,
            self.model,
            self.schema,
            self.plan,
            self.chunk_parameters,
            self.direction,
        )


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
            f"the key for layer {context.layer} of round {context.round} attempt {context.attempt} is unusable",
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
        return Secret(_SUITE.decrypt(sealed, key, context.info()))
    except (InvalidTag, ValueError):
        raise PeerFault(
            Reason.SEAL_BROKEN,
            f"the seed for layer {context.layer} of round {context.round} attempt {context.attempt} does not open: "
            "it was sealed to another key or for another manifest",
            layer=context.layer,
        ) from None


def commitment(seed: Secret, context: MaskContext) -> bytes:
    """Return the H(seed) of a header, which a seed that is opened as evidence must match."""
    return digest("seed", context.info(), seed.value)


def mask_stream(seed: Secret, context: MaskContext, moduli: tuple[int, ...]) -> "Stream":
    """Key a stream with a seed and the context that it is bound to."""
    return Stream(derive(seed.value, context.info()), moduli, context.chunk_parameters)


def derive(secret: bytes, info: bytes) -> bytes:
    """Derive a stream's key material with HKDF-SHA256."""
    return HKDF(SHA256(), MATERIAL_BYTES, salt=None, info=info).derive(secret)


class Stream:
    """Exactly uniform residues from AES-128-CTR, chunk by chunk in any order.

    Chunk c of the main key's stream begins at counter c * ceil(chunk bytes / 16) and holds, plane after plane, one
    field of 8, 16 or 32 bits for each parameter: the smallest that holds the plane's width. The low bits of the field
    are the residue; if they are not below the modulus they are drawn again from the redraw key's stream, which for
    plane j of chunk c begins at counter c * 2^64 + j * 2^48: its fields go to the rejected places in order, and a
    field that is itself rejected is passed over.
    """

    def __init__(self, material: bytes, moduli: tuple[int, ...], chunk_parameters: int) -> None:
        """Material is 32 secret bytes, from `derive`."""
        if len(material) != MATERIAL_BYTES:
            raise ValueError(f"a stream is keyed with {MATERIAL_BYTES} bytes, not {len(material)}")
        widths = [(m - 1).bit_length() for m in moduli]
        self._planes = tuple((m, w, _field(w)) for m, w in zip(moduli, widths, strict=True))
        self._dtype = np.dtype(residue_dtype(max(widths)))
        self._chunk_parameters = chunk_parameters
        self._blocks = -(-chunk_parameters * sum(kind.itemsize for _, _, kind in self._planes) // 16)
        # One chunk's fields and redraws are all that is held, so that they stay in the second-level cache.
        self._size = sum(chunk_parameters * kind.itemsize for _, _, kind in self._planes)
        self._alike = all(kind == self._dtype for _, _, kind in self._planes)
        self._moduli, self._cuts = np.array(moduli), np.array([(1 << w) - 1 for w in widths])
        self._zeros = bytes(max(self._size, _LOT))
        self._fields = np.empty(self._size + 15, np.uint8)  # the cipher asks for a block to spare
        self._spare = np.empty((len(moduli), _LOT + 15), np.uint8)
        self._main = Cipher(algorithms.AES(material[:16]), modes.CTR(bytes(16))).encryptor()
        self._redraw = Cipher(algorithms.AES(material[16:]), modes.CTR(bytes(16))).encryptor()

    def __repr__(self) -> str:
        return f"Stream(moduli={tuple(m for m, _, _ in self._planes)})"

    def chunk(self, index: int, length: int) -> Residues:
        """Expand one chunk to a row of residues per plane. Only the last chunk is shorter than the others."""
        out: Residues = np.zeros((len(self._planes), length), self._dtype)
        self.apply(out, index, 0, length)
        return out

    def apply(self, acc: Residues, index: int, start: int, length: int, sign: int = 1) -> None:
        """Add one chunk of residues to acc[:, start:start + length], mod m_j, or take it off if the sign is -1."""
        if not 0 <= length <= self._chunk_parameters:
            raise ValueError(f"a chunk has at most {self._chunk_parameters} parameters, not {length}")
        if len(acc) != len(self._planes) or acc.dtype != self._dtype or not 0 <= start <= acc.shape[1] - length:
            raise ValueError(f"{acc.shape} places of {acc.dtype} do not hold {length} residues per plane at {start}")
        self._draw(index, length)
        first = 0
        if self._alike:
            fields: Fields = self._fields[: len(acc) * length * self._dtype.itemsize].view(self._dtype)
            lots = [self._lot(index, j, length) for j in range(len(acc))]
            spare = self._spare[:, : max(lots)].view(self._dtype)
            first = _apply(fields.reshape(len(acc), length), self._moduli, self._cuts, spare, acc, start, sign)
            if first == len(acc):
                return
            self._draw(index, length)  # a lot was too small: do the planes that are left with as many as they take
        for j, row in enumerate(self._rows(length)):
            if j >= first:
                self._replace(index, j, row)
                combine = add_residues if sign > 0 else subtract_residues
                combine(acc[j, start : start + length], row, self._planes[j][0])

    def _draw(self, index: int, length: int) -> None:
        """Draw the fields of one chunk, plane after plane."""
        size = length * self._size // self._chunk_parameters
        self._main.reset_nonce((index * self._blocks).to_bytes(16, "big"))
        self._main.update_into(memoryview(self._zeros)[:size], self._fields.data)

    def _rows(self, length: int) -> Iterator[Residues]:
        """Cut each plane's fields to its width, where planes differ in the size of their fields."""
        at = 0
        for _, width, kind in self._planes:
            row: Residues = np.empty(length, self._dtype)
            _cut(self._fields[at : at + length * kind.itemsize].view(kind), (1 << width) - 1, row)
            at += length * kind.itemsize
            yield row

    def _lot(self, index: int, j: int, length: int) -> int:
        """Draw what a plane's redraws will take, with much to spare; return how many bytes that is."""
        modulus, width, kind = self._planes[j]
        excess = (1 << width) - modulus
        if not excess:
            return 0
        expected = length * excess / modulus
        lot = min(_LOT, max(1, int(expected + _MARGIN * sqrt(expected) + 1)) * kind.itemsize)
        self._redraw.reset_nonce(((index << 64) + (j << 48)).to_bytes(16, "big"))
        self._redraw.update_into(memoryview(self._zeros)[:lot], self._spare[j].data)
        return lot

    def _replace(self, index: int, j: int, row: Residues) -> None:
        """Redraw what is no residue, with as many lots of fields as that takes: seldom more than one."""
        modulus, width, kind = self._planes[j]
        if modulus == 1 << width:
            return
        lot = self._lot(index, j, len(row))
        done = _redraw(self._spare[j, :lot].view(kind), (1 << width) - 1, modulus, 0, row)
        while done < len(row):
            self._redraw.update_into(memoryview(self._zeros)[:_LOT], self._spare[j].data)
            done = _redraw(self._spare[j, :_LOT].view(kind), (1 << width) - 1, modulus, done, row)


def add_mask(acc: Residues, stream: Stream, index: int, start: int, length: int, moduli: tuple[int, ...]) -> None:
    """Add one chunk of a mask to residues, at acc[:, start:start + length]."""
    stream.apply(acc, index, start, length)


def remove_mask(acc: Residues, stream: Stream, index: int, start: int, length: int, moduli: tuple[int, ...]) -> None:
    """Take one chunk of a mask off residues, at acc[:, start:start + length]."""
    stream.apply(acc, index, start, length, -1)


_LOT = 1 << 16  # bytes of the redraw stream at a time, at most
_MARGIN = 8  # standard deviations that the first lot has to spare


def _field(width: int) -> np.dtype[np.uint8] | np.dtype[np.uint16] | np.dtype[np.uint32]:
    """Return the smallest field that holds a residue of this width."""
    return np.dtype(np.uint8) if width <= 8 else np.dtype(np.uint16) if width <= 16 else np.dtype(np.uint32)


@compiled
def _cut(fields: Fields, cut: int, out: Residues) -> None:
    """Keep each field's low bits."""
    c = out.dtype.type(cut)
    for i in range(len(out)):
        out[i] = out.dtype.type(fields[i]) & c


@compiled
def _redraw(spare: Fields, cut: int, modulus: int, start: int, row: Residues) -> int:
    """Replace what is no residue from `start` on by fields of `spare`; return where these ran out, or the end.

    Rejects are rare in the plans that travel, so 128 bytes are looked over at once: adding 2^15 - m to each 16-bit
    lane (2^31 - m to each 32-bit one) sets its top bit where the lane is m or more.
    """
    narrow = row.itemsize == 2
    lanes = 64 if narrow else 32
    if narrow:
        lift, top = np.uint64(0x8000 - modulus) * np.uint64(0x0001000100010001), np.uint64(0x8000800080008000)
    else:
        lift, top = np.uint64(0x80000000 - modulus) * np.uint64(0x0000000100000001), np.uint64(0x8000000080000000)
    used = 0
    for block in range(start // lanes, -(-len(row) // lanes)):
        first = block * lanes
        if first + lanes <= len(row):
            seen = np.uint64(0)
            for k in range(16):
                seen |= load_word(row, 128 * block + 8 * k) + lift
            if seen & top == np.uint64(0):
                continue
        for four in range(first, min(first + lanes, len(row)), lanes // 16):
            if four + lanes // 16 <= len(row) and (load_word(row, four * row.itemsize) + lift) & top == np.uint64(0):
                continue
            for i in range(four, min(four + lanes // 16, len(row))):
                while row[i] >= modulus:
                    if used == len(spare):
                        return i
                    row[i] = spare[used] & cut
                    used += 1
    return len(row)


@compiled
def _apply(fields: Fields, moduli: Moduli, cuts: Moduli, spare: Fields, acc: Residues, start: int, sign: int) -> int:
    """Make residues of the fields and add them or take them off; return how many planes are done.

    All that a chunk takes, in one call: every call costs a turn of the GIL. A plane for which `spare` does not suffice
    is left alone, with all that follow.
    """
    for j in range(len(moduli)):
        row = fields[j]
        cut = row.dtype.type(cuts[j])
        for i in range(len(row)):
            row[i] &= cut
        if cuts[j] + 1 != moduli[j] and _redraw(spare[j], cuts[j], moduli[j], 0, row) < len(row):
            return j
        if sign > 0:
            add_residues(acc[j, start : start + len(row)], row, moduli[j])
        else:
            subtract_residues(acc[j, start : start + len(row)], row, moduli[j])
    return len(moduli)
