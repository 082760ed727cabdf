"""Protocol section 5: each field of each message is checked by whoever reads it, and refused for the right reason."""

from collections.abc import Callable
from dataclasses import fields, replace
from math import inf, nan
from typing import Any

import pytest
from tests.core.protocol.federations import (
    AGGREGATOR,
    OTHER_MODEL,
    SCHEMA,
    bond,
    cohort,
    federation,
    fence,
    flipped,
    header,
    headers,
    identity,
    known,
    manifest,
    private,
    round_key,
    signed,
)

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Encoding, Granularity, Level, Plan, Quantiser
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.policy import AUTO, UpdateKind
from silomix.runtime.core.protocol.federation import Member
from silomix.runtime.core.protocol.identity import Identity, verify
from silomix.runtime.core.protocol.messages import Cohort, Header, Manifest, Participant, RoundKey, SealedSeed
from silomix.runtime.core.protocol.rules import (
    MOST_ATTEMPTS,
    baseline,
    check_cohort,
    check_header,
    check_manifest,
    check_step,
    layout,
)

F = federation()
FENCE = fence(F, "hop-2", 1, 1)
M = manifest(F, attempt=2, earlier=(FENCE.manifest,))


def refused(check: Callable[[], None]) -> Reason:
    with pytest.raises(PeerFault) as caught:
        check()
    return caught.value.reason


# The manifest

Case = tuple[str, Any, Reason | None]
"""A field, another value, and the reason when the aggregator itself signed it; none where only a silo can tell."""

KEY = M.hop_keys[0]
OWN = M.aggregator_keys[0]


def key_0(**changes: Any) -> tuple[RoundKey, ...]:
    return (replace(KEY, **changes), *M.hop_keys[1:])


def key_0_signed(**changes: Any) -> tuple[RoundKey, ...]:
    """The first key with changes that its owner has signed."""
    return (replace(KEY, **changes).signed(identity(KEY.hop), F.digest, M.head), *M.hop_keys[1:])


def own_0(**changes: Any) -> tuple[RoundKey, ...]:
    return (replace(OWN, **changes), *M.aggregator_keys[1:])


def own_0_signed(**changes: Any) -> tuple[RoundKey, ...]:
    """The aggregator's first key with changes that it has signed."""
    return (replace(OWN, **changes).signed(identity(AGGREGATOR), F.digest, M.head), *M.aggregator_keys[1:])


SMALL = bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157")
"""A point of order 8."""


PROOF = bond(F.silo_names)
FORGED = (
    replace(PROOF, participants=PROOF.participants[:3]),  # the same signatures, and a silo less
    replace(PROOF, participants=(replace(PROOF.participants[0], header=bytes(32)), *PROOF.participants[1:])),
    replace(PROOF, manifest=M.digest),
    replace(PROOF, grouping=bytes(32)),
    *(
        replace(PROOF, trails=(other, PROOF.trails[1]))
        for other in (
            replace(PROOF.trails[0], came=b"x" * 32),
            replace(PROOF.trails[0], sent=b"x" * 32),
            replace(PROOF.trails[0], pad=b"x" * 32),
        )
    ),
    *(
        replace(PROOF, signatures=tuple(flipped(s) if i == bad else s for i, s in enumerate(PROOF.signatures)))
        for bad in range(3)
    ),
    *(replace(PROOF, signatures=(PROOF.signatures[2],) * n) for n in (0, 2, 3, 4)),
)
"""Proofs of whom a model is bound to that prove nothing."""


