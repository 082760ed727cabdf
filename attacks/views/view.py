"""What an adversary holds of a round, by mode, and the best local models it can make of that.

attacks/views/simulated.py makes views of a simulated round, attacks/views/captured.py of what nodes really received.

Where a view has pieces, remap.py puts them to their owners. Where it has a sum, the best estimate of everybody's model
is the mean, the same for all: every loss ties, and the guess is a random one. That is the claim under attack, so each
protected mode stands beside one that takes an assumption away, and must succeed (`CONTROLS`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from silomix.attacks.remap import By, head_of, remap_layers, remap_models, remap_parameters
from silomix.attacks.sia import AttackError, Records
from silomix.runtime.core.numbers.codec import Schema
from silomix.runtime.core.protocol.policy import Granularity
from silomix.runtime.task import Tensors

Rows = npt.NDArray[np.float32]
"""(silos, values): whole bodies, in whatever order they came."""


class Mode(StrEnum):
    """What reaches the adversary. The first five are the paper's, for comparison."""

    NONE = "none"
    MODEL = "model"
    LAYER = "layer"
    PARAMETER = "parameter"
    UNARY = "unary"
    TRUSTED = "trusted"
    SEMI_HONEST = "semi-honest"
    ALL_COLLUDE = "semi-honest-all-collude"
    ALL_BUT_ONE = "semi-honest-all-but-one"
    TRUSTED_HOP_1 = "trusted-hop-1"
    COHORT_OF_ONE = "cohort-of-one"


MEANINGS: dict[Mode, str] = {
    Mode.NONE: "unprotected: the server has each silo's model under its name",
    Mode.MODEL: "whole models in random order",
    Mode.LAYER: "each tensor in random order",
    Mode.PARAMETER: "each value in random order",
    Mode.UNARY: "the paper's Alg. 1: shuffled unary bits, which show the sums of residues un-reduced",
    Mode.TRUSTED: "silomix, level trusted: the aggregator's view",
    Mode.SEMI_HONEST: "silomix, level semi-honest: the aggregator's view",
    Mode.ALL_COLLUDE: "control: every hop hands the aggregator its bodies and keys",
    Mode.ALL_BUT_ONE: "every hop but one hands the aggregator its bodies and keys",
    Mode.TRUSTED_HOP_1: "control: level trusted, hop 1's view",
    Mode.COHORT_OF_ONE: "control: sums over one silo, which no node releases",
}
EXPOSED = (Mode.NONE, Mode.MODEL, Mode.LAYER, Mode.PARAMETER)
"""Modes in which the attack should beat a random guess."""
PROTECTED = (Mode.UNARY, Mode.TRUSTED, Mode.SEMI_HONEST, Mode.ALL_BUT_ONE)
"""Modes in which it should not."""
CONTROLS = (Mode.ALL_COLLUDE, Mode.TRUSTED_HOP_1, Mode.COHORT_OF_ONE)
"""The same attack on protected modes with one assumption taken away: it must succeed, or it proves nothing."""


@dataclass(frozen=True)
class View:
    """What the adversary holds of one round."""

    schema: Schema
    cohort: tuple[int, ...]
    """Who took part, by number: never hidden."""
    before: Tensors
    """The model that the round began with."""
    rows: Rows | None = None
    """Bodies, as differences to `before`; None where only a sum is held, or nothing that adds up to it."""
    mixed: Granularity = Granularity.NONE
    """How the rows were permuted: `none` if row i is the cohort's i-th silo."""
    mean: Tensors | None = None
    """The mean of the cohort's models, where the adversary could make it out."""
    residue_sums: npt.NDArray[np.int64] | None = None
    """(moduli, values): un-reduced, in mode unary only."""

    def whole(self, row: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.float32]]:
        """Turn a body into a model."""
        model, at = {}, 0
        for spec in self.schema.tensors:
            part = row[at : at + spec.size].reshape(spec.shape)
            model[spec.name] = (np.asarray(self.before[spec.name], np.float32) + part).astype(np.float32)
            at += spec.size
        return model

    def tensors(self, name: str) -> npt.NDArray[np.float32]:
        """Return one tensor of every row, with a first axis of n."""
        assert self.rows is not None
        at = 0
        for spec in self.schema.tensors:
            if spec.name == name:
                part = self.rows[:, at : at + spec.size].reshape(-1, *spec.shape)
                return (np.asarray(self.before[name], np.float32)[None] + part).astype(np.float32)
            at += spec.size
        raise AttackError(f"the schema has no tensor {name}")


def checked(view: View, rows: Rows) -> View:
    """Add opened bodies to a sum, if they add up to it: under a mask that is still on they do not, and are noise."""
    assert view.mean is not None
    at = 0
    for spec in view.schema.tensors:
        moved = np.asarray(view.mean[spec.name], np.float64) - view.before[spec.name]
        mean = rows[:, at : at + spec.size].mean(axis=0, dtype=np.float64)
        if not np.allclose(mean, moved.reshape(-1), rtol=1e-3, atol=1e-3):
            return view
        at += spec.size
    return replace(view, rows=rows)


def reconstruct(view: View, shadows: Sequence[Records], net: nn.Module, by: By = "accuracy") -> list[Tensors]:
    """Make the best local model for each silo of the cohort; `shadows` has one set for each, in the same order."""
    n = len(view.cohort)
    if view.rows is None:
        if view.mean is None:
            raise AttackError("the view holds neither bodies nor a sum: was the round captured to its end?")
        return [view.mean] * n
    if len(view.rows) != n:
        raise AttackError(f"{len(view.rows)} bodies for a cohort of {n}")
    if view.mixed is Granularity.NONE:
        return [view.whole(row) for row in view.rows]
    if len(shadows) != n:
        raise AttackError(f"{len(shadows)} shadow sets for a cohort of {n}: remapping takes one for each silo")
    if view.mixed is Granularity.MODEL:
        return remap_models(net, [view.whole(row) for row in view.rows], shadows, by)
    average = view.whole(view.rows.mean(axis=0, dtype=np.float64))
    head = head_of(net)
    pieces = {name: view.tensors(name) for name in head.names}
    if view.mixed is Granularity.PARAMETER:
        return remap_parameters(net, average, pieces, shadows, by)
    return remap_layers(net, average, pieces, shadows, by)
