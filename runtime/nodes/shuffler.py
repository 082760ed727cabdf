"""A shuffler process: takes bodies or sums in, takes its masks off, and passes one vector on."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import grpc
import numpy as np

from silomix.runtime.config.load import NodeConfig
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.masks import Overwritten
from silomix.runtime.core.numbers.packing import Bytes, Residues, slice_bytes
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol import shuffler as core
from silomix.runtime.core.protocol.check.blame import Charge, EquivocationError, Verdict
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.hearing import LIFE_BYTES, Life, Lives, life_after, number_of
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES, verify
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import (
    Accusation,
    Cohort,
    Grouping,
    Header,
    Manifest,
    Receipt,
    body_root,
    chunk_digest,
    delivery_digest,
)
from silomix.runtime.core.protocol.release import PadContext, bodies_root, pad_digest
from silomix.runtime.core.protocol.roundlog import Fork, Record
from silomix.runtime.core.protocol.rules import baseline, invited, layout, wire_encoding
from silomix.runtime.net.answers import fault_of, transient
from silomix.runtime.net.calls import Call, Method, Room
from silomix.runtime.net.check.case import read_case
from silomix.runtime.net.check.said import (
    read_bodies,
    read_check,
    read_tosses,
    write_defence,
    write_proof,
    write_statement,
)
from silomix.runtime.net.framing import SUM, chunk_frame
from silomix.runtime.net.history import read_records, read_signatures, read_trails, write_shown
from silomix.runtime.net.limits import SMALL_BYTES
from silomix.runtime.net.lines import SERVICES, method
from silomix.runtime.net.streams import Inbox, Outbox
from silomix.runtime.net.transport import Server, backoff
from silomix.runtime.net.wire import (
    digest_field,
    fixed_field,
    read_bond,
    read_header,
    read_manifest,
    write_receipt,
    write_round_key,
)
from silomix.runtime.nodes.check import hop as checking
from silomix.runtime.nodes.check.evidence import keep
from silomix.runtime.nodes.facts import read_shuffler, sweep_pads, write_shuffler
from silomix.runtime.nodes.node import RETRY_S, Driver, whole
from silomix.runtime.nodes.passage import AnyChunk, Cover, Partition, Passage, SumPassage, check_place, open_chunk
from silomix.runtime.nodes.rows import TablePassage, make_passage
from silomix.runtime.store.files import naming
from silomix.v1 import body_pb2, services_pb2

SPOOL_STREAMS = 128
"""Bodies that may be on their way at once: each has a file, none has memory beyond a chunk."""
LOT_BYTES = 6 << 20
"""What is held of all streams at a time. A stream's chunks are handled together: each change of threads costs."""
LATE_S = 5.0
"""Time after the deadline for which a body may still be on its way, to be refused for what it is."""
SILO_STREAMS = 4
"""Of one silo: more than one only while broken streams are not yet known to be."""


