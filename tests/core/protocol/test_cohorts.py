"""Who is in two successive sums: a majority of the roster, and the same silos or others by several (`cohort_step`)."""

import pytest
from tests.core.protocol.federations import cohort, counted, extended, federation, headers, manifest, recorded
from tests.core.protocol.hops import Hop, opened, released

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.policy import LEAST_COHORT
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Header, Manifest
from silomix.runtime.core.protocol.rules import check_cohort, check_manifest, check_step
from silomix.runtime.core.protocol.shuffler import Abort, CohortIn, State, Tick

STEP = federation(8, cohort_step=3, minimum_cohort=3, rounds=9)


def refused(silos: tuple[str, ...], before: tuple[str, ...], f: Federation) -> Reason | None:
    try:
        check_step(silos, before, f)
    except PeerFault as fault:
        return fault.reason
    return None


# The step


def test_successive_cohorts_are_equal_or_at_least_so_far_apart() -> None:
    names = STEP.silo_names
    assert refused(names, names, STEP) is None
    assert refused(names[:-1], names, STEP) is Reason.COHORT_STEP  # one is missing
    assert refused(names, names[:-1], STEP) is Reason.COHORT_STEP  # one has come back
    assert refused(names[:-2], names, STEP) is Reason.COHORT_STEP
    assert refused(names[1:], names[:-1], STEP) is Reason.COHORT_STEP  # one went and another came
    assert refused(names[:-3], names, STEP) is None
    assert refused(names[2:], names[:-2], STEP) is None  # four differ
    for least in (0, 1):
        assert refused(names[:-1], names, federation(8, cohort_step=least)) is None


def of(m: Manifest, *numbers: int) -> list[Header]:
    """The headers of some silos."""
    return [headers(m, STEP)[number - 1] for number in numbers]


def close(hop: Hop, round_: int, *numbers: int, attempt: int = 1) -> tuple[str, ...] | Reason:
    """Let these silos take part in a round at this hop, and return whom it releases for, or why it does not."""
    m = manifest(STEP, round_, attempt, log=hop.log)
    hop.open(m)
    if hop.name == "hop-1":
        hop.submit(*of(m, *numbers))
        effects = hop.feed(Tick(60.0))
        aborts = [e.fault.reason for e in effects if isinstance(e, Abort)]
        if aborts:
            return aborts[0]
    else:
        hop.relayed(m, of(m, *numbers))
        try:
            effects = hop.feed(CohortIn(cohort(m, of(m, *numbers))))
        except PeerFault as fault:
            return fault.reason
    return released(effects) or ()


def conclude(hop: Hop, round_: int, *numbers: int) -> tuple[str, ...] | Reason:
    """The same, and the round ends as it should: applied if the hop releases for these silos, otherwise abandoned."""
    found = close(hop, round_, *numbers)
    m = manifest(STEP, round_, log=hop.log)
    if isinstance(found, Reason):
        hop.catch_up(extended(hop.log, counted(recorded(hop.log), STEP)).head)
    else:
        hop.conclude(m, cohort(m, of(m, *numbers)))
    return found


def names(*numbers: int) -> tuple[str, ...]:
    return tuple(f"silo-{number}" for number in numbers)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", ["hop-1", "hop-2"])
def test_every_hop_compares_with_the_last_cohort_on_record(name: str, restart: bool) -> None:
    """Also after a restart, and over rounds that were abandoned."""
    hop = Hop(name, STEP)

    def then(round_: int, *numbers: int) -> tuple[str, ...] | Reason:
        if restart:
            hop.restart()
        return conclude(hop, round_, *numbers)

    assert then(1, 1, 2, 3, 4, 5, 6) == names(1, 2, 3, 4, 5, 6)
    assert then(2, 1, 2, 3, 4, 5) is Reason.COHORT_STEP
    assert then(3, 1, 2, 3, 4, 5, 7) is Reason.COHORT_STEP
    assert then(4, 1, 2, 3, 4, 5, 6) == names(1, 2, 3, 4, 5, 6)
    assert then(5, 1, 2, 3) == names(1, 2, 3)
    assert then(6, 1, 2, 3, 4) is Reason.COHORT_STEP
    assert then(7, 1, 2, 3, 4, 5, 6) == names(1, 2, 3, 4, 5, 6)
    assert {f.round for facts in hop.core.released.values() for f in facts} == {1, 4, 5, 7}


