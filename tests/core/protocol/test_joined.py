"""All cores joined without a network, with real masks and bodies: the sum is that of the cohort, each silo once."""

import pytest
from tests.core.protocol.federations import cohort, signed
from tests.core.protocol.nets import Net

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.policy import Server
from silomix.runtime.core.protocol import shuffler
from silomix.runtime.core.protocol.aggregator import Phase
from silomix.runtime.core.protocol.messages import Cohort, Participant


def all_have_the_model(net: Net) -> None:
    """Every silo has computed the model on record by itself, and no node holds anything of the rounds that are over."""
    last = net.core.log.last
    assert last is not None
    for one in net.silos.values():
        assert one.core.log.head == last.digest
        assert net.digests(one.model, one.server) == (last.model_after, last.state_after)
    for hop in net.hops.values():
        assert hop.core.log.head == last.digest
        assert not [p for p in hop.core.padded.values() if p.round <= last.round]
        assert not [number for number in hop.core.keys if number[0] <= last.round]


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("level", [Level.TRUSTED, Level.SEMI_HONEST])
def test_the_sum_has_every_silo_once(level: Level, hops: int) -> None:
    net = Net(hops=hops, level=level)
    for round_ in range(1, 5):
        net.submit()
        assert net.models == [net.once(0, 1, 2, 3, 4)] * round_
        all_have_the_model(net)
    assert net.core.phase is Phase.FINISHED
    assert not net.refusals


@pytest.mark.parametrize("server", [Server.MOMENTUM, Server.ADAM, Server.YOGI])
def test_silos_follow_whatever_rule_makes_the_model(server: Server) -> None:
    net = Net(silos=3, hops=1, server=server, rounds=2)
    for _ in range(2):
        net.submit()
        all_have_the_model(net)
    assert net.core.log.applied == 2


def test_a_body_that_comes_again_counts_once() -> None:
    net = Net()
    net.submit("silo-1", "silo-2", times=3)
    net.submit("silo-3", "silo-4", "silo-5")
    assert net.models == [net.once(0, 1, 2, 3, 4)]


def test_a_silo_that_restarts_halfway_counts_once() -> None:
    """Its first header has been passed on and its mask expanded everywhere, and no body came of it."""
    net = Net()
    stale = net.silos["silo-2"].core.sealing(net.manifest, net.rng)
    net.hops["hop-1"].step(shuffler.HeaderIn(stale.header, "silo-2"))
    net.settle()
    net.submit()
    assert net.models == [net.once(0, 1, 2, 3, 4)]


def test_a_silo_that_is_missing_at_the_deadline_is_not_in_the_sum() -> None:
    net = Net()
    net.submit("silo-1", "silo-2", "silo-4", "silo-5")
    began = net.silos["silo-3"].core.sealing(net.manifest, net.rng)
    net.hops["hop-1"].step(shuffler.HeaderIn(began.header, "silo-3"))  # gone in the middle of its stream
    assert not net.models
    net.wait(60)
    assert net.models == [net.once(0, 1, 3, 4)]
    net.submit()
    assert net.models[1] == net.once(0, 1, 2, 3, 4)


def test_too_few_silos_give_no_sum_and_the_attempt_is_repeated() -> None:
    net = Net()
    net.submit("silo-1", "silo-2")
    net.wait(60)
    assert net.aborted == {"hop-1": [Reason.COHORT_TOO_SMALL]}
    net.wait(20)
    assert [g.attempt for g in net.gave_up] == [1]
    net.submit()
    assert net.models == [net.once(0, 1, 2, 3, 4)]


FOUR = ("silo-1", "silo-2", "silo-3", "silo-4")


