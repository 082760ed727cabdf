"""Protocol section 5: the aggregator goes on where its journal ends, and no round is lost or applied twice."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.protocol.federations import (
    AGGREGATOR,
    MODEL,
    OTHER_MODEL,
    SCHEMA,
    STATE,
    cohort,
    federation,
    header,
    headers,
    identity,
    lived,
    pad,
    ready,
    rng,
    round_key,
    signed,
)
from tests.tools import examples

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.masks import public_key
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.aggregator import (
    Aggregator,
    AgreedIn,
    Announce,
    Apply,
    AskKeys,
    AskPads,
    AskReady,
    AskStore,
    Awake,
    CohortIn,
    CountersignedIn,
    Effect,
    Event,
    Expand,
    Fact,
    Finish,
    GiveUp,
    HeaderIn,
    HeadIn,
    HopFailed,
    HopLost,
    HopReleased,
    Keep,
    KeysIn,
    Load,
    OpenAt,
    OpenedAt,
    PadIn,
    Pending,
    Phase,
    Publish,
    Recorded,
    Sealed,
    Start,
    SumApplied,
    SumIn,
    SumRefused,
    Take,
    Tick,
    Tried,
)
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.hearing import Shown
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Cohort, Manifest, Participant, RoundKey
from silomix.runtime.core.protocol.release import Ready
from silomix.runtime.core.protocol.roundlog import (
    Outcome,
    Record,
    RoundLog,
    check_countersigned,
    check_record,
    countersign_digest,
)
from silomix.runtime.core.protocol.rules import MOST_ATTEMPTS, MOST_HEADERS, check_manifest

F = federation()


Kind = TypeVar("Kind")


def model(round_: int) -> bytes:
    """The model that a round makes."""
    return bytes([100 + round_]) * 32


def state(round_: int) -> bytes:
    """The server's state that a round makes."""
    return bytes([200 + round_]) * 32


