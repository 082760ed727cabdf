"""A node's eye on its files: whatever changes is found, also while the last change is being read."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from silomix.runtime.nodes.changes import renewal
from silomix.runtime.nodes.changes.renewal import Renewal
from silomix.runtime.nodes.node import Node
from silomix.runtime.store.home import State

LIMIT_S = 10.0


class Eyes:
    """A node of which only the eyes are there: each look notes the epochs that it finds."""

    def __init__(self, place: Path) -> None:
        """`reads` is called in each look, once the directories were listed."""
        self.config = SimpleNamespace(certificate=None, key=None, agreement=place, state=State(place / "state"))
        self.federation, self.tls, self.succession = SimpleNamespace(pinned=True), None, self
        self.place, self.looks = place / "epochs", list[set[str]]()
        self.reads: Callable[[], object] = lambda: None
        self.looked = asyncio.Event()

    async def work(self, run: Callable[..., Any], *arguments: object) -> Any:
        return run(*arguments)

    async def look(self) -> None:
        self.looks.append({path.name for path in self.place.iterdir()})
        self.reads()
        self.looked.set()

    def epoch(self, name: str) -> None:
        (self.place / name).mkdir(parents=True)
        (self.place / name / "federation.toml").touch()

    async def next_look(self) -> set[str]:
        async with asyncio.timeout(LIMIT_S):
            await self.looked.wait()
        self.looked.clear()
        return self.looks[-1]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "LOOK_S", 0.01)


async def test_what_comes_while_the_last_change_is_read_is_found_too(tmp_path: Path) -> None:
    eyes = Eyes(tmp_path)
    eyes.epoch("1")  # it came after the start had read everything, and before the first look
    watching = asyncio.create_task(Renewal(cast("Node", eyes))._watch_files())
    assert await eyes.next_look() == {"1"}

    def late() -> None:
        eyes.reads = lambda: None
        eyes.epoch("3")

    eyes.reads = late
    eyes.epoch("2")
    assert await eyes.next_look() == {"1", "2"}
    assert await eyes.next_look() == {"1", "2", "3"}

    # Nothing is read again while nothing changes.
    seen = len(eyes.looks)
    await asyncio.sleep(0.1)
    assert len(eyes.looks) == seen
    watching.cancel()
