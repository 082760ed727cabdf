"""R5: a model that the sums before have not made, and sums that are not what left the chain."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from silomix.attacks.active.acts.casts import AGGREGATOR
from silomix.attacks.active.liars.aggregator import LyingAggregator
from silomix.attacks.active.liars.bodies import body_frames, make_body
from silomix.attacks.active.measure import flat
from silomix.attacks.active.registry import Cast, Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, HOSTILE, LAST, VICTIM, Stage, Stuck
from silomix.attacks.active.task import Tensors, nought, trapped
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.core.policy import AUTO
from silomix.runtime.core.protocol.lineage import Transcript
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.roundlog import Outcome as Ended
from silomix.runtime.core.protocol.roundlog import computed_digest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.core.protocol.silo import State
from silomix.runtime.net.history import write_signatures, write_transcript
from silomix.runtime.store.modelfile import model_digest, read_model
from silomix.v1 import body_pb2, services_pb2

SAYS_S = 3.0
ASLEEP = -8.0
"""A bias under which a hidden unit is as good as silent."""
STRIDE, NEAR = 0.4, 0.3
"""How far a silo moves each value of the model in a round, of the bound's 0.5; and how near is near enough."""
CRAFTED = Cast(genesis="trap", alone="crafted-initial-model")
UNPINNED = Cast(genesis="trap", pinned=False, alone="initial-model-on-its-word")
FEW = Cast(silos=("silo-05", "silo-06"), alone="adopted-on-few-words")
AUTOMATIC = Cast(policy=(("bound", AUTO),), alone="bounds-of-its-own")
GROUPS = Cast(policy=(("group_size", 3),), alone="nearly-the-model-in-groups")


def _alone(name: str) -> Cast:
    """A record that silos find to be false ends a history: nothing else runs there afterwards."""
    return Cast(alone=name)


def trap(stage: Stage, model: bytes) -> bytes:
    """Keep a model under which only records like the victim's wake a hidden unit."""
    us = stage.aggregator
    return us.keep(trapped(us.tensors(model), int(VICTIM.removeprefix("silo-")) - 1))


def nearly(us: LyingAggregator, model: bytes) -> bytes:
    """Keep a model of which one value differs by one unit in the last place."""
    tensors = us.tensors(model)
    name, values = next(iter(tensors.items()))
    moved = np.array(values)
    moved.flat[0] = np.nextafter(moved.flat[0], np.float32(1), dtype=np.float32)
    return us.keep({**tensors, name: moved})


async def _instead(stage: Stage, made: Callable[[Manifest], bytes]) -> tuple[Manifest, bytes]:
    """Run a round and sign that another model comes of it; return its manifest and that model."""
    us = stage.aggregator
    manifest = await stage.padded_round()
    await us.release(manifest)
    _, state = us.step(manifest)
    model = made(manifest)
    await us.publish(us.chronicle.draft(Ended.APPLIED, (model, state), us.came[manifest.digest].root))
    return manifest, model


async def _on_it(stage: Stage, silos: tuple[str, ...]) -> Manifest | None:
    """Run the next round on what was signed, and return it if silos take part."""
    manifest = await stage.begin(silos=silos)
    nodes = (*silos, *manifest.chain)
    if set(silos) != set(stage.honest_silos):
        await stage.counted(silos)
        stage.pass_time(manifest.chain[0])
    await stage.until(lambda: stage.came(manifest).whole, "the sum on it", unless=nodes)
    await stage.aggregator.release(manifest)
    return manifest


def _others(stage: Stage) -> tuple[str, ...]:
    return tuple(name for name in stage.honest_silos if name != VICTIM)


@attack("invented-model", Rule.R5, "aggregator", Outcome.REFUSED, _alone("invented-model"))
async def invented_model(stage: Stage) -> Loot:
    """A model is put on record under which only records like the victim's wake a hidden unit."""
    await _instead(stage, lambda manifest: trap(stage, manifest.model))
    await stage.within(SAYS_S, lambda: stage.refused_by(stage.honest_silos))
    manifest = await _on_it(stage, stage.honest_silos)
    assert manifest is not None
    close = stage.closeness(stage.aggregator.sum(manifest), manifest)
    return stage.loot(close.read, "a sum to which the victim alone has contributed", **close.figures)


@attack("wrong-mean", Rule.R5, "aggregator", Outcome.REFUSED, _alone("wrong-mean"))
async def wrong_mean(stage: Stage) -> Loot:
    """The record names a model that lies twice as far in the direction of the sum."""
    us = stage.aggregator

    def doubled(manifest: Manifest) -> bytes:
        return us.moved(manifest.model, 2 * us.sum(manifest) / len(us.came[manifest.digest].silos))

    await _instead(stage, doubled)
    await stage.within(SAYS_S, lambda: stage.refused_by(stage.honest_silos))
    manifest = await _on_it(stage, stage.honest_silos)
    assert manifest is not None
    came = len(stage.came(manifest).silos)
    return stage.loot(came > 0, "silos that train on it", silos=came)


