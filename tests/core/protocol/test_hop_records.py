"""What a hop owes when a round ends: the pad it shows, the records and keys it keeps, and who it says has lied."""

from dataclasses import replace

import pytest
from tests.core.protocol.checks import HIDDEN, TRAPPED, bodies, committed_header, share, trails
from tests.core.protocol.checks import F as CHECKED
from tests.core.protocol.federations import (
    AGGREGATOR,
    agreement,
    cohort,
    counted,
    extended,
    federation,
    flipped,
    headers,
    identity,
    manifest,
    past,
    recorded,
)
from tests.core.protocol.hops import F, Hop, opened
from tests.core.protocol.test_forgetting import WHOLE_ROUND_S, ask, in_journal
from tests.core.protocol.test_grouping import F as GROUPED
from tests.core.protocol.test_grouping import grouping
from tests.core.protocol.test_pads import padded, resigned
from tests.core.protocol.test_two_stories import POOL, _stories

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.tamper import EquationKind, Scalars, rhos
from silomix.runtime.core.protocol.check.blame import Case, Charge, decide
from silomix.runtime.core.protocol.check.said import HOP_SCALARS, CheckTranscript, Statement, Subject, coin_of, toss
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS, Trapped, committed
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Bond, Manifest
from silomix.runtime.core.protocol.release import Ready, pad_digest
from silomix.runtime.core.protocol.roundlog import Fork
from silomix.runtime.core.protocol.shuffler import (
    UNFIT_ROUNDS,
    Abort,
    Agree,
    Answer,
    CaseIn,
    ChargeIn,
    CohortIn,
    CoinIn,
    Convict,
    Convicted,
    Countersign,
    Defend,
    Delivered,
    Effect,
    Forget,
    ForkSeen,
    HeaderIn,
    Investigate,
    Investigated,
    KeysGone,
    LieSeen,
    Measure,
    Measured,
    ReadyIn,
    RecordIn,
    Reveal,
    RevealIn,
    SendRefused,
    State,
    Stored,
    Tick,
)

# The pad


def test_a_hop_keeps_no_proof_of_another_release_than_it_signed_for() -> None:
    """It shows the proof to an aggregator that lost its own, and to everybody else through it."""
    hop, m, c = padded()
    made = hop.agree(m, c)
    everybody = agreement(made.digest, m.chain)
    right = Bond.of(c, made, everybody)
    for wrong in (
        replace(right, participants=right.participants[1:]),
        replace(right, signatures=(flipped(right.signatures[0]), *right.signatures[1:])),
        replace(right, signatures=right.signatures[:-1]),
    ):
        assert hop.refuses(RevealIn(m.digest, everybody, bond=wrong)) is Reason.WRONG_SEQUENCE
    assert not hop.core.released
    hop.feed(RevealIn(m.digest, everybody, bond=right))
    assert [fact.bond for fact in hop.core.released[m.model]] == [right]


def test_of_two_partitions_of_one_cohort_one_is_released() -> None:
    """The hop was killed between two stories of one attempt, and has signed for both: it shows one pad."""
    hop, told = Hop("hop-2", GROUPED), []
    for groups, minimum in (((0, 0, 0, 1, 1, 1, 1), 3), ((1, 0, 0, 0, 1, 1, 1), 4)):
        m = manifest(GROUPED, minimum_cohort=minimum)
        of = headers(m, GROUPED)
        hop.restart()
        hop.open(m)
        hop.relayed(m, of)
        c = cohort(m, of)
        hop.feed(CohortIn(c, grouping(c, *groups)))
        told.append(RevealIn(m.digest, agreement(hop.agree(m, c).digest, m.chain)))
    first, second = told
    assert isinstance(hop.feed(first)[-1], Reveal)
    assert hop.refuses(second) is Reason.ALREADY_RELEASED
    assert isinstance(hop.feed(first)[-1], Reveal)


def test_the_clock_takes_the_keys_of_a_release_that_was_signed_for_and_leaves_its_pad() -> None:
    """Word that the sum came through never arrived: the keys go in time, and the others may have shown their pads."""
    hop, m, c = padded()
    made = hop.agree(m, c)
    assert hop.feed(Tick(WHOLE_ROUND_S)) == [Remember(KeysGone(1, 1)), Forget()]
    assert isinstance(hop.feed(RevealIn(m.digest, agreement(made.digest, m.chain)))[-1], Reveal)


# Keys, and what the next hop says


