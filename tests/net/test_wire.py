"""Protocol section 5, fields: what is written is read back, and what no node may send is refused, never a crash."""

from collections.abc import Callable
from dataclasses import fields, replace
from math import prod
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.protocol.federations import (
    SCHEMA,
    agreement,
    applied,
    bond,
    cohort,
    evidence,
    federation,
    fence,
    headers,
    manifest,
    pad,
    past,
    ready,
)
from tests.tools import examples

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import SEALED_BYTES, Secret
from silomix.runtime.core.numbers.plan import Encoding, Granularity, Level, Plan, Quantiser
from silomix.runtime.core.numbers.schema import Dtype, Schema, TensorSpec
from silomix.runtime.core.policy import (
    LEAST_COHORT,
    MAX_CHUNK,
    MAX_PARAMETERS,
    MAX_SECONDS,
    MAX_SHUFFLERS,
    MAX_SILOS,
    UpdateKind,
)
from silomix.runtime.core.protocol.hearing import LIFE_BYTES, Shown, Told
from silomix.runtime.core.protocol.lineage import Transcript
from silomix.runtime.core.protocol.messages import (
    Bond,
    Cohort,
    Evidence,
    Fence,
    Group,
    Grouping,
    Header,
    Manifest,
    Participant,
    Receipt,
    RoundKey,
    SealedSeed,
)
from silomix.runtime.core.protocol.release import Ready, Trail
from silomix.runtime.core.protocol.roundlog import Attempted, Outcome, Record
from silomix.runtime.net import history
from silomix.runtime.net.history import (
    MOST_RECORDS,
    Written,
    read_record,
    read_records,
    read_shown,
    read_trail,
    read_transcript,
    write_record,
    write_shown,
    write_trail,
    write_transcript,
)
from silomix.runtime.net.wire import (
    name_field,
    read_cohort,
    read_evidence,
    read_grouping,
    read_groups,
    read_header,
    read_manifest,
    read_plan,
    read_receipt,
    read_round_key,
    read_schema,
    write_cohort,
    write_evidence,
    write_grouping,
    write_groups,
    write_header,
    write_manifest,
    write_plan,
    write_receipt,
    write_round_key,
    write_schema,
)
from silomix.v1 import body_pb2, cohort_pb2, history_pb2, manifest_pb2, plan_pb2, schema_pb2, services_pb2

# Every message that can exist

NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=16)
DIGEST = st.binary(min_size=32, max_size=32)
SIGNATURE = st.binary(min_size=64, max_size=64)
U32, U64 = st.integers(1, (1 << 32) - 1), st.integers(1, (1 << 64) - 1)


def tuples(of: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, min_size=least, max_size=3).map(tuple)


