"""Protocol section 5: the aggregator goes on where its journal ends, and no round is lost or applied twice."""

from copy import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.protocol.federations import (
    AGGREGATOR,
    MODEL,
    OTHER_MODEL,
    SCHEMA,
    cohort,
    federation,
    header,
    headers,
    identity,
    rng,
    round_key,
    signed,
)

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.masks import public_key
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.aggregator import (
    Aggregator,
    Announce,
    Applied,
    Apply,
    AskKeys,
    CohortIn,
    Effect,
    Event,
    Expand,
    Finish,
    GiveUp,
    HeaderIn,
    HopFailed,
    HopLost,
    HopReleased,
    KeysIn,
    OpenAt,
    OpenedAt,
    Phase,
    Start,
    SumApplied,
    SumIn,
    SumRefused,
    Take,
    Tick,
    Tried,
)
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Cohort, Manifest, Participant
from silomix.runtime.core.protocol.rules import check_manifest

F = federation()
Fact = Tried | Applied | HopReleased


def model(round_: int) -> bytes:
    """The model that a round makes."""
    return bytes([100 + round_]) * 32


class Node:
    """An aggregator with a journal."""

    def __init__(self, f: Federation = F) -> None:
        self.f = f
        self.journal: list[Fact] = []
        self.lives = 0
        self.restart()

    def restart(self, *, backwards: bool = False) -> None:
        self.lives += 1
        self.core = Aggregator(self.f, identity(AGGREGATOR), rng(("aggregator", self.lives)))
        for fact in reversed(self.journal) if backwards else self.journal:
            self.core.recall(fact)

    @property
    def newest(self) -> bytes:
        return next((f.model for f in reversed(self.journal) if isinstance(f, Applied)), MODEL)

    def feed(self, event: Event, survives: int = 10**6) -> list[Effect]:
        before = {name: copy(value) for name, value in vars(self.core).items()}
        try:
            effects = self.core.step(event)
        except (PeerFault, LocalFault):
            assert vars(self.core) == before
            raise
        for effect in effects[:survives]:
            if isinstance(effect, Remember):
                self.journal.append(effect.fact)
        return effects

    def refuses(self, event: Event) -> Reason:
        with pytest.raises(PeerFault) as caught:
            self.feed(event)
        return caught.value.reason

    def start(self, now: float = 0.0) -> list[Effect]:
        return self.feed(Start(self.newest, SCHEMA, now))

    def keys(self, hop: str, last_released: int = 0, now: float = 0.0) -> KeysIn:
        masked = self.f.policy.level is not Level.TRUSTED
        names = self.core._invited() if masked else ()
        number = (self.core.round, last_released, self.core.attempt)
        made = tuple(round_key(self.f, hop, silo, *number) for silo in names)
        return KeysIn(hop, made, last_released, now)

    def propose(self, now: float = 0.0) -> Manifest:
        effects: list[Effect] = []
        for hop in self.f.chain:
            effects = self.feed(self.keys(hop, now=now))
        assert isinstance(effects[-1], OpenAt)
        return effects[-1].manifest

    def announce(self, now: float = 0.0) -> Manifest:
        m = self.propose(now)
        effects: list[Effect] = []
        for hop in self.f.chain:
            effects = self.feed(OpenedAt(hop, m.digest, now))
        assert effects == [Announce(m)]
        return m

    def receive(self, now: float = 0.0) -> Manifest:
        """Run an attempt up to the moment at which its sum is here."""
        m = self.announce(now)
        of = headers(m, self.f)
        for h in of:
            (expand,) = self.feed(HeaderIn(h))
            assert isinstance(expand, Expand)
            assert expand.header == h
        assert self.feed(CohortIn(cohort(m, of))) == [Take(cohort(m, of))]
        assert self.feed(SumIn(m.digest)) == [Apply(m)]
        return m

    def run_round(self, now: float = 0.0) -> list[Effect]:
        m = self.receive(now)
        return self.feed(SumApplied(m.digest, model(m.round), 4, now))

    def of(self, kind: type[Fact]) -> list[Fact]:
        return [f for f in self.journal if isinstance(f, kind)]


def given_up(effects: list[Effect]) -> list[GiveUp]:
    return [e for e in effects if isinstance(e, GiveUp)]


# A round


