"""An attack of one's own: it always names the first silo."""

from collections.abc import Iterable, Sequence
from typing import Any

from silomix.attacks.audit.attack import Attack, Section, Size
from silomix.attacks.audit.pool import Job
from silomix.attacks.audit.subject import Subject
from silomix.attacks.audit.verdict import Expectation, Json
from silomix.attacks.errors import Unfit
from silomix.attacks.sia import Score


def always_the_first(silos: int) -> Json:
    return Score(100, 100 * silos).json()


def _jobs(subject: Subject, size: Size) -> list[Job]:
    return [Job("first", always_the_first, {"silos": subject.silos}, 1.0)]


def _gather(subject: Subject, done: Sequence[tuple[Job, Any]], report: Json) -> Json:
    return {"first": done[0][1]}


def _section(report: Json) -> Section:
    return Section("The first silo", f"It is right {report['first']['accuracy']:.0%} of the time.")


def _expected(report: Json) -> Iterable[Expectation]:
    return Expectation.of("always the first", report["first"], report["random"], hidden=True)


ATTACK = Attack("first-silo", "guessing", _jobs, _gather, _section, _expected, lambda _: "A fixed guess is no guess.")


def refused(silos: int) -> Json:
    raise Unfit(f"{silos} silos are not to its taste")


PICKY = Attack(
    "picky", "refusing", lambda subject, size: [Job("no", refused, {"silos": subject.silos}, 1.0)], _gather, _section
)
