"""Source inference (Hu et al., "Source Inference Attacks in Federated Learning"): whose record is this?

The adversary knows that a record was trained on and asks by whom. A model has a smaller loss on what it was trained on,
so the guess is the silo whose local model, as far as the adversary could make it out, has the least loss on the record.
Equal losses are broken by a fair die: an adversary that holds the same model for everybody guesses at random.

The same number of records of each silo is asked about, so that a guess that does not look at the record is right one
time in n, whatever it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from silomix.attacks.errors import AttackError
from silomix.attacks.views.classifier import Records, each
from silomix.runtime.task import Tensors

Losses = npt.NDArray[np.float64]
"""A row for each model or silo, a column for each record."""

PER_SILO = 100
"""Records asked about per silo, at most: the paper's number."""
Z = 3.2905267314919255
"""Half-width of a 99.9% interval in standard deviations."""


@dataclass(frozen=True)
class Targets:
    """Records whose silo is to be guessed, the same number of each silo."""

    x: Tensor
    y: Tensor
    source: npt.NDArray[np.int64]

    @property
    def records(self) -> Records:
        """The records without what is asked about them."""
        return self.x, self.y

    def of(self, cohort: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Mark the records of the silos that took part: only about these is the question fair."""
        return np.isin(self.source, np.asarray(cohort))


def draw_targets(shares: Sequence[Records], seed: int, per_silo: int = PER_SILO, least: int = 1) -> Targets:
    """Draw the records once for all rounds and modes: as many of each silo as the smallest has, at most per_silo.

    Silos with fewer than `least` records are not asked about: otherwise one tiny silo would leave nothing to measure.
    """
    asked = [silo for silo, (_, y) in enumerate(shares) if len(y) >= least]
    count = min([per_silo, *(len(shares[silo][1]) for silo in asked)])
    if not asked or count < 1:
        raise AttackError(
            f"no silo has {least} records to ask about: build the tasks with the silos' own numbers, not -1"
        )
    rng = np.random.default_rng([seed, 0x51A])
    picked = {silo: torch.from_numpy(rng.choice(len(shares[silo][1]), count, replace=False)) for silo in asked}
    x = torch.cat([shares[silo][0][rows] for silo, rows in picked.items()])
    y = torch.cat([shares[silo][1][rows] for silo, rows in picked.items()])
    return Targets(x, y, np.repeat(np.array(asked), count))


def losses(net: nn.Module, models: Sequence[Tensors], records: Records) -> Losses:
    """Return the cross-entropy of each record under each model. What is not a number counts as infinite."""
    x, y = records
    rows = [functional.cross_entropy(out.double(), y, reduction="none").numpy() for out in each(net, models, x)]
    table: Losses = np.nan_to_num(np.stack(rows), nan=np.inf, posinf=np.inf)
    return table


def guess(table: Losses, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return for each record the row of least loss; among equals, one at random."""
    best = table == table.min(axis=0)
    guessed: npt.NDArray[np.int64] = np.where(best, rng.random(table.shape), -1.0).argmax(axis=0)
    return guessed


@dataclass(frozen=True)
class Score:
    """How many guesses were right, with the interval that holds the true rate 999 times in 1,000 (Wilson)."""

    hits: int
    targets: int

    @property
    def accuracy(self) -> float:
        """The share of right guesses."""
        return self.hits / self.targets if self.targets else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval at 99.9%: it stays within 0..1 and is right for small counts too."""
        if not self.targets:
            return 0.0, 1.0
        n, p = self.targets, self.accuracy
        middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z * sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def holds(self, rate: float) -> bool:
        """Tell whether a rate, such as that of a random guess, lies within the interval."""
        low, high = self.interval
        return low <= rate <= high

    def beats(self, rate: float) -> bool:
        """Tell whether the whole interval lies above a rate: the guess is better than that one, beyond doubt."""
        return self.interval[0] > rate

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> "Score":
        """Read what `json` wrote."""
        return cls(written["hits"], written["targets"])

    def __add__(self, other: "Score") -> "Score":
        return Score(self.hits + other.hits, self.targets + other.targets)

    def json(self) -> dict[str, Any]:
        """Return it for a program."""
        low, high = self.interval
        return {"accuracy": self.accuracy, "low": low, "high": high, "targets": self.targets, "hits": self.hits}


NOTHING = Score(0, 0)


@dataclass
class Inference:
    """Source inference over the rounds of one federation: feed it each round's models as the adversary has them."""

    net: nn.Module
    targets: Targets
    seed: tuple[int, ...]
    """Of the die that breaks ties."""
    rounds: list[Score] = field(default_factory=list)
    """The score of each round."""
    _sums: dict[int, Losses] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)

    def round(self, models: Sequence[Tensors], cohort: Sequence[int]) -> Score:
        """Guess from one round: a model for each silo of the cohort, in the cohort's order."""
        if len(models) != len(cohort):
            raise AttackError(f"{len(models)} models for {len(cohort)} silos: the attack takes one for each")
        return self.losses(losses(self.net, models, self.targets.records), cohort)

    def losses(self, table: Losses, cohort: Sequence[int]) -> Score:
        """Guess from a table of losses, however it was made: a row for each silo of the cohort."""
        for silo, row in zip(cohort, table, strict=True):
            self._sums[silo] = self._sums.get(silo, 0.0) + row
            self._counts[silo] = self._counts.get(silo, 0) + 1
        score = self._score(table, cohort, len(self.rounds))
        self.rounds.append(score)
        return score

    def together(self) -> Score:
        """Guess once from all rounds so far: the least mean loss over the rounds that a silo took part in."""
        cohort = sorted(self._sums)
        table = np.stack([self._sums[silo] / self._counts[silo] for silo in cohort])
        return self._score(table, cohort, -1)

    def _score(self, table: Losses, cohort: Sequence[int], number: int) -> Score:
        asked = self.targets.of(cohort)
        rng = np.random.default_rng([*self.seed, number + 1])
        guessed = np.asarray(cohort)[guess(table[:, asked], rng)]
        return Score(int((guessed == self.targets.source[asked]).sum()), int(asked.sum()))


