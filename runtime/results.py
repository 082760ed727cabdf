"""What a federation on this machine leaves behind, and where one looks for it.

The aggregator keeps every model under its digest, and the history of its rounds in a journal: that is for going on
after a crash. For whoever ran the federation there are three files with plain names, written from those when its nodes
have ended:

final.safetensors   the trained model: that of the last round that came to a sum
best.safetensors    the model of the best accuracy, if it was measured
history.jsonl       one line for each round
"""

import json
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from silomix.runtime.config.load import load_federation, load_node
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.roundlog import Outcome
from silomix.runtime.nodes.facts import read_log
from silomix.runtime.store.files import write_atomically
from silomix.runtime.store.home import FEDERATION_FILE, NODE_FILE, Home, State
from silomix.runtime.store.journal import Journal
from silomix.v1 import services_pb2

FINAL, BEST, HISTORY = "final.safetensors", "best.safetensors", "history.jsonl"
FEDERATION = "federation"
"""Where `silomix run` puts the federation's own files, below its results."""


@dataclass(frozen=True)
class Round:
    """What became of one round."""

    round: int
    cohort: int
    """Silos in its sum; 0 if the round was abandoned, and the model stayed what it was."""
    attempts: int
    seconds: float
    bits_per_parameter: float
    """What arrived at the aggregator, headers and framing included."""
    accuracy: float | None
    """Of the model after the round, if it was measured."""

    @classmethod
    def of(cls, status: services_pb2.RoundStatus) -> "Round":
        """Read it from what the aggregator tells."""
        score = status.score if status.HasField("score") else None
        return cls(int(status.round), status.cohort, status.attempts, status.seconds, status.bits_per_parameter, score)

    def json(self) -> dict[str, Any]:
        """Say it in JSON, which has no NaN."""
        measured = self.accuracy is not None and isfinite(self.accuracy)
        return {**asdict(self), "accuracy": self.accuracy if measured else None}


def best_of(history: Sequence[Round]) -> Round | None:
    """Return the round with the best accuracy, the first of several."""
    measured = [one for one in history if one.cohort and one.accuracy is not None and isfinite(one.accuracy)]
    return max(measured, key=lambda one: one.accuracy or 0.0, default=None)


@dataclass(frozen=True)
class RunFiles:
    """A federation's directory, and the one with its results: the same, or the one above."""

    home: Path
    results: Path
    federation: Federation

    @cached_property
    def _aggregator(self) -> Home:
        return Home(self.home / self.federation.aggregator.name)

    @cached_property
    def _state(self) -> State:
        """The aggregator's state, where its own file says that it is."""
        own = tomllib.loads(self._aggregator.file.read_text()) if self._aggregator.file.exists() else {}
        there = own.get("directory")
        return self._aggregator.state if there is None else State(self._aggregator.directory / str(there))

    def history(self) -> list[Round]:
        """Read what became of each round, when the aggregator has ended."""
        if not self._state.journal.exists():
            return []
        with closing(Journal(self._state.journal)) as journal:
            return [Round.of(services_pb2.RoundStatus.FromString(value)) for _, _, value in journal.facts("done")]

    def models(self) -> dict[int, Path]:
        """Find the models by the round that made them, when the aggregator has ended; 0 is the initial one."""
        found = {0: self._aggregator.initial_model}
        if self._state.journal.exists():
            with closing(Journal(self._state.journal)) as journal:
                applied = [record for record in read_log(journal) if record.outcome is Outcome.APPLIED]
            found |= {record.round: self._state.model(record.model_after) for record in applied}
        return {round_: path for round_, path in found.items() if path.exists()}

    def trained(self) -> Path:
        """Find the trained model, or say that there is none."""
        final = self.results / FINAL
        if final.exists():
            return final
        models = self.models()
        if not any(models):  # none but that of round 0
            raise UserError(f"{self.home} has no trained model yet: no round has come to a sum")
        return models[max(models)]

    def keep(self, more: Mapping[int, Mapping[str, Any]] | None = None) -> list[Round]:
        """Write the three files; `more` is added to the lines of the rounds. Return the history."""
        history, models = self.history(), self.models()
        self.results.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({**one.json(), **(more or {}).get(one.round, {})}) for one in history]
        if lines:
            write_atomically(self.results / HISTORY, "".join(f"{line}\n" for line in lines).encode())
        if any(models):
            shutil.copyfile(models[max(models)], self.results / FINAL)
        best = best_of(history)
        if best is not None and best.round in models:
            shutil.copyfile(models[best.round], self.results / BEST)
        return history


def find(path: Path) -> RunFiles:
    """Find the federation that a path is about: its own directory or file, a node's, or that of `silomix run`."""
    here = path if path.is_dir() else path.parent
    if (here / NODE_FILE).exists():
        return RunFiles(here.parent, here.parent, load_node(here).federation)
    if (here / FEDERATION_FILE).exists():
        results = here.parent if here.name == FEDERATION and (here.parent / FINAL).exists() else here
        return RunFiles(here, results, load_federation(here))
    if (here / FEDERATION / FEDERATION_FILE).exists():
        return RunFiles(here / FEDERATION, here, load_federation(here / FEDERATION))
    if not path.exists():
        raise ConfigError(path, "", "is not there: give the directory that `silomix init` or `run` wrote")
    raise ConfigError(here, "", f"holds no {FEDERATION_FILE}: give the directory that `silomix init` or `run` wrote")
