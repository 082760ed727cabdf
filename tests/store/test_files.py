"""A file is there whole or not at all, with its mode from the first byte, also if two write it at once."""

import multiprocessing
import os
import signal
import stat
import threading
from pathlib import Path

import pytest

from silomix.runtime.store.files import PRIVATE, PUBLIC, naming, sweep, write_atomically


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_written_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "model"
    for data in (b"one", bytearray(b"a longer one"), memoryview(b"two"), b""):
        write_atomically(path, data)
        assert path.read_bytes() == bytes(data)
        assert mode(path) == PRIVATE
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_parts_follow_one_another(tmp_path: Path) -> None:
    write_atomically(tmp_path / "model", b"one", memoryview(b"two"), b"", bytearray(b"three"))
    assert (tmp_path / "model").read_bytes() == b"onetwothree"


def test_a_mode_replaces_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tls.key"
    write_atomically(path, b"shown", mode=PUBLIC)
    assert mode(path) == PUBLIC
    modes: list[int] = []
    real = os.fsync

    def look(descriptor: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    write_atomically(path, b"secret")
    assert modes[0] == mode(path) == PRIVATE  # before it had its name, and now


def test_a_full_disk_is_told_with_the_file_that_did_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/model'") as caught:
        write_atomically(tmp_path / "model", b"new")
    assert caught.value.errno == 28
    with pytest.raises(OSError, match="/dev/full"), naming(Path("/dev/full")), open("/dev/full", "wb") as file:
        file.write(b"more")
    with pytest.raises(FileNotFoundError, match="nowhere"), naming(tmp_path / "other"):
        (tmp_path / "nowhere").read_bytes()  # an error that names a file keeps it
    with pytest.raises(OSError, match="the token is gone"), naming(tmp_path / "other"):
        raise OSError("the token is gone")  # and one that is not the system's keeps what it says


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "model"
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if fails == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_the_name_is_as_durable_as_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synchronised: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synchronised.append(stat.S_ISDIR(os.fstat(fd).st_mode)))
    write_atomically(tmp_path / "model", b"content")
    assert synchronised == [False, True]  # the content before it has its name, and then the directory


def test_two_who_write_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, contents = tmp_path / "model", [bytes([i]) * 200_000 for i in range(4)]

    def write(content: bytes) -> None:
        for _ in range(10):
            write_atomically(path, content)
            assert path.read_bytes() in contents

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def _die_while_writing(path: Path) -> None:
    os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
    write_atomically(path, b"new")


def test_what_a_killed_process_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_atomically(path, b"old")
    process = multiprocessing.get_context("spawn").Process(target=_die_while_writing, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / ".hidden").write_bytes(b"an owner's own")
    sweep(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".hidden", "model"]
