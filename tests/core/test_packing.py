"""Protocol section 3, packing: a plane is the digits of one big integer, and what is not is refused with its place."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.vectors import generate, reference

from silomix.runtime.core import packing, residue
from silomix.runtime.core.codec import Layout
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.packing import Residues, pack, pack_into, packed_bytes, residue_dtype, scratch, unpack
from silomix.runtime.core.plan import Encoding, Level, Plan, Quantiser

Plane = bytes | memoryview
WIDTHS = range(1, 21)
GUARD = 0xA5


def array(values: Sequence[int], width: int, *, wide: bool = False) -> Residues:
    """Residues as a plan holds them: in 32 bits if any of its planes needs them."""
    kind: npt.DTypeLike = np.uint32 if wide else residue_dtype(width)
    return np.array(values, kind)


def some(n: int, modulus: int, seed: int = 0) -> list[int]:
    """Residues with the extremes among them."""
    rng = Random(f"{n} {modulus} {seed}")
    return [rng.choice((0, modulus - 1, rng.randrange(modulus), rng.randrange(modulus))) for _ in range(n)]


@st.composite
def moduli(draw: st.DrawFn) -> int:
    """A modulus of any width, the least and the greatest of a width more often than not."""
    w = draw(st.sampled_from(WIDTHS))
    return draw(st.one_of(st.sampled_from([(1 << w - 1) + 1, 1 << w]), st.integers((1 << w - 1) + 1, 1 << w)))


def as_bytes(plane: bytes) -> Plane:
    return plane


def as_view(plane: bytes) -> Plane:
    return memoryview(plane)


def as_slice(plane: bytes) -> Plane:
    """A part of a received frame: at an odd address, with other bytes on both sides, writable."""
    frame = np.full(len(plane) + 33, 0xFF, np.uint8)
    frame[17 : 17 + len(plane)] = np.frombuffer(plane, np.uint8)
    return frame.data[17 : 17 + len(plane)]


forms = pytest.mark.parametrize("form", [as_bytes, as_view, as_slice])


# What is good comes back.


@given(modulus=moduli(), n=st.integers(0, 300), seed=st.integers(0, 9), wide=st.booleans())
def test_a_plane_is_the_digits_of_one_integer(modulus: int, n: int, seed: int, wide: bool) -> None:
    width = reference.width_of(modulus)
    values = some(n, modulus, seed)
    residues = array(values, width, wide=wide)
    plane = pack(residues, width)
    assert plane == reference.pack(values, width)
    assert len(plane) == packed_bytes(n, width) == -(-n * width // 8)
    for form in (as_bytes, as_slice):
        back = unpack(form(plane), modulus, n)
        assert back.dtype == residue_dtype(width)
        assert back.tolist() == values
    into = np.full(n, 7, residues.dtype)
    assert unpack(plane, modulus, n, into) is into
    assert into.tolist() == values


@pytest.mark.parametrize("width", WIDTHS)
def test_every_length_up_to_the_kernels_blocks(width: int) -> None:
    for n in range(70):
        values = some(n, 1 << width)
        plane = pack(array(values, width), width)
        assert plane == reference.pack(values, width)
        assert unpack(plane, 1 << width, n).tolist() == values


@pytest.mark.parametrize("width", [1, 3, 8, 9, 13, 15, 16, 17, 20])
def test_a_full_chunk(width: int) -> None:
    modulus = (1 << width) - (width > 1)
    values = some(65_536, modulus)
    plane = pack(array(values, width), width)
    assert len(plane) == 8192 * width
    assert plane == reference.pack(values, width)
    assert unpack(plane, modulus, 65_536).tolist() == values


def test_the_largest_residues_do_not_touch_their_neighbours() -> None:
    for width in WIDTHS:
        top = (1 << width) - 1
        for i in range(33):
            values = [0] * 33
            values[i] = top
            plane = pack(array(values, width), width)
            assert int.from_bytes(plane, "little") == top << i * width
            assert unpack(plane, 1 << width, 33).tolist() == values


def test_the_vectors() -> None:
    vectors = generate.load("packing.json")
    for v in vectors["good"]:
        width = reference.width_of(v["modulus"])
        assert pack(array(v["residues"], width), width).hex() == v["plane"]
        assert unpack(bytes.fromhex(v["plane"]), v["modulus"], len(v["residues"])).tolist() == v["residues"]
    for v in vectors["bad"]:
        with pytest.raises(PeerFault) as fault:
            unpack(bytes.fromhex(v["plane"]), v["modulus"], v["n"])
        assert (fault.value.reason, fault.value.details["offset"]) == (v["reason"], v["offset"])


def test_residues_that_do_not_lie_side_by_side() -> None:
    values = some(40, 511)
    spread = np.full(80, 0xFFFF, np.uint16)
    spread[::2] = values
    plane = pack(spread[::2], 9)
    assert plane == reference.pack(values, 9)
    into = np.full(80, 0xFFFF, np.uint16)
    unpack(plane, 511, 40, into[::2])
    assert into[::2].tolist() == values
    assert set(into[1::2].tolist()) == {0xFFFF}


# Buffers.


@pytest.mark.parametrize("width", WIDTHS)
def test_a_used_buffer_leaves_nothing_behind(width: int) -> None:
    buffer = scratch(130, width)
    top = (1 << width) - 1
    for n in (130, 129, 64, 9, 8, 7, 1, 0, 33):
        buffer[:] = 0xFF
        pack_into(array([top] * 130, width), width, buffer)
        values = some(n, 1 << width)
        assert bytes(pack_into(array(values, width), width, buffer)) == reference.pack(values, width)
        assert bytes(pack_into(array([0] * n, width), width, buffer)) == bytes(packed_bytes(n, width))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("wide", [False, True])
def test_packing_stays_within_the_slack(width: int, wide: bool) -> None:
    for n in (*range(35), 64, 1000, 65_536):
        size = packed_bytes(n, width)
        memory = np.full(64 + size + packing.SLACK + 64, GUARD, np.uint8)
        residues = np.full(n, (1 << width) - 1, np.uint32 if wide else residue_dtype(width))
        # A buffer of just the right size, and one that is larger.
        for end in (64 + size + packing.SLACK, len(memory)):
            plane = pack_into(residues, width, memory[64:end])
            assert len(plane) == size
            assert (memory[:64] == GUARD).all()
            assert (memory[64 + size + packing.SLACK :] == GUARD).all()


GUARD_PAGE = """
import ctypes, mmap
import numpy as np
from silomix.runtime.core.packing import SLACK, pack, pack_into, packed_bytes, unpack

