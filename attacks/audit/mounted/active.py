"""Adversaries that do not keep to the protocol, at live nodes: the drill of `silomix attack active` as a section."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from silomix.attacks.active.drill import run
from silomix.attacks.active.registry import Outcome, all_attacks
from silomix.attacks.active.report import section
from silomix.attacks.audit.attack import Attack, Section, Size
from silomix.attacks.audit.pool import Job
from silomix.attacks.audit.subject import Subject
from silomix.attacks.audit.verdict import Expected, Json, Withstood
from silomix.models.simulation.experiment import Table

NAME = "active"
SECONDS = 60.0
"""About what it takes on one core."""


def drill() -> Json:
    """Mount every active attack, and return what a report shows of it."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # lines that are cut are what a drill is made of
    return section(run(all_attacks()))


def _jobs(subject: Subject, size: Size) -> list[Job]:
    return [Job(NAME, drill, {}, SECONDS)]


def _gather(subject: Subject, done: Sequence[tuple[Job, Any]], report: Json) -> Json:
    return {"active": done[0][1]}


def _section(report: Json) -> Section:
    found = report["active"]
    rules = "; ".join(f"{rule}: {text}" for rule, text in found["rules"].items())
    return Section(
        found["title"],
        f"{found['text']} They do not depend on the task: honest nodes run a small one of the drill's own, whose true "
        "updates it knows, so that what the adversary got is measured. Conceded is what the threat model says is "
        "possible; open is what a rule that is not built yet will close. `silomix attack active --without RULE` shows "
        "that the attacks succeed where the rule is not.",
        (Table("", tuple(found["columns"]), tuple(tuple(row) for row in found["rows"])), f"The rules. {rules}."),
    )


def _expected(report: Json) -> Iterable[Expected]:
    found = report["active"]
    return [Withstood(name, found["outcomes"][name] == Outcome.BROKEN) for name in found["failed"]] or [Withstood()]


ATTACK = Attack(NAME, "lying nodes", _jobs, _gather, _section, _expected)
