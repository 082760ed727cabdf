"""The calls that an aggregator answers."""

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net.calls import QUESTIONS_EACH, Call, Method, Room
from silomix.runtime.net.health import anybody
from silomix.runtime.net.history import write_signatures
from silomix.runtime.net.limits import PART_BYTES, SMALL_BYTES
from silomix.runtime.net.streams import Inbox
from silomix.runtime.net.wire import digest_field
from silomix.runtime.nodes.lead.served import Served, Shelf
from silomix.runtime.store.modelfile import write_model
from silomix.v1 import services_pb2

if TYPE_CHECKING:
    from silomix.runtime.nodes.aggregator import AggregatorNode

GIVERS = 2
"""Silos that may give a lost model at one time: one that gives nothing keeps nobody away, and each has it in memory."""


class Service:
    """Who may make which call, and what the answer is."""

    def __init__(self, node: "AggregatorNode") -> None:
        """Nothing was read for anybody yet."""
        self.node = node
        self._shelf = Shelf()

    @property
    def methods(self) -> dict[str, Method]:
        """Who may call what: decided by name and place, before anything is read."""
        return {
            "Watch": Method(self._silo, self._watch),
            "GetModel": Method(self._silo, self._get_model),
            "GetSum": Method(self._silo, self._get_sum),
            "Confirm": Method(self._silo, self._confirm),
            "Say": Method(self._silo, self._say),
            "Deliver": Method(self._last_hop, self._deliver),
            "GiveModel": Method(self._silo, self._give_model, Room(1, GIVERS)),
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
        if self.node.config.epochs.find(request.federation_digest) is None:  # one who is behind gets the records
            self.node.federation.check_same(request.federation_digest, call.peer)
        async with aclosing(self.node.news(call.peer, request.records)) as news:
            async for raw in news:
                await call.send(services_pb2.Announcement.DESCRIPTOR.full_name, raw)

    async def _get_model(self, call: Call) -> None:
        request = await call.request(services_pb2.GetModelRequest, SMALL_BYTES)
        node, wanted = self.node, digest_field(request.model_digest, "the model digest")
        initial, previous = node.initial, node.previous_file()
        before = node.core.log.before if previous is not None else b""

        def check_current() -> None:
            if wanted not in (node.model, initial[0], before):
                raise PeerFault(Reason.WRONG_MODEL, "that is not the current model")

        check_current()
        given = Served(node.data)
        if request.state:
            make = partial(node.work, write_model, node.optimiser.state_schema(node.schema), node.moments)
            given = await self._shelf.take(("state", node.model), make)
        elif wanted == initial[0] != node.model:  # somebody who begins from the start
            given = await self._shelf.take(wanted, partial(node.work, initial[1].read_bytes))
        elif previous is not None and wanted == before != node.model:  # or who was away, for the bounds
            given = await self._shelf.take(wanted, partial(node.work, previous.read_bytes))
        computed = write_signatures(tuple(sorted(node.computed.items())))
        size = len(given.data)
        for start in range(0, size, PART_BYTES):
            check_current()  # also in between: a slow reader must not keep an old one in memory
            part = services_pb2.ModelPart(total_bytes=size, data=given.data[start : start + PART_BYTES])
            if start == 0:
                part.computed.extend(computed)
            await call.answer(part)

    async def _get_sum(self, call: Call) -> None:
        request = await call.request(services_pb2.GetSumRequest, SMALL_BYTES)
        node = self.node
        parts = await node.work(node.sum_parts, request.round)
        while (part := await node.work(next, parts, None)) is not None:
            await call.send(services_pb2.SumPart.DESCRIPTOR.full_name, part)

    async def _confirm(self, call: Call) -> None:
        request = await call.request(services_pb2.ConfirmRequest, SMALL_BYTES)
        self.node.confirm(call.peer, request.record_digest, request.signature)
        await call.answer(services_pb2.ConfirmResponse())

    async def _say(self, call: Call) -> None:
        node = self.node
        request = await call.request(services_pb2.SayRequest, node.limits.said)
        await node.checking.heard(call.peer, request)
        await call.answer(services_pb2.SayResponse())

    async def _deliver(self, call: Call) -> None:
        frames = Inbox(call, services_pb2.RelayFrame, self.node.limits)
        await call.answer(await self.node.take_sum(call.peer, frames))

    async def _give_model(self, call: Call) -> None:
        await self.node.recovery.take(call)
        await call.answer(services_pb2.GiveModelResponse())

    async def _get_status(self, call: Call) -> None:
        await call.request(services_pb2.GetStatusRequest, SMALL_BYTES)
        await call.answer(self.node.status())
