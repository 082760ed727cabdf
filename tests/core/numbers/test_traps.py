"""The traps' proofs: complete, refused if anything in them is forged, and silent about the quotient.

Zero knowledge and soundness of the algebra are not sampled: over a group of order 5 everything is counted.
"""

import hmac
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools import examples

from silomix.runtime.core.digest import frame
from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers import traps
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.numbers.traps import ORDER, Opening, Statement, commit, prove, secp256k1, verify

Rng = Callable[[int], bytes]
PLACE: dict[str, Any] = {"context": bytes(32), "hop": "shuffler-2", "trap": 77}


def made(values: Sequence[int], modulus: int, rng: Rng) -> tuple[Statement, list[Opening]]:
    openings = [traps.draw_opening(value, rng) for value in values]
    residue = sum(values) % modulus
    return Statement(**PLACE, modulus=modulus, residue=residue, commitments=tuple(map(commit, openings))), openings


def refused(statement: Statement, proof: bytes) -> Reason:
    with pytest.raises(PeerFault) as fault:
        verify(statement, proof)
    return fault.value.reason


# Complete.


@settings(max_examples=examples(20), deadline=None)
@given(st.sampled_from([2, 3, 503, 509, 1048573]), st.integers(1, 6), st.integers(0, 2**32), st.data())
def test_what_was_taken_off_rightly_is_proved(modulus: int, silos: int, seed: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, modulus - 1), min_size=silos, max_size=silos))
    statement, openings = made(values, modulus, random.Random(seed).randbytes)
    proof = prove(statement, openings, random.Random(seed + 1).randbytes)
    assert len(proof) == traps.proof_bytes(silos) == 64 * silos
    verify(statement, proof)


def test_every_quotient_is_proved() -> None:
    rng = random.Random(1).randbytes
    for values in ((0, 0, 0), (4, 1, 0), (4, 4, 2), (4, 4, 4)):  # 5 into 0, 5, 10, 12
        statement, openings = made(values, 5, rng)
        verify(statement, prove(statement, openings, rng))


# Sound.


def test_a_hop_cannot_prove_another_residue() -> None:
    statement, openings = made((400, 300, 200), 503, random.Random(2).randbytes)
    for wrong in (0, 396, 398, 502):
        with pytest.raises(LocalFault, match="do not add up"):
            prove(replace(statement, residue=wrong), openings, random.Random(3).randbytes)


def test_a_hop_that_lies_about_what_it_knows_is_refused() -> None:
    """It makes up an opening that would fit the residue that it wants."""
    rng = random.Random(4).randbytes
    statement, openings = made((400, 300, 200), 503, rng)
    wrong = replace(statement, residue=(statement.residue + 1) % 503)
    made_up = [replace(openings[0], value=openings[0].value + 1), *openings[1:]]
    assert refused(wrong, prove(wrong, made_up, rng)) is Reason.TAMPERED


def test_a_hop_cannot_take_a_quotient_out_of_range() -> None:
    """A commitment to more than a residue, from a silo that lies: no branch is left for it."""
    rng = random.Random(5).randbytes
    openings = [traps.draw_opening(value, rng) for value in (5 * 503, 3)]
    statement = Statement(**PLACE, modulus=503, residue=3, commitments=tuple(map(commit, openings)))
    with pytest.raises(LocalFault, match="do not add up"):
        prove(statement, openings, rng)


@pytest.fixture(scope="module")
def proved() -> tuple[Statement, bytes]:
    rng = random.Random(6).randbytes
    statement, openings = made((500, 499, 2), 503, rng)
    return statement, prove(statement, openings, rng)


def test_a_proof_with_any_number_changed_is_refused(proved: tuple[Statement, bytes]) -> None:
    statement, proof = proved
    verify(statement, proof)
    for at in range(0, len(proof), 32):
        number = int.from_bytes(proof[at : at + 32], "big")
        for forged in ((number + 1) % ORDER, -number % ORDER, 0):
            changed = proof[:at] + forged.to_bytes(32, "big") + proof[at + 32 :]
            assert refused(statement, changed) is Reason.TAMPERED


