"""What passes between two hops is what its sender signed: chunk by chunk, whole, for this cohort, and no other way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.core.protocol.checks import F as CHECKED
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
from tests.core.protocol.test_grouping import grouping

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Overwritten, commitment
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.messages import body_root, chunk_digest
from silomix.runtime.core.protocol.release import PadContext, bodies_root, pad_digest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.core.protocol.silo import Silo
from silomix.runtime.net.history import read_trail, write_trail
from silomix.runtime.net.wire import write_header
from silomix.runtime.nodes.passage import Cover, SumPassage
from silomix.runtime.nodes.rows import GroupsPassage, make_passage
from silomix.runtime.nodes.shuffler import Spool
from silomix.v1 import body_pb2, services_pb2

F = federation(level=Level.TRUSTED)
MASKED, GROUPS = federation(), federation(6, 2, group_size=3, minimum_cohort=6)
M = manifest(F)
HEADERS = headers(M, F)
C = cohort(M, HEADERS)
COVER = Cover(secret("pad"), PadContext(C.digest, b"", "hop-1", M.chunk_parameters), pad_digest(secret("pad")))
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


def a_header() -> Frame:
    return Frame(header=write_header(HEADERS[0]))


def test_what_an_honest_hop_sends_is_taken() -> None:
    assert received(lambda _: None) is None
    assert received(lambda frames: frames.insert(2, frames[1])) is None, "a chunk that comes again is the same"
    assert received(lambda frames: frames.insert(0, a_header())) is None


STORIES: dict[str, tuple[Change, Reason]] = {
    "no trailer": (lambda frames: frames.pop(), Reason.WRONG_SEQUENCE),
    "an early trailer": (lambda frames: frames.pop(2), Reason.WRONG_SEQUENCE),
    "a trailer before the cohort": (lambda frames: frames.insert(0, frames[-1]), Reason.WRONG_SEQUENCE),
    "a chunk before the cohort": (lambda frames: frames.insert(0, frames[1]), Reason.WRONG_SEQUENCE),
    "a header behind the cohort": (lambda frames: frames.insert(1, a_header()), Reason.WRONG_SEQUENCE),
    "the cohort twice": (lambda frames: frames.insert(1, frames[0]), Reason.WRONG_SEQUENCE),
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


def test_a_cohort_is_settled_once() -> None:
    """A broken stream that begins anew names it again: the pad would be put on twice."""

    async def go(workers: ThreadPoolExecutor) -> None:
        passage = SumPassage(M, "hop-1", workers)
        passage.cover = COVER
        await passage.settle(C)
        covered = passage.sum.copy()
        assert covered.any()
        await passage.settle(cohort(M, HEADERS[1:]))
        assert (passage.sum == covered).all()
        assert passage.cohort is C

    run(go)


def test_the_seed_of_a_silo_that_is_left_out_is_overwritten_once_its_mask_is_back() -> None:
    """Nobody needs it any more, and whoever has that silo's body could read it with this."""

    async def go(workers: ThreadPoolExecutor) -> None:
        m = manifest(MASKED)
        passage = SumPassage(m, "hop-1", workers)
        passage.cover = replace(COVER, pad=COVER.pad.copy())
        for silo in MASKED.silo_names:
            made = Silo(MASKED, identity(silo)).sealing(m, rng(("seeds", silo))).header
            await passage.add_header(made, private("hop-1", silo, 1), asyncio.ensure_future)
        seeds = dict(passage._seeds)
        assert len(seeds) == len(MASKED.silo_names)
        await passage.settle(cohort(m, passage.headers[1:]))
        absent = passage.headers[0].digest
        assert {digest for digest, seed in seeds.items() if not any(seed.value)} == {absent}

    run(go)


@pytest.mark.parametrize("kind", [SumPassage, GroupsPassage])
@pytest.mark.parametrize("waits", ["for its turn", "for a worker"])
def test_an_attempt_that_is_over_by_the_time_that_its_cohort_is_settled_ends_as_overwritten(
    kind: type[SumPassage | GroupsPassage], waits: str
) -> None:
    async def go(workers: ThreadPoolExecutor) -> None:
        f = GROUPS if kind is GroupsPassage else MASKED
        m = manifest(f)
        passage = make_passage(m, "hop-1", workers)
        assert isinstance(passage, kind)
        for silo in f.silo_names:
            made = Silo(f, identity(silo)).sealing(m, rng(("seeds", silo))).header
            await passage.add_header(made, private("hop-1", silo, 1), asyncio.ensure_future)
        some = passage.headers if kind is GroupsPassage else passage.headers[1:]
        c = cohort(m, some)
        partition = grouping(c, 0, 0, 0, 1, 1, 1) if kind is GroupsPassage else None
        turn = passage._busy if isinstance(passage, SumPassage) and waits == "for a worker" else passage._settling
        if isinstance(passage, SumPassage):
            await asyncio.gather(*passage._pending)
        async with turn:
            settling = asyncio.ensure_future(passage.settle(c, partition))
            for _ in range(9):  # until it waits
                await asyncio.sleep(0)
            passage.close()
        with pytest.raises(Overwritten):
            await settling

    run(go)


