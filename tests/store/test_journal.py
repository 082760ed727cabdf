"""Section 8 of the design: what was written is there after a crash, whole or not at all, and a bad disk says so."""

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.tools import examples

from silomix.runtime.core.errors import UserError
from silomix.runtime.store import journal as module
from silomix.runtime.store.files import write_atomically
from silomix.runtime.store.journal import Journal, JournalError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_facts_are_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.sqlite"
    journal = Journal(path)
    journal.put("released", 2, "", b"two")
    journal.put("released", 1, "", b"one")
    journal.put("key", 1, "silo-2", bytes(32))
    journal.put("key", 1, "silo-1", b"")
    journal.put("released", 2, "", b"again")
    journal.close()
    journal = Journal(path)
    assert list(journal.facts("released")) == [(1, "", b"one"), (2, "", b"again")]
    assert list(journal.facts("key")) == [(1, "silo-1", b""), (1, "silo-2", bytes(32))]
    assert list(journal.facts("unknown")) == []
    journal.close()


def _write_and_die(path: Path) -> None:
    journal = Journal(path)
    journal.put("released", 7, "", b"written")
    os.kill(os.getpid(), signal.SIGKILL)


def _write_some_and_die(path: Path) -> None:
    journal = Journal(path)
    for i in range(12):
        journal.put("released", i, "", bytes([i]) * 400)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_fact_survives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    process = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    journal = Journal(path)
    assert list(journal.facts("released")) == [(7, "", b"written")]
    journal.close()