def test_two_branches_of_a_proof_cannot_change_places(proved: tuple[Statement, bytes]) -> None:
    statement, proof = proved
    parts = [proof[at : at + 32] for at in range(0, len(proof), 32)]
    swapped = [parts[1], parts[0], parts[2], parts[4], parts[3], parts[5]]
    assert refused(statement, b"".join(swapped)) is Reason.TAMPERED


def test_a_proof_has_one_encoding() -> None:
    """A number and the same plus the order would be two proofs of one statement. (In a small group both fit.)"""
    statement, low, _ = witnesses()
    proof = prove(statement, low, scripted([1, 2, 3, 4, 0]), SMALL)
    verify(statement, proof, SMALL)
    for at in range(0, len(proof), 32):
        more = int.from_bytes(proof[at : at + 32], "big") + SMALL.order
        with pytest.raises(PeerFault, match="does not hold"):
            verify(statement, proof[:at] + more.to_bytes(32, "big") + proof[at + 32 :], SMALL)


@pytest.mark.parametrize("length", [0, 1, 64, 191, 193, 256])
def test_a_proof_of_another_length_is_refused(proved: tuple[Statement, bytes], length: int) -> None:
    statement, proof = proved
    assert refused(statement, (proof + bytes(64))[:length]) is Reason.WRONG_LENGTH


@pytest.mark.parametrize(
    "other",
    [
        {"context": b"\x01" * 32},
        {"hop": "shuffler-3"},
        {"trap": 78},
        {"modulus": 509},
        {"residue": 496},
        {"residue": 499},
    ],
    ids=str,
)
def test_a_proof_serves_one_statement(proved: tuple[Statement, bytes], other: dict[str, Any]) -> None:
    statement, proof = proved
    assert refused(replace(statement, **other), proof) is Reason.TAMPERED


def test_a_proof_serves_these_commitments_in_this_order(proved: tuple[Statement, bytes]) -> None:
    statement, proof = proved
    first, second, third = statement.commitments
    other = commit(Opening(500, 5))
    for commitments in ((second, first, third), (other, second, third), (first, first, third)):
        assert refused(replace(statement, commitments=commitments), proof) is Reason.TAMPERED
    assert refused(replace(statement, commitments=(first, second)), proof) is Reason.WRONG_LENGTH


def test_what_is_no_point_and_no_residue_is_refused(proved: tuple[Statement, bytes]) -> None:
    statement, proof = proved
    _, second, third = statement.commitments
    for bad in (b"", bytes(33), b"\x04" + second[1:], second[:-1], second + b"\0", b"\x02" + b"\xff" * 32):
        assert refused(replace(statement, commitments=(bad, second, third)), proof) is Reason.TAMPERED
    for change in ({"residue": 503}, {"residue": -1}, {"commitments": ()}):
        assert refused(replace(statement, **change), proof) is Reason.RESIDUE_RANGE


def test_a_commitment_that_is_not_to_the_mask_is_seen_by_the_hop() -> None:
    """It makes it again, from the seed that it has."""
    opening = Opening(17, traps.blinding(Secret(bytes([1] * 32)), b"info", b"coin", 0, 0))
    encoded = commit(opening)
    assert encoded == commit(replace(opening, blinding=opening.blinding + ORDER))
    assert encoded != commit(replace(opening, value=18))
    assert encoded != commit(replace(opening, blinding=opening.blinding + 1))


