"""What each signature covers, by docs/protocol.md and the comments in proto: all nodes run the same code, so a digest
that leaves something out is noticed by none of them. The answers come from the reference, which shares nothing with it.
"""

from dataclasses import replace

import pytest
from tests.core.protocol.federations import (
    AGGREGATOR,
    MODEL,
    STATE,
    cohort,
    federation,
    headers,
    identity,
    manifest,
    ready,
)
from tests.vectors.reference import Part, digest

from silomix.runtime.core.numbers.tamper import EquationKind
from silomix.runtime.core.protocol.check.blame import Case, Charge, Defence
from silomix.runtime.core.protocol.check.said import CheckTranscript, Statement, Subject, Toss
from silomix.runtime.core.protocol.check.trapped import Trapped, TrapProof
from silomix.runtime.core.protocol.federation import Federation, Member, Owner
from silomix.runtime.core.protocol.hearing import Life
from silomix.runtime.core.protocol.messages import Header, SealedSeed
from silomix.runtime.core.protocol.owners import Enrolment, Pin, epoch_digest, fingerprint
from silomix.runtime.core.protocol.release import Ready, Trail
from silomix.runtime.core.protocol.roundlog import Attempted, Outcome, Record


def some(number: int) -> bytes:
    """A digest, or a key, that is like no other."""
    return bytes([number]) * 32


def signature(number: int) -> bytes:
    return bytes([number]) * 64


# The federation, and what its owners and nodes sign

PLAIN = federation()
OWNED = replace(
    PLAIN,
    anchor=b"pem",
    owners=(Owner("a", some(1)), Owner("b", some(2))),
    aggregator=replace(PLAIN.aggregator, owner="a"),
    shufflers=tuple(replace(member, owner="b") for member in PLAIN.shufflers),
    silos=tuple(replace(member, owner="a") for member in PLAIN.silos),
)
LATER = replace(OWNED, epoch=2, genesis=some(3), predecessor=some(4))
EPOCHS = ["first epoch", "later epoch"]
"""Names of the two: digests in the names of tests would change with what is tested."""


def nodes(f: Federation) -> list[Member]:
    return [f.aggregator, *f.shufflers, *f.silos]


def without_owners(f: Federation) -> list[Part]:
    parts: list[Part] = [f.name, f.anchor, f.policy.canonical()]
    for node in nodes(f):
        parts += [node.name, node.key, node.address]
    return [*parts, len(f.shufflers), len(f.silos)]


def with_owners(f: Federation) -> list[Part]:
    parts: list[Part] = [*without_owners(f), f.epoch, 1 if f.pinned else 0]
    for owner in f.owners:
        parts += [owner.name, owner.key]
    return [*parts, *(node.owner for node in nodes(f)), len(f.owners)]


@pytest.mark.parametrize(
    ("f", "parts"),
    [
        (PLAIN, without_owners(PLAIN)),
        (OWNED, with_owners(OWNED)),
        (replace(OWNED, anchor=b"", pinned=True), with_owners(replace(OWNED, anchor=b"", pinned=True))),
        (replace(OWNED, owners_quorum=2), [*with_owners(OWNED), 2, b"", b""]),
        (LATER, [*with_owners(LATER), 0, some(3), some(4)]),
        (replace(LATER, owners_quorum=2), [*with_owners(LATER), 2, some(3), some(4)]),
    ],
    ids=["no owners", "first epoch", "pinned", "quorum", "later epoch", "later epoch with a quorum"],
)
def test_a_federation_is_named_by_everything_in_its_file(f: Federation, parts: list[Part]) -> None:
    assert f.digest == digest("federation", *parts)


@pytest.mark.parametrize(("f", "before"), [(OWNED, (b"", b"")), (LATER, (some(3), some(4)))], ids=EPOCHS)
def test_an_owner_signs_where_an_epoch_stands_and_what_it_says(f: Federation, before: tuple[bytes, bytes]) -> None:
    assert epoch_digest(f) == digest("epoch", *before, f.epoch, f.digest)


PIN = Pin("silo-1", 7, b"current", b"next")


