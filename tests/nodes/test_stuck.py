"""R3: a model that was signed for and not stepped from says why, and what to do about it."""

from silomix.runtime.nodes.lead.stuck import NAMED, WAY_OUT, why

FOUR = ("silo-1", "silo-2", "silo-3", "silo-4")


def test_a_model_that_is_free_has_nothing_to_say() -> None:
    assert why((), (), FOUR) == ""
    assert why((), ("hop-1",), ()) == ""


def test_while_pads_are_missing_it_is_a_hop_that_has_to_come_back() -> None:
    said = why(FOUR, ("hop-2",), ())
    assert "signed for 4 silos and for no others; waiting for the pad of hop-2: start that again" in said
    assert "silo-1" not in said
    assert said.endswith(WAY_OUT)


def test_afterwards_it_is_the_silos_that_are_away() -> None:
    said = why(FOUR, (), ("silo-1", "silo-3", "silo-9"))
    assert "of whom silo-2, silo-4 are not here" in said
    assert said.endswith(WAY_OUT)
    assert WAY_OUT not in why(FOUR, (), FOUR)


def test_many_are_counted() -> None:
    said = why(tuple(f"silo-{i}" for i in range(NAMED + 3)), (), ())
    assert f"silo-{NAMED - 1} and 3 more are not here" in said
