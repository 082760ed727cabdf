"""Captures: what was seen is what is read, whatever became of the disk, the queue or the node. docs/capture.md."""

import errno
import gzip
import hashlib
import inspect
import io
import itertools
import json
import os
import re
import stat
import struct
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from silomix.runtime.capture.format import CaptureError, CaptureTruncated, Direction, Record
from silomix.runtime.capture.reader import read
from silomix.runtime.capture.summary import Tally, summary
from silomix.runtime.capture.writer import Capture
from silomix.v1 import body_pb2, manifest_pb2, services_pb2

DIGEST = bytes(range(32))
DOCUMENT = (Path(__file__).parents[2] / "docs" / "capture.md").read_text(encoding="utf-8")


class Ticks:
    """A clock that goes on by one second each time it is read."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def capture(directory: Path, node: str = "hop-1", **options: Any) -> Capture:
    return Capture(directory, node, "shuffler", DIGEST, clock=Ticks(), **options)


_numbers = itertools.count()


def chunk(index: int, size: int = 10) -> body_pb2.Frame:
    """A frame like no other before it, which does not compress."""
    plane = hashlib.shake_128(str(next(_numbers)).encode()).digest(size)
    return body_pb2.Frame(chunk=body_pb2.Chunk(index=index, planes=[plane]))


def fill(target: Capture, count: int, size: int = 10) -> list[bytes]:
    frames = [chunk(i, size) for i in range(count)]
    for frame in frames:
        target.record("received", "silo-1", "Submit", 1, frame)
    return [frame.SerializeToString() for frame in frames]


def data(records: Iterator[Record]) -> list[bytes]:
    return [record.data for record in records]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# --- what goes in comes out -------------------------------------------------------------------------------------------

texts = st.text(max_size=20)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        lambda index, planes: body_pb2.Frame(chunk=body_pb2.Chunk(index=index, planes=planes)),
        st.integers(0, 2**32 - 1),
        st.lists(st.binary(max_size=300), max_size=3),
    ),
    st.builds(lambda root: body_pb2.Frame(trailer=body_pb2.Trailer(root=root)), st.binary(max_size=32)),
    st.builds(lambda silo, root: body_pb2.Receipt(silo=silo, root=root), texts, st.binary(max_size=40)),
    st.builds(lambda t, a: manifest_pb2.Manifest(round=t, attempt=a), st.integers(0, 2**64 - 1), st.integers(0, 9)),
    st.builds(services_pb2.GetStatusRequest),
)
entries = st.tuples(st.sampled_from(Direction), texts, texts, st.integers(0, 2**64 - 1), messages)


@given(st.lists(entries, max_size=12), st.integers(1, 2000))
def test_what_is_recorded_is_what_is_read(sent: list[tuple[Direction, str, str, int, Message]], rotate: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        with capture(Path(directory), rotate_bytes=rotate) as target:
            for entry in sent:
                target.record(*entry)
        assert (target.recorded, target.dropped) == (len(sent), 0)
        if not sent:
            assert names(Path(directory)) == []
            return
        found = list(read(directory, strict=True))
    assert [(r.direction, r.peer, r.method, r.stream, r.message) for r in found] == sent
    assert [r.data for r in found] == [message.SerializeToString() for *_, message in sent]
    assert [r.time for r in found] == [1002.0 + i for i in range(len(sent))]
    header = found[0].header
    assert (header.node, header.role, header.federation, header.started) == ("hop-1", "shuffler", DIGEST, 1001.0)


def test_bytes_with_their_type_are_recorded_as_they_are(tmp_path: Path) -> None:
    """A malformed message is what an audit wants to see, so nothing decodes it before it is asked for."""
    with capture(tmp_path) as target:
        target.record("sent", "silo-1", "Submit", 1, ("silomix.v1.Frame", b"\xff\xff"))
        target.record("sent", "silo-1", "Submit", 1, ("silomix.v2.Novelty", b""))
    bad, unknown = read(tmp_path, strict=True)
    assert (bad.data, bad.kind, unknown.kind) == (b"\xff\xff", "Frame?", "Novelty?")
    with pytest.raises(CaptureError, match=r"2 bytes are not a silomix\.v1\.Frame"):
        _ = bad.message
    with pytest.raises(CaptureError, match=r"silomix\.v2\.Novelty"):
        _ = unknown.message


def test_the_format_is_the_documented_one(tmp_path: Path) -> None:
    with capture(tmp_path) as target:
        target.record("sent", "säge", "Submit", 7, ("silomix.v1.Frame", b"abc"))
    raw = gzip.decompress((tmp_path / "hop-1-000001.silocap.gz").read_bytes())
    line, _, rest = raw.partition(b"\n")
    assert json.loads(line) == {
        "format": "silocap",
        "version": 1,
        "node": "hop-1",
        "role": "shuffler",
        "federation": DIGEST.hex(),
        "started": 1001.0,
        "sequence": 1,
    }
    record = struct.pack(
        "<dBH5sH6sQH16s3s", 1002, 1, 5, "säge".encode(), 6, b"Submit", 7, 16, b"silomix.v1.Frame", b"abc"
    )
    assert rest == bytes([len(record)]) + record
    assert stat.S_IMODE((tmp_path / "hop-1-000001.silocap.gz").stat().st_mode) == 0o600


def test_kinds_name_the_alternative(tmp_path: Path) -> None:
    with capture(tmp_path) as target:
        target.record("sent", "a", "Relay", 1, services_pb2.RelayFrame(open=services_pb2.RelayOpen()))
        target.record("sent", "a", "Relay", 1, services_pb2.RelayFrame())
        target.record("sent", "a", "GetStatus", 1, services_pb2.RoundStatus(score=0.5))
    assert [record.kind for record in read(tmp_path)] == ["RelayFrame.open", "RelayFrame", "RoundStatus"]


def test_a_node_may_have_any_name(tmp_path: Path) -> None:
    for node in ("../up", "a-000001", "a", "ä b"):
        with capture(tmp_path, node) as target:
            fill(target, 1)
    assert [record.header.node for record in read(tmp_path)] == ["ä b", "../up", "a", "a-000001"]
    assert not [name for name in names(tmp_path) if "/" in name]


# --- rotation ---------------------------------------------------------------------------------------------------------


def test_files_rotate_and_the_oldest_go(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not ours to delete")
    with capture(tmp_path, "hop-2") as other:
        fill(other, 1)
    with capture(tmp_path, rotate_bytes=1000, keep_files=3) as target:
        sent = fill(target, 40, size=200)
    kept = [name for name in names(tmp_path) if name.startswith("hop-1")]
    assert len(kept) == 3
    assert "notes.txt" in names(tmp_path)
    assert "hop-2-000001.silocap.gz" in names(tmp_path)
    sizes = [len(gzip.decompress((tmp_path / name).read_bytes())) for name in kept]
    assert max(sizes) <= 1000
    found = [record for record in read(tmp_path, strict=True) if record.header.node == "hop-1"]
    assert [record.data for record in found] == sent[-len(found) :]
    assert len(found) >= 6
    assert target.dropped == 0


def test_a_record_beyond_the_limit_has_a_file_to_itself(tmp_path: Path) -> None:
    with capture(tmp_path, rotate_bytes=300) as target:
        sent = fill(target, 3, size=1000)
    assert len(names(tmp_path)) == 3
    assert data(read(tmp_path, strict=True)) == sent


def test_a_restart_goes_on_with_the_next_number(tmp_path: Path) -> None:
    sent = []
    for _ in range(4):
        with capture(tmp_path, keep_files=3) as target:
            sent += fill(target, 2)
    assert names(tmp_path) == [f"hop-1-00000{i}.silocap.gz" for i in (2, 3, 4)]
    assert data(read(tmp_path, strict=True)) == sent[2:]
    assert [record.header.sequence for record in read(tmp_path)] == [2, 2, 3, 3, 4, 4]


# --- a node that was killed -------------------------------------------------------------------------------------------


def test_a_file_torn_anywhere_yields_its_complete_records(tmp_path: Path) -> None:
    path = tmp_path / "hop-1-000001.silocap.gz"
    ends = [0]
    sent = []
    with capture(tmp_path) as target:
        for i in range(4):
            sent.append(chunk(i).SerializeToString())
            target.record("received", "silo-1", "Submit", 1, ("silomix.v1.Frame", sent[-1]))
            assert target.flush()
            ends.append(path.stat().st_size)
    whole = path.read_bytes()
    assert sorted(set(ends)) == ends
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        reading = read(path)
        found = data(reading)
        assert found == sent[: len(found)]
        assert len(found) >= sum(end <= cut for end in ends) - 1, "a flushed record is lost"
        (warning,) = reading.warnings
        assert warning.startswith(str(path))
        assert f"after {len(found)} complete records" in warning
        strict = read(path, strict=True)
        with pytest.raises(CaptureTruncated, match="complete records"):
            data(strict)
    path.write_bytes(whole)
    assert data(read(path, strict=True)) == sent


def test_a_torn_file_does_not_hide_the_next_one(tmp_path: Path) -> None:
    sent = []
    for _ in range(2):
        with capture(tmp_path) as target:
            sent += fill(target, 3)
    first = tmp_path / "hop-1-000001.silocap.gz"
    first.write_bytes(first.read_bytes()[:-20])
    reading = read(tmp_path)
    assert data(reading)[-3:] == sent[3:]
    assert len(reading.warnings) == 1


def test_damage_is_reported_and_never_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "x.silocap.gz"
    with capture(tmp_path) as target:
        fill(target, 3)
    whole = (tmp_path / "hop-1-000001.silocap.gz").read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        reading = read(path)
        with suppress(CaptureError):  # anything else is a failure
            list(reading)
            assert reading.warnings or 4 <= position <= 9, "only gzip's time stamp and system may change unnoticed"
    for tail in (b"\0", whole):
        path.write_bytes(whole + tail)
        with pytest.raises(CaptureTruncated, match="something follows its end"):
            list(read(path, strict=True))


def test_a_live_capture_can_be_read_after_a_flush(tmp_path: Path) -> None:
    with capture(tmp_path) as target:
        sent = fill(target, 5)
        assert target.flush()
        assert (target.recorded, target.dropped) == (5, 0)
        assert data(read(tmp_path)) == sent


# --- a slow disk, a full disk, a broken one ---------------------------------------------------------------------------


class Gated(Capture):
    """A disk that takes nothing until the gate opens."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.reached, self.gate = threading.Event(), threading.Event()
        super().__init__(*arguments, **options)

    def _open(self, path: Path) -> BinaryIO:
        self.reached.set()
        assert self.gate.wait(10)
        return super()._open(path)


