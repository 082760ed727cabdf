"""A whole federation in this process, driven from outside: for tests, notebooks and simulations."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_node
from silomix.runtime.local import InProcess
from silomix.runtime.nodes.node import Node
from silomix.runtime.outside.aggregator import Aggregator, Gate, OutsideAggregator
from silomix.runtime.outside.silo import OutsideSilo, Silo, open_silo


class _Inside(InProcess):
    """The same nodes as everywhere, but that silos and the aggregator are driven from outside."""

    def __init__(self, directory: Path, without: tuple[str, ...], log: Path | str | None) -> None:
        super().__init__(directory, without=without, log=log)
        self.gate = Gate()

    def start(self, name: str) -> Node:
        """Start one node, or start it again."""
        config = load_node(self.directory / name)
        node: Node
        if config.role is Role.SILO:
            inbox, _ = open_silo(config)
            node = OutsideSilo(config, inbox)
        elif config.role is Role.AGGREGATOR:
            node = OutsideAggregator(config, self.gate)
        else:
            return super().start(name)
        self.nodes[name] = node
        self.tasks[name] = asyncio.create_task(node.run(), name=name)
        return node


class Together:
    """All nodes of a federation in this process: it protects nobody from this process, and is otherwise the real thing.

    >>> from silomix.runtime import outside
    >>> _ = outside.create("counts", silos=3, shufflers=2, values=2)
    >>> with outside.Together("counts", log="counts/log.txt") as federation:
    ...     for silo, vector in zip(federation.silos, ([0.1, 0.9], [0.2, 0.9], [0.3, 0.0])):
    ...         federation.later(silo.submit, vector, 1)
    ...     total = federation.aggregator.result(1).total
    >>> total.round(3).tolist()
    [0.6, 1.8]
    """

    def __init__(self, directory: Path | str, *, without: tuple[str, ...] = (), log: Path | str | None = None) -> None:
        """Take a directory that `outside.create` wrote.

        without  nodes to leave out
        log      the file that all nodes write their logs to, in place of standard error
        """
        self._inside = _Inside(Path(directory), without, log)
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="silomix-together", daemon=True)
        self._later: list[threading.Thread] = []

    def __enter__(self) -> "Together":
        self._thread.start()
        self._loop = self._ready.result()
        nodes = self._inside.nodes
        self.silos = [Silo.at(node) for node in nodes.values() if isinstance(node, OutsideSilo)]
        """What drives the silos, in the order of the federation file."""
        of = self._inside.federation.aggregator.name
        if of in nodes:
            node = nodes[of]
            assert isinstance(node, OutsideAggregator)
            self.aggregator = Aggregator.at(self._inside.directory / of, node, self._soon)
            """What drives the aggregator."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._soon(self._stop.set)
        self._thread.join()
        for thread in self._later:
            thread.join()

    def later(self, call: Callable[..., object], *arguments: Any, **options: Any) -> None:
        """Call something in a thread of its own, such as `submit`, which waits for the round to open."""
        thread = threading.Thread(target=call, args=arguments, kwargs=options, daemon=True)
        thread.start()
        self._later.append(thread)

    def _soon(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # it is over
            return

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)  # or whoever drives the nodes has heard of it

    async def _main(self) -> None:
        async with self._inside:
            self._ready.set_result(asyncio.get_running_loop())
            await self._stop.wait()