CASES: list[Case] = [
    ("federation", bytes(32), Reason.WRONG_FEDERATION),
    ("federation", b"", Reason.WRONG_FEDERATION),
    ("round", 0, Reason.MALFORMED),
    ("round", 2, Reason.WRONG_ROUND),
    ("round", F.policy.rounds + 1, Reason.WRONG_ROUND),
    ("round", 1 << 63, Reason.WRONG_ROUND),
    ("attempt", 0, Reason.MALFORMED),
    ("attempt", 3, Reason.WRONG_ATTEMPT),
    ("head", bytes(32), Reason.BAD_SIGNATURE),  # all keys are signed for another history
    ("applied", 1, None),  # the draw is the same where all are invited; the round log knows
    ("earlier", (bytes(32),), None),
    ("earlier", (bytes(32), bytes(32)), Reason.WRONG_ATTEMPT),
    ("bound", bond(F.silo_names[:3]), None),
    ("bound", bond(F.silo_names), None),
    ("bound", bond(F.silo_names[:2]), Reason.COHORT_TOO_SMALL),
    ("bound", bond(()), Reason.COHORT_TOO_SMALL),
    ("bound", bond(F.silo_names[2::-1]), Reason.MALFORMED),
    ("bound", bond(("silo-1", "silo-1", "silo-2")), Reason.MALFORMED),
    ("bound", bond(("silo-1", "silo-2", "silo-9")), Reason.MALFORMED),
    ("bound", bond(F.silo_names, OTHER_MODEL), Reason.BAD_SIGNATURE),
    ("bound", bond(F.silo_names, chain=("hop-1",)), Reason.WRONG_CHAIN),
    ("bound", bond(F.silo_names, chain=("hop-2", "hop-1")), Reason.WRONG_CHAIN),
    *(("bound", forged, Reason.BAD_SIGNATURE) for forged in FORGED),
    ("model", OTHER_MODEL, None),
    ("state", OTHER_MODEL, None),
    ("schema", Schema((*SCHEMA.tensors, TensorSpec("c", (1,)))), Reason.BAD_BOUND),
    ("schema", Schema((TensorSpec("a", (6,)), SCHEMA.tensors[1])), None),
    ("plan", replace(F.plan, moduli=(509, 512)), Reason.WRONG_PLAN),
    ("bounds", (1.0,), Reason.BAD_BOUND),
    ("bounds", (1.0, 1.0, 1.0), Reason.BAD_BOUND),
    *(("bounds", (1.0, b), Reason.BAD_BOUND) for b in (0.0, -1.0, nan, inf, 1.5)),
    ("update", UpdateKind.WEIGHTS, Reason.WRONG_POLICY),
    ("granularity", Granularity.NONE, Reason.WRONG_POLICY),
    ("chain", (), Reason.WRONG_CHAIN),
    ("chain", ("hop-1",), Reason.WRONG_CHAIN),
    ("chain", ("hop-1", "hop-1"), Reason.WRONG_CHAIN),
    ("chain", ("hop-1", "nobody"), Reason.WRONG_CHAIN),
    ("chain", ("hop-1", "silo-1"), Reason.WRONG_CHAIN),
    ("chain", ("hop-1", AGGREGATOR), Reason.WRONG_CHAIN),
    ("chain", ("hop-2", "hop-1"), Reason.WRONG_CHAIN),
    ("chain", ("hop-1", "hop-2", "hop-1"), Reason.WRONG_CHAIN),
    ("chain", ("hop-1", "hop-2", "hop-3"), Reason.WRONG_CHAIN),
    ("hop_keys", (), Reason.WRONG_KEYS),
    ("hop_keys", M.hop_keys[1:], Reason.WRONG_KEYS),
    ("hop_keys", (*M.hop_keys, M.hop_keys[0]), Reason.WRONG_KEYS),
    ("hop_keys", (M.hop_keys[1], M.hop_keys[0], *M.hop_keys[2:]), Reason.WRONG_KEYS),
    ("hop_keys", key_0(hop="hop-3"), Reason.WRONG_KEYS),
    ("hop_keys", key_0(silo="silo-2"), Reason.WRONG_KEYS),
    ("hop_keys", key_0(silo=""), Reason.WRONG_KEYS),
    ("hop_keys", key_0(round=2), Reason.WRONG_ROUND),
    ("hop_keys", key_0_signed(round=2), Reason.WRONG_ROUND),
    ("hop_keys", key_0(attempt=1), Reason.WRONG_ATTEMPT),
    ("hop_keys", key_0_signed(attempt=1), Reason.WRONG_ATTEMPT),
    *(("hop_keys", key_0_signed(public_key=p), Reason.WRONG_KEYS) for p in (bytes(32), SMALL)),
    ("hop_keys", key_0(public_key=OWN.public_key), Reason.BAD_SIGNATURE),
    ("hop_keys", key_0_signed(public_key=bytes(31)), Reason.WRONG_LENGTH),
    ("hop_keys", key_0(last_released=1), Reason.BAD_SIGNATURE),
    ("hop_keys", key_0_signed(last_released=2), Reason.WRONG_ROUND),
    ("hop_keys", key_0(signature=flipped(KEY.signature)), Reason.BAD_SIGNATURE),
    ("hop_keys", key_0(signature=b""), Reason.BAD_SIGNATURE),
    ("hop_keys", key_0(signature=identity(AGGREGATOR).sign(KEY.digest(F.digest, M.head))), Reason.BAD_SIGNATURE),
    ("aggregator_keys", (), Reason.WRONG_KEYS),
    ("aggregator_keys", M.aggregator_keys[1:], Reason.WRONG_KEYS),
    ("aggregator_keys", M.aggregator_keys[::-1], Reason.WRONG_KEYS),
    ("aggregator_keys", (round_key(F, AGGREGATOR, "", 1, 0, 2),), Reason.WRONG_KEYS),  # one for all
    ("aggregator_keys", own_0(hop="hop-1"), Reason.WRONG_KEYS),
    ("aggregator_keys", own_0(silo="silo-2"), Reason.WRONG_KEYS),
    ("aggregator_keys", own_0(public_key=KEY.public_key), Reason.BAD_SIGNATURE),
    *(("aggregator_keys", own_0_signed(public_key=p), Reason.WRONG_KEYS) for p in (bytes(32), SMALL)),
    ("aggregator_keys", own_0_signed(round=2), Reason.WRONG_ROUND),
    ("aggregator_keys", own_0_signed(last_released=2), Reason.WRONG_ROUND),
    ("aggregator_keys", own_0_signed(attempt=1), Reason.WRONG_ATTEMPT),
    ("aggregator_keys", own_0(signature=flipped(OWN.signature)), Reason.BAD_SIGNATURE),
    ("group_size", 3, Reason.WRONG_POLICY),
    ("invited", ("silo-1", "silo-2", "silo-4", "silo-3"), Reason.MALFORMED),
    ("invited", ("silo-1", "silo-2", "silo-3", "silo-3"), Reason.MALFORMED),
    ("invited", ("hop-1", "silo-1", "silo-2"), Reason.UNKNOWN_PEER),
    ("invited", ("silo-1", "silo-2"), Reason.COHORT_TOO_SMALL),
    ("invited", ("silo-1", "silo-2", "silo-3"), Reason.WRONG_POLICY),
    ("minimum_cohort", 2, Reason.WRONG_POLICY),
    ("minimum_cohort", 5, Reason.COHORT_TOO_SMALL),
    ("chunk_parameters", 5, Reason.WRONG_POLICY),
    ("deadline_s", 61, Reason.WRONG_POLICY),
    ("fences", (fence(F, "silo-1", 1, 1),), Reason.UNKNOWN_PEER),
    ("fences", (fence(F, "hop-2", 2, 1),), Reason.WRONG_ROUND),
    ("fences", (fence(F, "hop-2", 1, 2),), Reason.WRONG_ATTEMPT),
    ("fences", (fence(F, "hop-2", 1, 0),), Reason.WRONG_ATTEMPT),
    ("fences", (replace(FENCE, manifest=bytes(32)).signed(identity("hop-2"), F.digest),), Reason.WRONG_MANIFEST),
    ("fences", (replace(FENCE, hop="hop-1"),), Reason.BAD_SIGNATURE),
    ("fences", (replace(FENCE, signature=bytes(64)),), Reason.BAD_SIGNATURE),
    ("fences", (FENCE, fence(F, "hop-1", 1, 1)), Reason.MALFORMED),
    ("fences", (FENCE, FENCE), Reason.MALFORMED),
    ("fences", (fence(F, "hop-1", 1, 1), FENCE), None),
    ("signature", bytes(64), Reason.BAD_SIGNATURE),
]
BEFORE_THE_SIGNATURE = {("federation", Reason.WRONG_FEDERATION), ("round", Reason.MALFORMED)}

