"""What every role shares: configuration, journal, log, metrics, capture, TLS, and an orderly end."""

import asyncio
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

import grpc

from silomix.runtime.capture.writer import Capture
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig, identity_of, load_node, require_agreement
from silomix.runtime.config.owners.epochs import enter
from silomix.runtime.core.errors import Fault, LocalFault, Reason, UserError
from silomix.runtime.core.numbers.baseline import wire_bits
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.masks import Stream
from silomix.runtime.core.numbers.plan import Granularity, Plan
from silomix.runtime.core.numbers.traps import secp256k1
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.hearing import Life, Lives, Standing
from silomix.runtime.core.protocol.machine import Machine, Remember
from silomix.runtime.core.protocol.roundlog import Record
from silomix.runtime.net.calls import Callers, Context
from silomix.runtime.net.limits import Limits
from silomix.runtime.net.lines import Line, told_to_end
from silomix.runtime.net.transport import Tls, caller, channel, metadata, tls_of
from silomix.runtime.nodes.changes.epochs import Succession
from silomix.runtime.nodes.changes.renewal import Renewal
from silomix.runtime.observe.events import Events
from silomix.runtime.observe.log import Log, Sparing, setup
from silomix.runtime.observe.metrics import Metrics
from silomix.runtime.observe.pulse import Pulse
from silomix.runtime.observe.traces import Traces
from silomix.runtime.store.journal import Journal

GRACE_S = 5.0
SWITCH_S = 0.5
LOG_EVERY_S = 5.0
"""Pause between two lines about one peer and one kind of thing: whoever floods a node must not fill its disk."""
DOUBLE = (
    "two processes have the identity of this hop, or its state is an old copy; the earlier one ends when it hears of "
    "the other: run one, with the newest state"
)
RETRY_S = 1.0
"""Pause before a full disk is tried again."""
WORKERS = min(4, max(2, os.cpu_count() or 1))
"""Threads for kernels, hashing and files: they hold no GIL for long, and the event loop none of their work."""

T = TypeVar("T")
Event = TypeVar("Event")
Effect = TypeVar("Effect")


class _Stop(Exception):  # noqa: N818 - no error: how a task group is told to end
    pass


