"""Global models as files: what is written is read back, and what a stranger made is refused before it costs much."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silomix.runtime.core.errors import LocalFault
from silomix.runtime.core.numbers.schema import NUMPY_TYPES, Dtype, Schema, TensorSpec
from silomix.runtime.net.limits import SCHEMA_BYTES
from silomix.runtime.net.wire import write_schema
from silomix.runtime.store.modelfile import HEADER_BYTES, model_digest, read_model, write_model

SCHEMA = Schema(
    (
        TensorSpec("z.first", (2, 3)),
        TensorSpec("half", (5,), Dtype.F16),
        TensorSpec("brain", (3, 1), Dtype.BF16),
        TensorSpec("double", (2,), Dtype.F64, buffer=True),
        TensorSpec("scalar", (), Dtype.F32),
        TensorSpec("scalar.brain", (), Dtype.BF16, buffer=True),
        TensorSpec("empty", (0,)),
        TensorSpec("empty.too", (4, 0, 2), Dtype.F64),
        TensorSpec('a name with "quotes", ü and \n', (1,)),
    )
)


def model(schema: Schema = SCHEMA, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(seed)
    out = {}
    for t in schema.tensors:
        raw = rng.bytes(t.size * np.dtype(NUMPY_TYPES[t.dtype]).itemsize)
        out[t.name] = np.frombuffer(raw, NUMPY_TYPES[t.dtype]).reshape(t.shape)
    return out


def same(a: dict[str, npt.NDArray[Any]], b: dict[str, npt.NDArray[Any]]) -> bool:
    """Bit by bit: NaNs count too."""
    return list(a) == list(b) and all(
        a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and a[n].tobytes() == b[n].tobytes() for n in a
    )


def test_every_type_and_shape_comes_back() -> None:
    schema, tensors = read_model(write_model(SCHEMA, model()))
    assert schema == SCHEMA  # in the order of the vector, which is not that of the file
    assert same(tensors, model())


DIMENSIONS = st.lists(st.integers(0, 4), max_size=4).map(tuple)
SPECS = st.builds(TensorSpec, st.text(min_size=1, max_size=20), DIMENSIONS, st.sampled_from(Dtype), st.booleans())
SCHEMAS = st.lists(SPECS, min_size=1, max_size=6, unique_by=lambda t: t.name).map(lambda ts: Schema(tuple(ts)))


@given(SCHEMAS.filter(lambda s: all(t.name != "__metadata__" for t in s.tensors)), st.integers(0, 9))
def test_any_model_comes_back(schema: Schema, seed: int) -> None:
    found, tensors = read_model(write_model(schema, model(schema, seed)))
    assert found == schema
    assert found.digest == schema.digest
    assert same(tensors, model(schema, seed))


def test_strided_arrays_are_written_by_value() -> None:
    schema = Schema((TensorSpec("t", (3, 2)),))
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert read_model(write_model(schema, {"t": array}))[1]["t"].tolist() == array.tolist()


SCRIPT = """
import numpy as np
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.store.modelfile import *
schema = Schema(tuple(TensorSpec(f"t{i}", (i,)) for i in range(20)))
print(model_digest(schema, {f"t{i}": np.arange(i, dtype=np.float32) for i in range(20)}).hex())
"""


def test_the_digest_is_that_of_the_values_and_the_same_everywhere() -> None:
    data = write_model(SCHEMA, model())
    digest = model_digest(SCHEMA, model())
    assert model_digest(*read_model(data)) == digest
    assert write_model(SCHEMA, dict(reversed(model().items()))) == data
    _, tensors = read_model(data)
    assert write_model(SCHEMA, tensors) == data
    changed = model()
    changed["half"] = changed["half"].copy()
    changed["half"].view(np.uint16)[0] ^= 1
    assert model_digest(SCHEMA, changed) != digest
    runs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2] / ".src")},
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_order_kind_and_type_are_part_of_the_digest() -> None:
    tensors = model()
    other = Schema((SCHEMA.tensors[1], SCHEMA.tensors[0], *SCHEMA.tensors[2:]))
    assert model_digest(other, tensors) != model_digest(SCHEMA, tensors)


def test_a_file_that_was_changed_and_holds_the_same_values_is_the_same_model() -> None:
    """Else one model could be offered twice: the difference of two sums on it is a silo's update."""
    data = write_model(SCHEMA, model())
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    head["__metadata__"]["note"] = "the same values"
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    other = len(text).to_bytes(8, "little") + text + data[8 + size :]
    assert other != data
    assert model_digest(*read_model(other)) == model_digest(*read_model(data))


# Files that somebody else made

TINY = Schema((TensorSpec("a", (2, 2)), TensorSpec("b", (3,), Dtype.F16)))
GOOD = write_model(TINY, model(TINY))


