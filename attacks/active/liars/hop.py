"""A hop that takes everything in, keeps every key, and passes on what it likes."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from silomix.attacks.active.liars.bodies import (
    Body,
    Passed,
    chunks_of,
    cohort_of,
    cover,
    pad_context,
    planes_of,
    root_of,
    sum_of,
    take_off,
)
from silomix.attacks.active.liars.member import Member, abort
from silomix.runtime.config.certificates import peer_name_from_cert
from silomix.runtime.core.errors import PeerFault
from silomix.runtime.core.numbers.masks import Secret, public_key
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol.hearing import Shown
from silomix.runtime.core.protocol.messages import (
    Cohort,
    Grouping,
    Header,
    Manifest,
    Receipt,
    RoundKey,
    delivery_digest,
)
from silomix.runtime.core.protocol.release import Ready, Trail, bodies_root
from silomix.runtime.core.protocol.roundlog import Record, countersign_digest
from silomix.runtime.net.history import read_record, read_trails, write_shown
from silomix.runtime.net.wire import read_cohort, read_header, read_manifest, write_receipt, write_round_key
from silomix.v1 import body_pb2, services_pb2


class Heard:
    """What the hop before has passed on in an attempt."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.headers: dict[str, Header] = {}
        self.cohort: Cohort | None = None
        self.chunks: list[body_pb2.Chunk] = []
        self.trails: tuple[Trail, ...] = ()
        self.root = b""


