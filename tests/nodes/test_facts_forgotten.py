"""A hop's journal: what is to be gone is gone from the disk, and a fact that nobody can have written ends the node."""

from pathlib import Path

import pytest

from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.protocol.shuffler import Closed, Fact, KeysGone, KeysMade, Padded, PadGone
from silomix.runtime.nodes.facts import read_shuffler, write_shuffler
from silomix.runtime.store.journal import Journal, JournalError


def padded(number: int) -> Padded:
    name = bytes([number]) * 32
    return Padded(1, number, name, b"m", ("a",), b"c", ("s",), (), b"", Secret(bytes([number]) * 32))


def test_a_pad_that_is_gone_leaves_neither_its_attempt_nor_the_secret(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    gone, kept = padded(1), padded(2)
    for fact in (gone, kept, PadGone(1, 1, gone.manifest)):
        write_shuffler(journal, fact)
    assert [key for _, key, _ in journal.facts("padded")] == [kept.manifest.hex()]
    assert journal.secrets.keys("pad") == [(1, kept.manifest.hex())]
    assert list(read_shuffler(journal)) == [kept]
    journal.close()


def test_keys_that_are_gone_are_gone_from_the_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    made = [KeysMade(1, attempt, (("silo-1", Secret(bytes([attempt]) * 32)),)) for attempt in (1, 2)]
    facts: list[Fact] = [*made, KeysGone(1, 1)]
    for fact in facts:
        write_shuffler(journal, fact)
    assert list(read_shuffler(journal)) == made[1:]
    journal.close()


def test_a_fact_that_nobody_can_have_written_ends_the_node(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    write_shuffler(journal, Closed(1, 1))
    journal.put("closed", 2, "no number", b"")
    with pytest.raises(JournalError, match="closed of round 2"):
        list(read_shuffler(journal))
    journal.close()
