"""R2: rounds that do not follow one another."""

import numpy as np

from silomix.attacks.active.liars.member import Refused
from silomix.attacks.active.registry import Cast, Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import ROUNDS, VICTIM, Stage

DRAWN = Cast(policy=(("subsample", 0.7),))
ALONE = Cast(alone="far-round")
LOOK_AHEAD, WANTED = 60, 8


@attack("chosen-draws", Rule.R2, "aggregator", Outcome.OPEN, DRAWN, closed_by="R2, R5")
async def chosen_draws(stage: Stage) -> Loot:
    """Round numbers are picked for the silos that they draw, all on one model: the sums solve for every silo."""
    us, silos = stage.aggregator, stage.federation.silo_names
    ahead = range(stage.last_round + 1, stage.last_round + 1 + LOOK_AHEAD)
    rows = {t: np.array([float(name in us.invited(t)) for name in silos]) for t in ahead}
    chosen: list[int] = []
    while len(chosen) < WANTED:  # each time the draw that tells the silos apart best

        def worst(t: int) -> float:
            return float(np.linalg.svd(np.stack([rows[c] for c in (*chosen, t)]), compute_uv=False).min())

        chosen.append(max((t for t in ahead if t not in chosen), key=worst))
    sums = []
    for t in sorted(chosen):
        stage.last_round = t - 1
        manifest = await stage.whole_round(model=us.start, silos=us.invited(t))
        sums.append(us.sum(manifest))
    solved = np.linalg.lstsq(np.stack([rows[t] for t in sorted(chosen)]), np.stack(sums), rcond=None)[0]
    close = [stage.closeness(solved[i], manifest, name) for i, name in enumerate(silos)]
    mine = close[silos.index(VICTIM)]
    return stage.loot(
        mine.read, "every silo's update", rounds=WANTED, worst_apart=min(c.apart for c in close), **mine.figures
    )


@attack("far-round", Rule.R2, "aggregator", Outcome.OPEN, ALONE, closed_by="R2")
async def far_round(stage: Stage) -> Loot:
    """One silo is told of the last round that there will be: it takes all those before for over, for good."""
    us = stage.aggregator
    far = us.propose(ROUNDS, await stage.keys(ROUNDS))
    await us.announce(far, (VICTIM,))
    silo = stage.silo(VICTIM)
    await stage.within(1.0, lambda: silo.core.current == far or stage.refused_by((VICTIM,)))
    joined = silo.core.current == far
    policy = stage.federation.policy
    for hop in stage.federation.chain:  # they forget the keys that nobody came for
        stage.pass_time(hop, policy.attempts * (policy.deadline_s + policy.release_s) + 1)
    await stage.until(lambda: not any(stage.hop(hop).core.keys for hop in stage.federation.chain), "the keys are gone")
    stage.mark()
    try:
        manifest = await stage.begin()
    except Refused:
        return stage.loot(False, "no further round at all")
    await stage.counted(name for name in stage.honest_silos if name != VICTIM)
    await stage.within(1.0, lambda: silo.core.current == manifest or stage.refused_by((VICTIM,)))
    out = joined and silo.core.current != manifest
    return stage.loot_for("wrong_round", out, "a silo that will take part in no round any more" if out else "nothing")
