"""Protobuf <-> the core's messages: the only place that knows both.

Reading is where shape is checked: a field that is absent, an enum that is unknown or bytes of the wrong length are
refused here, so that the core only ever sees messages that can exist.
"""

from collections.abc import Iterable
from typing import Any

from silomix.runtime.core.digest import DIGEST_BYTES
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import KEY_BYTES, SEALED_BYTES
from silomix.runtime.core.numbers.plan import MAX_MODULUS, Encoding, Granularity, Level, Plan, Quantiser
from silomix.runtime.core.numbers.schema import Dtype, Schema, TensorSpec
from silomix.runtime.core.policy import (
    LEAST_COHORT,
    MAX_CHUNK,
    MAX_PARAMETERS,
    MAX_PRECISION,
    MAX_SECONDS,
    MAX_SHUFFLERS,
    MAX_SILOS,
    UpdateKind,
)
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES
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
from silomix.runtime.core.protocol.release import Trail
from silomix.v1 import body_pb2, cohort_pb2, manifest_pb2, plan_pb2, schema_pb2, services_pb2

MAX_DIMENSIONS = 16


def digest_field(value: bytes, what: str) -> bytes:
    """Read a digest, which has a fixed length."""
    return fixed_field(value, DIGEST_BYTES, what)


def fixed_field(value: bytes, size: int, what: str) -> bytes:
    """Read bytes that have a fixed length."""
    if len(value) != size:
        raise PeerFault(
            Reason.WRONG_LENGTH, f"{what} has {size} bytes, not {len(value)}", found=len(value), expected=size
        )
    return value


def _enum(kind: Any, wire: Any, number: int, what: str) -> Any:
    """Read an enum by the name that both sides share, and refuse what is absent or unknown."""
    try:
        name = wire.Name(number)
    except ValueError:
        name = ""
    prefix = wire.DESCRIPTOR.name
    wanted = {f"{_screaming(prefix)}_{member.name}": member for member in kind}
    if name not in wanted:
        raise PeerFault(Reason.MALFORMED, f"{what} is {number}, which is not one", field=what)
    return wanted[name]


def _number(kind: Any, wire: Any, member: Any) -> Any:
    return wire.Value(f"{_screaming(wire.DESCRIPTOR.name)}_{member.name}")


def _screaming(name: str) -> str:
    return "".join("_" + c if c.isupper() and i else c for i, c in enumerate(name)).upper()


def name_field(value: str, what: str) -> str:
    """Read a member's name."""
    if not 1 <= len(value.encode()) <= 64:
        raise PeerFault(Reason.MALFORMED, f"{what} is {len(value.encode())} bytes long: 1 to 64 are allowed")
    return value


def write_plan(plan: Plan) -> plan_pb2.Plan:
    """Write a plan."""
    return plan_pb2.Plan(
        n_max=plan.n_max,
        precision=plan.precision,
        encoding=_number(Encoding, plan_pb2.Encoding, plan.encoding),
        level=_number(Level, plan_pb2.Level, plan.level),
        weight_levels=plan.weight_levels,
        headroom=plan.headroom,
        quantiser=_number(Quantiser, plan_pb2.Quantiser, plan.quantiser),
        moduli=plan.moduli,
    )


def read_plan(wire: plan_pb2.Plan) -> Plan:
    """Read a plan as it was sent: whoever reads it compares its digest with that of the plan it computed itself."""
    if not 1 <= len(wire.moduli) <= 64 or not all(2 <= m <= MAX_MODULUS for m in wire.moduli):
        raise PeerFault(Reason.MALFORMED, "the plan's moduli are out of range")
    if wire.n_max < 1 or not 1 <= wire.precision <= MAX_PRECISION or wire.weight_levels < 1:
        raise PeerFault(Reason.MALFORMED, "the plan's n_max, precision or weight_levels is out of range")
    return Plan(
        wire.n_max,
        wire.precision,
        _enum(Encoding, plan_pb2.Encoding, wire.encoding, "encoding"),
        _enum(Level, plan_pb2.Level, wire.level, "level"),
        wire.weight_levels,
        wire.headroom,
        _enum(Quantiser, plan_pb2.Quantiser, wire.quantiser, "quantiser"),
        tuple(wire.moduli),
    )


_KINDS = {False: schema_pb2.TENSOR_KIND_PARAMETER, True: schema_pb2.TENSOR_KIND_BUFFER}


