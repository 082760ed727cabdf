"""Protocol section 3, chunks: a model's tensors become chunks of planes, and the sum of many becomes their mean."""

import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import inf, nan, prod
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.vectors import reference

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.codec import Clips, Codec
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Encoding, Level, Plan, Quantiser, plan
from silomix.runtime.core.numbers.schema import Dtype, Schema, TensorSpec

Array = npt.NDArray[Any]
Model = dict[str, Array]

PLAIN = plan(10, 4)
WEIGHTED = plan(10, 4, weight_levels=50)
SIGNIFICANT = {Dtype.F64: 53, Dtype.F32: 24, Dtype.F16: 11, Dtype.BF16: 8}
"""Binary digits of each type."""

ODD = Schema(
    (
        TensorSpec("conv.weight", (3, 1, 5)),
        TensorSpec("empty", (4, 0, 2)),
        TensorSpec("scale", ()),
        TensorSpec("half", (7,), Dtype.F16),
        TensorSpec("brain", (2, 9), Dtype.BF16),
        TensorSpec("bn.running_mean", (5,), Dtype.F64, buffer=True),
        TensorSpec("bn.steps", (), Dtype.F64, buffer=True),
        *(TensorSpec(f"tiny.{i}", (1,)) for i in range(9)),
        TensorSpec("fc.weight", (11, 13)),
        TensorSpec("nothing", (0,), Dtype.BF16),
    )
)
"""Odd shapes, scalars, tensors without values, all types: 199 values."""


def to_brain(values: Array) -> Array:
    """Cut float32 to its upper half: all that a test's input needs."""
    upper: Array = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return upper


def to_float(array: Array, dtype: Dtype) -> npt.NDArray[np.float64]:
    if dtype is Dtype.BF16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def model(schema: Schema, seed: int = 0, spread: float = 1.0) -> Model:
    """A model whose values lie within +-spread."""
    rng = np.random.default_rng(seed)
    out: Model = {}
    for t in schema.tensors:
        values = rng.uniform(-spread, spread, t.shape)
        kinds = {Dtype.F64: np.float64, Dtype.F32: np.float32, Dtype.F16: np.float16}
        out[t.name] = to_brain(values).reshape(t.shape) if t.dtype is Dtype.BF16 else np.asarray(values, kinds[t.dtype])
    return out


def bounds(schema: Schema) -> tuple[float, ...]:
    """Another bound for each tensor, none below 1."""
    return tuple(1.0 + 0.37 * i for i in range(len(schema.tensors)))


def body(codec: Codec, tensors: Mapping[str, Array], **options: Any) -> list[list[bytes]]:
    """Freeze all chunks: what a silo does before it sends."""
    return [[bytes(plane) for plane in planes] for planes in codec.encode(tensors, **options)]


def summed(codec: Codec, *bodies: list[list[bytes]]) -> Bytes:
    """Add bodies up, as hop 1 does."""
    total = codec.layout.body()
    for chunks in bodies:
        assert len(chunks) == codec.layout.chunks
        for i, planes in enumerate(chunks):
            codec.layout.add(total, i, planes)
    return total


def sums_of(codec: Codec, total: Bytes) -> list[int]:
    """The integers of a sum."""
    sums: list[int] = residue.decode_sum(codec.layout.residues(total), codec.plan).tolist()
    return sums


def with_integer(codec: Codec, total: Bytes, value: int, at: int) -> Bytes:
    """The same sum with another integer at one coordinate."""
    residues = codec.layout.residues(total)
    residue.put_integer(value, codec.plan, residues, at)
    return codec.layout.pack(residues)


def integers(codec: Codec, tensors: Mapping[str, Array], weight: int = 1) -> list[int]:
    """The coordinates of a silo's vector, by the reference."""
    out: list[int] = []
    for t, bound in zip(codec.schema.tensors, codec.bounds, strict=True):
        values = to_float(tensors[t.name], t.dtype).reshape(-1).tolist()
        out += [weight * reference.quantise(x, bound, codec.plan.v)[0] for x in values]
    return [*out, weight] if codec.weighted else out


def rounded(x: Fraction, digits: int) -> Fraction:
    """Round to so many binary digits, ties to even: the normal range of a float."""
    if not x:
        return x
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length() - digits
    while abs(x) >= Fraction(2) ** (exponent + digits):
        exponent += 1
    return round(x * Fraction(2) ** -exponent) * Fraction(2) ** exponent


