"""Rule R4: nobody is left out on a bare word. What a silo sealed is opened for all to see, or the silo stays."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.core.protocol.federations import (
    AGGREGATOR,
    body,
    bond,
    cohort,
    evidence,
    federation,
    header,
    headers,
    identity,
    manifest,
    private,
    rng,
    secret,
)
from tests.core.protocol.hops import Hop, opened, released
from tests.core.protocol.nets import Net

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import commitment
from silomix.runtime.core.protocol import aggregator as aggregating
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Accusation, Evidence, Header, Manifest
from silomix.runtime.core.protocol.rules import check_evidence
from silomix.runtime.core.protocol.shuffler import (
    UNFIT_ROUNDS,
    Abort,
    Accuse,
    Accused,
    Begin,
    CohortIn,
    Drop,
    EvidenceIn,
    HeaderIn,
    Release,
    State,
    Tick,
    Unopened,
)
from silomix.runtime.core.protocol.silo import Sealing, Silo

F = federation(5)
SILOS = F.silo_names
NODES = (*F.chain, AGGREGATOR)


def sealing(m: Manifest, silo: str = "silo-2") -> Sealing:
    """What an honest silo seals."""
    return Silo(F, identity(silo)).sealing(m, rng((m.digest, silo)))


def honest(m: Manifest, silo: str = "silo-2") -> Header:
    return sealing(m, silo).header


def spoilt(made: Sealing, m: Manifest, recipient: str, how: str) -> Header:
    """A header in which one seed does not open, or opens and is not the one that was committed to."""
    h = made.header
    place = [s.recipient for s in h.seeds].index(recipient)
    seed = h.seeds[place]
    if how == "sealed":
        seed = replace(seed, sealed=seed.sealed[:-1] + bytes([seed.sealed[-1] ^ 1]))
    else:
        seed = replace(seed, commitment=commitment(secret("another seed"), m.context(m.layer(recipient))))
    return replace(h, seeds=(*h.seeds[:place], seed, *h.seeds[place + 1 :])).signed(identity(h.silo))


# The rule


@pytest.mark.parametrize("recipient", NODES)
@pytest.mark.parametrize("how", ["sealed", "commitment"])
def test_a_seed_that_does_not_open_or_is_another_is_garbage(recipient: str, how: str) -> None:
    m = manifest(F)
    bad = spoilt(sealing(m), m, recipient, how)
    check_evidence(evidence(m, bad, recipient), bad, m)
    for other in set(NODES) - {recipient}:  # what was sealed to the others is in order
        with pytest.raises(PeerFault) as caught:
            check_evidence(evidence(m, bad, other), bad, m)
        assert caught.value.reason is Reason.FALSE_EVIDENCE


@pytest.mark.parametrize("recipient", NODES)
def test_a_key_that_opens_the_seed_is_evidence_against_whoever_shows_it(recipient: str) -> None:
    m = manifest(F)
    with pytest.raises(PeerFault) as caught:
        check_evidence(evidence(m, honest(m), recipient), honest(m), m)
    assert caught.value.reason is Reason.FALSE_EVIDENCE
    assert caught.value.details["peer"] == recipient


FALSE: dict[str, Callable[[Manifest, Header], Evidence]] = {
    "the seed opens": lambda m, h: evidence(m, honest(m), "hop-2"),
    "a key that was never made": lambda m, h: evidence(m, h, "hop-2", secret("any")),
    "the key of another silo": lambda m, h: evidence(m, h, "hop-2", private("hop-2", "silo-3", 1)),
    "the key of another attempt": lambda m, h: evidence(m, h, "hop-2", private("hop-2", "silo-2", 1, 2)),
    "the key of another hop": lambda m, h: evidence(m, h, "hop-2", private("hop-1", "silo-2", 1)),
    "the key of another hop, in its name": lambda m, h: evidence(m, h, "hop-1", private("hop-2", "silo-2", 1)),
    "a header that never came": lambda m, h: evidence(m, header(m, "silo-2", 1), "hop-2"),
    "another silo's header": lambda m, h: replace(evidence(m, header(m, "silo-3"), "hop-2"), silo="silo-2"),
    "another silo's name": lambda m, h: replace(evidence(m, h, "hop-2"), silo="silo-3"),
    "somebody to whom nothing was sealed": lambda m, h: evidence(m, h, "silo-4"),
    "nobody": lambda m, h: evidence(m, h, "nobody"),
}


@pytest.mark.parametrize("name", ["hop-1", "hop-2"])
@pytest.mark.parametrize("story", FALSE)
def test_false_evidence_is_refused_and_nobody_is_left_out(story: str, name: str) -> None:
    hop, m = opened(name, F)
    bad = spoilt(sealing(m), m, "hop-2", "sealed")
    for h in (bad, honest(m), header(m, "silo-3")):
        hop.feed(HeaderIn(h, h.silo if name == "hop-1" else "hop-1"))
    assert hop.refuses(EvidenceIn(FALSE[story](m, bad))) is Reason.FALSE_EVIDENCE
    assert not hop.core.unfit
    assert hop.core.state is State.OPEN
    assert hop.feed(EvidenceIn(evidence(m, bad, "hop-2")))  # what is true is believed
    assert set(hop.core.unfit) == {"silo-2"}


def test_evidence_holds_for_the_header_that_is_shown_and_no_other() -> None:
    """A silo could otherwise be left out for another one's garbage, or for garbage that it never sent."""
    m = manifest(F)
    h = header(m, "silo-2")
    nobodys = replace(h, seeds=(replace(h.seeds[0], recipient="nobody"),))
    for shown, told in (
        (header(m, "silo-2", 1), evidence(m, h, "hop-2")),
        (h, replace(evidence(m, h, "hop-2", private("hop-2", "silo-3", 1)), silo="silo-3")),
        (replace(h, seeds=()), evidence(m, replace(h, seeds=()), "hop-2")),
        (nobodys, evidence(m, nobodys, "nobody")),
    ):
        with pytest.raises(PeerFault) as caught:
            check_evidence(told, shown, m)
        assert caught.value.reason is Reason.FALSE_EVIDENCE


