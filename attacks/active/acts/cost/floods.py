"""R7: what a peer's bytes cost before it is known to be entitled to them, and whether they end a process.

All of it is small: a frame that costs a hundred times its length shows as well with a quarter of a mebibyte as with
eight, and a dozen calls left open as well as a thousand.
"""

import asyncio
import mmap
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from silomix.attacks.active.acts.casts import AGGREGATOR, SILO, WITH_FIRST, WITH_SECOND
from silomix.attacks.active.liars.aggregator import told_of
from silomix.attacks.active.liars.bodies import body_frames, make_body
from silomix.attacks.active.liars.member import Member, Refused, Silent, path
from silomix.attacks.active.registry import Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, HOSTILE, LAST, SECOND, VICTIM, Stage, Stuck
from silomix.attacks.active.task import CLASSES, HIDDEN, nought
from silomix.runtime.core.digest import DIGEST_BYTES
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.net.limits import PART_BYTES
from silomix.v1 import body_pb2, services_pb2

FRAME_BYTES = 512 << 10
OBJECT_BYTES = 16
"""A node that makes an object of every so many bytes of a frame can be flooded."""
AMPLIFIED = 16
"""So can one that takes more than so many times the length of a frame for it."""
CALLS = 12
HELD = 4
"""Calls of one kind that one member may have open at a node, unless they are short questions."""
SILENT_S = 1.0
LEAVING_S = 10.0
INVENTED = 1_000_000
"""Columns of an invented model: some hundred megabytes, if anybody makes room for it."""
GARBAGE = b"\xff" * 40
PARTS = 64
"""Of a model that is of a few kilobytes, each of as many as honest parts have at most."""


def _open_here(stage: Stage, hop: str = FIRST) -> Manifest:
    """Return the attempt that is open at an honest hop."""
    attempt = stage.hop(hop).core.attempt
    if attempt is None:
        raise Stuck(f"no attempt is open at {hop}")
    return attempt.manifest


class _Watched:
    """Looks from a thread of its own at what this process takes, while a node is busy with a frame.

    Python's own tracing of memory would say it better, and is not safe beside threads that hold no GIL.
    """

    def __init__(self) -> None:
        self.blocks = self.pages = 0
        self._first = (sys.getallocatedblocks(), self._resident())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @staticmethod
    def _resident() -> int:
        try:
            return int(Path("/proc/self/statm").read_text().split()[1])
        except OSError:  # not Linux: the objects will have to do
            return 0

    def _look(self) -> None:
        while not self._stop.wait(0.002):
            self.blocks = max(self.blocks, sys.getallocatedblocks() - self._first[0])
            self.pages = max(self.pages, self._resident() - self._first[1])

    def __enter__(self) -> "_Watched":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


async def _cost(stage: Stage, who: Member, frames: Sequence[bytes]) -> Loot:
    """Send frames to hop 1, and measure what they cost it: objects, and memory beside their length."""
    size = sum(map(len, frames))
    with _Watched() as took:
        try:
            await who.stream(FIRST, "Submit", frames)
            said = "accepted"
        except Refused as refused:
            said = refused.refusal.reason
        except Silent:
            said = "no answer"
    memory = took.pages * mmap.PAGESIZE
    gained = took.blocks * OBJECT_BYTES > size or memory > AMPLIFIED * size
    figures = {"sent_kib": size >> 10, "objects": took.blocks, "memory_kib": memory >> 10}
    return stage.loot(gained, f"work that it has made, then {said}", **figures)


