"""How experiments measure source inference: a point is one federation under attack in several modes, for all seeds."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from silomix.attacks.audit.campaign import Campaign, run, splits
from silomix.attacks.paper.accuracy_trials import SETTINGS, policy_for
from silomix.attacks.sia import Outcome, pooled
from silomix.attacks.views.view import Mode
from silomix.models.simulation.experiment import Cell, Line, Plot, Progress, Result, Scale, Table
from silomix.runtime.core.digest import digest

MODES = (Mode.NONE, Mode.MODEL, Mode.LAYER, Mode.PARAMETER, Mode.SEMI_HONEST)
"""The paper's comparison: vanilla FL, the three shuffles, and the protected sum."""
FIGURE = "The paper has this as a figure without values; what its text and tables say of it stands in the last column."
LEAST = 25
"""Records of the smallest silo, so that a few seeds are enough: other splits are passed over."""


class Trials:
    """Runs the points of one experiment, each for as many splits as the scale has seeds."""

    def __init__(self, scale: Scale, progress: Progress, points: int, *, data: str = "", redraw: bool = True) -> None:
        """Say how many points will be asked for. Without `redraw` the first seeds are taken, tiny silos left out."""
        self.scale, self.progress, self.data = scale, progress, data or scale.data
        self.redraw = redraw
        self.found: dict[str, Any] = {}
        progress.plan(points * len(scale.seeds))

    def base(self, silos: int = 10, modes: Sequence[Mode] = MODES, **options: str | int | float | bool) -> Campaign:
        """Return a campaign on the experiment's data."""
        policy = policy_for(self.data, self.scale, 1, {"silos": silos, **options})
        workers = 1 if SETTINGS[self.data].light else os.cpu_count() or 1
        return Campaign(policy, silos=silos, modes=tuple(modes), least=1 if self.redraw else 10, workers=workers)

    def run(self, name: str, campaign: Campaign) -> dict[str, Outcome]:
        """Run a point for all seeds, and pool it."""
        results = []
        chosen = splits(campaign, LEAST) if self.redraw else (replace(campaign, seed=s) for s in self.scale.seeds)
        for _, one in zip(self.scale.seeds, chosen, strict=False):
            results.append(self.progress.point(self._key(name, one), partial(measure, one)))
        pools = {m: pooled([Outcome.of(r["outcomes"][m]) for r in results]) for m in results[0]["outcomes"]}
        accuracy = sum(r["accuracy"] for r in results) / len(results)
        self.found[name] = {"accuracy": accuracy, "sia": {mode: one.json() for mode, one in pools.items()}}
        return pools

    def _key(self, name: str, one: Campaign) -> str:
        knows = f"{one.silos} {one.seed} {one.fraction} {one.noise} {one.by} {one.least} {','.join(one.modes)}"
        number = digest("campaign", one.policy.canonical(), knows).hex()[:12]
        return f"{self.data} {name} seed {one.seed} {number}"

    def accuracy(self, name: str) -> float:
        """Return the joint model's accuracy at a point, after the last round."""
        return float(self.found[name]["accuracy"])

    def values(self) -> dict[str, Any]:
        """Return every point, for programs."""
        return {"data": self.data, "rounds": self.scale.rounds, "points": self.found}

    def about(self, silos: str = "10 silos, ") -> str:
        """Say in which setting the numbers were found."""
        seeds = f"{len(self.scale.seeds)} seed(s)"
        return (
            f"{self.data}: {SETTINGS[self.data].about}; {silos}{self.scale.rounds} rounds; {seeds}; best round, in "
            "percent, with Wilson's interval at 99.9%; shadow sets of 5% unless said otherwise."
        )


def measure(campaign: Campaign) -> dict[str, Any]:
    """Run one point."""
    found = run(campaign)
    outcomes = {name: one.counts() for name, one in found.outcomes.items()}
    return {"outcomes": outcomes, "accuracy": found.accuracy[-1], "targets": found.targets}


def percent(one: Outcome) -> str:
    """Write the best round as a cell: 51.9 (46.8-56.9)."""
    low, high = one.best.interval
    return f"{one.best.accuracy * 100:.1f} ({low * 100:.1f}-{high * 100:.1f})"


def line(name: str, points: Sequence[tuple[float, Outcome]]) -> Line:
    """Make a curve of best rounds."""
    return Line(name, tuple((x, o.best.accuracy) for x, o in points), tuple(o.best.interval for _, o in points))


def swept(
    trials: Trials,
    title: str,
    x: str,
    points: Sequence[tuple[str, float, Campaign]],
    printed: dict[str, str],
    **plot: Any,
) -> Result:
    """Run a series of campaigns along an axis: a table with a column for each mode, and a plot."""
    found = [(name, at, trials.run(name, campaign)) for name, at, campaign in points]
    columns = (x, *MODES, "model accuracy", "paper")
    rows: list[tuple[Cell, ...]] = []
    for name, _, pools in found:
        rows.append(
            (name, *(percent(pools[m]) for m in MODES), f"{trials.accuracy(name) * 100:.1f}", printed.get(name))
        )
    lines = tuple(line(str(mode), [(at, pools[mode]) for _, at, pools in found]) for mode in MODES)
    picture = Plot(title, x, "right guesses", lines, **plot)
    table = Table(title, tuple(map(str, columns)), tuple(rows))
    return Result((table,), (picture,), (trials.about(), FIGURE), trials.values())


def listed(
    trials: Trials, title: str, what: str, campaigns: dict[str, Campaign], printed: dict[str, str], *notes: str
) -> Result:
    """Run campaigns that are not along an axis: a row for each."""
    rows: list[tuple[Cell, ...]] = []
    for name, campaign in campaigns.items():
        pools = trials.run(name, campaign)
        cells = (percent(pools[m]) if m in pools else None for m in MODES)
        rows.append((name, *cells, f"{trials.accuracy(name) * 100:.1f}", printed.get(name)))
    columns = (what, *map(str, MODES), "model accuracy", "paper")
    return Result((Table(title, columns, tuple(rows)),), (), (trials.about(), *notes), trials.values())
