"""The format of captures: a file's header, its records and their bytes, and how files are named. docs/capture.md."""

import json
import re
import struct
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from silomix.runtime.core.errors import UserError
from silomix.v1 import body_pb2, manifest_pb2, plan_pb2, schema_pb2, services_pb2

FORMAT = "silocap"
VERSION = 1
SUFFIX = ".silocap.gz"
MAX_RECORD = 1 << 26
"""Longest record that is read: no message is an eighth of it, and a small file must not fill the memory."""
MAX_HEADER = 1 << 16
"""Bytes of a header line at most: a file without an end of line is not searched for ever."""

MIB = 1 << 20
PIECE = 1 << 18
_NAME = re.compile(rf"(?P<node>.+)-(?P<sequence>\d{{6,}}){re.escape(SUFFIX)}")
GZIP = 31  # zlib's window bits for a gzip header and trailer
LEVEL = 1  # masked bodies are random and do not shrink; the rest shrinks enough
_U16 = struct.Struct("<H")
_TIME_DIRECTION = struct.Struct("<dB")
_STREAM = struct.Struct("<Q")

_TYPES: dict[str, Descriptor] = {
    descriptor.full_name: descriptor
    for module in (body_pb2, manifest_pb2, plan_pb2, schema_pb2, services_pb2)
    for descriptor in module.DESCRIPTOR.message_types_by_name.values()
}


class CaptureError(UserError):
    """A file that is no capture, or a record that cannot be: which one, and what is wrong with it."""


class CaptureTruncated(CaptureError):  # noqa: N818 - what happened, not what went wrong in the code
    """A capture that ends before its end, as a node that was killed leaves it. Raised only by a strict reader."""


class Direction(StrEnum):
    """Which way a message went, as seen from the node that recorded it."""

    RECEIVED = "received"
    SENT = "sent"


_DIRECTIONS = tuple(Direction)


@dataclass(frozen=True)
class FileHeader:
    """Who recorded a file. Stream numbers are unique within one run, which is a node and when it started."""

    node: str
    role: str
    federation: bytes
    started: float
    """Unix time at which this run of the node began to record; the same in all of its files."""
    sequence: int

    def line(self) -> bytes:
        """Encode it as the first line of a file, which `zcat FILE | head -n 1` shows."""
        values = {
            "format": FORMAT,
            "version": VERSION,
            "node": self.node,
            "role": self.role,
            "federation": self.federation.hex(),
            "started": self.started,
            "sequence": self.sequence,
        }
        return json.dumps(values).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> "FileHeader":
        """Decode the first line, or say why it is not one."""
        try:
            values = json.loads(line)
            if values["format"] != FORMAT:
                raise ValueError(f"the format is {values['format']!r}, not {FORMAT!r}")
            if values["version"] != VERSION:
                raise ValueError(f"it has version {values['version']}; this silomix reads version {VERSION}")
            federation = bytes.fromhex(values["federation"])
            return cls(
                str(values["node"]), str(values["role"]), federation, float(values["started"]), int(values["sequence"])
            )
        except KeyError as error:
            raise CaptureError(f"its header lacks {error}") from None
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise CaptureError(f"its first line is not a capture's header: {error}") from None


@dataclass(frozen=True)
class Record:
    """One message that travelled, and when, which way, to or from whom, and in which call."""

    header: FileHeader
    time: float
    """Unix time at which the node saw it, in seconds."""
    direction: Direction
    peer: str
    """The other end, by the name in the federation file."""
    method: str
    """The call that it was part of, such as "Submit"."""
    stream: int
    """Number of that call, unique within one run of the node."""
    type_name: str
    """Full name of the message's type, such as "silomix.v1.Frame"."""
    data: bytes = field(repr=False)
    """The message as it travelled. It may be malformed: that is what captures are for."""

    @cached_property
    def message(self) -> Message:
        """The message, decoded."""
        descriptor = _TYPES.get(self.type_name)
        if descriptor is None:
            raise CaptureError(f"no message of silomix.v1 is called {self.type_name!r}")
        try:
            return message_factory.GetMessageClass(descriptor).FromString(self.data)
        except DecodeError as error:
            raise CaptureError(f"{len(self.data)} bytes are not a {self.type_name}: {error}") from None

    @cached_property
    def kind(self) -> str:
        """Which message it is, and which of its alternatives: "Receipt", "Frame.header"; with a "?" if undecodable."""
        name = self.type_name.rpartition(".")[2]
        try:
            message = self.message
        except CaptureError:
            return f"{name}?"
        # The compiler makes a oneof for an optional field too, and starts its name with an underscore.
        chosen = [message.WhichOneof(o.name) for o in message.DESCRIPTOR.oneofs if not o.name.startswith("_")]
        return ".".join([name, *(c for c in chosen if c)])


def encode_record(
    moment: float, direction: Direction, peer: str, method: str, stream: int, message: Message | tuple[str, bytes]
) -> bytes:
    """Write a record, its length first."""
    if isinstance(message, tuple):
        name, data = message
    else:
        name, data = message.DESCRIPTOR.full_name, message.SerializeToString()
    parts = [
        _TIME_DIRECTION.pack(moment, _DIRECTIONS.index(direction)),
        *_text(peer),
        *_text(method),
        _STREAM.pack(stream),
        *_text(name),
        data,
    ]
    return b"".join([_varint(sum(map(len, parts))), *parts])


def _text(text: str) -> tuple[bytes, bytes]:
    raw = text.encode()
    return _U16.pack(len(raw)), raw


def _varint(number: int) -> bytes:
    """Encode a length as protobuf does: seven bits per byte, lowest first, the top bit set in all but the last."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode_record(header: FileHeader, raw: bytes) -> Record:
    """Read a record, without its length."""
    try:
        moment, code = _TIME_DIRECTION.unpack_from(raw)
        peer, at = _read_text(raw, _TIME_DIRECTION.size)
        method, at = _read_text(raw, at)
        (stream,) = _STREAM.unpack_from(raw, at)
        name, at = _read_text(raw, at + _STREAM.size)
        return Record(header, moment, _DIRECTIONS[code], peer, method, stream, name, raw[at:])
    except (struct.error, IndexError, UnicodeDecodeError, EOFError) as error:
        raise CaptureError(f"a record of {len(raw)} bytes is malformed: {error}") from None


def _read_text(raw: bytes, at: int) -> tuple[str, int]:
    (size,) = _U16.unpack_from(raw, at)
    start, end = at + _U16.size, at + _U16.size + size
    if end > len(raw):
        raise EOFError("a text is longer than the record")
    return raw[start:end].decode(), end


def capture_files(directory: Path, prefix: str | None = None) -> list[Path]:
    """List the captures in a directory, those of one node in the order in which they were written."""
    found = [(m["node"], int(m["sequence"]), p) for p in directory.iterdir() if (m := _NAME.fullmatch(p.name))]
    return [path for node, _, path in sorted(found) if prefix is None or node == prefix]


def sequence_of(path: Path) -> int:
    """Return the number in a file's name."""
    match = _NAME.fullmatch(path.name)
    return int(match["sequence"]) if match else 0