# Bodies.


@pytest.mark.parametrize("p", [PLAIN, WEIGHTED, plan(10, 8), plan(10, 4, Encoding.UNARY)], ids=lambda p: str(p.moduli))
@pytest.mark.parametrize("chunk_parameters", [1, 7, 16, 17, 100, 199, 200, 1000])
def test_a_body_is_the_reference_cut_to_chunks(p: Plan, chunk_parameters: int) -> None:
    codec = Codec(ODD, bounds(ODD), p, chunk_parameters)
    weight = p.weight_levels
    tensors = model(ODD)
    vector = integers(codec, tensors, weight)
    assert codec.layout.coordinates == len(vector) == ODD.parameters + (p.weight_levels > 1)
    chunks = body(codec, tensors, weight=weight)
    expected = [
        [reference.pack([x % m for x in vector[at : at + chunk_parameters]], reference.width_of(m)) for m in p.moduli]
        for at in range(0, len(vector), chunk_parameters)
    ]
    assert chunks == expected
    assert codec.layout.body_bytes == sum(len(plane) for planes in chunks for plane in planes)
    total = summed(codec, chunks)
    assert total.tobytes() == b"".join(plane for planes in chunks for plane in planes)
    assert sums_of(codec, total) == vector


@pytest.mark.parametrize("p", [PLAIN, WEIGHTED], ids=["plain", "weighted"])
@pytest.mark.parametrize("chunk_parameters", [1, 16, 199, 200, 1000])
def test_a_body_that_is_given_is_filled_in_place(p: Plan, chunk_parameters: int) -> None:
    codec = Codec(ODD, bounds(ODD), p, chunk_parameters)
    memory = np.full(codec.layout.body_bytes + 16, 0xA5, np.uint8)  # what stood there before does not matter
    given_body = memory[8:-8]
    planes = list(codec.encode(model(ODD), weight=p.weight_levels, body=given_body))
    expected = body(codec, model(ODD), weight=p.weight_levels)
    assert [[bytes(plane) for plane in chunk] for chunk in planes] == expected
    assert given_body.tobytes() == b"".join(plane for chunk in expected for plane in chunk)
    assert all(np.shares_memory(np.asarray(plane), given_body) for chunk in planes for plane in chunk)
    assert set(memory[:8].tolist() + memory[-8:].tolist()) == {0xA5}


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
specs = st.builds(TensorSpec, st.just(""), shapes, st.sampled_from(Dtype), st.booleans())


@given(
    tensors=st.lists(specs, min_size=1, max_size=8),
    chunk_parameters=st.integers(1, 40),
    weights=st.lists(st.integers(1, 50), min_size=1, max_size=4),
)
def test_any_schema_comes_back(tensors: list[TensorSpec], chunk_parameters: int, weights: list[int]) -> None:
    schema = Schema(tuple(replace(t, name=f"t{i}") for i, t in enumerate(tensors)))
    codec = Codec(schema, bounds(schema), WEIGHTED, chunk_parameters)
    silos = [model(schema, seed) for seed in range(len(weights))]
    total = summed(codec, *(body(codec, m, weight=w) for m, w in zip(silos, weights, strict=True)))
    vectors = [integers(codec, m, w) for m, w in zip(silos, weights, strict=True)]
    assert sums_of(codec, total) == [sum(column) for column in zip(*vectors, strict=True)]
    decoded = codec.decode(total, len(weights))
    assert decoded.weight == sum(weights)
    assert list(decoded.tensors) == [t.name for t in schema.tensors]
    for t in schema.tensors:
        assert decoded.tensors[t.name].shape == t.shape
        assert decoded.tensors[t.name].dtype == silos[0][t.name].dtype


def test_chunks_reuse_their_buffers() -> None:
    codec = Codec(ODD, bounds(ODD), PLAIN, 16)
    stream = codec.encode(model(ODD))
    first = next(stream)
    frozen = [bytes(plane) for plane in first]
    next(stream)
    assert [bytes(plane) for plane in first] != frozen
    assert frozen == body(codec, model(ODD))[0]


