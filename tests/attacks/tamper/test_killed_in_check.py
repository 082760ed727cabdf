"""`kill -9` of any node between two steps of the tamper check: no second coin is answered, and the round goes on."""

from functools import cache

import pytest

from silomix.attacks.tamper.ring import AGGREGATOR, Ring, federation
from silomix.runtime.core.protocol import shuffler, silo

SMALL = federation(3, 2)
FIRST = {"shuffler-1": "Release", "shuffler-2": "Release", "silo-2": "Done", AGGREGATOR: "AskTosses"}
"""By node: where its part in the check begins."""
LAST = {"shuffler-1": "Reveal", "shuffler-2": "Reveal", "silo-2": "Answer", AGGREGATOR: "Apply"}


@cache
def honest() -> Ring:
    """A round in which nobody is killed."""
    return Ring(f=SMALL).run()


def moments(node: str) -> list[int]:
    """The effects of a node from the beginning of its part in the check to its end, by their numbers."""
    mine = {kind: number for name, number, kind in honest().trace if name == node and kind != "Remember"}
    return list(range(mine[FIRST[node]], mine[LAST[node]] + 1))


def answered_once(ring: Ring) -> None:
    """Every node has answered one coin in an attempt, whatever it has forgotten."""
    for node in (*ring.hops.values(), *ring.silos.values()):
        coins: dict[bytes, set[bytes]] = {}
        for fact in node.journal:
            if isinstance(fact, shuffler.Stated | silo.Stated):
                coins.setdefault(fact.manifest, set()).add(fact.statement.coin)
        assert coins
        assert all(len(each) == 1 for each in coins.values())
        tossed = [fact.manifest for fact in node.journal if isinstance(fact, silo.Tossed)]
        assert len(set(tossed)) == len(tossed)


def killed(node: str, before: int) -> Ring:
    ring = Ring(f=SMALL, kills=(node, before)).run()
    assert ring.applied, f"{node} killed before step {before}"
    assert not ring.verdicts
    assert ring.digests(ring.model, ring.first[1]) == ring.digests(honest().model, ring.first[1])
    assert len(ring.gave_up) <= 1
    assert {one.at for one in ring.silos.values()} == {1}
    answered_once(ring)
    return ring


def test_a_silo_whose_answer_is_written_gives_it_after_a_restart_and_costs_no_attempt() -> None:
    """Killed between `Remember(Stated)` and `Answer`, it has not been heard, and has lost its seeds."""
    (before,) = [number for name, number, kind in honest().trace if (name, kind) == ("silo-2", "Answer")]
    ring = killed("silo-2", before)
    assert not ring.gave_up
    assert len([fact for fact in ring.silos["silo-2"].journal if isinstance(fact, silo.Joined)]) == 1


@pytest.mark.parametrize("node", ["shuffler-2", "silo-2", AGGREGATOR])
def test_whoever_is_killed_in_the_check_the_round_goes_on(node: str) -> None:
    found = moments(node)
    assert len(found) >= 3
    for before in found[1::2]:
        killed(node, before)


@pytest.mark.full
@pytest.mark.parametrize("node", FIRST)
def test_before_every_step_of_the_check(node: str) -> None:
    for before in moments(node):
        killed(node, before)
