"""Arithmetic on packed planes gives what Python's integers give, and touches nothing but its plane."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools import examples
from tests.vectors import reference

from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.slices import BLOCK, add_plane, redraw, subtract_plane

MODULI = [2, 3, 255, 256, 257, 503, 509, 511, 512, 65_535, 65_536, 65_537, (1 << 20) - 3, 1 << 20]
BORDERS = [1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 511, 513]
"""Around bytes and lanes of 64."""
BLOCKS = [8 * BLOCK - 1, 8 * BLOCK, 8 * BLOCK + 1, 8 * BLOCK + 64, 16 * BLOCK, 16 * BLOCK + 9]
"""Around the blocks that the kernels work on."""

Rng = np.random.Generator
Kernel = Callable[[Bytes, int, Bytes, int, int, int, int], None]
KERNELS: list[tuple[Kernel, int]] = [(add_plane, 1), (subtract_plane, -1)]

kernels = pytest.mark.parametrize(("kernel", "sign"), KERNELS, ids=["add", "subtract"])
moduli = pytest.mark.parametrize("m", MODULI)
lengths = st.integers(0, 300) | st.sampled_from(BORDERS + BLOCKS)
any_modulus = st.sampled_from(MODULI) | st.integers(2, 1 << 20)


def width_of(m: int) -> int:
    return reference.width_of(m)


def values_below(m: int, n: int, rng: Rng) -> list[int]:
    """Residues with the extremes among them, which carry the furthest."""
    values: list[int] = np.where(
        rng.random(n) < 0.5, rng.choice([0, 1, m - 1, m // 2], n), rng.integers(0, m, n)
    ).tolist()
    return values


def packed(values: Sequence[int], width: int) -> Bytes:
    """A plane by numpy's bitmaps, which the product does not use: long ones take the reference too long."""
    column: npt.NDArray[np.int64] = np.array(values, np.int64)
    rows = [np.packbits((column >> b & 1).astype(np.uint8), bitorder="little") for b in range(width)]
    plane: Bytes = np.concatenate(rows)
    return plane


def unpacked(plane: Bytes, width: int, n: int) -> list[int]:
    rows = np.unpackbits(plane.reshape(width, -1), axis=1, count=n, bitorder="little").astype(np.int64)
    values: list[int] = (rows << np.arange(width)[:, None]).sum(axis=0).tolist()
    return values


def within(plane: Bytes, before: int, behind: int) -> tuple[Bytes, Bytes]:
    """Lay a plane somewhere in other bytes: the whole, and the plane's place in it."""
    memory = np.full(before + len(plane) + behind, 0xA5, np.uint8)
    memory[before : before + len(plane)] = plane
    return memory, memory[before : before + len(plane)]


