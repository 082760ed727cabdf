"""R7: frames of a stream are measured by their kind before they are parsed, come in turn, and have their time."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from tests.core.protocol.federations import federation, header, manifest
from tests.net.contexts import Context, Host

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net.calls import Call
from silomix.runtime.net.framing import BODY, chunk_frame
from silomix.runtime.net.limits import FIRST_S, FRAME_S, Limits
from silomix.runtime.net.streams import Inbox, Outbox
from silomix.runtime.net.wire import write_header
from silomix.v1 import body_pb2, services_pb2

LIMITS = Limits.of(federation(chunk_parameters=65_536))
"""With chunks far longer than anything else, as federations have them."""
HEADER = body_pb2.Frame(header=write_header(header(manifest(federation()), "silo-1")))
TRAILER = body_pb2.Frame(trailer=body_pb2.Trailer(root=bytes(32)))
CHUNK = chunk_frame(BODY, 1, 4, [b"ab", b"cd"])


def inbox(frames: Iterable[Any], *, silent: bool = False, host: Host | None = None) -> Inbox[body_pb2.Frame]:
    raw = [frame if isinstance(frame, bytes) else frame.SerializeToString() for frame in frames]
    context: Any = Context(raw, silent=silent)
    return Inbox(Call(context, host or Host(), "silo-1", "Submit"), body_pb2.Frame, LIMITS)


async def refused(frames: Iterable[Any], due: str = "") -> PeerFault:
    """Why a frame is refused: the next one, or one of a kind that is due."""
    with pytest.raises(PeerFault) as caught:
        await (inbox(frames).due(due) if due else anext(inbox(frames)))
    return caught.value


async def test_frames_come_as_what_they_are_and_are_counted() -> None:
    host = Host()
    frames = inbox([HEADER, CHUNK, TRAILER], host=host)
    found = [frame async for frame in frames]
    assert [frame.WhichOneof("kind") for frame in found] == ["header", "chunk", "trailer"]
    assert (found[0], found[2]) == (HEADER, TRAILER)
    assert (found[1].chunk.index, found[1].chunk.first_parameter) == (1, 4)
    assert [bytes(plane) for plane in found[1].chunk.planes] == [b"ab", b"cd"]
    assert frames.bytes == HEADER.ByteSize() + len(CHUNK) + TRAILER.ByteSize()
    assert [size for *_, size in host.seen] == [HEADER.ByteSize(), len(CHUNK), TRAILER.ByteSize()]


async def test_the_frame_that_is_due_comes() -> None:
    frames = inbox([HEADER, CHUNK])
    assert (await frames.due("header")) == HEADER
    assert (await frames.due("chunk")).chunk.index == 1


@pytest.mark.parametrize(
    ("found", "said"), [([CHUNK], "chunk"), ([], "the end"), ([b""], "nothing"), ([b"\xff\xff"], "nothing")]
)
async def test_a_frame_out_of_turn_is_refused_for_what_it_is(found: list[bytes], said: str) -> None:
    fault = await refused(found, due="header")
    assert (fault.reason, fault.details["peer"]) == (Reason.WRONG_SEQUENCE, "silo-1")
    assert said in fault.message


async def test_a_frame_of_no_kind_or_of_two_is_refused() -> None:
    two = HEADER.SerializeToString() + TRAILER.SerializeToString()
    for frame in (b"", b"\xff\xff", b"\x7a\x00", two):
        assert (await refused([frame])).reason is Reason.MALFORMED


async def test_a_frame_is_measured_by_its_kind_before_it_is_parsed() -> None:
    """A header of the length of a chunk would hold thousands of seeds, each of which becomes an object."""
    for kind, frame in {
        "header": body_pb2.Frame(header=body_pb2.Header(seeds=[body_pb2.SealedSeed()] * LIMITS.header)),
        "trailer": body_pb2.Frame(trailer=body_pb2.Trailer(root=bytes(LIMITS.frame("trailer")))),
    }.items():
        assert frame.ByteSize() < LIMITS.chunk, "or its kind would make no difference"
        for due in ("", kind):
            fault = await refused([frame], due)
            assert (fault.reason, fault.details["peer"]) == (Reason.WRONG_LENGTH, "silo-1"), kind


async def test_a_chunk_of_too_many_planes_is_refused_while_they_are_counted() -> None:
    within = chunk_frame(BODY, 0, 0, [b""] * LIMITS.planes)
    assert len((await inbox([within]).due("chunk")).chunk.planes) == LIMITS.planes
    beyond = chunk_frame(BODY, 0, 0, [b""] * (LIMITS.planes + 1))
    assert (await refused([beyond], "chunk")).reason is Reason.WRONG_LENGTH


async def test_a_chunk_that_is_not_written_as_one_is_refused() -> None:
    """Fields in another order, say: protobuf would take it, at a price."""
    backwards = body_pb2.Frame.DESCRIPTOR.fields_by_name["chunk"].number << 3 | 2
    content = b"\x1a\x01a" + b"\x08\x01"  # a plane, and then the index
    fault = await refused([bytes([backwards, len(content)]) + content], "chunk")
    assert (fault.reason, fault.details["peer"]) == (Reason.MALFORMED, "silo-1")


async def test_the_first_frame_has_little_time_and_each_after_it_what_a_chunk_takes() -> None:
    frames = inbox([HEADER, CHUNK])
    assert frames.patience == FIRST_S
    await frames.due("header")
    assert frames.patience == LIMITS.frame_s("chunk") > FRAME_S
    frames.patience = None
    await frames.due("chunk")
    assert frames.patience is None, "where a peer waits for others there is no hurry"


async def test_a_peer_that_sends_no_frame_in_time_is_refused() -> None:
    frames = inbox([], silent=True)
    frames.patience = 0.0
    with pytest.raises(PeerFault) as caught:
        await frames.due("header")
    assert caught.value.reason is Reason.TOO_SLOW


async def test_what_goes_out_is_made_bytes_once_and_counted() -> None:
    async def frames() -> AsyncIterator[services_pb2.RelayFrame | bytes]:
        yield services_pb2.RelayFrame(open=services_pb2.RelayOpen(hop="hop-1"))
        yield b"abc"

    host = Host()
    box = Outbox(host, frames(), services_pb2.RelayFrame, "hop-2", "Relay")
    raw = [each async for each in box]
    assert services_pb2.RelayFrame.FromString(raw[0]).open.hop == "hop-1"
    assert raw[1] == b"abc"
    assert box.bytes == sum(map(len, raw))
    assert host.seen == [("sent", "hop-2", "Relay", "silomix.v1.RelayFrame", len(each)) for each in raw]