def test_every_commitment_has_a_blinding_of_its_own_that_only_the_secret_gives() -> None:
    """Written out, and different in anything that it is bound to: with one blinding, two commitments would differ by a
    multiple of G that gives the difference of the masks away."""
    secret, place = Secret(b"s" * 32), (b"info", b"coin", 3, 1)
    info = frame("trap-blinding", *place)
    key = hmac.digest(bytes(32), b"s" * 32, "sha256")
    first = hmac.digest(key, info + b"\1", "sha256")
    second = hmac.digest(key, first + info + b"\2", "sha256")
    found = traps.blinding(secret, *place)
    assert found == int.from_bytes((first + second)[:48], "big") % ORDER
    others = [(b"info'", b"coin", 3, 1), (b"info", b"coin'", 3, 1), (b"info", b"coin", 4, 1), (b"info", b"coin", 3, 0)]
    drawn = {found, traps.blinding(Secret(b"t" * 32), *place), *(traps.blinding(secret, *other) for other in others)}
    assert len(drawn) == 6


def test_openings_do_not_print() -> None:
    assert repr(Opening(17, 12345)) == "Opening()"


# The group.


def test_nobody_chose_the_second_generator() -> None:
    """It is the first digest of a counter that is a coordinate; a changed one would have a known logarithm."""
    curve = secp256k1()
    assert curve.encode(curve.H).hex() == H
    assert curve.encode(curve.G).hex() == "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"


H = "02e10fe5e0b39d56bae10ea706ed75d43a4c7085333bbb57be53f908c45cf67925"


def test_sums_with_the_neutral_point_and_of_equal_and_opposite_ones() -> None:
    curve = secp256k1()
    g, minus = curve.G, curve.multiply(curve.G, -1)
    assert curve.add([]) is curve.multiply(g, 0) is curve.add([g, minus]) is None
    assert curve.encode(None) == bytes(33)
    twice = curve.encode(curve.multiply(g, 2))
    assert curve.encode(curve.add([g, g])) == twice
    assert curve.encode(curve.add([None, g, minus, g, g])) == twice


def test_a_node_without_traps_does_not_need_the_curve() -> None:
    code = "import sys, silomix.runtime.core.numbers.traps; sys.exit('coincurve' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Counted over a group of order 5, whose logarithms are known.


class Small:
    """The squares mod 11: 3 has order 5, and 4 = 3^4."""

    order, G, H = 5, 3, 4

    def add(self, points: Sequence[int]) -> int:
        total = 1
        for point in points:
            total = total * point % 11
        return total

    def multiply(self, point: int, scalar: int) -> int:
        return pow(point, scalar % 5, 11)

    def encode(self, point: int) -> bytes:
        return bytes([point])

    def decode(self, encoded: bytes) -> int:
        return encoded[0]


SMALL: Any = Small()


def witnesses() -> tuple[Statement, list[Opening], list[Opening]]:
    """A statement that is true with quotient 0 and with quotient 1, by openings of the same two commitments."""
    low = [Opening(0, 2), Opening(0, 1)]
    high = [Opening(1, (2 - pow(4, -1, 5)) % 5), Opening(1, (1 - pow(4, -1, 5)) % 5)]
    commitments = tuple(commit(opening, SMALL) for opening in low)
    assert commitments == tuple(commit(opening, SMALL) for opening in high)
    return Statement(**PLACE, modulus=2, residue=0, commitments=commitments), low, high


def scripted(numbers: Sequence[int]) -> Rng:
    script = iter(numbers)
    return lambda n: bytes([next(script)])


