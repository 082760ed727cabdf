"""A silo process: watches for rounds, trains, freezes the integers, and sends them under masks to hop 1."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import grpc
import numpy as np

from silomix.runtime.config.load import NodeConfig
from silomix.runtime.consent import check_task
from silomix.runtime.core.errors import Fault, LocalFault, PeerFault, Reason, UserError
from silomix.runtime.core.learning.clipping import beyond
from silomix.runtime.core.learning.noise import clip
from silomix.runtime.core.learning.update import update_of, weight_of
from silomix.runtime.core.numbers.codec import Clips, Codec
from silomix.runtime.core.numbers.masks import mask_streams
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.schema import Array
from silomix.runtime.core.policy import AUTO, UpdateKind
from silomix.runtime.core.protocol import silo as core
from silomix.runtime.core.protocol.check.said import checks
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Manifest, body_root, chunk_digest, trailer_digest
from silomix.runtime.core.protocol.roundlog import Fork, Outcome, Record
from silomix.runtime.core.protocol.rules import baseline, layout, wire_encoding
from silomix.runtime.net.answers import fault_of, transient, words_of
from silomix.runtime.net.check.case import read_subject
from silomix.runtime.net.check.said import read_tosses, write_statement, write_toss
from silomix.runtime.net.framing import BODY, chunk_frame, only_field
from silomix.runtime.net.history import read_records
from silomix.runtime.net.limits import FRAME_S, PART_BYTES, SLOWEST_BYTES_S, SMALL_BYTES
from silomix.runtime.net.lines import method
from silomix.runtime.net.streams import Outbox
from silomix.runtime.net.transport import backoff
from silomix.runtime.net.wire import read_manifest, read_receipt, write_header
from silomix.runtime.nodes.before_round import ask
from silomix.runtime.nodes.check.silo import Held, measure, trapped
from silomix.runtime.nodes.facts import read_silo, write_silo
from silomix.runtime.nodes.follow import Follower
from silomix.runtime.nodes.node import RETRY_S, Driver, Node
from silomix.runtime.store.files import write_atomically
from silomix.runtime.store.frozen import Frozen, frozen_name
from silomix.runtime.store.modelfile import write_model
from silomix.runtime.task import Task, difference, load_task, train_task
from silomix.v1 import body_pb2, manifest_pb2, services_pb2

NOT_WANTED = (Reason.UNKNOWN_PEER, Reason.WRONG_FEDERATION)
"""Why an aggregator has no use for a silo until somebody mends a file: to try again would be of no use."""
SAY_S = 10.0
"""Time that the aggregator has to hear this silo's part in a tamper check."""
REFUSED_S = 0.2
"""Pause after an announcement that is refused: to refuse costs as much as to accept, and would else be for nothing."""
NEWS = {number: field.name for number, field in services_pb2.Announcement.DESCRIPTOR.fields_by_number.items()}
"""The kinds of announcements, by the number of their field."""
LOT_BYTES = 4 << 20
"""Chunks that are masked at a time have about so many bytes: each change of threads costs."""


