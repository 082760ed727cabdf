"""Bounds that follow from the model: the rule, what each node can check of it, and that clipping does not last."""

import math
from typing import Any

import numpy as np
import pytest

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.learning.bounds import LEAST, MOST, bounds_of, check_bounds, check_followed
from silomix.runtime.core.numbers.schema import Array, Dtype, Schema, TensorSpec
from silomix.runtime.core.policy import AUTO, Policy, UpdateKind

SCHEMA = Schema(
    (
        TensorSpec("weight", (2, 2)),
        TensorSpec("bias", (2,)),
        TensorSpec("norm.running_var", (2,), buffer=True),
        TensorSpec("short", (1,), Dtype.BF16),
        TensorSpec("scale", ()),
        TensorSpec("empty", (0, 5)),
    )
)
AUTOMATIC = Policy(bound=AUTO)


def model(weight: float = 0.3, variance: float = 1.0, short: int = 0x3F80, scale: float = 1.0) -> dict[str, Array]:
    return {
        "weight": np.array([[weight, 0.0], [-0.01, 0.02]], np.float32),
        "bias": np.zeros(2, np.float32),
        "norm.running_var": np.array([1.0, variance], np.float32),
        "short": np.array([short], np.uint16),  # bfloat16's bits
        "scale": np.array(scale, np.float32),
        "empty": np.zeros((0, 5), np.float32),
    }


def test_a_number_is_the_bound_of_every_tensor() -> None:
    assert bounds_of(Policy(bound=0.25), SCHEMA, model(), None) == (0.25,) * 6


def test_before_the_first_round_there_is_room_for_what_is_not_known_yet() -> None:
    # Twice the largest value and at least 1; buffers 32 times that; an empty tensor needs none.
    assert bounds_of(AUTOMATIC, SCHEMA, model(), None) == (1.0, 1.0, 64.0, 2.0, 2.0, 1.0)


def test_a_bound_holds_the_largest_value_and_four_times_the_last_change() -> None:
    now = model(weight=0.3, variance=40.0, short=0xC140, scale=1.5)  # -12.0
    found = bounds_of(AUTOMATIC, SCHEMA, now, model(weight=0.29, variance=39.0, short=0xC140, scale=1.0))
    assert found == (0.5, 1.0, 64.0, 16.0, 2.0, 1.0)  # nothing has moved the biases: they begin anew
    moved = bounds_of(AUTOMATIC, SCHEMA, now, model(weight=-0.3, variance=1.0, short=0x3F80, scale=1.0))
    assert moved[0] == 4.0  # 4 * 0.6 = 2.4
    assert moved[2] == 256.0  # 4 * 39 = 156
    assert moved[3] == 64.0  # 4 * 13 = 52


def test_whole_weights_take_the_value_and_its_change() -> None:
    policy = Policy(bound=AUTO, update=UpdateKind.WEIGHTS)
    found = bounds_of(policy, SCHEMA, model(weight=0.3), model(weight=0.3))
    assert found[0] == 1.0  # 0.3 + 0.3
    assert found[4] == 2.0


def test_a_power_of_two_is_its_own_bound_and_extremes_are_held() -> None:
    one = Schema((TensorSpec("w", (1,), Dtype.F64),))
    for value, bound in ((0.25, 0.25), (math.nextafter(0.25, 1), 0.5), (1e-300, 2.0**LEAST), (1e300, 2.0**MOST)):
        tensors: dict[str, Array] = {"w": np.array([value])}
        assert bounds_of(AUTOMATIC, one, tensors, tensors) == (bound,)
        check_followed(AUTOMATIC, one, (bound,), tensors, tensors)


def test_a_model_that_is_not_finite_has_no_bounds() -> None:
    with pytest.raises(LocalFault, match="weight holds NaN or infinity"):
        bounds_of(AUTOMATIC, SCHEMA, model(weight=math.nan), None)


@pytest.mark.parametrize("bad", [0.0, -1.0, 0.75, math.inf, math.nan, 2.0 ** (MOST + 1), 2.0 ** (LEAST - 1)])
def test_a_hop_refuses_what_cannot_be_a_bound(bad: float) -> None:
    check_bounds(AUTOMATIC, SCHEMA, (0.5, 1.0, 64.0, 16.0, 2.0, 1.0))
    with pytest.raises(PeerFault, match="which is no power of two") as found:
        check_bounds(AUTOMATIC, SCHEMA, (0.5, 1.0, bad, 16.0, 2.0, 1.0))
    assert found.value.reason is Reason.BAD_BOUND


def test_a_hop_counts_bounds_and_holds_a_number_to_the_policy() -> None:
    with pytest.raises(PeerFault, match="5 bounds for 6 tensors"):
        check_bounds(AUTOMATIC, SCHEMA, (1.0,) * 5)
    check_bounds(Policy(bound=0.25), SCHEMA, (0.25,) * 6)
    with pytest.raises(PeerFault, match=r"the policy's, 0\.25"):
        check_bounds(Policy(bound=0.25), SCHEMA, (0.25,) * 5 + (0.5,))


def test_a_silo_computes_the_bounds_itself() -> None:
    now, before = model(weight=0.3), model(weight=0.2)
    right = bounds_of(AUTOMATIC, SCHEMA, now, before)
    check_followed(AUTOMATIC, SCHEMA, right, now, before)
    for i in range(len(right)):
        for factor in (0.5, 2.0):
            wrong = [*right]
            wrong[i] *= factor
            check_bounds(AUTOMATIC, SCHEMA, wrong)  # a hop cannot tell
            with pytest.raises(PeerFault, match=f"{SCHEMA.tensors[i].name} has the bound") as found:
                check_followed(AUTOMATIC, SCHEMA, wrong, now, before)
            assert found.value.reason is Reason.BAD_BOUND
    first = bounds_of(AUTOMATIC, SCHEMA, now, None)
    check_followed(AUTOMATIC, SCHEMA, first, now, None)
    with pytest.raises(PeerFault):
        check_followed(AUTOMATIC, SCHEMA, right, now, None)
    with pytest.raises(PeerFault, match="5 bounds for 6 tensors"):
        check_followed(AUTOMATIC, SCHEMA, right[:5], now, before)


def test_clipping_does_not_last() -> None:
    """Silos want to go 1,000 at once. Bounds of a first round hold 1; from then on they grow fourfold."""
    schema = Schema((TensorSpec("w", (1,)),))
    before: dict[str, Any] | None = None
    now: dict[str, Any] = {"w": np.zeros(1, np.float32)}
    rounds = 0
    while float(now["w"][0]) < 999:
        (bound,) = bounds_of(AUTOMATIC, schema, now, before)
        step = min(bound, 1000 - float(now["w"][0]))
        before, now = now, {"w": now["w"] + np.float32(step)}
        rounds += 1
    assert rounds <= 7