cases = pytest.mark.parametrize(("name", "value", "reason"), CASES)


def test_an_aggregator_cannot_choose_whom_to_invite() -> None:
    few = federation(subsample=0.75)
    own = few.draw(1, M.model)
    others = next(few.draw(r, M.model) for r in range(2, 50) if few.draw(r, M.model) != own)
    another = next(few.draw(1, bytes([n] * 32)) for n in range(50) if few.draw(1, bytes([n] * 32)) != own)
    for names in (others, another, ()):
        m = manifest(few, invited=names)
        assert refused(lambda m=m: check_manifest(m, few)) is Reason.WRONG_POLICY  # type: ignore[misc]


def test_what_an_honest_aggregator_signs_is_accepted() -> None:
    check_manifest(M, F)
    check_manifest(manifest(F, minimum_cohort=4), F)
    few = federation(subsample=0.75)
    check_manifest(manifest(few, invited=few.draw(1, M.model)), few)


def test_a_chain_may_lack_as_many_hops_as_the_policy_allows_and_keeps_its_order() -> None:
    five = federation(hops=5, minimum_hops=4)
    for out in range(5):
        check_manifest(manifest(five, chain=five.chain[:out] + five.chain[out + 1 :]), five)
    for chain in (five.chain[:3], five.chain[::-1], (*five.chain[1:], five.chain[0])):
        assert refused(lambda c=chain: check_manifest(manifest(five, chain=c), five)) is Reason.WRONG_CHAIN  # type: ignore[misc]


