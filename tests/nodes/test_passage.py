"""What passes between two hops is what its sender signed: chunk by chunk, whole, for this cohort, and no other way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.core.protocol.federations import (
    cohort,
    federation,
    flipped,
    header,
    headers,
    identity,
    manifest,
    private,
    rng,
    secret,
)

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import commitment
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.messages import body_root, chunk_digest
from silomix.runtime.core.protocol.release import PadContext, bodies_root
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.core.protocol.silo import Silo
from silomix.runtime.net.history import read_trail, write_trail
from silomix.runtime.nodes.passage import Cover, SumPassage
from silomix.runtime.nodes.shuffler import Spool
from silomix.v1 import body_pb2, services_pb2

F = federation(level=Level.TRUSTED)
M = manifest(F)
HEADERS = headers(M, F)
C = cohort(M, HEADERS)
COVER = Cover(secret("pad"), PadContext(C.digest, b"", "hop-1", M.chunk_parameters))
Frame = services_pb2.RelayFrame
Change = Callable[[list[Frame]], object]
T = TypeVar("T")


def run(work: Callable[[ThreadPoolExecutor], Awaitable[T]]) -> T:
    async def go() -> T:
        with ThreadPoolExecutor(1) as workers:
            return await work(workers)

    return asyncio.run(go())


async def sent(workers: ThreadPoolExecutor) -> list[Frame]:
    """What an honest hop 1 sends to hop 2: it opens, names the cohort, and has two chunks and a trailer."""
    passage = SumPassage(M, "hop-1", workers)
    passage.cover = COVER
    await passage.settle(C)
    await passage.take_all()
    await passage.trailed(bodies_root([secret("body", h.silo).value for h in HEADERS]))
    frames = [f async for f in passage.frames(identity("hop-1"), last=False)]
    return [Frame.FromString(f if isinstance(f, bytes) else f.SerializeToString()) for f in frames][1:]


def received(change: Change) -> Reason | None:
    """Let hop 2 take in what hop 1 sends, with a change; return why it refuses, if it does."""

    async def go(workers: ThreadPoolExecutor) -> Reason | None:
        frames = await sent(workers)
        change(frames)
        passage = SumPassage(M, "hop-2", workers)

        async def stream() -> AsyncIterator[Frame]:
            for frame in frames:
                yield frame

        async def nothing(*_: object) -> None:
            pass

        try:
            await passage.receive(stream(), "hop-1", F, nothing, nothing)
        except PeerFault as fault:
            return fault.reason
        return None

    return run(go)


def signed_by(name: str, **fields: Any) -> Change:
    """A trailer whose trail has other fields, and somebody's signature over that."""

    def change(frames: list[Frame]) -> None:
        trails = frames[-1].trailer.trails
        other = replace(read_trail(trails[0]), **fields).signed(identity(name))
        trails[0].CopyFrom(write_trail(other))

    return change


def unsigned(**fields: Any) -> Change:
    """A trailer whose trail has other fields under the old signature."""

    def change(frames: list[Frame]) -> None:
        trails = frames[-1].trailer.trails
        trails[0].CopyFrom(write_trail(replace(read_trail(trails[0]), **fields)))

    return change


def chunk(frames: list[Frame], index: int) -> body_pb2.Chunk:
    return frames[1 + index].chunk


def other(frame: Frame) -> Frame:
    """The same chunk with another content."""
    copy = Frame.FromString(frame.SerializeToString())
    copy.chunk.planes[0] = bytes([copy.chunk.planes[0][0] ^ 1]) + copy.chunk.planes[0][1:]
    return copy


def test_what_an_honest_hop_sends_is_taken() -> None:
    assert received(lambda _: None) is None
    assert received(lambda frames: frames.insert(2, frames[1])) is None, "a chunk that comes again is the same"