@pytest.mark.parametrize(
    "twist",
    [
        lambda a: np.asfortranarray(a),
        lambda a: np.ascontiguousarray(a.T).T,
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
        lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),  # read-only
    ],
    ids=["fortran", "transposed", "strided", "reversed", "read-only"],
)
def test_memory_order_does_not_matter(twist: Any) -> None:
    schema = Schema(tuple(TensorSpec(str(dtype), (5, 7), dtype) for dtype in Dtype))
    codec = Codec(schema, bounds(schema), PLAIN, 16)
    tensors = model(schema)
    twisted = {name: twist(a) for name, a in tensors.items()}
    assert all(np.array_equal(a, b) for a, b in zip(tensors.values(), twisted.values(), strict=True))
    assert body(codec, twisted) == body(codec, tensors)


def test_the_order_of_the_mapping_does_not_matter() -> None:
    codec = Codec(ODD, bounds(ODD), PLAIN, 16)
    tensors = model(ODD)
    assert body(codec, dict(reversed(tensors.items()))) == body(codec, tensors)


def test_clips_are_counted_by_tensor_across_chunks() -> None:
    schema = Schema((TensorSpec("a", (20,)), TensorSpec("b", (50,), Dtype.F16), TensorSpec("c", (0,))))
    codec = Codec(schema, (1.0, 2.0, 1.0), PLAIN, 16)
    tensors = model(schema)
    tensors["a"][[0, 15, 16, 19]] = 1.5
    tensors["b"][[0, 11, 12, 49]] = [2.5, -3, 2.0, -9]
    clips = Clips()
    body(codec, tensors, clips=clips)
    assert clips.by_tensor == {"a": 4, "b": 3, "c": 0}
    assert clips.total == 7


# The mean.


@pytest.mark.parametrize("silos", [1, 3, 10])
@pytest.mark.parametrize("p", [PLAIN, plan(10, 7), plan(10_000, 16)], ids=["r=4", "r=7", "r=16"])
def test_the_mean_is_within_half_a_step(p: Plan, silos: int) -> None:
    codec = Codec(ODD, bounds(ODD), p, 17)
    models = [model(ODD, seed) for seed in range(silos)]
    decoded = codec.decode(summed(codec, *(body(codec, m) for m in models)), silos)
    assert decoded.weight == silos
    for t, bound in zip(ODD.tensors, codec.bounds, strict=True):
        mean = np.mean([to_float(m[t.name], t.dtype) for m in models], axis=0)
        got = to_float(decoded.tensors[t.name], t.dtype)
        # Half a step, and half a unit in the last place of what the tensor's type can hold.
        allowed = bound / p.v / 2 * (1 + 1e-9) + np.abs(mean) * 2.0 ** -SIGNIFICANT[t.dtype] + 1e-12
        assert (np.abs(got - mean) <= allowed * 1.01).all(), t.name


def test_the_weighted_mean_is_exact() -> None:
    weights = [1, 50, 17, 3]
    codec = Codec(ODD, bounds(ODD), WEIGHTED, 17)
    models = [model(ODD, seed) for seed in range(4)]
    decoded = codec.decode(summed(codec, *(body(codec, m, weight=w) for m, w in zip(models, weights, strict=True))), 4)
    assert decoded.weight == 71
    for t, bound in zip(ODD.tensors, codec.bounds, strict=True):
        columns = [to_float(m[t.name], t.dtype).reshape(-1).tolist() for m in models]
        got = to_float(decoded.tensors[t.name], t.dtype).reshape(-1).tolist()
        for *values, mean in zip(*columns, got, strict=True):
            xs = [w * reference.quantise(x, bound, WEIGHTED.v)[0] for x, w in zip(values, weights, strict=True)]
            exact = Fraction(sum(xs)) * Fraction(bound) / (71 * WEIGHTED.v)
            unit = abs(exact) * Fraction(2) ** (1 - SIGNIFICANT[t.dtype])
            assert abs(Fraction(mean) - exact) <= unit * 2