class Spool:
    """One body on its way in: checked chunk by chunk, hashed, and written to a file that counts when it is whole."""

    def __init__(self, directory: Path, header: Header, manifest: Manifest) -> None:
        """The file is made with the first chunk, in a directory that is emptied whenever an attempt begins."""
        self.header = header
        self.layout = layout(manifest)
        self.digests: list[bytes] = []
        self._limit = manifest.plan.v * manifest.plan.weight_levels
        self._trusted = manifest.plan.level is Level.TRUSTED
        self.path = directory / f"{header.digest.hex()}.{os.urandom(4).hex()}.body"
        self._file: BinaryIO | None = None
        self._mode = baseline(manifest)
        self.chunk_bytes = self.layout.chunk_bytes if self._mode is None else sum(self._mode.sizes(0))

    def take(self, chunks: list[AnyChunk]) -> None:
        """Check some chunks and write them."""
        for chunk in chunks:
            self._take(chunk)

    def _take(self, chunk: AnyChunk) -> None:
        index = len(self.digests)
        if self._mode is None:
            _, digest = open_chunk(chunk, self.layout, index)
            if self._trusted:
                self._check_values(self.layout.unpack(index, list(chunk.planes)), index)
        else:
            check_place(chunk, index, self.layout.start(index))
            self._mode.check_body(index, chunk.planes, self.header.silo)
            digest = chunk_digest(index, chunk.first_parameter, chunk.planes)
        self.digests.append(digest)
        if self._file is None:
            self._file = open(self.path, "wb")  # noqa: SIM115 - closed in `finish` or `drop`
        with naming(self.path):
            for plane in chunk.planes:
                self._file.write(plane)

    def _check_values(self, residues: Residues, index: int) -> None:
        """Where residues are in clear, check that each value is one that a silo can have."""
        levels, silo = self.layout.plan.weight_levels, self.header.silo
        values = residue.decode_sum(residues, self.layout.plan)
        if levels > 1 and index == self.layout.chunks - 1:
            values, weight = values[:-1], int(values[-1])
            if not 1 <= weight <= levels:
                raise PeerFault(
                    Reason.OUT_OF_RANGE, f"{silo} sent a weight of {weight}, and levels are 1 to {levels}", peer=silo
                )
        bad = int(np.count_nonzero(np.abs(values) > self._limit))
        if bad:
            raise PeerFault(
                Reason.OUT_OF_RANGE,
                f"{silo} sent {bad} value(s) beyond its bound",
                peer=silo,
            )

    def finish(self) -> bytes:
        """Close the body and return its root. It need not survive a crash: an attempt without a release begins anew."""
        if len(self.digests) != self.layout.chunks or self._file is None:
            raise PeerFault(
                Reason.WRONG_SEQUENCE,
                f"{self.header.silo} ended after {len(self.digests)} of {self.layout.chunks} chunks",
                peer=self.header.silo,
            )
        with naming(self.path):
            self._file.close()
        return body_root(self.digests)

    def add_to(self, total: Bytes) -> None:
        """Add the whole body to a sum."""
        shape, room = self.layout, np.empty(self.layout.chunk_bytes, np.uint8)
        with open(self.path, "rb", 0) as f:
            for i in range(shape.chunks):
                part = shape.part(total, i)
                if f.readinto(room.data[: len(part)]) != len(part):
                    raise OSError(f"{self.path} ends early")
                planes = [np.frombuffer(plane, np.uint8) for plane in shape.planes(room.data[: len(part)], i)]
                shape.sum(part, planes, slice_bytes(shape.length(i)))

    def keep(self) -> Path:
        """Keep the body for the rest of the attempt, where bodies leave the chain as they are."""
        return self.path.rename(self.path.with_suffix(".row"))

    def drop(self) -> None:
        """Leave nothing behind."""
        if self._file is not None:
            with suppress(OSError):  # what is still buffered does not fit on a full disk, and need not
                self._file.close()
            self.path.unlink(missing_ok=True)


