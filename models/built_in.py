"""What all built-in tasks do alike: find the silo's rows, read those and no others, and make the task."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from silomix.models.data.catalogue import Data, load
from silomix.models.data.partition import Indices, deal
from silomix.models.torch_task import Augment, Records, TorchTask, Training, from_seed

Prepare = Callable[[npt.NDArray[Any]], Tensor]
"""From what a data set holds to what a network takes. A plain function: test sets are kept by it."""
_FEWER = 0xFE0E  # keeps the draw of fewer records apart from every other that starts from the same seed


class Options(Training, total=False):
    """What every built-in task takes beside silos, silo, alpha and seed."""

    directory: str
    """Where data sets lie, if not in $SILOMIX_DATA or ~/.cache/silomix."""
    partition: str
    """dirichlet, iid or natural."""
    shadow: float
    """Fraction of the silo's records that is held out for audits."""
    records: int
    """Use only so many training records, drawn from the seed; 0 for all."""
    test_records: int
    """The same of the test set."""


def make(
    dataset: str,
    net: Callable[[Data], nn.Module],
    prepare: Prepare,
    defaults: Training,
    options: Options,
    *,
    silos: int,
    silo: int,
    alpha: float,
    seed: int,
    least: int = 1,
    augment: Augment | None = None,
) -> TorchTask:
    """Make the task of one silo, 0 to silos-1, or of nobody (-1), from a data set by name.

    The seed fixes the shares, the first model and the order of the records. `least` is the fewest records of a silo.
    """
    if seed < 0:
        raise ValueError(f"seed = {seed}: it must be 0 or more")
    given = dict(options)
    directory = str(given.pop("directory", ""))
    data = load(dataset, directory, seed)
    rows = fewer(len(data.y), options.get("records", 0), seed)
    part = deal(
        data.y[rows],
        silos,
        silo,
        seed=seed,
        alpha=alpha,
        partition=options.get("partition", "dirichlet"),
        column=None if data.place is None else data.place[rows],
        least=least,
        shadow=options.get("shadow", 0.0),
    )
    test_records = options.get("test_records", 0)
    for name in ("partition", "shadow", "records", "test_records"):
        given.pop(name, None)
    training: Any = {"threads": 1, **defaults, **given}

    def records(picked: Indices) -> Records:
        return prepare(data.x.take(rows[picked])), torch.from_numpy(data.y[rows[picked]])

    return TorchTask(
        from_seed(seed, lambda: net(data)),
        records(part.own),
        lambda: _test(data, prepare, test_records, seed),
        shadow=records(part.shadow),
        silo=silo,
        seed=seed,
        augment=augment,
        **training,
    )


def fewer(n: int, count: int, seed: int) -> Indices:
    """Draw `count` of n rows, in their own order, or take all if it is 0."""
    if not 0 <= count <= n:
        raise ValueError(f"{count} records were asked for, and there are {n}; 0 takes all")
    if not count:
        return np.arange(n)
    return np.sort(np.random.default_rng([seed, _FEWER]).permutation(n)[:count])


def pixels(mean: float, deviation: float) -> Prepare:
    """Make the preparation of images: bytes to numbers of about mean 0 and deviation 1."""

    def prepare(images: npt.NDArray[Any]) -> Tensor:
        scale = np.float32(1 / (255 * deviation))
        return torch.from_numpy(images.astype(np.float32) * scale - np.float32(mean / deviation))

    return prepare


def crop(size: int) -> Augment:
    """Make an augmentation that shows a random square of each image, and zeros where the rest was."""

    def cropped(x: Tensor, rng: np.random.Generator) -> Tensor:
        height, width = x.shape[-2:]
        if not 1 <= size <= min(height, width):
            raise ValueError(f"crop = {size}: the images have {height} by {width} pixels")
        out = torch.zeros_like(x)
        tops, lefts = rng.integers(0, height - size + 1, len(x)), rng.integers(0, width - size + 1, len(x))
        for i, (top, left) in enumerate(zip(tops.tolist(), lefts.tolist(), strict=True)):
            here = (..., slice(top, top + size), slice(left, left + size))
            out[i][here] = x[i][here]
        return out

    return cropped


@lru_cache(maxsize=4)
def _test(data: Data, prepare: Prepare, count: int, seed: int) -> Records:
    rows = fewer(len(data.test_y), count, seed)
    return prepare(data.test_x.take(rows)), torch.from_numpy(data.test_y[rows])
