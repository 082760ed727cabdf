"""The silos of a simulation, trained in this process or in several.

A task does one thing at a time and may keep what it likes in its process, so silos are spread over processes and not
over threads. What a silo computes depends on the model, the round and its number only: how many processes there are,
and which silo goes where, does not show in the result.
"""

import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from silomix.models import LOGGER
from silomix.runtime.core.errors import Fault, RunError, UserError
from silomix.runtime.task import Option, Task, Tensors, Trained, load_task, train_task

STOP_S = 5.0
NOBODY = -1
"""The number of whoever has no records and only evaluates."""


class SimulationError(RunError):
    """A simulation cannot go on. The message says which silo, in which round, and why."""


@dataclass(frozen=True)
class Turn:
    """One silo's training in one round, and when it began and ended on the machine's clock."""

    trained: Trained
    began: float
    ended: float


@dataclass(frozen=True)
class _Load:
    """Make a silo's task."""

    silo: int


@dataclass(frozen=True)
class _Train:
    """Train a silo on a model."""

    silo: int
    round: int
    model: Tensors


@dataclass(frozen=True)
class _Score:
    """Put some of the test records through the network."""

    silo: int
    model: Tensors
    start: int
    stop: int


_Job = _Load | _Train | _Score


class Silos:
    """The silos of a federation by number. Each has its own task, made when it is first wanted.

    >>> with Silos("silomix.models.digits:task", {"silos": 3}, workers=2) as silos:
    ...     turns = silos.train((0, 1, 2), model, round=1)
    """

    def __init__(self, path: str, options: Mapping[str, Option], workers: int = 1) -> None:
        """With one worker everything happens in this process."""
        self.judge = load_task(path, options)
        """The task of nobody, for the first model and for what is not shared out."""
        self._here = _Bench(path, dict(options))
        self._took: dict[int, float] = {}
        context = get_context("spawn")  # a fork of a process that has used torch may hang
        self._workers = [_Worker(context, path, dict(options)) for _ in range(workers if workers > 1 else 0)]

    def __enter__(self) -> "Silos":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, silos: int) -> None:
        """Make the tasks of all silos, spread over the workers: what is wrong with them shows before any training."""
        self._do([_Load(silo) for silo in range(silos)])

    def train(self, cohort: Sequence[int], model: Tensors, round: int) -> list[Turn]:  # noqa: A002 - as in Task
        """Train these silos on the model, and return their turns in the order of the cohort."""
        # The longest first, so that no core waits for the last silo longer than it must.
        order = sorted(cohort, key=lambda silo: (-self._took.get(silo, inf), silo))
        turns: dict[int, Turn] = dict(zip(order, self._do([_Train(silo, round, model) for silo in order]), strict=True))
        self._took |= {silo: turn.ended - turn.began for silo, turn in turns.items()}
        return [turns[silo] for silo in cohort]

    def evaluate(self, model: Tensors) -> dict[str, float]:
        """Measure a model: a torch task's in parts, one for each worker, with the same result."""
        parts = len(self._workers)
        if not parts or not _in_parts(self.judge):
            try:
                return dict(self.judge.evaluate(model))
            except (UserError, Fault):
                raise
            except Exception as error:  # the user's own code
                raise SimulationError(f"the model cannot be evaluated: {type(error).__name__}: {error}") from error
        from torch import from_numpy

        from silomix.models.torch_task import AT_ONCE

        judge: Any = self.judge
        rows = len(judge.test[1])
        lots = -(-rows // AT_ONCE)  # the network sees the same lots as in one process, so the scores are the same bits
        cuts = [min(rows, AT_ONCE * (i * lots // parts)) for i in range(parts)] + [rows]
        jobs = [_Score(NOBODY, model, cuts[i], cuts[i + 1]) for i in range(parts) if cuts[i] < cuts[i + 1]]
        return dict(judge.judge(from_numpy(np.concatenate(self._do(jobs)))))

    def close(self) -> None:
        """End the processes, also in the middle of a turn."""
        for worker in self._workers:
            worker.end()
        self._workers = []

    def _do(self, jobs: Sequence[_Job]) -> list[Any]:
        """Have jobs done where there is room, a silo's where its task is, if possible; return what came of each."""
        if not self._workers:
            return [self._here.do(job) for job in jobs]
        answers: dict[int, Any] = {}
        waiting, idle = list(range(len(jobs))), list(self._workers)
        busy: dict[Connection, tuple[_Worker, int]] = {}
        while waiting or busy:
            while waiting and idle:
                worker = idle.pop(0)
                i = next((i for i in waiting if jobs[i].silo in worker.known), waiting[0])
                waiting.remove(i)
                worker.send(jobs[i])
                worker.known.add(jobs[i].silo)
                busy[worker.line] = worker, i
            for line in wait(list(busy)):
                assert isinstance(line, Connection)
                worker, i = busy.pop(line)
                answers[i] = worker.receive(jobs[i].silo)
                idle.append(worker)
        return [answers[i] for i in range(len(jobs))]


def _in_parts(task: Task) -> bool:
    """Tell whether a task evaluates as torch tasks do, and not in a way of its own."""
    parts = [getattr(type(task), name, None) for name in ("evaluate", "scores", "judge")]
    return all(getattr(part, "__module__", "") == "silomix.models.torch_task" for part in parts)


class _Bench:
    """The tasks that one process has made."""

    def __init__(self, path: str, options: dict[str, Option]) -> None:
        self.path, self.options = path, options
        self.tasks: dict[int, Task] = {}

    def do(self, job: _Job) -> Any:
        task = self._task(job.silo)
        if isinstance(job, _Load):
            return None
        if isinstance(job, _Score):
            judge: Any = task
            judge.load(job.model)
            scores = judge.scores(judge.test[0][job.start : job.stop])
            return scores.numpy() if scores.dtype.itemsize > 2 else scores.float().numpy()  # numpy has no bfloat16
        try:
            began = time.monotonic()
            trained = train_task(task, job.model, job.round)
            return Turn(trained, began, time.monotonic())
        except (UserError, Fault) as error:
            raise SimulationError(f"silo {job.silo} in round {job.round}: {error}") from error

    def _task(self, silo: int) -> Task:
        if silo not in self.tasks:
            own = {} if silo == NOBODY else {"silo": silo}
            try:
                self.tasks[silo] = load_task(self.path, {**self.options, **own})
            except (UserError, Fault) as error:
                raise SimulationError(f"silo {silo}: {error}") from error
        return self.tasks[silo]


class _Worker:
    """A process that does the jobs that it is sent, and ends when this one does."""

    def __init__(self, context: Any, path: str, options: dict[str, Option]) -> None:
        self.line, theirs = context.Pipe()
        self.known: set[int] = set()
        self.process = context.Process(target=_serve, args=(theirs, path, options), daemon=True)
        self.process.start()
        theirs.close()  # so that its end shows here

    def send(self, job: _Job) -> None:
        try:
            self.line.send(job)
        except OSError:
            raise self._lost(job.silo) from None

    def receive(self, silo: int) -> Any:
        try:
            answer = self.line.recv()
        except (EOFError, OSError):
            raise self._lost(silo) from None
        if isinstance(answer, str):
            raise SimulationError(answer)
        return answer

    def _lost(self, silo: int) -> SimulationError:
        self.process.join(STOP_S)
        at = "it evaluated" if silo == NOBODY else f"it was at silo {silo}"
        code = self.process.exitcode
        return SimulationError(
            f"a worker process ended with code {code} while {at}; if memory is short, give fewer workers"
        )

    def end(self) -> None:
        self.process.terminate()
        self.process.join(STOP_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.line.close()


def _serve(line: Connection, path: str, options: dict[str, Option]) -> None:
    """Run in a worker: do what is asked for until the line ends. One thread for each process, before torch loads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    logging.getLogger(LOGGER).setLevel(logging.ERROR)  # what tasks say of their models, the parent has said
    bench = _Bench(path, options)
    while True:
        try:
            job = line.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Any = bench.do(job)
        except SimulationError as error:
            answer = str(error)
        except Exception as error:
            answer = f"silo {job.silo}: {type(error).__name__}: {error}"
        try:
            line.send(answer)
        except OSError:
            return
        except Exception as error:  # a task may put anything into its metrics
            line.send(f"silo {job.silo}: what came of it cannot be sent to another process: {error}")
