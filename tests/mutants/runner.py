"""Mutants and the tests that should notice them, so many at once."""

import selectors
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.mutants.reach import Test
from tests.mutants.source import Mutant
from tests.mutants.trial import Overlay, Trial, Verdict

PATIENCE_S = 20.0
"""Time that any test may take, however fast it is without a mutant."""
SLOW_S = 0.2
"""A test that takes longer may wait for something, and fail for want of time: it has to notice a mutant twice."""
Chosen = list[tuple[str, Test]]


@dataclass
class Case:
    """A mutant on its way through the stages of its tests."""

    mutant: Mutant
    source: bytes
    name: str
    """Under which its module is imported."""
    path: Path
    stages: list[Chosen]
    began: float = 0.0
    _stage: Chosen = field(default_factory=list)
    _suspects: set[str] = field(default_factory=set)

    def trial(self) -> Trial | None:
        """Begin the next stage; None if there is none left."""
        while self.stages:
            self._stage = self.stages.pop(0)
            if self._stage:
                self.began = self.began or time.monotonic()
                overlay = Overlay(self.name, self.path, self.mutant.of(self.source))
                limits = {nodeid: PATIENCE_S + 10 * test.seconds for nodeid, test in self._stage}
                files = sorted({test.file for _, test in self._stage})
                return Trial(partial(sys.meta_path.insert, 0, overlay), files, limits)
        return None

    def decided(self, verdict: Verdict) -> bool:
        """Whether a trial's verdict is the last word; else the next one is due, if there is any."""
        if verdict.verdict == "survived":
            return False
        for place, (nodeid, test) in enumerate(self._stage):
            if nodeid == verdict.by and test.seconds > SLOW_S and nodeid not in self._suspects:
                self._suspects.add(nodeid)
                self.stages.insert(0, self._stage[place:])
                return False
        return True


def selected(mutant: Mutant, stages: list[list[str]], tests: dict[str, Test], budget: float) -> list[Chosen]:
    """The tests that may notice a mutant, the fastest first, as far as the budget of a stage goes."""
    chosen: list[Chosen] = []
    for files in stages:
        able = [(n, t) for n, t in tests.items() if t.file in files and t.passed and t.notices(mutant)]
        able.sort(key=lambda pair: pair[1].seconds)
        spent, within = 0.0, 0
        for _, test in able:
            spent += test.seconds
            within += spent <= budget
        chosen.append(able[: max(1, within)])
    return chosen


def try_all(cases: Iterator[Case], jobs: int) -> Iterator[tuple[Case, Verdict]]:
    """Run trials, so many at once, until all cases are decided; end them all if interrupted."""
    running: dict[Trial, Case] = {}
    with selectors.DefaultSelector() as selector:

        def begin(case: Case) -> bool:
            trial = case.trial()
            if trial is not None:
                running[trial] = case
                selector.register(trial.pipe, selectors.EVENT_READ, trial)
            return trial is not None

        try:
            while True:
                while len(running) < jobs and (case := next(cases, None)) is not None:
                    if not begin(case):
                        yield case, Verdict("survived", why="no test passes here")
                if not running:
                    return
                wait = max(0.0, min(trial.deadline for trial in running) - time.monotonic())
                for key, _ in selector.select(wait):
                    key.data.read()
                for trial in [*running]:
                    if trial.verdict is None and time.monotonic() >= trial.deadline:
                        trial.overrun()
                    if trial.verdict is None:
                        continue
                    selector.unregister(trial.pipe)
                    case = running.pop(trial)
                    trial.close()
                    if case.decided(trial.verdict) or not begin(case):
                        yield case, trial.verdict
        finally:
            for trial in running:
                trial.close()
