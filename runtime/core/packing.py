"""Residues <-> bytes: one bit-packed plane per modulus.

Residue i of a plane of width w occupies bits [i*w, (i+1)*w) of the plane, read as a little-endian bit string; the
last byte is padded with zeros. A plane of n residues is therefore exactly ceil(n*w/8) bytes, and anything else is
refused before it is looked at.

Planes narrower than 16 bits are held as uint16, so that two residues add up without overflow, and are moved four at a
time inside one 64-bit word; wider ones are held as uint32 and moved one by one.
"""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.kernels import compiled, load_word, store_word

Residues = npt.NDArray[np.unsignedinteger[Any]]
"""One plane of residues, or planes of them in rows: uint16 or uint32."""

if sys.byteorder != "little":  # the kernels move residues in 64-bit words of memory
    raise ImportError("silomix packs planes on little-endian machines only")

NARROW = 15
"""The widest residue of which two add up within 16 bits."""

SLACK = 16
"""Bytes behind a plane that the packing kernels may write."""


def residue_dtype(width: int) -> type[np.uint16] | type[np.uint32]:
    """Return the type that holds residues of a width, with a bit to spare for a sum."""
    return np.uint16 if width <= NARROW else np.uint32


def packed_bytes(n: int, width: int) -> int:
    """Length of a plane of n residues."""
    return (n * width + 7) // 8


def pack(residues: Residues, width: int) -> bytes:
    """Pack one plane. Residues must be below 2^width: the codec makes no others."""
    out = scratch(len(residues), width)
    return bytes(pack_into(residues, width, out))


def scratch(n: int, width: int) -> npt.NDArray[np.uint8]:
    """Make a buffer for `pack_into`: the plane, and room for the kernels' last word."""
    return np.empty(packed_bytes(n, width) + SLACK, np.uint8)


def pack_into(residues: Residues, width: int, out: npt.NDArray[np.uint8]) -> memoryview:
    """Pack one plane into a buffer that is used again and again, and return the plane as a view of it."""
    size = packed_bytes(len(residues), width)
    if len(out) < size + SLACK:
        raise ValueError(f"the buffer has {len(out)} bytes, the plane needs {size + SLACK}")
    (_pack_narrow if _in_lanes(residues, width) else _pack_wide)(residues, width, out[: size + SLACK])
    return out.data[:size]


def unpack(plane: bytes | memoryview, modulus: int, n: int, out: Residues | None = None) -> Residues:
    """Unpack one plane of n residues below `modulus`, or refuse it, with the offset of what is wrong."""
    width = (modulus - 1).bit_length()
    expected = packed_bytes(n, width)
    if len(plane) != expected:
        raise PeerFault(
            Reason.WRONG_LENGTH,
            f"a plane of {n} residues below {modulus} has {expected} bytes, not {len(plane)}",
            offset=min(expected, len(plane)),
            found=len(plane),
            expected=expected,
        )
    spare = expected * 8 - n * width
    if spare and plane[-1] >> (8 - spare):
        raise PeerFault(
            Reason.TRAILING_BITS,
            f"the {spare} padding bits behind the last residue are not zero (byte {expected - 1})",
            offset=expected - 1,
        )
    if out is None:
        out = np.empty(n, residue_dtype(width))
    elif len(out) != n or out.itemsize < np.dtype(residue_dtype(width)).itemsize:
        raise ValueError(f"{len(out)} places of {out.dtype} do not hold {n} residues below {modulus}")
    raw = np.frombuffer(plane, np.uint8)
    bad = (_unpack_in_lanes if _in_lanes(out, width) else _unpack_any)(raw, width, modulus, out)
    if bad >= 0:
        raise PeerFault(
            Reason.RESIDUE_RANGE,
            f"residue {bad} is not below its modulus {modulus} (byte {bad * width // 8})",
            offset=bad * width // 8,
            index=bad,
            expected=modulus,
        )
    return out


def _in_lanes(residues: Residues, width: int) -> bool:
    """Whether residues lie as the fast kernels take them: 16-bit lanes, one beside the other, with a bit to spare."""
    return width <= NARROW and residues.dtype == np.uint16 and residues.flags.c_contiguous


