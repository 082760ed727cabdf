"""Floats <-> residues: quantise, add up, and the Chinese remainder theorem, over whole vectors.

A value p with bound B becomes x = rint(p * (v / B)), ties to even, clipped to +-v and counted when that changes it.
Weighted by w it travels as the residues of w * x. (The paper takes floor(p * 10^r), which reaches -10^r, beyond v,
and drags the mean down by half a step.) A negative x that is 0 mod m has residue 0, not m as the paper prints.

Division by a modulus is a multiplication with its float64 reciprocal, corrected by one step: exact, since every
operand is an integer far below 2^52. Products beyond that take the slower road through 64-bit division.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.kernels import compiled
from silomix.runtime.core.numbers.packing import Residues, residue_dtype
from silomix.runtime.core.numbers.plan import FAST_RANGE, MAX_VALUE, Plan

Floats = npt.NDArray[np.floating[Any]]
"""float32 or float64."""
Integers = npt.NDArray[np.int64]

EXACT = 1 << 51
"""Below this, floor(x * fl(1/m)) is the quotient or one less, and one less only if m divides x.

The product is off by less than |x/m| * 2^-52 < 1/(2m), while x/m is a whole number or at least 1/m away from the next.
"""
LARGEST = float(np.finfo(np.float64).max)
BEYOND = float(MAX_VALUE)
"""No v reaches this, and it is an integer of 64 bits."""
SHORT = 1 << 22
"""Below this, the same in float32, where the quotient may be one off to either side."""
BLOCK = 2048
"""Parameters that the kernels work on at a time: a few arrays of them fit in the first-level cache."""


@dataclass(frozen=True)
class Crt:
    """The constants of the Chinese remainder theorem for one plan.

    The moduli are split into a low part, whose product fits in 62 bits, and the rest. Each part is decoded on its own
    (the sum of t_j * M_j with t_j = r_j * y_j mod m_j, kept below its product), and a sum is low + P * high.
    """

    moduli: npt.NDArray[np.float64]
    inverses: npt.NDArray[np.float64]
    low_count: int
    low_y: npt.NDArray[np.float64]
    low_cofactors: Integers
    low_product: int
    high_product: int

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, moduli: tuple[int, ...]) -> "Crt":
        """Compute the constants once per plan."""
        low = len(moduli)
        while prod(moduli[:low]) >= FAST_RANGE:
            low -= 1
        P = prod(moduli[:low])
        cofactors = [P // m for m in moduli[:low]]
        return cls(
            np.array(moduli, np.float64),
            1.0 / np.array(moduli, np.float64),
            low,
            np.array([pow(c, -1, m) for c, m in zip(cofactors, moduli[:low], strict=True)], np.float64),
            np.array(cofactors, np.int64),
            P,
            prod(moduli[low:]),
        )


def plan_dtype(plan: Plan) -> type[np.uint16] | type[np.uint32]:
    """Return the type that holds the residues of every plane of a plan."""
    return residue_dtype(max(plan.widths))


def zeros(plan: Plan, n: int) -> Residues:
    """Make an empty sum: a row of n residues per plane."""
    return np.zeros((len(plan.moduli), n), plan_dtype(plan))


def check_bound(bound: float, plan: Plan, name: str) -> None:
    """Refuse a tensor's bound that is no positive number, or so small that v / bound is none."""
    if not (isfinite(bound) and bound > 0 and isfinite(plan.v / bound)):
        raise LocalFault(
            Reason.BAD_BOUND,
            f"the bound of {name} is {bound}: it must be a positive number, and not so small that v / bound overflows",
            tensor=name,
            found=bound,
        )