def test_a_pin_is_signed_with_its_node_its_counter_and_both_certificates() -> None:
    assert PIN.digest == digest("pin", "silo-1", 7, b"current", b"next")


def test_an_enrolment_is_signed_with_all_that_it_tells() -> None:
    made = Enrolment("shuffler", Member("hop-1", some(1), "host:1", "a"), Owner("a", some(2)), PIN)
    parts = ("shuffler", "hop-1", "host:1", some(1), "a", some(2), digest("pin", "silo-1", 7, b"current", b"next"))
    assert made.digest == digest("enrolment", *parts)


@pytest.mark.parametrize("keys", [(some(1),), (some(1), some(2)), ()], ids=len)
def test_a_fingerprint_is_eighty_bits_of_all_keys(keys: tuple[bytes, ...]) -> None:
    shown = digest("fingerprint", *keys).hex()
    assert fingerprint(*keys) == f"{shown[:4]} {shown[4:8]} {shown[8:12]} {shown[12:16]} {shown[16:20]}"


@pytest.mark.parametrize(("f", "genesis"), [(OWNED, OWNED.digest), (LATER, some(3))], ids=EPOCHS)
@pytest.mark.parametrize("name", ["hop-1", AGGREGATOR])
def test_a_life_is_signed_for_one_hop_or_the_aggregator_in_all_epochs(f: Federation, genesis: bytes, name: str) -> None:
    expected = digest("life", genesis, name, b"life")
    assert Life(name, b"life").digest(f) == expected
    assert Life(name, b"life").signed(identity(name), f).signature == identity(name).sign(expected)


# Rounds


def test_a_silos_header_covers_its_commitment_to_the_coin() -> None:
    seeds = (SealedSeed("hop-1", b"sealed 1", some(1)), SealedSeed("hop-2", b"sealed 2", some(2)))
    made = Header("silo-1", some(3), seeds, 9, coin=some(4))
    parts = (2, "hop-1", b"sealed 1", some(1), "hop-2", b"sealed 2", some(2), 9, some(4))
    assert made.digest == digest("header", "silo-1", some(3), *parts)


def test_a_release_covers_the_tamper_check_behind_its_trails() -> None:
    trails = tuple(Trail(f"hop-{i}", some(1), some(2), some(10 + i), some(11 + i), some(20 + i)) for i in (1, 2))
    parts = (2, "hop-1", some(11), some(12), some(21), "hop-2", some(12), some(13), some(22), some(5))
    made = Ready(some(3), some(4), trails, some(5))
    assert made.digest == digest("ready", some(3), some(4), some(1), some(2), *parts)


def test_a_record_covers_who_lied_in_an_attempt_and_what_shows_it() -> None:
    failed = Attempted(1, some(1), ("hop-1",), culprit="silo-2", evidence=some(2))
    good = Attempted(2, some(3), ("hop-1", "hop-2"), some(4), ("silo-1", "silo-3"), (("hop-1", signature(5)),))
    record = Record(some(6), 4, Outcome.APPLIED, (failed, good), some(7), MODEL, some(8), STATE, some(9), some(10))
    first = (1, some(1), 1, "hop-1", b"", 0, 0, "silo-2", some(2))
    second = (2, some(3), 2, "hop-1", "hop-2", some(4), 2, "silo-1", "silo-3", 1, "hop-1", signature(5))
    parts = (2, *first, *second, some(7), MODEL, some(8), STATE, some(9), some(10))
    assert record.digest == digest("record", some(6), 4, "applied", *parts)
    assert replace(record, next=some(11)).digest == digest("record", some(6), 4, "applied", *parts, some(11))


@pytest.mark.parametrize("round_", range(1, 6))
def test_silos_are_drawn_by_the_federation_the_round_and_the_model(round_: int) -> None:
    f = federation(12, subsample=0.5)
    for model in (some(1), some(2)):
        least = sorted(f.silo_names, key=lambda n, m=model: digest("subsample", f.digest, round_, m, n))[:6]  # type: ignore[misc]
        assert f.draw(round_, model) == tuple(sorted(least))


# The tamper check

