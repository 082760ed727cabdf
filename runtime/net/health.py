"""Health checking and reflection, as gRPC defines them, for members alone."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net.calls import QUESTIONS_EACH, Call, Method, Pace, Room, Unseen, parse
from silomix.runtime.net.limits import FIRST_S, SMALL_BYTES
from silomix.runtime.net.lines import Line, Metadata

ATTEMPT = "silomix.attempt"
"""Health checks ask for "silomix.attempt/DIGEST": whether this very attempt is open at a hop."""

NOT_OPEN = "it was started again and has lost the attempt"
"""What is wrong with a hop that answers and does not know the attempt."""
GAVE_UP = "it gave the attempt up"
"""What is wrong with a hop that answers and knows that the attempt cannot end well."""

QUESTIONS_A_CALL = 100
"""What a call may ask of reflection."""

NAMES = (health.SERVICE_NAME, reflection.SERVICE_NAME)
"""The services that every node has beside its own."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_LEAVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Health of the services, and of the attempt that is open here: a process that was started again has lost it."""

    def __init__(self) -> None:
        """Nothing is served yet."""
        self.attempt: Callable[[], bytes] = bytes
        self.given_up: Callable[[], bytes] = bytes
        self._services: dict[str, Any] = {}
        self._changed = asyncio.Condition()

    async def set(self, names: Iterable[str], *, serving: bool) -> None:
        """Say of some services whether they take calls."""
        status = _SERVING if serving else _LEAVING
        async with self._changed:
            self._services.update(dict.fromkeys(names, status))
            self._changed.notify_all()

    @property
    def methods(self) -> dict[str, Method]:
        """What any member may ask."""
        return {
            "Check": Method(anybody, self._check, Room(QUESTIONS_EACH), seen=False),
            "Watch": Method(anybody, self._watch, seen=False),
        }

    async def _check(self, call: Call) -> None:
        service = (await call.request(health_pb2.HealthCheckRequest, SMALL_BYTES)).service
        kind, found, digest = service.partition("/")
        status = self._services.get(service, _UNKNOWN)
        asked = digest if found and kind == ATTEMPT else ""
        if asked and asked == self.attempt().hex():
            status = _SERVING
        elif asked and asked == self.given_up().hex():
            status = _LEAVING
        if status == _UNKNOWN:
            await call.end(grpc.StatusCode.NOT_FOUND, "that is not open here")
        await call.answer(health_pb2.HealthCheckResponse(status=status))

    async def _watch(self, call: Call) -> None:
        service = (await call.request(health_pb2.HealthCheckRequest, SMALL_BYTES)).service
        told: Any = None
        while True:
            async with self._changed:
                while self._services.get(service, _UNKNOWN) == told:
                    await self._changed.wait()
                told = self._services.get(service, _UNKNOWN)
            await call.answer(health_pb2.HealthCheckResponse(status=told))
            if told == _LEAVING:
                return


def reflect(names: Iterable[str], pace: Pace) -> dict[str, Method]:
    """Make what tells any member which calls there are. By the pace of calls each question is one: it costs as much."""
    servicer: Any = reflection.aio.ReflectionServicer(names)

    async def requests(call: Call) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        kind = reflection_pb2.ServerReflectionRequest
        for _ in range(QUESTIONS_A_CALL):
            raw = await call.next(kind.DESCRIPTOR.full_name, SMALL_BYTES, FIRST_S)
            if raw is None:
                return
            await pace.turn(call.peer)
            yield parse(kind, raw, call.peer)
        raise PeerFault(Reason.BUSY, f"{QUESTIONS_A_CALL} questions in one call are enough: call again", peer=call.peer)

    async def tell(call: Call) -> None:
        async for answer in servicer.ServerReflectionInfo(requests(call), None):
            await call.answer(answer)

    return {"ServerReflectionInfo": Method(anybody, tell, seen=False)}


async def has_attempt(to: grpc.aio.Channel, manifest: bytes, timeout_s: float, metadata: Metadata = ()) -> str:
    """Ask a hop whether it still has an attempt open; return what is wrong, or nothing."""
    line = Line(to, "the hop", metadata, Unseen(), any_protocol=True)
    request = health_pb2.HealthCheckRequest(service=f"{ATTEMPT}/{manifest.hex()}")
    check: Any = health_pb2.DESCRIPTOR.services_by_name["Health"].methods_by_name["Check"]
    try:
        answer = await line.ask(check, request, health_pb2.HealthCheckResponse, SMALL_BYTES, timeout_s, wait=True)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return NOT_OPEN
        return f"not reachable ({error.code().name.lower()})"
    except PeerFault as fault:
        return f"not understood ({fault.message})"
    return GAVE_UP if answer.status == _LEAVING else ""


async def is_there(to: grpc.aio.Channel, service: str, timeout_s: float, metadata: Metadata = ()) -> str:
    """Ask a node whether it serves; return what is wrong, or nothing."""
    line = Line(to, "the hop", metadata, Unseen(), any_protocol=True)
    request = health_pb2.HealthCheckRequest(service=service)
    check: Any = health_pb2.DESCRIPTOR.services_by_name["Health"].methods_by_name["Check"]
    try:
        answer = await line.ask(check, request, health_pb2.HealthCheckResponse, SMALL_BYTES, timeout_s, wait=True)
    except grpc.aio.AioRpcError as error:
        return f"not reachable ({error.code().name.lower()})"
    except PeerFault as fault:
        return f"not understood ({fault.message})"
    return "" if answer.status == _SERVING else "it is leaving"


def anybody(_: str) -> None:
    """Every member may ask: strangers have not come this far."""