def test_a_manifest_holds_for_every_other_node() -> None:
    node = Node()
    effects = node.start()
    assert effects == [Remember(Tried(1, 1)), AskKeys(1, 1, F.chain, F.silo_names)]
    m = node.announce()
    check_manifest(m, F)
    assert (m.round, m.attempt, m.model, m.invited) == (1, 1, MODEL, ())


def test_its_keys_are_one_per_silo_and_attempt_and_do_not_print() -> None:
    node = Node()
    node.start()
    m = node.announce()
    public = {}
    for h in headers(m, F):
        (expand,) = node.feed(HeaderIn(h))
        assert isinstance(expand, Expand)
        assert expand.key is not None
        key = m.key_for(AGGREGATOR, h.silo)
        assert key is not None
        assert public_key(expand.key) == key.public_key
        assert (key.round, key.attempt) == (1, 1)
        assert repr(expand.key.value) not in repr(expand)
        public[h.silo] = key.public_key
    assert len(set(public.values())) == 4
    node.feed(Tick(80.0))
    again = node.announce(80.0)
    assert not set(public.values()) & {k.public_key for k in again.aggregator_keys}


def test_where_sums_leave_by_group_one_key_serves_all_silos() -> None:
    """Else the aggregator would know whose seed it opens."""
    node = Node(federation(group_size=3))
    node.start()
    node.feed(node.keys("hop-1"))
    (proposed,) = node.feed(node.keys("hop-2"))
    assert isinstance(proposed, OpenAt)
    (key,) = proposed.manifest.aggregator_keys
    assert key.silo == ""
    assert proposed.unnamed is not None
    assert public_key(proposed.unnamed) == key.public_key
    assert repr(proposed.unnamed.value) not in repr(proposed)


def test_keys_are_overwritten_when_the_attempt_is_over() -> None:
    node = Node()
    node.start()
    m = node.announce()
    (expand,) = node.feed(HeaderIn(header(m, "silo-1")))
    assert isinstance(expand, Expand)
    assert expand.key is not None
    assert any(expand.key.value)
    node.feed(Tick(80.0))
    assert not any(expand.key.value)


def test_rounds_follow_one_another_until_all_are_done() -> None:
    node = Node()
    node.start()
    for round_ in range(1, 5):
        effects = node.run_round()
        assert effects[0] == Remember(Applied(round_, model(round_), 4))
        assert set(effects[1:3]) == {Remember(HopReleased(hop, round_)) for hop in F.chain}
    assert effects[-1] == Finish(4)
    assert node.core.phase is Phase.FINISHED
    assert node.core.wake_at() is None
    assert node.feed(Tick(1e9)) == []
    node.restart()
    assert node.start() == [Finish(4)]


def test_nothing_happens_before_the_start() -> None:
    assert Node().feed(Tick(1e9)) == []


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (lambda n: replace(n.keys("hop-1"), keys=()), Reason.WRONG_KEYS),
        (lambda n: replace(n.keys("hop-1"), keys=n.keys("hop-1").keys[::-1]), Reason.WRONG_KEYS),
        (lambda n: replace(n.keys("hop-1"), keys=n.keys("hop-2").keys), Reason.WRONG_KEYS),
        (lambda n: n.keys("hop-1", 2), Reason.WRONG_ROUND),
        (lambda n: replace(n.keys("hop-1"), last_released=2), Reason.WRONG_ROUND),
        (lambda n: replace(n.keys("hop-1"), last_released=1 << 64), Reason.WRONG_ROUND),
    ],
)
def test_wrong_keys_are_refused(event: Any, reason: Reason) -> None:
    node = Node()
    node.start()
    assert node.refuses(event(node)) is reason


def test_keys_that_come_again_propose_no_second_manifest() -> None:
    node = Node()
    node.start()
    m = node.propose()
    assert node.feed(node.keys("hop-1")) == []
    assert node.core.manifest == m
    assert node.feed(OpenedAt("hop-3", m.digest, 0.0)) == []
    assert node.feed(OpenedAt("hop-1", bytes(32), 0.0)) == []
    assert node.feed(OpenedAt("hop-1", m.digest, 0.0)) == []
    assert node.feed(OpenedAt("hop-1", m.digest, 0.0)) == []
    assert node.feed(OpenedAt("hop-2", m.digest, 0.0)) == [Announce(m)]


