"""The aggregator's part in a tamper check: what it takes in, whom it names, and what silos believe of it afterwards."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.core.protocol.checks import TRAPPED, F, Led, bodies, trails
from tests.core.protocol.federations import AGGREGATOR, flipped, identity
from tests.core.protocol.test_aggregator import given_up

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.aggregator import (
    AskProofs,
    AskReady,
    AskScalars,
    Convict,
    Convicted,
    HopGone,
    LieSeen,
    PadsFalse,
    Phase,
    ProofIn,
    StatedIn,
    SumIn,
    Tick,
    TossIn,
)
from silomix.runtime.core.protocol.check.blame import Case, Charge, decide
from silomix.runtime.core.protocol.check.said import CheckTranscript, SignedRoot, Statement, check_equations, toss
from silomix.runtime.core.protocol.lineage import Transcript, check_transcript, check_vector, false_pad
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Manifest, trailer_digest
from silomix.runtime.core.protocol.roundlog import Record
from silomix.runtime.core.protocol.rules import layout


def lied(node: Led, silo: str) -> TossIn:
    """A share that a silo has signed and had not committed to."""
    return TossIn(toss(node.hearing.subject, bytes(32), identity(silo)), 0.0)


def false(one: Statement, *lots: int) -> Statement:
    """A statement of other scalars than zeros, of one vector or of several."""
    scalars = list(one.scalars)
    for lot in lots or (0,):
        first, *others = scalars[lot]
        scalars[lot] = ((1, *first[1:]), *others)
    return replace(one, scalars=tuple(scalars)).signed(identity(one.name))


# What it takes in


def test_hops_sign_when_all_have_tossed_and_answered_and_not_before() -> None:
    node = Led()
    (asks,) = node.tossed()
    assert isinstance(asks, AskScalars)
    assert [one.silo for one in asks.tosses] == list(F.silo_names)
    for name in node.hearing.names[:-1]:
        assert node.feed(StatedIn(node.statement(name), 0.0)) == []
    (ready,) = node.feed(StatedIn(node.statement(AGGREGATOR), 0.0))
    assert isinstance(ready, AskReady)
    assert ready.check is not None
    assert ready.ready.check == ready.check.digest
    assert node.core.phase is Phase.READY


def test_no_coin_is_tossed_about_bodies_that_silos_have_not_signed() -> None:
    node = Led()
    m, c = node.summed()
    right = bodies(c)
    root = bytes(32)
    other = SignedRoot(root, identity("silo-1").sign(trailer_digest(c.participants[0].header, root)))
    for named, reason in (
        (right[1:], Reason.WRONG_SEQUENCE),
        ((other, *right[1:]), Reason.ROOT_MISMATCH),  # hop 1 has taken in another
        ((replace(right[0], signature=flipped(right[0].signature)), *right[1:]), Reason.BAD_SIGNATURE),
    ):
        with pytest.raises(PeerFault) as caught:
            node.core.step(SumIn(m.digest, trails(m, c), 0.0, named))
        assert caught.value.reason is reason
    assert node.core.phase is Phase.RELEASING


def test_a_sum_that_is_refused_for_its_bodies_leaves_the_attempt_its_time() -> None:
    """Else whoever sends such a sum again and again keeps an attempt open for ever, or ends it early."""
    node = Led()
    m, c = node.summed()
    end = node.core.wake_at()
    with pytest.raises(PeerFault):
        node.core.step(SumIn(m.digest, trails(m, c), 1e6, ()))
    assert node.core.wake_at() == end


def test_a_share_that_its_silo_has_not_signed_for_this_check_is_refused_and_names_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is it looked at any further: a verdict takes a fifth of a second of 100 silos' check, and any silo may ask
    for one again and again."""
    monkeypatch.setattr("silomix.runtime.core.protocol.aggregator.decide", lambda *_: pytest.fail("it was looked at"))
    node = Led()
    node.asked()
    right = node.toss("silo-2")
    assert node.refuses(TossIn(replace(right, share=bytes(32)), 0.0)) is Reason.BAD_SIGNATURE
    other = replace(right, ballot=bytes(32))
    other = replace(other, signature=identity("silo-2").sign(other.digest))
    assert node.refuses(TossIn(other, 0.0)) is Reason.SHARE_MISMATCH
    assert node.refuses(TossIn(toss(node.hearing.subject, bytes(32), identity("hop-1")), 0.0)) is Reason.SHARE_MISMATCH
    assert not node.of(Convicted)
    assert node.core.phase is Phase.CHECKING


def test_hops_sign_when_all_have_proved_and_not_before() -> None:
    node = Led(TRAPPED)
    (asks,) = node.stated()
    assert isinstance(asks, AskProofs)
    for hop in TRAPPED.chain[:-1]:
        assert node.feed(ProofIn(node.proof(hop), 0.0)) == []
        assert node.core.phase is Phase.PROVING
    (ready,) = node.feed(ProofIn(node.proof(TRAPPED.chain[-1]), 0.0))
    assert isinstance(ready, AskReady)
    assert ready.check is not None
    assert [proof.hop for proof in ready.check.proofs] == list(TRAPPED.chain)


