"""A network, clocks and disks that fail as a schedule says: nothing sleeps, and one seed is one run.

A message may be lost, doubled, held back, overtaken, cut short, or come again long after; a node may be killed before
any effect and any write, and come back with an older disk or a damaged one. When the schedule's faults are used up,
everything is mended, and the federation has to go on.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, Protocol

LATENCY_S = (0.01, 0.2)
HELD_BACK_S = (1.0, 90.0)
AWAY_S = (0.5, 150.0)
"""How long a node is away that was killed."""
FULL_S = (1.0, 60.0)
JUMP_S = (-3600.0, 3600.0)
OVER_S = 600.0
"""When faults end at the latest."""
PAST = 16
"""Messages of each kind that may come again."""

KINDS = {
    "drop": 0.04,
    "duplicate": 0.04,
    "delay": 0.04,
    "cut": 0.05,
    "replay": 0.05,
    "crash": 0.03,
    "disk_full": 0.03,
    "damage": 0.8,
    "restore": 0.35,
    "empty": 0.3,
    "lose": 0.3,
    "clock_jump": 0.01,
}
"""The faults of a schedule, and how likely each is at a place where it can happen."""


class Killed(Exception):  # noqa: N818 - what it is
    """The node that was to go on is no more."""


class Violation(AssertionError):  # noqa: N818 - what it is
    """A promise was broken: which, and how."""


class Process(Protocol):
    """What a world needs to know of a node."""

    name: str
    life: int
    up: bool
    core: Any

    def handle(self, sender: str, request: object, reply: "Reply") -> None:
        """Take a message in."""

    def die(self) -> None:
        """Lose everything but the disk."""

    def wake(self) -> None:
        """Start again from the disk."""


Reply = Callable[[object], None]


@dataclass
class Rates:
    """Which faults a schedule has, how likely, and how many in all."""

    rates: dict[str, float]
    budget: int

    @classmethod
    def draw(cls, random: Random) -> "Rates":
        """Draw few kinds of faults or many, rare or dense: a schedule with all of them hides what one alone does."""
        kinds = [kind for kind in KINDS if random.random() < random.choice((0.2, 0.5, 0.8))]
        dense = random.choice((0.5, 1.0, 2.0))
        return cls({kind: min(0.9, KINDS[kind] * dense) for kind in kinds}, random.randint(1, 16))


class World:
    """Time, the network and fate."""

    def __init__(self, random: Random, rates: Rates) -> None:
        """Begin at time 0 with nobody there."""
        self.random, self.rates = random, rates
        self.now = 0.0
        self.nodes: dict[str, Process] = {}
        self.counts: Counter[str] = Counter()
        self.over = False
        """Whether faults have ended."""
        self.ended_at = 0.0
        self.on_end: Callable[[], None] = lambda: None
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._past: dict[str, list[tuple[str, str, object]]] = {}
        self._last: dict[tuple[str, str], int] = {}

    # Fate

    def strikes(self, kind: str) -> bool:
        """Decide whether a fault happens here and now."""
        rate = self.rates.rates.get(kind, 0.0)
        if self.over or not rate or self.random.random() >= rate:
            return False
        self.counts[kind] += 1
        self.rates.budget -= 1
        if self.rates.budget <= 0:
            self._end()
        return True

    def _end(self) -> None:
        self.over = True
        self.after(0.0, self._mended)

    def _mended(self) -> None:
        self.ended_at = self.now
        self.on_end()

    def between(self, limits: tuple[float, float]) -> float:
        """Draw a time."""
        return self.random.uniform(*limits)

    # Time

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), action))

    def next(self) -> bool:
        """Do what is due next; say whether there was something."""
        if not self._due:
            return False
        time, _, action = heapq.heappop(self._due)
        self.now = max(self.now, time)
        if not self.over and self.now > OVER_S:
            self._end()
        action()
        return True

    # The network

    def send(self, sender: str, target: str, request: object, reply: Reply) -> None:
        """Send a request; the answer comes back the same way, if it does."""
        past = self._past.setdefault(_kind(request), [])
        past.append((sender, target, request))
        del past[:-PAST]
        self._post(sender, target, lambda: self._arrive(sender, target, request, reply))
        if self.strikes("replay"):
            old_sender, old_target, old = self.random.choice(self._past[self.random.choice([*self._past])])
            again = lambda: self._arrive(old_sender, old_target, old, lambda _: None)  # noqa: E731
            self.after(self.between(HELD_BACK_S), again)

    def _arrive(self, sender: str, target: str, request: object, reply: Reply) -> None:
        node = self.nodes[target]
        if node.up:
            node.handle(sender, request, lambda answer: self._post(target, sender, lambda: reply(answer)))

    def _post(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        if self.strikes("drop"):
            return
        number, pair = next(self._numbers), (source, target)

        def arrive() -> None:
            if self._last.get(pair, -1) > number:
                self.counts["reorder"] += 1
            self._last[pair] = max(number, self._last.get(pair, -1))
            deliver()

        delay = self.between(LATENCY_S) + (self.between(HELD_BACK_S) if self.strikes("delay") else 0.0)
        self.after(delay, arrive)
        if self.strikes("duplicate"):
            self.after(delay + self.between(LATENCY_S), arrive)


def _kind(request: object) -> str:
    return type(getattr(request, "event", request)).__name__
