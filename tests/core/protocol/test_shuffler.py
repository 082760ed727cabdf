"""Protocol section 5: a hop shows its pad for one cohort on a model, whatever it is told and however it dies."""

import hashlib
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.core.protocol.federations import (
    AGGREGATOR,
    LOGS,
    MODEL,
    OTHER_MODEL,
    OTHER_STATE,
    agreement,
    attempted,
    body,
    cohort,
    counted,
    evidence,
    extended,
    federation,
    flipped,
    header,
    headers,
    identity,
    manifest,
    past,
    private,
    recorded,
    round_key,
    signed,
)
from tests.core.protocol.hops import NEVER, SILOS, F, Hop, opened, opening, passed_on, release_round, released
from tests.tools import examples

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Cohort, Header, Manifest, Participant, Receipt, RoundKey
from silomix.runtime.core.protocol.release import Trail, check_agreed, pad_digest
from silomix.runtime.core.protocol.roundlog import Attempted, RoundLog
from silomix.runtime.core.protocol.rules import MOST_HEADERS, check_round_key
from silomix.runtime.core.protocol.shuffler import (
    Abort,
    Acknowledge,
    Agree,
    Begin,
    CohortIn,
    Count,
    Counted,
    Delivered,
    Effect,
    Event,
    EvidenceIn,
    HeaderIn,
    Keys,
    KeysGone,
    KeysMade,
    Open,
    Padded,
    Pass,
    Prepare,
    ReadyIn,
    RecordIn,
    Release,
    Released,
    Reveal,
    RevealIn,
    Signed,
    Spoiled,
    State,
    Tick,
    Unopened,
)

# Keys


def prepare(
    round_: int = 1, attempt: int = 1, silos: tuple[str, ...] = SILOS, known: int = 0, head: bytes = b""
) -> Prepare:
    return Prepare(F.digest, round_, attempt, silos, known, head or past(F, min(max(0, round_ - 1), 9)).head, 0.0)


def keys_of(effects: list[Effect]) -> tuple[RoundKey, ...]:
    answer = effects[-1]
    assert isinstance(answer, Keys)
    return answer.keys


def test_keys_are_made_once_signed_and_remembered_before_they_are_told() -> None:
    hop = Hop("hop-1", known=False)
    effects = hop.feed(prepare())
    assert [type(e) for e in effects] == [Remember, Keys]
    keys = keys_of(effects)
    assert [k.silo for k in keys] == list(SILOS)
    assert len({k.public_key for k in keys}) == 4
    for key in keys:
        check_round_key(key, F, past(F).head, 1, 1)
    assert hop.feed(prepare()) == [Keys(keys, 0)]
    hop.restart()
    assert hop.feed(prepare()) == [Keys(keys, 0)]


def test_two_rounds_and_two_attempts_have_different_keys() -> None:
    """A key that was opened as evidence in one attempt opens nothing in the next."""
    hop = Hop("hop-1", known=False)
    keys = []
    for round_, attempt in ((1, 1), (1, 2), (2, 1)):
        hop.catch_up(past(F, round_ - 1).head)
        keys += [k.public_key for k in keys_of(hop.feed(prepare(round_, attempt)))]
    assert len(set(keys)) == 12


def test_keys_are_deleted_when_a_later_attempt_opens_and_not_before() -> None:
    hop = Hop("hop-1")
    assert not [e for e in hop.open(manifest(F)) if isinstance(e, Remember)]
    hop.feed(prepare(1, 2))
    assert hop.feed(prepare(1, 2))
    assert set(hop.core.keys) == {(1, 1), (1, 2)}
    effects = hop.feed(opening(manifest(F, 1, 2)))
    assert effects[0] == Remember(KeysGone(1, 1))
    assert isinstance(effects[1], Begin)
    for _ in range(2):
        assert set(hop.core.keys) == {(1, 2)}
        hop.restart()
    assert not [e for e in hop.open(manifest(F, 1, 2)) if isinstance(e, Remember)]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (replace(prepare(), federation=bytes(32)), Reason.WRONG_FEDERATION),
        (prepare(0), Reason.WRONG_ROUND),
        (prepare(5), Reason.WRONG_ROUND),
        (prepare(1 << 63), Reason.WRONG_ROUND),
        (prepare(known=1), Reason.WRONG_ROUND),
        (prepare(2), Reason.WRONG_HEAD),  # a round is skipped
        (prepare(head=past(F, 1).head), Reason.WRONG_HEAD),
        (prepare(head=RoundLog(F).head), Reason.WRONG_HEAD),
        (prepare(1, 0), Reason.WRONG_ATTEMPT),
        (prepare(silos=SILOS[::-1]), Reason.WRONG_POLICY),
        (prepare(silos=SILOS[1:2]), Reason.WRONG_POLICY),
        (prepare(silos=("silo-1", "silo-1")), Reason.WRONG_POLICY),
        (prepare(silos=("hop-1", "silo-1")), Reason.WRONG_POLICY),
        (prepare(silos=(*SILOS, "silo-9")), Reason.WRONG_POLICY),
    ],
)
def test_a_wrong_call_for_keys_makes_none(event: Prepare, reason: Reason) -> None:
    hop = Hop("hop-1", known=False)
    assert hop.refuses(event) is reason
    assert not hop.core.keys


