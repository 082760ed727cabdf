"""The federation as every node pins it: what follows from its file."""

from dataclasses import replace

import pytest
from tests.core.protocol.federations import federation

F = federation()


def test_nodes_are_listed_by_their_owner() -> None:
    hop, other = (replace(member, owner=owner) for member, owner in zip(F.shufflers, ("a", "b"), strict=True))
    shared = replace(F, aggregator=replace(F.aggregator, owner="a"), shufflers=(hop, other))
    assert shared.owned_by("a") == ("aggregator", "hop-1")
    assert shared.owned_by("b") == ("hop-2",)
    assert shared.owned_by("c") == ()


@pytest.mark.parametrize(
    ("anchor", "pinned", "secure"),
    [(b"", False, False), (b"pem", False, True), (b"", True, True)],
    ids=["neither", "a CA", "pinned"],
)
def test_nodes_speak_tls_with_a_ca_and_with_pins(anchor: bytes, pinned: bool, secure: bool) -> None:
    assert replace(F, anchor=anchor, pinned=pinned).secure is secure


def test_every_epoch_names_the_first() -> None:
    assert F.first == F.digest
    second = replace(F, epoch=2, genesis=F.first, predecessor=F.digest)
    third = replace(second, epoch=3, genesis=second.first, predecessor=second.digest)
    assert second.first == third.first == F.digest


# What follows from a policy


def test_no_more_silos_are_drawn_than_there_are() -> None:
    few = federation(2, minimum_cohort=3)
    assert few.drawn == 2
    assert few.draw(1, bytes(32)) == few.silo_names


def test_noise_beyond_the_sum_itself_has_room_in_the_plan() -> None:
    """Sums of four silos stay within 36, and their noise within 64: that takes two bits more."""
    noisy = federation(precision=1, clip_norm=1.0, noise_multiplier=0.5)
    assert noisy.noise.variance == 7
    assert noisy.noise.slack(4) == 64
    assert noisy.plan.headroom == 2
    assert federation(precision=1).plan.headroom == 0
