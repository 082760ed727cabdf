"""A whole federation on this machine: written, started as separate processes, watched, and cleaned up.

The demo, the benchmarks, the audits and the tests all start federations through this one launcher.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import grpc

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig, load_federation, load_node
from silomix.runtime.config.owners.trial import init
from silomix.runtime.config.texts import Value
from silomix.runtime.consent import source_of
from silomix.runtime.core.errors import PeerFault, RunError, UserError
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.rules import pin_problem
from silomix.runtime.core.values import Scalar
from silomix.runtime.net.calls import Unseen
from silomix.runtime.net.limits import Limits
from silomix.runtime.net.lines import Line, method
from silomix.runtime.net.transport import channel, metadata, tls_of
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.changes.epochs import live
from silomix.runtime.nodes.node import Node
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.runtime.nodes.silo import SiloNode
from silomix.runtime.observe.log import redirected
from silomix.runtime.store.files import write_atomically
from silomix.runtime.store.home import INITIAL_MODEL, Home
from silomix.runtime.store.modelfile import model_digest, write_model
from silomix.runtime.task import Task, load_task
from silomix.v1 import services_pb2

STOP_S = 10.0
END_S = 60.0
"""Time that nodes in this process have to end in order."""
PARENT = "SILOMIX_PARENT"
"""Environment of a node that ends with the process that started it: that process's id."""
NODES: dict[Role, type[Node]] = {
    Role.AGGREGATOR: AggregatorNode,
    Role.SHUFFLER: ShufflerNode,
    Role.SILO: SiloNode,
}


class NodeDied(RunError):  # noqa: N818 - what happened
    """A process ended before the federation was done; the message has the end of its log."""


def create(
    directory: Path | str,
    silos: int,
    shufflers: int,
    *,
    policy: Policy,
    task: Task | None = None,
    name: str = "local",
    insecure: bool = False,
    ca: bool = False,
    silo_options: Callable[[int], Mapping[str, Scalar]] = lambda index: {"silo": index},
    settings: Mapping[Role, Mapping[str, Value]] | None = None,
    metrics_base_port: int = 0,
    host: str = "127.0.0.1",
    listen_host: str = "",
    base_port: int = 0,
    pin_model: bool = True,
) -> Federation:
    """Write a federation into an empty directory, with the initial model that its task makes.

    The policy pins that model, so that no node ever begins with another, its schema, and the task's source. A task that
    is given takes the place of the one that the policy names; the other settings are those of `silomix init`, which
    writes the same files. Without `pin_model` the initial model is the aggregator's word.

    >>> import silomix
    >>> policy = silomix.Policy(task="silomix.models.digits:task", task_options={"silos": 3}, rounds=5, precision=5)
    >>> federation = silomix.create("fed", silos=3, shufflers=2, policy=policy)
    >>> federation.silo_names, federation.chain, federation.plan.packed_bits
    (('silo-01', 'silo-02', 'silo-03'), ('shuffler-1', 'shuffler-2'), 20)
    """
    directory = Path(directory)
    if task is None:
        found = source_of(policy.task)
        policy = replace(policy, task_package=found.package, task_digest=found.digest)
    task = task or load_task(policy.task, policy.task_options)  # first: one that does not load leaves nothing behind
    schema, tensors = task.schema(), task.initial()
    model, digest = write_model(schema, tensors), model_digest(schema, tensors).hex()
    problem = pin_problem(schema, policy) or (policy.initial_model not in ("", digest) and "is not the one it pins")
    if problem:
        raise UserError(f"{policy.task}: the task's model {problem}; leave the pins out, they are made of the task")
    given: dict[Role, dict[str, Value]] = {role: dict((settings or {}).get(role, {})) for role in Role}
    given[Role.AGGREGATOR] = {"initial_model": INITIAL_MODEL, **given[Role.AGGREGATOR]}
    federation = init(
        directory,
        silos,
        shufflers,
        name=name,
        policy=replace(
            policy,
            schema=schema.digest.hex(),
            parameters=schema.parameters,
            initial_model=digest if pin_model else "",
        ),
        insecure=insecure,
        ca=ca,
        silo_options=silo_options,
        settings=given,
        metrics_base_port=metrics_base_port,
        host=host,
        listen_host=listen_host,
        base_port=base_port,
    )
    write_atomically(Home(directory / federation.aggregator.name).initial_model, model)
    return federation


def initial_model(policy: Policy) -> bytes:
    """Make the model before round 1: the task does, and the aggregator needs nothing else of the task."""
    task = load_task(policy.task, policy.task_options)
    return write_model(task.schema(), task.initial())


def make_node(config: NodeConfig) -> Node:
    """Make the node that a configuration describes; `run_alone` runs it to its end."""
    return NODES[config.role](config)


