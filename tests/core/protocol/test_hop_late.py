"""What comes at a hop too late, twice, or while something else is under way: it changes nothing that was decided."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.core.protocol.federations import (
    agreement,
    body,
    bond,
    cohort,
    evidence,
    federation,
    header,
    headers,
    identity,
    lived,
    manifest,
    past,
    rng,
)
from tests.core.protocol.hops import SILOS, F, Hop, opened, opening, passed_on, released
from tests.core.protocol.test_epochs import BOTH, E1, E2, LOG

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.hearing import MOST_AHEAD, MOST_TOLD, Shown, life_after
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Header, Manifest
from silomix.runtime.core.protocol.rules import MOST_ATTEMPTS
from silomix.runtime.core.protocol.shuffler import (
    UNFIT_ROUNDS,
    Abort,
    Accuse,
    Accused,
    Acknowledge,
    Closed,
    CohortIn,
    Convicted,
    Count,
    Counted,
    Delivered,
    Drop,
    Event,
    EvidenceIn,
    HeaderIn,
    PadGone,
    Prepare,
    Released,
    RevealIn,
    SendRefused,
    Show,
    Shows,
    Shuffler,
    Spoiled,
    State,
    Tick,
    Unopened,
)

LATE = 1e9
FAULT = PeerFault(Reason.WRONG_SEQUENCE, "the next hop will not have it")


def ask(round_: int = 1, attempt: int = 1, life: bytes = b"") -> Prepare:
    return Prepare(F.digest, round_, attempt, SILOS, 0, past(F, round_ - 1).head, 0.0, life)


def sent(m: Manifest, silo: str) -> Header:
    """A silo's header, with its share of the coin where there is a tamper check."""
    h = header(m, silo)
    return replace(h, coin=bytes(32)).signed(identity(silo)) if m.plan.level is Level.MALICIOUS else h


# States that are over


def expired() -> tuple[Hop, Manifest]:
    """Time ran out while the last body was being added."""
    hop, m = opened()
    of = headers(m, F)
    hop.submit(*of[:3])
    hop.feed(HeaderIn(of[3], "silo-4"))
    assert hop.core.step(body(of[3])) == [Count(of[3])]
    hop.feed(Tick(LATE))
    assert hop.core.state is State.IDLE
    return hop, m


def closed() -> tuple[Hop, Manifest]:
    """The cohort closed without a silo whose body was being added."""
    hop, m = opened()
    of = headers(m, F)
    hop.submit(*of[:3])
    hop.feed(HeaderIn(of[3], "silo-4"))
    assert hop.core.step(body(of[3])) == [Count(of[3])]
    assert released(hop.feed(Tick(60.0))) == SILOS[:3]
    assert hop.core.state is State.RELEASING
    return hop, m


def done() -> tuple[Hop, Manifest]:
    hop, m = closed()
    hop.feed(Delivered(m.digest))
    assert hop.core.state is State.DONE
    return hop, m


def checked() -> tuple[Hop, Manifest]:
    """The same where a tamper check follows, so that the keys are still here."""
    hop, m = opened(f=federation(level=Level.MALICIOUS))
    of = [sent(m, silo) for silo in SILOS]
    hop.submit(*of[:3])
    hop.feed(HeaderIn(of[3], "silo-4"))
    assert hop.core.step(body(of[3])) == [Count(of[3])]
    assert released(hop.feed(Tick(60.0))) == SILOS[:3]
    hop.feed(Delivered(m.digest))
    assert hop.core.state is State.DONE
    return hop, m


def given_up() -> tuple[Hop, Manifest]:
    """The attempt was lost after its headers had come."""
    hop, m = opened()
    for h in headers(m, F):
        hop.feed(HeaderIn(h, h.silo))
    hop.feed(Spoiled(m.digest, "the disk is full"))
    assert hop.core.state is State.GIVEN_UP
    return hop, m


