"""Bindings: different models for different nodes, in one attempt."""

import numpy as np

from silomix.attacks.active.acts.casts import AGGREGATOR, WITH_FIRST
from silomix.attacks.active.liars.member import Refused
from silomix.attacks.active.registry import Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, SECOND, VICTIM, Stage
from silomix.attacks.active.task import DEAD, HIDDEN
from silomix.runtime.core.protocol.messages import Manifest


def _crippled(stage: Stage) -> bytes:
    """Keep a model whose hidden units are all silent: whoever trains it returns nought."""
    us = stage.aggregator
    return us.keep({**us.tensors(us.model), "bias": np.full(HIDDEN, DEAD, np.float32)})


async def _two(stage: Stage) -> tuple[Manifest, Manifest, tuple[str, ...]]:
    """Announce the real model to the victim and a crippled one to the others, under the same keys."""
    us, number = stage.aggregator, stage.next_round()
    keys = await stage.keys(number)
    real = us.propose(number, keys)
    crippled = us.propose(number, keys, model=_crippled(stage), like=real)
    others = tuple(name for name in stage.honest_silos if name != VICTIM)
    return real, crippled, others


@attack("different-models", Rule.BINDINGS, "aggregator", Outcome.REFUSED, AGGREGATOR, bites=False)
async def different_models(stage: Stage) -> Loot:
    """The victim gets the real model and the others a crippled one, so that the sum is the victim's update."""
    us = stage.aggregator
    real, crippled, others = await _two(stage)
    await stage.open(real)
    await us.announce(real, (VICTIM,))
    await us.announce(crippled, others)
    await stage.until(
        lambda: stage.refused_by(others) or stage.came(real).whole, "the others are refused, or all are in the sum"
    )
    if not stage.came(real).whole:
        return stage.loot(False, "no sum: nobody takes the other model")
    await us.release(real)
    close = stage.closeness(us.sum(real), real)
    return stage.loot(close.read, "a sum to which the victim alone has contributed", **close.figures)


@attack(
    "different-models-with-a-hop",
    Rule.BINDINGS,
    "aggregator and shuffler-1",
    Outcome.REFUSED,
    WITH_FIRST,
    bites=False,
)
async def different_models_with_a_hop(stage: Stage) -> Loot:
    """The same, with a hop 1 that takes every body in and passes all headers on."""
    us, hop = stage.aggregator, stage.liar(FIRST)
    real, crippled, others = await _two(stage)
    await stage.open(real)
    hop.open(crippled)
    await us.announce(real, (VICTIM,))
    await us.announce(crippled, others)
    await stage.submitted(real, FIRST, (VICTIM,))
    await stage.until(
        lambda: stage.refused_by(others) or set(others) <= set(hop.bodies[crippled.digest]), "the others have decided"
    )
    hop.bodies[real.digest].update(hop.bodies[crippled.digest])
    try:
        await hop.stream(SECOND, "Relay", hop.passed(real, tuple(hop.bodies[real.digest])).frames())
        await us.release(real)
    except Refused:
        return stage.loot(False, "no sum: nobody else takes the other model")
    close = stage.closeness(us.sum(real), real)
    return stage.loot(close.read, "a sum to which the victim alone has contributed", **close.figures)


@attack("different-manifests-by-hop", Rule.BINDINGS, "aggregator", Outcome.REFUSED, AGGREGATOR, bites=False)
async def different_manifests_by_hop(stage: Stage) -> Loot:
    """Hops are told of different models, so that what each of them remembers is about another one."""
    us = stage.aggregator
    real, crippled, _ = await _two(stage)
    await stage.open(crippled, (SECOND,))
    await stage.open(real, [hop for hop in real.chain if hop != SECOND])
    await us.announce(real, stage.honest_silos)
    await stage.until(lambda: stage.refused_by((SECOND,)) or stage.came(real).whole, "shuffler-2 has made up its mind")
    whole = stage.came(real).whole
    return stage.loot(whole, "a sum through hops that disagree" if whole else "no sum: the hops disagree")


@attack("two-manifests-of-one-attempt", Rule.BINDINGS, "aggregator", Outcome.REFUSED, AGGREGATOR, bites=False)
async def two_manifests(stage: Stage) -> Loot:
    """One attempt on one model is described to nodes in two ways, each of which is valid."""
    us, number = stage.aggregator, stage.next_round()
    keys = await stage.keys(number)
    real = us.propose(number, keys)
    other = us.propose(number, keys, like=real, minimum_cohort=real.minimum_cohort + 1)
    await stage.open(other, (SECOND,))
    await stage.open(real, [hop for hop in real.chain if hop != SECOND])
    half = stage.honest_silos[: len(stage.honest_silos) // 2]
    await us.announce(real, half)
    await us.announce(other, [name for name in stage.honest_silos if name not in half])
    await stage.until(lambda: stage.refused_by((FIRST,)) or stage.came(real).whole, "hop 1 has looked at the bodies")
    stage.pass_time(FIRST)
    await stage.until(lambda: stage.refused_by((SECOND,)) or stage.came(real).whole, "shuffler-2 has made up its mind")
    whole = stage.came(real).whole
    return stage.loot(whole, "a sum under two manifests" if whole else "no sum: nodes name one manifest or the other")
