"""R2: rounds that do not follow one another, and histories that are not the same for everybody."""

import os
from dataclasses import replace

from silomix.attacks.active.acts.casts import AGGREGATOR, LAST_HOP
from silomix.attacks.active.liars.aggregator import told_of
from silomix.attacks.active.liars.member import Refused
from silomix.attacks.active.registry import Cast, Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, LAST, ROUNDS, SECOND, VICTIM, Stage
from silomix.runtime.core.protocol.hearing import MOST_MISSED, Life, Shown, life_after, number_of
from silomix.runtime.core.protocol.release import Signatures
from silomix.runtime.core.protocol.roundlog import Outcome as Ended
from silomix.runtime.core.protocol.roundlog import Record, countersign_digest, genesis
from silomix.runtime.nodes.aggregator import AggregatorNode

DRAWN = Cast(policy=(("subsample", 0.7),))
FORKED = Cast(alone="forked-log")
"""A history that is told twice is not to be mended: nothing else runs there afterwards."""
GIVEN_UP = 3
SAYS_S = 2.0
COMES_S = 10.0
"""Time for a silo to take part in a round, if it does."""


@attack("chosen-draws", Rule.R2, "aggregator", Outcome.REFUSED, DRAWN)
async def chosen_draws(stage: Stage) -> Loot:
    """Another number is named for the draw, so that silos are drawn whom the aggregator would have: not the victim."""
    us, log = stage.aggregator, stage.aggregator.chronicle.log
    count = next(n for n in range(100) if VICTIM not in stage.federation.draw(n + 1, log.model) and n != log.applied)
    wanted = stage.federation.draw(count + 1, log.model)
    number = stage.next_round()
    await stage.settle(number)
    keys = {hop: await us.prepare(hop, number, silos=wanted) for hop in stage.federation.chain}
    manifest = us.propose(number, keys, drawn=wanted, applied=count)
    await stage.open(manifest)
    await us.announce(manifest, wanted)
    await stage.until(lambda: stage.came(manifest).whole, "the sum", unless=(*wanted, *manifest.chain))
    await us.release(manifest)
    close = stage.closeness(us.sum(manifest) / len(wanted), manifest)
    gained = stage.came(manifest).silos == wanted
    return stage.loot(gained, "a sum over a draw of its choice", cohort=len(wanted), **close.figures)


@attack("rounds-given-up-for-a-draw", Rule.R2, "aggregator", Outcome.USELESS, DRAWN, bites=False)
async def rounds_given_up_for_a_draw(stage: Stage) -> Loot:
    """Rounds are given up until the draw is a better one: it depends on the rounds that were applied, and stays."""
    us = stage.aggregator
    drawn = {(await stage.begin(silos=())).invited for _ in range(GIVEN_UP)}
    await stage.settle()
    drawn.add(us.invited())
    return stage.loot(len(drawn) > 1, "the same draw each time", rounds=GIVEN_UP, draws=len(drawn))


@attack("far-round", Rule.R2, "aggregator", Outcome.REFUSED, AGGREGATOR, bites=False)
async def far_round(stage: Stage) -> Loot:
    """One silo is told of the last round that there will be, to have it take all those before for over."""
    us, silo, number = stage.aggregator, stage.silo(VICTIM), stage.next_round()
    keys = await stage.keys(number)
    try:
        keys = {hop: await us.prepare(hop, ROUNDS) for hop in stage.federation.chain}
    except Refused:  # the silo is told all the same
        keys = {hop: tuple(replace(key, round=ROUNDS) for key in made) for hop, made in keys.items()}
    far = us.propose(ROUNDS, keys)
    us.chronicle.tried.pop(ROUNDS)
    await us.announce(far, (VICTIM,))
    await stage.within(SAYS_S, lambda: silo.core.current == far or stage.refused_by((VICTIM,)))
    refusals = stage.refusals()
    stage.mark()  # the silo has said no to that manifest, and may take part in the round all the same
    manifest = await stage.begin()
    if not await stage.within(COMES_S, lambda: stage.came(manifest).whole):
        stage.pass_time(FIRST)
        await stage.until(lambda: stage.came(manifest).whole, "the sum of the others")
    out = VICTIM not in stage.came(manifest).silos
    await us.release(manifest)
    return Loot(out, "a silo that takes part in no round any more" if out else "nothing", refusals, {"lost": out})


