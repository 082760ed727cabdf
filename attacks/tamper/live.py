"""A hop that changes one residue of every sum, as a real process of a federation at level malicious.

`silomix demo --level malicious --tamper shuffler-2` starts one. It signs what it does, and answers the coin truly;
drills in memory have hops that lie there too.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from silomix.runtime.config.load import load_node
from silomix.runtime.core.protocol import shuffler as core
from silomix.runtime.local import LocalFederation, end_with_parent, run_alone
from silomix.runtime.nodes.passage import SumPassage
from silomix.runtime.nodes.shuffler import ShufflerNode


class TamperingShuffler(ShufflerNode):
    """A hop that adds 1 to the first residue of what it passes on."""

    async def perform(self, effect: core.Effect) -> core.Event | None:
        """Carry a decision out, and tamper with the sum before its first byte leaves."""
        passage = self.passage
        if isinstance(effect, core.Release) and isinstance(passage, SumPassage):
            await passage.change(self._tamper)
        return await super().perform(effect)

    def _tamper(self, passage: SumPassage) -> None:
        shape = passage.layout
        residues = np.zeros((len(shape.plan.moduli), shape.length(0)), shape.buffer(0).dtype)
        residues[0, 0] = 1
        one = np.zeros(len(shape.part(passage.sum, 0)), np.uint8)
        shape.put(one, residues)
        shape.add(passage.sum, 0, shape.planes(one.data, 0))


class Tampered(LocalFederation):
    """A federation on this machine with a process for each node, one of which tampers."""

    def __init__(self, directory: Path, liar: str) -> None:
        """`liar` is the hop that tampers."""
        super().__init__(directory)
        self.liar = liar

    def command(self, name: str) -> list[str]:
        """Start the liar as what it is."""
        if name != self.liar:
            return super().command(name)
        return [sys.executable, "-P", "-m", "silomix.attacks.tamper.live", str(self.directory / name)]


def main(arguments: Sequence[str]) -> None:
    """Run the node whose directory is given."""
    end_with_parent()
    asyncio.run(_run(Path(arguments[0])))


async def _run(directory: Path) -> None:
    await run_alone(TamperingShuffler(load_node(directory)))


if __name__ == "__main__":
    main(sys.argv[1:])