@attack("empty-planes", Rule.R7, "silo-06", Outcome.REFUSED, SILO)
async def empty_planes(stage: Stage) -> Loot:
    """A chunk of nothing but empty planes, two bytes each, of which every one becomes an object."""
    us, manifest = stage.member(HOSTILE), _open_here(stage)
    header = body_frames(make_body(us.identity, manifest, stage.federation, nought()), us.identity, manifest)[0]
    empty = body_pb2.Frame(chunk=body_pb2.Chunk(planes=[b""] * (FRAME_BYTES // 2)))
    return await _cost(stage, us, [header.SerializeToString(), empty.SerializeToString()])


@attack("giant-first-frame", Rule.R7, "silo-06", Outcome.REFUSED, SILO, bites=False)
async def giant_first_frame(stage: Stage) -> Loot:
    """A header with thousands of empty seeds, before anybody knows whose it is."""
    header = body_pb2.Header(silo=HOSTILE, seeds=[body_pb2.SealedSeed()] * (FRAME_BYTES // 2))
    return await _cost(stage, stage.member(HOSTILE), [body_pb2.Frame(header=header).SerializeToString()])


async def _held(stage: Stage, who: Member, target: str, method: str, frames: Sequence[bytes]) -> Loot:
    """Open calls on connections of their own, say so much and no more, and count those that are left open."""
    lines = [who.dial(target) for _ in range(CALLS)]
    go_on = asyncio.Event()

    async def told() -> AsyncIterator[bytes]:
        for frame in frames:
            yield frame
        await go_on.wait()

    calls: list[Any] = [line.stream_unary(path(method))(told()) for line in lines]  # type: ignore[arg-type]
    try:
        await stage.until(lambda: all(_connected(line) for line in lines), "every connection stands or was refused")
        await stage.within(SILENT_S, lambda: all(call.done() for call in calls))
        held = sum(not call.done() for call in calls)
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for line in lines:
            await line.close()
    return stage.loot(held > HELD, "calls that are left open for it", opened=CALLS, held=held)


def _connected(line: grpc.aio.Channel) -> bool:
    states = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
    return line.get_state(try_to_connect=True) in states


@attack("silent-uploads", Rule.R7, "silo-06", Outcome.REFUSED, SILO)
async def silent_uploads(stage: Stage) -> Loot:
    """A silo begins uploads, each on a connection of its own, and sends no first frame."""
    return await _held(stage, stage.member(HOSTILE), FIRST, "Submit", ())


@attack("half-open-uploads", Rule.R7, "silo-06", Outcome.REFUSED, SILO)
async def half_open_uploads(stage: Stage) -> Loot:
    """A silo sends its header on connection after connection, and nothing behind it."""
    us, manifest = stage.member(HOSTILE), _open_here(stage)
    header = body_frames(make_body(us.identity, manifest, stage.federation, nought()), us.identity, manifest)[0]
    return await _held(stage, us, FIRST, "Submit", (header.SerializeToString(),))


@attack("silent-relays", Rule.R7, "silo-06", Outcome.REFUSED, SILO)
async def silent_relays(stage: Stage) -> Loot:
    """A silo, which has no business there, opens streams between hops, and sends no first frame."""
    return await _held(stage, stage.member(HOSTILE), SECOND, "Relay", ())


@attack("silent-deliveries", Rule.R7, "silo-06", Outcome.REFUSED, SILO)
async def silent_deliveries(stage: Stage) -> Loot:
    """A silo opens streams of sums to the aggregator, and sends no first frame."""
    return await _held(stage, stage.member(HOSTILE), stage.federation.aggregator.name, "Deliver", ())


# What does not parse, or means nothing


async def _ends(stage: Stage, name: str, done: Callable[[], Any] = lambda: False) -> Loot:
    """See whether an honest node's process ends."""
    await stage.within(SILENT_S, lambda: stage.dead() or done() or stage.refused_by((name,)))
    dead = stage.dead()
    return stage.loot(bool(dead), f"{', '.join(dead)} ended" if dead else "no process ended", ended=len(dead))


@attack("unparsable-announcement", Rule.R7, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def unparsable_announcement(stage: Stage) -> Loot:
    """A silo that watches for rounds is sent bytes that are no message."""
    us = stage.aggregator
    await us.tell({VICTIM: GARBAGE})
    loot = await _ends(stage, VICTIM)
    await us.tell({VICTIM: told_of(us.chronicle.head)})  # known already: else it hears the same when it comes back
    return loot


async def _model(stage: Stage, answer: Callable[[bytes], Iterable[bytes]], reason: Reason) -> Loot:
    """Answer the victim so when it asks for a model: it does where the sum that made it is not kept any more."""
    us, asked = stage.aggregator, 0

    def answered(digest: bytes) -> Iterable[bytes]:
        nonlocal asked
        if digest == us.start:  # every silo asks for that one, when it has none
            return us.parts(digest)
        asked += 1
        return answer(digest)

    await stage.whole_round()
    await stage.followed()
    us.lose_sums(VICTIM)
    us.model_answer = answered
    try:
        await stage.whole_round()
        await stage.until(lambda: asked, f"{VICTIM} asks for the model")
        await stage.within(LEAVING_S, lambda: stage.dead() or stage.refused_by((VICTIM,)))
        await stage.followed(name for name in stage.honest_silos if name != VICTIM)
    finally:
        us.model_answer, us.sum_answer = us.parts, us.sum_parts
    dead = stage.dead()
    loot = stage.loot_for(reason, bool(dead), f"{', '.join(dead)} ended" if dead else "no process ended", asked=asked)
    if not dead:  # it goes on
        stage.mark()
        await stage.whole_round()
        await stage.followed()
    return loot


@attack("unparsable-model", Rule.R7, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def unparsable_model(stage: Stage) -> Loot:
    """A silo that asks for the model is sent bytes that are no message."""
    return await _model(stage, lambda digest: [GARBAGE], Reason.MALFORMED)


@attack("odd-status-for-a-model", Rule.R7, "aggregator", Outcome.REFUSED, AGGREGATOR, bites=False)
async def odd_status(stage: Stage) -> Loot:
    """A silo that asks for the model gets a gRPC status that no honest aggregator gives."""

    def answer(_: bytes) -> Iterable[bytes]:
        raise grpc.RpcError

    return await _model(stage, answer, Reason.WRONG_MODEL)


@attack("endless-model", Rule.R7, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def endless_model(stage: Stage) -> Loot:
    """A silo that asks for the model is sent more and more of it."""
    sent = 0

    def answer(_: bytes) -> Iterable[bytes]:
        nonlocal sent
        for _part in range(PARTS):
            sent += 1
            yield services_pb2.ModelPart(data=bytes(PART_BYTES)).SerializeToString()

    loot = await _model(stage, answer, Reason.WRONG_LENGTH)
    gained = loot.gained or sent == PARTS
    return Loot(gained, "parts that were sent to a silo", loot.refusals, {"parts_of_256_kib": sent})


@attack("unparsable-receipt", Rule.R7, "shuffler-1", Outcome.REFUSED, WITH_FIRST)
async def unparsable_receipt(stage: Stage) -> Loot:
    """A silo gets bytes that are no message in answer to its body."""
    hop = stage.liar(FIRST)
    hop.receipt = lambda receipt: GARBAGE
    try:
        manifest = await stage.begin(silos=(VICTIM,))
        await stage.submitted(manifest, FIRST, (VICTIM,))
        return await _ends(stage, VICTIM)
    finally:
        hop.receipt = hop.signed_receipt


@attack("unparsable-delivery", Rule.R7, "shuffler-2", Outcome.REFUSED, WITH_SECOND)
async def unparsable_delivery(stage: Stage) -> Loot:
    """A hop gets bytes that are no message in answer to its sum."""
    liar = stage.liar(SECOND)

    async def garbage(*_: object) -> bytes:
        return GARBAGE

    liar.deliver = garbage
    try:
        manifest = await stage.begin()
        await stage.until(lambda: liar.heard[manifest.digest].root, "a sum is here")
        return await _ends(stage, FIRST)
    finally:
        liar.deliver = liar.delivery


@attack("invented-size", Rule.R7, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def invented_size(stage: Stage) -> Loot:
    """A hop is told of a model many times as large as the federation's, and makes room for its sum."""
    us, number, node = stage.aggregator, stage.next_round(), stage.hop(LAST)
    schema = Schema((TensorSpec("output", (HIDDEN, INVENTED)), TensorSpec("bias", (HIDDEN,))))
    manifest = us.propose(number, await stage.keys(number), schema=schema)
    await stage.open(manifest, (LAST,))
    room = node.passage.layout.body_bytes if node.passage is not None else 0
    honest = HIDDEN * (CLASSES + 1)
    times = schema.parameters // honest
    # A small attempt takes its place, so that nothing of it stays.
    await stage.begin(silos=())
    return stage.loot(room > 1 << 20, "room for a model that does not exist", times=times, mebibytes=room >> 20)


@attack("ended-on-a-word", Rule.R7, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def ended_on_a_word(stage: Stage) -> Loot:
    """A silo is told that the federation is done, and no record says so: its process would end, and stay down."""
    over = services_pb2.Announcement(finished=services_pb2.Finished(round=1))
    await stage.aggregator.tell({VICTIM: over.SerializeToString()})
    await stage.until(lambda: VICTIM in stage.dead() or stage.refused_by((VICTIM,)), "the silo has heard of it")
    await stage.aggregator.tell({VICTIM: told_of(stage.aggregator.chronicle.head)})
    ended = VICTIM in stage.dead()
    return stage.loot_for(
        "wrong_round", ended, "a silo that has ended, on a word" if ended else "a silo that watches on"
    )


@attack("ended-on-a-named-hop", Rule.R7, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def ended_on_a_named_hop(stage: Stage) -> Loot:
    """A record says that hop 1 has lied, though nothing can show it: no chain is left, and all is said to be over."""
    us, log = stage.aggregator, stage.silo(VICTIM).core.log
    await stage.begin(silos=())
    true = us.chronicle.abandoned()
    told = tuple(replace(one, culprit=FIRST, evidence=os.urandom(DIGEST_BYTES)) for one in true.attempts)
    await us.publish(replace(true, attempts=told).signed(us.identity))
    await stage.until(lambda: log.round > true.round, f"{VICTIM} has the record")
    over = services_pb2.Announcement(finished=services_pb2.Finished(round=true.round))
    await us.tell({VICTIM: over.SerializeToString()})
    await stage.until(lambda: VICTIM in stage.dead() or stage.refused_by((VICTIM,)), "the silo has heard of it")
    return stage.loot(VICTIM in stage.dead(), "a silo that has ended, for one record")


@attack("sent-away", Rule.R7, "aggregator", Outcome.CONCEDED, AGGREGATOR)
async def sent_away(stage: Stage) -> Loot:
    """A silo is told that its federation file is another one than the aggregator's: it leaves."""
    await stage.aggregator.tell({VICTIM: PeerFault(Reason.WRONG_FEDERATION, "another file")})
    await stage.within(LEAVING_S, lambda: VICTIM in stage.dead())
    dead = stage.dead()
    return stage.loot(VICTIM in dead, "a silo that has left, on the aggregator's word", ended=len(dead))