def test_a_trusted_federation_has_no_keys() -> None:
    f = federation(level=Level.TRUSTED)
    asked = Prepare(f.digest, 1, 1, SILOS, 0, past(f).head, 0.0)
    assert Hop("hop-1", f, known=False).feed(asked) == [Keys((), 0)]


def test_secrets_do_not_print() -> None:
    effects = Hop("hop-1", known=False).feed(prepare())
    (made,) = [e.fact for e in effects if isinstance(e, Remember) and isinstance(e.fact, KeysMade)]
    assert len(made.keys) == 4
    for _, key in made.keys:
        assert repr(key.value) not in repr(effects)
        assert key.value.hex() not in repr(effects)


# Section 5, rule 6: a hop that was restored from an old copy


def test_a_hop_that_was_restored_from_an_old_copy_does_not_serve() -> None:
    hop = Hop("hop-1")
    release_round(hop, 1)
    backup, log = list(hop.journal), hop.log
    release_round(hop, 2)
    answer = hop.feed(prepare(3, head=hop.log.head))[-1]
    assert isinstance(answer, Keys)
    assert answer.last_released == 2
    newest = hop.log
    hop.journal = backup
    hop.restart()
    for round_, head in ((1, past(F).head), (2, log.head), (3, newest.head)):
        assert hop.refuses(prepare(round_, known=2, head=head)) is Reason.WRONG_ROUND
    # Nor does it store the record of a round that it took part in and knows nothing of.
    record = newest.last
    assert record is not None
    assert hop.refuses(RecordIn(record)) is Reason.WRONG_ROUND
    # Nor does it open an attempt whose keys it signed when it knew more.
    keys = tuple(round_key(F, h, s, 2, 2, head=log.head) for h in F.chain for s in SILOS)
    assert hop.refuses_to_open(manifest(F, 2, log=log, hop_keys=keys)) is Reason.WRONG_ROUND


def test_a_hop_that_knows_more_than_the_aggregator_serves() -> None:
    hop = Hop("hop-1")
    release_round(hop, 1)
    assert keys_of(hop.feed(prepare(2, known=0, head=hop.log.head)))[0].last_released == 1


# Opening


def test_no_keys_are_made_for_a_round_that_is_over() -> None:
    """Also when this hop never released it: it is on record."""
    hop = Hop("hop-1")
    hop.open(manifest(F, 2))
    assert hop.refuses(prepare(1)) is Reason.WRONG_ROUND
    assert hop.refuses(prepare(1, 9)) is Reason.WRONG_ROUND
    assert hop.feed(prepare(2))
    hop.restart()
    assert hop.refuses(prepare(1)) is Reason.WRONG_ROUND


def test_no_keys_are_made_for_an_attempt_that_is_over() -> None:
    hop = Hop("hop-1")
    hop.open(manifest(F, 1, 2))
    assert hop.refuses(prepare(1, 1)) is Reason.WRONG_ATTEMPT
    hop.feed(prepare(1, 3))
    hop.restart()
    assert hop.refuses(prepare(1, 2)) is Reason.WRONG_ATTEMPT


def test_an_attempt_opens_once_and_the_same_manifest_again_is_no_news() -> None:
    hop, m = opened()
    h = header(m, "silo-1")
    hop.submit(h)
    assert hop.open(m, 5.0) == []
    assert hop.core.wake_at() == F.policy.deadline_s  # the clock is not set back
    assert hop.core.state is State.OPEN
    assert isinstance(hop.feed(HeaderIn(h, "silo-1"))[0], Acknowledge)  # its body is still there


@pytest.mark.parametrize("name", ["hop-1", "hop-2"])
def test_a_hop_knows_its_place(name: str) -> None:
    hop = Hop(name)
    (begin,) = hop.open(manifest(F))
    assert isinstance(begin, Begin)
    whole_round = F.policy.attempts * (F.policy.deadline_s + F.policy.release_s)
    assert hop.core.wake_at() == (F.policy.deadline_s if name == "hop-1" else whole_round)


def test_old_rounds_and_attempts_are_refused() -> None:
    hop = Hop("hop-1")
    hop.open(manifest(F, 2, 2))
    assert hop.refuses_to_open(manifest(F, 2, 1)) is Reason.WRONG_ATTEMPT
    assert hop.refuses_to_open(manifest(F, 1, 9)) is Reason.WRONG_ROUND
    assert hop.refuses_to_open(manifest(F, 2, 2, minimum_cohort=4)) is Reason.WRONG_ATTEMPT
    hop.restart()
    assert hop.refuses_to_open(manifest(F, 2, 1)) is Reason.FENCED
    assert hop.refuses_to_open(manifest(F, 1, 9)) is Reason.WRONG_ROUND
    assert hop.refuses(prepare(1, known=2)) is Reason.WRONG_ROUND


def test_an_attempt_goes_on_from_the_history_that_the_hop_holds() -> None:
    """Rule R2: no round is skipped, none comes again, and no other model or server state is slipped in."""
    hop = Hop("hop-1")
    release_round(hop, 1)
    for m, reason in (
        (manifest(F, 3, log=hop.log), Reason.WRONG_HEAD),
        (manifest(F, 2), Reason.WRONG_HEAD),  # as if round 1 had been abandoned
        (manifest(F, 1), Reason.WRONG_ROUND),
        (manifest(F, 2, log=hop.log, model=MODEL), Reason.WRONG_MODEL),
        (manifest(F, 2, log=hop.log, model=OTHER_MODEL), Reason.WRONG_MODEL),
        (manifest(F, 2, log=hop.log, state=OTHER_STATE), Reason.WRONG_MODEL),
        (manifest(F, 2, log=hop.log, applied=0), Reason.WRONG_HEAD),
        (manifest(F, 2, log=hop.log, applied=2), Reason.WRONG_HEAD),
    ):
        head = hop.log.last
        assert head is not None
        assert hop.refuses(Open(m, head, 0.0)) is reason
    assert isinstance(hop.open(manifest(F, 2, log=hop.log))[-1], Begin)


