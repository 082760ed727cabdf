"""Recording what a node received and sent, for an audit and for the attacks.

Recording is an observer: it never blocks the node and never fails it. Records wait in a queue that is bounded in bytes
for a thread that writes them; what does not fit, or what the disk refuses, is dropped and counted.
"""

import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from google.protobuf.message import Message

from silomix.runtime.capture.format import (
    GZIP,
    LEVEL,
    MIB,
    SUFFIX,
    Direction,
    FileHeader,
    capture_files,
    encode_record,
    sequence_of,
)
from silomix.runtime.observe.log import Log


class Capture:
    """Records what a node sees into DIRECTORY/NODE-SEQUENCE.silocap.gz, from any thread."""

    def __init__(
        self,
        directory: Path | str,
        node: str,
        role: str,
        federation_digest: bytes,
        *,
        rotate_bytes: int = 64 * MIB,
        keep_files: int = 64,
        queue_bytes: int = 64 * MIB,
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
        self._run = FileHeader(node, role, bytes(federation_digest), clock(), 0)
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._accepted = 0
        self._settled = 0
        self._dropped = 0
        self._recorded = 0
        self.on_dropped: Callable[[int], None] | None = None
        """Hears how many records were dropped, whenever some are; from any thread."""
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
            raw = encode_record(self._clock(), Direction(direction), peer, method, stream, message)
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
        if self.on_dropped is not None:
            self.on_dropped(count)
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
        files = capture_files(self.directory, self._prefix)
        for old in files[: max(0, len(files) - self._keep + 1)]:
            old.unlink(missing_ok=True)
        sequence = 1 + (sequence_of(files[-1]) if files else 0)
        path = self.directory / f"{self._prefix}-{sequence:06}{SUFFIX}"
        run = self._run
        header = FileHeader(run.node, run.role, run.federation, run.started, sequence)
        return _Writer(path, self._open(path), header)

    def _open(self, path: Path) -> BinaryIO:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


class _Writer:
    """One file: a gzip stream whose flushed part can be read even if the rest never comes."""

    def __init__(self, path: Path, file: BinaryIO, header: FileHeader) -> None:
        self._path = path
        self._file = file
        self._gzip = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
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