class Node:
    """An aggregator with a journal, and with the sum that it has kept."""

    def __init__(self, f: Federation = F) -> None:
        self.f = f
        self.journal: list[Fact] = []
        self.kept: Pending | None = None
        self.lives = 0
        self.restart()

    def restart(self, *, backwards: bool = False) -> None:
        """Die, and come back with what was remembered: the log in its order, and the rest in any."""
        self.lives += 1
        self.core = Aggregator(self.f, identity(AGGREGATOR), rng(("aggregator", self.lives)))
        rest = [fact for fact in self.journal if not isinstance(fact, Recorded)]
        for fact in [*self.of(Recorded), *(reversed(rest) if backwards else rest)]:
            self.core.recall(fact)

    @property
    def records(self) -> list[Record]:
        """The round log, in its newest state."""
        return list({f.record.round: f.record for f in self.of(Recorded)}.values())

    @property
    def newest(self) -> tuple[bytes, bytes]:
        records = self.records
        return (records[-1].model_after, records[-1].state_after) if records else (MODEL, STATE)

    def applied(self) -> list[tuple[int, bytes]]:
        return [(r.round, r.model_after) for r in self.records if r.outcome is Outcome.APPLIED]

    def abandoned(self) -> list[int]:
        return [r.round for r in self.records if r.outcome is Outcome.ABANDONED]

    def snapshot(self) -> dict[str, Any]:
        state = {name: copy(value) for name, value in vars(self.core).items()}
        return {**state, "log": list(self.core.log.records)}

    def feed(self, event: Event, survives: int = 10**6) -> list[Effect]:
        """Step, and carry so many effects out."""
        before = self.snapshot()
        try:
            effects = self.core.step(event)
        except (PeerFault, LocalFault):
            assert self.snapshot() == before
            raise
        for effect in effects[:survives]:
            if isinstance(effect, Remember):
                self.journal.append(effect.fact)
            if isinstance(effect, Keep):
                self.kept = Pending(effect.manifest, effect.ready)
        return effects

    def refuses(self, event: Event) -> Reason:
        with pytest.raises(PeerFault) as caught:
            self.feed(event)
        return caught.value.reason

    def start(self, now: float = 0.0) -> list[Effect]:
        """Start, and have the record stored that does not count yet, if there is one."""
        self.hear(now)
        effects = self.feed(Start(*self.newest, SCHEMA, now, self.kept))
        return self.store(now) if self.core.phase is Phase.RECORDING else effects

    def hear(self, now: float = 0.0) -> None:
        """Have every hop show what it knows: nothing that is not here."""
        self.feed(Awake(now))
        effects: list[Effect] = []
        for hop in self.f.chain:
            assert not effects
            effects = self.feed(HeadIn(hop, self.shown(), now))
        last = self.core.log.last
        storing = [] if self.core.counts or last is None else [AskStore(last, self.f.chain)]
        assert effects == [Load(0), *storing]

    def shown(self, records: Sequence[Record] = (), **changes: Any) -> Shown:
        """What a hop shows that has these records from the newest here on, or no news."""
        start = max(0, self.core.log.round - 1)
        life = changes.get("life", self.core.life)
        known: dict[str, Any] = {"attempt": 0, "last_released": 0, "told": (), "life": life}
        known["signature"] = lived(life, self.f)
        known["total"] = max(start + len(records), self.core.log.round)
        return Shown(start=start, records=tuple(records), **{**known, **changes})

    def countersigned(self, hop: str, now: float = 0.0) -> CountersignedIn:
        record = self.core.log.last
        assert record is not None
        signature = identity(hop).sign(countersign_digest(record.digest, hop))
        return CountersignedIn(hop, record.digest, signature, now)

    def store(self, now: float = 0.0) -> list[Effect]:
        """Have as many hops as it takes store the newest record, and return what follows on `Publish`."""
        for hop in self.f.chain:
            effects = self.feed(self.countersigned(hop, now))
            if effects:
                remember, publish, *rest = effects
                record = self.core.log.last
                assert record is not None
                check_countersigned(record, self.f)
                assert remember == Remember(Recorded(record))
                assert publish == Publish(record)
                return rest
        raise AssertionError("no hops are left")

    def keys(self, hop: str, last_released: int = 0, now: float = 0.0) -> KeysIn:
        masked = self.f.policy.level is not Level.TRUSTED
        names = self.core._invited() if masked else ()
        number = (self.core.round, last_released, self.core.attempt, self.core.log.head)
        made = tuple(round_key(self.f, hop, silo, *number) for silo in names)
        return KeysIn(hop, made, last_released, now)

    def propose(self, now: float = 0.0) -> Manifest:
        effects: list[Effect] = []
        for hop in self.f.chain:
            effects = self.feed(self.keys(hop, now=now))
        tried, opens = effects
        assert isinstance(opens, OpenAt)
        m = opens.manifest
        assert tried == Remember(Tried(m.round, m.attempt, m.digest, m.chain))
        assert opens.head == self.core.log.last
        return m

    def announce(self, now: float = 0.0) -> Manifest:
        m = self.propose(now)
        effects: list[Effect] = []
        for hop in self.f.chain:
            effects = self.feed(OpenedAt(hop, m.digest, now))
        assert effects == [Announce(m)]
        return m

    def gather(self, now: float = 0.0, silos: int = 99) -> tuple[Manifest, Ready]:
        """Run an attempt up to the moment at which its padded sum is here."""
        m = self.announce(now)
        of = headers(m, self.f)[:silos]
        for h in of:
            (expand,) = self.feed(HeaderIn(h))
            assert isinstance(expand, Expand)
            assert expand.header == h
        assert self.feed(CohortIn(cohort(m, of))) == [Take(cohort(m, of))]
        made = ready(m, cohort(m, of))
        assert self.feed(SumIn(m.digest, made.trails, now)) == [AskReady(made, m.chain)]
        return m, made

    def seal(self, now: float = 0.0, silos: int = 99) -> tuple[Manifest, Ready]:
        """Run an attempt up to the moment at which all have signed."""
        m, made = self.gather(now, silos)
        effects: list[Effect] = []
        for hop in m.chain:
            assert not effects
            effects = self.feed(AgreedIn(hop, m.digest, identity(hop).sign(made.digest)))
        assert [type(e) for e in effects] == [Keep, Remember, AskPads]
        return m, made

    def pads(self, m: Manifest) -> list[Effect]:
        effects: list[Effect] = []
        for hop in m.chain:
            assert not effects
            effects = self.feed(PadIn(hop, m.digest, pad(hop, m.digest)))
        return effects

    def receive(self, now: float = 0.0) -> Manifest:
        """Run an attempt up to the moment at which its sum can be read."""
        m, made = self.seal(now)
        assert self.pads(m) == [Apply(m, made, tuple((hop, pad(hop, m.digest)) for hop in m.chain))]
        return m

    def sum_applied(self, m: Manifest, now: float = 0.0) -> SumApplied:
        return SumApplied(m.digest, model(m.round), state(m.round), now)

    def run_round(self, now: float = 0.0) -> list[Effect]:
        """A whole round, and return what follows on its record."""
        m = self.receive(now)
        self.feed(self.sum_applied(m, now))
        return self.store(now)

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [f for f in self.journal if isinstance(f, kind)]