def test_a_header_is_expanded_once_and_a_cohort_is_counted() -> None:
    node = Node()
    node.start()
    assert node.refuses(HeaderIn(header(node.propose(), "silo-1"))) is Reason.WRONG_MANIFEST
    node = Node()
    node.start()
    m = node.announce()
    of = headers(m, F)
    for h in of:
        assert [type(e) for e in node.feed(HeaderIn(h))] == [Expand]
        assert node.feed(HeaderIn(h)) == []
    assert node.refuses(CohortIn(cohort(m, of[:2]))) is Reason.COHORT_TOO_SMALL
    assert node.refuses(CohortIn(cohort(m, of, "hop-2"))) is Reason.BAD_SIGNATURE
    alone = Cohort(m.digest, tuple(Participant(silo, of[0].digest) for silo in F.silo_names))
    assert node.refuses(CohortIn(signed(alone, "hop-1"))) is Reason.WRONG_SEQUENCE
    for _ in range(2):  # a broken stream begins anew
        assert node.feed(CohortIn(cohort(m, of))) == [Take(cohort(m, of))]
    assert node.refuses(CohortIn(cohort(m, of[1:]))) is Reason.ALREADY_RELEASED


# Resuming


def test_an_attempt_number_is_never_used_twice() -> None:
    node = Node()
    seen = set()
    for life in range(5):
        node.restart()
        (tried, _) = node.start()
        assert tried == Remember(Tried(1, life + 1))
        m = node.propose()
        assert (m.round, m.attempt) not in seen
        seen.add((m.round, m.attempt))


def test_facts_may_be_recalled_in_any_order() -> None:
    node = Node()
    node.start()
    node.run_round()
    node.restart()
    node.start()
    node.restart(backwards=True)
    assert node.start()[0] == Remember(Tried(2, 3))


def test_a_restart_goes_on_with_the_round_that_was_not_applied() -> None:
    node = Node()
    node.start()
    node.run_round()
    m = node.announce()
    node.restart()
    effects = node.start()
    assert effects == [Remember(Tried(2, 2)), AskKeys(2, 2, F.chain, F.silo_names)]
    # The sum of the attempt that died with the process belongs to no attempt of this one.
    assert node.feed(SumApplied(m.digest, model(2), 4, 0.0)) == []
    assert node.announce().model == model(1)


def test_no_round_is_applied_twice() -> None:
    node = Node()
    node.start()
    m = node.receive()
    sum_applied = SumApplied(m.digest, model(1), 4, 0.0)
    assert node.feed(SumIn(m.digest)) == []  # it comes again
    assert node.feed(sum_applied)
    for _ in range(3):
        assert node.feed(SumIn(m.digest)) == []
        assert node.feed(sum_applied) == []
    node.restart()
    node.start()
    assert node.feed(sum_applied) == []
    assert node.of(Applied) == [Applied(1, model(1), 4)]


def test_no_sum_is_applied_that_has_not_come() -> None:
    node = Node()
    node.start()
    m = node.announce()
    assert node.feed(SumIn(m.digest)) == []  # no cohort is known yet
    assert node.feed(SumApplied(m.digest, model(1), 4, 0.0)) == []
    node.restart()
    node.start()
    m = node.receive()
    assert node.feed(SumApplied(bytes(32), model(1), 4, 0.0)) == []
    assert not node.of(Applied)
    assert node.core.phase is Phase.APPLYING


def test_no_sum_is_applied_when_all_is_done() -> None:
    f = federation(rounds=1)
    node = Node(f)
    node.start()
    m = node.receive()
    sum_applied = SumApplied(m.digest, model(1), 4, 0.0)
    assert Finish(1) in node.feed(sum_applied)
    assert node.feed(sum_applied) == []
    assert node.of(Applied) == [Applied(1, model(1), 4)]


def test_a_journal_that_names_another_model_stops_the_start() -> None:
    """Else a lost file would make the federation begin anew with its first model, and nobody would know."""
    node = Node()
    node.start()
    node.run_round()
    node.restart()
    with pytest.raises(LocalFault) as caught:
        node.feed(Start(MODEL, SCHEMA, 0.0))
    assert caught.value.reason is Reason.WRONG_MODEL
    assert model(1).hex()[:32] in str(caught.value)