def calculate(kernel: Kernel, left: Sequence[int], right: Sequence[int], m: int, at: int = 0, first: int = 0) -> Bytes:
    """Run a kernel on planes that lie at these offsets, and return what became of the left one."""
    w, n = width_of(m), len(left)
    memory, acc = within(packed(left, w), at, 13)
    other, plane = within(packed(right, w), first, 5)
    around = memory.copy()
    other.flags.writeable = False
    kernel(memory, at, other, first, (n + 7) // 8, m, w)
    assert plane.tobytes() == packed(right, w).tobytes()
    around[at : at + len(acc)] = acc
    assert memory.tobytes() == around.tobytes()  # nothing beside the plane has changed
    return acc.copy()


# Addition and subtraction.


@kernels
@settings(max_examples=examples(60))
@given(m=any_modulus, n=lengths, at=st.integers(0, 70), first=st.integers(0, 70), seed=st.integers(0, 999))
def test_it_is_that_of_integers(kernel: Kernel, sign: int, m: int, n: int, at: int, first: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    left, right = values_below(m, n, rng), values_below(m, n, rng)
    expected = [(a + sign * b) % m for a, b in zip(left, right, strict=True)]
    # Byte for byte: the bits behind the last residue are zero as they were.
    assert calculate(kernel, left, right, m, at, first).tobytes() == packed(expected, width_of(m)).tobytes()


@kernels
@moduli
def test_it_is_that_of_integers_on_every_border(kernel: Kernel, sign: int, m: int) -> None:
    rng = np.random.default_rng(m)
    for n in (*range(10), *BORDERS, *BLOCKS):
        left, right = values_below(m, n, rng), values_below(m, n, rng)
        expected = [(a + sign * b) % m for a, b in zip(left, right, strict=True)]
        assert calculate(kernel, left, right, m).tobytes() == packed(expected, width_of(m)).tobytes()


@kernels
@pytest.mark.parametrize("m", [*range(2, 35), 63, 64, 65])
def test_every_pair_of_residues(kernel: Kernel, sign: int, m: int) -> None:
    left, right = zip(*product(range(m), repeat=2), strict=True)
    result = unpacked(calculate(kernel, left, right, m), width_of(m), m * m)
    assert result == [(a + sign * b) % m for a, b in zip(left, right, strict=True)]


@kernels
@moduli
def test_every_pair_of_extremes(kernel: Kernel, sign: int, m: int) -> None:
    half = 1 << width_of(m) - 1
    some = sorted({x % m for x in (0, 1, 2, half - 1, half, half + 1, m // 2, m // 2 + 1, m - 2, m - 1)})
    left, right = zip(*product(some, repeat=2), strict=True)
    result = unpacked(calculate(kernel, left, right, m), width_of(m), len(left))
    assert result == [(a + sign * b) % m for a, b in zip(left, right, strict=True)]


@moduli
@pytest.mark.parametrize("n", [5, 77, 8 * BLOCK + 3])
def test_sums_of_many_come_apart_again(m: int, n: int) -> None:
    rng, w, size = np.random.default_rng(n), width_of(m), (n + 7) // 8
    rows = [values_below(m, n, rng) for _ in range(7)]
    total = np.zeros(w * size, np.uint8)
    for row in rows:
        add_plane(total, 0, packed(row, w), 0, size, m, w)
    assert unpacked(total, w, n) == [sum(column) % m for column in zip(*rows, strict=True)]
    for row in reversed(rows):
        subtract_plane(total, 0, packed(row, w), 0, size, m, w)
    assert not total.any()


# Redraws.


def plain_redraw(values: Sequence[int], m: int, words: Sequence[int]) -> tuple[list[int], int]:
    """Give words to the places in order; return the values, and how many words went."""
    out, used = list(values), 0
    for i, value in enumerate(values):
        while value >= m:
            value = words[used] % (1 << width_of(m))
            used += 1
        out[i] = value
    return out, used


def spare_of(words: Sequence[int]) -> Bytes:
    return np.array(words, "<u4").view(np.uint8)


def drawn(m: int, n: int, rng: Rng, share: float) -> list[int]:
    """What a stream may give: a share of it is no residue. Behind the last residue anything stands."""
    top, places = 1 << width_of(m), -(-n // 8) * 8
    bad = rng.integers(m, top, places) if m < top else rng.integers(0, m, places)
    values: list[int] = np.where(rng.random(places) < share, bad, rng.integers(0, m, places)).tolist()
    return values


def assert_redrawn(m: int, n: int, values: list[int], rng: Rng, first: int = 0) -> None:
    w = width_of(m)
    words: list[int] = rng.integers(0, 1 << 32, 4 * n + 200).tolist()
    expected, used = plain_redraw(values[:n], m, words)
    plane = packed([*expected, *values[n:]], w)  # the padding is left alone
    for extra in (b"", b"\x00" * 3, spare_of(words[used : used + 9]).tobytes()):
        memory, place = within(packed(values, w), first, 9)
        around = memory.copy()
        lot = np.frombuffer(spare_of(words[:used]).tobytes() + extra, np.uint8)
        assert redraw(memory, first, n, m, w, lot)
        assert place.tobytes() == plane.tobytes()
        around[first : first + len(place)] = place
        assert memory.tobytes() == around.tobytes()
    if used:  # a word less, or a part of one, does not suffice
        for lot in (spare_of(words[: used - 1]), spare_of(words[:used])[:-1], spare_of([])):
            assert not redraw(packed(values, w), 0, n, m, w, lot)


@settings(max_examples=examples(60))
@given(
    m=any_modulus,
    n=lengths,
    first=st.integers(0, 70),
    share=st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 999),
)
def test_redraws_go_to_their_places_in_order(m: int, n: int, first: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert_redrawn(m, n, drawn(m, n, rng, share), rng, first)


@moduli
def test_redraws_on_every_border(m: int) -> None:
    rng = np.random.default_rng(m)
    for n in (*range(10), *BORDERS, *BLOCKS[:4]):
        assert_redrawn(m, n, drawn(m, n, rng, 0.05), rng)


@pytest.mark.parametrize("m", [m for m in MODULI if m & (m - 1)])
@pytest.mark.parametrize("n", [70, 8 * BLOCK + 70])
def test_a_single_redraw_is_found_wherever_it_is(m: int, n: int) -> None:
    w = width_of(m)
    for i in (0, 7, 8, 62, 63, 64, 69, 8 * BLOCK - 1, 8 * BLOCK, 8 * BLOCK + 63, 8 * BLOCK + 64, n - 1):
        if i < n:
            values = [m - 1] * n
            values[i] = m
            plane = packed(values, w)
            assert redraw(plane, 0, n, m, w, spare_of([0xFFFF_FFFF, 0xABC0_0001]))  # the first is none, cut or not
            values[i] = 1
            assert unpacked(plane, w, n) == values


@pytest.mark.parametrize("m", [3, 5, 6, 7, 9, 11, 15, 17, 31])
def test_what_is_kept_is_exactly_uniform(m: int) -> None:
    """Over every value that is drawn and every word after it, each residue comes out equally often."""
    w = width_of(m)
    counts = [0] * m
    for value, word in product(range(1 << w), repeat=2):
        plane = packed([value], w)
        if redraw(plane, 0, 1, m, w, spare_of([word])):
            counts[unpacked(plane, w, 1)[0]] += 1
    assert len(set(counts)) == 1
    assert counts[0] == (1 << w) + (1 << w) - m
