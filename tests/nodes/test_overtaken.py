"""An attempt that is over while a hop's worker is still at it: that ends nothing but the attempt, and nothing stays."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.core.protocol.federations import cohort, federation, headers, identity, manifest, rng
from tests.nodes.federations import until
from tests.nodes.test_hop_refuses import chunks, hop, last_frame, opened, submit

from silomix.runtime.core.numbers.plan import Granularity, Level
from silomix.runtime.core.protocol import shuffler as core
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Header, Manifest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.core.protocol.silo import Silo
from silomix.runtime.net.wire import write_header
from silomix.runtime.nodes.passage import Passage, SumPassage
from silomix.runtime.nodes.rows import TablePassage
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.v1 import body_pb2

MASKED = federation(4, 2)
GROUPS = federation(6, 2, group_size=3, minimum_cohort=6)
LITERAL = federation(4, 2, level=Level.TRUSTED, granularity=Granularity.MODEL)


class Held:
    """Stops what a passage has a worker do, until a test lets it go on."""

    def __init__(self, passage: Passage, what: str, skip: int = 0) -> None:
        self._goes_on, self.began, self._skip = threading.Event(), threading.Event(), skip
        self._run = getattr(passage, what)
        setattr(passage, what, self)

    def __call__(self, *arguments: Any) -> Any:
        if self._skip:
            self._skip -= 1
            return self._run(*arguments)
        self.began.set()
        assert self._goes_on.wait(10)
        return self._run(*arguments)

    async def begun(self) -> None:
        await until(self.began.is_set, "a worker is at it")

    def let_go(self) -> None:
        self._goes_on.set()


async def whole_body(node: ShufflerNode, m: Manifest, h: Header) -> None:
    of = chunks(m)
    if node.federation is LITERAL:
        for chunk, i in zip(of, range(len(of)), strict=True):
            chunk.planes[:] = [bytes(4 * layout(m).length(i))]
    frame = body_pb2.Frame
    await submit(node, [frame(header=write_header(h)), *(frame(chunk=c) for c in of), last_frame(h, of)], h.silo)


async def overtaken(node: ShufflerNode, held: Held) -> None:
    """The aggregator begins the next attempt while the worker is held; then it goes on."""
    await held.begun()
    passage = node.passage
    await opened(node, manifest(node.federation, attempt=2))
    sending = node._sending
    held.let_go()
    others = {sending, asyncio.current_task()}
    await until(lambda: not set(node.tasks._tasks) - others, "what was under way is over")
    assert node.core.state is core.State.OPEN
    assert node.core.manifest.attempt == 2
    assert passage is not node.passage is not None
    assert not list(node.spool.iterdir())


async def spare(node: ShufflerNode, m: Manifest, sender: str) -> None:
    """A silo begins bodies and ends none: every hop has masks to put back."""
    for number in range(2):
        h = Silo(MASKED, identity("silo-4")).sealing(m, rng(("never ended", number))).header
        await node.step(core.HeaderIn(h, sender))


def headers_of(m: Manifest, f: Federation = MASKED) -> list[Header]:
    if f.plan.level is Level.TRUSTED:
        return headers(m, f)
    return [Silo(f, identity(silo)).sealing(m, rng(silo)).header for silo in f.silo_names]


async def all_masks_off(node: ShufflerNode) -> Passage:
    passage = node.passage
    assert isinstance(passage, SumPassage)
    await asyncio.gather(*passage._pending)
    return passage


def test_while_hop_1_puts_the_masks_of_absentees_back(tmp_path: Path) -> None:
    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        await spare(node, m, "silo-4")
        for h in headers_of(m)[:3]:
            await whole_body(node, m, h)
        held = Held(await all_masks_off(node), "_apply")
        await node.step(core.Tick(node.clock() + m.deadline_s + 1))
        await overtaken(node, held)

    hop(tmp_path, go, f=MASKED)


def test_while_a_later_hop_puts_the_masks_of_absentees_back(tmp_path: Path) -> None:
    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        await spare(node, m, "hop-1")
        of = headers_of(m)[:3]
        for h in of:
            await node.step(core.HeaderIn(h, "hop-1"))
        held = Held(await all_masks_off(node), "_apply")
        await node.step(core.CohortIn(cohort(m, of), None))
        await overtaken(node, held)

    hop(tmp_path, go, "hop-2", MASKED)


@pytest.mark.parametrize("f", [GROUPS, LITERAL], ids=["groups", "literal"])
@pytest.mark.parametrize("lot", [0, 1])
def test_while_hop_1_adds_or_shuffles_the_bodies_that_it_has_spooled(tmp_path: Path, f: Federation, lot: int) -> None:
    """They are deleted under its hands, and so is what it has made of them."""

    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        passage = node.passage
        assert isinstance(passage, TablePassage)
        assert passage.layout.chunks > lot
        held = Held(passage, "_take_lot", skip=lot)
        for h in headers_of(m, f):
            await whole_body(node, m, h)
        await overtaken(node, held)

    hop(tmp_path, go, f=f)


def test_what_a_worker_makes_too_late_is_deleted(tmp_path: Path) -> None:
    """It has read all bodies before they are gone, and writes to a file that was not there yet."""

    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        assert node.passage is not None
        held = Held(node.passage, "_shuffle")
        for h in headers_of(m, LITERAL):
            await whole_body(node, m, h)
        await overtaken(node, held)

    hop(tmp_path, go, f=LITERAL)
