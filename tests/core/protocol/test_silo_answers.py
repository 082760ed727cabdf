"""A silo's part in a tamper check: for which check it shows its share, which coin it answers, and how often.

docs/protocol.md, section 7. Also what is durable before a consequence of it leaves, and what is overwritten.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
from tests.core.protocol.checks import bodies, committed_header, share, trails
from tests.core.protocol.federations import (
    AGGREGATOR,
    cohort,
    federation,
    flipped,
    header,
    identity,
    manifest,
    past,
    rng,
    secret,
    signed,
)
from tests.core.protocol.test_epochs import BOTH, E1, E2, LOG, SWITCH

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.tamper import Scalars, rhos
from silomix.runtime.core.protocol.check.said import Subject, Toss, check_statement, coin_of, toss
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Manifest, Receipt
from silomix.runtime.core.protocol.release import Ready
from silomix.runtime.core.protocol.silo import (
    Announced,
    Answer,
    CheckIn,
    CoinIn,
    Effect,
    Event,
    Fact,
    Measure,
    Measured,
    ReceiptIn,
    RecordsIn,
    Show,
    Silo,
    State,
    Stated,
    Stored,
    Switch,
    Tossed,
)

F = federation(4, 2, level=Level.MALICIOUS, chunk_parameters=16)
ME, OTHERS = "silo-1", ("silo-2", "silo-3", "silo-4")
ROOT = secret("body", ME).value
"""Of the body that this silo has sent."""
FIRST, SECOND = manifest(F), manifest(F, 1, 2)
"""Two attempts on one model."""


def subject(m: Manifest, silos: tuple[str, ...] = F.silo_names) -> Subject:
    """What the aggregator shows these silos when the padded sum has come through."""
    of = tuple(committed_header(m, silo) for silo in silos)
    c = cohort(m, of)
    return Subject(c, of, bodies(c), Ready(m.digest, m.model, trails(m, c)))


def other_check(of: Subject) -> Subject:
    """Another check of the same attempt: the last hop has signed for another vector."""
    *before, last = of.ready.trails
    told = replace(last, sent=bytes(32)).signed(identity(last.hop))
    return replace(of, ready=replace(of.ready, trails=(*before, told)))


def check(of: Subject, **changes: Any) -> CheckIn:
    """The check opens, and this silo's process has the body that it sent."""
    m = {FIRST.digest: FIRST, SECOND.digest: SECOND}[of.ready.manifest]
    event = CheckIn(of, committed_header(m, ME).digest, ROOT, share(ME))
    return replace(event, **changes)


def tosses(of: Subject) -> tuple[Toss, ...]:
    return tuple(toss(of, share(silo).value, identity(silo)) for silo in of.cohort.silos)


def another(shares: tuple[Toss, ...]) -> tuple[Toss, ...]:
    """The shares of another coin."""
    return (*shares[:-1], replace(shares[-1], share=bytes(32)))


def scalars() -> tuple[Scalars, ...]:
    """As many as a silo states: of its body, and of its mask for each hop."""
    return tuple(tuple((lot,) * n for n in rhos(F.plan)) for lot in range(1 + len(F.chain)))


class Node:
    """A silo with a journal."""

    def __init__(self) -> None:
        self.journal: list[Fact] = []
        self.restart()
        self.feed(RecordsIn(tuple(past(F).records)))

    def restart(self) -> None:
        self.core = Silo(F, identity(ME))
        for fact in self.journal:
            self.core.recall(fact)

    def snapshot(self) -> dict[str, Any]:
        state = {name: copy(value) for name, value in vars(self.core).items()}
        joined = {round_: list(facts) for round_, facts in self.core.joined.items()}
        return {**state, "joined": joined, "log": list(self.core.log.records)}

    def feed(self, event: Event) -> list[Effect]:
        before = self.snapshot()
        try:
            effects = self.core.step(event)
        except PeerFault:
            assert self.snapshot() == before
            raise
        self.journal += [effect.fact for effect in effects if isinstance(effect, Remember)]
        return effects

    def fault(self, event: Event) -> PeerFault:
        with pytest.raises(PeerFault) as caught:
            self.feed(event)
        return caught.value

    def sent(self, m: Manifest) -> None:
        """Join an attempt, and have a body counted in it."""
        self.feed(Announced(m))
        made = Receipt(ME, m.digest, ROOT, m.chain[0])
        self.feed(ReceiptIn(replace(made, signature=identity(m.chain[0]).sign(made.digest)), ROOT))
        assert self.core.state is State.COUNTED

    def answered(self, m: Manifest) -> Answer:
        """Take part in an attempt until the coin is answered."""
        self.sent(m)
        of = subject(m)
        self.feed(check(of))
        (measure,) = self.feed(CoinIn(tosses(of)))
        assert isinstance(measure, Measure)
        answer = self.feed(Measured(measure.manifest, measure.coin, scalars()))[-1]
        assert isinstance(answer, Answer)
        return answer


