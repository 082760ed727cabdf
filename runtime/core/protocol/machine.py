"""State machines as tables: what each event does in each state, and which states that may lead to.

A machine takes one event and returns effects; it calls nobody back. Its table has an answer for every event in every
state, so what a node does is read there from top to bottom. Everything that changes a state lives in the machine's own
file: drivers tell it what happened, and change nothing of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from silomix.runtime.core.errors import PeerFault, Reason

Event = TypeVar("Event")
Effect = TypeVar("Effect")
Fact = TypeVar("Fact")
FactKept = TypeVar("FactKept", covariant=True)
State = TypeVar("State", bound=StrEnum)


@dataclass(frozen=True)
class Remember(Generic[FactKept]):
    """Write a fact to the journal, durably, before anything else happens. The machine knows it already."""

    fact: FactKept


@dataclass(frozen=True)
class Does:
    """The machine's method that answers, and the states that it may lead to beside the one it is in."""

    method: str
    to: frozenset[StrEnum] = frozenset()


@dataclass(frozen=True)
class Refuses:
    """The event is refused, whatever it says."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Ignores:
    """The event comes too late or too early to matter, and nobody is at fault."""


Answer = Does | Refuses | Ignores
Table = Mapping[StrEnum, Mapping[type, Answer]]
IGNORES = Ignores()


def does(method: str, *to: StrEnum) -> Does:
    """Answer with a method."""
    return Does(method, frozenset(to))


def refuses(reason: Reason, message: str) -> Refuses:
    """Refuse."""
    return Refuses(reason, message)


class Machine(Generic[State, Event, Effect, Fact]):
    """Looks the answer up, and holds the machine to its table."""

    TABLE: Table
    state: State

    def recall(self, fact: Fact) -> None:
        """Take a fact in: on start-up from the journal, in the order in which its driver reads the kinds of facts.

        Within a kind, those of earlier rounds come first. `step` takes in those that it returns.
        """
        raise NotImplementedError

    def wake_at(self) -> float | None:
        """When the machine wants to hear that time has passed, if it does."""
        raise NotImplementedError

    def allows(self, kind: type) -> None:
        """Refuse events of a kind that the table refuses whatever they say: what would make one need not be read."""
        match self.TABLE[self.state][kind]:
            case Refuses(reason, message):
                raise PeerFault(reason, message)

    def step(self, event: Event) -> list[Effect]:
        """Take one event; raise a PeerFault if it is to be refused, and then nothing has changed."""
        before = self.state
        match self.TABLE[before][type(event)]:
            case Refuses(reason, message):
                raise PeerFault(reason, message)
            case Ignores():
                return []
            case Does(method, to):
                effects: list[Any] = getattr(self, method)(event)
                assert self.state is before or self.state in to, f"{method} led from {before} to {self.state}"
                for effect in effects:
                    if isinstance(effect, Remember):
                        self.recall(effect.fact)
                return effects