@pytest.mark.parametrize("chunk_parameters", [1, 2, 7, 8, 9, 16, 64, 100, 199, 200, 65_536])
def test_chunks_do_not_show_in_the_mean(chunk_parameters: int) -> None:
    """Tensors straddle chunks, chunks hold many tensors, and the weight may be alone in the last one."""
    weights, models = [3, 50, 1], [model(ODD, seed) for seed in range(3)]

    def mean(size: int) -> dict[str, bytes]:
        codec = Codec(ODD, bounds(ODD), WEIGHTED, size)
        total = summed(codec, *(body(codec, m, weight=w) for m, w in zip(models, weights, strict=True)))
        decoded = codec.decode(total, 3)
        assert decoded.weight == 54
        return {name: tensor.tobytes() for name, tensor in decoded.tensors.items()}

    assert mean(chunk_parameters) == mean(1000)


def test_a_sum_is_decoded_and_left_as_it_was() -> None:
    codec = Codec(ODD, bounds(ODD), WEIGHTED, 16)
    total = summed(codec, body(codec, model(ODD), weight=2))
    before = total.tobytes()
    total.flags.writeable = False
    first, second = codec.decode(total, 1), codec.decode(total, 1)
    assert total.tobytes() == before
    assert all(np.array_equal(first.tensors[name], second.tensors[name]) for name in first.tensors)


def test_equal_models_come_back_as_they_are_quantised() -> None:
    schema = Schema((TensorSpec("x", (19_999,), Dtype.F64),))
    codec = Codec(schema, (9999.0,), WEIGHTED)
    values = np.arange(-9999.0, 10_000.0)
    decoded = codec.decode(summed(codec, *(body(codec, {"x": values}, weight=w) for w in (1, 1, 50))), 3)
    assert decoded.tensors["x"].tolist() == pytest.approx(values.tolist(), rel=4e-16, abs=0)


@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.F16])
def test_short_types_are_rounded_to_nearest_even(dtype: Dtype) -> None:
    # Sums of every size and parity, in steps of a power of two: the float32 mean is exact, and many lie half way.
    sums = list(range(-9999, 10_000, 3))
    schema = Schema((TensorSpec("x", (len(sums),), dtype),))
    rows = np.array([[s % m for s in sums] for m in PLAIN.moduli], np.uint16)
    for step in (1.0, 2.0**-8):
        codec = Codec(schema, (9999 * step,), PLAIN, 1000)
        decoded = codec.decode(codec.layout.pack(rows), 1).tensors["x"]
        got = to_float(decoded, dtype).tolist()
        assert got == [float(rounded(Fraction(s) * Fraction(step), SIGNIFICANT[dtype])) for s in sums]


# What a silo refuses.


def fault_of(codec: Codec, tensors: Mapping[str, Array], **options: Any) -> LocalFault:
    with pytest.raises(LocalFault) as fault:
        body(codec, tensors, **options)
    return fault.value


@pytest.mark.parametrize("name", ["conv.weight", "empty", "tiny.8"])
def test_a_missing_tensor(name: str) -> None:
    tensors = model(ODD)
    del tensors[name]
    fault = fault_of(Codec(ODD, bounds(ODD), PLAIN), tensors)
    assert fault.reason is Reason.SHAPE_MISMATCH
    assert fault.details == {"tensor": name}
    assert f"{name} is missing" in str(fault)


def test_a_spare_tensor() -> None:
    fault = fault_of(Codec(ODD, bounds(ODD), PLAIN), {**model(ODD), "fc.bias": np.zeros(3, np.float32)})
    assert fault.reason is Reason.SHAPE_MISMATCH
    assert fault.details == {"tensor": "fc.bias"}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("conv.weight", np.float64),
        ("conv.weight", np.float16),
        ("conv.weight", np.int32),
        ("conv.weight", ">f4"),
        ("half", np.float32),
        ("brain", np.int16),
        ("brain", np.float16),
        ("bn.steps", np.int64),
        ("empty", np.float64),
    ],
)
def test_a_wrong_type(name: str, dtype: npt.DTypeLike) -> None:
    tensors = model(ODD)
    tensors[name] = tensors[name].astype(dtype)
    fault = fault_of(Codec(ODD, bounds(ODD), PLAIN), tensors)
    assert fault.reason is Reason.UNSUPPORTED_DTYPE
    assert fault.details["tensor"] == name
    assert name in str(fault)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("conv.weight", (15,)), ("scale", (1,)), ("tiny.3", ()), ("empty", (0,)), ("fc.weight", (13, 11))],
)
def test_a_wrong_shape(name: str, shape: tuple[int, ...]) -> None:
    tensors = model(ODD)
    tensors[name] = tensors[name].reshape(shape)
    fault = fault_of(Codec(ODD, bounds(ODD), PLAIN), tensors)
    assert fault.reason is Reason.SHAPE_MISMATCH
    assert fault.details["tensor"] == name
    assert name in str(fault)


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("at", [0, 9, 10, 25, 26, 99])
def test_what_is_not_finite_is_named_by_its_place_in_the_tensor(dtype: Dtype, bad: float, at: int) -> None:
    # The first tensor leaves ten places in the first chunk; places are counted from the start of the tensor.
    schema = Schema((TensorSpec("a", (6,)), TensorSpec("b", (4, 25), dtype)))
    tensors = model(schema)
    value = to_brain(np.array([bad]))[0] if dtype is Dtype.BF16 else bad
    tensors["b"].reshape(-1)[at] = value
    fault = fault_of(Codec(schema, (1.0, 1.0), PLAIN, 16), tensors)
    assert fault.reason is Reason.NOT_FINITE
    assert fault.details == {"tensor": "b", "index": at, "count": 1}
    assert f"at position {at}:" in str(fault)