def test_every_write_is_synchronised(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
    assert journal._db.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
    assert journal._db.execute("PRAGMA secure_delete").fetchone() == (1,)
    journal.close()


def test_what_is_deleted_is_overwritten_also_where_sqlite_would_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its default depends on who built it."""
    real = sqlite3.connect

    def lax(*args: Any, **options: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = real(*args, **options)
        made.execute("PRAGMA secure_delete=OFF")
        return made

    monkeypatch.setattr(sqlite3, "connect", lax)
    journal = Journal(tmp_path / "journal.sqlite")
    secret = os.urandom(32)
    journal.put("keys", 1, "1", secret)
    journal.put("keys", 1, "2", b"another")
    journal.forget("keys", 1, "1")
    journal.close()
    assert secret not in (tmp_path / "journal.sqlite").read_bytes()


def test_a_fact_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.put("key", 1, "a", b"1")
    with pytest.raises(JournalError):
        journal.put("key", 1 << 63, "b", b"2")
    with pytest.raises(TypeError):
        journal.put("key", 1, "c", object())  # type: ignore[arg-type]
    assert [key for _, key, _ in journal.facts("key")] == ["a"]
    journal.put("key", 1, "d", b"3")  # no transaction is left open behind a failure
    assert not journal._db.in_transaction
    journal.close()
    journal = Journal(tmp_path / "journal.sqlite")
    assert [key for _, key, _ in journal.facts("key")] == ["a", "d"]
    journal.close()


def test_what_is_forgotten_is_gone_from_the_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    secrets = [os.urandom(32) for _ in range(6)]
    for attempt, secret in enumerate(secrets, 1):
        journal.put("keys", 1, str(attempt), secret)
    journal.put("keys", 2, "5", b"of another round")
    journal.put("released", 1, "5", b"of another kind")
    journal.forget("keys", 1, "5")
    journal.forget("keys", 1, "7")  # there is none
    on_disk = b"".join(p.read_bytes() for p in tmp_path.iterdir() if p.is_file())
    assert [s in on_disk for s in secrets] == [True] * 4 + [False, True]
    assert [(r, key) for r, key, _ in journal.facts("keys")] == [(1, a) for a in "12346"] + [(2, "5")]
    assert list(journal.facts("released")) == [(1, "5", b"of another kind")]
    journal.close()


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.touch(0o644)
    path.chmod(0o644)
    journal = Journal(path)
    journal.put("key", 1, "a", b"1")
    assert {mode(p) for p in tmp_path.iterdir() if p.is_file()} == {0o600}
    journal.close()


def test_many_threads_may_write(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")

    def write(thread: int) -> None:
        for i in range(10):
            journal.put("key", i, str(thread), b"1")
            journal.put("gone", i, str(thread), b"2")
            assert (i, str(thread), b"2") in list(journal.facts("gone"))
            journal.forget("gone", i, str(thread))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(journal.facts("key"))) == 40
    assert list(journal.facts("gone")) == []
    journal.close()


def test_two_processes_cannot_share_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would think that a round is not released yet, and release it."""
    monkeypatch.setattr(module, "BUSY_S", 0.05)
    journal = Journal(tmp_path / "journal.sqlite")
    with pytest.raises(JournalError, match="in use: stop the other process"):
        Journal(tmp_path / "journal.sqlite")
    journal.put("released", 1, "", b"1")
    journal.close()
    Journal(tmp_path / "journal.sqlite").close()


def cut(size: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:size]


@pytest.mark.parametrize(
    "damage",
    [
        cut(50),
        cut(4096),
        cut(5000),
        lambda data: b"no database" * 100,
        lambda data: data[:4096] + bytes(len(data) - 4096),
        lambda data: data[:4100] + os.urandom(len(data) - 4100),
    ],
    ids=["header cut", "page cut", "half a page", "garbage", "zeros", "noise"],
)
def test_a_damaged_journal_says_so_and_what_to_do(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    for i in range(100):
        journal.put("key", i, "silo", bytes(100))
    journal.close()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(JournalError, match="damaged") as caught:
        Journal(path)
    assert isinstance(caught.value, OSError)  # as any other trouble with a disk
    assert isinstance(caught.value, UserError)  # shown without a traceback
    assert str(path) in str(caught.value)
    assert "enrol this node anew" in str(caught.value)


def test_what_is_wrong_with_a_copy_is_said_of_its_original(tmp_path: Path) -> None:
    """The copy is deleted before anybody could look at it."""
    copy, original = tmp_path / "copy.sqlite", tmp_path / "journal.sqlite"
    copy.write_bytes(b"no database" * 100)
    with pytest.raises(JournalError, match="damaged") as caught:
        Journal(copy, copied_from=original)
    assert str(original) in str(caught.value)
    assert str(copy) not in str(caught.value)


@pytest.mark.parametrize("what", [b"the cohort", b"silo-17", b"released"], ids=["value", "key", "kind"])
def test_a_flipped_bit_in_a_fact_is_found(tmp_path: Path, what: bytes) -> None:
    """SQLite sees nothing wrong with it: a hop would go on with another cohort than it wrote down, or with none."""
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    journal.put("released", 1, "silo-17", b"the cohort")
    journal.put("other", 1, "", b"unharmed")
    journal.close()
    data = bytearray(path.read_bytes())
    assert data.count(what) == 1
    data[data.index(what) + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalError, match=r"damaged.*checksum"):
        Journal(path)


def test_a_fact_that_changes_under_a_running_node_is_found_on_reading(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.put("released", 1, "silo-17", b"the cohort")
    journal._db.execute("UPDATE facts SET value = 'another cohort'")
    with pytest.raises(JournalError, match=r"damaged"):
        list(journal.facts("released"))
    journal.close()


@pytest.mark.parametrize("change", ["value = NULL", "value = 1.5", "key = CAST(x'ff' AS TEXT)"])
def test_a_fact_that_is_not_even_text_and_bytes_any_more_is_found(tmp_path: Path, change: str) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    journal.put("released", 1, "silo-17", b"the cohort")
    journal._db.execute(f"UPDATE facts SET {change}")
    with pytest.raises(JournalError, match=r"damaged"):
        list(journal.facts("released"))
    journal.close()
    with pytest.raises(JournalError, match=r"damaged"):
        Journal(path)


def test_facts_in_another_order_are_found(tmp_path: Path) -> None:
    """Each of them is whole, and yet one that is looked for would not be found: a hop would release a model twice."""
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    for kind in ("accused", "closed", "released", "signed"):
        journal.put(kind, 1, "", b"the cohort")
    journal.close()
    data, places = bytearray(path.read_bytes()), 4096 + 8  # the table's only page, behind its head
    assert int.from_bytes(data[4096 + 3 : 4096 + 5], "big") == 4
    first, last = data[places : places + 2], data[places + 6 : places + 8]
    data[places : places + 2], data[places + 6 : places + 8] = last, first
    path.write_bytes(data)
    with pytest.raises(JournalError, match="damaged"):
        Journal(path)


def test_a_damage_that_sqlite_cannot_put_into_words_is_one_too(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    data = path.read_bytes()
    assert b"tablefactsfacts" in data
    path.write_bytes(data.replace(b"tablefactsfacts", b"table\xffactsfacts").replace(b"CREATE TABLE", b"CREATE TABLX"))
    with pytest.raises(JournalError, match="damaged"):
        Journal(path)


def test_a_journal_that_is_used_after_its_end_is_not_called_damaged(tmp_path: Path) -> None:
    """Its owner would be told to enrol the node anew."""
    journal = Journal(tmp_path / "journal.sqlite")
    journal.close()
    with pytest.raises(sqlite3.ProgrammingError):
        journal.put("released", 1, "", b"1")


def test_no_flipped_bit_makes_a_fact_disappear_in_silence(tmp_path: Path) -> None:
    """Of a node that was killed: whatever its files are then, a bit of them is either harmless or found."""
    path = tmp_path / "written" / "journal.sqlite"
    process = multiprocessing.get_context("spawn").Process(target=_write_some_and_die, args=(path,))
    process.start()
    process.join(60)
    files = {p.name: p.read_bytes() for p in path.parent.iterdir() if p.is_file()}
    places = [(name, i) for name, data in files.items() for i in range(8 * len(data))]
    found = 0
    for trial, (name, bit) in enumerate(random.Random(7).sample(places, examples(400))):
        copy = tmp_path / str(trial)
        copy.mkdir()
        for other, data in files.items():
            (copy / other).write_bytes(data)
        damaged = bytearray(files[name])
        damaged[bit // 8] ^= 1 << bit % 8
        (copy / name).write_bytes(damaged)
        try:
            with closing(Journal(copy / path.name)) as journal:
                assert [r for r, _, _ in journal.facts("released")] == list(range(12)), (name, bit)
        except JournalError:
            found += 1
        shutil.rmtree(copy)
    assert found


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE facts (something TEXT)")
    other.close()
    with pytest.raises(JournalError, match="another program"):
        Journal(path)


def test_a_full_disk_fails_closed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.put("released", 1, "", b"1")
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(JournalError, match=r"full.*see to the disk's space"):
        journal.put("released", 2, "", bytes(100_000))
    assert list(journal.facts("released")) == [(1, "", b"1")]
    journal.put("released", 3, "", b"3")
    journal.close()
    journal = Journal(tmp_path / "journal.sqlite")
    assert [r for r, _, _ in journal.facts("released")] == [1, 3]
    journal.close()


def test_a_file_is_written_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "model"
    for data in (b"one", bytearray(b"a longer one"), memoryview(b"two"), b""):
        write_atomically(path, bytes(data) if isinstance(data, bytearray) else data)
        assert path.read_bytes() == bytes(data)
        assert mode(path) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