NEWS: dict[str, Callable[[Manifest], Event]] = {
    "a seed does not open": lambda m: Unopened(sent(m, "silo-4")),
    "a seed of the cohort does not open": lambda m: Unopened(sent(m, "silo-1")),
    "a body is in the sum": lambda m: Counted(sent(m, "silo-4")),
    "a body could not be added": lambda m: Spoiled(m.digest, "the disk is full"),
    "the next hop refused": lambda m: SendRefused(m.digest, FAULT),
    "the sum came through": lambda m: Delivered(m.digest),
    "a silo sealed garbage": lambda m: EvidenceIn(evidence(m, sent(m, "silo-4"), "hop-2")),
}
OVER = {expired: set(NEWS) - {"a silo sealed garbage"}, done: set(NEWS), checked: set(NEWS)}
OVER[closed] = {"a seed does not open", "a seed of the cohort does not open", "a body is in the sum"}
OVER[given_up] = set(NEWS) - {"a silo sealed garbage"}


@pytest.mark.parametrize(("made", "news"), [(made, news) for made, all_of in OVER.items() for news in sorted(all_of)])
def test_news_of_what_is_over_changes_nothing_and_gives_nobody_a_receipt(
    made: Callable[[], tuple[Hop, Manifest]], news: str
) -> None:
    """What a sum is on its way for, is given up for, or has come through for, is settled."""
    hop, m = made()
    state, facts, unfit = hop.core.state, list(hop.journal), dict(hop.core.unfit)
    assert hop.feed(NEWS[news](m)) == []
    assert (hop.core.state, hop.journal, hop.core.unfit) == (state, facts, unfit)


@pytest.mark.parametrize("news", sorted(set(NEWS) - {"a silo sealed garbage"}))
def test_news_of_an_attempt_from_before_a_restart_changes_nothing(news: str) -> None:
    hop, m = opened()
    hop.restart()
    assert hop.feed(NEWS[news](m)) == []
    assert hop.core.state is State.IDLE


def test_nothing_comes_into_an_attempt_that_was_given_up() -> None:
    hop, m = given_up()
    assert hop.refuses(body(header(m, "silo-1"))) is Reason.COHORT_CLOSED
    second, m = opened("hop-2")
    second.relayed(m, headers(m, F))
    second.feed(SendRefused(m.digest, FAULT))
    assert second.core.state is State.GIVEN_UP
    assert second.refuses(CohortIn(cohort(m, headers(m, F)))) is Reason.COHORT_CLOSED


def test_no_second_sum_follows_one_that_has_come_through() -> None:
    hop, m = opened("hop-2")
    hop.relayed(m, headers(m, F))
    hop.feed(CohortIn(cohort(m, headers(m, F))))
    hop.feed(Delivered(m.digest))
    assert hop.refuses(CohortIn(cohort(m, headers(m, F)))) is Reason.WRONG_MANIFEST


def test_whoever_asks_for_the_attempt_before_there_is_one_is_refused() -> None:
    hop = Hop("hop-1")
    with pytest.raises(PeerFault) as caught:
        _ = hop.core.manifest
    assert caught.value.reason is Reason.WRONG_MANIFEST


# Keys, pads and fences


def test_an_attempt_whose_sum_came_through_gets_no_second_keys() -> None:
    """They would be other keys than those in its manifest, and nothing would delete them before the record."""
    hop, m = opened()
    hop.submit(*headers(m, F))
    hop.feed(Delivered(m.digest))
    assert not hop.core.keys
    assert hop.refuses(ask()) is Reason.WRONG_ATTEMPT
    assert not hop.core.keys


def test_no_keys_are_thrown_away_for_an_attempt_that_comes_before_them() -> None:
    hop = Hop("hop-1")
    hop.catch_up(past(F, 1).head)
    hop.feed(ask(2))
    assert hop.refuses(ask(2, 0)) is Reason.WRONG_ATTEMPT
    assert set(hop.core.keys) == {(2, 1)}


@pytest.mark.parametrize("again", ["keys", "opening"])
def test_a_further_attempt_that_is_asked_for_again_keeps_its_own_pad(again: str) -> None:
    """What left the hop lies under it. Only those of earlier attempts are destroyed."""
    hop, m = opened(attempt=2)
    found = passed_on(hop.submit(*headers(m, F)))
    assert found is not None
    hop.restart()
    effects = hop.feed(ask(1, 2) if again == "keys" else opening(m))
    assert not any(isinstance(e, Remember) and isinstance(e.fact, PadGone) for e in effects)
    assert hop.core.padded[m.digest].pad == found.pad
    hop.agree(m, found.cohort)