async def run_alone(node: Node, renewed: Callable[[Node], object] = lambda _: None) -> Node:
    """Run the one node of this process to its end, which SIGTERM and SIGINT bring about, and return it.

    It is another then if another epoch has begun; `renewed` hears of each that goes on.
    """
    now = node

    def stop() -> None:
        now.stopping.set()

    def goes_on(later: Node) -> None:
        nonlocal now
        now = later
        renewed(later)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return await live(node, goes_on)


async def fetch_status(config: NodeConfig, timeout_s: float = 5.0) -> services_pb2.GetStatusResponse:
    """Ask the aggregator how the federation is doing, as the member that the configuration is of."""
    tls, limits = tls_of(config), Limits.of(config.federation)
    aggregator = config.federation.aggregator
    async with channel(aggregator.address, aggregator.name, tls, limits.answered) as open_channel:
        line = Line(open_channel, aggregator.name, metadata(config.name, tls), Unseen(), any_protocol=True)
        what, kind = method("AggregatorService", "GetStatus"), services_pb2.GetStatusResponse
        return await line.ask(what, services_pb2.GetStatusRequest(), kind, limits.status, timeout_s)


def end_with_parent() -> None:
    """Let a node that a launcher started end when the launcher was killed and could not clean up (Linux only).

    The node asks for it itself: had the launcher asked between fork and exec, its threads would not survive the fork.
    """
    parent = os.environ.pop(PARENT, "")
    if not parent:
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() == 1 and parent != "1":  # it was killed before
        signal.raise_signal(signal.SIGTERM)


