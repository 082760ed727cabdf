"""An aggregator that says what it likes, to whom it likes. Left alone it does what an honest one does."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from silomix.attacks.active.liars.bodies import cover, planes_of, seed_for, take_off, values
from silomix.attacks.active.liars.chronicle import Chronicle
from silomix.attacks.active.liars.hop import LyingHop
from silomix.attacks.active.liars.member import ANSWER_S, Member, Refused, abort
from silomix.attacks.active.measure import Vector, flat
from silomix.runtime.config.certificates import peer_name_from_cert
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.learning.bounds import bounds_of
from silomix.runtime.core.learning.optimise import Optimiser
from silomix.runtime.core.numbers.masks import Secret, public_key, unseal
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.core.policy import AUTO
from silomix.runtime.core.protocol.lineage import Transcript, decode, next_model, uncover
from silomix.runtime.core.protocol.messages import Cohort, Header, Manifest, RoundKey, delivery_digest
from silomix.runtime.core.protocol.release import Ready, Signatures, Trail, pad_digest
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.net.history import read_trails, write_record, write_signatures, write_trail, write_transcript
from silomix.runtime.net.wire import read_cohort, read_header, read_round_key, write_manifest
from silomix.runtime.store.modelfile import model_digest, read_model, write_model
from silomix.v1 import body_pb2, history_pb2, services_pb2

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(eq=False)
class Delivered:
    """What the last hop has sent for an attempt so far."""

    manifest: Manifest
    headers: dict[str, Header] = field(default_factory=dict)
    cohort: Cohort | None = None
    groups: services_pb2.Groups | None = None
    chunks: list[body_pb2.Chunk] = field(default_factory=list, repr=False)
    trailer: services_pb2.RelayTrailer | None = None

    @property
    def whole(self) -> bool:
        """Whether all of it is here."""
        return self.trailer is not None

    @property
    def trails(self) -> tuple[Trail, ...]:
        """What the hops have signed."""
        assert self.trailer is not None
        return read_trails(list(self.trailer.trails))

    @property
    def root(self) -> bytes:
        """Root of what came."""
        return self.trails[-1].sent

    @property
    def silos(self) -> tuple[str, ...]:
        """The cohort, as far as it is known."""
        return self.cohort.silos if self.cohort is not None else ()


Answer = Callable[[Delivered], bytes]
"""What the last hop gets for a sum: bytes, or a `PeerFault` that is raised."""


class LyingAggregator(Member):
    """Holds the aggregator's directory. Each silo and each hop may be told something else."""

    def __init__(self, home: Path) -> None:
        """Begin with the model that lies in the directory."""
        super().__init__(home)
        assert self.config.initial_model is not None
        self.schema: Schema
        self.schema, tensors = read_model(self.config.initial_model.read_bytes())
        self.files: dict[bytes, bytes] = {}
        self.start = self.keep(tensors)
        """The model that it began with."""
        self.optimiser = Optimiser.of(self.federation.policy)
        self.states: dict[bytes, dict[str, npt.NDArray[Any]]] = {}
        self.chronicle = Chronicle(self.federation, self.identity)
        self.colluding: dict[str, LyingHop] = {}
        """Hops that are on its side: asked for nothing by a call."""
        self.pads: dict[bytes, dict[str, Secret]] = {}
        """By manifest: what hops have shown."""
        self.signatures: dict[bytes, Signatures] = {}
        """By manifest: everybody's under its release."""
        self.transcripts: dict[int, Transcript] = {}
        """By round that was applied."""
        self.sum_answer: Callable[[str, int], Iterable[bytes]] = self.sum_parts
        """What a silo gets that asks for the sum of a round: bytes, or a `PeerFault`."""
        self.computed: dict[str, bytes] = {}
        """Who says to have computed the newest model."""
        self.stories: dict[str, list[Record]] = {}
        """By silo: records that it is told and others are not."""
        self.private: dict[bytes, dict[str, Secret]] = {}
        """By manifest: its own round keys, by silo."""
        self.came: dict[bytes, Delivered] = {}
        """By manifest: what came down the chain."""
        self.answer: Answer = self.delivery
        self.watching: set[str] = set()
        self.model_answer: Callable[[bytes], Iterable[bytes]] = self.parts
        """What a silo gets that asks for a model: bytes, a `PeerFault`, or a `grpc.RpcError` for a bare status."""
        self._news: dict[str, bytes | PeerFault] = {}
        self._told = asyncio.Condition()
        self.on_header: Callable[[Delivered, Header], None] = lambda came, header: None
        """What is done with a header that comes down the chain: nothing, or a `PeerFault` is raised."""
        self._leaving = False
        self.evidence = b""
        """What goes with a refusal."""

    # Models

    def keep(self, tensors: Tensors) -> bytes:
        """Have a model ready for whoever asks for its digest, and return that."""
        digest = model_digest(self.schema, tensors)
        self.files[digest] = write_model(self.schema, tensors)
        return digest

    def keep_any(self, tensors: Tensors) -> bytes:
        """Have a model ready that has the first of some tensors and no others."""
        first = self.schema.tensors[0]
        schema = Schema((first,))
        digest = model_digest(schema, {first.name: tensors[first.name]})
        self.files[digest] = write_model(schema, {first.name: tensors[first.name]})
        return digest

    def tensors(self, model: bytes) -> dict[str, npt.NDArray[Any]]:
        """Return a model by its digest."""
        return read_model(self.files[model])[1]

    def vector(self, model: bytes) -> Vector:
        """Return a model as one vector."""
        return flat(self.schema, self.tensors(model))

    def moved(self, model: bytes, by: Vector) -> bytes:
        """Keep the model that lies so far from another one, as FedAvg makes it, and return its digest."""
        place, out = 0, {}
        whole = self.vector(model) + by
        for t in self.schema.tensors:
            out[t.name] = whole[place : place + t.size].reshape(t.shape).astype("float32")
            place += t.size
        return self.keep(out)

    @property
    def model(self) -> bytes:
        """The model that the next round starts from."""
        return self.chronicle.log.model or self.start

    def bounds(self, model: bytes) -> tuple[float, ...]:
        """Return the bounds of a round on a model, as an honest aggregator computes them."""
        policy, before = self.federation.policy, self.chronicle.log.before
        if policy.bound != AUTO:
            return (policy.bound,) * len(self.schema.tensors)
        return bounds_of(policy, self.schema, self.tensors(model), self.tensors(before) if before else None)

    def state_digest(self, state: Tensors) -> bytes:
        """Return the digest of a state of the server's optimiser."""
        return model_digest(self.optimiser.state_schema(self.schema), state)

    # Attempts

    def invited(self, _: int = 0) -> tuple[str, ...]:
        """Return whom the policy draws for the round that is next."""
        return self.federation.draw(self.chronicle.log.applied + 1, self.chronicle.log.model)

    async def prepare(
        self,
        hop: str,
        round_: int,
        attempt: int = 1,
        head: bytes = b"",
        silos: tuple[str, ...] = (),
        small: bytes = b"",
    ) -> tuple[RoundKey, ...]:
        """Have a hop make its keys; `small` stands for those of a hop that colludes."""
        head, silos = head or self.chronicle.log.head, silos or self.invited()
        if hop in self.colluding:
            return self.colluding[hop].make_keys(round_, attempt, silos, head, small)
        request = services_pb2.PrepareRequest(
            federation_digest=self.federation.digest, round=round_, attempt=attempt, silos=silos, head_digest=head
        )
        stub = self.shuffler(hop)
        answer = await self.ask(hop, lambda: stub.Prepare(request, timeout=ANSWER_S))
        return tuple(read_round_key(key) for key in answer.keys)

    def propose(
        self,
        round_: int,
        keys: Mapping[str, tuple[RoundKey, ...]],
        *,
        attempt: int = 1,
        model: bytes = b"",
        chain: tuple[str, ...] = (),
        like: Manifest | None = None,
        small: bytes = b"",
        **changes: Any,
    ) -> Manifest:
        """Make a manifest and sign it. `like` is one whose own keys serve again; `small` stands for all of them."""
        policy, invited, log = self.federation.policy, changes.pop("drawn", ()) or self.invited(), self.chronicle.log
        head, model = changes.get("head", log.head), model or self.model
        chain = chain or self.federation.chain
        names = ("",) if policy.group_size else invited
        private = {name: Secret.draw(os.urandom) for name in names}
        if like is not None:
            private = self.private[like.digest]
        own = tuple(
            RoundKey(self.name, name, round_, attempt, small or public_key(secret), round_ - 1).signed(
                self.identity, self.federation.digest, head
            )
            for name, secret in private.items()
        )
        content: dict[str, Any] = {
            "federation": self.federation.digest,
            "head": head,
            "applied": log.applied,
            "round": round_,
            "attempt": attempt,
            "earlier": self.chronicle.earlier(round_, attempt),
            "model": model,
            "state": self.chronicle.head.state_after,
            "schema": self.schema,
            "plan": self.federation.plan,
            "bounds": self.bounds(model),
            "update": policy.update,
            "granularity": policy.granularity,
            "chain": chain,
            "hop_keys": tuple(key for hop in chain for key in keys[hop]),
            "aggregator_keys": own,
            "group_size": policy.group_size,
            "invited": () if invited == self.federation.silo_names else invited,
            "minimum_cohort": self.federation.minimum_cohort,
            "chunk_parameters": policy.chunk_parameters,
            "deadline_s": policy.deadline_s,
            "bound": self.chronicle.sealed.get(model),
        }
        manifest = Manifest(**{**content, **changes}).signed(self.identity)
        self.chronicle.tries(manifest)
        self.private[manifest.digest] = private
        self.came[manifest.digest] = Delivered(manifest)
        return manifest

    async def open(self, hop: str, manifest: Manifest, head: Record | None = None) -> None:
        """Open an attempt at a hop."""
        if hop in self.colluding:
            self.colluding[hop].open(manifest)
            return
        shown = write_record(head or self.chronicle.head)
        request = services_pb2.OpenRequest(manifest=write_manifest(manifest), head=shown)
        stub = self.shuffler(hop)
        await self.ask(hop, lambda: stub.Open(request, timeout=ANSWER_S))

    async def announce(self, manifest: Manifest, silos: Iterable[str]) -> None:
        """Announce an attempt to these silos."""
        news = services_pb2.Announcement(manifest=write_manifest(manifest)).SerializeToString()
        await self.tell(dict.fromkeys(silos, news))

    async def tell(self, news: Mapping[str, bytes | PeerFault]) -> None:
        """Say anything to silos that watch: a message, bytes that are none, or a refusal."""
        async with self._told:
            self._news.update(news)
            self._told.notify_all()

    # The release

    def ready(self, manifest: Manifest) -> Ready:
        """Put together what hops are to sign for, of the trails that came with the sum."""
        return Ready(manifest.digest, manifest.model, self.came[manifest.digest].trails)

    async def agree(self, hop: str, ready: Ready) -> bytes:
        """Have a hop sign for a release."""
        if hop in self.colluding:
            return self.colluding[hop].agree(ready)
        trails = [write_trail(trail) for trail in ready.trails]
        request = services_pb2.AgreeRequest(manifest_digest=ready.manifest, trails=trails)
        stub = self.shuffler(hop)
        answer = await self.ask(hop, lambda: stub.Agree(request, timeout=ANSWER_S))
        signature: bytes = answer.signature
        return signature

    async def agreed(self, manifest: Manifest, ready: Ready | None = None) -> Signatures:
        """Have everybody sign for a release, and sign last."""
        ready = ready or self.ready(manifest)
        signed = [(hop, await self.agree(hop, ready)) for hop in manifest.chain]
        return (*signed, (self.name, self.identity.sign(ready.digest)))

    async def reveal(self, hop: str, manifest: bytes, signatures: Signatures) -> Secret:
        """Have a hop show its pad, and keep it."""
        if hop in self.colluding:
            pad = Secret(bytes(self.colluding[hop].pads[manifest].value))
        else:
            request = services_pb2.RevealRequest(manifest_digest=manifest, signatures=write_signatures(signatures))
            stub = self.shuffler(hop)
            answer = await self.ask(hop, lambda: stub.Reveal(request, timeout=ANSWER_S))
            pad = Secret(answer.pad)
        self.pads.setdefault(manifest, {})[hop] = pad
        return pad

    async def release(self, manifest: Manifest) -> None:
        """Have a sum released as an honest aggregator does: all sign, then all show their pads."""
        ready, cohort = self.ready(manifest), self.came[manifest.digest].cohort
        assert cohort is not None, "the sum is here"
        signatures = await self.agreed(manifest, ready)
        self.chronicle.seals(manifest, ready, cohort, signatures)
        self.signatures[manifest.digest] = signatures
        for hop in manifest.chain:
            await self.reveal(hop, manifest.digest, signatures)

    # Sums

    def readable(self, manifest: Manifest) -> bool:
        """Whether every pad of an attempt is here, and is the one that was committed to."""
        pads, came = self.pads.get(manifest.digest, {}), self.came[manifest.digest]
        return came.whole and all(t.hop in pads and pad_digest(pads[t.hop]) == t.pad for t in came.trails)

    def sum(self, manifest: Manifest) -> Vector:
        """Open the sum that came for an attempt with the aggregator's own keys and the pads that it has, if it can."""
        came, pads = self.came[manifest.digest], self.pads.get(manifest.digest, {})
        headers = [came.headers[name] for name in came.silos]
        keys = {self.name: self.private[manifest.digest]}
        planes = take_off(planes_of(came.chunks), headers, keys, manifest)
        ready = self.ready(manifest)
        for hop, pad in pads.items():
            cover(planes, pad, ready.pad_context(hop, manifest.chunk_parameters), manifest, -1)
        return values(planes, manifest)

    def group_sums(self, manifest: Manifest) -> list[Vector]:
        """Open the sums of groups."""
        came, ready, found = self.came[manifest.digest], self.ready(manifest), []
        assert came.groups is not None
        groups = came.groups.groups
        context, private = manifest.context(0), self.private[manifest.digest][""]
        for row, group in enumerate(groups):
            planes = planes_of(came.chunks[row :: len(groups)])
            for sealed in group.seeds:
                cover(planes, unseal(sealed.sealed, private, context), context, manifest, -1)
            for hop, pad in self.pads[manifest.digest].items():
                where = ready.pad_context(hop, manifest.chunk_parameters)
                cover(planes, pad, where, manifest, -1, (row, len(groups)))
            found.append(values(planes, manifest))
        return found

    def transcript(self, manifest: Manifest) -> Transcript:
        """Put together what silos need to read a sum."""
        came, pads = self.came[manifest.digest], self.pads[manifest.digest]
        assert came.cohort is not None
        headers = tuple(came.headers[name] for name in came.silos)
        own = self.private[manifest.digest]
        seeds = tuple(seed_for(header, self.name, own[header.silo], manifest) for header in headers)
        return Transcript(
            manifest,
            came.cohort,
            headers,
            self.ready(manifest),
            self.signatures[manifest.digest],
            tuple(pads[hop] for hop in manifest.chain),
            tuple(seed for seed in seeds if seed is not None),
        )

    def step(self, manifest: Manifest) -> tuple[bytes, bytes]:
        """Make the next model of a sum as an honest aggregator does; return the digests of model and state."""
        before = self.states.get(self.chronicle.head.state_after) or self.optimiser.start(self.schema)
        if manifest.group_size:
            mean: Vector = np.sum(self.group_sums(manifest), axis=0) / len(self.came[manifest.digest].silos)
            return self.moved(manifest.model, mean), self.chronicle.head.state_after
        transcript = self.transcript(manifest)
        planes = planes_of(self.came[manifest.digest].chunks)
        uncover(planes, transcript)
        mean_of = decode(planes, manifest, len(transcript.cohort.participants), self.federation)
        model, state = next_model(self.federation, manifest, [mean_of], self.tensors(manifest.model), before)
        self.transcripts[manifest.round] = transcript
        digest = self.state_digest(state)
        self.states[digest] = state
        return self.keep(model), digest

    def delivery(self, came: Delivered) -> bytes:
        """Say what an honest aggregator says."""
        what = delivery_digest(self.name, came.manifest.digest, came.root)
        return self.signed_delivery(came.root, self.identity.sign(what))

    def signed_delivery(self, root: bytes, signature: bytes) -> bytes:
        """Write a delivery with any root and any signature."""
        return services_pb2.Delivery(name=self.name, root=root, signature=signature).SerializeToString()

    # The round log

    async def store(self, hop: str, *records: Record) -> bytes:
        """Have a hop store records, and return its countersignature under the last."""
        if hop in self.colluding:
            return [self.colluding[hop].store(record) for record in records][-1]
        request = services_pb2.StoreRequest(records=[write_record(record) for record in records])
        stub = self.shuffler(hop)
        answer = await self.ask(hop, lambda: stub.Store(request, timeout=ANSWER_S))
        signature: bytes = answer.signature
        return signature

    async def stored(self, record: Record) -> dict[str, bytes]:
        """Have hops store a record that they ought to refuse, and return the signatures of those that do not."""
        signed = {}
        for hop in self.federation.chain:
            try:
                signed[hop] = await self.store(hop, record)
            except Refused:
                continue
        return signed

    async def countersigned(self, record: Record) -> Record:
        """Have every hop store a record, and return it with their signatures."""
        signed = [(hop, await self.store(hop, record)) for hop in self.federation.chain]
        return replace(record, countersignatures=tuple(signed))

    async def publish(self, record: Record) -> Record:
        """Have a record stored by all hops, go on from it, and let silos have it."""
        record = await self.countersigned(record)
        async with self._told:
            self.chronicle.log.append(record)
            self.computed = {}
            self._told.notify_all()
        return record

    async def found(self) -> None:
        """Begin the history."""
        start = self.optimiser.start(self.schema)
        self.states[self.state_digest(start)] = start
        await self.publish(self.chronicle.first(self.start, self.state_digest(start)))

    async def conclude(self, manifest: Manifest) -> Record:
        """End a round as an honest aggregator does, with the sum of an attempt that was released."""
        root = self.came[manifest.digest].root
        draft = self.chronicle.draft(Outcome.APPLIED, self.step(manifest), root, manifest.attempt)
        return await self.publish(draft)

    # Serving

    async def close(self) -> None:
        """Let watchers go first."""
        async with self._told:
            self._leaving = True
            self._told.notify_all()
        await super().close()

    def handlers(self) -> dict[str, tuple[str, Any]]:
        """Answer as an aggregator."""
        return {
            "Watch": ("told", self._watch),
            "GetModel": ("told", self._get_model),
            "GetSum": ("told", self._get_sum),
            "Confirm": ("unary", self._confirm),
            "Deliver": ("streamed", self._deliver),
        }

    def story(self, silo: str) -> list[Record]:
        """Return the records that a silo is told."""
        return self.stories.get(silo, self.chronicle.log.records)

    async def _watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        silo, last = peer_name_from_cert(context.auth_context()), self._news.get("")
        have = services_pb2.WatchRequest.FromString(request).records
        self.watching.add(silo)
        while True:
            async with self._told:
                while self._news.get(silo) is last and len(self.story(silo)) <= have and not self._leaving:
                    await self._told.wait()
                if self._leaving:
                    return
                records, news = self.story(silo)[have:], self._news.get(silo)
            if records:
                have += len(records)
                yield told_of(*records)
            if news is last or news is None:
                continue
            last = news
            if isinstance(news, PeerFault):
                await abort(context, news)
            else:
                yield news

    async def _get_sum(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        silo = peer_name_from_cert(context.auth_context())
        try:
            for part in self.sum_answer(silo, services_pb2.GetSumRequest.FromString(request).round):
                yield part
        except PeerFault as fault:
            await abort(context, fault)

    def sum_parts(self, _: str, round_: int) -> Iterable[bytes]:
        """Serve a sum as an honest aggregator does."""
        transcript = self.transcripts[round_]
        chunks = self.came[transcript.manifest.digest].chunks
        yield services_pb2.SumPart(transcript=write_transcript(transcript)).SerializeToString()
        yield from (services_pb2.SumPart(chunk=chunk).SerializeToString() for chunk in chunks)

    def lose_sums(self, silo: str) -> None:
        """Tell one silo that no sum is kept: it has to ask for the model that came of it."""

        def answer(asks: str, round_: int) -> Iterable[bytes]:
            if asks == silo:
                raise PeerFault(Reason.WRONG_ROUND, "that sum is not kept any more")
            return self.sum_parts(asks, round_)

        self.sum_answer = answer

    async def _confirm(self, request: bytes, context: Any) -> bytes:
        said = services_pb2.ConfirmRequest.FromString(request)
        self.computed[peer_name_from_cert(context.auth_context())] = said.signature
        return services_pb2.ConfirmResponse().SerializeToString()

    async def _get_model(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        digest = services_pb2.GetModelRequest.FromString(request).model_digest
        try:
            for part in self.model_answer(digest):
                yield part
        except PeerFault as fault:
            await abort(context, fault)
        except grpc.RpcError:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")

    def parts(self, digest: bytes) -> Iterable[bytes]:
        """Serve a model as an honest aggregator does."""
        data = self.files[digest]
        signed = write_signatures(tuple(self.computed.items()) if digest == self.model else ())
        yield services_pb2.ModelPart(total_bytes=len(data), data=data, computed=signed).SerializeToString()

    async def _deliver(self, frames: AsyncIterator[bytes], context: Any) -> bytes:
        came: Delivered | None = None
        try:
            async for raw in frames:
                frame = services_pb2.RelayFrame.FromString(raw)
                match frame.WhichOneof("kind"):
                    case "open":
                        came = self.came[frame.open.manifest_digest]
                        came.chunks.clear()
                    case "header":
                        assert came is not None
                        header = read_header(frame.header)
                        came.headers[header.silo] = header
                        self.on_header(came, header)
                    case "cohort":
                        assert came is not None
                        came.cohort = read_cohort(frame.cohort)
                    case "groups":
                        assert came is not None
                        came.groups = frame.groups
                    case "chunk":
                        assert came is not None
                        came.chunks.append(frame.chunk)
                    case "trailer":
                        assert came is not None
                        came.trailer = frame.trailer
            return self.answer(came) if came is not None and came.whole else b""  # else the hop has hung up
        except PeerFault as fault:
            await abort(context, fault, self.evidence)
            raise AssertionError("unreachable: abort raises") from None


def told_of(*records: Record) -> bytes:
    """Write records as silos are told of them."""
    both = history_pb2.Records(records=[write_record(record) for record in records])
    return services_pb2.Announcement(records=both).SerializeToString()