def test_proofs_that_their_hop_has_not_signed_for_this_check_are_refused_and_name_nobody() -> None:
    node = Led(TRAPPED)
    node.stated()
    right = node.proof("hop-2")
    assert node.refuses(ProofIn(replace(right, proofs=flipped(right.proofs)), 0.0)) is Reason.BAD_SIGNATURE
    other = replace(right, check=bytes(32)).signed(identity("hop-2"))
    assert node.refuses(ProofIn(other, 0.0)) is Reason.WRONG_SEQUENCE
    assert not node.of(Convicted)
    forged = replace(right, proofs=flipped(right.proofs)).signed(identity("hop-2"))
    effects = node.feed(ProofIn(forged, 0.0))
    assert [effect.verdict.culprit for effect in effects if isinstance(effect, Convict)] == ["hop-2"]


def test_a_word_that_cannot_come_any_more_is_not_waited_for() -> None:
    node = Led(TRAPPED)
    node.tossed()
    node.feed(StatedIn(node.statement("hop-1"), 0.0))
    assert node.feed(HopGone("hop-1", "it does not answer", 1.0)) == []  # the others' answers may convict it
    node.core.gone.clear()
    (up,) = given_up(node.feed(HopGone("hop-2", "it does not answer", 1.0)))
    assert up.abandoned


def test_a_defence_that_cannot_come_any_more_is_not_waited_for() -> None:
    node = Led(TRAPPED)
    node.tossed()
    for name in node.hearing.names:
        one = node.statement(name)
        node.feed(StatedIn(false(one) if name == "hop-2" else one, 0.0))
    assert node.core.phase is Phase.BLAMING
    assert node.feed(HopGone("hop-1", "it does not answer", 1.0)) == []  # another one's defence is still to come
    node.core.gone.clear()
    (up,) = given_up(node.feed(HopGone("hop-2", "it does not answer", 1.0)))
    assert up.abandoned
    assert not node.of(Convicted)


def test_a_proof_that_cannot_come_any_more_is_not_waited_for() -> None:
    node = Led(TRAPPED)
    node.stated()
    node.feed(ProofIn(node.proof("hop-1"), 0.0))
    assert node.feed(HopGone("hop-1", "it does not answer", 1.0)) == []  # it has said all that it has to say
    node.core.gone.clear()
    (up,) = given_up(node.feed(HopGone("hop-2", "it does not answer", 1.0)))
    assert up.abandoned
    assert not node.of(Convicted)  # silence names nobody


def test_whoever_is_silent_in_a_check_is_listed_beside_the_aggregator_which_may_have_lost_its_word() -> None:
    node = Led()
    node.tossed()
    for name in ("silo-1", "silo-2", "hop-1", "hop-2"):
        node.feed(StatedIn(node.statement(name), 0.0))
    (up,) = given_up(node.feed(Tick(20.0)))
    assert up.why == "silo-3 or aggregator: no word in the check"
    node.tossed(20.0)
    for name in node.hearing.names[:-1]:
        node.feed(StatedIn(node.statement(name), 20.0))
    (up,) = given_up(node.feed(Tick(40.0)))
    assert up.why == "no sum came while checking"


# Whom it names


def test_whoever_has_lied_is_on_the_disk_before_anybody_hears_of_it() -> None:
    """An aggregator that is killed there names it in the round's record all the same."""
    node = Led()
    node.asked()
    effects = node.feed(lied(node, "silo-2"), survives=1)
    (fact,) = node.of(Convicted)
    assert (fact.round, fact.attempt, fact.culprit) == (1, 1, "silo-2")
    assert isinstance(effects[1], Convict)
    assert effects[1].verdict.case.digest == fact.evidence
    node.restart()
    node.start()
    while node.core.phase is not Phase.RECORDING:
        node.feed(Tick(node.core.wake_at() or 0.0))
    assert [(one.culprit, one.evidence) for one in node.records[-1].attempts] == [("silo-2", fact.evidence)]


def test_a_record_names_a_liar_in_the_very_attempt_in_which_it_lied() -> None:
    node = Led()
    node.announce()
    node.feed(Tick(80.0))
    node.asked(80.0)
    node.feed(lied(node, "silo-2"))
    node.announce(80.0)
    node.feed(Tick(160.0))
    node.store(160.0)
    for attempt in range(3):
        node.announce(160.0 + 80 * attempt)
        node.feed(Tick(240.0 + 80 * attempt))
    named = [[one.culprit for one in record.attempts] for record in node.records[1:]]
    assert named == [["", "silo-2", ""], ["", "", ""]]


def equivocation(m: Manifest, node: Led) -> LieSeen:
    """Two trails that the last hop has signed of one sum."""
    one = node.hearing.subject.ready.trails[-1]
    other = replace(one, sent=bytes(32)).signed(identity(one.hop))
    return LieSeen(decide(Case(Charge.TRAILS, m, trails=(one, other)), node.f), 0.0)