PLANS = st.builds(
    Plan,
    U32,
    st.integers(1, 18),
    st.sampled_from(Encoding),
    st.sampled_from(Level),
    U64,
    st.integers(0, (1 << 32) - 1),
    st.sampled_from(Quantiser),
    tuples(st.integers(2, 1 << 20), 1),
)
TENSORS = st.builds(TensorSpec, NAME, tuples(st.integers(0, 50)), st.sampled_from(Dtype), st.booleans())
SCHEMAS = (
    st.lists(TENSORS, min_size=1, max_size=4, unique_by=lambda t: t.name)
    .map(lambda tensors: Schema(tuple(tensors)))
    .filter(lambda schema: schema.parameters > 0)
)
KEYS = st.builds(RoundKey, NAME, NAME | st.just(""), U64, U32, DIGEST, U64, SIGNATURE)
FENCES = st.builds(Fence, NAME, U64, U32, DIGEST, SIGNATURE)
BONDS = st.integers(1, 3).flatmap(
    lambda hops: st.builds(
        Bond,
        DIGEST,
        tuples(st.builds(Participant, NAME, DIGEST)),
        DIGEST | st.just(b""),
        st.tuples(*[st.builds(Trail, NAME, st.just(b""), st.just(b""), DIGEST, DIGEST, DIGEST)] * hops),
        st.tuples(*[SIGNATURE] * (hops + 1)),
    )
)
MANIFESTS = st.builds(
    Manifest,
    federation=DIGEST,
    head=DIGEST,
    applied=st.integers(0, (1 << 64) - 1),
    round=U64,
    attempt=U32,
    earlier=tuples(DIGEST),
    model=DIGEST,
    state=DIGEST,
    schema=SCHEMAS,
    plan=PLANS,
    bounds=tuples(st.floats(allow_nan=False)),
    update=st.sampled_from(UpdateKind),
    granularity=st.sampled_from(Granularity),
    chain=tuples(NAME),
    hop_keys=tuples(KEYS),
    aggregator_keys=tuples(KEYS),
    group_size=st.just(0) | st.integers(3, (1 << 32) - 1),
    invited=tuples(NAME),
    minimum_cohort=st.integers(3, (1 << 32) - 1),
    chunk_parameters=st.integers(1, 1 << 20),
    deadline_s=st.integers(1, 604_800),
    bound=st.none() | BONDS,
    fences=tuples(FENCES),
    signature=SIGNATURE,
)
SEEDS = st.builds(SealedSeed, NAME, st.binary(min_size=SEALED_BYTES, max_size=SEALED_BYTES), DIGEST)
HEADERS = st.builds(
    Header, NAME, DIGEST, tuples(SEEDS), st.integers(0, (1 << 32) - 1), SIGNATURE, DIGEST | st.just(b"")
)
RECEIPTS = st.builds(Receipt, NAME, DIGEST, DIGEST, NAME, SIGNATURE)
EVIDENCE = st.builds(Evidence, DIGEST, NAME, NAME, DIGEST, DIGEST)
COHORTS = st.builds(Cohort, DIGEST, tuples(st.builds(Participant, NAME, DIGEST)), SIGNATURE)
GROUPINGS = st.builds(Grouping, st.integers(0, 5).flatmap(lambda n: st.tuples(*[st.integers(0, n - 1)] * n)), SIGNATURE)
GROUPS = tuples(st.builds(Group, U32, tuples(SEEDS)))
SIGNATURES = tuples(st.tuples(NAME, SIGNATURE))
TRAILS = st.builds(Trail, NAME, DIGEST, DIGEST | st.just(b""), DIGEST, DIGEST, DIGEST, SIGNATURE)
ATTEMPTED = (U32, DIGEST, tuples(NAME), DIGEST | st.just(b""), tuples(NAME), SIGNATURES)
ATTEMPTS = st.builds(Attempted, *ATTEMPTED) | st.builds(Attempted, *ATTEMPTED, NAME, DIGEST)
RECORDS = st.builds(
    Record,
    DIGEST,
    st.integers(0, (1 << 64) - 1),
    st.sampled_from(Outcome),
    tuples(ATTEMPTS),
    DIGEST | st.just(b""),
    *[DIGEST] * 5,
    DIGEST | st.just(b""),
    SIGNATURE,
    SIGNATURES,
)
SECRETS = tuples(st.builds(Secret, DIGEST))
TRANSCRIPTS = st.builds(
    lambda m, c, h, t, *rest: Transcript(m, c, h, Ready(m.digest, m.model, t), *rest),
    MANIFESTS,
    COHORTS,
    tuples(HEADERS),
    tuples(TRAILS, 1),
    SIGNATURES,
    SECRETS,
    SECRETS,
)

KINDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "plan": (PLANS, write_plan, read_plan),
    "schema": (SCHEMAS, write_schema, read_schema),
    "round key": (KEYS, write_round_key, read_round_key),
    "manifest": (MANIFESTS, write_manifest, read_manifest),
    "header": (HEADERS, write_header, read_header),
    "receipt": (RECEIPTS, write_receipt, read_receipt),
    "cohort": (COHORTS, write_cohort, read_cohort),
    "evidence": (EVIDENCE, write_evidence, read_evidence),
    "grouping": (GROUPINGS, write_grouping, read_grouping),
    "groups": (GROUPS, write_groups, read_groups),
    "trail": (TRAILS, write_trail, read_trail),
    "record": (RECORDS, write_record, read_record),
    "transcript": (TRANSCRIPTS, write_transcript, read_transcript),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@given(data=st.data())