@pytest.mark.parametrize("challenge", [0, 3])
def test_a_proof_does_not_tell_the_quotient(challenge: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all randomness, both witnesses and a simulator without any make the same proofs equally often."""
    monkeypatch.setattr(traps, "_challenge", lambda *_: challenge)
    statement, low, high = witnesses()
    seen = [Counter[bytes](), Counter[bytes]()]
    for numbers in product(range(5), repeat=5):
        for counter, openings in zip(seen, (low, high), strict=True):
            counter[prove(statement, openings, scripted(numbers), SMALL)] += 1
    simulated = Counter[bytes]()
    for first, *answers in product(range(5), repeat=3):
        numbers = (first, (challenge - first) % 5, *answers)
        simulated[b"".join(number.to_bytes(32, "big") for number in numbers)] += 25
    assert seen[0] == seen[1] == simulated


def test_two_answers_to_the_same_announcements_give_an_opening() -> None:
    """Special soundness, for every pair of accepted transcripts: one branch's logarithm follows from them."""
    statement, _, _ = witnesses()
    branches = traps._branches(SMALL, statement)
    transcripts: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for numbers in product(range(5), repeat=4):
        pairs = zip(branches, numbers[:2], numbers[2:], strict=True)
        announced = tuple(traps._announcement(SMALL, *pair) for pair in pairs)
        transcripts.setdefault(announced, []).append(numbers)
    checked = 0
    for same in transcripts.values():
        for one, two in product(same, repeat=2):
            if sum(one[:2]) % 5 == sum(two[:2]) % 5:
                continue
            k = next(k for k in range(2) if one[k] != two[k])
            logarithm = (one[2 + k] - two[2 + k]) * pow(one[k] - two[k], -1, 5)
            assert SMALL.multiply(SMALL.H, logarithm) == branches[k]
            checked += 1
    assert checked > 1000


# Where the traps are.


def test_traps_are_drawn_by_the_coin_and_all_different() -> None:
    drawn = {coin: traps.positions(bytes([coin] * 32), 40, 0, 1000) for coin in range(20)}
    assert len(set(drawn.values())) == 20
    for places in drawn.values():
        assert len(set(places)) == 40
        assert places == tuple(sorted(places))
        assert 0 <= places[0] <= places[-1] < 1000


def test_traps_on_the_last_layer_stay_there() -> None:
    places = traps.positions(bytes(32), 10, 900, 1000)
    assert 900 <= places[0] <= places[-1] < 1000
    assert traps.positions(bytes(32), 200, 900, 1000) == tuple(range(900, 1000))
    for first, end, number in ((5, 5, 1), (-1, 5, 1), (0, 5, -1)):
        with pytest.raises(LocalFault, match="cannot draw"):
            traps.positions(bytes(32), number, first, end)


def test_a_draw_that_would_favour_some_parameters_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^64 is one more than a multiple of 3: the last number would give parameter 0 one chance more."""
    drawn = iter([b"\xff" * 32, (2**64 - 2).to_bytes(8, "big")])
    monkeypatch.setattr(traps, "digest", lambda *_: next(drawn))
    assert traps.positions(bytes(32), 1, 0, 3) == (2,)


def test_the_last_layer_is_weight_and_bias_together() -> None:
    conv, norm = TensorSpec("conv.weight", (4, 3)), TensorSpec("norm.running_mean", (4,), buffer=True)
    weight, bias = TensorSpec("fc.weight", (2, 5)), TensorSpec("fc.bias", (2,))
    assert traps.last_layer(Schema((conv, norm, weight, bias))) == (16, 28)
    assert traps.last_layer(Schema((conv, weight, bias, norm))) == (12, 24)
    assert traps.last_layer(Schema((conv, bias, norm, weight))) == (12, 28)
    assert traps.last_layer(Schema((TensorSpec("weights", (7,)),))) == (0, 7)
    with pytest.raises(LocalFault, match="no last layer"):
        traps.last_layer(Schema((norm, TensorSpec("empty", (0,)))))


def test_traps_fall_everywhere_alike() -> None:
    count = Counter(p for coin in range(400) for p in traps.positions(coin.to_bytes(32, "big"), 5, 0, 20))
    assert sum((n - 100) ** 2 / 100 for n in count.values()) < 50  # 19 degrees of freedom, less for distinct ones


def test_detection_is_what_the_draws_give() -> None:
    """1 - (1 - f)^T for draws that may repeat; ours do not, which is better by little."""
    changed = set(range(50))
    caught = sum(bool(changed & set(traps.positions(c.to_bytes(32, "big"), 20, 0, 1000))) for c in range(1500))
    assert traps.detection(0.05, 20) == pytest.approx(1 - 0.95**20)
    assert caught / 1500 == pytest.approx(traps.detection(0.05, 20), abs=0.05)
    assert traps.detection(0.0, 100) == 0.0
    assert traps.detection(1.0, 1) == 1.0