def given_up(effects: list[Effect]) -> list[GiveUp]:
    return [e for e in effects if isinstance(e, GiveUp)]


# A round


def test_the_first_thing_is_the_record_of_the_model_that_all_begin_with() -> None:
    node = Node()
    node.hear()
    (remember, ask) = node.feed(Start(MODEL, STATE, SCHEMA, 0.0))
    assert isinstance(ask, AskStore)
    assert remember == Remember(Recorded(ask.record))
    assert ask.hops == F.chain
    check_record(ask.record, F)
    assert (ask.record.round, ask.record.outcome, ask.record.model_after) == (0, Outcome.GENESIS, MODEL)
    assert node.core.phase is Phase.RECORDING
    assert node.feed(node.countersigned("hop-1")) == []
    assert len(node.feed(node.countersigned("hop-2"))) == 3


def test_a_manifest_holds_for_every_other_node() -> None:
    node = Node()
    effects = node.start()
    assert effects == [AskKeys(1, 1, F.chain, F.silo_names, node.core.log.head)]
    m = node.announce()
    check_manifest(m, F)
    assert (m.round, m.attempt, m.model, m.state, m.invited, m.bound_to) == (1, 1, MODEL, STATE, (), ())
    RoundLog(F, node.records).check_link(m)


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
    (_, proposed) = node.feed(node.keys("hop-2"))
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


def test_pads_are_overwritten_when_the_round_is_over() -> None:
    node = Node()
    node.start()
    m, _ = node.seal()
    pads = [pad(hop, m.digest) for hop in m.chain]
    for hop, shown in zip(m.chain, pads, strict=True):
        node.feed(PadIn(hop, m.digest, shown))
    node.feed(node.sum_applied(m))
    assert all(any(shown.value) for shown in pads)
    node.store()
    assert not any(any(shown.value) for shown in pads)


def test_rounds_follow_one_another_until_all_are_done() -> None:
    node = Node()
    node.start()
    for round_ in range(1, 5):
        m = node.receive()
        effects = node.feed(node.sum_applied(m))
        assert set(effects[:2]) == {Remember(HopReleased(hop, round_)) for hop in F.chain}
        record = node.core.log.last
        assert record is not None
        assert effects[2:] == [Remember(Recorded(record)), AskStore(record, F.chain)]
        assert (record.round, record.outcome, record.silos) == (round_, Outcome.APPLIED, F.silo_names)
        assert (record.model_after, record.state_after) == (model(round_), state(round_))
        effects = node.store()
    assert effects == [Finish(4)]
    assert node.core.phase is Phase.FINISHED
    assert node.core.wake_at() is None
    assert node.feed(Tick(1e9)) == []
    node.restart()
    assert node.start() == [Finish(4)]


def test_what_it_records_holds_for_every_other_node() -> None:
    """Attempts that failed are in it too."""
    node = Node(federation(attempts=3))
    node.start()
    failed = node.announce()
    node.feed(Tick(80.0))
    m = node.receive(80.0)
    node.feed(node.sum_applied(m))
    node.store()
    log, new = RoundLog(node.f).extended(node.records)
    assert [r.round for r in new] == [0, 1]
    assert log.applied == 1
    assert [(a.attempt, a.manifest, bool(a.agreed)) for a in new[1].attempts] == [
        (1, failed.digest, False),
        (2, m.digest, True),
    ]
    assert m.earlier == (failed.digest,)