def test_what_is_written_is_read_back(kind: str, data: st.DataObject) -> None:
    messages, write, read = KINDS[kind]
    message = data.draw(messages)
    wire = write(message)
    parsed = type(wire).FromString(wire.SerializeToString())
    found = read(parsed)
    assert found == message
    if isinstance(message, Manifest):
        assert found.signature == message.signature  # which a manifest's equality leaves out
        assert found.digest == message.digest
    if isinstance(message, Record):
        assert found.countersignatures == message.countersignatures  # nor these
        assert found.digest == message.digest


# Fields that no node may send

F = federation()
M = manifest(F, attempt=2, fences=(fence(F, "hop-3", 1, 1),), invited=("silo-1", "silo-2", "silo-3"))
H = headers(M, F)[0]
R = Receipt("silo-1", M.digest, bytes(32), "hop-1", bytes(64))
C = cohort(M, headers(M, F))
T = ready(M, C)
BOUND = manifest(F, bound=bond(F.silo_names), earlier=())
RECORD = applied(past(F), M, T, F.silo_names)
SHOWN = Shown(bytes(LIFE_BYTES), 1, 0, (RECORD,), 1, 1, (Told(1, 1, bytes(32), bond(F.silo_names)),), bytes(64))
LONG = "x" * 65
SHORT, MALFORMED, SCHEMA_WRONG = Reason.WRONG_LENGTH, Reason.MALFORMED, Reason.WRONG_SCHEMA

NAMES = 10_000
"""More than any message here has."""

GOOD: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "manifest": (lambda: write_manifest(M), read_manifest),
    "header": (lambda: write_header(H), read_header),
    "receipt": (lambda: write_receipt(R), read_receipt),
    "cohort": (lambda: write_cohort(cohort(M, headers(M, F))), read_cohort),
    "evidence": (lambda: write_evidence(evidence(M, H, "hop-2")), read_evidence),
    "grouping": (lambda: write_grouping(Grouping((0, 1, 0), bytes(64))), read_grouping),
    "groups": (lambda: write_groups((Group(3, H.seeds),)), read_groups),
    "bound": (lambda: write_manifest(BOUND), read_manifest),
    "trail": (lambda: write_trail(T.trails[0]), read_trail),
    "record": (lambda: write_record(RECORD), read_record),
    "transcript": (
        lambda: write_transcript(
            Transcript(M, C, (H,), T, agreement(T.digest, M.chain), (pad("hop-1"),), (pad("a seed"),))
        ),
        read_transcript,
    ),
    "shown": (lambda: write_shown(SHOWN), lambda wire: read_shown(wire, 0, NAMES)),
}

