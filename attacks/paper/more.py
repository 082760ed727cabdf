"""The paper's other experiments on attacks: subsampling, groups, gradient inversion, its proof, resources."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from silomix.attacks import dlg
from silomix.attacks.audit import jobs
from silomix.attacks.audit.campaign import DISAGGREGATED, Campaign, Siege, splits
from silomix.attacks.audit.jobs import outcome_of, rounds_of
from silomix.attacks.paper.trials import LEAST, Trials, percent
from silomix.attacks.remap import head_of, remap_layers, remap_models, remap_parameters
from silomix.attacks.sia import Outcome, Records, logits
from silomix.attacks.views.simulated import group_means
from silomix.attacks.views.view import Mode
from silomix.models.simulation.experiment import Cell, Experiment, Progress, Result, Scale, Table
from silomix.models.simulation.simulate import simulate
from silomix.runtime.task import Tensors

LARGER = ("mnist", "fashion-mnist", "cifar10")


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
            outcome = outcome_of(written)
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
    return {name: rounds_of(Outcome(tuple(attack.rounds), attack.together())) for name, attack in siege.attacks.items()}


def leakage(scale: Scale, progress: Progress) -> Result:
    """Gradient inversion on one silo's update, and on the mean of several."""
    cases = [(n, 1, look) for n in (1, 2, 5, 10) for look in sorted({1, n})]
    cases.append((10, 8, 80))
    progress.plan(len(cases))
    steps = 30 if scale.name == "quick" else 60
    rows: list[tuple[Cell, ...]] = []
    pictures = {}
    for silos, each, look in cases:
        found = progress.point(
            f"dlg {silos} {each} {look}",
            partial(jobs.inversion, silos, each, look, steps, 1 if each > 1 else dlg.TRIES),
        )
        pictures[f"{silos} silos, {each} record(s) each, looking for {look}"] = found["picture"]
        paper = {(1, 1): "0.0003", (5, 1): "0.98 (and with 10)"}.get((silos, look))
        rows.append((silos, silos * each, look, f"{found['loss']:.2g}", f"{found['chance']:.2g}", paper))
    columns = ("silos", "records", "looked for", "loss", "unrelated pictures", "paper, CIFAR-10")
    note = (
        "Digits, one step of each silo, a sigmoid network of 3,362 parameters, the exact mean of the gradients. The "
        "loss is the mean squared error per pixel (0..1) after the best matching. Looking for one picture in the mean "
        "of several fails, as in the paper; looking for as many as there are succeeds while the network has more "
        "parameters than the pictures have pixels. So a sum over few records does not hide the records."
    )
    table = Table("Gradient inversion (DLG)", columns, tuple(rows))
    return Result((table,), (), (note,), {"pictures": pictures})


def residue_sums(scale: Scale, progress: Progress) -> Result:
    """The game behind the gap in the paper's proof."""
    sizes = [(n, k) for n in (2, 3, 5, 10) for k in (1, 10, 100)]
    progress.plan(len(sizes))
    games = 500 if scale.name == "quick" else 2000
    rows: list[tuple[Cell, ...]] = []
    for silos, values in sizes:
        found = progress.point(f"game {silos} {values} {games}", partial(jobs.game, silos, values, games))
        cells = (
            f"{found[kind]['advantage']:.2f} ({found[kind]['low']:.2f} to {found[kind]['high']:.2f})"
            for kind in ("unreduced", "reduced")
        )
        rows.append((silos, values, *cells, "0" if values == 1 else None))
    columns = ("silos", "parameters", "un-reduced (Alg. 1)", "reduced (ours)", "paper, by its theorem")
    note = (
        "Which of two known models does silo 1 hold, when both make the same sum? r = 4, values independent and "
        f"uniform. The advantage is 2p - 1 for a share p of right guesses in {games} games: 0 is a coin, 1 certainty."
    )
    return Result((Table("What un-reduced sums of residues tell", columns, tuple(rows)),), (), (note,))


def resources(scale: Scale, progress: Progress) -> Result:
    """How long the reconstructions take at the size of the paper's MNIST network."""
    progress.plan(1)
    found = progress.point("remap mnist-cnn 10 silos 300 records", time_remapping)
    rows: list[tuple[Cell, ...]] = [
        ("R_M", f"{found['R_M']:.2f} s", "about 1 hour, with R_L and training"),
        ("R_L", f"{found['R_L']:.2f} s", "about 1 hour, with R_M and training"),
        ("R_P", f"{found['R_P']:.2f} s", "about 20 hours, with training"),
        ("R_P, one candidate after the other", f"{found['loop']:.0f} s, from {found['sampled']} candidates", None),
    ]
    columns = ("attack on one target, one round", "here, one core", "paper, two GPUs, a point of figure exp:rec")
    note = (
        f"The CNN of 643,850 parameters, last layer {found['parameters']:,}, 10 silos, a shadow set of 300 records (5% "
        "of 6,000). Random models and pictures: the time does not depend on them. A point of the figure takes the "
        "attack on ten targets in ten rounds."
    )
    return Result((Table("Time to reconstruct", columns, tuple(rows)),), (), (note,), found)


def time_remapping(silos: int = 10, records: int = 300) -> dict[str, Any]:
    """Time R_M, R_L and R_P against the MNIST network, and a sample of the literal loop."""
    from silomix.models.mnist_cnn import MnistCnn

    torch.set_num_threads(1)
    net = MnistCnn()
    rng = np.random.default_rng(1)
    state = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    models: list[Tensors] = [
        {name: (array + rng.normal(0, 0.01, array.shape)).astype(np.float32) for name, array in state.items()}
        for _ in range(silos)
    ]
    average = {name: np.mean([m[name] for m in models], axis=0).astype(np.float32) for name in state}
    shadow: Records = (
        torch.from_numpy(rng.normal(size=(records, 1, 28, 28)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, 10, records)),
    )
    pieces = {name: rng.permuted(np.stack([m[name] for m in models]), axis=0) for name in head_of(net).names}
    found: dict[str, Any] = {"parameters": sum(pieces[name][0].size for name in pieces)}
    attacks: dict[str, Callable[[], object]] = {
        "R_M": lambda: remap_models(net, models, [shadow]),
        "R_L": lambda: remap_layers(net, average, pieces, [shadow]),
        "R_P": lambda: remap_parameters(net, average, pieces, [shadow]),
    }
    for name, work in attacks.items():
        began = time.perf_counter()
        work()
        found[name] = time.perf_counter() - began
    sample = 5
    began = time.perf_counter()
    for _ in range(sample):
        logits(net, average, shadow[0])
    found["sampled"] = sample
    found["loop"] = (time.perf_counter() - began) / sample * found["parameters"] * silos
    return found


MORE_EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment("sia-subsampling", "Source inference under subsampling", "Figure fig:sample", subsampling, data=LARGER),
    Experiment("sia-groups", "Source inference on groups (FedMedian)", "Section non_sum_based", groups, data=LARGER),
    Experiment("dlg", "Gradient inversion (DLG)", "Figure fig:dlg and Section app:dras", leakage),
    Experiment("residue-sums", "Un-reduced sums of residues", "Theorem prop:perfect_protection", residue_sums),
    Experiment("resources", "Time of the reconstruction attacks", "Section app:resources", resources),
)
