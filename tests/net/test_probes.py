"""Health checks and reflection as gRPC defines them: for members alone, like everything else."""

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tests.net.contexts import Context, Ended, Host
from tests.net.test_names import CA, SERVICE, serving

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net.answers import fault_of
from silomix.runtime.net.calls import Call, Pace
from silomix.runtime.net.health import ATTEMPT, NOT_OPEN, QUESTIONS_A_CALL, Health, has_attempt, reflect
from silomix.runtime.net.limits import SMALL_BYTES
from silomix.runtime.net.transport import channel

REQUEST: Any = health_pb2.HealthCheckRequest
ANSWER: Any = health_pb2.HealthCheckResponse
REFLECT = reflection_pb2.ServerReflectionRequest
PATHS = {
    "/grpc.health.v1.Health/Check": REQUEST(),
    "/grpc.health.v1.Health/Watch": REQUEST(),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": REFLECT(list_services="x"),
    f"/{SERVICE}/GetStatus": REQUEST(),
    f"/{SERVICE}/Nothing": REQUEST(),
}


async def first(path: str, client: str) -> bytes:
    """Call a node under a certificate of our CA, and return the first answer."""
    async with serving(CA.certify("hop-1")) as address, channel(address, "hop-1", CA.certify(client)) as line:
        call: Any = line.stream_stream(path)
        running = call(iter([PATHS[path].SerializeToString()]), timeout=10.0)
        try:
            async for raw in running:
                return bytes(raw)
        finally:
            running.cancel()
    return b""