def test_a_full_queue_drops_and_counts(tmp_path: Path) -> None:
    target = Gated(tmp_path, "hop-1", "shuffler", DIGEST, queue_bytes=1000)
    sent = fill(target, 1, size=200)
    assert target.reached.wait(10)
    sent += fill(target, 20, size=200)  # of about 250 bytes with what surrounds them
    assert target.dropped == 17
    assert not target.flush(timeout_s=0)
    target.gate.set()
    target.close()
    assert (target.recorded, target.dropped) == (4, 17)
    assert data(read(tmp_path, strict=True)) == sent[:4]


def test_a_record_that_can_never_fit_is_dropped(tmp_path: Path) -> None:
    heard: list[int] = []
    with capture(tmp_path, queue_bytes=100) as target:
        target.on_dropped = heard.append
        fill(target, 1, size=200)
    assert (target.recorded, target.dropped) == (0, 1)
    assert heard == [1]


def test_closing_does_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    target = Gated(tmp_path, "hop-1", "shuffler", DIGEST)
    fill(target, 1)
    assert target.reached.wait(10)
    fill(target, 4)
    target.close(timeout_s=0)
    assert target.dropped == 4
    target.gate.set()
    target.close()
    assert (target.recorded, target.dropped) == (1, 4)
    fill(target, 1)
    assert target.dropped == 5