def write_schema(schema: Schema) -> schema_pb2.Schema:
    """Write a schema."""
    return schema_pb2.Schema(
        tensors=[
            schema_pb2.Tensor(
                name=t.name, shape=t.shape, dtype=_number(Dtype, schema_pb2.Dtype, t.dtype), kind=_KINDS[t.buffer]
            )
            for t in schema.tensors
        ],
        total_parameters=schema.parameters,
    )


def read_schema(wire: schema_pb2.Schema) -> Schema:
    """Read a schema and add its parameters up anew."""
    tensors = []
    for t in wire.tensors:
        if not 1 <= len(t.name.encode()) <= 512 or len(t.shape) > MAX_DIMENSIONS:
            raise PeerFault(Reason.MALFORMED, "a tensor's name or shape is out of range")
        if t.kind not in _KINDS.values():
            raise PeerFault(Reason.MALFORMED, f"tensor {t.name} is neither parameter nor buffer")
        dtype = _enum(Dtype, schema_pb2.Dtype, t.dtype, "dtype")
        tensors.append(TensorSpec(t.name, tuple(t.shape), dtype, t.kind == schema_pb2.TENSOR_KIND_BUFFER))
    schema = Schema(tuple(tensors))
    if len({t.name for t in tensors}) != len(tensors):
        raise PeerFault(Reason.MALFORMED, "two tensors have the same name")
    if not 1 <= schema.parameters <= MAX_PARAMETERS or schema.parameters != wire.total_parameters:
        raise PeerFault(Reason.WRONG_SCHEMA, f"the tensors have {schema.parameters} values")
    return schema


def write_round_key(key: RoundKey) -> manifest_pb2.RoundKey:
    """Write a round key."""
    return manifest_pb2.RoundKey(
        hop=key.hop,
        silo=key.silo,
        round=key.round,
        public_key=key.public_key,
        last_released=key.last_released,
        attempt=key.attempt,
        signature=key.signature,
    )


def read_round_key(wire: manifest_pb2.RoundKey) -> RoundKey:
    """Read a round key."""
    public_key = fixed_field(wire.public_key, KEY_BYTES, "a round key")
    signature = fixed_field(wire.signature, SIGNATURE_BYTES, "a round key's signature")
    owner = name_field(wire.hop, "the name of a round key's owner")
    silo = wire.silo and name_field(wire.silo, "a silo's name")  # in groups the aggregator's key is for all of them
    return RoundKey(owner, silo, wire.round, wire.attempt, public_key, wire.last_released, signature)


def write_bond(bond: Bond) -> manifest_pb2.Bond:
    """Write the proof of whom a model is bound to."""
    *hops, last = bond.signatures
    return manifest_pb2.Bond(
        manifest_digest=bond.manifest,
        participants=[cohort_pb2.Participant(silo=p.silo, header_digest=p.header) for p in bond.participants],
        grouping_seal=bond.grouping,
        hops=[
            manifest_pb2.BoundHop(
                hop=trail.hop, root_in=trail.came, root_out=trail.sent, pad_digest=trail.pad, signature=signature
            )
            for trail, signature in zip(bond.trails, hops, strict=True)
        ],
        signature=last,
        check_digest=bond.check,
    )


def read_bond(wire: manifest_pb2.Bond) -> Bond:
    """Read the proof of whom a model is bound to."""
    if not wire.hops:
        raise PeerFault(Reason.MALFORMED, "a model that is said to be bound, and by no hop")
    trails = tuple(
        Trail(
            name_field(hop.hop, "a hop's name"),
            b"",
            b"",
            digest_field(hop.root_in, "a root"),
            digest_field(hop.root_out, "a root"),
            digest_field(hop.pad_digest, "a pad's digest"),
        )
        for hop in wire.hops
    )
    signatures = (*(hop.signature for hop in wire.hops), wire.signature)
    return Bond(
        digest_field(wire.manifest_digest, "the manifest digest"),
        _read_participants(wire.participants),
        wire.grouping_seal and digest_field(wire.grouping_seal, "the grouping's seal"),
        trails,
        tuple(fixed_field(signature, SIGNATURE_BYTES, "a signature") for signature in signatures),
        wire.check_digest and digest_field(wire.check_digest, "the digest of a check"),
    )


