"""The gap in the paper's proof, as a game: do sums of residues tell more than the sum of the values?

Silo 1 holds one of two models that the adversary knows, by the toss of a coin; the other silos hold anything that makes
the sum come out the same. The sum of the values is then useless by construction, and so are residue sums that are
reduced by their moduli, as our last hop reduces them. Un-reduced, as the paper's Alg. 1 lets the server count them,
they also show how often the residues wrapped round, which depends on single values. The adversary weighs the two
hypotheses by the law of those wraps, and its advantage is how much more often it is right than wrong.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.attacks.sia import Score
from silomix.runtime.core.numbers.plan import Encoding, Level, plan

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Game:
    """What came of the game at one size."""

    silos: int
    values: int
    """Parameters of each model."""
    moduli: tuple[int, ...]
    unreduced: Score
    reduced: Score

    @staticmethod
    def advantage(score: Score) -> tuple[float, float, float]:
        """Return 2p - 1 for the share p of right guesses, with its interval: 0 is a coin, 1 is certainty."""
        low, high = score.interval
        return 2 * score.accuracy - 1, 2 * low - 1, 2 * high - 1

    def json(self) -> dict[str, Any]:
        """Return it for a program."""
        found: dict[str, Any] = {"silos": self.silos, "values": self.values, "moduli": list(self.moduli)}
        for name in ("unreduced", "reduced"):
            value, low, high = self.advantage(getattr(self, name))
            found[name] = {"advantage": value, "low": low, "high": high, "games": getattr(self, name).targets}
        return found


def play(silos: int, values: int = 1, games: int = 1000, precision: int = 4, seed: int = 0) -> Game:
    """Play the game with models of so many values, all independent and uniform on -v..v."""
    numbers = plan(silos, precision, Encoding.UNARY, Level.TRUSTED)
    rng = np.random.default_rng([seed, silos, values])
    shape = (games, values)
    first, second, total = _draw(silos, numbers.v, shape, rng)
    world = rng.integers(2, size=games)
    held = np.where(world[:, None] == 0, first, second)
    others = _others(silos - 1, numbers.v, total - held, rng)  # (silos - 1, games, values)
    cohort = np.concatenate([held[None], others])
    evidence = {"unreduced": np.zeros(games), "reduced": np.zeros(games)}
    for m in numbers.moduli:
        law = _law(m, silos - 1)
        sums = (cohort % m).sum(axis=0)
        for name, seen in (("unreduced", sums), ("reduced", sums % m)):
            for sign, guess in ((1, first), (-1, second)):
                evidence[name] += sign * _log_likelihood(law, m, seen, guess % m, total % m, name == "reduced").sum(1)
    return Game(silos, values, numbers.moduli, *(_score(evidence[n], world, rng) for n in ("unreduced", "reduced")))


def _draw(n: int, v: int, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Integers, Integers, Integers]:
    """Draw the two values of silo 1, and a sum that leaves the others room under both: without a look at the coin."""
    first, second = rng.integers(-v, v + 1, (2, *shape))
    total = rng.integers(-v, v + 1, (n, *shape)).sum(axis=0)
    reach = (n - 1) * v / 2  # the others could reach twice that, but seldom: such tuples take long to draw
    while True:
        bad = (np.abs(total - first) > reach) | (np.abs(total - second) > reach)
        if not bad.any():
            return first, second, total
        k = int(bad.sum())
        first[bad], second[bad] = rng.integers(-v, v + 1, (2, k))
        total[bad] = rng.integers(-v, v + 1, (n, k)).sum(axis=0)


def _others(n: int, v: int, total: Integers, rng: np.random.Generator) -> Integers:
    """Draw n values that add up to the total, all such n-tuples being equally likely: draw, and keep what fits."""
    out = np.empty((n, *total.shape), np.int64)
    todo = np.ones(total.shape, bool)
    while todo.any():
        k = int(todo.sum())
        drawn = rng.integers(-v, v + 1, (n - 1, k))
        last = total[todo] - drawn.sum(axis=0)
        fits = np.abs(last) <= v
        where = tuple(axis[fits] for axis in np.nonzero(todo))
        out[:-1, *where], out[-1, *where] = drawn[:, fits], last[fits]
        todo[where] = False
    return out


def _law(m: int, n: int) -> Floats:
    """Return the law of the sum of n residues, each uniform on 0..m-1."""
    law = np.ones(1)
    for _ in range(n):
        law = np.convolve(law, np.full(m, 1 / m))
    return law


def _log_likelihood(law: Floats, m: int, seen: Integers, own: Integers, total: Integers, reduced: bool) -> Floats:
    """Weigh a hypothesis about silo 1's residue by the others' sum that it leaves, given the remainder of that sum."""
    classes = np.array([law[r::m].sum() for r in range(m)])
    remainder = (total - own) % m
    if reduced:  # all that is seen is the remainder, which the sum of the values gives away already
        fits = (seen - own) % m == remainder
        return np.where(fits, 0.0, -np.inf)
    rest = seen - own
    inside = (rest >= 0) & (rest < len(law))
    probability = np.where(inside, law[np.clip(rest, 0, len(law) - 1)], 0.0) / classes[remainder]
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(probability)
    return np.maximum(logs, -1e6)  # finite, so that two impossibilities can be compared


def _score(evidence: Floats, world: Integers, rng: np.random.Generator) -> Score:
    """Guess by the sign, and toss a coin where there is none."""
    guess = np.where(np.abs(evidence) < 1e-9, rng.integers(2, size=len(world)), evidence < 0)
    return Score(int((guess == world).sum()), len(world))