@attack("model-moved-by-a-bit", Rule.R5, "aggregator", Outcome.REFUSED, _alone("model-moved-by-a-bit"))
async def model_moved_by_a_bit(stage: Stage) -> Loot:
    """The model is put on record once more, with one value changed by one ulp, and one silo is left out."""
    us = stage.aggregator
    first, _ = await _instead(stage, lambda manifest: nearly(us, manifest.model))
    await stage.within(SAYS_S, lambda: stage.refused_by(stage.honest_silos))
    second = await _on_it(stage, _others(stage))
    assert second is not None
    close = stage.closeness(us.sum(first) - us.sum(second), first)
    return stage.loot(close.read, "the difference of two sums on nearly one model", **close.figures)


@attack("bounds-of-its-own", Rule.R5, "aggregator", Outcome.REFUSED, AUTOMATIC)
async def bounds_of_its_own(stage: Stage) -> Loot:
    """Bounds follow from the models, and the manifest has others: so wide that nothing is left of any update."""
    us = stage.aggregator
    await stage.whole_round()
    manifest = await stage.begin(bounds=tuple(bound * 2.0**20 for bound in us.bounds(us.model)))
    silos = stage.honest_silos
    await stage.until(lambda: stage.came(manifest).whole or stage.refused_by(silos), "a sum, or that each silo refuses")
    if not stage.came(manifest).whole:
        return stage.loot(False, "nothing")
    await us.release(manifest)
    left = float(np.abs(us.sum(manifest)).max())
    return stage.loot(left == 0.0, "a sum of updates that were all rounded to nothing", left=left)


@attack("model-repeated", Rule.R5, "aggregator", Outcome.REFUSED, _alone("model-repeated"), bites=False)
async def model_repeated(stage: Stage) -> Loot:
    """The record says that the sum has changed nothing: the same model is trained on again, without the victim."""
    us = stage.aggregator
    first, _ = await _instead(stage, lambda manifest: manifest.model)
    us.chronicle.sealed.clear()  # it says nothing of whom the model is bound to
    await stage.within(SAYS_S, lambda: stage.refused_by(stage.honest_silos))
    second = await _on_it(stage, _others(stage))
    assert second is not None
    close = stage.closeness(us.sum(first) - us.sum(second), first)
    return stage.loot(close.read, "the difference of two sums on one model", **close.figures)


@attack("model-file-changed", Rule.R5, "aggregator", Outcome.USELESS, AGGREGATOR, bites=False)
async def model_file_changed(stage: Stage) -> Loot:
    """The model's file is written otherwise, with the same tensors in it: that makes no other model of it."""
    us = stage.aggregator
    data = us.files[us.start]
    length = int.from_bytes(data[:8], "little")
    padded = data[8 : 8 + length] + b" " * 8
    other = len(padded).to_bytes(8, "little") + padded + data[8 + length :]
    digest = model_digest(*read_model(other))
    return stage.loot(digest != us.start, "the same digest for another file", files=2, digests=len({digest, us.start}))


@attack("nearly-the-model-in-groups", Rule.R5, "aggregator", Outcome.CONCEDED, GROUPS)
async def nearly_in_groups(stage: Stage) -> Loot:
    """Where sums leave by group the model is the aggregator's word: nearly the same one, and the victim left out."""
    us = stage.aggregator
    first, _ = await _instead(stage, lambda manifest: nearly(us, manifest.model))
    second = await _on_it(stage, _others(stage))
    assert second is not None
    totals = [np.sum(us.group_sums(manifest), axis=0) for manifest in (first, second)]
    close = stage.closeness(totals[0] - totals[1], first)
    return stage.loot(close.read, "the difference of two sums on nearly one model", **close.figures)


@attack("crafted-initial-model", Rule.R5, "aggregator", Outcome.REFUSED, CRAFTED)
async def crafted_initial_model(stage: Stage) -> Loot:
    """The model that the federation begins with is a trap: it is the one model that no sum has made."""
    return await _begun_with_a_trap(stage)


@attack("initial-model-on-its-word", Rule.R5, "aggregator", Outcome.CONCEDED, UNPINNED)
async def initial_model_on_its_word(stage: Stage) -> Loot:
    """The same where the owners have agreed on no model to begin with."""
    return await _begun_with_a_trap(stage)


async def _begun_with_a_trap(stage: Stage) -> Loot:
    await stage.found()
    manifest = await stage.whole_round()
    close = stage.closeness(stage.aggregator.sum(manifest), manifest)
    return stage.loot(close.read, "a sum to which the victim alone has contributed", **close.figures)


