"""Pictures from updates: what a sum hides of the records themselves."""

from collections.abc import Sequence
from typing import Any

import torch

from silomix.attacks import dlg
from silomix.attacks.audit.attack import Attack, Picture, Pictures, Section, Size
from silomix.attacks.audit.campaign import Campaign
from silomix.attacks.audit.pictures import strip
from silomix.attacks.audit.pool import Job
from silomix.attacks.audit.subject import Subject
from silomix.attacks.audit.verdict import Json
from silomix.attacks.errors import Unfit
from silomix.attacks.views.classifier import Records
from silomix.models.simulation.experiment import Cell, Table

NAME = "inversion"
CASES = ((1, 1, 1), (2, 1, 1), (5, 1, 1), (10, 1, 1), (2, 1, 2), (5, 1, 5), (10, 1, 10), (10, 8, 80))
"""Silos, records of each, pictures to look for."""
LARGEST = 64
"""Pixels of a side, beyond which the attack takes hours."""


def invert(records: Records, silos: int, per_silo: int, look_for: int, steps: int, tries: int) -> Json:
    """Invert the mean gradient of some silos."""
    torch.set_num_threads(1)
    found = dlg.attack(records, silos, 1, per_silo=per_silo, look_for=look_for, steps=steps, tries=tries)
    return {**found.json(), "picture": strip(found.truth, found.found)}


def invert_task(campaign: Campaign, **case: int) -> Json:
    """Do so with the records that the silos of a task train on."""
    shares = [victim.share for victim in campaign.victims()]
    x, y = (torch.cat([share[part] for share in shares]) for part in (0, 1))
    return invert((x.float(), y), **case)


def _jobs(subject: Subject, size: Size) -> list[Job]:
    shape = subject.about["data"]["shape"]
    if len(shape) != 3 or shape[0] not in (1, 3) or shape[1] != shape[2]:
        raise Unfit(f"it draws square pictures, and these records have the shape {tuple(shape)}")
    if shape[1] > LARGEST:
        raise Unfit(f"pictures of {shape[1]} by {shape[2]} pixels would take it hours; it draws up to {LARGEST}")
    records = sum(map(sum, subject.about["data"]["counts"]))
    todo = []
    for silos, each, look_for in CASES:
        if silos * each <= records:
            case = {"silos": silos, "per_silo": each, "look_for": look_for, "steps": 60 if size.full else 30}
            given = {"campaign": subject.campaigns()[0], **case, "tries": 2 if each == 1 else 1}
            todo.append(Job(NAME, invert_task, given, 6.0))
    return todo


def _gather(subject: Subject, done: Sequence[tuple[Job, Any]], report: Json) -> Json:
    return {"dlg": [result for _, result in done]}


def _section(report: Json) -> Section:
    found = report["dlg"]
    rows: list[tuple[Cell, ...]] = [
        (f["silos"], f["records"], f["looked_for"], f"{f['loss']:.2g}", f"{f['chance']:.2g}") for f in found
    ]
    pictures = tuple(
        Picture(_title(one), "above, what was trained on; below, what the attack found", one["picture"])
        for one in found
        if "picture" in one
    )
    return Section(
        "Pictures from updates (DLG)",
        "Each silo takes one step on its records; the attack looks for pictures whose gradient is the mean of the "
        "silos'. Above, what was trained on; below, what was found. The loss is the mean squared error per pixel; "
        "beside it, that of unrelated pictures of the same kind. The network is the attack's own, as its authors like "
        "it. A sum hides whose a record is. It hides the record itself only behind many others: an adversary that "
        "looks for as many pictures as there are records can find a few of them in a sum, so silos should not train "
        "on a handful.",
        (Pictures(pictures), Table("", ("silos", "records", "looked for", "loss", "unrelated"), tuple(rows))),
    )


def _title(one: Json) -> str:
    silos, records = one["silos"], one["records"]
    return f"{silos} silo{'s' * (silos > 1)}, {records} record{'s' * (records > 1)}, looking for {one['looked_for']}"


ATTACK = Attack(NAME, "gradient inversion", _jobs, _gather, _section)