class Turns(Pace):
    """Keeps whose turn it was."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    async def turn(self, peer: str) -> None:
        self.taken.append(peer)


@pytest.mark.parametrize("path", PATHS)
async def test_whoever_is_off_the_roster_is_told_nothing(path: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await first(path, "intruder")
    fault = fault_of(caught.value)
    assert fault is not None
    assert fault.reason is Reason.UNKNOWN_PEER


@pytest.mark.parametrize("path", [path for path in PATHS if not path.endswith("Nothing")])
async def test_a_member_is_answered(path: str) -> None:
    assert await first(path, "silo-1")


async def test_a_method_that_does_not_exist_is_unimplemented() -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await first(f"/{SERVICE}/Nothing", "silo-1")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_reflection_names_every_service() -> None:
    raw = await first("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "silo-1")
    listed = reflection_pb2.ServerReflectionResponse.FromString(raw).list_services_response.service
    assert {each.name for each in listed} >= {SERVICE, "grpc.health.v1.Health"}


async def test_one_call_answers_so_many_questions_and_no_more() -> None:
    question = REFLECT(list_services="x").SerializeToString()
    for questions in (3, QUESTIONS_A_CALL, QUESTIONS_A_CALL + 1):
        context: Any = Context([question] * questions)
        call, reason = Call(context, Host(), "silo-1", "ServerReflectionInfo"), None
        try:
            await reflect([SERVICE], Turns())["ServerReflectionInfo"].answer(call)
        except PeerFault as fault:
            reason = fault.reason
        assert len(context.sent) == min(questions, QUESTIONS_A_CALL)
        assert reason == (Reason.BUSY if questions >= QUESTIONS_A_CALL else None)


async def test_each_question_waits_its_turn_as_a_call_does() -> None:
    """One takes as long as a call, and a member could ask five thousand a second within the calls that it may make."""
    pace, question = Turns(), REFLECT(list_services="x").SerializeToString()
    context: Any = Context([question] * 3)
    await reflect([SERVICE], pace)["ServerReflectionInfo"].answer(Call(context, Host(), "silo-1", "it"))
    assert pace.taken == ["silo-1"] * 3


async def test_what_is_no_question_is_refused() -> None:
    context: Any = Context([b"\xff"])
    with pytest.raises(PeerFault, match="ServerReflectionRequest"):
        await reflect([SERVICE], Turns())["ServerReflectionInfo"].answer(Call(context, Host(), "silo-1", "it"))


# What is said


async def asked(health: Health, method: str, request: Any) -> Context:
    context: Any = Context([request.SerializeToString()])
    answer = health.methods[method].answer
    with contextlib.suppress(Ended):
        await answer(Call(context, Host(), "silo-1", method))
    found: Context = context
    return found


async def test_a_service_is_well_once_it_is_said_to_be_and_until_it_leaves() -> None:
    health = Health()
    assert (await asked(health, "Check", REQUEST(service="a"))).status is grpc.StatusCode.NOT_FOUND
    for serving_, status in ((True, ANSWER.SERVING), (False, ANSWER.NOT_SERVING)):
        await health.set(["a"], serving=serving_)
        context = await asked(health, "Check", REQUEST(service="a"))
        assert ANSWER.FromString(context.sent[0]).status == status
    assert (await asked(health, "Check", REQUEST(service="b"))).status is grpc.StatusCode.NOT_FOUND


async def test_an_attempt_is_open_if_it_is_this_very_one() -> None:
    health = Health()
    nothing = f"{ATTEMPT}/"
    health.attempt = lambda: b"\1" * 32
    for service, found in ((f"{ATTEMPT}/{'01' * 32}", True), (f"{ATTEMPT}/{'02' * 32}", False), (nothing, False)):
        context = await asked(health, "Check", REQUEST(service=service))
        assert (context.status is None) is found, service
    wrong = await asked(health, "Check", REQUEST(service=f"other/{'01' * 32}"))
    assert wrong.status is grpc.StatusCode.NOT_FOUND


async def test_who_watches_hears_of_each_change_until_the_service_leaves() -> None:
    health, context = Health(), Context([REQUEST(service="a").SerializeToString()])
    given: Any = context
    answer: Any = health.methods["Watch"].answer(Call(given, Host(), "silo-1", "Watch"))
    watching = asyncio.create_task(answer)
    for number, serving_ in ((1, True), (2, False)):
        while len(context.sent) < number:  # noqa: ASYNC110 - the answers are all there is
            await asyncio.sleep(0)
        await health.set(["a"], serving=serving_)
    await watching
    found = [ANSWER.FromString(raw).status for raw in context.sent]
    assert found == [ANSWER.SERVICE_UNKNOWN, ANSWER.SERVING, ANSWER.NOT_SERVING]


async def test_a_request_is_no_longer_than_it_may_be() -> None:
    host, context = Host(), Context([bytes(SMALL_BYTES + 1)])
    given: Any = context
    for method in Health().methods.values():
        with pytest.raises(Exception, match=f"where {SMALL_BYTES} are the most"):
            await method.answer(Call(Context([bytes(SMALL_BYTES + 1)]), host, "silo-1", "Check"))  # type: ignore[arg-type]
    assert given.sent == []


# What a hop's health is taken for


class Channel:
    """A hop that answers as a test says."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def unary_unary(self, *_: Any) -> Any:
        async def call(raw: bytes, **__: Any) -> Any:
            if isinstance(self._answer, grpc.StatusCode):
                raise grpc.aio.AioRpcError(self._answer, grpc.aio.Metadata(), grpc.aio.Metadata(), "")
            return self._answer

        return call


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ANSWER(status=ANSWER.SERVING).SerializeToString(), ""),
        (grpc.StatusCode.NOT_FOUND, NOT_OPEN),
        (grpc.StatusCode.UNAVAILABLE, "not reachable (unavailable)"),
        (b"\xff", "not understood"),
        (None, "not understood"),
        (bytes(SMALL_BYTES + 1), "not understood"),
    ],
)
async def test_a_hop_that_does_not_answer_as_it_should_is_in_trouble_and_nobody_falls_over_it(
    answer: Any, said: str
) -> None:
    to: Any = Channel(answer)
    found = await has_attempt(to, bytes(32), 1.0)
    assert found.startswith(said)
    assert bool(found) is bool(said)
