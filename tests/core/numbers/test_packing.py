"""Protocol section 3, packing: a plane is slices of bits, and what is not is refused with its place."""

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

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers import packing
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.packing import (
    Residues,
    check,
    pack,
    pack_into,
    packed_bytes,
    residue_dtype,
    slice_bytes,
    unpack,
)
from silomix.runtime.core.numbers.plan import Encoding, Level, Plan, Quantiser

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
def test_a_plane_is_slices_of_bits(modulus: int, n: int, seed: int, wide: bool) -> None:
    width = reference.width_of(modulus)
    values = some(n, modulus, seed)
    residues = array(values, width, wide=wide)
    plane = pack(residues, width)
    assert plane == reference.pack(values, width)
    assert len(plane) == packed_bytes(n, width) == width * -(-n // 8)
    for form in (as_bytes, as_slice):
        back = unpack(form(plane), modulus, n)
        assert back.dtype == residue_dtype(width)
        assert back.tolist() == values
        assert check(form(plane), modulus, n).tobytes() == plane
    into = np.full(n, 7, residues.dtype)
    assert unpack(plane, modulus, n, into) is into
    assert into.tolist() == values


@pytest.mark.parametrize("width", WIDTHS)
def test_every_length_up_to_the_kernels_blocks(width: int) -> None:
    for n in (*range(packing.LANES + 10), *range(2 * packing.LANES - 1, 2 * packing.LANES + 10)):
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


def test_a_residue_has_one_bit_in_each_slice_and_touches_no_neighbour() -> None:
    n = packing.LANES + 11
    for width in WIDTHS:
        top = (1 << width) - 1
        for i in range(n):
            values = [0] * n
            values[i] = top
            plane = pack(array(values, width), width)
            assert plane == (1 << i).to_bytes(slice_bytes(n), "little") * width
            assert unpack(plane, 1 << width, n).tolist() == values


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
    values = some(80, 511)
    spread = np.full(160, 0xFFFF, np.uint16)
    spread[::2] = values
    plane = pack(spread[::2], 9)
    assert plane == reference.pack(values, 9)
    rows: Residues = np.asfortranarray(np.array([values, values], np.uint16))
    assert pack(rows[1], 9) == plane
    with pytest.raises(ValueError, match="do not hold 80 residues"):
        unpack(plane, 511, 80, spread[::2])
    assert set(spread[1::2].tolist()) == {0xFFFF}


def test_a_checked_plane_is_not_copied() -> None:
    frame = bytearray(40)
    frame[5:14] = pack(array([1, 2, 510], 9), 9)
    assert np.shares_memory(check(memoryview(frame)[5:14], 511, 3), np.frombuffer(frame, np.uint8))


# Buffers.


@pytest.mark.parametrize("width", WIDTHS)
def test_a_used_buffer_leaves_nothing_behind(width: int) -> None:
    for n in (130, 129, 128, 64, 9, 8, 7, 1, 0, 33):
        buffer = np.full(packed_bytes(n, width), 0xFF, np.uint8)
        values = some(n, 1 << width)
        pack_into(array(values, width), width, buffer)
        assert buffer.tobytes() == reference.pack(values, width)
        pack_into(array([0] * n, width), width, buffer)
        assert not buffer.any()
        rows: Residues = np.full(n, 0x7FFF, residue_dtype(width))
        unpack(reference.pack(values, width), 1 << width, n, rows)
        assert rows.tolist() == values


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("wide", [False, True])
def test_packing_fills_its_bytes_and_no_others(width: int, wide: bool) -> None:
    for n in (*range(35), 63, 64, 65, 1000, 65_536):
        size = packed_bytes(n, width)
        memory = np.full(63 + size + 64, GUARD, np.uint8)
        residues = np.full(n, (1 << width) - 1, np.uint32 if wide else residue_dtype(width))
        pack_into(residues, width, memory[63 : 63 + size])
        assert (memory[:63] == GUARD).all()
        assert (memory[63 + size :] == GUARD).all()
        assert int(np.bitwise_count(memory[63 : 63 + size]).sum()) == n * width


GUARD_PAGE = """
import ctypes, mmap
import numpy as np
from silomix.runtime.core.numbers.packing import check, pack, pack_into, packed_bytes, slice_bytes, unpack
from silomix.runtime.core.numbers.slices import add_plane, redraw, subtract_plane

memory = mmap.mmap(-1, 17 * mmap.PAGESIZE)
end = 16 * mmap.PAGESIZE
address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + end
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0
view = memoryview(memory)
for width in range(1, 21):
    modulus = (1 << width) - (width > 1)
    for n in (*range(1, 70), 1000, 8193):
        size = packed_bytes(n, width)
        for kind in (np.uint16, np.uint32)[width > 15 :]:
            row = np.frombuffer(view[end - n * kind(0).nbytes : end], kind)
            row[:] = modulus - 1
            plane = pack(row, width)
            unpack(plane, modulus, n, row)
            at_end = np.frombuffer(view[end - size : end], np.uint8)
            pack_into(np.full(n, modulus - 1, kind), width, at_end)
            unpack(view[end - size : end], modulus, n, np.empty(n, kind))
            check(view[end - size : end], modulus, n)
        other = np.frombuffer(plane, np.uint8).copy()
        for step in (add_plane, subtract_plane):
            step(at_end, 0, other, 0, slice_bytes(n), modulus, width)
            step(other, 0, at_end, 0, slice_bytes(n), modulus, width)
        at_end[:] = 0xFF
        redraw(at_end, 0, n, modulus, width, np.zeros(4 * n, np.uint8))
        words = np.frombuffer(view[end - 12 : end], np.uint8)
        words[:] = 0
        redraw(np.full(size, 0xFF, np.uint8), 0, n, modulus, width, words)
"""


def test_nothing_is_read_or_written_past_the_end() -> None:
    # Planes, residues and buffers end where a page begins that may not be touched.
    source = Path(packing.__file__).parents[4]  # this checkout's packages, wherever others are installed
    command, environment = [sys.executable, "-c", GUARD_PAGE], {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [0, 8, 10, 17, 18])
def test_a_buffer_of_another_size_is_refused(size: int) -> None:
    buffer = np.full(size, GUARD, np.uint8)
    with pytest.raises(ValueError, match=f"9 bytes in a row, not {size}"):
        pack_into(array([1] * 8, 9), 9, buffer)
    assert (buffer == GUARD).all()


@pytest.mark.parametrize("n", [7, 9])
def test_residues_go_only_where_they_fit(n: int) -> None:
    plane = pack(array([1] * 8, 9), 9)
    with pytest.raises(ValueError, match="do not hold 8 residues"):
        unpack(plane, 512, 8, np.empty(n, np.uint16))
    with pytest.raises(ValueError, match="do not hold 8 residues"):
        unpack(pack(array([1] * 8, 17), 17), 1 << 17, 8, np.empty(8, np.uint16))


# What is bad is refused.


def refused(plane: Plane, modulus: int, n: int, out: Residues | None = None) -> PeerFault:
    """What is refused to be unpacked is refused by the check alone, for the same reason."""
    with pytest.raises(PeerFault) as fault:
        unpack(plane, modulus, n, out)
    with pytest.raises(PeerFault) as checked:
        check(plane, modulus, n)
    assert (checked.value.reason, checked.value.details) == (fault.value.reason, fault.value.details)
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
def test_every_padding_bit_of_every_slice_counts(form: Callable[[bytes], Plane]) -> None:
    for width in (1, 2, 9, 16, 20):
        for n in (1, 2, 7, 9, 15, 66):
            size = slice_bytes(n)
            plane = pack(array(some(n, 1 << width), width), width)
            for last in range(size - 1, width * size, size):
                for bit in range(n % 8, 8):
                    bad = bytearray(plane)
                    bad[last] |= 1 << bit
                    fault = refused(form(bytes(bad)), 1 << width, n)
                    assert fault.reason is Reason.TRAILING_BITS
                    assert fault.details == {"offset": last}


@given(modulus=moduli(), n=st.integers(1, 90).filter(lambda n: n % 8), data=st.data())
def test_padding_is_named_by_the_first_slice_and_before_any_residue(modulus: int, n: int, data: st.DataObject) -> None:
    width, size = reference.width_of(modulus), slice_bytes(n)
    plane = bytearray(data.draw(st.binary(min_size=width * size, max_size=width * size)))  # of any residues
    padding = 0xFF << n % 8 & 0xFF
    slices = data.draw(st.sets(st.integers(0, width - 1), min_size=1))
    for b in range(width):
        plane[b * size + size - 1] &= 0xFF ^ padding
        if b in slices:
            plane[b * size + size - 1] |= 1 << data.draw(st.integers(n % 8, 7))
    into = array([1] * n, width)
    fault = refused(bytes(plane), modulus, n, into)
    assert (fault.reason, fault.details) == (Reason.TRAILING_BITS, {"offset": min(slices) * size + size - 1})
    assert into.tolist() == [1] * n


@given(modulus=moduli().filter(lambda m: m & (m - 1)), n=st.integers(1, 90), data=st.data())
def test_the_first_residue_out_of_range_is_named(modulus: int, n: int, data: st.DataObject) -> None:
    width = reference.width_of(modulus)
    values = some(n, modulus)
    places = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=3))
    for i in places:
        values[i] = data.draw(st.integers(modulus, (1 << width) - 1))
    first = min(places)
    plane = reference.pack(values, width)
    into = array([1] * n, width)
    for form in (as_bytes, as_slice):
        fault = refused(form(plane), modulus, n, into)
        assert fault.reason is Reason.RESIDUE_RANGE
        assert fault.details == {"offset": first // 8, "index": first, "expected": modulus}
        assert into.tolist() == [1] * n


@pytest.mark.parametrize("modulus", [3, 255, 257, 503, 511, 65_535, 65_537, (1 << 20) - 3])
@pytest.mark.parametrize("n", [8191, 8192, 8193, 20_001])
def test_a_residue_out_of_range_is_found_in_every_block(modulus: int, n: int) -> None:
    width = reference.width_of(modulus)
    values = array(some(n, modulus), width)
    check(pack(values, width), modulus, n)
    places = [i for i in (0, 63, 64, 8184, 8190, 8191, 8192, 8193, 16_383, 16_384, n - 1) if i < n]
    for bad in (modulus, (1 << width) - 1):
        for at, i in enumerate(places):
            spoiled = values.copy()
            spoiled[places[at:]] = bad  # those behind it too
            fault = refused(pack(spoiled, width), modulus, n)
            assert fault.details == {"offset": i // 8, "index": i, "expected": modulus}


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
    broken.append(plane[:-1] + bytes([plane[-1] | 0x80]))
    return [[*planes[:which], bad, *planes[which + 1 :]] for bad in broken]


@pytest.mark.parametrize("moduli", [(509, 503), (503, 32_769, 5)])
def test_a_refused_chunk_leaves_the_sum_as_it_was(moduli: tuple[int, ...]) -> None:
    p = plan_with(*moduli)
    layout = Layout(p, 50, 21)
    total = layout.body()
    rows = [some(21, m) for m in moduli]
    planes = [pack(array(row, w, wide=max(p.widths) > 15), w) for row, w in zip(rows, p.widths, strict=True)]
    layout.add(total, 1, planes)
    before = total.copy()
    assert layout.residues(before)[:, 21:42].tolist() == rows
    for which, m in enumerate(moduli):
        for chunk in corrupted(planes, which, m, 21):
            with pytest.raises(PeerFault):
                layout.add(total, 1, chunk)
            assert np.array_equal(total, before)
    for chunk in (planes[:-1], [*planes, planes[0]], []):
        with pytest.raises(PeerFault) as fault:
            layout.add(total, 1, chunk)
        assert fault.value.reason is Reason.WRONG_LENGTH
        assert np.array_equal(total, before)
    layout.add(total, 1, planes)
    residues = layout.residues(total)
    assert residues[:, 21:42].tolist() == [[2 * x % m for x in row] for row, m in zip(rows, moduli, strict=True)]
    assert not residues[:, :21].any()
    assert not residues[:, 42:].any()