def test_the_aggregator_cannot_choose_the_hop_that_colludes_with_it() -> None:
    """The whole pool is the chain, if the owners have not agreed on less."""
    for hop in F.chain:
        alone = manifest(F, chain=(hop,))
        assert refused(lambda m=alone: check_manifest(m, F)) is Reason.WRONG_CHAIN  # type: ignore[misc]


def test_every_field_has_a_case() -> None:
    assert {name for name, _, _ in CASES} == {f.name for f in fields(Manifest)}


@cases
def test_an_aggregator_that_lies_is_refused(name: str, value: Any, reason: Reason | None) -> None:
    altered = replace(M, **{name: value})
    if name != "signature":
        altered = altered.signed(identity(AGGREGATOR))
    if reason is None:
        check_manifest(altered, F)
    else:
        assert refused(lambda: check_manifest(altered, F)) is reason


@cases
def test_what_was_altered_in_transit_is_refused(name: str, value: Any, reason: Reason | None) -> None:
    altered = replace(M, **{name: value})
    found = refused(lambda: check_manifest(altered, F))
    early = (name, reason) in BEFORE_THE_SIGNATURE or altered.round > F.policy.rounds
    assert found is (reason if early or altered.attempt < 1 else Reason.BAD_SIGNATURE)


@pytest.mark.parametrize("signer", ["hop-1", "silo-1"])
def test_nobody_but_the_aggregator_signs_a_manifest(signer: str) -> None:
    assert refused(lambda: check_manifest(M.signed(identity(signer)), F)) is Reason.BAD_SIGNATURE


OTHER_PLANS = {
    "n_max": 5,
    "precision": 3,
    "encoding": Encoding.UNARY,
    "level": Level.TRUSTED,
    "weight_levels": 2,
    "headroom": 1,
    "quantiser": Quantiser.INT8,
    "moduli": F.plan.moduli[::-1],
}


def test_every_field_of_the_plan_is_compared() -> None:
    assert set(OTHER_PLANS) == {f.name for f in fields(Plan)}
    for name, value in OTHER_PLANS.items():
        changed: dict[str, Any] = {name: value}
        altered = replace(M, plan=replace(F.plan, **changed)).signed(identity(AGGREGATOR))
        assert refused(lambda m=altered: check_manifest(m, F)) is Reason.WRONG_PLAN, name  # type: ignore[misc]


def test_no_field_can_change_without_the_digest() -> None:
    """A manifest's digest names it everywhere, so every field must be in it. Masks and seals are bound to it too."""
    for name, value, _ in CASES:
        altered = replace(M, **{name: value})
        assert (altered.digest == M.digest) is (name == "signature"), name
        assert (altered.context(1).info() == M.context(1).info()) is (name == "signature"), name
    assert M.digest == replace(M, signature=b"").digest


