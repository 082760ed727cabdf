"""The rule of the chain: its two numbers, by counting all pairs of chains and all sets of colluding hops."""

import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silomix.runtime.core.chain import ChainRule
from silomix.runtime.core.policy import MAX_SHUFFLERS

THREAT_MODEL = Path(__file__).parents[2] / "docs" / "threat-model.md"


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


@given(st.integers(1, MAX_SHUFFLERS))
def test_the_number_that_is_advised_is_the_least_that_has_no_problem(pool: int) -> None:
    rules = [ChainRule(pool, minimum) for minimum in range(1, pool + 1)]
    least = next(rule.minimum for rule in rules if not rule.problem)
    assert {rule.least for rule in rules} == {least}
    for rule in rules[: least - 1]:
        assert rule.problem.endswith(f"a chain needs at least {least} of them")


def test_the_chains_that_the_threat_model_shows_are_as_the_rule_has_them() -> None:
    _, found, after = THREAT_MODEL.read_text().partition("| hops p | minimum m | may collude | may be missing |\n")
    assert found
    rows = [[int(cell) for cell in re.findall(r"\d+", row)] for row in after.split("\n\n")[0].splitlines()[1:]]
    assert len(rows) >= 5
    for pool, minimum, colluding, lost in rows:
        rule = ChainRule(pool, minimum)
        assert (rule.problem, rule.colluding, rule.lost) == ("", colluding, lost)


def test_the_numbers_for_people() -> None:
    says = "holds against 2 that collude with the aggregator, and"
    assert ChainRule(3, 3).sentence() == f"{says} needs all 3"
    assert ChainRule(5, 4).sentence() == f"{says} can be formed without 1"
