"""Holding a federation between rounds: a file in the aggregator's state says so, until somebody takes it away.

Nothing is asked of anybody while it is there. The attempt that would begin has begun for the aggregator alone, whose
clock stands still meanwhile: no deadline passes, and the round loses nothing. An aggregator that is started again finds
the file, and holds on.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

LOOK_S = 0.5
"""Pause between two looks at the file."""


class Pause:
    """The aggregator's clock, and what may stop it."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """The clock runs, whether or not the file is there: it stops where somebody waits for the end of the pause."""
        self._file, self._clock = file, clock
        self._lost = 0.0
        self._stopped_at: float | None = None

    @property
    def on(self) -> bool:
        """Whether somebody waits for the end of a pause now."""
        return self._stopped_at is not None

    def now(self) -> float:
        """The time, without that of all pauses."""
        return (self._clock() if self._stopped_at is None else self._stopped_at) - self._lost

    async def over(self, told: Callable[[bool], None]) -> None:
        """Return at once if nobody wants a pause, else when it is over; say so at its beginning and at its end."""
        if not self._file.exists():
            return
        self._stopped_at = self._clock()
        told(True)
        try:
            while self._file.exists():  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(LOOK_S)
        finally:
            self._lost += self._clock() - self._stopped_at
            self._stopped_at = None
        told(False)
