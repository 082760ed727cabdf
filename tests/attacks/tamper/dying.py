"""Nodes of a federation at level malicious that end themselves with SIGKILL, once, before an effect of their check."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from silomix.runtime.config.load import load_node
from silomix.runtime.local import LocalFederation, end_with_parent, make_node, run_alone
from silomix.runtime.nodes.node import Node


class Dying(LocalFederation):
    """A process for each node. Those that are listed die in a round, before their first effect of a kind in it."""

    def __init__(self, directory: Path, deaths: dict[str, tuple[int, str]]) -> None:
        """`deaths` are by node: the round, and the name of the effect."""
        super().__init__(directory)
        self.deaths = deaths

    def command(self, name: str) -> list[str]:
        """Start who is to die as what it is; once it has died, it is a node as any other."""
        if name not in self.deaths or self.died(name):
            return super().command(name)
        round_, effect = self.deaths[name]
        home, mark = str(self.directory / name), str(self.mark(name))
        return [sys.executable, "-P", "-m", "tests.attacks.tamper.dying", home, str(round_), effect, mark]

    def mark(self, name: str) -> Path:
        """The file that says that a node has died."""
        return self.directory / f"{name}.died"

    def died(self, name: str) -> bool:
        """Whether it has."""
        return self.mark(name).exists()

    async def raise_the_dead(self) -> None:
        """Start again whoever has died."""
        for name in self.deaths:
            process = self.processes[name]
            if process.returncode == -signal.SIGKILL:
                await self.start(name)


def mortal(node: Node, round_: int, effect: str, mark: Path) -> None:
    """Have a node die before it carries an effect out. What it has remembered until then is on its disk."""
    machine: Any = node
    perform = machine.perform

    async def dies(what: Any) -> Any:
        if type(what).__name__ == effect and machine.core.log.round == round_:
            mark.touch()  # noqa: ASYNC240 - these are its last words
            os.kill(os.getpid(), signal.SIGKILL)
        return await perform(what)

    machine.perform = dies


async def _run(home: str, round_: str, effect: str, mark: str) -> None:
    node = make_node(load_node(Path(home)))
    mortal(node, int(round_), effect, Path(mark))
    await run_alone(node)


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(_run(*sys.argv[1:]))