@attack("adopted-on-few-words", Rule.R5, "aggregator and two silos", Outcome.REFUSED, FEW)
async def adopted_on_few_words(stage: Stage) -> Loot:
    """The victim is refused the sum, so that it takes a model which colluding silos say they have computed."""
    us, silo = stage.aggregator, stage.silo(VICTIM)
    friends = [stage.member(name) for name in stage.cast.silos]
    first = await stage.begin()
    for friend in friends:
        body = make_body(friend.identity, first, stage.federation, nought())
        await friend.stream(FIRST, "Submit", body_frames(body, friend.identity, first))
    await stage.until(lambda: stage.came(first).whole, "the sum")
    await us.release(first)
    _, state = us.step(first)
    model = trap(stage, first.model)
    us.lose_sums(VICTIM)
    record = us.chronicle.draft(Ended.APPLIED, (model, state), us.came[first.digest].root)
    said = {friend.name: friend.identity.sign(computed_digest(record.digest, friend.name)) for friend in friends}
    for other in stage.honest_silos:
        said[other] = friends[0].identity.sign(computed_digest(record.digest, other))
    answers = [said, {name: said[name] for name in stage.cast.silos}]

    def served(digest: bytes) -> Iterable[bytes]:
        signed = write_signatures(tuple((answers.pop() if len(answers) > 1 else answers[0]).items()))
        data = us.files[digest]
        yield services_pb2.ModelPart(total_bytes=len(data), data=data, computed=signed).SerializeToString()

    us.model_answer = served
    try:
        await us.publish(record)
        await stage.until(lambda: stage.refused_by((VICTIM,)) or silo.follower.at == record.round, "it has decided")
        await stage.begin(silos=(VICTIM,))
        await stage.within(SAYS_S, lambda: silo.core.state is State.COUNTED)
    finally:
        us.model_answer, us.sum_answer = us.parts, us.sum_parts
    gained = silo.follower.at == record.round
    return stage.loot(gained, "a silo that trains on the trap" if gained else "nothing", signed=len(friends))


# What silos make the model of


def _spoiled(us: LyingAggregator, round_: int) -> Iterator[tuple[str, Transcript, list[body_pb2.Chunk]]]:
    """Spoil what a silo is given to compute with, in every way that it must notice."""
    true = us.transcripts[round_]
    chunks = list(us.came[true.manifest.digest].chunks)
    other = body_pb2.Chunk()
    other.CopyFrom(chunks[0])
    plane = bytes([chunks[0].planes[0][0] ^ 1]) + chunks[0].planes[0][1:]
    other.planes[0] = plane
    yield "another sum", true, [other, *chunks[1:]]
    yield "another pad", replace(true, pads=(Secret(bytes(32)), *true.pads[1:])), chunks
    yield "another seed", replace(true, seeds=(Secret(bytes(32)), *true.seeds[1:])), chunks
    yield "seeds exchanged", replace(true, seeds=(true.seeds[1], true.seeds[0], *true.seeds[2:])), chunks
    fewer = replace(true.cohort, participants=true.cohort.participants[1:])
    yield "a smaller cohort", replace(true, cohort=fewer, headers=true.headers[1:], seeds=true.seeds[1:]), chunks
    wider = replace(true.manifest, bounds=tuple(2 * b for b in true.manifest.bounds)).signed(us.identity)
    yield "another manifest", replace(true, manifest=wider), chunks
    huge = Schema((replace(true.manifest.schema.tensors[0], shape=(1 << 20, 1 << 20)),))
    yield "a giant model", replace(true, manifest=replace(true.manifest, schema=huge).signed(us.identity)), chunks
    trails = (replace(true.ready.trails[0], came=bytes(32)), *true.ready.trails[1:])
    yield "another trail", replace(true, ready=replace(true.ready, trails=trails)), chunks
    yield "the end missing", true, chunks[:-1]
    if round_ - 1 in us.transcripts:
        before = us.transcripts[round_ - 1]
        yield "the sum of the round before", before, list(us.came[before.manifest.digest].chunks)


