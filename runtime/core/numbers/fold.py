"""The linear forms of the tamper check: l of an extended vector, in one pass over it as it travels.

The coin gives, for every plane of modulus p, rho forms l_1..l_rho on vectors of d parameters and rho blinders. They are
made in two steps, so that the coin is expanded for a small part of what a pass takes:

    L(u)    = A u                                   for a block u of 1024 parameters; A of rho x 1024, one for all
    l(v)    = sum over blocks t of M_t L(v_t), and the blinders v[d:]     M_t in F_p^(rho x rho), another for each block

The M_t are uniform; A is uniform below s = min(p, 2^15), which 16-bit instructions multiply.

**Error.** Let e be an error that was made before the coin. If it is in the blinders alone, l(e) is not zero. Otherwise
it is in some block t. A is independent of e, and of the s values that a coefficient may have, one at most makes its row
of L(e_t) zero, whatever the rest of the row is; so L(e_t) is zero with probability s^-rho at most. If it is not zero,
then M_t L(e_t) is uniform, whatever the other blocks and the blinders add, so l(e) is zero with probability p^-rho. An
error therefore passes with probability 2 s^-rho at most, and rho is the least number with s^rho >= 2^73.

A row of its own for each parameter would halve the error, and cost rho mask expansions of the whole vector at every
party: about ten times as much as the pass itself.

**The streams**, both keyed as masks are, with the coin as the secret: A is one chunk of R x 1024 coordinates, row after
row, R being the greatest rho of the planes. Chunk c of the other stream has R x R coordinates for each block of the
vector's chunk c: matrix after matrix, and each by columns. A plane with a smaller rho uses the upper left part.
"""

from collections.abc import Callable
from copy import copy
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from silomix.runtime.core.digest import frame
from silomix.runtime.core.errors import LocalFault, Reason
from silomix.runtime.core.numbers.kernels import compiled, load_word, store_word
from silomix.runtime.core.numbers.masks import Stream, derive
from silomix.runtime.core.numbers.packing import (
    Bytes,
    Residues,
    pack_into,
    packed_bytes,
    residue_dtype,
    slice_bytes,
    spread,
)
from silomix.runtime.core.numbers.plan import Level, Plan

SOUNDNESS_BITS = 72
"""An error passes with probability 2^-72 at most. Shares are committed to before any is shown, so there is nothing to
grind offline: every further try costs the adversary an attempt in which somebody is named."""
BLOCK = 1024
"""Parameters that share a matrix M_t. A and one block of a vector fit in the first-level cache."""
COEFFICIENTS = 1 << 15
"""What the coefficients in A are below: the greatest power of two that is a signed 16-bit number's."""
LANES = 64
"""Numbers of 16 bits that are multiplied at a time."""
NARROW = 12
"""The widest residues of which the products of a block add up, in the lanes of a register, within 32 bits. Wider ones
are folded in two halves of bits."""
RUN = 4096
"""Blocks after which sums are reduced: each adds less than 2^51 to them."""

Scalars = tuple[tuple[int, ...], ...]
"""For each plane its rho scalars below p: the values of l, or the blinder coordinates of one extended vector."""
Words = npt.NDArray[np.uint64]


def rho(p: int) -> int:
    """Return the least rho with 2 s^-rho <= 2^-72: how many blinders and scalars a plane of modulus p has.

    5 for every prime above 2^15; 9 for the 9-bit primes from 281 on, since 509^8 is below 2^73.
    """
    power, least, s = 1, 0, below(p)
    while power < 2 << SOUNDNESS_BITS:
        power, least = power * s, least + 1
    return least


def below(p: int) -> int:
    """Return s, which the coefficients in A are uniform below."""
    return min(p, COEFFICIENTS)


