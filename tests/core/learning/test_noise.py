"""The noise: the distribution that it is drawn from, its room in the plan, and the privacy that follows."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from math import erfc, exp, inf, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.learning.noise import MAX_VARIANCE, Noise, _table, clip, discrete_gaussian
from silomix.runtime.core.learning.noise_account import epsilon, multiplier_for, rho, spent
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.plan import Granularity, Level, Quantiser, plan
from silomix.runtime.core.numbers.schema import Dtype, Schema, TensorSpec, as_dtype
from silomix.runtime.core.policy import Policy, Server, UpdateKind
from silomix.runtime.core.protocol.federation import Federation, Member


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- the sampler ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [1, 2, 7, 100, 12_345])
def test_the_table_is_the_distribution_to_100_bits(variance: int) -> None:
    high, low = _table(variance)
    with localcontext() as context:
        context.prec = 80
        weights = [(-Decimal(k * k) / (2 * variance)).exp() for k in range(len(high) + 200)]
        total = weights[0] + 2 * sum(weights[1:])
        reached = weights[0]
        for k in range(len(high)):
            reached += 2 * weights[k] if k else 0
            threshold = Decimal((int(high[k]) << 64) + int(low[k])) / Decimal(1 << 128)
            assert abs(threshold - reached / total) < Decimal(2) ** -100
    assert 1 - Fraction((int(high[-1]) << 64) + int(low[-1]), 1 << 128) < Fraction(1, 1 << 120)


@pytest.mark.parametrize("variance", [1, 30, 10_000])
def test_draws_fit_the_distribution(variance: int) -> None:
    """Chi-square over equal bins of the exact probabilities; a fair draw exceeds the limit once in a million."""
    n = 200_000
    found = discrete_gaussian(variance, n, rng(variance).bytes)
    reach = int(6 * sqrt(variance)) + 1
    weights = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * variance))
    probabilities = weights / weights.sum()
    edges = np.searchsorted(np.cumsum(probabilities), np.arange(1, 20) / 20)
    bins = np.unique(edges)
    expected = n * np.add.reduceat(probabilities, np.concatenate([[0], bins + 1]))
    counts = np.bincount(np.searchsorted(bins - reach, found, side="left"), minlength=len(expected))
    assert ((counts - expected) ** 2 / expected).sum() < 65
    assert abs(found.mean()) < 5 * sqrt(variance / n)


def test_a_draw_on_a_threshold_is_decided_by_the_low_words() -> None:
    high, low = _table(4)

    def draw(k: int, offset: int) -> int:
        word = (int(high[k]) << 64) + int(low[k]) + offset
        words = (word >> 64).to_bytes(8, "little") + (word & (1 << 64) - 1).to_bytes(8, "little")

        def source(n: int) -> bytes:
            return words if n == 16 else b"\x80"

        return int(discrete_gaussian(4, 1, source)[0])

    for k in (0, 1, 5, len(high) - 3):
        assert draw(k, -1) == k
        assert draw(k, 0) == k + 1


def test_the_same_bytes_give_the_same_noise_and_nothing_else_does() -> None:
    draws = [discrete_gaussian(50, 100, rng(seed).bytes) for seed in (1, 1, 2)]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert discrete_gaussian(50, 0, rng(1).bytes).shape == (0,)
    for variance in (0, -1, MAX_VARIANCE + 1):
        with pytest.raises(ValueError, match="variance"):
            discrete_gaussian(variance, 1, rng(1).bytes)


# --- its room ---------------------------------------------------------------------------------------------------------


def federation(silos: int, **changes: object) -> Federation:
    def member(name: str) -> Member:
        return Member(name, name.encode().ljust(32, b"."))

    names = tuple(member(f"silo-{i:02}") for i in range(1, silos + 1))
    policy = replace(Policy(clip_norm=1.0), **changes)  # type: ignore[arg-type]
    return Federation("f", member("aggregator"), (member("hop"),), names, policy)


@pytest.mark.parametrize("silos", [3, 10, 100])
@pytest.mark.parametrize("multiplier", [0.01, 0.5, 3.0, 30.0])
@pytest.mark.parametrize("kept", [{"precision": 2}, {"precision": 3}, {"quantiser": Quantiser.INT8}])
def test_the_plan_has_room_for_the_noise(silos: int, multiplier: float, kept: dict[str, object]) -> None:
    f = federation(silos, noise_multiplier=multiplier, **kept)
    noise, p = f.noise, f.plan
    wanted = (multiplier * p.v) ** 2 / max(3, silos // 2 + 1)  # a majority adds it up
    assert wanted <= noise.variance <= max(1, wanted + 1)
    assert 2 * (silos * p.v + noise.slack(silos)) + 1 <= p.M
    assert noise.slack(silos) >= 12 * sqrt(silos * wanted)
    bare = plan(silos, f.policy.precision, quantiser=f.policy.quantiser)
    assert p.packed_bits <= bare.packed_bits + noise.headroom(silos, silos * p.v) + 1


def test_a_sum_with_noise_decodes_and_one_beyond_it_is_refused() -> None:
    f = federation(5, noise_multiplier=2.0, precision=2)
    noise = f.noise
    schema = Schema((TensorSpec("a", (40,)), TensorSpec("b", (300,))))
    codec = Codec(schema, (1.0, 1.0), f.plan, 128)
    total = codec.layout.body()
    updates = [{t.name: rng(i).uniform(0.9, 1, t.shape).astype(np.float32) for t in schema.tensors} for i in range(5)]
    draws: list[npt.NDArray[np.int64]] = []

    def draw(n: int) -> npt.NDArray[np.int64]:
        draws.append(noise.draw(n, rng(100 + len(draws)).bytes))
        return draws[-1]

    for update in updates:
        for i, planes in enumerate(codec.encode(update, noise=draw)):
            codec.layout.add(total, i, planes)
    exact = sum(np.concatenate([np.rint(u["a"] * 99), np.rint(u["b"] * 99)]) for u in updates)
    pieces = np.array_split(np.arange(len(draws)), 5)
    added = sum(np.concatenate([draws[i] for i in own]) for own in pieces)
    assert np.abs(exact + added).max() > 5 * 99  # so that the slack is needed
    mean = codec.decode(total, 5, noise.slack(5)).tensors
    found = np.concatenate([mean["a"], mean["b"]]) * 99 * 5
    assert np.allclose(found, exact + added, atol=1e-2)
    with pytest.raises(PeerFault) as caught:
        codec.decode(total, 5)
    assert caught.value.reason is Reason.OUT_OF_RANGE


def test_noise_that_would_drown_the_digits_is_refused_with_advice() -> None:
    with pytest.raises(LocalFault, match="keep 2 decimal digit") as caught:
        _ = federation(3, noise_multiplier=10.0, precision=5).plan
    assert caught.value.reason is Reason.PLAN_INFEASIBLE
    assert federation(3, noise_multiplier=10.0, precision=3).plan.M > 0


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"clip_norm": 0.0}, "noise_multiplier"),
        ({"update": UpdateKind.WEIGHTS}, "noise_multiplier"),
        ({"weight_levels": 2}, "noise_multiplier"),
        ({"granularity": Granularity.NONE}, "granularity"),
        ({"granularity": Granularity.NONE, "level": Level.TRUSTED}, "noise_multiplier"),
        ({"level": Level.TRUSTED}, "noise_multiplier"),
        ({"server": Server.MEDIAN}, "server"),
    ],
)
def test_what_noise_cannot_stand_beside_is_a_conflict(changes: dict[str, object], key: str) -> None:
    fine = Policy(clip_norm=1.0, noise_multiplier=1.0)
    assert fine.conflict() is None
    found = replace(fine, **changes).conflict()  # type: ignore[arg-type]
    assert found is not None
    assert found[0] == key


# --- clipping ---------------------------------------------------------------------------------------------------------


def norm_of(update: Mapping[str, npt.NDArray[Any]], v: int, bound: float) -> float:
    integers = [np.clip(np.rint(a.astype(np.float64) * (v / bound)), -v, v) for a in update.values()]
    return float(np.sqrt(sum(np.square(x).sum() for x in integers))) * bound / v


@pytest.mark.parametrize("bound", [1.0, 0.25])
@pytest.mark.parametrize("size", [1e-4, 0.01, 0.6, 40.0])
def test_the_integers_of_a_clipped_update_are_no_longer_than_the_norm(size: float, bound: float) -> None:
    schema = Schema((TensorSpec("a", (50, 20)), TensorSpec("b", (7,))))
    for seed in range(5):
        update = {t.name: (size * rng(seed).normal(size=t.shape)).astype(np.float32) for t in schema.tensors}
        for v in (9, 127, 9999):
            for norm in (0.01, 0.5, 3.0):
                clipped = clip(update, schema, bound, v, norm)
                assert norm_of(clipped, v, bound) <= norm * (1 + 1e-12)
                if norm_of(update, v, bound) <= norm:
                    assert all(clipped[name] is update[name] for name in update)
                elif v == 9999 and norm > 0.1:  # and no shorter than it must be: many steps fit into the norm
                    assert norm_of(clipped, v, bound) > 0.9 * norm


def test_rounding_does_not_lengthen_a_vector_of_small_values_beyond_the_norm() -> None:
    """Ten thousand values of 0.6 steps have a norm of 60 steps; as integers, of 100."""
    schema = Schema((TensorSpec("a", (10_000,)),))
    update = {"a": np.full(10_000, 0.6 / 99, np.float32)}
    assert norm_of(update, 99, 1.0) > 1.0
    assert norm_of(clip(update, schema, 1.0, 99, 0.7), 99, 1.0) <= 0.7
    short = {"a": as_dtype(update["a"], Dtype.BF16)}
    clipped = clip(short, Schema((TensorSpec("a", (10_000,), Dtype.BF16),)), 1.0, 99, 0.7)
    assert clipped["a"].dtype == np.uint16


def test_a_value_that_is_not_finite_is_left_for_the_codec_to_name() -> None:
    schema = Schema((TensorSpec("a", (3,)),))
    for bad in (np.nan, np.inf):
        clipped = clip({"a": np.array([bad, 1, 1], np.float32)}, schema, 1.0, 99, 0.5)
        with pytest.raises(LocalFault) as caught:
            list(Codec(schema, (1.0,), plan(3, 2)).encode(clipped))
        assert caught.value.reason is Reason.NOT_FINITE


# --- the account ------------------------------------------------------------------------------------------------------


def gaussian_delta(sigma: float, eps: float) -> float:
    """The exact delta of the Gaussian mechanism of sensitivity 1 (Balle and Wang 2018, theorem 8)."""

    def phi(x: float) -> float:
        return erfc(-x / sqrt(2)) / 2

    return phi(1 / (2 * sigma) - eps * sigma) - exp(eps) * phi(-1 / (2 * sigma) - eps * sigma)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_epsilon_is_valid_for_the_gaussian_and_tighter_than_the_simple_bound(sigma: float, delta: float) -> None:
    r = 1 / (2 * sigma**2)
    eps = epsilon(r, delta)
    assert gaussian_delta(sigma, eps) <= delta * (1 + 1e-6)
    assert eps <= r + 2 * sqrt(r * np.log(1 / delta))
    assert epsilon(r, delta / 10) > eps
    assert epsilon(2 * r, delta) > eps


def test_the_ends_of_epsilon() -> None:
    assert epsilon(0.0, 1e-5) == 0.0
    assert epsilon(inf, 1e-5) == inf
    assert epsilon(1e-12, 1e-5) < 1e-4
    for delta in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="delta"):
            epsilon(1.0, delta)


def test_rho_is_the_gaussians_where_noise_is_wide_and_more_where_it_is_narrow() -> None:
    wide = Policy(clip_norm=1.0, noise_multiplier=2.0)
    assert rho(wide, 1_000_000, 3) == pytest.approx(1 / 8, rel=1e-3)
    assert rho(wide, 1_000_000, 3, contributors=12) == pytest.approx(1 / 32, rel=1e-3)  # four times as many silos
    assert rho(Policy(), 10, 3) == inf
    # With a variance of 1 the sum of three is visibly not a discrete Gaussian, the more so the more values there are.
    narrow = Policy(clip_norm=1.0, noise_multiplier=0.17, precision=1)
    assert Noise.under(narrow, 3) == Noise(1)
    assert rho(narrow, 10_000, 3) > rho(narrow, 1, 3) > (0.5 * 9**2 / 3)


def test_the_multiplier_spends_the_target_and_no_more() -> None:
    policy = Policy(clip_norm=2.0, rounds=20, minimum_cohort=10, precision=3)
    for target in (1.0, 5.0):
        z = multiplier_for(policy, 50_000, target, 1e-5, 3)
        found = spent(replace(policy, noise_multiplier=z), 50_000, 20, 1e-5, 3)
        assert target * 0.999 < found <= target