def write_manifest(m: Manifest) -> manifest_pb2.Manifest:
    """Write a manifest."""
    return manifest_pb2.Manifest(
        federation_digest=m.federation,
        round=m.round,
        attempt=m.attempt,
        model_digest=m.model,
        schema_digest=m.schema.digest,
        schema=write_schema(m.schema),
        plan=write_plan(m.plan),
        bounds=m.bounds,
        update_kind=_number(UpdateKind, manifest_pb2.UpdateKind, m.update),
        granularity=_number(Granularity, manifest_pb2.Granularity, m.granularity),
        chain=m.chain,
        hop_keys=[write_round_key(k) for k in m.hop_keys],
        aggregator_keys=[write_round_key(k) for k in m.aggregator_keys],
        group_size=m.group_size,
        invited=m.invited,
        minimum_cohort=m.minimum_cohort,
        chunk_parameters=m.chunk_parameters,
        deadline_s=m.deadline_s,
        fences=[
            manifest_pb2.Fence(
                hop=f.hop, round=f.round, attempt=f.attempt, manifest_digest=f.manifest, signature=f.signature
            )
            for f in m.fences
        ],
        signature=m.signature,
        head_digest=m.head,
        applied=m.applied,
        earlier=m.earlier,
        state_digest=m.state,
        bond=None if m.bound is None else write_bond(m.bound),
    )


def read_manifest(wire: manifest_pb2.Manifest) -> Manifest:
    """Read a manifest."""
    if not wire.HasField("schema") or not wire.HasField("plan"):
        raise PeerFault(Reason.MALFORMED, "a manifest without schema or plan")
    in_range = 1 <= wire.chunk_parameters <= MAX_CHUNK and 1 <= wire.deadline_s <= MAX_SECONDS
    if not in_range or wire.minimum_cohort < LEAST_COHORT:
        raise PeerFault(Reason.MALFORMED, "chunk_parameters, deadline_s or minimum_cohort is out of range")
    if wire.round < 1 or wire.attempt < 1 or wire.group_size in (1, 2):
        raise PeerFault(Reason.MALFORMED, "round, attempt or group_size is out of range")
    if len(wire.invited) > MAX_SILOS or len(wire.chain) > MAX_SHUFFLERS:
        raise PeerFault(Reason.WRONG_LENGTH, "a manifest with more silos, or more hops, than any federation has")
    schema = read_schema(wire.schema)
    if digest_field(wire.schema_digest, "the schema digest") != schema.digest:
        raise PeerFault(Reason.WRONG_SCHEMA, "the schema does not have its digest")
    fences = tuple(
        Fence(
            name_field(f.hop, "a hop's name"),
            f.round,
            f.attempt,
            digest_field(f.manifest_digest, "the digest of a fenced manifest"),
            fixed_field(f.signature, SIGNATURE_BYTES, "a fence's signature"),
        )
        for f in wire.fences
    )
    return Manifest(
        federation=digest_field(wire.federation_digest, "the federation digest"),
        head=digest_field(wire.head_digest, "the digest of the newest record"),
        applied=wire.applied,
        round=wire.round,
        attempt=wire.attempt,
        earlier=tuple(digest_field(d, "the digest of an earlier manifest") for d in wire.earlier),
        model=digest_field(wire.model_digest, "the model digest"),
        state=digest_field(wire.state_digest, "the digest of the server's state"),
        schema=schema,
        plan=read_plan(wire.plan),
        bounds=tuple(wire.bounds),
        update=_enum(UpdateKind, manifest_pb2.UpdateKind, wire.update_kind, "update_kind"),
        granularity=_enum(Granularity, manifest_pb2.Granularity, wire.granularity, "granularity"),
        chain=tuple(name_field(n, "a hop's name") for n in wire.chain),
        hop_keys=tuple(read_round_key(k) for k in wire.hop_keys),
        aggregator_keys=tuple(read_round_key(k) for k in wire.aggregator_keys),
        group_size=wire.group_size,
        invited=tuple(name_field(n, "a silo's name") for n in wire.invited),
        minimum_cohort=wire.minimum_cohort,
        chunk_parameters=wire.chunk_parameters,
        deadline_s=wire.deadline_s,
        bound=read_bond(wire.bond) if wire.HasField("bond") else None,
        fences=fences,
        signature=fixed_field(wire.signature, SIGNATURE_BYTES, "the manifest's signature"),
    )


def _write_seed(s: SealedSeed) -> body_pb2.SealedSeed:
    return body_pb2.SealedSeed(recipient=s.recipient, sealed=s.sealed, commitment=s.commitment)


