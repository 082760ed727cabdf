"""R7: calls by members who have no business to make them."""

from typing import Any

from google.protobuf.message import Message

from silomix.attacks.active.acts.casts import LAST_HOP, SILO
from silomix.attacks.active.liars.member import ANSWER_S, Member, Refused, path
from silomix.attacks.active.registry import Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, HOSTILE, LAST, SECOND, Stage
from silomix.runtime.core.errors import Reason
from silomix.runtime.net.edges import FROM_SILOS, TO_HOPS
from silomix.v1 import services_pb2

NOT_ITS_CALL = (Reason.UNKNOWN_PEER, Reason.WRONG_CHAIN)
"""What a member is told that has no business to make a call, before anything of it is read."""
BETWEEN_HOPS = ("Relay", "Deliver")


async def _let_in(who: Member, target: str, method: str, request: Message | None = None) -> bool:
    """Make a call, and say whether the node has looked at it: any other refusal means that it has."""
    call: Any = who.line(target).unary_stream(path(method))
    raw = b"" if request is None else request.SerializeToString()

    async def first() -> None:
        async for _ in call(raw, timeout=ANSWER_S):
            return

    try:
        await who.ask(target, first)
    except Refused as refused:
        return refused.refusal.reason not in NOT_ITS_CALL
    return True


@attack("hop-asks-for-models", Rule.R7, "shuffler-3", Outcome.REFUSED, LAST_HOP)
async def hop_asks_for_models(stage: Stage) -> Loot:
    """A hop watches for rounds and downloads models and sums: two models in a row tell the sum between them."""
    hop, node = stage.liar(LAST), stage.running.aggregator
    name, asked = node.config.name, dict[str, Message]()
    asked["Watch"] = services_pb2.WatchRequest(federation_digest=stage.federation.digest)
    asked["GetModel"] = services_pb2.GetModelRequest(model_digest=node.model)
    asked["GetSum"] = services_pb2.GetSumRequest(round=node.core.log.round - 1)
    let_in = [method for method in FROM_SILOS if await _let_in(hop, name, method, asked.get(method))]
    said = f"an ear for {', '.join(let_in) or 'nothing'}"
    return stage.loot(bool(let_in), said, tried=len(FROM_SILOS), let_in=len(let_in))


@attack("silo-in-a-hops-place", Rule.R7, "silo-06", Outcome.REFUSED, SILO)
async def silo_in_a_hops_place(stage: Stage) -> Loot:
    """A silo asks hops for keys and pads, opens attempts, has records stored, relays and delivers."""
    us, node = stage.member(HOSTILE), stage.hop(FIRST)
    await stage.until(lambda: node.core.attempt is not None, "a round is open")
    assert node.core.attempt is not None
    manifest, asked = node.core.attempt.manifest, dict[str, Message]()
    asked["Prepare"] = services_pb2.PrepareRequest(
        federation_digest=stage.federation.digest, round=2, attempt=1, silos=stage.federation.silo_names
    )
    opening = services_pb2.RelayFrame(open=services_pb2.RelayOpen(hop=FIRST, manifest_digest=manifest.digest))
    asked |= dict.fromkeys(BETWEEN_HOPS, opening)
    targets = dict.fromkeys(TO_HOPS, FIRST) | {"Relay": SECOND, "Deliver": stage.federation.aggregator.name}
    let_in = [method for method, to in targets.items() if await _let_in(us, to, method, asked.get(method))]
    said = f"an ear for {', '.join(let_in) or 'nothing'}"
    return stage.loot(bool(let_in), said, tried=len(targets), let_in=len(let_in))