@dataclass(frozen=True)
class Outcome:
    """What came of the attack in one mode, pooled over repetitions."""

    rounds: tuple[Score, ...]
    together: Score = NOTHING
    """The guess from all rounds at once."""

    @property
    def best(self) -> Score:
        """The best round: what the paper reports. It flatters the attack, being a maximum."""
        return max(self.rounds, key=lambda score: score.accuracy)

    @property
    def last(self) -> Score:
        """The last round: chosen before anything was measured."""
        return self.rounds[-1]

    def __add__(self, other: "Outcome") -> "Outcome":
        pairs = zip(self.rounds, other.rounds, strict=True)
        return Outcome(tuple(a + b for a, b in pairs), self.together + other.together)

    def json(self) -> dict[str, Any]:
        """Return it for a program: the best round in front, as the paper has it."""
        return {
            **self.best.json(),
            "last": self.last.json(),
            "together": self.together.json(),
            "by_round": [score.json() for score in self.rounds],
        }

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "Outcome":
        """Read what `json` wrote."""
        return cls(tuple(map(Score.of, written["by_round"])), Score.of(written["together"]))

    def counts(self) -> dict[str, Any]:
        """Return it as bare counts, to be pooled later."""
        return {
            "rounds": [[score.hits, score.targets] for score in self.rounds],
            "together": [self.together.hits, self.together.targets],
        }

    @classmethod
    def of(cls, counts: Mapping[str, Any]) -> "Outcome":
        """Read what `counts` wrote."""
        return cls(tuple(Score(*pair) for pair in counts["rounds"]), Score(*counts["together"]))


def outcome(mounted: Inference) -> Outcome:
    """Close an attack."""
    return Outcome(tuple(mounted.rounds), mounted.together())


def pooled(outcomes: Sequence[Outcome]) -> Outcome:
    """Pool repetitions, round by round."""
    total = outcomes[0]
    for one in outcomes[1:]:
        total = total + one
    return total
