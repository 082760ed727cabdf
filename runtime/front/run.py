"""A federation of one's own task on this machine, from start to end: the nodes are real, and so is the protection."""

import asyncio
import contextlib
import io
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import ceil, floor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.config.texts import Value
from silomix.runtime.core.errors import Reason, RunError
from silomix.runtime.core.numbers.schema import Array, Schema
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.front.given import Given, Tasks, tasks_of
from silomix.runtime.local import InProcess, LocalFederation, create
from silomix.runtime.observe.log import redirected
from silomix.runtime.observe.remarks import OUT_OF_ROUND, Follower, Remark, read_line, sentences
from silomix.runtime.results import FEDERATION, Round, RunFiles, best_of, find
from silomix.runtime.store.home import CAPTURE_DIRECTORY
from silomix.runtime.store.modelfile import read_model, write_model
from silomix.runtime.task import Option, Task, TaskError, evaluate_task, load_task
from silomix.v1 import services_pb2

POLL_S = 0.5
LOG = "log.txt"
DEADLINE_S, RELEASE_S = 3600, 600
"""Time that silos have to train, and the chain to deliver: all share this machine, and who fails says so at once."""
OWN_FAULTS = frozenset(
    {
        *(Reason.NOT_FINITE, Reason.UNSUPPORTED_DTYPE, Reason.SHAPE_MISMATCH, Reason.WRONG_SCHEMA),
        *(Reason.BAD_BOUND, Reason.BAD_WEIGHT, Reason.PLAN_INFEASIBLE),
    }
)
"""Why a silo stays out of a round for something that is its own, and will be the same in the next attempt."""

PATIENCE_S = 60
"""How long a round may wait for silos that have said that they are out of it."""

T = TypeVar("T")


class SilomixWarning(UserWarning):
    """Something in a run that its owner should know, such as values that were clipped.

    >>> import silomix, warnings
    >>> warnings.simplefilter("error", silomix.SilomixWarning)  # to stop at the first
    """


@dataclass(frozen=True)
class News:
    """What there is to tell of a run."""

    stage: str = ""
    """What is being done, before the first round."""
    status: services_pb2.GetStatusResponse | None = None
    remarks: tuple[Remark, ...] = ()
    """What nodes have warned of since the last news."""


Show = Callable[[News], None]


@dataclass(frozen=True)
class Run:
    """What came of a run.

    >>> import silomix, torch
    >>> x, y = torch.randn(60, 4), torch.randint(2, (60,))
    >>> done = silomix.run(silomix.TorchTask(torch.nn.Linear(4, 2), (x, y), (x, y)), silos=3, rounds=1)
    >>> done.best.round, done.abandoned, list(done.state_dict())
    (1, [], ['weight', 'bias'])
    """

    model: dict[str, Array] = field(repr=False)
    """The trained model: its tensors by name."""
    schema: Schema = field(repr=False)
    history: list[Round]
    """What became of each round."""
    accuracy_before: float | None
    """Of the model before round 1."""
    seconds: float
    task: Task = field(repr=False)
    """The task that measured the models. A TorchTask's `load(model)` returns the network with the model in it."""
    remarks: list[Remark] = field(repr=False)
    """What nodes warned of."""
    directory: Path | None = None
    """Where the results are; none if nobody asked for files."""

    @property
    def accuracy(self) -> float | None:
        """Of the trained model."""
        done = [one.accuracy for one in self.history if one.cohort]
        return done[-1] if done else None

    @property
    def best(self) -> Round | None:
        """The round with the best accuracy."""
        return best_of(self.history)

    @property
    def abandoned(self) -> list[int]:
        """The rounds that came to no sum."""
        return [one.round for one in self.history if not one.cohort]

    def state_dict(self) -> dict[str, Any]:
        """Return the trained model as torch loads it: complete, with what did not travel, if the task is torch's."""
        from silomix.models.export import state_dict

        return state_dict(write_model(self.schema, self.model), self.task)[0]


class Running(Protocol):
    """A federation that runs, in processes or in this one."""

    @property
    def federation(self) -> Federation:
        """The federation file."""
        ...

    @property
    def names(self) -> list[str]:
        """All nodes."""
        ...

    def log(self, name: str) -> Path:
        """Where a node's log is."""
        ...

    async def status(self) -> services_pb2.GetStatusResponse | None:
        """How it is doing."""
        ...

    async def finished(self) -> object:
        """Wait for its end."""
        ...


