"""Protocol section 3: quantising, residues, sums and decoding, against Python's integers and fractions."""

from collections.abc import Sequence
from fractions import Fraction
from math import copysign, gcd, inf, nan, prod, ulp
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.numbers.adding import add_up
from tests.vectors import generate, reference

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.packing import Residues
from silomix.runtime.core.numbers.plan import FAST_RANGE, Encoding, Level, Plan, Quantiser, plan
from silomix.runtime.core.numbers.residue import EXACT, decode_mean, decode_sum, encode

PLANS = {
    **{f"counts r={r}": plan(10, r) for r in range(1, 9)},
    **{f"malicious r={r}": plan(20, r, level=Level.MALICIOUS) for r in (1, 4, 8)},
    "unary": plan(10, 4, Encoding.UNARY),
    "unary primes": plan(10, 6, Encoding.UNARY, Level.MALICIOUS),
    "first primes": plan(10, 8, Encoding.FIRST_PRIMES),
    "weights": plan(10, 4, weight_levels=100),
    "int8": plan(10, 1, quantiser=Quantiser.INT8),
    "int8 with weights": plan(50, 1, weight_levels=1000, quantiser=Quantiser.INT8),
}
LONG = {
    "r=12, W=4000": plan(10, 12, weight_levels=4000),
    "r=15": plan(10, 15),
    "r=16": plan(10, 16),
    "r=16, primes": plan(1000, 16, Encoding.FIRST_PRIMES),
    "r=17, W=40": plan(3, 17, weight_levels=40),
    "r=18, W=4": plan(3, 18, weight_levels=4),
}
BOUNDS = (1.0, 0.037, 3.0, 2.0**-30, 1e-12, 1e20)


def with_moduli(*moduli: int, n_max: int = 3, r: int = 1, weight_levels: int = 1) -> Plan:
    """A plan with moduli of the test's choice."""
    return Plan(n_max, r, Encoding.COUNTS, Level.SEMI_HONEST, weight_levels, 0, Quantiser.DECIMAL, moduli)


def residues_of(integers: Sequence[int], p: Plan) -> Residues:
    kind: npt.DTypeLike = residue.plan_dtype(p)
    return np.array([[x % m for x in integers] for m in p.moduli], kind)


def check_encoding(values: npt.NDArray[Any], bound: float, p: Plan, weight: int = 1) -> None:
    expected = [reference.quantise(float(x), bound, p.v) for x in values]
    integers = [weight * x for x, _ in expected]
    rows, clipped = encode(values, bound, p, weight=weight)
    assert rows.tolist() == [[x % m for x in integers] for m in p.moduli]
    assert clipped == sum(c for _, c in expected)


def corners(bound: float, v: int) -> list[float]:
    """Zeros, ties, the edges of the range, and what no model should hold."""
    step = bound / v
    values = [0.0, step / 2, step * 3 / 2, step * 5 / 2, step * (v // 2 + 0.5), step * (v - 0.5), step * (v + 0.5)]
    values += [bound, bound * (1 - 2**-53), bound * (1 + 2**-52), 2 * bound, 5e-324, 1e-310, 2.0**-1022, 1e308]
    return [copysign(x, sign) for x in values for sign in (1, -1)]


# Quantising and reducing.


@pytest.mark.parametrize("p", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_encoding_is_rint_clip_and_mod(p: Plan, kind: type[np.floating[Any]]) -> None:
    rng = Random(str(p.moduli))
    for bound in BOUNDS:
        wide = corners(bound, p.v) + [rng.uniform(-1.2, 1.2) * bound for _ in range(40)]
        largest = float(np.finfo(kind).max)
        values = np.array([x for x in wide if abs(x) <= largest], kind)
        check_encoding(values, bound, p, weight=rng.choice((1, p.weight_levels)))


@given(
    name=st.sampled_from(sorted(PLANS)),
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-2, 2), max_size=20),
    bound=st.floats(min_value=1e-290, allow_infinity=False) | st.floats(0.01, 2),
    weight=st.integers(1, 1000),
)
def test_encoding_of_any_float64(name: str, values: list[float], bound: float, weight: int) -> None:
    p = PLANS[name]
    check_encoding(np.array(values, np.float64), bound, p, min(weight, p.weight_levels))


@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-2, 2, width=32)),
    bound=st.floats(min_value=1e-290, allow_infinity=False) | st.floats(0.01, 2),
)
def test_encoding_of_any_float32(values: list[float], bound: float) -> None:
    check_encoding(np.array(values, np.float32), bound, PLANS["counts r=4"])