TOSS = Toss("silo-1", some(1), some(2), signature(3))
STATED = Statement("hop-1", some(4), some(5), (((1, 2), (3,)), ((4, 5), (65536,))), signature(6))
AT_TRAPS = replace(STATED, trapped=Trapped((((7,), (8,)),), (b"point 1", b"point 2")))
PROOF = TrapProof("hop-1", some(7), b"proofs", signature(8))
DEFENCE = Defence("hop-1", some(9), EquationKind.EDGE, "silo-2", some(10), some(11), signature(12))


def lot(*scalars: int) -> bytes:
    return b"".join(x.to_bytes(3, "little") for x in scalars)


def test_a_share_of_the_coin_is_signed_with_the_ballot() -> None:
    assert replace(TOSS).digest == digest("toss", "silo-1", some(2), some(1))  # anew: a digest is kept once it is made


def test_scalars_are_signed_for_one_check_and_one_coin() -> None:
    parts: list[Part] = [some(4), some(5), "hop-1", 2, lot(1, 2, 3), lot(4, 5, 65536)]
    assert replace(STATED).digest == digest("scalars", *parts)
    assert replace(AT_TRAPS).digest == digest("scalars", *parts, 1, lot(7, 8), 2, b"point 1", b"point 2")


def test_a_proof_at_the_traps_is_signed_for_what_was_said() -> None:
    assert replace(PROOF).digest == digest("trap-proof", "hop-1", some(7), b"proofs")


def test_a_transcript_covers_all_that_was_said_with_every_signature() -> None:
    tosses = (TOSS, replace(TOSS, silo="silo-2", signature=signature(13)))
    check = CheckTranscript(tosses, (STATED, AT_TRAPS))
    said: list[Part] = [2, tosses[0].digest, signature(3), tosses[1].digest, signature(13)]
    said += [2, STATED.digest, signature(6), AT_TRAPS.digest, signature(6)]
    assert check.digest == check.said == digest("check", *said)
    proved = replace(check, proofs=(PROOF, replace(PROOF, hop="hop-2", signature=signature(14))))
    proofs = (2, PROOF.digest, signature(8), proved.proofs[1].digest, signature(14))
    assert proved.said == digest("check", *said)
    assert proved.digest == digest("check", *said, *proofs)


@pytest.mark.parametrize("kind", EquationKind)
def test_a_defence_is_signed_with_all_that_it_opens(kind: EquationKind) -> None:
    parts = ("hop-1", some(9), str(kind), "silo-2", some(10), some(11))
    assert replace(DEFENCE, kind=kind).digest == digest("defence", *parts)


M = manifest(PLAIN)
ALL = headers(M, PLAIN)
SUBJECT = Subject(cohort(M, ALL), tuple(ALL), (), ready(M, cohort(M, ALL)))
CHECK = CheckTranscript((TOSS,), (STATED,))
TRAILS = SUBJECT.ready.trails


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        (Case(Charge.TRAILS, M, trails=TRAILS), [M.digest, b"", b"", b"", "", b"", *(one.digest for one in TRAILS)]),
        (Case(Charge.SHARE, M, SUBJECT, TOSS), [SUBJECT.ready.digest, TOSS.digest, b"", b"", "", b""]),
        (
            Case(Charge.EQUATION, M, SUBJECT, check=CHECK, defence=DEFENCE),
            [SUBJECT.ready.digest, b"", CHECK.digest, DEFENCE.digest, "", b""],
        ),
        (
            Case(Charge.PAD, M, SUBJECT, check=CHECK, hop="hop-2", pad=some(1)),
            [SUBJECT.ready.digest, b"", CHECK.digest, b"", "hop-2", some(1)],
        ),
    ],
    ids=lambda value: str(value.charge) if isinstance(value, Case) else "",
)
def test_a_record_names_evidence_by_all_that_belongs_to_it(case: Case, parts: list[Part]) -> None:
    assert case.digest == digest("case", str(case.charge), *parts)


def test_what_a_check_is_about_has_no_transcript_in_it() -> None:
    checked = replace(SUBJECT, ready=replace(SUBJECT.ready, check=some(1)))
    assert checked.context == SUBJECT.context == SUBJECT.ready.digest != checked.ready.digest
