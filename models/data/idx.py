"""MNIST and its relatives: the IDX format, plain or gzipped.

A file is two zero bytes, one byte for the type (8: unsigned bytes), one for the number of dimensions, each dimension as
a big-endian 32-bit integer, and then the values.
"""

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np

from silomix.models.data.catalogue import Array, Data, DataError, Rows

_UBYTE = 8


def read_idx(path: Path) -> Array:
    """Read a file of unsigned bytes; a plain one is mapped, so that only the rows in use take memory."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                raw = file.read()
            shape, start = _shape(raw, path)
            found = len(raw) - start
        else:
            with open(path, "rb") as file:
                shape, start = _shape(file.read(4 + 4 * 255), path)
            raw, found = b"", path.stat().st_size - start
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged ({error}): fetch it again") from None
    if found != prod(shape):
        raise DataError(f"{path} holds {found} values and promises {prod(shape)}: it is damaged, fetch it again")
    if raw:
        return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
    return np.memmap(path, np.uint8, "r", start, shape)


def mnist(directory: Path, seed: int) -> Data:
    """Open MNIST. It has a test set of its own, so the seed does nothing."""
    return _images("mnist", directory)


def fashion_mnist(directory: Path, seed: int) -> Data:
    """Open Fashion-MNIST, which has MNIST's form."""
    return _images("fashion-mnist", directory)


def _images(name: str, directory: Path) -> Data:
    def opened(part: str, kind: str) -> tuple[Path, tuple[int, ...]]:
        plain = directory / f"{part}-{kind}"
        path = plain if plain.exists() else plain.with_name(plain.name + ".gz")
        return path, read_idx(path).shape

    def images(part: str) -> Rows:
        path, shape = opened(part, "images-idx3-ubyte")
        if shape[1:] != (28, 28):
            raise DataError(f"{path} has records of shape {shape[1:]}, not (28, 28): it is another data set's")
        return Rows([(shape[0], lambda: read_idx(path)[:, None])])  # (n, 28, 28) -> (n, 1, 28, 28)

    def labels(part: str) -> Array:
        path, shape = opened(part, "labels-idx1-ubyte")
        if len(shape) != 1:
            raise DataError(f"{path} has {len(shape)} dimensions: labels have one; fetch it again")
        return read_idx(path).astype(np.int64)

    return Data(name, images("train"), labels("train"), images("t10k"), labels("t10k"), classes=10)


def _shape(head: bytes, path: Path) -> tuple[tuple[int, ...], int]:
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UBYTE or len(head) < 4 + 4 * head[3]:
        raise DataError(f"{path} is no IDX file of bytes: it begins with {head[:4].hex() or 'nothing'}; fetch it again")
    return struct.unpack_from(f">{head[3]}I", head, 4), 4 + 4 * head[3]
