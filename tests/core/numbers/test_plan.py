"""The residue plan: protocol section 3 and the paper's condition on the moduli (S.3)."""

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import combinations
from math import gcd, isqrt, prod
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.tools import examples

from silomix.runtime.core.errors import LocalFault, Reason
from silomix.runtime.core.numbers.plan import (
    INT8_VALUE,
    MAX_MODULUS,
    MAX_RANGE,
    MAX_VALUE,
    Encoding,
    Level,
    Plan,
    Quantiser,
    first_primes,
    largest_value,
    least_bits,
    least_sum,
    plan,
    primes,
)

POLICIES = st.fixed_dictionaries(
    {
        "n_max": st.integers(1, 20_000),
        "r": st.integers(1, 15),
        "encoding": st.sampled_from(Encoding),
        "level": st.sampled_from(Level),
        "weight_levels": st.integers(1, 1000),
        "headroom": st.integers(0, 12),
        "quantiser": st.sampled_from(Quantiser),
    }
)
NEEDS = st.one_of(
    st.integers(19, MAX_RANGE),  # the least that a policy can need: one silo, one digit
    st.builds(lambda k, d: (1 << k) + d, st.integers(10, 99), st.integers(-600, 600)),
    st.builds(lambda k, e: (1 << k) - (1 << max(k - e, 0)), st.integers(10, 99), st.integers(2, 24)),
)


@cache
def is_prime(m: int) -> bool:
    return m > 1 and all(m % d for d in range(2, isqrt(m) + 1))


def width(m: int) -> int:
    """ceil(log2 m), counted: the bits that write 0..m-1."""
    return next(w for w in range(64) if 2**w >= m)


def coprime(moduli: tuple[int, ...]) -> bool:
    return all(gcd(a, b) == 1 for a, b in combinations(moduli, 2))