def sent(m: Manifest = FIRST) -> Node:
    node = Node()
    node.sent(m)
    return node


# The share


def test_a_silo_writes_down_for_which_check_it_shows_its_share_before_it_does() -> None:
    node, of = sent(), subject(FIRST)
    shown = toss(of, share(ME).value, identity(ME))
    assert node.feed(check(of)) == [Remember(Tossed(1, 1, FIRST.digest, of.context)), Show(shown)]


def test_a_silo_that_is_asked_again_shows_the_same_share_and_has_written_it_down_already() -> None:
    """The aggregator may have been started again, and lost what it was told."""
    node, of = sent(), subject(FIRST)
    first = node.feed(check(of))
    assert node.feed(check(of)) == first[1:]
    assert node.feed(check(of)) == first[1:]


@pytest.mark.parametrize("restart", [False, True])
def test_a_silo_shows_its_share_for_one_check_of_an_attempt(restart: bool) -> None:
    """Else the aggregator and a hop could look at the coin, and choose a vector that passes."""
    node, of = sent(), subject(FIRST)
    node.feed(check(of))
    if restart:
        node.restart()
        node.sent(FIRST)
    assert node.fault(check(other_check(of))).reason is Reason.SHARE_MISMATCH
    assert [type(effect) for effect in node.feed(check(of))] == [Show]


class Fleeting(Secret):
    """A secret that the process's other thread overwrites as soon as it was looked at."""

    def keyed(self) -> bytes:
        value = super().keyed()
        self.wipe()
        return value


def test_a_share_that_is_overwritten_while_it_is_signed_is_shown_as_it_was() -> None:
    """Zeros that this silo has signed would show it to have lied: it would sit out ten rounds."""
    node, of = sent(), subject(FIRST)
    shown = node.feed(check(of, share=Fleeting(share(ME).copy().value)))[-1]
    assert shown == Show(toss(of, share(ME).value, identity(ME)))


def test_a_share_that_was_overwritten_while_the_check_waited_is_not_shown() -> None:
    """The record of that round may come meanwhile. Zeros are not what the silo committed to: it would be named."""
    node, of, mine = sent(), subject(FIRST), share(ME)
    mine.wipe()
    assert node.fault(check(of, share=mine)).reason is Reason.FENCED
    assert not node.core.tossed
    assert [type(effect) for effect in node.feed(check(of))] == [Remember, Show]


def test_in_another_attempt_a_silo_shows_its_share_of_that_one() -> None:
    node = sent()
    node.feed(check(subject(FIRST)))
    node.sent(SECOND)
    of = subject(SECOND)
    assert node.feed(check(of))[0] == Remember(Tossed(1, 2, SECOND.digest, of.context))