def interrupt_on_sigterm() -> None:
    """Treat SIGTERM as Ctrl-C, so that whoever started processes also ends them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def search_path(first: str = "") -> str:
    """Return a PYTHONPATH with which another process finds every module that this one finds, ./mytask.py included."""
    here = [] if sys.flags.safe_path else [os.getcwd()]
    places = [*first.split(os.pathsep), *(place or os.getcwd() for place in sys.path), *here]
    return os.pathsep.join(dict.fromkeys(place for place in places if place))


class LocalFederation:
    """A federation on this machine with a process for each node. Leaving the context stops all of them.

    >>> import asyncio, silomix
    >>> _ = silomix.create("apart", silos=3, shufflers=1, policy=silomix.Policy(
    ...     task="silomix.models.digits:task", task_options={"silos": 3, "model": "linear"}, rounds=2))
    >>> async def main():
    ...     async with silomix.LocalFederation("apart") as running:
    ...         await running.finished()
    ...     return running.log("aggregator").read_text()
    >>> "all rounds are done" in asyncio.run(main())
    True
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        capture: tuple[str, ...] = (),
        evaluate: bool = False,
        keep_updates: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Take a directory that `create` or `silomix init` has written.

        capture       the nodes that record what they see, each below its own directory
        evaluate      whether the aggregator measures each model, whatever its own file says
        keep_updates  whether silos keep their updates in clear, to compare with what came of them
        env           added to the environment of the processes, which find every module that this process finds
        """
        self.directory = Path(directory)
        self.federation = load_federation(self.directory)
        self.capture, self.evaluate, self.keep_updates = capture, evaluate, keep_updates
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", **(env or {})}
        self._env[PARENT] = str(os.getpid())
        self._env["PYTHONPATH"] = search_path(self._env.get("PYTHONPATH", ""))

    @property
    def names(self) -> list[str]:
        """All nodes, servers first."""
        f = self.federation
        return [*(s.name for s in f.shufflers), f.aggregator.name, *(s.name for s in f.silos)]

    def log(self, name: str) -> Path:
        """Where a node's output goes."""
        return Home(self.directory / name).log

    async def __aenter__(self) -> "LocalFederation":
        try:
            for name in self.names:
                await self.start(name)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def command(self, name: str) -> list[str]:
        """What a node is started with. Overridden by whoever starts it elsewhere than right here."""
        role = "aggregator" if name == self.federation.aggregator.name else ""
        role = role or ("silo" if name in self.federation.silo_names else "shuffler")
        # -P: modules are looked for where this process looks, and not first of all in the working directory.
        command = [sys.executable, "-P", "-m", "silomix.runtime.cli", role, "--config", str(self.directory / name)]
        if name in self.capture:
            command += ["--capture", str(Home(self.directory / name).capture)]
        if self.evaluate and role == "aggregator":
            command.append("--evaluate")
        if self.keep_updates and role == "silo":
            command.append("--keep-updates")
        return command

    async def start(self, name: str) -> None:
        """Start one node, or start it again."""
        with open(self.log(name), "ab") as log:  # noqa: ASYNC230 - opened to be given away
            self.processes[name] = await asyncio.create_subprocess_exec(
                *self.command(name),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill one node at once, as a power cut would."""
        self.processes[name].kill()

    async def status(self) -> services_pb2.GetStatusResponse | None:
        """Return the federation's state, or nothing while the aggregator does not answer."""
        try:
            return await fetch_status(load_node(self.directory / self.federation.aggregator.name), 2.0)
        except (grpc.aio.AioRpcError, PeerFault):
            return None

    def check(self) -> None:
        """Raise if a process has failed, with the end of its log."""
        for name, process in self.processes.items():
            if process.returncode not in (None, 0, -signal.SIGKILL, -signal.SIGTERM):
                tail = "\n".join(self.log(name).read_text(errors="replace").splitlines()[-8:])
                raise NodeDied(f"{name} ended with code {process.returncode}:\n{tail}")

    async def finished(self) -> None:
        """Wait until the aggregator has run all rounds."""
        aggregator = self.processes[self.federation.aggregator.name]
        while aggregator.returncode is None:
            self.check()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(aggregator.wait(), 0.5)
        self.check()

    async def stop(self) -> None:
        """Ask every process to end, and end those that do not."""
        running = [p for p in self.processes.values() if p.returncode is None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        if running:
            _, late = await asyncio.wait([asyncio.create_task(p.wait()) for p in running], timeout=STOP_S)
            for process in running:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
            if late:
                await asyncio.wait(late)


class InProcess:
    """A federation inside this process, for tests and notebooks: the same nodes on one event loop.

    >>> import asyncio, silomix
    >>> _ = silomix.create("inside", silos=3, shufflers=1, policy=silomix.Policy(
    ...     task="silomix.models.digits:task", task_options={"silos": 3, "model": "linear"}, rounds=2))
    >>> async def main():
    ...     async with silomix.InProcess("inside", log="inside/log.txt") as federation:
    ...         return await federation.finished()
    >>> [done.cohort for done in asyncio.run(main())]
    [3, 3]
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        without: tuple[str, ...] = (),
        tasks: Mapping[str, Task] | None = None,
        log: Path | str | None = None,
    ) -> None:
        """Take a directory that `create` or `silomix init` has written.

        without  nodes to leave out
        tasks    tasks by the name of their silo, in place of those that the federation file names; the aggregator's
                 measures each model
        log      the file that all nodes write their logs to, in place of standard error
        """
        self.directory = Path(directory)
        self.federation = load_federation(self.directory)
        self.nodes: dict[str, Node] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._without, self._given = without, tasks or {}
        self._log = None if log is None else Path(log)
        self._open = contextlib.ExitStack()

    @property
    def names(self) -> list[str]:
        """All nodes, servers first."""
        f = self.federation
        return [*(s.name for s in f.shufflers), f.aggregator.name, *f.silo_names]

    def log(self, name: str) -> Path:
        """Where a node's log goes, if it goes to a file."""
        return self._log or Home(self.directory / name).log

    @property
    def aggregator(self) -> AggregatorNode:
        """The aggregator's node, with the model and the history."""
        node = self.nodes[self.federation.aggregator.name]
        assert isinstance(node, AggregatorNode)
        return node

    async def __aenter__(self) -> "InProcess":
        if self._log is not None:
            self._open.enter_context(redirected(self._open.enter_context(self._log.open("a"))))
        try:
            for name in self.names:
                if name not in self._without:
                    self.start(name)
        except BaseException as error:  # a task that does not load: what was started is stopped
            await self.__aexit__(type(error), error, None)
            raise
        return self

    def start(self, name: str) -> Node:
        """Start one node, or start it again."""
        config, task = load_node(self.directory / name), self._given.get(name)
        node = SiloNode(config, task) if config.role is Role.SILO else make_node(config)
        if isinstance(node, AggregatorNode) and task is not None:
            node.task = task
        self.nodes[name] = node
        self.tasks[name] = asyncio.create_task(self._live(name, node), name=name)
        return node

    async def _live(self, name: str, node: Node) -> None:
        await live(node, lambda renewed: self.nodes.__setitem__(name, renewed))

    async def stop(self, name: str) -> None:
        """Stop one node in order."""
        self.nodes[name].stopping.set()
        await self.tasks[name]

    async def status(self) -> services_pb2.GetStatusResponse:
        """Return the federation's state."""
        return self.aggregator.status()

    async def finished(self) -> list[services_pb2.RoundStatus]:
        """Wait until all rounds are done, and return what became of them. A node that fails ends the wait."""
        aggregator = self.tasks[self.federation.aggregator.name]
        while not aggregator.done():
            running = {task for task in self.tasks.values() if not task.done()}
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
        await aggregator
        return self.aggregator.history

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.stopping.set()
        late = (await asyncio.wait(self.tasks.values(), timeout=END_S))[1] if self.tasks else ()
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=STOP_S)
        self._open.close()
        if late:
            names = ", ".join(name for name, task in self.tasks.items() if task in late)
            raise RunError(f"{names} did not end within {END_S:.0f} s of being told to stop") from error
        if error is None:
            for task in self.tasks.values():
                task.result()
