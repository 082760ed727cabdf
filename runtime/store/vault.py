"""Durable secrets that can be forgotten: a file for each lot, overwritten and deleted when its time is over.

They are not in the journal, because SQLite, and whatever turns a secret into text for it, leaves copies in the memory
of the process, which nobody can find and overwrite. Here a secret goes from its own 32 bytes to the file and back, by
system calls that buffer nothing, and is in memory once: where `Secret.wipe` overwrites it.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.masks import SEED_BYTES, Secret

Secrets = tuple[tuple[str, Secret], ...]
"""A lot: secrets by name."""

_MAGIC = b"silomix secrets 1\n"
_LENGTH = 2
"""Bytes that say how many secrets there are, and how long each name is."""
_CHECK = hashlib.sha256().digest_size
_UNDONE = ".undone"


class DamagedError(UserError, OSError):
    """A file of secrets is not what was written: it is never used, and its owner is told."""


class Vault:
    """A durable map from (kind, round, key) to a lot of secrets. When a call returns, a power cut changes nothing."""

    def __init__(self, directory: Path) -> None:
        """Open or create the directory, for its owner alone, and delete what was being written when a process died."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        for leftover in directory.glob(f".*{_UNDONE}"):
            _shred(leftover)

    def put(self, kind: str, round_: int, key: str, secrets: Secrets) -> None:
        """Write a lot, durably. Readers see all of it or nothing."""
        path = self._path(kind, round_, key)
        temporary = path.with_name(f".{path.name}{_UNDONE}")
        try:
            with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
                for part in _parts(secrets):
                    _write(file, part)
                os.fsync(file)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                _shred(temporary)
            raise
        self._sync()

    def keys(self, kind: str) -> list[tuple[int, str]]:
        """List the lots of a kind by round and key, oldest round first."""
        names = [path.name.split("-", 2) for path in self._directory.glob(f"{kind}-*")]
        return sorted((int(number), key) for _, number, key in names)

    def lots(self, kind: str) -> Iterator[tuple[int, str, Secrets]]:
        """Read all lots of a kind, oldest round first."""
        for round_, key in self.keys(kind):
            yield round_, key, _read(self._path(kind, round_, key))

    def forget(self, kind: str, round_: int, key: str) -> None:
        """Overwrite a lot on the disk and delete it. One that is not there is gone already."""
        path = self._path(kind, round_, key)
        if path.exists():
            doomed = path.with_name(f".{path.name}{_UNDONE}")
            path.replace(doomed)  # first: whoever is killed half-way must not find a lot of zeros at the next start
            _shred(doomed)
            self._sync()

    def _path(self, kind: str, round_: int, key: str) -> Path:
        return self._directory / f"{kind}-{round_}-{key}"

    def _sync(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)  # a name is as durable as what it names
        finally:
            os.close(directory)


def _parts(secrets: Secrets) -> Iterator[bytes]:
    check = hashlib.sha256()
    for part in (_MAGIC, len(secrets).to_bytes(_LENGTH, "big"), *_entries(secrets)):
        check.update(part)
        yield part
    yield check.digest()


def _entries(secrets: Secrets) -> Iterable[bytes]:
    for name, secret in secrets:
        yield len(name.encode()).to_bytes(_LENGTH, "big") + name.encode()
        yield secret.value


def _read(path: Path) -> Secrets:
    """Read a lot, or say that its file is damaged."""
    with _opened(path, os.O_RDONLY) as file:
        check = hashlib.sha256()

        def take(size: int) -> bytes:
            part = os.read(file, size)  # bytes of their own: no larger buffer has them too
            if len(part) != size:
                raise _damaged(path)
            check.update(part)
            return part

        if take(len(_MAGIC)) != _MAGIC:
            raise _damaged(path)
        found = []
        for _ in range(int.from_bytes(take(_LENGTH), "big")):
            name = take(int.from_bytes(take(_LENGTH), "big"))
            found.append((name, Secret(take(SEED_BYTES))))
        if os.read(file, _CHECK + 1) != check.digest():
            raise _damaged(path)
        return tuple((name.decode(), secret) for name, secret in found)


def _damaged(path: Path) -> DamagedError:
    return DamagedError(
        f"{path} is damaged: delete it. The attempt that its secrets were made for is lost; the next makes its own"
    )


def _shred(path: Path) -> None:
    with _opened(path, os.O_WRONLY) as file:
        _write(file, bytes(os.fstat(file).st_size))
        os.fsync(file)
    path.unlink()


@contextmanager
def _opened(path: Path, how: int) -> Iterator[int]:
    """Open a file as the system has it: Python's own files keep what passes through them."""
    descriptor = os.open(path, how, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(file: int, part: bytes) -> None:
    view = memoryview(part)
    while view:
        view = view[os.write(file, view) :]
