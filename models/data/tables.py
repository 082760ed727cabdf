"""Tables: what comes with scikit-learn, the synthetic one of Hu et al., and patients of four real hospitals."""

import importlib
import lzma
from pathlib import Path
from typing import Any

import numpy as np

from silomix.models.data import safe_pickle
from silomix.models.data.catalogue import Array, Data, DataError, split

SYNTHETIC_RECORDS = 100_000
FEATURES, CLASSES = 60, 10
SYNTHETIC_SCALE = 2.0
"""Deviation of the weights that label a record; with it, classes are unequal in size but all are there."""


def _standardised(x: Array) -> Array:
    deviation = x.std(axis=0)
    scaled: Array = ((x - x.mean(axis=0)) / np.where(deviation, deviation, 1)).astype(np.float32)
    return scaled


def digits(directory: Path, seed: int) -> Data:
    """Open scikit-learn's digits as images: (1797, 1, 8, 8) from 0 to 1."""
    pixels, labels = importlib.import_module("sklearn.datasets").load_digits(return_X_y=True)
    return split("digits", (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels, CLASSES, seed)


def breast_cancer(directory: Path, seed: int) -> Data:
    """Open scikit-learn's biopsies, each feature with mean 0 and deviation 1."""
    x, labels = importlib.import_module("sklearn.datasets").load_breast_cancer(return_X_y=True)
    return split("breast-cancer", _standardised(x), labels, 2, seed)


def synthetic(directory: Path, seed: int, records: int = SYNTHETIC_RECORDS) -> Data:
    """Compute the synthetic table: feature j is normal with variance j^-1.2, and a random linear rule labels it."""
    rng = np.random.default_rng([seed, FEATURES])
    weights = rng.normal(0, SYNTHETIC_SCALE, (FEATURES, CLASSES))
    offset = rng.normal(0, SYNTHETIC_SCALE, CLASSES)
    x = rng.normal(0, 1, (records, FEATURES)) * np.arange(1, FEATURES + 1) ** -0.6  # the root of the variance
    return split("synthetic", x.astype(np.float32), (x @ weights + offset).argmax(axis=1), CLASSES, seed)


def indo_rct(directory: Path, seed: int) -> Data:
    """Open the indomethacin trial: who got pancreatitis, by what was known of a patient; silos are the hospitals."""
    path = directory / "indo_rct.pkl.compress"
    try:
        columns = read_frame(lzma.decompress(path.read_bytes()), path)
        outcome, site = columns.pop("outcome"), columns.pop("site")
        labels = np.array([str(value).startswith("1") for value in outcome], np.int64)
    except (lzma.LZMAError, KeyError) as error:
        raise DataError(f"{path} is damaged ({error!r}): fetch it again") from None
    for name in ("rownames", "id", "bleed", "status"):  # who it is, and what may follow from the outcome
        columns.pop(name, None)
    x = np.stack([_numbers(values) for values in columns.values()], axis=1)
    return split("indo-rct", _standardised(x), labels, 2, seed, np.array([str(value) for value in site]))


def read_frame(pickled: bytes, path: Path) -> dict[str, Array]:
    """Read the columns of a pickled pandas table, without pandas and without running anything."""
    table = safe_pickle.loads(pickled, path, inert=("pandas",), encoding="ASCII")
    try:
        blocks, (names, _) = table.state["_mgr"].arguments
        labels = [str(name) for name in names.arguments[1]["data"]]
        columns: dict[int, Array] = {}
        for block in blocks:
            values, placement = block.arguments[:2]
            rows = range(len(labels))[placement] if isinstance(placement, slice) else placement
            columns.update(dict(zip((int(row) for row in rows), values, strict=True)))
        return {label: columns[i] for i, label in enumerate(labels)}
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{path} is not a pickled table as pandas writes it ({error!r}): fetch it again") from None


def _numbers(values: Any) -> Array:
    """Take numbers as they are, and '1_yes' by the number that it begins with; what is not known is 0."""
    if values.dtype.kind in "if":
        return np.nan_to_num(np.asarray(values, np.float64))
    heads = [str(value).partition("_")[0] for value in values]
    return np.array([float(head) if head.isdigit() else 0.0 for head in heads])
