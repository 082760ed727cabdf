"""Frames that are written and read in place are what protobuf would write and read. proto/silomix/v1/body.proto."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools import examples

from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.plan import Encoding, Level, Plan, plan
from silomix.runtime.core.protocol.messages import chunk_digest
from silomix.runtime.net.framing import BODY, RELAY, chunk_frame, only_field, read_chunk
from silomix.v1 import body_pb2, services_pb2

KINDS: list[tuple[int, Any]] = [(BODY, body_pb2.Frame), (RELAY, services_pb2.RelayFrame)]
PLANS = [
    plan(10, 4),
    plan(3, 2, Encoding.UNARY, Level.TRUSTED),
    plan(100, 6),
    plan(10, 4, level=Level.MALICIOUS),
]

MOST = 100
"""Planes, where a test is about something else."""

frames = st.tuples(
    st.sampled_from([0, 1, 127, 128, 300, 2**32 - 1]),
    st.sampled_from([0, 1, 65_536, 2**40, 2**64 - 1]),
    st.lists(st.binary(max_size=300), min_size=1, max_size=5),
)


@pytest.mark.parametrize(("field", "kind"), KINDS)
@given(frames)
def test_a_frame_is_protobufs_and_comes_back(field: int, kind: Any, parts: tuple[int, int, list[bytes]]) -> None:
    index, first, planes = parts
    raw = chunk_frame(field, index, first, planes)
    theirs = kind(chunk=body_pb2.Chunk(index=index, first_parameter=first, planes=planes))
    assert raw == theirs.SerializeToString(deterministic=True)
    assert kind.FromString(raw) == theirs
    view = read_chunk(field, raw, MOST)
    assert view is not None
    assert view.WhichOneof("kind") == "chunk"
    assert (view.chunk.index, view.chunk.first_parameter) == (index, first)
    assert [bytes(p) for p in view.chunk.planes] == planes


@pytest.mark.parametrize("numbers", PLANS, ids=lambda p: str(p.moduli))
@pytest.mark.parametrize(("coordinates", "chunk"), [(1, 10), (77, 16), (64, 64), (1000, 999)])
def test_a_body_goes_out_and_comes_in_as_it_lies(numbers: Plan, coordinates: int, chunk: int) -> None:
    """Planes are written from views of a body, and read as views of a message, wherever in it they begin."""
    layout = Layout(numbers, coordinates, chunk)
    rng = np.random.default_rng(1)
    body = layout.pack(np.array([rng.integers(0, m, coordinates) for m in numbers.moduli]))
    total = layout.body()
    for i in range(layout.chunks):
        planes = layout.planes(layout.part(body, i).data, i)
        raw = chunk_frame(RELAY, i, layout.start(i), planes)
        assert raw == chunk_frame(RELAY, i, layout.start(i), [bytes(plane) for plane in planes])
        view = read_chunk(RELAY, raw, MOST)
        assert view is not None
        whole = np.frombuffer(raw, np.uint8)
        assert all(np.shares_memory(np.frombuffer(plane, np.uint8), whole) for plane in view.chunk.planes)
        assert chunk_digest(i, layout.start(i), view.chunk.planes) == chunk_digest(i, layout.start(i), planes)
        layout.add(total, i, view.chunk.planes)
    assert total.tobytes() == body.tobytes()


@pytest.mark.parametrize(("field", "kind"), KINDS)
@given(st.binary(max_size=60))
@settings(max_examples=examples(300))
def test_what_is_read_here_protobuf_reads_alike(field: int, kind: Any, noise: bytes) -> None:
    """Whatever comes: either it is left to protobuf, or both see the same chunk."""
    for raw in (noise, bytes([field << 3 | 2, len(noise)]) + noise):
        view = read_chunk(field, raw, MOST)
        if view is None:
            continue
        theirs = kind.FromString(raw).chunk
        assert (theirs.index, theirs.first_parameter) == (view.chunk.index, view.chunk.first_parameter)
        assert list(theirs.planes) == [bytes(p) for p in view.chunk.planes]


def test_other_shapes_are_left_to_protobuf() -> None:
    chunk = chunk_frame(BODY, 3, 9, [b"abc"])
    head = body_pb2.Frame(header=body_pb2.Header(silo="s")).SerializeToString()
    trailer = body_pb2.Frame(trailer=body_pb2.Trailer(root=b"r")).SerializeToString()
    for raw in (b"", head, trailer, chunk[:-1], chunk + b"\x00", chunk + head, chunk + chunk, chunk[:1]):
        assert read_chunk(BODY, raw, MOST) is None
    assert read_chunk(RELAY, chunk, MOST) is None
    swapped = bytes([BODY << 3 | 2, 9]) + b"\x1a\x03abc\x08\x03\x10\x09"  # planes first: valid, and not ours
    assert read_chunk(BODY, swapped, MOST) is None
    assert body_pb2.Frame.FromString(swapped).chunk.index == 3


def framed(chunk: bytes) -> bytes:
    """A silo's frame with what may be no chunk."""
    return bytes([BODY << 3 | 2, len(chunk)]) + chunk


def test_a_frame_is_one_field_that_says_how_long_it_is() -> None:
    assert only_field(framed(b"")) == BODY
    number, further = bytes([BODY << 3, 0]), bytes([0x80 | BODY << 3 | 2, 0])  # no length; a tag of two bytes
    for raw in (b"", number, further):
        assert only_field(raw) == 0
        assert read_chunk(0, raw, MOST) is None


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(b"\x1a\x03abc\x22\x01d", id="a field that no chunk has"),
        pytest.param(b"\x1a\x04abc", id="a plane that goes on behind the end"),
        pytest.param(b"\x08" + b"\x80" * 4 + b"\x10", id="an index of 33 bits"),
        pytest.param(b"\x10" + b"\x80" * 9 + b"\x02", id="a parameter of 65 bits"),
        pytest.param(b"\x08" + b"\x80" * 10 + b"\x00", id="a number of eleven bytes"),
    ],
)
def test_what_is_written_unlike_a_chunk_is_none(chunk: bytes) -> None:
    """Protobuf would refuse it, or see other numbers in it than are seen here."""
    assert read_chunk(BODY, framed(chunk), MOST) is None