DIGESTS = (
    "federation_digest",
    "model_before",
    "model_after",
    "state_before",
    "state_after",
    "previous",
)
BAD: list[tuple[str, str, Any, Reason]] = [
    *(
        ("manifest", f"{n}", v, SHORT)
        for n in ("federation_digest", "model_digest", "head_digest", "state_digest")
        for v in (b"", bytes(31), bytes(33))
    ),
    ("manifest", "schema_digest", b"", SHORT),
    ("manifest", "schema_digest", bytes(32), SCHEMA_WRONG),
    ("manifest", "signature", bytes(63), SHORT),
    ("manifest", "signature", b"", SHORT),
    ("manifest", "round", 0, MALFORMED),
    ("manifest", "attempt", 0, MALFORMED),
    ("manifest", "schema", None, MALFORMED),
    ("manifest", "plan", None, MALFORMED),
    *(("manifest", n, v, MALFORMED) for n in ("update_kind", "granularity") for v in (0, 99, -1)),
    ("manifest", "chain.0", "", MALFORMED),
    ("manifest", "chain.0", LONG, MALFORMED),
    ("manifest", "chain.0", "ü" * 33, MALFORMED),
    ("manifest", "invited.0", "", MALFORMED),
    ("manifest", "invited.0", LONG, MALFORMED),
    *(("manifest", "group_size", v, MALFORMED) for v in (1, 2)),
    *(("manifest", "minimum_cohort", v, MALFORMED) for v in (0, 1, 2)),
    *(("manifest", "chunk_parameters", v, MALFORMED) for v in (0, (1 << 20) + 1)),
    *(("manifest", "deadline_s", v, MALFORMED) for v in (0, 604_801)),
    ("manifest", "hop_keys.0.hop", "", MALFORMED),
    ("manifest", "hop_keys.0.silo", LONG, MALFORMED),
    ("manifest", "hop_keys.0.public_key", bytes(31), SHORT),
    ("manifest", "hop_keys.0.signature", b"", SHORT),
    ("manifest", "aggregator_keys.0.public_key", b"", SHORT),
    ("manifest", "aggregator_keys.0.signature", bytes(65), SHORT),
    ("manifest", "fences.0.hop", "", MALFORMED),
    ("manifest", "fences.0.signature", b"", SHORT),
    ("manifest", "fences.0.manifest_digest", bytes(31), SHORT),
    ("manifest", "earlier.0", bytes(31), SHORT),
    *(("bound", "bond.participants.0.silo", v, MALFORMED) for v in ("", LONG)),
    ("bound", "bond.participants.0.header_digest", bytes(31), SHORT),
    ("bound", "bond.manifest_digest", b"", SHORT),
    ("bound", "bond.hops", None, MALFORMED),
    ("bound", "bond.grouping_seal", bytes(31), SHORT),
    ("bound", "bond.check_digest", bytes(31), SHORT),
    ("bound", "bond.signature", bytes(63), SHORT),
    *(("bound", "bond.hops.0.hop", v, MALFORMED) for v in ("", LONG)),
    *(("bound", f"bond.hops.1.{n}", bytes(31), SHORT) for n in ("root_in", "root_out", "pad_digest", "signature")),
    ("manifest", "plan.n_max", 0, MALFORMED),
    *(("manifest", "plan.precision", v, MALFORMED) for v in (0, 19, (1 << 32) - 1)),
    ("manifest", "plan.weight_levels", 0, MALFORMED),
    *(("manifest", f"plan.{n}", v, MALFORMED) for n in ("encoding", "level", "quantiser") for v in (0, 99)),
    *(("manifest", "plan.moduli.0", v, MALFORMED) for v in (0, 1, (1 << 20) + 1)),
    ("manifest", "plan.moduli", None, MALFORMED),
    ("manifest", "schema.total_parameters", 6, SCHEMA_WRONG),
    ("manifest", "schema.tensors", None, SCHEMA_WRONG),
    ("manifest", "schema.tensors.0.name", "", MALFORMED),
    ("manifest", "schema.tensors.0.name", "x" * 513, MALFORMED),
    ("manifest", "schema.tensors.0.name", SCHEMA.tensors[1].name, MALFORMED),
    *(("manifest", "schema.tensors.0.dtype", v, MALFORMED) for v in (0, 5)),
    *(("manifest", "schema.tensors.0.kind", v, MALFORMED) for v in (0, 3)),
    ("manifest", "schema.tensors.0.shape.0", (1 << 64) - 1, SCHEMA_WRONG),
    ("header", "silo", "", MALFORMED),
    ("header", "silo", LONG, MALFORMED),
    ("header", "manifest_digest", bytes(31), SHORT),
    ("header", "signature", bytes(63), SHORT),
    ("header", "coin_commitment", bytes(31), SHORT),
    ("header", "seeds.0.recipient", "", MALFORMED),
    ("header", "seeds.0.sealed", bytes(79), SHORT),
    ("header", "seeds.0.sealed", bytes(1 << 16), SHORT),
    ("header", "seeds.0.commitment", b"", SHORT),
    ("receipt", "silo", "", MALFORMED),
    ("receipt", "hop", LONG, MALFORMED),
    ("receipt", "manifest_digest", b"", SHORT),
    ("receipt", "root", bytes(33), SHORT),
    ("receipt", "signature", b"", SHORT),
    ("cohort", "manifest_digest", b"", SHORT),
    ("cohort", "signature", b"", SHORT),
    ("cohort", "participants.0.silo", "", MALFORMED),
    ("cohort", "participants.0.silo", LONG, MALFORMED),
    ("cohort", "participants.0.header_digest", bytes(31), SHORT),
    ("grouping", "signature", b"", SHORT),
    # Whoever has sizes of groups counts up to the largest number: it must not be one that a peer has chosen.
    *(("grouping", "groups.0", v, MALFORMED) for v in (3, (1 << 32) - 1)),
    ("groups", "groups.0.seeds.0.recipient", "", MALFORMED),
    ("groups", "groups.0.seeds.0.sealed", bytes(79), SHORT),
    ("groups", "groups.0.seeds.0.commitment", b"", SHORT),
    ("evidence", "manifest_digest", bytes(31), SHORT),
    ("evidence", "header_digest", b"", SHORT),
    ("evidence", "private_key", bytes(33), SHORT),
    ("evidence", "silo", "", MALFORMED),
    ("evidence", "recipient", LONG, MALFORMED),
    *(("trail", n, bytes(31), SHORT) for n in ("cohort_digest", "grouping_seal", "root_in", "root_out", "pad_digest")),
    *(("trail", n, b"", SHORT) for n in ("cohort_digest", "root_in", "root_out", "pad_digest")),
    ("trail", "hop", LONG, MALFORMED),
    ("trail", "signature", bytes(63), SHORT),
    *(("record", n, bytes(31), SHORT) for n in (*DIGESTS, "root")),
    *(("record", n, b"", SHORT) for n in DIGESTS),
    *(("record", "outcome", v, MALFORMED) for v in ("", "won", "GENESIS")),
    ("record", "signature", b"", SHORT),
    ("record", "countersignatures.0.name", "", MALFORMED),
    ("record", "countersignatures.0.signature", bytes(65), SHORT),
    ("record", "attempts.0.manifest_digest", b"", SHORT),
    ("record", "attempts.0.agreed", bytes(31), SHORT),
    ("record", "attempts.0.evidence_digest", bytes(31), SHORT),
    ("record", "next_digest", bytes(31), SHORT),
    ("record", "attempts.0.chain.0", LONG, MALFORMED),
    ("record", "attempts.0.silos.0", "", MALFORMED),
    ("record", "attempts.0.signatures.0.name", LONG, MALFORMED),
    ("record", "attempts.0.signatures.0.signature", b"", SHORT),
    *(("transcript", n, None, MALFORMED) for n in ("manifest", "cohort", "trails")),
    ("transcript", "trails.0.root_in", b"", SHORT),
    ("transcript", "headers.0.silo", "", MALFORMED),
    ("transcript", "cohort.signature", b"", SHORT),
    ("transcript", "manifest.signature", b"", SHORT),
    ("transcript", "signatures.0.signature", b"", SHORT),
    *(("transcript", n, v, SHORT) for n in ("pads.0", "seeds.0") for v in (b"", bytes(31), bytes(33))),
    ("shown", "life", bytes(LIFE_BYTES - 1), SHORT),
    ("shown", "signature", bytes(63), SHORT),
    ("shown", "signature", b"", SHORT),
    ("shown", "told.0.model_digest", bytes(31), SHORT),
    ("shown", "told.0.bond.manifest_digest", b"", SHORT),
    ("shown", "records.0.signature", b"", SHORT),
]


