"""How experiments measure accuracy: which task stands for a data set, at which size, and what is read off a run."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from silomix.models.simulation.experiment import Progress, Scale
from silomix.models.simulation.simulate import simulate
from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.schema import Array
from silomix.runtime.core.policy import Policy, UpdateKind

SILOS = 10
ALPHA = 0.1
LARGER = ("mnist", "fashion-mnist", "cifar10")
"""Data sets that experiments also run on, where their files are."""
LAST = 3
"""The accuracy of a run is the mean over so many last rounds: from one round to the next it jumps by a point or two."""

Option = str | int | float | bool


@dataclass(frozen=True)
class Setting:
    """A data set as experiments use it here. The paper's own sizes take days without a GPU."""

    task: str
    options: Mapping[str, Option] = field(default_factory=dict)
    light: bool = False
    """So small that a process for each core would take longer to start than to help."""
    about: str = ""


SETTINGS: dict[str, Setting] = {
    "digits": Setting(
        "silomix.models.digits:task",
        light=True,
        about="1,437 images of 8 by 8 pixels, a CNN of 21,546 parameters, 5 local epochs",
    ),
    "synthetic": Setting(
        "silomix.models.mlp:task",
        {"dataset": "synthetic", "epochs": 5, "records": 10_000, "test_records": 2_000},
        light=True,
        about="10,000 records, the MLP 60-200-10, 5 local epochs",
    ),
    "mnist": Setting(
        "silomix.models.mnist_cnn:task",
        {"epochs": 2, "records": 6_000, "test_records": 2_000},
        about="6,000 of the 60,000 images, the paper's CNN, 2 local epochs",
    ),
    "fashion-mnist": Setting(
        "silomix.models.mnist_cnn:task",
        {"dataset": "fashion-mnist", "epochs": 2, "records": 6_000, "test_records": 2_000},
        about="6,000 of the 60,000 images, the paper's CNN, 2 local epochs",
    ),
    "cifar10": Setting(
        "silomix.models.cifar_cnn:task",
        {"epochs": 2, "records": 6_000, "test_records": 2_000},
        about="6,000 of the 50,000 images, the paper's CNN, 2 local epochs",
    ),
    "har": Setting("silomix.models.har_cnn:task", {"epochs": 2}, about="all records, 2 local epochs"),
    "newsgroups": Setting(
        "silomix.models.transformer:task",
        {"epochs": 2},
        about="all posts, a transformer of 0.64 million parameters trained from nothing, 2 local epochs",
    ),
}


def policy_for(data: str, scale: Scale, seed: int, options: Mapping[str, Option] | None = None) -> Policy:
    """Return the policy of a run on a data set: ten silos, alpha 0.1, the scale's rounds."""
    if data not in SETTINGS:
        raise UserError(f"accuracy is not measured on {data!r}: it is one of {', '.join(SETTINGS)}")
    setting = SETTINGS[data]
    given = {"silos": SILOS, "alpha": ALPHA, "seed": seed, **setting.options, **(options or {})}
    return Policy(task=setting.task, task_options=given, rounds=scale.rounds)


def floor_to(digits: int) -> Callable[[Array], Array]:
    """Return the rounding that the paper's Alg. 1 prints: the first digits of a value, rounded down."""

    def floor(values: Array) -> Array:
        return np.floor(values * 10.0**digits) / 10.0**digits

    return floor


class AccuracyTrials:
    """Runs the points of one experiment, each for all seeds of the scale, and remembers them."""

    def __init__(self, data: str, scale: Scale, progress: Progress, points: int) -> None:
        """Say how many points will be asked for."""
        self.data, self.scale, self.progress = data, scale, progress
        policy_for(data, scale, 0)
        progress.plan(points * len(scale.seeds))
        self.found: dict[str, list[dict[str, Any]]] = {}

    def run(
        self,
        name: str,
        *,
        options: Mapping[str, Option] | None = None,
        floor: int = 0,
        vanilla: bool = False,
        silos: int = SILOS,
        **changes: Any,
    ) -> float:
        """Return the mean accuracy over the seeds, of a run with these changes to the policy and the task's options."""
        rows = []
        for seed in self.scale.seeds:
            policy = replace(policy_for(self.data, self.scale, seed, {"silos": silos, **(options or {})}), **changes)

            def compute(policy: Policy = policy, seed: int = seed) -> dict[str, Any]:
                return measure(self.data, policy, silos, seed, vanilla=vanilla, floor=floor)

            number = digest("point", policy.canonical(), silos, floor, int(vanilla)).hex()[:12]
            rows.append(self.progress.point(f"{self.data} {name} seed {seed} {number}", compute))
        self.found[name] = rows
        return float(np.mean([row["accuracy"] for row in rows]))

    def values(self) -> dict[str, Any]:
        """Return every point, for programs."""
        return {"data": self.data, "silos": SILOS, "alpha": ALPHA, "rounds": self.scale.rounds, "points": self.found}

    def about(self, instead: str = "") -> str:
        """Say in which setting the numbers were found: the data set's own, or another that the experiment chose."""
        size = f"{SILOS} silos, alpha = {ALPHA}, {self.scale.rounds} rounds"
        seeds = f"{len(self.scale.seeds)} seed(s), the mean of the last {LAST} rounds"
        return f"{self.data}: {instead or SETTINGS[self.data].about}; {size}; {seeds}."


def measure(
    data: str, policy: Policy, silos: int, seed: int, *, vanilla: bool = False, floor: int = 0
) -> dict[str, Any]:
    """Run a federation and return its accuracy, the range of the silos' parameters, and the epsilons spent."""
    workers = 1 if SETTINGS[data].light else min(silos, len(os.sched_getaffinity(0)))
    accuracies: list[float] = []
    low, high, outside, total, clipped, spent = np.inf, -np.inf, 0, 0, 0, 0.0
    rounding = floor_to(floor) if floor else None
    for done in simulate(
        policy, silos, seed=seed, protect=False, vanilla=vanilla or bool(floor), rounding=rounding, workers=workers
    ):
        accuracies.append(done.metrics["accuracy"])
        clipped += done.clipped
        for model in done.trained:
            for tensor in model.values():
                if tensor.size:
                    low, high = min(low, float(tensor.min())), max(high, float(tensor.max()))
                    outside += int(np.count_nonzero(np.abs(tensor) >= 1))
                    total += tensor.size
        spent = max((metrics.get("epsilon", 0.0) for metrics in done.training), default=0.0)
    return {
        "accuracy": float(np.mean(accuracies[-LAST:])),
        "accuracies": accuracies,
        "range": [low, high],
        "outside": outside / max(1, total),
        "clipped": clipped,
        "epsilon": spent,
    }


def weights(**changes: Any) -> dict[str, Any]:
    """Return the changes that send whole models, as the paper does."""
    return {"update": UpdateKind.WEIGHTS, **changes}
