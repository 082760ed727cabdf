"""Bytes from outside are taken or refused, by every decoder: never a crash, a hang, or memory without end.

These are minutes of fuzzing in seconds: bytes that are nearly good, and all that `make fuzz` has found worth keeping.
"""

import gzip
import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.targets import REFUSALS, TARGETS, captured, corpus

from silomix.runtime.capture.format import MAX_RECORD, CaptureError

MOST_BYTES = 64 << 20
"""Memory that a decoder may take for the few kilobytes that it is given here."""
SLOW = {"journal-file": 10}
"""Targets that touch the disk, and how often they may here."""


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Change good bytes as a fault or an enemy would: flip, cut, repeat, stretch a number, put something in."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randint(1, 16)]
            case 2:
                data[at:at] = data[at : at + rng.randint(1, 64)]
            case 3:
                data[at:at] = bytes([0xFF] * rng.randint(1, 9) + [0x01])
            case 4:
                data[at:at] = rng.choice([b"\x00", b"-1", b"1e999", b"[[[[", b'"', b"\n", b"{}", b"null", b"\xff\xfe"])
            case _:
                del data[at:]
    return bytes(data)


def test_good_bytes_are_taken() -> None:
    """Else the tests below would only show that everything is refused."""
    for name, target in TARGETS.items():
        assert all(target.survives(raw) for raw in target.good), name


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_once_is_taken_or_refused(name: str) -> None:
    for raw in corpus(name):
        TARGETS[name].survives(raw)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_bytes_are_taken_or_refused(name: str) -> None:
    target = TARGETS[name]
    rng = random.Random(f"damaged {name}")
    taken = 0
    for _ in range(SLOW.get(name, 400)):
        taken += target.survives(damaged(rng.choice(target.good), rng))
    assert taken < SLOW.get(name, 400) or name == "log-line"


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - SLOW.keys()))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(raw=st.binary(max_size=512))
def test_any_bytes_are_taken_or_refused(name: str, raw: bytes) -> None:
    TARGETS[name].survives(raw)


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - SLOW.keys()))
def test_a_few_kilobytes_take_no_more_than_their_share_of_memory(name: str) -> None:
    target, rng = TARGETS[name], random.Random(f"memory {name}")
    tracemalloc.start()
    try:
        for _ in range(60):
            target.survives(damaged(rng.choice(target.good), rng))
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_a_small_capture_cannot_fill_the_memory() -> None:
    """A record that says it is long, in a file that unpacks to a lot, is refused before any of it is unpacked."""
    head = gzip.decompress(captured()).partition(b"\n")[0] + b"\n"
    length = b"\x81\x80\x80\x20"
    assert sum((byte & 0x7F) << 7 * i for i, byte in enumerate(length)) == MAX_RECORD + 1
    bomb = gzip.compress(head + length + bytes(70 << 20), 1)
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(CaptureError, match="longer than any message"):
            TARGETS["capture-file"].decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_only_refusals_count_as_such() -> None:
    assert not any(issubclass(error, REFUSALS) for error in (ValueError, KeyError, MemoryError, RecursionError))
