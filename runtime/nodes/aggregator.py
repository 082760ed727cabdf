"""The aggregator process: announces attempts, serves the model, takes sums in, and makes the next model of them."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Literal, TypeVar

import grpc

from silomix.runtime.config.load import NodeConfig
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import Fault, PeerFault, Reason, UserError
from silomix.runtime.core.learning.noise_account import spent
from silomix.runtime.core.learning.optimise import Optimiser, combine, step
from silomix.runtime.core.numbers.schema import Array
from silomix.runtime.core.policy import UpdateKind
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Accusation, Cohort, Header, Manifest, delivery_digest
from silomix.runtime.core.protocol.rules import pin_problem, wire_encoding
from silomix.runtime.net.answers import fault_of
from silomix.runtime.net.calls import QUESTIONS_EACH, Call, Method, Room
from silomix.runtime.net.health import anybody, has_attempt
from silomix.runtime.net.limits import HISTORY, PART_BYTES, SMALL_BYTES, TEXT_BYTES
from silomix.runtime.net.lines import SERVICES, Line, method
from silomix.runtime.net.streams import Inbox
from silomix.runtime.net.transport import Server, backoff
from silomix.runtime.net.wire import digest_field, read_round_key, write_manifest
from silomix.runtime.nodes.facts import read_aggregator, read_servers, write_aggregator
from silomix.runtime.nodes.lookout import Lookout
from silomix.runtime.nodes.node import GRACE_S, RETRY_S, Driver
from silomix.runtime.nodes.passage import Partition, Passage
from silomix.runtime.nodes.rows import make_passage
from silomix.runtime.nodes.shuffler import LATE_S, in_time
from silomix.runtime.observe.metrics import HopState
from silomix.runtime.store.files import sweep, write_atomically
from silomix.runtime.store.home import NODE_FILE
from silomix.runtime.store.modelfile import model_digest, read_model, write_model
from silomix.runtime.task import Task, evaluate_task, load_task
from silomix.v1 import services_pb2

CALL_S = 10.0
"""Time that a hop has to answer a small call."""
DELTA = 1e-5
"""At which the epsilon of noise in the sums is told."""
FAREWELL_S = 2.0
"""Time that silos, and whoever watches the status, have to hear that the federation is done."""

Answered = TypeVar("Answered")


class AggregatorNode(Driver[core.Event, core.Effect]):
    """Drives the aggregator's state machine."""

    weighty = (core.KeysIn,)

    def __init__(self, config: NodeConfig) -> None:
        """Find the newest model, and recall what the journal has."""
        super().__init__(config)
        self.core = self.machine = core.Aggregator(self.federation, self.identity, os.urandom)
        for fact in read_aggregator(self.journal):
            self.core.recall(fact)
        newest = self.core.model or None
        made = max(read_servers(self.journal).items(), default=None)
        self.models = config.state.models
        self.models.mkdir(parents=True, exist_ok=True)
        sweep(self.models)
        self.data = self._load(newest)
        self.schema, self.tensors = read_model(self.data)
        if problem := pin_problem(self.schema, self.federation.policy):
            where = config.directory.parent / NODE_FILE
            raise ConfigError(where, "initial_model", f"the model that is here {problem}; give one of the agreed task")
        self.model = model_digest(self.schema, self.tensors)
        self.optimiser = Optimiser.of(self.federation.policy)
        self.moments = self._load_moments(newest, made)
        options = {**self.federation.policy.task_options}
        self.task: Task | None = load_task(self.federation.policy.task, options) if config.evaluate else None
        self.passage: Passage | None = None
        self._applying: tuple[Manifest, asyncio.Future[services_pb2.Delivery]] | None = None
        """The newest sum that is here, and the word for the last hop once its model is durable."""
        self.announced: tuple[bytes, bool] | None = None
        """The newest announcement as all watchers get it, and whether it is the last."""
        self._opened_at = 0.0
        self.present: dict[str, int] = {}
        self.history: list[services_pb2.RoundStatus] = [
            services_pb2.RoundStatus.FromString(value)
            for round_, _, value in self.journal.facts("done")
            if round_ < self.core.round
        ]
        self.hop_states: dict[str, str] = {}
        self._news = asyncio.Condition()
        self._leaving = False
        self._phase_began = self.clock()
        self._round_began = self.clock()
        self._lookout = Lookout(self.core, self.spawn, self._probe, self._lost)
        self.events.on_presence = self._lookout.hint

    def _load(self, newest: bytes | None) -> bytes:
        """Read the model that the journal names, or the initial one."""
        if newest is not None:
            path = self.config.state.model(newest)
            if path.exists():
                return path.read_bytes()
        initial = self.config.initial_model
        if initial is None or not initial.exists():
            raise ConfigError(
                self.config.directory.parent / NODE_FILE,
                "initial_model",
                f"{initial or 'nothing'} is there: write it with `silomix model init`",
            )
        return initial.read_bytes()

    def _load_moments(self, newest: bytes | None, made: tuple[int, str] | None) -> dict[str, Array]:
        """Read the state of the server's optimiser as the last round left it, or start it at rest."""
        if not self.optimiser.slots or newest is None or made is None or made[1] != self.optimiser.kind:
            return self.optimiser.start(self.schema)
        path = self.config.state.moments(newest, made[0])
        if not path.exists():
            raise ConfigError(path, "", "is missing: the server's optimiser cannot go on without it; put it back")
        return read_model(path.read_bytes())[1]

    def _keep_moments(self, path: Path, moments: dict[str, Array]) -> None:
        if self.optimiser.slots:
            write_atomically(path, write_model(self.optimiser.state_schema(self.schema), moments))

    async def main(self) -> None:
        """Serve, and run round after round until all are done."""
        server = Server(self.config.listen, self.tls, self.limits, self.limits.at_aggregator)
        server.serve(self, SERVICES["AggregatorService"].full_name, _Service(self).methods, self.renewal.services)
        await server.start()
        self.log.info("serving", address=self.config.listen)
        try:
            self.spawn(self._lookout.watch())
            await self.insist(core.Start(self.model, self.schema, self.clock()))
            await self.keep_time(core.Tick, lambda: self.core.phase is core.Phase.FINISHED)
            await (self.stopping.wait() if self.config.linger else asyncio.sleep(FAREWELL_S))
        finally:
            async with self._news:  # watchers would hold the server up: they come back to whoever is here next
                self._leaving = True
                self._news.notify_all()
            await server.stop(GRACE_S)

    def remember(self, fact: core.Fact) -> None:
        """Write a fact, durably."""
        write_aggregator(self.journal, fact, str(self.optimiser.kind))

    async def perform(self, effect: core.Effect) -> core.Event | None:
        """Carry one decision out."""
        match effect:
            case core.AskKeys():
                self._began(effect)
                for hop in effect.chain:
                    self.spawn(self._ask(hop, effect))
            case core.OpenAt(manifest, unnamed):
                self.passage = make_passage(manifest, self.config.name, self.workers, private=unnamed)
                self._opened_at = self.clock()
                self.spawn(self._open_all(manifest))
            case core.Announce(manifest):
                self.metrics.phase_took("prepare", self._lap())
                self.log.info("announced", model=manifest.model.hex()[:12])
                await self._tell(services_pb2.Announcement(manifest=write_manifest(manifest)))
                invited = len(manifest.invited or self.federation.silos)
                self.events.round("announced", manifest.round, manifest.attempt, invited=invited)
            case core.Expand(header, key):
                assert self.passage is not None
                try:
                    await self.passage.add_header(header, key, self.spawn)
                except PeerFault:
                    return core.Unopened(header)
            case core.Accuse(evidence):
                self.log.warning(str(Accusation(evidence)), peer=evidence.silo)
            case core.Take(cohort):
                self.metrics.phase_took("collect", self._lap())
                self.metrics.cohort(len(cohort.participants))
                self.events.round("closed", self.core.round, self.core.attempt, cohort=len(cohort.participants))
            case core.Apply(manifest):
                passage, self.passage = self.passage, None  # applied once, however often it comes
                assert passage is not None
                assert self._applying is not None
                self.metrics.phase_took("release", self._lap())
                self.spawn(self._apply(passage, self._applying[1]))
            case core.GiveUp():
                if self.passage is not None:  # or the last hop would keep its stream open for nothing
                    self.passage.refuse(PeerFault(Reason.WRONG_ATTEMPT, "the attempt was given up"))
                    self.passage.close()
                self.passage = None
                outcome: Literal["abandoned", "aborted"] = "abandoned" if effect.abandoned else "aborted"
                self.metrics.ended(outcome)
                self.log.warning(f"attempt {outcome}: {effect.why}")
                self.events.round(outcome, effect.round, effect.attempt, hops=tuple(self.core.trouble))
                if effect.abandoned:
                    seconds = self.clock() - self._round_began
                    await self._done(
                        services_pb2.RoundStatus(round=effect.round, attempts=effect.attempt, seconds=seconds)
                    )
            case core.Finish():
                if any(done.cohort for done in self.history):
                    self.log.info("all rounds are done")
                else:
                    self.log.error("all rounds are over, and no silo contributed to any: there is no trained model")
                finished = services_pb2.Finished(round=max(1, effect.round))
                await self._tell(services_pb2.Announcement(finished=finished))
                self.metrics.finished()
                self.events.round("finished", max(1, effect.round), 0)
            case Remember():
                pass
        return None

    def _began(self, effect: core.AskKeys) -> None:
        if effect.attempt == 1:
            self._round_began = self.clock()
        self._lap()
        # A hop that was in trouble stays so until it answers.
        self.hop_states = {}
        for hop in effect.chain:
            self._hop(hop, "unreachable" if hop in self.core.trouble else "ready")
        self.metrics.attempt(effect.round, effect.attempt)
        self.log = self.log.bind(round=effect.round, attempt=effect.attempt)

    def _lap(self) -> float:
        now = self.clock()
        lap, self._phase_began = now - self._phase_began, now
        return lap

    async def _tell(self, news: services_pb2.Announcement) -> None:
        async with self._news:
            self.announced = (news.SerializeToString(), news.WhichOneof("news") == "finished")
            self._news.notify_all()

    async def _until_answered(
        self, hop: str, number: tuple[int, int], call: Callable[[Line], Awaitable[Answered]]
    ) -> Answered | None:
        """Call a hop until it answers or the attempt is over; say what is wrong with it meanwhile."""
        async for attempt in backoff():
            if (self.core.round, self.core.attempt) != number or self.core.phase is core.Phase.FINISHED:
                return None
            try:
                return await call(self.line(hop))
            except grpc.aio.AioRpcError as error:
                fault = fault_of(error)
                why = str(fault) if fault else f"not reachable ({error.code().name.lower()})"
            except PeerFault as unread:
                self.metrics.rejected(unread.reason)
                why = str(unread)
            self._hop(hop, "unreachable")
            await self.insist(core.HopFailed(hop, why, self.clock()))
            if attempt % 10 == 0:
                self.log.warning(f"hop in trouble: {why}", peer=hop)
        return None

    def _hop(self, hop: str, state: HopState) -> None:
        self.hop_states[hop] = state
        self.metrics.hop(hop, state)

    async def _probe(self, hop: str, manifest: bytes, timeout_s: float) -> str:
        return await has_attempt(self.channel_to(hop), manifest, timeout_s, self.metadata)

    async def _lost(self, hop: str, manifest: bytes, why: str) -> None:
        self._hop(hop, "unreachable")
        self.log.warning(f"hop lost: {why}", peer=hop)
        await self.insist(core.HopLost(hop, manifest, why, self.clock()))

    async def _ask(self, hop: str, effect: core.AskKeys) -> None:
        request = services_pb2.PrepareRequest(
            federation_digest=self.federation.digest,
            round=effect.round,
            silos=effect.silos,
            known_released=self.core.hop_released.get(hop, 0),
            attempt=effect.attempt,
        )
        kind, limit = services_pb2.PrepareResponse, self.limits.keys

        def call(line: Line) -> Awaitable[services_pb2.PrepareResponse]:
            return line.ask(method("ShufflerService", "Prepare"), request, kind, limit, CALL_S)

        answer = await self._until_answered(hop, (effect.round, effect.attempt), call)
        if answer is None or (self.core.round, self.core.attempt) != (effect.round, effect.attempt):
            return
        self._hop(hop, "ready")
        try:
            keys = tuple(read_round_key(k) for k in answer.keys)
            await self.insist(core.KeysIn(hop, keys, answer.last_released, self.clock()))
        except PeerFault as fault:
            self.metrics.rejected(fault.reason)
            await self.insist(core.HopFailed(hop, str(fault), self.clock()))

    async def _open_all(self, manifest: Manifest) -> None:
        """Open the attempt from the last hop to the first, so that each finds the next one ready."""
        request = services_pb2.OpenRequest(manifest=write_manifest(manifest))
        for hop in reversed(manifest.chain):
            await self._open(hop, manifest, request)

    async def _open(self, hop: str, manifest: Manifest, request: services_pb2.OpenRequest) -> None:
        def call(line: Line) -> Awaitable[services_pb2.OpenResponse]:
            what = method("ShufflerService", "Open")
            return line.ask(what, request, services_pb2.OpenResponse, SMALL_BYTES, CALL_S)

        answer = await self._until_answered(hop, (manifest.round, manifest.attempt), call)
        if answer is not None:
            self._hop(hop, "open")
            await self.insist(core.OpenedAt(hop, answer.manifest_digest, self.clock()))

    async def take_sum(self, peer: str, frames: Inbox[services_pb2.RelayFrame]) -> services_pb2.Delivery:
        """Take in the cohort's sum from the last hop; answer when the next model is durable."""
        opening = (await frames.due("open")).open
        passage, applying = self.passage, self._applying
        digest = digest_field(opening.manifest_digest, "the manifest digest")
        if applying is not None and digest == applying[0].digest:  # the word that it is here was lost
            self._check_last(applying[0], peer, opening.hop)
            return await asyncio.shield(applying[1])
        if passage is None or digest != passage.manifest.digest:
            raise PeerFault(Reason.WRONG_MANIFEST, "the stream belongs to no open attempt")
        self._check_last(passage.manifest, peer, opening.hop)

        async def header_in(header: Header) -> None:
            for effect in await self.step(core.HeaderIn(header)):
                if isinstance(effect, core.Accuse):
                    raise Accusation(effect.evidence)

        def cohort_in(cohort: Cohort, groups: Partition) -> Awaitable[object]:
            return self.step(core.CohortIn(cohort, groups if isinstance(groups, tuple) else ()))

        frames.patience = None  # headers come as silos do, and chunks as the hops are done with them
        left = self._opened_at + self.limits.round_s + LATE_S - self.clock()
        async with in_time(left, f"{peer} did not come to an end in time"):
            receiving = passage.receive(frames, peer, self.federation, header_in, cohort_in)
            root = await passage.unless_refused(receiving)
        passage.received_bytes, passage.received_root = frames.bytes, root
        if self.passage is passage:
            self._applying = (passage.manifest, asyncio.get_running_loop().create_future())
            await self.step(core.SumIn(passage.manifest.digest))
        if self._applying is None or self._applying[0] is not passage.manifest:
            raise PeerFault(Reason.WRONG_ATTEMPT, "the attempt was given up")
        return await asyncio.shield(self._applying[1])

    def _check_last(self, manifest: Manifest, peer: str, says: str) -> None:
        if peer != manifest.chain[-1] or says != peer:
            raise PeerFault(Reason.WRONG_CHAIN, f"{peer} is not the last hop", peer=peer)

    async def _apply(self, passage: Passage, answer: asyncio.Future[services_pb2.Delivery]) -> None:
        """Make the next model of a sum that came through, and say so to the last hop when it is durable."""
        manifest, cohort = passage.manifest, passage.cohort
        assert cohort is not None
        size = len(cohort.participants)
        try:
            data, tensors, moments = await self.work(self._next_model, passage, size)
        except PeerFault as fault:  # out of range: nothing is published, and the chain is told
            self.log.error(f"no model is published: {fault.message}", reason=str(fault.reason))
            answer.set_exception(fault)
            answer.exception()  # nobody may be waiting any more
            await self.insist(core.SumRefused(manifest.digest, str(fault), self.clock()))
            return
        finally:
            passage.close()
        digest = await self.work(model_digest, manifest.schema, tensors)
        await self._durably(write_atomically, self.config.state.model(digest), data)
        kept = self.config.state.moments(digest, manifest.round)
        await self._durably(self._keep_moments, kept, moments)
        self.metrics.phase_took("apply", self._lap())
        seconds = self.clock() - self._round_began
        bits = 8 * passage.received_bytes / manifest.schema.parameters
        done = services_pb2.RoundStatus(
            round=manifest.round,
            attempts=manifest.attempt,
            cohort=size,
            seconds=seconds,
            bits_per_parameter=bits,
            score=await self._evaluate(tensors),
        )
        self.metrics.body("received", wire_encoding(manifest), passage.received_bytes, manifest.schema.parameters)
        self.metrics.round_took(seconds)
        self.metrics.ended("applied")
        self.data, self.tensors, self.moments, self.model = data, tensors, moments, digest
        await self._durably(self.journal.put, "done", done.round, "", done.SerializeToString())
        self.history.append(done)
        self.log.info("applied", cohort=size, seconds=round(seconds, 2), accuracy=done.score if self.task else None)
        self._account(manifest)
        self.events.applied(done)
        await self.insist(core.SumApplied(manifest.digest, digest, size, self.clock()))
        root = passage.received_root
        signature = self.identity.sign(delivery_digest(self.config.name, manifest.digest, root))
        answer.set_result(services_pb2.Delivery(name=self.config.name, root=root, signature=signature))
        for old in set(self.models.glob("*.moments")) - {kept}:  # the round is in the journal
            old.unlink()

    async def _durably(self, write: Callable[..., None], *arguments: object) -> None:
        """Write something that must not be lost: a full disk holds it up until there is room."""
        while True:
            try:
                await self.work(write, *arguments)
            except OSError as error:
                self.log.error(f"cannot write, trying again: {error}")
                await asyncio.sleep(RETRY_S)
            else:
                return

    def _account(self, manifest: Manifest) -> None:
        """Say what the noise in the sums has left of the promise to a silo, if it is in every round."""
        f = self.federation
        if f.noise.variance:
            epsilon = spent(f.policy, manifest.schema.parameters, manifest.round, DELTA, f.contributors)
            self.log.info(f"epsilon {epsilon:.3g} spent at delta {DELTA:g}, for each silo as a whole")

    async def _done(self, status: services_pb2.RoundStatus) -> None:
        """Add a round to the history, which outlives the process."""
        await self.work(self.journal.put, "done", status.round, "", status.SerializeToString())
        self.history.append(status)

    def _next_model(self, passage: Passage, size: int) -> tuple[bytes, dict[str, Array], dict[str, Array]]:
        """Make the next model of the sum that came, and the next state of the server's optimiser."""
        manifest, policy = passage.manifest, self.federation.policy
        mean = combine(passage.decode(size, self.federation.noise.slack), manifest.schema, policy.server)
        change = manifest.update is UpdateKind.DELTA
        model, moments = step(self.optimiser, manifest.schema, self.tensors, mean, self.moments, change=change)
        return write_model(manifest.schema, model), model, moments

    async def _evaluate(self, tensors: dict[str, Array]) -> float | None:
        if self.task is None:
            return None
        try:
            accuracy = (await self.work(evaluate_task, self.task, tensors))["accuracy"]
        except (UserError, Fault) as error:  # the round is over all the same: silos have done their part
            self.log.error(f"the model is not measured: {error}")
            return None
        self.metrics.accuracy(accuracy)
        return accuracy

    def status(self) -> services_pb2.GetStatusResponse:
        """Tell how the federation is doing."""
        return services_pb2.GetStatusResponse(
            federation=self.federation.name,
            round=min(self.core.round, self.federation.policy.rounds),
            attempt=self.core.attempt,
            rounds=self.federation.policy.rounds,
            phase=self.core.phase,
            present=sorted(self.present),
            cohort=self.history[-1].cohort if self.history else 0,
            hops=[
                services_pb2.HopStatus(name=hop, state=state, trouble=self.core.trouble.get(hop, "")[:TEXT_BYTES])
                for hop, state in self.hop_states.items()
            ],
            history=self.history[-HISTORY:],
        )

    def last_hops(self) -> tuple[str, ...]:
        """Whose sum may come: the last hop's of the open attempt, and of the one that is being applied or was."""
        known = [self.passage.manifest] if self.passage is not None else []
        if self._applying is not None:
            known.append(self._applying[0])
        if not known:
            raise PeerFault(Reason.WRONG_MANIFEST, "no attempt is open here")
        return tuple(manifest.chain[-1] for manifest in known)

    async def news(self, peer: str) -> AsyncGenerator[bytes, None]:
        """Yield what is announced, the attempt that is open first, and count who listens."""
        self.present[peer] = self.present.get(peer, 0) + 1
        self.metrics.silos_present(len(self.present))
        last = None
        try:
            while True:
                async with self._news:
                    while self.announced is last and not self._leaving:
                        await self._news.wait()
                    if self.announced is None or self.announced is last:
                        return
                    last = self.announced
                yield last[0]
                if last[1]:
                    return
        finally:
            self.present[peer] -= 1
            if not self.present[peer]:
                del self.present[peer]
            self.metrics.silos_present(len(self.present))


