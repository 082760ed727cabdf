"""Protobuf <-> the release and the round log: what `wire.py` does for the other messages."""

from collections.abc import Sequence

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import SEED_BYTES, Secret
from silomix.runtime.core.protocol.hearing import LIFE_BYTES, Shown, Told
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES
from silomix.runtime.core.protocol.lineage import Transcript
from silomix.runtime.core.protocol.release import Ready, Signatures, Trail
from silomix.runtime.core.protocol.roundlog import Attempted, Outcome, Record
from silomix.runtime.net.check.said import read_bodies, read_check, write_bodies, write_check
from silomix.runtime.net.framing import one_field
from silomix.runtime.net.limits import RECORDS_BYTES
from silomix.runtime.net.wire import (
    digest_field,
    fixed_field,
    name_field,
    read_bond,
    read_cohort,
    read_header,
    read_manifest,
    write_bond,
    write_cohort,
    write_header,
    write_manifest,
)
from silomix.v1 import history_pb2, services_pb2

MOST_RECORDS = 64
"""Records in one message."""
_ANNOUNCED = services_pb2.Announcement.DESCRIPTOR.fields_by_name["records"].number


def write_signatures(signatures: Signatures) -> list[history_pb2.Signature]:
    """Write signatures."""
    return [history_pb2.Signature(name=name, signature=signature) for name, signature in signatures]


def read_signatures(wire: list[history_pb2.Signature]) -> Signatures:
    """Read signatures."""
    return tuple(
        (name_field(s.name, "a signer's name"), fixed_field(s.signature, SIGNATURE_BYTES, "a signature")) for s in wire
    )


def write_trail(t: Trail) -> history_pb2.Trail:
    """Write a trail."""
    return history_pb2.Trail(
        hop=t.hop,
        cohort_digest=t.cohort,
        grouping_seal=t.grouping,
        root_in=t.came,
        root_out=t.sent,
        pad_digest=t.pad,
        signature=t.signature,
    )


def read_trail(wire: history_pb2.Trail) -> Trail:
    """Read a trail."""
    return Trail(
        name_field(wire.hop, "a hop's name"),
        digest_field(wire.cohort_digest, "the cohort's digest"),
        wire.grouping_seal and digest_field(wire.grouping_seal, "the grouping's seal"),
        digest_field(wire.root_in, "a root"),
        digest_field(wire.root_out, "a root"),
        digest_field(wire.pad_digest, "a pad's digest"),
        fixed_field(wire.signature, SIGNATURE_BYTES, "a trail's signature"),
    )


def read_trails(wire: list[history_pb2.Trail]) -> tuple[Trail, ...]:
    """Read trails."""
    return tuple(read_trail(t) for t in wire)


def write_record(r: Record) -> history_pb2.Record:
    """Write a record."""
    return history_pb2.Record(
        federation_digest=r.federation,
        round=r.round,
        outcome=str(r.outcome),
        attempts=[
            history_pb2.Attempted(
                attempt=one.attempt,
                manifest_digest=one.manifest,
                chain=one.chain,
                agreed=one.agreed,
                silos=one.silos,
                signatures=write_signatures(one.signatures),
                culprit=one.culprit,
                evidence_digest=one.evidence,
            )
            for one in r.attempts
        ],
        root=r.root,
        model_before=r.model_before,
        model_after=r.model_after,
        state_before=r.state_before,
        state_after=r.state_after,
        previous=r.previous,
        next_digest=r.next,
        signature=r.signature,
        countersignatures=write_signatures(r.countersignatures),
    )


def read_record(wire: history_pb2.Record) -> Record:
    """Read a record."""
    if wire.outcome not in list(Outcome):
        raise PeerFault(Reason.MALFORMED, "a round ended in a way that there is not", field="outcome")
    attempts = tuple(
        Attempted(
            one.attempt,
            digest_field(one.manifest_digest, "the manifest digest"),
            tuple(name_field(n, "a hop's name") for n in one.chain),
            one.agreed and digest_field(one.agreed, "the digest of a release"),
            tuple(name_field(n, "a silo's name") for n in one.silos),
            read_signatures(list(one.signatures)),
            one.culprit and name_field(one.culprit, "a culprit's name"),
            one.evidence_digest and digest_field(one.evidence_digest, "the digest of evidence"),
        )
        for one in wire.attempts
    )
    return Record(
        digest_field(wire.federation_digest, "the federation digest"),
        wire.round,
        Outcome(wire.outcome),
        attempts,
        wire.root and digest_field(wire.root, "the root"),
        digest_field(wire.model_before, "the model digest"),
        digest_field(wire.model_after, "the model digest"),
        digest_field(wire.state_before, "the state's digest"),
        digest_field(wire.state_after, "the state's digest"),
        digest_field(wire.previous, "the digest of the record before"),
        wire.next_digest and digest_field(wire.next_digest, "the digest of the next epoch"),
        fixed_field(wire.signature, SIGNATURE_BYTES, "the record's signature"),
        read_signatures(list(wire.countersignatures)),
    )


