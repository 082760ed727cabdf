"""Which of Flower's strategies do with the mean of all replies, and why the others cannot."""

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from silomix.runtime.core.errors import UserError

MEAN_BASED = ("FedAvg", "FedProx", "FedAvgM", "FedOpt", "FedAdam", "FedAdagrad", "FedYogi")
"""Strategies whose `aggregate_train` makes nothing of the replies but their weighted mean."""
_RANKS = "compares the clients' updates with each other"
_CLIPS = "clips each client's update at the server"
REFUSED = {
    "FedMedian": "takes the median of the clients' updates, value by value",
    "FedTrimmedAvg": "leaves out the clients' largest and smallest values",
    "Krum": _RANKS,
    "MultiKrum": _RANKS,
    "Bulyan": _RANKS,
    "QFedAvg": "weighs each client by its own loss",
    "FedXgbBagging": "collects the clients' trees, which have no mean",
    "FedXgbCyclic": "passes one client's trees on to the next",
    "DifferentialPrivacyServerSideFixedClipping": _CLIPS,
    "DifferentialPrivacyServerSideAdaptiveClipping": _CLIPS,
    "DifferentialPrivacyClientSideAdaptiveClipping": "counts at the server whose updates were clipped",
}
"""Strategies that need single updates, each with what it does with them."""


def check_strategy(strategy: Strategy, *, mean_based: bool = False) -> None:
    """Refuse a strategy that needs more than the mean: with one reply it would run, and do something else."""
    while True:
        for kind in type(strategy).__mro__:
            if kind.__name__ in REFUSED and kind is getattr(flower, kind.__name__, None):
                raise UserError(
                    f"{type(strategy).__name__} {REFUSED[kind.__name__]}, and silomix hides these: only their weighted "
                    f"mean leaves the chain. Use one of {', '.join(MEAN_BASED)}"
                )
        known = {getattr(flower, name).aggregate_train for name in MEAN_BASED if hasattr(flower, name)}
        if type(strategy).aggregate_train not in known and not mean_based:
            raise UserError(
                f"{type(strategy).__name__} has an aggregate_train of its own, which will get one reply with the "
                "weighted mean of all: if that is what it makes of many, say so with Protected(mean_based=True)"
            )
        inner = getattr(strategy, "strategy", None)
        if not isinstance(inner, Strategy):
            return
        strategy = inner  # one that wraps another
