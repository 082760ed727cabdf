"""The rule of the chain: its two numbers, by counting all pairs of chains and all sets of colluding hops."""

from itertools import combinations

import pytest

from silomix.runtime.core.chain import ChainRule


def chains(pool: int, minimum: int) -> list[set[int]]:
    return [set(c) for size in range(minimum, pool + 1) for c in combinations(range(pool), size)]


def borne(pool: int, minimum: int) -> int:
    """The most colluding hops for which any two chains share an honest one, by trying them all."""
    found = -1
    for colluding in range(pool):
        pairs = [(a, b) for a in chains(pool, minimum) for b in chains(pool, minimum)]
        if all((a & b) - set(bad) for bad in combinations(range(pool), colluding) for a, b in pairs):
            found = colluding
    return found


@pytest.mark.parametrize(("pool", "minimum"), [(p, m) for p in range(1, 6) for m in range(1, p + 1)])
def test_the_numbers_are_those_that_counting_gives(pool: int, minimum: int) -> None:
    rule = ChainRule(pool, minimum)
    assert max(-1, rule.colluding) == borne(pool, minimum)
    assert rule.lost == pool - minimum
    usable = minimum == pool or rule.colluding >= 1
    assert (rule.problem == "") is usable


@pytest.mark.parametrize(("pool", "minimum"), [(0, 0), (3, 0), (3, 4), (1, 2)])
def test_a_chain_has_hops_and_no_more_than_the_pool(pool: int, minimum: int) -> None:
    assert ChainRule(pool, minimum).problem


def test_the_numbers_for_people() -> None:
    says = "holds against 2 that collude with the aggregator, and can be formed without"
    assert ChainRule(3, 3).sentence() == f"{says} 0"
    assert ChainRule(5, 4).sentence() == f"{says} 1"
