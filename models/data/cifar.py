"""CIFAR-10 and CIFAR-100: the original binary files, the original python files, or PNG sheets.

A binary record is the label (CIFAR-100: the coarse and the fine one) and 3072 bytes, red before green before blue.
A sheet is a PNG with one photograph in each row of pixels, and its labels are in a JSON file.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from silomix.models.data import safe_pickle
from silomix.models.data.catalogue import Array, Data, DataError, Labels, Read, Rows

PIXELS = 3 * 32 * 32
SHEET_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}
"""As the package that has the sheets spells them."""


def cifar10(directory: Path, seed: int) -> Data:
    """Open CIFAR-10. It has a test set of its own, so the seed does nothing."""
    parts = [_part(directory, f"data_batch_{i}", 1, ("train", i - 1)) for i in range(1, 6)]
    test_y, test_x = _part(directory, "test_batch", 1, ("test", 0))
    y = np.concatenate([labels for labels, _ in parts])
    x = Rows([(len(labels), read) for labels, read in parts])
    return Data("cifar10", x, y, Rows([(len(test_y), test_x)]), test_y, classes=10)


def cifar100(directory: Path, seed: int) -> Data:
    """Open CIFAR-100, with its fine labels."""
    y, x = _part(directory, "train", 2, None)
    test_y, test_x = _part(directory, "test", 2, None)
    return Data("cifar100", Rows([(len(y), x)]), y, Rows([(len(test_y), test_x)]), test_y, classes=100)


def to_binary(labels: Labels, photographs: Array) -> bytes:
    """Write a batch of CIFAR-10 as its original binary file."""
    rows = np.concatenate([labels[:, None].astype(np.uint8), photographs.reshape(len(labels), PIXELS)], axis=1)
    return rows.astype(np.uint8).tobytes()


def read_sheet(path: Path) -> Array:
    """Read a PNG sheet: n rows of 1024 pixels -> (n, 3, 32, 32)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as sheet:
            if sheet.mode not in ("RGB", "RGBA") or sheet.width != 1024:
                raise DataError(f"{path} is {sheet.width} pixels wide, {sheet.mode}: a sheet has 1024 in RGB")
            pixels = np.asarray(sheet.convert("RGB"))  # (n, 1024, 3)
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise DataError(f"{path} is no PNG sheet ({error}): fetch it again") from None
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def sheet_labels(directory: Path, part: str) -> Labels:
    """Read the labels that go with the sheets."""
    path = directory / SHEET_LABELS[part]
    try:
        labels = np.asarray(json.loads(path.read_text()))
        if labels.ndim != 1 or labels.dtype.kind != "i":
            raise ValueError("not a list of whole numbers")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} does not have the sheets' labels ({error}): fetch it again") from None
    return labels.astype(np.int64)


def _part(directory: Path, name: str, label_bytes: int, sheet: tuple[str, int] | None) -> tuple[Labels, Read]:
    if (binary := directory / f"{name}.bin").exists():
        rows = _binary(binary, label_bytes)
        return np.asarray(rows[:, label_bytes - 1], np.int64), lambda: _photographs(
            _binary(binary, label_bytes)[:, label_bytes:]
        )
    if (pickled := directory / name).exists():
        content = _pickled(pickled)
        labels = np.asarray(content[b"fine_labels" if label_bytes == 2 else b"labels"], np.int64)
        return labels, lambda: _photographs(_pickled(pickled)[b"data"])
    assert sheet is not None, "the catalogue has checked that a file is there"
    part, index = sheet
    path = directory / f"{name}.png"
    labels = sheet_labels(directory, part)
    size = len(labels) // (5 if part == "train" else 1)
    return labels[index * size : (index + 1) * size], partial(read_sheet, path)


def _photographs(rows: Array) -> Array:
    return rows.reshape(-1, 3, 32, 32)


def _binary(path: Path, label_bytes: int) -> Array:
    width, size = label_bytes + PIXELS, path.stat().st_size
    if not size or size % width:
        raise DataError(f"{path} has {size} bytes, which is not a number of records of {width}: fetch it again")
    return np.memmap(path, np.uint8, "r", shape=(size // width, width))


def _pickled(path: Path) -> dict[bytes, Any]:
    content: Any = safe_pickle.loads(path.read_bytes(), path)
    labels = content.get(b"labels", content.get(b"fine_labels")) if isinstance(content, dict) else None
    data = content.get(b"data") if isinstance(content, dict) else None
    if not isinstance(labels, list) or not isinstance(data, np.ndarray) or data.shape != (len(labels), PIXELS):
        raise DataError(f"{path} does not have CIFAR's data and labels in it: fetch it again")
    return dict(content)
