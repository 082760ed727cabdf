"""R7: a message of more parts than an honest one has is refused before any of them is made."""

from string import ascii_lowercase, digits
from typing import Any, ClassVar

import pytest
from google.protobuf.message import Message
from tests.core.protocol.federations import federation, manifest

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net.calls import parse
from silomix.runtime.net.framing import one_field
from silomix.runtime.net.limits import RECORDS_BYTES
from silomix.runtime.net.parts import FREE, LEAST_PART_BYTES, MOST_TENSORS, UNCOUNTED_BYTES, check_parts
from silomix.runtime.net.wire import write_manifest
from silomix.v1 import history_pb2, manifest_pb2, member_pb2, schema_pb2, services_pb2

LONG = 4 * UNCOUNTED_BYTES
PLACES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "pins in a greeting": (member_pb2.MeetRequest, ("greeting", "pins")),
    "pins in an answer": (member_pb2.MeetResponse, ("greeting", "pins")),
    "signatures under an epoch": (member_pb2.MeetRequest, ("greeting", "epochs", "accepted")),
    "keys in a manifest": (services_pb2.OpenRequest, ("manifest", "hop_keys")),
    "records to store": (services_pb2.StoreRequest, ("records",)),
    "attempts in a record": (services_pb2.StoreRequest, ("records", "attempts")),
    "records that are announced": (services_pb2.Announcement, ("records", "records")),
    "what a hop has released": (services_pb2.ShowResponse, ("told",)),
    "headers in a sum": (services_pb2.SumPart, ("transcript", "headers")),
    "trails in a call to sign": (services_pb2.AgreeRequest, ("trails",)),
}


def flood(kind: type[Message], path: tuple[str, ...], length: int, part: bytes = b"") -> bytes:
    """A message that has one thing in it again and again, as far down as a path leads."""
    kinds, numbers = kind.DESCRIPTOR, []
    for name in path:
        field = kinds.fields_by_name[name]
        numbers.append(field.number)
        if field.message_type is not None:
            kinds = field.message_type
    one = one_field(numbers.pop(), part)
    raw = one * (length // len(one))
    for number in reversed(numbers):
        raw = one_field(number, raw)
    return raw


def refused(kind: Any, raw: bytes) -> Reason:
    class Unread:
        """Nothing of it is to be made."""

        DESCRIPTOR: ClassVar[Any] = kind.DESCRIPTOR

        @staticmethod
        def FromString(_: bytes) -> None:  # noqa: N802 - protobuf's name
            pytest.fail("it was parsed")

    with pytest.raises(PeerFault) as caught:
        parse(Unread, raw, "silo-1")  # type: ignore[type-var]
    assert caught.value.details["peer"] == "silo-1"
    return caught.value.reason


@pytest.mark.parametrize(("kind", "path"), PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("part", [b"", b"\x7a\x00", bytes([0x78, 1, 0x78, 1])], ids=["empty", "short", "numbers"])
def test_a_long_message_of_short_parts_is_refused_and_none_is_made(
    kind: Any, path: tuple[str, ...], part: bytes
) -> None:
    assert refused(kind, flood(kind, path, LONG, part)) is Reason.WRONG_LENGTH


@pytest.mark.parametrize(("kind", "path"), PLACES.values(), ids=PLACES)
def test_a_message_of_parts_as_long_as_the_shortest_is_taken(kind: Any, path: tuple[str, ...]) -> None:
    number = b"\x7a" + bytes([LEAST_PART_BYTES - 2]) + bytes(LEAST_PART_BYTES - 2)  # of a field that is none of ours
    check_parts(kind, flood(kind, path, LONG, number), "silo-1")


def test_what_is_short_is_not_counted() -> None:
    kind, path = PLACES["records to store"]
    parse(kind, flood(kind, path, UNCOUNTED_BYTES), "aggregator")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (services_pb2.OpenRequest, ("manifest", "invited")),
        (services_pb2.AgreeRequest, ("check", "statements", "scalars")),
        (services_pb2.SumPart, ("chunk", "planes")),
    ],
    ids=["names", "scalars", "planes"],
)
def test_what_is_no_message_is_counted_too(kind: Any, path: tuple[str, ...]) -> None:
    assert refused(kind, flood(kind, path, LONG)) is Reason.WRONG_LENGTH
    check_parts(kind, flood(kind, path, LONG, b"s1"), "aggregator")


def test_what_is_there_once_is_not_there_again_and_again() -> None:
    """Protobuf puts the copies together, so that they are no more than one in the end; to read them takes time."""
    for path in (("greeting",), ("greeting", "protocol"), ("greeting", "epochs", "file")):
        assert refused(member_pb2.MeetRequest, flood(member_pb2.MeetRequest, path, LONG)) is Reason.WRONG_LENGTH


