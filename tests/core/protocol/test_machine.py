"""The tables of the three machines: an answer for every event in every state, and no state that cannot be reached."""

import inspect
from enum import StrEnum
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest
from tests.core.protocol.federations import AGGREGATOR, federation, identity, rng

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol import aggregator, shuffler, silo
from silomix.runtime.core.protocol.machine import (
    IGNORES,
    Does,
    Ignores,
    Machine,
    Refuses,
    Remember,
    Table,
    does,
    refuses,
)

F = federation()


def machines() -> dict[str, tuple[ModuleType, Machine[Any, Any, Any, Any], type[StrEnum]]]:
    """Each machine as it begins, with its module and its states."""
    return {
        "silo": (silo, silo.Silo(F, identity("silo-1")), silo.State),
        "shuffler": (shuffler, shuffler.Shuffler(F, identity("hop-1"), rng()), shuffler.State),
        "aggregator": (aggregator, aggregator.Aggregator(F, identity(AGGREGATOR), rng()), aggregator.Phase),
    }


each = pytest.mark.parametrize("name", machines())


def trouble(table: Table, states: type[StrEnum], events: set[type], machine: type, first: StrEnum) -> list[str]:
    """Everything that is wrong with a table."""
    found = [f"no row for {state}" for state in states if state not in table]
    found += [f"a row for {state}, which is no state" for state in table if state not in set(states)]
    reached, todo = {first}, [first]
    for state, row in table.items():
        found += [f"no answer to {event.__name__} while {state}" for event in events - set(row)]
        found += [f"an answer to {event.__name__}, which never comes" for event in set(row) - events]
        for event, answer in row.items():
            if isinstance(answer, Does):
                method = getattr(machine, answer.method, None)
                if not inspect.isfunction(method):
                    found.append(f"{event.__name__} while {state} does {answer.method}, which is no method")
                elif event not in _taken(method):
                    found.append(f"{answer.method} does not take {event.__name__}")
            elif not isinstance(answer, Refuses | Ignores):
                found.append(f"{event.__name__} while {state} has no answer but {answer!r}")
    while todo:
        for answer in table.get(todo.pop(), {}).values():
            if isinstance(answer, Does):
                new = answer.to - reached
                reached |= new
                todo += new
    return found + [f"{state} cannot be reached" for state in set(states) - reached]


def _taken(method: Any) -> tuple[type, ...]:
    """The events that a method is annotated to take."""
    (event,) = [kind for name, kind in get_type_hints(method).items() if name != "return"]
    return get_args(event) or (event,)


@each
def test_every_event_has_an_answer_in_every_state_and_every_state_is_reachable(name: str) -> None:
    module, machine, states = machines()[name]
    events = set(get_args(module.Event))
    assert len(events) > 1
    assert machine.TABLE is module.TABLE
    assert trouble(machine.TABLE, states, events, type(machine), machine.state) == []


@each
def test_a_table_with_a_gap_is_found_out(name: str) -> None:
    """The test of the test: without an answer, with a state that nothing leads to, with a method that is not there."""
    module, machine, states = machines()[name]
    events = set(get_args(module.Event))

    def wrong(table: Table) -> list[str]:
        return trouble(table, states, events, type(machine), machine.state)

    for state, row in machine.TABLE.items():
        for event in row:
            without = {kind: answer for kind, answer in row.items() if kind is not event}
            assert wrong({**machine.TABLE, state: without})
        assert wrong({**machine.TABLE, state: {**row, next(iter(row)): does("_nothing")}})
    for state in set(states) - {machine.state}:
        cut = {
            s: {e: does(a.method, *(a.to - {state})) if isinstance(a, Does) else a for e, a in row.items()}
            for s, row in machine.TABLE.items()
        }
        assert f"{state} cannot be reached" in wrong(cut)


@each
def test_whatever_is_refused_in_the_table_says_why(name: str) -> None:
    _, machine, _ = machines()[name]
    for row in machine.TABLE.values():
        for answer in row.values():
            if isinstance(answer, Refuses):
                assert answer.reason in Reason
                assert answer.message


@each
def test_events_are_no_effects_and_no_facts(name: str) -> None:
    """What came in, what is to be done and what is remembered are different things."""
    module, _, _ = machines()[name]
    events, effects = set(get_args(module.Event)), set(get_args(module.Effect))
    facts = set(get_args(getattr(module, "Fact", None))) or {silo.Joined}
    assert not events & effects
    assert not events & facts
    assert not effects & facts


# A machine of three states, to see that machines are held to their tables


class Door(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    LOCKED = "locked"


class Turn:
    pass


class Push:
    pass


class Knock:
    pass


class Doorkeeper(Machine[Door, Any, Any, str]):
    TABLE: Table = {  # noqa: RUF012 - as real machines have it
        Door.OPEN: {Push: does("_swing", Door.SHUT), Turn: IGNORES, Knock: IGNORES},
        Door.SHUT: {Push: does("_swing", Door.OPEN), Turn: does("_turn", Door.LOCKED), Knock: does("_note")},
        Door.LOCKED: {
            Push: refuses(Reason.COHORT_CLOSED, "the door is locked"),
            Turn: does("_turn"),  # does lead elsewhere, and does not say so
            Knock: does("_note"),
        },
    }

    def __init__(self) -> None:
        self.state = Door.OPEN
        self.known: list[str] = []

    def recall(self, fact: str) -> None:
        self.known.append(fact)

    def _swing(self, event: Push) -> list[Any]:
        self.state = Door.SHUT if self.state is Door.OPEN else Door.OPEN
        return ["creak"]

    def _turn(self, event: Turn) -> list[Any]:
        self.state = Door.LOCKED if self.state is Door.SHUT else Door.SHUT
        return []

    def _note(self, event: Knock) -> list[Any]:
        return [Remember("somebody knocked"), "bark", Remember("twice")]


def test_a_machine_does_what_its_table_says() -> None:
    door = Doorkeeper()
    assert door.step(Turn()) == []
    assert door.step(Push()) == ["creak"]
    assert door.step(Turn()) == []
    assert door.state is Door.LOCKED
    with pytest.raises(PeerFault) as caught:
        door.step(Push())
    assert caught.value.reason is Reason.COHORT_CLOSED
    assert str(door.state) == "locked"


def test_what_a_table_refuses_is_refused_before_it_is_read() -> None:
    door = Doorkeeper()
    for kind in (Push, Turn, Knock):
        door.allows(kind)
    door.step(Push())
    door.step(Turn())
    with pytest.raises(PeerFault) as caught:
        door.allows(Push)
    assert caught.value.reason is Reason.COHORT_CLOSED
    door.allows(Knock)
    assert door.known == []


def test_a_machine_that_leaves_its_table_stops() -> None:
    """A method that leads where its row does not say: were it let go on, the table would no longer be what happens."""
    door = Doorkeeper()
    door.step(Push())
    door.step(Turn())
    with pytest.raises(AssertionError, match="_turn led from locked to shut"):
        door.step(Turn())


def test_an_event_that_no_table_has_is_no_event() -> None:
    with pytest.raises(KeyError):
        Doorkeeper().step(object())


def test_a_step_takes_in_the_facts_that_it_returns() -> None:
    door = Doorkeeper()
    door.step(Push())
    assert door.step(Knock()) == [Remember("somebody knocked"), "bark", Remember("twice")]
    assert door.known == ["somebody knocked", "twice"]