def test_evidence_of_another_manifest_is_refused() -> None:
    """Nothing of it can be looked at, and nobody is left out."""
    hop, m = opened("hop-1", F)
    bad = header(m, "silo-2")
    hop.feed(HeaderIn(bad, "silo-2"))
    other = manifest(F, 1, 2)
    for about in (
        evidence(other, header(other, "silo-2"), "hop-2"),
        replace(evidence(m, bad, "hop-2"), manifest=other.digest),
    ):
        assert hop.refuses(EvidenceIn(about)) is Reason.FALSE_EVIDENCE
    assert not hop.core.unfit
    with pytest.raises(PeerFault) as caught:
        check_evidence(replace(evidence(m, bad, "hop-2"), manifest=other.digest), bad, m)
    assert caught.value.reason is Reason.WRONG_MANIFEST


@pytest.mark.parametrize("restart", [False, True])
def test_a_silo_that_sits_out_is_accused_of_a_header_that_never_came_and_the_hop_says_so(*, restart: bool) -> None:
    """Else a hop could show anything about that silo, round after round, and every hop before would pass it on."""
    hop, m = opened("hop-1", F)
    bad = header(m, "silo-2")
    hop.feed(HeaderIn(bad, "silo-2"))
    shown = evidence(m, bad, "hop-2")
    assert hop.feed(EvidenceIn(shown))
    if restart:
        hop.restart()
        hop.open(m)
    assert hop.feed(EvidenceIn(shown)) == []  # it was looked at: the hop after did not hear so
    again = manifest(F, 1, 2)
    hop.open(again)
    assert hop.refuses(EvidenceIn(evidence(again, header(again, "silo-2"), "hop-2"))) is Reason.FALSE_EVIDENCE


def test_the_key_that_serves_all_silos_of_groups_is_no_evidence_against_one() -> None:
    """It opens every silo's seed: to show it would unmask them all."""
    f = federation(5, group_size=3)
    hop, m = opened("hop-1", f)
    bad = header(m, "silo-2")
    hop.feed(HeaderIn(bad, "silo-2"))
    assert hop.refuses(EvidenceIn(evidence(m, bad, AGGREGATOR))) is Reason.FALSE_EVIDENCE
    assert not hop.core.unfit
    assert hop.feed(EvidenceIn(evidence(m, bad, "hop-2")))


def test_evidence_prints_no_key() -> None:
    m = manifest(F)
    shown = evidence(m, header(m, "silo-2"), "hop-2")
    for text in (repr(shown), repr(Accusation(shown)), str(Accusation(shown)), repr(Accuse(shown))):
        assert shown.private.hex() not in text
        assert repr(shown.private) not in text


# What a hop does with it


