"""R1: the aggregator would rather have another chain than the one that was agreed on."""

from silomix.attacks.active.acts.casts import AGGREGATOR, WITH_SECOND
from silomix.attacks.active.liars.bodies import take_off, values
from silomix.attacks.active.liars.member import Refused
from silomix.attacks.active.measure import cosine
from silomix.attacks.active.registry import Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, SECOND, VICTIM, Stage

WITH_HOP = "aggregator and shuffler-2"


@attack("short-chain", Rule.R1, WITH_HOP, Outcome.REFUSED, WITH_SECOND)
async def short_chain(stage: Stage) -> Loot:
    """One colluding hop of three is announced as the whole chain: it and the aggregator have every key."""
    us, hop, number = stage.aggregator, stage.liar(SECOND), stage.next_round()
    keys = await stage.keys(number, chain=(SECOND,))
    manifest = us.propose(number, keys, chain=(SECOND,))
    hop.open(manifest)
    await us.announce(manifest, stage.honest_silos)
    bodies = hop.bodies[manifest.digest]
    await stage.until(
        lambda: stage.refused_by(stage.honest_silos) or len(bodies) == len(stage.honest_silos),
        "each silo has submitted or refused",
    )
    if VICTIM not in bodies:
        return stage.loot(False, "no body came", bodies=len(bodies))
    ours = {hop.name: hop.own(manifest), us.name: us.private[manifest.digest]}
    body = bodies[VICTIM]
    close = stage.closeness(values(take_off(body.planes, [body.header], ours, manifest), manifest), manifest)
    return stage.loot(close.read, "every silo's update", bodies=len(bodies), **close.figures)


@attack("one-hop-left-out", Rule.R1, WITH_HOP, Outcome.REFUSED, WITH_SECOND)
async def one_hop_left_out(stage: Stage) -> Loot:
    """The chain is announced without its last hop: one hop fewer than the owners have agreed on."""
    us, hop, number = stage.aggregator, stage.liar(SECOND), stage.next_round()
    chain = (FIRST, SECOND)
    manifest = us.propose(number, await stage.keys(number, chain=chain), chain=chain)
    for name in reversed(chain):
        try:
            await stage.open(manifest, (name,))
        except Refused:
            continue  # silos are asked all the same
    await us.announce(manifest, stage.honest_silos)
    await stage.until(
        lambda: stage.refused_by(stage.honest_silos) or hop.heard[manifest.digest].root, "a sum is here, or all refuse"
    )
    silos = len(hop.heard[manifest.digest].headers)
    return stage.loot(silos > 0, "silos whose bodies pass a shorter chain", silos=silos)


@attack("disjoint-chains", Rule.R1, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def disjoint_chains(stage: Stage) -> Loot:
    """One round is run twice, over two chains that share no hop, for two halves of the silos."""
    number = stage.next_round()
    halves = {FIRST: stage.honest_silos[:3], SECOND: stage.honest_silos[3:]}
    sums = [await _through(stage, number, hop, silos) for hop, silos in halves.items()]
    return stage.loot(any(sums), "sums over halves of the silos in one round", sums=sum(sums))


async def _through(stage: Stage, number: int, hop: str, silos: tuple[str, ...]) -> bool:
    """Run a round over a chain of one hop, and say whether the sum over these silos came of it."""
    us = stage.aggregator
    keys = await stage.keys(number, chain=(hop,))
    manifest = us.propose(number, keys, chain=(hop,), bound=None)
    try:
        await stage.open(manifest)
    except Refused:  # the silos are asked all the same
        await us.announce(manifest, silos)
        await stage.until(lambda: stage.refused_by(silos), "the silos have looked at the manifest")
        return False
    await us.announce(manifest, silos)
    await stage.counted(silos, hop)
    stage.pass_time(hop)
    await stage.until(lambda: stage.came(manifest).whole, f"the sum through {hop}")
    await us.release(manifest)
    updates = [stage.truth(silo, manifest.model, number) for silo in silos]
    return cosine(us.sum(manifest), sum(updates[1:], updates[0])) > 0.99


@attack("chain-reordered", Rule.R1, WITH_HOP, Outcome.REFUSED, WITH_SECOND)
async def chain_reordered(stage: Stage) -> Loot:
    """The colluding hop is put first, where bodies come in and the cohort is chosen."""
    us, hop, number = stage.aggregator, stage.liar(SECOND), stage.next_round()
    chain = (SECOND, *(name for name in stage.federation.chain if name != SECOND))
    manifest = us.propose(number, await stage.keys(number), chain=chain)
    for name in reversed(chain):
        try:
            await stage.open(manifest, (name,))
        except Refused:
            continue  # silos are asked all the same
    await us.announce(manifest, stage.honest_silos)
    bodies = hop.bodies[manifest.digest]
    await stage.until(
        lambda: stage.refused_by(stage.honest_silos) or len(bodies) == len(stage.honest_silos),
        "each silo has submitted or refused",
    )
    return stage.loot(bool(bodies), "bodies at a hop that is not the first", bodies=len(bodies))