@pytest.mark.parametrize("bound", [0.0, -1.0, nan, inf, 1e-320])
def test_a_bad_bound_is_named(bound: float) -> None:
    schema = Schema((TensorSpec("a", (6,)), TensorSpec("b", (4,))))
    codec = Codec(schema, (1.0, bound), PLAIN)
    fault = fault_of(codec, model(schema))
    assert fault.reason is Reason.BAD_BOUND
    assert fault.details["tensor"] == "b"
    with pytest.raises(LocalFault) as decoding:
        codec.decode(codec.layout.body(), 1)
    assert decoding.value.reason is Reason.BAD_BOUND


@pytest.mark.parametrize("given_bounds", [(), (1.0,), (1.0, 1.0, 1.0)])
def test_every_tensor_has_a_bound(given_bounds: tuple[float, ...]) -> None:
    schema = Schema((TensorSpec("a", (6,)), TensorSpec("b", (4,))))
    with pytest.raises(LocalFault) as fault:
        Codec(schema, given_bounds, PLAIN)
    assert fault.value.reason is Reason.BAD_BOUND


@pytest.mark.parametrize("weight", [0, 51, -1])
def test_a_bad_weight(weight: int) -> None:
    fault = fault_of(Codec(ODD, bounds(ODD), WEIGHTED), model(ODD), weight=weight)
    assert fault.reason is Reason.BAD_WEIGHT


# What the aggregator refuses.


def refused(codec: Codec, total: Bytes, cohort: int) -> PeerFault:
    with pytest.raises(PeerFault) as fault:
        codec.decode(total, cohort)
    return fault.value


@pytest.mark.parametrize("weight_sum", [0, 2, 151, -3, 10**5, -(10**6)])
def test_weights_that_the_cohort_cannot_have(weight_sum: int) -> None:
    codec = Codec(ODD, bounds(ODD), WEIGHTED, 16)
    total = summed(codec, *(body(codec, model(ODD), weight=w) for w in (1, 1, 1)))
    assert codec.decode(total, 3).weight == 3
    fault = refused(codec, with_integer(codec, total, weight_sum, codec.layout.coordinates - 1), 3)
    assert fault.reason is Reason.OUT_OF_RANGE
    assert fault.details["found"] == weight_sum


def test_weights_at_their_limits() -> None:
    codec = Codec(ODD, bounds(ODD), WEIGHTED, 16)
    for weight in (1, 50):
        total = summed(codec, *(body(codec, model(ODD), weight=weight) for _ in range(3)))
        assert codec.decode(total, 3).weight == 3 * weight
        # The same sum cannot be that of more silos, or of fewer.
        assert refused(codec, total, 4 if weight == 1 else 2).reason is Reason.OUT_OF_RANGE


