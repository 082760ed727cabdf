"""A simulation on disk: what it has found so far, and what it goes on from after it was stopped at any point.

settings.json       what was asked for: a run goes on only with the same
rounds.jsonl        one line for each round; a round is done when its line is there
best.safetensors    the model of the best accuracy so far
last.safetensors    the newest model
accuracy.png        accuracy by round
state/              the newest model, the server optimiser's state, and with automatic bounds the model before
"""

import fcntl
import json
import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from silomix.models.simulation.plots import Line, Plot, draw
from silomix.models.simulation.simulate import SimulatedRound, State
from silomix.runtime.core.errors import Fault, UserError
from silomix.runtime.core.learning.optimise import Optimiser
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.store.files import write_atomically
from silomix.runtime.store.modelfile import read_model, write_model

SETTINGS, ROUNDS, BEST, LAST, PLOT = (
    "settings.json",
    "rounds.jsonl",
    "best.safetensors",
    "last.safetensors",
    "accuracy.png",
)


class RecordError(UserError):
    """The directory holds something that this run cannot go on from. The message says what to do."""


class RunDirectory:
    """The directory of one run, held by one process at a time."""

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        """Make the directory, or take up the run in it."""
        self.directory, self.settings = directory, json.loads(json.dumps(settings))
        self.lines: list[dict[str, Any]] = []
        self._state = directory / "state"
        try:
            self._state.mkdir(parents=True, exist_ok=True)
            self._lock: IO[bytes] = open(directory / "lock", "wb")  # noqa: SIM115 - held until the end
        except OSError as error:
            raise RecordError(f"{directory} cannot be written to: {error.strerror}; give another directory") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise RecordError(f"another process is at work in {directory}: wait, or give another directory") from None
        try:
            self._take_up()
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    @property
    def done(self) -> int:
        """Rounds that are done."""
        return len(self.lines)

    def start(self, schema: Schema, optimiser: Optimiser) -> State | None:
        """Return what to go on from, or nothing if no round is done yet."""
        if not self.lines:
            return None
        path = self._state / f"{self.done}.safetensors"
        try:
            found, model = read_model(path.read_bytes())
            moments = read_model(path.with_suffix(".moments").read_bytes())[1] if optimiser.slots else {}
            older = path.with_suffix(".previous")
            previous = read_model(older.read_bytes())[1] if older.exists() else None
        except (OSError, Fault) as error:
            raise self._lost(f"{path} cannot be read ({error})") from None
        if found.digest != schema.digest:
            raise self._lost(f"{path} is another model than the task's")
        return State(self.done, model, moments, previous)

    def add(self, done: SimulatedRound, schema: Schema, optimiser: Optimiser) -> dict[str, Any]:
        """Keep a round: first what the next one needs, then the line that says that it is done."""
        assert done.state is not None
        model = write_model(schema, done.after)
        path = self._state / f"{done.round}.safetensors"
        write_atomically(path, model)
        if optimiser.slots:
            write_atomically(
                path.with_suffix(".moments"), write_model(optimiser.state_schema(schema), done.state.optimiser)
            )
        if done.state.previous is not None:
            write_atomically(path.with_suffix(".previous"), write_model(schema, done.state.previous))
        accuracy = done.metrics.get("accuracy")
        if accuracy is not None and accuracy > max(self.accuracies().values(), default=-1.0):
            write_atomically(self.directory / BEST, model)
        line = line_of(done)
        with open(self.directory / ROUNDS, "a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.append(line)
        write_atomically(self.directory / LAST, model)
        for old in self._state.iterdir():
            if old.stem != str(done.round):
                old.unlink()
        return line

    def accuracies(self) -> dict[int, float]:
        """Accuracy by round, of those that were measured."""
        found = {line["round"]: line["metrics"].get("accuracy") for line in self.lines}
        return {round_: accuracy for round_, accuracy in found.items() if accuracy is not None}

    def plot(self) -> None:
        """Draw accuracy by round, if it was measured."""
        points = tuple((float(round_), value) for round_, value in self.accuracies().items())
        if points:
            draw(Plot("accuracy by round", "round", "accuracy", (Line("accuracy", points),)), self.directory / PLOT)

    def _take_up(self) -> None:
        file, rounds = self.directory / SETTINGS, self.directory / ROUNDS
        if not file.exists():
            if rounds.exists():
                raise self._lost(f"{file} is missing")
            write_atomically(file, json.dumps(self.settings, indent=1).encode())
            return
        try:
            found = json.loads(file.read_bytes())
        except ValueError:
            raise self._lost(f"{file} is not JSON") from None
        self._check_same(found)
        write_atomically(file, json.dumps(self.settings, indent=1).encode())
        if rounds.exists():
            self._read_lines(rounds)

    def _read_lines(self, rounds: Path) -> None:
        """Read the rounds that are done, and cut off what a crash left of one that is not."""
        whole = 0
        for i, raw in enumerate(rounds.read_bytes().splitlines(keepends=True), 1):
            try:
                line = json.loads(raw) if raw.endswith(b"\n") else None
            except ValueError:
                line = None
            if not isinstance(line, dict) or line.get("round") != i:
                if raw.endswith(b"\n"):
                    raise self._lost(f"line {i} of {rounds} is not that of round {i}")
                break
            self.lines.append(line)
            whole += len(raw)
        os.truncate(rounds, whole)

    def _check_same(self, found: Any) -> None:
        ours, theirs = dict(self.settings), dict(found) if isinstance(found, dict) else {}
        if ours["subsample"] == 1.0:  # else the rounds' number is in the draw of the silos
            ours.pop("rounds")
            theirs.pop("rounds", None)
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                raise RecordError(
                    f"{self.directory} holds a run with {key} = {json.dumps(theirs.get(key))}, and this one has "
                    f"{json.dumps(ours.get(key))}: ask for the same, or give another directory"
                )

    def _lost(self, what: str) -> RecordError:
        return RecordError(f"the run in {self.directory} cannot go on: {what}; delete the directory to begin anew")


def line_of(done: SimulatedRound) -> dict[str, Any]:
    """Say a round in JSON."""
    return {
        "round": done.round,
        "cohort": list(done.cohort),
        "metrics": _plain(done.metrics),
        "seconds": {phase: round(seconds, 6) for phase, seconds in done.seconds.items()},
        "training_share": round(done.training_share, 4),
        "clipped": done.clipped,
        "training": [_plain(metrics) for metrics in done.training],
    }


def _plain(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Replace what JSON has no number for: a loss that has exploded."""
    return {name: float(value) if isfinite(value) else None for name, value in metrics.items()}
