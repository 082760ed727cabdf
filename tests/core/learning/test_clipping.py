"""What a silo is told of values beyond their bound."""

import numpy as np
import pytest

from silomix.runtime.core.learning.clipping import beyond, round_up
from silomix.runtime.core.numbers.codec import Clips, Codec
from silomix.runtime.core.numbers.plan import plan
from silomix.runtime.core.numbers.schema import Array, Dtype, Schema, TensorSpec


def test_the_worst_tensor_comes_first_with_a_bound_that_holds_it() -> None:
    whole = TensorSpec("a", (8,)), TensorSpec("b", ()), TensorSpec("d", (2,))
    schema = Schema((*whole, TensorSpec("c", (4,), Dtype.BF16)))
    update: dict[str, Array] = {
        "a": np.array([0, 0, 0, 0, 0, 0, 0, -3.7], np.float32),
        "b": np.array(1.2, np.float32),
        "c": np.full(4, 0x4140, np.uint16),  # 12.0
        "d": np.array([1.0, -1.0], np.float32),
    }
    clips = Clips()
    codec = Codec(schema, (1.0,) * 4, plan(3, 4))
    list(codec.encode(update, clips=clips))
    found = beyond(schema, codec.bounds, update, clips)
    assert [(one.tensor, one.clipped, one.share) for one in found] == [("b", 1, 1.0), ("c", 4, 1.0), ("a", 1, 0.125)]
    assert [one.suggested_bound for one in found] == [2.0, 20.0, 5.0]
    for one in found:  # what is suggested is enough
        again = Clips()
        list(Codec(schema, (one.suggested_bound,) * 4, plan(3, 4)).encode(update, clips=again))
        assert again.by_tensor[one.tensor] == 0
    said = "1 values of a (12%) are beyond the bound 1, up to 3.7: with policy.bound = 5 they would fit"
    assert str(found[-1]) == said


@pytest.mark.parametrize(
    ("value", "bound"), [(1.0, 1.0), (1.01, 2.0), (2.0, 2.0), (4.9, 5.0), (5.1, 10.0), (0.03, 0.05), (73.0, 100.0)]
)
def test_bounds_are_round_numbers(value: float, bound: float) -> None:
    assert round_up(value) == bound
