"""The judge: what an audit's numbers mean, and what the demo's do.

An attack says what it expects of a score: a random guess, where something is hidden, or better than that, where nothing
is. If all is as expected the verdict is protected. A guess that is too good where silomix should hide is a leak. If an
attack or a control fails where it should succeed, nothing is settled: its failure elsewhere could be a bad attack's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from silomix.attacks.sia import Score

Json = dict[str, Any]
"""Plain values, as they are written for programs."""


class Expected(Protocol):
    """Something that should have come out."""

    @property
    def met(self) -> bool:
        """Whether it is so."""
        ...

    @property
    def leak(self) -> bool:
        """Whether silomix gave away what it should hide."""
        ...


@dataclass(frozen=True)
class Withstood:
    """That live nodes withstand attacks that do not keep to the protocol: all of them, or all but one that is named."""

    failed: str = ""
    broken: bool = False
    """Whether it was the attack itself that failed, which proves nothing."""

    @property
    def met(self) -> bool:
        """Whether it is so."""
        return not self.failed

    @property
    def leak(self) -> bool:
        """Whether a rule did not hold."""
        return bool(self.failed) and not self.broken

    def __str__(self) -> str:
        return f"active attack {self.failed}: " + ("it could not be mounted" if self.broken else "it succeeded")


@dataclass(frozen=True)
class Expectation:
    """What a score should be."""

    name: str
    score: Score
    random: float
    """The rate of a random guess."""
    hidden: bool
    """Whether the guess should be a random one; if not, it should beat that."""
    ours: bool = True
    """Whether it is silomix that hides: the paper's own protocol is measured too, and may leak."""

    @classmethod
    def of(
        cls, name: str, score: Mapping[str, Any] | None, random: float, *, hidden: bool, ours: bool = True
    ) -> "list[Expectation]":
        """Expect something of a score as a report has it; nothing, if it was not measured."""
        return [] if score is None else [cls(name, Score.of(score), random, hidden, ours)]

    @property
    def met(self) -> bool:
        """Whether it is so."""
        return self.score.holds(self.random) if self.hidden else self.score.beats(self.random)

    @property
    def leak(self) -> bool:
        """Whether silomix gave away what it should hide."""
        return self.hidden and self.ours and not self.met

    def __str__(self) -> str:
        low, high = self.score.interval
        found = f"{self.name}: {self.score.accuracy:.1%} ({low:.1%} to {high:.1%})"
        if self.hidden:
            return f"{found} is not a random guess of {self.random:.1%}"
        return f"{found} does not beat a random guess of {self.random:.1%}"


@dataclass(frozen=True)
class Verdict:
    """What was found of what was expected."""

    findings: tuple[Expected, ...]
    """The expectations that were not met."""
    asked: int
    """How many there were."""

    @property
    def leaks(self) -> tuple[Expected, ...]:
        """What silomix gave away."""
        return tuple(one for one in self.findings if one.leak)

    @property
    def protected(self) -> bool:
        """Whether all is as it should be. Where nothing was expected, nothing is shown."""
        return bool(self.asked) and not self.findings

    @property
    def word(self) -> str:
        """The verdict in a word or two."""
        return "PROTECTED" if self.protected else "LEAK" if self.leaks else "NOT SETTLED"

    def text(self, summary: str) -> str:
        """Say it in a sentence: the summary, if all is as it should be."""
        if self.leaks:
            return f"{self.word}. " + " ".join(f"{leak}." for leak in self.leaks)
        if not self.protected:
            why = "an attack or a control did not do what it should" if self.findings else "nothing was measured"
            return (
                f"{self.word}. Nothing leaked, but {why}, so the rest proves nothing. More records or rounds, or silos "
                "that differ more, may settle it."
            )
        return f"{self.word}. {summary}".strip()

    def json(self, summary: str) -> Json:
        """Return it for a program."""
        return {
            "protected": self.protected,
            "leak": bool(self.leaks),
            "findings": [str(one) for one in self.findings],
            "text": self.text(summary),
        }


def judge(expectations: Iterable[Expected]) -> Verdict:
    """Judge."""
    asked = list(expectations)
    return Verdict(tuple(one for one in asked if not one.met), len(asked))
