"""`silomix reproduce`: the registry of the paper's tables and figures, and what keeps finished points.

Every table, figure and measured claim of the paper has an experiment here, or one that says why it has none. Results
stand beside the paper's numbers, as a table, as JSON, and as a plot where the paper has one.
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from silomix.attacks.paper.accuracy import EXPERIMENTS as ACCURACY_EXPERIMENTS
from silomix.attacks.paper.cohorts import COHORT_EXPERIMENTS
from silomix.attacks.paper.cost import COST_EXPERIMENTS
from silomix.attacks.paper.inversion import INVERSION_EXPERIMENTS
from silomix.attacks.paper.paper_size import PAPER_SIZE_EXPERIMENTS
from silomix.attacks.paper.residue_sums import RESIDUE_EXPERIMENTS
from silomix.attacks.paper.resources import RESOURCE_EXPERIMENTS
from silomix.attacks.paper.source_inference import SIA_EXPERIMENTS
from silomix.models.data.catalogue import CATALOGUE, home
from silomix.models.simulation.experiment import RUNS, Experiment, Result, Scale
from silomix.runtime.core.errors import UserError, nearest
from silomix.runtime.store.files import write_atomically

T = TypeVar("T")

NEEDS_CIFAR100 = Experiment(
    "sia-cifar100",
    "Source inference on CIFAR-100, ResNet-18",
    "Figures exp:rec, exp:rec_with_number_of_clients",
    None,
    "not reproduced: ResNet-18 on CIFAR-100 takes GPU days, and its files are in no package that we could fetch",
)
REGISTRY: tuple[Experiment, ...] = (
    *SIA_EXPERIMENTS,
    *PAPER_SIZE_EXPERIMENTS,
    NEEDS_CIFAR100,
    *COHORT_EXPERIMENTS,
    *INVERSION_EXPERIMENTS,
    *RESIDUE_EXPERIMENTS,
    *RESOURCE_EXPERIMENTS,
    *ACCURACY_EXPERIMENTS,
    *COST_EXPERIMENTS,
)
"""All experiments, in the order in which they are listed."""


class ReproduceError(UserError):
    """An experiment cannot be run as asked. The message says what to do."""


def cache_directory() -> Path:
    """Return where finished points are kept: below $SILOMIX_DATA, or ~/.cache/silomix."""
    return home() / "reproduce"


def state_of(experiment: Experiment) -> str:
    """Return whether it runs here and now: one that needs data runs where the data is."""
    if not experiment.state.startswith("needs "):
        return experiment.state
    name = experiment.state.removeprefix("needs ").partition(":")[0]
    there = name in CATALOGUE and not CATALOGUE[name].missing(home() / name)
    return RUNS if there else experiment.state


def find(name: str) -> Experiment:
    """Look an experiment up, or say what comes near."""
    known = {one.id: one for one in REGISTRY}
    if name not in known:
        all_of_them = "`silomix reproduce --list` names them all"
        raise ReproduceError(f"there is no experiment {name!r}{nearest(name, known)} {all_of_them}")
    return known[name]


@dataclass
class Kept:
    """A `Progress` that keeps every finished point in a file, and tells how far the experiment is."""

    directory: Path
    experiment: str
    scale: str
    show: Callable[[int, int, str], None] = lambda done, total, what: None
    fresh: bool = False
    total: int = 0
    done: int = 0
    from_before: int = field(default=0)

    def plan(self, points: int) -> None:
        """Remember how many points there will be."""
        self.total = points
        self.show(0, points, "")

    def point(self, key: str, compute: Callable[[], T]) -> T:
        """Return a point from its file, or compute and keep it. A file that is damaged is computed anew."""
        path = self._path(key)
        value = None if self.fresh else _read(path, key)
        if value is None:
            self.show(self.done, self.total, key)
            value = compute()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({"key": key, "value": value}).encode())
            value = json.loads(json.dumps(value))  # the same whether it was computed now or before
        else:
            self.from_before += 1
        self.done += 1
        self.show(self.done, self.total, key)
        kept: T = value
        return kept

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(f"{version('silomix')} {self.scale} {key}".encode()).hexdigest()[:32]
        return self.directory / self.experiment / f"{name}.json"


def _read(path: Path, key: str) -> Any:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found.get("value") if isinstance(found, dict) and found.get("key") == key else None


@dataclass(frozen=True)
class Run:
    """One experiment that was run: what it found, when, where, and how big."""

    experiment: Experiment
    scale: Scale
    result: Result
    seconds: float
    date: str
    machine: str
    from_before: int
    """Points that an earlier run had finished."""

    @property
    def name(self) -> str:
        """What its files are called: the experiment, and the data if it is not the embedded one."""
        return self.experiment.id + ("" if self.scale.data == "digits" else f"-{self.scale.data}")

    def json(self) -> dict[str, Any]:
        """Return it for a program."""
        return {
            "name": self.name,
            "id": self.experiment.id,
            "title": self.experiment.title,
            "paper": self.experiment.paper,
            "scale": {"name": self.scale.name, "seeds": list(self.scale.seeds), "rounds": self.scale.rounds},
            "data": self.scale.data,
            "date": self.date,
            "machine": self.machine,
            "seconds": self.seconds,
            "points_from_before": self.from_before,
            **self.result.json(),
        }


def listing() -> list[dict[str, str]]:
    """Return every experiment with its state."""
    return [
        {"id": one.id, "state": state_of(one), "paper": one.paper, "title": one.title, "data": ", ".join(one.data)}
        for one in REGISTRY
    ]


def machine() -> str:
    """Name the kind of machine, not the machine."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, no GPU used"


def run(
    experiment: Experiment,
    scale: Scale,
    *,
    data: str = "digits",
    directory: Path | None = None,
    fresh: bool = False,
    show: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Run:
    """Run an experiment, taking from earlier runs what they finished."""
    state = state_of(experiment)
    if experiment.run is None or state != RUNS:
        raise ReproduceError(f"{experiment.id}: {state}")
    if data != "digits" and data not in experiment.data:
        known = ", ".join(("digits", *experiment.data)) if experiment.data else "its own data only"
        raise ReproduceError(f"{experiment.id} does not run on {data!r}: it runs on {known}")
    sized = replace(scale, data=data)
    size = "by round" if experiment.by_round else f"{scale.name} {scale.rounds}"
    kept = Kept(directory or cache_directory(), experiment.id, size, show, fresh)
    began = time.monotonic()
    result = experiment.run(sized, kept)
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return Run(experiment, sized, result, time.monotonic() - began, date, machine(), kept.from_before)