def test_a_sum_beyond_what_the_weights_allow_is_refused_with_its_tensor() -> None:
    codec = Codec(ODD, bounds(ODD), PLAIN, 16)
    total = summed(codec, *(body(codec, model(ODD)) for _ in range(3)))
    last = ODD.parameters - 1
    for value in (3 * PLAIN.v + 1, -3 * PLAIN.v - 1):  # within the plan's range, beyond three silos'
        fault = refused(codec, with_integer(codec, total, value, last), 3)
        assert fault.reason is Reason.OUT_OF_RANGE
        assert fault.details == {"tensor": "fc.weight", "count": 1, "limit": 3 * PLAIN.v}
    codec.decode(with_integer(codec, total, 3 * PLAIN.v, last), 3)
    codec.decode(with_integer(codec, total, 3 * PLAIN.v + 1, last), 3, slack=1)


@pytest.mark.parametrize("at", [0, 1, 15, 16, 17, 100, 198])
def test_a_sum_out_of_range_is_found_in_whichever_chunk_it_is(at: int) -> None:
    codec = Codec(ODD, bounds(ODD), PLAIN, 16)
    total = with_integer(codec, codec.layout.body(), PLAIN.v + 1, at)
    starts = np.cumsum([0, *(t.size for t in ODD.tensors)])
    name = ODD.tensors[int(np.searchsorted(starts, at, side="right")) - 1].name
    assert refused(codec, total, 1).details == {"tensor": name, "count": 1, "limit": PLAIN.v}


@pytest.mark.parametrize("cohort", [0, -1, 11])
def test_a_cohort_that_the_plan_does_not_hold(cohort: int) -> None:
    codec = Codec(ODD, bounds(ODD), PLAIN)
    assert refused(codec, codec.layout.body(), cohort).reason is Reason.OUT_OF_RANGE


@pytest.mark.parametrize("p", [PLAIN, WEIGHTED], ids=["plain", "weighted"])
@pytest.mark.parametrize("more", [-1, 1, 18, -18])
def test_a_sum_of_another_length(p: Plan, more: int) -> None:
    codec = Codec(ODD, bounds(ODD), p, 16)
    total = np.zeros(codec.layout.body_bytes + more, np.uint8)
    assert refused(codec, total, 1).reason is Reason.WRONG_LENGTH


