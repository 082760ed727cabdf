"""What an adversary knows without any pieces of models: the baselines that remapping has to beat.

Shadow sets say something about the silos by themselves. Where silos differ in their classes, whoever has a shadow set
of each can guess a record's source from its class, with no traffic at all; and R_P can be run on values that are
invented instead of captured. No protocol can take that away.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from silomix.attacks.sia import Losses, Targets
from silomix.attacks.views.classifier import Records
from silomix.attacks.views.view import View
from silomix.runtime.core.numbers.plan import Granularity

CLASSES = "shadow-classes"
"""Guess by the record's class: the silo in whose shadow set that class is most frequent."""
INVENTED = "shadow-on-invented-values"
"""R_P on values drawn at random round the mean: all it takes from the federation is the joint model."""


def class_losses(shadows: Sequence[Records], targets: Targets, cohort: Sequence[int]) -> Losses:
    """Return minus the share of each record's class in each silo's shadow set: a loss without a model."""
    y = targets.y.numpy()
    rows = []
    for silo in cohort:
        labels = shadows[silo][1].numpy()
        rows.append(-np.array([(labels == label).mean() for label in y]))
    return np.stack(rows)


def invented(view: View, rng: np.random.Generator) -> View:
    """Return a view like that of parameter-level shuffling, of values that nobody sent.

    They are scattered round the cohort's mean as widely as that itself has moved: an adversary that holds nothing but
    sums can make them up.
    """
    assert view.rows is not None
    mean = view.rows.mean(axis=0, dtype=np.float64)
    scale, at = np.empty_like(mean), 0
    for spec in view.schema.tensors:
        part = slice(at, at + spec.size)
        scale[part] = np.sqrt(np.mean(mean[part] ** 2)) if spec.size else 0.0
        at += spec.size
    noise = rng.standard_normal((len(view.cohort), len(mean)))
    rows = mean + scale * (noise - noise.mean(axis=0))  # round the mean: it is known, and a variance must stay positive
    return replace(view, rows=rows.astype(np.float32), mixed=Granularity.PARAMETER)
