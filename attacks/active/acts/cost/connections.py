"""R7, below the messages: connections, who may have one, and calls on them that are begun and left."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from silomix.attacks.active.acts.casts import AGGREGATOR, SILO, WITH_SILO
from silomix.attacks.active.acts.cost.floods import CALLS, HELD, SILENT_S
from silomix.attacks.active.liars.member import path
from silomix.attacks.active.liars.wire import Wire, message
from silomix.attacks.active.registry import Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, HOSTILE, VICTIM, Stage
from silomix.attacks.active.witness import Refusal
from silomix.runtime.config.authority import private_pem
from silomix.runtime.config.owners.selfsigned import self_signed
from silomix.runtime.net.limits import Limits
from silomix.runtime.net.version import SAID
from silomix.runtime.observe.stderr import Stderr
from silomix.v1 import services_pb2

STREAMS = 2_000
"""Calls at once on one connection, where the node allows a few."""
LONG_BYTES = 7 << 20
TOO_LONG = b"larger than max"
"""What gRPC says of a message that is longer than it was told to take."""
CHECK = "/grpc.health.v1.Health/Check"
"""A question for any member: whoever gets an answer to it is in."""
ASK_S = 20.0


def _strangers(stage: Stage, target: str) -> Iterator[tuple[str, grpc.aio.Channel]]:
    """Dial a node as somebody who can reach its port and is no member, in every way that there is."""
    tls = stage.member(target).tls
    assert tls is not None, "drills run under TLS"
    key = ec.generate_private_key(ec.SECP256R1())
    own = self_signed(VICTIM, key).public_bytes(Encoding.PEM)
    options = (("grpc.ssl_target_name_override", target), ("grpc.use_local_subchannel_pool", 1))
    address = stage.federation.member(target).address
    yield "in clear", grpc.aio.insecure_channel(address, options=options)
    for how, credentials in (
        ("without a certificate", grpc.ssl_channel_credentials(tls.anchor)),
        ("with a certificate of its own", grpc.ssl_channel_credentials(tls.anchor, private_pem(key), own)),
    ):
        yield how, grpc.aio.secure_channel(address, credentials, options=options)


@attack("strangers", Rule.R7, "a stranger", Outcome.REFUSED, AGGREGATOR, bites=False)
async def strangers(stage: Stage) -> Loot:
    """Somebody who is no member calls hop 1: in clear, without a certificate, and with one under the victim's name."""
    refusals, answered, dialled, known = dict[str, Refusal](), 0, 0, stage.member(VICTIM)
    with Stderr() as stderr:
        stderr.told = stage.hop(FIRST).handshake_failed  # as in a process of its own
        for _ in range(CALLS // 3):
            for how, line in _strangers(stage, FIRST):
                dialled += 1
                try:
                    ask: Any = line.unary_unary(CHECK)
                    await ask(b"", metadata=SAID, timeout=ASK_S)
                    answered += 1
                except grpc.aio.AioRpcError as error:
                    code = error.code()
                    answered += code is not grpc.StatusCode.UNAVAILABLE  # else it is the node that refuses, not TLS
                    refusals[how] = Refusal(FIRST, code.name.lower(), f"no connection {how}")
                finally:
                    await line.close()
    check: Any = known.line(FIRST).unary_unary(CHECK)
    await known.ask(FIRST, lambda: check(b"", timeout=ASK_S))  # a member is answered: that hop is there
    said = "calls that are answered"
    return Loot(answered > 0, said, tuple(refusals.values()), {"connections": dialled, "answered": answered})


@attack("every-connection", Rule.R7, "silo-06", Outcome.CONCEDED, WITH_SILO)
async def every_connection(stage: Stage) -> Loot:
    """A silo holds every connection that hop 1 has room for; rounds go on over those that were there before."""
    us, most = stage.member(HOSTILE), Limits.of(stage.federation).connections
    await stage.whole_round(silos=stage.honest_silos)
    async with AsyncExitStack() as stack:
        held = 0
        while held <= most:
            try:
                await stack.enter_async_context(await Wire.dial(us.config, FIRST))
            except OSError:
                break
            held += 1
        await stage.whole_round(silos=stage.honest_silos)  # or the drill is stuck, which is no concession
        try:
            async with await Wire.dial(stage.member(VICTIM).config, FIRST):
                shut_out = False
        except OSError:
            shut_out = True
    return stage.loot(shut_out, "no connection for others meanwhile; a round went through", held=held, room=most)


async def _left(stage: Stage, target: str, method: str, content: bytes) -> Loot:
    """Begin calls on connections of their own, send so much of each, and count those that the node lets stand."""
    us = stage.member(HOSTILE)
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(await Wire.dial(us.config, target)) for _ in range(CALLS)]
        calls = [(wire, await wire.open(path(method))) for wire in wires]
        for wire, stream in calls:
            await wire.send(stream, content)
        await stage.within(SILENT_S, lambda: all(wire.over(stream) for wire, stream in calls))
        held = sum(not wire.over(stream) for wire, stream in calls)
    return stage.loot(held > HELD, "calls that are left open for it", opened=CALLS, held=held)