@pytest.mark.parametrize("name", ["hop-1", "hop-2"])
def test_a_refused_step_releases_nothing_and_a_further_attempt_may(name: str) -> None:
    hop = Hop(name, STEP)
    assert conclude(hop, 1, 1, 2, 3, 4) == names(1, 2, 3, 4)
    assert close(hop, 2, 1, 2, 3) is Reason.COHORT_STEP
    assert hop.core.state is (State.GIVEN_UP if name == "hop-1" else State.OPEN)
    assert close(hop, 2, 1, 2, 3, 4, attempt=2) == names(1, 2, 3, 4)


def test_a_further_attempt_at_a_round_is_held_to_that_rounds_cohort_and_not_to_the_step() -> None:
    """The cohort of the round itself is not the one before it."""
    hop = Hop("hop-1", STEP)
    assert conclude(hop, 1, 1, 2, 3, 4) == names(1, 2, 3, 4)
    assert close(hop, 2, 1, 2, 3, 4, 5, 6, 7) == names(1, 2, 3, 4, 5, 6, 7)
    first = manifest(STEP, 2, log=hop.log)
    hop.show(first, cohort(first, of(first, 1, 2, 3, 4, 5, 6, 7)))
    m = manifest(STEP, 2, 2, log=hop.log)
    hop.open(m)
    assert released(hop.submit(*of(m, 1, 2, 3, 4, 5, 6, 7))) == names(1, 2, 3, 4, 5, 6, 7)


# The minimum


@pytest.mark.parametrize(("silos", "majority"), [(3, 3), (4, 3), (5, 3), (6, 4), (7, 4), (10, 6), (99, 50), (100, 51)])
def test_a_sum_holds_a_majority_of_the_roster_unless_the_policy_says_otherwise(silos: int, majority: int) -> None:
    """Of two majorities one silo is in both."""
    assert federation(silos, minimum_cohort=0).minimum_cohort == majority
    assert majority >= LEAST_COHORT
    assert 2 * majority > silos
    assert federation(silos, minimum_cohort=3).minimum_cohort == 3


def test_every_node_counts_a_majority_for_itself() -> None:
    f = federation(7, minimum_cohort=0)
    low = manifest(f, minimum_cohort=3)
    with pytest.raises(PeerFault) as caught:
        check_manifest(low, f)
    assert caught.value.reason is Reason.WRONG_POLICY
    m = manifest(f)
    assert m.minimum_cohort == 4
    check_manifest(m, f)
    # Also a hop that was handed a manifest which it should have refused counts by its own file.
    few = headers(low, f)[:3]
    with pytest.raises(PeerFault) as caught:
        check_cohort(cohort(low, few), low, f, {h.digest: h for h in few})
    assert caught.value.reason is Reason.COHORT_TOO_SMALL


def test_a_minority_releases_nothing_at_hop_1_and_is_not_believed_at_hop_2() -> None:
    f = federation(7, minimum_cohort=0)
    hop, m = opened("hop-1", f)
    hop.submit(*headers(m, f)[:3])
    (abort,) = hop.feed(Tick(60.0))
    assert isinstance(abort, Abort)
    assert abort.fault.reason is Reason.COHORT_TOO_SMALL
    second, _ = opened("hop-2", f)
    second.relayed(m, headers(m, f))
    assert second.refuses(CohortIn(cohort(m, headers(m, f)[:3]))) is Reason.COHORT_TOO_SMALL
    assert released(second.feed(CohortIn(cohort(m, headers(m, f)[:4])))) == f.silo_names[:4]


def test_a_subsample_invites_no_fewer_than_the_minimum() -> None:
    f = federation(10, minimum_cohort=0, subsample=0.2)
    assert f.drawn == len(f.draw(1, bytes(32))) == 6
