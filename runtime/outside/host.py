"""A node on an event loop in a thread of its own, so that a program without one can have it."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from silomix.runtime.nodes.node import Node

STOP_S = 30.0
"""Time that a node has to end when it is told to."""

N = TypeVar("N", bound=Node)


def first_of(error: BaseException) -> BaseException:
    """Return the error that a node ended with: its tasks raise groups of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Hosted(Generic[N]):
    """Runs one node from `start` to `stop`."""

    def __init__(self, make: Callable[[], N]) -> None:
        """`make` makes the node, in the thread that it is to run in."""
        self._make = make
        self._made: Future[N] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="silomix-outside", daemon=True)

    def start(self) -> N:
        """Start the node, and return it; what keeps it from starting is raised."""
        self._thread.start()
        return self._made.result()

    def stop(self) -> None:
        """Stop the node, and wait until it has let go of its files."""
        if self._loop is not None and not self._loop.is_closed():
            self.soon(self._made.result().stopping.set)
        self._thread.join(STOP_S)

    def soon(self, call: Callable[[], object]) -> None:
        """Have something done on the node's loop; nothing if the node has ended."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # closed
            return

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if not self._made.done():
                self._made.set_exception(error)  # or whoever drives the node has heard of it

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        node = self._make()
        self._made.set_result(node)
        await node.run()
