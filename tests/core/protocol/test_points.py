"""Which Ed25519 keys bind their owner: no other is taken into a federation."""

from random import Random

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from silomix.runtime.core.protocol.points import _D, _P, _SMALL_ORDER, key_problem

Point = tuple[int, int]
IDENTITY: Point = (0, 1)


def plus(a: Point, b: Point) -> Point:
    """The group law of edwards25519, as RFC 8032 has it."""
    (x1, y1), (x2, y2) = a, b
    t = _D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + t, -1, _P)
    y = (y1 * y2 + x1 * x2) * pow(1 - t, -1, _P)
    return x % _P, y % _P


def times(n: int, a: Point) -> Point:
    out = IDENTITY
    for bit in bin(n)[2:]:
        out = plus(out, out)
        if bit == "1":
            out = plus(out, a)
    return out


def points(y: int) -> list[Point]:
    """The points with this second coordinate: none, one or two."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    root = pow(square, (_P + 3) // 8, _P)
    if root * root % _P != square:
        root = root * pow(2, (_P - 1) // 4, _P) % _P
    return [(x, y) for x in {root, -root % _P}] if root * root % _P == square else []


def test_the_list_has_all_points_whose_order_divides_8_and_no_other() -> None:
    found = [point for y in _SMALL_ORDER for point in points(y)]
    assert len(found) == 8  # there are as many as the cofactor
    assert all(times(8, point) == IDENTITY for point in found)


def test_every_second_coordinate_is_told_for_what_it_is() -> None:
    for y in range(2, 60):
        key = y.to_bytes(32, "little")
        assert key_problem(key) == ("" if points(y) else "is not a point of the curve"), y
        assert key_problem(key[:-1] + bytes([key[-1] | 0x80])) == key_problem(key)


@pytest.mark.parametrize("sign", [0, 0x80])
@pytest.mark.parametrize("y", sorted(_SMALL_ORDER))
def test_a_point_of_small_order_is_refused(y: int, sign: int) -> None:
    key = y.to_bytes(32, "little")
    assert "small order" in key_problem(key[:-1] + bytes([key[-1] | sign]))


@pytest.mark.parametrize("y", [_P, _P + 1, _P + 18, 2**255 - 1])
def test_a_second_encoding_is_refused(y: int) -> None:
    assert "canonical" in key_problem(y.to_bytes(32, "little"))


def test_keys_that_were_made_as_they_should_pass() -> None:
    draw = Random(1)
    for _ in range(50):
        assert not key_problem(Ed25519PrivateKey.from_private_bytes(draw.randbytes(32)).public_key().public_bytes_raw())


def test_with_a_key_of_small_order_anybody_signs() -> None:
    """Why it is refused: R = [s]B holds for the neutral element as a key, whatever the message."""
    generator = next(p for p in points(4 * pow(5, -1, _P) % _P) if p[0] % 2 == 0)
    s = 12345
    x, y = times(s, generator)
    forged = (y | (x & 1) << 255).to_bytes(32, "little") + s.to_bytes(32, "little")
    neutral = (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(neutral).verify(forged, b"whatever")  # it does not raise
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes((3).to_bytes(32, "little")).verify(forged, b"whatever")
    assert key_problem(neutral)
