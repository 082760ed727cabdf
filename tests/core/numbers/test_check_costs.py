"""What `silomix plan` says of the check and the traps is what they take."""

import random
from typing import Any

import pytest

from silomix.runtime.core.numbers import tamper, traps
from silomix.runtime.core.numbers.check_costs import check_cost, trap_cost
from silomix.runtime.core.numbers.plan import Level, Plan, plan
from silomix.runtime.core.numbers.traps import Statement, commit, prove, secp256k1, verify

CHOSEN = plan(10, 4, level=Level.MALICIOUS)


class Counting:
    """The curve, with a count of multiplications."""

    order, G, H = secp256k1().order, secp256k1().G, secp256k1().H
    add, encode, decode = secp256k1().add, secp256k1().encode, secp256k1().decode

    def __init__(self) -> None:
        self.count = 0

    def multiply(self, point: Any, scalar: int) -> Any:
        self.count += 1
        return secp256k1().multiply(point, scalar)

    def take(self) -> int:
        taken, self.count = self.count, 0
        return taken


@pytest.mark.parametrize("silos", [2, 5])
def test_multiplications_and_bytes_of_a_trap_are_those_of_a_run(silos: int) -> None:
    """One trap in one plane at one hop, whose pad is one more mask."""
    curve, rng, hops = Counting(), random.Random(1).randbytes, 3
    values = [random.Random(i).randrange(503) for i in range(silos + 1)]
    openings = [traps.draw_opening(value, rng, curve) for value in values]
    commitments = tuple(commit(opening, curve) for opening in openings[:-1])
    silo = curve.take() // silos
    commitments = (*commitments, commit(openings[-1], curve))
    assert all(commit(o, curve) == c for o, c in zip(openings[:-1], commitments[:-1], strict=True))  # as the hop does
    statement = Statement(bytes(32), "hop", 0, 503, sum(values) % 503, commitments)
    proof = prove(statement, openings, rng, curve)
    hop = curve.take()
    verify(statement, proof, curve)
    verifier = curve.take()

    planes = len(CHOSEN.moduli)
    found = trap_cost(CHOSEN, silos, hops, 1000, 1)
    assert found.silo_multiplications == planes * hops * silo
    assert found.hop_multiplications == planes * hop
    assert found.verifier_multiplications == planes * hops * verifier
    assert found.hop_bytes == planes * (len(proof) + len(commitments[-1]) + 2 * 3)
    assert found.silo_bytes == planes * (hops * len(commitments[0]) + 3)


def test_traps_cost_in_proportion_and_find_more_with_their_number() -> None:
    one, many = (trap_cost(CHOSEN, 10, 3, 11_237_432, number) for number in (1, 100))
    assert many.hop_bytes == 100 * one.hop_bytes
    assert many.verifier_multiplications == 100 * one.verifier_multiplications
    assert many.detection["0.01"] == pytest.approx(1 - 0.99**100)
    assert many.detection["one"] == pytest.approx(100 / 11_237_432, rel=1e-3)
    assert trap_cost(CHOSEN, 10, 3, 1000, 0).silo_bytes == 0


@pytest.mark.parametrize("chosen", [CHOSEN, plan(40, 6, level=Level.MALICIOUS)], ids=["narrow", "wide"])
def test_the_check_is_as_sound_and_as_small_as_claimed(chosen: Plan) -> None:
    found = check_cost(chosen, 3)
    assert min(found.error_bits) >= 72
    assert [2 * p**-n <= 2**-72 for p, n in zip(chosen.moduli, found.rhos, strict=True)] == [True] * len(found.rhos)
    drawn = tamper.blinders(chosen, bytes)
    assert tuple(map(len, drawn)) == found.rhos
    assert found.silo_bytes < 1024
    assert found.silo_passes == 4


def test_blinders_are_as_long_as_their_planes() -> None:
    assert check_cost(CHOSEN, 3).blinder_bytes == sum(CHOSEN.widths) == 18  # five residues take a byte of each slice
    wide = plan(100, 4, level=Level.MALICIOUS)
    assert check_cost(wide, 3).blinder_bytes == sum(wide.widths) == 21  # seven and eight of them, too
