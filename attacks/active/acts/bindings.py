"""Bindings: what was signed, sealed or masked for one purpose and one attempt, used for another."""

from collections.abc import Callable
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from silomix.attacks.active.acts.casts import AGGREGATOR, LAST_HOP, WITH_FIRST, WITH_SECOND, WITH_SILO
from silomix.attacks.active.aggregator import Delivered
from silomix.attacks.active.bodies import Body, Passed, body_frames, make_body
from silomix.attacks.active.member import Refused
from silomix.attacks.active.registry import Cast, Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, HOSTILE, LAST, SECOND, VICTIM, Stage
from silomix.attacks.active.task import Drill
from silomix.runtime.core.protocol.messages import Manifest, Receipt, delivery_digest
from silomix.runtime.core.protocol.silo import State
from silomix.v1 import body_pb2, services_pb2

COPIED_SEEDS = Cast(silos=(HOSTILE,), alone="copied-seeds")
COPIED_BODY = Cast(hops=(FIRST,), silos=(HOSTILE,), alone="copied-body")
COPIED_RESIDUES = Cast(hops=(FIRST,), silos=(HOSTILE,))
THREE = "aggregator, shuffler-1 and silo-06"


# Deliveries: a hop deletes its keys when the sum has come through, and not before


async def _delivered(stage: Stage, forge: Callable[[Manifest, Delivered], bytes]) -> Loot:
    us, node = stage.aggregator, stage.hop(LAST)
    manifest = await stage.begin()
    us.answer = lambda came: forge(manifest, came)
    try:
        await stage.until(lambda: stage.came(manifest).whole, "the sum has come")
        await stage.until(
            lambda: stage.refused_by((LAST,)) or not node.core.keys, "shuffler-3 has looked at the delivery"
        )
    finally:
        us.answer = us.delivery
    gone = not node.core.keys
    return stage.loot(gone, "keys deleted before the time" if gone else "the keys are still there", keys_gone=gone)