class SmallDisk(io.RawIOBase):
    """A file on a disk with so many bytes left."""

    def __init__(self, path: Path, disk: dict[str, int]) -> None:
        super().__init__()
        self._file = path.open("xb", buffering=0)
        self._disk = disk

    def writable(self) -> bool:
        return True

    def write(self, raw: Any, /) -> int:
        size = min(len(raw), self._disk["left"])
        if not size and len(raw):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._disk["left"] -= size
        return self._file.write(bytes(raw[:size]))

    def close(self) -> None:
        self._file.close()
        super().close()


class OnSmallDisk(Capture):
    disk: dict[str, int]

    def _open(self, path: Path) -> BinaryIO:
        return io.BufferedWriter(SmallDisk(path, self.disk))


def test_a_full_disk_drops_counts_and_goes_on_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = OnSmallDisk(tmp_path, "hop-1", "shuffler", DIGEST, retry_s=0)
    target.disk = {"left": 2000}
    sent = []
    for _ in range(10):  # one by one, since records that fail together are lost together
        sent += fill(target, 1, size=400)
        assert target.flush()
    before = target.recorded
    assert 3 <= before <= 4
    assert before + target.dropped == 10
    assert names(tmp_path) == ["hop-1-000001.silocap.gz"], "a retry without success leaves nothing behind"
    target.disk["left"] = 10**6
    sent_later = fill(target, 3, size=400)
    target.close()
    assert (target.recorded, target.dropped) == (before + 3, 10 - before)
    reading = read(tmp_path)
    assert data(reading) == sent[:before] + sent_later
    assert len(reading.warnings) == 1
    assert [r.getMessage() for r in caplog.records] == ["capture drops records"]