def test_keys_of_an_attempt_that_is_prepared_stay_when_the_sum_of_the_one_before_comes_through() -> None:
    hop, m, _ = padded()
    hop.feed(ask(hop, 1, 2))
    assert hop.feed(Delivered(m.digest)) == [Remember(KeysGone(1, 1)), Forget()]
    assert set(hop.core.keys) == {(1, 2)} == set(in_journal(hop))


def test_what_the_next_hop_refused_of_an_earlier_attempt_does_not_end_this_one() -> None:
    hop, m = opened()
    hop.open(manifest(F, attempt=2))
    late = PeerFault(Reason.WRONG_ATTEMPT, "attempt 1 is over")
    assert hop.feed(SendRefused(m.digest, late)) == []
    assert hop.core.state is State.OPEN


# Records


def test_a_record_that_counts_replaces_another_only_if_it_goes_on_from_the_same_history() -> None:
    one, other = _stories(POOL)
    hop = Hop("hop-1", POOL)
    hop.feed(RecordIn(one))
    lead = identity(AGGREGATOR)
    for wrong, reason in (
        (replace(other, previous=bytes(32)).signed(lead), Reason.WRONG_HEAD),
        (replace(other, model_before=bytes(32), model_after=bytes(32)).signed(lead), Reason.WRONG_MODEL),
        (replace(other, signature=bytes(64)), Reason.BAD_SIGNATURE),
    ):
        assert hop.refuses(RecordIn(counted(wrong, POOL, ("hop-2", "hop-3")))) is reason
    assert hop.core.log.head == one.digest


def test_a_hop_goes_on_from_a_record_that_it_does_not_know_to_count_with_one_that_does() -> None:
    hop, (one, _) = Hop("hop-1", POOL), _stories(POOL)
    hop.feed(RecordIn(one))
    assert not hop.core.counts
    following = counted(recorded(extended(past(POOL), one)), POOL, ("hop-2", "hop-3"))
    effects = hop.feed(RecordIn(following))
    assert effects[0] == Remember(Stored(following))
    assert isinstance(effects[-1], Countersign)
    assert hop.core.log.records[1:] == [one, following]


def test_a_hop_that_was_told_two_stories_countersigns_the_one_that_it_has_stored_as_often_as_it_is_asked() -> None:
    hop, (one, other) = Hop("hop-1"), _stories(F)
    (*_, signed) = hop.feed(RecordIn(one))
    assert isinstance(signed, Countersign)
    with pytest.raises(Fork) as caught:
        hop.feed(RecordIn(other))
    hop.feed(ForkSeen(caught.value))
    for _ in range(2):
        assert hop.feed(RecordIn(one)) == [signed]
        hop.restart()


# The tamper check, at level malicious

FOUR = federation(4, 2, level=Level.MALICIOUS, chunk_parameters=16)


def shifted(zeros: Scalars) -> Scalars:
    """Scalars of which none is what it was."""
    return tuple(tuple(x + 1 for x in row) for row in zeros)


