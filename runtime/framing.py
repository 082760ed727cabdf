"""Chunks as protobuf bytes, written and read in place.

Nearly all that travels is chunks, and protobuf would copy each of them three times on its way out and twice on its way
in. A chunk has one shape, so its frame is written here straight into the message, and read as views of it. What comes
in another shape (fields in another order, say) is left to protobuf, which knows them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from silomix.runtime.core.codec import Layout
from silomix.runtime.core.messages import chunk_digest
from silomix.runtime.core.packing import SLACK, Residues, pack_into
from silomix.v1 import body_pb2, services_pb2

BODY = body_pb2.Frame.DESCRIPTOR.fields_by_name["chunk"].number
"""Where a chunk stands in a silo's frame."""
RELAY = services_pb2.RelayFrame.DESCRIPTOR.fields_by_name["chunk"].number
"""Where a chunk stands in a hop's frame."""

_FIELDS = body_pb2.Chunk.DESCRIPTOR.fields_by_name
_INDEX, _FIRST = (bytes([_FIELDS[name].number << 3]) for name in ("index", "first_parameter"))  # varints
_PLANE = bytes([_FIELDS["planes"].number << 3 | 2])  # length-delimited
_MOST_HEAD = 64  # bytes before the first plane, at most


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
    """Write a frame with a chunk whose planes are there already."""
    parts: list[bytes | memoryview] = [_number(_INDEX, index) + _number(_FIRST, first)]
    for plane in planes:
        parts += [_PLANE + _varint(len(plane)), plane]
    size = sum(len(part) for part in parts)
    return b"".join([bytes([field << 3 | 2]) + _varint(size), *parts])


class ChunkWriter:
    """Packs residues into frames. It has one buffer, so it does one thing at a time."""

    def __init__(self, layout: Layout, field: int) -> None:
        """`field` is where the frame has its chunk: BODY or RELAY."""
        self._layout, self._field = layout, field
        planes = layout.plan.plane_bytes(min(layout.chunk_parameters, layout.coordinates))
        self._buffer = np.empty(2 * _MOST_HEAD + sum(planes) + 16 * len(planes) + SLACK, np.uint8)

    def write(self, index: int, residues: Residues) -> tuple[bytes, bytes]:
        """Pack one chunk of residues; return its frame and the chunk's digest."""
        layout, out = self._layout, self._buffer
        first, sizes = layout.start(index), layout.plan.plane_bytes(layout.length(index))
        head = _number(_INDEX, index) + _number(_FIRST, first)
        labels = [_PLANE + _varint(size) for size in sizes]
        size = len(head) + sum(sizes) + sum(map(len, labels))
        head = bytes([self._field << 3 | 2]) + _varint(size) + head
        view = out.data
        view[: len(head)] = head
        at = len(head)
        planes = []
        for row, width, label, length in zip(residues, layout.plan.widths, labels, sizes, strict=True):
            view[at : at + len(label)] = label  # over what the plane before left behind its end
            at += len(label)
            pack_into(row, width, out[at : at + length + SLACK])
            planes.append(view[at : at + length])
            at += length
        return bytes(view[:at]), chunk_digest(index, first, planes)


def read_chunk(field: int, raw: bytes) -> ChunkFrame | None:
    """Read a frame that holds a chunk and is written as above; None if it is anything else."""
    if not raw or raw[0] != field << 3 | 2:
        return None
    try:
        size, at = _read_varint(raw, 1)
        if at + size != len(raw):
            return None
        index = first = 0
        if raw[at] == _INDEX[0]:
            index, at = _read_varint(raw, at + 1)
        if raw[at] == _FIRST[0]:
            first, at = _read_varint(raw, at + 1)
        view, planes = memoryview(raw), []
        while at < len(raw):
            if raw[at] != _PLANE[0]:
                return None
            size, at = _read_varint(raw, at + 1)
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
    return tag + _varint(value) if value else b""  # zero is what an absent number is


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
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