def test_a_step_that_changes_nothing_ends_the_run() -> None:
    """The same model would be released again, for the same sum."""
    node = Node()
    node.start()
    m = node.receive()
    node.feed(SumApplied(m.digest, MODEL, state(1), 0.0))
    assert node.store() == [Finish(1, converged=True)]
    assert node.core.log.over
    node.restart()
    assert node.start() == [Finish(1, converged=True)]


def test_nothing_happens_before_the_start() -> None:
    assert Node().feed(Tick(1e9)) == []


SMALL_ORDER = bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b8") + b"\x80"
"""A point of order 8; the highest bit counts for nothing."""


def with_key(node: Node, **changes: Any) -> KeysIn:
    """What hop 1 would send, with one key changed, and signed by the hop itself."""
    event = node.keys("hop-1")
    first = replace(event.keys[0], **changes).signed(identity("hop-1"), F.digest, node.core.log.head)
    return replace(event, keys=(first, *event.keys[1:]))


def other_history(node: Node) -> tuple[RoundKey, ...]:
    """What hop 1 would send if it held another record as the newest."""
    return tuple(key.signed(identity("hop-1"), F.digest, bytes(32)) for key in node.keys("hop-1").keys)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (lambda n: replace(n.keys("hop-1"), keys=other_history(n)), Reason.BAD_SIGNATURE),
        (lambda n: replace(n.keys("hop-1"), keys=()), Reason.WRONG_KEYS),
        (lambda n: replace(n.keys("hop-1"), keys=n.keys("hop-1").keys[::-1]), Reason.WRONG_KEYS),
        (lambda n: replace(n.keys("hop-1"), keys=n.keys("hop-2").keys), Reason.WRONG_KEYS),
        (lambda n: with_key(n, public_key=bytes(32)), Reason.WRONG_KEYS),
        (lambda n: with_key(n, public_key=SMALL_ORDER), Reason.WRONG_KEYS),
        (lambda n: with_key(n, public_key=bytes(31)), Reason.WRONG_LENGTH),
        (lambda n: with_key(n, attempt=2), Reason.WRONG_ATTEMPT),
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
    assert node.feed(OpenedAt("hop-1", m.digest, 0.0)) == []
    assert node.feed(OpenedAt("hop-1", m.digest, 0.0)) == []
    assert node.feed(OpenedAt("hop-2", bytes(32), 0.0)) == []  # it has opened another attempt
    assert node.core.phase is Phase.OPENING
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
    for h in of:
        assert node.feed(HeaderIn(h)) == []
    assert node.refuses(HeaderIn(header(m, "silo-1", 1))) is Reason.COHORT_CLOSED


def test_a_silo_begins_no_more_bodies_than_hops_let_it() -> None:
    """Each header costs the aggregator a mask, and the last hop may send it any."""
    node = Node()
    node.start()
    m = node.announce()
    for number in range(MOST_HEADERS):
        assert node.feed(HeaderIn(header(m, "silo-1", number)))
    assert node.refuses(HeaderIn(header(m, "silo-1", MOST_HEADERS))) is Reason.WRONG_SEQUENCE
    assert node.feed(HeaderIn(header(m, "silo-1"))) == []  # one that is here
    assert node.feed(HeaderIn(header(m, "silo-2")))


# Resuming


def test_an_attempt_number_is_never_used_twice() -> None:
    node = Node()
    seen = set()
    for life in range(5):
        node.restart()
        (asked,) = node.start()
        assert asked == AskKeys(1, life + 1, F.chain, F.silo_names, node.core.log.head)
        m = node.propose()
        assert (m.round, m.attempt) not in seen
        seen.add((m.round, m.attempt))
        assert len(m.earlier) == life


def test_facts_may_be_recalled_in_any_order() -> None:
    """But for the round log, which has an order of its own."""
    node = Node()
    node.start()
    node.run_round()
    node.propose()
    node.restart()
    node.start()
    node.propose()
    node.restart(backwards=True)
    assert node.start() == [AskKeys(2, 3, F.chain, F.silo_names, node.core.log.head)]


