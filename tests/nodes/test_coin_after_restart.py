"""A hop that is started again in a tamper check states nothing of a vector that it has not signed for, or has in part.

Its trail went out before, and the aggregator may have the sum already. What it stated of anything else would be false,
under its own signature: it would be the one who lied.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.core.protocol.checks import F, bodies
from tests.core.protocol.federations import cohort, identity, manifest, rng, secret
from tests.core.protocol.hops import opening
from tests.nodes.alone import Peers
from tests.nodes.federations import until
from tests.nodes.test_hop_refuses import hop, inbox, opened, relay_open, why
from tests.nodes.test_passage_refuses import frames_of

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.tamper import EquationKind
from silomix.runtime.core.protocol import shuffler as core
from silomix.runtime.core.protocol.check.forms import scalars_of
from silomix.runtime.core.protocol.check.said import Subject, toss
from silomix.runtime.core.protocol.messages import Cohort
from silomix.runtime.core.protocol.release import PadContext, Ready, Trail, bodies_root, pad_digest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.core.protocol.silo import Silo
from silomix.runtime.net.history import read_trails
from silomix.runtime.nodes.check import hop as checking
from silomix.runtime.nodes.passage import Cover, SumPassage
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.v1 import services_pb2

Frame = services_pb2.RelayFrame
M = manifest(F)


SEALINGS = {silo: Silo(F, identity(silo)).sealing(M, rng(silo)) for silo in F.silo_names}
HEADERS = [one.header for one in SEALINGS.values()]
C: Cohort = cohort(M, HEADERS)


async def sent_by_hop_1(node: ShufflerNode, pad: str = "pad") -> list[Frame]:
    """What the hop before sends: another vector, under another pad."""
    passage, own = SumPassage(M, "hop-1", node.workers), secret(pad, "hop-1")
    passage.headers = list(HEADERS)
    passage.cover = Cover(own, PadContext(C.digest, b"", "hop-1", M.chunk_parameters), pad_digest(own))
    await passage.settle(C)
    await passage.trailed(bodies_root(body.root for body in bodies(C)), (), bodies(C))
    await passage.take_all()
    return await frames_of(passage, "hop-1")


class Arrived:
    """Stands for the aggregator, which gets the hop's sum, and keeps what was signed."""

    def __init__(self, node: ShufflerNode) -> None:
        self.trails: tuple[Trail, ...] = ()
        node.line = Peers(Deliver=[self.take])  # type: ignore[method-assign, assignment]

    async def take(self, frames: Any) -> None:
        async for raw in frames:
            frame = Frame.FromString(raw)
            if frame.WhichOneof("kind") == "trailer":
                self.trails = read_trails(list(frame.trailer.trails))
        await asyncio.Event().wait()


async def come(node: ShufflerNode, frames: list[Frame]) -> None:
    """Let what the hop before sends come in, and the line break then."""
    sent = [relay_open(M), *frames]
    task = asyncio.ensure_future(node.take_sum("hop-1", inbox(node, "hop-1", Frame, sent, silent=True)))
    await until(lambda: node.core.state is core.State.RELEASING, "the cohort is here")
    passage = node.passage
    assert passage is not None
    chunks = sum(frame.WhichOneof("kind") == "chunk" for frame in frames)
    await until(lambda: len(passage._came) == chunks, "all chunks that were sent are here")
    if chunks == passage.chunks:
        await until(lambda: bool(passage.sent_root), "the sum has gone on")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def coin(trails: tuple[Trail, ...]) -> core.CoinIn:
    subject = Subject(C, tuple(HEADERS), bodies(C), Ready(M.digest, M.model, trails))
    shares = {silo: one.share for silo, one in SEALINGS.items() if one.share is not None}
    tosses = tuple(toss(subject, share.value, identity(silo)) for silo, share in shares.items())
    return core.CoinIn(M.digest, trails, bodies(C), tosses)


