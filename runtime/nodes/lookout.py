"""Looking after a hop that somebody says is gone.

A broker's word is a hint. What counts is what the hop itself says over gRPC: whether it still has the attempt open. Only
if it does not, or does not answer, is the attempt given up, seconds after the hint and not at its deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from silomix.runtime.core import aggregator as core
from silomix.runtime.events import Heard

if TYPE_CHECKING:
    from silomix.runtime.nodes.aggregator import AggregatorNode

PROBE_S = 4.0
"""Time that a hop has to say that it is there: enough to dial it again, and to wait for a slow line."""
PROBE_EVERY_S = 5.0
"""Whoever floods the broker makes the aggregator ask a hop this often, and no more often."""
GONE = ("lost", "stopped")

Probe = Callable[[str, bytes, float], Awaitable[str]]


class Lookout:
    """Asks the hops of the open attempt after hints, one question at a time to each."""

    def __init__(self, node: "AggregatorNode", probe: Probe) -> None:
        """`probe` asks a hop whether it has an attempt open, and returns what is wrong."""
        self._node, self._probe = node, probe
        self._boots: dict[str, str] = {}
        self._asking: dict[str, bool] = {}  # whether another hint has come meanwhile

    def hint(self, heard: Heard) -> None:
        """Take in what a broker says of a node."""
        known = self._boots.get(heard.node)
        self._boots[heard.node] = heard.boot
        started_again = heard.event == "online" and known not in (None, heard.boot)
        manifest = self._node.core.manifest
        if manifest is None or heard.node not in manifest.chain:
            return
        if heard.event not in GONE and not started_again:
            return
        if heard.node in self._asking:
            self._asking[heard.node] = True
            return
        self._asking[heard.node] = False
        self._node.spawn(self._ask(heard.node))

    async def _ask(self, hop: str) -> None:
        while True:
            self._asking[hop] = False
            manifest = self._node.core.manifest
            if manifest is not None and hop in manifest.chain and self._node.core.phase in ("collecting", "releasing"):
                trouble = await self._probe(hop, manifest.digest, PROBE_S)
                if trouble:
                    self._node.lost(hop, trouble)
                    await self._node.step(core.HopLost(hop, manifest.digest, trouble, self._node.clock()))
            await asyncio.sleep(PROBE_EVERY_S)
            if not self._asking[hop]:
                del self._asking[hop]
                return
