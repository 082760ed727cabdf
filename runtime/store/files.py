"""Files that are there whole or not at all, whatever happens while they are written."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o644
_UNDONE = ".undone"

Data = bytes | bytearray | memoryview


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error that does not: a full disk is noticed on a descriptor, which knows no name."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomically(path: Path, *parts: Data, mode: int = PRIVATE) -> None:
    """Write a file of some parts, one after the other, and let nobody see it before all of it is on the disk.

    It has its mode from the first byte, so that a key is never readable for a moment. Two who write the same file at
    the same time do not disturb each other: the later one counts.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_UNDONE}")
    try:
        with naming(path):
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
                for part in parts:
                    stream.write(part)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the name is as durable as what it names
    finally:
        os.close(directory)


def sweep(directory: Path) -> None:
    """Delete what a process left here that was killed while it wrote. Only for whoever alone writes here."""
    for leftover in directory.glob(f".*{_UNDONE}"):
        leftover.unlink(missing_ok=True)