@attack("delivery-by-another", Rule.BINDINGS, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def delivery_by_another(stage: Stage) -> Loot:
    """The last hop gets a delivery that somebody else has signed."""
    stranger = Ed25519PrivateKey.generate()

    def forge(manifest: Manifest, came: Delivered) -> bytes:
        assert came.trailer is not None
        what = delivery_digest(stage.aggregator.name, manifest.digest, came.trailer.root)
        return stage.aggregator.signed_delivery(came.trailer.root, stranger.sign(what))

    return await _delivered(stage, forge)


@attack("delivery-for-another", Rule.BINDINGS, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def delivery_for_another(stage: Stage) -> Loot:
    """The last hop gets a delivery that is signed for another attempt."""

    def forge(manifest: Manifest, came: Delivered) -> bytes:
        assert came.trailer is not None
        what = delivery_digest(stage.aggregator.name, bytes(32), came.trailer.root)
        return stage.aggregator.signed_delivery(came.trailer.root, stage.aggregator.identity.sign(what))

    return await _delivered(stage, forge)


@attack("delivery-of-an-old-round", Rule.BINDINGS, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def delivery_of_an_old_round(stage: Stage) -> Loot:
    """The last hop gets the delivery of the round before."""
    old = stage.came(await stage.whole_round())
    said = stage.aggregator.delivery(old)
    return await _delivered(stage, lambda manifest, came: said)


# What a hop passes on


async def _passed_on(stage: Stage, spoil: Callable[[Passed], Passed | list[services_pb2.RelayFrame]]) -> Loot:
    manifest, hop = await stage.begin(), stage.liar(FIRST)
    await stage.submitted(manifest, FIRST)
    spoilt = spoil(hop.passed(manifest, stage.honest_silos))
    frames = spoilt.frames() if isinstance(spoilt, Passed) else spoilt
    try:
        await hop.stream(SECOND, "Relay", frames)
    except Refused:
        return stage.loot(False, "shuffler-2 does not vouch for it")
    return stage.loot(True, "shuffler-2 has signed that all is well")


@attack("trailer-by-another", Rule.BINDINGS, "shuffler-1", Outcome.REFUSED, WITH_FIRST)
async def trailer_by_another(stage: Stage) -> Loot:
    """Hop 1 ends its stream with a trailer that nobody has signed."""
    return await _passed_on(stage, lambda passed: replace(passed, signature=bytes(64)))


@attack("trailer-for-another-sum", Rule.BINDINGS, "shuffler-1", Outcome.REFUSED, WITH_FIRST)
async def trailer_for_another_sum(stage: Stage) -> Loot:
    """Hop 1 signs for another sum than it has sent."""
    return await _passed_on(stage, lambda passed: replace(passed, root=bytes(31) + b"\1"))


@attack("trailer-missing", Rule.BINDINGS, "shuffler-1", Outcome.REFUSED, WITH_FIRST)
async def trailer_missing(stage: Stage) -> Loot:
    """Hop 1 signs for nothing: it hangs up after the last chunk."""
    return await _passed_on(stage, lambda passed: replace(passed, whole=False))


@attack("chunk-twice", Rule.BINDINGS, "shuffler-1", Outcome.REFUSED, WITH_FIRST)
async def chunk_twice(stage: Stage) -> Loot:
    """Hop 1 sends a chunk a second time with another content, to have masks taken off that too."""

    def spoil(passed: Passed) -> list[services_pb2.RelayFrame]:
        frames = passed.frames()
        first = next(i for i, frame in enumerate(frames) if frame.HasField("chunk"))
        nought = body_pb2.Chunk(planes=[bytes(len(plane)) for plane in passed.chunks[0].planes])
        return [*frames[: first + 1], services_pb2.RelayFrame(chunk=nought), *frames[first + 1 :]]

    return await _passed_on(stage, spoil)


@attack("cohort-changed-on-the-way", Rule.BINDINGS, "shuffler-2", Outcome.REFUSED, WITH_SECOND)
async def cohort_changed_on_the_way(stage: Stage) -> Loot:
    """Hop 2 takes the victim out of the cohort that hop 1 has signed, and passes that on."""
    liar = stage.liar(SECOND)
    liar.deliver = liar.in_suspense
    try:
        manifest = await stage.begin()
        await stage.until(lambda: liar.heard[manifest.digest].root, "a sum is here")
        passed = liar.forward(manifest)
        kept = tuple(p for p in passed.cohort.participants if p.silo != VICTIM)
        changed = replace(passed, cohort=replace(passed.cohort, participants=kept))
        await liar.stream(LAST, "Relay", changed.frames())
    except Refused:
        return stage.loot(False, "shuffler-3 does not vouch for it")
    finally:
        liar.deliver = liar.delivery
    return stage.loot(True, "shuffler-3 has signed that all is well")


@attack("sum-the-aggregator-cannot-trust", Rule.BINDINGS, "shuffler-3", Outcome.REFUSED, LAST_HOP)
async def sum_without_signature(stage: Stage) -> Loot:
    """The last hop delivers the sum to an honest aggregator under signatures that do not hold."""
    hop, accepted = stage.liar(LAST), 0
    hop.deliver = hop.in_suspense
    await stage.until(lambda: hop.newest is not None and hop.heard[hop.newest.digest].root, "a sum is here")
    assert hop.newest is not None
    passed, name = hop.forward(hop.newest), stage.federation.aggregator.name
    spoilt = (
        replace(passed, signature=bytes(64)),
        replace(passed, root=bytes(31) + b"\1"),
        replace(passed, whole=False),
        replace(passed, cohort=replace(passed.cohort, participants=passed.cohort.participants[1:])),
    )
    for one in spoilt:
        try:
            await hop.stream(name, "Deliver", one.frames())
        except Refused:
            continue
        accepted += 1
    await hop.stream(name, "Deliver", passed.frames())  # the round goes on
    return stage.loot(accepted > 0, "sums that the aggregator has taken", sums=accepted)


@attack("tampered-sum", Rule.SUM, "shuffler-3", Outcome.CONCEDED, LAST_HOP)
async def tampered_sum(stage: Stage) -> Loot:
    """A hop adds an error to the sum: at level semi-honest nobody finds it, and the hop learns nothing by it."""
    hop, node = stage.liar(LAST), stage.running.aggregator
    hop.deliver = hop.in_suspense
    done = len(node.history)
    await stage.until(
        lambda: (
            hop.newest is not None
            and node.core.manifest is not None
            and hop.newest.digest == node.core.manifest.digest
            and hop.heard[hop.newest.digest].root
        ),
        "a sum is here",
    )
    assert hop.newest is not None
    manifest, before = hop.newest, node.tensors
    by = 60

    def change(planes: object) -> object:
        from silomix.runtime.core.protocol.rules import layout

        shape = layout(manifest)
        residues = shape.residues(planes)  # type: ignore[arg-type]
        for row, modulus in zip(residues, manifest.plan.moduli, strict=True):
            row[:10] = (row[:10].astype(int) + by) % modulus
        return shape.pack(residues)

    await hop.stream(node.config.name, "Deliver", hop.forward(manifest, change).frames())  # type: ignore[arg-type]
    await stage.until(lambda: len(node.history) > done, "the model is made")
    honest = stage.mean(stage.aggregator.keep(before), manifest.round)
    step = stage.aggregator.vector(stage.aggregator.keep(node.tensors)) - stage.aggregator.vector(
        stage.aggregator.keep(before)
    )
    error = float(abs(step - honest)[:10].mean())
    wanted = by * manifest.bounds[0] / manifest.plan.v / len(stage.federation.silos)
    return stage.loot(error > wanted / 2, "an error of its choice in the model", error=round(error, 5))


# Copies, and what is old


@attack("copied-seeds", Rule.BINDINGS, "aggregator and silo-06", Outcome.REFUSED, COPIED_SEEDS)
async def copied_seeds(stage: Stage) -> Loot:
    """A silo submits under the seeds that the victim has sealed, so that the two bodies have the same masks."""
    manifest, us, node = await stage.begin(), stage.member(HOSTILE), stage.hop(FIRST)
    await stage.until(lambda: VICTIM in stage.came(manifest).headers, "the victim's header has come down the chain")
    theirs = stage.came(manifest).headers[VICTIM]
    header = replace(theirs, silo=HOSTILE).signed(us.identity)
    update = {name: value * 0 for name, value in Drill(0).initial().items()}
    body = make_body(us.identity, manifest, stage.federation, update, header)
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
    update = {name: value * 0 for name, value in Drill(0).initial().items()}
    own = make_body(us.identity, manifest, stage.federation, update)
    theirs = hop.bodies[manifest.digest][VICTIM].planes
    hop.bodies[manifest.digest][HOSTILE] = Body(own.header, theirs)
    await hop.stream(SECOND, "Relay", hop.passed(manifest, stage.federation.silo_names).frames())
    close = stage.closeness(stage.aggregator.sum(manifest), manifest)
    return stage.loot(close.read, "noise", **close.figures)


@attack("old-body", Rule.BINDINGS, "silo-06", Outcome.REFUSED, WITH_SILO, bites=False)
async def old_body(stage: Stage) -> Loot:
    """A silo sends the body of the round before once more; its header names that round, and its seals open no more."""
    us, node = stage.member(HOSTILE), stage.hop(FIRST)
    update = {name: value * 0 for name, value in Drill(0).initial().items()}
    old = await stage.begin()
    frames = body_frames(make_body(us.identity, old, stage.federation, update), us.identity, old)
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
    await stage.until(lambda: stage.hop(LAST).core.state == "done", "the second attempt is over")
    return await _reopened(stage, first)
