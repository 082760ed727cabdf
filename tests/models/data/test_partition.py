"""Natural silos and shadow sets. Dirichlet and IID shares are tested beside the digits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silomix.models.data.partition import deal, hold_out, natural


@given(places=st.lists(st.sampled_from(["IU", "UK", "UM", "Case"]), min_size=4, max_size=60))
def test_natural_silos_are_the_values_of_a_column(places: list[str]) -> None:
    kinds = sorted(set(places))
    parts = natural(places, len(kinds))
    assert sorted(np.concatenate(parts)) == list(range(len(places)))
    for kind, part in zip(kinds, parts, strict=True):
        assert {places[row] for row in part} == {kind}


def test_another_number_of_natural_silos_is_refused() -> None:
    with pytest.raises(ValueError, match=r"silos = 5: the records come from 3 places \(a, b, c\); set silos to that"):
        natural(["a", "b", "c", "a"], 5)


@given(
    n=st.integers(0, 400), fraction=st.sampled_from([0.0, 0.005, 0.01, 0.05, 0.5, 0.999]), seed=st.integers(0, 2**40)
)
def test_a_shadow_set_is_held_out_of_the_share(n: int, fraction: float, seed: int) -> None:
    rows = np.arange(n) * 3
    share = hold_out(rows, fraction, seed, 2)
    assert sorted([*share.own, *share.shadow]) == rows.tolist()
    assert set(share.own).isdisjoint(share.shadow)
    if not fraction or n < 2:
        assert np.array_equal(share.own, rows)
    else:
        assert len(share.own) >= 1
        assert len(share.shadow) == min(n - 1, max(1, round(fraction * n)))
    again = hold_out(rows, fraction, seed, 2)
    assert np.array_equal(share.shadow, again.shadow)


LABELS = np.repeat(np.arange(10), 50)


@pytest.mark.parametrize("partition", ["dirichlet", "iid", "natural"])
def test_shares_and_shadows_of_all_silos_are_all_records(partition: str) -> None:
    shares = [
        deal(LABELS, 5, silo, seed=3, partition=partition, column=np.arange(500) % 5, shadow=0.05) for silo in range(5)
    ]
    rows = np.concatenate([part for share in shares for part in (share.own, share.shadow)])
    assert sorted(rows) == list(range(500))
    assert all(len(share.shadow) for share in shares)
    nobody = deal(LABELS, 5, -1, seed=3, partition=partition, column=np.arange(500) % 5, shadow=0.05)
    assert not len(nobody.own)
    assert not len(nobody.shadow)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"silo": 5}, "silo = 5 of silos = 5: silos count from 0"),
        ({"partition": "evenly"}, "partition = 'evenly': it is one of dirichlet, iid, natural"),
        ({"partition": "natural"}, "these records do not say where they were collected"),
        ({"shadow": 1.0}, "shadow = 1.0: it is the fraction"),
        ({"shadow": -0.1}, "shadow = -0.1: it is the fraction"),
    ],
)
def test_what_cannot_be_dealt_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        deal(LABELS, 5, **{"silo": 0, "seed": 1, **options})
