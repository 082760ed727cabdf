"""The gap in the paper's proof as a game: un-reduced residue sums tell models apart, reduced ones do not."""

import numpy as np
import pytest

from silomix.attacks.distinguish import _draw, _law, _others, play


@pytest.mark.parametrize(("silos", "least"), [(2, 0.8), (3, 0.6), (5, 0.35), (10, 0.2)])
def test_one_parameter_gives_an_advantage_that_falls_with_silos_and_none_when_reduced(silos: int, least: float) -> None:
    game = play(silos, 1, games=1500)
    value, low, _ = game.advantage(game.unreduced)
    assert value > least
    assert low > 0.1
    _, low, high = game.advantage(game.reduced)
    assert low < 0 < high


def test_a_few_dozen_parameters_settle_it() -> None:
    game = play(10, 60, games=200)
    assert game.unreduced.accuracy > 0.97
    assert game.reduced.holds(0.5)


def test_more_silos_hide_more() -> None:
    found = [play(n, 1, games=1500).unreduced.accuracy for n in (2, 5, 10)]
    assert found == sorted(found, reverse=True)


def test_the_game_is_fair() -> None:
    """Both worlds have the same sum, and the others' values are within their range."""
    rng = np.random.default_rng(0)
    first, second, total = _draw(4, 99, (300, 2), rng)
    for held in (first, second):
        others = _others(3, 99, total - held, rng)
        assert np.array_equal(others.sum(axis=0) + held, total)
        assert np.abs(others).max() <= 99
    assert _law(5, 3).sum() == pytest.approx(1)


def test_it_is_json() -> None:
    found = play(3, 1, games=50).json()
    assert found["silos"] == 3
    assert -1 <= found["reduced"]["low"] <= found["reduced"]["advantage"] <= found["reduced"]["high"] <= 1
