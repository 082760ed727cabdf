"""Protocol sections 5 and 6: a chain is formed again without hops that are lost, within what the policy allows."""

from typing import Any

import pytest
from tests.core.protocol.federations import AGGREGATOR, MODEL, bond, cohort, federation, headers, identity, pad
from tests.core.protocol.nets import Net
from tests.core.protocol.test_aggregator import Node, given_up

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol import aggregator as aggregating
from silomix.runtime.core.protocol import shuffler, silo
from silomix.runtime.core.protocol.aggregator import (
    AskKeys,
    AskStore,
    CohortIn,
    Convicted,
    Finish,
    HeaderIn,
    HopBack,
    HopGone,
    HopLost,
    OpenAt,
    OpenedAt,
    PadIn,
    PadRefused,
    Phase,
    Sealed,
    Tick,
)
from silomix.runtime.core.protocol.roundlog import Outcome, check_record
from silomix.runtime.core.protocol.rules import MOST_ATTEMPTS, check_manifest

FOUR: dict[str, Any] = {"hops": 4, "minimum_hops": 3}
F = federation(4, 4, minimum_hops=3)
ALL = F.chain
REST = ("hop-1", "hop-2", "hop-4")


def gone(net: Net, name: str) -> None:
    """Lose a hop, and have the aggregator hear that it is."""
    net.hops[name].up = False
    present = tuple(net.f.silo_names)
    net.call(net.aggregator, net.aggregator, HopGone(name, "it does not answer", net.now, present))
    net.settle()


def outcomes(net: Net) -> list[Outcome]:
    return [record.outcome for record in net.core.log.records[1:]]


# Whole federations


def test_a_hop_that_is_lost_costs_one_round_at_most() -> None:
    net = Net(silos=4, rounds=3, **FOUR)
    net.submit()
    assert net.manifest.chain == ALL
    gone(net, "hop-3")  # the next round is open by now, and over it
    assert outcomes(net) == [Outcome.APPLIED, Outcome.ABANDONED]
    assert net.manifest.chain == REST
    net.submit()
    assert outcomes(net) == [Outcome.APPLIED, Outcome.ABANDONED, Outcome.APPLIED]
    assert net.core.phase is Phase.FINISHED


@pytest.mark.parametrize("lost", ALL)
def test_any_one_hop_of_four_can_be_lost_while_keys_are_made(lost: str) -> None:
    node = Node(F)
    node.start()
    others = tuple(hop for hop in ALL if hop != lost)
    for hop in others:
        assert node.feed(node.keys(hop)) == []
    effects = node.feed(HopGone(lost, "it does not answer", 1.0))
    (opens,) = [effect for effect in effects if isinstance(effect, OpenAt)]
    assert opens.manifest.chain == others
    assert (opens.manifest.round, opens.manifest.attempt) == (1, 1)
    check_manifest(opens.manifest, F)
    assert not given_up(effects)


def test_the_hop_rejoins_by_itself() -> None:
    net = Net(silos=4, rounds=3, **FOUR)
    gone(net, "hop-1")
    assert net.manifest.chain == ALL[1:]
    net.hops["hop-1"].up = True
    net.call(net.aggregator, net.aggregator, HopBack("hop-1", net.now))
    net.submit()
    assert net.manifest.chain == ALL
    net.submit()
    assert outcomes(net) == [Outcome.ABANDONED, Outcome.APPLIED, Outcome.APPLIED]
    assert net.hops["hop-1"].core.log.head == net.core.log.head


def test_silos_join_no_other_chain_in_the_same_round_unless_the_lost_hop_has_fenced() -> None:
    net = Net(silos=4, rounds=2, **FOUR)
    m = net.manifest
    one = net.silos["silo-1"]
    one.step(silo.Announced(m))
    node = Node(F)
    node.start()
    other = _manifest_over(node, REST, attempt=2)
    with pytest.raises(PeerFault) as caught:
        one.core._check_fences(other, one.core.joined[1])
    assert caught.value.reason is Reason.FENCE_MISSING