def test_a_hop_opens_no_chain_without_itself_and_no_keys_of_others() -> None:
    assert Hop("hop-3").refuses_to_open(manifest(F)) is Reason.WRONG_CHAIN
    assert Hop("hop-1").refuses_to_open(manifest(F, chain=("hop-1",))) is Reason.WRONG_CHAIN
    assert Hop("hop-1").refuses(opening(manifest(F))) is Reason.WRONG_KEYS  # it has made none
    hop = Hop("hop-1", known=False)  # it makes other keys than those of the manifest
    assert hop.refuses_to_open(manifest(F)) is Reason.WRONG_KEYS


def test_keys_of_one_attempt_do_not_open_another() -> None:
    hop = Hop("hop-1")
    hop.prepare(manifest(F, 1, 1))
    first = manifest(F, 1, 1)
    stale = tuple(replace(k, attempt=2) for k in first.hop_keys)
    m = manifest(F, 1, 2, hop_keys=tuple(k.signed(identity(k.hop), F.digest, first.head) for k in stale))
    assert hop.refuses(opening(m)) is Reason.WRONG_KEYS


def test_nothing_comes_in_before_an_attempt_is_open() -> None:
    m, hop = manifest(F), Hop("hop-1")
    h = header(m, "silo-1")
    assert hop.refuses(HeaderIn(h, "silo-1")) is Reason.WRONG_MANIFEST
    assert hop.refuses(body(h)) is Reason.WRONG_MANIFEST
    assert hop.refuses(CohortIn(cohort(m, headers(m, F)))) is Reason.WRONG_MANIFEST
    assert hop.feed(Tick(1e9)) == []


# Headers and bodies


def test_a_header_is_passed_on_once() -> None:
    hop, m = opened()
    h = header(m, "silo-1")
    assert hop.feed(HeaderIn(h, "silo-1")) == [Pass(h, private("hop-1", "silo-1", 1))]
    assert hop.feed(HeaderIn(h, "silo-1")) == []


def test_nobody_sends_what_another_should() -> None:
    hop, m = opened()
    h = header(m, "silo-1")
    for sender in ("silo-2", "hop-2", AGGREGATOR):
        assert hop.refuses(HeaderIn(h, sender)) is Reason.UNKNOWN_PEER
    second, _ = opened("hop-2")
    for sender in ("silo-1", "hop-2", "hop-3", AGGREGATOR):
        assert second.refuses(HeaderIn(h, sender)) is Reason.UNKNOWN_PEER
    assert second.feed(HeaderIn(h, "hop-1")) == [Pass(h, private("hop-2", "silo-1", 1))]


def test_only_the_first_hop_takes_bodies_in_and_it_alone_closes() -> None:
    second, m = opened("hop-2")
    h = header(m, "silo-1")
    second.feed(HeaderIn(h, "hop-1"))
    assert second.refuses(body(h)) is Reason.WRONG_CHAIN
    assert second.feed(Tick(61.0)) == []
    assert second.core.state is State.OPEN
    first, _ = opened()
    of = headers(m, F)
    first.submit(*of[:2])
    assert first.refuses(CohortIn(cohort(m, of))) is Reason.WRONG_CHAIN


def receipt_of(effects: list[Effect]) -> Receipt:
    (receipt,) = [e.receipt for e in effects if isinstance(e, Acknowledge)]
    return receipt


def test_a_receipt_is_signed_and_the_same_body_gets_the_same_one_and_counts_once() -> None:
    hop, m = opened()
    h = header(m, "silo-1")
    effects = hop.submit(h)
    assert [type(e) for e in effects] == [Count, Acknowledge]
    receipt = receipt_of(effects)
    verify(F.member("hop-1").key, receipt.digest, receipt.signature, "hop-1")
    assert (receipt.silo, receipt.manifest, receipt.root) == ("silo-1", m.digest, body(h).root)
    for _ in range(3):
        assert hop.feed(body(h)) == [Acknowledge(receipt)]
        assert hop.feed(HeaderIn(h, "silo-1")) == [Acknowledge(receipt)]
    hop.submit(*headers(m, F)[1:])
    assert hop.core.state is State.RELEASING
    assert hop.feed(body(h)) == [Acknowledge(receipt)]  # even when the cohort is closed
    assert hop.feed(HeaderIn(h, "silo-1")) == [Acknowledge(receipt)]


def test_a_body_gets_no_receipt_before_it_is_in_the_sum() -> None:
    """It may come twice at once: the second must neither be added nor be told that the first was."""
    hop, m = opened()
    of = headers(m, F)
    hop.submit(*of[:3])
    hop.feed(HeaderIn(of[3], "silo-4"))
    assert hop.core.step(body(of[3])) == [Count(of[3])]
    assert hop.core.step(body(of[3])) == []
    assert hop.core.step(HeaderIn(of[3], "silo-4")) == []
    assert hop.core.step(Tick(1.0)) == []
    effects = hop.core.step(Counted(of[3]))
    assert [type(e) for e in effects] == [Acknowledge, Remember, Release]
    assert hop.core.step(Counted(of[3])) == []


