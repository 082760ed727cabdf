"""An attempt that is over while a hop's worker is still at it: that ends nothing but the attempt, and nothing stays."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.core.protocol.federations import AGGREGATOR, cohort, federation, headers, identity, manifest, rng
from tests.nodes.alone import Peers
from tests.nodes.federations import until
from tests.nodes.test_hop_refuses import chunks, hop, last_frame, opened, relay, relay_open, submit
from tests.nodes.test_passage_refuses import sent

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Granularity, Level
from silomix.runtime.core.protocol import shuffler as core
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Header, Manifest, delivery_digest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.core.protocol.silo import Silo
from silomix.runtime.net.wire import write_header
from silomix.runtime.nodes.passage import Passage, SumPassage
from silomix.runtime.nodes.rows import TablePassage
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.v1 import body_pb2, services_pb2

TRUSTED = federation(level=Level.TRUSTED)
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
        assert self._goes_on.wait(60), "nobody let it go on"
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


class Arrives:
    """Stands for the aggregator, which takes in a hop's sum, and says so when it is told to."""

    def __init__(self, node: ShufflerNode) -> None:
        self._node, self.says_so = node, asyncio.Event()
        node.line = Peers(Deliver=[self._take])  # type: ignore[method-assign, assignment]

    async def _take(self, frames: Any) -> services_pb2.Delivery:
        async for _ in frames:
            pass
        await self.says_so.wait()
        passage = self._node.passage
        assert passage is not None
        what = delivery_digest(AGGREGATOR, passage.manifest.digest, passage.sent_root)
        signature = identity(AGGREGATOR).sign(what)
        return services_pb2.Delivery(name=AGGREGATOR, root=passage.sent_root, signature=signature)


@pytest.mark.parametrize("again", ["while it goes on", "when it has gone on"])
def test_a_hop_before_whose_line_broke_is_told_that_the_sum_has_gone_on(tmp_path: Path, again: str) -> None:
    """All of it had come by then. The hop sends it once more, and would take a refusal for the end of the attempt."""

    async def go(node: ShufflerNode) -> None:
        aggregator, m = Arrives(node), await opened(node)
        for h in headers(m, TRUSTED):
            await node.step(core.HeaderIn(h, "hop-1"))
        frames = [relay_open(m), *await sent(node.workers, TRUSTED)]
        broken = asyncio.ensure_future(relay(node, frames))
        passage = node.passage
        assert passage is not None
        await until(lambda: bool(passage.sent_root), "the sum has gone on, and nobody has said so")
        broken.cancel()
        await asyncio.gather(broken, return_exceptions=True)
        held = Held(passage, "_take")
        if again == "while it goes on":
            second = asyncio.ensure_future(relay(node, frames))
            await held.begun()
        aggregator.says_so.set()
        await until(lambda: node.core.state is core.State.DONE and node.passage is None, "it is forgotten")
        held.let_go()
        delivery = await (second if again == "while it goes on" else relay(node, frames))
        assert delivery.root == passage.came

    hop(tmp_path, go, "hop-2", TRUSTED)


def test_a_hop_before_is_not_told_so_of_a_sum_whose_attempt_was_overtaken(tmp_path: Path) -> None:
    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        for h in headers(m, TRUSTED):
            await node.step(core.HeaderIn(h, "hop-1"))
        assert node.passage is not None
        held = Held(node.passage, "_take")
        coming = asyncio.ensure_future(relay(node, [relay_open(m), *await sent(node.workers, TRUSTED)]))
        await held.begun()
        await opened(node, manifest(TRUSTED, attempt=2))
        held.let_go()
        with pytest.raises(PeerFault) as caught:
            await coming
        assert caught.value.reason is Reason.FENCED

    hop(tmp_path, go, "hop-2", TRUSTED)