def test_a_lie_in_an_attempt_that_is_over_does_not_end_the_one_that_runs() -> None:
    node = Led()
    node.asked()
    first = equivocation(node.core._open_manifest, node)
    node.feed(Tick(20.0))
    node.asked(20.0)
    before = node.snapshot()
    assert node.feed(first) == []
    assert node.snapshot() == before
    effects = node.feed(equivocation(node.core._open_manifest, node))
    assert [effect.verdict.culprit for effect in effects if isinstance(effect, Convict)] == ["hop-2"]


def test_a_lie_about_a_pad_counts_for_the_sum_that_is_being_read_and_for_no_other() -> None:
    node = Led()
    first = node.revealed()
    case = false_pad(node.transcript(), F)
    assert case is not None
    other = replace(case, manifest=replace(first, attempt=2).signed(identity(AGGREGATOR)))
    assert node.feed(PadsFalse(other, 0.0)) == []
    assert node.core.phase is Phase.APPLYING
    effects = node.feed(PadsFalse(case, 0.0))
    assert isinstance(effects[0], Remember)
    assert [effect.verdict.culprit for effect in effects if isinstance(effect, Convict)] == ["hop-1"]


# What silos believe


def released() -> tuple[Transcript, Record]:
    """What silos are shown of a sum, and its record."""
    node = Led()
    m = node.revealed()
    transcript = node.transcript()
    node.feed(node.sum_applied(m))
    return transcript, node.records[-1]


def on_record(transcript: Transcript, record: Record) -> Record:
    """The record of another release, which the aggregator has signed."""
    attempt = replace(record.attempts[-1], agreed=transcript.ready.digest)
    return replace(record, attempts=(attempt,)).signed(identity(AGGREGATOR))


def said(transcript: Transcript, check: CheckTranscript) -> Transcript:
    """The same sum with another check, which all have signed for."""
    return replace(transcript, check=check, ready=replace(transcript.ready, check=check.digest))


def another(transcript: Transcript) -> CheckTranscript:
    """The check, in which the aggregator states other scalars of what came."""
    assert transcript.check is not None
    *others, last = transcript.check.statements
    return replace(transcript.check, statements=(*others, false(last)))


def other_pad(transcript: Transcript) -> CheckTranscript:
    """The check, in which the last hop states the scalars of another pad, and all that follows from it."""
    assert transcript.check is not None
    *others, hop, last = transcript.check.statements
    made = replace(transcript.check, statements=(*others, false(hop, 1, 2), false(last)))
    check_equations(made, transcript.cohort.silos, F.chain, F)  # by itself nothing is wrong with it
    return made


def unsigned(t: Transcript) -> CheckTranscript:
    """The check, with a statement that nobody has signed."""
    assert t.check is not None
    last = t.check.statements[-1]
    return replace(t.check, statements=(*t.check.statements[:-1], replace(last, signature=bytes(64))))


LIES: dict[str, tuple[Callable[[Transcript], Transcript], Reason]] = {
    "no check": (lambda t: replace(t, check=None), Reason.TAMPERED),
    "another check than was signed for": (lambda t: replace(t, check=other_pad(t)), Reason.TAMPERED),
    "no check was signed for": (
        lambda t: replace(t, check=None, ready=replace(t.ready, check=b"")),
        Reason.TAMPERED,
    ),
    "an equation does not hold": (lambda t: said(t, another(t)), Reason.TAMPERED),
    "somebody has not signed": (lambda t: said(t, unsigned(t)), Reason.BAD_SIGNATURE),
    "a body that its silo has not signed": (
        lambda t: replace(t, bodies=(replace(t.bodies[0], signature=bytes(64)), *t.bodies[1:])),
        Reason.BAD_SIGNATURE,
    ),
    "other bodies": (lambda t: replace(t, bodies=t.bodies[::-1]), Reason.ROOT_MISMATCH),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_silo_takes_no_sum_whose_check_does_not_hold_and_blames_the_aggregator(lie: str) -> None:
    tell, reason = LIES[lie]
    transcript, record = released()
    told = tell(transcript)
    with pytest.raises(PeerFault) as caught:
        check_transcript(told, on_record(told, record), F)
    assert (caught.value.reason, caught.value.details["peer"]) == (reason, AGGREGATOR)


def test_a_silo_takes_no_sum_whose_hop_has_lied_about_its_pad_and_names_the_hop() -> None:
    transcript, record = released()
    with pytest.raises(PeerFault) as caught:
        check_transcript(transcript, record, F)
    assert (caught.value.reason, caught.value.details["peer"]) == (Reason.TAMPERED, "hop-1")


def test_a_silo_takes_no_vector_but_the_one_that_was_signed_for_and_checked() -> None:
    """The last hop and the aggregator could sign for one, and state the scalars of another."""
    transcript, _ = released()
    vector = layout(transcript.manifest).body()
    check_vector(vector, transcript, F)
    altered = vector.copy()
    altered[0] ^= 1
    for told, body, reason in (
        (transcript, altered, Reason.ROOT_MISMATCH),
        (said(transcript, another(transcript)), vector, Reason.TAMPERED),
    ):
        with pytest.raises(PeerFault) as caught:
            check_vector(body, told, F)
        assert caught.value.reason is reason