STORIES: dict[str, tuple[Change, Reason]] = {
    "no trailer": (lambda frames: frames.pop(), Reason.WRONG_SEQUENCE),
    "an early trailer": (lambda frames: frames.pop(2), Reason.WRONG_SEQUENCE),
    "a trailer before the cohort": (lambda frames: frames.insert(0, frames[-1]), Reason.WRONG_SEQUENCE),
    "a chunk before the cohort": (lambda frames: frames.insert(0, frames[1]), Reason.WRONG_SEQUENCE),
    "a chunk too many": (lambda frames: frames.insert(3, Frame(chunk=body_pb2.Chunk(index=2))), Reason.WRONG_LENGTH),
    "a gap": (lambda frames: frames.pop(1), Reason.WRONG_SEQUENCE),
    "a chunk at the wrong place": (
        lambda frames: setattr(chunk(frames, 1), "first_parameter", 5),
        Reason.WRONG_SEQUENCE,
    ),
    "a chunk with another number": (lambda frames: setattr(chunk(frames, 0), "index", 1), Reason.WRONG_SEQUENCE),
    "a chunk again with another content": (
        lambda frames: frames.insert(2, other(frames[1])),
        Reason.ROOT_MISMATCH,
    ),
    "another chunk than was signed": (lambda frames: frames.__setitem__(1, other(frames[1])), Reason.ROOT_MISMATCH),
    "another root, signed": (signed_by("hop-1", sent=secret("root").value), Reason.ROOT_MISMATCH),
    "another root": (unsigned(sent=secret("root").value), Reason.BAD_SIGNATURE),
    "another origin": (unsigned(came=secret("root").value), Reason.BAD_SIGNATURE),
    "another pad": (unsigned(pad=secret("pad").value), Reason.BAD_SIGNATURE),
    "a bad signature": (
        lambda frames: setattr(
            frames[-1].trailer.trails[0], "signature", flipped(frames[-1].trailer.trails[0].signature)
        ),
        Reason.BAD_SIGNATURE,
    ),
    "the aggregator's signature": (signed_by("aggregator"), Reason.BAD_SIGNATURE),
    "the trail of another hop": (signed_by("hop-2", hop="hop-2"), Reason.WRONG_CHAIN),
    "a signature for another cohort": (
        signed_by("hop-1", cohort=cohort(M, HEADERS[1:]).digest),
        Reason.WRONG_MANIFEST,
    ),
    "no trail": (lambda frames: frames[-1].trailer.ClearField("trails"), Reason.WRONG_CHAIN),
    "a trail too many": (
        lambda frames: frames[-1].trailer.trails.append(frames[-1].trailer.trails[0]),
        Reason.WRONG_CHAIN,
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_is_not_as_it_was_signed_is_refused(story: str) -> None:
    change, reason = STORIES[story]
    assert received(change) is reason


@pytest.mark.parametrize("node", ["hop-1", "hop-2", "aggregator"])
def test_a_seed_that_opens_and_is_not_the_one_committed_to_is_refused(node: str) -> None:
    f = federation()
    m = manifest(f)
    good = Silo(f, identity("silo-1")).sealing(m, rng("seeds")).header
    place = [seed.recipient for seed in good.seeds].index(node)
    context = m.context(m.layer(node))
    bad = replace(good.seeds[place], commitment=commitment(secret("another"), context))
    lying = replace(good, seeds=(*good.seeds[:place], bad, *good.seeds[place + 1 :]))

    async def go(workers: ThreadPoolExecutor) -> tuple[Reason, Reason]:
        passage = SumPassage(m, node, workers)
        key = private(node, "silo-1", 1)
        assert passage.own_seed(good, key)
        with pytest.raises(PeerFault) as another:
            passage.own_seed(lying, key)
        with pytest.raises(PeerFault) as garbage:
            passage.own_seed(header(m, "silo-1"), key)
        assert another.value.details["peer"] == garbage.value.details["peer"] == "silo-1"
        return another.value.reason, garbage.value.reason

    assert run(go) == (Reason.SEAL_BROKEN, Reason.SEAL_BROKEN)


def test_a_body_that_is_not_whole_has_no_root(tmp_path: Path) -> None:
    """Hop 1 counts what it has asked for; this holds also if it should ask for less."""
    spool = Spool(tmp_path, HEADERS[0], M)
    with pytest.raises(PeerFault) as nothing:
        spool.finish()
    shape = layout(M)
    zeros = [(shape.start(i), [bytes(size) for size in M.plan.plane_bytes(shape.length(i))]) for i in range(2)]
    chunks = [body_pb2.Chunk(index=i, first_parameter=at, planes=planes) for i, (at, planes) in enumerate(zeros)]
    spool.take([chunks[0]])
    with pytest.raises(PeerFault) as early:
        spool.finish()
    assert nothing.value.reason is early.value.reason is Reason.WRONG_SEQUENCE
    assert early.value.details["peer"] == HEADERS[0].silo
    with pytest.raises(PeerFault) as again:
        spool.take([chunks[0]])
    assert again.value.reason is Reason.WRONG_SEQUENCE
    spool.take([chunks[1]])
    assert spool.finish() == body_root([chunk_digest(i, at, planes) for i, (at, planes) in enumerate(zeros)])
    spool.drop()
    assert not list(tmp_path.iterdir())