def rhos(plan: Plan) -> tuple[int, ...]:
    """Return rho for each plane, or refuse a plan whose moduli need not be primes: without a field no error bound."""
    if plan.level is not Level.MALICIOUS:
        raise LocalFault(
            Reason.PLAN_INFEASIBLE,
            f"the tamper check needs prime moduli and this plan is for level {plan.level}: "
            f"plan for level {Level.MALICIOUS}",
            bound="level",
            found=str(plan.level),
        )
    return tuple(rho(p) for p in plan.moduli)


class Coefficients:
    """A and the matrices M_t of every plane. A is held, the M_t are made from the coin one chunk at a time."""

    def __init__(self, coin: bytes, plan: Plan, d: int, chunk_parameters: int) -> None:
        """`d` parameters in chunks of `chunk_parameters`, the last one shorter: everybody must agree on both."""
        for name, value in (("d", d), ("chunk_parameters", chunk_parameters)):
            if value < 1:
                raise LocalFault(Reason.SHAPE_MISMATCH, f"{name} is {value}: give at least 1", found=value, expected=1)
        self.plan, self.rhos = plan, rhos(plan)
        self.d, self.chunk_parameters = d, chunk_parameters
        self.chunks = -(-d // chunk_parameters)
        self.most = max(self.rhos)

        def stream(domain: str, moduli: tuple[int, ...], length: int) -> Stream:
            return Stream(derive(coin, frame(domain, plan.digest, d, chunk_parameters)), moduli, length)

        across = stream("tamper-block", tuple(map(below, plan.moduli)), self.most * BLOCK).chunk(0, self.most * BLOCK)
        self.blocks = tuple(
            np.ascontiguousarray(row.astype(np.uint16).reshape(self.most, BLOCK)[:n])
            for row, n in zip(across, self.rhos, strict=True)
        )
        """For each plane its A, one row per scalar."""
        self._outer = stream("tamper-outer", plan.moduli, -(-min(d, chunk_parameters) // BLOCK) * self.most**2)
        self._latest: tuple[int, tuple[Residues, ...]] = (-1, ())

    def length(self, index: int) -> int:
        """Parameters in a chunk."""
        if not 0 <= index < self.chunks:
            raise LocalFault(
                Reason.SHAPE_MISMATCH,
                f"there is no chunk {index}: {self.d} parameters make {self.chunks}",
                found=index,
                expected=self.chunks,
            )
        return min(self.chunk_parameters, self.d - index * self.chunk_parameters)

    def chunk(self, index: int) -> tuple[Residues, ...]:
        """Return for each plane the M_t of a chunk's blocks, as (block t, column i, row j).

        The latest chunk is kept, so that folds over several vectors in step pay for it once.
        """
        at, matrices = self._latest
        if at != index:
            blocks = -(-self.length(index) // BLOCK)
            drawn = self._outer.chunk(index, blocks * self.most**2)
            matrices = tuple(
                np.ascontiguousarray(row.reshape(blocks, self.most, self.most)[:, :n, :n])
                for row, n in zip(drawn, self.rhos, strict=True)
            )
            self._latest = (index, matrices)
        return matrices


class Fold:
    """l of one extended vector, for every plane, from its chunks in any order.

    Linear: the scalars of a sum are the sums of the scalars mod p.
    """

    def __init__(self, coin: bytes, plan: Plan, d: int, chunk_parameters: int) -> None:
        """Start with an empty vector of `d` parameters; its blinder coordinates come at the end."""
        self._coefficients = Coefficients(coin, plan, d, chunk_parameters)
        self._clear()

    def _clear(self) -> None:
        self._sums: list[Words] = [np.zeros(n, np.uint64) for n in self._coefficients.rhos]
        self._seen: set[int] = set()

    def sibling(self) -> Self:
        """Start a fold of another vector under the same coin; in step, the two share the work on coefficients.

        And the buffers of that work, so siblings are updated by one thread at a time.
        """
        other = copy(self)
        other._clear()
        return other

    def update(self, chunk_index: int, residues: Residues) -> None:
        """Take in one chunk: a row of residues per plane, the parameters only."""
        a = self._coefficients
        expected = (len(a.rhos), a.length(chunk_index))
        if residues.shape != expected:
            raise LocalFault(
                Reason.SHAPE_MISMATCH,
                f"chunk {chunk_index} has (planes, parameters) = {expected}, not {residues.shape}",
                chunk=chunk_index,
            )
        if residues.dtype not in (np.uint16, np.uint32):
            raise LocalFault(
                Reason.UNSUPPORTED_DTYPE,
                f"residues are uint16 or uint32, not {residues.dtype}",
                found=str(residues.dtype),
            )
        part = np.empty(sum(a.plan.plane_bytes(expected[1])), np.uint8)
        at = 0
        for p, row, width in zip(a.plan.moduli, residues, a.plan.widths, strict=True):
            size = packed_bytes(expected[1], width)
            pack_into((row % np.uint32(p)).astype(residue_dtype(width)), width, part[at : at + size])
            at += size
        self.update_packed(chunk_index, part)

    def update_packed(self, chunk_index: int, part: Bytes, coordinates: int | None = None) -> None:
        """Take in one chunk as it travels: its packed planes one behind the other, checked before.

        `coordinates` says how many the part holds where these are more than the chunk's parameters, as in the chunk
        where the blinders begin.
        """
        a = self._coefficients
        n = a.length(chunk_index)
        held = n if coordinates is None else coordinates
        sizes = a.plan.plane_bytes(held)
        if held < n or len(part) != sum(sizes):
            raise LocalFault(
                Reason.SHAPE_MISMATCH,
                f"chunk {chunk_index} has {n} parameters, not {held} in {len(part)} bytes",
                chunk=chunk_index,
            )
        if chunk_index in self._seen:
            raise LocalFault(Reason.SHAPE_MISMATCH, f"chunk {chunk_index} was folded already", chunk=chunk_index)
        self._seen.add(chunk_index)
        if not part.flags.writeable:  # another type to the compiler, which would take seconds for it
            part = part.copy()
        at, moduli, widths = 0, a.plan.moduli, a.plan.widths
        for p, width, size, block, matrices, sums in zip(
            moduli, widths, sizes, a.blocks, a.chunk(chunk_index), self._sums, strict=True
        ):
            _fold_plane(part[at : at + size], slice_bytes(held), n, width, block, matrices, sums, p)
            at += size

    def update_mask(self, chunk_index: int, stream: Stream, coordinates: int | None = None) -> None:
        """Take in one chunk of a seed's expansion, which is never held as a whole."""
        held = self._coefficients.length(chunk_index) if coordinates is None else coordinates
        self.update_packed(chunk_index, stream.packed(chunk_index, held), held)

    def finish(self, blinder_values: Scalars) -> Scalars:
        """Add the vector's own blinder coordinates v[d + j] and return l_j(v) per plane."""
        a = self._coefficients
        if len(self._seen) != a.chunks:
            raise LocalFault(
                Reason.SHAPE_MISMATCH,
                f"{len(self._seen)} of {a.chunks} chunks were folded: fold them all",
                found=len(self._seen),
                expected=a.chunks,
            )
        if tuple(map(len, blinder_values)) != a.rhos:
            raise LocalFault(
                Reason.SHAPE_MISMATCH,
                f"the planes have {a.rhos} blinder coordinates, not {tuple(map(len, blinder_values))}",
            )
        return tuple(
            tuple((int(s) + int(b)) % p for s, b in zip(sums, row, strict=True))
            for p, sums, row in zip(a.plan.moduli, self._sums, blinder_values, strict=True)
        )


def _products(context: Any, a: Any, i: Any, v: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, pairs = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.IntType(32), LANES // 2)
        wide = ir.VectorType(ir.IntType(32), LANES)
        rows = [target.make_array(signature.args[at])(target, builder, arguments[at]).data for at in (0, 2)]
        starts = [arguments[1], ir.Constant(arguments[1].type, 0)]
        total, none = ir.Constant(pairs, [0] * (LANES // 2)), ir.Constant(wide, ir.Undefined)
        for k in range(0, BLOCK, LANES):
            loaded = []
            for row, start in zip(rows, starts, strict=True):
                at = builder.gep(row, [builder.add(start, ir.Constant(start.type, k))])
                loaded.append(builder.sext(builder.load(builder.bitcast(at, numbers.as_pointer()), align=2), wide))
            product = builder.mul(*loaded)
            halves = []
            for first in (0, 1):  # products of neighbours are added up: the processor has an instruction for it
                every_other = ir.Constant(ir.VectorType(ir.IntType(32), LANES // 2), [*range(first, LANES, 2)])
                halves.append(builder.shuffle_vector(product, none, every_other))
            total = builder.add(total, builder.add(*halves))
        sums = builder.zext(total, ir.VectorType(ir.IntType(64), LANES // 2))
        kind = ir.FunctionType(ir.IntType(64), [sums.type])
        return builder.call(_declared(builder.module, kind, f"llvm.vector.reduce.add.v{LANES // 2}i64"), [sums])

    return types.uint64(a, types.intp, v), generate


_declared: Callable[..., Any] = cast("Any", cgutils.get_or_insert_function)
_dot: Callable[[Any, int, Any], np.uint64] = cast("Any", intrinsic(_products))
"""Inside a kernel: add up the products of BLOCK 16-bit numbers, below 2^15 in one array from an offset on, below 2^12
in the other. Plain loops become several times as many instructions."""


@compiled
def _fold_block(block: Residues, a: Residues, matrix: Residues, sums: Words) -> None:
    """Add M_t A u to the sums. They grow by less than 2^51, so the caller reduces them often enough."""
    n = len(sums)
    for i in range(n):
        value = _dot(a, i * BLOCK, block)
        for j in range(n):
            sums[j] += value * np.uint64(matrix[i, j])


@compiled
def _fold_halves(
    low: Residues, high: Residues, shift: int, a: Residues, matrix: Residues, sums: Words, p: np.uint64
) -> None:
    """Add M_t A u to the sums, for u = low + 2^shift high."""
    n = len(sums)
    for i in range(n):
        value = (_dot(a, i * BLOCK, low) + (_dot(a, i * BLOCK, high) << np.uint64(shift))) % p
        for j in range(n):
            sums[j] += value * np.uint64(matrix[i, j])


@compiled
def _fold_plane(
    plane: Bytes, size: int, length: int, width: int, a: Residues, matrices: Residues, sums: Words, modulus: int
) -> None:
    """Fold one packed plane, whose slices have `size` bytes.

    A block's bits are first put one slice behind the other. Where they stand in a long chunk, the slices lie at
    distances at which a cache has room for eight of them only.
    """
    block, bits, p = np.zeros(BLOCK, np.uint16), np.zeros(width * (BLOCK // 8), np.uint8), np.uint64(modulus)
    high, half = np.zeros(BLOCK, np.uint16), (width + 1) // 2
    for t in range(len(matrices)):
        n = min(BLOCK, length - BLOCK * t)
        for b in range(width):
            to, source = b * (BLOCK // 8), b * size + t * (BLOCK // 8)
            if n == BLOCK:
                for i in range(0, BLOCK // 8, 8):
                    store_word(bits, to + i, load_word(plane, source + i))
            else:
                full = n // 8
                bits[to : to + BLOCK // 8] = 0
                bits[to : to + full] = plane[source : source + full]
                if n & 7:  # what stands behind the parameters are blinders
                    bits[to + full] = plane[source + full] & ((1 << (n & 7)) - 1)
        if width <= NARROW:
            spread(bits, width, block)
            _fold_block(block, a, matrices[t], sums)
        else:
            spread(bits, half, block)
            spread(bits[half * (BLOCK // 8) :], width - half, high)
            _fold_halves(block, high, half, a, matrices[t], sums, p)
        if t % RUN == RUN - 1 or t == len(matrices) - 1:
            for j in range(len(sums)):
                sums[j] %= p