def test_a_body_that_could_not_be_added_whole_spoils_the_attempt() -> None:
    hop, m = opened()
    of = headers(m, F)
    hop.submit(*of[:3])
    hop.feed(HeaderIn(of[3], "silo-4"))
    hop.core.step(body(of[3]))
    assert hop.feed(Spoiled(bytes(32), "another attempt")) == []
    (abort,) = hop.feed(Spoiled(m.digest, "the disk is full"))
    assert isinstance(abort, Abort)
    assert hop.core.state is State.GIVEN_UP
    assert hop.feed(Counted(of[3])) == []
    assert hop.feed(Tick(60.0)) == []
    assert not hop.core.released


def test_another_body_is_refused_and_the_first_kept() -> None:
    hop, m = opened()
    h, other = header(m, "silo-1"), header(m, "silo-1", 1)
    hop.feed(HeaderIn(other, "silo-1"))
    receipt = receipt_of(hop.submit(h))
    assert hop.refuses(body(other)) is Reason.BODY_CONFLICT
    assert hop.refuses(HeaderIn(header(m, "silo-1", 2), "silo-1")) is Reason.BODY_CONFLICT
    assert hop.refuses(body(h, bytes([7]) * 32)) is Reason.BODY_CONFLICT  # the same seeds, other chunks
    assert hop.feed(body(h)) == [Acknowledge(receipt)]
    effects = hop.submit(*headers(m, F)[1:])
    assert h.digest in {p.header for e in effects if isinstance(e, Release) for p in e.cohort.participants}


def test_a_late_body_is_refused() -> None:
    hop, m = opened()
    of = headers(m, F)
    hop.feed(HeaderIn(of[3], "silo-4"))
    hop.submit(*of[:3])
    assert released(hop.feed(Tick(60.0))) == SILOS[:3]
    assert hop.refuses(body(of[3])) is Reason.COHORT_CLOSED
    assert hop.refuses(HeaderIn(header(m, "silo-4", 1), "silo-4")) is Reason.COHORT_CLOSED


def test_what_belongs_to_another_attempt_is_refused() -> None:
    hop, m = opened()
    old = header(m, "silo-1")
    hop.feed(HeaderIn(old, "silo-1"))
    hop.open(manifest(F, 1, 2))
    assert hop.refuses(HeaderIn(old, "silo-1")) is Reason.WRONG_MANIFEST
    assert hop.refuses(body(old)) is Reason.WRONG_MANIFEST


def test_a_body_that_its_silo_did_not_sign_does_not_count() -> None:
    hop, m = opened()
    h = header(m, "silo-1")
    assert hop.refuses(body(h)) is Reason.WRONG_SEQUENCE  # its header never came
    hop.feed(HeaderIn(h, "silo-1"))
    good = body(h)
    assert hop.refuses(replace(good, root=bytes(32))) is Reason.ROOT_MISMATCH
    assert hop.refuses(replace(good, signed_root=bytes(32))) is Reason.ROOT_MISMATCH
    assert hop.refuses(replace(good, root=bytes(32), signed_root=bytes(32))) is Reason.BAD_SIGNATURE
    assert hop.refuses(replace(good, signature=flipped(good.signature))) is Reason.BAD_SIGNATURE
    assert hop.refuses(body(h, signer="silo-2")) is Reason.BAD_SIGNATURE
    # A trailer covers the header, so no body can be paired with other seeds.
    other = header(m, "silo-1", 1)
    hop.feed(HeaderIn(other, "silo-1"))
    assert hop.refuses(replace(good, header=other)) is Reason.BAD_SIGNATURE
    assert isinstance(hop.feed(good)[0], Count)


def test_a_silo_cannot_make_every_hop_expand_masks_without_end() -> None:
    hop, m = opened()
    for i in range(MOST_HEADERS):
        assert hop.feed(HeaderIn(header(m, "silo-1", i), "silo-1"))
    assert hop.refuses(HeaderIn(header(m, "silo-1", MOST_HEADERS), "silo-1")) is Reason.WRONG_SEQUENCE
    assert hop.feed(HeaderIn(header(m, "silo-2"), "silo-2"))


# Closing


def test_the_cohort_closes_when_all_are_in() -> None:
    hop, m = opened()
    of = headers(m, F)
    assert released(hop.submit(*of[:3])) is None
    effects = hop.submit(of[3])
    assert [type(e) for e in effects] == [Count, Acknowledge, Remember, Release]
    assert released(effects) == SILOS
    found = passed_on(effects)
    assert found is not None
    pad = found.pad
    assert effects[2] == Remember(Padded(1, 1, m.digest, MODEL, F.chain, found.cohort.digest, SILOS, (), b"", pad))
    assert found.roots == tuple(body(h).root for h in of)
    assert not hop.core.released  # nothing can be read yet
    assert hop.core.state is State.RELEASING
    assert hop.feed(Tick(61.0)) == []


@pytest.mark.parametrize(
    ("silos", "quorum", "needed"), [(4, 0.75, 3), (5, 0.8, 4), (5, 0.1, 3), (7, 0.5, 4), (4, 1.0, 4)]
)
def test_the_cohort_closes_at_its_quorum(silos: int, quorum: float, needed: int) -> None:
    f = federation(silos, quorum=quorum)
    hop, m = opened(f=f)
    for i, h in enumerate(headers(m, f)[:needed], 1):
        assert (released(hop.submit(h)) is not None) is (i == needed)


