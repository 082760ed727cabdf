"""Schedules by the thousand, on all cores."""

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from silomix.runtime.faults.mutants import MUTANTS, NONE
from silomix.runtime.faults.schedule import Result, Run, remembered_signatures

LOT = 25
"""Schedules that a process runs at a time."""
SHOWN = 20
"""Violations that a report has in full."""


@dataclass
class Report:
    """What became of a campaign."""

    seed: int
    mutant: str = ""
    schedules: int = 0
    violations: int = 0
    failed: list[dict[str, object]] = field(default_factory=list)
    """The first schedules that broke a promise, each with its number."""
    faults_by_kind: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)
    """Schedules that ended before their last round, as they should, and why."""
    applied: int = 0
    abandoned: int = 0
    attempts: int = 0
    steps: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def take(self, result: Result) -> None:
        """Add one schedule."""
        self.schedules += 1
        if result.violation:
            self.violations += 1
            if len(self.failed) < SHOWN:
                self.failed.append({"schedule": result.schedule, "violation": result.violation})
        if result.stopped:
            self.stopped[result.stopped] += 1
        self.faults_by_kind.update(result.faults)
        self.refusals.update(result.refusals)
        self.applied += result.applied
        self.abandoned += result.abandoned
        self.attempts += result.attempts
        self.steps += result.steps


def run_lot(seed: int, schedules: Sequence[int], mutant: str) -> list[Result]:
    """Run some schedules one after the other."""
    with remembered_signatures():
        return [Run(seed, number, MUTANTS.get(mutant, NONE)).run() for number in schedules]


def campaign(
    seed: int,
    schedules: int,
    mutant: str = "",
    workers: int = 0,
    until_caught: bool = False,
    told: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Run so many schedules; `until_caught` ends with the first that broke a promise."""
    report, started = Report(seed, mutant), time.monotonic()
    for result in _results(seed, schedules, mutant, workers or os.cpu_count() or 1):
        report.take(result)
        report.seconds = round(time.monotonic() - started, 2)
        told(report)
        if until_caught and report.violations:
            break
    return report


def _results(seed: int, schedules: int, mutant: str, workers: int) -> Iterator[Result]:
    lots = [range(start, min(start + LOT, schedules)) for start in range(0, schedules, LOT)]
    if workers == 1 or len(lots) == 1:
        for lot in lots:
            for number in lot:
                yield from run_lot(seed, (number,), mutant)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(run_lot, seed, lot, mutant) for lot in lots]
        try:
            for done in waiting:
                yield from done.result()
        finally:
            for late in waiting:
                late.cancel()
