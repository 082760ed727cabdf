"""The aggregator process: announces attempts, serves the model, takes sums in, and makes the next model of them."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Literal

import grpc

from silomix.runtime.config.load import NodeConfig
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import Fault, PeerFault, Reason, UserError
from silomix.runtime.core.learning.bounds import bounds_of
from silomix.runtime.core.learning.noise_account import spent
from silomix.runtime.core.learning.optimise import Optimiser
from silomix.runtime.core.numbers.codec import Aggregate
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.schema import Array
from silomix.runtime.core.policy import AUTO
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.check.blame import EquivocationError
from silomix.runtime.core.protocol.check.said import checks
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.core.protocol.lineage import Transcript, check_root, decode, follows, next_model, uncover
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Accusation, Cohort, Header, Manifest, delivery_digest
from silomix.runtime.core.protocol.release import Ready
from silomix.runtime.core.protocol.roundlog import Outcome, Record, beginning_problem, computed_digest
from silomix.runtime.core.protocol.rules import pin_problem, wire_encoding
from silomix.runtime.net.check.case import write_subject
from silomix.runtime.net.check.said import write_toss
from silomix.runtime.net.health import GAVE_UP, NOT_OPEN, has_attempt, is_there
from silomix.runtime.net.history import Written, write_record
from silomix.runtime.net.limits import HISTORY, SMALL_BYTES, TEXT_BYTES
from silomix.runtime.net.lines import SERVICES, method
from silomix.runtime.net.streams import Inbox
from silomix.runtime.net.transport import Server
from silomix.runtime.net.version import PROTOCOL
from silomix.runtime.net.wire import digest_field, write_manifest
from silomix.runtime.nodes.check.lead import Checking
from silomix.runtime.nodes.facts import read_aggregator, read_servers, write_aggregator
from silomix.runtime.nodes.lead.asking import Asking
from silomix.runtime.nodes.lead.collect import collect
from silomix.runtime.nodes.lead.recovery import Recovery
from silomix.runtime.nodes.lead.rollcall import GONE_S, SILENT_S, Probation, RollCall, meaning
from silomix.runtime.nodes.lead.service import Service
from silomix.runtime.nodes.lead.stuck import why
from silomix.runtime.nodes.lookout import Lookout
from silomix.runtime.nodes.node import DOUBLE, RETRY_S, Driver, Node
from silomix.runtime.nodes.passage import LastPassage, Partition, Passage
from silomix.runtime.nodes.pause import Pause
from silomix.runtime.nodes.rows import make_passage
from silomix.runtime.nodes.shuffler import LATE_S, in_time
from silomix.runtime.nodes.sums import KeptSums
from silomix.runtime.observe.metrics import HopState
from silomix.runtime.store.files import sweep, write_atomically
from silomix.runtime.store.home import INITIAL_MODEL, KEPT_ROUNDS, NODE_FILE
from silomix.runtime.store.modelfile import model_digest, read_model, write_model
from silomix.runtime.task import Task, evaluate_task, load_task
from silomix.v1 import services_pb2

DELTA = 1e-5
"""At which the epsilon of noise in the sums is told."""
FINISHED = core.Phase.FINISHED
DOUBLED_S = 120.0
"""For how long it is told that two processes of a hop were heard: greetings come twice a minute."""
HAND_OVER_S = 5.0
"""Time that a hop has to hear that an epoch is over."""
FAREWELL_S = 2.0
"""Time that silos, and whoever watches the status, have to hear that the federation is done."""
LOOK_S = 0.1
"""How often it is looked whether the last silo has left."""


class AggregatorNode(Driver[core.Event, core.Effect]):
    """Drives the aggregator's state machine."""

    weighty = (core.KeysIn, core.HeadIn, core.SumIn, core.TossIn, core.ProofIn, core.DefenceIn, core.PadsFalse)

    def __init__(self, config: NodeConfig) -> None:
        """Find the newest model, and recall what the journal has."""
        super().__init__(config)
        self.core = self.machine = core.Aggregator(self.federation, self.identity, os.urandom, config.epochs)
        for fact in read_aggregator(self.journal):
            self.core.recall(fact)
        newest = self.core.log.model or None
        self.models = config.state.models
        self.models.mkdir(parents=True, exist_ok=True)
        sweep(self.models)
        file = self._file_of(newest)
        self.data = file.read_bytes()
        self.schema, self.tensors = read_model(self.data, file)
        if problem := pin_problem(self.schema, self.federation.policy):
            where = config.directory.parent / NODE_FILE
            raise ConfigError(where, "initial_model", f"the model that is here {problem}; give one of the agreed task")
        self.model = model_digest(self.schema, self.tensors)
        if newest is None and (problem := beginning_problem(self.model, self.federation)):
            where = config.directory.parent / NODE_FILE
            raise ConfigError(where, "initial_model", f"the model that is here {problem}; put that one here")
        self.optimiser = Optimiser.of(self.federation.policy)
        self.moments = self.optimiser.start(self.schema)
        self.recovery = Recovery(self)
        self.asking = Asking(self)
        self.sums = KeptSums(config.state.sums)
        self.computed: dict[str, bytes] = {}
        """The silos that have computed the newest model themselves, with their signatures."""
        self._published = 0
        """Records that count: those that silos may have."""
        self._written = Written()
        self._knows = False
        """Whether the hops were heard, so that what is published is known."""
        options = {**self.federation.policy.task_options}
        self.task: Task | None = load_task(self.federation.policy.task, options) if config.evaluate else None
        self.passage: Passage | None = None
        self._taken: tuple[Manifest, services_pb2.Delivery] | None = None
        """The newest padded sum that is here, and the word for the last hop."""
        self.checking = Checking(self)
        self.called: tuple[bytes, ...] = ()
        """What silos were told of the open attempt's tamper check, step by step."""
        self.announced: bytes | None = None
        """The newest announcement as all watchers get it."""
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
        self.pause = Pause(config.state.paused, self.clock)
        self.clock = self.pause.now
        self._phase_began = self.clock()
        self._round_began = self.clock()
        self._lookout = Lookout(self.core, self.spawn, self._probe, self._lost)
        self.events.on_presence = self._lookout.hint
        self.missing_hops: dict[str, str] = {}
        """Hops that do not answer now, and why."""
        self._probation = Probation()
        self._rollcall = RollCall(self._is_there, self._called)

    def _file_of(self, newest: bytes | None) -> Path:
        """Find the model that the journal names, or the initial one."""
        if newest is not None:
            path = self.config.state.model(newest)
            if path.exists():
                return path
        initial = self.config.initial_model
        if initial is None or not initial.exists():
            home = self.config.directory.parent
            raise ConfigError(
                home / NODE_FILE,
                "initial_model",
                f"{initial or 'the model to begin with'} is not there: put the {INITIAL_MODEL} there that "
                f"`silomix assemble` wrote, or make it again with `silomix model init --config {home}`",
            )
        return initial

    @property
    def model_file(self) -> Path:
        """Where the newest model lies: the initial one, as long as no round was applied."""
        path = self.config.state.model(self.model)
        return path if path.exists() or self.config.initial_model is None else self.config.initial_model

    @property
    def state_at_rest(self) -> bytes:
        """Digest of the server's state before the first round."""
        return self._state_digest(self.optimiser.start(self.schema))

    def _load_moments(self) -> dict[str, Array]:
        """Read the state of the server's optimiser as the last round left it, or start it at rest."""
        newest, made = self.core.log.model, max(read_servers(self.journal).items(), default=None)
        if not self.optimiser.slots or not newest or made is None or made[1] != self.optimiser.kind:
            return self.optimiser.start(self.schema)
        path = self.config.state.moments(newest, made[0])
        if not path.exists():
            raise ConfigError(path, "", "is missing: the server's optimiser cannot go on without it; put it back")
        return read_model(path.read_bytes())[1]

    def _keep_moments(self, path: Path, moments: dict[str, Array]) -> None:
        if self.optimiser.slots:
            write_atomically(path, write_model(self.optimiser.state_schema(self.schema), moments))

    def previous_file(self) -> Path | None:
        """Where the model before the newest one lies, if bounds follow from it."""
        digest = self.core.log.before
        if self.federation.policy.bound != AUTO or not digest:
            return None
        path = self.config.state.model(digest)
        return self.initial[1] if not path.exists() and digest == self.initial[0] else path

    def _bounds_here(self) -> tuple[float, ...]:
        """Compute the bounds of the round that is next from the files that are here."""
        path = self.previous_file()
        if path is not None and not path.exists():
            raise ConfigError(path, "", "is missing: the next round's bounds follow from it; put it back")
        previous = None if path is None else read_model(path.read_bytes())[1]
        return bounds_of(self.federation.policy, self.schema, self.tensors, previous)

    async def main(self) -> None:
        """Serve, and run round after round until all are done."""
        server = Server(self.config.listen, self.tls, self.limits, self.limits.at_aggregator)
        server.serve(self, SERVICES["AggregatorService"].full_name, Service(self).methods, self.renewal.services)
        await server.start()
        self.pulse.serving = True
        self.log.info("serving", address=self.config.listen)
        try:
            self.spawn(self._lookout.watch())
            for hop in self.federation.chain:
                self.spawn(self._rollcall.watch(hop))
            await self.insist(core.Awake(self.clock()))
            await self.keep_time(core.Tick, lambda: self.core.phase is core.Phase.FINISHED)
            await (self.stopping.wait() if self.config.linger else self._farewell())
        finally:
            async with self._news:  # watchers would hold the server up: they come back to whoever is here next
                self._leaving = True
                self._news.notify_all()
            await server.stop(self.grace_s)

    def _read(self) -> None:
        """Read the model that the round log names, and what goes with it."""
        file = self._file_of(self.core.log.model or None)
        self.data = file.read_bytes()
        self.tensors = read_model(self.data, file)[1]
        self.model = model_digest(self.schema, self.tensors)
        self.moments = self._load_moments()
        told = {done.round for done in self.history}
        for record in self.core.log.records[1:]:
            if record.round not in told:
                self.history.append(
                    services_pb2.RoundStatus(
                        round=record.round, attempts=max(1, len(record.attempts)), cohort=len(record.silos)
                    )
                )
        self.history.sort(key=lambda done: done.round)

    async def loaded(self) -> None:
        """Begin, or go on, with what is on record: all of it is here now."""
        await self.work(self._read)
        state, bounds = self._state_digest(self.moments), await self.work(self._bounds_here)
        async with self._news:
            self._published = self.core.log.round - (not self.core.counts)
            self._news.notify_all()
        await self.insist(core.Start(self.model, state, self.schema, self.clock(), self._pending(), bounds))

    async def close(self) -> None:
        """Let go of everything, a sum that is half here included."""
        await super().close()
        if self.passage is not None:
            self.passage.close()

    async def _farewell(self) -> None:
        """Give silos the time to hear that the federation is done, and to compute the last model, or to adopt it.

        They watch until they have it. Nobody tells of a silo that has left, so it is looked for.
        """
        await asyncio.sleep(FAREWELL_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.federation.policy.release_s):
                while set(self.present) - set(self.computed) and follows(self.federation):  # noqa: ASYNC110 - see above
                    await asyncio.sleep(LOOK_S)

    def _state_digest(self, moments: dict[str, Array]) -> bytes:
        return model_digest(self.optimiser.state_schema(self.schema), moments)

    def _pending(self) -> core.Pending | None:
        """A release of the round that is next, kept before a restart."""
        for attempt in range(self.core.attempt, 0, -1):
            kept = self.sums.read(self.core.round, attempt)
            if kept is not None:
                return core.Pending(kept.manifest, kept.ready)
        return None

    def remember(self, fact: core.Fact) -> None:
        """Write a fact, durably."""
        write_aggregator(self.journal, fact, str(self.optimiser.kind))

    async def perform(self, effect: core.Effect) -> core.Event | None:
        """Carry one decision out."""
        match effect:
            case core.AskHeads(life, _, hops):
                for hop in hops:
                    self.hop_is(hop, "ready")
                    self.spawn(self.asking.head(hop, life))
            case core.Load(found):
                async with self._news:
                    self._published = self.core.log.round - (not self.core.counts)
                    self._knows = True
                    self._news.notify_all()
                self.spawn(self.recovery.load(found))
            case core.AskKeys():
                self._began(effect)
                self.spawn(self._ask_all(effect))
            case core.OpenAt(manifest, head, unnamed):
                kept = self.sums.body(manifest.round, manifest.attempt) if follows(self.federation) else None
                self.passage = make_passage(manifest, self.config.name, self.workers, private=unnamed, kept=kept)
                self._opened_at = self.clock()
                self.spawn(self.asking.open_all(manifest, head))
            case core.Announce(manifest):
                self.metrics.phase_took("prepare", self._lap())
                self.called = ()
                self.log.info("announced", model=manifest.model.hex()[:12])
                await self.tell(services_pb2.Announcement(manifest=write_manifest(manifest)))
                invited = len(manifest.invited or self.federation.silos)
                self.events.round("announced", manifest.round, manifest.attempt, invited=invited)
            case core.Expand(header, key):
                assert self.passage is not None
                try:
                    await self.passage.add_header(header, key, self.spawn)
                except PeerFault:
                    return core.Unopened(header)
            case core.Accuse(evidence):
                if (unsaid := self.unsaid(evidence.silo, "garbage")) is not None:
                    self.log.warning(str(Accusation(evidence)), peer=evidence.silo, **unsaid)
            case core.Take(cohort):
                self.metrics.phase_took("collect", self._lap())
                self.metrics.cohort(len(cohort.participants))
                self.events.round("closed", self.core.round, self.core.attempt, cohort=len(cohort.participants))
            case core.AskTosses(_, subject):
                self.metrics.phase_took("release", self._lap())
                await self._call(services_pb2.Announcement(check=write_subject(subject)))
            case core.AskScalars(manifest, subject, tosses, coin):
                news = services_pb2.Coin(tosses=[write_toss(toss) for toss in tosses])
                await self._call(services_pb2.Announcement(coin=news))
                for hop in manifest.chain:
                    self.spawn(self.checking.ask_scalars(hop, manifest, subject, tosses))
                self.spawn(self.checking.measure(manifest, subject, coin))
            case core.AskProofs(manifest, subject, check):
                for hop in manifest.chain:
                    self.spawn(self.checking.ask_proof(hop, manifest, subject, check))
            case core.AskDefence(manifest, finding, subject, check):
                self.spawn(self.checking.ask_defence(manifest, finding, subject, check))
            case core.Convict():
                await self.checking.convict(effect)
            case core.AskReady(ready, chain, check):
                self.metrics.phase_took("release" if check is None else "check", self._lap())
                for hop in chain:
                    self.spawn(self.asking.ready(hop, ready, check))
            case core.Keep():
                await self._keep(effect)
            case core.AskPads(ready, signatures, bond):
                self.metrics.phase_took("ready", self._lap())
                self.metrics.bound(is_bound=True)
                for trail in ready.trails:
                    self.spawn(self.asking.pad(trail.hop, ready.manifest, signatures, bond))
            case core.Apply(manifest, ready, pads):
                self.metrics.phase_took("reveal", self._lap())
                passage, self.passage = self.passage, None
                self.spawn(self._apply(manifest, ready, pads, passage))
            case core.AskStore(record, hops):
                for hop in hops:
                    self.spawn(self.asking.store(hop, record))
            case core.Publish(record):
                lap = self._lap()
                if record.round:  # record 0 is of no round
                    self.metrics.phase_took("record", lap)
                self.metrics.head(record.round)
                self.metrics.bound(is_bound=False)
                await self.work(self.sums.forget, record.round - KEPT_ROUNDS + 1)
                async with self._news:
                    self._published, self.computed = record.round + 1, {}
                    self._news.notify_all()
                with suppress(OSError):  # they go with the next record
                    await self.work(collect, self.config.state, self.core.log, self.history, self.config.keep_models)
            case core.Switch(epoch):
                self.spawn(self._hand_over(epoch))
            case core.GiveUp():
                if self.passage is not None:  # or the last hop would keep its stream open for nothing
                    self.passage.refuse(PeerFault(Reason.WRONG_ATTEMPT, "the attempt was given up"))
                    self.passage.close()
                self.passage = None
                outcome: Literal["abandoned", "aborted"] = "abandoned" if effect.abandoned else "aborted"
                self.metrics.ended(outcome)
                self.log.warning(f"attempt {outcome}: {effect.why}")
                self.events.round(outcome, effect.round, effect.attempt, hops=tuple(self.core.trouble))
                if effect.abandoned and (stuck := self._stuck()):
                    self.log.error(f"the model is bound: {stuck}")
                if effect.abandoned:
                    seconds = self.clock() - self._round_began
                    await self._done(
                        services_pb2.RoundStatus(round=effect.round, attempts=effect.attempt, seconds=seconds)
                    )
            case core.Finish():
                if effect.barred:
                    who = ", ".join(effect.barred)
                    self.log.error(
                        f"the federation stops: {who} was shown to have lied, and there is no chain without it; the "
                        f"evidence is in {self.checking.evidence}, and the newest model in {self.model_file}",
                        peer=effect.barred[0],
                    )
                elif effect.converged:
                    self.log.info("the last round left the model as it was: converged")
                elif any(done.cohort for done in self.history):
                    self.log.info("all rounds are done")
                else:
                    self.log.error("all rounds are over, and no silo contributed to any: there is no trained model")
                finished = services_pb2.Finished(round=max(1, effect.round))
                await self.tell(services_pb2.Announcement(finished=finished))
                self.metrics.finished()
                self.events.round("finished", max(1, effect.round), 0)
            case Remember():
                pass
        return None

    @property
    def listening(self) -> tuple[str, ...]:
        """The silos that wait for announcements here."""
        return tuple(self.present)

    @property
    def counted(self) -> Sequence[Record]:
        """The records of the round log that are known to count."""
        records = self.core.log.records
        return records if self.core.counts else records[:-1]

    async def epochs_in(self, epochs: Epochs, following: bytes) -> None:
        """Tell the machine that another epoch counts here."""
        await self.insist(core.EpochsIn(epochs, following))

    def made_of(self, config: NodeConfig) -> Node:
        """Make the node of the next epoch; what measures models stays."""
        made = super().made_of(config)
        assert isinstance(made, AggregatorNode)
        made.task = self.task
        return made

    async def _hand_over(self, epoch: bytes) -> None:
        """Let hops know that the record counts which names another epoch, and go on there.

        Whoever does not hear it now hears it from the aggregator of the next epoch.
        """
        record = self.core.log.records[-1]

        async def tell(hop: str) -> None:
            request = services_pb2.StoreRequest(records=[write_record(record)], life=self.core.life)
            what = method("ShufflerService", "Store")
            with suppress(grpc.aio.AioRpcError, PeerFault):
                await self.line(hop).ask(what, request, services_pb2.StoreResponse, SMALL_BYTES, HAND_OVER_S)

        await asyncio.gather(*(tell(hop) for hop in self.federation.chain))
        while True:
            try:
                return self.switch(epoch)
            except OSError as error:  # nobody would ask again
                self.log.error(f"cannot write, trying again: {error}")
                await asyncio.sleep(RETRY_S)

    def _began(self, effect: core.AskKeys) -> None:
        if effect.attempt == 1:
            self._round_began = self.clock()
        self._lap()
        # A hop that was in trouble stays so until it answers.
        for hop in self.federation.chain:
            self.hop_is(hop, "unreachable" if hop in self.core.trouble or hop in self.missing_hops else "ready")
        self.metrics.attempt(effect.round, effect.attempt)
        self.log = self.log.bind(round=effect.round, attempt=effect.attempt)

    def _lap(self) -> float:
        now = self.clock()
        lap, self._phase_began = now - self._phase_began, now
        return lap

    async def tell(self, news: services_pb2.Announcement) -> None:
        """Let all watchers have a piece of news."""
        async with self._news:
            self.announced = news.SerializeToString()
            self._news.notify_all()

    async def _call(self, news: services_pb2.Announcement) -> None:
        """Tell silos of the next step of a check; those that come back hear of all steps so far."""
        async with self._news:
            self.called = (*self.called, news.SerializeToString())
            self._news.notify_all()

    def is_in(self, phase: core.Phase, manifest: bytes) -> bool:
        """Whether an attempt is in this phase."""
        now = self.core.manifest
        return self.core.phase is phase and now is not None and now.digest == manifest

    def hop_is(self, hop: str, state: HopState) -> None:
        """Show what a hop was last seen to be."""
        self.hop_states[hop] = state
        self.metrics.hop(hop, state)

    async def _probe(self, hop: str, manifest: bytes, timeout_s: float) -> str:
        self.redial(hop)
        return await has_attempt(self.channel_to(hop), manifest, timeout_s, self.metadata)

    async def _lost(self, hop: str, manifest: bytes, why: str) -> None:
        if why == NOT_OPEN and await self.asking.opened_again(hop, manifest):
            return
        if why != GAVE_UP or not self.core.missing(self.clock()):  # hop 1 gives up, as it should, if too few came
            self.hop_is(hop, "unreachable")
            self.log.warning(f"hop lost: {why}", peer=hop)
        await self.insist(core.HopLost(hop, manifest, why, self.clock(), restarted=why == NOT_OPEN))

    async def _is_there(self, hop: str, timeout_s: float) -> str:
        self.redial(hop)
        return await is_there(self.channel_to(hop), SERVICES["ShufflerService"].full_name, timeout_s, self.metadata)

    async def _called(self, hop: str, why: str, seconds: float) -> None:
        """Say at once that a hop does not answer, and what that means; and have rounds go on without it in time."""
        if self.core.phase is FINISHED:
            return
        if not why:
            back = self._probation.over(hop, self.clock())
            if hop in self.missing_hops and (back or not self._spared(hop)):
                del self.missing_hops[hop]
                self.log.info("the hop is back: the next attempt passes it again", peer=hop)
                self.events.round("hop_back", self.core.round, self.core.attempt, hops=(hop,))
                if self.hop_states.get(hop) == "unreachable":
                    self.hop_is(hop, "ready")
                await self.insist(core.HopBack(hop, self.clock()))
            elif hop in self.missing_hops:
                due = self._probation.due_s(hop)
                self.missing_hops[hop] = f"it was lost again and again, and is to answer for {due:.0f} s first"
            return
        self._probation.silent(hop)
        if seconds >= SILENT_S:
            said = hop in self.missing_hops
            self.missing_hops[hop] = why
            self.hop_is(hop, "unreachable")
            if not said:
                means = meaning(self.federation.chain_rule, len(self.missing_hops))
                self.log.error(f"hop does not answer: {why}; {means}", peer=hop)
                self.events.round("hop_lost", self.core.round, self.core.attempt, hops=(hop,))
        if seconds >= GONE_S:
            if hop not in self.core.gone:
                self._probation.lost(hop)
                if due := self._probation.due_s(hop):
                    self.log.warning(f"lost again: rounds pass it when it has answered for {due:.0f} s", peer=hop)
            await self.insist(core.HopGone(hop, f"lost: {why}", self.clock(), tuple(self.present)))

    def _spared(self, hop: str) -> bool:
        """Whether rounds go on without a hop that counts as lost."""
        here = set(self.federation.chain) - self.core.gone
        return hop in self.core.gone and len(here) >= self.federation.chain_rule.minimum

    async def _ask_all(self, effect: core.AskKeys) -> None:
        await self.pause.over(self._paused)
        for hop in effect.chain:
            self.spawn(self.asking.keys(hop, effect))

    def _paused(self, on: bool) -> None:
        self.log.info("paused: `silomix resume` goes on" if on else "resumed")
        self.metrics.paused(on=on)
        self.events.round("paused" if on else "resumed", self.core.round, self.core.attempt)

    async def _keep(self, effect: core.Keep) -> None:
        """Make a padded sum durable before this node signs for it: from then on it must not be lost."""
        passage = self.passage
        if not isinstance(passage, LastPassage) or passage.cohort is None:
            return
        headers = {header.digest: header for header in passage.headers}
        wanted = tuple(headers[p.header] for p in passage.cohort.participants)
        seeds = passage.seeds_of(passage.cohort)
        await self.work(passage.keep)
        kept = Transcript(effect.manifest, passage.cohort, wanted, effect.ready, effect.signatures, seeds=seeds)
        await self.work(self.sums.write, replace(kept, bodies=effect.bodies, check=effect.check))

    async def take_sum(self, peer: str, frames: Inbox[services_pb2.RelayFrame]) -> services_pb2.Delivery:
        """Take in the cohort's padded sum from the last hop; answer when all of it is here."""
        opening = (await frames.due("open")).open
        passage, taken = self.passage, self._taken
        digest = digest_field(opening.manifest_digest, "the manifest digest")
        if taken is not None and digest == taken[0].digest:  # the word that it is here was lost
            self._check_last(taken[0], peer, opening.hop)
            return taken[1]
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
            try:
                root = await passage.unless_refused(receiving)
            except EquivocationError as error:
                await self.step(core.LieSeen(error.verdict, self.clock()))
                raise
        passage.received_bytes = frames.bytes
        if self.passage is not passage:
            raise PeerFault(Reason.WRONG_ATTEMPT, "the attempt was given up")
        if self._taken is None or self._taken[0] is not passage.manifest:
            await self.step(core.SumIn(passage.manifest.digest, passage.trails, self.clock(), passage.bodies))
            signature = self.identity.sign(delivery_digest(self.config.name, passage.manifest.digest, root))
            delivery = services_pb2.Delivery(name=self.config.name, root=root, signature=signature)
            self._taken = (passage.manifest, delivery)
        return self._taken[1]

    def _check_last(self, manifest: Manifest, peer: str, says: str) -> None:
        if peer != manifest.chain[-1] or says != peer:
            raise PeerFault(Reason.WRONG_CHAIN, f"{peer} is not the last hop", peer=peer)

    async def _apply(
        self, manifest: Manifest, ready: Ready, pads: tuple[tuple[str, Secret], ...], passage: Passage | None
    ) -> None:
        """Make the next model of a sum that can be read now."""
        case, made = None, None
        try:
            if checks(self.federation):
                case = await self.work(self.checking.false_pad, manifest, pads)
            if case is None:
                await self.durably(self._keep_pads, manifest, pads)
                made = await self.work(self._next_model, manifest, ready, pads, passage)
        except Fault as fault:  # out of range, or no bounds follow from it: nothing is published
            self.log.error(f"no model is published: {fault.message}", reason=str(fault.reason))
            await self.insist(core.SumRefused(manifest.digest, str(fault), self.clock()))
            return
        finally:
            if passage is not None:
                passage.close()
        if made is None:
            assert case is not None
            await self.insist(core.PadsFalse(case, self.clock()))
            return
        data, tensors, moments, bounds, size, received = made
        digest = await self.work(model_digest, manifest.schema, tensors)
        await self.durably(write_atomically, self.config.state.model(digest), data)
        kept = self.config.state.moments(digest, manifest.round)
        await self.durably(self._keep_moments, kept, moments)
        self.metrics.phase_took("apply", self._lap())
        seconds = self.clock() - self._round_began
        bits = 8 * received / manifest.schema.parameters
        done = services_pb2.RoundStatus(
            round=manifest.round,
            attempts=manifest.attempt,
            cohort=size,
            seconds=seconds,
            bits_per_parameter=bits,
            score=await self._evaluate(tensors),
        )
        self.metrics.body("received", wire_encoding(manifest), received, manifest.schema.parameters)
        self.metrics.round_took(seconds)
        self.metrics.ended("applied")
        self.data, self.tensors, self.moments, self.model = data, tensors, moments, digest
        await self.durably(self.journal.put, "done", done.round, "", done.SerializeToString())
        self.history.append(done)
        self.log.info("applied", cohort=size, seconds=round(seconds, 2), accuracy=done.score if self.task else None)
        self._account(manifest)
        self.events.applied(done)
        state = await self.work(self._state_digest, moments)
        await self.insist(core.SumApplied(manifest.digest, digest, state, self.clock(), bounds))
        for old in set(self.models.glob("*.moments")) - {kept}:  # the round is in the journal
            old.unlink()

    async def durably(self, write: Callable[..., None], *arguments: object) -> None:
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

    def _next_model(
        self, manifest: Manifest, ready: Ready, pads: tuple[tuple[str, Secret], ...], passage: Passage | None
    ) -> tuple[bytes, dict[str, Array], dict[str, Array], tuple[float, ...], int, int]:
        """Make the next model of the sum, the server's next state, the next round's bounds, and tell what came for it.

        What silos need to do the same is on the disk. After a restart, it is done from there here too.
        """
        means, size, received = self._means(manifest, ready, pads, passage)
        self.weighed(manifest, sum(mean.weight for mean in means))
        model, moments = next_model(self.federation, manifest, means, self.tensors, self.moments)
        bounds = bounds_of(self.federation.policy, manifest.schema, model, self.tensors)
        return write_model(manifest.schema, model), model, moments, bounds, size, received

    def _kept(self, manifest: Manifest, pads: tuple[tuple[str, Secret], ...]) -> Transcript | None:
        """What is kept of a sum, with the pads; nothing where silos compute no models."""
        kept = self.sums.read(manifest.round, manifest.attempt) if follows(self.federation) else None
        return None if kept is None else replace(kept, pads=tuple(pad for _, pad in pads))

    def _keep_pads(self, manifest: Manifest, pads: tuple[tuple[str, Secret], ...]) -> None:
        """Complete what silos need to make the next model too."""
        if (kept := self._kept(manifest, pads)) is not None:
            self.sums.write(kept)

    def _means(
        self, manifest: Manifest, ready: Ready, pads: tuple[tuple[str, Secret], ...], passage: Passage | None
    ) -> tuple[list[Aggregate], int, int]:
        """Read the sum, or each group's; return also the cohort's size, and the bytes that came."""
        if passage is not None and passage.cohort is not None:
            size = len(passage.cohort.participants)
            passage.uncover(pads, ready)
            return passage.decode(size, self.federation.noise.slack), size, passage.received_bytes
        kept = self._kept(manifest, pads)
        assert kept is not None, "a release goes on after a restart only if it was kept"
        body = self.sums.vector(manifest)
        check_root(body, kept)
        uncover(body, kept)
        size = len(kept.cohort.participants)
        return [decode(body, manifest, size, self.federation)], size, len(body)

    def weighed(self, manifest: Manifest, weight: int) -> None:
        """Hear what the silos in a sum weigh together, in a worker thread and before the model is made."""

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
        collecting = self.core.phase is core.Phase.COLLECTING
        return services_pb2.GetStatusResponse(
            federation=self.federation.name,
            round=min(self.core.round, self.federation.policy.rounds),
            attempt=self.core.attempt,
            rounds=self.federation.policy.rounds,
            phase="paused" if self.pause.on else self.core.phase,
            present=sorted(self.present),
            cohort=self.history[-1].cohort if self.history else 0,
            hops=[
                services_pb2.HopStatus(name=hop, state=state, trouble=self._trouble(hop)[:TEXT_BYTES])
                for hop, state in self.hop_states.items()
            ],
            history=self.history[-HISTORY:],
            head_digest=self.core.log.head if self.core.log.records else b"",
            stuck=self._stuck()[:TEXT_BYTES],
            protocol=PROTOCOL,
            closes_s=max(0.0, self.asking.closes_at - self.clock()) if collecting else 0.0,
            closes_early=collecting and self.asking.waits_s < self.federation.policy.deadline_s,
        )

    def _trouble(self, hop: str) -> str:
        """What is wrong with a hop, and what it means if it does not answer."""
        if hop in self.missing_hops:
            return f"{self.missing_hops[hop]}; {meaning(self.federation.chain_rule, len(self.missing_hops))}"
        if self.steady() - self.doubled.get(hop, -inf) < DOUBLED_S:
            return DOUBLE
        return self.core.trouble.get(hop, "")

    def _stuck(self) -> str:
        """Why the model cannot be stepped from, if pads may be out and its sum has not come, or the model is lost."""
        return self.recovery.waits_for or why(self.core.bound, self.core.unrevealed, self.present)

    @property
    def initial(self) -> tuple[bytes, Path]:
        """The digest of the model that the federation began with, and where it lies."""
        records = self.core.log.records
        path = self.config.initial_model
        return (records[0].model_after if records and path is not None else b"", path or Path())

    def sum_parts(self, round_: int) -> Iterator[bytes]:
        """What silos get of a round that was applied, if it is still here."""
        records = self.core.log.records
        record = records[round_] if 0 < round_ < self._published else None
        applied = record is not None and record.outcome is Outcome.APPLIED
        parts = self.sums.parts(round_, record.attempts[-1].attempt) if applied and record is not None else None
        if parts is None:
            raise PeerFault(Reason.WRONG_ROUND, f"the sum of round {round_} is not kept here", found=round_)
        return parts

    def confirm(self, silo: str, record: bytes, signature: bytes) -> None:
        """Take in that a silo has computed the newest model itself."""
        if self._published != self.core.log.round or record != self.core.log.head:
            raise PeerFault(Reason.WRONG_HEAD, "that is not the newest record", peer=silo)
        verify(self.federation.member(silo).key, computed_digest(record, silo), signature, silo)
        self.computed[silo] = signature

    def last_hops(self) -> tuple[str, ...]:
        """Whose sum may come: the last hop's of the open attempt, and of the one that is being applied or was."""
        known = [self.passage.manifest] if self.passage is not None else []
        if self._taken is not None:
            known.append(self._taken[0])
        if not known:
            raise PeerFault(Reason.WRONG_MANIFEST, "no attempt is open here")
        return tuple(manifest.chain[-1] for manifest in known)

    async def news(self, peer: str, have: int) -> AsyncGenerator[bytes, None]:
        """Yield records that a silo lacks and what is announced, the attempt that is open first; count who listens."""
        async with self._news:  # before it has heard the hops it does not know what it has
            while not self._knows and not self._leaving:
                await self._news.wait()
        if not self._knows:
            return  # it leaves, and to say that it has no records would be false
        if have > self._published:
            raise PeerFault(
                Reason.WRONG_HEAD,
                f"{peer} has {have} records, and the aggregator {self._published}: it was restored from an old copy",
                peer=peer,
                found=have,
                expected=self._published,
            )
        self.present[peer] = self.present.get(peer, 0) + 1
        self.metrics.silos_present(len(self.present))
        last, heard = None, 0
        try:
            while True:
                async with self._news:
                    while (
                        self.announced is last
                        and have == self._published
                        and heard >= len(self.called)
                        and not self._leaving
                    ):
                        await self._news.wait()
                    if self.announced is last and have == self._published and heard >= len(self.called):
                        return
                    news, called = self.announced, self.called
                while have < self._published:
                    raw, many = self._written.announcement(self.core.log.records, have, self._published)
                    have += many
                    yield raw
                if news is not None and news is not last:
                    last, heard = news, 0
                    yield news
                for raw in called[heard:]:
                    yield raw
                heard = len(called)
        finally:
            self.present[peer] -= 1
            if not self.present[peer]:
                del self.present[peer]
            self.metrics.silos_present(len(self.present))
