"""Bindings: what others have sealed and sent, copied; and what was good once, used again."""

from dataclasses import replace

from silomix.attacks.active.acts.casts import AGGREGATOR, WITH_FIRST, WITH_SILO
from silomix.attacks.active.liars.bodies import Body, body_frames, make_body
from silomix.attacks.active.liars.member import Refused
from silomix.attacks.active.registry import Cast, Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, HOSTILE, LAST, SECOND, VICTIM, Stage
from silomix.attacks.active.task import nought
from silomix.runtime.core.protocol.messages import Manifest, Receipt
from silomix.runtime.core.protocol.shuffler import State as HopState
from silomix.runtime.core.protocol.silo import State

COPIED_SEEDS = Cast(silos=(HOSTILE,), alone="copied-seeds")
COPIED_BODY = Cast(hops=(FIRST,), silos=(HOSTILE,), alone="copied-body")
COPIED_RESIDUES = Cast(hops=(FIRST,), silos=(HOSTILE,))
THREE = "aggregator, shuffler-1 and silo-06"


@attack("copied-seeds", Rule.BINDINGS, "aggregator and silo-06", Outcome.REFUSED, COPIED_SEEDS)
async def copied_seeds(stage: Stage) -> Loot:
    """A silo submits under the seeds that the victim has sealed, so that the two bodies have the same masks."""
    manifest, us, node = await stage.begin(), stage.member(HOSTILE), stage.hop(FIRST)
    await stage.until(lambda: VICTIM in stage.came(manifest).headers, "the victim's header has come down the chain")
    theirs = stage.came(manifest).headers[VICTIM]
    header = replace(theirs, silo=HOSTILE).signed(us.identity)
    body = make_body(us.identity, manifest, stage.federation, nought(), header)
    try:
        await us.stream(FIRST, "Submit", body_frames(body, us.identity, manifest))
    except Refused:
        return stage.loot(False, "the copy is refused")
    counted = node.core.attempt is not None and HOSTILE in node.core.attempt.counted
    return stage.loot(counted, "a body under the victim's masks in the sum")


@attack("copied-body", Rule.BINDINGS, THREE, Outcome.REFUSED, COPIED_BODY)
async def copied_body(stage: Stage) -> Loot:
    """Hop 1 counts the victim's body once more under the name of a silo that has copied its header."""
    manifest, us, hop = await stage.begin(), stage.member(HOSTILE), stage.liar(FIRST)
    await stage.submitted(manifest, FIRST)
    theirs = hop.bodies[manifest.digest][VICTIM]
    header = replace(theirs.header, silo=HOSTILE).signed(us.identity)
    hop.keys[manifest.round, manifest.attempt][HOSTILE] = hop.own(manifest)[VICTIM]
    stage.aggregator.private[manifest.digest][HOSTILE] = stage.aggregator.private[manifest.digest][VICTIM]
    hop.bodies[manifest.digest][HOSTILE] = Body(header, theirs.planes)
    try:
        await hop.stream(SECOND, "Relay", hop.passed(manifest, stage.federation.silo_names).frames())
        await stage.aggregator.release(manifest)
    except Refused:
        return stage.loot(False, "the copy is refused")
    silos = stage.federation.silo_names
    close = stage.closeness(stage.aggregator.sum(manifest) / len(silos), manifest)
    return stage.loot(True, "a sum with the victim in it twice", **close.figures)


@attack("copied-residues", Rule.BINDINGS, THREE, Outcome.USELESS, COPIED_RESIDUES, bites=False)
async def copied_residues(stage: Stage) -> Loot:
    """A silo sends the victim's masked residues under seeds of its own: no hop takes the victim's masks off twice."""
    manifest, us, hop = await stage.begin(), stage.member(HOSTILE), stage.liar(FIRST)
    await stage.submitted(manifest, FIRST)
    own = make_body(us.identity, manifest, stage.federation, nought())
    theirs = hop.bodies[manifest.digest][VICTIM].planes
    hop.bodies[manifest.digest][HOSTILE] = Body(own.header, theirs)
    await hop.stream(SECOND, "Relay", hop.passed(manifest, stage.federation.silo_names).frames())
    await stage.aggregator.release(manifest)
    close = stage.closeness(stage.aggregator.sum(manifest), manifest)
    stage.aggregator.pads.pop(manifest.digest)  # no model can be made of it
    return stage.loot(close.read, "noise", **close.figures)


