"""The server's optimisers against formulas written out value by value, and the medians of groups."""

from math import sqrt
from typing import Any

import numpy as np
import pytest

from silomix.runtime.core.errors import LocalFault, Reason
from silomix.runtime.core.learning.optimise import Optimiser, combine, step
from silomix.runtime.core.numbers.codec import Aggregate
from silomix.runtime.core.numbers.schema import Dtype, Schema, TensorSpec, as_dtype, as_float
from silomix.runtime.core.policy import Server

SCHEMA = Schema((TensorSpec("w", (3,)), TensorSpec("b", (), Dtype.F64), TensorSpec("mean", (2,), buffer=True)))
BEFORE = {
    "w": np.array([1.0, -2.0, 0.5], np.float32),
    "b": np.array(0.25),
    "mean": np.array([3.0, 4.0], np.float32),
}
CHANGES = [
    {"w": np.array([0.1, 0.0, -0.3], np.float32), "b": np.array(0.01), "mean": np.array([1.0, -1.0], np.float32)},
    {"w": np.array([0.2, 0.1, 0.3], np.float32), "b": np.array(-0.5), "mean": np.array([0.0, 2.0], np.float32)},
    {"w": np.array([-0.1, 0.0, 0.0], np.float32), "b": np.array(0.0), "mean": np.array([0.5, 0.5], np.float32)},
]
Model = dict[str, np.ndarray[Any, Any]]


def go(optimiser: Optimiser, *, change: bool = True) -> list[Model]:
    """Three rounds, whose means are given as changes or as whole models."""
    model, state, models = BEFORE, optimiser.start(SCHEMA), []
    for delta in CHANGES:
        mean = delta if change else {name: (model[name] + delta[name]).astype(model[name].dtype) for name in model}
        model, state = step(optimiser, SCHEMA, model, mean, state, change=change)
        models.append(model)
    return models


def by_hand(optimiser: Optimiser, first: float, deltas: list[float]) -> list[float]:
    """One value's way, from the formulas of Reddi et al. (2021), algorithm 2."""
    x, m, v, seen = first, 0.0, optimiser.epsilon**2, []
    for d in deltas:
        if optimiser.kind is Server.MOMENTUM:
            m = optimiser.momentum * m + d
            x += optimiser.lr * m
        else:
            m = optimiser.momentum * m + (1 - optimiser.momentum) * d
            if optimiser.kind is Server.ADAM:
                v = optimiser.beta2 * v + (1 - optimiser.beta2) * d * d
            else:
                v -= (1 - optimiser.beta2) * d * d * ((v > d * d) - (v < d * d))
            x += optimiser.lr * m / (sqrt(v) + optimiser.epsilon)
        seen.append(x)
    return seen


def test_the_mean_of_changes_is_added_and_the_mean_of_models_is_the_model() -> None:
    models = go(Optimiser())
    assert models[0]["w"].tolist() == (BEFORE["w"] + CHANGES[0]["w"]).tolist()
    assert models[0]["w"].dtype == np.float32
    after, state = step(Optimiser(), SCHEMA, BEFORE, CHANGES[1], {}, change=False)
    assert all(after[name].tolist() == CHANGES[1][name].tolist() for name in after)
    assert state == {}


def test_a_rate_goes_part_of_the_way() -> None:
    half = go(Optimiser(lr=0.5))[0]
    assert np.allclose(half["w"], BEFORE["w"] + 0.5 * CHANGES[0]["w"], atol=1e-7)
    assert half["mean"].tolist() == [4.0, 3.0]  # a buffer is the mean, whatever the rate