@pytest.mark.parametrize("n", [0, 1, 2047, 2048, 2049, 5000])
def test_blocks_join(n: int) -> None:
    values = np.random.default_rng(n).normal(0, 0.5, n)
    check_encoding(values, 1.0, PLANS["counts r=4"])


@pytest.mark.parametrize("name", ["counts r=4", "int8", "counts r=8"])
def test_ties_go_to_even(name: str) -> None:
    p = PLANS[name]
    values = np.array([0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, p.v - 0.5, -p.v + 0.5, 0.5 - 2**-54])
    rows, clipped = encode(values, float(p.v), p)  # a step of one
    assert decode_sum(rows, p).tolist() == [0, 2, 2, 4, 0, -2, -2, p.v - 1, 1 - p.v, 0]
    assert clipped == 0


@pytest.mark.parametrize("name", ["counts r=4", "int8", "counts r=8"])
def test_clips_are_counted_when_they_change_something(name: str) -> None:
    p = PLANS[name]
    v = float(p.v)
    values = np.array([v, -v, v + 0.25, v + 0.5, -v - 0.5, v + 1, 1e300, -1e300, 0.0])  # v is odd: v + 0.5 rounds up
    rows, clipped = encode(values, v, p)
    assert decode_sum(rows, p).tolist() == [p.v, -p.v, p.v, p.v, -p.v, p.v, p.v, -p.v, 0]
    assert clipped == 5


@pytest.mark.parametrize("name", ["counts r=4", "unary", "first primes"])
def test_a_negative_multiple_of_a_modulus_has_residue_zero(name: str) -> None:
    p = PLANS[name]
    multiples = [-k * m for m in p.moduli for k in (1, 2, 3) if k * m <= p.v]
    rows, _ = encode(np.array([*multiples, -0.0]), float(p.v), p)
    assert rows.tolist() == residues_of([*multiples, 0], p).tolist()
    assert all((row < m).all() for row, m in zip(rows, p.moduli, strict=True))


def test_multiples_of_every_modulus() -> None:
    # 49 * (1 / 49) is below 1 in float64: only where m divides x does the quotient by reciprocal need its correction.
    assert 49 * (1 / 49) < 1
    for m in (*range(2, 1500), *range(2**20 - 100, 2**20 + 1)):
        p = with_moduli(m, r=8)
        x = m * np.array([1, 2, 3, 7, 95, -1, -2, -7, -95]) + np.array([[0], [1], [-1]])
        rows, clipped = encode(x.reshape(-1).astype(np.float64), float(p.v), p)
        assert clipped == np.count_nonzero(np.abs(x) > p.v)
        inside = np.clip(x.reshape(-1), -p.v, p.v)
        assert np.array_equal(rows[0], inside % m)


def test_every_integer_of_a_small_plan() -> None:
    for p in (PLANS["counts r=3"], PLANS["unary"]):
        integers = list(range(-p.v, p.v + 1))
        rows, clipped = encode(np.array(integers, np.float64), float(p.v), p)
        assert clipped == 0
        assert np.array_equal(rows, residues_of(integers, p))


def test_writing_into_a_place() -> None:
    p = PLANS["counts r=4"]
    out = np.full((2, 10), 999, np.uint16)
    same, _ = encode(np.array([0.5, -0.5]), 1.0, p, out=out, at=3)
    assert same is out
    alone, _ = encode(np.array([0.5, -0.5]), 1.0, p)
    assert np.array_equal(out[:, 3:5], alone)
    assert (out[:, :3] == 999).all()
    assert (out[:, 5:] == 999).all()


@pytest.mark.parametrize("vector", generate.load("quantise.json")["good"])
def test_the_good_vectors(vector: reference.Json) -> None:
    p = with_moduli(*vector["moduli"], r=vector["r"], weight_levels=vector["weight_levels"])
    values = np.array([float.fromhex(x) for x in vector["values"]])
    rows, clipped = encode(values, float.fromhex(vector["bound"]), p, weight=vector["weight"])
    assert rows.tolist() == vector["residues"]
    assert clipped == vector["clipped"]
    assert decode_sum(rows, p).tolist() == vector["integers"]


@pytest.mark.parametrize("vector", generate.load("quantise.json")["bad"])
def test_the_bad_vectors(vector: reference.Json) -> None:
    p = with_moduli(*vector["moduli"], r=vector["r"], weight_levels=vector["weight_levels"])
    values = np.array([float.fromhex(x) for x in vector["values"]])
    with pytest.raises(LocalFault) as fault:
        encode(values, float.fromhex(vector["bound"]), p, weight=vector["weight"], name="layer1.weight")
    assert fault.value.reason == vector["reason"]
    assert fault.value.details.get("index") == vector.get("index")


