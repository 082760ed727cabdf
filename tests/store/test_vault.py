"""R6: a lot of secrets is there after a crash, whole or not at all, and gone for good once it is forgotten."""

import errno
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from silomix.attacks.active.seized import in_memory
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.store.journal import Journal
from silomix.runtime.store.vault import DamagedError, Secrets, Vault


def lot(*numbers: int) -> Secrets:
    return tuple((f"silo-{n}", Secret(bytes([n]) * 32)) for n in numbers)


def test_lots_are_there_when_the_directory_is_opened_again(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "secrets")
    vault.put("keys", 10, "1", lot(1, 2))
    vault.put("keys", 9, "2", lot(3))
    vault.put("pads", 9, "2", ())
    vault.put("keys", 9, "2", lot(4))
    again = Vault(tmp_path / "secrets")
    assert list(again.lots("keys")) == [(9, "2", lot(4)), (10, "1", lot(1, 2))]
    assert list(again.lots("pads")) == [(9, "2", ())]
    assert list(again.lots("other")) == []


def test_a_secret_that_is_read_can_be_overwritten_without_touching_another(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    vault.put("keys", 1, "1", (("a", Secret(b"x" * 32)), ("b", Secret(b"x" * 32))))
    ((_, _, ((_, first), (_, second))),) = vault.lots("keys")
    first.wipe()
    assert (first.value, second.value) == (bytes(32), b"x" * 32)


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    Vault(tmp_path / "secrets").put("keys", 1, "1", lot(1))
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    (file,) = (tmp_path / "secrets").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_is_forgotten_is_overwritten_before_its_name_goes(tmp_path: Path) -> None:
    """Whoever still has the file open, as a disk has its blocks, finds nothing in it."""
    vault = Vault(tmp_path)
    vault.put("keys", 1, "1", lot(1, 2))
    vault.put("keys", 1, "2", lot(3))
    with (tmp_path / "keys-1-1").open("rb") as held:
        vault.forget("keys", 1, "1")
        left = held.read()
    assert left == bytes(len(left)) != b""
    vault.forget("keys", 1, "1")  # it is gone already
    assert list(vault.lots("keys")) == [(1, "2", lot(3))]


def test_whoever_dies_while_it_forgets_a_lot_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lot is overwritten, and its name is still there: it counts as gone, and not as damaged."""
    vault = Vault(tmp_path / "secrets")
    vault.put("keys", 1, "1", lot(1))

    def die(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            vault.forget("keys", 1, "1")
    assert len(list((tmp_path / "secrets").iterdir())) == 1
    assert list(Vault(tmp_path / "secrets").lots("keys")) == []
    assert list((tmp_path / "secrets").iterdir()) == []


def test_what_was_being_written_when_a_process_died_is_overwritten_and_deleted(tmp_path: Path) -> None:
    undone = tmp_path / ".keys-1-1.undone"
    undone.write_bytes(b"half of a secret")
    with undone.open("rb") as held:
        vault = Vault(tmp_path)
        assert held.read() == bytes(16)
    assert not list(tmp_path.iterdir())
    assert not list(vault.lots("keys"))


def test_a_lot_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = Vault(tmp_path)
    vault.put("keys", 1, "1", lot(1))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            vault.put("keys", 1, "1", lot(2))
    assert list(vault.lots("keys")) == [(1, "1", lot(1))]


def test_whoever_has_a_lot_written_hears_that_it_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the disk has room again a moment later: keys would be told that are nowhere."""
    vault = Vault(tmp_path)
    synced, real = [], os.fsync

    def full_once(file: int) -> None:
        synced.append(file)
        if len(synced) == 1:
            raise OSError(errno.ENOSPC, "no space left")
        real(file)

    monkeypatch.setattr(os, "fsync", full_once)
    with pytest.raises(OSError, match="no space"):
        vault.put("keys", 1, "1", lot(1))
    assert list(tmp_path.iterdir()) == []


def test_a_lot_and_its_name_are_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, list[str]]] = []

    def sync(file: int) -> None:
        names = sorted(path.name for path in tmp_path.iterdir())
        synced.append((stat.S_ISDIR(os.fstat(file).st_mode), names))

    vault = Vault(tmp_path)
    monkeypatch.setattr(os, "fsync", sync)
    vault.put("keys", 1, "1", lot(1))
    assert synced == [(False, [".keys-1-1.undone"]), (True, ["keys-1-1"])]
    synced.clear()
    vault.forget("keys", 1, "1")
    assert synced == [(False, [".keys-1-1.undone"]), (True, [])]


@pytest.mark.parametrize("at", [0, 19, 21, 30, 60, -1])
def test_a_flipped_byte_is_found_and_the_secrets_are_not_used(tmp_path: Path, at: int) -> None:
    vault = Vault(tmp_path)
    vault.put("keys", 1, "1", lot(1, 2))
    file = tmp_path / "keys-1-1"
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="keys-1-1 is damaged"):
        list(vault.lots("keys"))


@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw + b"\0", lambda raw: b""])
def test_a_file_of_another_length_is_damaged(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    vault = Vault(tmp_path)
    vault.put("keys", 1, "1", lot(1))
    file = tmp_path / "keys-1-1"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(UserError, match="damaged"):
        list(vault.lots("keys"))


def test_a_file_that_was_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    vault.put("keys", 1, "1", lot(1))
    file = tmp_path / "keys-1-1"
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(DamagedError, match="damaged"):
            list(vault.lots("keys"))


def test_a_whole_file_of_another_format_is_not_read_as_this_one(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    vault.put("keys", 1, "1", lot(1))
    file = tmp_path / "keys-1-1"
    content = file.read_bytes()[:-32].replace(b"silomix secrets 1", b"silomix secrets 2")
    file.write_bytes(content + hashlib.sha256(content).digest())
    with pytest.raises(DamagedError, match="damaged"):
        list(vault.lots("keys"))


def test_the_journal_has_its_secrets_beside_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.secrets.put("keys", 1, "1", lot(1))
    journal.close()
    assert b"\1" * 32 not in (tmp_path / "journal.sqlite").read_bytes()
    journal = Journal(tmp_path / "journal.sqlite")
    assert list(journal.secrets.lots("keys")) == [(1, "1", lot(1))]
    journal.close()


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux")
def test_no_copy_stays_in_memory_once_secrets_are_overwritten(tmp_path: Path) -> None:
    """Neither writing nor reading leaves one behind: the memory of a process that did both is searched."""
    with subprocess.Popen(
        [sys.executable, "-c", _KEEPER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "written\n"
        ((_, _, ((_, secret),)),) = Vault(tmp_path).lots("keys")
        wanted = {"it": secret.value}
        assert in_memory(keeper.pid, wanted)["it"] == 1
        keeper.stdin.write("\n")
        keeper.stdin.flush()
        assert keeper.stdout.readline() == "gone\n"
        assert in_memory(keeper.pid, wanted)["it"] == 0
        keeper.stdin.close()
    assert keeper.returncode == 0


_KEEPER = """
import os, sys
from pathlib import Path
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.store.vault import Vault

vault, secret = Vault(Path(sys.argv[1])), Secret(os.urandom(32))
vault.put("keys", 1, "1", (("silo", secret),))
print("written", flush=True)
sys.stdin.readline()
((_, _, ((_, read),)),) = vault.lots("keys")
read.wipe()
secret.wipe()
vault.forget("keys", 1, "1")
print("gone", flush=True)
sys.stdin.readline()
"""
