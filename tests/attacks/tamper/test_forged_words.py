"""What is said in a check, with one thing in it that is not as it was: it is refused, whoever has signed it.

Everybody runs these checks for itself, since the aggregator carries all that is said.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.attacks.tamper.recorded import FIRST, LAST, PLAIN, TRAPPED, honest, put, trapped

from silomix.attacks.tamper.ring import AGGREGATOR, identity
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.tamper import EquationKind, Finding
from silomix.runtime.core.protocol.check.hearing import Hearing
from silomix.runtime.core.protocol.check.proofs import check_proof
from silomix.runtime.core.protocol.check.said import (
    CheckTranscript,
    Statement,
    Subject,
    Toss,
    check_said,
    check_statement,
    check_subject,
    check_toss,
    coin_of,
    told,
)
from silomix.runtime.core.protocol.check.trapped import TrapProof
from silomix.runtime.core.protocol.messages import Header

UNSIGNED = bytes(64)
OTHER = bytes(32)


def refused(what: Callable[[], object]) -> Reason:
    with pytest.raises(PeerFault) as caught:
        what()
    return caught.value.reason


# What a check is about


def with_header(one: Header) -> Subject:
    """The subject with another header of the first silo."""
    of = honest().subject
    return replace(of, headers=(one, *of.headers[1:]))


def with_ready(**changes: bytes) -> Subject:
    of = honest().subject
    return replace(of, ready=replace(of.ready, **changes))  # type: ignore[arg-type]


def with_trail(signature: bytes) -> Subject:
    of = honest().subject
    first, *others = of.ready.trails
    return replace(of, ready=replace(of.ready, trails=(replace(first, signature=signature), *others)))


SUBJECTS: dict[str, tuple[Callable[[Subject], Subject], Reason]] = {
    "a header too many": (lambda of: replace(of, headers=(*of.headers, of.headers[0])), Reason.WRONG_SEQUENCE),
    "a header too few": (lambda of: replace(of, headers=of.headers[:-1]), Reason.WRONG_SEQUENCE),
    "headers in another order": (lambda of: replace(of, headers=of.headers[::-1]), Reason.WRONG_SEQUENCE),
    "a cohort that the first hop has not signed": (
        lambda of: replace(of, cohort=replace(of.cohort, signature=UNSIGNED)),
        Reason.BAD_SIGNATURE,
    ),
    "a header that its silo has not signed": (
        lambda of: with_header(replace(of.headers[0], signature=UNSIGNED)),
        Reason.BAD_SIGNATURE,
    ),
    "another manifest": (lambda of: with_ready(manifest=OTHER), Reason.WRONG_MANIFEST),
    "another model": (lambda of: with_ready(model=OTHER), Reason.WRONG_MANIFEST),
    "a check that was made already": (lambda of: with_ready(check=OTHER), Reason.WRONG_MANIFEST),
    "a trail that its hop has not signed": (lambda of: with_trail(UNSIGNED), Reason.BAD_SIGNATURE),
    "no trail of the last hop": (
        lambda of: replace(of, ready=replace(of.ready, trails=of.ready.trails[:-1])),
        Reason.WRONG_CHAIN,
    ),
}


@pytest.mark.parametrize("what", SUBJECTS)
def test_nothing_is_tossed_about_what_was_not_signed_for_this_attempt(what: str) -> None:
    of = honest()
    check_subject(of.subject, of.manifest, PLAIN)
    change, expected = SUBJECTS[what]
    assert refused(lambda: check_subject(change(of.subject), of.manifest, PLAIN)) is expected


# The coin


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_share_of_another_length_is_not_the_one_that_was_committed_to(size: int) -> None:
    one = replace(honest().check.tosses[0], share=bytes(size))
    one = replace(one, signature=identity(one.silo).sign(one.digest))
    assert refused(lambda: check_toss(one, honest().subject, PLAIN)) is Reason.SHARE_MISMATCH


COINS: dict[str, tuple[Callable[[tuple[Toss, ...]], tuple[Toss, ...]], Reason]] = {
    "a share is missing": (lambda all_: all_[:-1], Reason.SHARE_MISSING),
    "a share is there twice": (lambda all_: (*all_, all_[0]), Reason.SHARE_MISSING),
    "another order": (lambda all_: all_[::-1], Reason.SHARE_MISSING),
    "a share that was not signed": (
        lambda all_: (replace(all_[0], signature=UNSIGNED), *all_[1:]),
        Reason.BAD_SIGNATURE,
    ),
}


@pytest.mark.parametrize("what", COINS)
def test_a_coin_is_made_of_the_signed_shares_of_the_whole_cohort_and_of_each_once(what: str) -> None:
    tosses = honest().check.tosses
    assert coin_of(honest().subject, tosses, PLAIN) == honest().check.coin
    change, expected = COINS[what]
    assert refused(lambda: coin_of(honest().subject, change(tosses), PLAIN)) is expected


# Statements


def first_scalar(one: Statement, value: int) -> Statement:
    (_, *row), *planes = one.scalars[0]
    return replace(one, scalars=(((value, *row), *planes), *one.scalars[1:]))


STATEMENTS: dict[str, tuple[Callable[[Statement], Statement], Reason]] = {
    "about another sum": (lambda one: replace(one, context=OTHER), Reason.WRONG_SEQUENCE),
    "for another coin": (lambda one: replace(one, coin=OTHER), Reason.WRONG_SEQUENCE),
    "a lot too many": (lambda one: replace(one, scalars=(*one.scalars, one.scalars[0])), Reason.WRONG_LENGTH),
    "a lot too few": (lambda one: replace(one, scalars=one.scalars[1:]), Reason.WRONG_LENGTH),
    "a plane too few": (
        lambda one: replace(one, scalars=(one.scalars[0][1:], *one.scalars[1:])),
        Reason.WRONG_LENGTH,
    ),
    "a scalar that is not reduced": (lambda one: first_scalar(one, PLAIN.plan.moduli[0]), Reason.RESIDUE_RANGE),
}


@pytest.mark.parametrize("what", STATEMENTS)
@pytest.mark.parametrize("name", ["silo-1", FIRST, AGGREGATOR])
def test_scalars_count_that_were_signed_for_this_coin_as_many_as_a_role_has(name: str, what: str) -> None:
    of = honest()
    given = (of.subject.context, of.check.coin, PLAIN.chain, PLAIN)
    change, expected = STATEMENTS[what]
    check_statement(of.check.of(name), *given)
    one = change(of.check.of(name)).signed(identity(name))
    assert refused(lambda: check_statement(one, *given)) is expected


@pytest.mark.parametrize("name", ["silo-1", FIRST, AGGREGATOR])
@pytest.mark.parametrize("plane", range(len(TRAPPED.plan.moduli)))
def test_a_residue_at_a_trap_is_below_its_modulus(name: str, plane: int) -> None:
    of = trapped()
    one = of.check.of(name)
    for value, expected in ((TRAPPED.plan.moduli[plane] - 1, None), (TRAPPED.plan.moduli[plane], Reason.RESIDUE_RANGE)):
        rows = list(one.trapped.residues[0])
        rows[plane] = (value, *rows[plane][1:])
        stated = replace(one.trapped, residues=(tuple(rows), *one.trapped.residues[1:]))
        made = replace(one, trapped=stated).signed(identity(name))
        given = (made, of.subject.context, of.check.coin, TRAPPED.chain, TRAPPED)
        if expected is None:
            check_statement(*given)
        else:
            assert refused(lambda given=given: check_statement(*given)) is expected  # type: ignore[misc]


# All that was said


def unsigned_toss(check: CheckTranscript) -> CheckTranscript:
    first, *others = check.tosses
    return replace(check, tosses=(replace(first, signature=UNSIGNED), *others))


SAID: dict[str, tuple[Callable[[CheckTranscript], CheckTranscript], Reason]] = {
    "statements in another order": (
        lambda check: replace(check, statements=check.statements[::-1]),
        Reason.WRONG_SEQUENCE,
    ),
    "no word of a silo": (lambda check: replace(check, statements=check.statements[1:]), Reason.WRONG_SEQUENCE),
    "no word of the aggregator": (
        lambda check: replace(check, statements=check.statements[:-1]),
        Reason.WRONG_SEQUENCE,
    ),
    "nothing": (lambda check: CheckTranscript((), ()), Reason.WRONG_SEQUENCE),
    "shares in another order": (lambda check: replace(check, tosses=check.tosses[::-1]), Reason.WRONG_SEQUENCE),
    "a share twice": (lambda check: replace(check, tosses=(*check.tosses, check.tosses[0])), Reason.WRONG_SEQUENCE),
    "a share that was not signed": (unsigned_toss, Reason.BAD_SIGNATURE),
    "a statement that was not signed": (
        lambda check: put(check, replace(check.of(LAST), signature=UNSIGNED)),
        Reason.BAD_SIGNATURE,
    ),
}


@pytest.mark.parametrize("what", SAID)
def test_a_transcript_has_the_signed_word_of_everybody_in_one_order(what: str) -> None:
    of = honest()
    given = (of.subject.context, of.subject.cohort.silos, PLAIN.chain, PLAIN)
    check_said(of.check, *given)
    change, expected = SAID[what]
    assert refused(lambda: check_said(change(of.check), *given)) is expected


@pytest.mark.parametrize(
    ("kind", "where", "sentence"),
    [
        (
            EquationKind.HOP,
            FIRST,
            f"{FIRST} did not pass on what it took in less its masks, or a silo misstates a mask",
        ),
        (EquationKind.EDGE, FIRST, f"the silos and {FIRST} differ about what passed between them"),
        (EquationKind.EDGE, LAST, f"{FIRST} and {LAST} differ about what passed between them"),
        (EquationKind.EDGE, AGGREGATOR, f"{LAST} and {AGGREGATOR} differ about what passed between them"),
    ],
    ids=["inside a hop", "from the silos", "between hops", "to the aggregator"],
)
def test_people_are_told_where_an_equation_fails(kind: EquationKind, where: str, sentence: str) -> None:
    assert told(Finding(kind, where, 0), PLAIN.chain, PLAIN) == sentence


# What the aggregator hears


def hearing(*, tossed: bool = True) -> Hearing:
    """A check that has begun."""
    of = honest()
    made = Hearing(of.manifest, of.subject, PLAIN)
    for one in of.check.tosses if tossed else ():
        made.toss(one)
    return made


def answered() -> Hearing:
    """A check in which everybody has answered the coin."""
    made = hearing()
    assert [made.state(one) for one in honest().check.statements][-2:] == [False, True]
    return made


def test_no_share_is_heard_twice() -> None:
    first, *others = honest().check.tosses
    made = hearing(tossed=False)
    assert [made.toss(one) for one in (first, first, *others)] == [False, False, *[False] * (len(others) - 1), True]
    made = answered()
    assert not made.toss(first)  # nobody is asked for scalars again
    assert made.transcript == honest().check


def test_nobody_answers_before_there_is_a_coin() -> None:
    made = hearing(tossed=False)
    for coin in (b"", honest().check.coin):
        one = replace(honest().check.of("silo-1"), coin=coin).signed(identity("silo-1"))
        assert refused(lambda one=one: made.state(one)) is Reason.WRONG_SEQUENCE  # type: ignore[misc]
    assert not made.statements


@pytest.mark.parametrize("name", ["silo-4", "nobody"])
def test_nobody_answers_who_has_no_part_in_the_sum(name: str) -> None:
    made = hearing()
    one = replace(honest().check.of("silo-1"), name=name).signed(identity(name))
    assert refused(lambda: made.state(one)) is Reason.WRONG_SEQUENCE
    assert not made.statements


def test_an_answer_that_was_not_signed_is_not_heard() -> None:
    made = hearing()
    one = replace(honest().check.of("silo-1"), signature=UNSIGNED)
    assert refused(lambda: made.state(one)) is Reason.BAD_SIGNATURE
    assert not made.statements


def test_the_first_answer_counts() -> None:
    made, one = hearing(), honest().check.of("silo-1")
    made.state(one)
    assert not made.state(first_scalar(one, 1).signed(identity("silo-1")))
    assert made.statements == {"silo-1": one}
    assert not answered().state(one)  # hops are asked for nothing a second time


def test_no_proof_is_heard_twice() -> None:
    of = trapped()
    made = Hearing(of.manifest, of.subject, TRAPPED)
    for toss in of.check.tosses:
        made.toss(toss)
    for statement in of.check.statements:
        made.state(statement)
    first, last = of.check.proofs
    assert [made.prove(one) for one in (first, first, last, last)] == [False, False, True, False]
    assert made.transcript == of.check


# Proofs


@pytest.mark.parametrize("name", ["silo-1", AGGREGATOR])
def test_nobody_proves_anything_but_a_hop(name: str) -> None:
    check = trapped().check
    one = replace(check.proofs[0], hop=name).signed(identity(name))
    assert refused(lambda: check_proof(one, check, TRAPPED.chain, TRAPPED)) is Reason.WRONG_SEQUENCE


@pytest.mark.parametrize(
    "change",
    [lambda proofs: proofs + b"\0", lambda proofs: proofs * 2, lambda proofs: proofs[:-1]],
    ids=["a byte more", "twice", "a byte less"],
)
def test_proofs_have_their_length_and_no_byte_more(change: Callable[[bytes], bytes]) -> None:
    check = trapped().check
    right = check.proofs[0]
    check_proof(right, check, TRAPPED.chain, TRAPPED)
    one = TrapProof(right.hop, right.check, change(right.proofs)).signed(identity(right.hop))
    assert refused(lambda: check_proof(one, check, TRAPPED.chain, TRAPPED)) is Reason.TAMPERED