def read_records(wire: Sequence[history_pb2.Record], names: int) -> tuple[Record, ...]:
    """Read records, with no more names in all of them than that."""
    if len(wire) > MOST_RECORDS:
        raise PeerFault(Reason.WRONG_LENGTH, f"{len(wire)} records in one message: {MOST_RECORDS} are the most")
    found = sum(len(one.chain) + len(one.silos) + len(one.signatures) for record in wire for one in record.attempts)
    if found > names:
        raise PeerFault(Reason.WRONG_LENGTH, f"{found} names in records: {names} are the most", expected=names)
    return tuple(read_record(r) for r in wire)


def write_batch(records: Sequence[Record]) -> list[history_pb2.Record]:
    """Write the first of some records: as many as a message holds, and one at least."""
    batch: list[history_pb2.Record] = []
    size = 0
    for record in records[:MOST_RECORDS]:
        wire = write_record(record)
        size += wire.ByteSize()
        if batch and size > RECORDS_BYTES:
            break
        batch.append(wire)
    return batch


class Written:
    """A round log as bytes: each record is written once, for any silo may ask for all of them again and again."""

    def __init__(self) -> None:
        """Nothing was asked for yet."""
        self._known: dict[int, tuple[Record, bytes]] = {}

    def announcement(self, records: Sequence[Record], start: int, end: int) -> tuple[bytes, int]:
        """Announce the records of a log from one on, as many as a message holds; return also how many these are."""
        parts: list[bytes] = []
        size = 0
        for place in range(start, min(end, start + MOST_RECORDS)):
            raw = self._bytes(records[place])
            size += len(raw)
            if parts and size > RECORDS_BYTES:
                break
            parts.append(raw)
        return one_field(_ANNOUNCED, b"".join(parts)), len(parts)

    def _bytes(self, record: Record) -> bytes:
        known = self._known.get(record.round)
        if known is None or known[0] is not record:  # the same with more countersignatures takes its place
            raw = history_pb2.Records(records=[write_record(record)]).SerializeToString()
            known = self._known[record.round] = (record, raw)
        return known[1]


def write_shown(shown: Shown) -> services_pb2.ShowResponse:
    """Write what a hop shows: of many records the first, so that the next are asked for."""
    return services_pb2.ShowResponse(
        life=shown.life,
        total=shown.total,
        records=write_batch(shown.records),
        attempt=shown.attempt,
        last_released=shown.last_released,
        told=[
            services_pb2.Told(
                round=told.round, attempt=told.attempt, model_digest=told.model, bond=write_bond(told.bond)
            )
            for told in shown.told
        ],
        signature=shown.signature,
    )


def read_shown(wire: services_pb2.ShowResponse, start: int, names: int) -> Shown:
    """Read what a hop shows, asked for its records from one on, with no more names in these than that."""
    told = tuple(
        Told(one.round, one.attempt, digest_field(one.model_digest, "the model digest"), read_bond(one.bond))
        for one in wire.told
    )
    life = fixed_field(wire.life, LIFE_BYTES, "a life")
    records = read_records(wire.records, names)
    signature = fixed_field(wire.signature, SIGNATURE_BYTES, "a life's signature")
    return Shown(life, wire.total, start, records, wire.attempt, wire.last_released, told, signature)


def write_transcript(t: Transcript) -> history_pb2.Transcript:
    """Write a transcript."""
    return history_pb2.Transcript(
        manifest=write_manifest(t.manifest),
        cohort=write_cohort(t.cohort),
        headers=[write_header(h) for h in t.headers],
        trails=[write_trail(trail) for trail in t.ready.trails],
        pads=[pad.value for pad in t.pads],
        seeds=[seed.value for seed in t.seeds],
        signatures=write_signatures(t.signatures),
        bodies=write_bodies(t.bodies),
        check=None if t.check is None else write_check(t.check),
    )


def read_transcript(wire: history_pb2.Transcript) -> Transcript:
    """Read a transcript."""
    if not wire.HasField("manifest") or not wire.HasField("cohort") or not wire.trails:
        raise PeerFault(Reason.MALFORMED, "a transcript without manifest, cohort or trails")
    manifest = read_manifest(wire.manifest)
    check = read_check(wire.check, manifest.plan) if wire.HasField("check") else None
    said = b"" if check is None else check.digest
    ready = Ready(manifest.digest, manifest.model, read_trails(list(wire.trails)), said)
    return Transcript(
        manifest,
        read_cohort(wire.cohort),
        tuple(read_header(h) for h in wire.headers),
        ready,
        read_signatures(list(wire.signatures)),
        tuple(Secret(fixed_field(pad, SEED_BYTES, "a pad")) for pad in wire.pads),
        tuple(Secret(fixed_field(seed, SEED_BYTES, "a seed")) for seed in wire.seeds),
        read_bodies(list(wire.bodies)),
        check,
    )