def _manifest_over(node: Node, chain: tuple[str, ...], attempt: int) -> Any:
    for _ in range(attempt - 1):
        node.feed(Tick(1e6 * attempt))
    for hop in chain:
        node.feed(node.keys(hop))
    effects = node.feed(HopGone(next(hop for hop in ALL if hop not in chain), "lost", 1.0))
    return next(effect.manifest for effect in effects if isinstance(effect, OpenAt))


# What was released holds over every chain


def test_a_release_that_waits_for_a_lost_hop_is_begun_anew_for_the_same_silos_over_the_others() -> None:
    net = _revealing()
    lost, bound = "hop-4", net.core.bound
    assert len(bound) == 4
    gone(net, lost)
    assert outcomes(net) == [Outcome.ABANDONED]
    record = net.core.log.last
    assert record is not None
    check_record(record, net.f)
    assert record.attempts[-1].silos == bound  # on record, for everybody
    assert net.manifest.chain == ALL[:3]
    assert net.manifest.bound_to == bound
    net.submit(*bound)
    assert outcomes(net) == [Outcome.ABANDONED, Outcome.APPLIED]
    last = net.core.log.last
    assert last is not None
    assert last.silos == bound
    assert all(len(cohorts) == 1 for cohorts in net.shown.values())


def _revealing() -> Net:
    """A federation in which three hops have shown their pads, and the fourth is cut off before it is asked."""
    net = Net(silos=5, rounds=2, **FOUR)
    lost = net.hops["hop-4"]
    reveal = lost.step

    def step(event: shuffler.Event, body: Any = None) -> list[shuffler.Effect]:
        if isinstance(event, shuffler.RevealIn):
            lost.up = False
            raise PeerFault(Reason.BUSY, "cut off")
        return reveal(event, body)

    lost.step = step  # type: ignore[method-assign]
    net.submit("silo-1", "silo-2", "silo-3", "silo-4")
    net.wait(60)
    assert net.core.phase is Phase.REVEALING
    return net


def test_it_waits_for_the_hop_while_one_of_the_silos_is_away() -> None:
    """Were it given up, the pad that is missing would go, and with it the sum that can still be had."""
    net = _revealing()
    away = tuple(name for name in net.f.silo_names if name != net.core.bound[0])
    net.aggregator.step(HopGone("hop-4", "it does not answer", net.now, away))
    assert net.core.phase is Phase.REVEALING
    assert net.core.unrevealed == ("hop-4",)


@pytest.mark.parametrize("lost", ["hop-1", "hop-2"])
def test_groups_that_were_signed_for_can_be_dealt_again_by_the_same_hop_alone(lost: str) -> None:
    node = Node(federation(4, 4, minimum_hops=3, group_size=3))
    node.start()
    node.core.model = MODEL
    node.core.recall(Sealed(1, 1, MODEL, bond(("silo-1", "silo-2", "silo-3"), chain=ALL)))
    node.feed(HopGone(lost, "it does not answer", 1.0))
    others = tuple(hop for hop in ALL if hop != lost)
    assert node.core.available == (ALL if lost == "hop-1" else others)


def test_groups_that_were_signed_for_are_dealt_over_no_shorter_chain() -> None:
    node = Node(federation(4, 4, minimum_hops=3, group_size=3))
    node.start()
    node.core.recall(Sealed(1, 1, MODEL, bond(("silo-1", "silo-2", "silo-3"), chain=ALL)))
    for lost in ("hop-2", "hop-3"):
        node.feed(HopGone(lost, "it does not answer", 1.0))
    assert node.core.available == ALL  # two are too few: they are waited for


def test_a_release_is_begun_anew_when_the_very_silos_that_it_is_for_are_there() -> None:
    node = Node(F)
    node.start()
    m, _ = node.seal(silos=3)
    bound = node.core.bound
    assert len(bound) == 3
    (up,) = given_up(node.feed(HopGone("hop-4", "it does not answer", 1.0, bound)))
    assert up.abandoned
    (ask,) = node.store(1.0)
    assert isinstance(ask, AskKeys)
    assert (ask.round, ask.chain) == (2, ALL[:3])
    assert m.chain == ALL


