"""The residue plan: which moduli a federation uses, and every size that follows from them.

A silo's parameter becomes an integer x with |x| <= v, is multiplied by its weight w <= W and travels as residues
modulo pairwise coprime m_1..m_u. The sum over n silos is recovered exactly while it lies within half the product M,
so a plan holds when ``2 * n * W * v + 1 <= M``. (The paper's Alg. 1 prints ``M < n * v``, which is neither the right
factor nor the right direction; its text asks for ``n * v < floor((M - 1) / 2)``, which is stricter by one.)

Everybody computes the plan from the federation's policy and nobody is told it, so the choice is deterministic down
to the last tie.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from itertools import count, groupby, islice
from math import gcd, isqrt, prod

from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import LocalFault, Reason

MAX_MODULUS = 1 << 20
"""Largest modulus: a product of two residues stays far inside 53 bits, so the kernels may divide in float64."""
MAX_RANGE = 1 << 100
"""Largest M: a decoded sum is a pair of 64-bit integers."""
FAST_RANGE = 1 << 62
"""Below this M a decoded sum is one 64-bit integer."""
MAX_VALUE = 1 << 62
"""Largest W * v: what a silo encodes is one 64-bit integer."""
INT8_VALUE = 127
CHUNK_PARAMETERS = 131_072
"""Length of a chunk unless the policy says otherwise: at 18 bits each it fills a message of about 300 KB."""


class Encoding(StrEnum):
    """How residues are chosen and sent."""

    UNARY = "unary"
    """The paper's Alg. 1: m_j bits for each residue, so the moduli of least sum."""
    FIRST_PRIMES = "first-primes"
    """The moduli behind the paper's tables: 2, 3, 5, ... until the range holds."""
    COUNTS = "counts"
    """The number of ones instead of the ones (the paper's RLE): the moduli of least total width."""


class Level(StrEnum):
    """Whom a silo has to trust: docs/protocol.md section 4."""

    TRUSTED = "trusted"
    SEMI_HONEST = "semi-honest"
    MALICIOUS = "malicious"


class Quantiser(StrEnum):
    """How a bounded float becomes an integer of at most v."""

    DECIMAL = "decimal"
    """r decimal digits: v = 10^r - 1."""
    INT8 = "int8"
    """One signed byte, v = 127, as for the paper's transformer."""


class Granularity(StrEnum):
    """What leaves the chain. Only `sum` protects; the others are what the paper compares with."""

    NONE = "none"
    MODEL = "model"
    LAYER = "layer"
    PARAMETER = "parameter"
    UNARY = "unary"
    SUM = "sum"


@dataclass(frozen=True)
class Plan:
    """Moduli and the sizes derived from them. Make one with `plan`, which searches and checks."""

    n_max: int
    precision: int
    encoding: Encoding
    level: Level
    weight_levels: int
    headroom: int
    quantiser: Quantiser
    moduli: tuple[int, ...]

    @property
    def v(self) -> int:
        """The largest magnitude of a quantised parameter."""
        return largest_value(self.precision, self.quantiser)

    @property
    def limit(self) -> int:
        """The largest magnitude that n_max silos of full weight can sum to; beyond it a sum is refused."""
        return self.n_max * self.weight_levels * self.v

    @cached_property
    def M(self) -> int:  # noqa: N802 - the paper's name
        """The product of the moduli: the number of sums that can be told apart."""
        return prod(self.moduli)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Bits of one packed residue per plane: ceil(log2 m)."""
        return tuple((m - 1).bit_length() for m in self.moduli)

    @property
    def packed_bits(self) -> int:
        """Bits of one parameter as packed counts: what the runtime puts on the wire."""
        return sum(self.widths)

    @property
    def bits_per_parameter(self) -> int:
        """Bits that a silo sends per parameter in this encoding: ones and zeros for unary, packed counts for counts."""
        return self.packed_bits if self.encoding is Encoding.COUNTS else sum(self.moduli)

    def plane_bytes(self, parameters: int) -> tuple[int, ...]:
        """Length of each plane of a chunk of so many parameters, every slice of it padded to whole bytes."""
        return tuple((parameters + 7) // 8 * w for w in self.widths)

    @cached_property
    def digest(self) -> bytes:
        """What two nodes compare to know that they compute in the same numbers."""
        policy = (self.n_max, self.precision, str(self.encoding), str(self.level))
        return digest("plan", *policy, self.weight_levels, self.headroom, str(self.quantiser), *self.moduli)


def chunk_for(silos: int) -> int:
    """Return a length of chunks for so many silos: long ones are fewer messages, and hop 1 holds some of everyone's."""
    for size in (2 * CHUNK_PARAMETERS, CHUNK_PARAMETERS):
        if silos * size <= 20 * CHUNK_PARAMETERS:
            return size
    return CHUNK_PARAMETERS // 2