def test_trusted_federations_have_no_keys_and_no_seeds() -> None:
    f = federation(level=Level.TRUSTED)
    m = manifest(f)
    check_manifest(m, f)
    check_header(header(m, "silo-1"), m, f)
    for altered in (manifest(f, hop_keys=(KEY,)), manifest(f, aggregator_keys=(OWN,))):
        assert refused(lambda m=altered: check_manifest(m, f)) is Reason.WRONG_KEYS  # type: ignore[misc]
    seeded = replace(header(m, "silo-1"), seeds=header(M, "silo-1").seeds).signed(identity("silo-1"))
    assert refused(lambda: check_header(seeded, m, f)) is Reason.WRONG_KEYS


@pytest.mark.parametrize("level", [Level.TRUSTED, Level.SEMI_HONEST])
def test_a_round_has_so_many_attempts_and_no_more(level: Level) -> None:
    """Each that a silo joins leaves a fact on its disk; at level trusted no hop makes keys, or refuses to."""
    f = federation(level=level)
    check_manifest(manifest(f, attempt=MOST_ATTEMPTS), f)
    for attempt in (MOST_ATTEMPTS + 1, (1 << 32) - 1):
        m = manifest(f, attempt=attempt)
        assert refused(lambda m=m: check_manifest(m, f)) is Reason.WRONG_ATTEMPT  # type: ignore[misc]


def test_in_groups_one_key_of_the_aggregator_serves_all_silos() -> None:
    groups = manifest(federation(6, group_size=3))
    (own,) = groups.aggregator_keys
    for silo in ("silo-1", "silo-6"):
        assert groups.key_for(AGGREGATOR, silo) == own
    assert M.key_for(AGGREGATOR, "silo-1") == OWN
    assert M.key_for("hop-1", "silo-1") == KEY
    assert M.key_for("hop-1", "silo-9") is None
    assert M.key_for("silo-1", "silo-1") is None


def test_a_body_has_a_place_for_a_weight_where_silos_are_weighed() -> None:
    assert layout(M).coordinates == SCHEMA.parameters
    assert layout(manifest(federation(weight_levels=2))).coordinates == SCHEMA.parameters + 1


def test_only_the_papers_modes_let_more_than_a_sum_out() -> None:
    assert baseline(M) is None
    literal = federation(level=Level.TRUSTED, granularity=Granularity.MODEL)
    mode = baseline(manifest(literal))
    assert mode is not None
    assert mode.granularity is Granularity.MODEL


def test_a_federation_file_differs_in_its_digest_by_every_fact() -> None:
    policy = replace(F.policy, deadline_s=61)
    shufflers, silos = F.shufflers, F.silos
    others = [
        replace(F, name="another"),
        replace(F, anchor=b"x"),
        replace(F, policy=policy),
        replace(F, shufflers=shufflers[::-1]),
        replace(F, aggregator=Member(AGGREGATOR, identity("silo-1").public, "a:1")),
        replace(F, silos=silos[1:]),
        replace(F, silos=(replace(silos[0], key=identity("x").public), *silos[1:])),
        replace(F, shufflers=(replace(shufflers[0], address="elsewhere:1"), *shufflers[1:])),
        replace(F, shufflers=(*shufflers, silos[0]), silos=silos[1:]),
    ]
    assert len({f.digest for f in (F, *others)}) == len(others) + 1


# Headers

H = header(M, "silo-1")
SEEDS = H.seeds


def seed_0(**changes: Any) -> tuple[SealedSeed, ...]:
    return (replace(SEEDS[0], **changes), *SEEDS[1:])