@pytest.mark.parametrize("level", [Level.TRUSTED, Level.SEMI_HONEST])
@pytest.mark.parametrize("restart", [False, True])
def test_an_attempt_that_failed_before_the_pads_leaves_the_model_free(restart: bool, level: Level) -> None:
    """Silo 5 is late, hop 1 passes the sum of the others on, and hop 2 is gone: what hop 1 sent is never read."""
    net = Net(level=level)
    net.submit(*FOUR)
    net.hops["hop-2"].up = False
    net.wait(60)
    assert net.sent == {"hop-1": [FOUR]}
    assert not net.models
    net.hops["hop-2"].up = True
    net.hops["hop-2"].restart()
    if restart:
        net.hops["hop-1"].restart()
    net.wait(20)
    assert net.manifest.attempt == 2
    assert net.manifest.bound_to == ()
    assert not net.hops["hop-1"].core.padded  # destroyed before attempt 2 was answered
    net.submit()
    assert net.models == [net.once(0, 1, 2, 3, 4)]
    all_have_the_model(net)


def bound_to_four(net: Net) -> None:
    """Attempt 1: all have signed for four silos and two hops have shown their pads, and hop 3 has destroyed its own."""
    net.submit(*FOUR)
    net.now += 60
    net.hops["hop-1"].step(shuffler.Tick(net.now))
    net.settle(Phase.REVEALING)
    asked = (net.f.digest, 1, 2, net.f.silo_names, 0, net.core.log.head, net.now, net.core.life)
    net.hops["hop-3"].step(shuffler.Prepare(*asked))  # from wherever: it fences attempt 1
    net.settle()
    assert [g.why.split(":")[0] for g in net.gave_up] == ["hop-3"]
    assert net.shown == {net.core.model: {FOUR}}
    assert not net.models
    assert (net.manifest.attempt, net.manifest.bound_to) == (2, FOUR)


@pytest.mark.parametrize("level", [Level.TRUSTED, Level.SEMI_HONEST])
@pytest.mark.parametrize("restart", ["", "hop-1", "hop-3", "aggregator"])
def test_a_retry_after_the_pads_forms_the_same_cohort_again(restart: str, level: Level) -> None:
    net = Net(level=level)
    bound_to_four(net)
    if restart == "aggregator":
        net.aggregator.restart()
        net.settle()
        assert (net.manifest.attempt, net.manifest.bound_to) == (3, FOUR)
    elif restart:
        net.hops[restart].restart()
        net.reopen(restart)
    net.submit("silo-1", "silo-2", "silo-3")
    assert not net.models
    with pytest.raises(PeerFault) as caught:
        net.submit("silo-5")  # it is here now, and must be left out of the sum
    assert caught.value.reason is Reason.ALREADY_RELEASED
    net.submit("silo-4")
    assert net.models == [net.once(0, 1, 2, 3)]
    all_have_the_model(net)
    net.submit()
    assert net.models[1] == net.once(0, 1, 2, 3, 4)


def test_a_retry_with_another_cohort_is_refused_also_in_the_next_round() -> None:
    """Rule R3: the round is abandoned, and the model is the same: it is for the same silos, or for nobody."""
    net = Net(attempts=2)
    bound_to_four(net)
    net.submit("silo-2", "silo-3", "silo-4")  # silo 1 is gone
    net.wait(60)
    assert net.aborted == {"hop-1": [Reason.ALREADY_RELEASED]}
    net.wait(20)
    assert [(g.attempt, g.abandoned) for g in net.gave_up] == [(1, False), (2, True)]
    assert (net.manifest.round, net.manifest.bound_to) == (2, FOUR)
    record = net.core.log.last
    assert record is not None
    assert [one.silos for one in record.attempts] == [FOUR, ()]
    all_have_the_model(net)
    with pytest.raises(PeerFault) as caught:
        net.submit("silo-5")
    assert caught.value.reason is Reason.ALREADY_RELEASED
    net.submit(*FOUR)
    assert net.models == [net.once(0, 1, 2, 3)]