class Node:
    """One process of the federation. Roles add what they serve and what they do."""

    def __init__(self, config: NodeConfig) -> None:
        """Open everything that can fail before anything is served."""
        self.config = config
        self.federation = config.federation
        self.limits = Limits.of(self.federation, *config.epochs.chain)
        self.identity = identity_of(config)
        require_agreement(config)
        if self.federation.policy.traps:
            secp256k1()  # or say what to install, before a round needs it
        self.tls = tls_of(config)
        setup(str(config.log), config.name)
        self.log = Log(config.name)
        if self.tls is None:
            self.log.warning("NO TLS: anybody on the network can read and forge everything; for experiments only")
        self.journal = Journal(config.state.journal)
        self.metrics = Metrics(str(config.role), config.name, training=config.metrics_training)
        self.metrics.disk(config.state.directory)
        self.pulse = Pulse()
        self.traces = Traces(config, self.log)
        self.metrics.on_attempt, self.metrics.on_phase = self.traces.attempt, self.traces.phase
        self.metrics.on_round = self.traces.round
        self.events = Events(config, self.log, self.metrics)
        self.metrics.on_rejected = self.events.refused
        self.capture = (
            Capture(config.capture, config.name, str(config.role), self.federation.digest) if config.capture else None
        )
        if self.capture is not None:
            self.capture.on_dropped = self.metrics.capture_dropped
        granularity = self.federation.policy.granularity
        if granularity is not Granularity.SUM:
            self.log.warning(f"granularity {granularity}: a baseline for comparison, which does not protect the silos")
        self.metrics.plan(wire_bits(granularity, self.federation.plan))
        policy = self.federation.policy
        self.metrics.minimum_cohort(self.federation.minimum_cohort)
        self.metrics.policy(self.federation.drawn, policy.rounds, policy.deadline_s + 2 * policy.release_s)
        if self.tls is not None:
            self.metrics.certificate_expires(self.tls.expires)
        self.workers = ThreadPoolExecutor(WORKERS, thread_name_prefix=config.name)
        self.clock: Callable[[], float] = time.monotonic
        self.steady: Callable[[], float] = time.monotonic
        """The time by which others are held to a pace: an aggregator's `clock` stands still while it is paused."""
        self.stopping = asyncio.Event()
        self.switching = asyncio.Event()
        """Set when this node is done with its epoch, and another is to go on in the next."""
        self._no_place = ""
        """Why this node is to run no more, if that is so."""
        self.lives = Lives(self.federation)
        """Which processes of hops are known here."""
        self.doubled: dict[str, float] = {}
        """By hop: when this node last heard of a process of it that another had come after."""
        self.tasks = asyncio.TaskGroup()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._dialled: dict[str, tuple[bytes, bytes, bytes]] = {}
        self._dialled_with = 0
        self._lines = Sparing()
        self.callers = Callers()
        self.succession = Succession(self)
        self.renewal = Renewal(self)
        self._stream = 0

    async def main(self) -> None:
        """Serve and work until the node is done or told to stop. Overridden by each role."""
        raise NotImplementedError

    async def run(self) -> None:
        """Run the node to its end: on its own, when it is told to stop, or with the first error."""
        close_metrics = None
        if self.config.metrics_port:
            close_metrics = self.metrics.serve(self.config.metrics_port, self.config.metrics_host, self.pulse.answer)
        try:
            async with self.tasks:
                self.tasks.create_task(self._load_kernels())
                self.tasks.create_task(self.pulse.run())
                self.tasks.create_task(self.events.run())
                self.tasks.create_task(self.renewal.run())
                self.tasks.create_task(self._work_to_the_end())
                self.tasks.create_task(self._end())
        except* _Stop:
            pass
        finally:
            await self.close()
            if close_metrics is not None:
                close_metrics()
        if self._no_place:
            raise UserError(self._no_place)

    async def _load_kernels(self) -> None:
        """Load the machine code while nobody waits for it: that takes about as long as half the start of a process."""
        if self.federation.policy.granularity is Granularity.SUM:
            await self.work(_touch, self.federation.plan)

    async def _work_to_the_end(self) -> None:
        """Do what the node is there for. A task group takes no notice of a task that ends as cancelled, and the node
        would stay up and do nothing: if nobody has told it to end, that is an error like any other."""
        try:
            await self._work()
        except asyncio.CancelledError as error:
            if told_to_end():
                raise
            raise RuntimeError("the work of this node was cut short, and nobody had told it to end") from error

    async def _work(self) -> None:
        await self.succession.look()
        ready = self.succession.ready
        if ready and any(record.next == ready for record in self.counted):
            self.switch(ready)  # it was killed before it had written down that it goes on there
            return
        await self.main()
        self.stopping.set()

    async def _end(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self.stopping, self.switching)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        raise _Stop  # the task group cancels everything else and waits for it

    @property
    def grace_s(self) -> float:
        """Time that calls have to end when this node does. Who is cut off in a change of epochs calls again."""
        return SWITCH_S if self.switching.is_set() else GRACE_S

    @property
    def listening(self) -> tuple[str, ...]:
        """The silos that wait for announcements here: the aggregator's."""
        return ()

    @property
    def counted(self) -> Sequence[Record]:
        """The records of the round log that are known to count; overridden by each role."""
        return ()

    async def epochs_in(self, epochs: Epochs, following: bytes) -> None:
        """Tell the machine that another epoch counts here; overridden by each role."""
        raise NotImplementedError

    def switch(self, epoch: bytes) -> None:
        """Go on in another epoch, which the round log names: this node ends, and `again` makes the next."""
        found = self.succession.epochs.find(epoch)
        if found is None or found.epoch <= self.federation.epoch:
            return
        if self.config.name not in found.members:
            self.leave(f"epoch {found.epoch} has begun, and {self.config.name} is not in it: its owners took it out")
            return
        enter(found, self.config.state)
        self.log.info(f"epoch {found.epoch} begins", digest=found.digest.hex()[:16])
        self.switching.set()

    def leave(self, why: str) -> None:
        """End, since this node has no place in the federation any more."""
        self._no_place = why
        self.stopping.set()

    def heard_lives(self, peer: str, lives: Sequence[Life]) -> bool:
        """Take in which processes of hops a peer knows of, and return whether others should hear of it soon.

        Of two with one identity the later goes on, and the other ends when it hears of that.
        """
        news = False
        for life in lives:
            try:
                standing = self.lives.take(life)
            except LocalFault as fault:
                self.log.error(fault.message, reason=str(fault.reason), peer=peer)
                self.metrics.rejected(fault.reason)
                self.leave(fault.message)
                return False
            if standing is Standing.OLD and life.name == peer:
                self.doubled[peer] = self.steady()
                self.metrics.rejected(Reason.SUPERSEDED)
                if (unsaid := self.unsaid(peer, "two processes")) is not None:
                    self.log.error(f"TWO PROCESSES: {DOUBLE}", peer=peer, reason=str(Reason.SUPERSEDED), **unsaid)
            news = news or standing is Standing.NEW
        return news and self.config.role is not Role.SILO

    def again(self) -> "Node":
        """Make the node that goes on in the next epoch, with the same settings."""
        return self.made_of(self.config_next())

    def config_next(self) -> NodeConfig:
        """The configuration in the epoch that was entered; what the command line has changed stays."""
        kept = {name: getattr(self.config, name) for name in ("capture", "evaluate", "keep_updates", "linger")}
        return replace(load_node(self.config.file), **kept)

    def made_of(self, config: NodeConfig) -> "Node":
        """Make another node of this kind; overridden where one takes more than a configuration."""
        return type(self)(config)

    async def close(self) -> None:
        """Let go of everything."""
        for open_channel in self._channels.values():
            await open_channel.close()
        self.workers.shutdown(wait=False, cancel_futures=True)
        if self.capture is not None:
            self.capture.close()
        await asyncio.to_thread(self.traces.close)
        self.journal.close()

    async def work(self, run: Callable[..., T], *arguments: object) -> T:
        """Run something that computes or touches the disk outside the event loop."""
        loop = asyncio.get_running_loop()
        return await whole(loop.run_in_executor(self.workers, functools.partial(run, *arguments)))

    async def work_aside(self, run: Callable[..., T], *arguments: object) -> T:
        """Run something long in a thread of its own, which does not keep a process that was told to stop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(cast("T", result))

        def thread() -> None:
            result, error = None, None
            try:
                result = run(*arguments)
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=thread, name=self.config.name, daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody else asks for it
            if not self.stopping.is_set():
                await asyncio.wait([done])  # a task is called once at a time
            raise

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Begin something that ends with the node; nothing once the node is ending, which ends it at once."""
        try:
            return self.tasks.create_task(work)
        except RuntimeError:
            work.close()
            return None

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something that another node takes its time over, unless this one is told to stop."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ConnectionAbortedError("this node is leaving")
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    def channel_to(self, name: str) -> grpc.aio.Channel:
        """Return the channel to a member, opened once."""
        if self.tls is not None and self._dialled_with != self.tls.version:
            self._dialled_with = self.tls.version
            self._hang_up(self.tls)
        if name not in self._channels:
            member = self.federation.member(name)
            if self.tls is not None:
                self._dialled[name] = self.tls.dials(name)
            self._channels[name] = channel(member.address, name, self.tls, self.limits.answered)
        return self._channels[name]

    def _hang_up(self, tls: Tls) -> None:
        """Let go of every line that was dialled with another certificate, or to one; calls on it end in their time.

        All others stay: no member can end this node's lines to others by changing its own certificate.
        """
        for name in [name for name in self._channels if self._dialled[name] != tls.dials(name)]:
            self.spawn(self._channels.pop(name).close(self.limits.round_s))

    def line(self, name: str) -> Line:
        """Return what calls a member."""
        return Line(self.channel_to(name), name, self.metadata, self)

    def redial(self, name: str) -> None:
        """Let go of a line that is down, so that the next call dials at once: gRPC would wait by a clock of its own."""
        line = self._channels.get(name)
        if line is not None and line.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            del self._channels[name]
            self.spawn(line.close(GRACE_S))  # calls that are still on it end by themselves

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call carries."""
        return metadata(self.config.name, self.tls)

    def caller(self, context: Context) -> str:
        """Who calls, by certificate."""
        return caller(context, self.federation, self.tls)

    def drop_callers(self) -> None:
        """Cut off calls that were made with a certificate which its node is no longer known by."""
        for name in self.callers.drop(self.caller):
            self.log.warning("cut off in mid-call: its certificate was replaced", peer=name)

    def role_of(self, name: str) -> str:
        """A member's role, for metrics."""
        if name == self.federation.aggregator.name:
            return "aggregator"
        return "silo" if name in self.federation.silo_names else "shuffler"

    def stream(self) -> int:
        """Number a stream, for the capture."""
        self._stream += 1
        return self._stream

    def crossed(self, direction: str, peer: str, method: str, stream: int, kind: str, raw: bytes) -> None:
        """Count a message, and record it if this node captures."""
        self.metrics.bytes(direction, self.role_of(peer), len(raw))
        if self.capture is not None:
            self.capture.record(direction, peer, method, stream, (kind, raw))

    def refused(self, method: str, fault: Fault, peer: str, address: str) -> None:
        """Count a refusal, and log it with the name of whoever called, or with its address if nobody knows the name."""
        self.metrics.rejected(fault.reason)
        who = {"peer": peer} if peer else {"address": address}
        if (unsaid := self.unsaid(peer, method, fault.reason)) is not None:
            self.log.fault(f"refused {method}", fault, **who, **unsaid)

    def unsaid(self, *what: object, every_s: float = LOG_EVERY_S) -> dict[str, int] | None:
        """Fields of a line that a peer can cause at will: how many were left out before it; None to leave it out too.

        What it is about must be one of few things, whatever the peer says: else it would fill the disk with many.
        """
        found = self._lines.spare(what, self.steady(), every_s)
        return None if found is None else {"unsaid": found} if found else {}

    def handshake_failed(self, why: str) -> None:
        """Count a TLS handshake that failed, and log it now and then. Nobody is known by then, not even by address."""
        self.metrics.handshake_failed()
        if (unsaid := self.unsaid("handshake", why)) is not None:
            self.log.warning(f"TLS handshake failed: {why}", **unsaid)

    def failed(self, method: str, error: OSError) -> None:
        """Log that this node could not do its part of a call."""
        if (unsaid := self.unsaid("failed", method)) is not None:
            self.log.error(f"{method} failed: {error}", **unsaid)


