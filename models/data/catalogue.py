"""Data sets by name: where they lie, and how a silo reads its own rows of them and no others.

Nothing here fetches; `silomix data get NAME` does (get.py). Files lie in $SILOMIX_DATA, or in ~/.cache/silomix, in
one directory for each set. A set that is not there is an error that says which file to put where.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.models.data.partition import Indices
from silomix.runtime.core.errors import UserError, nearest

Array = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]
Read = Callable[[], Array]


class DataError(UserError):
    """A data set is missing or damaged. The message says which file, and what to do."""


class Rows:
    """Records in blocks, each read when one of its rows is asked for: a silo never holds more than a block and its own.

    A block that is a memory map costs nothing but the rows that are taken of it.
    """

    def __init__(self, blocks: Sequence[tuple[int, Read]]) -> None:
        """Each block is its length and how to read it."""
        self._blocks = blocks

    @classmethod
    def of(cls, array: Array) -> "Rows":
        """Make one block of an array that is there already."""
        return cls([(len(array), lambda: array)])

    def __len__(self) -> int:
        return sum(length for length, _ in self._blocks)

    def take(self, rows: Indices) -> Array:
        """Return these rows, in this order."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}")
        parts: list[Array] = []
        places: list[Indices] = []
        start = 0
        for length, read in self._blocks:
            here = np.flatnonzero((rows >= start) & (rows < start + length))
            if len(here) or (not len(rows) and not parts):  # nobody's share is empty, and still has a shape
                parts.append(np.asarray(read()[rows[here] - start]))
                places.append(here)
            start += length
        taken = np.concatenate(parts)
        out = np.empty_like(taken)
        out[np.concatenate(places)] = taken
        return out


@dataclass(frozen=True, eq=False)
class Data:
    """A data set, split into what silos train on and what nobody does. Inputs are read by row; labels are all here."""

    name: str
    x: Rows
    y: Labels
    test_x: Rows
    test_y: Labels
    classes: int
    place: Array | None = None
    """Where each training record was collected: the natural silos."""

    def __post_init__(self) -> None:
        for what, x, y in (("training", self.x, self.y), ("test", self.test_x, self.test_y)):
            if len(x) != len(y):
                raise DataError(f"{self.name}: there are {len(x)} {what} records and {len(y)} labels; fetch it again")
            if len(y) and not 0 <= y.min() <= y.max() < self.classes:
                raise DataError(f"{self.name}: a {what} label is not in 0 to {self.classes - 1}; fetch it again")


def split(name: str, x: Array, y: Array, classes: int, seed: int, place: Array | None = None) -> Data:
    """Make a data set of records that come without a test set: a fifth of them, drawn from the seed, is held out."""
    order = np.random.default_rng(seed).permutation(len(y))
    test, rest = np.split(order, [max(1, round(0.2 * len(y)))])
    y = y.astype(np.int64)
    place = None if place is None else place[rest]
    return Data(name, Rows.of(x[rest]), y[rest], Rows.of(x[test]), y[test], classes, place)


@dataclass(frozen=True)
class Entry:
    """What the catalogue says of a data set."""

    about: str
    loader: str
    """module:function(directory, seed) -> Data, imported when it is needed."""
    files: tuple[str, ...] = ()
    """What has to lie in its directory; `a|b` for either."""

    def missing(self, directory: Path) -> list[str]:
        """List the files that are not there."""
        return [f for f in self.files if not any((directory / either).exists() for either in f.split("|"))]


_IDX = tuple(
    f"{name}|{name}.gz"
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
)
_CIFAR10 = tuple(f"{n}.bin|{n}|{n}.png" for n in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"))

CATALOGUE: dict[str, Entry] = {
    "digits": Entry("handwritten digits, 8 by 8 pixels, 10 classes", "silomix.models.data.tables:digits"),
    "breast-cancer": Entry("biopsies, 30 features, 2 classes", "silomix.models.data.tables:breast_cancer"),
    "synthetic": Entry(
        "the synthetic table of Hu et al., 60 features, 10 classes", "silomix.models.data.tables:synthetic"
    ),
    "mnist": Entry("handwritten digits, 28 by 28 pixels, 10 classes", "silomix.models.data.idx:mnist", _IDX),
    "fashion-mnist": Entry("clothes, 28 by 28 pixels, 10 classes", "silomix.models.data.idx:fashion_mnist", _IDX),
    "cifar10": Entry("photographs, 32 by 32 pixels, 10 classes", "silomix.models.data.cifar:cifar10", _CIFAR10),
    "cifar100": Entry(
        "photographs, 32 by 32 pixels, 100 classes",
        "silomix.models.data.cifar:cifar100",
        ("train.bin|train", "test.bin|test"),
    ),
    "har": Entry(
        "UCI HAR: six activities of 30 people, from a telephone's sensors",
        "silomix.models.data.series:har",
        ("train/y_train.txt", "train/subject_train.txt", "test/y_test.txt", "train/Inertial Signals|train/X_train.txt"),
    ),
    "watch": Entry(
        "seven exercises of 10 people, from a watch's sensors; natural silos",
        "silomix.models.data.series:watch",
        ("watch_dataset.npy",),
    ),
    "newsgroups": Entry(
        "20 Newsgroups: posts, 20 classes",
        "silomix.models.data.text:newsgroups",
        ("20newsgroups-train.tab", "20newsgroups-test.tab"),
    ),
    "indo-rct": Entry(
        "602 patients of four hospitals, 2 classes; natural silos",
        "silomix.models.data.tables:indo_rct",
        ("indo_rct.pkl.compress",),
    ),
}
"""Every data set that has a loader. One without files comes with scikit-learn, or is computed."""


def home(directory: str | Path | None = None) -> Path:
    """Return where data sets lie: the directory given, or $SILOMIX_DATA, or ~/.cache/silomix."""
    return Path(directory or os.environ.get("SILOMIX_DATA") or Path.home() / ".cache" / "silomix").absolute()


def entry(name: str) -> Entry:
    """Look a data set up, or say which there are."""
    if name not in CATALOGUE:
        raise DataError(f"there is no data set {name!r}{nearest(name, CATALOGUE)} They are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def load(name: str, directory: str | Path | None = None, seed: int = 1) -> Data:
    """Open a data set. Tasks of one process share what is read; the seed splits sets that have no test set."""
    known = entry(name)
    where = home(directory) / name
    if missing := known.missing(where):
        files = ", ".join(f.replace("|", " or ") for f in missing)
        raise DataError(f"the data set {name} is not here: run `silomix data get {name}`, or put into {where}: {files}")
    return _load(known.loader, where, seed)


@lru_cache(maxsize=4)
def _load(loader: str, where: Path, seed: int) -> Data:
    module, _, function = loader.partition(":")
    data = getattr(import_module(module), function)(where, seed)
    assert isinstance(data, Data)
    return data