def test_a_restart_goes_on_with_the_round_that_was_not_applied() -> None:
    node = Node()
    node.start()
    node.run_round()
    m = node.announce()
    node.restart()
    effects = node.start()
    assert effects == [AskKeys(2, 2, F.chain, F.silo_names, node.core.log.head)]
    # The sum of the attempt that died with the process belongs to no attempt of this one.
    assert node.feed(node.sum_applied(m)) == []
    assert node.announce().model == model(1)


def test_no_round_is_applied_twice() -> None:
    node = Node()
    node.start()
    m = node.receive()
    trails = ready(m, cohort(m, headers(m, F))).trails
    assert node.feed(SumIn(m.digest, trails, 0.0)) == []  # it comes again
    assert node.feed(node.sum_applied(m))
    for _ in range(3):
        assert node.feed(SumIn(m.digest, trails, 0.0)) == []
        assert node.feed(node.sum_applied(m)) == []
    node.store()
    assert node.feed(node.sum_applied(m)) == []
    node.restart()
    node.start()
    assert node.feed(node.sum_applied(m)) == []
    assert node.applied() == [(1, model(1))]


def test_no_sum_is_applied_that_has_not_come() -> None:
    node = Node()
    node.start()
    m = node.announce()
    trails = ready(m, cohort(m, headers(m, F))).trails
    assert node.feed(SumIn(m.digest, trails, 0.0)) == []  # no cohort is known yet
    assert node.feed(node.sum_applied(m)) == []
    node.restart()
    node.start()
    m, _ = node.seal()
    assert node.feed(node.sum_applied(m)) == []  # its pads have not come
    node.pads(m)
    assert node.feed(SumApplied(bytes(32), model(1), STATE, 0.0)) == []
    assert not node.applied()
    assert node.core.phase is Phase.APPLYING


def test_no_sum_is_applied_when_all_is_done() -> None:
    node = Node(federation(rounds=1))
    node.start()
    m = node.receive()
    node.feed(node.sum_applied(m))
    assert node.store() == [Finish(1)]
    assert node.feed(node.sum_applied(m)) == []
    assert node.applied() == [(1, model(1))]


def test_a_journal_that_names_another_model_stops_the_start() -> None:
    """Else a lost file would make the federation begin anew with its first model, and nobody would know."""
    node = Node()
    node.start()
    node.run_round()
    node.restart()
    node.hear()
    for told in ((MODEL, state(1)), (model(1), STATE)):
        with pytest.raises(LocalFault) as caught:
            node.feed(Start(*told, SCHEMA, 0.0))
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
    node.run_round()
    for backwards in (False, True):
        node.restart(backwards=backwards)
        assert node.core.hop_released == {"hop-1": 2, "hop-2": 2}


STEPS = ["round", "give up", "crash", "crash while all sign", "crash while pads come", "crash while applying"]


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=12))
def test_whatever_happens_rounds_are_recorded_in_order_and_once(steps: list[tuple[str, int]]) -> None:
    node = Node(federation(rounds=3, attempts=2))
    now = 0.0
    node.start(now)
    for step, survives in steps:
        if node.core.phase is Phase.FINISHED:
            break
        if node.core.phase is Phase.REVEALING:  # a release that is resumed comes first
            m = node.core.manifest
            assert m is not None
            node.pads(m)
            node.feed(node.sum_applied(m, now))
            node.store(now)
        elif step == "round":
            node.run_round(now)
        elif step == "give up":
            now = node.core.wake_at() or now
            node.feed(Tick(now))
            if node.core.phase is Phase.RECORDING:
                node.store(now)
        else:
            if step == "crash while all sign":
                m, made = node.gather(now)
                signatures = [AgreedIn(hop, m.digest, identity(hop).sign(made.digest)) for hop in m.chain]
                node.feed(signatures[0])
                node.feed(signatures[1], survives)
            elif step == "crash while pads come":
                m, _ = node.seal(now)
                node.feed(PadIn("hop-1", m.digest, pad("hop-1", m.digest)))
            elif step == "crash while applying":
                m = node.receive(now)
                node.feed(node.sum_applied(m, now), survives)
            node.restart()
            node.start(now)
    records = node.records
    assert [r.round for r in records] == list(range(len(records)))
    log, _ = RoundLog(node.f).extended([r for r in records if r.countersignatures])
    assert log.round >= len(records) - 1
    tried = node.of(Tried)
    assert len({(t.round, t.attempt) for t in tried}) == len(tried)
    for record in records[1:]:
        assert {a.manifest for a in record.attempts} == {t.manifest for t in tried if t.round == record.round}
        assert {a.agreed for a in record.attempts if a.agreed} == {
            s.agreed for s in node.of(Sealed) if s.round == record.round
        }


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
        AskKeys(1, 2, F.chain, F.silo_names, node.core.log.head),
    ]
    assert node.core.wake_at() == 140.0