def put(message: Any, path: str, value: Any) -> None:
    """Set a field by its path; None takes it away."""
    *steps, last = path.split(".")
    for step in steps:
        message = message[int(step)] if step.isdigit() else getattr(message, step)
    if value is None:
        message.ClearField(last)
    elif last.isdigit():
        message[int(last)] = value
    else:
        setattr(message, last, value)


@pytest.mark.parametrize("kind", GOOD)
def test_the_good_ones_are_read(kind: str) -> None:
    make, read = GOOD[kind]
    read(make())


@pytest.mark.parametrize(("kind", "path", "value", "reason"), BAD)
def test_a_field_that_cannot_be_is_refused(kind: str, path: str, value: Any, reason: Reason) -> None:
    make, read = GOOD[kind]
    wire = make()
    put(wire, path, value)
    wire = type(wire).FromString(wire.SerializeToString())
    with pytest.raises(PeerFault) as caught:
        read(wire)
    assert caught.value.reason is reason
    assert len(str(caught.value)) < 1000  # what was refused is not repeated into a log


def one_tensor(shape: tuple[int, ...], name: str = "t") -> schema_pb2.Schema:
    tensor = schema_pb2.Tensor(name=name, shape=shape, dtype=schema_pb2.DTYPE_F32, kind=schema_pb2.TENSOR_KIND_BUFFER)
    return schema_pb2.Schema(tensors=[tensor], total_parameters=min(prod(shape), (1 << 64) - 1))


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((MAX_PARAMETERS + 1,), SCHEMA_WRONG),
        ((1 << 20, 1 << 21), SCHEMA_WRONG),
        (((1 << 64) - 1,) * 16, SCHEMA_WRONG),
        ((0,), SCHEMA_WRONG),
        ((1,) * 17, MALFORMED),
    ],
    ids=["one too many", "large", "huge", "nothing", "deep"],
)
def test_a_schema_that_nobody_can_hold_is_refused(shape: tuple[int, ...], reason: Reason) -> None:
    with pytest.raises(PeerFault) as caught:
        read_schema(one_tensor(shape))
    assert caught.value.reason is reason