def largest_value(r: int, quantiser: Quantiser = Quantiser.DECIMAL) -> int:
    """Return v, the largest magnitude of a quantised parameter."""
    return INT8_VALUE if quantiser is Quantiser.INT8 else 10**r - 1


def plan(
    n_max: int,
    r: int,
    encoding: Encoding = Encoding.COUNTS,
    level: Level = Level.SEMI_HONEST,
    weight_levels: int = 1,
    headroom: int = 0,
    quantiser: Quantiser = Quantiser.DECIMAL,
) -> Plan:
    """Choose the moduli for a policy, or say which bound breaks and what to change.

    n_max          silos on the roster: the most that a sum can hold
    r              decimal digits kept of a parameter (ignored by the int8 quantiser)
    encoding       what is minimised: the sum of the moduli, or the bits of packed residues
    level          `malicious` takes primes, because the tamper check works in fields
    weight_levels  W: weights run from 1 to W, and 1 is the plain mean
    headroom       bits by which the range exceeds the largest honest sum, so that an overflow shows
    """
    encoding, level, quantiser = Encoding(encoding), Level(level), Quantiser(quantiser)
    for name, value, least in (
        ("n_max", n_max, 1),
        ("r", r, 1),
        ("weight_levels", weight_levels, 1),
        ("headroom", headroom, 0),
    ):
        if value < least:
            raise LocalFault(
                Reason.PLAN_INFEASIBLE, f"{name} is {value}: give at least {least}", bound=name, found=value
            )
    v = largest_value(min(r, 100), quantiser)
    if weight_levels * v > MAX_VALUE:
        raise LocalFault(
            Reason.PLAN_INFEASIBLE,
            f"one silo's weighted value needs {(weight_levels * v).bit_length()} bits and the codec holds "
            f"{MAX_VALUE.bit_length() - 1}: lower r (now {r}) or weight_levels (now {weight_levels})",
            bound="weight_levels * v",
            found=weight_levels * v,
        )
    sums = 2 * n_max * weight_levels * v + 1
    need = sums << min(headroom, MAX_RANGE.bit_length())  # more is infeasible already, and would only fill memory
    if need > MAX_RANGE:
        raise LocalFault(
            Reason.PLAN_INFEASIBLE,
            f"the sum of {n_max} silos needs a range of {sums.bit_length() + headroom} bits and the codec holds "
            f"{MAX_RANGE.bit_length() - 1}: lower n_max, r (now {r}), weight_levels (now {weight_levels}) "
            f"or headroom (now {headroom})",
            bound="n_max * weight_levels * v",
            found=need,
        )
    if encoding is Encoding.FIRST_PRIMES:
        moduli = first_primes(need)
    elif encoding is Encoding.UNARY:
        moduli = least_sum(need, prime=level is Level.MALICIOUS)
    else:
        moduli = least_bits(need, prime=level is Level.MALICIOUS)
    return Plan(n_max, r, encoding, level, weight_levels, headroom, quantiser, moduli)


def primes() -> Iterator[int]:
    """Yield 2, 3, 5, 7, ... without end."""
    return (p for p in count(2) if _is_prime(p))


def _is_prime(k: int) -> bool:
    return k > 1 and all(k % d for d in range(2, isqrt(k) + 1))


def first_primes(need: int) -> tuple[int, ...]:
    """Return the first primes whose product reaches `need`: what the paper's tables are made of."""
    chosen: list[int] = []
    for p in primes():
        if prod(chosen) >= need:
            break
        chosen.append(p)
    return tuple(chosen)


