"""What silos sum, as a model of the runtime's: the vector, and a mark that all of them answered the same question.

A federation turns what silos send into a model, and the next round begins from it. Here silos send whole vectors
(`update = "weights"`), so that the model is the mean of the newest round, and nothing adds up over rounds.

Behind the vector stand `MARK` digits: how many sums there have been, and a hash of the question. All silos of a round
send the same digits, so their mean is again these digits, exactly. That does two things. No two models are ever the
same, though two rounds may come to the same mean: nodes tell rounds apart by their models. And each silo finds the
digits of the last sum in the next round's model: if they are not the ones that it sent itself, the others were asked
something else, and it sends nothing any more.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.plan import Granularity
from silomix.runtime.core.numbers.schema import NUMPY_TYPES, Array, Dtype, Schema, TensorSpec
from silomix.runtime.core.policy import AUTO, Policy, Server, UpdateKind
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.factory import TaskError
from silomix.runtime.local import create as create_federation
from silomix.runtime.task import Tensors, Trained

PATH = f"{__name__}:task"
"""What a federation file says of a sum that is driven from outside."""
VECTOR, MARKED = "vector", "mark"
COUNT, HASH = 8, 43
"""Octal digits of the number of sums so far, and of the question's hash: 24 bits and 129."""
MARK = COUNT + HASH
ROUNDS = 1_000_000
"""Rounds of a federation that ends when its driver does."""


@dataclass(frozen=True)
class Stamp:
    """Which sum it is, and what was asked: the same at all silos that are in one sum."""

    number: int
    question: str
    """Octal digits of a hash; none if silos were asked different things."""

    @classmethod
    def of(cls, number: int, question: bytes) -> "Stamp":
        """Stamp the sum that has this number, counted from 1."""
        found = int.from_bytes(digest("question", question), "big") % 8**HASH
        return cls(number, f"{found:0{HASH}o}")

    def values(self, unit: float, dtype: Dtype) -> Array:
        """Write it as values that the quantiser keeps exactly: `unit` is what becomes the integer 1."""
        digits = np.array([int(digit) for digit in f"{self.number:0{COUNT}o}{self.question}"])
        return (digits * unit).astype(NUMPY_TYPES[dtype])

    @classmethod
    def read(cls, values: Array, unit: float) -> "Stamp":
        """Read what silos agreed on: a number of 0 or no question if they did not."""
        digits = values.astype(np.float64) / unit
        return cls(int(_whole(digits[:COUNT]) or "0", 8), _whole(digits[COUNT:]))


def _whole(digits: npt.NDArray[np.float64]) -> str:
    """Write a mean of digits as digits, or nothing if it is not the mean of equal ones."""
    whole = np.rint(digits)
    if np.abs(digits - whole).max() > 1e-3 or whole.min() < 0 or whole.max() > 7:
        return ""
    return "".join(str(int(digit)) for digit in whole)


class Question:
    """The task of a federation that sums vectors: it knows their length, and has none of its own."""

    def __init__(self, values: int, dtype: str = "F64") -> None:
        """Sum vectors of so many values."""
        if values < 1:
            raise TaskError(f"values = {values}; give how many values a vector has")
        if dtype not in (Dtype.F32, Dtype.F64):
            raise TaskError(f"dtype = {dtype!r}; give F32 or F64")
        self.values, self.dtype = values, Dtype(dtype)

    def schema(self) -> Schema:
        """Name the vector, and the mark behind it."""
        mark = TensorSpec(MARKED, (MARK,), self.dtype, buffer=True)
        return Schema((TensorSpec(VECTOR, (self.values,), self.dtype), mark))

    def initial(self) -> dict[str, npt.NDArray[Any]]:
        """Begin before the first sum."""
        kind = NUMPY_TYPES[self.dtype]
        return {VECTOR: np.zeros(self.values, kind), MARKED: np.zeros(MARK, kind)}

    def train(self, tensors: Tensors, round: int) -> Trained:  # noqa: A002 - the protocol's word for it
        """Refuse: nobody can hand anything in here."""
        raise TaskError(
            "this federation's vectors come from outside: run `python -m silomix.runtime.outside DIRECTORY` in place "
            "of `silomix silo`, or open the silo with silomix.runtime.outside.Silo"
        )

    def evaluate(self, tensors: Tensors) -> dict[str, float]:
        """Return nothing worth knowing: a sum is neither good nor bad."""
        return {"accuracy": 0.0, "loss": 0.0}


