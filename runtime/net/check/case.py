"""Protobuf <-> what a tamper check is about, and the evidence that is left if it fails."""

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import SEED_BYTES
from silomix.runtime.core.protocol.check.blame import Case, Charge
from silomix.runtime.core.protocol.check.said import Subject
from silomix.runtime.core.protocol.release import Ready
from silomix.runtime.net.check.said import (
    read_bodies,
    read_check,
    read_defence,
    read_toss,
    write_bodies,
    write_check,
    write_defence,
    write_toss,
)
from silomix.runtime.net.history import read_trails, write_trail
from silomix.runtime.net.wire import (
    digest_field,
    fixed_field,
    name_field,
    read_cohort,
    read_header,
    read_manifest,
    write_cohort,
    write_header,
    write_manifest,
)
from silomix.v1 import case_pb2


def write_subject(s: Subject) -> case_pb2.Subject:
    """Write what a check is about."""
    return case_pb2.Subject(
        manifest_digest=s.ready.manifest,
        model_digest=s.ready.model,
        cohort=write_cohort(s.cohort),
        headers=[write_header(header) for header in s.headers],
        bodies=write_bodies(s.bodies),
        trails=[write_trail(trail) for trail in s.ready.trails],
    )


def read_subject(wire: case_pb2.Subject) -> Subject:
    """Read what a check is about."""
    if not wire.HasField("cohort") or not wire.trails:
        raise PeerFault(Reason.MALFORMED, "a check about no cohort, or without trails")
    manifest, model = digest_field(wire.manifest_digest, "the manifest digest"), wire.model_digest
    return Subject(
        read_cohort(wire.cohort),
        tuple(read_header(header) for header in wire.headers),
        read_bodies(list(wire.bodies)),
        Ready(manifest, digest_field(model, "the model digest"), read_trails(list(wire.trails))),
    )


def write_case(c: Case) -> case_pb2.Case:
    """Write evidence."""
    return case_pb2.Case(
        charge=str(c.charge),
        manifest=write_manifest(c.manifest),
        subject=None if c.subject is None else write_subject(c.subject),
        toss=None if c.toss is None else write_toss(c.toss),
        check=None if c.check is None else write_check(c.check),
        defence=None if c.defence is None else write_defence(c.defence),
        hop=c.hop,
        pad=c.pad,
        trails=[write_trail(trail) for trail in c.trails],
    )


def read_case(wire: case_pb2.Case) -> Case:
    """Read evidence."""
    if wire.charge not in list(Charge) or not wire.HasField("manifest"):
        raise PeerFault(Reason.MALFORMED, "evidence without a charge or a manifest")
    manifest = read_manifest(wire.manifest)
    return Case(
        Charge(wire.charge),
        manifest,
        read_subject(wire.subject) if wire.HasField("subject") else None,
        read_toss(wire.toss) if wire.HasField("toss") else None,
        read_check(wire.check, manifest.plan) if wire.HasField("check") else None,
        read_defence(wire.defence) if wire.HasField("defence") else None,
        wire.hop and name_field(wire.hop, "a hop's name"),
        wire.pad and fixed_field(wire.pad, SEED_BYTES, "a pad"),
        read_trails(list(wire.trails)),
    )