@pytest.mark.parametrize("restart", [False, True])
def test_a_hop_before_that_did_not_hear_the_accusation_is_shown_it_again(restart: bool) -> None:
    """Its answer may be lost with the connection; without the evidence the attempt would be given up."""
    hop, m = opened("hop-2", F)
    bad, other = spoilt(sealing(m), m, "hop-2", "sealed"), header(m, "silo-2", 1)
    hop.feed(HeaderIn(bad, "hop-1"))
    shown = next(e.evidence for e in hop.feed(Unopened(bad)) if isinstance(e, Accuse))
    if restart:
        hop.restart()
        hop.open(m)
    for again in (bad, other):
        with pytest.raises(Accusation) as caught:
            hop.feed(HeaderIn(again, "hop-1"))
        assert caught.value.evidence == shown
    assert hop.feed(HeaderIn(header(m, "silo-3"), "hop-1"))


def test_it_is_the_first_hop_that_lets_a_silo_sit_out_in_later_attempts() -> None:
    """A later one has no evidence to show that the hop before could check."""
    later = manifest(F, 1, 2)
    for name, sits_out in (("hop-1", True), ("hop-2", False)):
        hop, m = opened(name, F)
        bad = header(m, "silo-2")
        hop.feed(HeaderIn(bad, "silo-2" if sits_out else "hop-1"))
        hop.feed(EvidenceIn(evidence(m, bad, AGGREGATOR)))
        hop.open(later)
        event = HeaderIn(header(later, "silo-2"), "silo-2" if sits_out else "hop-1")
        if sits_out:
            assert hop.refuses(event) is Reason.SEAL_BROKEN
        else:
            assert hop.feed(event)


def test_a_hop_that_cannot_open_a_seed_opens_its_key_for_that_silo_and_attempt() -> None:
    hop, m = opened("hop-2", F)
    bad = spoilt(sealing(m), m, "hop-2", "sealed")
    hop.feed(HeaderIn(bad, "hop-1"))
    effects = hop.feed(Unopened(bad))
    shown = evidence(m, bad, "hop-2")
    assert effects == [Remember(Accused(1, shown)), Drop("silo-2"), Accuse(shown)]
    check_evidence(shown, bad, m)
    assert hop.feed(Unopened(header(m, "silo-3"))) == []  # a header that never came
    assert hop.refuses(HeaderIn(bad, "hop-1")) is Reason.SEAL_BROKEN


def test_the_key_that_is_shown_survives_the_end_of_the_attempt() -> None:
    """Keys are overwritten where they lie; evidence is a copy."""
    hop, m = opened("hop-2", F)
    bad = spoilt(sealing(m), m, "hop-2", "sealed")
    hop.feed(HeaderIn(bad, "hop-1"))
    (accuse,) = [e for e in hop.feed(Unopened(bad)) if isinstance(e, Accuse)]
    hop.feed(Tick(1e9))
    assert not hop.core.keys
    check_evidence(accuse.evidence, bad, m)


def test_the_cohort_closes_without_a_silo_that_sealed_garbage() -> None:
    hop, m = opened(f=F)
    of = headers(m, F)
    hop.submit(*of[:4])
    hop.feed(HeaderIn(of[4], "silo-5"))
    effects = hop.feed(EvidenceIn(evidence(m, of[4], "hop-2")))
    assert [type(e) for e in effects] == [Remember, Drop, Remember, Release]
    assert released(effects) == SILOS[:4]
    assert hop.refuses(body(of[4])) is Reason.SEAL_BROKEN
    assert hop.feed(EvidenceIn(evidence(m, of[4], "hop-2"))) == []  # a broken stream brings it again


def test_a_silo_that_was_shown_to_seal_garbage_sits_out_some_rounds_and_comes_back() -> None:
    f = federation(5, rounds=UNFIT_ROUNDS + 1)
    hop, m = opened(f=f)
    hop.feed(HeaderIn(header(m, "silo-2"), "silo-2"))
    hop.feed(EvidenceIn(evidence(m, header(m, "silo-2"), "hop-2")))
    for round_ in range(1, UNFIT_ROUNDS + 2):
        hop.restart()  # it is remembered
        m = manifest(f, round_)
        hop.open(m)
        of = headers(m, f)
        if round_ <= UNFIT_ROUNDS:
            assert hop.refuses(HeaderIn(of[1], "silo-2")) is Reason.SEAL_BROKEN
            of = [h for h in of if h.silo != "silo-2"]
        assert released(hop.submit(*of)) == tuple(h.silo for h in of)


