"""Which hops are there: asked all the time, in every phase, so that one that is lost is named within seconds.

A hop that does not answer may be starting again, so nothing is decided yet. When it has been silent for longer than
that takes, the machine hears that it is gone, and goes on without it if the policy has hops to spare.
"""

import asyncio
from collections.abc import Awaitable, Callable

from silomix.runtime.core.chain import ChainRule

EVERY_S = 2.0
"""Time between two questions to a hop."""
BACK_S = 0.5
"""The same while it does not answer: it may be back any moment."""
ANSWER_S = 2.0
"""Time that it has to answer."""
SILENT_S = 4.0
"""It is said that a hop does not answer when it has not for so long."""
GONE_S = 20.0
"""It counts as lost when it has not answered for so long: longer than a process takes to start again."""


MOST_PROBATION_S = 600.0
FORGIVEN_S = 3600.0
"""When a hop has answered for so long, earlier losses count no more."""


class Probation:
    """Which hops are back for good: one that is lost time and again would cost a round each time.

    After its first loss a hop is taken in as soon as it answers; after each further one it has to answer for longer.
    """

    def __init__(self) -> None:
        """Nobody was lost yet."""
        self._losses: dict[str, int] = {}
        self._answers: dict[str, float] = {}
        """By hop: since when it has answered every question."""

    def silent(self, hop: str) -> None:
        """Hear that a hop does not answer."""
        self._answers.pop(hop, None)

    def lost(self, hop: str) -> None:
        """Hear that rounds go on without a hop."""
        self._losses[hop] = self._losses.get(hop, 0) + 1

    def due_s(self, hop: str) -> float:
        """Seconds for which a hop has to answer before a chain passes it again."""
        again = self._losses.get(hop, 0) - 1
        return min(MOST_PROBATION_S, GONE_S * 2 ** min(again - 1, 10)) if again > 0 else 0.0

    def over(self, hop: str, now: float) -> bool:
        """Hear that a hop answers, and say whether it is back."""
        answers = now - self._answers.setdefault(hop, now)
        if answers >= FORGIVEN_S:
            self._losses.pop(hop, None)
        return answers >= self.due_s(hop)


def meaning(rule: ChainRule, gone: int) -> str:
    """What it means for rounds and for privacy that so many hops do not answer."""
    if gone > rule.lost:
        spare = "none may" if rule.lost == 0 else f"{rule.lost} may"
        return (
            f"rounds wait until it answers: a chain needs {rule.minimum} of {rule.pool} hops, and {spare} be missing; "
            "nothing is released meanwhile"
        )
    left = rule.pool - gone
    return (
        f"rounds go on over {left} of {rule.pool} hops: an update stays hidden as long as one of these is honest, "
        f"one sum per model holds against {rule.colluding} that collude, as agreed; "
        f"{rule.lost - gone} more may be missing"
    )


class RollCall:
    """Asks every hop of the pool, again and again."""

    def __init__(
        self,
        ask: Callable[[str, float], Awaitable[str]],
        heard: Callable[[str, str, float], Awaitable[None]],
    ) -> None:
        """`ask` returns what is wrong with a hop; `heard` is told of it, with how long it has been so."""
        self._ask, self._heard = ask, heard

    async def watch(self, hop: str) -> None:
        """Ask one hop, by a clock that no pause stops."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            why = await self._ask(hop, ANSWER_S)
            since = since if why else loop.time()
            await self._heard(hop, why, loop.time() - since)
            await asyncio.sleep(BACK_S if why else EVERY_S)
