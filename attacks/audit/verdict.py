"""The verdict on one federation: source inference on what its server captured, and on the same updates unprotected.

It takes a directory whose silos kept their updates (the demo's do): those are what an ordinary server would have been
sent, and the attack on them shows that it would have worked.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from silomix.attacks.sia import Attack, AttackError, Outcome, Records, Score, Targets, draw_targets, outcome
from silomix.attacks.victims import Victim
from silomix.attacks.views.captured import CAPTURE, Scene
from silomix.attacks.views.shadow import shadow_sets
from silomix.attacks.views.view import View, reconstruct
from silomix.runtime.core.protocol.federation import Granularity
from silomix.runtime.task import Tensors

LEAST = 10
"""Silos with fewer records are not asked about."""


@dataclass(frozen=True)
class Verdict:
    """What the same attack achieved on two sides."""

    captured: Outcome
    """On what the server captured."""
    unprotected: Outcome
    """On the silos' own updates, which it did not get."""
    silos: int

    @property
    def random(self) -> float:
        """The rate of a random guess."""
        return 1 / self.silos

    @property
    def protected(self) -> bool:
        """Whether the attack fails on the one and works on the other: a failure alone could be a bad attack's."""
        return self.captured.last.holds(self.random) and self.unprotected.last.interval[0] > self.random

    def text(self) -> str:
        """Say it in a few lines."""
        first, second = self.captured.last, self.unprotected.last
        what = "protected" if self.protected else "NOT PROTECTED"
        return (
            f"source inference on what the server captured: {_percent(first)}; a random guess: {self.random:.1%}\n"
            f"the same attack on the unprotected updates: {_percent(second)}\n"
            f"verdict: {what} ({first.targets} records, last round, intervals at 99.9%, ties broken at random)"
        )

    def json(self) -> dict[str, Any]:
        """Return it for a program."""
        return {
            "captured": self.captured.json(),
            "unprotected": self.unprotected.json(),
            "random": self.random,
            "protected": self.protected,
        }


def _percent(score: Score) -> str:
    low, high = score.interval
    return f"{score.accuracy:.1%} ({low:.1%} to {high:.1%})"


@dataclass(frozen=True)
class Watcher:
    """An adversary with its eye on one federation: the records to ask about, and shadow sets for remapping."""

    victims: list[Victim]
    targets: Targets
    seed: int

    def attack(self, rounds: Iterable[tuple[int, View]]) -> Outcome:
        """Mount source inference on rounds as they were seen."""
        return self.attack_models((view.cohort, self._models(view)) for _, view in rounds)

    def attack_models(self, rounds: Iterable[tuple[tuple[int, ...], list[Tensors]]]) -> Outcome:
        """Mount it on models, one for each silo of a round's cohort."""
        mounted = Attack(self.victims[0].net, self.targets, (self.seed,))
        for cohort, models in rounds:
            mounted.round(models, cohort)
        if not mounted.rounds:
            raise AttackError("there is no round to attack: none ended, or nothing of it was recorded")
        return outcome(mounted)

    def _models(self, view: View) -> list[Tensors]:
        shadows = self.shadows if view.mixed is not Granularity.NONE else None
        mine = [] if shadows is None else [shadows[silo] for silo in view.cohort]
        return reconstruct(view, mine, self.victims[0].net)

    @cached_property
    def shadows(self) -> list[Records]:
        """A shadow set of each silo: drawn only if bodies came shuffled."""
        return shadow_sets(self.victims, self.seed)


def look(scene: Scene, seed: int = 1) -> Watcher:
    """Draw the records to ask about from a federation's silos."""
    victims = scene.victims()
    return Watcher(victims, draw_targets([victim.share for victim in victims], seed, least=LEAST), seed)


def verdict(federation_dir: Path, *, seed: int = 1) -> Verdict:
    """Attack a federation that has ended, from its directory. Without a capture, the server's checkpoints are used."""
    torch.set_num_threads(1)
    scene = Scene(federation_dir)
    watcher = look(scene, seed)
    capture = federation_dir / scene.federation.aggregator.name / CAPTURE
    kept = list(scene.kept())
    if not kept:
        raise AttackError(f"{federation_dir}: no silo kept its updates (keep_updates), so there is nothing to compare")
    captured = watcher.attack(scene.captured(capture) if capture.exists() else scene.checkpoints())
    return Verdict(captured, watcher.attack(kept), len(watcher.victims))