def least_sum(need: int, *, prime: bool = False) -> tuple[int, ...]:
    """Return the pairwise coprime moduli of least sum whose product reaches `need`; of equals, the greatest product.

    A composite modulus can be split into its prime powers without raising the sum, so prime powers suffice, and the
    greatest product for each sum is Landau's function: an exact knapsack with one choice of power per prime.
    """
    ceiling = sum(first_primes(need))  # a feasible sum, hence an upper bound of the least one
    best = [1] * (ceiling + 1)  # best[s]: greatest product of coprime prime powers with sum at most s
    choice: list[dict[int, int]] = [{} for _ in range(ceiling + 1)]
    for p in primes():
        if p > ceiling:
            break
        for s in range(ceiling, p - 1, -1):
            q = p
            while q <= s:
                if best[s - q] * q > best[s]:
                    best[s], choice[s] = best[s - q] * q, {**choice[s - q], p: q}
                q = ceiling + 1 if prime else q * p
    least = next(s for s in range(ceiling + 1) if best[s] >= need)
    return tuple(sorted(choice[least].values()))


def least_bits(need: int, *, prime: bool = False) -> tuple[int, ...]:
    """Return the coprime moduli of least total width whose product reaches `need`, greatest first.

    Of equal widths the fewest moduli win, then the most even widths, then the greatest product. There are at least
    two, as the residue number system has it. Of primes, one is enough if it is wide enough: few draws in 2^w are then
    beyond it, and the tamper check takes fewer forms.
    """
    widest = (MAX_MODULUS - 1).bit_length()
    for bits in count(max(2, (need - 1).bit_length())):
        if prime and bits <= widest and (alone := _greatest((bits,), need, prime=True)):
            return alone
        least_count = max(2, -(-bits // widest))
        for u in count(least_count):
            if _ceiling(bits, u) < need:
                break
            for widths in _splits(bits, u, widest):
                if moduli := _greatest(widths, need, prime=prime):
                    return moduli
    raise AssertionError("unreachable: the widths grow until the range holds")


def _ceiling(bits: int, u: int) -> int:
    """Bound the product of u coprime moduli with so many bits: all but one are odd, hence below their power of two.

    It falls with u, so the search ends instead of trying every partition of the bits.
    """
    odd = u - 1
    w = -(-bits // odd)
    ceiling: int = (((1 << w) - 1) ** odd << bits) >> w * odd
    return ceiling


def _splits(bits: int, u: int, widest: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write `bits` as u descending widths, the most even first."""

    def parts(left: int, n: int, top: int) -> Iterator[tuple[int, ...]]:
        if n == 0:
            if left == 0:
                yield ()
            return
        for w in range(min(top, left - (n - 1)), 0, -1):
            if w * n < left:
                break
            for rest in parts(left - w, n - 1, w):
                yield (w, *rest)

    yield from sorted(parts(bits, u, widest), key=lambda ws: (ws[0] - ws[-1], ws))


def _greatest(widths: tuple[int, ...], need: int, *, prime: bool) -> tuple[int, ...]:
    """Return the coprime moduli of these widths with the greatest product that reaches `need`, or nothing."""
    if prime:  # distinct primes are coprime: the greatest of each width have the greatest product, with no search
        moduli = tuple(p for w, same in groupby(widths) for p in _greatest_primes(w, len(tuple(same))))
        return moduli if len(moduli) == len(widths) and prod(moduli) >= need else ()
    best: tuple[int, ...] = ()
    floor = need - 1  # only a product above this is of interest

    def extend(chosen: tuple[int, ...], product: int, left: tuple[int, ...]) -> None:
        nonlocal best, floor
        if not left:
            best, floor = chosen, product
            return
        ceiling = product << sum(left[1:])
        same = chosen and (chosen[-1] - 1).bit_length() == left[0]
        top = chosen[-1] - 1 if same else 1 << left[0]
        for m in range(top, 1 << (left[0] - 1), -1):
            if ceiling * m <= floor:
                break
            if all(gcd(m, c) == 1 for c in chosen):
                extend((*chosen, m), product * m, left[1:])

    extend((), 1, widths)
    return best


@cache
def _greatest_primes(width: int, number: int) -> tuple[int, ...]:
    """Return the so many greatest primes of a width, or as many as there are."""
    return tuple(islice((m for m in range(1 << width, 1 << (width - 1), -1) if _is_prime(m)), number))