def test_a_quorum_is_not_one_more_for_want_of_binary_digits() -> None:
    f = federation(25, quorum=0.28)  # 25 * 0.28 is 7.000000000000001
    hop, m = opened(f=f)
    assert released(hop.submit(*headers(m, f)[:7])) == f.silo_names[:7]


def test_the_cohort_closes_at_the_deadline() -> None:
    hop, m = Hop("hop-1"), manifest(F)
    hop.open(m, 100.0)
    hop.submit(*headers(m, F)[1:])
    assert hop.core.wake_at() == 160.0
    assert hop.feed(Tick(159.9)) == []
    assert released(hop.feed(Tick(160.0))) == SILOS[1:]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_at_the_deadline_release_nothing(count: int) -> None:
    hop, m = opened()
    of = headers(m, F)
    hop.submit(*of[:count])
    (abort,) = hop.feed(Tick(60.0))
    assert isinstance(abort, Abort)
    assert abort.fault.reason is Reason.COHORT_TOO_SMALL
    hop.feed(Tick(61.0))
    assert hop.refuses(HeaderIn(of[3], "silo-4")) is Reason.COHORT_CLOSED
    assert not hop.core.released
    hop.open(manifest(F, 1, 2), 70.0)  # and a new attempt is free
    assert released(hop.submit(*headers(manifest(F, 1, 2), F))) == SILOS


# The invariant


def shown_for(silos: int = 3) -> tuple[Hop, Manifest]:
    """Hop 1 has shown its pad for some silos, and the others have not: the round goes on."""
    hop, m = opened()
    hop.submit(*headers(m, F)[:silos])
    found = passed_on(hop.feed(Tick(60.0)))
    assert found is not None
    hop.show(m, found.cohort)
    return hop, m


@pytest.mark.parametrize("restart", [False, True])
def test_a_model_that_was_released_is_released_again_for_the_same_silos_only(restart: bool) -> None:
    hop, _ = shown_for()
    if restart:
        hop.restart()
    again = manifest(F, 1, 2)
    hop.open(again)
    # Silo 4 is here now. Were its body added to the sum, two sums would differ by it.
    assert hop.refuses(HeaderIn(header(again, "silo-4"), "silo-4")) is Reason.ALREADY_RELEASED
    assert released(hop.submit(*headers(again, F)[1:3])) is None
    assert released(hop.submit(headers(again, F)[0])) == SILOS[:3]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("signed_for", [False, True])
def test_an_attempt_that_ended_before_the_pads_leaves_the_model_free(restart: bool, signed_for: bool) -> None:
    """Its sum lies under pads that are gone: whoever keeps it has nothing."""
    hop, m = opened()
    hop.submit(*headers(m, F)[:3])
    found = passed_on(hop.feed(Tick(60.0)))
    assert found is not None
    if signed_for:
        agreed = hop.agree(m, found.cohort)
    if restart:
        hop.restart()
    again = manifest(F, 1, 2)
    hop.open(again)
    assert released(hop.submit(*headers(again, F))) == SILOS
    if signed_for:  # all signatures of the first attempt come late
        late = RevealIn(m.digest, agreement(agreed.digest, m.chain))
        assert hop.refuses(late) is Reason.FENCED
    assert not hop.core.released


@pytest.mark.parametrize("restart", [False, True])
def test_without_the_silos_that_were_released_nothing_is(restart: bool) -> None:
    hop, _ = shown_for()
    if restart:
        hop.restart()
    again = manifest(F, 1, 2)
    hop.open(again)
    hop.submit(*headers(again, F)[1:3])
    (abort,) = hop.feed(Tick(60.0))
    assert isinstance(abort, Abort)
    assert abort.fault.reason is Reason.ALREADY_RELEASED
    assert "silo-1" in abort.fault.message


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", ["hop-1", "hop-2"])
def test_what_was_released_holds_in_the_next_round_on_that_model_too(name: str, restart: bool) -> None:
    """Rule R3: the key of a fact is the model. The round was abandoned, so the next one starts from the same model."""
    hop, m = opened(name)
    of = headers(m, F)
    if name == "hop-1":
        hop.submit(*of[:3])
        hop.feed(Tick(60.0))
    else:
        hop.relayed(m, of)
        hop.feed(CohortIn(cohort(m, of[:3])))
    agreed = hop.show(m, cohort(m, of[:3]))
    gone = recorded(hop.log, attempts=(attempted(m, agreed, SILOS[:3]),))
    log = extended(hop.log, counted(gone, F))
    hop.catch_up(log.head)
    if restart:
        hop.restart()
    again = manifest(F, 2, log=log)
    hop.open(again)
    of = headers(again, F)
    if name == "hop-1":
        assert hop.refuses(HeaderIn(of[3], "silo-4")) is Reason.ALREADY_RELEASED
        assert released(hop.submit(*of[:3])) == SILOS[:3]
    else:
        hop.relayed(again, of)
        assert hop.refuses(CohortIn(cohort(again, of))) is Reason.ALREADY_RELEASED
        assert released(hop.feed(CohortIn(cohort(again, of[:3])))) == SILOS[:3]


