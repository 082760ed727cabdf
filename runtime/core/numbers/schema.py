"""A model's tensors: their names, shapes and types in the order in which they travel, and arithmetic in these types."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.digest import digest
from silomix.runtime.core.numbers import residue

Array = npt.NDArray[Any]


class Dtype(StrEnum):
    """The tensor types that travel, named as safetensors does. BF16 is held as its 16 bits in a uint16 array."""

    F64 = "F64"
    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"


NUMPY_TYPES = {Dtype.F64: np.float64, Dtype.F32: np.float32, Dtype.F16: np.float16, Dtype.BF16: np.uint16}
"""How each type is held in memory."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the model: a parameter, or a buffer such as a batch norm's running mean.

    >>> import silomix
    >>> silomix.TensorSpec("layer.weight", (10, 64)).size
    640
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype = Dtype.F32
    buffer: bool = False

    @property
    def size(self) -> int:
        """How many values it has."""
        return prod(self.shape)


@dataclass(frozen=True)
class Schema:
    """The tensors in the order in which they travel.

    >>> import silomix
    >>> silomix.Schema((silomix.TensorSpec("weight", (10, 64)), silomix.TensorSpec("bias", (10,)))).parameters
    650
    """

    tensors: tuple[TensorSpec, ...]

    @property
    def parameters(self) -> int:
        """How many values the model has, buffers included."""
        return sum(t.size for t in self.tensors)

    @cached_property
    def digest(self) -> bytes:
        """What two nodes compare to know that they mean the same vector."""
        parts: list[str | int] = [len(self.tensors)]
        for t in self.tensors:
            parts += [t.name, str(t.dtype), "buffer" if t.buffer else "parameter", len(t.shape), *t.shape]
        return digest("schema", *parts, self.parameters)


def as_float(values: Array, dtype: Dtype) -> residue.Floats:
    """Return values to compute with: short types as float32, others as they are."""
    if dtype is Dtype.BF16:
        return np.asarray(np.left_shift(values.astype(np.uint32), 16, dtype=np.uint32)).view(np.float32)
    return values.astype(np.float32) if dtype is Dtype.F16 else values


def as_dtype(mean: residue.Floats, dtype: Dtype) -> Array:
    """Round to the tensor's own type, to nearest, ties to even."""
    mean = np.asarray(mean)  # what numpy computes of arrays without a dimension is no array
    if dtype is Dtype.BF16:
        bits = mean.view(np.uint32)
        return np.asarray((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return mean.astype(NUMPY_TYPES[dtype], copy=False)


def round_to(values: npt.NDArray[np.float64], dtype: Dtype) -> Array:
    """Round what was computed in float64 to a tensor's own type."""
    return as_dtype(values if dtype is Dtype.F64 else values.astype(np.float32), dtype)


def add(left: Array, right: Array, dtype: Dtype) -> Array:
    """Add two tensors of a schema's type, rounded to that type: BF16 is held as bits, which do not add up."""
    return as_dtype(as_float(left, dtype) + as_float(right, dtype), dtype)


def subtract(left: Array, right: Array, dtype: Dtype) -> Array:
    """Subtract two tensors of a schema's type, rounded to that type."""
    return as_dtype(as_float(left, dtype) - as_float(right, dtype), dtype)