def test_a_disk_that_refused_is_left_alone_for_a_while(tmp_path: Path) -> None:
    target = OnSmallDisk(tmp_path, "hop-1", "shuffler", DIGEST, retry_s=3600)
    target.disk = {"left": 0}
    fill(target, 1)
    assert target.flush()
    target.disk["left"] = 10**6
    fill(target, 5)
    target.close()
    assert (target.recorded, target.dropped) == (0, 6)
    assert names(tmp_path) == []


def test_records_that_a_full_disk_loses_together_are_all_counted(tmp_path: Path) -> None:
    class Both(Gated, OnSmallDisk):
        pass

    target = Both(tmp_path, "hop-1", "shuffler", DIGEST, rotate_bytes=2000, retry_s=0)
    target.disk = {"left": 100}
    fill(target, 30, size=300)
    assert target.reached.wait(10)
    target.gate.set()
    target.close()
    assert target.recorded + target.dropped == 30


def test_a_directory_that_vanishes_does_not_stop_the_node(tmp_path: Path) -> None:
    with capture(tmp_path / "gone", retry_s=0) as target:
        (tmp_path / "gone").rmdir()
        fill(target, 2)
        assert target.flush()
        (tmp_path / "gone").mkdir()
        fill(target, 2)
    assert (target.recorded, target.dropped) == (2, 2)


@pytest.mark.parametrize(
    "entry",
    [
        ("sideways", "peer", "Submit", 1, chunk(0)),
        ("sent", "p" * 70_000, "Submit", 1, chunk(0)),
        ("sent", "peer", "Submit", -1, chunk(0)),
        ("sent", "\ud800", "Submit", 1, chunk(0)),
        ("sent", "peer", "Submit", 1, None),
    ],
    ids=["direction", "long", "negative", "surrogate", "nothing"],
)
def test_what_cannot_be_recorded_is_counted_and_not_raised(tmp_path: Path, entry: tuple[Any, ...]) -> None:
    with capture(tmp_path) as target:
        target.record(*entry)
        fill(target, 1)
    assert (target.recorded, target.dropped) == (1, 1)


def test_what_is_wrong_from_the_start_is_raised_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_files"):
        capture(tmp_path, keep_files=0)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        capture(tmp_path / "file")


def test_all_threads_may_record(tmp_path: Path) -> None:
    with capture(tmp_path, rotate_bytes=5000) as target:
        threads = [threading.Thread(target=fill, args=(target, 50)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(list(read(tmp_path, strict=True))) == target.recorded == 200


# --- what is no capture -----------------------------------------------------------------------------------------------

HEADER = {"format": "silocap", "version": 1, "node": "n", "role": "silo", "federation": "", "started": 0, "sequence": 1}


def headed(rest: bytes = b"", **changes: Any) -> bytes:
    return gzip.compress(json.dumps({**HEADER, **changes}).encode() + b"\n" + rest)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"hello, this is no capture", "not even gzip"),
        (gzip.compress(b"hello\n", mtime=0), "not a capture's header"),
        (gzip.compress(b"[1, 2]\n", mtime=0), "not a capture's header"),
        (gzip.compress(b"{}\n", mtime=0), "lacks 'format'"),
        (gzip.compress(b"[" * 60_000 + b"\n", mtime=0), "not a capture's header"),
        (headed(sequence=float("inf")), "not a capture's header"),
        (gzip.compress(bytes(100_000), mtime=0), "does not begin with a header"),
        (headed(format="pcap"), "'pcap', not 'silocap'"),
        (headed(version=2), "it has version 2; this silomix reads version 1"),
        (headed(federation="xyz"), "not a capture's header"),
        (headed(b"\xff" * 20), "length of a record is malformed"),
        (headed(b"\x00"), "record of 0 bytes is malformed"),
        (headed(b"\x0b" + struct.pack("<dBH", 0, 0, 9)), "a text is longer than the record"),
        (headed(b"\x0d" + struct.pack("<dBHH", 0, 7, 0, 0)), "malformed"),
        (headed(b"\x0c" + struct.pack("<dBH", 0, 0, 1) + b"\xff"), "malformed"),
    ],
)
def test_garbage_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "n-000001.silocap.gz"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=re.escape(problem)) as caught:
        list(read(tmp_path))
    assert not isinstance(caught.value, CaptureTruncated)
    assert str(path) in str(caught.value)