@pytest.mark.parametrize("change", [True, False])
@pytest.mark.parametrize("kind", [Server.MOMENTUM, Server.ADAM, Server.YOGI])
def test_optimisers_follow_their_formulas(kind: Server, change: bool) -> None:
    optimiser = Optimiser(kind, lr=0.3, momentum=0.8, beta2=0.9, epsilon=0.03)
    models = go(optimiser, change=change)
    for i in range(3):
        expected = by_hand(optimiser, float(BEFORE["w"][i]), [float(c["w"][i]) for c in CHANGES])
        assert [float(m["w"][i]) for m in models] == pytest.approx(expected, abs=2e-6 if not change else 1e-6)
    assert [float(m["b"]) for m in models] == pytest.approx(by_hand(optimiser, 0.25, [0.01, -0.5, 0.0]), rel=1e-12)
    assert models[-1]["mean"].tolist() == [4.5, 5.5]


@pytest.mark.parametrize("kind", Server)
def test_every_rule_begins_and_goes_on(kind: Server) -> None:
    models = go(Optimiser(kind))
    assert all(np.isfinite(array).all() for model in models for array in model.values())


def test_nothing_is_changed_in_place_and_the_state_has_a_schema() -> None:
    optimiser = Optimiser(Server.ADAM)
    state = optimiser.start(SCHEMA)
    kept = {name: array.copy() for name, array in state.items()}
    for array in (*state.values(), *BEFORE.values(), *CHANGES[0].values()):
        array.flags.writeable = False
    _, new = step(optimiser, SCHEMA, BEFORE, CHANGES[0], state, change=True)
    assert all(np.array_equal(state[name], kept[name]) for name in kept)
    specs = optimiser.state_schema(SCHEMA).tensors
    assert [t.name for t in specs] == ["first/w", "first/b", "second/w", "second/b"] == list(new)
    assert all(new[t.name].dtype == np.float64 and new[t.name].shape == t.shape for t in specs)


def test_another_optimisers_state_is_refused() -> None:
    state = Optimiser(Server.MOMENTUM).start(SCHEMA)
    for optimiser, found in ((Optimiser(Server.ADAM), state), (Optimiser(), state), (Optimiser(Server.ADAM), {})):
        with pytest.raises(LocalFault) as caught:
            step(optimiser, SCHEMA, BEFORE, CHANGES[0], found, change=True)
        assert caught.value.reason is Reason.SHAPE_MISMATCH


@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_type_travels_through_a_step(dtype: Dtype) -> None:
    schema = Schema((TensorSpec("x", (2,), dtype),))
    wide = np.float64 if dtype is Dtype.F64 else np.float32
    old, new = as_dtype(np.array([1.0, -3.0], wide), dtype), as_dtype(np.array([0.5, 0.25], wide), dtype)
    for kind in (Server.AVERAGE, Server.MOMENTUM):
        optimiser = Optimiser(kind)
        after, _ = step(optimiser, schema, {"x": old}, {"x": new}, optimiser.start(schema), change=True)
        assert after["x"].dtype == old.dtype
        assert as_float(after["x"], dtype).tolist() == [1.5, -2.75]
    median = combine([Aggregate({"x": a}, 3) for a in (old, new, new)], schema, Server.MEDIAN)
    assert as_float(median["x"], dtype).tolist() == [0.5, 0.25]


def test_groups_combine_to_their_median_or_their_weighted_mean() -> None:
    schema = Schema((TensorSpec("x", (2,)),))
    values = [[1.0, 10.0], [2.0, -30.0], [4.0, 5.0], [100.0, 0.0]]
    groups = [Aggregate({"x": np.array(v, np.float32)}, w) for v, w in zip(values, (3, 3, 3, 4), strict=True)]
    assert combine(groups[:3], schema, Server.MEDIAN)["x"].tolist() == [2.0, 5.0]
    assert combine(groups, schema, Server.MEDIAN)["x"].tolist() == [3.0, 2.5]
    mean = combine(groups, schema)["x"]
    assert mean.tolist() == pytest.approx([(3 * 7 + 400) / 13, 3 * -15 / 13], rel=1e-6)
    assert mean.dtype == np.float32
    assert combine(groups[:1], schema, Server.MEDIAN)["x"] is groups[0].tensors["x"]  # one sum: bit for bit
    with pytest.raises(ValueError, match="at least one group"):
        combine([], schema)
