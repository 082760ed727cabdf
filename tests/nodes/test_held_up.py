"""A disk without room: what cannot be remembered holds up all that comes after it, and is tried again."""

import asyncio
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from tests.nodes.federations import make, run, until

from silomix.runtime.config.load import load_node
from silomix.runtime.core.protocol.machine import Machine, Remember, Table, does
from silomix.runtime.nodes.node import Driver, HeldUpError


class State(StrEnum):
    UP = "up"


class Clerk(Machine[State, str, Any, str]):
    """Remembers every word, then says it; a question is asked first, and its answer is a word in turn."""

    TABLE: Table = {State.UP: {str: does("_take")}}  # noqa: RUF012 - as real machines have it

    def __init__(self) -> None:
        self.state = State.UP
        self.taken: list[str] = []
        self.known: list[str] = []

    def recall(self, fact: str) -> None:
        self.known.append(fact)

    def wake_at(self) -> float | None:
        return None

    def _take(self, event: str) -> list[Any]:
        self.taken.append(event)
        if event.endswith("?"):
            return [f"ask {event}", Remember(f"asked {event}")]
        return [Remember(event), f"say {event}", Remember(f"said {event}")]


class Office(Driver[str, Any]):
    """A driver whose disk is full for so many writes."""

    def __init__(self, directory: Path, full: int = 0) -> None:
        super().__init__(load_node(directory / "shuffler-1"))
        self.machine: Clerk = Clerk()
        self.full, self.full_to_say = full, 0
        self.done: list[str] = []
        self.tries = 0

    def remember(self, fact: str) -> None:
        self.tries += 1
        if self.full:
            self.full -= 1
            raise OSError(28, "No space left on device")
        self.done.append(f"wrote {fact}")

    async def perform(self, effect: str) -> str | None:
        if self.full_to_say:
            self.full_to_say -= 1
            raise OSError(28, "No space left on device")
        self.done.append(effect)
        return effect.removeprefix("ask ").replace("?", "!") if effect.startswith("ask ") else None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("silomix.runtime.nodes.node.RETRY_S", 0.01)
    make(tmp_path / "f", 3, 1)
    return tmp_path / "f"


def said(*words: str) -> list[str]:
    """What is done about some words, one after the other."""
    return [what for word in words for what in (f"wrote {word}", f"say {word}", f"wrote said {word}")]


def test_with_room_effects_are_carried_out_in_order_and_what_is_learned_is_the_next_event(home: Path) -> None:
    async def go() -> None:
        office = Office(home)
        async with office.tasks:
            decided = await office.step("one?")
        assert decided == ["ask one?", Remember("asked one?"), Remember("one!"), "say one!", Remember("said one!")]
        assert office.done == ["ask one?", "wrote asked one?", *said("one!")]
        await office.close()

    run(go())


@pytest.mark.parametrize("times", [1, 2, 7])
def test_what_cannot_be_remembered_holds_up_all_after_it_and_is_tried_again(home: Path, times: int) -> None:
    async def go() -> None:
        office = Office(home, times)
        async with office.tasks:
            with pytest.raises(OSError, match="No space"):
                await office.step("one")
            assert office.done == []  # it was not said before it was written
            await until(lambda: office.done == said("one"), "there is room again, and nobody had to call")
            assert office.machine.taken == ["one"]
            assert office.tries == times + 2
            await office.step("two")
        assert office.done == said("one", "two")
        await office.close()

    run(go())


def test_nothing_is_taken_in_while_something_is_held_up(home: Path) -> None:
    """The machine would decide on what is not yet durable: whoever calls may call again."""

    async def go() -> None:
        office = Office(home, 10**9)
        async with office.tasks:
            with pytest.raises(OSError, match="No space"):
                await office.step("one")
            for _ in range(3):
                with pytest.raises(HeldUpError, match="No space"):
                    await office.step("two")
            assert office.machine.taken == ["one"]
            office.full = 0
            await office.step("two")  # what was held up comes first
            assert office.done == said("one", "two")
        await office.close()

    run(go())


@pytest.mark.parametrize("times", [1, 5])
def test_who_insists_is_heard_and_heard_once(home: Path, times: int) -> None:
    async def go() -> None:
        office = Office(home, times)
        async with office.tasks:
            async with asyncio.TaskGroup() as group:
                for word in ("one", "two", "three"):
                    group.create_task(office.insist(word))
            assert sorted(office.machine.taken) == ["one", "three", "two"]
            assert office.done == said(*office.machine.taken)
        await office.close()

    run(go())


def test_an_effect_that_finds_no_room_is_carried_out_later(home: Path) -> None:
    async def go() -> None:
        office = Office(home)
        office.full_to_say = 3
        async with office.tasks:
            with pytest.raises(OSError, match="No space"):
                await office.step("one")
            assert office.done == ["wrote one"]
            await until(lambda: office.done == said("one"), "it was said")
        await office.close()

    run(go())


def test_what_was_learned_before_the_disk_was_full_is_not_lost(home: Path) -> None:
    async def go() -> None:
        office = Office(home, 2)
        async with office.tasks:
            with pytest.raises(OSError, match="No space"):
                await office.step("one?")
            assert office.done == ["ask one?"]
            await until(lambda: len(office.done) == 5, "the answer was taken in")
        assert office.done == ["ask one?", "wrote asked one?", *said("one!")]
        await office.close()

    run(go())


def test_a_caller_that_leaves_leaves_nothing_half_done(home: Path) -> None:
    async def go() -> None:
        office = Office(home)
        async with office.tasks:
            call = asyncio.create_task(office.step("one"))
            await asyncio.sleep(0)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            await until(lambda: office.done == said("one"), "all of it was done")
        await office.close()

    run(go())