def crt(residues: list[int], moduli: tuple[int, ...]) -> int:
    """The number nearest to zero with these residues."""
    M = prod(moduli)
    x = sum(r * (M // m) * pow(M // m, -1, m) for r, m in zip(residues, moduli, strict=True)) % M
    return x - M if x > M // 2 else x


# --- what every plan holds --------------------------------------------------------------------------------------------


@given(POLICIES)
@settings(deadline=None, max_examples=examples(150))
def test_moduli_are_pairwise_coprime_and_prime_where_the_check_needs_fields(policy: dict[str, Any]) -> None:
    p = plan(**policy)
    assert coprime(p.moduli)
    assert all(2 <= m <= MAX_MODULUS for m in p.moduli)
    if p.level is Level.MALICIOUS:
        assert all(pow(a, m - 1, m) == 1 for m in p.moduli for a in (2, 3, 5, 7) if a % m), (
            "Fermat: a composite modulus"
        )
    elif p.encoding is Encoding.COUNTS:
        assert len(p.moduli) >= 2


@given(POLICIES)
@settings(deadline=None, max_examples=examples(150))
def test_range_holds_at_the_extremes(policy: dict[str, Any]) -> None:
    """Section 3: 2 n W v + 1 <= M, and by `headroom` bits more; n_max silos at full weight and value come back."""
    p = plan(**policy)
    assert p.limit == p.n_max * p.weight_levels * p.v
    assert prod(p.moduli) == p.M >= (2 * p.limit + 1) << p.headroom
    for share in (p.weight_levels * p.v, -p.weight_levels * p.v):
        sums = [p.n_max * (share % m) % m for m in p.moduli]
        assert crt(sums, p.moduli) == p.n_max * share
    if p.headroom:  # a sum just out of range is seen as such, and does not wrap into the range
        assert crt([(p.limit + 1) % m for m in p.moduli], p.moduli) == p.limit + 1


@given(POLICIES)
@settings(deadline=None, max_examples=examples(60))
def test_everybody_computes_the_same_plan(policy: dict[str, Any]) -> None:
    words: dict[str, Any] = {k: str(v) if isinstance(v, str) else v for k, v in policy.items()}  # as a file has them
    a, b = plan(**policy), plan(**words)
    assert a == b
    assert a.digest == b.digest
    assert isinstance(b.encoding, Encoding)


@given(POLICIES, st.integers(0, 300))
@settings(deadline=None, max_examples=examples(60))
def test_sizes_follow_from_the_moduli(policy: dict[str, Any], parameters: int) -> None:
    p = plan(**policy)
    assert p.widths == tuple(width(m) for m in p.moduli)
    assert p.packed_bits == sum(p.widths)
    assert p.bits_per_parameter == sum(p.widths if p.encoding is Encoding.COUNTS else p.moduli)
    for w, size in zip(p.widths, p.plane_bytes(parameters), strict=True):
        assert size == w * -(-parameters // 8)
        assert 0 <= 8 * size - parameters * w <= 7 * w  # padded by less than a byte in each slice


# --- minimality, against all coprime sets there are -------------------------------------------------------------------

LARGEST_SUM = 60


@cache
def greatest_product_by_sum(*, prime: bool) -> list[int]:
    """best[s]: the greatest product of pairwise coprime integers with sum s, by trying every set of them."""
    best = [1] * (LARGEST_SUM + 1)

    def extend(product: int, total: int, least: int) -> None:
        best[total] = max(best[total], product)
        for m in range(least, LARGEST_SUM - total + 1):
            if gcd(m, product) == 1 and (not prime or is_prime(m)):
                extend(product * m, total + m, m + 1)

    extend(1, 0, 2)
    return best


@given(st.integers(3, 500_000), st.booleans())
@example(199_981, False)
@example(2520, False)
@example(2521, False)
@settings(deadline=None, max_examples=examples(300))
def test_unary_has_the_least_sum_of_all_coprime_sets(need: int, prime: bool) -> None:
    best = greatest_product_by_sum(prime=prime)
    least = next(s for s, product in enumerate(best) if product >= need)
    found = least_sum(need, prime=prime)
    assert (sum(found), prod(found)) == (least, best[least])
    assert list(found) == sorted(found)


LARGEST_WIDTH = 15


@cache
def coprime_sets_by_width(*, prime: bool) -> list[list[tuple[int, ...]]]:
    """sets[b]: every set of pairwise coprime integers, greatest first, that takes b bits as packed residues."""
    sets: list[list[tuple[int, ...]]] = [[] for _ in range(LARGEST_WIDTH + 1)]

    def extend(chosen: tuple[int, ...], product: int, bits: int, top: int) -> None:
        sets[bits].append(chosen)
        for m in range(min(top, 2 ** (LARGEST_WIDTH - bits)), 1, -1):
            if gcd(m, product) == 1 and (not prime or is_prime(m)):
                extend((*chosen, m), product * m, bits + (m - 1).bit_length(), m - 1)

    extend((), 1, 0, 2**LARGEST_WIDTH)
    return sets


def choice(moduli: tuple[int, ...]) -> tuple[object, ...]:
    """The order of `least_bits` among sets of equal width: fewest, most even, greatest product."""
    widths = [width(m) for m in moduli]
    return (len(moduli), max(widths) - min(widths), widths, -prod(moduli))


def brute_force_counts(need: int, *, prime: bool) -> tuple[int, ...]:
    for sets in coprime_sets_by_width(prime=prime):
        enough = [s for s in sets if prod(s) >= need]
        if allowed := [s for s in enough if prime or len(s) >= 2]:
            return min(allowed, key=choice)
    raise AssertionError("make LARGEST_WIDTH greater")


@given(st.integers(3, 12_000))
@example(6)
@example(63 * 32)
@settings(deadline=None, max_examples=examples(120))
def test_counts_have_the_least_width_of_all_coprime_sets(need: int) -> None:
    assert least_bits(need) == brute_force_counts(need, prime=False)


@given(st.integers(3, 12_000))
@settings(deadline=None, max_examples=examples(120))
def test_malicious_counts_have_the_least_width_of_all_sets_of_primes(need: int) -> None:
    assert least_bits(need, prime=True) == brute_force_counts(need, prime=True)


@given(st.integers(3, MAX_RANGE))
@example(30_030)
@example(30_031)
@settings(deadline=None)
def test_first_primes_are_the_first_and_no_more_than_needed(need: int) -> None:
    found = first_primes(need)
    assert found == tuple(m for m in range(2, found[-1] + 1) if is_prime(m))
    assert prod(found[:-1]) < need <= prod(found)


def nasty_needs() -> Iterator[int]:
    """Just around powers of two, and short of them by every fraction that primes or coprime integers may just miss."""
    for k in range(4, 101, 3):
        yield from ((1 << k) + d for d in (-257, -3, -1, 0, 1, 2) if 3 <= (1 << k) + d <= MAX_RANGE)
        yield from ((1 << k) - (1 << k - e) for e in range(1, min(k, 20), 3))


@pytest.mark.parametrize("prime", [False, True])
def test_the_search_for_least_bits_ends_for_nasty_needs(prime: bool) -> None:
    for need in (*nasty_needs(), (1 << 82) - (1 << 69)):
        found = least_bits(need, prime=prime)
        bits = sum((m - 1).bit_length() for m in found)
        assert coprime(found)
        assert prod(found) >= need
        assert (need - 1).bit_length() <= bits <= need.bit_length() + 2


@given(NEEDS, st.booleans())
@settings(deadline=None, max_examples=examples(200))
def test_counts_are_never_wider_than_the_sets_of_other_searches(need: int, prime: bool) -> None:
    bits = sum(width(m) for m in least_bits(need, prime=prime))
    for other in (least_sum(need, prime=prime), first_primes(need)):
        assert bits <= sum(width(m) for m in other)
    assert sum(least_sum(need, prime=prime)) <= sum(first_primes(need))


# --- known values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "level", "moduli", "bits"),
    [
        (Encoding.UNARY, Level.SEMI_HONEST, (5, 7, 8, 9, 11, 13), 53),
        (Encoding.FIRST_PRIMES, Level.SEMI_HONEST, (2, 3, 5, 7, 11, 13, 17), 58),
        (Encoding.COUNTS, Level.SEMI_HONEST, (512, 511), 18),
        (Encoding.COUNTS, Level.TRUSTED, (512, 511), 18),
        (Encoding.COUNTS, Level.MALICIOUS, (262139,), 18),
        (Encoding.FIRST_PRIMES, Level.MALICIOUS, (2, 3, 5, 7, 11, 13, 17), 58),
    ],
)
def test_ten_silos_and_four_digits(encoding: Encoding, level: Level, moduli: tuple[int, ...], bits: int) -> None:
    """Protocol section 3."""
    p = plan(10, 4, encoding, level)
    assert p.moduli == moduli
    assert p.bits_per_parameter == bits


@pytest.mark.parametrize(
    ("n", "r", "by_primes", "least"),
    [
        (1000, 8, 160, 157),
        (10_000, 8, 197, 172),
        (1000, 12, 281, 250),
        (10_000, 12, 328, 276),
        (1000, 16, 381, 358),
        (10_000, 16, 440, 386),
    ],
)
def test_table_comm_cost_more_clients(n: int, r: int, by_primes: int, least: int) -> None:
    assert plan(n, r, Encoding.FIRST_PRIMES).bits_per_parameter == by_primes
    assert plan(n, r, Encoding.UNARY).bits_per_parameter == least


def test_table_comm_cost_more_clients_row_two_does_not_hold() -> None:
    """The paper's 160 bits for (10000, 8) are the first eleven primes, whose product cannot tell the sums apart."""
    eleven = tuple(p for p, _ in zip(primes(), range(11), strict=False))
    assert sum(eleven) == 160
    assert prod(eleven) < 10_000 * (10**8 - 1) < 2 * 10_000 * (10**8 - 1) + 1


def test_values_of_the_quantisers() -> None:
    assert [largest_value(r) for r in (1, 4)] == [9, 9999]
    assert largest_value(4, Quantiser.INT8) == INT8_VALUE == 127
    assert plan(10, 4, quantiser=Quantiser.INT8).moduli == plan(10, 9, quantiser=Quantiser.INT8).moduli == (64, 63)


def test_a_product_of_exactly_2nv_is_one_short() -> None:
    """S.3: -n v..n v are 2 n v + 1 sums. For 64 silos and v = 127 the moduli 128 and 127 have room for all but one."""
    assert 2 * 64 * INT8_VALUE == 128 * 127
    assert plan(63, 1, quantiser=Quantiser.INT8).moduli == (128, 127)
    assert plan(64, 1, quantiser=Quantiser.INT8).moduli == (255, 64)


def test_one_prime_alone_where_it_is_wide_enough() -> None:
    """Section 2, level malicious: two primes of so many bits in all would have to be drawn again far more often."""
    assert least_bits(4093 * 2, prime=True) == (8191,)
    assert least_bits(8191, prime=True) == (8191,)
    assert least_bits(1048573, prime=True) == (1048573,)
    assert least_bits(1048575, prime=True) == (2039, 1021)  # no wider modulus is used


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "bound", "advice"),
    [
        ({"n_max": 0, "r": 4}, "n_max", "at least 1"),
        ({"n_max": 10, "r": 0}, "r", "at least 1"),
        ({"n_max": 10, "r": 4, "weight_levels": 0}, "weight_levels", "at least 1"),
        ({"n_max": 10, "r": 4, "headroom": -1}, "headroom", "at least 0"),
        ({"n_max": 10, "r": 19}, "weight_levels * v", "lower r"),
        ({"n_max": 10, "r": 10**9}, "weight_levels * v", "lower r"),
        ({"n_max": 10, "r": 18, "weight_levels": 100}, "weight_levels * v", "weight_levels (now 100)"),
        ({"n_max": 10**12, "r": 18}, "n_max * weight_levels * v", "lower n_max"),
        ({"n_max": 10, "r": 4, "headroom": 83}, "n_max * weight_levels * v", "headroom (now 83)"),
        ({"n_max": 10, "r": 4, "headroom": 10**15}, "n_max * weight_levels * v", "headroom"),
    ],
)
def test_an_infeasible_plan_names_the_bound_and_what_to_change(policy: dict[str, int], bound: str, advice: str) -> None:
    with pytest.raises(LocalFault) as caught:
        plan(**policy)  # type: ignore[arg-type]
    assert caught.value.reason is Reason.PLAN_INFEASIBLE
    assert caught.value.details["bound"] == bound
    assert advice in caught.value.message


