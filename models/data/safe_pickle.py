"""Unpickling that can make nothing but plain values and numpy arrays.

Some data sets are pickles, and a pickle is a program: whoever wrote it chooses what runs. Here it may name a handful of
constructors that hold data, and everything else is refused before it is looked up.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from silomix.models.data.catalogue import DataError


class Inert:
    """Stands for an object of a foreign library: it keeps what the pickle gives it, and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        """Keep the arguments."""
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _latin(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it encodes to {encoding}")
    return text.encode(encoding)


def _frombuffer(buffer: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> Any:
    return np.frombuffer(buffer, dtype).reshape(shape, order=order)


_reconstruct: Any = np.ndarray(0).__reduce__()[0]

ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("_codecs", "encode"): _latin,
    ("builtins", "slice"): slice,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
}
"""All that a pickle may call."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, inert: tuple[str, ...], **options: Any) -> None:
        super().__init__(file, **options)
        self._inert = inert

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        if module.partition(".")[0] in self._inert:
            return Inert
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def loads(data: bytes, path: Path, *, inert: tuple[str, ...] = (), encoding: str = "bytes") -> Any:
    """Unpickle plain values and arrays; classes of the packages in `inert` become `Inert`, others are refused."""
    try:
        return _Unpickler(io.BytesIO(data), inert, encoding=encoding).load()
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{path} is not a pickle of plain data ({error}): fetch it again, and do not open it") from None