def test_a_later_hop_believes_one_cohort() -> None:
    hop, m = opened("hop-2")
    of = headers(m, F)
    hop.relayed(m, of)
    c = cohort(m, of[:3])
    effects = hop.feed(CohortIn(c))
    pad = hop.core.padded[m.digest].pad
    fact = Padded(1, 1, m.digest, MODEL, F.chain, c.digest, SILOS[:3], (), b"", pad)
    assert effects == [Remember(fact), Release(c, None, pad)]
    hop.relayed(m, of)
    assert hop.feed(CohortIn(c)) == []  # a broken stream begins anew, and what it brings is known
    assert hop.refuses(CohortIn(cohort(m, of))) is Reason.ALREADY_RELEASED
    assert hop.refuses(CohortIn(cohort(m, of[1:]))) is Reason.ALREADY_RELEASED
    assert hop.refuses(HeaderIn(header(m, "silo-4", 1), "hop-1")) is Reason.COHORT_CLOSED


def test_a_later_hop_takes_no_second_choice_of_headers_in_one_attempt() -> None:
    hop, m = opened("hop-2")
    of = headers(m, F)
    hop.relayed(m, [*of, header(m, "silo-1", 1)])
    hop.feed(CohortIn(cohort(m, of)))
    assert hop.refuses(CohortIn(cohort(m, [header(m, "silo-1", 1), *of[1:]]))) is Reason.ALREADY_RELEASED


def test_one_silo_cannot_pass_for_three() -> None:
    """Hop 1 and the aggregator in league: take the masks of one silo off under the names of three."""
    hop, m = opened("hop-2")
    of = headers(m, F)
    hop.relayed(m, of)
    alone = Cohort(m.digest, tuple(Participant(silo, of[0].digest) for silo in SILOS[:3]))
    assert hop.refuses(CohortIn(signed(alone, "hop-1"))) is Reason.WRONG_SEQUENCE


@pytest.mark.parametrize("crash", [0, 1])
def test_a_hop_that_is_killed_while_it_passes_a_sum_on_never_changes_its_mind(crash: int) -> None:
    hop, m = opened("hop-2")
    of = headers(m, F)
    hop.relayed(m, of)
    hop.feed(CohortIn(cohort(m, of[:3])), crash)
    first = hop.core.padded.get(m.digest)
    hop.open(m)
    hop.relayed(m, of)
    if crash == 0:  # nothing was written, so nothing left: any cohort may be the one
        assert first is None
        assert released(hop.feed(CohortIn(cohort(m, of)))) == SILOS
    else:
        assert first is not None
        assert hop.refuses(CohortIn(cohort(m, of))) is Reason.ALREADY_RELEASED
        effects = hop.feed(CohortIn(cohort(m, of[:3])))
        assert effects == [Release(cohort(m, of[:3]), None, first.pad)]  # byte for byte what left it before
        assert hop.feed(CohortIn(cohort(m, of[:3]))) == []


@pytest.mark.parametrize("crash", [1, 2])
def test_hop_1_closes_an_attempt_for_one_cohort_also_if_it_is_killed(crash: int) -> None:
    hop, m = opened()
    of = headers(m, F)
    hop.submit(*of[:3])
    hop.feed(Tick(60.0), crash)
    if crash == 2:
        hop.restart()
    pad = hop.core.padded[m.digest].pad
    hop.open(m)
    (abort,) = [e for e in hop.submit(*of) if isinstance(e, Abort)]
    assert abort.fault.reason is Reason.ALREADY_RELEASED
    hop.restart()
    hop.open(m)
    hop.submit(*of[:3])
    (release,) = hop.feed(Tick(60.0))
    assert isinstance(release, Release)
    assert (release.cohort.silos, release.pad) == (SILOS[:3], pad)


STORIES: dict[bytes, Manifest] = {}


@cache
def story(head: bytes, attempt: int, told: int) -> Manifest:
    """What the aggregator may tell this hop: any attempt at the round after this record, and one of two stories."""
    m = manifest(F, LOGS[head].round, attempt, log=LOGS[head], minimum_cohort=(3, 4)[told])
    return STORIES.setdefault(m.digest, m)


@cache
def seeds(m: bytes, silo: str, number: int) -> Header:
    return header(STORIES[m], silo, number)


SUBSET = st.sampled_from([SILOS, SILOS, SILOS[:3], SILOS[:3], SILOS[1:], SILOS[:2] + SILOS[3:], SILOS[:2]])
SELDOM = st.sampled_from([False, False, False, False, True])
NUMBER = st.sampled_from([0, 0, 0, 1])
SURVIVES = st.sampled_from([NEVER, NEVER, NEVER, 0, 1, 2])


def attempted_for(fact: Released) -> Attempted:
    """What an honest record says of an attempt in which this hop has shown its pad."""
    signatures = agreement(fact.agreed, F.chain)
    return Attempted(fact.attempt, fact.manifest, F.chain, fact.agreed, fact.silos, signatures)


