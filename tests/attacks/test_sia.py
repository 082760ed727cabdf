"""Source inference: targets, guesses, intervals."""

from statistics import NormalDist

import numpy as np
import pytest
import torch
from tests.attacks.networks import CLASSES, Net, random_models, records
from torch.nn import functional

from silomix.attacks.errors import AttackError
from silomix.attacks.sia import NOTHING, Inference, Outcome, Score, Targets, draw_targets, guess, losses, outcome


@pytest.mark.parametrize(("hits", "targets"), [(100, 1000), (520, 1000), (0, 50), (50, 50), (1, 3), (7, 100_000)])
def test_wilson_interval_at_999(hits: int, targets: int) -> None:
    """Its ends are the rates x that lie just z deviations from what was seen: (p - x)^2 = z^2 x (1 - x) / n."""
    low, high = Score(hits, targets).interval
    p = hits / targets
    assert 0 <= low <= p <= high <= 1
    assert high - low > 0
    z = NormalDist().inv_cdf(0.9995)
    for end in (low, high):
        assert (p - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / targets, rel=1e-6, abs=1e-12)
    assert Score(hits, targets).holds(p)


def test_scores_pool_and_nothing_says_nothing() -> None:
    assert Score(1, 10) + Score(3, 30) == Score(4, 40)
    assert NOTHING.accuracy == 0
    assert NOTHING.interval == (0.0, 1.0)


def test_ties_are_broken_evenly_and_a_least_loss_wins() -> None:
    table = np.zeros((5, 20_000))
    counts = np.bincount(guess(table, np.random.default_rng(1)), minlength=5)
    assert counts.min() > 3_700
    table[3] = -1
    assert set(guess(table, np.random.default_rng(1))) == {3}
    infinite = np.full((4, 1000), np.inf)
    assert len(set(guess(infinite, np.random.default_rng(1)))) == 4


def test_equal_models_tie_to_the_last_bit_wherever_they_stand() -> None:
    net = Net()
    first, second = random_models(net, 2)
    copies = [first, second, {k: v.copy() for k, v in first.items()}, second, first]
    table = losses(net, copies, records(40))
    assert (table[0] == table[2]).all()
    assert (table[0] == table[4]).all()
    assert (table[0] != table[1]).any()


def test_losses_are_the_cross_entropy_and_leave_the_network_alone() -> None:
    net = Net()
    net.train()
    kept = {k: v.clone() for k, v in net.state_dict().items()}
    models, (x, y) = random_models(net, 3), records(3000)
    table = losses(net, models, (x, y))
    other = Net()
    for row, model in zip(table, models, strict=True):
        other.load_state_dict({k: torch.from_numpy(v) for k, v in model.items()})
        with torch.inference_mode():
            expected = functional.cross_entropy(other(x), y, reduction="none")
        assert np.allclose(row, expected.numpy(), atol=1e-6)
    assert net.training
    assert all(torch.equal(kept[k], v) for k, v in net.state_dict().items())


def test_a_model_that_is_not_a_number_is_never_guessed() -> None:
    net = Net()
    models = random_models(net, 3)
    broken = {k: np.full_like(v, np.nan) for k, v in models[1].items()}
    guessed = guess(losses(net, [models[0], broken, models[2]], records(200)), np.random.default_rng(0))
    assert 1 not in guessed


def test_targets_are_the_same_number_of_each_silo_and_drawn_once() -> None:
    shares = [records(n, n) for n in (30, 200, 45)]
    targets = draw_targets(shares, seed=4)
    assert np.bincount(targets.source).tolist() == [30, 30, 30]
    assert torch.equal(targets.x, draw_targets(shares, seed=4).x)
    assert not torch.equal(targets.x, draw_targets(shares, seed=5).x)
    assert np.bincount(draw_targets(shares, 4, per_silo=7).source).tolist() == [7, 7, 7]
    for x, y, source in zip(targets.x, targets.y, targets.source, strict=True):
        own_x, own_y = shares[source]
        assert ((own_x == x).all(1) & (own_y == y)).any()


def test_tiny_silos_are_left_out_on_request_and_empty_ones_refused() -> None:
    shares = [records(n, n) for n in (3, 50, 40)]
    assert np.bincount(draw_targets(shares, 1, least=10).source).tolist() == [0, 40, 40]
    with pytest.raises(AttackError, match="-1"):
        draw_targets([records(0), records(5)], 1, least=10)


def test_a_silo_that_fits_its_own_records_gives_itself_away_and_copies_do_not() -> None:
    """Every silo has one class and a model that says nothing but that class."""
    net = Net()
    shares = [(x, torch.full_like(y, c)) for c in range(CLASSES) for x, y in [records(60, c)]]
    targets = draw_targets(shares, 1)
    models = random_models(net, CLASSES, scale=0.0)
    for c, model in enumerate(models):
        model["out.bias"][c] = 3.0
    attack = Inference(net, targets, (1,))
    assert attack.round(models, range(CLASSES)).accuracy == 1.0
    tied = Inference(net, targets, (1,))
    for _ in range(3):
        tied.round([models[0]] * CLASSES, range(CLASSES))
    found = outcome(tied)
    assert all(score.holds(1 / CLASSES) for score in (*found.rounds, found.together))
    assert len({score.hits for score in found.rounds}) > 1  # the dice fall anew in every round


def test_only_silos_of_the_cohort_are_asked_about_and_guessed() -> None:
    net = Net()
    targets = draw_targets([records(20, i) for i in range(4)], 1)
    attack = Inference(net, targets, (1,))
    assert attack.round(random_models(net, 2), (1, 3)).targets == 40
    assert attack.round(random_models(net, 2, 5), (0, 1)).targets == 40
    assert attack.together().targets == 60
    with pytest.raises(AttackError, match="one for each"):
        attack.round(random_models(net, 3), (1, 3))


def test_best_and_last_round() -> None:
    found = Outcome((Score(1, 10), Score(6, 10), Score(2, 10)), Score(3, 10))
    assert found.best.hits == 6
    assert found.last.hits == 2
    assert (found + found).best == Score(12, 20)
    assert found.json()["accuracy"] == 0.6
    assert [r["hits"] for r in found.json()["by_round"]] == [1, 6, 2]


def test_targets_know_their_cohort() -> None:
    targets = Targets(*records(4), np.array([0, 0, 1, 2]))
    assert targets.of((0, 2)).tolist() == [True, True, False, True]