memory = mmap.mmap(-1, 17 * mmap.PAGESIZE)
end = 16 * mmap.PAGESIZE
address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + end
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0
view = memoryview(memory)
for width in range(1, 21):
    for n in (*range(1, 70), 1000, 4001):
        size = packed_bytes(n, width)
        for kind in (np.uint16, np.uint32)[width > 15 :]:
            row = np.frombuffer(view[end - n * kind(0).nbytes : end], kind)
            row[:] = (1 << width) - 1
            plane = pack(row, width)
            unpack(plane, 1 << width, n, row)
            pack_into(row.copy(), width, np.frombuffer(view[end - size - SLACK : end], np.uint8))
            view[end - size : end] = plane
            unpack(view[end - size : end], 1 << width, n, np.empty(n, kind))
"""


def test_nothing_is_read_or_written_past_the_end() -> None:
    # Planes, residues and buffers end where a page begins that may not be touched.
    source = Path(packing.__file__).parents[3]  # this checkout's packages, wherever others are installed
    command, environment = [sys.executable, "-c", GUARD_PAGE], {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_buffer_too_small_is_refused() -> None:
    residues = array([1] * 8, 9)
    with pytest.raises(ValueError, match="needs 25"):
        pack_into(residues, 9, np.empty(24, np.uint8))


@pytest.mark.parametrize("n", [7, 9])
def test_residues_go_only_where_they_fit(n: int) -> None:
    plane = pack(array([1] * 8, 9), 9)
    with pytest.raises(ValueError, match="do not hold 8 residues"):
        unpack(plane, 512, 8, np.empty(n, np.uint16))
    with pytest.raises(ValueError, match="do not hold 8 residues"):
        unpack(pack(array([1] * 8, 17), 17), 1 << 17, 8, np.empty(8, np.uint16))


# What is bad is refused.


def refused(plane: Plane, modulus: int, n: int, out: Residues | None = None) -> PeerFault:
    with pytest.raises(PeerFault) as fault:
        unpack(plane, modulus, n, out)
    return fault.value


@forms
@pytest.mark.parametrize("modulus", [2, 511, 512, 32_768, 32_769, 1 << 20])
def test_a_wrong_length_is_refused_before_anything_is_read(form: Callable[[bytes], Plane], modulus: int) -> None:
    width = reference.width_of(modulus)
    plane = pack(array(some(21, modulus), width), width)
    into = array([7 % modulus] * 21, width)
    for wrong in (b"", plane[:1], plane[:-1], plane + b"\x00", plane + plane, b"\xff" * (len(plane) - 1)):
        fault = refused(form(wrong), modulus, 21, into)
        assert fault.reason is Reason.WRONG_LENGTH
        assert fault.details == {
            "offset": min(len(plane), len(wrong)),
            "found": len(wrong),
            "expected": len(plane),
        }
        assert into.tolist() == [7 % modulus] * 21
    assert refused(form(b"\x00"), modulus, 0).reason is Reason.WRONG_LENGTH


@forms
def test_every_padding_bit_counts(form: Callable[[bytes], Plane]) -> None:
    for width in WIDTHS:
        for n in range(1, 17):
            plane = bytearray(pack(array(some(n, 1 << width), width), width))
            for bit in range(n * width, 8 * len(plane)):
                bad = bytearray(plane)
                bad[-1] |= 1 << bit % 8
                fault = refused(form(bytes(bad)), 1 << width, n)
                assert fault.reason is Reason.TRAILING_BITS
                assert fault.details == {"offset": len(plane) - 1}


@given(modulus=moduli().filter(lambda m: m & (m - 1)), n=st.integers(1, 90), data=st.data())
def test_the_first_residue_out_of_range_is_named(modulus: int, n: int, data: st.DataObject) -> None:
    width = reference.width_of(modulus)
    values = some(n, modulus)
    places = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=3))
    for i in places:
        values[i] = data.draw(st.integers(modulus, (1 << width) - 1))
    first = min(places)
    plane = reference.pack(values, width)
    for form in (as_bytes, as_slice):
        fault = refused(form(plane), modulus, n)
        assert fault.reason is Reason.RESIDUE_RANGE
        assert fault.details == {
            "offset": first * width // 8,
            "index": first,
            "expected": modulus,
        }


@given(modulus=moduli(), n=st.integers(0, 40), data=st.data())
def test_any_bytes_are_read_or_refused_as_the_reference_does(modulus: int, n: int, data: st.DataObject) -> None:
    width = reference.width_of(modulus)
    size = packed_bytes(n, width)
    plane = data.draw(st.binary(min_size=max(0, size - 1), max_size=size + 1))
    expected = reference.refuse(plane, modulus, n)
    if expected is None:
        assert pack(unpack(plane, modulus, n), width) == plane  # one plane for each list of residues
    else:
        fault = refused(plane, modulus, n)
        assert (fault.reason, fault.details["offset"]) == expected


# A refusal leaves the sum as it was.


def plan_with(*moduli: int) -> Plan:
    return Plan(3, 1, Encoding.COUNTS, Level.SEMI_HONEST, 1, 0, Quantiser.DECIMAL, moduli)


def corrupted(planes: list[bytes], which: int, m: int, n: int) -> list[list[Any]]:
    """The same chunk with one plane broken in each way."""
    width = reference.width_of(m)
    plane = planes[which]
    broken = [plane[:-1], plane + b"\x00", b"", reference.pack([0] * (n - 1) + [m], width)]
    if 8 * len(plane) > n * width:
        broken.append(plane[:-1] + bytes([plane[-1] | 0x80]))
    return [[*planes[:which], bad, *planes[which + 1 :]] for bad in broken]


@pytest.mark.parametrize("moduli", [(509, 503), (503, 32_769, 5)])
@pytest.mark.parametrize("reuse", [False, True])
def test_a_refused_chunk_leaves_the_sum_as_it_was(moduli: tuple[int, ...], reuse: bool) -> None:
    p = plan_with(*moduli)
    layout = Layout(p, 50, 21)
    buffer = layout.buffer() if reuse else None
    total = residue.zeros(p, 50)
    rows = [some(21, m) for m in moduli]
    planes = [pack(array(row, w, wide=max(p.widths) > 15), w) for row, w in zip(rows, p.widths, strict=True)]
    layout.add(total, 1, planes, buffer)
    before = total.copy()
    assert before[:, 21:42].tolist() == rows
    for which, m in enumerate(moduli):
        for chunk in corrupted(planes, which, m, 21):
            with pytest.raises(PeerFault):
                layout.add(total, 1, chunk, buffer)
            assert np.array_equal(total, before)
    for chunk in (planes[:-1], [*planes, planes[0]], []):
        with pytest.raises(PeerFault) as fault:
            layout.add(total, 1, chunk, buffer)
        assert fault.value.reason is Reason.WRONG_LENGTH
        assert np.array_equal(total, before)
    layout.add(total, 1, planes, buffer)
    assert total[:, 21:42].tolist() == [[2 * x % m for x in row] for row, m in zip(rows, moduli, strict=True)]
    assert not total[:, :21].any()
    assert not total[:, 42:].any()