def test_what_is_longer_than_the_message_that_it_is_in_is_refused() -> None:
    """It has room in what was sent, so that nothing else would stop the walk."""
    kind, _ = PLACES["attempts in a record"]
    records, attempts = (
        kind.DESCRIPTOR.fields_by_name["records"],
        history_pb2.Record.DESCRIPTOR.fields_by_name["attempts"],
    )
    too_long = bytes([attempts.number << 3 | 2, 40])
    life = one_field(kind.DESCRIPTOR.fields_by_name["life"].number, bytes(LONG))
    assert refused(kind, one_field(records.number, too_long) + life) is Reason.MALFORMED


@pytest.mark.parametrize(
    "part",
    [b"\x78\x01" * 15, b"\xf8\x80\x80\x80\x01\x01" * 5, (b"\x7a\x85\x80\x80\x00" + bytes(5)) * 3],
    ids=["numbers", "long tags", "long lengths"],
)
def test_parts_that_are_long_enough_may_not_be_full_of_small_things(part: bytes) -> None:
    """To parse them costs next to nothing; to count them held up the loop for two seconds of a large federation's."""
    kind, path = PLACES["signatures under an epoch"][0], ("greeting", "epochs")
    assert len(part) >= LEAST_PART_BYTES - 2
    assert refused(kind, flood(kind, path, LONG, part)) is Reason.WRONG_LENGTH


def test_records_of_attempts_that_all_failed_are_taken_with_the_shortest_names() -> None:
    """Nothing honest has more small things in it than these."""
    failed = history_pb2.Attempted(attempt=1, manifest_digest=bytes(32))
    caught = history_pb2.Attempted(attempt=1, manifest_digest=bytes(32), culprit="a", evidence_digest=bytes(32))
    kind = services_pb2.StoreRequest
    for attempt in (failed, caught):
        for chain in ("a", ascii_lowercase + digits):
            attempt.chain[:] = chain
            record = history_pb2.Record(attempts=[attempt] * 128, previous=bytes(32), round=1, signature=bytes(64))
            most = 2 + RECORDS_BYTES // record.ByteSize()
            check_parts(kind, kind(records=[record] * most).SerializeToString(), "aggregator")


@pytest.mark.parametrize(
    "end",
    [b"\x0a\x05", b"\x0a\xff", b"\x0a" + b"\xff" * 11, b"\x0a\x80\x80\x80\x80\x80\x00", b"\x0b\x0c", b"\x0f"],
    ids=bytes.hex,
)
def test_a_long_message_that_is_none_is_refused(end: bytes) -> None:
    raw = one_field(services_pb2.StoreRequest.DESCRIPTOR.fields_by_name["life"].number, bytes(LONG)) + end
    assert refused(services_pb2.StoreRequest, raw) is Reason.MALFORMED


def test_numbers_and_fields_that_a_later_version_adds_are_walked_over() -> None:
    life = one_field(services_pb2.StoreRequest.DESCRIPTOR.fields_by_name["life"].number, bytes(LONG))
    later = b"\xf8\x07\x80\x01" + b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4) + b"\xfa\x07\x02ab"
    assert parse(services_pb2.StoreRequest, life + later + b"\x0a\x00", "aggregator").records


def test_honest_messages_are_taken_in_the_largest_federation_and_with_the_shortest_names() -> None:
    m = write_manifest(manifest(federation(40, 5)))
    keys = list(m.hop_keys)
    for _ in range(10):
        m.hop_keys.extend(keys)
    assert len(m.SerializeToString()) > UNCOUNTED_BYTES
    attempt = history_pb2.Attempted(
        manifest_digest=bytes(32),
        chain=["a", "b", "c"],
        silos=[f"{i:02}" for i in range(100)],
        signatures=[history_pb2.Signature(name="a", signature=bytes(64))] * 4,
    )
    record = history_pb2.Record(attempts=[attempt] * 128, previous=bytes(32))
    assert record.ByteSize() > UNCOUNTED_BYTES
    for message in (services_pb2.OpenRequest(manifest=m, head=record), services_pb2.StoreRequest(records=[record] * 3)):
        assert parse(type(message), message.SerializeToString(), "aggregator") == message


def test_a_schema_may_have_many_short_rows_and_has_an_end() -> None:
    row = schema_pb2.Tensor(name="w", shape=[1], dtype=schema_pb2.DTYPE_F32, kind=schema_pb2.TENSOR_KIND_BUFFER)

    def raw(rows: int) -> bytes:
        schema = schema_pb2.Schema(tensors=[row] * rows)
        return services_pb2.OpenRequest(manifest=manifest_pb2.Manifest(schema=schema)).SerializeToString()

    check_parts(services_pb2.OpenRequest, raw(MOST_TENSORS), "aggregator")
    assert refused(services_pb2.OpenRequest, raw(MOST_TENSORS + 1)) is Reason.WRONG_LENGTH


def test_a_few_parts_are_never_too_many() -> None:
    kind, path = PLACES["records to store"]
    life = one_field(kind.DESCRIPTOR.fields_by_name["life"].number, bytes(UNCOUNTED_BYTES))
    free = FREE + UNCOUNTED_BYTES // LEAST_PART_BYTES
    check_parts(kind, life + flood(kind, path, 2 * free), "aggregator")
    assert refused(kind, life + flood(kind, path, 2 * free + FREE)) is Reason.WRONG_LENGTH