@pytest.mark.parametrize("index", [0, 5, 12])
def test_a_sum_with_a_residue_out_of_range(index: int) -> None:
    codec = Codec(ODD, bounds(ODD), PLAIN, 16)
    layout, total = codec.layout, codec.layout.body()
    for b in range(9):  # 511 at place 6
        layout.planes(layout.part(total, index).data, index)[1][b * -(-layout.length(index) // 8)] = 0x40
    fault = refused(codec, total, 1)
    assert (fault.reason, fault.details["index"]) == (Reason.RESIDUE_RANGE, 6)


def test_a_sum_with_something_behind_its_last_value() -> None:
    codec = Codec(ODD, bounds(ODD), PLAIN, 16)  # the last chunk has 7 values: one bit of padding in each slice
    total = codec.layout.body()
    total[-1] = 0x80
    fault = refused(codec, total, 1)
    assert (fault.reason, fault.details) == (Reason.TRAILING_BITS, {"offset": 8})


# Lengths.


@given(coordinates=st.integers(0, 500), chunk_parameters=st.integers(1, 200))
def test_lengths_add_up(coordinates: int, chunk_parameters: int) -> None:
    layout = Layout(PLAIN, coordinates, chunk_parameters)
    starts = [layout.start(i) for i in range(layout.chunks)]
    lengths = [layout.length(i) for i in range(layout.chunks)]
    assert starts == list(range(0, coordinates, chunk_parameters))
    assert sum(lengths) == coordinates
    assert all(length == chunk_parameters for length in lengths[:-1])
    assert all(1 <= length <= chunk_parameters for length in lengths[-1:])
    assert layout.body_bytes == sum(w * -(-n // 8) for n in lengths for w in PLAIN.widths)
    assert layout.chunk_bytes == 18 * -(-chunk_parameters // 8)
    assert len(layout.body()) == layout.body_bytes
    assert not layout.body().any()


MIXED = Plan(3, 1, Encoding.COUNTS, Level.SEMI_HONEST, 1, 0, Quantiser.DECIMAL, (65_537, 511, 2, 1 << 20, 3))
"""Planes of 17, 9, 1, 20 and 2 bits."""


@given(
    p=st.sampled_from([PLAIN, MIXED, plan(10, 4, Encoding.UNARY)]),
    coordinates=st.integers(0, 300),
    chunk_parameters=st.integers(1, 120),
    seed=st.integers(0, 99),
)
def test_a_body_is_packed_and_unpacked_whole(p: Plan, coordinates: int, chunk_parameters: int, seed: int) -> None:
    layout = Layout(p, coordinates, chunk_parameters)
    rng = np.random.default_rng(seed)
    residues = np.array([rng.choice([0, m - 1, *rng.integers(0, m, 5)], coordinates) for m in p.moduli], np.int64)
    packed = layout.pack(residues)
    assert packed.dtype == np.uint8
    assert len(packed) == layout.body_bytes
    back = layout.residues(packed)
    assert back.tolist() == residues.tolist()
    assert back.dtype == residue.plan_dtype(p)
    # Chunks one behind the other, in each its planes one behind the other, and each of these as the reference packs it.
    pieces = [
        reference.pack(row[at : at + chunk_parameters].tolist(), w)
        for at in range(0, coordinates, chunk_parameters)
        for row, w in zip(residues, p.widths, strict=True)
    ]
    assert packed.tobytes() == b"".join(pieces)
    cut = [bytes(plane) for i in range(layout.chunks) for plane in layout.planes(layout.part(packed, i).data, i)]
    assert cut == pieces
    again = layout.body()
    for i in range(layout.chunks):
        rows = layout.unpack(i, layout.planes(layout.part(packed, i).data, i))
        layout.put(layout.part(again, i), rows)
    assert again.tobytes() == packed.tobytes()


def test_a_part_is_a_view() -> None:
    layout = Layout(PLAIN, 50, 21)
    body_, row = layout.body(), layout.buffer(8)
    row[:] = 510
    layout.put(layout.part(body_, 2), row)
    assert layout.residues(body_)[:, 42:].tolist() == [[510] * 8] * 2
    assert not layout.residues(body_)[:, :42].any()


@pytest.mark.parametrize("shape", [(2, 49), (2, 51), (1, 50), (3, 50), (50, 2)])
def test_residues_of_another_shape_are_not_packed(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="of shape"):
        Layout(PLAIN, 50, 21).pack(np.zeros(shape, np.uint16))


@given(
    p=st.sampled_from([PLAIN, MIXED]),
    coordinates=st.integers(1, 200),
    chunk_parameters=st.integers(1, 90),
    silos=st.integers(1, 5),
)
def test_bodies_add_up_modulo_each_plane(p: Plan, coordinates: int, chunk_parameters: int, silos: int) -> None:
    layout = Layout(p, coordinates, chunk_parameters)
    rng = np.random.default_rng(coordinates)
    rows = [np.array([rng.integers(0, m, coordinates) for m in p.moduli]) for _ in range(silos)]
    by_add, by_sum = layout.body(), layout.body()
    for packed in map(layout.pack, rows):
        for i in reversed(range(layout.chunks)):
            planes = layout.planes(layout.part(packed, i).data, i)
            layout.add(by_add, i, [bytes(plane) for plane in planes])
            layout.sum(layout.part(by_sum, i), layout.check(i, planes), -(-layout.length(i) // 8))
    assert layout.residues(by_add).tolist() == (sum(rows) % np.array(p.moduli)[:, None]).tolist()
    assert by_add.tobytes() == by_sum.tobytes()


@pytest.mark.parametrize("index", [-1, 13, 2**63])
def test_there_are_no_other_chunks(index: int) -> None:
    layout = Layout(PLAIN, 206, 16)
    assert layout.chunks == 13
    total = layout.body()
    uses: list[Callable[[int], Any]] = [
        layout.start,
        layout.length,
        partial(layout.part, total),
        partial(layout.planes, total.data),
        lambda i: layout.add(total, i, [b"", b""]),
        lambda i: layout.check(i, [b"", b""]),
    ]
    for use in uses:
        with pytest.raises(PeerFault) as fault:
            use(index)
        assert fault.value.reason is Reason.WRONG_LENGTH
        assert fault.value.details == {"found": index, "expected": 13}
    assert not total.any()


@pytest.mark.parametrize("planes", [0, 1, 3])
def test_a_chunk_has_a_plane_for_each_modulus(planes: int) -> None:
    layout = Layout(PLAIN, 206, 16)
    for use in (layout.unpack, layout.check, partial(layout.add, layout.body())):
        with pytest.raises(PeerFault) as fault:
            use(0, [bytes(18)] * planes)
        assert fault.value.reason is Reason.WRONG_LENGTH
        assert fault.value.details == {"found": planes, "expected": 2}


def test_the_lengths_of_a_chunk_belong_to_its_place() -> None:
    layout = Layout(PLAIN, 199, 16)  # the last chunk has 7 values: 9 bytes a plane, not 18
    assert layout.unpack(12, [bytes(9)] * 2).shape == (2, 7)
    for index, size in ((12, 18), (0, 9)):
        for use in (layout.unpack, layout.check, partial(layout.add, layout.body())):
            with pytest.raises(PeerFault) as fault:
                use(index, [bytes(size)] * 2)
            assert fault.value.reason is Reason.WRONG_LENGTH


# Schemas.


def test_the_digest_of_a_schema_is_that_of_schema_proto() -> None:
    parts: list[str | int] = [len(ODD.tensors)]
    for t in ODD.tensors:
        parts += [t.name, t.dtype.value, ["parameter", "buffer"][t.buffer], len(t.shape), *t.shape]
    assert ODD.digest == reference.digest("schema", *parts, 199)
    assert ODD.parameters == sum(prod(t.shape) for t in ODD.tensors) == 199


def test_any_change_of_a_schema_changes_its_digest() -> None:
    schemas = [ODD, Schema(ODD.tensors[:-1]), Schema(ODD.tensors[::-1]), Schema(()), Schema((ODD.tensors[0],) * 2)]
    for i, t in enumerate(ODD.tensors):
        others = [
            replace(t, name=t.name + "x"),
            replace(t, name=""),
            replace(t, shape=(*t.shape, 1)),
            replace(t, shape=(*t.shape, 0)),
            replace(t, shape=(2, *t.shape)),
            replace(t, buffer=not t.buffer),
            *(replace(t, dtype=dtype) for dtype in Dtype if dtype is not t.dtype),
        ]
        schemas += [Schema((*ODD.tensors[:i], other, *ODD.tensors[i + 1 :])) for other in others]
    pair = (TensorSpec("a", (2, 3)), TensorSpec("b", (6,)))
    schemas += [Schema(pair), Schema((replace(pair[0], shape=(6,)), replace(pair[1], shape=(2, 3))))]
    assert len({s.digest for s in schemas}) == len(schemas)
    assert Schema(tuple(replace(t) for t in ODD.tensors)).digest == ODD.digest


# Memory.


def test_encoding_a_large_model_streams() -> None:
    # ResNet-18's 11,237,432 values with their buffers. The whole model is in memory once; the codec adds a chunk.
    schema = Schema(
        (
            TensorSpec("weight", (512, 512, 42)),
            TensorSpec("rest", (217_764,)),
            TensorSpec("running", (9_620,), buffer=True),
        )
    )
    assert schema.parameters == 11_237_432
    codec = Codec(schema, (1.0,) * 3, PLAIN, 65_536)
    rng = Random(0)
    tensors = {t.name: np.full(t.shape, rng.uniform(-1, 1), np.float32) for t in schema.tensors}
    size = sum(a.nbytes for a in tensors.values())
    next(codec.encode(tensors))  # compile first
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        chunks = sum(1 for _ in codec.encode(tensors))
        streamed = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.reset_peak()
        frozen = body(codec, tensors)
        kept = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert chunks == len(frozen) == 172
    assert sum(len(plane) for planes in frozen for plane in planes) == codec.layout.body_bytes
    assert streamed < 0.1 * size  # a few hundred KB, whatever the model
    assert size + kept < 3 * size  # frozen whole: 18 bits for each 32


@pytest.mark.parametrize("lengths", [(8, 9), (9, 8), (10, 9), (9,), (9, 9, 9)])
def test_planes_of_other_lengths_do_not_go_into_a_sum(lengths: tuple[int, ...]) -> None:
    """The kernel has no bounds: it would read and write what lies behind."""
    shape = Layout(plan(10, 4), 8)
    part = shape.body()
    with pytest.raises(ValueError, match="do not go into"):
        shape.sum(part, [np.zeros(n, np.uint8) for n in lengths], 1)
    with pytest.raises(ValueError, match="do not go into"):
        shape.sum(part[:-1], [np.zeros(9, np.uint8)] * 2, 1)
