"""Rule R5: a silo makes the model itself. Whatever is altered on the way from the silos' headers to it is found out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.core.protocol.federations import AGGREGATOR, federation, flipped, identity, pad, secret
from tests.core.protocol.nets import Net, Tensors

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Granularity, Level
from silomix.runtime.core.policy import Server
from silomix.runtime.core.protocol.lineage import (
    Transcript,
    check_root,
    check_transcript,
    check_vector,
    follows,
    uncover,
)
from silomix.runtime.core.protocol.messages import Cohort, Participant
from silomix.runtime.core.protocol.release import Ready
from silomix.runtime.core.protocol.roundlog import Outcome, Record


@dataclass(frozen=True)
class Story:
    """What a silo is told of a round, and the model that it had before."""

    net: Net
    transcript: Transcript
    body: Bytes
    record: Record
    before: tuple[Tensors, Tensors]


@cache
def story(level: Level = Level.SEMI_HONEST) -> Story:
    """A round that was applied."""
    net = Net(silos=4, hops=2, rounds=1, level=level, server=Server.MOMENTUM)
    net.submit()
    record = net.core.log.last
    assert record is not None
    assert record.outcome is Outcome.APPLIED
    return Story(net, *net.aggregator.sums[1, 1], record, net.first)


def follow(told: Story) -> None:
    """What a silo does, from the transcript to the model."""
    found = told.net.compute(told.transcript, told.body.copy(), told.record, *told.before)
    if told.net.digests(*found) != (told.record.model_after, told.record.state_after):
        raise PeerFault(Reason.WRONG_STEP, "another model is on record")


def with_(told: Story, **changes: Any) -> Story:
    """The story with another transcript."""
    return replace(told, transcript=replace(told.transcript, **changes))


def on_record(told: Story, **changes: Any) -> Story:
    """The story with another record, which the aggregator has signed."""
    return replace(told, record=replace(told.record, **changes).signed(identity(AGGREGATOR)))


def last(told: Story, **changes: Any) -> Story:
    return on_record(told, attempts=(replace(told.record.attempts[-1], **changes),))


def one_bit(told: Story, place: int) -> Story:
    body = told.body.copy()
    body[place] ^= 1
    return replace(told, body=body)


def swapped(items: tuple[Any, ...], other: Any, place: int = 0) -> tuple[Any, ...]:
    return (*items[:place], other, *items[place + 1 :])


def another_cohort(told: Story, signer: str = "hop-1") -> Cohort:
    """Three of the four silos, signed."""
    made = Cohort(told.transcript.manifest.digest, told.transcript.cohort.participants[:3])
    return replace(made, signature=identity(signer).sign(made.digest))


def other_header(told: Story) -> tuple[Any, ...]:
    t = told.transcript
    return swapped(t.headers, replace(t.headers[0], chunks=t.headers[0].chunks + 1).signed(identity("silo-1")))


def trails(told: Story, place: int = 0, **changes: Any) -> Ready:
    t = told.transcript.ready
    one = replace(t.trails[place], **changes)
    return replace(t, trails=swapped(t.trails, one.signed(identity(one.hop)), place))


def agreed_anew(told: Story, ready: Ready) -> Story:
    """A release that the aggregator has put on record in the place of the one that was signed."""
    return last(with_(told, ready=ready), agreed=ready.digest)


def agreed_on(told: Story, **changes: Any) -> Story:
    """A release with another header of silo-1, which every hop and the aggregator have agreed on."""
    t = told.transcript
    header = replace(t.headers[0], **changes)
    cohort = replace(t.cohort, participants=swapped(t.cohort.participants, Participant("silo-1", header.digest)))
    cohort = replace(cohort, signature=identity("hop-1").sign(cohort.digest))
    signed = tuple(replace(one, cohort=cohort.digest).signed(identity(one.hop)) for one in t.ready.trails)
    changed = with_(told, cohort=cohort, headers=swapped(t.headers, header))
    return agreed_anew(changed, replace(t.ready, trails=signed))


LIES: dict[str, tuple[Callable[[Story], Story], Reason]] = {
    "another manifest": (
        lambda s: with_(s, manifest=replace(s.transcript.manifest, minimum_cohort=4).signed(identity(AGGREGATOR))),
        Reason.WRONG_MANIFEST,
    ),
    "a manifest that nobody signed": (
        lambda s: with_(s, manifest=replace(s.transcript.manifest, signature=bytes(64))),
        Reason.BAD_SIGNATURE,
    ),
    "the release of another manifest": (
        lambda s: with_(s, ready=replace(s.transcript.ready, manifest=bytes(32))),
        Reason.WRONG_MANIFEST,
    ),
    "another manifest on record": (lambda s: last(s, manifest=bytes(32)), Reason.WRONG_MANIFEST),
    "another release on record": (lambda s: last(s, agreed=bytes(32)), Reason.WRONG_MANIFEST),
    "other silos on record": (lambda s: last(s, silos=s.record.silos[:3]), Reason.WRONG_MANIFEST),
    "another root on record": (lambda s: on_record(s, root=bytes(32)), Reason.WRONG_MANIFEST),
    "a round that was not applied": (lambda s: on_record(s, outcome=Outcome.ABANDONED), Reason.WRONG_ROUND),
    "a round without attempts": (lambda s: on_record(s, attempts=()), Reason.WRONG_ROUND),
    "another manifest in the release, on record": (
        lambda s: agreed_anew(s, replace(s.transcript.ready, manifest=bytes(32))),
        Reason.WRONG_MANIFEST,
    ),
    "another manifest in the release, and itself on record": (
        lambda s: last(agreed_anew(s, replace(s.transcript.ready, manifest=bytes(32))), manifest=bytes(32)),
        Reason.WRONG_MANIFEST,
    ),
    "another cohort": (lambda s: with_(s, cohort=another_cohort(s)), Reason.WRONG_MANIFEST),
    "another cohort on record too": (
        lambda s: last(with_(s, cohort=another_cohort(s)), silos=s.record.silos[:3]),
        Reason.WRONG_MANIFEST,
    ),
    "a cohort that hop 1 did not sign": (
        lambda s: with_(s, cohort=replace(s.transcript.cohort, signature=bytes(64))),
        Reason.BAD_SIGNATURE,
    ),
    "another header": (lambda s: with_(s, headers=other_header(s)), Reason.WRONG_SEQUENCE),
    "a header without seeds, agreed on by all hops": (lambda s: agreed_on(s, seeds=()), Reason.WRONG_KEYS),
    "a header that its silo did not sign, agreed on by all hops": (
        lambda s: agreed_on(s, signature=bytes(64)),
        Reason.BAD_SIGNATURE,
    ),
    "a header is missing": (lambda s: with_(s, headers=s.transcript.headers[1:]), Reason.WRONG_SEQUENCE),
    "another trail": (lambda s: with_(s, ready=trails(s, sent=bytes(32))), Reason.WRONG_MANIFEST),
    "another pad in a trail": (lambda s: with_(s, ready=trails(s, pad=bytes(32))), Reason.WRONG_MANIFEST),
    "trails that do not meet, on record": (
        lambda s: agreed_anew(s, trails(s, sent=bytes(32))),
        Reason.ROOT_MISMATCH,
    ),
    "a trail that its hop did not sign, on record": (
        lambda s: with_(
            s,
            ready=replace(
                s.transcript.ready,
                trails=swapped(
                    s.transcript.ready.trails,
                    replace(s.transcript.ready.trails[0], signature=flipped(s.transcript.ready.trails[0].signature)),
                ),
            ),
        ),
        Reason.BAD_SIGNATURE,
    ),
    "another pad": (lambda s: with_(s, pads=swapped(s.transcript.pads, pad("another"))), Reason.WRONG_PAD),
    "pads in another order": (lambda s: with_(s, pads=s.transcript.pads[::-1]), Reason.WRONG_PAD),
    "a pad is missing": (lambda s: with_(s, pads=s.transcript.pads[1:]), Reason.WRONG_PAD),
    "a pad too many": (lambda s: with_(s, pads=(*s.transcript.pads, pad("spare"))), Reason.WRONG_PAD),
    "another seed": (lambda s: with_(s, seeds=swapped(s.transcript.seeds, secret("another"), 2)), Reason.WRONG_PAD),
    "seeds in another order": (lambda s: with_(s, seeds=s.transcript.seeds[::-1]), Reason.WRONG_PAD),
    "a seed is missing": (lambda s: with_(s, seeds=s.transcript.seeds[1:]), Reason.WRONG_PAD),
    "no seeds": (lambda s: with_(s, seeds=()), Reason.WRONG_PAD),
    "the first bit of the vector": (lambda s: one_bit(s, 0), Reason.ROOT_MISMATCH),
    "another model on record": (lambda s: on_record(s, model_after=bytes(32)), Reason.WRONG_STEP),
    "the model of before on record": (lambda s: on_record(s, model_after=s.record.model_before), Reason.WRONG_STEP),
    "another state on record": (lambda s: on_record(s, state_after=bytes(32)), Reason.WRONG_STEP),
    "another model before": (
        lambda s: replace(s, before=({**s.before[0], "a": np.full(5, np.float32(1e-7))}, s.before[1])),
        Reason.WRONG_STEP,
    ),
}


@pytest.mark.parametrize("level", [Level.SEMI_HONEST, Level.TRUSTED])
def test_what_was_released_leads_to_the_model_on_record(level: Level) -> None:
    follow(story(level))


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_anywhere_on_the_way_is_found_out(lie: str) -> None:
    tell, reason = LIES[lie]
    with pytest.raises(PeerFault) as caught:
        follow(tell(story()))
    assert caught.value.reason is reason


def test_every_byte_of_the_vector_counts() -> None:
    told = story()
    for place in range(len(told.body)):
        with pytest.raises(PeerFault) as caught:
            check_root(one_bit(told, place).body, told.transcript)
        # A bit behind the last residue, or a residue out of range, is no vector at all.
        assert caught.value.reason in (Reason.ROOT_MISMATCH, Reason.TRAILING_BITS, Reason.RESIDUE_RANGE)


def test_where_nothing_is_checked_for_tampering_the_vector_is_held_to_what_was_signed() -> None:
    told = story()
    check_vector(told.body, told.transcript, told.net.f)
    with pytest.raises(PeerFault) as caught:
        check_vector(one_bit(told, 0).body, told.transcript, told.net.f)
    assert caught.value.reason is Reason.ROOT_MISMATCH


def test_at_level_trusted_there_are_no_seeds() -> None:
    told = story(Level.TRUSTED)
    assert told.transcript.seeds == ()
    with pytest.raises(PeerFault) as caught:
        follow(with_(told, seeds=(secret("spare"),)))
    assert caught.value.reason is Reason.WRONG_PAD


def test_a_manifest_that_is_known_is_not_checked_again_and_another_is() -> None:
    """`known` spares a silo the signatures of an attempt that it has joined; it stands for that manifest alone."""
    told = story()
    bad = with_(told, manifest=replace(told.transcript.manifest, signature=bytes(64)))
    check_transcript(bad.transcript, told.record, told.net.f, known=told.transcript.manifest.digest)
    with pytest.raises(PeerFault):
        check_transcript(bad.transcript, told.record, told.net.f, known=bytes(32))


def test_without_any_one_pad_or_seed_a_vector_says_nothing() -> None:
    """What is left is spread over all residues: a wrong cover never looks like a sum."""
    told = story()
    right = told.body.copy()
    uncover(right, told.transcript)
    for name in ("pads", "seeds"):
        items: tuple[Secret, ...] = getattr(told.transcript, name)
        for place in range(len(items)):
            wrong = told.body.copy()
            uncover(wrong, with_(told, **{name: swapped(items, secret("another"), place)}).transcript)
            assert np.mean(wrong != right) > 0.5


def test_a_participant_under_anothers_header_is_found_out() -> None:
    """Hop 1 and the aggregator in league: the seeds of three, and four names."""
    told = story()
    parts = told.transcript.cohort.participants
    made = Cohort(told.transcript.manifest.digest, swapped(parts, Participant("silo-1", parts[1].header)))
    c = replace(made, signature=identity("hop-1").sign(made.digest))
    r = Ready(
        told.transcript.ready.manifest,
        told.transcript.ready.model,
        tuple(replace(t, cohort=c.digest).signed(identity(t.hop)) for t in told.transcript.ready.trails),
    )
    with pytest.raises(PeerFault) as caught:
        follow(agreed_anew(with_(told, cohort=c), r))
    assert caught.value.reason is Reason.WRONG_SEQUENCE


def test_transcripts_print_no_secret() -> None:
    t = story().transcript
    for one in (*t.pads, *t.seeds):
        assert one.value.hex() not in repr(t)
        assert repr(one.value) not in repr(t)


def test_silos_follow_sums_and_nothing_else() -> None:
    assert follows(federation())
    assert not follows(federation(7, group_size=3))
    for literal in set(Granularity) - {Granularity.SUM}:
        assert not follows(federation(granularity=literal))