class LyingHop(Member):
    """Holds one hop's directory."""

    def __init__(self, home: Path) -> None:
        """Begin with no keys."""
        super().__init__(home)
        self.keys: dict[tuple[int, int], dict[str, Secret]] = {}
        self.manifests: dict[bytes, Manifest] = {}
        self.newest: Manifest | None = None
        self.bodies: dict[bytes, dict[str, Body]] = {}
        """By manifest, then by silo."""
        self.heard: dict[bytes, Heard] = {}
        """By manifest."""
        self.receipt: Callable[[Receipt], bytes] = self.signed_receipt
        self.on_relay: Callable[[Heard, Header], tuple[PeerFault, bytes] | None] = lambda heard, header: None
        """What is done with a header that the hop before passes on: nothing, or a refusal with whatever evidence."""
        self.pads: dict[bytes, Secret] = {}
        """By manifest."""
        self.log: dict[int, Record] = {}
        self.reveal: Callable[[bytes], bytes] = lambda manifest: self.pads[manifest].value
        """What an honest aggregator gets that asks for a pad."""
        self.on_store: Callable[[bytes], bytes] | None = None
        """What answers a call to store records, if not an honest hop's word."""
        self.show: Callable[[Shown], Shown] = lambda shown: shown
        """What an aggregator that begins is shown, made of what an honest hop would show it."""
        self.deliver: Callable[[Heard, Manifest], Awaitable[bytes]] = self.delivery

    # Keys and attempts

    def make_keys(
        self, round_: int, attempt: int, silos: Iterable[str], head: bytes, small: bytes = b""
    ) -> tuple[RoundKey, ...]:
        """Make an attempt's keys, and keep them. `small` stands for all of their public halves."""
        own = self.keys.setdefault((round_, attempt), {})
        for silo in silos:
            own.setdefault(silo, Secret.draw(os.urandom))
        return tuple(
            RoundKey(self.name, silo, round_, attempt, small or public_key(own[silo]), 0).signed(
                self.identity, self.federation.digest, head
            )
            for silo in silos
        )

    def open(self, manifest: Manifest) -> None:
        """Have an attempt open here."""
        self.manifests[manifest.digest] = self.newest = manifest
        self.bodies.setdefault(manifest.digest, {})
        self.heard.setdefault(manifest.digest, Heard())

    def own(self, manifest: Manifest) -> dict[str, Secret]:
        """Return the keys of an attempt."""
        return self.keys[manifest.round, manifest.attempt]

    def pad(self, manifest: Manifest) -> Secret:
        """Return the pad of an attempt, drawn when it is first asked for."""
        return self.pads.setdefault(manifest.digest, Secret.draw(os.urandom))

    # The release, and the round log: what an honest hop would sign after its checks, and this one without any

    def agree(self, ready: Ready) -> bytes:
        """Sign for a release, whatever it is."""
        return self.identity.sign(ready.digest)

    def store(self, record: Record) -> bytes:
        """Countersign a record, whatever it says."""
        self.log[record.round] = record
        return self.identity.sign(countersign_digest(record.digest, self.name))

    # Passing on

    def passed(
        self,
        manifest: Manifest,
        names: Mapping[str, str] | Iterable[str],
        groups: tuple[int, ...] = (),
    ) -> Passed:
        """Make what hop 1 passes on of the bodies that it has: of these silos, or under these names other silos'."""
        bodies = self.bodies[manifest.digest]
        under = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
        headers = {name: bodies[silo].header for name, silo in under.items()}
        chosen = {silo: bodies[silo] for silo in under.values()}
        cohort = cohort_of(headers, manifest, self.identity)
        known = tuple(body.header for body in bodies.values())
        came = bodies_root(root_of(chunks_of(bodies[under[name]].planes, manifest)) for name in cohort.silos)
        own, pad = {self.name: self.own(manifest)}, self.pad(manifest)
        grouping = None
        if groups:
            grouping = Grouping(groups, self.identity.sign(Grouping(groups).digest(cohort.digest)))
        sums = []
        for number in sorted(set(groups)) or (None,):
            silos = chosen
            if number is not None:
                members = [name for name, g in zip(cohort.silos, groups, strict=True) if g == number]
                silos = {under[name]: bodies[under[name]] for name in members}
            total = sum_of(silos.values(), manifest)
            total = take_off(total, [body.header for body in silos.values()], own, manifest)
            place = (number or 0, max(groups, default=0) + 1)
            cover(total, pad, pad_context(cohort, grouping, self.name, manifest), manifest, place=place)
            sums.append(total)
        chunks = tuple(chunks_of(sums, manifest))
        return Passed(manifest, self.identity, known, cohort, chunks, came, pad, grouping=grouping)

    def forward(self, manifest: Manifest, change: Callable[[Bytes], Bytes] = lambda planes: planes) -> Passed:
        """Make what an honest hop passes on of what it has heard, or of that, changed."""
        heard = self.heard[manifest.digest]
        assert heard.cohort is not None
        members = [heard.headers[name] for name in heard.cohort.silos]
        less = take_off(change(planes_of(heard.chunks)), members, {self.name: self.own(manifest)}, manifest)
        pad = self.pad(manifest)
        cover(less, pad, pad_context(heard.cohort, None, self.name, manifest), manifest)
        known, chunks = tuple(heard.headers.values()), tuple(chunks_of(less, manifest))
        return Passed(manifest, self.identity, known, heard.cohort, chunks, heard.root, pad, heard.trails)

    # Serving

    def handlers(self) -> dict[str, tuple[str, Any]]:
        """Answer as a hop."""
        return {
            "Prepare": ("unary", self._prepare),
            "Open": ("unary", self._open),
            "Submit": ("streamed", self._submit),
            "Relay": ("streamed", self._relay),
            "Agree": ("unary", self._agree),
            "Reveal": ("unary", self._reveal),
            "Store": ("unary", self._store),
            "Show": ("unary", self._show),
        }

    async def _prepare(self, request: bytes, context: Any) -> bytes:
        asked = services_pb2.PrepareRequest.FromString(request)
        keys = self.make_keys(asked.round, asked.attempt, asked.silos, asked.head_digest)
        return services_pb2.PrepareResponse(keys=[write_round_key(key) for key in keys]).SerializeToString()

    async def _open(self, request: bytes, context: Any) -> bytes:
        manifest = read_manifest(services_pb2.OpenRequest.FromString(request).manifest)
        self.open(manifest)
        return services_pb2.OpenResponse(manifest_digest=manifest.digest).SerializeToString()

    async def _agree(self, request: bytes, context: Any) -> bytes:
        asked = services_pb2.AgreeRequest.FromString(request)
        model = self.manifests[asked.manifest_digest].model
        signature = self.agree(Ready(asked.manifest_digest, model, read_trails(list(asked.trails))))
        return services_pb2.AgreeResponse(signature=signature).SerializeToString()

    async def _reveal(self, request: bytes, context: Any) -> bytes:
        asked = services_pb2.RevealRequest.FromString(request)
        return services_pb2.RevealResponse(pad=self.reveal(asked.manifest_digest)).SerializeToString()

    async def _store(self, request: bytes, context: Any) -> bytes:
        if self.on_store is not None:
            return self.on_store(request)
        records = [read_record(one) for one in services_pb2.StoreRequest.FromString(request).records]
        signature = [self.store(record) for record in records][-1]
        return services_pb2.StoreResponse(records=records[-1].round + 1, signature=signature).SerializeToString()

    async def _show(self, request: bytes, context: Any) -> bytes:
        """Tell an aggregator that begins what an honest hop tells: the log, and no release on a model."""
        asked = services_pb2.ShowRequest.FromString(request)
        records = tuple(self.log[round_] for round_ in sorted(self.log) if round_ >= asked.start)
        total = asked.start + len(records)
        shown = Shown(asked.life, total, asked.start, records, 0, 0, (), asked.signature)
        return write_shown(self.show(shown)).SerializeToString()

    async def _submit(self, frames: AsyncIterator[bytes], context: Any) -> bytes:
        silo = peer_name_from_cert(context.auth_context())
        header: Header | None = None
        chunks: list[body_pb2.Chunk] = []
        root = b""
        async for raw in frames:
            frame = body_pb2.Frame.FromString(raw)
            match frame.WhichOneof("kind"):
                case "header":
                    header = read_header(frame.header)
                case "chunk":
                    chunks.append(frame.chunk)
                case "trailer":
                    root = frame.trailer.root
        if header is None or not root:
            return b""  # the silo has hung up
        self.bodies.setdefault(header.manifest, {})[silo] = Body(header, planes_of(chunks))
        return self.receipt(Receipt(silo, header.manifest, root, self.name))

    def signed_receipt(self, receipt: Receipt) -> bytes:
        """Say what an honest hop 1 says."""
        signed = replace(receipt, signature=self.identity.sign(receipt.digest))
        return write_receipt(signed).SerializeToString()

    async def _relay(self, frames: AsyncIterator[bytes], context: Any) -> bytes:
        heard, digest = Heard(), b""
        async for raw in frames:
            frame = services_pb2.RelayFrame.FromString(raw)
            match frame.WhichOneof("kind"):
                case "open":
                    digest = frame.open.manifest_digest
                    self.heard[digest] = heard
                case "header":
                    header = read_header(frame.header)
                    heard.headers[header.silo] = header
                    said = self.on_relay(heard, header)
                    if said is not None:
                        await abort(context, *said)
                case "cohort":
                    heard.cohort = read_cohort(frame.cohort)
                case "chunk":
                    heard.chunks.append(frame.chunk)
                case "trailer":
                    heard.trails = read_trails(list(frame.trailer.trails))
                    heard.root = heard.trails[-1].sent
        return await self.deliver(heard, self.manifests[digest]) if heard.root else b""  # else the hop has hung up

    async def delivery(self, heard: Heard, manifest: Manifest) -> bytes:
        """Say what an honest hop says when all has come through."""
        signature = self.identity.sign(delivery_digest(self.name, manifest.digest, heard.root))
        return services_pb2.Delivery(name=self.name, root=heard.root, signature=signature).SerializeToString()

    async def in_suspense(self, heard: Heard, manifest: Manifest) -> bytes:
        """Say nothing at all."""
        await asyncio.Event().wait()
        return b""