class HeldUpError(OSError):
    """An earlier decision cannot be remembered yet: what came now was not taken in, and may come again."""


class Driver(Node, Generic[Event, Effect]):
    """A node that carries out what a state machine decides: one event at a time, effects in order.

    It never changes the machine's state: what it learns while it carries effects out becomes the next event. An effect
    that the disk has no room for holds up all that come after it, and is tried again until there is room: nothing is
    done that was not remembered first.
    """

    machine: Machine[Any, Event, Effect, Any]
    weighty: tuple[type, ...] = ()
    """Events whose decision takes hundreds of signatures: these leave the event loop, which meanwhile serves others."""

    def __init__(self, config: NodeConfig) -> None:
        """Roles set `machine`."""
        super().__init__(config)
        self.lock = asyncio.Lock()
        self.woken = asyncio.Event()
        self._held_up: deque[Effect] = deque()
        self._learned: deque[Event] = deque()
        self._mending: asyncio.Task[None] | None = None

    def remember(self, fact: Any) -> None:
        """Write a fact, durably. Overridden by each role."""
        raise NotImplementedError

    async def perform(self, effect: Effect) -> Event | None:
        """Carry one effect out, and return what was learned by it. It may be called again after an OSError.

        Overridden by each role.
        """
        raise NotImplementedError

    async def step(self, event: Event) -> list[Effect]:
        """Let the machine decide, and carry its decisions out, also if the caller leaves; return all of them."""
        return await whole(asyncio.ensure_future(self._step(event)))

    async def _step(self, event: Event) -> list[Effect]:
        async with self.lock:
            try:
                await self._go_on()
            except OSError as error:
                raise HeldUpError(str(error)) from error
            decided = await self._decide(event)
            self._held_up.extend(decided)
            try:
                return [*decided, *await self._go_on()]
            except OSError:
                if self._mending is None:
                    self._mending = self.spawn(self._mend())
                raise
            finally:
                self.woken.set()

    async def _go_on(self) -> list[Effect]:
        """Carry out what was decided, and take in what is learned by it; return what that decides in turn."""
        decided: list[Effect] = []
        while self._held_up or self._learned:
            while self._held_up:
                effect = self._held_up.popleft()
                try:
                    await self._carry_out(effect)
                except OSError:
                    self._held_up.appendleft(effect)
                    raise
            if self._learned:
                effects = await self._decide(self._learned.popleft())
                decided += effects
                self._held_up.extend(effects)
        return decided

    async def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Remember):
            await self.work(self.remember, effect.fact)
            return
        event = await self.perform(effect)
        if event is not None:
            self._learned.append(event)

    async def _decide(self, event: Event) -> list[Effect]:
        if not isinstance(event, self.weighty):
            return self.machine.step(event)
        # Not among the workers: kernels may keep all of those busy for longer than the peer waits.
        return await asyncio.get_running_loop().run_in_executor(None, self.machine.step, event)

    async def _mend(self) -> None:
        """Try again what a full disk holds up, until there is room."""
        while self._held_up:
            await asyncio.sleep(RETRY_S)
            with suppress(OSError):
                await whole(asyncio.ensure_future(self._go_on_alone()))
        self._mending = None
        self.log.info("there is room again")

    async def _go_on_alone(self) -> None:
        async with self.lock:
            await self._go_on()
        self.woken.set()

    async def keep_time(self, tick: Callable[[float], Event], finished: Callable[[], bool]) -> None:
        """Tell the machine when its time is up, until there is nothing left to do."""
        while not finished():
            wake = self.machine.wake_at()
            self.woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wake is None else max(0.0, wake - self.clock())):
                    await self.woken.wait()
                    continue
            await self.insist(tick(self.clock()))

    async def insist(self, event: Event) -> None:
        """Step where nobody would ask again: a full disk holds it up until there is room."""
        while True:
            try:
                await self.step(event)
            except HeldUpError:
                await asyncio.sleep(RETRY_S)
                continue
            except OSError as error:
                self.log.error(f"cannot write, trying again: {error}")
                while self._held_up:  # noqa: ASYNC110 - whoever mends it has no event
                    await asyncio.sleep(RETRY_S)
            return


def _touch(plan: Plan) -> None:
    """Call the kernels that every role needs, on next to nothing."""
    shape = Layout(plan, 8, 8)
    body = shape.body()
    values = shape.part(body, 0)  # at level malicious blinders stand behind them
    Stream(bytes(32), plan.moduli, 8).apply(values, 0, 8, 1)
    shape.add(body, 0, shape.planes(values.copy().data, 0))


async def whole(future: asyncio.Future[T]) -> T:
    """Wait for something that must not be left half done: if the waiter is cancelled, it waits all the same.

    A peer that hangs up cancels the handler of its call, at any `await`; a decision that was made is carried out.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:  # it may come more than once
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # nobody else asks
        raise cancelled
    return future.result()
