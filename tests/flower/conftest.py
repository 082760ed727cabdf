"""Load Flower once, without a word about what its own packages find deprecated: our tests take warnings for errors."""

import contextlib
import warnings

with warnings.catch_warnings(), contextlib.suppress(ModuleNotFoundError):
    warnings.simplefilter("ignore")
    import flwr.clientapp
    import flwr.serverapp
    import flwr.simulation  # noqa: F401
