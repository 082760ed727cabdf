"""Time series of people who move: UCI HAR, and exercises under a smartwatch. Both know whose record is whose."""

from pathlib import Path

import numpy as np

from silomix.models.data import safe_pickle
from silomix.models.data.catalogue import Array, Data, DataError, Labels, Rows, split

SIGNALS = tuple(f"{what}_{axis}" for what in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
WINDOW = 128
"""Samples in a window, at 50 per second. The watch's do not overlap, so no test record is half of another."""


def har(directory: Path, seed: int) -> Data:
    """Open UCI HAR: windows (n, 9, 128) if its inertial signals are there, else its 561 features as (n, 1, 561)."""

    def inputs(part: str) -> Array:
        signals = directory / part / "Inertial Signals"
        if signals.is_dir():
            channels = [_table(signals / f"{name}_{part}.txt", WINDOW) for name in SIGNALS]
            if len({len(channel) for channel in channels}) != 1:
                raise DataError(f"{signals}: its files differ in length; unpack the data set again")
            return np.stack(channels, axis=1)
        return _table(directory / part / f"X_{part}.txt", 561)[:, None]

    def column(part: str, name: str) -> Labels:
        return _table(directory / part / f"{name}_{part}.txt", 1)[:, 0].astype(np.int64)

    y, test_y = (column(part, "y") - 1 for part in ("train", "test"))
    x, test_x = (Rows.of(inputs(part)) for part in ("train", "test"))
    return Data("har", x, y, test_x, test_y, classes=6, place=column("train", "subject"))


def watch(directory: Path, seed: int) -> Data:
    """Open the watch's exercises, cut into windows (n, 6, 128): acceleration and turning, about 0 and of size 1."""
    path = directory / "watch_dataset.npy"
    raw = path.read_bytes()
    head, _, body = raw.partition(b"\n")
    if not head.startswith(b"\x93NUMPY"):
        raise DataError(f"{path} is no numpy file: fetch it again")
    content = safe_pickle.loads(body, path, encoding="latin1")
    try:
        table = content.item()
        series = [np.asarray(one, np.float64) for one in table["X"]]
        labels, subjects = np.asarray(table["y"], np.int64), np.asarray(table["subject"], np.int64)
        if any(one.ndim != 2 or one.shape[1] != 6 for one in series) or not len(series) == len(labels) == len(subjects):
            raise ValueError("its series, labels and subjects do not fit each other")
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} does not have the watch's series in it ({error}): fetch it again") from None
    windows, owner = [], []
    for i, one in enumerate(series):
        for start in range(0, len(one) - WINDOW + 1, WINDOW):
            windows.append(one[start : start + WINDOW].T)
            owner.append(i)
    x = np.stack(windows)
    x = ((x - x.mean(axis=(0, 2), keepdims=True)) / x.std(axis=(0, 2), keepdims=True)).astype(np.float32)
    return split("watch", x, labels[owner], int(labels.max()) + 1, seed, subjects[owner])


def _table(path: Path, columns: int) -> Array:
    try:
        table = np.loadtxt(path, np.float32, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): unpack the data set again") from None
    if table.shape[1] != columns:
        raise DataError(f"{path} has {table.shape[1]} columns, not {columns}: unpack the data set again")
    return table