@pytest.mark.parametrize("shape", [(1,), (1,) * 16, (MAX_PARAMETERS,)], ids=["one", "deep", "all"])
@pytest.mark.parametrize("name", ["t", "t" * 512], ids=len)
def test_a_schema_may_be_as_large_as_the_largest(shape: tuple[int, ...], name: str) -> None:
    assert read_schema(one_tensor(shape, name)).parameters == prod(shape)


@pytest.mark.parametrize(
    ("path", "most"), [("chunk_parameters", MAX_CHUNK), ("deadline_s", MAX_SECONDS), ("minimum_cohort", 1 << 31)]
)
def test_a_manifest_may_have_the_least_and_the_most(path: str, most: int) -> None:
    for value in (LEAST_COHORT if path == "minimum_cohort" else 1, most):
        wire = write_manifest(M)
        put(wire, path, value)
        read_manifest(wire)


def test_a_manifest_without_a_plan_is_said_to_have_none() -> None:
    wire = write_manifest(M)
    wire.ClearField("plan")
    with pytest.raises(PeerFault, match="without schema or plan"):
        read_manifest(wire)


def test_a_name_may_be_as_long_as_the_longest() -> None:
    assert name_field(LONG[:-1], "a name") == LONG[:-1]


def test_a_plan_has_a_bounded_number_of_moduli() -> None:
    """Whoever reads a plan makes something for each of them."""
    wire = write_plan(M.plan)
    wire.moduli[:] = [2] * 64
    assert len(read_plan(wire).moduli) == 64
    wire.moduli.append(2)
    with pytest.raises(PeerFault) as caught:
        read_plan(wire)
    assert caught.value.reason is MALFORMED


READERS: list[tuple[type[Message], Callable[[Any], Any]]] = [
    (manifest_pb2.Manifest, read_manifest),
    (manifest_pb2.RoundKey, read_round_key),
    (body_pb2.Header, read_header),
    (body_pb2.Receipt, read_receipt),
    (body_pb2.Evidence, read_evidence),
    (cohort_pb2.Cohort, read_cohort),
    (history_pb2.Trail, read_trail),
    (history_pb2.Record, read_record),
    (history_pb2.Transcript, read_transcript),
    (services_pb2.Grouping, read_grouping),
    (plan_pb2.Plan, read_plan),
    (schema_pb2.Schema, read_schema),
]


