"""A record of exactly what a node received and sent, for an audit and for the attacks. docs/capture.md has the format.

Recording is an observer: it never blocks the node and never fails it. Records wait in a queue that is bounded in bytes
for a thread that writes them; what does not fit, or what the disk refuses, is dropped and counted. Reading yields every
complete record of a file, however it ended.
"""

import json
import os
import re
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from silomix.runtime.core.errors import UserError
from silomix.runtime.observe.log import Log
from silomix.v1 import body_pb2, manifest_pb2, plan_pb2, schema_pb2, services_pb2

FORMAT = "silocap"
VERSION = 1
SUFFIX = ".silocap.gz"
MAX_HEADER = 1 << 16
"""Bytes of a header line at most: a file without an end of line is not searched for ever."""

_MIB = 1 << 20
_PIECE = 1 << 18
_NAME = re.compile(rf"(?P<node>.+)-(?P<sequence>\d{{6,}}){re.escape(SUFFIX)}")
_GZIP = 31  # zlib's window bits for a gzip header and trailer
_LEVEL = 1  # masked bodies are random and do not shrink; the rest shrinks enough
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
class Header:
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
    def parse(cls, line: bytes) -> "Header":
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

    header: Header
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


# --- writing ----------------------------------------------------------------------------------------------------------