def file(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def parts() -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(GOOD[:8], "little")
    return json.loads(GOOD[8 : 8 + size]), GOOD[8 + size :]


def with_rows(change: Callable[[list[Any]], Any]) -> bytes:
    """The good file with another schema in its metadata."""
    header, data = parts()
    rows = json.loads(header["__metadata__"]["silomix.schema"])
    header["__metadata__"]["silomix.schema"] = json.dumps(change(rows))
    return file(header, data)


def with_tensor(name: str, **changes: Any) -> bytes:
    """The good file with another entry for a tensor."""
    header, data = parts()
    header[name] = {**header.get(name, {}), **changes}
    return file(header, data)


HOSTILE = {
    "nothing": b"",
    "too short": b"\x01\x02",
    "garbage": b"this is no model file, whatever its name may be" * 10,
    "no header": bytes(8),
    "header of all memory": file(b"{}", size=(1 << 64) - 1),
    "header of a terabyte": file(b"{}", size=1 << 40),
    "header longer than the file": file(b"{}", size=3),
    "not text": file(b"\xff\xfe{}"),
    "not json": file(b"{"),
    "deep": file(b"[" * 100_000),
    "deep in the schema": file({"__metadata__": {"silomix.schema": "[" * 100_000}}),
    "a list": file([1]),
    "a number": file(1),
    "null": file(None),
    "a huge number": file(b"9" * 5000),
    "no metadata": file({}),
    "metadata of another kind": file({"__metadata__": [1]}),
    "no schema": file({"__metadata__": {}}),
    "schema of another kind": file({"__metadata__": {"silomix.schema": 5}}),
    "cut": GOOD[:-1],
    "longer": GOOD + b"x",
    "a tensor less": with_rows(lambda rows: rows[:1]),
    "a tensor more": with_rows(lambda rows: [*rows, ["c", [1], "F32", False]]),
    "an empty tensor more": with_rows(lambda rows: [*rows, ["c", [0], "F32", False]]),
    "a tensor twice": with_rows(lambda rows: [rows[0], *rows]),
    "a tensor twice for another": with_rows(lambda rows: [rows[0], rows[0]]),
    "another shape": with_rows(lambda rows: [["a", [4], "F32", False], rows[1]]),
    "another size": with_rows(lambda rows: [["a", [2, 3], "F32", False], rows[1]]),
    "a shape to be guessed": with_rows(lambda rows: [["a", [-1, 2], "F32", False], rows[1]]),
    "negative twice": with_rows(lambda rows: [["a", [-2, -2], "F32", False], rows[1]]),
    "a shape beyond 64 bits": with_rows(lambda rows: [["a", [1 << 70], "F32", False], rows[1]]),
    "a large shape": with_rows(lambda rows: [["a", [1 << 40], "F32", False], rows[1]]),
    "a shape in words": with_rows(lambda rows: [["a", "22", "F32", False], rows[1]]),
    "a shape in floats": with_rows(lambda rows: [["a", [2.0, 2.0], "F32", False], rows[1]]),
    "a shape of booleans": with_rows(lambda rows: [["a", [True], "F32", False], rows[1]]),
    "no shape": with_rows(lambda rows: [["a", None, "F32", False], rows[1]]),
    "another type": with_rows(lambda rows: [rows[0], ["b", [3], "BF16", False]]),
    "a type that does not travel": with_rows(lambda rows: [rows[0], ["b", [3], "I16", False]]),
    "a type of another kind": with_rows(lambda rows: [rows[0], ["b", [3], ["F16"], False]]),
    "a name of another kind": with_rows(lambda rows: [[5, [2, 2], "F32", False], rows[1]]),
    "neither parameter nor buffer": with_rows(lambda rows: [["a", [2, 2], "F32", "yes"], rows[1]]),
    "a short row": with_rows(lambda rows: [rows[0][:3], rows[1]]),
    "a long row": with_rows(lambda rows: [[*rows[0], 1], rows[1]]),
    "rows of another kind": with_rows(lambda rows: [1, 2]),
    "a mapping": with_rows(lambda rows: {"a": 1}),
    "no rows": with_rows(lambda rows: []),
    "offsets beyond the file": with_tensor("a", data_offsets=[0, 1 << 40]),
    "offsets backwards": with_tensor("a", data_offsets=[16, 0]),
    "offsets that overlap": with_tensor("b", data_offsets=[0, 6]),
    "offsets that do not fit the shape": with_tensor("a", shape=[2, 3]),
    "a shape that overflows": with_tensor("a", shape=[1 << 62, 8]),
    "a type nobody knows": with_tensor("a", dtype="F99"),
    "a type that has the same size": with_tensor("a", dtype="I32"),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_and_costs_little(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(LocalFault, match="not a model file of silomix"):
            read_model(data)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_header_as_long_as_a_model_is_not_parsed() -> None:
    """Parsed, empty lists take twenty times the room that they take in the file."""
    text = b'{"__metadata__":{"x":[' + b"[]," * (HEADER_BYTES // 3) + b"[]]}}"
    tracemalloc.start()
    try:
        with pytest.raises(LocalFault, match=f"where {HEADER_BYTES} are the most"):
            read_model(file(text))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()


def test_a_header_may_be_as_long_as_a_schema_makes_it() -> None:
    """A name is there twice, and takes most room where it has nothing that can be printed."""
    names = [f"{i:03}" + "\x01" * 1000 for i in range(1000)]
    schema = Schema(tuple(TensorSpec(name, (1,)) for name in names))
    assert write_schema(schema).ByteSize() > 0.95 * SCHEMA_BYTES
    data = write_model(schema, model(schema))
    assert HEADER_BYTES / 2 < int.from_bytes(data[:8], "little") <= HEADER_BYTES
    assert read_model(data)[0] == schema


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_a_file_for_which_there_is_no_room_is_none_of_ours(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails(_: bytes) -> None:
        raise error

    monkeypatch.setattr(json, "loads", fails)
    with pytest.raises(LocalFault, match="not a model file of silomix"):
        read_model(GOOD)


def test_a_refusal_does_not_repeat_the_file() -> None:
    with pytest.raises(LocalFault) as caught:
        read_model(HOSTILE["a huge number"])
    assert len(str(caught.value)) < 1000


@given(st.data())
def test_a_file_with_a_few_bytes_changed_is_refused_or_a_model(data: st.DataObject) -> None:
    changed = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        schema, tensors = read_model(bytes(changed))
    except LocalFault:
        return
    assert [t.shape for t in schema.tensors] == [a.shape for a in tensors.values()]


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(LocalFault):
        read_model(data)