class Asked:
    """A hop whose padded sum has left it, and what everybody says in the check of it: all scalars are 0."""

    def __init__(self, name: str = "hop-2", f: Federation = CHECKED) -> None:
        self.f, self.hop = f, Hop(name, f)
        self.tell(manifest(f))

    def tell(self, m: Manifest) -> None:
        """Open an attempt, or another story of the same one, and have its sum passed on."""
        self.m, hop = m, self.hop
        hop.open(m)
        of = [committed_header(m, silo) for silo in self.f.silo_names]
        self.c = cohort(m, of)
        if hop.name == m.chain[0]:
            hop.submit(*of)
        else:
            hop.relayed(m, of)
            hop.feed(CohortIn(self.c))
        own = pad_digest(hop.core.padded[m.digest].pad)
        made = (resigned(one, pad=own) if one.hop == hop.name else one for one in trails(m, self.c))
        self.ready = Ready(m.digest, m.model, tuple(made))
        self.bodies = bodies(self.c)
        self.subject = Subject(self.c, tuple(of), self.bodies, self.ready)
        self.tosses = tuple(toss(self.subject, share(silo).value, identity(silo)) for silo in self.c.silos)
        self.coin = coin_of(self.subject, self.tosses, self.f)
        self.zeros: Scalars = tuple((0,) * n for n in rhos(self.f.plan))

    def statement(self, name: str, lie: int = -1) -> Statement:
        """What somebody answers, with one lot of scalars that are false."""
        chain, traps, planes = self.m.chain, self.f.policy.traps, len(self.f.plan.moduli)
        lots = 1 if name == AGGREGATOR else HOP_SCALARS if name in chain else 1 + len(chain)
        points = 0 if name == AGGREGATOR else 1 if name in chain else len(chain)
        trapped = NO_TRAPS
        if traps:
            residues: Scalars = tuple((0,) * traps for _ in range(planes))
            trapped = Trapped(
                (residues,) * (2 if name in chain else 1), (committed([HIDDEN] * traps * planes),) * points
            )
        scalars = tuple(shifted(self.zeros) if lot == lie else self.zeros for lot in range(lots))
        return Statement(name, self.subject.context, self.coin, scalars, trapped=trapped).signed(identity(name))

    def check(self, *lies: tuple[str, int]) -> CheckTranscript:
        """All that was said, in which some have lied."""
        names = (*self.c.silos, *self.m.chain, AGGREGATOR)
        return CheckTranscript(self.tosses, tuple(self.statement(name, dict(lies).get(name, -1)) for name in names))

    def answer(self) -> "Asked":
        """Have the hop answer the coin."""
        (measure,) = self.hop.feed(CoinIn(self.m.digest, self.ready.trails, self.bodies, self.tosses))
        own = self.ready.trails[self.m.chain.index(self.hop.name)]
        assert measure == Measure(self.m.digest, self.subject.context, self.coin, own)
        said = self.statement(self.hop.name)
        event = Measured(self.m.digest, said.context, said.coin, said.scalars, said.trapped)
        assert self.hop.feed(event)[-1] == Answer(said)
        return self

    def to_sign(self, check: CheckTranscript | None) -> ReadyIn:
        return ReadyIn(self.m.digest, self.ready.trails, check=check)

    def charge(self, check: CheckTranscript) -> ChargeIn:
        return ChargeIn(self.m.digest, self.ready.trails, self.bodies, check)

    def convicts(self, effects: list[Effect]) -> Case:
        """The case that a hop makes of what it has seen: it is written down first."""
        remember, convict = effects
        assert isinstance(convict, Convict)
        verdict = convict.verdict
        assert remember == Remember(Convicted(1, verdict.culprit, verdict.case.digest))
        assert (convict.round, convict.attempt) == (1, 1)
        return verdict.case


def with_other(check: CheckTranscript, one: Statement) -> CheckTranscript:
    """The same transcript with another statement of somebody."""
    return replace(check, statements=tuple(one if said.name == one.name else said for said in check.statements))


@pytest.mark.parametrize("name", ["hop-1", "hop-2"])
def test_keys_answer_the_coin_and_go_when_the_hop_has_signed(name: str) -> None:
    asked = Asked(name)
    hop = asked.hop
    assert hop.feed(Delivered(asked.m.digest)) == []
    assert set(hop.core.keys) == {(1, 1)} == set(in_journal(hop))
    effects = asked.answer().hop.feed(asked.to_sign(asked.check()))
    assert effects[1:3] == [Remember(KeysGone(1, 1)), Forget()]
    assert isinstance(effects[-1], Agree)
    assert not hop.core.keys


def test_a_hop_signs_for_no_check_in_which_somebody_has_not_said_what_is_passed_on() -> None:
    asked = Asked().answer()
    right = asked.check()
    for check, reason in (
        (None, Reason.WRONG_SEQUENCE),
        (with_other(right, replace(right.of("silo-1"), signature=bytes(64))), Reason.BAD_SIGNATURE),
        (with_other(right, replace(right.of(AGGREGATOR), signature=bytes(64))), Reason.BAD_SIGNATURE),
        (
            replace(right, tosses=(replace(right.tosses[0], signature=bytes(64)), *right.tosses[1:])),
            Reason.BAD_SIGNATURE,
        ),
        (replace(right, tosses=right.tosses[1:]), Reason.WRONG_SEQUENCE),
        (with_other(right, asked.statement("hop-2", 0)), Reason.WRONG_SEQUENCE),
    ):
        assert asked.hop.refuses(asked.to_sign(check)) is reason
    assert not asked.hop.core.signed
    assert isinstance(asked.hop.feed(asked.to_sign(right))[-1], Agree)


