"""What an adversary holds of a round, by mode, and the best local models it can make of that.

attacks/views/simulated.py makes views of a simulated round, attacks/views/captured.py of what nodes really received.

Where a view has pieces, remap.py puts them to their owners. Where it has a sum, the best estimate of everybody's model
is the mean, the same for all: every loss ties, and the guess is a random one. That is the claim under attack, so each
protected mode stands beside one that takes an assumption away, and must succeed (`CONTROLS`).
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.attacks.errors import AttackError
from silomix.runtime.core.numbers.plan import Granularity
from silomix.runtime.core.numbers.schema import Schema, as_float
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
    """What the adversary holds of one round. Its models are in floats, whatever the types of the network."""

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
            model[spec.name] = np.asarray(self.before[spec.name] + part, np.float32)
            at += spec.size
        return model

    def tensors(self, name: str) -> npt.NDArray[np.float32]:
        """Return one tensor of every row, with a first axis of n."""
        assert self.rows is not None
        at = 0
        for spec in self.schema.tensors:
            if spec.name == name:
                part = self.rows[:, at : at + spec.size].reshape(-1, *spec.shape)
                return np.asarray(self.before[name][None] + part, np.float32)
            at += spec.size
        raise AttackError(f"the schema has no tensor {name}")


def floats(schema: Schema, tensors: Tensors) -> dict[str, npt.NDArray[Any]]:
    """Return a model as numbers to compute with: bfloat16 is held as its bits, which mean nothing by themselves."""
    return {spec.name: as_float(tensors[spec.name], spec.dtype) for spec in schema.tensors}


def as_changes(view: View) -> View:
    """Turn rows that are whole models, as silos send them with `update = "weights"`, into what training changed."""
    if view.rows is None:
        return view
    start = np.concatenate([np.asarray(view.before[spec.name]).reshape(-1) for spec in view.schema.tensors])
    return replace(view, rows=(view.rows - start).astype(np.float32))