def test_trouble_is_over_when_the_hop_answers() -> None:
    node = Node()
    node.start()
    node.feed(HopFailed("hop-2", "not reachable", 1.0))
    node.announce()
    (gave_up,) = given_up(node.feed(Tick(80.0)))
    assert gave_up.why.startswith("0 silos came, and a sum needs 3: silo-1, ")


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.OPENING, Phase.COLLECTING, Phase.RELEASING, Phase.READY])
def test_every_phase_that_waits_for_others_has_an_end(phase: Phase) -> None:
    """In "releasing" that is a sum which never came; in "ready", a hop that does not sign."""
    node = Node()
    node.start()
    if phase is Phase.OPENING:
        node.propose(10.0)
    elif phase is Phase.READY:
        node.gather(70.0)
    elif phase is not Phase.PREPARING:
        m = node.announce(10.0)
        of = headers(m, F)
        for h in of if phase is Phase.RELEASING else ():
            node.feed(HeaderIn(h))
        if phase is Phase.RELEASING:
            node.feed(CohortIn(cohort(m, of)))
    assert node.core.phase is phase
    wake = node.core.wake_at()
    assert wake == (20.0 if phase in (Phase.PREPARING, Phase.OPENING) else 10.0 + 60 + 20)  # or 20 after the sum came
    assert node.feed(Tick(wake - 0.1)) == []
    assert len(given_up(node.feed(Tick(wake)))) == 1
    assert (node.core.round, node.core.attempt) == (1, 2)
    assert node.core.phase is Phase.PREPARING


@pytest.mark.parametrize("phase", [Phase.REVEALING, Phase.APPLYING, Phase.RECORDING])
def test_no_clock_abandons_a_release_that_all_have_signed_for(phase: Phase) -> None:
    """Somebody may have shown a pad: however long the others take, or the evaluation, the round is not lost."""
    node = Node(federation(attempts=1))
    node.start()
    m, _ = node.seal()
    if phase is not Phase.REVEALING:
        node.pads(m)
    if phase is Phase.RECORDING:
        node.feed(node.sum_applied(m))
    assert node.core.phase is phase
    assert node.core.wake_at() is None
    assert node.feed(Tick(1e9)) == []
    assert node.feed(HopLost("hop-1", m.digest, "it was started again", 1e9)) == []
    assert node.feed(HopFailed("hop-2", "not reachable", 1e9)) == []
    assert node.core.phase is phase
    if phase is Phase.REVEALING:
        node.pads(m)
    if phase is not Phase.RECORDING:
        node.feed(node.sum_applied(m, 1e9))
    node.store(1e9)
    assert node.applied() == [(1, model(1))]


def test_a_sum_of_which_no_model_can_be_made_costs_an_attempt_and_says_why() -> None:
    node = Node(federation(attempts=2))
    node.start()
    for attempt in (1, 2):
        m = node.receive()
        assert node.feed(SumRefused(bytes(32), "of another attempt", 0.0)) == []
        effects = node.feed(SumRefused(m.digest, "out of range", 0.0))
        assert effects[0] == GiveUp(1, attempt, "aggregator: out of range", abandoned=attempt == 2)
        assert not node.core.trouble
    assert node.abandoned() == [1]
    (_, record) = node.records
    assert [bool(a.agreed) for a in record.attempts] == [True, True]  # pads are out, and all know for whom
    node.store()
    assert node.announce().bound_to == F.silo_names


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
    record = node.core.log.last
    assert record is not None
    assert effects[1:] == [Remember(Recorded(record)), AskStore(record, F.chain)]
    assert (record.outcome, record.model_after, record.state_after) == (Outcome.ABANDONED, MODEL, STATE)
    assert [a.attempt for a in record.attempts] == [1, 2, 3]
    assert node.store(now) == [AskKeys(2, 1, F.chain, F.silo_names, record.digest)]
    # The next round starts from the same model, also after a restart.
    assert node.announce(now).model == MODEL
    node.restart()
    node.start()
    m = node.announce(now)
    assert (m.round, m.attempt, m.model, m.applied) == (2, 2, MODEL, 0)


