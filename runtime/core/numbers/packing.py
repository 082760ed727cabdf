"""Residues <-> bytes: one plane per modulus, cut into slices of bits.

A plane of n residues of width w is w slices of ceil(n/8) bytes, from the lowest bit up. Slice b is a bitmap: its bit i
(bit i mod 8, counted from the least significant, of byte i div 8) is bit b of residue i. The bits behind the last
residue are zero. A plane is therefore exactly w * ceil(n/8) bytes, and anything else is refused before it is looked at.

Why slices: 64 residues side by side are w words, and a word takes part in an addition as a whole, whatever the width.
Masks are added and sums are made on the packed bytes as they are (`slices.py`); a hop never unpacks anything.
"""

import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.kernels import compiled, load_word, store_word

Residues = npt.NDArray[np.unsignedinteger[Any]]
"""One plane of residues, or planes of them in rows: uint16 or uint32."""
Bytes = npt.NDArray[np.uint8]
"""Packed planes, one behind the other."""

if sys.byteorder != "little":  # the kernels move slices in 64-bit words of memory
    raise ImportError("silomix packs planes on little-endian machines only")

NARROW = 15
"""The widest residue of which two add up within 16 bits."""
LANES = 64
"""Residues that are sliced at a time: one bit of each makes a word."""


def residue_dtype(width: int) -> type[np.uint16] | type[np.uint32]:
    """Return the type that holds residues of a width, with a bit to spare for a sum."""
    return np.uint16 if width <= NARROW else np.uint32


def slice_bytes(n: int) -> int:
    """Length of one slice of n residues."""
    return (n + 7) // 8


def packed_bytes(n: int, width: int) -> int:
    """Length of a plane of n residues."""
    return width * slice_bytes(n)


def pack(residues: Residues, width: int) -> bytes:
    """Pack one plane. Residues must be below 2^width: the codec makes no others."""
    out = np.empty(packed_bytes(len(residues), width), np.uint8)
    pack_into(residues, width, out)
    return out.tobytes()


def pack_into(residues: Residues, width: int, out: Bytes) -> None:
    """Pack one plane into exactly its bytes."""
    if len(out) != packed_bytes(len(residues), width) or not out.flags.c_contiguous:
        raise ValueError(f"the plane is {packed_bytes(len(residues), width)} bytes in a row, not {len(out)}")
    _pack(np.ascontiguousarray(residues), width, out)


def unpack(plane: bytes | memoryview, modulus: int, n: int, out: Residues | None = None) -> Residues:
    """Unpack one plane of n residues below `modulus`, or refuse it, with the offset of what is wrong."""
    raw = check(plane, modulus, n)
    width = (modulus - 1).bit_length()
    if out is None:
        out = np.empty(n, residue_dtype(width))
    elif len(out) != n or out.itemsize < np.dtype(residue_dtype(width)).itemsize or not out.flags.c_contiguous:
        raise ValueError(f"{len(out)} places of {out.dtype} do not hold {n} residues below {modulus}")
    _unpack(raw, width, out)
    return out


def check(plane: bytes | memoryview, modulus: int, n: int) -> Bytes:
    """Return a plane of n residues below `modulus` as an array, or refuse it, with the offset of what is wrong."""
    width, size = (modulus - 1).bit_length(), slice_bytes(n)
    expected = width * size
    if len(plane) != expected:
        raise PeerFault(
            Reason.WRONG_LENGTH,
            f"a plane of {n} residues below {modulus} has {expected} bytes, not {len(plane)}",
            offset=min(expected, len(plane)),
            found=len(plane),
            expected=expected,
        )
    for last in range(size - 1, expected, size) if n % 8 else ():
        if plane[last] >> n % 8:
            raise PeerFault(
                Reason.TRAILING_BITS,
                f"the padding bits behind the last residue are not zero (byte {last})",
                offset=last,
            )
    raw: Bytes = np.frombuffer(plane, np.uint8)
    bad = -1 if modulus == 1 << width else _first_at_least(raw, size, width, (1 << width) - modulus)
    if bad >= 0:
        raise PeerFault(
            Reason.RESIDUE_RANGE,
            f"residue {bad} is not below its modulus {modulus} (byte {bad // 8})",
            offset=bad // 8,
            index=bad,
            expected=modulus,
        )
    return raw