@pytest.mark.parametrize("restart", [False, True])
def test_a_sum_that_has_such_a_silo_in_it_is_never_released(restart: bool) -> None:
    hop, m = opened(f=F)
    of = headers(m, F)
    hop.submit(*of[:4])
    effects = hop.feed(EvidenceIn(evidence(m, of[1], "hop-2")))
    assert [type(e) for e in effects] == [Remember, Drop, Abort]
    assert hop.core.state is State.GIVEN_UP
    assert not hop.core.released
    assert hop.refuses(HeaderIn(of[4], "silo-5")) is Reason.COHORT_CLOSED
    assert hop.feed(Tick(60.0)) == []
    if restart:
        hop.restart()
    m = manifest(F, 1, 2)
    hop.open(m)
    of = [h for h in headers(m, F) if h.silo != "silo-2"]
    assert released(hop.submit(*of)) == tuple(h.silo for h in of)


def test_an_attempt_that_is_lost_still_learns_of_others_who_sealed_garbage() -> None:
    hop, m = opened(f=F)
    of = headers(m, F)
    hop.submit(*of[:4])
    hop.feed(EvidenceIn(evidence(m, of[1], "hop-2")))
    assert hop.core.state is State.GIVEN_UP
    shown = evidence(m, of[2], "hop-2")
    assert hop.feed(EvidenceIn(shown)) == [Remember(Accused(1, shown))]
    assert set(hop.core.unfit) == {"silo-2", "silo-3"}


def test_a_sum_on_its_way_that_cannot_come_through_is_given_up_and_the_silo_sits_out() -> None:
    hop, m = opened(f=F)
    of = headers(m, F)
    assert released(hop.submit(*of)) == SILOS
    effects = hop.feed(EvidenceIn(evidence(m, of[1], "hop-2")))
    assert [type(e) for e in effects] == [Remember, Drop, Abort]
    assert not hop.core.released  # the pad was not shown, so the model is free
    m = manifest(F, 2)
    hop.open(m)
    assert hop.refuses(HeaderIn(headers(m, F)[1], "silo-2")) is Reason.SEAL_BROKEN


def test_a_header_without_a_body_is_dropped_after_the_close_too() -> None:
    f = federation(5, quorum=0.8)
    hop, m = opened(f=f)
    of = headers(m, f)
    hop.feed(HeaderIn(of[4], "silo-5"))
    assert released(hop.submit(*of[:4])) == SILOS[:4]
    effects = hop.feed(EvidenceIn(evidence(m, of[4], "hop-2")))
    assert [type(e) for e in effects] == [Remember, Drop]
    assert hop.core.state is State.RELEASING
    assert hop.core.padded[m.digest].silos == SILOS[:4]


def test_an_attempt_that_cannot_end_well_is_given_up_at_once() -> None:
    """The model was released for a cohort with a silo that sits out: there is nothing to wait for."""
    hop, m = opened(f=F)
    of = headers(m, F)
    hop.submit(*of)
    hop.show(m, cohort(m, of))
    again = manifest(F, 1, 2)
    hop.open(again)
    hop.feed(HeaderIn(headers(again, F)[1], "silo-2"))
    hop.feed(EvidenceIn(evidence(again, headers(again, F)[1], "hop-2")))
    for attempt, told in ((3, ()), (4, SILOS)):
        last = manifest(F, 1, attempt, bound=bond(told) if told else None)
        assert [type(e) for e in hop.open(last) if not isinstance(e, Remember)] == [Begin, Abort]
        assert hop.refuses(HeaderIn(headers(last, F)[0], "silo-1")) is Reason.COHORT_CLOSED


def test_an_attempt_is_given_up_at_once_also_if_only_the_manifest_says_whom_the_model_is_bound_to() -> None:
    hop, m = opened(f=F)
    hop.feed(HeaderIn(header(m, "silo-2"), "silo-2"))
    hop.feed(EvidenceIn(evidence(m, header(m, "silo-2"), "hop-2")))
    bound = manifest(F, 1, 2, bound=bond(SILOS[:3]))
    assert [type(e) for e in hop.open(bound) if not isinstance(e, Remember)] == [Begin, Abort]
    free = manifest(F, 1, 3)
    assert [type(e) for e in hop.open(free) if not isinstance(e, Remember)] == [Begin]


