"""The paper's algorithms against its own examples and defects, and our codec against them."""

from collections import Counter, defaultdict
from collections.abc import Callable, MutableSequence, Sequence
from functools import cache, partial
from itertools import permutations, product
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.numbers import oracle
from tests.core.numbers.adding import add_up
from tests.tools import examples

from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.packing import Residues
from silomix.runtime.core.numbers.plan import Encoding, Level, Plan, plan

FIGURE = (3, 5, 7)
"""The moduli of the paper's figure and of its worked example."""

cached_plan = cache(plan)
deterministic = partial(settings, derandomize=True, deadline=None)

coprime = st.sampled_from([(7,), (3, 5), FIGURE, (4, 9), (2, 3, 5, 7), (5, 7, 8, 9, 11, 13), (31, 32)])


def rounded(p: float, r: int) -> int:
    """Quantise as we do, with the bound that makes our step the paper's: 10^-r."""
    v = 10**r - 1
    return oracle.round_clip(p, v / 10**r, v)[0]


# --- definitions: unary, RLE, RNS, CRT --------------------------------------------------------------------------------


def test_def_unary_puts_ones_first_and_takes_x_up_to_k() -> None:
    assert oracle.unary(3, 5) == [1, 1, 1, 0, 0]
    assert oracle.unary(0, 2) == [0, 0]
    assert oracle.unary(2, 2) == [1, 1]
    for x in (-1, 3):
        with pytest.raises(ValueError, match="not defined"):
            oracle.unary(x, 2)


def test_appendix_rle_example_sends_the_number_of_ones() -> None:
    assert oracle.rle([1, 1, 1, 0, 0, 0, 0, 0, 0, 0]) == 3
    assert oracle.unrle(3, 10) == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="ones first"):
        oracle.rle([0, 1])


def test_appendix_rle_roundtrip() -> None:
    for k in range(9):
        for x in range(k + 1):
            assert oracle.unrle(oracle.rle(oracle.unary(x, k)), k) == oracle.unary(x, k)


def test_appendix_crt_worked_example() -> None:
    steps = oracle.crt_steps((1, 0, 6), FIGURE)
    assert steps == oracle.Crt(M=105, M_i=[35, 21, 15], y_i=[2, 1, 1], x=55)
    assert oracle.rns_encode(55, FIGURE) == [1, 0, 6]