# Weighted values beyond what float64 counts exactly.


@pytest.mark.parametrize("p", LONG.values(), ids=LONG)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_long_values_are_exact(p: Plan, kind: type[np.floating[Any]]) -> None:
    assert p.v * p.weight_levels >= EXACT or p.precision == 15
    rng = Random(str(p.moduli))
    edge = EXACT // p.v  # the last weight of the short road, and the first of the long one
    weights = {w for w in (1, edge - 1, edge, edge + 1, p.weight_levels) if 1 <= w <= p.weight_levels}
    for bound in (1.0, 0.1, 1e-9):
        wide = corners(bound, p.v) + [rng.uniform(-1.2, 1.2) * bound for _ in range(40)]
        values = np.array([x for x in wide if abs(x) <= float(np.finfo(kind).max)], kind)
        for weight in weights:
            check_encoding(values, bound, p, weight)


@pytest.mark.parametrize("r", [16, 17, 18])
def test_no_value_leaves_the_range_where_float64_has_no_v(r: int) -> None:
    p = plan(3, r)
    assert float(p.v) == p.v + 1
    rows, clipped = encode(np.array([1.0, -1.0, 2.0, -1e300]), 1.0, p)
    assert decode_sum(rows, p).tolist() == [p.v, -p.v, p.v, -p.v]
    assert clipped == 4


# What a silo refuses.


@pytest.mark.parametrize("p", [PLANS["counts r=4"], PLANS["counts r=8"], LONG["r=16"]], ids=["short", "wide", "long"])
@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_is_not_finite_is_refused_with_its_place(p: Plan, bad: float, kind: type[np.floating[Any]]) -> None:
    values = np.zeros(4100, kind)
    values[[4099, 2047, 3000]] = bad, nan, inf
    with pytest.raises(LocalFault, match=r"fc\.bias.*at position 2047") as fault:
        encode(values, 1.0, p, name="fc.bias")
    assert fault.value.reason is Reason.NOT_FINITE
    assert fault.value.details == {"tensor": "fc.bias", "index": 2047, "count": 3}


@pytest.mark.parametrize("bound", [0.0, -0.0, -1.0, nan, inf, -inf, 5e-324, 1e-310])
def test_a_bound_that_is_no_scale_is_refused(bound: float) -> None:
    # Below about 5e-305 the scale v / bound would be infinite, and a zero times that no number at all.
    p = PLANS["counts r=4"]
    with pytest.raises(LocalFault, match=r"fc\.bias") as fault:
        encode(np.zeros(3), bound, p, name="fc.bias")
    assert fault.value.reason is Reason.BAD_BOUND
    assert fault.value.details["tensor"] == "fc.bias"
    with pytest.raises(LocalFault) as fault:
        decode_mean(residue.zeros(p, 3), p, bound, 1)
    assert fault.value.reason is Reason.BAD_BOUND


@pytest.mark.parametrize(("name", "weight"), [("counts r=4", 0), ("counts r=4", 2), ("weights", 101), ("weights", -1)])
def test_a_weight_outside_its_levels_is_refused(name: str, weight: int) -> None:
    with pytest.raises(LocalFault) as fault:
        encode(np.zeros(3), 1.0, PLANS[name], weight=weight)
    assert fault.value.reason is Reason.BAD_WEIGHT
    assert fault.value.details == {"found": weight, "expected": PLANS[name].weight_levels}


# Sums.

MODULI = (
    *(2, 3, 4, 5, 255, 256, 257, 511, 512, 2**14 + 1, 2**15 - 1, 2**15),  # sums fit in 16 bits
    *(2**15 + 1, 2**16 - 1, 2**16, 2**16 + 1, 2**17, 2**19 + 1, 2**20 - 1, 2**20),
)


@pytest.mark.parametrize("value", [0, 1, 100, 10**9, -1, -512])
def test_an_integer_at_a_place(value: int) -> None:
    p = PLANS["weights"]
    out = residue.zeros(p, 3)
    residue.put_integer(value, p, out, 1)
    assert decode_sum(out, p).tolist() == [0, reference.crt([value % m for m in p.moduli], p.moduli), 0]