def run(
    task: Given | Path,
    silos: int | None = None,
    rounds: int | None = None,
    *,
    out: Path | str | None = None,
    shufflers: int = 2,
    options: Mapping[str, Option] | None = None,
    policy: Policy | None = None,
    auditable: bool = False,
    show: Show | None = None,
) -> Run:
    """Train a model with a federation on this machine: silos, shufflers and an aggregator, over mutual TLS.

    task       'package.module:factory', each node in a process of its own; or a function `task(silo)`, a TorchTask
               whose records are dealt out, or a list of tasks, with all nodes in this process; or the path of a
               directory that `create` or `silomix init` wrote
    silos      how many (5 unless the tasks are counted)
    rounds     how many (10, or the policy's)
    out        where to write the model, the history and the nodes' own files; nowhere if not given
    options    arguments of the factory, the same for all silos
    policy     everything else that the silos agree on
    auditable  keep what `audit` needs: the aggregator's capture, and the silos' updates in clear
    show       is told how it is going; without it, what nodes warn of becomes a SilomixWarning at the end, but for
               trouble between nodes that they got over

    It works in a script and in a notebook, which has an event loop of its own.

    >>> import silomix, torch
    >>> x = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
    >>> y = (x.sum(1) > 0).long()
    >>> net = torch.nn.Linear(4, 2)
    >>> task = silomix.TorchTask(net, (x[:500], y[:500]), (x[500:], y[500:]), batch=16, lr=0.03)
    >>> done = silomix.run(task, silos=3, rounds=3)
    >>> len(done.history), done.accuracy > 0.9, sorted(done.model)
    (3, True, ['bias', 'weight'])
    >>> net.load_state_dict(done.state_dict())
    <All keys matched successfully>
    """
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="silomix-"))) if out is None else Path(out)
        collected: list[Remark] = []

        def told(news: News) -> None:
            collected.extend(news.remarks)
            if show is not None:
                show(news)

        told(News("loading the task"))
        with overheard(told):
            if isinstance(task, Path):
                made = find(task)
                made = made if out is None else replace(made, results=place)
                tasks = _of_file(made.federation)
                before = _tried(tasks, auditable)
            else:
                policy = policy or default_policy()
                tasks, silos = tasks_of(task, silos, {**policy.task_options, **(options or {})})
                before = _tried(tasks, auditable)  # before anything is written
                told(News("making identities and certificates"))
                made = _create(place, tasks, silos, shufflers, rounds, policy, auditable)
        try:
            seconds = to_its_end(_run(made, tasks, auditable, told))
        finally:
            history = made.keep()
        done = _done(made, history, tasks, before, seconds, collected, keep=out is not None)
    if show is None:
        lasting = [remark for remark in collected if done.abandoned or not remark.passing]
        for sentence in sentences(lasting):
            warnings.warn(sentence, SilomixWarning, stacklevel=2)
    return done


@contextlib.contextmanager
def overheard(show: Show) -> Iterator[None]:
    """Tell what is logged in this process, such as a task that warns of its model when it is made."""
    with io.StringIO() as log, redirected(log):
        try:
            yield
        finally:
            found = [remark for line in log.getvalue().splitlines() if (remark := read_line(line)) is not None]
            show(News(remarks=tuple(found)))


def default_policy() -> Policy:
    """Return the policy of a run if nobody says otherwise: with time enough for silos that share a machine."""
    return Policy(deadline_s=DEADLINE_S, release_s=RELEASE_S)


def _tried(tasks: Tasks, auditable: bool) -> float:
    """Return the first model's accuracy, or say now what would otherwise be found out after the last round."""
    lacking = [part for part in ("net", "share", "test") if auditable and not hasattr(tasks.judge, part)]
    if lacking:
        raise TaskError(
            f"{tasks.judge.__class__.__name__} has no {' and no '.join(lacking)}, which the attacks need: make it "
            "with silomix.TorchTask, or leave the audit out"
        )
    return evaluate_task(tasks.judge, tasks.judge.initial())["accuracy"]


def _of_file(federation: Federation) -> Tasks:
    policy = federation.policy
    options = dict(policy.task_options)
    return Tasks(policy.task, options, load_task(policy.task, options), None)


def _create(
    out: Path, tasks: Tasks, silos: int, shufflers: int, rounds: int | None, policy: Policy, auditable: bool
) -> RunFiles:
    policy = replace(policy, task=tasks.path, task_options=tasks.options, rounds=rounds or policy.rounds)
    settings: dict[Role, dict[str, Value]] = {}
    if auditable:
        settings = {Role.AGGREGATOR: {"capture": CAPTURE_DIRECTORY}, Role.SILO: {"keep_updates": True}}
    home = out / FEDERATION
    try:
        federation = create(home, silos, shufflers, policy=policy, task=tasks.judge, settings=settings)
    except ConfigError as error:
        if error.key and not error.file.is_file():  # nobody has seen the file in which it would have stood
            error.args = (f"{error.key}: {error.problem}",)
        raise
    return RunFiles(home, out, federation)