class SiloNode(Driver[core.Event, core.Effect]):
    """Drives the silo's state machine."""

    weighty = (core.Announced, core.CheckIn, core.CoinIn, core.RecordsIn)

    def __init__(self, config: NodeConfig, task: Task | None = None) -> None:
        """Load the task, and recall what the journal has."""
        super().__init__(config)
        if task is None:
            check_task(self.federation.policy)
        self.task = load_task(self.federation.policy.task, config.options) if task is None else task
        self.core = self.machine = core.Silo(self.federation, self.identity, config.required_hops, config.epochs)
        for fact in read_silo(self.journal):
            self.core.recall(fact)
        self.frozen = Frozen(config.state.frozen)
        self._busy: asyncio.Task[None] | None = None
        self._held: Held | None = None
        """At level malicious: the body that counts in the open attempt, until its coin is answered."""
        self._counted = asyncio.Event()
        self._unheard: dict[str, services_pb2.Announcement] = {}
        """The newest check, and the newest coin, that are not taken in yet: no more are kept."""
        self._under_way: dict[str, asyncio.Task[None] | None] = {}
        """What the aggregator can have done at will, by name: one of each at a time."""
        self._body: tuple[str, Bytes] | None = None
        self._durable: asyncio.Task[None] | None = None
        self._agreed = 0
        """The round that the owner's command has last said yes to."""
        self.follower = Follower(self, self.core.log, self.task.schema())
        self._wanted: services_pb2.Wanted | None = None
        """What the aggregator has lost and this silo has not given yet: the newest, and no more."""
        self._clipped: dict[str, float] = {}
        """The share of each tensor that was last said to be clipped."""

    async def main(self) -> None:
        """Watch the aggregator until the federation is done; come back whenever the line breaks."""
        aggregator = self.federation.aggregator.name
        log = self.log.bind(peer=aggregator)
        log.info("waiting for announcements")
        wake, worked = asyncio.Event(), asyncio.Event()
        self.events.on_round = lambda _: wake.set()  # a hint that it is worth to dial at once
        async for attempt in backoff(wake=wake, worked=worked):
            self.redial(aggregator)
            try:
                if await self._watch(aggregator, worked):
                    break
            except grpc.aio.AioRpcError as error:
                fault = fault_of(error)
                later = self.federation.epoch > 1  # not begun yet, or the aggregator was restored from before it
                if fault is not None and fault.reason in NOT_WANTED and not later:
                    raise fault from None
                if fault is not None:
                    self._say_refused(fault, attempt, "the aggregator refused, trying again")
                elif attempt % 10 == 0:
                    log.warning("the aggregator is not reachable, trying again", code=error.code().name)
            except PeerFault as fault:
                self.metrics.rejected(fault.reason)
                self._say_refused(fault, attempt, "what the aggregator announced cannot be read, trying again")
        if self.config.linger:
            await self.stopping.wait()

    async def _watch(self, aggregator: str, worked: asyncio.Event) -> bool:
        """Take in what is announced until the line ends, and say whether the federation is done."""
        new_line = True
        async with aclosing(self._news(aggregator)) as line:
            async for news in line:
                if new_line:
                    new_line = False
                    worked.set()
                    self._alone("tell", self._tell_again)
                if news.WhichOneof("news") != "finished":
                    await self._take_in(news)
                elif self.core.log.over and await self._finish(news.finished.round):
                    return True
                else:
                    await self._refuse("this silo goes on watching", self._too_early())
                    worked.clear()  # pauses grow, as if nobody were there
        return False

    async def _take_in(self, news: services_pb2.Announcement) -> None:
        """Take in what is announced. What takes long goes on aside, one of its kind at a time."""
        match news.WhichOneof("news"):
            case "records":
                records = await asyncio.to_thread(read_records, news.records.records, self.limits.names)
                await self._records(records)
            case "check" | "coin" as kind:
                if kind == "check":
                    self._unheard.clear()  # the coin of a check before this one is of no use any more
                self._unheard[kind] = news
                self._alone("hear", self._hear_all)
            case "wanted":
                self._wanted = news.wanted
                self._alone("give", self._give_wanted)
            case _:
                self._wanted = None  # who announces an attempt has its model
                await self._announced(news.manifest)

    def _alone(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin something unless it is under way: whoever asks for it more often has it done no more often."""
        now = self._under_way.get(what)
        if now is None or now.done():
            self._under_way[what] = self.spawn(work())

    async def _finish(self, last: int) -> bool:
        """Compute the last model, and say whether all is over.

        A silo that can only adopt it waits for the word of those that compute it now. That a round left the model as it
        was is no end before that is seen here: hops have signed for the record, and they have no models.
        """
        if self._busy is not None:
            self._busy.cancel()
        with suppress(TimeoutError):  # the aggregator may be gone before this silo has the last model
            async with asyncio.timeout(self.federation.policy.release_s):
                async for _ in backoff():
                    await self._follow()
                    if self.follower.at_head or self.follower.liar:
                        break
                await self.follower.told()
        if self._unseen:
            return False
        self.log.info("the federation is done", round=last)
        return True

    @property
    def _unseen(self) -> bool:
        """Whether the end is that the last round left the model as it was, and this silo has not found that it did."""
        log = self.core.log
        return log.converged and log.round <= self.federation.policy.rounds and not self.follower.at_head

    def _too_early(self) -> PeerFault:
        """What is wrong with an end that no record tells of, or only one that is not seen to be true."""
        peer, over, rounds = self.federation.aggregator.name, self.core.log.round - 1, self.federation.policy.rounds
        said = f"{peer} says that the federation is done, and {max(0, over)} of {rounds} rounds are on record here"
        if self._unseen:
            said += ", the last as one that left the model as it was, which this silo has not found"
        return PeerFault(Reason.WRONG_ROUND, said, peer=peer)

    async def _refuse(self, what: str, fault: PeerFault) -> None:
        """Refuse what was announced, and have the aggregator wait for it."""
        peer = self.federation.aggregator.name
        self.metrics.rejected(fault.reason)
        if (unsaid := self.unsaid(peer, what, fault.reason)) is not None:
            self.log.fault(what, fault, **unsaid)
        await asyncio.sleep(REFUSED_S)

    def _say_refused(self, fault: PeerFault, attempt: int, what: str) -> None:
        """Log a refusal, on whichever side. Until somebody has upgraded one of the two it comes with every try."""
        if fault.reason is Reason.WRONG_PROTOCOL:
            what = "this silo waits until one of the two is upgraded"
        if fault.reason in (Reason.WRONG_EPOCH, Reason.WRONG_FEDERATION):
            self.renewal.tell()  # somebody has the epoch that is missing here
        if fault.reason not in (Reason.WRONG_PROTOCOL, Reason.WRONG_EPOCH, *NOT_WANTED) or attempt % 10 == 0:
            peer = self.federation.aggregator.name
            if (unsaid := self.unsaid(peer, what, fault.reason)) is not None:
                self.log.fault(what, fault, peer=peer, **unsaid)

    def _news(self, aggregator: str) -> AsyncGenerator[services_pb2.Announcement, None]:
        request = services_pb2.WatchRequest(federation_digest=self.federation.digest, records=self.core.log.round)
        kind, what = services_pb2.Announcement, method("AggregatorService", "Watch")
        return self.line(aggregator).listen(what, request, kind, self._longest)

    def _longest(self, raw: bytes) -> int:
        """How long an announcement may be, by its kind; what is none, or has no place in this policy, is not parsed."""
        kind, peer = NEWS.get(only_field(raw), ""), self.federation.aggregator.name
        if not kind:
            raise PeerFault(Reason.MALFORMED, f"{peer} announced nothing, or two things", peer=peer)
        if kind in ("check", "coin") and not checks(self.federation):
            raise PeerFault(Reason.WRONG_POLICY, f"a {kind}, and the policy has no tamper check", peer=peer)
        return self.limits.announcement(kind)

    async def _announced(self, wire: manifest_pb2.Manifest) -> None:
        try:
            await self.insist(core.Announced(await asyncio.to_thread(read_manifest, wire)))
        except PeerFault as fault:
            await self._refuse("this silo does not join", fault)

    async def _records(self, records: tuple[Record, ...]) -> None:
        """Take in which rounds are over, or keep the evidence that the aggregator tells two stories."""
        known = self.core.log.round
        try:
            for batch in until_next(records):  # an epoch after the next one is heard of in the next
                await self.insist(core.RecordsIn(batch))
        except Fork as fork:
            await self.insist(core.ForkSeen(fork))
            self.metrics.forked()
            if (unsaid := self.unsaid("fork")) is not None:
                what = f"FORK: {fork.message}; both records are kept as evidence"
                self.log.error(what, reason=str(fork.reason), **unsaid)
            raise
        if not records or records[-1].round < known:
            return  # nothing new
        last = records[-1]
        if self._held is not None and self._held.manifest.round <= last.round:
            self._drop_held()  # nothing outlives the round
        self.metrics.head(last.round)
        if last.outcome is not Outcome.APPLIED or self.config.name in last.silos:
            return
        if not self.core.joined.get(last.round) and self.config.name in self._drawn(last):
            self.log.warning("a round ran without this silo, which was never told of it", round=last.round)
        elif self.core.counted == last.attempts[-1].manifest:
            hop = last.attempts[-1].chain[0]
            self.log.warning(f"{hop} gave a receipt for this silo's body and left it out", round=last.round, peer=hop)

    def _drawn(self, record: Record) -> tuple[str, ...]:
        applied = sum(one.outcome is Outcome.APPLIED for one in self.core.log.records[: record.round])
        return self.core.log.of(record).draw(applied + 1, record.model_before)

    async def _follow(self) -> None:
        """Compute the newest model, whether or not this silo is part of the next round."""
        try:
            await self.follower.follow()
        except Fault as fault:
            self.metrics.rejected(fault.reason)
            if (unsaid := self.unsaid("follow", fault.reason)) is not None:
                self.log.error(f"the model cannot be followed: {fault.message}", reason=str(fault.reason), **unsaid)
        if self._wanted is not None:
            self._alone("give", self._give_wanted)

    async def _tell_again(self) -> None:
        """Tell an aggregator that may be a new process which model this silo has computed."""
        with suppress(Fault):  # what is wrong is said where it matters: when the model is wanted
            await self.follower.tell_again()

    async def _give_wanted(self) -> None:
        """Give the aggregator what it wants, one thing after the other: a whole model is in memory for each."""
        while (wanted := self._wanted) is not None:
            given = await self._give(wanted)
            if given is None and self._wanted == wanted:
                return  # it may be here after the next step
            if given and self._wanted == wanted:
                self._wanted = None
            await asyncio.sleep(RETRY_S)  # else whoever wants without end keeps a worker busy

    async def _give(self, wanted: services_pb2.Wanted) -> bool | None:
        """Give the aggregator back a model that it has lost, if it is here: it looks at the digest itself.

        Return whether there is no more to do: another silo may have been faster, and then it is wanted no more. A line
        that breaks, or an aggregator that is busy with another silo, is tried again.
        """
        data = await self.follower.file_of(wanted.model_digest, state=wanted.state)
        if data is None:
            return None
        aggregator, what = self.federation.aggregator.name, method("AggregatorService", "GiveModel")

        async def parts() -> AsyncIterator[services_pb2.GivenPart]:
            for start in range(0, len(data), PART_BYTES):
                part = services_pb2.GivenPart(data=data[start : start + PART_BYTES])
                if start == 0:
                    part.what.CopyFrom(wanted)
                yield part

        frames = Outbox(self, parts(), services_pb2.GivenPart, aggregator, what.name)
        patience = FRAME_S + len(data) / SLOWEST_BYTES_S
        try:
            await self.line(aggregator).send(what, frames, frames.stream, SMALL_BYTES, patience)
        except (grpc.aio.AioRpcError, PeerFault) as error:
            return not (isinstance(error, grpc.aio.AioRpcError) and transient(error))
        self.log.info("gave the aggregator back a model that it had lost", model=wanted.model_digest.hex()[:12])
        return True

    def remember(self, fact: core.Fact) -> None:
        """Write a fact, durably."""
        write_silo(self.journal, fact)

    @property
    def counted(self) -> Sequence[Record]:
        """The records of the round log, all of which count."""
        return self.core.log.records

    async def epochs_in(self, epochs: Epochs, following: bytes) -> None:
        """Tell the machine that another epoch counts here."""
        await self.insist(core.EpochsIn(epochs))

    def made_of(self, config: NodeConfig) -> Node:
        """Make the node of the next epoch, with the task that is loaded unless that changes."""
        ours, theirs = self.federation.policy, config.federation.policy
        same = all(getattr(ours, key) == getattr(theirs, key) for key in ("task", "task_package", "task_digest"))
        return type(self)(config, self.task if same and config.options == self.config.options else None)

    async def perform(self, effect: core.Effect) -> core.Event | None:
        """Carry one decision out."""
        match effect:
            case core.Follow():
                self.spawn(self._follow())
            case core.Switch(epoch):
                self.switch(epoch)
            case core.TakePart(manifest):
                self.follower.joined(manifest.digest)
                self._counted.clear()
                self._busy = self.spawn(self._attempt(manifest, self._busy))
            case core.Show(toss):
                self._speak(services_pb2.SayRequest(toss=write_toss(toss)))
            case core.Measure(manifest_digest, coin):
                held = self._held
                if held is None or held.manifest.digest != manifest_digest:
                    return None  # the attempt is over, or the coin was answered
                scalars = await self.work(measure, held, coin)
                stated = await self.work(trapped, held, coin, self.federation.policy)
                if self._held is not held:  # overwritten meanwhile: a body without its blinders would show through
                    return None
                return core.Measured(manifest_digest, coin, scalars, stated)
            case core.Answer(said):
                self._counted.set()  # also where it was answered before a restart
                self._drop_held()
                self._speak(services_pb2.SayRequest(statement=write_statement(said)))
            case core.Done(manifest):
                self._counted.set()
                self.log.info("submitted", round=manifest.round, attempt=manifest.attempt, peer=manifest.chain[0])
            case Remember():
                pass
        return None

    # The tamper check, at level malicious

    async def _hear_all(self) -> None:
        """Take a check's messages in, one after the other, and of those that come meanwhile the newest."""
        while self._unheard:
            await self._hear(self._unheard.pop(next(iter(self._unheard))))

    async def _hear(self, news: services_pb2.Announcement) -> None:
        """Take part in a check: show the share of the coin, and answer the coin."""
        try:
            if news.WhichOneof("news") == "coin":
                await self.insist(core.CoinIn(read_tosses(list(news.coin.tosses))))
                return
            async with asyncio.timeout(self.federation.policy.release_s):  # the receipt may be on its way
                await self._counted.wait()
            subject, held = await asyncio.to_thread(read_subject, news.check), self._held
            if held is None or held.sealing.share is None or held.manifest.digest != subject.ready.manifest:
                return  # started again since, or answered: what was sent is not here any more
            event = core.CheckIn(subject, held.sealing.header.digest, held.root, held.sealing.share)
            await self.insist(event)
        except TimeoutError:
            self.log.warning("a tamper check was opened, and this silo has no receipt for its body")
        except PeerFault as fault:
            await self._refuse("this silo takes no part in the tamper check", fault)

    def _speak(self, request: services_pb2.SayRequest) -> None:
        """Tell the aggregator this silo's part, in place of what was under way: a check may be heard again."""
        kind = str(request.WhichOneof("said"))
        before = self._under_way.get(kind)
        if before is not None:
            before.cancel()
        self._under_way[kind] = self.spawn(self._say(request, self.core.current))

    async def _say(self, request: services_pb2.SayRequest, manifest: Manifest | None) -> None:
        """Tell the aggregator, until it has heard it or the attempt is over."""
        aggregator = self.federation.aggregator.name
        call = method("AggregatorService", "Say")
        async for _ in backoff():
            if self.core.current is not manifest:
                return
            self.redial(aggregator)
            try:
                await self.line(aggregator).ask(call, request, services_pb2.SayResponse, SMALL_BYTES, SAY_S)
            except grpc.aio.AioRpcError as error:
                if transient(error):
                    continue
                fault = fault_of(error)
                if fault is not None and fault.reason is not Reason.WRONG_MANIFEST:  # else the check is over
                    what = "the aggregator refused this silo's part in the tamper check"
                    if (unsaid := self.unsaid(aggregator, "a part", fault.reason)) is not None:
                        self.log.fault(what, fault, **unsaid)
            except PeerFault as fault:
                self.metrics.rejected(fault.reason)
                continue
            return

    def _drop_held(self) -> None:
        if self._held is not None:
            self._held.wipe()
        self._held = None

    async def _attempt(self, manifest: Manifest, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            before.cancel()  # what was on its way belongs to no attempt any more
            await asyncio.wait([before])
        self.metrics.attempt(manifest.round, manifest.attempt)
        try:
            if self.config.before_round and self._agreed != manifest.round:
                await ask(self.config.before_round, manifest, self.federation)
                self._agreed = manifest.round
            await self._freeze(manifest)
            await self._submit(manifest)
        except (Fault, UserError, OSError) as error:
            self.left_out(manifest, error)

    def left_out(self, manifest: Manifest, error: Exception) -> None:
        """Say why this silo is not in an attempt's sum."""
        log = self.log.bind(round=manifest.round, attempt=manifest.attempt)
        if isinstance(error, Fault):
            self.metrics.rejected(error.reason)
            log.error(f"not in this round: {error.message}", reason=str(error.reason))
        else:
            log.error(f"not in this round: {error}")

    def _codec(self, manifest: Manifest) -> Codec:
        return Codec(manifest.schema, manifest.bounds, manifest.plan, manifest.chunk_parameters)

    async def _freeze(self, manifest: Manifest) -> None:
        """Train and freeze the round's integers, once: every attempt sends the same ones."""
        if self.task.schema().digest != manifest.schema.digest:
            what = difference(self.task.schema(), manifest.schema)
            raise LocalFault(Reason.WRONG_SCHEMA, f"the model that was announced is not this task's: {what}")
        self.follower.check_honest()  # what is frozen already is not sent to a liar either
        name = frozen_name(manifest, self.federation)
        if self._body is not None and self._body[0] == name:
            return
        body = await self.work(self.frozen.read, name)
        if body is not None:  # from before a restart
            self._body = (name, body)
            return
        model = await self.follower.follow(manifest.model)
        await self.follower.check_bounds(manifest)
        await self.work(self.frozen.clear)  # only now: under false bounds it is the integers of this very model
        self.keep(manifest, await self.work_aside(self._train, manifest, model))

    def keep(self, manifest: Manifest, body: Bytes) -> None:
        """Hold the round's integers, and begin to write them. They are durable before a chunk of a body is sent."""
        name = frozen_name(manifest, self.federation)
        self._body = (name, body)
        if self._durable is not None:
            self._durable.cancel()
        self._durable = self.spawn(self._write(name, body))
        if self._durable is None:
            raise ConnectionAbortedError("this node is leaving")

    async def _write(self, name: str, body: Bytes) -> None:
        """Write the round's integers: a full disk holds the body's chunks up until there is room."""
        while True:
            try:
                return await self.work(self.frozen.write, name, body)
            except OSError as error:
                self.log.error(f"cannot write, trying again: {error}")
                await asyncio.sleep(RETRY_S)

    def _train(self, manifest: Manifest, model: dict[str, Array]) -> Bytes:
        started = self.clock()
        trained = train_task(self.task, model, manifest.round)
        self.metrics.phase_took("train", self.clock() - started)
        body = self.encode(manifest, self._update(manifest, model, trained.tensors), trained.examples)
        self.metrics.trained(trained.metrics.get("loss", 0.0), trained.examples)
        self.log.info("trained", round=manifest.round)
        return body

    def _update(self, manifest: Manifest, model: dict[str, Array], trained: dict[str, Array]) -> dict[str, Array]:
        return update_of(manifest.schema, model, trained, change=manifest.update is UpdateKind.DELTA)

    def encode(self, manifest: Manifest, update: dict[str, Array], examples: int) -> Bytes:
        """Turn an update into the round's integers, as packed planes without masks."""
        started = self.clock()
        policy = self.federation.policy
        if policy.clip_norm:
            update = clip(update, manifest.schema, policy.bound, manifest.plan.v, policy.clip_norm)
        drawn = self.federation.noise
        noise = partial(drawn.draw, rng=os.urandom) if drawn.variance else None
        clips, weight, mode = Clips(), weight_of(examples, manifest.plan.weight_levels), baseline(manifest)
        if mode is not None:
            body = np.frombuffer(mode.encode(update, manifest.bounds, weight=weight, clips=clips), np.uint8)
        else:
            codec = self._codec(manifest)
            body = codec.layout.body()
            for _ in codec.encode(update, weight=weight, clips=clips, noise=noise, body=body):
                pass
        if self.config.keep_updates:
            kept = self.config.state.update(manifest.round)
            write_atomically(kept, write_model(manifest.schema, update))
        self.metrics.phase_took("encode", self.clock() - started)
        self.metrics.clipped(clips.total)
        self._warn_of_clips(manifest, update, clips)
        return body

    def _warn_of_clips(self, manifest: Manifest, update: dict[str, Array], clips: Clips) -> None:
        """Say what did not fit its bound, to this silo's owner alone: once for a tensor, and again if it gets worse."""
        automatic = self.federation.policy.bound == AUTO
        for one in beyond(manifest.schema, manifest.bounds, update, clips, automatic=automatic):
            if one.share >= 2 * self._clipped.get(one.tensor, 0.0):
                self._clipped[one.tensor] = one.share
                self.log.warning(f"clipped: {one}", round=manifest.round, **asdict(one))

    async def _submit(self, manifest: Manifest) -> None:
        """Send the frozen integers under fresh masks; if the stream breaks, send the same bytes again."""
        self._drop_held()
        assert self._body is not None
        held = Held.of(manifest, self.core.sealing(manifest, os.urandom), self._body[1])
        if held.blinders is not None:
            self._held = held
        try:
            await self._send(manifest, held)
        except BaseException:
            self._drop_held()
            raise
        finally:
            if self._held is not held:
                held.wipe()

    async def _send(self, manifest: Manifest, held: Held) -> None:
        hop = manifest.chain[0]
        log = self.log.bind(round=manifest.round, attempt=manifest.attempt, peer=hop)
        started = self.clock()
        what = method("ShufflerService", "Submit")
        async for attempt in backoff():
            self.redial(hop)
            roots: list[bytes] = []
            frames = Outbox(self, self._frames(manifest, held, roots), body_pb2.Frame, hop, what.name)
            try:
                answer = await self.line(hop).send(what, frames, frames.stream, SMALL_BYTES, manifest.deadline_s)
            except grpc.aio.AioRpcError as error:
                if not transient(error):
                    unknown = PeerFault(Reason.WRONG_SEQUENCE, f"{hop} ended the call: {words_of(error)}")
                    raise fault_of(error) or unknown from None
                if attempt % 10 == 0:
                    log.warning("hop 1 is busy or not reachable, trying again", code=error.code().name)
                continue
            except PeerFault as fault:
                self.metrics.rejected(fault.reason)
                if (unsaid := self.unsaid(hop, "a receipt", fault.reason)) is not None:
                    log.fault("what hop 1 answered is no receipt, trying again", fault, **unsaid)
                continue
            await self._measure(manifest, frames.bytes)
            root = held.root = roots[0] if roots else answer.root  # an early receipt: the body was there already
            await self.step(core.ReceiptIn(read_receipt(answer), root))
            self.metrics.phase_took("submit", self.clock() - started)
            return

    async def _frames(
        self, manifest: Manifest, held: Held, roots: list[bytes]
    ) -> AsyncIterator[body_pb2.Frame | bytes]:
        sealing = held.sealing
        yield body_pb2.Frame(header=write_header(sealing.header))
        # A hop 1 that colludes needs no trailer: whatever chunks it has, these are the round's integers from then on.
        if self._durable is not None:
            await asyncio.shield(self._durable)
        # Masks are not shared: a call that broke may still be at work on its last chunk.
        masking = _Masking(held)
        digests: list[bytes] = []
        step = max(1, LOT_BYTES // masking.layout.chunk_bytes)
        try:
            for start in range(0, masking.layout.chunks, step):
                for frame, digest_ in await self.work(masking.frames, start, start + step):
                    digests.append(digest_)
                    yield frame
        finally:
            masking.wipe()
        root = body_root(digests)
        roots.append(root)
        signature = self.identity.sign(trailer_digest(sealing.header.digest, root))
        yield body_pb2.Frame(trailer=body_pb2.Trailer(root=root, signature=signature))

    async def _measure(self, manifest: Manifest, sent: int) -> None:
        parameters = manifest.schema.parameters
        self.metrics.body("sent", wire_encoding(manifest), sent, parameters)
        figures = {"round": manifest.round, "bytes": sent, "bits_per_parameter": 8 * sent / parameters}
        with suppress(OSError):  # the body counts, whether or not there is room for its figures
            await self.work(self.config.state.last_body.write_text, json.dumps(figures))


def until_next(records: tuple[Record, ...]) -> Iterator[tuple[Record, ...]]:
    """Part records after each that names another epoch."""
    start = 0
    for end, record in enumerate(records, 1):
        if record.next:
            yield records[start:end]
            start = end
    yield records[start:]


class _Masking:
    """One stream of a body: the frozen integers under its masks, chunk by chunk."""

    def __init__(self, held: Held) -> None:
        """The integers are in memory: those of a file were checked as a whole when they were read."""
        manifest, sealing = held.manifest, held.sealing
        self.layout = layout(manifest)
        self._mode = baseline(manifest)
        self._held, self._body = held, held.body
        self._masked = np.empty(self.layout.chunk_bytes, np.uint8)
        seeds = [(seed, manifest.context(layer)) for layer, seed in sealing.seeds]
        self._streams = mask_streams(seeds, manifest.plan.moduli)

    def frames(self, start: int, end: int) -> list[tuple[bytes, bytes]]:
        """Return some chunks' frames, each with its digest: a change of threads for each would cost more than masks."""
        return [self._frame(i) for i in range(start, min(end, self.layout.chunks))]

    def wipe(self) -> None:
        """Overwrite the masks' keys: seeds are of no use to whoever reads this memory later, and nor are these."""
        for stream in self._streams:
            stream.wipe()

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        start = self.layout.start(index)
        if self._mode is not None:
            sizes = self._mode.sizes(index)
            part = self._part(index * sum(self._mode.sizes(0)), sum(sizes)).data
            planes = [part[sum(sizes[:j]) : sum(sizes[: j + 1])] for j in range(len(sizes))]
        else:
            n = self.layout.length(index)
            plain = self._held.plain(index)
            masked = self._masked[: len(plain)]
            masked[:] = plain
            for stream in self._streams:
                stream.apply(masked, index, n)
            planes = self.layout.planes(masked.data, index)
        return chunk_frame(BODY, index, start, planes), chunk_digest(index, start, planes)

    def _part(self, at: int, size: int) -> Bytes:
        return self._body[at : at + size]
