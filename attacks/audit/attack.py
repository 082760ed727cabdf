"""What it takes to be part of an audit: an attack's work, its expectations, and its section of the report.

attacks/audit/registry.py lists those that are mounted; `silomix audit --attack mymodule:ATTACK` adds one of your own.
The work is cut into jobs, functions of plain values that return plain JSON, so that they can run in any process.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from silomix.attacks.audit.pool import Job
from silomix.attacks.audit.verdict import Expected, Json
from silomix.models.simulation.experiment import Plot, Table

if TYPE_CHECKING:
    from silomix.attacks.audit.subject import Subject


@dataclass(frozen=True)
class Size:
    """How much to run."""

    name: str
    targets: int
    """Records to ask about, at least, pooled over seeds."""
    rounds: int
    full: bool = False
    """Whether to take the time that it takes."""


class Tone(StrEnum):
    """How a figure is to be read, which gives it its colour."""

    EXPOSED = "exposed"
    PROTECTED = "protected"
    CONTROL = "control"


@dataclass(frozen=True)
class Bar:
    """One bar: a share between 0 and 1 with the ends of its interval."""

    name: str
    value: float
    low: float
    high: float
    tone: Tone


@dataclass(frozen=True)
class Bars:
    """Shares side by side, with a line to compare them with."""

    title: str
    bars: tuple[Bar, ...]
    level: float
    level_name: str


@dataclass(frozen=True)
class Heat:
    """Counts by row and column, such as the records of each class at each silo: the more, the darker."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A picture as a data URI, with what it shows."""

    title: str
    alternative: str
    uri: str = field(repr=False)


@dataclass(frozen=True)
class Pictures:
    """Pictures side by side."""

    pictures: tuple[Picture, ...]


Block = Table | Plot | Bars | Heat | Pictures | str
"""What a section is made of; a string is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A part of the report: a heading, a paragraph of plain text, and what follows."""

    title: str
    text: str
    blocks: tuple[Block, ...] = ()


def no_expectations(report: Json) -> Iterable[Expected]:
    """Expect nothing: for attacks that show a limit which nobody promises to keep."""
    return ()


def no_summary(report: Json) -> str:
    """Say nothing on top."""
    return ""


@dataclass(frozen=True)
class Attack:
    """One attack as an audit mounts it."""

    name: str
    """Lower case, with hyphens."""
    doing: str
    """What is being done, for whoever watches."""
    jobs: "Callable[[Subject, Size], list[Job]]"
    """The work. It raises `Unfit` with a sentence if the attack cannot be mounted on this subject."""
    gather: "Callable[[Subject, Sequence[tuple[Job, Any]], Json], Json]"
    """Put the jobs and their results together: fields of the report, which so far has those of the attacks before."""
    section: Callable[[Json], Section]
    """Its part of the page, from the report."""
    expected: Callable[[Json], Iterable[Expected]] = no_expectations
    """What should have come out, for the judge."""
    summary: Callable[[Json], str] = no_summary
    """A sentence for the verdict if all is as it should be; the first one in the registry stands on top."""


def share(score: Json) -> str:
    """Write a score as a cell: the share of right guesses, and its interval small below."""
    return f"{score['accuracy']:.1%}\n{score['low'] * 100:.1f}-{score['high'] * 100:.1f}"


def percent(score: Json) -> str:
    """Write a score into a sentence."""
    return f"{score['accuracy']:.1%} of the time ({score['low']:.1%} to {score['high']:.1%})"
