"""Reading captures back: every complete record of a file, however it ended."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from silomix.runtime.capture.format import (
    GZIP,
    MAX_HEADER,
    MAX_RECORD,
    PIECE,
    SUFFIX,
    CaptureError,
    CaptureTruncated,
    FileHeader,
    Record,
    capture_files,
    decode_record,
)


def read(path: Path | str, strict: bool = False) -> "Reading":
    """Read a capture file, or all captures of a directory, node by node in the order in which they were written.

    A file that ends early yields its complete records, and `warnings` of the result says so. With `strict` that is
    raised as CaptureTruncated, after those records. A file that is not a capture raises CaptureError in any case.

    >>> import silomix, torch
    >>> x, y = torch.randn(60, 4), torch.randint(2, (60,))
    >>> task = silomix.TorchTask(torch.nn.Linear(4, 2), (x, y), (x, y))
    >>> _ = silomix.run(task, silos=3, rounds=1, out="seen", auditable=True)
    >>> seen = {record.method for record in silomix.read_capture("seen/federation/aggregator/capture")}
    >>> sorted(seen & {"Prepare", "Open", "Deliver", "Reveal", "Store"})
    ['Deliver', 'Open', 'Prepare', 'Reveal', 'Store']
    """
    return Reading(Path(path), strict)


class Reading(Iterator[Record]):
    """The records of a capture, one after the other, and what was wrong with it so far."""

    def __init__(self, path: Path, strict: bool) -> None:
        """Look for files at once, so that a wrong path is an error where it was written."""
        if not path.exists():
            raise CaptureError(f"{path} does not exist")
        self.files = capture_files(path) if path.is_dir() else [path]
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
    header = FileHeader.parse(source.line(MAX_HEADER))
    while not source.ended():
        size = source.varint()
        if size > MAX_RECORD:
            raise CaptureError(f"a record of {size} bytes is longer than any message")
        yield decode_record(header, source.take(size))


class _Source:
    """What a file holds, uncompressed piece by piece."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._gzip = zlib.decompressobj(GZIP)
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
        piece = self._gzip.unconsumed_tail or self._file.read(PIECE)
        try:
            more = self._gzip.decompress(piece, PIECE)
        except zlib.error as error:
            if not self._begun:
                raise CaptureError(f"it is not a capture: not even gzip ({error})") from None
            raise CaptureTruncated(f"it is damaged ({error})") from None
        self._ready += more
        if not piece and not more:
            raise CaptureTruncated("it ends before its end, as if the node had been killed")