def whole_sum(directory: Path) -> tuple[Trail, ...]:
    """The first process passes the sum on, and is killed when the aggregator has it."""

    async def go(node: ShufflerNode) -> tuple[Trail, ...]:
        arrived = Arrived(node)
        await opened(node, M)
        await come(node, await sent_by_hop_1(node))
        await until(lambda: bool(arrived.trails), "the aggregator has the sum")
        return arrived.trails

    made: tuple[Trail, ...] = hop(directory, go, "hop-2", F)
    return made


def test_a_coin_is_answered_once_the_whole_sum_has_passed_again(tmp_path: Path) -> None:
    trails = whole_sum(tmp_path)

    async def go(node: ShufflerNode) -> None:
        Arrived(node)
        await opened(node, M)
        frames = await sent_by_hop_1(node)
        await come(node, frames[:-2])  # without the last chunk, and the trailer
        with pytest.raises(PeerFault) as caught:
            await node.step(coin(trails))
        assert caught.value.reason is Reason.BUSY
        assert not node.core.stated
        await come(node, frames)
        answer = (await node.step(coin(trails)))[-1]
        assert isinstance(answer, core.Answer)
        passage = node.passage
        assert isinstance(passage, SumPassage)
        assert passage.taken is not None
        said = answer.statement
        assert list(said.scalars[:2]) == scalars_of(said.coin, layout(M), [passage.taken, passage.sum])

    hop(tmp_path, go, "hop-2", F)


def speak(passage: SumPassage, trails: tuple[Trail, ...]) -> None:
    subject = Subject(C, tuple(HEADERS), bodies(C), Ready(M.digest, M.model, trails))
    checking.truth(passage, {}, EquationKind.EDGE, subject, bytes(32), F.policy)


SPEAKS: dict[str, Callable[[SumPassage, tuple[Trail, ...]], Any]] = {
    "an answer": lambda passage, trails: checking.measure(passage, bytes(32), trails[1]),
    "a defence": speak,
}


@pytest.mark.parametrize("what", SPEAKS)
def test_nothing_is_stated_of_another_sum_than_was_signed_for(tmp_path: Path, what: str) -> None:
    """The hop before sends another one to a hop that was started again, and shows the trail of the first."""
    trails = whole_sum(tmp_path)

    async def go(node: ShufflerNode) -> None:
        Arrived(node)
        await opened(node, M)
        await come(node, await sent_by_hop_1(node, "another pad"))
        with pytest.raises(PeerFault) as caught:
            await node.step(coin(trails))
        assert caught.value.reason is Reason.WRONG_SEQUENCE
        assert not node.core.stated
        passage = node.passage
        assert isinstance(passage, SumPassage)
        with pytest.raises(PeerFault) as caught:
            SPEAKS[what](passage, trails)
        assert caught.value.reason is Reason.WRONG_SEQUENCE

    hop(tmp_path, go, "hop-2", F)


@pytest.mark.parametrize("part", ["came", "sent"])
def test_both_ends_of_what_passed_are_compared_with_what_was_signed_for(tmp_path: Path, part: str) -> None:
    """One follows from the other as long as this hop computes rightly, and its word is its own either way."""
    trails = whole_sum(tmp_path)

    async def go(node: ShufflerNode) -> None:
        Arrived(node)
        await opened(node, M)
        await come(node, await sent_by_hop_1(node))
        passage = node.passage
        assert isinstance(passage, SumPassage)
        own = trails[1]
        checking.check_passed(passage, own)
        false = replace(own, came=bytes(32)) if part == "came" else replace(own, sent=bytes(32))
        with pytest.raises(PeerFault) as caught:
            checking.check_passed(passage, false)
        assert caught.value.reason is Reason.WRONG_SEQUENCE

    hop(tmp_path, go, "hop-2", F)


def test_a_hop_that_has_lost_its_pad_signs_no_second_story_of_one_sum(tmp_path: Path) -> None:
    """Its file was damaged, and deleted as the message says: with another pad the hop after it would name it."""
    whole_sum(tmp_path)
    (pad,) = tmp_path.rglob("pad-1-*")
    pad.unlink()

    async def go(node: ShufflerNode) -> None:
        assert await why(node.step(replace(opening(M), now=node.clock()))) is Reason.FENCED

    hop(tmp_path, go, "hop-2", F)
