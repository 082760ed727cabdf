"""Noise for differential privacy, added to a silo's integers before they are masked.

Each silo adds discrete Gaussian noise to every value; what comes out of the chain is the sum of the values with the sum
of the noises, and nobody has seen less noise than that. This is what integers under masks are made for: no party has
to be trusted to add the noise, and no float leaks what it was made of. docs/simulation.md has the privacy that follows.

The noise is drawn from a table of the distribution's sums in 128-bit fixed point, computed with integers alone. The
distance of a draw from the exact distribution is below 2^-100.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, isqrt, sqrt

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.errors import LocalFault, Reason
from silomix.runtime.core.numbers.masks import Rng
from silomix.runtime.core.numbers.plan import largest_value
from silomix.runtime.core.numbers.schema import Array, Schema, as_float, round_to
from silomix.runtime.core.policy import Policy

MAX_VARIANCE = 1 << 30
"""Noise of more than 2^15 steps would drown four decimal digits: send fewer digits instead."""
TAIL = 12.0
"""Standard deviations that a sum of noises stays within: it strays further once in 10^31 values."""
_BITS = 128
_WORK = 256  # bits of the fixed point that the table is computed in

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Noise:
    """How much noise one silo adds to each of its integers: a discrete Gaussian of this variance; 0 for none."""

    variance: int = 0

    @classmethod
    def of(cls, multiplier: float, sensitivity: float, contributors: int) -> "Noise":
        """Share the noise of a sum out among the silos that it surely holds.

        sensitivity is the largest norm of a silo's integers, and the sum is to have multiplier times that as its
        standard deviation. The variance is rounded up to a whole number, so that there is never less.
        """
        if not multiplier:
            return cls()
        wanted = (multiplier * sensitivity) ** 2 / contributors
        if not wanted <= MAX_VARIANCE:
            digits = ceil(np.log10(wanted / MAX_VARIANCE) / 2)
            raise LocalFault(
                Reason.PLAN_INFEASIBLE,
                f"each silo's noise would have a standard deviation of {sqrt(wanted):.3g} steps, and the sampler has "
                f"up to {isqrt(MAX_VARIANCE)}: keep {digits} decimal digit(s) fewer, they would be noise anyway",
                bound="noise",
            )
        return cls(max(1, ceil(wanted)))

    @classmethod
    def under(cls, policy: Policy, contributors: int) -> "Noise":
        """What each silo adds under a policy, if a released sum holds the noise of so many at least."""
        if not policy.noise_multiplier:
            return cls()
        sensitivity = policy.clip_norm * largest_value(policy.precision, policy.quantiser) / policy.bound
        return cls.of(policy.noise_multiplier, sensitivity, contributors)

    def slack(self, silos: int) -> int:
        """How far the noise of so many silos can carry a sum beyond the largest honest one."""
        return ceil(TAIL * sqrt(self.variance * silos))

    def headroom(self, silos: int, largest: int) -> int:
        """Bits of range that the noise needs beyond the largest honest sum of so many silos."""
        bits = 0
        while (2 * largest + 1) << bits < 2 * (largest + self.slack(silos)) + 1:
            bits += 1
        return bits

    def draw(self, n: int, rng: Rng) -> Integers:
        """Draw n values."""
        return discrete_gaussian(self.variance, n, rng)


def discrete_gaussian(variance: int, n: int, rng: Rng) -> Integers:
    """Draw n integers x with probability in proportion to exp(-x^2 / (2 variance))."""
    if not 1 <= variance <= MAX_VARIANCE:
        raise ValueError(f"the variance is {variance}: give 1 to {MAX_VARIANCE}")
    high, low = _table(variance)
    words = np.frombuffer(rng(16 * n), "<u8").astype(np.uint64, copy=False).reshape(2, n)
    # The magnitude is the number of thresholds at or below the draw.
    size = np.searchsorted(high, words[0], side="right").astype(np.int64)
    for i in np.flatnonzero(high[np.maximum(size, 1) - 1] == words[0]):  # one in 2^46 draws: let the low words decide
        while size[i] and high[size[i] - 1] == words[0, i] and low[size[i] - 1] > words[1, i]:
            size[i] -= 1
    signs = np.unpackbits(np.frombuffer(rng(-(-n // 8)), np.uint8), count=n)
    signed: Integers = np.where(signs, size, -size)
    return signed


@lru_cache(maxsize=8)
def _table(variance: int) -> tuple[Words, Words]:
    """Return the thresholds P(|X| <= 0), P(|X| <= 1), ... in units of 2^-128, as high and low words.

    The weight of x is q^(x^2) with q = exp(-1 / (2 variance)), and q^((x+1)^2) = q^(x^2) * q^(2x+1): two products each.
    """
    one = 1 << _WORK
    q, term, k = one, one, 0
    while term:  # exp by its series, whose terms halve at least
        k += 1
        term //= 2 * variance * k
        q += term if k % 2 == 0 else -term
    ratio, square = q, q * q >> _WORK
    weight, total = one, one
    sums = [one]
    while weight >> (_WORK - _BITS - 4):
        weight = weight * ratio >> _WORK
        ratio = ratio * square >> _WORK
        total += 2 * weight
        sums.append(total)
    thresholds = [(s << _BITS) // total for s in sums[:-1]]  # the last one is 1, and nothing reaches it
    high = np.array([t >> 64 for t in thresholds], np.uint64)
    low = np.array([t & (1 << 64) - 1 for t in thresholds], np.uint64)
    return high, low


def clip(update: Mapping[str, Array], schema: Schema, bound: float, v: int, norm: float) -> dict[str, Array]:
    """Scale an update down until the norm of the integers that it becomes, times bound / v, is at most `norm`.

    It is the integers that count: rounding can lengthen a vector of many small values, and what is promised of the sum
    rests on the length of what goes in. What is not finite is left as it is, for the codec to name.
    """
    values = {t.name: as_float(update[t.name], t.dtype).astype(np.float64) for t in schema.tensors}
    scaled = dict(update)
    if not all(np.isfinite(array).all() for array in values.values()):
        return scaled
    length, factor, least = _length(values, v / bound), 1.0, 2.0**-20
    while length > norm:
        factor *= min(norm / length, 1 - least)  # by at least so much: a little less may round to the same integers
        least = min(0.5, 2 * least)
        scaled = {t.name: round_to(values[t.name] * factor, t.dtype) for t in schema.tensors}
        length = _length({t.name: as_float(scaled[t.name], t.dtype) for t in schema.tensors}, v / bound)
    return scaled


def _length(values: Mapping[str, Array], scale: float) -> float:
    """Return the norm of the integers that values become, in the values' own unit."""
    with np.errstate(over="ignore"):  # beyond the range of float64 it is infinite, and the factor 0
        squares = sum(float(np.square(np.rint(a.astype(np.float64) * scale)).sum()) for a in values.values())
    return sqrt(squares) / scale
