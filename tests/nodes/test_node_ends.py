"""A node that ends: it says why if it has no place any more, and nobody who waits for it is left without an answer."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.nodes.federations import make, run

from silomix.runtime.config.load import load_node
from silomix.runtime.core.errors import UserError
from silomix.runtime.nodes.node import Node


class Leaver(Node):
    """A node that finds at once that it has no place, or is just done."""

    why = ""

    async def main(self) -> None:
        """Leave."""
        if self.why:
            self.leave(self.why)


class CutShort(Node):
    """A node whose work ends as cancelled, as a call did whose channel was closed."""

    async def main(self) -> None:
        """Fall over."""
        raise asyncio.CancelledError


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("leaver") / "f"
    make(directory, 3, 1, insecure=True)
    return directory / "shuffler-1"


def test_a_node_without_a_place_ends_with_the_reason_and_one_that_is_done_with_none(home: Path) -> None:
    run(Leaver(load_node(home)).run())
    leaver = Leaver(load_node(home))
    leaver.why = "epoch 2 has begun, and it is not in it"
    with pytest.raises(UserError, match="epoch 2 has begun, and it is not in it"):
        run(leaver.run())


def test_a_node_whose_work_is_cut_short_does_not_stay_up_and_do_nothing(home: Path) -> None:
    """A task group takes no notice of a task that ends as cancelled."""
    with pytest.raises(ExceptionGroup) as caught:
        run(CutShort(load_node(home)).run())
    assert caught.group_contains(RuntimeError, match="cut short, and nobody had told it to end")


def test_who_waits_for_another_node_hears_that_this_one_leaves(home: Path) -> None:
    async def go() -> None:
        node = Leaver(load_node(home))
        ended: list[bool] = []

        async def forever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        async def soon() -> str:
            return "here"

        assert await node.unless_stopped(soon()) == "here"
        waiting = asyncio.create_task(node.unless_stopped(forever()))
        await asyncio.sleep(0)
        node.stopping.set()
        with pytest.raises(ConnectionAbortedError, match="this node is leaving"):
            await waiting
        assert ended == [True]
        await node.close()

    run(go())


def test_a_task_that_runs_aside_is_waited_for_and_then_whoever_was_cancelled_is(home: Path) -> None:
    """Else the caller would go on as if the task had ended well."""

    async def go() -> None:
        node = Leaver(load_node(home))
        assert await node.work_aside(lambda: 7) == 7
        may_end, began = threading.Event(), threading.Event()

        def task() -> None:
            began.set()
            may_end.wait(10)

        caller = asyncio.create_task(node.work_aside(task))
        await asyncio.to_thread(began.wait, 10)
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()  # a task is called once at a time
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await node.close()

    run(go())