def test_a_release_goes_on_without_a_hop_that_has_shown_its_pad() -> None:
    """Were it given up, what the hop has shown would be worth nothing, and the sum can still be had."""
    node = Node(F)
    node.start()
    m, _ = node.seal()
    node.feed(PadIn("hop-2", m.digest, pad("hop-2", m.digest)))
    assert node.feed(HopGone("hop-2", "it does not answer", 1.0, node.f.silo_names)) == []
    assert node.core.phase is Phase.REVEALING
    assert node.core.unrevealed == ("hop-1", "hop-3", "hop-4")


def test_a_hop_that_has_released_refuses_another_cohort_over_another_chain() -> None:
    net = _revealing()
    bound = net.core.bound
    net.core._sealed.clear()  # an aggregator that tells nobody
    gone(net, "hop-4")
    first = net.hops["hop-1"]
    assert net.manifest.bound_to == ()
    assert first.core._bound_to(net.manifest) == bound
    with pytest.raises(PeerFault) as caught:
        first.core._check_cohort_has("silo-5")
    assert caught.value.reason is Reason.ALREADY_RELEASED


# The machine


def test_without_hops_to_spare_everybody_waits_and_no_attempt_is_used_up() -> None:
    node = Node()
    node.start()
    node.feed(node.keys("hop-1"))
    assert node.feed(HopGone("hop-2", "it does not answer", 1.0)) == []
    assert node.feed(Tick(1e6)) == []
    assert (node.core.phase, node.core.attempt, node.core.wake_at()) == (Phase.PREPARING, 1, None)
    assert node.feed(HopBack("hop-2", 2e6)) == []
    assert node.core.wake_at() == 2e6 + node.f.policy.release_s
    assert any(isinstance(effect, OpenAt) for effect in node.feed(node.keys("hop-2", now=2e6)))
    assert node.core.attempt == 1


def test_an_attempt_that_is_open_goes_on_without_hops_to_spare() -> None:
    """The hop may be back before the deadline, with the attempt as it was."""
    node = Node()
    node.start()
    node.announce()
    assert node.feed(HopGone("hop-2", "it does not answer", 1.0)) == []
    assert node.core.phase is Phase.COLLECTING
    assert "hop-2" in node.core.trouble


def test_one_of_two_lost_hops_that_is_back_begins_no_other_attempt() -> None:
    """The chain would be the same, and the keys that hops have made would be void."""
    node = Node()
    node.start()
    for hop in node.f.chain:
        node.feed(HopGone(hop, "it does not answer", 1.0))
    assert node.feed(HopBack("hop-1", 2.0)) == []
    node.feed(HopBack("hop-2", 3.0))
    assert node.propose(3.0).attempt == 1


def test_keys_that_were_asked_for_serve_the_chain_without_a_hop_that_is_lost_before_they_come() -> None:
    node = Node(F)
    node.start()
    assert node.feed(HopGone("hop-3", "it does not answer", 1.0)) == []
    effects: list[aggregating.Effect] = []
    for hop in REST:
        assert not effects
        effects = node.feed(node.keys(hop, now=1.0))
    (opens,) = [effect for effect in effects if isinstance(effect, OpenAt)]
    assert (opens.manifest.chain, opens.manifest.attempt) == (REST, 1)


def test_a_hop_of_the_pool_that_has_no_part_in_the_attempt_does_not_end_it() -> None:
    node = Node(F)
    node.feed(HopGone("hop-3", "lost", 0.0))
    node.start()
    effects: list[aggregating.Effect] = []
    for hop in REST:
        effects = node.feed(node.keys(hop))
    (opens,) = [effect for effect in effects if isinstance(effect, OpenAt)]
    for hop in REST:
        node.feed(OpenedAt(hop, opens.manifest.digest, 0.0))
    node.feed(HopBack("hop-3", 1.0))
    assert node.feed(HopGone("hop-3", "lost again", 2.0)) == []
    assert node.core.phase is Phase.COLLECTING


def test_a_hop_that_is_lost_while_hops_store_the_end_of_a_round_ends_it_no_second_time() -> None:
    node = Node(federation(4, 4, minimum_hops=3, attempts=1))
    node.start()
    node.announce()
    node.feed(Tick(80.0))
    assert node.core.phase is Phase.RECORDING
    assert node.feed(HopGone("hop-2", "it does not answer", 81.0, node.f.silo_names)) == []
    assert node.abandoned() == [1]
    (ask,) = node.store(81.0)
    assert isinstance(ask, AskKeys)
    assert (ask.round, ask.chain) == (2, ("hop-1", "hop-3", "hop-4"))