class Attacked(RuleBasedStateMachine):
    """One honest hop, and everybody else in league: they sign what they like, and kill the hop when they like."""

    name = "hop-1"

    def __init__(self) -> None:
        super().__init__()
        self.hop = Hop(self.name)
        self.past: dict[bytes, tuple[str, ...]] = {}  # by model: for whom a pad was shown
        self.signed: dict[bytes, bytes] = {}  # by manifest
        self.passed: dict[bytes, tuple[bytes, bytes]] = {}  # by manifest: cohort and pad
        self.fenced = (0, 0)
        self.counted: set[str] = set()  # whose bodies are in the sum, as the process would add them up
        self.now = 0.0
        self.told = story(past(F).head, 1, 0)

    def feed(self, event: Event, survives: int = NEVER) -> None:
        durable: list[object] = list(self.hop.journal)
        shown = {f.manifest for f in self.hop.journal if isinstance(f, Released)}
        try:
            effects = self.hop.feed(event, survives)
        except PeerFault:
            return
        for effect in effects:
            if isinstance(effect, Begin):
                self.counted = set()
            if isinstance(effect, Count):
                assert effect.header.silo not in self.counted
                self.counted.add(effect.header.silo)
            if isinstance(effect, Remember):
                durable.append(effect.fact)
            if isinstance(effect, Release):
                self.passes_on(effect, durable)
            if isinstance(effect, Keys) and isinstance(event, Prepare):
                self.fenced = max(self.fenced, (event.round, event.attempt))
            if isinstance(effect, Agree | Reveal):
                assert isinstance(event, ReadyIn | RevealIn)
                m = STORIES[event.manifest]
                assert m.digest in shown or (m.round, m.attempt) >= self.fenced  # a fence holds
            if isinstance(effect, Agree):
                agreed = self.hop.core.signed[m.digest].agreed
                verify(identity(self.name).public, agreed, effect.signature, self.name)
                assert self.signed.setdefault(m.digest, agreed) == agreed
                assert agreed in {f.agreed for f in durable if isinstance(f, Signed)}
            if isinstance(effect, Reveal):
                self.shows(event, effect, durable)

    def passes_on(self, effect: Release, durable: list[object]) -> None:
        m, silos = STORIES[effect.cohort.manifest], effect.cohort.silos
        facts = [f for f in durable if isinstance(f, Padded) and f.manifest == m.digest]
        assert [(f.cohort, f.silos, f.pad) for f in facts] == [(effect.cohort.digest, silos, effect.pad)]
        assert self.passed.setdefault(m.digest, (effect.cohort.digest, effect.pad.value)) == (
            effect.cohort.digest,
            effect.pad.value,
        )  # one cohort and one pad in an attempt
        assert len(silos) >= 3
        assert self.counted == (set(silos) if m.chain[0] == self.name else set())
        for p in effect.cohort.participants:  # each name with a header of its own
            assert p.header in {seeds(m.digest, p.silo, n).digest for n in (0, 1)}

    def shows(self, event: Event, effect: Reveal, durable: list[object]) -> None:
        """The fact is durable before a pad is out, and one cohort has a model for ever."""
        assert isinstance(event, RevealIn)
        m = STORIES[event.manifest]
        (fact,) = {f for f in durable if isinstance(f, Released) and f.manifest == m.digest}
        assert fact.agreed == self.signed[m.digest]
        assert self.passed[m.digest][1] == effect.pad.value
        check_agreed(fact.agreed, event.signatures, m.chain, F)
        assert self.past.setdefault(fact.model, fact.silos) == fact.silos

    @rule(told=NUMBER, stale=SELDOM, newer=st.sampled_from([-1, 0, 0, 1]), survives=SURVIVES)
    def open(self, told: int, stale: bool, newer: int, survives: int) -> None:
        """An attempt at the round that is next here; or at the one before, which is over."""
        attempt = min(max(1, self.told.attempt + newer), 12)
        log = self.hop.log
        last = log.last
        assert last is not None
        self.told = story(last.previous if stale and log.round > 1 else log.head, attempt, told)
        number = (self.told.round, attempt, SILOS, self.hop.core.last_released, self.told.head)
        self.feed(prepare(*number))
        self.feed(opening(self.told, self.now), survives)

    @rule(survives=SURVIVES, honest=st.booleans(), wanted=SELDOM)
    def record(self, survives: int, honest: bool, wanted: bool) -> None:
        """The round is over without a sum: this hop stores that only if it is told all that it has released."""
        log = self.hop.log
        if not wanted or log.round > 2:
            return
        facts = [f for f in self.hop.journal if isinstance(f, Released) and f.round == log.round]
        tried = sorted({f.attempt: f for f in facts if honest}.items())
        attempts = tuple(attempted_for(f) for _, f in tried)
        record = counted(recorded(log, attempts=attempts), F)
        extended(log, record)
        self.feed(RecordIn(record), survives)
        if self.hop.core.log.head == record.digest:
            assert {f.agreed for f in facts} <= {one.agreed for one in attempts}

    def padded(self) -> Padded | None:
        """What this hop has passed on in the attempt that it is told of, if it has."""
        return self.hop.core.padded.get(self.told.digest)

    @rule(lie=st.sampled_from(["", "", "", "pad", "cohort", "short"]), survives=SURVIVES)
    def agree(self, lie: str, survives: int) -> None:
        """All others have signed a trail; the aggregator may put together what it likes."""
        padded = self.padded()
        if padded is None:
            return
        trails = list(self.trails(padded))
        place = self.told.chain.index(self.name)
        if lie == "pad":
            trails[place] = replace(trails[place], pad=bytes(32)).signed(identity(self.name))
        if lie == "cohort":
            trails = [replace(t, cohort=bytes(32)).signed(identity(t.hop)) for t in trails]
        if lie == "short":
            trails = trails[:-1]
        self.feed(ReadyIn(self.told.digest, tuple(trails)), survives)

    def trails(self, padded: Padded) -> tuple[Trail, ...]:
        came, trails = bytes([5]) * 32, []
        for hop in self.told.chain:
            digest = pad_digest(padded.pad) if hop == self.name else bytes([6]) * 32
            trail = Trail(hop, padded.cohort, b"", came, hashlib.sha256(came).digest(), digest).signed(identity(hop))
            trails.append(trail)
            came = trail.sent
        return tuple(trails)

    @rule(lie=st.sampled_from(["", "", "", "missing", "forged"]), survives=SURVIVES, old=st.booleans())
    def reveal(self, lie: str, survives: int, old: bool) -> None:
        """With all signatures, or without one, or with one that is forged; also of an attempt that is over."""
        known = list(self.signed) if old else [self.told.digest]
        for name in known:
            signatures = agreement(self.signed.get(name, bytes(32)), STORIES[name].chain)
            if lie == "missing":
                signatures = signatures[:-1]
            if lie == "forged":
                signatures = (*signatures[:-1], (AGGREGATOR, bytes(64)))
            self.feed(RevealIn(name, signatures), survives)

    @rule(silos=SUBSET, number=NUMBER, sender=st.sampled_from(["", "", "", "silo-1", "hop-2", AGGREGATOR]))
    def headers(self, silos: tuple[str, ...], number: int, sender: str = "") -> None:
        for silo in silos:
            usual = silo if self.told.chain[0] == self.name else self.told.chain[0]
            self.feed(HeaderIn(seeds(self.told.digest, silo, number), sender or usual))

    @rule(silos=SUBSET, number=NUMBER, forged=SELDOM, survives=SURVIVES)
    def bodies(self, silos: tuple[str, ...], number: int, forged: bool, survives: int) -> None:
        for silo in silos:
            h = seeds(self.told.digest, silo, number)
            self.feed(body(h, signer="silo-1" if forged else ""), survives if silo == silos[-1] else NEVER)

    @rule(silos=SUBSET, number=NUMBER, forged=SELDOM, one_for_all=SELDOM, survives=SURVIVES)
    def cohort(self, silos: tuple[str, ...], number: int, forged: bool, one_for_all: bool, survives: int) -> None:
        digests = [seeds(self.told.digest, silos[0] if one_for_all else silo, number).digest for silo in silos]
        c = Cohort(self.told.digest, tuple(map(Participant, silos, digests)))
        self.feed(CohortIn(signed(c, AGGREGATOR if forged else self.told.chain[0])), survives)

    @rule(
        silo=st.sampled_from(SILOS),
        number=NUMBER,
        recipient=st.sampled_from(["hop-1", "hop-2", AGGREGATOR]),
        whose=st.sampled_from(["", "", "silo-1"]),
        survives=SURVIVES,
    )
    def accuse(self, silo: str, number: int, recipient: str, whose: str, survives: int) -> None:
        """Show a key that opens nothing, or another than the one that was made for this silo."""
        h = seeds(self.told.digest, silo, number)
        key = private(recipient, whose or silo, self.told.round, self.told.attempt)
        self.feed(EvidenceIn(evidence(self.told, h, recipient, key)), survives)

    @rule(silo=st.sampled_from(SILOS), number=NUMBER, survives=SURVIVES)
    def unopened(self, silo: str, number: int, survives: int) -> None:
        self.feed(Unopened(seeds(self.told.digest, silo, number)), survives)

    @rule(later=st.sampled_from([1.0, 60.0, 60.0]), survives=SURVIVES)
    def tick(self, later: float, survives: int) -> None:
        self.now += later
        self.feed(Tick(self.now), survives)

    @rule(silos=SUBSET, newer=st.sampled_from([0, 1, 1, 1]), told=NUMBER, shown=st.booleans(), survives=SURVIVES)
    def attempt(self, silos: tuple[str, ...], newer: int, told: int, shown: bool, survives: int) -> None:
        """An attempt as it should be, but for the silos; perhaps in the place of another one."""
        self.open(told, False, newer, NEVER)
        self.headers(SILOS, 0)
        self.bodies(silos, 0, False, survives)
        self.cohort(silos, 0, False, False, survives)
        self.tick(60.0, survives)
        self.agree("", survives)
        if shown:
            self.reveal("", survives, False)

    @rule(silos=SUBSET, others=SUBSET)
    def twice(self, silos: tuple[str, ...], others: tuple[str, ...]) -> None:
        """Two stories of one attempt for two cohorts, with the hop killed in between, and then both are shown."""
        self.attempt(silos, 1, 0, False, NEVER)
        self.feed(Delivered(self.told.digest))
        self.hop.restart()
        self.attempt(others, 0, 1, False, NEVER)
        self.reveal("", NEVER, True)

    @rule()
    def restart(self) -> None:
        self.hop.restart()

    @rule(known=st.booleans())
    def delivered(self, known: bool) -> None:
        self.feed(Delivered(self.told.digest if known else bytes(32)))


class AttackedFirst(Attacked):
    """The honest hop stands first in the usual chain."""


class AttackedSecond(Attacked):
    """The honest hop stands second, behind one that lies."""

    name = "hop-2"


FEW = settings(max_examples=examples(40), stateful_step_count=15)
TestAttackedFirst = AttackedFirst.TestCase
TestAttackedSecond = AttackedSecond.TestCase
TestAttackedFirst.settings = FEW
TestAttackedSecond.settings = FEW