def test_prop_range_rns_is_lossless_to_both_ends_and_no_further() -> None:
    for moduli in ((3, 5, 7), (4, 9), (2, 3, 5), (8,)):
        M = prod(moduli)
        low, high = -(M // 2), (M - 1) // 2
        assert [oracle.crt(oracle.rns_encode(x, moduli), moduli) for x in range(low, high + 1)] == list(
            range(low, high + 1)
        )
        assert oracle.crt(oracle.rns_encode(high + 1, moduli), moduli) == low
        assert oracle.crt(oracle.rns_encode(low - 1, moduli), moduli) == high


def test_def_rns_sign_rule_as_printed_gives_m_where_0_is_due() -> None:
    """Sec. 2: "x is encoded as m_j - x_j". A residue is below its modulus, and m_j is not."""
    assert oracle.rns_encode(-15, FIGURE) == [3, 5, 6]
    assert oracle.rns_encode_corrected(-15, FIGURE) == [0, 0, 6]
    for m in (2, 3, 4, 5, 7):
        for x in range(-4 * m, 4 * m):
            (printed,), (corrected,) = oracle.rns_encode(x, [m]), oracle.rns_encode_corrected(x, [m])
            assert corrected == x % m
            assert printed == (m if x < 0 and x % m == 0 else x % m)


def test_alg1_sign_rule_as_printed_still_sums_right_mod_m() -> None:
    """U(m, m) has room for the m ones, and the server reduces them: what is wrong is the residue, not the mean."""
    for m in (2, 3, 4, 5, 7):
        for a, b in product(range(-2 * m, 2 * m + 1), repeat=2):
            view = oracle.server_view([[a], [b]], [m], Random(0))
            assert [len(vector) for vector in view.bits[0]] == [2 * m]
            assert view.reduced([m]) == [[(a + b) % m]]


# --- shuffling --------------------------------------------------------------------------------------------------------


class Dealt(Random):
    """Randomness that deals one order, so that all of them can be dealt."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__(0)
        self.order = order

    def shuffle(self, x: MutableSequence[Any]) -> None:
        x[:] = self.order


def test_prop_sum_eq_shuffle_shuffled_bits_carry_exactly_their_sum() -> None:
    """Vectors of one sum have one law once shuffled, and vectors of two sums never look alike."""
    laws: dict[int, list[Counter[tuple[int, ...]]]] = defaultdict(list)
    for bits in product((0, 1), repeat=4):
        law = Counter(tuple(oracle.shuffle(bits, Dealt(order))) for order in permutations(range(4)))
        laws[sum(bits)].append(law)
    assert sorted(laws) == [0, 1, 2, 3, 4]
    for ones, alike in laws.items():
        assert all(law == alike[0] for law in alike)
        assert {sum(bits) for bits in alike[0]} == {ones}


@given(st.lists(st.integers(0, 1)), st.integers(0, 2**32))
@deterministic(max_examples=examples(50))
def test_alg1_shuffle_is_a_permutation(bits: list[int], seed: int) -> None:
    assert sorted(oracle.shuffle(bits, Random(seed))) == sorted(bits)
    assert sorted(oracle.shuffle(range(len(bits)), Random(seed))) == list(range(len(bits)))


def test_alg1_server_sees_shuffled_bits_and_residue_sums_beyond_m() -> None:
    integers = [[2, -1], [2, 6]]
    view = oracle.server_view(integers, FIGURE, Random(1))
    assert [[len(vector) for vector in vectors] for vectors in view.bits] == [[6, 10, 14], [6, 10, 14]]
    assert view.residue_sums == [[4, 4, 4], [2 + 0, 4 + 1, 6 + 6]]
    assert view.reduced(FIGURE) == [[1, 4, 4], [2, 0, 5]]
    assert view.decode(FIGURE) == [4, 5]
    again = oracle.server_view(integers, FIGURE, Random(2))
    assert again.bits != view.bits
    assert again.residue_sums == view.residue_sums


# --- Alg. 1 and its variant with RLE ----------------------------------------------------------------------------------


def test_figure_rns_shape_moduli_3_5_7_r2_n2() -> None:
    """Fig. "Example of Alg. 1": two clients, one parameter, two digits; 3 + 5 + 7 bits of each client."""
    models = [[0.25], [-0.02]]
    view = oracle.server_view([[25], [-2]], FIGURE, Random(0))
    assert [len(vector) for vector in view.bits[0]] == [2 * 3, 2 * 5, 2 * 7]
    assert view.residue_sums == [[1 + 1, 0 + 3, 4 + 5]]
    assert view.decode(FIGURE) == [23]
    assert oracle.alg1(models, 2, FIGURE, Random(0)) == [0.23 / 2]


def test_figure_rns_moduli_cannot_hold_the_sum_that_the_worked_example_decodes() -> None:
    """55 = 25 + 30 lies beyond floor((105 - 1) / 2) = 52: in the range proposition's terms the residues say -50."""
    assert oracle.crt((1, 0, 6), FIGURE) == 55 - 105
    assert oracle.alg1([[0.25], [0.3]], 2, FIGURE, Random(0)) == [-0.25]


@pytest.mark.parametrize(("n", "r", "moduli"), [(2, 2, FIGURE), (3, 1, (2, 13)), (10, 1, (8, 11)), (4, 2, (18, 19))])
def test_alg1_printed_condition_on_the_moduli_decodes_wrongly(n: int, r: int, moduli: tuple[int, ...]) -> None:
    """Alg. 1 asks for prod(m) < n (10^r - 1): then n silos at the largest value sum to more than M itself."""
    v = 10**r - 1
    assert prod(moduli) < n * v
    for x in (v, -v):
        assert oracle.server_view([[x]] * n, moduli, Random(0)).decode(moduli) != [n * x]


def test_alg1_true_condition_2nv_plus_1_is_exactly_enough() -> None:
    """n = 3, r = 1 need 2nv + 1 = 55 = 5 * 11 sums. The text's n v < floor((M - 1) / 2) refuses it: 27 < 27."""
    n, v, moduli = 3, 9, (5, 11)
    assert 2 * n * v + 1 == prod(moduli)
    assert not n * v < (prod(moduli) - 1) // 2
    for total in range(-n * v, n * v + 1):
        shares = [total // n + (i < total % n) for i in range(n)]
        assert sum(shares) == total
        assert oracle.server_view([[x] for x in shares], moduli, Random(total)).decode(moduli) == [total]


def test_alg1_with_one_sum_too_few_an_extreme_wraps() -> None:
    """M = 54 = 2 * 27 is one short of 2nv + 1 = 55: -27 decodes, +27 comes out as -27."""
    n, v, moduli = 3, 9, (2, 27)
    assert oracle.server_view([[-v]] * n, moduli, Random(0)).decode(moduli) == [-n * v]
    assert oracle.server_view([[v]] * n, moduli, Random(0)).decode(moduli) == [-n * v]


def test_alg1_floor_as_printed_reaches_beyond_v() -> None:
    """v is "the largest integer with r digits", and floor takes p just above -1 to -10^r: one more."""
    r, v = 2, 99
    assert oracle.floor_scale(-0.9999, r) == -(v + 1)
    assert oracle.floor_scale(0.9999, r) == v
    models = [[-0.999]] * 3
    assert oracle.alg1(models, 1, (3, 4, 5), Random(0)) == [-1.0]
    tight = (5, 11)  # 2nv + 1 = 55 fits exactly, so the sum -30 comes out as 25
    assert oracle.alg1(models, 1, tight, Random(0)) == [pytest.approx(25 / 10 / 3)]
    assert oracle.round_clip(-0.999, 1.0, 9) == (-9, False)


def test_alg1_floor_as_printed_biases_the_mean_by_half_a_step() -> None:
    n, r, parameters = 3, 2, 3000
    rng = np.random.default_rng(7)
    models = rng.uniform(-0.98, 0.98, (n, parameters))
    moduli = plan(n, r, Encoding.UNARY).moduli
    step, truth = 10.0**-r, models.mean(axis=0)

    def bias(quantise: Callable[[float], int]) -> float:
        mean = oracle.alg1(models.tolist(), r, moduli, Random(0), quantise=quantise)
        return float(np.mean(mean - truth)) / step

    deviation = (1 / 12 / (n * parameters)) ** 0.5  # of the mean of so many rounding errors, in steps
    assert bias(partial(oracle.floor_scale, r=r)) == pytest.approx(-0.5, abs=5 * deviation)
    assert bias(partial(rounded, r=r)) == pytest.approx(0.0, abs=5 * deviation)


def test_round_clip_takes_halves_to_even_and_counts_what_it_clips() -> None:
    assert [oracle.round_clip(p, 1.0, 10)[0] for p in (0.05, 0.15, 0.25, -0.05, -0.15)] == [0, 2, 2, 0, -2]
    assert oracle.round_clip(2.0, 2.0, 99) == (99, False)
    assert oracle.round_clip(-2.0, 2.0, 99) == (-99, False)
    assert oracle.round_clip(2.001, 2.0, 99) == (99, False)  # beyond the bound, yet it rounds to v
    assert oracle.round_clip(2.02, 2.0, 99) == (99, True)
    assert oracle.round_clip(-1.7e308, 2.0, 99) == (-99, True)


@given(coprime, st.data())
@deterministic(max_examples=examples(60))
def test_alg1_rle_equals_alg1(moduli: tuple[int, ...], data: st.DataObject) -> None:
    """Alg. "RNS combined with RLE": the same joint model, and the same view up to the shuffle."""
    n, r = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    row = st.lists(st.floats(-1, 1, exclude_min=True, exclude_max=True), min_size=2, max_size=2)
    models = data.draw(st.lists(row, min_size=n, max_size=n))
    assert oracle.alg1(models, r, moduli, Random(1)) == oracle.alg1_rle(models, r, moduli, Random(2))
    integers = [[oracle.floor_scale(p, r) for p in model] for model in models]
    plain, packed = (oracle.server_view(integers, moduli, Random(3), compress=c) for c in (False, True))
    assert plain == packed


@given(coprime, st.data())
@deterministic(max_examples=examples(60))
def test_alg1_decodes_the_sum_under_both_sign_rules(moduli: tuple[int, ...], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 3))
    v = (prod(moduli) - 1) // (2 * n)
    integers = data.draw(st.lists(st.lists(st.integers(-v, v), min_size=2, max_size=2), min_size=n, max_size=n))
    for encode in (oracle.rns_encode, oracle.rns_encode_corrected):
        assert oracle.server_view(integers, moduli, Random(0), encode=encode).decode(moduli) == [
            sum(values) for values in zip(*integers, strict=True)
        ]


# --- our codec --------------------------------------------------------------------------------------------------------

POLICIES = [
    (Encoding.UNARY, Level.TRUSTED),
    (Encoding.FIRST_PRIMES, Level.TRUSTED),
    (Encoding.COUNTS, Level.SEMI_HONEST),
    (Encoding.UNARY, Level.MALICIOUS),
    (Encoding.COUNTS, Level.MALICIOUS),
]
EVERY_POLICY = pytest.mark.parametrize(("encoding", "level"), POLICIES, ids=lambda member: str(member))


@st.composite
def cohorts(draw: st.DrawFn, n_max: int, bound: float, v: int) -> list[list[float]]:
    """A model for each of 1..n_max silos, with much of what is hard: extremes, ties, zeros, and beyond the bound."""
    ties = st.integers(-v, v).map(lambda k: (k + 0.5) * (bound / v))
    special = [bound, -bound, 0.0, -0.0, 5e-324, -1e-300, bound * 1e-9, bound * 1.0001, -3 * bound, 1e300, -1.7e308]
    value = st.one_of(st.sampled_from(special), ties, st.floats(-1.1 * bound, 1.1 * bound))
    n, parameters = draw(st.integers(1, n_max)), draw(st.integers(1, 4))
    row = st.lists(value, min_size=parameters, max_size=parameters)
    return draw(st.lists(row, min_size=n, max_size=n))


def summed(models: list[list[float]], bound: float, p: Plan, weights: Sequence[int]) -> tuple[Residues, int]:
    """Our path as the runtime goes it: every silo encodes, by the corrected sign rule, and a hop adds up."""
    total = residue.zeros(p, len(models[0]))
    clipped = 0
    for model, weight in zip(models, weights, strict=True):
        residues, beyond = residue.encode(np.array(model), bound, p, weight=weight)
        integers = [weight * oracle.round_clip(x, bound, p.v)[0] for x in model]
        assert residues.T.tolist() == [oracle.rns_encode_corrected(x, p.moduli) for x in integers]
        add_up(total, residues, p)
        clipped += beyond
    return total, clipped


@EVERY_POLICY
@given(data=st.data())
@deterministic(max_examples=examples(40))
def test_codec_sums_equal_alg1_with_bits_really_permuted(encoding: Encoding, level: Level, data: st.DataObject) -> None:
    """Alg. 1 with rounding in place of the floor: the same sums, reduced residues, clip count and mean."""
    p = cached_plan(5, data.draw(st.integers(1, 3)), encoding, level)
    bound = data.draw(st.sampled_from([1.0, 0.5, 3e-3, 7.25]))
    models = data.draw(cohorts(p.n_max, bound, p.v))
    quantised = [[oracle.round_clip(x, bound, p.v) for x in model] for model in models]
    integers = [[x for x, _ in row] for row in quantised]
    sums = [sum(values) for values in zip(*integers, strict=True)]

    total, clipped = summed(models, bound, p, [1] * len(models))

    view = oracle.server_view(integers, p.moduli, Random(data.draw(st.integers(0, 2**32))))
    assert view.decode(p.moduli) == sums
    assert residue.decode_sum(total, p).tolist() == sums
    assert total.T.tolist() == view.reduced(p.moduli)
    assert clipped == sum(beyond for row in quantised for _, beyond in row)
    mean = residue.decode_mean(total, p, bound, len(models))
    assert mean == pytest.approx([s / p.v * bound / len(models) for s in sums], rel=1e-12, abs=0)


@EVERY_POLICY
def test_codec_extremes_of_a_full_roster_decode(encoding: Encoding, level: Level) -> None:
    """2nv + 1 <= M: n_max silos, all at an end of the range or beyond it, at the precision of the paper's r = 4."""
    p = plan(10, 4, encoding, level)
    model = [1.0, -1.0, 1e9, -1e9, 0.0, -0.0]
    total, clipped = summed([model] * 10, 1.0, p, [1] * 10)
    sums = [10 * p.v, -10 * p.v, 10 * p.v, -10 * p.v, 0, 0]
    assert residue.decode_sum(total, p).tolist() == sums
    assert clipped == 20
    integers = [[oracle.round_clip(x, 1.0, p.v)[0] for x in model]] * 10
    assert oracle.server_view(integers, p.moduli, Random(0)).decode(p.moduli) == sums


@pytest.mark.parametrize(("r", "weight_levels"), [(2, 7), (4, 1000), (8, 1), (15, 1), (15, 4000)])
@EVERY_POLICY
@given(data=st.data())
@deterministic(max_examples=8)
def test_codec_sums_equal_the_weighted_integers_at_any_precision(
    encoding: Encoding, level: Level, r: int, weight_levels: int, data: st.DataObject
) -> None:
    """docs/protocol.md section 3, weights: exact however many digits. The bits would be too many; the CRT is enough."""
    p = cached_plan(6, r, encoding, level, weight_levels)
    models = data.draw(cohorts(p.n_max, 1.0, p.v))
    weight = st.one_of(st.sampled_from([1, weight_levels]), st.integers(1, weight_levels))
    weights = data.draw(st.lists(weight, min_size=len(models), max_size=len(models)))
    integers = [
        [w * oracle.round_clip(x, 1.0, p.v)[0] for x in model] for model, w in zip(models, weights, strict=True)
    ]
    sums = [sum(values) for values in zip(*integers, strict=True)]

    total, _ = summed(models, 1.0, p, weights)

    assert residue.decode_sum(total, p).tolist() == sums
    assert [oracle.crt(row, p.moduli) for row in total.T.tolist()] == sums
    assert residue.decode_mean(total, p, 1.0, sum(weights)) == pytest.approx(
        [s / p.v / sum(weights) for s in sums], rel=1e-12, abs=0
    )


def test_codec_takes_float32_as_it_is() -> None:
    p = plan(3, 4)
    model = np.random.default_rng(3).uniform(-1.05, 1.05, 500).astype(np.float32)
    residues, clipped = residue.encode(model, 1.0, p)
    expected = [oracle.round_clip(float(x), 1.0, p.v) for x in model]
    assert residue.decode_sum(residues, p).tolist() == [x for x, _ in expected]
    assert clipped == sum(beyond for _, beyond in expected) > 0


def test_codec_mean_is_within_half_a_step_of_the_true_mean() -> None:
    """S.4 (accuracy): a mean of rounded values is off by half a step at most, and by much less on average."""
    p, bound = plan(8, 4), 0.25
    models = np.random.default_rng(5).uniform(-bound, bound, (8, 2000))
    total, clipped = summed(models.tolist(), bound, p, [1] * 8)
    error = residue.decode_mean(total, p, bound, 8) - models.mean(axis=0)
    step = bound / p.v
    assert clipped == 0
    assert np.abs(error).max() <= step / 2
    assert abs(error.mean()) < 0.02 * step