class ShufflerNode(Driver[core.Event, core.Effect]):
    """Drives the shuffler's state machine."""

    weighty = (
        core.Prepare,
        core.Open,
        core.CoinIn,
        core.ProveIn,
        core.ChargeIn,
        core.CaseIn,
        core.ReadyIn,
        core.RecordIn,
    )

    def __init__(self, config: NodeConfig) -> None:
        """Recall what the journal has."""
        super().__init__(config)
        self.core = self.machine = core.Shuffler(self.federation, self.identity, os.urandom, config.epochs)
        sweep_pads(self.journal)
        for fact in read_shuffler(self.journal):
            self.core.recall(fact)
        self.lives = Lives(self.federation, self._begun())
        self.spool = config.state.spool
        self.spool.mkdir(parents=True, exist_ok=True)
        self.passage: Passage | None = None
        self.submitting = Room(SILO_STREAMS, SPOOL_STREAMS, partial(self.metrics.queue, "uploads"))
        self._counting = asyncio.Lock()
        self._whole_body: Spool | None = None
        """The body that is being counted."""
        self._rows: dict[str, Path] = {}
        """In the paper's literal modes: the silos' bodies."""
        self._sending: asyncio.Task[None] | None = None
        self._delivered = asyncio.Event()
        self._through: tuple[Manifest, bytes] | None = None
        """The last attempt that came through here, and the root of what came in: for whoever asks again."""
        self._opened_at = 0.0

    def _begun(self) -> Life:
        """Number this process, durably: of two with one identity the later goes on."""
        before = max((number_of(value) for _, _, value in self.journal.facts("life")), default=0)
        life = Life(self.config.name, life_after(before, os.urandom))
        self.journal.put("life", 0, "", life.life)
        return life.signed(self.identity, self.federation)

    def remember(self, fact: core.Fact) -> None:
        """Write a fact, durably."""
        write_shuffler(self.journal, fact)

    async def main(self) -> None:
        """Serve until told to stop; close the cohort when its time is up."""
        limits = self.limits
        server = Server(self.config.listen, self.tls, limits, limits.at_shuffler, limits.silos)
        server.serve(self, SERVICES["ShufflerService"].full_name, _Service(self).methods, self.renewal.services)
        server.answer_for_attempt(self._open_attempt, self._given_up)
        await server.start()
        self.pulse.serving = True
        self.log.info("serving", address=self.config.listen)
        try:
            await self.keep_time(core.Tick, lambda: False)
        finally:
            await server.stop(self.grace_s)

    @property
    def counted(self) -> Sequence[Record]:
        """The records of the round log that are known to count."""
        records = self.core.log.records
        return records if self.core.counts else records[:-1]

    async def epochs_in(self, epochs: Epochs, following: bytes) -> None:
        """Tell the machine that another epoch counts here."""
        await self.insist(core.EpochsIn(epochs, self.clock()))

    def _open_attempt(self) -> bytes:
        """The attempt that can still end well here, or has, by its manifest's digest."""
        attempt = self.core.attempt
        alive = self.core.state in (core.State.OPEN, core.State.RELEASING, core.State.DONE)
        return attempt.manifest.digest if attempt is not None and alive else b""

    def _given_up(self) -> bytes:
        """The attempt that was given up here, by its manifest's digest."""
        attempt = self.core.attempt
        return attempt.manifest.digest if attempt is not None and not self._open_attempt() else b""

    async def close(self) -> None:
        """Let go of everything, and leave no body on the disk."""
        await super().close()
        self._sweep()

    def _sweep(self) -> None:
        if self.passage is not None:
            self.passage.close()
        self.passage = None
        self._rows = {}
        for leftover in self.spool.iterdir():
            leftover.unlink(missing_ok=True)

    async def perform(self, effect: core.Effect) -> core.Event | None:
        """Carry one decision out."""
        match effect:
            case core.Begin(manifest):
                self._begin(manifest)
            case core.Pass(header, key):
                assert self.passage is not None
                try:
                    await self.passage.add_header(header, key, self.spawn)
                except PeerFault:
                    return core.Unopened(header)
            case core.Drop(silo):
                assert self.passage is not None
                self.passage.drop(silo)
            case core.Count(header):
                return await self._count(header)
            case core.Release(cohort, grouping, pad):
                self.metrics.phase_took("collect", self.clock() - self._opened_at)
                self.metrics.cohort(len(cohort.participants))
                early = {"waits_s": f"{self.core.pace.patience_s:.1f}"} if self.core.pace.share else {}
                self.log.info("releasing", cohort=len(cohort.participants), **early)
                assert self.passage is not None
                seal, length = b"" if grouping is None else grouping.seal, self.passage.manifest.chunk_parameters
                context = PadContext(cohort.digest, seal, self.config.name, length)
                self.passage.cover = Cover(pad, context, pad_digest(pad))
                self.spawn(self._release(effect, self.passage))
            case core.Measure(manifest, context, coin, own):
                scalars = await self.work(checking.measure, self._checked(), coin, own)
                trapped = await self.work(checking.trapped, self._checked(), coin, self.federation.policy)
                return core.Measured(manifest, context, coin, scalars, trapped)
            case core.Prove(manifest, subject, check):
                policy = self.federation.policy
                return core.Proven(
                    manifest, check, *await self.work(checking.proven, self._checked(), subject, check, policy)
                )
            case core.Investigate(manifest, finding, subject, check):
                given = (self._rows, finding.kind, subject, check.coin, self.federation.policy)
                true = await self.work(checking.truth, self._checked(), *given)
                return core.Investigated(manifest, finding, subject, check, true)
            case core.Abort(fault):
                self.metrics.rejected(fault.reason)
                self.log.warning(f"attempt aborted: {fault.message}", reason=str(fault.reason))
            case core.Accuse(evidence):
                if (unsaid := self.unsaid(evidence.silo, "garbage")) is not None:
                    self.log.warning(str(Accusation(evidence)), peer=evidence.silo, by=evidence.recipient, **unsaid)
            case core.Forget():
                if self._sending is not None and not self._delivered.is_set():
                    self._sending.cancel()
                self._sweep()
            case core.Countersign(record):
                self.metrics.head(record.round)
            case core.Switch(epoch):
                self.switch(epoch)
            case (
                core.Shows()
                | core.Keys()
                | core.Acknowledge()
                | core.Agree()
                | core.Reveal()
                | core.Answer()
                | core.ShowProof()
                | Remember()
            ):
                pass  # the handler that stepped answers with these
            case core.Convict(_, _, verdict):
                await self._convict(verdict)
            case core.Defend(defence):
                self.metrics.rejected(Reason.TAMPERED)
                who = defence.name or "nobody else"
                if (unsaid := self.unsaid(who, "a defence")) is not None:
                    what = f"the tamper check failed here, and this hop shows that {who} lied"
                    self.log.error(what, peer=defence.name, **unsaid)
        return None

    async def _convict(self, verdict: Verdict) -> None:
        """Keep the evidence against somebody, and tell operators."""
        vector = self._checked().sum if verdict.case.charge is Charge.ARRIVAL else None
        path = await self.work(keep, self.config.state.evidence, verdict.case, vector)
        self.metrics.rejected(Reason.TAMPERED)
        if (unsaid := self.unsaid(verdict.culprit, "tampered")) is not None:
            what = f"TAMPERED: {verdict.sentence}; the evidence is in {path}"
            self.log.error(what, peer=verdict.culprit, reason=str(Reason.TAMPERED), **unsaid)

    def _checked(self) -> SumPassage:
        """The attempt whose coin is to be answered."""
        if not isinstance(self.passage, SumPassage):
            raise PeerFault(Reason.WRONG_SEQUENCE, "this hop no longer has what passed here")
        return self.passage

    def came_from(self, name: str) -> tuple[Layout, Bytes]:
        """The vector that came from a silo, at hop 1, or from the hop before."""
        passage = self._checked()
        return passage.layout, checking.vector_of(passage, self._rows, name)

    def _begin(self, manifest: Manifest) -> None:
        if self._sending is not None:
            self._sending.cancel()
        self._sweep()
        self.passage = make_passage(manifest, self.config.name, self.workers, self.spool)
        self._delivered = asyncio.Event()
        self._opened_at = self.clock()
        self._sending = self.spawn(self._send(self.passage, self._delivered))
        self.metrics.attempt(manifest.round, manifest.attempt)
        self.log = self.log.bind(round=manifest.round, attempt=manifest.attempt)
        self.log.info("attempt open", hop=manifest.layer(self.config.name))

    async def _count(self, header: Header) -> core.Event:
        """Add a body to the sum. If that fails half-way, the sum is spoiled."""
        assert self.passage is not None
        spool = self._whole_body
        assert spool is not None
        try:
            if isinstance(self.passage, SumPassage):
                await self.passage.count(spool.add_to)
            if not isinstance(self.passage, SumPassage) or self.passage.taken is not None:
                self._rows[header.silo] = await self.work(spool.keep)
        except OSError as error:
            return core.Spoiled(header.manifest, str(error))
        return core.Counted(header, self.clock())

    async def _release(self, effect: core.Release, passage: Passage) -> None:
        started, rows, cohort, grouping = self.clock(), self._rows, effect.cohort, effect.grouping
        try:
            await passage.settle(cohort, grouping)
            if passage.layer == 1:
                await passage.trailed(bodies_root(effect.roots), (), effect.bodies)
            if passage.layer == 1 and isinstance(passage, SumPassage):
                await passage.take_all()
            elif passage.layer == 1 and isinstance(passage, TablePassage):
                await self._take_bodies(passage, [rows[silo] for silo in cohort.silos])
        except Overwritten:  # it was given up meanwhile
            return
        self.metrics.phase_took("release", self.clock() - started)

    async def _take_bodies(self, passage: TablePassage, paths: list[Path]) -> None:
        """Make rows of the bodies: a full disk holds that up until there is room, or the attempt is over."""
        while True:
            try:
                return await passage.take_bodies(paths)
            except OSError as error:
                self.failed("Release", error)
                await asyncio.sleep(RETRY_S)

    async def _send(self, passage: Passage, delivered: asyncio.Event) -> None:
        """Stream this hop's output to the next one, again and again until it has arrived or the attempt is over."""
        chain, digest = passage.manifest.chain, passage.manifest.digest
        place = chain.index(self.config.name)
        target = chain[place + 1] if place + 1 < len(chain) else self.federation.aggregator.name
        log = self.log.bind(peer=target)
        async for attempt in backoff():
            self.redial(target)
            try:
                delivery = await self._stream_to(target, passage, last=place + 1 == len(chain))
            except grpc.aio.AioRpcError as error:
                fault = fault_of(error)
                if isinstance(fault, Accusation):
                    fault = await self._accused(fault, target, passage)
                    if fault is None:
                        continue
                # The next hop may not have opened the attempt yet, if it was started again just now.
                later = transient(error) or (fault is not None and fault.reason is Reason.WRONG_MANIFEST)
                if fault is not None and not later:
                    log.fault("the next hop refused", fault)
                    await self.insist(core.SendRefused(digest, fault))
                    return
                if fault is None and attempt % 10 == 0:
                    log.warning("the next hop is not reachable, trying again", code=error.code().name)
                continue
            except PeerFault as fault:  # what it answered cannot be read: it may have another answer
                self.metrics.rejected(fault.reason)
                if attempt % 10 == 0:
                    log.fault("the next hop's answer is none", fault)
                continue
            try:
                self._check_delivery(delivery, target, passage)
            except PeerFault as fault:
                self.metrics.rejected(fault.reason)
                log.fault("the delivery does not hold", fault)
                return
            delivered.set()
            self._through = (passage.manifest, passage.came)
            log.info("delivered")
            await self.insist(core.Delivered(digest))
            return

    async def _accused(self, accusation: Accusation, target: str, passage: Passage) -> PeerFault | None:
        """Look at the evidence against a silo; if it holds, go on without the silo, and show the hop before why."""
        evidence = accusation.evidence
        try:
            await self.insist(core.EvidenceIn(evidence))
        except PeerFault as fault:  # whoever says so is wrong, or lies
            if passage is self.passage:
                self.metrics.rejected(fault.reason)
                fault.details.setdefault("peer", target)
                return fault
        if passage is not self.passage or self.core.state is core.State.DONE:  # it is over: nobody has looked
            return accusation
        if (unsaid := self.unsaid(target, "left out", evidence.silo)) is not None:
            self.log.warning(f"left out: {accusation.message}", peer=evidence.silo, by=target, **unsaid)
        passage.refuse(accusation)
        return accusation if self.core.state is core.State.GIVEN_UP else None

    def _check_delivery(self, delivery: services_pb2.Delivery, target: str, passage: Passage) -> None:
        if not passage.sent_root or delivery.root != passage.sent_root:
            raise PeerFault(Reason.ROOT_MISMATCH, f"{target} got another sum than was sent", peer=target)
        what = delivery_digest(target, passage.manifest.digest, delivery.root)
        verify(self.federation.member(target).key, what, delivery.signature, target)

    async def _stream_to(self, target: str, passage: Passage, *, last: bool) -> services_pb2.Delivery:
        what = method("AggregatorService", "Deliver") if last else method("ShufflerService", "Relay")
        frames = Outbox(self, passage.frames(self.identity, last=last), services_pb2.RelayFrame, target, what.name)
        answer: services_pb2.Delivery = await self.line(target).send(what, frames, frames.stream, SMALL_BYTES)
        return answer

    async def take_body(self, peer: str, frames: Inbox[body_pb2.Frame]) -> Receipt:
        """Take one silo's body in: all of it, or nothing."""
        header = read_header((await frames.due("header")).header)
        receipt = _receipt(await self.step(core.HeaderIn(header, peer)))
        if receipt is not None:
            return receipt
        passage = self.passage
        if passage is None or passage.manifest.digest != header.manifest:
            raise PeerFault(Reason.WRONG_MANIFEST, "the attempt ended while the header was on its way", peer=peer)
        spool = Spool(self.spool, header, passage.manifest)
        try:
            step = max(1, LOT_BYTES // (spool.chunk_bytes * len(self.federation.silos)))
            left = self._opened_at + passage.manifest.deadline_s + LATE_S - self.clock()
            async with in_time(left, f"the body of {peer} was not here in time"):
                for start in range(0, header.chunks, step):
                    lot = range(start, min(start + step, header.chunks))
                    await self.work(spool.take, [(await frames.due("chunk")).chunk for _ in lot])
                trailer = (await frames.due("trailer")).trailer
                if await anext(frames, None) is not None:
                    raise PeerFault(Reason.WRONG_SEQUENCE, f"{peer} sent more after its trailer", peer=peer)
            root = await self.work(spool.finish)
            event = core.BodyIn(header, root, digest_field(trailer.root, "the root"), trailer.signature)
            receipt = await whole(asyncio.ensure_future(self._have_counted(event, spool)))
            manifest = passage.manifest
            self.metrics.body("received", wire_encoding(manifest), frames.bytes, manifest.schema.parameters)
            return receipt
        finally:
            spool.drop()

    async def _have_counted(self, event: core.BodyIn, spool: Spool) -> Receipt:
        """Have a whole body counted, and return its receipt."""
        async with self._counting:  # the same body may come twice at once, and not with the same content
            self._whole_body = spool
            receipt = _receipt(await self.step(event))
        if receipt is None:
            raise OSError("the body could not be added to the sum: this attempt was given up")
        return receipt

    async def take_sum(self, peer: str, frames: Inbox[services_pb2.RelayFrame]) -> services_pb2.Delivery:
        """Take in what the hop before passes on, and answer when this hop's own output has arrived."""
        opening = (await frames.due("open")).open
        passage, through = self.passage, self._through
        if through is not None and opening.manifest_digest == through[0].digest:
            self._check_before(through[0], peer, opening.hop)
            return self._delivery(*through)
        if passage is None or opening.manifest_digest != passage.manifest.digest:
            raise PeerFault(Reason.WRONG_MANIFEST, "the stream belongs to no open attempt")
        self._check_before(passage.manifest, peer, opening.hop)
        delivered = self._delivered

        async def header_in(header: Header) -> None:
            for effect in await self.step(core.HeaderIn(header, peer)):
                if isinstance(effect, core.Accuse):
                    raise Accusation(effect.evidence)

        def cohort_in(cohort: Cohort, groups: Partition) -> Awaitable[object]:
            return self.step(core.CohortIn(cohort, groups if isinstance(groups, Grouping) else None))

        async def come_through() -> bytes:
            try:
                root = await passage.receive(frames, peer, self.federation, header_in, cohort_in)
            except EquivocationError as error:
                await self.step(core.LieSeen(error.verdict))
                raise
            except Overwritten:
                if not delivered.is_set():
                    raise
                return passage.came  # all of it had come over a line that broke, and has gone on meanwhile
            await delivered.wait()
            return root

        frames.patience = None  # headers come as silos do, and chunks as the hops before are done with them
        async with in_time(self._left(), f"{peer} did not come to an end in time"):
            root = await passage.unless_refused(come_through())
        return self._delivery(passage.manifest, root)

    def _left(self) -> float:
        """Time that the open attempt has left at most. Then nobody waits for it any more, here or elsewhere."""
        return self._opened_at + self.limits.round_s + LATE_S - self.clock()

    async def store(self, records: tuple[Record, ...], life: bytes) -> services_pb2.StoreResponse:
        """Take records in, and answer with the signature for the last; with how many are here, if some are missing."""
        signature, log = b"", self.core.log
        digests = await asyncio.to_thread(lambda: [record.digest for record in records])  # of thousands of names
        for record, digest in zip(records, digests, strict=True):
            if record.round > log.round:
                return services_pb2.StoreResponse(records=log.round)
            if record.round < log.round and log.records[record.round].digest == digest != log.head:
                continue
            try:
                effects = await self.step(core.RecordIn(record, life))
            except Fork as fork:
                await self.step(core.ForkSeen(fork))
                self._say_forked(fork)
                raise
            for effect in effects:
                if isinstance(effect, Remember) and isinstance(effect.fact, core.Forked):
                    self._say_forked(Fork(effect.fact.known, effect.fact.other))
            signature = next((e.signature for e in effects if isinstance(e, core.Countersign)), b"")
        return services_pb2.StoreResponse(records=log.round, signature=signature)

    def _say_forked(self, fork: Fork) -> None:
        self.metrics.forked()
        if (unsaid := self.unsaid("fork")) is not None:
            what = f"FORK: {fork.message}; both records are kept as evidence"
            self.log.error(what, reason=str(fork.reason), **unsaid)

    def before(self) -> tuple[str, ...]:
        """Whose sums may come: the hop before this one in the open attempt, and in the last that came through."""
        known = [self.passage.manifest] if self.passage is not None else []
        if self._through is not None:
            known.append(self._through[0])
        if not known:
            raise PeerFault(Reason.WRONG_MANIFEST, "no attempt is open here")
        places = [(manifest.chain, manifest.layer(self.config.name)) for manifest in known]
        return tuple(chain[place - 2] for chain, place in places if place >= 2)

    def _check_before(self, manifest: Manifest, peer: str, says: str) -> None:
        place = manifest.layer(self.config.name)
        if place < 2 or manifest.chain[place - 2] != peer or says != peer:
            raise PeerFault(Reason.WRONG_CHAIN, f"{peer} does not stand before this hop", peer=peer)

    def _delivery(self, manifest: Manifest, root: bytes) -> services_pb2.Delivery:
        signature = self.identity.sign(delivery_digest(self.config.name, manifest.digest, root))
        return services_pb2.Delivery(name=self.config.name, root=root, signature=signature)


def _receipt(effects: list[core.Effect]) -> Receipt | None:
    """The receipt among some decisions, if one is there; raise if there is an accusation instead."""
    for effect in effects:
        if isinstance(effect, core.Acknowledge):
            return effect.receipt
        if isinstance(effect, core.Accuse):
            raise Accusation(effect.evidence)
    return None


@asynccontextmanager
async def in_time(seconds: float, what: str) -> AsyncIterator[None]:
    """Refuse whoever takes too long: it holds room that others need."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():  # a disk's, say
            raise
        raise PeerFault(Reason.COHORT_CLOSED, what) from None


class _Service:
    """The calls that a shuffler answers."""

    def __init__(self, node: ShufflerNode) -> None:
        self.node = node

    @property
    def methods(self) -> dict[str, Method]:
        """Who may call what: decided by name and place, before anything is read."""
        return {
            "Show": Method(self._aggregator, self._show),
            "Prepare": Method(self._aggregator, self._prepare),
            "Open": Method(self._aggregator, self._open),
            "Submit": Method(self._silo, self._submit, self.node.submitting),
            "Relay": Method(self._hop_before, self._relay),
            "Answer": Method(self._aggregator, self._answer),
            "Prove": Method(self._aggregator, self._prove),
            "Defend": Method(self._aggregator, self._defend),
            "Convict": Method(self._aggregator, self._convict),
            "Agree": Method(self._aggregator, self._agree),
            "Reveal": Method(self._aggregator, self._reveal),
            "Store": Method(self._aggregator, self._store),
        }

    def _aggregator(self, peer: str) -> None:
        if peer != self.node.federation.aggregator.name:
            raise PeerFault(Reason.UNKNOWN_PEER, f"{peer} is not the aggregator", peer=peer)

    def _silo(self, peer: str) -> None:
        """Let a silo of this round in, while there is something to send a body to."""
        node = self.node
        if peer not in node.federation.silo_names:
            raise PeerFault(Reason.UNKNOWN_PEER, f"{peer} is not a silo: bodies are silos'", peer=peer)
        node.core.allows(core.HeaderIn)
        manifest = node.core.manifest
        if manifest.chain[0] != node.config.name:
            raise PeerFault(Reason.WRONG_CHAIN, "bodies go to the first hop, and this is another", peer=peer)
        if peer not in invited(manifest, node.federation):
            raise PeerFault(Reason.NOT_INVITED, f"{peer} is not part of this round", peer=peer)

    def _hop_before(self, peer: str) -> None:
        if peer not in self.node.before():
            raise PeerFault(Reason.WRONG_CHAIN, f"{peer} does not stand before this hop", peer=peer)

    async def _show(self, call: Call) -> None:
        request = await call.request(services_pb2.ShowRequest, SMALL_BYTES)
        life = fixed_field(request.life, LIFE_BYTES, "a life")
        signature = fixed_field(request.signature, SIGNATURE_BYTES, "a life's signature")
        effects = await self.node.step(core.Show(request.federation_digest, life, request.start, signature))
        await call.answer(write_shown(next(e for e in effects if isinstance(e, core.Shows)).shown))

    async def _prepare(self, call: Call) -> None:
        request = await call.request(services_pb2.PrepareRequest, self.node.limits.prepare)
        effects = await self.node.step(
            core.Prepare(
                request.federation_digest,
                request.round,
                request.attempt,
                tuple(request.silos),
                request.known_released,
                digest_field(request.head_digest, "the digest of the newest record"),
                self.node.clock(),
                request.life,
            )
        )
        answer = next(e for e in effects if isinstance(e, core.Keys))
        keys = [write_round_key(key) for key in answer.keys]
        await call.answer(services_pb2.PrepareResponse(keys=keys, last_released=answer.last_released))

    async def _open(self, call: Call) -> None:
        request = await call.request(services_pb2.OpenRequest, self.node.limits.opening)
        if not request.HasField("head"):
            raise PeerFault(Reason.MALFORMED, "an attempt is to be opened, and the record before it is missing")
        manifest = await asyncio.to_thread(read_manifest, request.manifest)
        (head,) = await asyncio.to_thread(read_records, [request.head], self.node.limits.names)
        await self.node.step(core.Open(manifest, head, self.node.clock(), request.life))
        waits_s = self.node.core.waits_s
        await call.answer(services_pb2.OpenResponse(manifest_digest=manifest.digest, closes_s=waits_s))

    async def _submit(self, call: Call) -> None:
        frames = Inbox(call, body_pb2.Frame, self.node.limits)
        await call.answer(write_receipt(await self.node.take_body(call.peer, frames)))

    async def _relay(self, call: Call) -> None:
        frames = Inbox(call, services_pb2.RelayFrame, self.node.limits)
        await call.answer(await self.node.unless_stopped(self.node.take_sum(call.peer, frames)))

    async def _answer(self, call: Call) -> None:
        request = await call.request(services_pb2.AnswerRequest, self.node.limits.asked)
        manifest = digest_field(request.manifest_digest, "the manifest digest")
        bodies, tosses = read_bodies(list(request.bodies)), read_tosses(list(request.tosses))
        event = core.CoinIn(manifest, read_trails(list(request.trails)), bodies, tosses)
        answer = next(e for e in await self.node.step(event) if isinstance(e, core.Answer))
        await call.answer(services_pb2.AnswerResponse(statement=write_statement(answer.statement)))

    async def _prove(self, call: Call) -> None:
        node = self.node
        request = await call.request(services_pb2.ProveRequest, node.limits.asked)
        manifest = digest_field(request.manifest_digest, "the manifest digest")
        check = await asyncio.to_thread(read_check, request.check, node.federation.plan)
        bodies = read_bodies(list(request.bodies))
        for effect in await node.step(core.ProveIn(manifest, read_trails(list(request.trails)), bodies, check)):
            if isinstance(effect, core.ShowProof):
                await call.answer(services_pb2.ProveResponse(proof=write_proof(effect.proof)))
            elif isinstance(effect, core.Defend):
                await call.answer(services_pb2.ProveResponse(defence=write_defence(effect.defence)))

    async def _defend(self, call: Call) -> None:
        node = self.node
        request = await call.request(services_pb2.DefendRequest, node.limits.asked)
        manifest = digest_field(request.manifest_digest, "the manifest digest")
        check = await asyncio.to_thread(read_check, request.check, node.federation.plan)
        bodies = read_bodies(list(request.bodies))
        effects = await node.step(core.ChargeIn(manifest, read_trails(list(request.trails)), bodies, check))
        defence = next(e for e in effects if isinstance(e, core.Defend)).defence
        await call.answer(services_pb2.DefencePart(defence=write_defence(defence)))
        if defence.root:
            shape, vector = await node.work(node.came_from, defence.name)
            for i in range(shape.chunks):
                planes = shape.planes(shape.part(vector, i).data, i)
                raw = chunk_frame(SUM, i, shape.start(i), planes)
                await call.send(services_pb2.DefencePart.DESCRIPTOR.full_name, raw)

    async def _convict(self, call: Call) -> None:
        request = await call.request(services_pb2.ConvictRequest, self.node.limits.case)
        case = await asyncio.to_thread(read_case, request.case)
        for effect in await self.node.step(core.CaseIn(case)):
            if isinstance(effect, Remember) and isinstance(effect.fact, core.Convicted):
                silo = effect.fact.silo
                self.node.metrics.rejected(Reason.TAMPERED)
                self.node.log.error(f"{silo} lied in the tamper check, and sits out", peer=silo)
        await call.answer(services_pb2.ConvictResponse())

    async def _agree(self, call: Call) -> None:
        node = self.node
        request = await call.request(services_pb2.AgreeRequest, node.limits.asked)
        manifest = digest_field(request.manifest_digest, "the manifest digest")
        plan, told = node.federation.plan, request.HasField("check")
        check = await asyncio.to_thread(read_check, request.check, plan) if told else None
        effects = await self.node.step(core.ReadyIn(manifest, read_trails(list(request.trails)), request.life, check))
        for effect in effects:
            if isinstance(effect, core.Convict):
                raise PeerFault(Reason.TAMPERED, effect.verdict.sentence, peer=effect.verdict.culprit)
        answer = next(e for e in effects if isinstance(e, core.Agree))
        await call.answer(services_pb2.AgreeResponse(signature=answer.signature))

    async def _reveal(self, call: Call) -> None:
        request = await call.request(services_pb2.RevealRequest, self.node.limits.reveal)
        manifest = digest_field(request.manifest_digest, "the manifest digest")
        bond = read_bond(request.bond) if request.HasField("bond") else None
        signatures = read_signatures(list(request.signatures))
        effects = await self.node.step(core.RevealIn(manifest, signatures, request.life, bond))
        answer = next(e for e in effects if isinstance(e, core.Reveal))
        await call.answer(services_pb2.RevealResponse(pad=answer.pad.value))

    async def _store(self, call: Call) -> None:
        request = await call.request(services_pb2.StoreRequest, self.node.limits.records)
        records = await asyncio.to_thread(read_records, request.records, self.node.limits.names)
        await call.answer(await self.node.store(records, request.life))
