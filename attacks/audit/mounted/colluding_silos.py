"""Silos that collude with the aggregator: a limit of every sum."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from silomix.attacks.audit.attack import Attack, Section, Size, share
from silomix.attacks.audit.campaign import Campaign, Siege
from silomix.attacks.audit.pool import Job
from silomix.attacks.audit.subject import Subject
from silomix.attacks.audit.verdict import Json
from silomix.attacks.sia import Inference
from silomix.attacks.sums import without_colluders
from silomix.attacks.views.simulated import view_of
from silomix.attacks.views.view import Mode, floats
from silomix.models.simulation.experiment import Cell, Table
from silomix.models.simulation.simulate import simulate
from silomix.runtime.task import Tensors

NAME = "colluding-silos"


def collude(campaign: Campaign, counts: list[int]) -> list[Json]:
    """Let the last so many silos hand the aggregator their own models, and attack the others."""
    torch.set_num_threads(1)
    siege = Siege.of(campaign)
    policy = replace(campaign.policy, task_options=campaign.options)
    *_, done = simulate(policy, campaign.silos, seed=campaign.seed, protect=False)
    truth = siege.truth(done)
    view = view_of(truth, Mode.TRUSTED, np.random.default_rng(campaign.seed))
    before, trained = view.before, [floats(truth.schema, model) for model in done.trained]
    found = []
    for count in counts:
        honest = [silo for silo in done.cohort if silo < campaign.silos - count]
        known = {silo: trained[silo] for silo in done.cohort if silo not in honest}
        models = [m for silo, m in zip(done.cohort, without_colluders(view, known), strict=True) if silo in honest]
        score = Inference(siege.net, siege.targets, (campaign.seed, count)).round(models, honest)
        errors = [_error(models[i], trained[silo], before) for i, silo in enumerate(honest)]
        found.append({"colluding": count, "honest": len(honest), "error": float(np.mean(errors)), **score.json()})
    return found


def _error(guess: Tensors, true: Tensors, before: Tensors) -> float:
    """How far off a model is, in parts of what its silo's training changed."""
    off = sum(float(np.sum((guess[n] - true[n]).astype(np.float64) ** 2)) for n in true)
    moved = sum(float(np.sum((true[n] - before[n]).astype(np.float64) ** 2)) for n in true)
    return float(np.sqrt(off / max(moved, 1e-30)))


def _jobs(subject: Subject, size: Size) -> list[Job]:
    n, one = subject.silos, subject.campaigns()[0]
    short = replace(one, policy=replace(one.policy, rounds=2))
    counts = sorted({0, 1, n // 2, n - 2, n - 1})
    return [Job(NAME, collude, {"campaign": short, "counts": counts}, 6.0)]


def _gather(subject: Subject, done: Sequence[tuple[Job, Any]], report: Json) -> Json:
    return {"collusion": done[0][1]}


def _section(report: Json) -> Section:
    rows: list[tuple[Cell, ...]] = [
        (one["colluding"], one["honest"], f"{1 / one['honest']:.1%}", share(one), f"{one['error']:.0%}")
        for one in report["collusion"]
    ]
    return Section(
        "Silos that collude",
        "Silos that collude with the aggregator hand it their own models, and it takes them off the sum. The others "
        "stay hidden among themselves: with two left a guess is one in two, and the last one stands alone. The error "
        "is how far off the best estimate of an honest silo's update is, in parts of that update.",
        (Table("", ("colluding", "honest", "random guess", "right guesses", "error"), tuple(rows)),),
    )


ATTACK = Attack(NAME, "colluding silos", _jobs, _gather, _section)