def task(values: int, dtype: str = "F64", silo: int = -1) -> Question:
    """Make the task that a federation file names."""
    return Question(values, dtype)


def unit_of(federation: Federation) -> float:
    """Return the value that becomes the integer 1: a quantisation step."""
    return federation.policy.bound / federation.plan.v


def question_of(federation: Federation, file: Path) -> Question:
    """Return what a federation sums, or say why its sums cannot be driven from outside."""
    policy = federation.policy
    if policy.task != PATH:
        raise ConfigError(
            file, "policy.task", f'found "{policy.task}"; give "{PATH}", which takes vectors from outside'
        )
    for key, found, wanted in (
        ("update", policy.update, UpdateKind.WEIGHTS),
        ("server", policy.server, Server.AVERAGE),
        ("server_lr", policy.server_lr, 1.0),
        ("granularity", policy.granularity, Granularity.SUM),
        ("group_size", policy.group_size, 0),
        ("clip_norm", policy.clip_norm, 0.0),
    ):
        if found != wanted:
            why = "a sum that is driven from outside is the plain weighted mean of whole vectors"
            raise ConfigError(file, f"policy.{key}", f"found {found}; give {wanted}: {why}")
    if policy.bound == AUTO:
        why = "the mark behind each vector counts in steps of it"
        raise ConfigError(file, "policy.bound", f'found "auto"; give the largest value of any vector: {why}')
    return Question(**policy.task_options)  # type: ignore[arg-type] # the file was checked against the factory


def create(
    directory: Path | str, silos: int, shufflers: int, values: int, *, policy: Policy | None = None, dtype: str = "F64"
) -> Federation:
    """Write a federation that sums vectors of so many values, into an empty directory.

    policy  everything else that the owners agree on: above all bound and precision, weight_levels, deadline_s, quorum
    dtype   what vectors are held as: F64, or F32, which takes half the memory
    """
    asked = Question(values, dtype)
    policy = policy or Policy(rounds=ROUNDS)
    policy = replace(policy, task=PATH, task_options={"values": values, "dtype": dtype}, update=UpdateKind.WEIGHTS)
    made = create_federation(directory, silos, shufflers, policy=policy, task=asked)
    question_of(made, Path(directory))
    return made


def check_vector(vector: object, asked: Question, policy: Policy, *, clip: bool) -> Array:
    """Return a vector as it is sent, or say what is wrong with it: here, and not in a silo's log."""
    try:
        values = np.asarray(vector)
    except ValueError as error:
        raise UserError(f"the vector is no array of numbers: {error}") from None
    if values.dtype.kind not in "fiub":
        raise UserError(f"the vector has values of type {values.dtype}; give real numbers")
    found = values.astype(NUMPY_TYPES[asked.dtype])
    if values.shape != (asked.values,):
        raise UserError(
            f"the vector has the shape {values.shape}, and this federation sums vectors of shape ({asked.values},): "
            "every silo hands in the same number of values, in the same order"
        )
    if not np.isfinite(found).all():
        at = int(np.flatnonzero(~np.isfinite(found))[0])
        raise UserError(f"the vector has {found[at]} at position {at}; give numbers")
    largest = int(np.abs(found).argmax())
    if not clip and abs(float(found[largest])) > policy.bound:
        raise UserError(
            f"the vector has {float(found[largest]):g} at position {largest}, and the policy's bound is "
            f"{policy.bound:g}: scale it down, have a larger bound agreed on, or let it be cut with clip=True"
        )
    return found


def check_examples(examples: int, policy: Policy) -> int:
    """Return a silo's weight, or say why it would not be that."""
    if isinstance(examples, bool) or not isinstance(examples, int | np.integer) or examples < 1:
        raise UserError(f"examples = {examples!r}; give how many records the vector is of, 1 or more")
    if policy.weight_levels > 1 and examples > policy.weight_levels:
        raise UserError(
            f"examples = {examples}, and the policy's weight_levels = {policy.weight_levels} would cut that: agree on "
            "more levels, or count in larger units, the same at every silo"
        )
    return int(examples)
