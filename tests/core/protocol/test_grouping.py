"""The partition of a cohort: drawn by hop 1, checked by every hop, kept for ever once released. Protocol, section 5."""

from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.protocol.federations import cohort, federation, flipped, header, headers, identity, manifest, rng
from tests.core.protocol.hops import Hop
from tests.core.protocol.test_aggregator import Node

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol import aggregator
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Cohort, Group, Grouping, Manifest, SealedSeed
from silomix.runtime.core.protocol.rules import check_grouping, check_sizes
from silomix.runtime.core.protocol.shuffler import Abort, CohortIn, Padded, Release, Tick, deal

F = federation(silos=7, group_size=3)


def grouping(c: Cohort, *groups: int, signer: str = "hop-1") -> Grouping:
    made = Grouping(groups)
    return replace(made, signature=identity(signer).sign(made.digest(c.digest)))


@given(st.integers(3, 100), st.integers(3, 20), st.integers(0, 2**32))
def test_groups_are_as_many_as_can_be_and_nearly_equal(silos: int, size: int, seed: int) -> None:
    sizes = Grouping(deal(silos, size, rng(seed))).sizes
    assert sum(sizes) == silos
    assert len(sizes) == max(1, silos // size)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(size, silos)


def test_every_pair_meets_equally_often() -> None:
    """Chi-square over the 15 pairs of six silos: 45 is beyond one in ten thousand."""
    met: Counter[tuple[int, int]] = Counter()
    for seed in range(3000):
        groups = deal(6, 3, rng(seed))
        met.update(pair for pair in combinations(range(6), 2) if groups[pair[0]] == groups[pair[1]])
    expected = 3000 * 6 / 15
    assert sum((met[pair] - expected) ** 2 / expected for pair in combinations(range(6), 2)) < 45


def released(m: Manifest, hop: Hop, of: Any) -> tuple[Padded, Release]:
    remember, release = [e for e in hop.submit(*of) if isinstance(e, Remember | Release)]
    assert isinstance(remember, Remember)
    assert isinstance(remember.fact, Padded)
    assert isinstance(release, Release)
    return remember.fact, release


def test_hop_1_draws_signs_and_remembers_the_groups() -> None:
    hop, m = Hop("hop-1", F), manifest(F)
    hop.open(m)
    fact, release = released(m, hop, headers(m, F))
    assert release.grouping is not None
    assert (fact.groups, fact.grouping) == (release.grouping.groups, release.grouping.seal)
    assert sorted(release.grouping.sizes) == [3, 4]
    check_grouping(release.grouping, release.cohort, m, F)


@pytest.mark.parametrize("shown", [True, False])
def test_a_later_attempt_on_a_model_has_the_same_groups_also_after_a_restart(shown: bool) -> None:
    """Two partitions of one cohort would tell of silos what no single one does; and another hop may have shown its pad,
    and be bound to groups of which nothing is left at hop 1.
    """
    dealt = set()
    for attempt in range(2, 12):
        hop, m = Hop("hop-1", F), manifest(F)
        hop.open(m)
        fact, first = released(m, hop, headers(m, F))
        if shown:
            hop.show(m, first.cohort)
        for _ in range(attempt):
            hop.restart()
        again = manifest(F, attempt=attempt)
        hop.open(again)
        _, release = released(again, hop, headers(again, F))
        assert release.grouping is not None
        dealt |= {release.grouping.groups, fact.groups}
    assert len(dealt) == 1


def test_groups_are_dealt_anew_for_another_model_other_silos_and_another_hop() -> None:
    hop, silos = Hop("hop-1", F), list(F.silo_names)
    for many in (
        {hop.core._deal(manifest(F, model=bytes([i]) * 32), silos) for i in range(8)},
        {hop.core._deal(manifest(F), silos[:i] + silos[i + 1 :]) for i in range(7)},
        {Hop(name, F).core._deal(manifest(F), silos) for name in ("hop-1", "hop-2", "hop-3")},
    ):
        assert len(many) > 1


def test_an_attempt_has_the_same_groups_when_hop_1_is_killed() -> None:
    hop, m = Hop("hop-1", F), manifest(F)
    hop.open(m)
    fact, first = released(m, hop, headers(m, F))
    for _ in range(9):
        hop.restart()
        hop.open(m)
        (again,) = [e for e in hop.submit(*headers(m, F)) if isinstance(e, Release)]
        assert again.grouping == first.grouping
        assert again.pad == fact.pad


def test_a_later_hop_believes_one_grouping() -> None:
    hop, m = Hop("hop-2", F), manifest(F)
    hop.open(m)
    of = headers(m, F)
    hop.relayed(m, of)
    c = cohort(m, of)
    first = grouping(c, 0, 0, 0, 1, 1, 1, 1)
    effects = hop.feed(CohortIn(c, first))
    pad = hop.core.padded[m.digest].pad
    fact = Padded(1, 1, m.digest, m.model, F.chain, c.digest, c.silos, first.groups, first.seal, pad)
    assert effects == [Remember(fact), Release(c, first, pad)]
    assert hop.feed(CohortIn(c, first)) == []  # a broken stream begins anew
    assert hop.refuses(CohortIn(c, grouping(c, 1, 0, 0, 0, 1, 1, 1))) is Reason.ALREADY_RELEASED
    hop.restart()
    hop.open(m)
    hop.relayed(m, of)
    assert hop.refuses(CohortIn(c, grouping(c, 1, 0, 0, 0, 1, 1, 1))) is Reason.ALREADY_RELEASED
    hop.show(m, c)
    again = manifest(F, attempt=2)
    hop.open(again)
    of = headers(again, F)
    hop.relayed(again, of)
    c = cohort(again, of)
    assert hop.refuses(CohortIn(c, grouping(c, 1, 0, 0, 0, 1, 1, 1))) is Reason.ALREADY_RELEASED
    assert hop.feed(CohortIn(c, grouping(c, *first.groups)))


@pytest.mark.parametrize(
    ("groups", "signer", "reason"),
    [
        ((0, 0, 0, 0, 0, 1, 1), "hop-1", Reason.COHORT_TOO_SMALL),  # a pair: each would see the other
        ((0, 0, 0, 1, 1, 1), "hop-1", Reason.MALFORMED),
        ((0, 0, 0, 2, 2, 2, 2), "hop-1", Reason.MALFORMED),
        ((), "hop-1", Reason.MALFORMED),
        ((0, 0, 0, 1, 1, 1, 1), "hop-2", Reason.BAD_SIGNATURE),
        ((0, 0, 0, 1, 1, 1, 1), "aggregator", Reason.BAD_SIGNATURE),
    ],
)
def test_a_grouping_that_cannot_be_is_refused(groups: tuple[int, ...], signer: str, reason: Reason) -> None:
    hop, m = Hop("hop-2", F), manifest(F)
    hop.open(m)
    of = headers(m, F)
    hop.relayed(m, of)
    c = cohort(m, of)
    assert hop.refuses(CohortIn(c, grouping(c, *groups, signer=signer))) is reason


def test_a_grouping_of_another_cohort_is_refused() -> None:
    hop, m = Hop("hop-2", F), manifest(F)
    hop.open(m)
    of = headers(m, F)
    hop.relayed(m, [*of, header(m, "silo-1", 1)])
    c, other = cohort(m, of), cohort(m, [header(m, "silo-1", 1), *of[1:]])
    assert hop.refuses(CohortIn(c, grouping(other, 0, 0, 0, 1, 1, 1, 1))) is Reason.BAD_SIGNATURE


def test_groups_are_neither_missing_nor_spare() -> None:
    plain = federation(silos=7)
    for f in (F, plain):
        hop, m = Hop("hop-2", f), manifest(f)
        hop.open(m)
        of = headers(m, f)
        hop.relayed(m, of)
        c = cohort(m, of)
        wrong = CohortIn(c) if f is F else CohortIn(c, grouping(c, 0, 0, 0, 1, 1, 1, 1))
        assert hop.refuses(wrong) is Reason.WRONG_SEQUENCE


def test_a_cohort_smaller_than_a_group_is_aborted() -> None:
    f = federation(silos=7, group_size=5)
    hop, m = Hop("hop-1", f), manifest(f)
    hop.open(m)
    hop.submit(*headers(m, f)[:4])
    (abort,) = hop.feed(Tick(60.0))
    assert isinstance(abort, Abort)
    assert abort.fault.reason is Reason.COHORT_TOO_SMALL


# --- the aggregator ---------------------------------------------------------------------------------------------------


def unnamed(*sizes: int) -> tuple[Group, ...]:
    draw = rng("seeds")
    return tuple(Group(n, tuple(SealedSeed("aggregator", draw(80), draw(32)) for _ in range(n))) for n in sizes)


def collecting(f: Any = F) -> tuple[aggregator.Aggregator, Manifest]:
    node = Node(f)
    node.start()
    m = node.announce()
    assert node.core.phase is aggregator.Phase.COLLECTING
    return node.core, m


def test_the_aggregator_takes_groups_without_headers() -> None:
    machine, m = collecting()
    c = cohort(m, headers(m, F))
    groups = unnamed(3, 4)
    assert machine.step(aggregator.CohortIn(c, groups)) == [aggregator.Take(c)]
    assert machine.step(aggregator.CohortIn(c, groups)) == [aggregator.Take(c)]  # a broken stream begins anew
    with pytest.raises(PeerFault) as caught:
        machine.step(aggregator.CohortIn(c, unnamed(4, 3)))
    assert caught.value.reason is Reason.ALREADY_RELEASED


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ((), Reason.COHORT_TOO_SMALL),
        (unnamed(5, 2), Reason.COHORT_TOO_SMALL),
        (unnamed(3, 3), Reason.WRONG_KEYS),
        ((replace(unnamed(3)[0], size=4), *unnamed(3)), Reason.WRONG_KEYS),
    ],
)
def test_the_aggregator_refuses_groups_that_cannot_be(groups: tuple[Group, ...], reason: Reason) -> None:
    machine, m = collecting()
    with pytest.raises(PeerFault) as caught:
        machine.step(aggregator.CohortIn(cohort(m, headers(m, F)), groups))
    assert caught.value.reason is reason


def test_a_cohort_that_hop_1_did_not_sign_is_refused_also_without_headers() -> None:
    machine, m = collecting()
    c = cohort(m, headers(m, F))
    with pytest.raises(PeerFault) as caught:
        machine.step(aggregator.CohortIn(replace(c, signature=flipped(c.signature)), unnamed(3, 4)))
    assert caught.value.reason is Reason.BAD_SIGNATURE


def test_at_level_trusted_groups_have_no_seeds() -> None:
    f = federation(silos=7, group_size=3, level=Level.TRUSTED)
    machine, m = collecting(f)
    c = cohort(m, headers(m, f))
    check_sizes((3, 4), c, m)
    with pytest.raises(PeerFault):
        machine.step(aggregator.CohortIn(c, unnamed(3, 4)))
    assert machine.step(aggregator.CohortIn(c, (Group(3, ()), Group(4, ()))))


def test_no_group_has_fewer_than_three_silos_whatever_a_policy_says() -> None:
    f = federation(silos=4)
    m = manifest(f, group_size=2)
    with pytest.raises(PeerFault) as caught:
        check_sizes((2, 2), cohort(m, headers(m, f)), m)
    assert caught.value.reason is Reason.COHORT_TOO_SMALL