def test_too_few_that_are_fit_release_nothing() -> None:
    f = federation(4)
    hop, m = opened(f=f)
    of = headers(m, f)
    for h in of[:2]:
        hop.feed(HeaderIn(h, h.silo))
        hop.feed(EvidenceIn(evidence(m, h, "hop-2")))
    assert released(hop.submit(*of[2:])) is None
    (abort,) = hop.feed(Tick(60.0))
    assert isinstance(abort, Abort)
    assert abort.fault.reason is Reason.COHORT_TOO_SMALL


def test_a_later_hop_takes_no_cohort_with_a_silo_that_it_saw_seal_garbage() -> None:
    """Hop 1 is in league with the silo, and ignores the evidence."""
    hop, m = opened("hop-2", F)
    of = headers(m, F)
    hop.relayed(m, of)
    hop.feed(Unopened(of[1]))
    assert hop.refuses(CohortIn(cohort(m, of))) is Reason.WRONG_SEQUENCE
    assert released(hop.feed(CohortIn(cohort(m, [of[0], *of[2:]])))) == ("silo-1", *SILOS[2:])


def test_without_keys_nobody_can_be_accused() -> None:
    hop = Hop("hop-2", F)
    m = manifest(F)
    assert hop.feed(Unopened(header(m, "silo-2"))) == []
    assert hop.refuses(EvidenceIn(evidence(m, header(m, "silo-2"), "hop-2"))) is Reason.WRONG_MANIFEST


# All cores together


def garbage(net: Net, silo: str, recipient: str, how: str) -> Header:
    """Send a header that is spoilt for one node, as hop 1 gets it."""
    made = net.silos[silo].core.sealing(net.manifest, net.rng)
    bad = spoilt(made, net.manifest, recipient, how)
    net.hops["hop-1"].step(HeaderIn(bad, silo))
    net.settle()
    return bad


@pytest.mark.parametrize("how", ["sealed", "commitment"])
@pytest.mark.parametrize("recipient", ["hop-1", "hop-2", "hop-3", AGGREGATOR])
def test_every_hop_before_the_one_that_was_cheated_leaves_the_silo_out_and_the_others_go_on(
    recipient: str, how: str
) -> None:
    net = Net()
    net.submit("silo-1", "silo-3")
    bad = garbage(net, "silo-2", recipient, how)
    places = net.f.chain.index(recipient) + 1 if recipient in net.f.chain else len(net.f.chain)
    before = [net.hops[name] for name in net.f.chain[:places]]
    for hop in before:
        assert set(hop.core.unfit) == {"silo-2"}
        (accused,) = [f for f in hop.journal if isinstance(f, Accused)]
        check_evidence(accused.evidence, bad, net.manifest)
        assert hop.core.state is State.OPEN
    net.submit("silo-4", "silo-5")
    assert net.models == [net.once(0, 2, 3, 4)]
    assert not net.gave_up
    # It sits out the next round too, also if a hop was started again, and no round waits for it.
    net.hops["hop-1"].restart()
    net.reopen("hop-1")
    net.submit("silo-1", "silo-3", "silo-4", "silo-5")
    assert net.models[1] == net.once(0, 2, 3, 4)


def test_the_aggregator_looks_at_a_header_again_that_it_refused() -> None:
    """Its word may have been lost on the way: nobody may take the header for known."""
    net = Net(hops=1)
    m = net.manifest
    bad = spoilt(net.silos["silo-2"].core.sealing(m, net.rng), m, AGGREGATOR, "sealed")
    for seen in (1, 2):
        net.aggregator.step(aggregating.HeaderIn(bad))
        assert len(net.accuses) == seen
    assert net.accuses[0] == net.accuses[1]
    check_evidence(net.accuses[0], bad, m)


def test_evidence_that_comes_when_the_pad_is_gone_leaves_the_silo_out_and_ends_nothing() -> None:
    """A further attempt is being prepared: the pad of this one is destroyed, and the evidence comes late."""
    f = federation(5, quorum=0.8)
    hop, m = opened(f=f)
    of = headers(m, f)
    hop.feed(HeaderIn(of[4], "silo-5"))
    assert released(hop.submit(*of[:4])) == SILOS[:4]
    hop.prepare(manifest(f, 1, 2))
    assert m.digest not in hop.core.padded
    effects = hop.feed(EvidenceIn(evidence(m, of[4], "hop-2")))
    assert [type(e) for e in effects] == [Remember, Drop]
    assert set(hop.core.unfit) == {"silo-5"}
