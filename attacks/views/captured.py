"""What an adversary really held: views made of an aggregator's capture, and of the files that it keeps.

`runtime/capture/evidence.py` puts the frames of a capture together. Here they become views, with silos by number. At
level semi-honest the capture shows the sum under the aggregator's own mask; the aggregator has taken that off, so the
sum is taken from the model that it published next, or from its checkpoint of the last one.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from silomix.attacks.errors import AttackError
from silomix.attacks.views.victims import Victim, victims_of
from silomix.attacks.views.view import View, as_changes, floats
from silomix.runtime.capture.evidence import Evidence, evidence
from silomix.runtime.config.load import load_federation, load_node
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.plan import Granularity, Level
from silomix.runtime.core.numbers.schema import Array, Schema
from silomix.runtime.core.policy import UpdateKind
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.nodes.facts import read_log
from silomix.runtime.store.home import FEDERATION_FILE, Home
from silomix.runtime.store.journal import Journal
from silomix.runtime.store.modelfile import read_model
from silomix.runtime.task import Tensors, load_task


@dataclass(frozen=True)
class Scene:
    """A federation's directory, as an experimenter has it: the captures, and what it takes to tell a right guess."""

    home: Path

    @cached_property
    def federation(self) -> Federation:
        """The federation file."""
        return load_federation(self.home)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The silos by number, in the order of their names."""
        return {name: i for i, name in enumerate(self.federation.silo_names)}

    @cached_property
    def schema(self) -> Schema:
        """The model's tensors."""
        policy = self.federation.policy
        return load_task(policy.task, policy.task_options).schema()

    def victims(self) -> list[Victim]:
        """Make the silos' tasks, from their own files where these are here."""
        policy, found = self.federation.policy, []
        for name, number in self.numbers.items():
            there = Home(self.home / name).file.exists()
            options = load_node(self.home / name).options if there else {**policy.task_options, "silo": number}
            found.append(options)
        return victims_of(policy.task, (load_task(policy.task, options) for options in found))

    @cached_property
    def models(self) -> dict[int, dict[str, Array]]:
        """The models after each round, 0 being before the first, as far as the aggregator's checkpoints are here."""
        node = Home(self.home / self.federation.aggregator.name)
        initial, journal = node.initial_model, node.state.journal
        found = {0: read_floats(initial)} if initial.exists() else {}
        if not journal.exists():
            return found
        with closing(Journal(journal)) as facts:
            for record in read_log(facts):
                path = node.state.model(record.model_after)
                if path.exists():
                    found[record.round] = read_floats(path)
        return found

    def captured(self, capture: Path | None = None) -> Iterator[tuple[int, View]]:
        """Yield the rounds of the aggregator's capture, as it could read them."""
        path = capture or Home(self.home / self.federation.aggregator.name).capture
        if not path.exists():
            raise AttackError(f"{path}: there is no capture; start the aggregator with --capture")
        rounds = {one.round: one for one in evidence(path)}
        if not rounds:
            raise AttackError(f"{path}: the capture holds no round that arrived whole")
        for number, one in sorted(rounds.items()):
            before, after = self._model(rounds, number), self._model(rounds, number + 1)
            if before is None:
                continue
            view = self.view(one, before, after)
            if view.rows is not None or view.mean is not None:
                yield number, view

    def _model(self, rounds: Mapping[int, Evidence], number: int) -> Tensors | None:
        """Return the model that a round began with: as it was captured, or else from a checkpoint."""
        one = rounds.get(number)
        if one is not None and one.model is not None:
            return floats(one.manifest.schema, one.model)
        return self.models.get(number - 1)

    def view(self, one: Evidence, before: Tensors, after: Tensors | None) -> View:
        """Turn one round's evidence into a view."""
        manifest = one.manifest
        cohort = tuple(self.numbers[name] for name in one.cohort)
        plain = View(manifest.schema, cohort, before)
        change = manifest.update is UpdateKind.DELTA
        if one.rows is not None:
            rows = one.rows[:, : manifest.schema.parameters]
            view = View(manifest.schema, cohort, before, rows=rows, mixed=manifest.granularity)
            return view if change else as_changes(view)
        if one.sums is not None and manifest.plan.level is Level.TRUSTED and not manifest.group_size:
            return self._summed(one, plain, change)
        return View(manifest.schema, cohort, before, mean=after)

    def _summed(self, one: Evidence, plain: View, change: bool) -> View:
        """Decode a sum that lies open. The un-reduced sums of mode unary are kept beside it."""
        manifest = one.manifest
        assert one.sums is not None
        codec = Codec(manifest.schema, manifest.bounds, manifest.plan, manifest.chunk_parameters)
        reduced = one.sums % np.array(manifest.plan.moduli)[:, None]
        mean = floats(plain.schema, codec.decode(codec.layout.pack(reduced), len(one.cohort)).tensors)
        if change:
            mean = {name: np.asarray(plain.before[name] + moved) for name, moved in mean.items()}
        unreduced = one.sums if manifest.granularity is Granularity.UNARY else None
        return View(plain.schema, plain.cohort, plain.before, mean=mean, residue_sums=unreduced)

    def checkpoints(self) -> Iterator[tuple[int, View]]:
        """Yield what the aggregator has without a capture: the model before and after each round, for all silos."""
        cohort = tuple(self.numbers.values())
        for number, after in sorted(self.models.items()):
            if number - 1 in self.models:
                yield number, View(self.schema, cohort, self.models[number - 1], mean=after)

    def kept(self) -> Iterator[tuple[int, View]]:
        """Yield the rounds as an unprotected server would have seen them: from the updates that silos kept."""
        files: dict[int, dict[int, Path]] = {}
        for name, number in self.numbers.items():
            for round_, path in Home(self.home / name).state.updates().items():
                files.setdefault(round_, {})[number] = path
        for round_, paths in sorted(files.items()):
            if round_ - 1 in self.models:
                cohort = tuple(sorted(paths))
                rows = np.stack([self._row(read_floats(paths[silo])) for silo in cohort])
                view = View(self.schema, cohort, self.models[round_ - 1], rows=rows)
                yield round_, view if self.federation.policy.update is UpdateKind.DELTA else as_changes(view)

    def _row(self, update: Tensors) -> npt.NDArray[np.float32]:
        return np.concatenate([np.asarray(update[t.name], np.float32).reshape(-1) for t in self.schema.tensors])


def read_floats(path: Path) -> dict[str, Array]:
    """Read a model file, as numbers to compute with."""
    return floats(*read_model(path.read_bytes()))


def scene_of(path: Path) -> Scene:
    """Find the federation's directory at or above a path."""
    if not path.exists():
        raise AttackError(f"{path} is not there: give a capture, which is a file or a directory")
    for place in (path, *path.resolve().parents):
        if (place / FEDERATION_FILE).exists():
            return Scene(place)
    raise AttackError(f"{path}: there is no {FEDERATION_FILE} here or above; name its directory with --federation")