def _lanes(builder: Any, kind: Any, value: Any) -> Any:
    """Make a vector of LANES equal numbers."""
    none = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(none, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, none, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _lanes_at(target: Any, builder: Any, array: Any, value: Any, start: Any) -> tuple[Any, Any]:
    """Return the type of LANES of an array's elements, and the address of those from `start` on."""
    kind = ir.VectorType(ir.IntType(array.dtype.bitwidth), LANES)
    made = target.make_array(array)(target, builder, value)
    return kind, builder.bitcast(builder.gep(made.data, [start]), kind.as_pointer())


def _gather(context: Any, array: Any, start: Any, bit: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, address = _lanes_at(target, builder, signature.args[0], arguments[0], arguments[1])
        values = builder.load(address, align=kind.element.width // 8)
        up = builder.sub(ir.Constant(kind.element, kind.element.width - 1), builder.trunc(arguments[2], kind.element))
        shifted = builder.shl(values, _lanes(builder, kind, up))
        signs = builder.icmp_signed("<", shifted, ir.Constant(kind, [0] * LANES))
        return builder.bitcast(signs, ir.IntType(64))

    return types.uint64(array, types.intp, types.intp), generate


def _scatter(context: Any, array: Any, start: Any, bit: Any, word: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, address = _lanes_at(target, builder, signature.args[0], arguments[0], arguments[1])
        place = builder.shl(ir.Constant(kind.element, 1), builder.trunc(arguments[2], kind.element))
        chosen = builder.bitcast(arguments[3], ir.VectorType(ir.IntType(1), LANES))
        bits = builder.select(chosen, _lanes(builder, kind, place), ir.Constant(kind, [0] * LANES))
        align = kind.element.width // 8
        builder.store(builder.or_(builder.load(address, align=align), bits), address, align=align)
        return target.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.uint64), generate


def _eight(context: Any, raw: Any, offset: Any, size: Any, array: Any, start: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = target.make_array(signature.args[0])(target, builder, arguments[0])
        at, bits = arguments[1], ir.VectorType(ir.IntType(1), LANES)
        lanes = ir.VectorType(ir.IntType(8), LANES)
        none = total = ir.Constant(lanes, [0] * LANES)
        for b in range(8):
            word = builder.bitcast(builder.gep(source.data, [at]), bits.as_pointer())
            place = ir.Constant(lanes, [1 << b] * LANES)
            total = builder.or_(total, builder.select(builder.load(word, align=1), place, none))
            at = builder.add(at, arguments[2])
        kind, address = _lanes_at(target, builder, signature.args[3], arguments[3], arguments[4])
        builder.store(builder.zext(total, kind), address, align=kind.element.width // 8)
        return target.get_dummy_value()

    return types.void(raw, types.intp, types.intp, array, types.intp), generate


_gather_bit: Callable[[Any, int, int], np.uint64] = cast("Any", intrinsic(_gather))
"""Inside a kernel: collect one bit of LANES residues in a word, lane 0 lowest. No plain loop becomes this."""
_scatter_bit: Callable[[Any, int, int, np.uint64], None] = cast("Any", intrinsic(_scatter))
"""Inside a kernel: put each bit of a word into one of LANES residues, which have a zero there."""

_scatter_eight: Callable[[Any, int, int, Any, int], None] = cast("Any", intrinsic(_eight))
"""Inside a kernel: set LANES residues to the lowest eight bits of each, from words of eight slices of a size."""


@compiled
def _pack(residues: Residues, width: int, out: Bytes) -> None:
    size, full = (len(residues) + 7) // 8, len(residues) // LANES
    for i in range(full):
        for b in range(width):
            store_word(out, b * size + 8 * i, _gather_bit(residues, LANES * i, b))
    for b in range(width):
        for i in range(8 * full, size):
            byte = np.int64(0)
            for p in range(8 * i, min(8 * i + 8, len(residues))):
                byte |= (np.int64(residues[p]) >> b & 1) << (p & 7)
            out[b * size + i] = byte


@compiled
def _unpack(raw: Bytes, width: int, out: Residues) -> None:
    size, full = (len(out) + 7) // 8, len(out) // LANES
    if width < 8:
        out[:] = 0
    for i in range(full):
        if width >= 8:  # eight bits of a residue at once take half as long as one by one
            _scatter_eight(raw, 8 * i, size, out, LANES * i)
        for b in range(8 if width >= 8 else 0, width):
            _scatter_bit(out, LANES * i, b, load_word(raw, b * size + 8 * i))
    for p in range(LANES * full, len(out)):
        value = np.int64(0)
        for b in range(width):
            value |= (np.int64(raw[b * size + (p >> 3)]) >> (p & 7) & 1) << b
        out[p] = value


spread = _unpack
"""Inside a kernel: make residues of a plane of them that was checked."""


@compiled
def carries(raw: Bytes, at: int, size: int, width: int, number: int, carry: Bytes) -> None:
    """Say which residues of a block carry out of the width if a number is added: those of 2^width - number or more.

    The block is as long as `carry` and begins at raw[at] in the first slice. Bit by bit, the carry of a sum with a
    constant is (bit or carry) where the constant has a one, else (bit and carry).
    """
    carry[:] = 0
    for b in range(width):
        bits = raw[at + b * size : at + b * size + len(carry)]
        if number >> b & 1:
            for i in range(len(carry)):
                carry[i] = np.uint8(carry[i] | bits[i])
        else:
            for i in range(len(carry)):
                carry[i] = np.uint8(carry[i] & bits[i])


@compiled
def _first_at_least(raw: Bytes, size: int, width: int, gap: int) -> int:
    """Return the position of the first value that is 2^width - gap or more, or -1: gap added to it carries."""
    block = np.empty(1024, np.uint8)
    for start in range(0, size, len(block)):
        n = min(len(block), size - start)
        carry = block[:n]
        carries(raw, start, size, width, gap, carry)
        any_ = np.uint8(0)
        for i in range(n):
            any_ |= carry[i]
        if any_:
            for i in range(n):
                for b in range(8):
                    if carry[i] >> b & 1:
                        return 8 * (start + i) + b
    return -1
