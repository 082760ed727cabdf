"""Flower apps with a protected mean: a mod for the client, a Grid for the server. docs/flower.md has the diff.

app = ClientApp(mods=[protect("fed")])                      clients hand their arrays to the silo beside them
strategy.start(grid=Protected(grid, "fed", strategy), ...)  the server gets one reply, with their weighted mean
"""

from silomix.runtime.core.errors import UserError

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as error:
    raise UserError("Flower is not installed: pip install 'silomix[flower]'") from error

from silomix.runtime.flower.arrays import values_in
from silomix.runtime.flower.client import protect
from silomix.runtime.flower.server import Protected

__all__ = ["Protected", "protect", "values_in"]
