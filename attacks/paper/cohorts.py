"""The paper's experiments on who is in a sum: a share of the silos drawn for each round, and sums over small groups."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from silomix.attacks.audit.campaign import DISAGGREGATED, Campaign, Siege, splits
from silomix.attacks.paper.accuracy_trials import LARGER
from silomix.attacks.paper.trials import LEAST, Trials, percent
from silomix.attacks.remap import remap_models
from silomix.attacks.sia import Outcome
from silomix.attacks.sia import outcome as close
from silomix.attacks.views.simulated import group_means
from silomix.attacks.views.view import Mode
from silomix.models.simulation.experiment import Cell, Experiment, Progress, Result, Scale, Table
from silomix.models.simulation.simulate import simulate


def subsampling(scale: Scale, progress: Progress) -> Result:
    """More silos, and a share of them drawn for each round; and what sums over changing cohorts give away."""
    trials = Trials(scale, progress, 4, redraw=False)
    modes = (Mode.NONE, Mode.SEMI_HONEST)
    few, many = trials.base(modes=modes), trials.base(silos=50, modes=modes)
    drawn = replace(many, policy=replace(many.policy, subsample=0.2, rounds=3 * scale.rounds))
    half = replace(few, policy=replace(few.policy, subsample=0.5, rounds=3 * scale.rounds))
    rows: list[tuple[Cell, ...]] = []
    for name, campaign, cohort, printed in (
        ("10 silos, all", few, 10, "45 / 51 / 77"),
        ("50 silos, all", many, 50, "10.2 / 16 / 26"),
        ("50 silos, 20% a round", drawn, 10, "44.1 / 50.33 / 72.5"),
        ("10 silos, 50% a round", half, 5, None),
    ):
        pools = trials.run(name, campaign)
        apart = pools.get(DISAGGREGATED)
        cells = (percent(pools[Mode.NONE]), percent(pools[Mode.SEMI_HONEST]), f"{100 / cohort:.0f}")
        both = (_all(pools[Mode.SEMI_HONEST]), None if apart is None else _all(apart), f"{100 / campaign.silos:.0f}")
        rows.append((name, *cells, *both, printed))
    columns = (
        "silos",
        "none",
        "semi-honest",
        "random, a round",
        "semi-honest, all rounds",
        "sums taken apart, all rounds",
        "random, all rounds",
        "paper, none: MNIST / CIFAR-10 / CIFAR-100",
    )
    note = (
        "In one round a sum tells nothing. Over many rounds with changing cohorts it does: sums over different silos "
        "differ by what those silos do (last row). The paper says that rounds together tell no more, which holds for a "
        "constant cohort only. Silos with fewer than 10 records are not asked about; where silos are drawn there are "
        f"{3 * scale.rounds} rounds."
    )
    title = f"Source inference under subsampling on {trials.data}"
    return Result((Table(title, columns, tuple(rows)),), (), (trials.about(""), note), trials.values())


def _all(one: Outcome) -> str:
    low, high = one.together.interval
    return f"{one.together.accuracy * 100:.1f} ({low * 100:.1f}-{high * 100:.1f})"


def groups(scale: Scale, progress: Progress) -> Result:
    """Sums over small groups, as for FedMedian: the adversary remaps group means as it would remap models."""
    sizes = (1, 2, 3, 5, 10)
    trials = Trials(scale, progress, 1)
    (found,) = _grouped_points(trials, sizes)
    rows: list[tuple[Cell, ...]] = [
        (str(k), percent(found[f"unnamed {k}"]), percent(found[f"named {k}"]), "10" if k == 2 else None) for k in sizes
    ]
    columns = ("silos in a group", "groups unnamed", "groups named", "paper, k = 2")
    note = (
        "Unnamed: the aggregator has the means of the groups in random order, and a shadow set of each silo (5%). "
        "Named: a hop tells it who is in which group. The paper reports a random guess for k = 2: it does not try to "
        "remap groups. The runtime forms none of fewer than three."
    )
    table = Table(f"Source inference on the means of groups, {trials.data}", columns, tuple(rows))
    return Result((table,), (), (trials.about(), note), trials.values())


def _grouped_points(trials: Trials, sizes: tuple[int, ...]) -> list[dict[str, Outcome]]:
    pools: dict[str, Outcome] = {}
    base = trials.base(modes=())
    for _, one in zip(trials.scale.seeds, splits(base, LEAST), strict=False):
        result = trials.progress.point(f"{trials.data} groups seed {one.seed}", partial(_grouped, one, sizes))
        for name, written in result.items():
            outcome = Outcome.of(written)
            pools[name] = pools[name] + outcome if name in pools else outcome
    trials.found["groups"] = {name: one.json() for name, one in pools.items()}
    return [pools]


def _grouped(campaign: Campaign, sizes: tuple[int, ...]) -> dict[str, Any]:
    siege = Siege.of(campaign)
    policy = replace(campaign.policy, task_options=campaign.options)
    for done in simulate(policy, campaign.silos, seed=campaign.seed, protect=False, evaluate_every=0):
        truth = siege.truth(done)
        for k in sizes:
            rng = np.random.default_rng([campaign.seed, done.round, k])
            members, means = group_means(truth, k, rng)
            shadows = [siege.shadows[silo] for silo in done.cohort]
            siege.attack(f"unnamed {k}").round(remap_models(siege.net, means, shadows), done.cohort)
            named = {silo: mean for group, mean in zip(members, means, strict=True) for silo in group}
            siege.attack(f"named {k}").round([named[silo] for silo in done.cohort], done.cohort)
    return {name: close(attack).counts() for name, attack in siege.attacks.items()}


COHORT_EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment("sia-subsampling", "Source inference under subsampling", "Figure fig:sample", subsampling, data=LARGER),
    Experiment("sia-groups", "Source inference on groups (FedMedian)", "Section non_sum_based", groups, data=LARGER),
)
