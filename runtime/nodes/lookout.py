"""Looking after hops that may be gone.

A broker's word is a hint. What counts is what the hop itself says over gRPC: whether it still has the attempt open.
Only if it does not, or does not answer, is the attempt given up, seconds after the hint and not at its deadline.

Without a broker every hop is asked now and then. One that was started again says so, as does one that gave the attempt
up, and it is given up. One that does not answer may be back before the deadline, and is waited for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from silomix.runtime.core.protocol.aggregator import Phase
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.net.health import GAVE_UP, NOT_OPEN
from silomix.runtime.observe.events import Heard

PROBE_S = 4.0
"""Time that a hop has to say that it is there: enough to dial it again, and to wait for a slow line."""
PROBE_EVERY_S = 5.0
"""Whoever floods the broker makes the aggregator ask a hop this often, and no more often."""
WATCH_S = 1.0
"""Time between two such rounds: an attempt that a hop has lost costs about so much."""
GONE = ("lost", "stopped")


class Machine(Protocol):
    """What it needs to know of the aggregator's state machine."""

    manifest: Manifest | None

    @property
    def phase(self) -> Phase:
        """Where the attempt is."""
        ...

    @property
    def chain(self) -> tuple[str, ...]:
        """The hops that rounds need."""
        ...


class Lookout:
    """Asks the hops of the open attempt after hints, one question at a time to each."""

    def __init__(
        self,
        machine: Machine,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        probe: Callable[[str, bytes, float], Awaitable[str]],
        lost: Callable[[str, bytes, str], Awaitable[None]],
    ) -> None:
        """Ask with `probe`, which returns what is wrong with a hop's attempt, and tell `lost` of it."""
        self._machine, self._spawn, self._probe, self._lost = machine, spawn, probe, lost
        self._boots: dict[str, str] = {}
        self._asking: dict[str, bool] = {}  # by hop: whether another hint has come meanwhile

    def hint(self, heard: Heard) -> None:
        """Take in what a broker says of a node."""
        known = self._boots.get(heard.node)
        self._boots[heard.node] = heard.boot
        started_again = heard.event == "online" and known not in (None, heard.boot)
        if heard.node not in self._machine.chain or not (heard.event in GONE or started_again):
            return
        if heard.node in self._asking:
            self._asking[heard.node] = True
        else:
            self._asking[heard.node] = False
            self._spawn(self._ask(heard.node))

    async def watch(self) -> None:
        """Ask all hops of the open attempt, again and again."""
        while True:
            await asyncio.sleep(WATCH_S)
            await asyncio.gather(*map(self._look, self._machine.chain))

    async def _look(self, hop: str) -> None:
        manifest, trouble = await self._trouble(hop)
        if trouble in (NOT_OPEN, GAVE_UP):
            await self._lost(hop, manifest, trouble)

    async def _ask(self, hop: str) -> None:
        again = True
        while again:
            self._asking[hop] = False
            manifest, trouble = await self._trouble(hop)
            if trouble:
                await self._lost(hop, manifest, trouble)
            await asyncio.sleep(PROBE_EVERY_S)
            again = self._asking[hop]
        del self._asking[hop]

    async def _trouble(self, hop: str) -> tuple[bytes, str]:
        """Ask a hop about the open attempt, if there is one; return which it is, and what is wrong."""
        manifest = self._machine.manifest
        if manifest is None or self._machine.phase not in (Phase.COLLECTING, Phase.RELEASING):
            return b"", ""
        return manifest.digest, await self._probe(hop, manifest.digest, PROBE_S)
