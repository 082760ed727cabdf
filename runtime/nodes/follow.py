"""A silo makes the global model itself: round after round, from the sum that the chain released.

What the aggregator publishes is checked against what all hops have signed. The model that comes of it must be the one
that the round's record names; if it is another, the aggregator lies, and this silo says so and trains on nothing more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import grpc
import numpy as np

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.learning.bounds import check_followed
from silomix.runtime.core.learning.optimise import Optimiser
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.core.policy import AUTO
from silomix.runtime.core.protocol.check.said import relayed
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.core.protocol.lineage import (
    Tensors,
    Transcript,
    check_transcript,
    check_vector,
    decode,
    follows,
    next_model,
    uncover,
)
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.roundlog import Outcome, Record, RoundLog, computed_digest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.net.answers import fault_of, transient, words_of
from silomix.runtime.net.history import read_signatures, read_transcript
from silomix.runtime.net.limits import SMALL_BYTES
from silomix.runtime.net.lines import method
from silomix.runtime.net.transport import backoff
from silomix.runtime.nodes.facts import read_lie, write_lie
from silomix.runtime.nodes.node import Node
from silomix.runtime.store.files import sweep, write_atomically
from silomix.runtime.store.journal import JournalBusy
from silomix.runtime.store.modelfile import model_digest, read_model, write_model
from silomix.v1 import services_pb2

MODEL_SLACK_BYTES = 1 << 20
CONFIRM_S = 10.0
"""Time for the small call that says what was computed."""


class Follower:
    """The model at the end of a silo's round log, computed or, where that cannot be, adopted."""

    def __init__(self, node: Node, log: RoundLog, schema: Schema) -> None:
        """Nothing is read before it is needed."""
        self._node, self._log, self._schema = node, log, schema
        self._federation = node.federation
        self._optimiser = Optimiser.of(node.federation.policy)
        self._directory = node.config.state
        self.at = -1
        """The round after which the model is that is here; -1 for none."""
        self.model: Tensors = {}
        self._state: Tensors = {}
        self._turn = asyncio.Lock()
        self._known = b""
        self._past: tuple[bytes, Tensors] = (b"", {})
        """The model before this one, with its digest, if bounds follow from it."""
        self._own = False
        """Whether this silo has computed the model that is here, and not adopted it."""
        self._told = b""
        """The record that the aggregator was last told of: that this silo has computed its model."""
        self._telling: asyncio.Task[None] | None = None
        self.liar = read_lie(node.journal)
        """What the aggregator was caught with, also before a restart."""

    @property
    def at_head(self) -> bool:
        """Whether the model is the one that the newest record names."""
        return 0 <= self.at == self._log.round - 1

    @property
    def _aggregator(self) -> str:
        return self._federation.aggregator.name

    def joined(self, manifest: bytes) -> None:
        """Know an attempt's manifest that was checked in full."""
        self._known = manifest

    def check_honest(self) -> None:
        """Refuse an aggregator that was seen to lie about a model."""
        if self.liar:
            raise PeerFault(Reason.WRONG_STEP, self.liar, peer=self._aggregator)

    async def follow(self, wanted: bytes = b"") -> Tensors:
        """Return the model that the newest record names, computed first if need be; refuse if it is not `wanted`."""
        async with self._turn:
            self.check_honest()
            if self.at < 0:
                await self._node.work(self._load)
            while self.at < self._log.round - 1:
                await self._advance()
            # Not the log's head: the machine may be adding records, in a thread, that nothing was computed for yet.
            if self._own and self._told != (here := self._log.records[self.at].digest):
                self._told = here
                self._telling = self._node.spawn(self._confirm(here))
            if wanted and self._log.model != wanted:  # its round ended meanwhile: what is here is the next one
                raise PeerFault(Reason.WRONG_MODEL, "the model of that round is over here", peer=self._aggregator)
            return self.model

    async def tell_again(self) -> None:
        """Say once more what was computed: the aggregator may have been started again, and does not write it down.

        A silo that comes late to a restored aggregator, which has no old sums, can go on only by these words.
        """
        self._told = b""
        if self._log.records:
            await self.follow()

    async def told(self) -> None:
        """Wait until the aggregator has heard what was computed, or cannot be reached."""
        if self._telling is not None:
            await asyncio.wait([self._telling])

    async def file_of(self, digest: bytes, *, state: bool) -> bytes | None:
        """Return a model that is here as a file, or the server's state beside it; nothing if it is not."""
        async with self._turn:
            if self.at < 0:
                await self._node.work(self._load)
            if self.at >= 0 and self._log.records[self.at].model_after == digest:
                schema = self._optimiser.state_schema(self._schema) if state else self._schema
                return await self._node.work(write_model, schema, self._state if state else self.model)
            try:
                return None if state else await self._node.work(self._directory.model(digest).read_bytes)
            except OSError:  # not here, or not any more: it goes when newer ones are written
                return None

    async def check_bounds(self, manifest: Manifest) -> None:
        """Compute a round's bounds from the two newest models, and refuse others."""
        if self._federation.policy.bound != AUTO:
            return  # there is one for all, which was checked with the manifest
        model = await self.follow(manifest.model)
        async with self._turn:
            if self._log.model != manifest.model:
                raise PeerFault(Reason.WRONG_MODEL, "the model of that round is over here", peer=self._aggregator)
            before = self._log.before
            if before and self._past[0] != before:
                self._past = before, await self._earlier(before)
            previous = self._past[1] if before else None
            policy, bounds = self._federation.policy, manifest.bounds
            await self._node.work(check_followed, policy, manifest.schema, bounds, model, previous)

    async def _earlier(self, digest: bytes) -> Tensors:
        """Return the model before the newest: from the disk, or from the aggregator if this silo was away."""
        path = self._directory.model(digest)
        try:
            return await self._node.work(lambda: _announced_model(path.read_bytes(), digest, self._schema))
        except (PeerFault, OSError):  # not here, or damaged
            data, _ = await self._get(digest, state=False)
        return await self._node.work(_announced_model, data, digest, self._schema)

    async def _advance(self) -> None:
        """Take one step towards the end of the log, or go there at once."""
        last = self._log.round - 1
        if self.at < 0 and self._log.round == 1:
            await self._fetch(self._log.records[0])
            self.at = 0
            return
        record = self._log.records[self.at + 1]
        if not follows(self._log.of(record)):
            await self._fetch(self._log.records[last])  # there the model is the aggregator's word
            self.at = last
            return
        try:
            if self.at < 0:
                await self._fetch(record)
            elif record.outcome is Outcome.APPLIED:
                await self._compute(record)
            self.at += 1
        except PeerFault as fault:
            if fault.reason not in (Reason.WRONG_ROUND, Reason.WRONG_MODEL):
                raise
            await self._adopt(self._log.records[last])  # too far behind: the aggregator has not kept all sums
            self.at = last

    def _take(self, model: Tensors, state: Tensors) -> None:
        """Have another model, and remember the one before if bounds follow from both."""
        if self._federation.policy.bound == AUTO and self.at >= 0:
            now = self._log.records[self.at].model_after
            self._past = self._past if now == self._past[0] else (now, self.model)
        self.model, self._state = model, state

    # Computing

    async def _compute(self, record: Record) -> None:
        started = self._node.clock()
        transcript, body = await self._download(record)
        model, state = await self._node.work(self._step, record, transcript, body)
        self._take(model, state)
        self._own = True
        self._node.metrics.phase_took("follow", self._node.clock() - started)
        self._node.log.info("computed the model", round=record.round, cohort=len(record.silos))
        if record.digest == self._log.head:
            self._node.spawn(self._keep(record, model, state))

    def _step(self, record: Record, transcript: Transcript, body: Bytes) -> tuple[Tensors, Tensors]:
        federation = self._log.of(record)  # as it was then
        check_transcript(transcript, record, federation, known=self._known)
        with relayed(federation):
            check_vector(body, transcript, federation)
        uncover(body, transcript)
        manifest = transcript.manifest
        mean = decode(body, manifest, len(transcript.cohort.participants), federation)
        model, state = next_model(federation, manifest, [mean], self.model, self._state)
        found = (model_digest(self._schema, model), self._state_digest(state))
        if found != (record.model_after, record.state_after):
            self.liar = (
                f"{self._aggregator} signed that round {record.round} ends with model {record.model_after.hex()[:16]}, "
                f"and the sum that the chain released makes {found[0].hex()[:16]}: this silo trains on nothing more"
            )
            with suppress(JournalBusy):  # a full disk: it would be found out again after a restart
                write_lie(self._node.journal, record.round, self.liar)
            raise PeerFault(Reason.WRONG_STEP, self.liar, peer=self._aggregator)
        return model, state

    def _state_digest(self, state: Tensors) -> bytes:
        return model_digest(self._optimiser.state_schema(self._schema), state)

    async def _download(self, record: Record) -> tuple[Transcript, Bytes]:
        request, what = services_pb2.GetSumRequest(round=record.round), method("AggregatorService", "GetSum")
        limit = self._node.limits.sum_part
        async for _ in backoff():
            try:
                parts = self._node.line(self._aggregator).listen(what, request, services_pb2.SumPart, limit)
                return await self._put_together(record, parts)
            except grpc.aio.AioRpcError as error:
                if not transient(error):
                    raise fault_of(error) or PeerFault(Reason.WRONG_ROUND, words_of(error)) from None
        raise AssertionError("unreachable: the backoff has no end")

    async def _put_together(
        self, record: Record, parts: AsyncIterator[services_pb2.SumPart]
    ) -> tuple[Transcript, Bytes]:
        first = await anext(parts, None)
        if first is None or first.WhichOneof("kind") != "transcript":
            raise PeerFault(Reason.WRONG_SEQUENCE, "a released sum begins with its transcript", peer=self._aggregator)
        transcript = await asyncio.to_thread(read_transcript, first.transcript)
        if transcript.manifest.digest != record.attempts[-1].manifest:  # all that is made room for follows from it
            raise PeerFault(
                Reason.WRONG_MANIFEST, f"this is not what was released in round {record.round}", peer=self._aggregator
            )
        if transcript.manifest.schema.digest != self._schema.digest:
            raise PeerFault(Reason.WRONG_SCHEMA, "the sum is not one of this silo's task", peer=self._aggregator)
        shape = layout(transcript.manifest)
        body, due = shape.body(), 0
        async for part in parts:
            if part.WhichOneof("kind") != "chunk" or part.chunk.index != due or due >= shape.chunks:
                raise PeerFault(Reason.WRONG_SEQUENCE, f"chunk {due} was due", peer=self._aggregator)
            shape.part(body, due)[:] = np.concatenate(shape.check(due, list(part.chunk.planes)))
            due += 1
        if due != shape.chunks:
            raise PeerFault(Reason.WRONG_SEQUENCE, "a released sum ended early", peer=self._aggregator)
        return transcript, body

    async def _confirm(self, record: bytes) -> None:
        """Tell the aggregator, for the sake of silos that come late. If it does not hear, nothing is lost."""
        name = self._node.config.name
        signature = self._node.identity.sign(computed_digest(record, name))
        request = services_pb2.ConfirmRequest(record_digest=record, signature=signature)
        what = method("AggregatorService", "Confirm")
        try:
            line = self._node.line(self._aggregator)
            await line.ask(what, request, services_pb2.ConfirmResponse, SMALL_BYTES, CONFIRM_S)
        except (grpc.aio.AioRpcError, PeerFault):
            return

    # On the disk

    async def _keep(self, record: Record, model: Tensors, state: Tensors) -> None:
        """Write the model for a restart. If the disk is full, the next one is written, or it is computed again."""
        try:
            await self._node.work(self._write, record, model, state)
        except OSError as error:
            self._node.log.warning(f"the model cannot be kept: {error}")

    def _write(self, record: Record, model: Tensors, state: Tensors) -> None:
        home = self._directory
        home.models.mkdir(parents=True, exist_ok=True)
        kept = {home.model(record.model_after), home.moments(record.model_after, record.round)}
        if self._federation.policy.bound == AUTO:
            kept.add(home.model(record.model_before))
        if self._optimiser.slots:
            schema = self._optimiser.state_schema(self._schema)
            write_atomically(home.moments(record.model_after, record.round), write_model(schema, state))
        write_atomically(home.model(record.model_after), write_model(self._schema, model))
        for old in set(home.models.iterdir()) - kept:
            old.unlink(missing_ok=True)

    def _load(self) -> None:
        """Read the newest model that is here, and whole.

        One that a round is said to have made, and an earlier one had, may be here from then: that shows nothing. The
        server's state, where there is one, is kept by round.
        """
        sweep(self._directory.models)
        known, made = set[bytes](), list[Record]()
        anew = True
        for record in self._log.records:
            if record.outcome is not Outcome.ABANDONED:
                anew = record.model_after not in known
                known.add(record.model_after)
            if anew or self._optimiser.slots:
                made.append(record)
        for record in reversed(made):
            if self._load_one(record):
                return

    def _load_one(self, record: Record) -> bool:
        home = self._directory
        try:
            schema, model = read_model(home.model(record.model_after).read_bytes())
            of_state, state = self._optimiser.state_schema(self._schema), self._optimiser.start(self._schema)
            if self._optimiser.slots:
                of_state, state = read_model(home.moments(record.model_after, record.round).read_bytes())
        except (LocalFault, OSError):  # not here, damaged, or half of it is missing: it is computed again
            return False
        if (model_digest(schema, model), model_digest(of_state, state)) != (record.model_after, record.state_after):
            return False
        self.model, self._state, self.at = model, state, record.round
        self._own = True  # nothing else is kept
        return True

    # Taking a model as it is

    async def _fetch(self, record: Record) -> tuple[tuple[str, bytes], ...]:
        """Download the model that a record names, and the server's state; return who has computed it."""
        data, computed = await self._get(record.model_after, state=False)
        model = await self._node.work(_announced_model, data, record.model_after, self._schema)
        state = self._optimiser.start(self._schema)
        if self._optimiser.slots and record.state_after != self._state_digest(state):
            if record.outcome is Outcome.GENESIS:
                raise PeerFault(
                    Reason.WRONG_STEP, "the server's state does not begin at rest, as it must", peer=self._aggregator
                )
            raw, _ = await self._get(record.model_after, state=True)
            schema = self._optimiser.state_schema(self._schema)
            state = await self._node.work(_announced_model, raw, record.state_after, schema)
        self._take(model, state)
        self._own = False
        return computed

    async def _adopt(self, record: Record) -> None:
        """Take a model that a majority of the roster has computed; whoever adopts one does not sign for it."""
        before = self.model, self._state, self._own
        computed = await self._fetch(record)
        try:
            self._check_majority(record, computed)
        except PeerFault:
            self.model, self._state, self._own = before
            raise
        self._node.log.info("adopted the model that a majority of silos computed", round=record.round)

    def _check_majority(self, record: Record, computed: tuple[tuple[str, bytes], ...]) -> None:
        signed = set()
        for silo, signature in computed:
            if silo in self._federation.silo_names:
                verify(self._federation.member(silo).key, computed_digest(record.digest, silo), signature, silo)
                signed.add(silo)
        if 2 * len(signed) <= len(self._federation.silos):
            raise PeerFault(
                Reason.WRONG_STEP,
                f"this silo is too far behind to compute the model of round {record.round}, and "
                f"{len(signed)} of {len(self._federation.silos)} silos have signed for it: a majority is needed",
                peer=self._aggregator,
            )

    async def _get(self, model: bytes, *, state: bool) -> tuple[bytes, tuple[tuple[str, bytes], ...]]:
        most = 2 * 8 * (2 * self._schema.parameters if state else self._schema.parameters) + MODEL_SLACK_BYTES
        request = services_pb2.GetModelRequest(model_digest=model, state=state)
        kind, limit, what = (
            services_pb2.ModelPart,
            self._node.limits.model_part,
            method("AggregatorService", "GetModel"),
        )
        async for _ in backoff():
            data = bytearray()
            computed: tuple[tuple[str, bytes], ...] = ()
            try:
                async for part in self._node.line(self._aggregator).listen(what, request, kind, limit):
                    computed = computed or read_signatures(list(part.computed))
                    data += part.data
                    if len(data) > most or part.total_bytes > most:
                        raise PeerFault(
                            Reason.WRONG_LENGTH, f"the model is longer than {most} bytes", peer=self._aggregator
                        )
            except grpc.aio.AioRpcError as error:
                if not transient(error):
                    unknown = PeerFault(Reason.WRONG_MODEL, f"{self._aggregator} ended the call: {words_of(error)}")
                    raise fault_of(error) or unknown from None
                continue
            except PeerFault as fault:
                if fault.reason is Reason.WRONG_LENGTH:
                    raise
                self._node.metrics.rejected(fault.reason)
                if (unsaid := self._node.unsaid(self._aggregator, "a model", fault.reason)) is not None:
                    self._node.log.fault("what came of the model cannot be read, trying again", fault, **unsaid)
                continue
            return bytes(data), computed
        raise AssertionError("unreachable: the backoff has no end")


def _announced_model(data: bytes, digest: bytes, expected: Schema) -> Tensors:
    """Read the model that came, or refuse it if it is not the one that is on record, or none of this task."""
    try:
        schema, tensors = read_model(data)
    except LocalFault as fault:  # the file is not ours: whoever sent it is at fault
        raise PeerFault(Reason.MALFORMED, f"what came is no model: {fault.message}") from None
    if model_digest(schema, tensors) != digest:
        raise PeerFault(Reason.WRONG_STEP, "the model that came is not the one that is on record")
    if schema.digest != expected.digest:
        raise PeerFault(Reason.WRONG_SCHEMA, "the model that is on record is none of this silo's task")
    return tensors
