"""How long nodes take to get over a fault: until they are up, until they take part again, until a round is over.

A process is up when it says so in its log. A silo takes part when the aggregator counts it as present. The aggregator
does when an attempt is open, and a hop when one is open that it has not lost, or when a round is over. What comes after
that, training above all, is the round's own time.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from silomix.runtime.local import LocalFederation
from silomix.v1 import services_pb2

UP = (b"serving", b"waiting for announcements")
"""What a process logs when it is up: a server, or a silo."""
LOOK_S = 0.02
BEFORE_OPEN = ("hearing", "loading", "preparing", "opening", "paused", "")
"""Phases of the aggregator in which no attempt is open."""


@dataclass(frozen=True)
class Before:
    """What the federation said of itself when a fault began."""

    rounds: int = 0
    attempt: tuple[int, int] = (0, 0)
    phase: str = ""

    @classmethod
    def of(cls, status: services_pb2.GetStatusResponse | None) -> "Before":
        """What a status says; nothing if nobody answered."""
        if status is None:
            return cls()
        return cls(len(status.history), (status.round, status.attempt), status.phase)


def takes_part(status: services_pb2.GetStatusResponse, name: str, role: str, before: Before) -> bool:
    """Whether a node takes part again, by what the aggregator says."""
    if role == "silo":
        return name in status.present
    if len(status.history) > before.rounds:
        return True
    if status.phase in BEFORE_OPEN:
        return False
    if role == "aggregator":
        return True
    opened_since = (status.round, status.attempt) != before.attempt or before.phase in BEFORE_OPEN
    return opened_since and any(hop.name == name and hop.state == "open" for hop in status.hops)


class Log:
    """The log of one node, from now on."""

    def __init__(self, path: Path) -> None:
        """Pass over what is there already."""
        self._path, self._start = path, path.stat().st_size if path.exists() else 0

    async def up(self) -> float:
        """Wait until the process says that it is up, and return when that was."""
        while True:
            with open(self._path, "rb") as file:  # noqa: ASYNC230 - a few lines
                file.seek(self._start)
                said = file.read()
            if any(word in said for word in UP):
                return time.monotonic()
            await asyncio.sleep(LOOK_S)


@dataclass
class Times:
    """What was measured, in seconds."""

    startup: dict[str, list[float]] = field(default_factory=dict)
    """By role."""
    recovery: dict[str, list[float]] = field(default_factory=dict)
    """By role and fault: from when the fault was over, or the process started again, until the node took part."""
    beyond: dict[str, list[float]] = field(default_factory=dict)
    """By role: the same without the start-up, of processes that were started again."""
    next_round: dict[str, list[float]] = field(default_factory=dict)
    """By role and fault: from the same time until the next round was over."""

    async def measure(
        self, running: LocalFederation, name: str, role: str, kind: str, log: Log | None, before: Before
    ) -> None:
        """Measure from now on; with the log of a process that was started just now, also its start-up."""
        since = ready = time.monotonic()
        if log is not None:
            ready = await log.up()
            self.startup.setdefault(role, []).append(ready - since)
        while (status := await running.status()) is None or not takes_part(status, name, role, before):  # noqa: ASYNC110 - in another process
            await asyncio.sleep(LOOK_S)
        now = time.monotonic()
        self.recovery.setdefault(f"{role} {kind}", []).append(now - since)
        if log is not None:
            self.beyond.setdefault(role, []).append(max(0.0, now - ready))

    def medians(self, of: Callable[["Times"], dict[str, list[float]]]) -> dict[str, float]:
        """The medians of one of these."""
        return {what: round(median(took), 2) for what, took in sorted(of(self).items())}
