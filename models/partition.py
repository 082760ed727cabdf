"""Who holds which record: a data set dealt out to silos, evenly or askew.

Every silo deals the whole set from the same seed and keeps its own share, so nobody has to hand out anything.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def dirichlet(labels: npt.ArrayLike, silos: int, alpha: float, seed: int, *, least: int = 1) -> list[Indices]:
    """Deal each class out in proportions drawn from Dirichlet(alpha): the smaller alpha, the fewer classes a silo has.

    This is the skew under which source inference is usually measured. A silo with fewer than `least` records is given
    some by the silo that then has most, so that every silo can train.
    """
    y = np.asarray(labels)
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha is {alpha}: it must be a number above 0")
    _check(len(y), silos, least)
    rng = np.random.default_rng(seed)
    owner = np.empty(len(y), np.int64)
    for label in np.unique(y):
        records = rng.permutation(np.flatnonzero(y == label))
        # A tiny alpha may underflow to no share at all, which numpy gives as NaN: then one silo takes the class.
        shares = rng.dirichlet(np.full(silos, alpha))
        if not np.isfinite(shares).all():
            shares = np.eye(silos)[rng.integers(silos)]
        cuts = np.rint(np.cumsum(shares) * len(records)).astype(np.int64)
        cuts[-1] = len(records)
        for silo, (start, end) in enumerate(pairwise([0, *cuts])):
            owner[records[start:end]] = silo
    sizes = np.bincount(owner, minlength=silos)
    while sizes.min() < least:
        rich, poor = int(sizes.argmax()), int(sizes.argmin())
        owner[np.flatnonzero(owner == rich)[-1]] = poor
        sizes[rich] -= 1
        sizes[poor] += 1
    return [np.flatnonzero(owner == silo) for silo in range(silos)]


def iid(n: int, silos: int, seed: int) -> list[Indices]:
    """Deal n records out at random in equal shares, give or take one: the case without skew."""
    _check(n, silos, 1)
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(n), silos)]


def _check(n: int, silos: int, least: int) -> None:
    if silos < 1 or least < 1:
        raise ValueError(f"{silos} silos with at least {least} records each: both must be 1 or more")
    if n < silos * least:
        raise ValueError(f"{n} records are too few for {silos} silos with at least {least} each")