@attack("wrong-sum-for-one-silo", Rule.R5, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def wrong_sum_for_one_silo(stage: Stage) -> Loot:
    """The victim alone is given another sum, pad, seed, cohort or manifest to compute the model with."""
    us, follower = stage.aggregator, stage.silo(VICTIM).follower
    await stage.whole_round()
    await stage.followed()
    us.sum_answer = lambda silo, round_: _busy() if silo == VICTIM else us.sum_parts(silo, round_)
    fell: list[str] = []
    try:
        manifest = await stage.whole_round()
        log = stage.silo(VICTIM).core.log
        await stage.until(lambda: log.round > manifest.round, "the victim has the record")
        served: list[str] = []
        for name, transcript, chunks in _spoiled(us, manifest.round):
            parts = _written(transcript, chunks)
            us.sum_answer = partial(_to_the_victim, us, parts)
            before = follower.model
            try:
                await follower.follow()
            except PeerFault as fault:
                served.append(f"{name}: {fault.reason}")
                stage.silo(VICTIM).metrics.rejected(fault.reason)
                continue
            if follower.model is before:
                raise Stuck(f"{name} was neither refused nor taken")
            fell.append(name)
            break  # it has a model for that round, and asks for no other
    finally:
        us.sum_answer = us.sum_parts
    said = f"taken: {', '.join(fell) or 'nothing'} ({'; '.join(served)})"
    return stage.loot(bool(fell), said, tried=len(served) + len(fell), taken=len(fell))


def _to_the_victim(us: LyingAggregator, parts: list[bytes], silo: str, round_: int) -> Iterable[bytes]:
    return parts if silo == VICTIM else us.sum_parts(silo, round_)


def _written(transcript: Transcript, chunks: Iterable[body_pb2.Chunk]) -> list[bytes]:
    first = services_pb2.SumPart(transcript=write_transcript(transcript)).SerializeToString()
    return [first, *(services_pb2.SumPart(chunk=chunk).SerializeToString() for chunk in chunks)]


def _busy() -> Iterable[bytes]:
    raise PeerFault(Reason.WRONG_SEQUENCE, "not now")


# A model that somebody has made of the sums


def _towards_a_trap(now: Tensors) -> dict[str, Any] | None:
    """What a round has to add to a model, within what a sum can be, on its way to a trap; nothing, if it is there."""
    goal = trapped(now, int(VICTIM.removeprefix("silo-")) - 1)
    ahead = {name: np.maximum(value, ASLEEP) - now[name] for name, value in goal.items()}
    if max(float(np.abs(value).max()) for value in ahead.values()) < NEAR:
        return None
    return {name: np.clip(value, -STRIDE, STRIDE) for name, value in ahead.items()}


async def _trapped(stage: Stage, send: Callable[[Manifest, dict[str, Any]], Awaitable[object]]) -> Loot:
    """Have the sums of honest rounds changed until the model is a trap; read the next, as whoever sees models does."""
    us, silos, rounds = stage.aggregator, len(stage.federation.silos), 0
    while True:
        manifest = await stage.begin()
        now = us.tensors(manifest.model)
        step = _towards_a_trap(now)
        await send(manifest, step or nought())
        await stage.until(partial(getattr, stage.came(manifest), "whole"), "the sum", unless=stage.honest_silos)
        await us.release(manifest)
        record = await us.conclude(manifest)
        if step is None:
            break
        rounds += 1
    moved = flat(us.schema, us.tensors(record.model_after)) - flat(us.schema, now)
    close = stage.closeness(silos * moved, manifest)
    what = "a sum to which the victim alone has contributed"
    return stage.conceded(close.read, what, beyond=False, rounds=rounds, **close.figures)


@attack("trap-by-a-silo", Rule.R5, "one silo", Outcome.CONCEDED, Cast(silos=(HOSTILE,), alone="trap-by-a-silo"))
async def trap_by_a_silo(stage: Stage) -> Loot:
    """A silo adds to each sum what makes the next model a trap: the others compute that themselves, and train on it."""
    friend = stage.member(HOSTILE)

    async def send(manifest: Manifest, step: dict[str, Any]) -> None:
        body = make_body(friend.identity, manifest, stage.federation, step, times=len(stage.federation.silos))
        await friend.stream(FIRST, "Submit", body_frames(body, friend.identity, manifest))

    return await _trapped(stage, send)


@attack(
    "trap-by-a-hop", Rule.R5, "aggregator and shuffler-3", Outcome.CONCEDED, Cast(hops=(LAST,), alone="trap-by-a-hop")
)
async def trap_by_a_hop(stage: Stage) -> Loot:
    """A hop does the same with what it passes on, where nobody checks that."""
    us, hop = stage.aggregator, stage.liar(LAST)

    async def send(manifest: Manifest, step: dict[str, Any]) -> None:
        shape, added = layout(manifest), len(stage.federation.silos) * flat(us.schema, step)
        integers = np.rint(added * manifest.plan.v / manifest.bounds[0]).astype(int)

        def change(planes: Bytes) -> Bytes:
            residues = shape.residues(planes)
            for row, modulus in zip(residues, manifest.plan.moduli, strict=True):
                row[: len(integers)] = (row[: len(integers)].astype(int) + integers) % modulus
            return shape.pack(residues)

        heard = hop.heard
        await stage.until(lambda: heard[manifest.digest].root, "the sum at the last hop", unless=stage.honest_silos)
        await hop.stream(us.name, "Deliver", hop.forward(manifest, change).frames())

    return await _trapped(stage, send)
