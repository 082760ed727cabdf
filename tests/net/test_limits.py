"""R7: every limit has room for the longest honest message of its kind, and for little more."""

from dataclasses import replace

import pytest
from tests.core.protocol.federations import cohort, federation, header, headers, manifest

from silomix.runtime.core.numbers.plan import Granularity
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.rules import MOST_ATTEMPTS
from silomix.runtime.net import limits as module
from silomix.runtime.net.framing import BODY, chunk_frame
from silomix.runtime.net.limits import (
    CONNECTIONS_EACH,
    FRAME_S,
    HISTORY,
    LEAST_IDLE_S,
    METADATA_BYTES,
    PART_BYTES,
    RECORDS_BYTES,
    SCHEMA_BYTES,
    SLACK_BYTES,
    SLOWEST_BYTES_S,
    SMALL_BYTES,
    SPARE_CONNECTIONS,
    TEXT_BYTES,
    Limits,
)
from silomix.runtime.net.wire import write_cohort, write_header, write_manifest
from silomix.v1 import body_pb2, services_pb2

SIZES = [(3, 1), (5, 3), (40, 5)]


@pytest.mark.parametrize(("silos", "hops"), SIZES)
def test_honest_messages_fit_and_a_few_times_their_length_does_not(silos: int, hops: int) -> None:
    f = federation(silos, hops)
    limits, m = Limits.of(f), manifest(f)
    shown = {
        limits.header: write_header(header(m, "silo-1")).ByteSize(),
        limits.cohort: write_cohort(cohort(m, headers(m, f))).ByteSize(),
        limits.manifest - SCHEMA_BYTES: write_manifest(m).ByteSize(),  # and as many fences as there can be
    }
    for most, found in shown.items():
        assert found <= most <= 8 * found + 4 * SLACK_BYTES


@pytest.mark.parametrize("chunk_parameters", [8, 1000, 131_072])
def test_a_full_chunk_fits_and_one_of_a_few_bytes_more_does_not(chunk_parameters: int) -> None:
    f = federation(chunk_parameters=chunk_parameters)
    planes = [bytes(size) for size in f.plan.plane_bytes(chunk_parameters)]
    limits = Limits.of(f)
    frame = chunk_frame(BODY, (1 << 32) - 1, (1 << 63) - 1, planes)
    assert len(frame) <= limits.chunk <= len(frame) + SLACK_BYTES
    assert limits.planes == len(planes)


@pytest.mark.parametrize("granularity", [Granularity.MODEL, Granularity.UNARY])
def test_the_papers_literal_modes_have_room_for_their_rows(granularity: Granularity) -> None:
    f = federation(granularity=granularity, level="trusted", chunk_parameters=1000)
    limits = Limits.of(f)
    bits = [32] if granularity is Granularity.MODEL else list(f.plan.moduli)
    assert limits.plane_bytes == tuple(1000 * each // 8 for each in bits)


def of(f: Federation) -> Limits:
    return Limits.of(f)


def test_a_schema_of_thousands_of_tensors_fits_into_a_manifest() -> None:
    f = federation()
    names = (f"model.layers.{i}.self_attention.projection.weight.of.a.long.name" for i in range(8000))
    schema = Schema(tuple(TensorSpec(name, (4096, 4096)) for name in names))
    m = replace(manifest(f), schema=schema, bounds=(1.0,) * 8000)
    assert write_manifest(m).ByteSize() <= of(f).manifest


def test_each_kind_of_frame_has_a_length_and_what_is_none_has_no_room() -> None:
    limits = of(federation())
    kinds = {*body_pb2.Frame.DESCRIPTOR.fields_by_name, *services_pb2.RelayFrame.DESCRIPTOR.fields_by_name}
    assert all(limits.frame(kind) > 0 for kind in kinds)
    assert SMALL_BYTES == limits.frame("open") <= limits.frame("trailer") < 2 * SMALL_BYTES
    assert limits.frame("nonsense") == 0


def test_each_kind_of_announcement_has_a_length_and_small_ones_are_small() -> None:
    limits, checked = of(federation()), of(federation(level="malicious"))
    kinds = set(services_pb2.Announcement.DESCRIPTOR.fields_by_name)
    assert all(0 < checked.announcement(kind) <= checked.answered for kind in kinds)
    assert {kind for kind in kinds if not limits.announcement(kind)} == {"check", "coin"}  # there is no check
    small = services_pb2.Announcement(wanted=services_pb2.Wanted(model_digest=bytes(32), state=True))
    assert small.ByteSize() <= limits.announcement("wanted") == limits.announcement("finished") == SMALL_BYTES
    assert limits.announcement("nonsense") == 0


def test_what_a_server_is_sent_at_most_is_the_longest_of_its_kinds() -> None:
    for silos, hops in SIZES:
        limits = of(federation(silos, hops))
        for kind in body_pb2.Frame.DESCRIPTOR.fields_by_name:
            assert limits.at_shuffler >= limits.frame(kind)
        for kind in services_pb2.RelayFrame.DESCRIPTOR.fields_by_name:
            assert limits.at_aggregator >= limits.frame(kind) or kind == "grouping"
        assert limits.at_shuffler >= max(limits.manifest, limits.prepare)
        assert limits.answered >= max(limits.keys, limits.manifest, limits.status, PART_BYTES)


def test_time_grows_with_length_as_on_the_slowest_line() -> None:
    limits = of(federation(chunk_parameters=131_072))
    assert limits.frame_s("chunk") == FRAME_S + limits.chunk / SLOWEST_BYTES_S
    assert limits.frame_s("open") == FRAME_S + SMALL_BYTES / SLOWEST_BYTES_S


def test_connections_are_counted_by_members_and_idle_ones_outlast_a_round() -> None:
    f = federation(silos=10, hops=3, deadline_s=600, release_s=60)
    limits = of(f)
    assert limits.connections == CONNECTIONS_EACH * 14 + SPARE_CONNECTIONS
    assert limits.idle_s == 720
    assert of(federation(deadline_s=5, release_s=5)).idle_s == LEAST_IDLE_S


def test_a_status_and_a_refusal_fit() -> None:
    f = federation(40, 5)
    row = services_pb2.RoundStatus(round=1 << 40, attempts=5, cohort=40, seconds=1e9, bits_per_parameter=20, score=0.5)
    status = services_pb2.GetStatusResponse(
        federation="f" * 64,
        present=["n" * 64] * 40,
        phase="collecting",
        hops=[services_pb2.HopStatus(name="n" * 64, state="unreachable", trouble="t" * TEXT_BYTES)] * 5,
        history=[row] * HISTORY,
    )
    assert status.ByteSize() <= of(f).status
    assert TEXT_BYTES + 3 * TEXT_BYTES < METADATA_BYTES


def test_a_part_of_a_model_fits_beside_its_length() -> None:
    part = services_pb2.ModelPart(total_bytes=module.LARGE, data=bytes(PART_BYTES))
    assert part.ByteSize() <= of(federation()).part <= part.ByteSize() + SLACK_BYTES


@pytest.mark.parametrize(("silos", "hops"), SIZES)
def test_the_longest_record_has_room_for_its_names_and_so_have_many_short_ones(silos: int, hops: int) -> None:
    """But not as many as fit into a message that has room for long ones."""
    limits = of(federation(silos, hops))
    assert MOST_ATTEMPTS * (silos + hops + hops + 1) <= limits.names
    assert RECORDS_BYTES // 3 <= limits.names <= max(2 * RECORDS_BYTES, limits.records) // 4
