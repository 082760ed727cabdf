"""Files that silos download: each is read or made once for all calls that are under way, and one at a time.

To read a model, or to write the server's state, takes a worker for as long as the model is large, and a small request
asks for it. So whoever asks again and again shares what is there, and never has more than one worker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from weakref import WeakValueDictionary


class Served:
    """A file in memory, which is let go of with the last call that gives it."""

    def __init__(self, data: bytes) -> None:
        """Bytes alone cannot be held weakly."""
        self.data = data


class Shelf:
    """The files that are being given now."""

    def __init__(self) -> None:
        """Nobody asks yet."""
        self._here: WeakValueDictionary[Hashable, Served] = WeakValueDictionary()
        self._turn = asyncio.Lock()

    async def take(self, what: Hashable, make: Callable[[], Awaitable[bytes]]) -> Served:
        """Return a file by its name, which is made if nobody is given it now."""
        async with self._turn:
            found = self._here.get(what)
            if found is None:
                found = self._here[what] = Served(await make())
            return found