def _read_seed(wire: body_pb2.SealedSeed) -> SealedSeed:
    return SealedSeed(
        name_field(wire.recipient, "a recipient's name"),
        fixed_field(wire.sealed, SEALED_BYTES, "a sealed seed"),
        digest_field(wire.commitment, "a commitment"),
    )


def write_header(h: Header) -> body_pb2.Header:
    """Write a header."""
    return body_pb2.Header(
        silo=h.silo,
        manifest_digest=h.manifest,
        seeds=[_write_seed(s) for s in h.seeds],
        chunks=h.chunks,
        signature=h.signature,
        coin_commitment=h.coin,
    )


def read_header(wire: body_pb2.Header) -> Header:
    """Read a header."""
    return Header(
        name_field(wire.silo, "a silo's name"),
        digest_field(wire.manifest_digest, "the manifest digest"),
        tuple(_read_seed(s) for s in wire.seeds),
        wire.chunks,
        fixed_field(wire.signature, SIGNATURE_BYTES, "the header's signature"),
        wire.coin_commitment and digest_field(wire.coin_commitment, "the commitment to the coin"),
    )


def write_evidence(e: Evidence) -> body_pb2.Evidence:
    """Write evidence."""
    return body_pb2.Evidence(
        manifest_digest=e.manifest, recipient=e.recipient, silo=e.silo, header_digest=e.header, private_key=e.private
    )


def read_evidence(wire: body_pb2.Evidence) -> Evidence:
    """Read evidence."""
    return Evidence(
        digest_field(wire.manifest_digest, "the manifest digest"),
        name_field(wire.recipient, "a recipient's name"),
        name_field(wire.silo, "a silo's name"),
        digest_field(wire.header_digest, "a header's digest"),
        fixed_field(wire.private_key, KEY_BYTES, "a private key"),
    )


def write_receipt(r: Receipt) -> body_pb2.Receipt:
    """Write a receipt."""
    return body_pb2.Receipt(silo=r.silo, manifest_digest=r.manifest, root=r.root, hop=r.hop, signature=r.signature)


def read_receipt(wire: body_pb2.Receipt) -> Receipt:
    """Read a receipt."""
    return Receipt(
        name_field(wire.silo, "a silo's name"),
        digest_field(wire.manifest_digest, "the manifest digest"),
        digest_field(wire.root, "the root"),
        name_field(wire.hop, "a hop's name"),
        fixed_field(wire.signature, SIGNATURE_BYTES, "the receipt's signature"),
    )


def write_cohort(c: Cohort) -> cohort_pb2.Cohort:
    """Write a cohort."""
    return cohort_pb2.Cohort(
        manifest_digest=c.manifest,
        participants=[cohort_pb2.Participant(silo=p.silo, header_digest=p.header) for p in c.participants],
        signature=c.signature,
    )


def write_grouping(g: Grouping) -> services_pb2.Grouping:
    """Write a grouping."""
    return services_pb2.Grouping(groups=g.groups, signature=g.signature)


def read_grouping(wire: services_pb2.Grouping) -> Grouping:
    """Read a grouping."""
    if any(number >= len(wire.groups) for number in wire.groups):
        raise PeerFault(Reason.MALFORMED, "a group's number is out of range")
    return Grouping(tuple(wire.groups), fixed_field(wire.signature, SIGNATURE_BYTES, "the grouping's signature"))


def write_groups(groups: tuple[Group, ...]) -> services_pb2.Groups:
    """Write groups without names."""
    return services_pb2.Groups(
        groups=[services_pb2.Group(size=g.size, seeds=[_write_seed(s) for s in g.seeds]) for g in groups]
    )


def read_groups(wire: services_pb2.Groups) -> tuple[Group, ...]:
    """Read groups without names."""
    return tuple(Group(g.size, tuple(_read_seed(s) for s in g.seeds)) for g in wire.groups)


def _read_participants(wire: Iterable[cohort_pb2.Participant]) -> tuple[Participant, ...]:
    return tuple(
        Participant(name_field(p.silo, "a silo's name"), digest_field(p.header_digest, "a header's digest"))
        for p in wire
    )


def read_cohort(wire: cohort_pb2.Cohort) -> Cohort:
    """Read a cohort."""
    participants = _read_participants(wire.participants)
    signature = fixed_field(wire.signature, SIGNATURE_BYTES, "the cohort's signature")
    return Cohort(digest_field(wire.manifest_digest, "the manifest digest"), participants, signature)