def test_what_a_hop_has_released_is_remembered_and_given_back() -> None:
    node = Node()
    node.start()
    assert node.feed(node.keys("hop-1", 1)) == [Remember(HopReleased("hop-1", 1))]
    assert node.feed(node.keys("hop-1", 1)) == []
    node.restart()
    assert node.core.hop_released == {"hop-1": 1}
    node.start()
    node.run_round()
    node.restart()
    assert node.core.hop_released == {"hop-1": 1, "hop-2": 1}


@given(st.lists(st.sampled_from(["round", "give up", "crash", "crash while applying"]), max_size=14))
def test_whatever_happens_rounds_are_applied_in_order_and_once(steps: list[str]) -> None:
    node = Node(federation(rounds=3, attempts=2))
    now = 0.0
    node.start(now)
    for step in steps:
        if node.core.phase is Phase.FINISHED:
            break
        if step == "round":
            node.run_round(now)
        elif step == "give up":
            now = node.core.wake_at() or now
            node.feed(Tick(now))
        else:
            if step == "crash while applying":
                m = node.receive(now)
                node.feed(SumApplied(m.digest, model(m.round), 4, now), 1)
            node.restart()
            node.start(now)
    applied = node.of(Applied)
    assert [f.round for f in applied] == list(range(1, len(applied) + 1))
    tried = node.of(Tried)
    assert len(set(tried)) == len(tried)
    last = MODEL
    for fact in applied:
        assert isinstance(fact, Applied)
        assert fact.model == (last if fact.abandoned else model(fact.round))
        last = fact.model


# Attempts that fail


def test_an_attempt_whose_hop_fails_is_given_up_in_time_and_the_hop_named() -> None:
    node = Node()
    node.start(100.0)
    node.feed(node.keys("hop-1", now=101.0))
    assert node.feed(HopFailed("hop-2", "not reachable", 105.0)) == []
    assert node.core.wake_at() == 120.0
    assert node.feed(Tick(119.9)) == []
    effects = node.feed(Tick(120.0))
    assert effects == [
        GiveUp(1, 1, "hop-2: not reachable", abandoned=False),
        Remember(Tried(1, 2)),
        AskKeys(1, 2, F.chain, F.silo_names),
    ]
    assert node.core.wake_at() == 140.0


def test_trouble_is_over_when_the_hop_answers() -> None:
    node = Node()
    node.start()
    node.feed(HopFailed("hop-2", "not reachable", 1.0))
    node.announce()
    (gave_up,) = given_up(node.feed(Tick(80.0)))
    assert gave_up.why == "no sum came while collecting"


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.OPENING, Phase.COLLECTING, Phase.RELEASING])
def test_every_phase_that_waits_for_others_has_an_end(phase: Phase) -> None:
    """In "releasing" that is a sum which never came."""
    node = Node()
    node.start()
    if phase is Phase.OPENING:
        node.propose(10.0)
    elif phase is not Phase.PREPARING:
        m = node.announce(10.0)
        of = headers(m, F)
        for h in of if phase is Phase.RELEASING else ():
            node.feed(HeaderIn(h))
        if phase is Phase.RELEASING:
            node.feed(CohortIn(cohort(m, of)))
    assert node.core.phase is phase
    wake = node.core.wake_at()
    assert wake == (20.0 if phase in (Phase.PREPARING, Phase.OPENING) else 10.0 + 60 + 20)
    assert node.feed(Tick(wake - 0.1)) == []
    assert len(given_up(node.feed(Tick(wake)))) == 1
    assert (node.core.round, node.core.attempt) == (1, 2)
    assert node.core.phase is Phase.PREPARING


def test_no_clock_abandons_a_sum_that_is_being_made_into_a_model() -> None:
    """The sum is here: however long its evaluation takes, the round is not lost."""
    node = Node(federation(attempts=1))
    node.start()
    m = node.receive()
    assert node.core.phase is Phase.APPLYING
    assert node.core.wake_at() is None
    assert node.feed(Tick(1e9)) == []
    assert node.feed(HopLost("hop-1", m.digest, "it was started again", 1e9)) == []
    assert node.feed(HopFailed("hop-2", "not reachable", 1e9)) == []
    effects = node.feed(SumApplied(m.digest, model(1), 4, 1e9))
    assert effects[0] == Remember(Applied(1, model(1), 4))
    assert node.core.round == 2