@compiled
def _pack_narrow(residues: npt.NDArray[np.uint16], width: int, out: npt.NDArray[np.uint8]) -> None:
    """Pack eights into `width` bytes each, closing the gaps between 16-bit lanes by halves.

    abcd as lanes of 16 -> ab cd as lanes of 32 -> abcd in 4w bits; two of these make w bytes. `out` has SLACK bytes
    to spare.
    """
    eights = len(residues) // 8
    even16, odd16 = np.uint64(0x0000FFFF0000FFFF), np.uint64(0xFFFF0000FFFF0000)
    even32, odd32 = np.uint64(0x00000000FFFFFFFF), np.uint64(0xFFFFFFFF00000000)
    close16, close32 = np.uint64(16 - width), np.uint64(32 - 2 * width)
    half, rest = np.uint64(4 * width), np.uint64(64 - 4 * width)
    for g in range(eights):
        a = load_word(residues, 16 * g)
        b = load_word(residues, 16 * g + 8)
        a = a & even16 | (a & odd16) >> close16
        b = b & even16 | (b & odd16) >> close16
        a = a & even32 | (a & odd32) >> close32
        b = b & even32 | (b & odd32) >> close32
        store_word(out, g * width, a | b << half)
        store_word(out, g * width + 8, b >> rest)  # past w bytes this is overwritten by the next eight
    for i in range(eights * width, len(out)):
        out[i] = 0
    for i in range(8 * eights, len(residues)):
        bit = i * width
        store_word(out, bit >> 3, load_word(out, bit >> 3) | np.uint64(residues[i]) << np.uint64(bit & 7))


@compiled
def _pack_wide(residues: npt.NDArray[np.uint32], width: int, out: npt.NDArray[np.uint8]) -> None:
    """Pack one residue after the other through a 64-bit buffer; `out` has SLACK bytes to spare."""
    w, full = np.uint64(width), np.uint64(32)
    buffer, used, at = np.uint64(0), np.uint64(0), 0
    for r in residues:
        buffer |= np.uint64(r) << used
        used += w
        if used >= full:
            store_word(out, at, buffer)
            at += 4
            buffer >>= full
            used -= full
    store_word(out, at, buffer)


@compiled
def _unpack_in_lanes(raw: npt.NDArray[np.uint8], width: int, modulus: int, out: npt.NDArray[np.uint16]) -> int:
    """Unpack a plane and return the position of the first value that is no residue, or -1: one call, one turn."""
    _unpack_tail(raw, width, _unpack_narrow(raw, width, out), out)
    return _first_at_least(out, modulus)


@compiled
def _unpack_any(raw: npt.NDArray[np.uint8], width: int, modulus: int, out: Residues) -> int:
    """The same for residues that do not lie in 16-bit lanes."""
    _unpack_tail(raw, width, _unpack_wide(raw, width, out), out)
    return _first_at_least(out, modulus)


@compiled
def _unpack_narrow(raw: npt.NDArray[np.uint8], width: int, out: npt.NDArray[np.uint16]) -> int:
    """Unpack eights while the words that hold them lie within the plane; return how many residues are done."""
    second, shift = 4 * width >> 3, np.uint64(4 * width & 7)
    eights = min(len(out) // 8, max(0, (len(raw) - second - 8) // width + 1))
    w, pair = np.uint64(width), np.uint64(2 * width)
    cut_pair = (np.uint64(1) << pair) - np.uint64(1)
    cut = ((np.uint64(1) << w) - np.uint64(1)) * np.uint64(0x0000000100000001)
    lane16, lane32 = np.uint64(16), np.uint64(32)
    for g in range(eights):
        a = load_word(raw, g * width)
        b = load_word(raw, g * width + second) >> shift
        a = a & cut_pair | (a >> pair & cut_pair) << lane32
        b = b & cut_pair | (b >> pair & cut_pair) << lane32
        store_word(out, 16 * g, a & cut | (a >> w & cut) << lane16)
        store_word(out, 16 * g + 8, b & cut | (b >> w & cut) << lane16)
    return 8 * eights


@compiled
def _unpack_wide(raw: npt.NDArray[np.uint8], width: int, out: npt.NDArray[np.uint32]) -> int:
    """Unpack residues while the word that holds one lies within the plane; return how many are done."""
    n = min(len(out), max(0, (len(raw) - 8) * 8 // width))
    cut = np.uint64((1 << width) - 1)
    for i in range(n):
        bit = i * width
        out[i] = load_word(raw, bit >> 3) >> np.uint64(bit & 7) & cut
    return n


@compiled
def _unpack_tail(raw: npt.NDArray[np.uint8], width: int, start: int, out: Residues) -> None:
    """Unpack the last residues byte by byte, where a 64-bit word would reach past the plane."""
    for i in range(start, len(out)):
        bit = i * width
        value = np.int64(0)
        shift = 0
        for b in range(bit >> 3, (bit + width + 7) >> 3):
            value |= np.int64(raw[b]) << shift
            shift += 8
        out[i] = (value >> (bit & 7)) & ((1 << width) - 1)


@compiled
def _first_at_least(values: Residues, modulus: int) -> int:
    """Return the position of the first value that is no residue, or -1. The common case is one vectorised pass."""
    kind = values.dtype.type
    top = kind(0)
    for i in range(len(values)):
        top = max(top, values[i])
    if top < modulus:
        return -1
    for i in range(len(values)):
        if values[i] >= modulus:
            return i
    return -1