def times(rows: Residues, n: int, p: Plan) -> Residues:
    """Add rows up n times, by doubling."""
    total = np.zeros_like(rows)
    power = rows.copy()
    while n:
        if n & 1:
            add_up(total, power, p)
        add_up(power, power.copy(), p)
        n >>= 1
    return total


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("level", [Level.SEMI_HONEST, Level.MALICIOUS])
@pytest.mark.parametrize("r", [8, 12, 16])
@pytest.mark.parametrize("n", [1000, 10_000])
def test_the_papers_table_for_more_clients_up_to_its_extremes(n: int, r: int, level: Level, encoding: Encoding) -> None:
    p = plan(n, r, encoding, level)
    rng = Random(r)
    values = [1.0, -1.0, 0.0, -0.0, 0.5, 1 / 3, -1e-8, 1e-16, *(rng.uniform(-1, 1) for _ in range(20))]
    integers = [reference.quantise(x, 1.0, p.v)[0] for x in values]
    assert integers[:2] == [p.v, -p.v]
    rows, _ = encode(np.array(values), 1.0, p)
    total = times(rows, n, p)
    assert decode_sum(total, p).tolist() == [n * x for x in integers]
    mean = decode_mean(total, p, 1.0, n)
    assert mean.tolist() == pytest.approx([x / p.v for x in integers], rel=1e-15, abs=0)
    # One silo's step beyond the extreme is refused, on either side.
    for extra in (1, -1):
        step = times(residues_of([extra], p), 1, p)
        beyond = total[:, :1].copy() if extra > 0 else total[:, 1:2].copy()
        add_up(beyond, step, p)
        with pytest.raises(PeerFault) as fault:
            decode_mean(beyond, p, 1.0, n)
        assert fault.value.reason is Reason.OUT_OF_RANGE


# Decoding.