HEADERS: list[Case] = [
    ("silo", "silo-2", Reason.BAD_SIGNATURE),
    ("silo", "nobody", Reason.UNKNOWN_PEER),
    ("silo", "hop-1", Reason.NOT_INVITED),
    ("silo", AGGREGATOR, Reason.NOT_INVITED),
    ("manifest", manifest(F, attempt=3).digest, Reason.WRONG_MANIFEST),
    ("manifest", b"", Reason.WRONG_MANIFEST),
    ("coin", bytes(32), Reason.WRONG_LENGTH),
    ("seeds", (), Reason.WRONG_KEYS),
    ("seeds", SEEDS[:-1], Reason.WRONG_KEYS),
    ("seeds", SEEDS[1:], Reason.WRONG_KEYS),
    ("seeds", (*SEEDS, SEEDS[0]), Reason.WRONG_KEYS),
    ("seeds", (SEEDS[1], SEEDS[0], SEEDS[2]), Reason.WRONG_KEYS),
    ("seeds", seed_0(recipient="hop-3"), Reason.WRONG_KEYS),
    ("seeds", seed_0(sealed=SEEDS[0].sealed[1:]), Reason.WRONG_LENGTH),
    ("seeds", seed_0(sealed=SEEDS[0].sealed + b"x"), Reason.WRONG_LENGTH),
    ("seeds", seed_0(commitment=b""), Reason.WRONG_LENGTH),
    *(("seeds", seed_0(sealed=p + SEEDS[0].sealed[32:]), Reason.SEAL_BROKEN) for p in (bytes(32), SMALL)),
    ("chunks", 0, Reason.WRONG_LENGTH),
    ("chunks", 1, Reason.WRONG_LENGTH),
    ("chunks", 3, Reason.WRONG_LENGTH),
    ("signature", bytes(64), Reason.BAD_SIGNATURE),
    ("signature", b"", Reason.BAD_SIGNATURE),
]


def test_an_honest_header_is_accepted() -> None:
    check_header(H, M, F)
    assert {name for name, _, _ in HEADERS} == {f.name for f in fields(Header)}


@pytest.mark.parametrize(("name", "value", "reason"), HEADERS)
def test_an_altered_header_is_refused(name: str, value: Any, reason: Reason) -> None:
    altered = replace(H, **{name: value})
    assert refused(lambda: check_header(altered, M, F)) is reason
    if name not in ("silo", "signature"):  # the silo itself may lie about the rest
        assert refused(lambda: check_header(altered.signed(identity("silo-1")), M, F)) is reason


def test_seeds_cannot_be_exchanged_by_whoever_passes_them_on() -> None:
    for changes in ({"sealed": flipped(SEEDS[0].sealed)}, {"commitment": bytes(32)}):
        altered = replace(H, seeds=seed_0(**changes))
        assert refused(lambda h=altered: check_header(h, M, F)) is Reason.BAD_SIGNATURE  # type: ignore[misc]


def test_a_silo_that_is_not_invited_is_refused() -> None:
    m = manifest(F, invited=("silo-1", "silo-2", "silo-3"))
    assert refused(lambda: check_header(header(m, "silo-4"), m, F)) is Reason.NOT_INVITED


# Cohorts

ALL = headers(M, F)
KNOWN = known(ALL)
C = cohort(M, ALL)
PARTS = C.participants


def test_an_honest_cohort_is_accepted() -> None:
    check_cohort(C, M, F, KNOWN)
    check_cohort(cohort(M, ALL[1:]), M, F, KNOWN)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((), Reason.COHORT_TOO_SMALL),
        (PARTS[:1], Reason.COHORT_TOO_SMALL),
        (PARTS[:2], Reason.COHORT_TOO_SMALL),
        (PARTS[::-1], Reason.MALFORMED),
        ((PARTS[0], PARTS[0], PARTS[1]), Reason.MALFORMED),
        ((Participant("hop-1", PARTS[0].header), *PARTS[1:]), Reason.NOT_INVITED),
        ((*PARTS[:3], Participant("silo-4", header(M, "silo-4", 1).digest)), Reason.WRONG_SEQUENCE),
        # One silo's masks under three names: what is left would be that silo's own update.
        (tuple(replace(p, header=PARTS[0].header) for p in PARTS[:3]), Reason.WRONG_SEQUENCE),
        ((replace(PARTS[0], header=PARTS[3].header), *PARTS[1:3]), Reason.WRONG_SEQUENCE),
    ],
)
def test_hop_1_cannot_lie_about_a_cohort(parts: tuple[Participant, ...], reason: Reason) -> None:
    assert refused(lambda: check_cohort(signed(Cohort(M.digest, parts), "hop-1"), M, F, KNOWN)) is reason