def test_a_hop_signs_for_no_check_with_traps_without_the_proofs_of_all_hops() -> None:
    asked = Asked(f=TRAPPED).answer()
    assert asked.hop.refuses(asked.to_sign(asked.check())) is Reason.WRONG_SEQUENCE
    assert not asked.hop.core.signed


def test_the_last_hop_makes_one_case_of_false_scalars_of_what_it_sent() -> None:
    asked = Asked().answer()
    event = asked.to_sign(asked.check((AGGREGATOR, 0)))
    case = asked.convicts(asked.hop.feed(event))
    assert case == Case(Charge.ARRIVAL, asked.m, asked.subject, check=event.check)
    assert asked.hop.refuses(event) is Reason.TAMPERED  # however often it is asked
    asked.hop.restart()
    assert asked.hop.refuses(event) is Reason.TAMPERED


@pytest.mark.parametrize("lie", [("silo-1", 0), ("silo-1", 1), ("silo-1", 2), ("hop-1", 1)])
def test_the_last_hop_accuses_no_aggregator_where_the_check_fails_elsewhere(lie: tuple[str, int]) -> None:
    asked = Asked().answer()
    assert asked.hop.refuses(asked.to_sign(asked.check(lie, (AGGREGATOR, 0)))) is Reason.TAMPERED
    assert not asked.hop.core.convicted


def test_no_other_hop_knows_what_reached_the_aggregator() -> None:
    asked = Asked("hop-1").answer()
    assert asked.hop.refuses(asked.to_sign(asked.check((AGGREGATOR, 0)))) is Reason.TAMPERED
    assert not asked.hop.core.convicted


@pytest.mark.parametrize("reopened", [False, True])
def test_a_hop_that_was_started_again_makes_no_case_without_what_it_sent(reopened: bool) -> None:
    """It has its answer, and no longer what the coin was tossed about: a case without that proves nothing."""
    asked = Asked().answer()
    asked.hop.restart()
    if reopened:
        asked.hop.open(asked.m)
    assert asked.hop.refuses(asked.to_sign(asked.check((AGGREGATOR, 0)))) is Reason.TAMPERED
    assert not asked.hop.core.convicted


def test_a_case_is_about_the_attempt_in_which_the_scalars_were_stated() -> None:
    """The hop was killed between two stories of one attempt: it has the vector of the second alone."""
    asked = Asked(f=FOUR).answer()
    event = asked.to_sign(asked.check((AGGREGATOR, 0)))
    asked.hop.restart()
    asked.tell(manifest(FOUR, minimum_cohort=4))
    asked.answer()
    assert event.manifest != asked.m.digest
    assert asked.hop.refuses(event) is Reason.TAMPERED
    assert not asked.hop.core.convicted
    assert asked.convicts(asked.hop.feed(asked.to_sign(asked.check((AGGREGATOR, 0))))).manifest == asked.m


def two_trails(asked: Asked) -> Case:
    """Evidence that hop 1 has signed two stories of one sum."""
    one = asked.ready.trails[0]
    return Case(Charge.TRAILS, asked.m, trails=(one, resigned(one, sent=bytes(32))))


def test_two_stories_of_one_sum_end_the_attempt_and_are_written_down_and_told_once() -> None:
    asked = Asked()
    verdict = decide(two_trails(asked), CHECKED)
    *case, abort = asked.hop.feed(LieSeen(verdict))
    assert asked.convicts(case) == verdict.case
    assert isinstance(abort, Abort)
    assert asked.hop.core.state is State.GIVEN_UP
    assert asked.hop.feed(LieSeen(verdict)) == []
    asked.hop.restart()
    assert asked.hop.feed(LieSeen(verdict)) == []


@pytest.mark.parametrize(("name", "elsewhere"), [("hop-1", ("silo-2", 2)), ("hop-2", ("silo-2", 1))])
def test_a_hop_looks_into_a_charge_only_if_the_check_fails_at_it_first(name: str, elsewhere: tuple[str, int]) -> None:
    """Whoever is charged opens a key: it does so for what all have signed, and its own answer is in it."""
    asked = Asked(name).answer()
    right, told = asked.check(), asked.check(("silo-1", asked.m.layer(name)))
    for check, reason in (
        (right, Reason.FALSE_EVIDENCE),
        (asked.check((AGGREGATOR, 0)), Reason.FALSE_EVIDENCE),
        (asked.check(elsewhere), Reason.FALSE_EVIDENCE),
        (asked.check((name, 0)), Reason.FALSE_EVIDENCE),
        (with_other(right, replace(told.of("silo-1"), signature=bytes(64))), Reason.BAD_SIGNATURE),
        (replace(told, tosses=told.tosses[1:]), Reason.WRONG_SEQUENCE),
    ):
        assert asked.hop.refuses(asked.charge(check)) is reason
    (effect,) = asked.hop.feed(asked.charge(told))
    assert isinstance(effect, Investigate)
    assert (effect.finding.kind, effect.finding.where) == (EquationKind.HOP, name)


