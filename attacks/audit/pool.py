"""Pieces of work in several processes, the longest first, with word of how far they are.

Nothing heavy is imported here: a process needs what its work needs.
"""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from typing import Any

from silomix.models import LOGGER


@dataclass(frozen=True)
class Job:
    """One piece of work, and about how long it takes compared with others."""

    name: str
    call: Callable[..., Any]
    arguments: dict[str, Any]
    weight: float


@dataclass(frozen=True)
class Done:
    """How far the work is, for whoever shows progress."""

    job: Job | None
    """The piece that was done last; None before the first."""
    done: float
    """Share of all work that is done, 0 to 1."""
    left_s: float
    """Seconds that are left, by how long it took so far; before that, by guess."""


def run_jobs(todo: list[Job], workers: int, on_done: Callable[[Done], None]) -> list[Any]:
    """Run the work, the longest first, and return the results in the order of the list."""
    total = sum(job.weight for job in todo) or 1.0
    results: list[Any] = [None] * len(todo)
    so_far, began = 0.0, time.monotonic()
    on_done(Done(None, 0.0, total / max(1, workers)))
    for i, result in _results(todo, workers):
        results[i] = result
        so_far += todo[i].weight
        rate = (time.monotonic() - began) / max(so_far, 1e-9)
        on_done(Done(todo[i], so_far / total, rate * (total - so_far)))
    return results


def _results(todo: list[Job], workers: int) -> Iterator[tuple[int, Any]]:
    order = sorted(range(len(todo)), key=lambda i: -todo[i].weight)
    if workers <= 1:
        for i in order:
            yield i, todo[i].call(**todo[i].arguments)
        return
    # Spawned, not forked: a fork of a process that has used torch may hang.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_worker)
    try:
        waiting: dict[Future[Any], int] = {pool.submit(todo[i].call, **todo[i].arguments): i for i in order}
        while waiting:
            ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                yield waiting.pop(future), future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in active_children():  # what is under way may take a minute: whoever interrupts does not wait for it
            child.terminate()
            child.join(5)
        raise
    finally:
        pool.shutdown()


def _worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    logging.getLogger(LOGGER).setLevel(logging.ERROR)  # what tasks say of their models, the parent has said