def test_a_fence_stays_where_it_is_in_whatever_order_the_journal_gives_attempts_back() -> None:
    """A journal sorts the numbers of attempts as text: the tenth comes before the ninth."""
    hop = Hop("hop-1")
    hop.journal += [Closed(1, 10), Closed(1, 9)]
    hop.restart()
    assert hop.refuses(ask(1, 9)) is Reason.WRONG_ATTEMPT
    assert hop.refuses_to_open(manifest(F, 1, 9)) is Reason.FENCED


# Bodies


def test_another_header_is_refused_while_a_body_is_being_added() -> None:
    hop, m = opened()
    first, other = header(m, "silo-1"), header(m, "silo-1", 1)
    hop.feed(HeaderIn(first, "silo-1"))
    assert hop.core.step(body(first)) == [Count(first)]
    with pytest.raises(PeerFault) as caught:
        hop.core.step(HeaderIn(other, "silo-1"))
    assert caught.value.reason is Reason.BODY_CONFLICT


def test_a_body_with_other_seeds_is_another_body_also_if_its_chunks_are_the_same() -> None:
    """The masks that hops take off are those of the header: a receipt for this one would be a lie."""
    hop, m = opened()
    first, other = header(m, "silo-1"), header(m, "silo-1", 1)
    for h in (first, other):
        hop.feed(HeaderIn(h, "silo-1"))
    hop.feed(body(first, bytes([7]) * 32))
    assert hop.refuses(body(other, bytes([7]) * 32)) is Reason.BODY_CONFLICT


def test_a_body_is_kept_out_of_a_sum_for_others_also_if_its_header_came_before_that_was_settled() -> None:
    """The hop was killed after it signed. Silo 4's header comes, then the pad is shown, and then silo 4's body."""
    hop, m = opened()
    hop.submit(*headers(m, F)[:3])
    found = passed_on(hop.feed(Tick(60.0)))
    assert found is not None
    agreed = hop.agree(m, found.cohort)
    hop.restart()
    hop.open(m)
    late = header(m, "silo-4")
    hop.feed(HeaderIn(late, "silo-4"))
    hop.feed(RevealIn(m.digest, agreement(agreed.digest, m.chain)))
    assert hop.refuses(body(late)) is Reason.ALREADY_RELEASED


def test_a_body_of_an_earlier_attempt_that_is_added_late_gives_no_receipt_in_the_next() -> None:
    hop, first = opened()
    old = header(first, "silo-1")
    hop.feed(HeaderIn(old, "silo-1"))
    assert hop.core.step(body(old)) == [Count(old)]
    m = manifest(F, 1, 2)
    hop.open(m)
    assert hop.core.step(Counted(old)) == []  # nothing of this silo is being added now
    new = header(m, "silo-1")
    hop.feed(HeaderIn(new, "silo-1"))
    assert hop.core.step(body(new)) == [Count(new)]
    assert hop.core.step(Counted(old)) == []


# Silos that sit out


@pytest.mark.parametrize("added", [False, True])
def test_an_attempt_is_lost_if_a_silo_that_sealed_garbage_is_in_its_sum_or_on_its_way_into_it(added: bool) -> None:
    hop, m = opened()
    bad = header(m, "silo-2")
    hop.feed(HeaderIn(bad, "silo-2"))
    assert hop.core.step(body(bad)) == [Count(bad)]
    if added:
        assert [type(e) for e in hop.core.step(Counted(bad))] == [Acknowledge]
    effects = hop.feed(EvidenceIn(evidence(m, bad, "hop-2")))
    assert [type(e) for e in effects] == [Remember, Drop, Abort]
    assert isinstance(effects[-1], Abort)
    assert effects[-1].fault.reason is Reason.SEAL_BROKEN


