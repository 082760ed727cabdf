"""Arithmetic on packed planes, as they travel.

A plane of residues mod m in slices of bits is added to another one as a processor adds two numbers, with full adders
from the lowest bit up, but for as many residues at once as a register has bits. A sum of two residues is m or more
exactly if it carries out of the width when 2^w - m is added to it; there, that is added, and the carry is dropped.
"""

import numpy as np

from silomix.runtime.core.numbers.kernels import compiled, load_word, lowest_bit
from silomix.runtime.core.numbers.packing import Bytes, carries

BLOCK = 1024
"""Bytes of each slice that are worked on at a time: those of two planes fit in the first-level cache."""


@compiled
def add_plane(acc: Bytes, at: int, plane: Bytes, first: int, size: int, modulus: int, width: int) -> None:
    """Add one plane, which begins at plane[first], to one of the same shape at acc[at]: slices of `size` bytes each."""
    kept, overs = np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.uint8)
    gap = (1 << width) - modulus
    for start in range(0, size, BLOCK):
        n = min(BLOCK, size - start)
        carry, over = kept[:n], overs[:n]
        carry[:] = 0
        for b in range(width):
            a = acc[at + b * size + start : at + b * size + start + n]
            p = plane[first + b * size + start : first + b * size + start + n]
            for i in range(n):
                x, y, c = a[i], p[i], carry[i]
                t = np.uint8(x ^ y)
                a[i] = np.uint8(t ^ c)
                carry[i] = np.uint8(np.uint8(x & y) | np.uint8(t & c))
        if gap:
            carries(acc, at + start, size, width, gap, over)
            for i in range(n):
                over[i] |= carry[i]
            _add_where(acc, at + start, size, width, gap, over, carry)


@compiled
def subtract_plane(acc: Bytes, at: int, plane: Bytes, first: int, size: int, modulus: int, width: int) -> None:
    """Take one plane off another: where that borrows from beyond the width, add the modulus."""
    borrows, overs = np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.uint8)
    for start in range(0, size, BLOCK):
        n = min(BLOCK, size - start)
        borrow, over = borrows[:n], overs[:n]
        borrow[:] = 0
        for b in range(width):
            a = acc[at + b * size + start : at + b * size + start + n]
            p = plane[first + b * size + start : first + b * size + start + n]
            for i in range(n):
                x, y, c = a[i], p[i], borrow[i]
                t = np.uint8(x ^ y)
                a[i] = np.uint8(t ^ c)
                borrow[i] = np.uint8(np.uint8(~x & y) | np.uint8(~t & c))
        if modulus != 1 << width:
            over[:] = borrow
            _add_where(acc, at + start, size, width, modulus, over, borrow)


@compiled
def _add_where(acc: Bytes, at: int, size: int, width: int, number: int, where: Bytes, carry: Bytes) -> None:
    """Add a number, mod 2^width, to the residues that `where` has a bit for, in one block."""
    n = len(where)
    carry[:] = 0
    for b in range(width):
        a = acc[at + b * size : at + b * size + n]
        if number >> b & 1:
            for i in range(n):
                x, y, c = a[i], where[i], carry[i]
                t = np.uint8(x ^ y)
                a[i] = np.uint8(t ^ c)
                carry[i] = np.uint8(np.uint8(x & y) | np.uint8(t & c))
        else:
            for i in range(n):
                x, c = a[i], carry[i]
                a[i] = np.uint8(x ^ c)
                carry[i] = np.uint8(x & c)


@compiled
def redraw(plane: Bytes, first: int, n: int, modulus: int, width: int, spare: Bytes) -> bool:
    """Replace what is no residue by the low bits of 32-bit words of `spare`, in order; say whether these sufficed."""
    gap = (1 << width) - modulus
    if gap == 0:
        return True
    size, used = (n + 7) // 8, 0
    kept = np.empty(BLOCK, np.uint8)
    for start in range(0, size, BLOCK):
        length = min(BLOCK, size - start)
        carry = kept[:length]
        carries(plane, first + start, size, width, gap, carry)
        for eight in range(0, length, 8):
            if eight + 8 <= length:
                word = load_word(carry, eight)
            else:
                word = np.uint64(0)
                for i in range(eight, length):
                    word |= np.uint64(carry[i]) << np.uint64(8 * (i - eight))
            while word:  # one in eight times, where one in 512 is no residue
                bit = lowest_bit(word)
                word &= word - np.uint64(1)
                place = start + eight + (bit >> 3)
                if 8 * place + (bit & 7) >= n:
                    break  # behind the last residue
                value = np.int64(modulus)
                while value >= modulus:
                    if used + 4 > len(spare):
                        return False
                    value = np.int64(spare[used]) | np.int64(spare[used + 1]) << 8 | np.int64(spare[used + 2]) << 16
                    value &= (1 << width) - 1
                    used += 4
                for b in range(width):
                    at = first + b * size + place
                    plane[at] = plane[at] & ~(1 << (bit & 7)) | (value >> b & 1) << (bit & 7)
    return True
