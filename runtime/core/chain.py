"""The rule of the chain, and the two numbers that follow from it.

The pool is ordered in the federation file. A chain is a part of it in that order, with at least `minimum` hops. Two
chains share at least 2 * minimum - pool hops; as long as one of these is honest, it sees both and releases for one
cohort only. So fewer colluding hops than that can be borne, and the hops beyond the minimum can be lost.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ChainRule:
    """How many hops the pool has, and how many of them a chain has at least."""

    pool: int
    minimum: int

    @property
    def colluding(self) -> int:
        """Hops that may collude with the aggregator: there is still one sum per model, and no silo's update is read."""
        return 2 * self.minimum - self.pool - 1

    @property
    def lost(self) -> int:
        """Hops that may be lost for good: the others can still form a chain."""
        return self.pool - self.minimum

    @property
    def least(self) -> int:
        """The shortest chain that may be agreed on: any two share two hops, or there is only one, the whole pool."""
        return min(self.pool, (self.pool + 1) // 2 + 1)

    @property
    def problem(self) -> str:
        """What is wrong with the numbers, or nothing."""
        if not 1 <= self.minimum <= self.pool:
            return f"a chain of at least {self.minimum} hops, from a pool of {self.pool}"
        if self.minimum < self.pool and self.colluding < 1:
            return (
                f"two chains of {self.minimum} hops from a pool of {self.pool} need not share an honest hop; "
                f"a chain needs at least {self.least} of them"
            )
        return ""

    def sentence(self) -> str:
        """Both numbers, for a person."""
        without = f"can be formed without {self.lost}" if self.lost else f"needs all {self.pool}"
        return f"holds against {self.colluding} that collude with the aggregator, and {without}"