def test_an_empty_message_is_refused() -> None:
    for kind, read in READERS:
        with pytest.raises(PeerFault):
            read(kind())


def test_every_enum_has_the_same_members_on_the_wire() -> None:
    for kind, wire in (
        (Encoding, plan_pb2.Encoding),
        (Level, plan_pb2.Level),
        (Quantiser, plan_pb2.Quantiser),
        (Dtype, schema_pb2.Dtype),
        (UpdateKind, manifest_pb2.UpdateKind),
        (Granularity, manifest_pb2.Granularity),
    ):
        ours = {member.name for member in kind}
        theirs = {n for n in wire.keys() if not n.endswith("_UNSPECIFIED")}  # noqa: SIM118 - no mapping
        assert len(ours) == len(theirs)
        assert all(any(t.endswith(f"_{o}") for t in theirs) for o in ours)


def test_the_core_has_every_field_of_the_wire() -> None:
    """A field that is read by nobody would be signed by nobody. The schema's digest stands for the schema."""
    pairs: dict[Any, Any] = {
        Manifest: manifest_pb2.Manifest,
        Header: body_pb2.Header,
        Receipt: body_pb2.Receipt,
        Evidence: body_pb2.Evidence,
        RoundKey: manifest_pb2.RoundKey,
        Plan: plan_pb2.Plan,
        Fence: manifest_pb2.Fence,
        Trail: history_pb2.Trail,
        Attempted: history_pb2.Attempted,
        Record: history_pb2.Record,
        Transcript: history_pb2.Transcript,
    }
    for ours, wire in pairs.items():
        extra = 1 if ours is Manifest else 0
        assert len(fields(ours)) == len(wire.DESCRIPTOR.fields) - extra


def test_a_message_has_a_bounded_number_of_records() -> None:
    one = write_record(RECORD)
    assert len(read_records([one] * MOST_RECORDS, NAMES)) == MOST_RECORDS
    with pytest.raises(PeerFault) as caught:
        read_records([one] * (MOST_RECORDS + 1), NAMES)
    assert caught.value.reason is Reason.WRONG_LENGTH


@pytest.mark.parametrize("field", ["chain", "silos", "signatures"])
def test_records_have_a_bounded_number_of_names_and_none_of_more_is_read(field: str) -> None:
    """Each takes forty times its length once it is read, and its turn when the record's digest is made."""
    names: Any = ["ab"] * 5 if field != "signatures" else [history_pb2.Signature(name="ab", signature=bytes(64))] * 5
    one = write_record(replace(RECORD, attempts=()))
    for _ in range(2):
        getattr(one.attempts.add(attempt=1, manifest_digest=bytes(32)), field).extend(names)
    shown = write_shown(SHOWN)
    del shown.records[:]
    shown.records.extend([one, one])
    assert len(read_records([one, one], 20)) == len(read_shown(shown, 0, 20).records) == 2
    for wrong in (one, shown.records[0]):
        wrong.attempts[0].manifest_digest = b"short"  # nobody gets that far
    for read in (lambda: read_records([one, one], 19), lambda: read_shown(shown, 0, 19)):
        with pytest.raises(PeerFault, match="20 names in records") as caught:
            read()
        assert caught.value.reason is Reason.WRONG_LENGTH


def test_a_manifest_has_no_more_silos_and_hops_than_there_can_be() -> None:
    for field, most in (("invited", MAX_SILOS), ("chain", MAX_SHUFFLERS)):
        wire = write_manifest(M)
        getattr(wire, field)[:] = ["a"] * most
        read_manifest(wire)
        getattr(wire, field).append("a")
        with pytest.raises(PeerFault) as caught:
            read_manifest(wire)
        assert caught.value.reason is Reason.WRONG_LENGTH


