"""Durable facts: what a node must still know after it was killed.

One SQLite file per node, in WAL mode with full synchronisation: when `put` returns, the fact survives a power cut.
Facts are small; vectors are files beside it, written whole before they are named here.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path


class Journal:
    """A durable map from (kind, round, key) to bytes. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, readable by its owner alone: it holds round keys."""
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        with self._lock:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA secure_delete=ON")  # deleted round keys are overwritten, not just unlinked
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS facts (kind TEXT, round INTEGER, key TEXT, value BLOB, "
                "PRIMARY KEY (kind, round, key)) WITHOUT ROWID"
            )

    def put(self, kind: str, round_: int, key: str, value: bytes) -> None:
        """Write a fact, durably. A fact that is there already is replaced."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?)", (kind, round_, key, value))

    def put_all(self, facts: list[tuple[str, int, str, bytes]]) -> None:
        """Write several facts in one transaction: all of them survive, or none."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?)", facts)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def facts(self, kind: str) -> Iterator[tuple[int, str, bytes]]:
        """Read all facts of a kind, oldest round first."""
        with self._lock:
            rows = self._db.execute(
                "SELECT round, key, value FROM facts WHERE kind = ? ORDER BY round, key", (kind,)
            ).fetchall()
        yield from rows

    def forget(self, kind: str, up_to_round: int) -> None:
        """Delete the facts of a kind up to a round, and take them out of the write-ahead log as well."""
        with self._lock:
            self._db.execute("DELETE FROM facts WHERE kind = ? AND round <= ?", (kind, up_to_round))
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that it is there whole, or not at all, after a crash."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