async def _run(place: RunFiles, tasks: Tasks, auditable: bool, show: Show) -> float:
    """Run the nodes to their end, and return how many seconds they took."""
    f = place.federation
    began = time.monotonic()
    if tasks.silos is not None:
        given = {**dict(zip(f.silo_names, tasks.silos, strict=True)), f.aggregator.name: tasks.judge}
        async with InProcess(place.home, tasks=given, log=place.home / LOG) as inside:
            await _watch(inside, show)
        return time.monotonic() - began
    show(News("compiling kernels"))
    await _warm()
    began = time.monotonic()
    capture = (f.aggregator.name,) if auditable else ()
    local = LocalFederation(place.home, capture=capture, evaluate=True, keep_updates=auditable)
    show(News(f"starting {len(local.names)} processes"))
    async with local:
        await _watch(local, show)
    return time.monotonic() - began


async def _warm() -> None:
    """Compile once, so that the processes to come find the machine code in the cache.

    A compiler in a thread of this process would go on after Ctrl-C. If it fails, each node compiles for itself.
    """
    command = (sys.executable, "-P", "-m", "silomix.runtime.cli", "warm")
    nothing = asyncio.subprocess.DEVNULL
    compiling = await asyncio.create_subprocess_exec(
        *command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
    )
    try:
        await compiling.wait()
    finally:
        if compiling.returncode is None:
            compiling.kill()
            await compiling.wait()


async def _watch(running: Running, show: Show) -> None:
    """Tell how it is going until it is over, or cannot come to anything any more."""
    follower = Follower(dict.fromkeys(running.log(name) for name in running.names))
    hope = Hope(running.federation)
    done = asyncio.ensure_future(running.finished())
    try:
        while not done.done():
            status = await running.status()
            remarks = follower.new()  # after the status: what a silo says in a round is there before the round is over
            show(News(status=status, remarks=tuple(remarks)))
            hope.check(remarks)
            await asyncio.wait({done}, timeout=POLL_S)
        done.result()
    except BaseExceptionGroup as group:
        raise _first(group) from None
    finally:
        done.cancel()
        show(News(remarks=tuple(follower.new())))


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Hope:
    """Whether the round can still come to a sum, from what silos say of themselves.

    A federation waits for silos that may come back. On this machine their logs say why they are out of the round, and
    if too few are left, waiting for the deadline would not help. If enough are left for a sum and the policy's quorum
    wants more, every round would wait: for a short deadline we do, for a long one nobody would know why.
    """

    def __init__(self, federation: Federation) -> None:
        """Every silo may still come."""
        self._federation = federation
        self._out: dict[int, dict[str, str]] = {}

    def check(self, remarks: list[Remark]) -> None:
        """Raise if too few silos are left, with what the first of the others said."""
        for remark in remarks:
            if remark.message.startswith(OUT_OF_ROUND) and remark.fields.get("reason", Reason.NOT_FINITE) in OWN_FAULTS:
                why = remark.message.removeprefix(f"{OUT_OF_ROUND}: ")
                self._out.setdefault(remark.round, {}).setdefault(remark.node, why)
        for round_, out in self._out.items():
            left, least = self._federation.drawn - len(out), self._federation.minimum_cohort
            silo, why = next(iter(out.items()))
            if left < least:
                raise RunError(
                    f"round {round_} cannot come to a sum: {left} silos are left in it, and a sum takes {least}. "
                    f"{silo} says: {why}"
                )
            policy, invited = self._federation.policy, left + len(out)
            if left < ceil(round(invited * policy.quorum, 6)) and policy.deadline_s > PATIENCE_S:
                names = f"{silo} and {len(out) - 1} more" if len(out) > 1 else silo
                raise RunError(
                    f"round {round_} would wait {policy.deadline_s} s for {names}. {silo} says: {why}. Mend that, or "
                    f"go on without: quorum = {floor(1000 * left / invited) / 1000:g} lets {left} of {invited} silos "
                    "do, and deadline_s says how long to wait"
                )


def _done(
    place: RunFiles,
    history: list[Round],
    tasks: Tasks,
    before: float,
    seconds: float,
    remarks: list[Remark],
    *,
    keep: bool,
) -> Run:
    if not any(one.cohort for one in history):
        raise RunError(
            f"{len(history)} rounds are over, and no silo contributed to any: there is no trained model; the logs "
            f"below {place.home} say why"
        )
    schema, model = read_model(place.trained().read_bytes())
    directory = place.results if keep else None
    return Run(model, schema, history, before, seconds, tasks.judge, remarks, directory)


def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop in a thread of its own, and cancel it if this thread is interrupted.

    A notebook has a loop already, on which nothing can be waited for.
    """
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
    done: Future[T] = Future()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        return await work

    def thread() -> None:
        try:
            done.set_result(asyncio.run(main()))
        except BaseException as error:
            done.set_exception(error)

    worker = threading.Thread(target=thread, name="silomix-run")
    worker.start()
    try:
        return done.result()
    except BaseException:
        if not done.done():
            loop, task = begun.result()
            loop.call_soon_threadsafe(task.cancel)
        worker.join()
        raise


__all__ = ["News", "Run", "SilomixWarning", "run", "to_its_end"]
