"""What else a passage refuses: trailers that leave something out, rows out of place. What it overwrites at the end."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from tests.core.protocol.checks import F as CHECKED
from tests.core.protocol.checks import bodies, committed_header, trails
from tests.core.protocol.federations import (
    cohort,
    federation,
    flipped,
    headers,
    identity,
    manifest,
    private,
    rng,
    secret,
)
from tests.core.protocol.test_grouping import grouping

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Overwritten, Secret
from silomix.runtime.core.numbers.plan import Granularity, Level
from silomix.runtime.core.protocol.check.blame import EquivocationError, check_told_once
from silomix.runtime.core.protocol.check.said import check_bodies
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Cohort, Group, Manifest
from silomix.runtime.core.protocol.release import PadContext, bodies_root, pad_digest
from silomix.runtime.core.protocol.rules import baseline, layout
from silomix.runtime.core.protocol.silo import Silo
from silomix.runtime.net.history import read_trail, write_trail
from silomix.runtime.net.wire import write_cohort, write_grouping, write_groups
from silomix.runtime.nodes import passage as module
from silomix.runtime.nodes.check import hop as checking
from silomix.runtime.nodes.passage import Cover, LastPassage, Passage, SumPassage
from silomix.runtime.nodes.rows import GroupsPassage, make_passage
from silomix.v1 import body_pb2, services_pb2

TRUSTED = federation(level=Level.TRUSTED)
LITERAL = federation(level=Level.TRUSTED, granularity=Granularity.MODEL)
Frame = services_pb2.RelayFrame
Frames = list[Frame]
T = TypeVar("T")


def run(work: Callable[[ThreadPoolExecutor], Awaitable[T]]) -> T:
    async def go() -> T:
        with ThreadPoolExecutor(1) as workers:
            return await asyncio.wait_for(work(workers), 20)

    return asyncio.run(go())


def settled(f: Federation) -> tuple[Manifest, Cohort]:
    """An attempt, and its cohort of all silos."""
    m = manifest(f)
    of = [committed_header(m, silo) for silo in f.silo_names] if f is CHECKED else headers(m, f)
    return m, cohort(m, of)


def cover(m: Manifest, c: Cohort, hop: str, seal: bytes = b"") -> Cover:
    pad = secret("pad", hop)
    return Cover(pad, PadContext(c.digest, seal, hop, m.chunk_parameters), pad_digest(pad))


async def nothing(*_: object) -> None:
    """Let the core have no objections."""


async def take(passage: Passage, frames: Frames, sender: str, f: Federation) -> bytes:
    """Let a node take in what the hop before sends."""

    async def stream() -> AsyncIterator[Frame]:
        for frame in frames:
            yield frame

    return await passage.receive(stream(), sender, f, nothing, nothing)


async def frames_of(passage: Passage, name: str, *, last: bool = False) -> Frames:
    """What an honest hop sends, from the cohort on."""
    made = [f async for f in passage.frames(identity(name), last=last)]
    return [Frame.FromString(f if isinstance(f, bytes) else f.SerializeToString()) for f in made][1:]


async def sent(workers: ThreadPoolExecutor, f: Federation, hop: str = "hop-1") -> Frames:
    """What a hop sends of a sum of nothing, and the hops before it."""
    m, c = settled(f)
    passage = SumPassage(m, hop, workers)
    passage.cover = cover(m, c, hop)
    if hop == "hop-1":
        await passage.settle(c)
        named = bodies(c) if f is CHECKED else ()
        roots = [body.root for body in named] or [secret("body", silo).value for silo in c.silos]
        await passage.trailed(bodies_root(roots), (), named)
        await passage.take_all()
    else:
        await take(passage, await sent(workers, f), "hop-1", f)
    return await frames_of(passage, hop, last=hop != "hop-1")


def refused(f: Federation, change: Callable[[Frames], object], receiver: str = "hop-2") -> Reason | None:
    """Why a node refuses what the hop before it sends, if it does."""

    async def go(workers: ThreadPoolExecutor) -> Reason | None:
        sender = "hop-1" if receiver == "hop-2" else "hop-2"
        frames = await sent(workers, f, sender)
        change(frames)
        m, c = settled(f)
        passage = SumPassage(m, receiver, workers)
        if receiver == "hop-2":
            passage.cover = cover(m, c, receiver)
        try:
            await take(passage, frames, sender, f)
        except PeerFault as fault:
            return fault.reason
        return None

    return run(go)


def signed_anew(place: int, **fields: Any) -> Callable[[Frames], None]:
    """A trail with other fields, signed by its hop."""

    def change(frames: Frames) -> None:
        trails = frames[-1].trailer.trails
        one = replace(read_trail(trails[place]), **fields)
        trails[place].CopyFrom(write_trail(one.signed(identity(one.hop))))

    return change


def as_if_alone(frames: Frames) -> None:
    """The first hop signs for what the last one sends, whose trail is left out."""
    sent_by_last = read_trail(frames[-1].trailer.trails[1]).sent
    del frames[-1].trailer.trails[1]
    signed_anew(0, sent=sent_by_last)(frames)


@pytest.mark.parametrize("f", [TRUSTED, CHECKED], ids=["trusted", "malicious"])
@pytest.mark.parametrize("receiver", ["hop-2", "aggregator"])
def test_what_honest_hops_send_is_taken_by_the_next_and_by_the_aggregator(f: Federation, receiver: str) -> None:
    assert refused(f, lambda _: None, receiver) is None


def test_the_aggregator_takes_no_sum_without_the_trails_of_all_hops() -> None:
    assert refused(TRUSTED, as_if_alone, "aggregator") is Reason.WRONG_CHAIN


def _before_the_last(frame: Frame, frames: Frames) -> None:
    frames.insert(-1, frame)


def test_a_frame_that_is_no_trailer_is_not_taken_for_one() -> None:
    """Nothing is due but a trailer: whatever comes is out of turn, and not a trailer without trails."""
    for frame in (Frame(open=services_pb2.RelayOpen()), Frame(grouping=services_pb2.Grouping()), Frame()):
        assert refused(TRUSTED, partial(_before_the_last, frame)) is Reason.WRONG_SEQUENCE


def test_a_sum_that_was_signed_for_another_grouping_is_refused() -> None:
    assert refused(TRUSTED, signed_anew(0, grouping=bytes(32))) is Reason.WRONG_MANIFEST


def test_bodies_that_the_silos_did_not_sign_are_refused_where_there_is_a_check() -> None:
    def forged(frames: Frames) -> None:
        body = frames[-1].trailer.bodies[0]
        body.signature = flipped(body.signature)

    assert refused(CHECKED, forged) is Reason.BAD_SIGNATURE
    assert refused(CHECKED, lambda frames: frames[-1].trailer.ClearField("bodies")) is Reason.WRONG_SEQUENCE


def test_the_end_of_a_sum_is_not_looked_at_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has every silo's signature, and where two stories were told all of the manifest's are looked at too."""
    looked: list[bool] = []

    def note(*about: Any) -> None:
        looked.append(threading.current_thread() is threading.main_thread())
        check_bodies(*about)

    def note_told(*about: Any) -> None:
        looked.append(threading.current_thread() is threading.main_thread())
        check_told_once(*about)

    monkeypatch.setattr(module, "check_bodies", note)
    monkeypatch.setattr(module, "check_told_once", note_told)
    assert refused(CHECKED, lambda _: None) is None
    assert looked == [False, False]