@attack("skipped-round", Rule.R2, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def skipped_round(stage: Stage) -> Loot:
    """The round after the next is opened, as if the one before it were over."""
    us, number = stage.aggregator, stage.next_round() + 1
    await stage.settle(number - 1)
    keys = {hop: await us.prepare(hop, number) for hop in stage.federation.chain}
    manifest = us.propose(number, keys)
    await stage.open(manifest)
    await us.announce(manifest, stage.honest_silos)
    nodes = (*stage.honest_silos, *manifest.chain)
    await stage.until(lambda: stage.came(manifest).whole, "the sum", unless=nodes)
    return stage.loot(True, "a round without a record of the one before")


# Records


def _applied_or_not(stage: Stage) -> tuple[Record, Record]:
    """Write two records of the round that was just released: one applies it, one gives it up. Both could be true."""
    us = stage.aggregator
    manifest = next(m for m in (c.manifest for c in us.came.values()) if us.readable(m) and _due(stage, m.round))
    applied = us.chronicle.draft(Ended.APPLIED, us.step(manifest), us.came[manifest.digest].root)
    return applied, us.chronicle.abandoned()


def _due(stage: Stage, round_: int) -> bool:
    return round_ == stage.aggregator.chronicle.log.round


@attack("forked-log", Rule.R2, "aggregator", Outcome.REFUSED, FORKED)
async def forked_log(stage: Stage) -> Loot:
    """Two records of one round are signed: for half of the silos the sum was applied, for the others given up."""
    us = stage.aggregator
    manifest = await stage.padded_round()
    await us.release(manifest)
    told = [(record, await us.stored(record)) for record in _applied_or_not(stage)]
    stories = [replace(record, countersignatures=tuple(signed.items())) for record, signed in told]
    half = stage.honest_silos[:3]
    await us.tell({name: told_of(stories[name not in half]) for name in stage.honest_silos})
    heads = {name: stage.silo(name).core.log for name in stage.honest_silos}
    number = manifest.round
    await stage.within(SAYS_S, lambda: all(log.round > number for log in heads.values()))
    followed = {log.records[number].digest for log in heads.values() if log.round > number}
    kept = sum(bool(stage.hop(hop).core.forks) for hop in stage.federation.chain)
    said = f"{len(followed)} history that silos follow, and the evidence at {kept} hops"
    return stage.loot_for("forked", len(followed) > 1, said, histories=len(followed), evidence=kept)


@attack("rolled-back-log", Rule.R2, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def rolled_back_log(stage: Stage) -> Loot:
    """A round that was applied is said to have been given up, to have its model once more."""
    us, log = stage.aggregator, stage.aggregator.chronicle.log
    await stage.whole_round()
    await stage.followed()
    last, before = log.records[-1], log.records[-2]
    again = replace(
        last,
        outcome=Ended.ABANDONED,
        root=b"",
        model_after=before.model_after,
        state_after=before.state_after,
        countersignatures=(),
    ).signed(us.identity)
    fell = list(await us.stored(again))
    forged = tuple((hop, us.identity.sign(countersign_digest(again.digest, hop))) for hop in stage.federation.chain)
    await us.tell({VICTIM: told_of(replace(again, countersignatures=forged))})
    silo = stage.silo(VICTIM)
    await stage.within(SAYS_S, lambda: stage.refused_by((VICTIM,)))
    fell += [VICTIM] * (silo.core.log.records[last.round].digest == again.digest)
    kept = sum(bool(stage.hop(hop).core.forks) for hop in stage.federation.chain) + bool(silo.core.forks)
    said = f"nodes that went back: {', '.join(fell) or 'none'}; the evidence is kept by {kept}"
    return stage.loot_for("forked", bool(fell), said, nodes=len(fell), evidence=kept)


@attack("second-genesis", Rule.R2, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def second_genesis(stage: Stage) -> Loot:
    """Another beginning is put on record, as if nothing had happened yet: with the model that all have agreed on."""
    us = stage.aggregator
    first = us.chronicle.log.records[0]
    state = bytes(byte ^ 1 for byte in first.state_after)
    other = genesis(stage.federation, first.model_after, state).signed(us.identity)
    fell = len(await us.stored(other))
    return stage.loot_for("forked", fell > 0, "hops that begin anew", hops=fell)


@attack("record-without-hops", Rule.R2, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def record_without_hops(stage: Stage) -> Loot:
    """Silos are shown a record that no hop has stored: without signatures, with one, and with forged ones."""
    us = stage.aggregator
    await stage.settle()
    number, head = us.chronicle.log.round, us.chronicle.head
    record = us.chronicle.draft(Ended.ABANDONED, (head.model_after, head.state_after))
    own = us.identity.sign(countersign_digest(record.digest, FIRST))
    forged: tuple[Signatures, ...] = (
        (),
        ((FIRST, own),),
        tuple((hop, own) for hop in stage.federation.chain),
        ((SECOND, own),) * 3,
    )
    told = dict(zip(stage.honest_silos, forged, strict=False))
    await us.tell({name: told_of(replace(record, countersignatures=signed)) for name, signed in told.items()})
    logs = {name: stage.silo(name).core.log for name in told}
    await stage.until(
        lambda: all(stage.refused_by((name,)) or log.round > number for name, log in logs.items()), "they have decided"
    )
    fell = [name for name, log in logs.items() if log.round > number]
    said = f"silos with a record of their own: {', '.join(fell) or 'none'}"
    await us.tell(dict.fromkeys(told, told_of(head)))  # known already: they go on
    return stage.loot(bool(fell), said, tried=len(told), silos=len(fell))


# Processes of the aggregator


@attack("invented-process", Rule.R2, "shuffler-3", Outcome.REFUSED, LAST_HOP)
async def invented_process(stage: Stage) -> Loot:
    """A hop shows an aggregator that begins a later process of its own, so far ahead that few hops would follow."""
    hop, name, invented = stage.liar(LAST), stage.federation.aggregator.name, list[int]()

    def invent(shown: Shown) -> Shown:
        life = life_after(number_of(shown.life) + MOST_MISSED - 1, os.urandom)
        invented.append(number_of(life))
        hop.show = true  # once is enough
        return replace(shown, life=life, signature=hop.identity.sign(Life(name, life).digest(stage.federation)))

    await stage.running.stop(name)
    true, hop.show = hop.show, invent
    node = stage.running.start(name)
    assert isinstance(node, AggregatorNode)
    stage.witness.count(node)
    await stage.until(lambda: node.announced is not None, "hops serve the new process")
    number = number_of(node.core.life)
    gained = number > min(invented)
    said = f"an aggregator that calls itself process number {number}"
    return stage.loot(gained, said if gained else "nothing")