def test_garbage_after_good_records_says_where(tmp_path: Path) -> None:
    record = struct.pack("<dBHHQH", 0, 0, 0, 0, 1, 0)
    (tmp_path / "x").write_bytes(headed((bytes([len(record)]) + record) * 2 + b"\x00"))
    with pytest.raises(CaptureError, match="at record 3"):
        list(read(tmp_path / "x"))


def test_a_small_file_cannot_fill_the_memory(tmp_path: Path) -> None:
    bomb = gzip.compress(json.dumps(HEADER).encode() + b"\n" + bytes(32 << 20))
    (tmp_path / "bomb").write_bytes(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(CaptureError, match="record of 0 bytes"):
            list(read(tmp_path / "bomb"))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_no_captures_no_silence(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"has no captures: their names end in \.silocap\.gz"):
        read(tmp_path)
    with pytest.raises(CaptureError, match="does not exist"):
        read(tmp_path / "nowhere")


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_summary_counts_by_everything(tmp_path: Path) -> None:
    with capture(tmp_path) as target:
        sizes = [len(raw) for raw in fill(target, 3)]
        target.record("received", "silo-2", "Submit", 2, body_pb2.Frame(trailer=body_pb2.Trailer(root=bytes(32))))
        target.record("sent", "silo-2", "Submit", 2, body_pb2.Receipt(silo="silo-2"))
    found = summary(tmp_path)
    assert found.by("direction") == {"received": Tally(4, sum(sizes) + 36), "sent": Tally(1, 8)}
    assert found.by("peer") == {"silo-1": Tally(3, sum(sizes)), "silo-2": Tally(2, 44)}
    assert found.by("kind") == {
        "Frame.chunk": Tally(3, sum(sizes)),
        "Frame.trailer": Tally(1, 36),
        "Receipt": Tally(1, 8),
    }
    assert found.total == Tally(5, sum(sizes) + 44)
    assert (found.first, found.last) == (1002, 1006)
    assert not found.warnings


def test_a_summary_of_a_torn_file_says_so(tmp_path: Path) -> None:
    with capture(tmp_path) as target:
        fill(target, 2)
    path = tmp_path / "hop-1-000001.silocap.gz"
    path.write_bytes(path.read_bytes()[:-1])
    found = summary(path)
    assert found.total.records == 2
    assert str(found).splitlines()[-1].startswith(f"warning: {path}")
    path.write_bytes(b"")
    assert (summary(path).total, summary(path).first) == (Tally(), None)


# --- the document -----------------------------------------------------------------------------------------------------


def test_the_examples_of_the_document_run_and_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", DOCUMENT, re.DOTALL)
    assert len(examples) == 3
    for example in examples[:2]:  # tests/nodes/test_baselines.py runs the third, which takes a federation
        exec(compile(example, "docs/capture.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_the_document_has_the_numbers_of_the_code() -> None:
    defaults = {name: p.default for name, p in inspect.signature(Capture).parameters.items()}
    assert f"after {defaults['rotate_bytes'] >> 20} MiB" in DOCUMENT
    assert f"the newest {defaults['keep_files']} files" in DOCUMENT
    assert f"the queue full ({defaults['queue_bytes'] >> 20} MiB)" in DOCUMENT
    assert f"alone for {defaults['retry_s']:.0f} seconds" in DOCUMENT