FORGERIES: dict[str, tuple[Callable[[Subject], Subject], Reason]] = {
    "a cohort that hop 1 has not signed": (
        lambda s: replace(s, cohort=signed(s.cohort, "hop-2")),
        Reason.BAD_SIGNATURE,
    ),
    "a header that its silo has not signed": (
        lambda s: replace(s, headers=(*s.headers[:-1], replace(s.headers[-1], signature=bytes(64)))),
        Reason.BAD_SIGNATURE,
    ),
    "a body that its silo has not signed": (
        lambda s: replace(s, bodies=(*s.bodies[:-1], replace(s.bodies[-1], signature=bytes(64)))),
        Reason.BAD_SIGNATURE,
    ),
    "a sum that its hop has not signed": (
        lambda s: replace(
            s, ready=replace(s.ready, trails=(*s.ready.trails[:-1], replace(s.ready.trails[-1], signature=bytes(64))))
        ),
        Reason.BAD_SIGNATURE,
    ),
    "the word of one hop alone": (
        lambda s: replace(s, ready=replace(s.ready, trails=s.ready.trails[:1])),
        Reason.WRONG_CHAIN,
    ),
    "too few silos": (lambda s: subject(FIRST, (ME, "silo-2")), Reason.COHORT_TOO_SMALL),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_silo_shows_no_share_until_all_is_signed_for_and_blames_the_aggregator(forgery: str) -> None:
    tell, reason = FORGERIES[forgery]
    node, of = sent(), subject(FIRST)
    fault = node.fault(check(tell(of)))
    assert (fault.reason, fault.details["peer"]) == (reason, AGGREGATOR)
    assert node.feed(check(of))


@pytest.mark.parametrize("had", [{"root": bytes(32)}, {"header": header(FIRST, ME).digest}], ids=["body", "header"])
def test_a_silo_shows_no_share_for_a_body_or_under_a_header_that_it_did_not_send(had: dict[str, Any]) -> None:
    fault = sent().fault(check(subject(FIRST), **had))
    assert (fault.reason, fault.details["peer"]) == (Reason.ROOT_MISMATCH, "hop-1")


def test_a_silo_that_is_not_in_the_cohort_has_no_share_to_show_and_nobody_is_at_fault() -> None:
    node = sent()
    assert node.feed(check(subject(FIRST, OTHERS))) == []
    assert not node.core.tossed


def test_a_check_of_an_attempt_that_is_over_comes_late_and_nobody_is_blamed_for_it() -> None:
    """An honest aggregator may have opened it before it gave that attempt up."""
    node = sent()
    node.sent(SECOND)
    fault = node.fault(check(subject(FIRST)))
    assert fault.reason is Reason.WRONG_MANIFEST
    assert "peer" not in fault.details
    assert not node.core.tossed


# The answer


def test_a_silo_answers_no_coin_of_which_it_has_shown_no_share() -> None:
    """It knows of no check, so it could not tell whose coin that is."""
    node = sent()
    assert node.fault(CoinIn(tosses(subject(FIRST)))).reason is Reason.WRONG_MANIFEST
    node.feed(check(subject(FIRST)))
    node.sent(SECOND)
    for m in (FIRST, SECOND):
        assert node.fault(CoinIn(tosses(subject(m)))).reason is Reason.WRONG_MANIFEST


def test_a_silo_writes_its_answer_down_before_it_gives_it() -> None:
    node, of = sent(), subject(FIRST)
    node.feed(check(of))
    coin = coin_of(of, tosses(of), F)
    assert node.feed(CoinIn(tosses(of))) == [Measure(FIRST.digest, coin)]
    remember, answer = node.feed(Measured(FIRST.digest, coin, scalars()))
    assert isinstance(answer, Answer)
    assert remember == Remember(Stated(1, 1, FIRST.digest, answer.statement))
    assert answer.statement.scalars == scalars()
    check_statement(answer.statement, of.context, coin, F.chain, F)


@pytest.mark.parametrize("restart", [False, True])
def test_a_silo_gives_the_same_answer_again_and_answers_no_other_coin(restart: bool) -> None:
    """Two answers under two coins would cancel the blinders."""
    node = Node()
    answer = node.answered(FIRST)
    if restart:
        node.restart()
        assert node.feed(Announced(FIRST)) == [answer]
    right = tosses(subject(FIRST))
    assert node.feed(CoinIn(right)) == [answer]
    assert node.fault(CoinIn(another(right))).reason is Reason.SHARE_MISMATCH
    assert node.feed(CoinIn(right)) == [answer]


def test_scalars_that_are_measured_twice_are_stated_once() -> None:
    """The coin may come again while the first scalars are computed."""
    node = Node()
    answer = node.answered(FIRST)
    other = tuple(reversed(scalars()))
    assert node.feed(Measured(FIRST.digest, answer.statement.coin, other)) == [answer]
    assert node.fault(Measured(FIRST.digest, flipped(answer.statement.coin), other)).reason is Reason.SHARE_MISMATCH


def test_scalars_of_an_attempt_that_is_over_answer_nothing() -> None:
    """They are of another body: stated in the next attempt's check, they would name an honest silo."""
    node, of = sent(), subject(FIRST)
    node.feed(check(of))
    (measure,) = node.feed(CoinIn(tosses(of)))
    assert isinstance(measure, Measure)
    late = Measured(FIRST.digest, measure.coin, scalars())
    node.sent(SECOND)
    assert node.feed(late) == []
    node.feed(check(subject(SECOND)))
    assert node.feed(late) == []
    assert not node.core.stated


def test_a_silo_states_no_scalars_when_no_check_is_open() -> None:
    node = sent()
    assert node.feed(Measured(FIRST.digest, bytes(32), scalars())) == []
    assert not node.core.stated


# What is overwritten, and what comes first


def test_seeds_and_the_share_of_the_coin_are_overwritten_when_they_are_of_no_use_any_more() -> None:
    sealing = Silo(F, identity(ME)).sealing(FIRST, rng())
    assert sealing.share is not None
    held: list[Secret] = [*(seed for _, seed in sealing.seeds), sealing.share]
    assert len(held) == len(F.chain) + 2
    assert all(any(one.value) for one in held)
    sealing.wipe()
    assert not any(any(one.value) for one in held)


def test_records_are_remembered_before_another_epoch_goes_on_from_them() -> None:
    """The machine of that epoch begins with the journal: without the record it would not know that it has begun."""
    silo = Silo(E1, identity(ME), epochs=BOTH)
    for record in LOG.records:
        silo.recall(Stored(record))
    assert silo.step(RecordsIn((*LOG.records, SWITCH))) == [Remember(Stored(SWITCH)), Switch(E2.digest)]