@pytest.mark.parametrize("lost", ["the pad", "a seed"])
def test_no_sum_is_settled_whose_secrets_were_overwritten_meanwhile(lost: str) -> None:
    """Whoever gives an attempt up overwrites its secrets while others may still wait for their turn with them.

    A pad of zeros would cover nothing: it is as if the hop had sent the sum in clear, before anybody has signed.
    """

    async def go(workers: ThreadPoolExecutor) -> None:
        m = manifest(MASKED)
        passage = SumPassage(m, "hop-1", workers)
        passage.cover = replace(COVER, pad=COVER.pad.copy())
        spawned: list[asyncio.Task[None]] = []

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            spawned.append(asyncio.ensure_future(work))
            return spawned[-1]

        if lost == "a seed":
            sealing = Silo(MASKED, identity("silo-1")).sealing(m, rng("seeds"))
            async with passage._busy:
                await passage.add_header(sealing.header, private("hop-1", "silo-1", 1), spawn)
                await asyncio.sleep(0)
        if lost == "the pad":
            passage.cover.pad.wipe()
        else:
            passage.close()
        with pytest.raises(Overwritten):
            await passage.settle(C)
        await asyncio.gather(*spawned)  # no task of the node ends with an exception
        assert passage.cohort is None
        assert not passage.sum.any()
        assert not any(passage.cover.pad.value)

    run(go)


def test_a_header_is_passed_on_before_the_cohort_is_known() -> None:
    async def go(workers: ThreadPoolExecutor) -> None:
        passage = SumPassage(M, "hop-1", workers)
        assert not passage._news(0)
        await passage.add_header(HEADERS[0], None, lambda work: work.close())
        assert passage._news(0)
        assert not passage._news(1)
        passage.cohort = C
        assert passage._news(1)

    run(go)


def test_a_chunk_is_passed_on_when_it_is_done_and_not_before() -> None:
    async def go(workers: ThreadPoolExecutor) -> None:
        passage = SumPassage(M, "hop-1", workers)
        assert not passage._done(0)
        await passage._advance(1)
        assert passage._done(0)
        assert not passage._done(1)

    run(go)


@pytest.mark.parametrize(("last", "group_size", "told"), [(False, 0, 7), (True, 0, 7), (False, 3, 7), (True, 3, 0)])
def test_the_aggregator_gets_no_headers_where_sums_leave_by_group(last: bool, group_size: int, told: int) -> None:
    """It would know whose seed it opens."""
    f = federation(silos=7, group_size=group_size, level=Level.TRUSTED)
    m = manifest(f)
    of = headers(m, f)
    c = cohort(m, of)

    async def go(workers: ThreadPoolExecutor) -> int:
        passage = make_passage(m, "hop-2", workers, Path("nothing-is-written"))
        for one in of:
            await passage.add_header(one, None, lambda work: work.close())
        await passage.settle(c, grouping(c, 0, 0, 0, 1, 1, 1, 1) if group_size else None)
        kinds = []
        async for frame in passage.frames(identity("hop-2"), last=last):
            assert isinstance(frame, Frame)
            kinds.append(frame.WhichOneof("kind"))
            if kinds[-1] == "cohort":
                break
        return kinds.count("header")

    assert run(go) == told


@pytest.mark.parametrize(
    ("level", "node", "kept"),
    [
        (Level.MALICIOUS, "hop-1", True),
        (Level.MALICIOUS, "aggregator", False),
        (Level.SEMI_HONEST, "hop-1", False),
        (Level.TRUSTED, "hop-1", False),
    ],
)
def test_only_a_hop_that_has_to_answer_a_coin_keeps_what_came_in(level: Level, node: str, kept: bool) -> None:
    m = manifest(CHECKED if level is Level.MALICIOUS else federation(level=level))

    async def go(workers: ThreadPoolExecutor) -> bool:
        return SumPassage(m, node, workers).taken is not None

    assert run(go) is kept


@pytest.mark.parametrize("level", [Level.SEMI_HONEST, Level.TRUSTED])
def test_the_aggregator_gets_each_group_s_own_seeds_in_an_order_that_names_nobody(level: Level) -> None:
    f = federation(silos=7, group_size=3, level=level)
    m = manifest(f)
    of = headers(m, f)
    c = cohort(m, of)
    seeds = {h.silo: h.seeds[-1] for h in of if level is not Level.TRUSTED}

    async def go(workers: ThreadPoolExecutor) -> None:
        passage = make_passage(m, "hop-2", workers, Path("nothing-is-written"))
        assert isinstance(passage, GroupsPassage)
        passage.headers = list(of)
        groups = passage._without_names(c, grouping(c, 0, 1, 0, 1, 0, 1, 1))
        for group, places in zip(groups, ((0, 2, 4), (1, 3, 5, 6)), strict=True):
            own = [seeds[c.silos[place]] for place in places if seeds]
            assert group.size == len(places)
            assert group.seeds == tuple(sorted(own, key=lambda seed: seed.commitment))

    run(go)


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