def test_records_are_announced_as_they_are_batched_and_each_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small request asks for all of them, and may come again and again."""
    log = [replace(RECORD, round=round_) for round_ in range(MOST_RECORDS + 6)]
    known, write, wrote = Written(), history.write_record, list[int]()

    def count(record: Record) -> history_pb2.Record:
        wrote.append(record.round)
        return write(record)

    monkeypatch.setattr(history, "write_record", count)
    for start, end in ((0, 70), (0, 70), (63, 70), (5, 6), (69, 69)):
        raw, many = known.announcement(log, start, end)
        batch = [write(record) for record in log[start:end][:MOST_RECORDS]]
        assert many == len(batch)
        assert services_pb2.Announcement.FromString(raw).records == history_pb2.Records(records=batch)
    assert wrote == list(range(70))
    log[69] = replace(log[69], countersignatures=())  # of the newest there may be another copy
    raw, _ = known.announcement(log, 69, 70)
    assert services_pb2.Announcement.FromString(raw).records.records[0] == write(log[69])
    monkeypatch.setattr(history, "RECORDS_BYTES", 3 * write(log[1]).ByteSize())
    assert known.announcement(log, 1, 70)[1] == 2  # each has its tag, too
    monkeypatch.setattr(history, "RECORDS_BYTES", 0)
    assert known.announcement(log, 0, 70)[1] == 1


# Fuzzing


def survive(read: Callable[[Any], Any], wire: Any) -> None:
    """A message is read or refused; nothing else may happen."""
    reason = None
    try:
        read(wire)
    except PeerFault as fault:
        reason = fault.reason
    assert reason in (None, MALFORMED, SHORT, SCHEMA_WRONG)


@given(st.binary(max_size=300))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    for kind, read in READERS:
        try:
            wire = kind.FromString(data)
        except DecodeError:
            continue
        survive(read, wire)


@pytest.mark.parametrize("kind", GOOD)
@settings(max_examples=examples(200))
@given(data=st.data())
def test_a_message_with_bytes_changed_is_read_or_refused(kind: str, data: st.DataObject) -> None:
    make, read = GOOD[kind]
    wire = make()
    raw = bytearray(wire.SerializeToString())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["set", "cut", "double"])):
            case "set":
                raw[at] = data.draw(st.integers(0, 255))
            case "cut":
                del raw[at : at + data.draw(st.integers(1, 40))]
            case _:
                raw[at:at] = raw[at : at + data.draw(st.integers(1, 40))]
        if not raw:
            break
    try:
        parsed = type(wire).FromString(bytes(raw))
    except DecodeError:
        return
    survive(read, parsed)


INTEGERS = st.sampled_from([0, 1, 2, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 63), (1 << 64) - 1])


def mutate(message: Message, data: st.DataObject) -> None:
    """Change one field, chosen anywhere in the message, to a value of its type."""
    field: Any = data.draw(st.sampled_from(list(message.DESCRIPTOR.fields)))
    value = getattr(message, field.name)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if field.is_repeated:
            if len(value) and data.draw(st.booleans()):
                mutate(value[data.draw(st.integers(0, len(value) - 1))], data)
            elif len(value) and data.draw(st.booleans()):
                del value[0]
            else:
                value.add()
        elif data.draw(st.integers(0, 3)):
            mutate(value, data)
        else:
            message.ClearField(field.name)
        return
    kinds: dict[int, st.SearchStrategy[Any]] = {
        FieldDescriptor.CPPTYPE_UINT64: INTEGERS,
        FieldDescriptor.CPPTYPE_UINT32: INTEGERS.filter(lambda n: n < 1 << 32),
        FieldDescriptor.CPPTYPE_ENUM: st.integers(-2, 9),
        FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    }
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
    fallback: st.SearchStrategy[Any] = text if field.type == FieldDescriptor.TYPE_STRING else st.binary(max_size=100)
    drawn = data.draw(kinds.get(field.cpp_type, fallback))
    if field.is_repeated:
        value.append(drawn)
    else:
        setattr(message, field.name, drawn)


@pytest.mark.parametrize("kind", GOOD)
@settings(max_examples=examples(200))
@given(data=st.data())
def test_a_message_with_fields_changed_is_read_or_refused(kind: str, data: st.DataObject) -> None:
    make, read = GOOD[kind]
    wire = make()
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(wire, data)
    survive(read, wire)