def encode(
    values: Floats,
    bound: float,
    plan: Plan,
    *,
    weight: int = 1,
    name: str = "values",
    out: Residues | None = None,
    at: int = 0,
) -> tuple[Residues, int]:
    """Quantise floats and write their residues, a row per plane; return these and how many values were clipped.

    out and at say where: the residues go to out[:, at:at + len(values)]. NaN and infinity are refused with the
    tensor's name and the position, and then nothing may be sent.
    """
    check_bound(bound, plan, name)
    if not 1 <= weight <= plan.weight_levels:
        raise LocalFault(
            Reason.BAD_WEIGHT,
            f"the weight is {weight}: the plan has levels 1 to {plan.weight_levels}",
            found=weight,
            expected=plan.weight_levels,
        )
    if out is None:
        out = zeros(plan, len(values))
    crt = Crt.of(plan.moduli)
    top = plan.v * weight
    kernel = _encode_short if top < SHORT else _encode if top < EXACT else _encode_long
    clipped, bad = kernel(values, plan.v / bound, plan.v, weight, crt.moduli, crt.inverses, out, at)
    if bad:
        first = int(np.flatnonzero(~np.isfinite(values))[0])
        raise LocalFault(
            Reason.NOT_FINITE,
            f"{name} holds {bad} value(s) that are not finite, the first ({values[first]}) at position {first}: "
            "nothing was sent; lower the learning rate or check the data",
            tensor=name,
            index=first,
            count=int(bad),
        )
    return out, int(clipped)


def add_integers(values: Integers, plan: Plan, out: Residues, at: int) -> None:
    """Add integers of any sign to residues, at out[:, at:at + len(values)]: for noise."""
    for row, m in zip(out, plan.moduli, strict=True):
        place = row[at : at + len(values)]
        place[:] = (place + values % m) % m


def put_integer(value: int, plan: Plan, out: Residues, at: int) -> None:
    """Write one integer's residues at a position: for what is no float, such as a silo's weight."""
    for row, m in zip(out, plan.moduli, strict=True):
        row[at] = value % m