class _Service:
    """The calls that an aggregator answers."""

    def __init__(self, node: AggregatorNode) -> None:
        self.node = node

    @property
    def methods(self) -> dict[str, Method]:
        """Who may call what: decided by name and place, before anything is read."""
        return {
            "Watch": Method(self._silo, self._watch),
            "GetModel": Method(self._silo, self._get_model),
            "Deliver": Method(self._last_hop, self._deliver),
            "GetStatus": Method(anybody, self._get_status, Room(QUESTIONS_EACH), seen=False),
        }

    def _silo(self, peer: str) -> None:
        """Let silos in: a hop that had two models in a row would have the sum between them."""
        if peer not in self.node.federation.silo_names:
            raise PeerFault(Reason.UNKNOWN_PEER, f"{peer} is not a silo: models are for silos", peer=peer)

    def _last_hop(self, peer: str) -> None:
        if peer not in self.node.last_hops():
            raise PeerFault(Reason.WRONG_CHAIN, f"{peer} is not the last hop", peer=peer)

    async def _watch(self, call: Call) -> None:
        request = await call.request(services_pb2.WatchRequest, SMALL_BYTES)
        self.node.federation.check_same(request.federation_digest, call.peer)
        async with aclosing(self.node.news(call.peer)) as news:
            async for raw in news:
                await call.send(services_pb2.Announcement.DESCRIPTOR.full_name, raw)

    async def _get_model(self, call: Call) -> None:
        request = await call.request(services_pb2.GetModelRequest, SMALL_BYTES)
        node, data = self.node, self.node.data
        for start in range(0, len(data), PART_BYTES):
            if request.model_digest != node.model:  # also in between: a slow reader must not keep an old one in memory
                raise PeerFault(Reason.WRONG_MODEL, "that is not the current model")
            part = services_pb2.ModelPart(total_bytes=len(data), data=data[start : start + PART_BYTES])
            await call.answer(part)

    async def _deliver(self, call: Call) -> None:
        frames = Inbox(call, services_pb2.RelayFrame, self.node.limits)
        await call.answer(await self.node.take_sum(call.peer, frames))

    async def _get_status(self, call: Call) -> None:
        await call.request(services_pb2.GetStatusRequest, SMALL_BYTES)
        await call.answer(self.node.status())
