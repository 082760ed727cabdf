"""Gradient inversion: it finds one record, finds several if it looks for as many, and is lost among many."""

import numpy as np
import pytest
import torch

from silomix.attacks.audit.pictures import strip
from silomix.attacks.dlg import attack, gradients, leaky, matched
from silomix.attacks.errors import AttackError
from silomix.attacks.views.classifier import Records
from silomix.models.digits import task


@pytest.fixture(scope="module")
def pictures() -> Records:
    torch.set_num_threads(1)
    x, y = task(silos=1, silo=0).share
    return x[:200], y[:200]


def test_one_record_is_found_to_the_pixel(pictures: Records) -> None:
    found = attack(pictures, 1, seed=1, steps=25, tries=1)
    assert found.loss < 1e-4 < found.chance
    assert found.truth.shape == found.found.shape == (1, 1, 8, 8)


def test_two_records_are_found_if_two_are_looked_for_and_not_if_one_is(pictures: Records) -> None:
    two = attack(pictures, 2, seed=1, steps=40, tries=1)
    one = attack(pictures, 2, seed=1, look_for=1, steps=15, tries=1)
    assert two.loss < 1e-3
    assert one.loss > 20 * two.loss
    assert (two.records, one.looked_for) == (2, 1)


def test_the_mean_over_silos_is_the_gradient_of_all_their_records(pictures: Records) -> None:
    x, y = pictures
    net = leaky(x.shape[1:], 10, 1)
    whole = gradients(net, x[:4], y[:4])
    each = [gradients(net, x[i : i + 1], y[i : i + 1]) for i in range(4)]
    for g, parts in zip(whole, zip(*each, strict=True), strict=True):
        assert torch.allclose(g, torch.stack(parts).mean(0), atol=1e-6)


def test_pictures_are_matched_one_to_one() -> None:
    truth = np.arange(3, dtype=np.float32).reshape(3, 1, 1, 1)
    a, b = matched(truth, truth[[2, 0]] + 0.1)
    assert np.allclose(b - a, 0.1)


def test_what_cannot_be_inverted_is_refused(pictures: Records) -> None:
    with pytest.raises(AttackError, match="square"):
        attack((torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)), 1, 1)
    with pytest.raises(AttackError, match="only 200"):
        attack(pictures, 50, 1, per_silo=5)


def test_a_strip_of_pictures_needs_no_file() -> None:
    grey, colour = np.zeros((12, 1, 8, 8), np.float32), np.ones((2, 3, 8, 8), np.float32)
    assert strip(grey, grey).startswith("data:image/png;base64,")
    assert strip(colour, colour).startswith("data:image/png;base64,")