def test_a_sum_of_which_no_model_can_be_made_costs_an_attempt_and_says_why() -> None:
    node = Node(federation(attempts=2))
    node.start()
    for attempt in (1, 2):
        m = node.receive()
        assert node.feed(SumRefused(bytes(32), "of another attempt", 0.0)) == []
        effects = node.feed(SumRefused(m.digest, "out of range", 0.0))
        assert effects[0] == GiveUp(1, attempt, "aggregator: out of range", abandoned=attempt == 2)
        assert not node.core.trouble
    assert node.of(Applied) == [Applied(1, MODEL, 0, abandoned=True)]


def test_a_round_is_abandoned_after_as_many_attempts_as_the_policy_has() -> None:
    node = Node()
    node.start()
    now = 0.0
    for attempt in (1, 2, 3):
        m = node.announce(now)
        assert (m.round, m.attempt, m.model) == (1, attempt, MODEL)
        now = node.core.wake_at() or 0.0
        effects = node.feed(Tick(now))
        assert given_up(effects)[0].abandoned is (attempt == 3)
    assert effects[1:] == [
        Remember(Applied(1, MODEL, 0, abandoned=True)),
        Remember(Tried(2, 1)),
        AskKeys(2, 1, F.chain, F.silo_names),
    ]
    # The next round starts from the same model, also after a restart.
    assert node.announce(now).model == MODEL
    node.restart()
    node.start()
    m = node.announce(now)
    assert (m.round, m.attempt, m.model) == (2, 2, MODEL)


def test_the_last_round_may_be_abandoned() -> None:
    node = Node(federation(rounds=1, attempts=1))
    node.start()
    assert node.feed(Tick(20.0))[-1] == Finish(1)


# A sum that comes late


def test_a_sum_that_comes_after_its_attempt_was_given_up_is_no_model() -> None:
    node = Node()
    node.start()
    late = node.announce()
    node.feed(Tick(80.0))
    running = node.receive(80.0)
    assert running.attempt == 2
    assert node.feed(SumIn(late.digest)) == []
    assert node.feed(SumApplied(late.digest, OTHER_MODEL, 4, 90.0)) == []
    assert node.core.round == 1
    node.feed(SumApplied(running.digest, model(1), 4, 91.0))
    assert node.of(Applied) == [Applied(1, model(1), 4)]
    assert node.announce().model == model(1)


def test_a_sum_that_comes_after_its_round_was_abandoned_is_no_model() -> None:
    node = Node(federation(attempts=1))
    node.start()
    late = node.announce()
    node.feed(Tick(80.0))
    assert node.core.round == 2
    assert node.feed(SumApplied(late.digest, model(1), 4, 90.0)) == []
    assert node.of(Applied) == [Applied(1, MODEL, 0, abandoned=True)]
    assert node.announce(80.0).model == MODEL


# Subsampling


def test_the_same_silos_are_invited_in_every_attempt_and_others_in_other_rounds() -> None:
    f = federation(20, subsample=0.3, rounds=30)
    node = Node(f)
    (_, asked) = node.start()
    assert isinstance(asked, AskKeys)
    assert len(asked.silos) == 6
    assert list(asked.silos) == sorted(asked.silos)
    for life in (1, 2):
        m = node.propose(20.0 * life - 20)
        check_manifest(m, f)
        assert m.invited == asked.silos
        assert node.feed(Tick(20.0 * life))[-1] == AskKeys(1, life + 1, f.chain, asked.silos)
    node.restart()
    assert node.start()[-1] == AskKeys(1, 4, f.chain, asked.silos)
    draws = set()
    for round_ in range(1, 31):
        node.core.round = round_
        draws.add(node.core._invited())
    assert len(draws) > 20
    assert {silo for draw in draws for silo in draw} == set(f.silo_names)


def test_no_fewer_are_invited_than_the_minimum() -> None:
    node = Node(federation(5, subsample=0.2, minimum_cohort=4))
    (_, asked) = node.start()
    assert isinstance(asked, AskKeys)
    assert len(asked.silos) == 4


def test_a_trusted_federation_needs_no_keys() -> None:
    f = federation(level=Level.TRUSTED)
    node = Node(f)
    node.start()
    m = node.propose()
    check_manifest(m, f)
    assert m.hop_keys == m.aggregator_keys == ()
