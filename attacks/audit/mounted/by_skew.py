"""Source inference by heterogeneity: the same attack where silos differ less."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from silomix.attacks.audit.attack import Attack, Section, Size, share
from silomix.attacks.audit.campaign import options_of
from silomix.attacks.audit.mounted.by_mode import attacked, pooled_modes
from silomix.attacks.audit.pool import Job
from silomix.attacks.audit.subject import Subject, subject_for
from silomix.attacks.audit.verdict import Json
from silomix.attacks.errors import Unfit
from silomix.attacks.views.view import Mode
from silomix.models.simulation.experiment import Cell, Line, Plot, Table
from silomix.runtime.factory import find_factory, takes

NAME = "by-skew"
MODES = (Mode.NONE, Mode.SEMI_HONEST, Mode.UNARY, Mode.MODEL, Mode.LAYER, Mode.PARAMETER)
"""The paper's five, and ours."""


def _jobs(subject: Subject, size: Size) -> list[Job]:
    policy = subject.campaign.policy
    if not takes(find_factory(policy.task), "alpha"):
        raise Unfit(f"the task {policy.task} takes no alpha, by which its silos could be made to differ")
    if "alpha" not in policy.task_options:
        raise Unfit("the silos' skew is the task's own: give --option alpha=0.1 to compare it with others")
    todo = []
    for alpha in (0.3, 1.0, 10.0) if size.full else (1.0, 10.0):
        if alpha == policy.task_options["alpha"]:
            continue
        other = subject_for(options_of(policy, alpha=alpha), subject.silos, size, own=subject.own)
        for one in other.campaigns():
            given = {"campaign": replace(one, modes=MODES)}
            todo.append(Job(f"{NAME} {alpha}", attacked, given, size.rounds))
    return todo


def _gather(subject: Subject, done: Sequence[tuple[Job, Any]], report: Json) -> Json:
    points: list[Json] = []
    if "sia" in report:  # by_mode has the subject's own skew
        sia = {str(mode): report["sia"][str(mode)] for mode in MODES if str(mode) in report["sia"]}
        own = float(subject.campaign.policy.task_options["alpha"])
        points.append({"alpha": own, "accuracy": report["accuracy"][-1], "sia": sia})
    by_alpha: dict[float, list[Json]] = {}
    for job, result in done:
        by_alpha.setdefault(float(job.arguments["campaign"].policy.task_options["alpha"]), []).append(result)
    for alpha, runs in by_alpha.items():
        found = pooled_modes(runs)
        accuracy = sum(one["accuracy"][-1] for one in runs) / len(runs)
        sia = {str(mode): found[mode].json() for mode in MODES if mode in found}
        points.append({"alpha": alpha, "accuracy": accuracy, "sia": sia})
    return {"by_alpha": sorted(points, key=lambda one: one["alpha"])}


def _section(report: Json) -> Section:
    points = report["by_alpha"]
    names = [name for name in points[0]["sia"] if all(name in one["sia"] for one in points)]
    lines = []
    for name in names:
        scores = [(one["alpha"], one["sia"][name]) for one in points]
        intervals = tuple((score["low"], score["high"]) for _, score in scores)
        lines.append(Line(name, tuple((alpha, score["accuracy"]) for alpha, score in scores), intervals))
    rows: list[tuple[Cell, ...]] = [
        (f"{one['alpha']:g}", *(share(one["sia"][name]) for name in names), f"{one['accuracy']:.1%}") for one in points
    ]
    axis = "alpha: the smaller, the more the silos differ"
    plot = Plot(
        "right guesses by skew", axis, "right guesses", tuple(lines), report["random"], "random guess", log_x=True
    )
    return Section(
        "By heterogeneity",
        "Classes are dealt out to silos by Dirichlet(alpha). Best round; bands are 99.9% intervals.",
        (plot, Table("", ("alpha", *names, "model accuracy"), tuple(rows))),
    )


ATTACK = Attack(NAME, "source inference by skew", _jobs, _gather, _section)
