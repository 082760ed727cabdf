"""Who holds which record: a data set dealt out to silos, evenly, askew, or as it was collected.

Every silo deals the whole set from the same seed and keeps its own share, so nobody has to hand out anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

WAYS = ("dirichlet", "iid", "natural")
"""What the option `partition` of a task may say."""
_SHADOW = 0x5AD0  # keeps the draw of a shadow set apart from every other that starts from the same seed


@dataclass(frozen=True)
class Share:
    """The rows of one silo: those that it trains on, and those of the same kind that an attacker may know."""

    own: Indices
    shadow: Indices


def deal(
    labels: npt.ArrayLike,
    silos: int,
    silo: int,
    *,
    seed: int,
    alpha: float = 0.1,
    partition: str = "dirichlet",
    column: Sequence[object] | npt.NDArray[np.generic] | None = None,
    least: int = 1,
    shadow: float = 0.0,
) -> Share:
    """Find the rows of silo 0 to silos-1 by any of the ways; -1 has none. `column` says where a row was collected."""
    if silos < 1 or not -1 <= silo < silos:
        raise ValueError(f"silo = {silo} of silos = {silos}: silos count from 0 to silos-1, and -1 has no records")
    if partition not in WAYS:
        raise ValueError(f"partition = {partition!r}: it is one of {', '.join(WAYS)}")
    if partition == "natural" and column is None:
        raise ValueError("partition = 'natural': these records do not say where they were collected; use dirichlet")
    if silo < 0:
        return hold_out(np.empty(0, np.int64), shadow)
    if partition == "natural":
        assert column is not None
        parts = natural(column, silos)
    elif partition == "iid":
        parts = iid(len(np.asarray(labels)), silos, seed)
    else:
        parts = dirichlet(labels, silos, alpha, seed, least=least)
    return hold_out(parts[silo], shadow, seed, silo)


def hold_out(rows: Indices, fraction: float, *seed: int) -> Share:
    """Take a fraction of a silo's rows away as its shadow set, at least one and never all. A fraction of 0 takes none.

    Source inference by reconstruction starts from a few records like the silo's own. Taken from the silo's would-be
    share they have its distribution, and nobody trains or tests on them.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"shadow = {fraction}: it is the fraction of a silo's records to hold out, from 0 to below 1")
    if not fraction or len(rows) < 2:
        return Share(rows, rows[:0])
    count = min(len(rows) - 1, max(1, round(fraction * len(rows))))
    picked = np.random.default_rng([*seed, _SHADOW]).permutation(len(rows))
    return Share(rows[np.sort(picked[count:])], rows[np.sort(picked[:count])])


def natural(column: Sequence[object] | npt.NDArray[np.generic], silos: int) -> list[Indices]:
    """Deal by a column, such as the hospital of a patient: one silo for each value, in the order of the values."""
    values, owner = np.unique(np.asarray(column), return_inverse=True)
    if len(values) != silos:
        shown = ", ".join(str(value) for value in values[:12]) + (", ..." if len(values) > 12 else "")
        raise ValueError(f"silos = {silos}: the records come from {len(values)} places ({shown}); set silos to that")
    return [np.flatnonzero(owner == silo) for silo in range(silos)]


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
