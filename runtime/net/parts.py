"""How many parts a message has, counted in its bytes before any of them is made.

A message in a message may be empty: it is two bytes long then, and takes a hundred times that in memory. The longest
that peers may send, all of such parts, cost seconds of the event loop and gigabytes in a large federation. So a long
message is parsed only if it is made of parts as honest nodes send them. What is looked at are tags and lengths, as far
down as anything may be there many times, up to the first that is too many.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.message import Message

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net.framing import read_varint
from silomix.v1 import schema_pb2

UNCOUNTED_BYTES = 32 << 10
"""A message that is no longer takes no more than a few mebibytes, whatever it is made of."""
LEAST_PART_BYTES = 32
"""What a message in a message has on average, at the least: nearly all have a digest, a key or a signature."""
LEAST_SINGLE_BYTES = 16
"""The same of what a message has once: a number of two bytes has a digest beside it."""
LEAST_FIELD_BYTES = 4
"""The same of whatever else may be there many times, such as names."""
FREE = 1024
"""So many are never too many."""
MOST_TENSORS = 1 << 16
"""Of a schema, whose rows are shorter than all others: many times as many as have room with the names they have."""
MOST_HEAD_BYTES = 5
"""Of a tag or a length: protobuf takes none that is longer."""
_LENGTHS = {1: 8, 5: 4}
"""Bytes of a field whose length is fixed, by the wire's number for its kind."""
_TENSOR = schema_pb2.Tensor.DESCRIPTOR.full_name


@dataclass(frozen=True)
class _Shape:
    """What matters of a kind of messages."""

    inner: dict[int, "_Shape"]
    """The messages in it, by the numbers of their fields."""
    many: frozenset[int]
    """The fields that may be there many times."""
    tensor: bool
    counted: bool
    """Whether there may be much in it. Tensors have a limit of their own, since their rows are too short for others."""


@cache
def _shape(kind: Any) -> _Shape:
    inner = {field.number: _shape(field.message_type) for field in kind.fields if field.message_type is not None}
    many = frozenset(field.number for field in kind.fields if field.is_repeated)
    tensor = kind.full_name == _TENSOR
    return _Shape(inner, many, tensor, bool(inner or many) and not tensor)


def check_parts(kind: type[Message], raw: bytes, peer: str) -> None:
    """Refuse a message of more parts than an honest one of its length has. What cannot be read at all is none."""
    if len(raw) <= UNCOUNTED_BYTES:
        return
    try:
        many = _too_many(_shape(kind.DESCRIPTOR), raw)
    except IndexError:
        raise PeerFault(Reason.MALFORMED, f"{peer} sent what is no {kind.DESCRIPTOR.full_name}", peer=peer) from None
    if many:
        raise PeerFault(
            Reason.WRONG_LENGTH,
            f"{peer} sent a {kind.DESCRIPTOR.full_name} of {len(raw)} bytes in more parts than any that is honest",
            peer=peer,
            found=len(raw),
        )


def _too_many(shape: _Shape, raw: bytes) -> bool:
    """Walk through a message, and through those in it that have some in turn, to the first that is one too many.

    This is in Python, and takes longer than to parse what is taken: so each step counts, and numbers of one byte are
    read right here. A tag or a length of several bytes counts as what is there once: before it, or behind it, there is
    something long in an honest message.
    """
    parts, singles, fields = (
        FREE + len(raw) // least for least in (LEAST_PART_BYTES, LEAST_SINGLE_BYTES, LEAST_FIELD_BYTES)
    )
    tensors = MOST_TENSORS
    todo = [(shape, 0, len(raw))]
    while todo:
        shape, at, end = todo.pop()
        inside, many = shape.inner, shape.many
        while at < end:
            tag = raw[at]
            at += 1
            if tag > 0x7F:
                tag, at = _head(raw, at - 1)
                singles -= 1
            number, kind = tag >> 3, tag & 7
            if kind == 2:
                size = raw[at]
                at += 1
                if size > 0x7F:
                    size, at = _head(raw, at - 1)
                    singles -= 1
                if (inner := inside.get(number)) is not None:
                    if inner.tensor:
                        tensors -= 1
                    else:
                        parts -= 1
                    if inner.counted:
                        todo.append((inner, at, at + size))
                at += size
            elif kind == 0:
                _, at = read_varint(raw, at)
            elif kind in _LENGTHS:
                at += _LENGTHS[kind]
            else:  # a group, which no message of ours has
                raise IndexError
            if number in many:
                fields -= 1
            else:
                singles -= 1
            if parts < 0 or singles < 0 or fields < 0 or tensors < 0:
                return True
        if at > end:
            raise IndexError
    return False


def _head(raw: bytes, at: int) -> tuple[int, int]:
    """Read a tag or a length of several bytes."""
    value, end = read_varint(raw, at)
    if end - at > MOST_HEAD_BYTES:
        raise IndexError
    return value, end
