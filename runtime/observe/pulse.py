"""Whether a node is alive and ready, told over plain HTTP beside its metrics: a probe costs no process of its own.

The endpoint has a thread of its own, which would answer for a node that hangs. So the event loop beats, and a node
whose last beat is long ago is not alive. Ready is a server that takes calls; `silomix health` asks that server itself.
"""

import asyncio
import time
from collections.abc import Callable

from silomix.runtime.net.names import ALIVE_PATH, READY_PATH

EVERY_S = 1.0
SILENCE_S = 60.0
"""Time without a beat after which a node counts as hanging. No work of ours keeps the event loop for seconds."""


class Pulse:
    """One node's beat. It is written by the event loop, and read by the thread that serves the metrics."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """A node that has only been made is not alive yet."""
        self._clock = clock
        self._last: float | None = None
        self.serving = False
        """Whether the node takes calls; set by those who do."""

    def beat(self) -> None:
        """Tell that the event loop turns."""
        self._last = self._clock()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(EVERY_S)

    @property
    def alive(self) -> bool:
        """Whether the event loop turns."""
        return self._last is not None and self._clock() - self._last < SILENCE_S

    def answer(self, path: str) -> bool | None:
        """Answer a probe by its path; nothing if it is no probe's."""
        if path == ALIVE_PATH:
            return self.alive
        if path == READY_PATH:
            return self.alive and self.serving
        return None
