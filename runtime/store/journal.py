"""Durable facts: what a node must still know after it was killed.

One SQLite file per node, fully synchronised: when `put` returns, the fact survives a power cut. Facts are small;
vectors are files beside it, written whole before they are named here. Secrets that must be forgotten are files too:
SQLite would leave copies of them in memory.

SQLite notices a damaged page by its structure alone, so every fact carries a checksum over all of it, and all facts are
checked when the file is opened. A journal with one that does not fit is never used: a hop that read another cohort than
it wrote, or did not find it, would release a model twice. There is no write-ahead log, because after one flipped bit in
it SQLite would drop that fact and all that follow, in silence.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import Passing, UserError
from silomix.runtime.store.home import SECRETS_DIRECTORY
from silomix.runtime.store.vault import Vault

BUSY_S = 5.0
"""Time that a process which is ending has to let go of the file."""


class JournalError(UserError, OSError):
    """The journal cannot be read or written: the node must not go on, and says what its owner can do."""


class JournalBusy(JournalError, Passing):  # noqa: N818 - what it is
    """The journal cannot be used now: another process has it, or the disk has no room."""


class Journal:
    """A durable map from (kind, round, key) to bytes. Safe to use from several threads, and by one process at a time:
    two that each thought a round unreleased would both release it.
    """

    def __init__(self, path: Path, *, copied_from: Path | None = None) -> None:
        """Open or create the file, readable by its owner alone. What is wrong with a copy is said of its original."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
        self._path = copied_from or path
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            with self._using():
                self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
                self._db.execute("PRAGMA journal_mode=TRUNCATE")
                self._db.execute("PRAGMA synchronous=EXTRA")
                self._db.execute("PRAGMA secure_delete=ON")  # what is deleted is overwritten, not just unlinked
                self._db.execute(
                    "CREATE TABLE IF NOT EXISTS facts (kind TEXT, round INTEGER, key TEXT, value BLOB, checksum BLOB, "
                    "PRIMARY KEY (kind, round, key)) WITHOUT ROWID"
                )
                self._check()
            self.secrets = Vault(path.parent / SECRETS_DIRECTORY)
        except BaseException:
            self._db.close()
            raise

    def damaged(self, what: str, error: Exception) -> JournalError:
        """Say that something in the file is not what a node wrote."""
        return JournalError(
            f"{self._path} is damaged, or is not a journal ({what}: {error}): move it away and enrol this node anew. A "
            "shuffler is never restored from an old copy, which does not know what was released since"
        )

    def _check(self) -> None:
        problems = [row[0] for row in self._db.execute("PRAGMA integrity_check(1)")]
        if problems != ["ok"]:
            raise sqlite3.DatabaseError(problems[0])
        columns = [row[1] for row in self._db.execute("PRAGMA table_info(facts)")]
        if columns != ["kind", "round", "key", "value", "checksum"]:
            raise sqlite3.DatabaseError("it has the tables of another program, or of an older version")
        # all of them: one whose kind or key is damaged would just not be found
        for kind, round_, key, value, written in self._db.execute("SELECT * FROM facts"):
            self.check(kind, round_, key, value, written)

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Hold the lock, and say what SQLite's errors mean for a node."""
        with self._lock:
            try:
                yield
            except OverflowError as error:
                raise JournalError(f"a fact does not fit into {self._path}: {error}") from None
            except sqlite3.OperationalError as error:
                code = getattr(error, "sqlite_errorcode", None)
                if code is None:  # a text that is none
                    raise self.damaged("SQLite", error) from None
                if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise JournalBusy(f"{self._path} is in use: stop the other process of this node first") from None
                raise JournalBusy(
                    f"{self._path} cannot be written ({error}): see to the disk's space and rights, and start again"
                ) from None
            except sqlite3.Error as error:
                if isinstance(error, sqlite3.ProgrammingError):  # ours: used after it was closed
                    raise
                raise self.damaged("SQLite", error) from None
            except UnicodeDecodeError as error:  # what SQLite had to say of a damaged file was no text either
                raise self.damaged("SQLite", error) from None

    def put(self, kind: str, round_: int, key: str, value: bytes) -> None:
        """Write a fact, durably. A fact that is there already is replaced."""
        with self._using():
            row = (kind, round_, key, value, checksum(kind, round_, key, value))
            self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?, ?)", row)

    def facts(self, kind: str) -> Iterator[tuple[int, str, bytes]]:
        """Read all facts of a kind, oldest round first."""
        with self._using():
            rows = self._db.execute(
                "SELECT round, key, value, checksum FROM facts WHERE kind = ? ORDER BY round, key", (kind,)
            ).fetchall()
        for round_, key, value, written in rows:
            self.check(kind, round_, key, value, written)
            yield round_, key, value

    def check(self, kind: str, round_: int, key: str, value: bytes, written: bytes) -> None:
        """Compare a fact with its checksum."""
        try:
            whole = checksum(kind, round_, key, value) == written
        except (TypeError, ValueError) as error:  # not even bytes, or text, any more
            raise self.damaged(f"{kind} of round {round_}", error) from None
        if not whole:
            raise self.damaged(f"{kind} of round {round_}", ValueError("its checksum is another"))

    def forget(self, kind: str, round_: int, key: str) -> None:
        """Delete a fact."""
        with self._using():
            self._db.execute("DELETE FROM facts WHERE kind = ? AND round = ? AND key = ?", (kind, round_, key))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def checksum(kind: str, round_: int, key: str, value: bytes) -> bytes:
    """Cover all of a fact: what it says, and what it is said about."""
    return digest("fact", kind, round_, key, value)
