"""Which global models an aggregator keeps: a model of every round would fill any disk.

The newest ones stay, as many as the configuration says; the best, if models are measured; and those that the round log
needs: the newest, from which the next round begins, and the one before, from which bounds follow. Whoever checks one of
the sums that are still kept finds the models before and after it, since no fewer may be kept than there are sums.
"""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from silomix.runtime.core.protocol.roundlog import Outcome, RoundLog
from silomix.runtime.store.home import State
from silomix.v1 import services_pb2


def best_round(history: Sequence[services_pb2.RoundStatus]) -> int:
    """Return the round with the best score, the first of several; 0 if nothing was measured."""
    measured = [done for done in history if done.cohort and done.HasField("score") and isfinite(done.score)]
    return max(measured, key=lambda done: done.score).round if measured else 0


def needed(log: RoundLog, best: int, keep: int) -> set[bytes]:
    """Return the digests of the models that stay; `keep` is at least 1."""
    applied = [record for record in log.records if record.outcome is Outcome.APPLIED]
    kept = applied[-keep:] + [record for record in applied if record.round == best]
    return {record.model_after for record in kept} | {log.model, log.before}


def collect(state: State, log: RoundLog, history: Sequence[services_pb2.RoundStatus], keep: int) -> list[Path]:
    """Delete the models that are needed no more, and return their paths. With `keep` 0 all stay.

    Only models on record are deleted: one that was just written may not be there yet.
    """
    if not keep:
        return []
    stay = {state.model(digest) for digest in needed(log, best_round(history), keep)}
    old = {state.model(record.model_after) for record in log.records} - stay
    gone = sorted(path for path in old if path.exists())
    for path in gone:
        path.unlink(missing_ok=True)
    return gone