def test_a_restart_has_all_its_attempts_again_but_not_without_end() -> None:
    node = Node(federation(attempts=2))
    node.start()
    for attempt in range(1, MOST_ATTEMPTS + 1):
        assert node.announce().attempt == attempt
        node.restart()
        node.start()
    effects = node.feed(Tick(20.0))
    assert given_up(effects)[0].abandoned
    assert node.abandoned() == [1]


def test_the_last_round_may_be_abandoned() -> None:
    node = Node(federation(rounds=1, attempts=1))
    node.start()
    node.feed(Tick(20.0))
    assert node.store() == [Finish(1)]


# A sum that comes late


def test_a_sum_that_comes_after_its_attempt_was_given_up_is_no_model() -> None:
    node = Node()
    node.start()
    late = node.announce()
    node.feed(Tick(80.0))
    running = node.receive(80.0)
    assert running.attempt == 2
    assert node.feed(SumIn(late.digest, (), 90.0)) == []
    assert node.feed(SumApplied(late.digest, OTHER_MODEL, STATE, 90.0)) == []
    assert node.core.round == 1
    node.feed(node.sum_applied(running, 91.0))
    node.store()
    assert node.applied() == [(1, model(1))]
    assert node.announce().model == model(1)


def test_a_sum_that_comes_after_its_round_was_abandoned_is_no_model() -> None:
    node = Node(federation(attempts=1))
    node.start()
    late = node.announce()
    node.feed(Tick(80.0))
    assert node.core.round == 2
    node.store(80.0)
    assert node.feed(node.sum_applied(late, 90.0)) == []
    assert node.abandoned() == [1]
    assert not node.applied()
    assert node.announce(80.0).model == MODEL


# Subsampling


def test_the_same_silos_are_invited_until_a_round_is_applied_and_others_then() -> None:
    """Were it by the round's number, an aggregator would abandon rounds until it likes the draw."""
    f = federation(20, subsample=0.3, rounds=30, attempts=2)
    node = Node(f)
    (asked,) = node.start()
    assert isinstance(asked, AskKeys)
    assert len(asked.silos) == 6
    assert list(asked.silos) == sorted(asked.silos)
    for attempt in (1, 2):
        m = node.propose(20.0 * attempt - 20)
        check_manifest(m, f)
        assert m.invited == asked.silos
        node.feed(Tick(20.0 * attempt))
    assert node.abandoned() == [1]
    assert node.store(40.0) == [AskKeys(2, 1, f.chain, asked.silos, node.core.log.head)]
    node.restart()
    assert node.start() == [AskKeys(2, 1, f.chain, asked.silos, node.core.log.head)]
    (further,) = node.run_round()
    second = f.draw(2, node.core.log.model)
    assert further == AskKeys(3, 1, f.chain, second, node.core.log.head)
    assert second != asked.silos
    for draws in ({f.draw(n, MODEL) for n in range(1, 31)}, {f.draw(1, bytes([n] * 32)) for n in range(30)}):
        assert len(draws) > 20
        assert {silo for draw in draws for silo in draw} == set(f.silo_names)


def test_no_fewer_are_invited_than_the_minimum() -> None:
    node = Node(federation(5, subsample=0.2, minimum_cohort=4))
    (asked,) = node.start()
    assert isinstance(asked, AskKeys)
    assert len(asked.silos) == 4


def test_a_trusted_federation_needs_no_keys() -> None:
    f = federation(level=Level.TRUSTED)
    node = Node(f)
    node.start()
    m = node.propose()
    check_manifest(m, f)
    assert m.hop_keys == m.aggregator_keys == ()