def decode_sum(residues: Residues, plan: Plan) -> npt.NDArray[np.int64] | npt.NDArray[np.object_]:
    """Recover the signed sums exactly: 64-bit integers if M < 2^62, Python's integers otherwise."""
    crt = Crt.of(plan.moduli)
    low, high = _decode_pair(residues, crt)
    if high is None:
        return low
    exact: npt.NDArray[np.object_] = high.astype(object) * crt.low_product + low.astype(object)
    if crt.high_product % 2 == 0:  # the high part is then off centre by half a step
        exact[exact < -(plan.M // 2)] += plan.M
    return exact


def decode_mean(
    residues: Residues,
    plan: Plan,
    bound: float,
    divisor: int,
    *,
    limit: int | None = None,
    out: Floats | None = None,
    at: int = 0,
    name: str = "values",
) -> Floats:
    """Turn summed residues into the mean: sum / v * bound / divisor, of residues[:, at:at + len(out)].

    limit is the largest magnitude that the cohort can sum to honestly (the plan's, unless it is known better). A sum
    beyond it means an overflow or a broken mask: it is refused whole, and no model is published.
    """
    check_bound(bound, plan, name)
    crt = Crt.of(plan.moduli)
    if out is None:
        out = np.empty(residues.shape[1] - at, np.float64)
    limit = plan.limit if limit is None else limit
    factor = bound / (plan.v * divisor)
    if len(plan.moduli) == 2:  # the plans of up to 40 bits: nearly all
        m0, m1 = plan.moduli
        step = float(pow(m0, -1, m1))
        outside = _decode_two(residues, at, float(m0), float(m1), 1.0 / m1, step, float(limit), factor, out)
    elif crt.high_product == 1:
        outside = _decode_mean(
            residues, at, crt.moduli, crt.inverses, crt.low_y, crt.low_cofactors, crt.low_product, limit, factor, out
        )
    else:
        sums = decode_sum(residues[:, at : at + len(out)], plan)
        outside = int(np.count_nonzero(np.abs(sums) > limit))
        out[:] = sums.astype(np.float64) * factor
    if outside:
        raise PeerFault(
            Reason.OUT_OF_RANGE,
            f"{outside} sum(s) of {name} exceed what the cohort can sum to ({limit}): no model is published",
            tensor=name,
            count=int(outside),
            limit=limit,
        )
    return out


def _decode_pair(residues: Residues, crt: Crt) -> tuple[Integers, Integers | None]:
    """Decode to low + P * high with |low| <= P / 2, so that a small sum keeps all its digits in `low`."""
    k = crt.low_count
    n = residues.shape[1]
    low = np.empty(n, np.int64)
    rows = np.ascontiguousarray(residues[:k])
    _decode_low(rows, 0, crt.moduli[:k], crt.inverses[:k], crt.low_y, crt.low_cofactors, crt.low_product, low)
    if crt.high_product == 1:
        return low, None
    # high = (x - low) / P modulo the high moduli, themselves a residue plan: the same theorem once more.
    moduli = tuple(int(m) for m in crt.moduli[k:])
    top = Crt.of(moduli)
    rest = np.empty((len(moduli), n), np.uint32)
    for j, m in enumerate(moduli):
        rest[j] = (residues[k + j].astype(np.int64) - low % m) % m * pow(crt.low_product, -1, m) % m
    high, higher = _decode_pair(rest, top)
    assert higher is None, "M is at most 2^100"
    return low, high


@compiled
def _quantise(values: Floats, scale: float, v: float, weight: float, out: npt.NDArray[np.float64]) -> tuple[int, int]:
    clipped = 0
    bad = 0
    for i in range(len(values)):
        p = np.float64(values[i])
        x = np.rint(p * scale)
        bad += not (abs(p) <= LARGEST)
        clipped += abs(x) > v
        x = min(x, v)
        x = max(x, -v)
        out[i] = x * weight
    return clipped, bad


@compiled
def _reduce(x: npt.NDArray[np.float64], m: float, inverse: float, out: Residues) -> None:
    for i in range(len(x)):
        r = x[i] - np.floor(x[i] * inverse) * m
        r = r - m if r >= m else r
        out[i] = np.int32(r)


@compiled
def _encode(
    values: Floats,
    scale: float,
    v: int,
    weight: int,
    moduli: npt.NDArray[np.float64],
    inverses: npt.NDArray[np.float64],
    out: Residues,
    at: int,
) -> tuple[int, int]:
    """Quantise and reduce, a block at a time; return the numbers of clipped and of non-finite values."""
    x = np.empty(BLOCK, np.float64)
    clipped = 0
    bad = 0
    for start in range(0, len(values), BLOCK):
        end = min(start + BLOCK, len(values))
        block = x[: end - start]
        c, b = _quantise(values[start:end], scale, float(v), float(weight), block)
        clipped += c
        bad += b
        for j in range(len(moduli)):
            _reduce(block, moduli[j], inverses[j], out[j, at + start : at + end])
    return clipped, bad


@compiled
def _reduce_short(x: npt.NDArray[np.int32], m: int, out: Residues) -> None:
    if m & (m - 1) == 0:
        cut = np.int32(m - 1)
        for i in range(len(x)):
            out[i] = x[i] & cut
        return
    modulus, inverse = np.int32(m), np.float32(1.0 / m)
    for i in range(len(x)):
        r = x[i] - np.int32(np.floor(np.float32(x[i]) * inverse)) * modulus
        r = r - modulus if r >= modulus else r
        out[i] = r + modulus if r < 0 else r


@compiled
def _encode_short(
    values: Floats,
    scale: float,
    v: int,
    weight: int,
    moduli: npt.NDArray[np.float64],
    inverses: npt.NDArray[np.float64],
    out: Residues,
    at: int,
) -> tuple[int, int]:
    """The same through 32-bit integers, of which twice as many fit in a register."""
    x, short = np.empty(BLOCK, np.float64), np.empty(BLOCK, np.int32)
    clipped = 0
    bad = 0
    for start in range(0, len(values), BLOCK):
        end = min(start + BLOCK, len(values))
        block, integers = x[: end - start], short[: end - start]
        c, b = _quantise(values[start:end], scale, float(v), float(weight), block)
        clipped += c
        bad += b
        for i in range(len(block)):
            integers[i] = np.int32(block[i])
        for j in range(len(moduli)):
            _reduce_short(integers, int(moduli[j]), out[j, at + start : at + end])
    return clipped, bad


@compiled
def _encode_long(
    values: Floats,
    scale: float,
    v: int,
    weight: int,
    moduli: npt.NDArray[np.float64],
    inverses: npt.NDArray[np.float64],
    out: Residues,
    at: int,
) -> tuple[int, int]:
    """The same through 64-bit integers, for weighted values beyond float64's digits."""
    clipped = 0
    bad = 0
    for i in range(len(values)):
        p = np.float64(values[i])
        if not (abs(p) <= LARGEST):
            bad += 1
            continue
        x = np.int64(min(max(np.rint(p * scale), -BEYOND), BEYOND))
        if abs(x) > v:  # as integers: from r = 16 on, float64 has no v and would take v + 1 for it
            clipped += 1
            x = np.int64(v if x > 0 else -v)
        x *= weight
        for j in range(len(moduli)):
            out[j, at + i] = x % np.int64(moduli[j])
    return clipped, bad


@compiled
def _accumulate(
    residues: Residues, m: float, inverse: float, y: float, cofactor: int, product: int, sums: Integers
) -> None:
    for i in range(len(sums)):
        t = np.float64(residues[i]) * y
        t -= np.floor(t * inverse) * m
        t = t - m if t >= m else t
        s = sums[i] + np.int64(t) * cofactor
        sums[i] = s - product if s >= product else s


@compiled
def _centre(sums: Integers, half: int, product: int) -> None:
    for i in range(len(sums)):
        sums[i] = sums[i] - product if sums[i] > half else sums[i]


@compiled
def _decode_low(
    residues: Residues,
    at: int,
    moduli: npt.NDArray[np.float64],
    inverses: npt.NDArray[np.float64],
    y: npt.NDArray[np.float64],
    cofactors: Integers,
    product: int,
    sums: Integers,
) -> None:
    """The theorem as the paper works it: sum of r_j * y_j * M_j, here kept below the product at every step."""
    sums[:] = 0
    for j in range(len(moduli)):
        _accumulate(residues[j, at : at + len(sums)], moduli[j], inverses[j], y[j], cofactors[j], product, sums)
    _centre(sums, (product - 1) // 2, product)


@compiled
def _scale(sums: Integers, limit: int, factor: float, out: Floats) -> int:
    outside = 0
    for i in range(len(sums)):
        outside += abs(sums[i]) > limit
        out[i] = np.float64(sums[i]) * factor
    return outside


@compiled
def _decode_mean(
    residues: Residues,
    at: int,
    moduli: npt.NDArray[np.float64],
    inverses: npt.NDArray[np.float64],
    y: npt.NDArray[np.float64],
    cofactors: Integers,
    product: int,
    limit: int,
    factor: float,
    out: Floats,
) -> int:
    """Decode a block at a time and scale it; return how many sums lie beyond the limit."""
    sums = np.empty(BLOCK, np.int64)
    outside = 0
    for start in range(0, len(out), BLOCK):
        end = min(start + BLOCK, len(out))
        block = sums[: end - start]
        _decode_low(residues, at + start, moduli, inverses, y, cofactors, product, block)
        outside += _scale(block, limit, factor, out[start:end])
    return outside


@compiled
def _decode_pairs(
    first: Residues,
    second: Residues,
    m0: float,
    m1: float,
    inverse: float,
    step: float,
    limit: float,
    factor: float,
    out: Floats,
) -> int:
    product = m0 * m1
    half = (product - 1.0) * 0.5
    outside = 0
    for i in range(len(out)):
        r0 = np.float64(np.int32(first[i]))
        t = (np.float64(np.int32(second[i])) - r0) * step
        t -= np.floor(t * inverse) * m1
        t = t - m1 if t >= m1 else t
        s = r0 + m0 * t
        s = s - product if s > half else s
        outside += abs(s) > limit
        out[i] = s * factor
    return outside


@compiled
def _decode_two(
    residues: Residues,
    at: int,
    m0: float,
    m1: float,
    inverse: float,
    step: float,
    limit: float,
    factor: float,
    out: Floats,
) -> int:
    """Two moduli in one pass, by Garner's rule: x = r0 + m0 * ((r1 - r0) / m0 mod m1). All of it is below 2^41."""
    end = at + len(out)
    return int(_decode_pairs(residues[0, at:end], residues[1, at:end], m0, m1, inverse, step, limit, factor, out))