@attack("half-sent-messages", Rule.R7, "silo-06", Outcome.REFUSED, SILO)
async def half_sent_messages(stage: Stage) -> Loot:
    """A silo announces a first frame on connection after connection, and sends half of it."""
    return await _left(stage, FIRST, "Submit", message(bytes(200), announced=400))


@attack("many-watches", Rule.R7, "silo-06", Outcome.REFUSED, SILO)
async def many_watches(stage: Stage) -> Loot:
    """A silo listens for announcements many times over, and keeps every line."""
    request = services_pb2.WatchRequest(federation_digest=stage.federation.digest).SerializeToString()
    return await _left(stage, stage.federation.aggregator.name, "Watch", message(request))


@attack("thousands-of-calls", Rule.R7, "silo-06", Outcome.REFUSED, SILO)
async def thousands_of_calls(stage: Stage) -> Loot:
    """A silo begins two thousand uploads at once on one connection, whatever number of calls the node allows on it."""
    async with await Wire.dial(stage.member(HOSTILE).config, FIRST) as wire:
        calls = [await wire.open(path("Submit")) for _ in range(STREAMS)]

        def held() -> int:
            return sum(not wire.over(stream) for stream in calls)

        await stage.within(SILENT_S, lambda: not held())
        left = held()
    return stage.loot(left > HELD, "calls that are left open for it", opened=STREAMS, held=left)


@attack("first-messages-of-7-mib", Rule.R7, "silo-06", Outcome.REFUSED, SILO)
async def first_messages(stage: Stage) -> Loot:
    """A silo begins as many uploads as its connections carry, each with a first message of 7 MiB."""
    us, content, taken, answers = stage.member(HOSTILE), message(bytes(LONG_BYTES)), list[int](), list[bytes]()

    async def flood() -> None:
        async with await Wire.dial(us.config, FIRST) as wire:
            calls = [await wire.open(path("Submit")) for _ in range(wire.most_streams)]
            taken.extend(await asyncio.gather(*(wire.send(stream, content, seconds=SILENT_S) for stream in calls)))
            answers.extend(await asyncio.gather(*(wire.answer(stream) for stream in calls)))

    await asyncio.gather(*(flood() for _ in range(CALLS // 2)))
    announced, came = len(taken) * LONG_BYTES, sum(taken)
    long = Refusal(FIRST, "resource_exhausted", "a message that is longer than any honest one")
    refused = (long,) * any(TOO_LONG in answer for answer in answers)
    figures: dict[str, float] = {"calls": len(taken), "announced_mib": announced >> 20, "taken_mib": came >> 20}
    return Loot(came > announced / 2, "bytes that the hop takes in before it refuses them", refused, figures)
