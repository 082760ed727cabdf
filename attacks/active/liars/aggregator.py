"""An aggregator that says what it likes, to whom it likes. Left alone it does what an honest one does."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy.typing as npt

from silomix.attacks.active.liars.bodies import planes_of, take_off, values
from silomix.attacks.active.liars.member import ANSWER_S, Member, abort
from silomix.attacks.active.measure import Vector, flat
from silomix.runtime.config.certificates import peer_name_from_cert
from silomix.runtime.core.errors import PeerFault
from silomix.runtime.core.numbers.masks import Secret, public_key
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.core.protocol.messages import Cohort, Header, Manifest, RoundKey, delivery_digest
from silomix.runtime.net.wire import read_cohort, read_header, read_round_key, write_manifest
from silomix.runtime.store.modelfile import model_digest, read_model, write_model
from silomix.v1 import body_pb2, services_pb2

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
        self.model = self.keep(tensors)
        self.start = self.model
        """The model that it began with."""
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

    # Attempts

    def invited(self, round_: int) -> tuple[str, ...]:
        """Return whom the policy draws."""
        return self.federation.draw(round_)

    async def prepare(self, hop: str, round_: int, attempt: int = 1) -> tuple[RoundKey, ...]:
        """Have a hop make its keys."""
        request = services_pb2.PrepareRequest(
            federation_digest=self.federation.digest, round=round_, attempt=attempt, silos=self.invited(round_)
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
        policy, invited = self.federation.policy, self.invited(round_)
        chain = chain or self.federation.chain
        names = ("",) if policy.group_size else invited
        private = {name: Secret.draw(os.urandom) for name in names}
        if like is not None:
            private = self.private[like.digest]
        own = tuple(
            RoundKey(self.name, name, round_, attempt, small or public_key(secret), round_ - 1).signed(
                self.identity, self.federation.digest
            )
            for name, secret in private.items()
        )
        content: dict[str, Any] = {
            "federation": self.federation.digest,
            "round": round_,
            "attempt": attempt,
            "model": model or self.model,
            "schema": self.schema,
            "plan": self.federation.plan,
            "bounds": (policy.bound,) * len(self.schema.tensors),
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
        }
        manifest = Manifest(**{**content, **changes}).signed(self.identity)
        self.private[manifest.digest] = private
        self.came[manifest.digest] = Delivered(manifest)
        return manifest

    async def open(self, hop: str, manifest: Manifest) -> None:
        """Open an attempt at a hop."""
        request = services_pb2.OpenRequest(manifest=write_manifest(manifest))
        stub = self.shuffler(hop)
        await self.ask(hop, lambda: stub.Open(request, timeout=ANSWER_S))

    async def announce(self, manifest: Manifest, silos: Iterable[str]) -> None:
        """Announce an attempt to these silos."""
        news = services_pb2.Announcement(manifest=write_manifest(manifest)).SerializeToString()
        await self.tell(dict.fromkeys(silos, news))

    async def tell(self, news: Mapping[str, bytes | PeerFault]) -> None:
        """Say anything to silos that watch: a message, what is none, or a refusal."""
        async with self._told:
            self._news.update(news)
            self._told.notify_all()

    # Sums

    def sum(self, manifest: Manifest) -> Vector:
        """Open the sum that came for an attempt with the aggregator's own keys."""
        came = self.came[manifest.digest]
        headers = [came.headers[name] for name in came.silos]
        keys = {self.name: self.private[manifest.digest]}
        return values(take_off(planes_of(came.chunks), headers, keys, manifest), manifest)

    def delivery(self, came: Delivered) -> bytes:
        """Say what an honest aggregator says."""
        assert came.trailer is not None
        what = delivery_digest(self.name, came.manifest.digest, came.trailer.root)
        return self.signed_delivery(came.trailer.root, self.identity.sign(what))

    def signed_delivery(self, root: bytes, signature: bytes) -> bytes:
        """Write a delivery with any root and any signature."""
        return services_pb2.Delivery(name=self.name, root=root, signature=signature).SerializeToString()

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
            "Deliver": ("streamed", self._deliver),
        }

    async def _watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        silo, last = peer_name_from_cert(context.auth_context()), self._news.get("")
        self.watching.add(silo)
        while True:
            async with self._told:
                while self._news.get(silo) is last and not self._leaving:
                    await self._told.wait()
                if self._leaving:
                    return
                last = self._news[silo]
            if isinstance(last, PeerFault):
                await abort(context, last)
            else:
                assert last is not None
                yield last

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
        yield services_pb2.ModelPart(total_bytes=len(data), data=data).SerializeToString()

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