def test_a_hop_without_an_answer_of_its_own_looks_into_no_charge() -> None:
    asked = Asked()
    assert asked.hop.refuses(asked.charge(asked.check(("silo-1", 2)))) is Reason.FALSE_EVIDENCE


def test_hop_1_writes_down_who_lied_about_a_mask_before_it_says_so() -> None:
    """It takes no more headers of that silo, also after a restart."""
    asked = Asked("hop-1").answer()
    check = asked.check(("silo-1", 1))
    (effect,) = asked.hop.feed(asked.charge(check))
    assert isinstance(effect, Investigate)
    truth = tuple((silo, asked.zeros) for silo in asked.c.silos)
    remember, defend = asked.hop.feed(Investigated(asked.m.digest, effect.finding, effect.subject, check, truth))
    assert isinstance(defend, Defend)
    assert defend.defence.name == "silo-1"
    assert remember == Remember(Convicted(1, "silo-1", defend.defence.digest))
    asked.hop.restart()
    again = manifest(CHECKED, attempt=2)
    asked.hop.open(again)
    assert asked.hop.refuses(HeaderIn(committed_header(again, "silo-1"), "silo-1")) is Reason.SEAL_BROKEN
    asked.hop.feed(HeaderIn(committed_header(again, "silo-2"), "silo-2"))


def false_share(asked: Asked, share: bytes = bytes(32), silo: str = "silo-1") -> Case:
    """Evidence that a silo showed a share that it had not committed to."""
    return Case(Charge.SHARE, asked.m, asked.subject, toss=toss(asked.subject, share, identity(silo)))


def test_a_silo_that_was_shown_to_have_lied_sits_out_and_nobody_else_does() -> None:
    asked = Asked("hop-1")
    case = false_share(asked)
    assert asked.hop.feed(CaseIn(case)) == [Remember(Convicted(1, "silo-1", case.digest))]
    assert set(asked.hop.core.unfit) == {"silo-1"}
    assert asked.hop.feed(CaseIn(two_trails(asked))) == []  # a hop has no bodies to leave out
    assert set(asked.hop.core.unfit) == {"silo-1"}


def test_a_lie_for_which_nobody_sits_out_any_more_is_not_written_down() -> None:
    asked = Asked("hop-1")
    asked.hop.catch_up(past(CHECKED, UNFIT_ROUNDS + 1).head)
    assert asked.hop.feed(CaseIn(false_share(asked))) == []


def test_an_investigation_of_an_earlier_attempt_opens_no_key_of_this_one() -> None:
    asked = Asked("hop-1").answer()
    check = asked.check(("silo-1", 1))
    (effect,) = asked.hop.feed(asked.charge(check))
    assert isinstance(effect, Investigate)
    asked.hop.open(manifest(CHECKED, attempt=2))
    truth = tuple((silo, asked.zeros) for silo in asked.c.silos)
    late = Investigated(asked.m.digest, effect.finding, effect.subject, check, truth)
    assert asked.hop.refuses(late) is Reason.WRONG_SEQUENCE


def test_a_case_is_written_down_once() -> None:
    asked = Asked("hop-1")
    asked.hop.feed(CaseIn(false_share(asked)))
    assert asked.hop.feed(CaseIn(false_share(asked))) == []


def test_a_silo_that_sits_out_is_written_down_for_no_other_lie() -> None:
    """With one of its own a silo can sign a million, and each would be a fact and a line in the log."""
    asked = Asked("hop-1")
    asked.hop.feed(CaseIn(false_share(asked)))
    assert asked.hop.feed(CaseIn(false_share(asked, b"\1" * 32))) == []
    assert len(asked.hop.core.convicted) == 1
    asked.hop.restart()
    assert asked.hop.feed(CaseIn(false_share(asked, b"\2" * 32))) == []
    other = false_share(asked, silo="silo-2")
    assert asked.hop.feed(CaseIn(other)) == [Remember(Convicted(1, "silo-2", other.digest))]