@attack("old-body", Rule.BINDINGS, "silo-06", Outcome.REFUSED, WITH_SILO, bites=False)
async def old_body(stage: Stage) -> Loot:
    """A silo sends the body of the round before once more; its header names that round, and its seals open no more."""
    us, node = stage.member(HOSTILE), stage.hop(FIRST)
    old = await stage.begin()
    frames = body_frames(make_body(us.identity, old, stage.federation, nought()), us.identity, old)
    await us.stream(FIRST, "Submit", frames)
    await stage.until(lambda: stage.came(old).whole, "the old round is over")
    await stage.begin()
    try:
        await us.stream(FIRST, "Submit", frames)
    except Refused:
        return stage.loot(False, "the old body is refused")
    counted = node.core.attempt is not None and HOSTILE in node.core.attempt.counted
    return stage.loot(counted, "an old body in a new sum")


@attack("old-receipt", Rule.BINDINGS, "shuffler-1", Outcome.REFUSED, WITH_FIRST)
async def old_receipt(stage: Stage) -> Loot:
    """Hop 1 gives a silo the receipt of the round before, and leaves its body out."""
    hop, kept = stage.liar(FIRST), []

    def keep(receipt: Receipt) -> bytes:
        if receipt.silo == VICTIM:
            kept.append(hop.signed_receipt(receipt))
        return hop.signed_receipt(receipt)

    def replay(receipt: Receipt) -> bytes:
        return bytes(kept[0]) if receipt.silo == VICTIM else hop.signed_receipt(receipt)

    silo = stage.silo(VICTIM)
    try:
        hop.receipt = keep
        old = await stage.begin()
        await stage.submitted(old, FIRST)
        await stage.until(lambda: silo.core.state is State.COUNTED, "the victim is counted")
        hop.receipt = replay
        new = await stage.begin()
        await stage.submitted(new, FIRST)
        await stage.until(
            lambda: stage.refused_by((VICTIM,)) or (silo.core.state is State.COUNTED and silo.core.current == new),
            "the victim has looked at the receipt",
        )
    finally:
        hop.receipt = hop.signed_receipt
    believed = silo.core.state is State.COUNTED
    return stage.loot(believed, "a silo that takes itself for counted" if believed else "the silo knows better")


async def _reopened(stage: Stage, old: Manifest) -> Loot:
    """Open and announce an old manifest; say who fell for it."""
    fell = []
    for name in old.chain:
        try:
            await stage.open(old, (name,))
        except Refused:
            continue
        fell.append(name)
    await stage.aggregator.announce(old, stage.honest_silos)
    joined = [stage.silo(name) for name in stage.honest_silos]
    await stage.until(
        lambda: stage.refused_by(stage.honest_silos) or all(node.core.current == old for node in joined),
        "each silo has refused or joined",
    )
    fell += [node.config.name for node in joined if node.core.current == old]
    return stage.loot(bool(fell), f"nodes that take part in it: {', '.join(fell) or 'none'}", nodes=len(fell))


@attack("old-manifest", Rule.BINDINGS, "aggregator", Outcome.REFUSED, AGGREGATOR, bites=False)
async def old_manifest(stage: Stage) -> Loot:
    """A manifest of a round that is over is opened and announced again."""
    old = await stage.whole_round()
    await stage.whole_round()
    return await _reopened(stage, old)


@attack("old-attempt", Rule.BINDINGS, "aggregator", Outcome.REFUSED, AGGREGATOR, bites=False)
async def old_attempt(stage: Stage) -> Loot:
    """The first attempt at a round is opened again when the second is open."""
    number = stage.next_round()
    first = await stage.begin(number, silos=())
    await stage.begin(number, attempt=2)
    await stage.until(lambda: stage.hop(LAST).core.state is HopState.DONE, "the second attempt is over")
    return await _reopened(stage, first)
