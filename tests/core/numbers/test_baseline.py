"""The paper's literal modes: what travels, how it is permuted, and that the mean is that of the cohort.

The permutations are checked against what the modes mean, in plain Python; `unary` against the paper's Alg. 1 as written
in oracle.py.
"""

from collections import Counter
from itertools import permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.numbers import oracle
from tests.tools import examples

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.baseline import Baseline, Row, float_body, wire_bits
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.plan import Encoding, Granularity, Level, plan
from silomix.runtime.core.numbers.schema import Dtype, Schema, TensorSpec

SCHEMA = Schema((TensorSpec("a", (5, 3)), TensorSpec("b", (4,)), TensorSpec("c", (7,))))
UNARY = plan(4, 2, Encoding.UNARY, Level.TRUSTED)
BOUNDS = (1.0, 1.0, 1.0)
FLOATS = [Granularity.NONE, Granularity.MODEL, Granularity.LAYER, Granularity.PARAMETER]
SEED = Secret(bytes(range(32)))


def mode(granularity: Granularity, chunk: int = 10) -> Baseline:
    return Baseline(granularity, SCHEMA, UNARY, chunk)


def model(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.uniform(-0.9, 0.9, t.shape).astype(np.float32) for t in SCHEMA.tensors}


def flat(tensors: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([tensors[t.name].reshape(-1) for t in SCHEMA.tensors])


def chunks_of(base: Baseline, body: bytes) -> list[Row]:
    out: list[Row] = []
    at = 0
    for i in range(base.layout.chunks):
        row = []
        for size in base.sizes(i):
            row.append(body[at : at + size])
            at += size
        out.append(row)
    assert at == len(body) == base.body_bytes
    return out


def passed(base: Baseline, models: list[dict[str, np.ndarray]], seed: Secret = SEED) -> np.ndarray:
    """All rows after one hop: (silos, values) of float32."""
    bodies = [chunks_of(base, bytes(base.encode(m, BOUNDS))) for m in models]
    lots = [base.shuffle(i, [body[i] for body in bodies], seed) for i in range(base.layout.chunks)]
    return np.stack([np.concatenate([np.frombuffer(lot[r][0], "<f4") for lot in lots]) for r in range(len(models))])


def test_bits_per_parameter() -> None:
    assert [wire_bits(g, UNARY) for g in FLOATS] == [32] * 4
    assert wire_bits(Granularity.UNARY, UNARY) == sum(UNARY.moduli)
    assert wire_bits(Granularity.SUM, UNARY) == UNARY.packed_bits
    assert [g for g in Granularity if float_body(g)] == FLOATS
    assert wire_bits(Granularity.UNARY, plan(10, 4, Encoding.UNARY, Level.TRUSTED)) == 53  # the design's figure


@pytest.mark.parametrize("granularity", FLOATS)
@pytest.mark.parametrize("chunk", [1, 7, 10, 26, 100])
def test_shuffled_rows_hold_each_value_once(granularity: Granularity, chunk: int) -> None:
    models = [model(i) for i in range(5)]
    rows = passed(mode(granularity, chunk), models)
    original = np.stack([flat(m) for m in models])
    assert np.array_equal(np.sort(rows, axis=0), np.sort(original, axis=0))


def whose(rows: np.ndarray, models: list[dict[str, np.ndarray]]) -> np.ndarray:
    """For each row and value, whose it is: values are all different."""
    original = np.stack([flat(m) for m in models])
    return np.array([[int(np.flatnonzero(original[:, j] == v)[0]) for j, v in enumerate(row)] for row in rows])


def test_none_leaves_rows_where_they_are() -> None:
    models = [model(i) for i in range(5)]
    assert (whose(passed(mode(Granularity.NONE), models), models) == np.arange(5)[:, None]).all()


def test_model_moves_whole_rows() -> None:
    models = [model(i) for i in range(5)]
    owner = whose(passed(mode(Granularity.MODEL), models), models)
    assert (owner == owner[:, :1]).all()
    assert list(owner[:, 0]) != [0, 1, 2, 3, 4]


def test_layer_moves_each_tensor_on_its_own() -> None:
    """Tensors are cut by chunks at other places: a tensor's permutation is the same on both sides of a cut."""
    models = [model(i) for i in range(5)]
    owner = whose(passed(mode(Granularity.LAYER, 4), models), models)
    for part in (slice(0, 15), slice(15, 19), slice(19, 26)):
        assert (owner[:, part] == owner[:, part][:, :1]).all()
    assert len({tuple(owner[:, at]) for at in (0, 15, 19)}) == 3


def test_parameter_moves_each_value_on_its_own() -> None:
    models = [model(i) for i in range(5)]
    owner = whose(passed(mode(Granularity.PARAMETER), models), models)
    assert len({tuple(column) for column in owner.T}) > 20


@pytest.mark.parametrize("granularity", [Granularity.MODEL, Granularity.LAYER, Granularity.PARAMETER])
def test_every_order_is_equally_likely(granularity: Granularity) -> None:
    """Chi-square over the six orders of three silos: 35 is beyond one in a hundred thousand."""
    models = [model(i) for i in range(3)]
    counts: Counter[tuple[int, ...]] = Counter()
    for i in range(1200):
        rows = passed(mode(granularity, 26), models, Secret(i.to_bytes(32, "little")))
        counts[tuple(whose(rows[:, :1], [{"a": flat(m)[:1]} | _rest() for m in models])[:, 0])] += 1
    assert set(counts) == set(permutations(range(3)))
    assert sum((c - 200) ** 2 / 200 for c in counts.values()) < 35


def _rest() -> dict[str, np.ndarray]:
    return {"b": np.empty(0, np.float32), "c": np.empty(0, np.float32)}


@pytest.mark.parametrize("granularity", [*FLOATS[1:], Granularity.UNARY])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(granularity: Granularity) -> None:
    base = mode(granularity)
    bodies = [chunks_of(base, bytes(base.encode(model(i), BOUNDS))) for i in range(4)]

    def all_lots(seed: Secret) -> list[list[list[bytes]]]:
        return [base.shuffle(i, [body[i] for body in bodies], seed) for i in range(base.layout.chunks)]

    assert all_lots(SEED) == all_lots(SEED)
    assert all_lots(SEED) != all_lots(Secret(bytes(32)))


@given(st.integers(1, 4), st.integers(0, 2**32), st.integers(1, 30))
@settings(max_examples=examples(25), deadline=None)
def test_unary_is_the_papers_algorithm(silos: int, seed: int, chunk: int) -> None:
    """Alg. 1: the ones per value and modulus that leave the shuffler, and the sum that the server makes of them."""
    base, models = mode(Granularity.UNARY, chunk), [model(seed + i) for i in range(silos)]
    bodies = [chunks_of(base, bytes(base.encode(m, BOUNDS))) for m in models]
    tally = base.tally()
    for i in range(base.layout.chunks):
        for body in bodies:
            base.check_body(i, body[i], "silo")
        for row in base.shuffle(i, [body[i] for body in bodies], SEED):
            base.check(i, row)
            base.add(tally, i, row)
    integers = [[int(x) for x in np.rint(flat(m).astype(np.float64) * UNARY.v)] for m in models]
    view = oracle.server_view(integers, UNARY.moduli, Random(0))
    assert tally.T.tolist() == [list(ones) for ones in _ones(integers)]
    sums = view.decode(UNARY.moduli)
    mean = flat(base.mean(tally, silos, BOUNDS))
    assert np.allclose(mean, np.array(sums) / UNARY.v / silos, atol=1e-6)


def _ones(integers: list[list[int]]) -> list[list[int]]:
    return [[sum(row[k] % m for row in integers) for m in UNARY.moduli] for k in range(len(integers[0]))]


@pytest.mark.parametrize("chunk", [3, 10, 26])
def test_unary_bits_lie_value_after_value(chunk: int) -> None:
    """As section 5 says: value i has bits i * m to (i + 1) * m - 1, and the residue's number of them are ones."""
    base, tensors = mode(Granularity.UNARY, chunk), model(2)
    integers = [int(x) for x in np.rint(flat(tensors).astype(np.float64) * UNARY.v)]
    for i, row in enumerate(chunks_of(base, bytes(base.encode(tensors, BOUNDS)))):
        for plane, m in zip(row, UNARY.moduli, strict=True):
            number = int.from_bytes(plane, "little")
            for x in integers[chunk * i : chunk * (i + 1)]:
                assert (number & (1 << m) - 1).bit_count() == x % m
                number >>= m
            assert number == 0


def test_unary_bits_are_really_permuted() -> None:
    """Not sorted, not grouped by silo: where the ones lie says nothing of who sent them."""
    base = mode(Granularity.UNARY, 26)
    bodies = [chunks_of(base, bytes(base.encode(model(i), BOUNDS))) for i in range(4)]
    before = [bytes(p) for body in bodies for p in body[0]]
    seen = set()
    for i in range(20):
        rows = base.shuffle(0, [body[0] for body in bodies], Secret(i.to_bytes(32, "little")))
        seen.add(tuple(bytes(p) for row in rows for p in row))
    assert len(seen) == 20
    assert tuple(before) not in seen


@pytest.mark.parametrize("granularity", [*FLOATS, Granularity.UNARY])
def test_the_mean_is_that_of_the_rows(granularity: Granularity) -> None:
    base, models = mode(granularity), [model(i) for i in range(3)]
    bodies = [chunks_of(base, bytes(base.encode(m, BOUNDS))) for m in models]
    tally = base.tally()
    for i in range(base.layout.chunks):
        for row in base.shuffle(i, [body[i] for body in bodies], SEED):
            base.add(tally, i, row)
    expected = np.mean([flat(m).astype(np.float64) for m in models], axis=0)
    step = 0.5 / UNARY.v if granularity is Granularity.UNARY else 1e-7
    assert np.abs(flat(base.mean(tally, 3, BOUNDS)) - expected).max() <= step * 1.001


def test_unary_weights_travel_as_one_more_value() -> None:
    weighted = plan(3, 2, Encoding.UNARY, Level.TRUSTED, weight_levels=5)
    base = Baseline(Granularity.UNARY, SCHEMA, weighted, 10)
    models, weights = [model(i) for i in range(3)], [1, 5, 2]
    tally = base.tally()
    for m, w in zip(models, weights, strict=True):
        for i, row in enumerate(chunks_of(base, bytes(base.encode(m, BOUNDS, weight=w)))):
            base.check_body(i, row, "silo")
            base.add(tally, i, row)
    expected = np.average([flat(m) for m in models], axis=0, weights=weights)
    assert np.abs(flat(base.mean(tally, 3, BOUNDS)) - expected).max() <= 0.6 / weighted.v


def test_short_types_are_sent_as_float32() -> None:
    schema = Schema(
        (TensorSpec("h", (3,), Dtype.F16), TensorSpec("d", (2,), Dtype.F64), TensorSpec("s", (1,), Dtype.BF16))
    )
    base = Baseline(Granularity.MODEL, schema, UNARY, 10)
    tensors = {
        "h": np.array([0.5, -0.25, 1.5], np.float16),
        "d": np.array([0.125, 3.0]),
        "s": np.array([0x3F80], np.uint16),  # 1.0
    }
    (row,) = chunks_of(base, bytes(base.encode(tensors, BOUNDS)))
    assert np.frombuffer(row[0], "<f4").tolist() == [0.5, -0.25, 1.5, 0.125, 3.0, 1.0]
    tally = base.tally()
    base.add(tally, 0, row)
    mean = base.mean(tally, 1, BOUNDS)
    assert {name: array.dtype for name, array in mean.items()} == {name: array.dtype for name, array in tensors.items()}
    assert all(np.array_equal(mean[name], tensors[name]) for name in tensors)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", [*FLOATS, Granularity.UNARY])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_not_sent(granularity: Granularity, bad: float) -> None:
    spoiled = model(1)
    spoiled["b"][2] = bad
    with pytest.raises(LocalFault) as caught:
        mode(granularity).encode(spoiled, BOUNDS)
    assert caught.value.reason is Reason.NOT_FINITE
    assert caught.value.details["tensor"] == "b"


def reason_of(base: Baseline, index: int, row: Row) -> Reason:
    with pytest.raises(PeerFault) as caught:
        base.check_body(index, row, "silo-7")
    return caught.value.reason


def test_a_wrong_length_is_refused() -> None:
    for granularity in (Granularity.LAYER, Granularity.UNARY):
        base = mode(granularity)
        row = list(chunks_of(base, bytes(base.encode(model(0), BOUNDS)))[0])
        assert reason_of(base, 0, [*row, b""]) is Reason.WRONG_LENGTH
        assert reason_of(base, 0, [bytes(row[0])[:-1], *row[1:]]) is Reason.WRONG_LENGTH
        assert reason_of(base, 0, []) is Reason.WRONG_LENGTH


def test_floats_that_are_not_finite_are_refused_and_the_silo_named() -> None:
    base = mode(Granularity.PARAMETER)
    spoiled = np.zeros(10, "<f4")
    spoiled[3] = np.nan
    assert reason_of(base, 0, [spoiled.tobytes()]) is Reason.OUT_OF_RANGE
    with pytest.raises(PeerFault, match="silo-7"):
        base.check_body(0, [spoiled.tobytes()], "silo-7")


def test_unary_that_no_residue_has_is_refused() -> None:
    base = mode(Granularity.UNARY, 26)
    row = [bytes(p) for p in chunks_of(base, bytes(base.encode(model(0), BOUNDS)))[0]]
    full = [np.packbits(np.ones(26 * m, np.uint8), bitorder="little").tobytes() for m in UNARY.moduli]
    assert reason_of(base, 0, [full[0], *row[1:]]) is Reason.RESIDUE_RANGE
    m = next(m for m in UNARY.moduli if 26 * m % 8)
    j = UNARY.moduli.index(m)
    row[j] = row[j][:-1] + bytes([row[j][-1] | 0x80])
    assert reason_of(base, 0, row) is Reason.TRAILING_BITS


def test_unary_beyond_the_bound_is_refused() -> None:
    base = Baseline(Granularity.UNARY, Schema((TensorSpec("x", (1,)),)), UNARY, 10)
    wild = UNARY.v + 1  # a residue vector that exists, of a value that no silo has
    planes = []
    for m in UNARY.moduli:
        ones = np.arange(m) < wild % m
        planes.append(np.packbits(ones, bitorder="little").tobytes())
    assert reason_of(base, 0, planes) is Reason.OUT_OF_RANGE


def test_encode_agrees_with_the_codec() -> None:
    """The ones are the residues that the sum would carry: same quantiser, same clipping."""
    base, tensors = mode(Granularity.UNARY, 26), model(3)
    tensors["a"][0, 0] = 5.0  # clipped
    (row,) = chunks_of(base, bytes(base.encode(tensors, BOUNDS)))
    codec = Codec(SCHEMA, BOUNDS, UNARY, 26)
    residues = codec.layout.unpack(0, next(iter(codec.encode(tensors))))
    tally = base.tally()
    base.add(tally, 0, row)
    assert np.array_equal(tally, residues)
