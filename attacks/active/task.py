"""What silos train in a drill: so small that a round takes a moment, and yet updates that a model and data make.

One hidden layer whose weights are fixed and the same for all; its biases and the layer behind it are learned. Every
silo has records of a class of its own and of classes that all of them have, so updates have something in common, and
something that sets each apart. Training is repeatable: whoever knows silo, model and round knows the update.
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.task import Trained

FEATURES, HIDDEN, CLASSES = 12, 48, 12
RECORDS = 80
OWN_RECORDS = 48
COMMON = (9, 10, 11)
"""Classes that every silo has; class i is silo i's own."""
STEPS, RATE = 4, 0.4
TEACHERS, WARM_ROUNDS = 6, 7
DEAD = -1e3
"""A bias under which a hidden unit is silent for every record, and learns nothing."""

Matrix = npt.NDArray[np.float64]
Tensors = Mapping[str, npt.NDArray[Any]]
TRAINED: dict[tuple[int, bytes], int] = {}
"""By silo and model: the round in which it was trained on first, in this process. Only the drill looks at it."""


def centres() -> Matrix:
    """Where the records of each class lie: known to everybody, as it is known what pictures of digits look like."""
    drawn: Matrix = np.random.default_rng(71).normal(size=(CLASSES, FEATURES))
    return drawn * 2


def features() -> Matrix:
    """The weights of the hidden layer."""
    drawn: Matrix = np.random.default_rng(72).normal(size=(HIDDEN, FEATURES))
    scaled: Matrix = drawn / np.sqrt(FEATURES)
    return scaled


def fingerprint(tensors: Tensors) -> bytes:
    """Tell models apart."""
    return b"".join(np.ascontiguousarray(tensors[name]).tobytes() for name in ("output", "bias"))


class Drill:
    """A silo's data, and how it learns from them."""

    def __init__(self, silo: int) -> None:
        """Draw the silo's records."""
        self.silo = silo
        rng = np.random.default_rng([73, max(0, silo)])
        shared = rng.choice(COMMON, RECORDS - OWN_RECORDS)
        self.labels = np.concatenate([np.full(OWN_RECORDS, max(0, silo) % min(COMMON)), shared])
        self.records: Matrix = centres()[self.labels] + rng.normal(scale=0.4, size=(RECORDS, FEATURES))

    def schema(self) -> Schema:
        """Return the tensors that are learned."""
        return Schema((TensorSpec("output", (HIDDEN, CLASSES)), TensorSpec("bias", (HIDDEN,))))

    def initial(self) -> dict[str, npt.NDArray[Any]]:
        """Return the model that round 1 begins with: one that has learned a little, as most models in use have."""
        return {name: value.copy() for name, value in _warmed_up().items()}

    def train(self, tensors: Tensors, round: int) -> Trained:  # noqa: A002 - the name of the protocol
        """Learn, and leave a note of it: a model that is tried again in a later round is not trained on again."""
        TRAINED.setdefault((self.silo, fingerprint(tensors)), round)
        return Trained(self.learn(tensors, round), RECORDS, {"loss": 0.0})

    def learn(self, tensors: Tensors, round_: int) -> dict[str, npt.NDArray[Any]]:
        """Take a few steps on three quarters of the records, others in each round."""
        output, bias = (tensors[name].astype(np.float64) for name in ("output", "bias"))
        rng = np.random.default_rng([75, max(0, self.silo), round_])
        rows = rng.permutation(RECORDS)[: RECORDS * 3 // 4]
        x, wanted = self.records[rows], np.eye(CLASSES)[self.labels[rows]]
        inner = x @ features().T
        for _ in range(STEPS):
            hidden = np.maximum(inner + bias, 0.0)
            wrong = _softmax(hidden @ output) - wanted
            back = (wrong @ output.T) * (hidden > 0)
            output = output - RATE * hidden.T @ wrong / len(rows)
            bias = bias - RATE * back.mean(axis=0)
        return {"output": output.astype(np.float32), "bias": bias.astype(np.float32)}

    def evaluate(self, tensors: Tensors) -> dict[str, float]:
        """Return the share of this silo's records that a model gets right."""
        hidden = np.maximum(self.records @ features().T + tensors["bias"], 0.0)
        right = (hidden @ tensors["output"]).argmax(axis=1) == self.labels
        return {"accuracy": float(right.mean()), "loss": 0.0}


def trapped(tensors: Tensors, silo: int) -> dict[str, npt.NDArray[Any]]:
    """Change a model so that only records like one silo's own wake a hidden unit: nobody else learns anything."""
    awake = features() @ centres().T
    rest = awake[:, [kind for kind in range(CLASSES) if kind != silo]].max(axis=1)
    bias = np.where(awake[:, silo] > rest + 1, -(rest + awake[:, silo]) / 2, DEAD)
    return {**tensors, "bias": bias.astype(np.float32)}


def nought() -> dict[str, npt.NDArray[Any]]:
    """Return the update of a silo that has learned nothing."""
    return {name: np.zeros_like(value) for name, value in Drill(0).initial().items()}


@functools.cache
def _warmed_up() -> dict[str, npt.NDArray[Any]]:
    output = np.random.default_rng(74).normal(scale=0.1, size=(HIDDEN, CLASSES)).astype(np.float32)
    model: dict[str, npt.NDArray[Any]] = {"output": output, "bias": np.zeros(HIDDEN, np.float32)}
    teachers = [Drill(silo) for silo in range(TEACHERS)]
    for round_ in range(WARM_ROUNDS):
        learned = [teacher.learn(model, 10**6 + round_) for teacher in teachers]
        model = {name: np.stack([one[name] for one in learned]).mean(axis=0, dtype=np.float32) for name in model}
    return model


def _softmax(logits: Matrix) -> Matrix:
    raised: Matrix = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Matrix = raised / raised.sum(axis=1, keepdims=True)
    return shares


def task(silo: int = -1) -> Drill:
    """Make the task: what a federation file names."""
    return Drill(silo)
