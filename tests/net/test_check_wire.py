"""Protocol section 7 on the wire: what is written is read back, and what nobody may say is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.net.test_wire import COHORTS, DIGEST, HEADERS, MANIFESTS, NAME, SIGNATURE, TRAILS, M, tuples

from silomix.attacks.tamper.ring import federation
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.tamper import EquationKind, rhos
from silomix.runtime.core.protocol.check.blame import Case, Charge, Defence
from silomix.runtime.core.protocol.check.forms import SCALAR_BYTES
from silomix.runtime.core.protocol.check.said import CheckTranscript, SignedRoot, Statement, Subject, Toss
from silomix.runtime.core.protocol.lineage import Transcript
from silomix.runtime.core.protocol.release import Ready
from silomix.runtime.net.check import case as cases
from silomix.runtime.net.check import said
from silomix.runtime.net.history import read_trails, read_transcript, write_transcript
from silomix.runtime.net.wire import write_manifest
from silomix.v1 import case_pb2, check_pb2, cohort_pb2, history_pb2

PLAN = federation().plan
LOTS = st.tuples(*(st.tuples(*[st.integers(0, (1 << 8 * SCALAR_BYTES) - 1)] * n) for n in rhos(PLAN)))
TOSSES = st.builds(Toss, NAME, DIGEST, DIGEST, SIGNATURE)
BODIES = tuples(st.builds(SignedRoot, DIGEST, SIGNATURE))
STATEMENTS = st.builds(Statement, NAME, DIGEST, DIGEST, tuples(LOTS), SIGNATURE)
CHECKS = st.builds(CheckTranscript, tuples(TOSSES), tuples(STATEMENTS, 1))
DEFENCES = st.builds(
    Defence,
    NAME,
    DIGEST,
    st.sampled_from(EquationKind),
    NAME | st.just(""),
    DIGEST | st.just(b""),
    DIGEST | st.just(b""),
    SIGNATURE,
)
SUBJECTS = st.builds(
    lambda c, h, b, m, model, t: Subject(c, h, b, Ready(m, model, t)),
    COHORTS,
    tuples(HEADERS),
    BODIES,
    DIGEST,
    DIGEST,
    tuples(TRAILS, 1),
)
CASES = st.builds(
    Case,
    st.sampled_from(Charge),
    MANIFESTS.map(lambda m: replace(m, plan=PLAN)),
    st.none() | SUBJECTS,
    st.none() | TOSSES,
    st.none() | CHECKS,
    st.none() | DEFENCES,
    NAME | st.just(""),
    DIGEST | st.just(b""),
    tuples(TRAILS),
)

Kind = tuple[st.SearchStrategy[Any], Callable[[Any], Any], Callable[[Any], Any]]
KINDS: dict[str, Kind] = {
    "toss": (TOSSES, said.write_toss, said.read_toss),
    "statement": (STATEMENTS, said.write_statement, lambda wire: said.read_statement(wire, PLAN)),
    "check": (CHECKS, said.write_check, lambda wire: said.read_check(wire, PLAN)),
    "defence": (DEFENCES, said.write_defence, said.read_defence),
    "subject": (SUBJECTS, cases.write_subject, cases.read_subject),
    "case": (CASES, cases.write_case, cases.read_case),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_what_is_written_is_read_back(kind: str, data: st.DataObject) -> None:
    messages, write, read = KINDS[kind]
    message = data.draw(messages)
    wire = write(message)
    found = read(type(wire).FromString(wire.SerializeToString()))
    assert found == message
    if not isinstance(message, Subject):
        assert found.digest == message.digest


@given(BODIES)
def test_what_silos_have_signed_is_read_back(bodies: tuple[SignedRoot, ...]) -> None:
    assert said.read_bodies(said.write_bodies(bodies)) == bodies


B32, B64 = bytes(32), bytes(64)
TOSS = check_pb2.Toss(silo="silo-1", share=B32, ballot=B32, signature=B64)
STATEMENT = check_pb2.Statement(name="silo-1", context=B32, coin=B32, signature=B64)
DEFENCE = check_pb2.Defence(node="shuffler-1", check_digest=B32, kind="hop", signature=B64)
ROOT = check_pb2.SignedRoot(root=B32, signature=B64)
PROOF = check_pb2.TrapProof(hop="shuffler-1", check_digest=B32, signature=B64)
TRAIL = history_pb2.Trail(hop="shuffler-1", cohort_digest=B32, root_in=B32, root_out=B32, pad_digest=B32, signature=B64)
SUBJECT = case_pb2.Subject(
    manifest_digest=B32,
    model_digest=B32,
    cohort=cohort_pb2.Cohort(manifest_digest=B32, signature=B64),
    trails=[TRAIL],
)
CASE = case_pb2.Case(charge="pad", manifest=write_manifest(M))
BAD: list[tuple[Any, str, Any, Reason]] = [
    (TOSS, "silo", "", Reason.MALFORMED),
    (TOSS, "silo", "x" * 65, Reason.MALFORMED),
    (TOSS, "share", bytes(31), Reason.WRONG_LENGTH),
    (TOSS, "ballot", b"", Reason.WRONG_LENGTH),
    (TOSS, "signature", bytes(63), Reason.WRONG_LENGTH),
    (STATEMENT, "name", "", Reason.MALFORMED),
    (STATEMENT, "context", bytes(33), Reason.WRONG_LENGTH),
    (STATEMENT, "coin", b"", Reason.WRONG_LENGTH),
    (STATEMENT, "signature", b"", Reason.WRONG_LENGTH),
    (STATEMENT, "scalars", [bytes(SCALAR_BYTES * sum(rhos(PLAN)) - 1)], Reason.WRONG_LENGTH),
    (DEFENCE, "node", "", Reason.MALFORMED),
    (DEFENCE, "kind", "both", Reason.MALFORMED),
    (DEFENCE, "name", "x" * 65, Reason.MALFORMED),
    (DEFENCE, "check_digest", b"", Reason.WRONG_LENGTH),
    (DEFENCE, "private_key", bytes(31), Reason.WRONG_LENGTH),
    (DEFENCE, "root", bytes(31), Reason.WRONG_LENGTH),
    (DEFENCE, "signature", bytes(65), Reason.WRONG_LENGTH),
    (ROOT, "root", b"", Reason.WRONG_LENGTH),
    (ROOT, "signature", b"", Reason.WRONG_LENGTH),
    (PROOF, "hop", "", Reason.MALFORMED),
    (PROOF, "check_digest", bytes(31), Reason.WRONG_LENGTH),
    (PROOF, "signature", b"", Reason.WRONG_LENGTH),
    (SUBJECT, "manifest_digest", bytes(31), Reason.WRONG_LENGTH),
    (SUBJECT, "model_digest", b"", Reason.WRONG_LENGTH),
    (SUBJECT, "cohort", None, Reason.MALFORMED),
    (SUBJECT, "trails", None, Reason.MALFORMED),
    (CASE, "charge", "gossip", Reason.MALFORMED),
    (CASE, "manifest", None, Reason.MALFORMED),
]
READ: dict[type, Callable[[Any], Any]] = {
    check_pb2.Toss: said.read_toss,
    check_pb2.Statement: lambda wire: said.read_statement(wire, PLAN),
    check_pb2.Defence: said.read_defence,
    check_pb2.SignedRoot: lambda wire: said.read_bodies([wire]),
    check_pb2.TrapProof: said.read_proof,
    case_pb2.Subject: cases.read_subject,
    case_pb2.Case: cases.read_case,
}


@pytest.mark.parametrize(("good", "field", "value", "reason"), BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_a_field_that_nobody_may_send_is_refused(good: Any, field: str, value: Any, reason: Reason) -> None:
    read = READ[type(good)]
    read(good)
    bad = type(good)()
    bad.CopyFrom(good)
    if value is None:
        bad.ClearField(field)
    elif isinstance(value, list):
        getattr(bad, field).extend(value)
    else:
        setattr(bad, field, value)
    with pytest.raises(PeerFault) as caught:
        read(bad)
    assert caught.value.reason is reason


def test_a_transcript_is_read_with_its_check_which_the_hops_have_signed() -> None:
    manifest, cohort = replace(M, plan=PLAN), cases.read_subject(SUBJECT).cohort
    check = said.read_check(check_pb2.CheckTranscript(tosses=[TOSS], statements=[STATEMENT], proofs=[PROOF]), PLAN)
    ready = Ready(manifest.digest, manifest.model, read_trails([TRAIL]), check.digest)
    transcript = Transcript(manifest, cohort, (), ready, (), check=check)
    assert read_transcript(write_transcript(transcript)) == transcript


def test_what_a_check_cannot_do_without_is_missed() -> None:
    parts: list[tuple[Callable[[Any], Any], Any]] = [
        (lambda wire: said.read_check(wire, PLAN), check_pb2.CheckTranscript(tosses=[TOSS])),
        (cases.read_subject, case_pb2.Subject(manifest_digest=B32, model_digest=B32)),
        (cases.read_case, case_pb2.Case(charge="pad")),
        (cases.read_case, case_pb2.Case(charge="gossip")),
    ]
    for read, wire in parts:
        with pytest.raises(PeerFault) as caught:
            read(wire)
        assert caught.value.reason is Reason.MALFORMED


def test_scalars_are_refused_below_level_malicious() -> None:
    plan = federation(level=Level.SEMI_HONEST).plan
    with pytest.raises(PeerFault) as caught:
        said.read_statement(STATEMENT, plan)
    assert caught.value.reason is Reason.MALFORMED


@pytest.mark.parametrize("field", ["scalars", "residues", "commitments"])
def test_a_statement_is_of_no_more_lots_than_the_longest_chain_has(field: str) -> None:
    """They may be empty, so that millions of them fit into what a large check may take."""
    lot = bytes(SCALAR_BYTES * sum(rhos(PLAN))) if field == "scalars" else b""
    wire = check_pb2.Statement(name="silo-1", context=bytes(32), coin=bytes(32), signature=bytes(64))
    getattr(wire, field).extend([lot] * said.MOST_LOTS)
    said.read_statement(wire, PLAN)
    getattr(wire, field).append(lot)
    with pytest.raises(PeerFault, match="102 lots in one statement") as caught:
        said.read_statement(wire, PLAN)
    assert caught.value.reason is Reason.WRONG_LENGTH