def test_hops_that_have_shown_nothing_hold_to_what_the_manifest_says_of_others() -> None:
    """Hop 1 was never asked for its pad, and closes for the silos that hop 2 has shown its own for."""
    net = Net(hops=2, attempts=2)
    net.submit(*FOUR)
    net.now += 60
    net.hops["hop-1"].step(shuffler.Tick(net.now))
    net.settle(Phase.REVEALING)
    asked = (net.f.digest, 1, 2, net.f.silo_names, 0, net.core.log.head, net.now, net.core.life)
    net.hops["hop-1"].step(shuffler.Prepare(*asked))
    net.settle()
    assert not net.hops["hop-1"].core.released
    assert net.manifest.bound_to == FOUR
    with pytest.raises(PeerFault) as caught:
        net.submit("silo-5")
    assert caught.value.reason is Reason.ALREADY_RELEASED
    net.submit(*FOUR)
    assert net.models == [net.once(0, 1, 2, 3)]


def test_a_lying_hop_1_cannot_make_a_hop_that_has_shown_its_pad_take_another_cohort() -> None:
    """Hop 1 forgets what it released: hop 2 does not, so a difference of two sums is not to be had."""
    net = Net()
    bound_to_four(net)
    hop_1 = net.hops["hop-1"].core
    hop_1.released.clear()
    hop_1._said_bound = hop_1._bound_to = lambda _: ()  # type: ignore[method-assign, assignment]
    net.submit()
    assert net.refusals[-1] is Reason.ALREADY_RELEASED
    assert net.sent["hop-2"] == [FOUR]
    assert not net.models


def test_one_silo_is_never_unmasked_under_the_names_of_others() -> None:
    """Hop 1 and the aggregator in league send one silo's body as the sum of three."""
    net = Net(hops=2)
    m = net.manifest
    victim = net.silos["silo-1"].core.sealing(m, net.rng).header
    others = [net.silos[name].core.sealing(m, net.rng).header for name in ("silo-2", "silo-3")]
    for h in (victim, *others):
        net.hops["hop-2"].step(shuffler.HeaderIn(h, "hop-1"))
    names = ("silo-1", "silo-2", "silo-3")
    alone = signed(Cohort(m.digest, tuple(Participant(n, victim.digest) for n in names)), "hop-1")
    for c in (alone, cohort(m, [victim])):
        with pytest.raises(PeerFault):
            net.hops["hop-2"].step(shuffler.CohortIn(c))
    assert not net.sent


def test_a_hop_that_never_answers_is_named_until_the_round_is_abandoned() -> None:
    net = Net(attempts=2)
    net.submit()
    assert len(net.models) == 1
    net.hops["hop-3"].up = False
    net.wait(80)
    net.wait(20)
    net.hops["hop-3"].up = True
    assert [(g.round, g.abandoned) for g in net.gave_up] == [(2, False), (2, True)]
    assert "hop-3: not reachable" in net.gave_up[1].why
    assert net.core.phase is Phase.RECORDING  # a record needs all hops of this pool
    net.aggregator.ask(net.aggregator.asks)  # type: ignore[arg-type]
    net.settle()
    all_have_the_model(net)


@pytest.mark.parametrize("hop", ["hop-1", "hop-2"])
def test_a_hop_that_has_closed_an_attempt_does_no_more_for_it(hop: str) -> None:
    """It was asked for the keys of the next one while bodies of this one were still coming."""
    net = Net(silos=3, hops=2)
    net.submit("silo-1", "silo-2")
    m, closing = net.manifest, net.hops[hop]
    closing.step(
        shuffler.Prepare(net.f.digest, m.round, m.attempt + 1, net.f.silo_names, 0, m.head, net.now, net.core.life)
    )
    net.submit("silo-3")
    assert not any(isinstance(fact, shuffler.Padded) for fact in closing.journal)
    assert Reason.FENCED in (net.aborted.get("hop-1", []) if hop == "hop-1" else net.refusals)
    assert net.core.phase is Phase.COLLECTING
