"""Global models as files: safetensors, with the schema in the metadata.

The schema gives the order of the vector, which safetensors does not keep. So the aggregator works on any model without
knowing what it is, and needs no torch.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors

from silomix.runtime.core.digest import digest, fast_hash
from silomix.runtime.core.errors import LocalFault, Reason
from silomix.runtime.core.numbers.schema import NUMPY_TYPES, Array, Dtype, Schema, TensorSpec

HEADER_BYTES = 16 << 20
"""The longest header of a file: the schema, which has a mebibyte in a manifest, in words and twice over.

It is parsed before anything is known of the file, and takes many times its length in memory while it is.
"""
_SCHEMA = "silomix.schema"
_WORDS = {Dtype.F64: "float64", Dtype.F32: "float32", Dtype.F16: "float16", Dtype.BF16: "bfloat16"}


def write_model(schema: Schema, tensors: Mapping[str, Array]) -> bytes:
    """Write a model: the same tensors give the same bytes, and so the same digest."""
    arrays = {t.name: np.ascontiguousarray(tensors[t.name]) for t in schema.tensors}  # alive while they are written
    entries = {
        t.name: safetensors.TensorSpec(
            dtype=_WORDS[t.dtype],
            shape=t.shape,
            data_ptr=arrays[t.name].ctypes.data,
            data_len=arrays[t.name].nbytes,
        )
        for t in schema.tensors
    }
    rows = [[t.name, list(t.shape), str(t.dtype), t.buffer] for t in schema.tensors]
    return bytes(safetensors.serialize(entries, {_SCHEMA: json.dumps(rows, separators=(",", ":"))}))


def read_model(data: bytes, file: Path | str = "this") -> tuple[Schema, dict[str, Array]]:
    """Read a model and its schema, or say what is wrong with the file: by its path, if somebody put it there."""
    try:
        size = int.from_bytes(data[:8], "little")
        if size > HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes, where {HEADER_BYTES} are the most")
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
        rows = json.loads(metadata[_SCHEMA])
        schema = Schema(tuple(_row(*row) for row in rows))
        entries = dict(cast("Any", safetensors.deserialize)(data))
        if len(entries) != len(schema.tensors) or entries.keys() != {t.name for t in schema.tensors}:
            raise ValueError("its tensors are not those of its schema")
        tensors: dict[str, Array] = {}
        for t in schema.tensors:
            found = entries[t.name]
            if found["dtype"] != t.dtype or tuple(found["shape"]) != t.shape:
                raise ValueError(f"{t.name} is not what its schema says")
            tensors[t.name] = np.frombuffer(found["data"], NUMPY_TYPES[t.dtype]).reshape(t.shape)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise LocalFault(
            Reason.SHAPE_MISMATCH,
            f"{file} is not a model file of silomix ({type(error).__name__}: {error}); `silomix model init` makes one",
        ) from None
    return schema, tensors


def _row(name: object, shape: object, dtype: object, buffer: object) -> TensorSpec:
    sizes: list[Any] = shape if isinstance(shape, list) else [None]
    if type(name) is not str or type(buffer) is not bool or not all(type(n) is int and n >= 0 for n in sizes):
        raise ValueError("a row of its schema is malformed")
    return TensorSpec(name, tuple(sizes), Dtype(str(dtype)), buffer)


def model_digest(schema: Schema, tensors: Mapping[str, Array]) -> bytes:
    """What a manifest names a model by: its schema and the bits of its values.

    Two files that differ in anything else, such as their metadata, are one model: else the aggregator could offer the
    same model twice under two names, and learn a silo's update from two sums.
    """
    values = (np.ascontiguousarray(tensors[t.name]).reshape(-1).view(np.uint8).data for t in schema.tensors)
    return digest("model", schema.digest, *(fast_hash(value) for value in values))
