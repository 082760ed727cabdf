"""R7: calls by members who have no business to make them."""

from collections.abc import Awaitable, Callable
from typing import Any

from silomix.attacks.active.acts.casts import LAST_HOP, SILO
from silomix.attacks.active.liars.member import ANSWER_S, Member, Refused
from silomix.attacks.active.registry import Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, HOSTILE, LAST, SECOND, Stage
from silomix.v1 import services_pb2


async def _read(call: Any) -> bytes:
    """Read the first message of a stream that a node sends."""
    async for message in call:
        raw: bytes = message.SerializeToString()
        return raw
    return b""


async def _tried(who: Member, calls: dict[str, tuple[str, Callable[[], Awaitable[Any]]]]) -> list[str]:
    """Make each call; return those that were answered."""
    answered = []
    for name, (target, call) in calls.items():
        try:
            await who.ask(target, call)
        except Refused:
            continue
        answered.append(name)
    return answered


@attack("hop-asks-for-models", Rule.R7, "shuffler-3", Outcome.REFUSED, LAST_HOP)
async def hop_asks_for_models(stage: Stage) -> Loot:
    """A hop watches for rounds and downloads models and sums: two models in a row tell the sum between them."""
    hop, node = stage.liar(LAST), stage.running.aggregator
    stub, name = hop.aggregator(), node.config.name
    watch = services_pb2.WatchRequest(federation_digest=stage.federation.digest)
    model = services_pb2.GetModelRequest(model_digest=node.model)
    last = services_pb2.GetSumRequest(round=node.core.log.round - 1)
    calls: dict[str, tuple[str, Callable[[], Awaitable[Any]]]] = {
        "Watch": (name, lambda: _read(stub.Watch(watch, timeout=ANSWER_S))),
        "GetModel": (name, lambda: _read(stub.GetModel(model, timeout=ANSWER_S))),
        "GetSum": (name, lambda: _read(stub.GetSum(last, timeout=ANSWER_S))),
        "Confirm": (name, lambda: stub.Confirm(services_pb2.ConfirmRequest(), timeout=ANSWER_S)),
    }
    answered = await _tried(hop, calls)
    return stage.loot(bool(answered), f"answers to {', '.join(answered) or 'nothing'}", calls=len(answered))


@attack("silo-in-a-hops-place", Rule.R7, "silo-06", Outcome.REFUSED, SILO)
async def silo_in_a_hops_place(stage: Stage) -> Loot:
    """A silo asks hops for keys and pads, opens attempts, has records stored, relays and delivers."""
    us, node = stage.member(HOSTILE), stage.hop(FIRST)
    await stage.until(lambda: node.core.attempt is not None, "a round is open")
    assert node.core.attempt is not None
    manifest = node.core.attempt.manifest
    prepare = services_pb2.PrepareRequest(
        federation_digest=stage.federation.digest, round=2, attempt=1, silos=stage.federation.silo_names
    )
    opening = services_pb2.RelayFrame(open=services_pb2.RelayOpen(hop=FIRST, manifest_digest=manifest.digest))
    aggregator, hop = stage.federation.aggregator.name, us.shuffler(FIRST)
    calls: dict[str, tuple[str, Callable[[], Awaitable[Any]]]] = {
        "Prepare": (FIRST, lambda: hop.Prepare(prepare, timeout=ANSWER_S)),
        "Open": (FIRST, lambda: hop.Open(services_pb2.OpenRequest(), timeout=ANSWER_S)),
        "Agree": (FIRST, lambda: hop.Agree(services_pb2.AgreeRequest(), timeout=ANSWER_S)),
        "Reveal": (FIRST, lambda: hop.Reveal(services_pb2.RevealRequest(), timeout=ANSWER_S)),
        "Store": (FIRST, lambda: hop.Store(services_pb2.StoreRequest(), timeout=ANSWER_S)),
        "Relay": (SECOND, lambda: us.stream(SECOND, "Relay", [opening])),
        "Deliver": (aggregator, lambda: us.stream(aggregator, "Deliver", [opening])),
    }
    answered = await _tried(us, calls)
    return stage.loot(bool(answered), f"answers to {', '.join(answered) or 'nothing'}", calls=len(answered))
