"""R7: answers in the release and the round log that are none, and whether they end an honest node or keep it busy."""

from silomix.attacks.active.acts.casts import AGGREGATOR, LAST_HOP
from silomix.attacks.active.liars.member import Refused
from silomix.attacks.active.registry import Cast, Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, LAST, VICTIM, Stage
from silomix.runtime.core.protocol.rules import MOST_ATTEMPTS
from silomix.v1 import services_pb2

SHAPE = Cast(genesis="shape", pinned=False, alone="genesis-of-another-shape")
WATCHED_S = 1.0
MOST_CALLS = 20
"""Calls in that time that a node may make without anybody minding."""
GARBAGE = b"\xff" * 40


async def _shows(stage: Stage, pad: bytes) -> Loot:
    """Have the last hop show something else than its pad, and see what an honest aggregator makes of it."""
    hop, node = stage.liar(LAST), stage.running.aggregator
    manifest = await stage.newest_at(hop)
    true = hop.reveal
    hop.reveal = lambda _: pad
    try:
        await hop.stream(node.config.name, "Deliver", hop.forward(manifest).frames())
        name = node.config.name
        await stage.until(lambda: stage.dead() or stage.refused_by((name,)), "the aggregator has looked at the pad")
        made = node.core.log.round > manifest.round
    finally:
        hop.reveal = true
    dead = stage.dead()
    if not dead:
        await stage.until(lambda: node.core.log.round > manifest.round, "the round goes on with the true pad")
    said = f"{', '.join(dead)} ended" if dead else "no process ended"
    return stage.loot(bool(dead) or made, said, ended=len(dead), models=made)


@attack("pad-too-short", Rule.R7, "shuffler-3", Outcome.REFUSED, LAST_HOP, bites=False)
async def pad_too_short(stage: Stage) -> Loot:
    """A hop shows a pad of five bytes, when the others have shown theirs."""
    return await _shows(stage, b"short")


@attack("another-pad", Rule.AGREEMENT, "shuffler-3", Outcome.REFUSED, LAST_HOP, bites=False)
async def another_pad(stage: Stage) -> Loot:
    """A hop shows another pad than the one that it has committed to."""
    return await _shows(stage, bytes(32))


@attack("record-never-stored", Rule.R7, "shuffler-3", Outcome.USELESS, LAST_HOP, bites=False)
async def record_never_stored(stage: Stage) -> Loot:
    """A hop answers each record with the word that it has none, and so is sent all of them again and again."""
    hop, node, calls = stage.liar(LAST), stage.running.aggregator, 0
    manifest = await stage.newest_at(hop)

    def forgetful(_: bytes) -> bytes:
        nonlocal calls
        calls += 1
        return services_pb2.StoreResponse(records=0).SerializeToString()

    hop.on_store = forgetful
    try:
        await hop.stream(node.config.name, "Deliver", hop.forward(manifest).frames())
        await stage.until(lambda: calls > 0, "a record is to be stored")
        await stage.within(WATCHED_S, lambda: calls > MOST_CALLS)
    finally:
        hop.on_store = None
    await stage.until(lambda: node.core.counts and node.core.log.round > manifest.round, "the record counts")
    return stage.loot(calls > MOST_CALLS, "calls that it has made the aggregator make", calls=calls)


@attack("attempts-without-end", Rule.R7, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def attempts_without_end(stage: Stage) -> Loot:
    """A hop is asked for the keys of one attempt after the other, each of which leaves a fact in its journal."""
    us, number = stage.aggregator, stage.next_round()
    await stage.settle(number)
    left = 0
    for attempt in (MOST_ATTEMPTS + 1, 1 << 20, (1 << 32) - 1):
        try:
            await us.prepare(FIRST, number, attempt)
        except Refused:
            continue
        left += 1
    return stage.loot(left > 0, "attempts beyond the last that there is", attempts=left)


@attack("unparsable-sum", Rule.R7, "aggregator", Outcome.REFUSED, AGGREGATOR, bites=False)
async def unparsable_sum(stage: Stage) -> Loot:
    """A silo that asks for the sum of a round is sent bytes that are no message."""
    us, log = stage.aggregator, stage.silo(VICTIM).core.log
    await stage.whole_round()
    await stage.followed()
    us.sum_answer = lambda silo, round_: [GARBAGE] if silo == VICTIM else us.sum_parts(silo, round_)
    try:
        number = (await stage.whole_round()).round
        await stage.until(lambda: log.round > number, "the victim has the record")
        await stage.within(WATCHED_S, lambda: stage.dead() or stage.refused_by((VICTIM,)))
    finally:
        us.sum_answer = us.sum_parts
    dead = stage.dead()
    return stage.loot(bool(dead), f"{', '.join(dead)} ended" if dead else "no process ended", ended=len(dead))


@attack("genesis-of-another-shape", Rule.R7, "aggregator", Outcome.REFUSED, SHAPE, bites=False)
async def genesis_of_another_shape(stage: Stage) -> Loot:
    """The model that is put on record at the beginning lacks a tensor of the task."""
    stage.mark(stage.born)  # silos have looked at it already
    await stage.begin()
    await stage.until(lambda: stage.refused_by(stage.honest_silos) or stage.dead(), "each silo has refused")
    dead = stage.dead()
    return stage.loot(bool(dead), f"{', '.join(dead)} ended" if dead else "no process ended", ended=len(dead))
