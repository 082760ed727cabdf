"""R3: a sum that is to be read before everybody has agreed to that, or after it was given up."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from silomix.attacks.active.acts.casts import AGGREGATOR, LAST_HOP, SILO, WITH_FIRST
from silomix.attacks.active.liars.bodies import cover, pad_context, planes_of, take_off, values
from silomix.attacks.active.liars.member import ANSWER_S, Refused
from silomix.attacks.active.measure import cosine
from silomix.attacks.active.registry import Cast, Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, HOSTILE, LAST, SECOND, VICTIM, Stage
from silomix.runtime.core.numbers.masks import SEED_BYTES, Secret
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.release import Ready, Signatures
from silomix.runtime.core.protocol.shuffler import State
from silomix.runtime.nodes.passage import SumPassage
from silomix.v1 import services_pb2

WITH_HOP = "aggregator and shuffler-1"
ALL_BUT_ONE = Cast(hops=(FIRST, LAST))
READ = 0.9
"""Cosine from which a sum counts as read."""


def _others(stage: Stage) -> tuple[str, ...]:
    return tuple(name for name in stage.honest_silos if name != VICTIM)


async def _asked(stage: Stage, hop: str, manifest: Manifest, signatures: Signatures) -> bool:
    """Ask a hop for its pad, and say whether it shows it."""
    try:
        await stage.aggregator.reveal(hop, manifest.digest, signatures)
    except Refused:
        return False
    return True


def _forged(stage: Stage, manifest: Manifest, true: Signatures, old: Signatures) -> Iterator[Signatures]:
    """Spoil everybody's signatures in every way that a hop must notice."""
    us, ready = stage.aggregator, stage.aggregator.ready(manifest)
    yield ()
    yield true[-1:]
    yield true[:-1]
    for i, (name, _) in enumerate(true[:-1]):
        yield (*true[:i], *true[i + 1 :])
        yield (*true[:i], (name, us.identity.sign(ready.digest)), *true[i + 1 :])
        yield (*true[:i], (name, bytes(64)), *true[i + 1 :])
        yield (*true[:i], old[i], *true[i + 1 :])
    yield (true[1], true[0], *true[2:])
    yield (*true[:-1], (us.name, us.identity.sign(bytes(32))))
    yield old


