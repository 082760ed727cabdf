"""Chunks as protobuf bytes, written and read in place.

Nearly all that travels is chunks, and protobuf would copy each of them three times on its way out and twice on its way
in. A chunk has one shape, so its frame is written here in one copy, and read as views of the message. What comes
in another shape (fields in another order, say) is no chunk.

A frame is one field, which says of which kind it is: that is read here too, before anything is parsed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.v1 import body_pb2, services_pb2

BODY = body_pb2.Frame.DESCRIPTOR.fields_by_name["chunk"].number
"""Where a chunk stands in a silo's frame."""
SUM = services_pb2.SumPart.DESCRIPTOR.fields_by_name["chunk"].number
"""Where a chunk stands in a part of a released sum."""
RELAY = services_pb2.RelayFrame.DESCRIPTOR.fields_by_name["chunk"].number
"""Where a chunk stands in a hop's frame."""

_FIELDS = body_pb2.Chunk.DESCRIPTOR.fields_by_name
_INDEX, _FIRST = (bytes([_FIELDS[name].number << 3]) for name in ("index", "first_parameter"))  # varints
_PLANE = bytes([_FIELDS["planes"].number << 3 | 2])  # length-delimited


@dataclass(frozen=True, slots=True)
class ChunkView:
    """A chunk whose planes are views of the message that it came in: as body_pb2.Chunk, to read."""

    index: int
    first_parameter: int
    planes: Sequence[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class ChunkFrame:
    """A frame that holds a chunk: as body_pb2.Frame and services_pb2.RelayFrame, to read."""

    chunk: ChunkView

    def WhichOneof(self, _: str) -> str:  # noqa: N802 - protobuf's name
        """Say which kind it is."""
        return "chunk"


def chunk_frame(field: int, index: int, first: int, planes: Sequence[bytes | memoryview]) -> bytes:
    """Write a frame with a chunk. `field` is where the frame has it: BODY, RELAY or SUM."""
    parts: list[bytes | memoryview] = [_number(_INDEX, index) + _number(_FIRST, first)]
    for plane in planes:
        parts += [_PLANE + varint(len(plane)), plane]
    size = sum(len(part) for part in parts)
    return b"".join([bytes([field << 3 | 2]) + varint(size), *parts])


def one_field(field: int, content: bytes) -> bytes:
    """Write a frame whose one field is bytes already."""
    return bytes([field << 3 | 2]) + varint(len(content)) + content


def only_field(raw: bytes) -> int:
    """Return the number of the one field that a frame holds; 0 if it holds none, or more, or something else."""
    if not raw or raw[0] & 7 != 2 or raw[0] & 0x80:
        return 0
    try:
        size, at = read_varint(raw, 1)
    except IndexError:
        return 0
    return raw[0] >> 3 if at + size == len(raw) else 0


def read_chunk(field: int, raw: bytes, most: int) -> ChunkFrame | None:
    """Read a frame that holds a chunk and is written as above; None if it is anything else.

    One with more planes than `most` is refused while they are counted: a plane may be empty, and four million of those
    fit into a message that is not a long one.
    """
    if field == 0 or only_field(raw) != field:
        return None
    try:
        _, at = read_varint(raw, 1)
        index = first = 0
        if raw[at : at + 1] == _INDEX:
            index, at = read_varint(raw, at + 1)
        if raw[at : at + 1] == _FIRST:
            first, at = read_varint(raw, at + 1)
        view = memoryview(raw)
        planes: list[memoryview] = []
        while at < len(raw):
            if raw[at] != _PLANE[0]:
                return None
            if len(planes) == most:
                raise PeerFault(Reason.WRONG_LENGTH, f"a chunk has more planes than {most}", expected=most)
            size, at = read_varint(raw, at + 1)
            if at + size > len(raw):
                return None
            planes.append(view[at : at + size])
            at += size
    except IndexError:  # it ends within a number
        return None
    if index >> 32 or first >> 64:
        return None
    return ChunkFrame(ChunkView(index, first, planes))


def _number(tag: bytes, value: int) -> bytes:
    return tag + varint(value) if value else b""  # zero is what an absent number is


def varint(value: int) -> bytes:
    """Write a number as protobuf does."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Read a number; return it, and where it ends. One that has no end, or is too long, is an IndexError."""
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError
