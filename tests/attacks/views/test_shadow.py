"""Shadow sets: disjoint from training, like the silo's records, clean or noisy."""

import numpy as np
import pytest
import torch
from tests.attacks.networks import Net, records

from silomix.attacks.errors import AttackError
from silomix.attacks.prior import class_losses
from silomix.attacks.sia import draw_targets
from silomix.attacks.views.shadow import NOISES, distort, shadow_set, shadow_sets
from silomix.attacks.views.victims import Victim, victims_of
from silomix.models.digits import task


def rows(x: torch.Tensor) -> set[bytes]:
    return {row.numpy().tobytes() for row in x}


@pytest.mark.parametrize("held_back", [0.0, 0.05])
@pytest.mark.parametrize("fraction", [0.05, 0.01, 0.005])
def test_a_shadow_set_has_the_size_and_the_classes_of_its_silo_and_none_of_its_records(
    held_back: float, fraction: float
) -> None:
    (silo,) = victims_of("digits", [task(silo=3, seed=6, shadow=held_back)])
    x, y = shadow_set(silo, 1, fraction)
    total = len(silo.share[1]) + (len(silo.shadow[1]) if silo.shadow is not None else 0)
    assert len(y) == max(1, round(fraction * total))
    assert set(y.tolist()) <= set(silo.share[1].tolist())
    assert not rows(x) & rows(silo.share[0])
    if held_back:
        assert silo.shadow is not None
        assert rows(x) <= rows(silo.shadow[0])


def test_each_silo_has_its_own() -> None:
    silos = victims_of("digits", (task(silo=i, seed=6) for i in range(3)))
    sets = shadow_sets(silos, 1)
    assert len(sets) == 3
    again = shadow_sets(silos, 1)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(sets, again, strict=True))


@pytest.mark.parametrize("noise", [n for n in NOISES if n != "clean"])
@pytest.mark.parametrize("channels", [1, 3])
def test_noise_changes_pictures_but_keeps_their_shape_and_range(noise: str, channels: int) -> None:
    x = torch.rand((6, channels, 9, 9), generator=torch.Generator().manual_seed(1))
    out = distort(x, noise, np.random.default_rng(0))
    assert out.shape == x.shape
    assert 0 <= out.min() <= out.max() <= 1.0001
    assert (out - x).abs().mean() > 1e-3


def test_a_quarter_turn_is_a_quarter_turn() -> None:
    from silomix.attacks.views.shadow import _rotate

    x = torch.rand((1, 1, 8, 8), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(_rotate(x, 90.0), torch.rot90(x, 1, (2, 3)), atol=1e-5) or torch.allclose(
        _rotate(x, 90.0), torch.rot90(x, -1, (2, 3)), atol=1e-5
    )
    assert torch.allclose(_rotate(x, 0.0), x, atol=1e-6)


def test_what_cannot_be_drawn_is_refused() -> None:
    silo = Victim(Net(), records(50), records(20))
    with pytest.raises(AttackError, match="known are"):
        shadow_set(silo, 1, noise="fog")
    with pytest.raises(AttackError, match="images"):
        shadow_set(silo, 1, noise="rotate-30")
    with pytest.raises(AttackError, match="above 0"):
        shadow_set(silo, 1, 0.0)
    x, y = records(20)
    with pytest.raises(AttackError, match="none of the silo's classes"):
        shadow_set(Victim(Net(), (x, torch.full_like(y, 3)), (x, torch.zeros_like(y))), 1)


def test_classes_alone_tell_silos_apart_that_have_different_ones() -> None:
    """What no protocol can take away: with a class each, shadow sets are enough, and no traffic is needed."""
    shares = [(x, torch.full_like(y, c)) for c in range(4) for x, y in [records(40, c)]]
    targets = draw_targets(shares, 1)
    table = class_losses(shares, targets, (0, 1, 2, 3))
    assert (table.argmin(axis=0) == targets.source).all()
