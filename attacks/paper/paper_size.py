"""Source inference at the paper's own size: all records, ten local epochs, the paper's networks.

A round takes a quarter of an hour or more of one core, so each round is a point by itself and keeps the model that the
next one goes on from: an interrupted run loses one round at most, and more rounds can be asked for later.
"""

import os
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from silomix.attacks.audit.campaign import Campaign, Siege, splits
from silomix.attacks.paper.accuracy_trials import ALPHA, SILOS, Setting
from silomix.attacks.paper.trials import LEAST, MODES, line, percent
from silomix.attacks.sia import Outcome, Score, pooled
from silomix.attacks.views.simulated import view_of
from silomix.models.simulation.experiment import Cell, Experiment, Line, Plot, Progress, Result, Scale, Table
from silomix.models.simulation.simulate import SimulatedRound, State, simulate
from silomix.runtime.core.digest import digest
from silomix.runtime.core.policy import Policy
from silomix.runtime.store.modelfile import read_model, write_model

EPOCHS = 10
"""Local epochs of the paper's experiments."""
SIZES = {
    "digits": Setting("silomix.models.digits:task", about="all 1,437 images, a CNN of 21,546 parameters", light=True),
    "mnist": Setting("silomix.models.mnist_cnn:task", about="all 60,000 images, the paper's CNN of 643,850 parameters"),
    "cifar10": Setting(
        "silomix.models.cifar_cnn:task", about="all 50,000 images, the paper's CNN of 940,362 parameters"
    ),
}
ROUNDS = {"digits": 20, "mnist": 20, "cifar10": 100}
"""Rounds of the paper; what it reports is the best one, which is an early one."""
PRINTED = {
    "digits": None,
    "mnist": "none 45.01; Alg. 1 10 (the rest is in a figure without values)",
    "cifar10": "none 51.57, model 45, layer 42, parameter 27 to 28, Alg. 1 10",
}
"""What the paper's text and tables say of alpha = 0.1 and ten clients."""


def at_paper_size(scale: Scale, progress: Progress) -> Result:
    """Attack each round, seed by seed, and show rounds as rows."""
    progress.plan(len(scale.seeds) * scale.rounds)
    runs = [list(_rounds(one, scale, progress)) for one in _campaigns(scale)]
    rows: list[tuple[Cell, ...]] = []
    found: dict[str, list[Outcome]] = {}
    for number, done in enumerate(zip(*runs, strict=True), 1):
        pools = {mode: pooled([_outcome(one, mode) for one in done]) for mode in MODES}
        for mode, outcome in pools.items():
            found.setdefault(mode, []).append(outcome)
        accuracy = sum(one["accuracy"] for one in done) / len(done)
        rows.append((str(number), *(percent(pools[mode]) for mode in MODES), f"{accuracy * 100:.1f}", None))
    best = [max(found[mode], key=lambda one: one.best.accuracy) for mode in MODES]
    accuracy = sum(run[-1]["accuracy"] for run in runs) / len(runs)
    rows.append(("best", *map(percent, best), f"{accuracy * 100:.1f}", PRINTED[scale.data]))
    title = f"Source inference at the paper's size on {scale.data}"
    columns = ("round", *map(str, MODES), "model accuracy", "paper")
    curves = tuple(_curve(str(mode), found[mode]) for mode in MODES)
    plot = Plot(title, "round", "right guesses", curves, level=1 / SILOS, level_name="random guess")
    values = {"data": scale.data, "rounds": scale.rounds, "points": [_without_models(run) for run in runs]}
    return Result((Table(title, columns, tuple(rows)),), (plot,), _notes(scale, runs), values)


def _campaigns(scale: Scale) -> Iterator[Campaign]:
    """Yield the campaign of each seed. Its rounds are the paper's, however many are asked for now."""
    setting = SIZES[scale.data]
    options = {"silos": SILOS, "alpha": ALPHA, **setting.options, "epochs": EPOCHS}
    policy = Policy(task=setting.task, task_options=options, rounds=ROUNDS[scale.data])
    workers = 1 if setting.light else len(os.sched_getaffinity(0))
    base = Campaign(policy, silos=SILOS, modes=MODES, workers=workers)
    for _, one in zip(scale.seeds, splits(base, LEAST), strict=False):
        yield one


def _rounds(campaign: Campaign, scale: Scale, progress: Progress) -> Iterator[dict[str, Any]]:
    """Yield what came of each round; nothing is trained or read before the first that is not kept."""
    name = digest("paper size", campaign.policy.canonical(), campaign.seed).hex()[:12]
    siege: Siege | None = None
    going: Iterator[SimulatedRound] = iter(())
    last: dict[str, Any] | None = None
    for number in range(1, scale.rounds + 1):

        def compute(number: int = number, last: dict[str, Any] | None = last) -> dict[str, Any]:
            nonlocal siege, going
            if siege is None:
                siege = Siege.of(campaign)
                going = _from(campaign, number, last)
            return _attacked(siege, next(going))

        last = progress.point(f"{scale.data} seed {campaign.seed} round {number} {name}", compute)
        yield last


def _from(campaign: Campaign, number: int, last: dict[str, Any] | None) -> Iterator[SimulatedRound]:
    policy = replace(campaign.policy, task_options=campaign.options)
    start = None if last is None else State(number - 1, read_model(b64decode(last["model"]))[1])
    return simulate(policy, campaign.silos, seed=campaign.seed, protect=False, workers=campaign.workers, start=start)


def _attacked(siege: Siege, done: SimulatedRound) -> dict[str, Any]:
    """Mount source inference on one round in every mode."""
    truth, campaign = siege.truth(done), siege.campaign
    for number, mode in enumerate(campaign.modes):
        siege.look(mode, view_of(truth, mode, np.random.default_rng([campaign.seed, done.round, number])))
    scores = {mode: attack.rounds[-1] for mode, attack in siege.attacks.items()}
    return {
        "scores": {mode: [score.hits, score.targets] for mode, score in scores.items()},
        "accuracy": done.metrics["accuracy"],
        "seconds": round(done.seconds["total"], 1),
        "model": b64encode(write_model(siege.schema, done.after)).decode(),
    }


def _outcome(point: dict[str, Any], mode: str) -> Outcome:
    return Outcome((Score(*point["scores"][mode]),))


def _curve(name: str, rounds: list[Outcome]) -> Line:
    return line(name, [(float(number), one) for number, one in enumerate(rounds, 1)])


def _without_models(run: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in point.items() if key != "model"} for point in run]


def _notes(scale: Scale, runs: list[list[dict[str, Any]]]) -> tuple[str, ...]:
    setting, hours = SIZES[scale.data], sum(point["seconds"] for run in runs for point in run) / 3600
    rounds = f"{scale.rounds} of the paper's {ROUNDS[scale.data]} rounds; {len(runs)} seed(s)"
    size = (
        f"{scale.data}: {setting.about}, {EPOCHS} local epochs, SGD as the paper has it; {SILOS} silos, alpha = "
        f"{ALPHA}; {rounds}. Right guesses in percent, with Wilson's interval at 99.9%; shadow sets of 5%. A random "
        f"guess is right in {100 / SILOS:g}%. The rounds took {hours:.1f} hours, on a machine that had other work."
    )
    best = "The last row has the best round of each mode, which is what the paper reports, and the last accuracy."
    return size, best


PAPER_SIZE_EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "sia-paper-size",
        "Source inference at the paper's size, alpha 0.1",
        "Figure exp:rec, Tables table:acc_smaller_db and tbl:regul-def",
        at_paper_size,
        data=("mnist", "cifar10"),
        by_round=True,
    ),
)