def edges_of(p: Plan) -> list[int]:
    """Sums near every border of the range, and within."""
    rng = Random(p.M)
    low, high = -(p.M // 2), (p.M - 1) // 2
    part = residue.Crt.of(p.moduli).low_product
    sums = [0, 1, low, low + 1, high, high - 1, high - part // 2, high - part // 2 - 1]
    sums += [s for k in (1, 2, 3) for s in (k * part, k * part // 2, k * part // 2 + 1)]
    sums += [-s for s in sums] + [rng.randint(low, high) for _ in range(50)]
    return [s for s in sums if low <= s <= high]


@st.composite
def coprime_moduli(draw: st.DrawFn) -> tuple[int, ...]:
    """Pairwise coprime moduli in any order, with a product of up to 100 bits."""
    chosen: list[int] = []
    for m in draw(st.lists(st.integers(2, 1 << 20) | st.integers(2, 200), min_size=1, max_size=16)):
        if all(gcd(m, c) == 1 for c in chosen) and prod(chosen) * m <= 1 << 100:
            chosen.append(m)
    return tuple(chosen)


@given(moduli=coprime_moduli())
def test_decoding_over_the_whole_range(moduli: tuple[int, ...]) -> None:
    p = with_moduli(*moduli)
    sums = edges_of(p)
    rows = residues_of(sums, p)
    assert [reference.crt(column, moduli) for column in rows.T.tolist()] == sums
    decoded = decode_sum(rows, p)
    assert decoded.dtype == (np.int64 if p.M < FAST_RANGE else object)
    assert decoded.tolist() == sums


@pytest.mark.parametrize("moduli", [(512, 49), (49, 50), (98, 103), (2, 3), (255, 256), (1021,), (4, 9, 49)], ids=str)
def test_every_sum_of_small_moduli(moduli: tuple[int, ...]) -> None:
    p = with_moduli(*moduli)
    sums = list(range(-(p.M // 2), (p.M - 1) // 2 + 1))
    rows = residues_of(sums, p)
    assert decode_sum(rows, p).tolist() == sums
    assert decode_mean(rows, p, float(p.v), 1, limit=p.M).tolist() == sums


JUST_BELOW = (1048575, 1048573, 1048571, 4)
JUST_ABOVE = (46337, 46339, 46349, 46351)


@pytest.mark.parametrize(
    ("moduli", "fast"),
    [
        (JUST_BELOW, True),
        (JUST_ABOVE, False),
        ((1048576, 1048575, 1048573, 1048571, 1048567), False),
        ((262143, 262141, 262139, 131072, 131071), False),  # an even modulus in the high part
        ((1048575, 1048573, 1048571, 524288, 524287), False),
        ((1048575, 1048573, 1048571, 2), True),
        ((1048575, 1048573, 1048571, 8), False),
    ],
)
def test_the_border_between_one_word_and_two(moduli: tuple[int, ...], fast: bool) -> None:
    p = with_moduli(*moduli)
    assert (p.M < FAST_RANGE) is fast
    sums = edges_of(p)
    decoded = decode_sum(residues_of(sums, p), p)
    assert (decoded.dtype == np.int64) is fast
    assert decoded.tolist() == sums


def test_the_border_is_close() -> None:
    assert 0 < 1 - prod(JUST_BELOW) / FAST_RANGE < 1e-5
    assert 0 < prod(JUST_ABOVE) / FAST_RANGE - 1 < 1e-3


DECODERS = {
    "one modulus": with_moduli(1021, n_max=5, r=2),
    "two moduli": plan(10, 4, headroom=3),
    "two wide moduli": plan(1000, 8),
    "one word": plan(10, 8, Encoding.FIRST_PRIMES),
    "one word in 32 bits": plan(1000, 12),
    "two words": plan(100, 16, weight_levels=400),
    "two words of small moduli": plan(10_000, 16, Encoding.UNARY),
}


def test_the_decoders_are_all_there() -> None:
    assert [len(p.moduli) for p in list(DECODERS.values())[:3]] == [1, 2, 2]
    assert [p.M < FAST_RANGE for p in DECODERS.values()] == [True] * 5 + [False] * 2


@pytest.mark.parametrize("p", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_mean_is_the_sum_over_v_times_the_bound(p: Plan, kind: type[np.floating[Any]]) -> None:
    rng = Random(p.M)
    sums = [0, 1, -1, 2, -3, 400, p.limit, -p.limit, *(rng.randint(-p.limit, p.limit) for _ in range(40))]
    rows = residues_of(sums, p)
    for bound, divisor in ((1.0, 1), (0.037, 7), (1e-20, p.n_max * p.weight_levels)):
        out = np.empty(len(sums) - 2, kind)
        for at in (0, 2):
            part = decode_mean(rows, p, bound, divisor, out=out, at=at)
            assert part is out
            for s, mean in zip(sums[at:], part.tolist(), strict=False):
                exact = Fraction(s) * Fraction(bound) / (p.v * divisor)
                # Three roundings to float64 (the factor, the sum, their product) and one to the tensor's type.
                allowed = 4 * ulp(float(exact)) + float(np.spacing(kind(abs(exact))))
                assert abs(Fraction(mean) - exact) <= allowed, (s, mean)


@pytest.mark.parametrize("p", DECODERS.values(), ids=DECODERS)
def test_small_sums_keep_their_digits(p: Plan) -> None:
    sums = list(range(-20, 21))
    mean = decode_mean(residues_of(sums, p), p, float(p.v), 1)  # a factor of one, but for the rounding of v
    assert mean.tolist() == [s * (float(p.v) / p.v) for s in sums]


@pytest.mark.parametrize("p", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize("limit", [None, 0, 5])
def test_sums_out_of_range_are_refused_and_counted(p: Plan, limit: int | None) -> None:
    top = p.limit if limit is None else limit
    within = [0, top, -top] * 900
    outside = [s for s in (top + 1, -top - 1, (p.M - 1) // 2, -(p.M // 2)) if abs(s) > top and abs(2 * s) <= p.M]
    outside = [s for s in outside if 2 * s < p.M]
    assert decode_mean(residues_of(within, p), p, 1.0, 1, limit=limit).shape == (2700,)
    rng = Random(1)
    for k in range(1, len(outside) + 1):
        sums = within + outside[:k]
        rng.shuffle(sums)
        with pytest.raises(PeerFault, match=r"fc\.weight") as fault:
            decode_mean(residues_of(sums, p), p, 1.0, 1, limit=limit, name="fc.weight")
        assert fault.value.reason is Reason.OUT_OF_RANGE
        assert fault.value.details == {"tensor": "fc.weight", "count": k, "limit": top}
    assert outside or limit is None


@given(
    name=st.sampled_from(["counts r=4", "weights", "first primes", "malicious r=8", "int8 with weights"]),
    silos=st.integers(1, 10),
    seed=st.integers(0, 100),
)
def test_the_sum_of_silos_is_the_sum_of_their_integers(name: str, silos: int, seed: int) -> None:
    p, rng = PLANS[name], Random(seed)
    bound = rng.choice(BOUNDS)
    total = residue.zeros(p, 17)
    exact = [0] * 17
    for _ in range(silos):
        weight = rng.randint(1, p.weight_levels)
        values = [rng.uniform(-1.1, 1.1) * bound for _ in range(17)]
        rows, _ = encode(np.array(values), bound, p, weight=weight)
        add_up(total, rows, p)
        exact = [s + weight * reference.quantise(x, bound, p.v)[0] for s, x in zip(exact, values, strict=True)]
    assert decode_sum(total, p).tolist() == exact