def test_bodies_are_not_looked_at_where_there_is_no_check() -> None:
    assert refused(TRUSTED, lambda frames: frames[-1].trailer.bodies.add(root=b"short")) is None


def test_a_hop_that_signs_two_sums_of_an_attempt_is_named() -> None:
    async def go(workers: ThreadPoolExecutor) -> str:
        frames, (m, _) = await sent(workers, CHECKED), settled(CHECKED)
        passage = SumPassage(m, "hop-2", workers)
        await take(passage, frames, "hop-1", CHECKED)
        await take(passage, frames, "hop-1", CHECKED)  # a broken stream that begins anew
        signed_anew(0, pad=secret("another").value)(frames)
        with pytest.raises(EquivocationError) as caught:
            await take(passage, frames, "hop-1", CHECKED)
        assert passage.trails[0].pad != secret("another").value
        return caught.value.verdict.culprit

    assert run(go) == "hop-1"


def test_a_hop_that_signs_two_sums_of_an_attempt_is_named_also_if_both_come_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a sum is looked at in a thread: a second one that comes meanwhile has to wait for what was found."""
    both = threading.Barrier(2, timeout=0.5)

    def slowly(*about: Any) -> None:
        with suppress(threading.BrokenBarrierError):  # nobody else looks at the same time
            both.wait()
        check_told_once(*about)

    async def go(workers: ThreadPoolExecutor) -> list[str]:
        frames, (m, _) = await sent(workers, CHECKED), settled(CHECKED)
        passage = SumPassage(m, "hop-2", workers)
        other = [Frame.FromString(frame.SerializeToString()) for frame in frames]
        signed_anew(0, pad=secret("another").value)(other)
        ends = [asyncio.ensure_future(take(passage, each, "hop-1", CHECKED)) for each in (frames, other)]
        await asyncio.wait(ends)
        faults = [end.exception() for end in ends]
        return [fault.verdict.culprit for fault in faults if isinstance(fault, EquivocationError)]

    monkeypatch.setattr(module, "check_told_once", slowly)
    assert run(go) == ["hop-1"]


def test_a_chunk_that_leaves_one_out_is_refused_before_anything_is_made_of_it() -> None:
    """The place that was left out would be passed on with its masks alone."""

    async def go(workers: ThreadPoolExecutor) -> int:
        frames, (m, c) = await sent(workers, TRUSTED), settled(TRUSTED)
        passage = SumPassage(m, "hop-2", workers)
        await passage.settle(c)
        with pytest.raises(PeerFault) as caught:
            await passage.take(frames[2].chunk)
        assert caught.value.reason is Reason.WRONG_SEQUENCE
        return passage.ready

    assert run(go) == 0


def test_a_stream_that_is_refused_further_down_ends_with_that_reason() -> None:
    async def go(workers: ThreadPoolExecutor) -> None:
        passage = SumPassage(manifest(TRUSTED), "hop-2", workers)
        stuck = asyncio.ensure_future(passage.unless_refused(asyncio.Event().wait()))
        await asyncio.sleep(0)
        fault = PeerFault(Reason.SEAL_BROKEN, "garbage")
        passage.refuse(fault)
        with pytest.raises(PeerFault) as caught:
            await stuck
        assert caught.value is fault
        assert await passage.unless_refused(_done()) == "the next stream"

    run(go)


async def _done() -> str:
    return "the next stream"


# Rows and groups

GROUPED = federation(silos=7, group_size=3, level=Level.TRUSTED)


def opening_of(f: Federation, receiver: str) -> Frames:
    """The cohort of a table, and its groups as the receiver is to have them."""
    _, c = settled(f)
    frames = [Frame(cohort=write_cohort(c))]
    if f.policy.group_size and receiver == "aggregator":
        frames.append(Frame(groups=write_groups((Group(3, ()), Group(4, ())))))
    elif f.policy.group_size:
        frames.append(Frame(grouping=write_grouping(grouping(c, 0, 0, 0, 1, 1, 1, 1))))
    return frames


def rows_of(f: Federation) -> Frames:
    """Every chunk of every row of zeros."""
    m, c = settled(f)
    shape, mode = layout(m), baseline(m)
    rows = 2 if mode is None else len(c.silos)
    made = []
    for index in range(shape.chunks * rows):
        lot = index // rows
        sizes = m.plan.plane_bytes(shape.length(lot)) if mode is None else mode.sizes(lot)
        planes = [bytes(size) for size in sizes]
        made.append(Frame(chunk=body_pb2.Chunk(index=index, first_parameter=shape.start(lot), planes=planes)))
    return made


def turned_away(f: Federation, frames: Frames, directory: Path, receiver: str = "hop-2") -> Reason | None:
    """Why a node refuses some frames of a table; nothing if it only waits for more."""

    async def go(workers: ThreadPoolExecutor) -> Reason | None:
        m, _ = settled(f)
        passage = make_passage(m, receiver, workers, None if receiver == "aggregator" else directory)
        try:
            await take(passage, frames, "hop-1", f)
        except PeerFault as fault:
            return None if fault.message.endswith("ended early") else fault.reason
        finally:
            passage.close()
        raise AssertionError("a table has no end without a trailer")

    return run(go)


def test_no_groups_sum_is_passed_on_without_the_pad_that_was_on_its_way(tmp_path: Path) -> None:
    """The attempt may be given up while a worker thread is at it."""

    async def go(workers: ThreadPoolExecutor) -> None:
        m, c = settled(GROUPED)
        passage = make_passage(m, "hop-2", workers, tmp_path)
        assert isinstance(passage, GroupsPassage)
        passage.cover = cover(m, c, "hop-2")
        await passage.settle(c, grouping(c, 0, 0, 0, 1, 1, 1, 1))
        content = np.zeros(sum(m.plan.plane_bytes(passage.layout.length(0))), np.uint8)
        passage._finish(0, 0, content)
        assert content.any()
        passage._pad = None
        with pytest.raises(Overwritten):
            passage._finish(0, 1, content)
        passage.close()

    run(go)


@pytest.mark.parametrize("f", [LITERAL, GROUPED], ids=["literal", "groups"])
@pytest.mark.parametrize("receiver", ["hop-2", "aggregator"])
def test_rows_are_taken_in_their_places_and_in_no_others(f: Federation, receiver: str, tmp_path: Path) -> None:
    opening, rows = opening_of(f, receiver), rows_of(f)
    assert turned_away(f, [*opening, *rows], tmp_path, receiver) is None
    late = Frame.FromString(rows[-1].SerializeToString())
    late.chunk.index += 1
    assert turned_away(f, [*opening, *rows, late], tmp_path, receiver) is Reason.WRONG_SEQUENCE
    moved = Frame.FromString(rows[1].SerializeToString())
    moved.chunk.first_parameter += 1
    assert turned_away(f, [*opening, rows[0], moved], tmp_path, receiver) is Reason.WRONG_SEQUENCE
    assert turned_away(f, [*opening, rows[0], rows[2]], tmp_path, receiver) is Reason.WRONG_SEQUENCE
    short = Frame.FromString(rows[0].SerializeToString())
    short.chunk.planes[0] = short.chunk.planes[0][:-1]
    assert turned_away(f, [*opening, short], tmp_path, receiver) is Reason.WRONG_LENGTH


@pytest.mark.parametrize("f", [LITERAL, GROUPED], ids=["literal", "groups"])
def test_a_table_has_no_trailer_before_its_cohort(f: Federation, tmp_path: Path) -> None:
    assert turned_away(f, [Frame(trailer=services_pb2.RelayTrailer())], tmp_path) is Reason.WRONG_SEQUENCE


@pytest.mark.parametrize(("receiver", "other"), [("hop-2", "aggregator"), ("aggregator", "hop-2")])
def test_the_groups_come_behind_the_cohort_as_the_receiver_is_to_have_them(
    receiver: str, other: str, tmp_path: Path
) -> None:
    """A hop is told who is in which group; the aggregator must not be."""
    (who, groups), (_, others) = opening_of(GROUPED, receiver), opening_of(GROUPED, other)
    assert turned_away(GROUPED, [who, groups], tmp_path, receiver) is None
    assert turned_away(GROUPED, [who, others], tmp_path, receiver) is Reason.WRONG_SEQUENCE
    assert turned_away(GROUPED, [who], tmp_path, receiver) is Reason.WRONG_SEQUENCE


# At the end


@pytest.mark.parametrize("f", [federation(), federation(silos=7, group_size=3)], ids=["sum", "groups"])
def test_seeds_are_overwritten_when_the_attempt_is_over(f: Federation, tmp_path: Path) -> None:
    m = manifest(f)
    one, other = (Silo(f, identity(name)).sealing(m, rng(name)).header for name in ("silo-1", "silo-2"))

    async def go(workers: ThreadPoolExecutor) -> list[bytes]:
        passage = make_passage(m, "hop-1", workers, tmp_path)
        tasks: list[asyncio.Task[None]] = []

        def spawn(work: Any) -> asyncio.Task[None]:
            tasks.append(asyncio.ensure_future(work))
            return tasks[-1]

        for header in (one, other):
            await passage.add_header(header, private("hop-1", header.silo, 1), spawn)
        await asyncio.gather(*tasks)
        seeds = list(passage._seeds.values())  # type: ignore[attr-defined]
        assert all(any(seed.value) for seed in seeds)
        passage.close()
        return [seed.value for seed in seeds]

    assert run(go) == [bytes(32)] * 2


def test_a_seed_whose_mask_was_not_expanded_yet_is_overwritten_too() -> None:
    f = federation()
    m = manifest(f)
    header = Silo(f, identity("silo-1")).sealing(m, rng("seeds")).header

    async def go(workers: ThreadPoolExecutor) -> bytes:
        passage = SumPassage(m, "hop-1", workers)

        def ends(work: Any) -> None:
            work.close()  # the node is ending

        await passage.add_header(header, private("hop-1", "silo-1", 1), ends)
        (seed,) = passage._waiting
        passage.close()
        return seed.value

    assert run(go) == bytes(32)


def test_the_vectors_are_overwritten_when_the_attempt_is_over() -> None:
    """If no body came, they are the masks of all silos, added up: with them whoever has the bodies has their sum."""
    m, c = settled(CHECKED)

    async def go(workers: ThreadPoolExecutor) -> None:
        passage = SumPassage(m, "hop-2", workers)
        assert passage.taken is not None
        passage.cover = cover(m, c, "hop-2")
        await take(passage, await sent(workers, CHECKED), "hop-1", CHECKED)
        assert passage.sum.any()
        assert passage.taken.any()
        passage.close()
        assert not passage.sum.any()
        assert not passage.taken.any()

    run(go)


def test_what_masks_of_groups_are_made_with_is_overwritten_when_the_attempt_is_over(tmp_path: Path) -> None:
    f = federation(silos=7, group_size=3)
    m = manifest(f)
    of = [Silo(f, identity(name)).sealing(m, rng(name)).header for name in f.silo_names]
    c = cohort(m, of)

    async def go(workers: ThreadPoolExecutor) -> list[tuple[bytes, bytes]]:
        passage = make_passage(m, "hop-2", workers, tmp_path)
        assert isinstance(passage, GroupsPassage)
        passage.cover = cover(m, c, "hop-2")
        for one in of:
            await passage.add_header(one, private("hop-2", one.silo, 1), asyncio.ensure_future)
        await passage.settle(c, grouping(c, 0, 0, 0, 1, 1, 1, 1))
        assert passage._pad is not None
        streams = [*(stream for group in passage._masks for stream in group), passage._pad]
        assert all(any(key) for stream in streams for key in stream._keys)
        passage.close()
        return [stream._keys for stream in streams]

    assert run(go) == [(bytes(16), bytes(16))] * 8


def test_the_aggregator_keeps_no_seeds_of_groups_once_their_masks_are_keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    f = federation(silos=7, group_size=3)
    m = manifest(f)
    c, opened = cohort(m, headers(m, f)), list[Secret]()

    def open_seed(*_: Any) -> Secret:
        assert threading.current_thread() is not threading.main_thread()  # hundreds of them take a tenth of a second
        opened.append(Secret(os.urandom(32)))
        return opened[-1]

    async def go(workers: ThreadPoolExecutor) -> None:
        passage = make_passage(m, "aggregator", workers, private=private("aggregator", "", 1))
        assert isinstance(passage, GroupsPassage)
        monkeypatch.setattr(passage, "open_seed", open_seed)
        seeds = [h.seeds[-1] for h in headers(m, f)]
        await passage.settle(c, (Group(3, tuple(seeds[:3])), Group(4, tuple(seeds[3:]))))
        assert [seed.value for seed in opened] == [bytes(32)] * 7
        passage.close()

    run(go)


def test_the_sum_that_silos_are_to_compute_with_is_durable_before_it_is_signed_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)

    async def go(workers: ThreadPoolExecutor) -> None:
        passage = LastPassage(manifest(TRUSTED), "aggregator", workers, tmp_path / "sum")
        passage.keep()
        assert synced == [passage._file.fileno()]
        passage.close()

    run(go)


def test_a_hop_that_has_passed_nothing_on_answers_no_coin() -> None:
    """It would have to fold what it does not have, or show a vector without its pad."""
    m, c = settled(CHECKED)
    own = trails(m, c)[0]

    async def go(workers: ThreadPoolExecutor) -> None:
        passage = SumPassage(m, "hop-1", workers)
        for work in (
            lambda: checking.measure(passage, bytes(32), own),
            lambda: checking.proven(passage, None, None, CHECKED.policy),  # type: ignore[arg-type]
        ):
            with pytest.raises(PeerFault) as caught:
                work()
            assert caught.value.reason is Reason.WRONG_SEQUENCE
        unchecked = SumPassage(manifest(TRUSTED), "hop-1", workers)
        unchecked.cover = cover(m, c, "hop-1")
        with pytest.raises(PeerFault) as caught:
            checking.measure(unchecked, bytes(32), own)
        assert caught.value.reason is Reason.WRONG_SEQUENCE

    run(go)
