"""How long hop 1 waits for silos, by the times that they took in past rounds.

Without this a silo that is away costs every round its whole deadline. With it, hop 1 closes a cohort once nobody else
is likely to come. It learns that from what it saw itself, by its own clock: no other node has a say in it.
"""

from dataclasses import dataclass, replace
from math import ceil, inf

ROUNDS = 20
"""Past rounds that count."""
LEAST = 3
"""Rounds that must be known before a cohort closes early."""
SLACK = 1.5
"""What a round is waited for, as a multiple of the time that past ones took."""


@dataclass(frozen=True)
class Pace:
    """The times of past rounds, from opening an attempt to a silo's body being in the sum."""

    share: float
    """This share of the silos of past rounds came within the time that is waited for; 0 waits for the deadline."""
    rounds: tuple[tuple[float, ...], ...] = ()
    """The newest last."""

    def after(self, times: tuple[float, ...], invited: int) -> "Pace":
        """What is known when one more cohort has closed.

        Who did not come counts as having taken for ever. If only those who came counted, each round would wait for
        fewer of them than the one before.
        """
        last = (*times, *[inf] * (invited - len(times)))
        return replace(self, rounds=(*self.rounds, last)[-ROUNDS:])

    @property
    def patience_s(self) -> float:
        """Seconds after which a cohort may close; infinite as long as too little is known."""
        if not self.share or len(self.rounds) < LEAST:
            return inf
        times = sorted(time for times in self.rounds for time in times)
        return SLACK * times[max(0, ceil(round(self.share * len(times), 6)) - 1)]