def test_an_attempt_that_is_lost_writes_the_same_evidence_down_once() -> None:
    hop, m = given_up()
    shown = evidence(m, header(m, "silo-2"), "hop-2")
    assert hop.feed(EvidenceIn(shown)) == [Remember(Accused(1, shown))]
    assert hop.feed(EvidenceIn(shown)) == []


def test_no_hop_accuses_a_silo_where_nothing_is_sealed() -> None:
    f = federation(level=Level.TRUSTED)
    hop, m = opened(f=f)
    h = header(m, "silo-1")
    hop.feed(HeaderIn(h, "silo-1"))
    assert hop.feed(Unopened(h)) == []
    assert not hop.core.unfit


LONG = federation(rounds=20)


@pytest.mark.parametrize("accused", [False, True])
def test_a_silo_sits_out_for_the_newest_that_was_shown_of_it(accused: bool) -> None:
    """A lie that was found out late is of an earlier round, and does not let a silo back in before its time."""
    hop, m = Hop("hop-1", LONG), manifest(LONG, UNFIT_ROUNDS + 1)
    old = manifest(LONG)
    if accused:
        hop.journal.append(Accused(2, evidence(old, header(old, "silo-1"), "hop-2")))
        hop.journal.append(Convicted(1, "silo-1", bytes(32)))
    hop.journal.append(Convicted(2, "silo-2", bytes(32)))
    hop.journal.append(Convicted(1, "silo-3", bytes(32)))
    hop.restart()
    hop.open(m)
    if accused:
        assert hop.refuses(HeaderIn(header(m, "silo-1"), "silo-1")) is Reason.SEAL_BROKEN
    assert hop.refuses(HeaderIn(header(m, "silo-2"), "silo-2")) is Reason.SEAL_BROKEN
    assert hop.feed(HeaderIn(header(m, "silo-3"), "silo-3"))  # its rounds are over


def test_garbage_does_not_let_a_silo_back_in_that_sits_out_for_longer() -> None:
    """Others were a round ahead when they found its lie out, and its header had come before this hop heard of that."""
    hop, m = opened(f=LONG)
    h = header(m, "silo-1")
    hop.feed(HeaderIn(h, "silo-1"))
    hop.core.recall(Convicted(2, "silo-1", bytes(32)))
    assert any(isinstance(e, Accuse) for e in hop.feed(Unopened(h)))
    m = manifest(LONG, UNFIT_ROUNDS + 1)
    hop.open(m)
    assert hop.refuses(HeaderIn(header(m, "silo-1"), "silo-1")) is Reason.SEAL_BROKEN


# An aggregator that begins


def show(life: bytes) -> Show:
    return Show(F.digest, life, 0, lived(life, F))


def shown(hop: Hop, life: bytes = b"") -> Shown:
    answer = hop.feed(show(life))[-1]
    assert isinstance(answer, Shows)
    return answer.shown


def test_attempts_of_a_round_that_is_over_are_not_told_as_those_of_the_next() -> None:
    hop = Hop("hop-1")
    hop.feed(ask(1, 3))
    assert shown(hop).attempt == 3
    hop.catch_up(past(F, 1).head)
    assert shown(hop).attempt == 0
    hop.feed(ask(2))
    assert shown(hop).attempt == 1


def test_releases_without_a_proof_take_no_place_from_the_one_that_has_it() -> None:
    """An aggregator believes nobody's bare word: the proof is what it is told for."""
    hop, model = Hop("hop-1"), manifest(F).model
    proof = bond(SILOS)
    facts = [Released(1, a, bytes([a]) * 32, bytes(32), SILOS, model) for a in range(2, MOST_TOLD + 2)]
    hop.journal += [Released(1, 1, bytes([1]) * 32, bytes(32), SILOS, model, (), proof), *facts]
    hop.restart()
    assert [(told.attempt, told.bond) for told in shown(hop).told] == [(1, proof)]


def test_an_aggregator_that_is_not_served_is_told_whether_another_came_after_it() -> None:
    hop = Hop("hop-1")
    lives = [life_after(number, rng(number)) for number in range(3)]
    shown(hop, lives[1])
    messages = []
    for life in (lives[0], lives[2]):
        with pytest.raises(PeerFault) as caught:
            hop.feed(ask(life=life))
        assert caught.value.reason is Reason.SUPERSEDED
        messages.append(caught.value.message)
    assert "one that began later (number 2) is served" in messages[0]
    assert messages[1].endswith("show it")