def test_the_bounds_themselves_are_feasible() -> None:
    assert plan(10, 4, headroom=82).M >= 199_981 << 82
    assert (199_981 << 82) <= MAX_RANGE < (199_981 << 83)
    assert plan(3, 4, weight_levels=MAX_VALUE // 9999).limit <= 3 * MAX_VALUE
    with pytest.raises(LocalFault, match="one silo's weighted value"):
        plan(3, 4, weight_levels=MAX_VALUE // 9999 + 1)


def test_the_fault_counts_the_bits_that_headroom_asks_for() -> None:
    with pytest.raises(LocalFault, match=r"a range of 1000000018 bits and the codec holds 100\b"):
        plan(10, 4, headroom=10**9)


OTHER: dict[str, object] = {
    "n_max": 11,
    "precision": 5,
    "encoding": Encoding.UNARY,
    "level": Level.TRUSTED,
    "weight_levels": 2,
    "headroom": 1,
    "quantiser": Quantiser.INT8,
    "moduli": (511, 512),
}


def test_the_digest_differs_when_any_field_differs() -> None:
    p = plan(10, 4)
    assert set(OTHER) == {f.name for f in fields(Plan)}
    changed = [replace(p, **{name: value}) for name, value in OTHER.items()]  # type: ignore[arg-type]
    assert len({p.digest, *(q.digest for q in changed)}) == 1 + len(OTHER)
