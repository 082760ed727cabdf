"""What an adversary can try with sums alone: take off what colluding silos know, and compare rounds.

A sum is symmetric in the silos, so by itself it gives the same estimate for all. Two things break the symmetry. Silos
that collude hand over their own models, and the sum over the others remains. And if the cohort changes from round to
round, sums over different silos differ by what those silos do: the more so, the steadier a silo's update is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from silomix.attacks.errors import AttackError
from silomix.attacks.views.view import View
from silomix.runtime.task import Tensors

RIDGE = 1e-3
"""Keeps the equations of `disaggregate` solvable where cohorts say too little."""


def without_colluders(view: View, known: Mapping[int, Tensors]) -> list[Tensors]:
    """Take the models of colluding silos off the sum: an equal share of the rest for every other silo.

    The result is in the cohort's order, colluders with their own models. With one honest silo, it is that silo's.
    """
    if view.mean is None:
        raise AttackError("there is no sum to take anything off: the view holds bodies, or nothing")
    n, known = len(view.cohort), {silo: model for silo, model in known.items() if silo in view.cohort}
    honest = n - len(known)
    rest: dict[str, npt.NDArray[np.float32]] = {}
    for name, mean in view.mean.items():
        total = n * np.asarray(mean, np.float64) - sum(np.asarray(m[name], np.float64) for m in known.values())
        rest[name] = (total / max(1, honest)).astype(np.float32)
    return [known.get(silo, rest) for silo in view.cohort]


def disaggregate(views: Sequence[View]) -> list[list[Tensors]]:
    """Estimate every silo's models from sums over changing cohorts; a list of models for each round, in cohort order.

    It takes a silo's update for the same in every round, up to the size of the round's: then each round is an equation
    `sum over its cohort of d_i = what the model moved`, solved by least squares of least norm. Silos that always take
    part together get the same estimate, to the last bit.
    """
    if any(view.mean is None for view in views):
        raise AttackError("a round has no sum: disaggregation works on sums")
    silos = sorted({silo for view in views for silo in view.cohort})
    took_part = np.array([[silo in view.cohort for silo in silos] for view in views], np.float64)  # (rounds, silos)
    moves = np.stack([_move(view) * len(view.cohort) for view in views])  # (rounds, values)
    sizes = np.linalg.norm(moves, axis=1) / took_part.sum(axis=1)
    scaled = moves / np.where(sizes > 0, sizes, 1.0)[:, None]
    gram = took_part @ took_part.T + RIDGE * np.eye(len(views))
    solved = np.linalg.solve(gram, scaled)  # (rounds, values)
    by_pattern: dict[bytes, npt.NDArray[np.float64]] = {}
    estimate: dict[int, npt.NDArray[np.float64]] = {}
    for silo, column in zip(silos, took_part.T, strict=True):
        pattern = column.tobytes()
        if pattern not in by_pattern:
            by_pattern[pattern] = column @ solved
        estimate[silo] = by_pattern[pattern]
    return [
        [view.whole(estimate[silo] * size) for silo in view.cohort] for view, size in zip(views, sizes, strict=True)
    ]


def _move(view: View) -> npt.NDArray[np.float64]:
    assert view.mean is not None
    names = [spec.name for spec in view.schema.tensors]
    return np.concatenate([(np.asarray(view.mean[n], np.float64) - view.before[n]).reshape(-1) for n in names])