class Capture:
    """Records what a node sees into DIRECTORY/NODE-SEQUENCE.silocap.gz, from any thread."""

    def __init__(
        self,
        directory: Path | str,
        node: str,
        role: str,
        federation_digest: bytes,
        *,
        rotate_bytes: int = 64 * _MIB,
        keep_files: int = 64,
        queue_bytes: int = 64 * _MIB,
        retry_s: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make the directory, which is the only thing that raises: a wrong path is found when a node starts.

        rotate_bytes  bytes before compression after which a new file begins; a larger record has a file to itself
        keep_files    files of this node that stay; the oldest are deleted, those of earlier runs included
        queue_bytes   bytes that may wait for the disk; what exceeds them is dropped
        retry_s       seconds to leave a disk alone that refused a write; all records of that time are dropped
        """
        if min(rotate_bytes, keep_files, queue_bytes) < 1:
            raise ValueError("rotate_bytes, keep_files and queue_bytes are 1 or more")
        self.directory = Path(directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise PermissionError(f"captures cannot be written to {self.directory}: make it writable for this node")
        self._prefix = quote(node, safe="")
        self._rotate = rotate_bytes
        self._keep = keep_files
        self._capacity = queue_bytes
        self._retry_s = retry_s
        self._clock = clock
        self._log = Log(node)
        self._run = Header(node, role, bytes(federation_digest), clock(), 0)
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._accepted = 0
        self._settled = 0
        self._dropped = 0
        self._recorded = 0
        self._closing = False
        self._complained = False
        self._file: _Writer | None = None
        self._refused_at: float | None = None
        # A daemon: the end of a node never waits for a disk.
        self._thread = threading.Thread(target=self._work, name=f"capture {node}", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Records that are missing: the queue or the disk was full, or they could not be recorded at all."""
        with self._changed:
            return self._dropped

    @property
    def recorded(self) -> int:
        """Records that are in a file, as far as the operating system says."""
        with self._changed:
            return self._recorded

    def record(self, direction: str, peer: str, method: str, stream: int, message: Message | tuple[str, bytes]) -> None:
        """Record a message, or its type's full name and its bytes. Never waits for the disk, never raises."""
        try:
            raw = _encode(self._clock(), Direction(direction), peer, method, stream, message)
        except Exception as error:  # a recorder must not be what stops a round
            self._drop(1, f"{type(error).__name__}: {error}")
            return
        with self._changed:
            fits = not self._closing and self._waiting_bytes + len(raw) <= self._capacity
            if fits:
                self._waiting.append(raw)
                self._waiting_bytes += len(raw)
                self._accepted += 1
                self._changed.notify_all()
        if not fits:
            self._drop(1, "closed" if self._closing else "the disk is too slow: the queue is full")

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until all so far is in a file or dropped, and tell whether it is: before one reads a live capture."""
        with self._changed:
            target = self._accepted
            return self._changed.wait_for(lambda: self._settled >= target, timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what waits and end the file. After the timeout the rest is given up and counted as dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._changed:
            lost = len(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
        self._lose(lost, "the disk did not take them in time")

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drop(self, count: int, why: str) -> None:
        with self._changed:
            self._dropped += count
            first, self._complained = not self._complained, True
        if first:  # `dropped` counts the others; a line for each would be a second flood
            self._log.warning("capture drops records", cause=why, directory=self.directory)

    def _work(self) -> None:
        while (raw := self._next()) is not None:
            if self._refused_at is not None and time.monotonic() - self._refused_at < self._retry_s:
                self._lose(1, "the disk refused a write")
                continue
            if self._try(1, partial(self._write, raw)) and not self._waiting:
                # Nothing else to do: a node that is killed after this loses nothing.
                self._try(0, self._flush)
        self._try(0, self._finish)

    def _try(self, at_stake: int, step: Callable[[], None]) -> bool:
        """Take a step with the file. If it fails, leave the file; what the disk had not yet taken is lost as well."""
        try:
            step()
        except Exception as error:  # a thread that dies would drop all that is to come
            self._refused_at = time.monotonic()
            file, self._file = self._file, None
            self._lose(at_stake + (file.abandon() if file is not None else 0), str(error))
            return False
        self._refused_at = None
        return True

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if not self._waiting:
                return None
            raw = self._waiting.popleft()
            self._waiting_bytes -= len(raw)
            return raw

    def _write(self, raw: bytes) -> None:
        if self._file is not None and self._file.begun and self._file.size + len(raw) > self._rotate:
            self._finish()
        if self._file is None:
            self._file = self._begin()
        self._file.write(raw)

    def _flush(self) -> None:
        if self._file is not None:
            self._settle(self._file.flush())

    def _finish(self) -> None:
        if self._file is not None:
            self._settle(self._file.finish())
            self._file = None

    def _settle(self, records: int) -> None:
        with self._changed:
            self._recorded += records
            self._settled += records
            self._changed.notify_all()

    def _lose(self, records: int, why: str) -> None:
        if records:
            self._drop(records, why)
        with self._changed:
            self._settled += records
            self._changed.notify_all()

    def _begin(self) -> "_Writer":
        files = _files(self.directory, self._prefix)
        for old in files[: max(0, len(files) - self._keep + 1)]:
            old.unlink(missing_ok=True)
        sequence = 1 + (_sequence(files[-1]) if files else 0)
        path = self.directory / f"{self._prefix}-{sequence:06}{SUFFIX}"
        run = self._run
        header = Header(run.node, run.role, run.federation, run.started, sequence)
        return _Writer(path, self._open(path), header)

    def _open(self, path: Path) -> BinaryIO:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


class _Writer:
    """One file: a gzip stream whose flushed part can be read even if the rest never comes."""

    def __init__(self, path: Path, file: BinaryIO, header: Header) -> None:
        self._path = path
        self._file = file
        self._gzip = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._unwritten = self._gzip.compress(header.line())
        self._pending = 0  # records that are not known to be in the file
        self._flushed = 0  # records that are
        self.size = len(header.line())

    @property
    def begun(self) -> bool:
        """Whether it has a record, so that another file may follow."""
        return self._pending + self._flushed > 0

    def write(self, raw: bytes) -> None:
        self._file.write(self._unwritten + self._gzip.compress(raw))
        self._unwritten = b""
        self._pending += 1
        self.size += len(raw)

    def flush(self) -> int:
        """Put all records into the file, and return how many that were."""
        self._file.write(self._gzip.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()
        return self._done()

    def finish(self) -> int:
        """End the file, and return how many records that put into it."""
        self._file.write(self._gzip.flush())
        self._file.close()
        return self._done()

    def abandon(self) -> int:
        """Close the file as it is, and return how many records are lost. Without any it goes: retries make many."""
        with suppress(OSError):
            self._file.close()
        if not self._flushed:
            with suppress(OSError):
                self._path.unlink()
        return self._pending

    def _done(self) -> int:
        records, self._pending = self._pending, 0
        self._flushed += records
        return records


def _encode(
    moment: float, direction: Direction, peer: str, method: str, stream: int, message: Message | tuple[str, bytes]
) -> bytes:
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


def _files(directory: Path, prefix: str | None = None) -> list[Path]:
    """List the captures in a directory, those of one node in the order in which they were written."""
    found = [(m["node"], int(m["sequence"]), p) for p in directory.iterdir() if (m := _NAME.fullmatch(p.name))]
    return [path for node, _, path in sorted(found) if prefix is None or node == prefix]


def _sequence(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match["sequence"]) if match else 0


# --- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path | str, strict: bool = False) -> "Reading":
    """Read a capture file, or all captures of a directory, node by node in the order in which they were written.

    A file that ends early yields its complete records, and `warnings` of the result says so. With `strict` that is
    raised as CaptureTruncated, after those records. A file that is not a capture raises CaptureError in any case.
    """
    return Reading(Path(path), strict)


class Reading(Iterator[Record]):
    """The records of a capture, one after the other, and what was wrong with it so far."""

    def __init__(self, path: Path, strict: bool) -> None:
        """Look for files at once, so that a wrong path is an error where it was written."""
        if not path.exists():
            raise CaptureError(f"{path} does not exist")
        self.files = _files(path) if path.is_dir() else [path]
        if not self.files:
            raise CaptureError(f"{path} has no captures: their names end in {SUFFIX}")
        self.warnings: list[str] = []
        """One sentence for each file that ends early or is damaged; complete once the last record was read."""
        self._strict = strict
        self._records = self._all()

    def __next__(self) -> Record:
        return next(self._records)

    def _all(self) -> Iterator[Record]:
        for path in self.files:
            count = 0
            try:
                with path.open("rb") as file:
                    for record in _records(_Source(file)):
                        count += 1
                        yield record
            except CaptureTruncated as error:
                warning = f"{path}: {error}, after {count} complete records"
                self.warnings.append(warning)
                if self._strict:
                    raise CaptureTruncated(warning) from None
            except CaptureError as error:
                where = f", at record {count + 1}" if count else ""
                raise CaptureError(f"{path}: {error}{where}") from None


def _records(source: "_Source") -> Iterator[Record]:
    header = Header.parse(source.line(MAX_HEADER))
    while not source.ended():
        yield _decode(header, source.take(source.varint()))


def _decode(header: Header, raw: bytes) -> Record:
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


class _Source:
    """What a file holds, uncompressed piece by piece."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._gzip = zlib.decompressobj(_GZIP)
        self._ready = bytearray()
        self._begun = False

    def line(self, most: int) -> bytes:
        while (end := self._ready.find(b"\n")) < 0:
            if len(self._ready) > most:
                raise CaptureError("it is not a capture: it does not begin with a header")
            self._more()
        self._begun = True
        return self.take(end + 1)

    def take(self, size: int) -> bytes:
        while len(self._ready) < size:
            self._more()
        raw = bytes(memoryview(self._ready)[:size])
        del self._ready[:size]
        return raw

    def varint(self) -> int:
        number = shift = 0
        while True:
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 56:
                raise CaptureError("the length of a record is malformed")

    def ended(self) -> bool:
        """Whether the file is over where a record could begin, which is the only place for it to be."""
        while not self._ready and not self._gzip.eof:
            self._more()
        if not self._ready and (self._gzip.unused_data or self._file.read(1)):
            raise CaptureTruncated("it is damaged (something follows its end)")
        return not self._ready

    def _more(self) -> None:
        """Uncompress some more, and never so much that a small file could fill the memory."""
        if self._gzip.eof:
            raise CaptureTruncated("it ends within a record")
        piece = self._gzip.unconsumed_tail or self._file.read(_PIECE)
        try:
            more = self._gzip.decompress(piece, _PIECE)
        except zlib.error as error:
            if not self._begun:
                raise CaptureError(f"it is not a capture: not even gzip ({error})") from None
            raise CaptureTruncated(f"it is damaged ({error})") from None
        self._ready += more
        if not piece and not more:
            raise CaptureTruncated("it ends before its end, as if the node had been killed")


# --- looking ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Group:
    """What records are counted by."""

    node: str
    direction: Direction
    peer: str
    method: str
    kind: str


@dataclass
class Tally:
    """How many messages, and how many bytes of them."""

    records: int = 0
    bytes: int = 0

    def add(self, records: int, size: int) -> None:
        """Count more."""
        self.records += records
        self.bytes += size


@dataclass
class Summary:
    """What a capture holds, in numbers."""

    groups: dict[Group, Tally] = field(default_factory=dict)
    first: float | None = None
    """Unix time of the earliest record, None if there are no records."""
    last: float | None = None
    """Unix time of the latest one."""
    warnings: list[str] = field(default_factory=list)
    """What was wrong with the files, as `Reading.warnings` has it."""

    @property
    def total(self) -> Tally:
        """Everything."""
        return Tally(sum(t.records for t in self.groups.values()), sum(t.bytes for t in self.groups.values()))

    def by(self, name: str) -> dict[str, Tally]:
        """Add up by one field of a group: node, direction, peer, method or kind."""
        tallies: dict[str, Tally] = {}
        for group, tally in sorted(self.groups.items()):
            tallies.setdefault(getattr(group, name), Tally()).add(tally.records, tally.bytes)
        return tallies

    def __str__(self) -> str:
        rows: list[tuple[Any, ...]] = [("node", "direction", "peer", "method", "kind", "records", "bytes")]
        rows += [
            (g.node, g.direction, g.peer, g.method, g.kind, t.records, t.bytes) for g, t in sorted(self.groups.items())
        ]
        widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
        lines = []
        for row in rows:
            texts = [f"{v!s:<{w}}" for v, w in zip(row[:5], widths, strict=False)]
            numbers = [f"{v!s:>{w}}" for v, w in zip(row[5:], widths[5:], strict=True)]
            lines.append("  ".join(texts + numbers))
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def summary(path: Path | str) -> Summary:
    """Count a capture's messages and their bytes by node, direction, peer, method and kind."""
    reading = read(path)
    result = Summary(warnings=reading.warnings)
    for record in reading:
        group = Group(record.header.node, record.direction, record.peer, record.method, record.kind)
        result.groups.setdefault(group, Tally()).add(1, len(record.data))
        result.first = record.time if result.first is None else min(result.first, record.time)
        result.last = record.time if result.last is None else max(result.last, record.time)
    return result