@attack("pad-before-all-have-signed", Rule.AGREEMENT, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def pad_before_all_have_signed(stage: Stage) -> Loot:
    """Hops are asked for their pads with signatures that are missing, forged, misplaced or of another round."""
    us = stage.aggregator
    old = await stage.whole_round()
    manifest = await stage.padded_round()
    shown = tried = 0
    for hop in manifest.chain:  # nobody has signed yet
        tried += 1
        shown += await _asked(stage, hop, manifest, us.signatures[old.digest])
    true = await us.agreed(manifest)
    for spoiled in _forged(stage, manifest, true, us.signatures[old.digest]):
        for hop in manifest.chain:
            tried += 1
            shown += await _asked(stage, hop, manifest, spoiled)
    us.pads.pop(manifest.digest, None)
    return stage.loot(shown > 0, "pads that were shown", tried=tried, shown=shown)


@attack("signed-by-all-but-one", Rule.AGREEMENT, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def signed_by_all_but_one(stage: Stage) -> Loot:
    """The last hop is not asked to sign, and so is bound to nothing; the others are to show their pads all the same."""
    us = stage.aggregator
    manifest = await stage.padded_round()
    ready = us.ready(manifest)
    signed = [(hop, await us.agree(hop, ready)) for hop in manifest.chain[:-1]]
    signatures = (*signed, (LAST, us.identity.sign(ready.digest)), (us.name, us.identity.sign(ready.digest)))
    shown = [hop for hop in manifest.chain[:-1] if await _asked(stage, hop, manifest, signatures)]
    us.pads.pop(manifest.digest, None)
    return stage.loot(bool(shown), "pads that were shown", shown=len(shown))


@attack("two-releases-of-one-attempt", Rule.AGREEMENT, WITH_HOP, Outcome.REFUSED, WITH_FIRST)
async def two_releases_of_one_attempt(stage: Stage) -> Loot:
    """Hop 1 signs two trails of one attempt, so that there are two releases for the others to sign for."""
    us, hop, manifest = stage.aggregator, stage.liar(FIRST), await stage.begin()
    await stage.submitted(manifest, FIRST)
    await hop.stream(SECOND, "Relay", hop.passed(manifest, stage.honest_silos).frames())
    one = us.ready(manifest)
    first = replace(one.trails[0], came=bytes(32)).signed(hop.identity)
    other = Ready(manifest.digest, manifest.model, (first, *one.trails[1:]))
    signed: dict[str, int] = {}
    for ready in (one, other):
        for name in manifest.chain[1:]:
            try:
                await us.agree(name, ready)
            except Refused:
                continue
            signed[name] = signed.get(name, 0) + 1
    twice = [name for name, times in signed.items() if times > 1]
    return stage.loot_for("already_released", bool(twice), "hops that have signed for two", hops=len(twice))


@attack("release-of-another-cohort", Rule.AGREEMENT, WITH_HOP, Outcome.REFUSED, WITH_FIRST)
async def release_of_another_cohort(stage: Stage) -> Loot:
    """Hops are shown the trails of another cohort than the one that they have passed on."""
    us, hop, manifest = stage.aggregator, stage.liar(FIRST), await stage.begin()
    await stage.submitted(manifest, FIRST)
    await hop.stream(SECOND, "Relay", hop.passed(manifest, stage.honest_silos).frames())
    one, other = us.ready(manifest), hop.passed(manifest, _others(stage))
    mixed = (other.trail, *one.trails[1:])
    moved = (other.trail, *(replace(t, cohort=other.cohort.digest) for t in one.trails[1:]))
    signed = 0
    for trails in (mixed, moved, one.trails[:-1], (*one.trails[1:], one.trails[0]), ()):
        for name in manifest.chain[1:]:
            try:
                await us.agree(name, Ready(manifest.digest, manifest.model, trails))
            except Refused:
                continue
            signed += 1
    return stage.loot(signed > 0, "signatures under it", signatures=signed)


@attack("pad-of-a-fenced-attempt", Rule.AGREEMENT, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def pad_of_a_fenced_attempt(stage: Stage) -> Loot:
    """All have signed, another attempt is begun for another cohort, and then the first one's pads are asked for."""
    us = stage.aggregator
    first = await stage.padded_round()
    signatures = await us.agreed(first)
    await stage.begin(first.round, attempt=2, silos=_others(stage), bound=None)
    shown = [hop for hop in first.chain if await _asked(stage, hop, first, signatures)]
    us.pads.pop(first.digest, None)
    return stage.loot_for("fenced", bool(shown), "pads of an attempt that is over", shown=len(shown))


@attack("pad-after-the-record", Rule.AGREEMENT, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def pad_after_the_record(stage: Stage) -> Loot:
    """All have signed, the round is put on record as given up, and then its pads are asked for."""
    us = stage.aggregator
    first = await stage.padded_round()
    signatures = await us.agreed(first)
    await us.publish(us.chronicle.abandoned())
    shown = [hop for hop in first.chain if await _asked(stage, hop, first, signatures)]
    us.pads.pop(first.digest, None)
    return stage.loot_for("fenced", bool(shown), "pads of a round that is over", shown=len(shown))


@attack("pad-on-another-attempt", Rule.AGREEMENT, "aggregator", Outcome.USELESS, AGGREGATOR, bites=False)
async def pad_on_another_attempt(stage: Stage) -> Loot:
    """The pads of one attempt are taken off the sum of another on the same model: each has its own."""
    us = stage.aggregator
    first = await stage.padded_round()
    await us.release(first)
    second = await stage.begin(first.round, attempt=2)
    await stage.until(lambda: stage.came(second).whole, "the second sum", unless=second.chain)
    us.pads[second.digest] = dict(us.pads[first.digest])
    close = stage.closeness(us.sum(second) / len(stage.came(second).silos), second)
    del us.pads[second.digest]
    return stage.loot(close.cosine > 0.2, "noise", **close.figures)


@attack("pad-withheld", Rule.R3, WITH_HOP, Outcome.CONCEDED, WITH_FIRST, bites=True)
async def pad_withheld(stage: Stage) -> Loot:
    """Honest hops have shown their pads and a colluding one keeps its own: the round fails, and the sum is known."""
    us, hop, number = stage.aggregator, stage.liar(FIRST), stage.next_round()
    first = await stage.begin(number)
    await stage.submitted(first, FIRST)
    await hop.stream(SECOND, "Relay", hop.passed(first, stage.honest_silos).frames())
    await us.release(first)
    await us.publish(us.chronicle.abandoned())
    close = cosine(us.sum(first), stage.mean(first.model, number))
    second = await stage.begin(bound=None)
    await stage.submitted(second, FIRST)
    sums = 1
    try:
        await hop.stream(SECOND, "Relay", hop.passed(second, _others(stage)).frames())
        sums += 1
    except Refused:
        pass
    said = "the sum, and a model that is bound to its silos" if sums == 1 else "the sum, and another one"
    # The same silos can be released once more, so the federation goes on.
    await stage.settle()
    third = await stage.begin()
    await stage.submitted(third, FIRST)
    await hop.stream(SECOND, "Relay", hop.passed(third, stage.honest_silos).frames())
    await us.release(third)
    return stage.conceded(close > READ, said, beyond=sums > 1, sums=sums, cosine_with_the_sum=round(close, 4))


@attack("second-sum-of-the-last-hop", Rule.AGREEMENT, "shuffler-3", Outcome.USELESS, LAST_HOP, bites=False)
async def second_sum_of_the_last_hop(stage: Stage) -> Loot:
    """The last hop delivers another sum when the first is at the aggregator, with another trail under it."""
    hop, node = stage.liar(LAST), stage.running.aggregator
    manifest = await stage.newest_at(hop)
    passed, name = hop.forward(manifest), node.config.name
    other = hop.forward(manifest, lambda planes: planes[::-1].copy() * 0)
    await hop.stream(name, "Deliver", passed.frames())
    with suppress(Refused):  # or it hears that the first one is there
        await hop.stream(name, "Deliver", other.frames())
    await stage.until(lambda: node.core.log.round > manifest.round, "the round is over")
    taken = node.core.log.records[manifest.round].root
    return stage.loot(taken != passed.trail.sent, "the first sum stands", sums=2)


@attack("seeds-of-a-failed-attempt", Rule.AGREEMENT, "silo-06", Outcome.REFUSED, SILO, bites=False)
async def seeds_of_a_failed_attempt(stage: Stage) -> Loot:
    """A silo asks for the seeds of the aggregator's layer of rounds that were not released: open, future, or none."""
    us, node = stage.member(HOSTILE), stage.running.aggregator
    stub, name = us.aggregator(), node.config.name
    got = 0

    async def asked(round_: int) -> int:
        call = stub.GetSum(services_pb2.GetSumRequest(round=round_), timeout=ANSWER_S)
        return sum([len(part.transcript.seeds) async for part in call])

    for round_ in (0, node.core.round, node.core.round + 1, 2**62):
        try:
            got += await us.ask(name, partial(asked, round_))
        except Refused:
            continue
    return stage.loot(got > 0, "seeds of the aggregator's layer", seeds=got)


class _Zeros(Secret):
    """What lies where a secret was, which anybody can expand."""

    def keyed(self) -> bytes:
        """Derive from it all the same."""
        return self.value


@attack("fence-before-the-pad", Rule.R3, "aggregator, shuffler-1 and shuffler-3", Outcome.USELESS, ALL_BUT_ONE)
async def fence_before_the_pad(stage: Stage) -> Loot:
    """The next attempt is begun while the honest hop has its pad still to put on: one that is gone would cover nothing.

    The colluders bring such a moment about with spare headers, in a few attempts. Here the hop is just slow.
    """
    us, first, last, node = stage.aggregator, stage.liar(FIRST), stage.liar(LAST), stage.hop(SECOND)
    manifest = await stage.begin(bound=None)
    await stage.submitted(manifest, FIRST)
    await stage.until(lambda: node.core.manifest == manifest, "the honest hop has opened the attempt")
    passage = node.passage
    assert isinstance(passage, SumPassage), "an attempt is open"
    async with passage._busy:
        frames = first.passed(manifest, stage.honest_silos).frames()
        sending = asyncio.ensure_future(first.stream(SECOND, "Relay", frames))
        await stage.until(lambda: node.core.state is State.RELEASING, "the honest hop knows the cohort")
        await us.prepare(SECOND, manifest.round, manifest.attempt + 1)
    with suppress(Refused):
        await sending
    heard = last.heard[manifest.digest]
    if not heard.root or heard.cohort is None:
        return stage.loot(False, "nothing")
    keys = {us.name: us.private[manifest.digest], LAST: last.own(manifest)}
    planes = take_off(planes_of(heard.chunks), [heard.headers[name] for name in heard.cohort.silos], keys, manifest)
    for name, pad in ((FIRST, first.pad(manifest)), (SECOND, _Zeros(bytes(SEED_BYTES)))):
        cover(planes, pad, pad_context(heard.cohort, None, name, manifest), manifest, -1)
    close = cosine(values(planes, manifest), stage.mean(manifest.model, manifest.round))
    said = "a sum that nobody has signed for" if close > READ else "noise"
    return stage.loot(close > READ, said, cosine_with_the_sum=round(close, 4))