def test_a_hop_that_has_lied_is_in_no_chain_also_while_another_is_waited_for() -> None:
    """Two are left, and three are needed: the federation waits for the one that is lost, and does not stop."""
    node = Node(F)
    node.journal.append(Convicted(1, 1, "hop-4", bytes(32)))
    node.restart()
    node.feed(HopGone("hop-3", "it does not answer", 0.0))
    (ask,) = node.start()
    assert isinstance(ask, AskKeys)
    assert ask.chain == ALL[:3]


def test_a_federation_that_stops_for_a_liar_has_that_on_record_also_if_it_was_killed_before() -> None:
    """Silos believe in no end that is not on record."""
    node = Node(federation(4, 3))
    node.start()
    m = node.announce()
    node.journal.append(Convicted(1, 1, "hop-2", bytes(32)))
    node.restart()
    assert node.start() == [Finish(1, barred=("hop-2",))]
    (attempt,) = node.records[-1].attempts
    assert (attempt.manifest, attempt.culprit) == (m.digest, "hop-2")
    assert node.core.log.over
    node.restart()
    assert node.start() == [Finish(1, barred=("hop-2",))]
    assert node.abandoned() == [1]


def test_a_second_lost_hop_is_one_too_many() -> None:
    node = Node(F)
    node.start()
    for hop in ("hop-1", "hop-2"):
        node.feed(node.keys(hop))
    node.feed(HopGone("hop-3", "lost", 1.0))
    assert node.feed(HopGone("hop-4", "lost", 1.0)) == []
    assert node.core.available == ALL
    assert node.core.phase is Phase.PREPARING


def test_a_hop_that_is_back_stands_in_for_one_that_was_lost_meanwhile() -> None:
    node = Node(F)
    node.feed(HopGone("hop-3", "lost", 0.0))
    node.start()
    assert node.core.chain == REST
    for hop in ("hop-2", "hop-4"):
        node.feed(node.keys(hop))
    assert node.feed(HopGone("hop-1", "lost", 2e6)) == []
    assert node.feed(Tick(3e6)) == []
    assert node.core.wake_at() is None
    (ask,) = node.feed(HopBack("hop-3", 3e6))
    assert isinstance(ask, AskKeys)
    assert ask.chain == ALL[1:]


def test_a_hop_that_is_lost_while_keys_are_made_is_replaced_by_one_that_came_back() -> None:
    node = Node(F)
    node.feed(HopGone("hop-3", "lost", 0.0))
    node.start()
    node.feed(HopBack("hop-3", 1.0))
    assert node.core.chain == REST  # it is there for the next attempt
    (ask,) = node.feed(HopGone("hop-1", "lost", 2.0))
    assert isinstance(ask, AskKeys)
    assert ask.chain == ALL[1:]


def test_a_hop_that_refuses_is_left_out_when_its_time_is_up() -> None:
    node = Node(F)
    node.start()
    for hop in REST:
        node.feed(node.keys(hop))
    assert node.feed(Tick(F.policy.release_s - 1.0)) == []
    effects = node.feed(Tick(F.policy.release_s))
    (opens,) = [effect for effect in effects if isinstance(effect, OpenAt)]
    assert opens.manifest.chain == REST


@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.COLLECTING, Phase.RELEASING, Phase.READY])
def test_a_hop_that_is_lost_in_an_attempt_ends_the_round_and_not_the_federation(phase: Phase) -> None:
    node = Node(F)
    node.start()
    if phase is Phase.READY:
        node.gather()
    elif phase is Phase.OPENING:
        node.feed(OpenedAt("hop-4", node.propose().digest, 0.0))
    else:
        m = node.announce()
        for header in headers(m, F) if phase is Phase.RELEASING else ():
            node.feed(HeaderIn(header))
        if phase is Phase.RELEASING:
            node.feed(CohortIn(cohort(m, headers(m, F))))
    assert node.core.phase is phase
    effects = node.feed(HopGone("hop-2", "it does not answer", 1.0))
    (up,) = given_up(effects)
    assert up.abandoned
    assert "hop-2: it does not answer" in up.why
    (ask,) = [effect for effect in effects if isinstance(effect, AskStore)]
    assert ask.hops == ALL  # also to the lost one, when it is back
    (keys,) = [effect for effect in node.store(1.0) if isinstance(effect, AskKeys)]
    assert keys.chain == ("hop-1", "hop-3", "hop-4")
    assert (keys.round, keys.attempt) == (2, 1)


