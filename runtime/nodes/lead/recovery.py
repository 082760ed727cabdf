"""An aggregator that begins: it hears the hops, and gets back what its disk has lost.

Records come from the hops, who have countersigned them. The model that the newest record names comes from a silo: silos
have computed it, and whatever they give must have the digest on record. Nothing is taken on anybody's word.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.core.policy import AUTO
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.hearing import (
    LIFE_BYTES,
    Shown,
    check_asked,
    check_made,
    most_records,
    until_change,
)
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.net.calls import Call, parse
from silomix.runtime.net.history import read_shown
from silomix.runtime.net.limits import FRAME_S, SLOWEST_BYTES_S
from silomix.runtime.net.lines import method
from silomix.runtime.net.wire import digest_field
from silomix.runtime.store.files import write_atomically
from silomix.runtime.store.modelfile import model_digest, read_model
from silomix.v1 import services_pb2

if TYPE_CHECKING:
    from silomix.runtime.nodes.aggregator import AggregatorNode

SHOW_S = 10.0
"""Time that a hop has to show some records."""
SAY_S = 60.0
"""Between two times that a model is asked for which nobody has brought."""
MODEL_SLACK_BYTES = 1 << 20


@dataclass(frozen=True)
class Want:
    """Something that is on record and not on this disk."""

    model: bytes
    state: bool
    digest: bytes
    schema: Schema
    path: Path

    @property
    def most(self) -> int:
        """The longest file that it can be."""
        return 16 * self.schema.parameters + MODEL_SLACK_BYTES

    def check(self, data: bytes) -> None:
        """Refuse anything but what is on record."""
        try:
            schema, tensors = read_model(data)
        except LocalFault as fault:
            raise PeerFault(Reason.MALFORMED, f"what came is no model: {fault.message}") from None
        if schema.digest != self.schema.digest or model_digest(schema, tensors) != self.digest:
            raise PeerFault(Reason.WRONG_MODEL, "what came is not what is on record")

    def is_here(self, path: Path) -> bool:
        """Whether a file has it, whole."""
        try:
            self.check(path.read_bytes())
        except (PeerFault, OSError):
            return False
        return True


class Recovery:
    """What an aggregator's process does before its first round."""

    def __init__(self, node: "AggregatorNode") -> None:
        """Nothing is wanted yet."""
        self._node = node
        self.want: Want | None = None
        self._given = asyncio.Event()
        self._after_others: set[str] = set()
        """Silos that began to give something, since it was last asked for, and have not given it."""

    # Hearing hops

    async def show(self, hop: str) -> None:
        """Have a hop show what it knows, all of it, and take that in.

        Each question goes over the line that there is by then: an old one is closed when the hop's certificate changes.
        Each page is checked as it comes, so that a hop which makes records up is not listened to for long.
        """
        node, core_ = self._node, self._node.core
        life, signature, start = core_.life, core_.life_signature, max(0, core_.log.round - 1)
        records: list[Record] = []
        while True:
            request = services_pb2.ShowRequest(
                federation_digest=node.federation.digest, life=life, start=start + len(records), signature=signature
            )
            what, limit = method("ShufflerService", "Show"), node.limits.shown
            answer = await node.line(hop).ask(what, request, services_pb2.ShowResponse, limit, SHOW_S)
            shown = await asyncio.to_thread(read_shown, answer, start, node.limits.names)
            before = len(records)
            check_asked(shown.life, life)
            records += shown.records
            told = until_change(replace(shown, records=tuple(records)), core_.log)
            if len(told.records) > most_records(core_.log):
                raise PeerFault(Reason.WRONG_LENGTH, f"{hop} shows more records than there can be", peer=hop)
            await node.work(check_made, told.records[before:], start + before, core_.log)
            over = len(told.records) < len(records) or start + len(records) >= shown.total
            if shown.life != life or not shown.records or over:
                break
        await self._hear(hop, told)

    async def _hear(self, hop: str, shown: Shown) -> None:
        assert len(shown.life) == LIFE_BYTES
        await self._node.insist(core.HeadIn(hop, shown, self._node.clock()))

    # Getting back what is lost

    def lacking(self) -> list[Want]:
        """Compare the disk with the round log."""
        node, log = self._node, self._node.core.log
        last = log.last
        if last is None:
            return []
        home, schema = node.config.state, node.schema
        wants = [Want(last.model_after, False, last.model_after, schema, home.model(last.model_after))]
        if node.optimiser.slots and last.state_after != node.state_at_rest:
            round_ = max((r.round for r in log.records if r.outcome is Outcome.APPLIED), default=0)
            state_schema = node.optimiser.state_schema(schema)
            path = home.moments(last.model_after, round_)
            wants.append(Want(last.model_after, True, last.state_after, state_schema, path))
        if node.federation.policy.bound == AUTO and log.before:
            wants.append(Want(log.before, False, log.before, schema, home.model(log.before)))
        initial = node.config.initial_model
        places = [[want.path, *([initial] if initial is not None and not want.state else [])] for want in wants]
        return [want for want, paths in zip(wants, places, strict=True) if not any(map(want.is_here, paths))]

    async def load(self, found: int) -> None:
        """Get whatever is missing, and go on."""
        node = self._node
        if found:
            node.log.warning(
                f"{found} records were missing here and came from the hops: this aggregator was emptied, or restored "
                "from an old copy"
            )
        for want in await node.work(self.lacking):
            await self._get(want)
        self.want = None
        await node.loaded()

    async def _get(self, want: Want) -> None:
        node = self._node
        self.want, self._given = want, asyncio.Event()
        wanted = services_pb2.Wanted(model_digest=want.model, state=want.state)
        while not self._given.is_set():
            self._after_others.clear()
            await node.tell(services_pb2.Announcement(wanted=wanted))  # again, for a silo whose line broke
            node.log.warning(self.waits_for)
            try:
                async with asyncio.timeout(SAY_S):
                    await self._given.wait()
            except TimeoutError:
                continue
        node.log.info("a silo gave back what was lost", file=want.path.name)

    @property
    def waits_for(self) -> str:
        """What nobody has brought yet, and what to do."""
        if self.want is None:
            return ""
        what = "the server's state beside model" if self.want.state else "model"
        return (
            f"{what} {self.want.model.hex()[:16]} is on record and not on this disk: waiting for a silo that has it; "
            f'put {self.want.path.name} back, or see "An aggregator that was restored" in docs/operations.md'
        )

    async def take(self, call: Call) -> None:
        """Take in what a silo gives, if it is wanted and is what is on record. Others come before who wastes time."""
        node, peer = self._node, call.peer
        if peer in self._after_others:
            raise PeerFault(Reason.BUSY, "another silo may give what is wanted first: try again", peer=peer)
        self._after_others.add(peer)
        first = await self._part(call)
        if first is None:
            raise PeerFault(Reason.WRONG_SEQUENCE, "a model that never began", peer=peer)
        what, want = (digest_field(first.what.model_digest, "the model digest"), first.what.state), self.want
        if want is None or what != (want.model, want.state):
            self._after_others.discard(peer)  # another silo was faster
            raise PeerFault(Reason.WRONG_MODEL, "that is not wanted, or not any more", peer=peer)
        seconds = FRAME_S + want.most / SLOWEST_BYTES_S
        try:
            async with asyncio.timeout(seconds):
                data = await self._whole(call, first.data, want.most)
        except TimeoutError:
            raise PeerFault(Reason.TOO_SLOW, f"{peer} did not give a model in {seconds:.0f} s", peer=peer) from None
        await node.work(want.check, data)
        self._after_others.discard(peer)
        await node.durably(write_atomically, want.path, data)
        if self.want is want:
            self._given.set()

    async def _whole(self, call: Call, first: bytes, most: int) -> bytes:
        data, more = bytearray(), first
        while True:
            if not more:  # else a call could go on with nothing
                raise PeerFault(Reason.WRONG_LENGTH, "a part of a model with nothing in it", peer=call.peer)
            data += more
            if len(data) > most:
                raise PeerFault(Reason.WRONG_LENGTH, f"the model is longer than {most} bytes", peer=call.peer)
            part = await self._part(call)
            if part is None:
                return bytes(data)
            if part.HasField("what"):
                raise PeerFault(Reason.WRONG_SEQUENCE, "a model that begins twice", peer=call.peer)
            more = part.data

    async def _part(self, call: Call) -> services_pb2.GivenPart | None:
        kind = services_pb2.GivenPart
        raw = await call.next(kind.DESCRIPTOR.full_name, self._node.limits.part, FRAME_S)
        return None if raw is None else parse(kind, raw, call.peer)
