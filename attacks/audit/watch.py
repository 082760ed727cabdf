"""A federation that ran, watched: source inference on what its nodes recorded, and on the same updates unprotected.

It takes a directory whose silos kept their updates (the demo's and the audit's do): those are what an ordinary server
would have been sent, and the attack on them shows that it would have worked.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from silomix.attacks.audit.verdict import Expectation, Json, Verdict, judge
from silomix.attacks.collusion import opened
from silomix.attacks.errors import AttackError
from silomix.attacks.remap import reconstruct
from silomix.attacks.sia import Inference, Outcome, Score, Targets, draw_targets, outcome
from silomix.attacks.views.captured import Scene
from silomix.attacks.views.classifier import Records
from silomix.attacks.views.shadow import shadow_sets
from silomix.attacks.views.victims import Victim
from silomix.attacks.views.view import View
from silomix.runtime.core.numbers.plan import Granularity, Level
from silomix.runtime.store.home import Home
from silomix.runtime.task import Tensors

LEAST = 10
"""Silos with fewer records are not asked about."""


@dataclass(frozen=True)
class Watched:
    """What came of one attack, and how often a mere guess would have been right in the last round."""

    outcome: Outcome
    random: float

    def json(self) -> Json:
        """Return it for a program."""
        return {**self.outcome.json(), "random": self.random}


@dataclass(frozen=True)
class Watcher:
    """An adversary with its eye on one federation: the records to ask about, and shadow sets for remapping."""

    victims: list[Victim]
    targets: Targets
    seed: int

    def attack(self, rounds: Iterable[tuple[int, View]], die: int = 0) -> Watched:
        """Mount source inference on rounds as they were seen; who sees the same with another die guesses otherwise."""
        return self.attack_models(((view.cohort, self._models(view)) for _, view in rounds), die)

    def attack_models(self, rounds: Iterable[tuple[tuple[int, ...], list[Tensors]]], die: int = 0) -> Watched:
        """Mount it on models, one for each silo of a round's cohort."""
        mounted, size = Inference(self.victims[0].net, self.targets, (self.seed, die)), 0
        for cohort, models in rounds:
            mounted.round(models, cohort)
            size = len(cohort)
        if not mounted.rounds:
            raise AttackError("there is no round to attack: none ended, or nothing of it was recorded")
        return Watched(outcome(mounted), 1 / size)

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


def watched(home: Path, seed: int = 1) -> Json:
    """Attack a federation that has ended, from the captures in its directory."""
    scene = Scene(home)
    federation, watcher = scene.federation, look(scene, seed)
    found: Json = {
        "federation": federation.name,
        "granularity": str(federation.policy.granularity),
        "level": str(federation.policy.level),
        "silos": len(federation.silos),
        "hops": len(federation.chain),
        "captured": watcher.attack(scene.captured()).json(),
        "unprotected": None,
        "all_collude": None,
        "all_but_one": None,
        "bits_per_parameter": _bits(scene),
    }
    if kept := list(scene.kept()):
        found["unprotected"] = watcher.attack(kept).json()
    summed = federation.policy.granularity is Granularity.SUM
    if summed and Home(home / federation.chain[0]).capture.exists():
        found["all_collude"] = watcher.attack(opened(scene)).json()
        if federation.policy.level is not Level.TRUSTED:
            found["all_but_one"] = watcher.attack(opened(scene, federation.chain[:-1]), die=1).json()
    return found


def _bits(scene: Scene) -> float | None:
    """Bits per parameter that a silo sent, as it counted them on the wire."""
    path = Home(scene.home / scene.federation.silo_names[0]).state.last_body
    return float(json.loads(path.read_text())["bits_per_parameter"]) if path.exists() else None


@dataclass(frozen=True)
class Compared:
    """What the same attack achieved on two sides, for the demo."""

    captured: Watched
    """On what the server captured."""
    unprotected: Watched
    """On the silos' own updates, which it did not get."""

    @property
    def random(self) -> float:
        """The rate of a random guess."""
        return self.captured.random

    @property
    def verdict(self) -> Verdict:
        """The judge's."""
        held, kept = self.captured, self.unprotected
        return judge(
            (
                Expectation("what the server captured", held.outcome.last, held.random, hidden=True),
                Expectation("the unprotected updates", kept.outcome.last, kept.random, hidden=False),
            )
        )

    @property
    def protected(self) -> bool:
        """Whether the attack fails on the one and works on the other: a failure alone could be a bad attack's."""
        return self.verdict.protected

    def text(self) -> str:
        """Say it in a few lines."""
        first, second = self.captured.outcome.last, self.unprotected.outcome.last
        what = "protected" if self.protected else "NOT PROTECTED" if self.verdict.leaks else "NOT SETTLED"
        return (
            f"source inference on what the server captured: {_percent(first)}; a random guess: {self.random:.1%}\n"
            f"the same attack on the unprotected updates: {_percent(second)}\n"
            f"verdict: {what} ({first.targets} records, last round, intervals at 99.9%, ties broken at random)"
        )

    def json(self) -> Json:
        """Return it for a program."""
        return {
            "captured": self.captured.outcome.json(),
            "unprotected": self.unprotected.outcome.json(),
            "random": self.random,
            "protected": self.protected,
        }


def _percent(score: Score) -> str:
    low, high = score.interval
    return f"{score.accuracy:.1%} ({low:.1%} to {high:.1%})"


def verdict(federation_dir: Path, *, seed: int = 1) -> Compared:
    """Attack a federation that has ended, from its directory. Without a capture, the server's checkpoints are used."""
    torch.set_num_threads(1)
    scene = Scene(federation_dir)
    watcher = look(scene, seed)
    capture = Home(federation_dir / scene.federation.aggregator.name).capture
    kept = list(scene.kept())
    if not kept:
        raise AttackError(f"{federation_dir}: no silo kept its updates (keep_updates), so there is nothing to compare")
    captured = watcher.attack(scene.captured(capture) if capture.exists() else scene.checkpoints())
    return Compared(captured, watcher.attack(kept))