def test_a_round_that_the_lost_hop_has_passed_goes_on_over_no_other_chain() -> None:
    """Silos would refuse: the hop may have released, and cannot be asked."""
    node = Node(F)
    node.start()
    m = node.announce()
    node.feed(HopLost("hop-3", m.digest, "it was started again", 1.0, restarted=True))
    for hop in REST:
        assert not given_up(node.feed(node.keys(hop)))
    (up,) = given_up(node.feed(HopGone("hop-3", "it does not answer", 2.0)))
    assert (up.round, up.attempt, up.abandoned) == (1, 2, True)


def test_a_round_that_a_hop_has_passed_which_makes_no_more_keys_is_over_when_its_time_is_up() -> None:
    """Also if the hop answers, and refuses: it would be asked in vain until all attempts are used up."""
    node = Node(F)
    node.start()
    node.announce()
    node.feed(Tick(80.0))
    for hop in REST:
        node.feed(node.keys(hop, now=80.0))
    effects = node.feed(Tick(100.0))
    (up,) = given_up(effects)
    assert (up.round, up.attempt, up.abandoned) == (1, 2, True)
    assert node.abandoned() == [1]


def test_a_round_is_over_at_once_if_a_hop_that_it_has_passed_is_lost_when_an_attempt_fails() -> None:
    node = Node(F)
    node.start()
    m, _ = node.seal()
    assert node.feed(HopGone("hop-4", "it does not answer", 1.0)) == []  # its pad is waited for
    (up,) = given_up(node.feed(PadRefused("hop-2", m.digest, "it has destroyed its pad", 2.0)))
    assert up.abandoned
    (ask,) = node.store(2.0)
    assert isinstance(ask, AskKeys)
    assert (ask.round, ask.chain) == (2, ALL[:3])


def test_a_hop_that_was_merely_started_again_uses_up_no_attempt() -> None:
    node = Node(federation(attempts=2))
    node.start()
    for expected in range(1, 6):
        m = node.announce()
        assert m.attempt == expected
        effects = node.feed(HopLost("hop-2", m.digest, "it was started again", 1.0, restarted=True))
        assert not given_up(effects)[0].abandoned
    for last in (False, True):
        m = node.announce()
        effects = node.feed(HopLost("hop-1", m.digest, "it gave up", 1.0))
        assert given_up(effects)[0].abandoned is last
    assert MOST_ATTEMPTS > 7


def test_a_hop_that_released_the_model_for_others_unheard_stands_aside_until_the_next() -> None:
    """It was away when this aggregator began after losing its disk; the others have gone on meanwhile."""
    net = _revealing()
    told = net.hops["hop-1"].step(shuffler.Show(net.f.digest, net.core.life, 0, net.core.life_signature))[-1]
    assert isinstance(told, shuffler.Shows)
    assert told.shown.told
    second = aggregating.Aggregator(net.f, identity(AGGREGATOR), net.rng)
    second.step(aggregating.Awake(0.0))
    for name in ALL[1:]:
        shown = net.hops[name].core.step(shuffler.Show(net.f.digest, second.life, 0, second.life_signature))[-1]
        assert isinstance(shown, shuffler.Shows)
        blank = type(shown.shown)(second.life, shown.shown.total, 0, shown.shown.records, 0, 0, ())
        second.step(aggregating.HeadIn(name, blank, 0.0))
    second.step(Tick(1e3))
    last = second.log.last
    assert last is not None
    second.model = last.model_after
    late = type(told.shown)(second.life, told.shown.total, 0, told.shown.records, 1, 1, told.shown.told)
    second.step(aggregating.HeadIn("hop-1", late, 0.0))
    assert second.available == ALL[1:]
