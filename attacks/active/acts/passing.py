"""Bindings: what passes from hop to hop, and the word that it has come through, signed for other things."""

from collections.abc import Callable
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from silomix.attacks.active.acts.casts import AGGREGATOR, LAST_HOP, WITH_FIRST, WITH_SECOND
from silomix.attacks.active.liars.aggregator import Delivered
from silomix.attacks.active.liars.bodies import Passed
from silomix.attacks.active.liars.member import Refused
from silomix.attacks.active.measure import flat
from silomix.attacks.active.registry import Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, LAST, SECOND, VICTIM, Stage
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol.messages import Manifest, delivery_digest
from silomix.runtime.core.protocol.rules import layout
from silomix.v1 import body_pb2, services_pb2

ERROR = 60
"""What a hop adds to the sum of some values, in steps of the quantiser."""
CHANGED = 10
"""How many values it adds it to."""


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
        what = delivery_digest(stage.aggregator.name, manifest.digest, came.root)
        return stage.aggregator.signed_delivery(came.root, stranger.sign(what))

    return await _delivered(stage, forge)


@attack("delivery-for-another", Rule.BINDINGS, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def delivery_for_another(stage: Stage) -> Loot:
    """The last hop gets a delivery that is signed for another attempt."""

    def forge(manifest: Manifest, came: Delivered) -> bytes:
        what = delivery_digest(stage.aggregator.name, bytes(32), came.root)
        return stage.aggregator.signed_delivery(came.root, stage.aggregator.identity.sign(what))

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
    passed, name = hop.forward(await stage.newest_at(hop)), stage.federation.aggregator.name
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
    manifest = await stage.newest_at(hop)
    done = len(node.history)
    before = flat(node.schema, node.tensors)

    def change(planes: Bytes) -> Bytes:
        shape = layout(manifest)
        residues = shape.residues(planes)
        for row, modulus in zip(residues, manifest.plan.moduli, strict=True):
            row[:CHANGED] = (row[:CHANGED].astype(int) + ERROR) % modulus
        return shape.pack(residues)

    honest = stage.mean(stage.aggregator.keep(node.tensors), manifest.round)
    await hop.stream(node.config.name, "Deliver", hop.forward(manifest, change).frames())
    await stage.until(lambda: len(node.history) > done, "the model is made")
    error = float(abs(flat(node.schema, node.tensors) - before - honest)[:CHANGED].mean())
    wanted = ERROR * manifest.bounds[0] / manifest.plan.v / len(stage.federation.silos)
    return stage.loot(error > wanted / 2, "an error of its choice in the model", error=round(error, 5))