@pytest.mark.parametrize("signer", ["hop-2", AGGREGATOR, "silo-1"])
def test_nobody_but_hop_1_signs_a_cohort(signer: str) -> None:
    assert refused(lambda: check_cohort(signed(C, signer), M, F, KNOWN)) is Reason.BAD_SIGNATURE


def test_a_cohort_of_another_attempt_is_refused() -> None:
    other = manifest(F, attempt=3)
    assert refused(lambda: check_cohort(C, other, F, KNOWN)) is Reason.WRONG_MANIFEST


def test_a_cohort_altered_in_transit_is_refused() -> None:
    assert refused(lambda: check_cohort(replace(C, participants=PARTS[:3]), M, F, KNOWN)) is Reason.BAD_SIGNATURE


@pytest.mark.parametrize(("policy", "announced"), [(3, 4), (4, 4), (4, 3)])
def test_the_larger_of_both_minima_holds(policy: int, announced: int) -> None:
    f = federation(minimum_cohort=policy)
    m = manifest(f, minimum_cohort=announced)
    of = headers(m, f)
    check_cohort(cohort(m, of), m, f, known(of))
    assert refused(lambda: check_cohort(cohort(m, of[:3]), m, f, known(of))) is Reason.COHORT_TOO_SMALL


def test_three_silos_are_the_least_whatever_a_policy_says() -> None:
    f = federation(minimum_cohort=1)
    m = manifest(f)
    of = headers(m, f)
    assert refused(lambda: check_cohort(cohort(m, of[:2]), m, f, known(of))) is Reason.COHORT_TOO_SMALL


def test_successive_cohorts_are_equal_or_differ_by_as_many_as_the_policy_wants() -> None:
    """Of two models in a row, the difference would be nearly that of the few silos that came or left."""
    two, three = federation(5, cohort_step=2), federation(5, cohort_step=3)
    before = two.silo_names[:4]
    check_step(before, before, two)
    check_step(before[1:], before, federation(5))
    assert refused(lambda: check_step(before[1:], before, two)) is Reason.COHORT_STEP
    assert refused(lambda: check_step(two.silo_names, before, two)) is Reason.COHORT_STEP
    one_for_another = two.silo_names[1:]
    check_step(one_for_another, before, two)
    assert refused(lambda: check_step(one_for_another, before, three)) is Reason.COHORT_STEP


# Identities


def test_a_signature_is_refused_and_never_crashes() -> None:
    key, what = identity("silo-1").public, bytes(32)
    good = identity("silo-1").sign(what)
    verify(key, what, good, "silo-1")
    for bad in (
        (key, bytes(31), good),
        (key, what, good[:-1]),
        (key, what, b""),
        (b"", what, good),
        (key[:5], what, good),
    ):
        with pytest.raises(PeerFault) as caught:
            verify(*bad, "silo-1")
        assert caught.value.reason is Reason.BAD_SIGNATURE
        assert caught.value.details["peer"] == "silo-1"


def test_an_identity_prints_its_name_and_no_more() -> None:
    secret = private("x", "y", 1)
    shown = repr(Identity("silo-1", secret)) + str(Identity("silo-1", secret))
    assert "silo-1" in shown
    assert secret.value.hex() not in shown
    assert repr(secret.value) not in shown


@pytest.mark.parametrize("bounds", [(0.5, 64.0), (1.0,), (0.5, 0.75), (0.0, 1.0), (1.0, 2.0**101), (nan, 1.0)])
def test_bounds_that_follow_from_the_model_are_powers_of_two(bounds: tuple[float, ...]) -> None:
    """A hop has no model: it can tell only what no model makes."""
    f = federation(bound=AUTO)
    if bounds == (0.5, 64.0):
        check_manifest(manifest(f, bounds=bounds), f)
        return
    with pytest.raises(PeerFault) as found:
        check_manifest(manifest(f, bounds=bounds), f)
    assert found.value.reason is Reason.BAD_BOUND
