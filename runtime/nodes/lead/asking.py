"""What an aggregator asks of hops, again and again until they answer: keys, signatures, pads, and so on."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc
from google.protobuf.message import Message

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import SEED_BYTES, Secret
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.check.said import CheckTranscript
from silomix.runtime.core.protocol.messages import Bond, Manifest
from silomix.runtime.core.protocol.release import Ready, Signatures
from silomix.runtime.core.protocol.roundlog import Record
from silomix.runtime.net.answers import fault_of
from silomix.runtime.net.check.said import write_check
from silomix.runtime.net.history import write_batch, write_record, write_signatures, write_trail
from silomix.runtime.net.limits import SMALL_BYTES
from silomix.runtime.net.lines import Line, method
from silomix.runtime.net.transport import backoff
from silomix.runtime.net.wire import fixed_field, read_round_key, write_bond, write_manifest
from silomix.runtime.nodes.node import RETRY_S
from silomix.v1 import services_pb2

if TYPE_CHECKING:
    from silomix.runtime.nodes.aggregator import AggregatorNode

CALL_S = 10.0
"""Time that a hop has to answer a small call."""
GIVEN_UP = frozenset({Reason.FENCED, Reason.ALREADY_RELEASED, Reason.WRONG_SEQUENCE, Reason.WRONG_PAD})
"""Why a hop will never sign for a release, show its pad, answer a coin, or defend itself."""
NOT_OPENED = frozenset({Reason.FENCED, Reason.WRONG_KEYS})
"""Why a hop will never open an attempt: its keys are gone, since it was waited for too long, or it is closed."""

Answered = TypeVar("Answered")
Reply = TypeVar("Reply", bound=Message)


class Asking:
    """One question to one hop at a time, asked for as long as the machine wants to know."""

    def __init__(self, node: "AggregatorNode") -> None:
        """Nothing is open yet."""
        self._node = node
        self._opening: tuple[Manifest, services_pb2.OpenRequest] | None = None
        """The newest attempt, and what opens it at a hop."""
        self.waits_s, self.closes_at = 0.0, 0.0
        """How long hop 1 means to wait for silos, and until when, by its word."""

    async def until_answered(
        self,
        hop: str,
        wanted: Callable[[], bool],
        call: Callable[[Line], Awaitable[Answered]],
        refusals: frozenset[Reason] = frozenset(),
        *,
        first: bool = True,
    ) -> Answered | PeerFault | None:
        """Call a hop until it answers, or nobody wants to know any more; say what is wrong with it meanwhile.

        A refusal for one of some reasons is an answer too: the hop will not have another. What a hop knows is heard
        `first`, also if it was away when this process began, or serves another.
        """
        node = self._node
        async for attempt in backoff():
            if not wanted():
                return None
            node.redial(hop)
            try:
                if first and hop not in node.core.heard:
                    await node.recovery.show(hop)
                return await call(node.line(hop))
            except grpc.aio.AioRpcError as error:
                fault = fault_of(error)
                if fault is not None and fault.reason in refusals:
                    return fault
                if fault is not None and fault.reason is Reason.SUPERSEDED:
                    with suppress(grpc.aio.AioRpcError, PeerFault):
                        await node.recovery.show(hop)
                why = str(fault) if fault else f"not reachable ({error.code().name.lower()})"
            except PeerFault as unread:
                node.metrics.rejected(unread.reason)
                why = str(unread)
            node.hop_is(hop, "unreachable")
            await self.failed(hop, why)
            if attempt % 10 == 0:
                node.log.warning(f"hop in trouble: {why}", peer=hop)
        return None

    async def tell_core(self, hop: str, said: Callable[[], core.Event]) -> bool:
        """Take in what a hop has answered, and say whether it holds."""
        node = self._node
        try:
            await node.insist(said())
        except PeerFault as fault:
            node.metrics.rejected(fault.reason)
            if (unsaid := node.unsaid(hop, "an answer", fault.reason)) is not None:
                node.log.fault("what a hop answered does not hold", fault, peer=hop, **unsaid)
            await self.failed(hop, str(fault))
            return False
        return True

    async def failed(self, hop: str, why: str) -> None:
        """Tell the machine that a hop has not answered, or not well."""
        await self._node.insist(core.HopFailed(hop, why, self._node.clock()))

    async def lost(self, hop: str, manifest: bytes, fault: PeerFault) -> None:
        """Tell the machine that a hop will do nothing more in an attempt."""
        await self._node.insist(core.HopLost(hop, manifest, str(fault), self._node.clock()))

    def _is_now(self, round_: int, attempt: int) -> bool:
        now = self._node.core
        return (now.round, now.attempt) == (round_, attempt) and now.phase is not core.Phase.FINISHED

    # Before an attempt

    async def head(self, hop: str, life: bytes) -> None:
        """Have a hop show what it knows, for as long as this process only hears."""
        node = self._node

        def wanted() -> bool:
            hears = node.core.phase is core.Phase.HEARING
            return hears and node.core.life == life and hop not in node.core.heard

        async def call(_: Line) -> None:
            await node.recovery.show(hop)

        while wanted():
            await self.until_answered(hop, wanted, call, first=False)

    async def keys(self, hop: str, effect: core.AskKeys) -> None:
        """Have a hop make its keys for an attempt."""
        node = self._node
        request = services_pb2.PrepareRequest(
            federation_digest=node.federation.digest,
            round=effect.round,
            silos=effect.silos,
            known_released=node.core.hop_released.get(hop, 0),
            attempt=effect.attempt,
            head_digest=effect.head,
            life=node.core.life,
        )
        call = calling("Prepare", request, services_pb2.PrepareResponse, node.limits.keys)
        answer = await self.until_answered(hop, lambda: self._is_now(effect.round, effect.attempt), call)
        if not isinstance(answer, services_pb2.PrepareResponse) or not self._is_now(effect.round, effect.attempt):
            return
        node.hop_is(hop, "ready")
        try:
            keys = tuple(read_round_key(k) for k in answer.keys)
            await node.insist(core.KeysIn(hop, keys, answer.last_released, node.clock()))
        except PeerFault as fault:
            node.metrics.rejected(fault.reason)
            await self.failed(hop, str(fault))

    async def open_all(self, manifest: Manifest, head: Record) -> None:
        """Open the attempt from the last hop to the first, so that each finds the next one ready."""
        request = services_pb2.OpenRequest(
            manifest=write_manifest(manifest), head=write_record(head), life=self._node.core.life
        )
        self._opening = (manifest, request)
        for hop in reversed(manifest.chain):
            await self.open(hop, manifest, request)

    async def open(self, hop: str, manifest: Manifest, request: services_pb2.OpenRequest) -> None:
        """Open the attempt at one hop."""
        call = calling("Open", request, services_pb2.OpenResponse)
        wanted = partial(self._is_now, manifest.round, manifest.attempt)
        answer = await self.until_answered(hop, wanted, call, NOT_OPENED)
        if isinstance(answer, PeerFault):
            await self.lost(hop, manifest.digest, answer)
        elif answer is not None:
            self._node.hop_is(hop, "open")
            if hop == manifest.chain[0]:
                said = answer.closes_s
                self.waits_s = said if 0 < said < manifest.deadline_s else manifest.deadline_s
                self.closes_at = self._node.clock() + self.waits_s
            await self._node.insist(core.OpenedAt(hop, answer.manifest_digest, self._node.clock()))

    async def opened_again(self, hop: str, manifest: bytes) -> bool:
        """Open the attempt again at a hop that was started again, and say whether the hop goes on with it.

        Keys and pad are in its journal, and the hop before begins its stream anew: what leaves it is byte for byte the
        same. Not so at hop 1, where bodies are in memory: silos have to send theirs again, in another attempt.
        """
        if self._opening is None:
            return False
        now, request = self._opening
        if now.digest != manifest or hop == now.chain[0]:
            return False
        try:
            answer = await calling("Open", request, services_pb2.OpenResponse)(self._node.line(hop))
        except (grpc.aio.AioRpcError, PeerFault):
            return False
        if answer.manifest_digest == manifest:
            self._node.log.info("the hop was started again, and goes on with the attempt", peer=hop)
        return answer.manifest_digest == manifest

    # When the padded sum is here

    async def ready(self, hop: str, ready: Ready, check: CheckTranscript | None) -> None:
        """Have a hop sign for the release."""
        request = services_pb2.AgreeRequest(
            manifest_digest=ready.manifest,
            trails=[write_trail(trail) for trail in ready.trails],
            check=None if check is None else write_check(check),
            life=self._node.core.life,
        )
        call = calling("Agree", request, services_pb2.AgreeResponse)
        wanted = partial(self._node.is_in, core.Phase.READY, ready.manifest)
        answer = await self.until_answered(hop, wanted, call, GIVEN_UP)
        if isinstance(answer, services_pb2.AgreeResponse):
            await self.tell_core(hop, partial(core.AgreedIn, hop, ready.manifest, answer.signature))
        elif answer is not None:
            await self.lost(hop, ready.manifest, answer)

    async def pad(self, hop: str, manifest: bytes, signatures: Signatures, bond: Bond) -> None:
        """Have a hop show its pad. No clock ends this: others may have shown theirs."""
        node = self._node
        request = services_pb2.RevealRequest(
            manifest_digest=manifest,
            signatures=write_signatures(signatures),
            bond=write_bond(bond),
            life=node.core.life,
        )
        call = calling("Reveal", request, services_pb2.RevealResponse)
        wanted = partial(node.is_in, core.Phase.REVEALING, manifest)
        while (answer := await self.until_answered(hop, wanted, call, GIVEN_UP)) is not None:
            if isinstance(answer, PeerFault):
                await node.insist(core.PadRefused(hop, manifest, str(answer), node.clock()))
                return
            if await self.tell_core(hop, partial(_pad_in, hop, manifest, answer)):
                return
            await asyncio.sleep(RETRY_S)  # that was no pad: whoever mends the hop is asked again

    # When the round is over

    async def store(self, hop: str, record: Record) -> None:
        """Have a hop store a record, the proof that the one before it counts, and those before that it lacks."""
        node = self._node
        records, start = node.core.log.records, max(0, record.round - 1)

        def call(line: Line) -> Awaitable[services_pb2.StoreResponse]:
            request = services_pb2.StoreRequest(records=write_batch(records[start:]), life=node.core.life)
            return calling("Store", request, services_pb2.StoreResponse)(line)

        most = -1
        while True:
            wanted = partial(self.wants_stored, record)
            answer = await self.until_answered(hop, wanted, call, frozenset({Reason.FORKED}))
            if isinstance(answer, PeerFault):
                node.log.error(f"{hop} has another history: {answer.message}", peer=hop)
                await self.failed(hop, str(answer))
                return
            if not isinstance(answer, services_pb2.StoreResponse):
                return
            if answer.records > len(records):
                why = f"it has {answer.records} records where this aggregator has {len(records)}: restored from a copy?"
                node.log.error(f"hop is ahead: {why}", peer=hop)
                await self.failed(hop, why)
                return
            if answer.records > record.round:
                node.hop_is(hop, "ready")
                said = partial(core.CountersignedIn, hop, record.digest, answer.signature, node.clock())
                if await self.tell_core(hop, said):
                    return
                await asyncio.sleep(RETRY_S)
                continue
            if answer.records == start or answer.records <= most:  # it was sent what it lacks, and took none of it
                await self.failed(hop, f"it does not store record {start}")
                await asyncio.sleep(RETRY_S)
            start, most = answer.records, max(most, answer.records)

    def wants_stored(self, record: Record) -> bool:
        """Whether a hop still has to store a record: also hops that are behind, once it counts."""
        last, finished = self._node.core.log.last, core.Phase.FINISHED
        return last is not None and last.digest == record.digest and self._node.core.phase is not finished


def calling(
    name: str, request: Message, reply: type[Reply], limit: int = SMALL_BYTES, timeout_s: float = CALL_S
) -> Callable[[Line], Awaitable[Reply]]:
    """A call of a hop, to be made over whatever line there is by then."""
    return lambda line: line.ask(method("ShufflerService", name), request, reply, limit, timeout_s)


def _pad_in(hop: str, manifest: bytes, answer: services_pb2.RevealResponse) -> core.PadIn:
    return core.PadIn(hop, manifest, Secret(fixed_field(answer.pad, SEED_BYTES, "a pad")))
