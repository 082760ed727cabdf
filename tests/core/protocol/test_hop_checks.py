"""A hop's part in a tamper check: what it answers, what it refuses, and what it says once and never otherwise.

As in `checks`, there are no vectors: all scalars are 0, which fulfil every equation.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.core.protocol.checks import HIDDEN, TRAPPED, F, committed_header, share
from tests.core.protocol.federations import (
    AGGREGATOR,
    agreement,
    body,
    cohort,
    evidence,
    federation,
    flipped,
    headers,
    identity,
    manifest,
    pad,
)
from tests.core.protocol.hops import NEVER, Hop, opened, passed_on

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.tamper import rhos
from silomix.runtime.core.protocol.check.said import HOP_SCALARS, CheckTranscript, SignedRoot, Statement, Subject, toss
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS, Trapped, TrapProof, committed
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Cohort, Header, Manifest
from silomix.runtime.core.protocol.release import Ready, Trail, bodies_root, pad_digest
from silomix.runtime.core.protocol.shuffler import (
    Agree,
    Answer,
    ChargeIn,
    Closed,
    CohortIn,
    CoinIn,
    Convicted,
    Count,
    Counted,
    Defend,
    Delivered,
    Effect,
    EvidenceIn,
    HeaderIn,
    Investigate,
    Measure,
    Measured,
    Prepare,
    Prove,
    Proved,
    ProveIn,
    Proven,
    ReadyIn,
    Reveal,
    RevealIn,
    SendRefused,
    ShowProof,
    State,
    Stated,
)


class Checked(Hop):
    """A hop that has passed a sum on, at level malicious, and all that the others say of it."""

    def __init__(self, name: str = "hop-1", f: Federation = F) -> None:
        super().__init__(name, f)
        self.run(manifest(f))

    def run(self, m: Manifest) -> None:
        """Open an attempt, and pass the sum of all silos on."""
        self.m, self.of = m, [committed_header(m, silo) for silo in self.f.silo_names]
        self.open(m)
        if self.name == m.chain[0]:
            self.submit(*self.of)
        else:
            self.relayed(m, self.of)
            self.feed(CohortIn(cohort(m, self.of)))
        assert self.core.state is State.RELEASING
        self.pad = pad_digest(self.core.padded[m.digest].pad)

    @property
    def cohort(self) -> Cohort:
        return cohort(self.m, self.of)

    @property
    def bodies(self) -> tuple[SignedRoot, ...]:
        came = [body(one) for one in self.of]
        return tuple(SignedRoot(one.root, one.signature) for one in came)

    def trails(self, *, last: bytes = bytes(32), own: bytes = b"") -> tuple[Trail, ...]:
        """What every hop has signed: the last one sent what `last` says, and this hop has the pad `own`."""
        came, made = bodies_root(one.root for one in self.bodies), list[Trail]()
        for hop in self.m.chain:
            sent = last if hop == self.m.chain[-1] else bytes([len(made)]) * 32
            on = (own or self.pad) if hop == self.name else pad_digest(pad(hop, self.m.digest))
            made.append(Trail(hop, self.cohort.digest, b"", came, sent, on).signed(identity(hop)))
            came = sent
        return tuple(made)

    def subject(self, trails: tuple[Trail, ...]) -> Subject:
        return Subject(self.cohort, tuple(self.of), self.bodies, Ready(self.m.digest, self.m.model, trails))

    def coin(self, trails: tuple[Trail, ...] | None = None, **changes: Any) -> CoinIn:
        """The coin that the silos have tossed about these trails."""
        about = self.trails() if trails is None else trails
        subject = self.subject(about or self.trails())
        tosses = tuple(toss(subject, share(silo).value, identity(silo)) for silo in self.f.silo_names)
        return replace(CoinIn(self.m.digest, about, self.bodies, tosses), **changes)

    def measure(self, coin: CoinIn | None = None) -> Measured:
        """Have the hop take a coin up, and return what it will have computed."""
        (asked,) = self.feed(coin or self.coin())
        assert isinstance(asked, Measure)
        said = statement(self.name, self.f, asked.context, asked.coin)
        return Measured(asked.manifest, asked.context, asked.coin, said.scalars, said.trapped)

    def answer(self) -> Statement:
        """Have the hop answer the coin."""
        answered = self.feed(self.measure())[-1]
        assert isinstance(answered, Answer)
        return answered.statement

    def check(self) -> CheckTranscript:
        """All that was said, once this hop has answered."""
        own = self.core.stated[self.m.digest]
        names = (*self.f.silo_names, *self.m.chain, AGGREGATOR)
        made = tuple(own if n == self.name else statement(n, self.f, own.context, own.coin) for n in names)
        return CheckTranscript(self.coin().tosses, made)

    def prove(self, check: CheckTranscript, **changes: Any) -> ProveIn:
        return replace(ProveIn(self.m.digest, self.trails(), self.bodies, check), **changes)

    def charge(self, check: CheckTranscript) -> ChargeIn:
        return ChargeIn(self.m.digest, self.trails(), self.bodies, check)

    def ready_in(self, check: CheckTranscript | None) -> ReadyIn:
        return ReadyIn(self.m.digest, self.trails(), check=check)

    def show_pad(self) -> CheckTranscript:
        """Bring the attempt to the point at which this hop has shown its pad, and return the check."""
        self.answer()
        check = self.check()
        assert isinstance(self.feed(self.ready_in(check))[-1], Agree)
        agreed = Ready(self.m.digest, self.m.model, self.trails(), check.digest).digest
        assert isinstance(self.feed(RevealIn(self.m.digest, agreement(agreed, self.m.chain)))[-1], Reveal)
        return check

    def ask(self, attempt: int, survives: int = NEVER) -> list[Effect]:
        """Ask the hop for the keys of a further attempt."""
        return self.feed(asking(self, attempt), survives)

    def refusal(self, event: Any) -> tuple[Reason, Any]:
        """Why something is refused, and who is blamed for it."""
        with pytest.raises(PeerFault) as caught:
            self.feed(event)
        return caught.value.reason, caught.value.details.get("peer")


def asking(hop: Hop, attempt: int) -> Prepare:
    log = hop.core.log
    return Prepare(hop.f.digest, log.round, attempt, hop.f.silo_names, hop.core.last_released, log.head, 0.0)


def statement(name: str, f: Federation, context: bytes, coin: bytes) -> Statement:
    """What somebody answers: zeros, and at the traps commitments to them."""
    plan, traps, chain = f.plan, f.policy.traps, f.chain
    lots = 1 if name == AGGREGATOR else HOP_SCALARS if name in chain else 1 + len(chain)
    zeros = tuple((0,) * n for n in rhos(plan))
    trapped = NO_TRAPS
    if traps:
        residues = tuple((0,) * traps for _ in plan.moduli)
        points = 1 if name in chain else 0 if name == AGGREGATOR else len(chain)
        blob = committed([HIDDEN] * traps * len(plan.moduli))
        trapped = Trapped((residues,) * (2 if name in chain else 1), (blob,) * points)
    return Statement(name, context, coin, (zeros,) * lots, trapped=trapped).signed(identity(name))


def stating(check: CheckTranscript, lies: dict[str, tuple[int, ...]]) -> CheckTranscript:
    """The check, in which some state a 1 instead of a 0, of these vectors."""
    made = []
    for one in check.statements:
        scalars = list(one.scalars)
        for lot in lies.get(one.name, ()):
            first, *others = scalars[lot]
            scalars[lot] = ((1, *first[1:]), *others)
        made.append(replace(one, scalars=tuple(scalars)).signed(identity(one.name)))
    return replace(check, statements=tuple(made))


def forged(check: CheckTranscript) -> CheckTranscript:
    """The check, with a statement that its silo has not signed."""
    first, *others = check.statements
    return replace(check, statements=(replace(first, signature=flipped(first.signature)), *others))


# The coin


@pytest.mark.parametrize("name", F.chain)
@pytest.mark.parametrize("through", [False, True])
def test_a_hop_answers_a_coin_from_when_its_sum_is_on_its_way_and_it_is_on_the_disk_first(
    name: str, through: bool
) -> None:
    hop = Checked(name)
    if through:
        hop.feed(Delivered(hop.m.digest))
        assert hop.core.state is State.DONE
    done = hop.feed(hop.measure(), survives=1)  # killed before the answer has left
    assert [effect.fact for effect in done if isinstance(effect, Remember)] == [
        Stated(1, 1, hop.m.digest, hop.core.stated[hop.m.digest])
    ]
    assert hop.feed(hop.coin()) == [Answer(hop.core.stated[hop.m.digest])]


def test_a_hop_answers_one_coin_in_an_attempt_and_the_same_way_whenever_it_is_asked() -> None:
    hop = Checked()
    said, right = hop.answer(), hop.coin()
    other = replace(right.tosses[0], share=bytes(32))
    assert hop.refuses(replace(right, tosses=(other, *right.tosses[1:]))) is Reason.WRONG_SEQUENCE
    assert hop.refuses(hop.coin(hop.trails(last=bytes([9]) * 32))) is Reason.WRONG_SEQUENCE
    hop.restart()
    assert hop.refuses(replace(right, tosses=(other, *right.tosses[1:]))) is Reason.WRONG_SEQUENCE
    assert hop.feed(right) == [Answer(said)]


def test_a_hop_that_is_asked_twice_while_it_computes_answers_one_coin() -> None:
    """Two answers would cancel the blinders."""
    hop = Checked()
    first, again = hop.measure(), hop.measure()
    second = hop.measure(hop.coin(hop.trails(last=bytes([9]) * 32)))  # the last hop has signed two trails
    said = hop.feed(first)[-1]
    assert hop.feed(again) == [said]
    assert hop.refuses(second) is Reason.WRONG_SEQUENCE
    assert hop.refuses(replace(first, coin=second.coin)) is Reason.WRONG_SEQUENCE
    assert hop.feed(again) == [said]


@pytest.mark.parametrize("name", F.chain)
def test_no_coin_is_answered_about_trails_that_are_missing(name: str) -> None:
    hop = Checked(name)
    for few in ((), hop.trails()[:1]):
        assert hop.refusal(hop.coin(few)) == (Reason.WRONG_CHAIN, AGGREGATOR)


def test_no_coin_is_answered_about_bodies_that_silos_have_not_signed() -> None:
    hop = Checked()
    first, *others = hop.bodies
    for bodies, reason in (
        (tuple(others), Reason.WRONG_SEQUENCE),
        ((replace(first, root=bytes(32)), *others), Reason.ROOT_MISMATCH),
        ((replace(first, signature=flipped(first.signature)), *others), Reason.BAD_SIGNATURE),
    ):
        assert hop.refusal(hop.coin(bodies=bodies)) == (reason, AGGREGATOR)


def test_no_coin_is_answered_about_another_pad_than_lies_on_what_went_out() -> None:
    hop = Checked()
    assert hop.refuses(hop.coin(hop.trails(own=pad_digest(pad("hop-1", "another"))))) is Reason.WRONG_PAD


def test_a_hop_that_was_started_again_or_has_given_up_takes_no_coin_up() -> None:
    hop = Checked()
    hop.restart()
    assert hop.refusal(hop.coin()) == (Reason.WRONG_SEQUENCE, None)
    hop.open(hop.m)
    assert hop.refusal(hop.coin()) == (Reason.WRONG_SEQUENCE, None)
    hop = Checked()
    hop.feed(SendRefused(hop.m.digest, PeerFault(Reason.WRONG_MANIFEST, "no")))
    assert hop.core.state is State.GIVEN_UP
    assert hop.refusal(hop.coin()) == (Reason.WRONG_SEQUENCE, None)


# A charge


def test_a_hop_opens_nothing_in_an_attempt_that_it_has_closed_though_it_has_shown_its_pad() -> None:
    hop = Checked()
    charge = hop.charge(stating(hop.show_pad(), {"silo-1": (0,)}))
    assert isinstance(hop.feed(charge)[0], Investigate)
    hop.ask(2)
    assert hop.m.digest in hop.core.padded  # the others may still need it
    assert hop.refuses(charge) is Reason.FENCED


def test_a_charge_that_comes_when_another_sum_is_on_its_way_is_not_taken_for_one_about_that() -> None:
    hop = Checked()
    charge = hop.charge(stating(hop.show_pad(), {"silo-1": (0,)}))
    hop.run(manifest(F, attempt=2))
    assert hop.refusal(charge) == (Reason.WRONG_SEQUENCE, None)  # it is late: nobody has lied


# Traps


def test_a_hop_proves_nothing_where_there_are_no_traps() -> None:
    hop = Checked()
    hop.answer()
    assert hop.refuses(hop.prove(hop.check())) is Reason.WRONG_SEQUENCE


UNPROVABLE: dict[str, tuple[Callable[[CheckTranscript], CheckTranscript], Reason]] = {
    "other scalars of its own": (lambda c: stating(c, {"hop-1": (1, 2), "hop-2": (0, 2)}), Reason.WRONG_SEQUENCE),
    "with proofs already": (
        lambda c: replace(c, proofs=(TrapProof("hop-2", c.said, b"").signed(identity("hop-2")),)),
        Reason.WRONG_SEQUENCE,
    ),
    "somebody has not signed": (forged, Reason.BAD_SIGNATURE),
    "an equation does not hold": (lambda c: stating(c, {AGGREGATOR: (0,)}), Reason.TAMPERED),
}


@pytest.mark.parametrize("how", UNPROVABLE)
def test_a_hop_proves_nothing_before_all_the_rest_of_a_check_holds(how: str) -> None:
    change, reason = UNPROVABLE[how]
    hop = Checked(f=TRAPPED)
    hop.answer()
    assert hop.refuses(hop.prove(change(hop.check()))) is reason
    (asked,) = hop.feed(hop.prove(hop.check()))
    assert isinstance(asked, Prove)


def test_a_hop_that_has_answered_nothing_proves_nothing() -> None:
    answered = Checked(f=TRAPPED)
    answered.answer()
    hop = Checked(f=TRAPPED)
    assert hop.refuses(hop.prove(answered.check())) is Reason.WRONG_SEQUENCE


def test_a_hop_proves_nothing_about_trails_that_are_missing() -> None:
    hop = Checked(f=TRAPPED)
    hop.answer()
    for few in ((), hop.trails()[:1]):
        assert hop.refusal(hop.prove(hop.check(), trails=few)) == (Reason.WRONG_CHAIN, AGGREGATOR)


def test_a_hop_proves_one_check_in_an_attempt_and_it_is_on_the_disk_first() -> None:
    hop = Checked(f=TRAPPED)
    hop.answer()
    check = hop.check()
    hop.feed(hop.prove(check))
    done = hop.feed(Proven(hop.m.digest, check, b"proofs"), survives=1)  # killed before they have left
    proof = hop.core.proved[hop.m.digest]
    assert [effect.fact for effect in done if isinstance(effect, Remember)] == [Proved(1, 1, hop.m.digest, proof)]
    assert hop.feed(hop.prove(check)) == [ShowProof(proof)]
    another = stating(check, {"hop-4": (1, 2), AGGREGATOR: (0,)})  # by itself nothing is wrong with it
    assert hop.refuses(hop.prove(another)) is Reason.WRONG_SEQUENCE


def test_proofs_that_are_made_when_another_attempt_is_open_are_not_signed() -> None:
    hop = Checked(f=TRAPPED)
    hop.answer()
    late = Proven(hop.m.digest, hop.check(), b"proofs")
    hop.open(manifest(TRAPPED, attempt=2))
    assert hop.refuses(late) is Reason.WRONG_SEQUENCE


@pytest.mark.parametrize("name", TRAPPED.chain[:2])
def test_a_silo_that_committed_to_another_mask_sits_out_where_silos_are_let_in(name: str) -> None:
    """Hop 1 has it on the disk before the key leaves. At another hop, evidence of the next attempt still counts."""
    hop = Checked(name, TRAPPED)
    hop.answer()
    *before, defence = hop.feed(Proven(hop.m.digest, hop.check(), b"", ("silo-2",)))
    assert isinstance(defence, Defend)
    assert defence.defence.name == "silo-2"
    fact = Convicted(1, "silo-2", defence.defence.digest)
    assert before == ([Remember(fact)] if name == "hop-1" else [])
    hop.open(manifest(TRAPPED, attempt=2))
    again = committed_header(hop.core.manifest, "silo-2")
    if name == "hop-1":
        assert hop.refusal(HeaderIn(again, "silo-2")) == (Reason.SEAL_BROKEN, "silo-2")
    else:
        assert hop.feed(HeaderIn(again, "hop-1"))
        assert hop.feed(EvidenceIn(evidence(hop.core.manifest, again, "hop-3")))  # it has not sat out until now


# Signing for a release


def test_a_hop_signs_for_no_release_whose_check_is_not_there_or_has_other_scalars_of_its_own() -> None:
    hop = Checked()
    hop.answer()
    check = hop.check()
    other = stating(check, {"hop-1": (1, 2), "hop-2": (0, 2)})  # by itself nothing is wrong with it
    for told in (None, other):
        assert hop.refusal(hop.ready_in(told)) == (Reason.WRONG_SEQUENCE, AGGREGATOR)
    assert hop.refuses(hop.ready_in(stating(check, {AGGREGATOR: (0,)}))) is Reason.TAMPERED
    assert isinstance(hop.feed(hop.ready_in(check))[-1], Agree)


def test_a_hop_that_was_killed_when_it_had_just_closed_an_attempt_signs_for_it_no_more() -> None:
    """Its pad is still there: only the fence is on the disk."""
    hop, m = opened("hop-1")
    found = passed_on(hop.submit(*headers(m, hop.f)))
    assert found is not None
    told = ReadyIn(m.digest, hop.ready(m, found.cohort).trails)
    (closed,) = hop.feed(asking(hop, 2), survives=1)
    assert closed == Remember(Closed(1, 2))
    assert m.digest in hop.core.padded
    assert hop.refuses(told) is Reason.FENCED


# Closing a cohort


def test_a_cohort_that_comes_when_a_further_attempt_is_being_prepared_is_passed_on_no_more() -> None:
    hop, m = opened("hop-2")
    of = headers(m, hop.f)
    hop.relayed(m, of)
    hop.feed(asking(hop, 2))
    assert hop.refuses(CohortIn(cohort(m, of))) is Reason.FENCED
    assert not hop.core.padded


def test_a_silo_that_sits_out_does_not_count_as_one_that_takes_for_ever() -> None:
    """Else each silo that was left out would have all others waited for until the deadline."""
    f = federation(4, early_close=1.0)
    hop, m = opened("hop-1", f)
    of: list[Header] = headers(m, f)
    hop.feed(HeaderIn(of[3], "silo-4"))
    hop.feed(EvidenceIn(evidence(m, of[3], "hop-2")))
    for place, one in enumerate(of[:3]):
        hop.core.step(HeaderIn(one, one.silo))
        assert [type(effect) for effect in hop.core.step(body(one))] == [Count]
        hop.core.step(Counted(one, 1.0 + place))
    assert hop.core.pace.rounds == ((1.0, 2.0, 3.0),)


def test_groups_of_another_size_are_dealt_anew() -> None:
    """A policy may change it on a model that was never released: the old groups say nothing of the new."""
    dealt = set()
    for size in (4, 5):  # two groups either way
        hop, m = opened("hop-1", federation(10, group_size=size))
        found = passed_on(hop.submit(*headers(m, hop.f)))
        assert found is not None
        assert found.grouping is not None
        assert sorted(found.grouping.sizes) == [5, 5]
        dealt.add(found.grouping.groups)
    assert len(dealt) == 2