def test_a_hop_remembers_an_aggregator_only_if_it_began_later() -> None:
    """What it remembered of an earlier one would count after its next start."""
    hop = Hop("hop-1")
    lives = [life_after(number, rng(number)) for number in range(2)]
    heard = [len(hop.feed(show(life))) - 1 for life in (lives[1], lives[1], lives[0])]
    assert heard == [1, 0, 0]
    hop.restart()
    later = shown(hop, lives[0])
    assert (later.life, later.signature) == (lives[1], lived(lives[1], F))


def test_a_hop_hears_no_process_that_the_aggregator_has_not_signed_for() -> None:
    """Whoever can call in its name, for a moment and without its key, shuts out no process of it."""
    hop, life = Hop("hop-1"), life_after(0, rng())
    for signature in (b"", bytes(64), lived(life, F, "hop-1"), lived(life_after(1, rng()), F)):
        assert hop.refuses(Show(F.digest, life, 0, signature)) is Reason.BAD_SIGNATURE
    assert hop.core.life == b""
    hop.feed(show(life))
    assert hop.core.life == life


def test_a_process_of_the_aggregator_is_signed_with_the_key_of_its_epoch() -> None:
    """The key may have changed between the two; and whoever has found the old one can do nothing with it."""
    renamed = replace(E2, aggregator=replace(E2.aggregator, key=identity("new key").public))
    machine = Shuffler(E1, identity("hop-1"), rng(), Epochs((E1, renamed)))
    life = life_after(0, rng())
    old, new = lived(life, E1), lived(life, E1, "new key")
    for asks, signature in ((E1, new), (renamed, old)):
        with pytest.raises(PeerFault) as caught:
            machine.step(Show(asks.digest, life, 0, signature))
        assert caught.value.reason is Reason.BAD_SIGNATURE
    for asks, signature in ((renamed, new), (E1, old)):
        assert isinstance(machine.step(Show(asks.digest, life, 0, signature))[-1], Shows)
    assert machine.life == life


def test_no_aggregator_takes_a_number_that_no_later_one_could_go_beyond() -> None:
    """Who has had the aggregator's key for a moment could shut it out for ever."""
    hop = Hop("hop-1")
    shown(hop, life_after(0, rng()))
    far = life_after(1 + MOST_AHEAD, rng())
    assert hop.refuses(show(far)) is Reason.MALFORMED
    assert shown(hop, life_after(MOST_AHEAD, rng())).life == life_after(MOST_AHEAD, rng())


def test_a_hop_that_is_new_in_a_later_epoch_asks_for_the_history_and_does_not_say_that_it_is_another() -> None:
    """It holds no record yet: what it lacks is sent to it, and then it serves."""
    machine = Shuffler(E2, identity("hop-1"), rng(), BOTH)
    asked = Prepare(E2.digest, LOG.round, 1, E2.silo_names, 0, LOG.head, 0.0)
    with pytest.raises(PeerFault) as caught:
        machine.step(asked)
    assert caught.value.reason is Reason.WRONG_HEAD


def test_no_keys_are_made_for_an_attempt_that_no_round_has() -> None:
    hop = Hop("hop-1", known=False)
    hop.catch_up(past(F, 1).head)
    for attempt in (0, MOST_ATTEMPTS + 1):
        assert hop.refuses(ask(2, attempt)) is Reason.WRONG_ATTEMPT
    hop.feed(ask(2, 1))


def test_late_word_of_an_earlier_body_does_not_lose_the_one_that_is_being_added() -> None:
    hop, first = opened()
    old = header(first, "silo-1")
    m = manifest(F, 1, 2)
    hop.open(m)
    new = header(m, "silo-1")
    hop.feed(HeaderIn(new, "silo-1"))
    assert hop.core.step(body(new)) == [Count(new)]
    assert hop.core.step(Counted(old)) == []
    assert any(isinstance(effect, Acknowledge) for effect in hop.core.step(Counted(new)))
