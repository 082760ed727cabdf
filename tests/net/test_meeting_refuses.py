"""What nobody may say where nodes meet: each rule is broken alone, so that no other one refuses in its place."""

from dataclasses import replace

import pytest
from tests.core.protocol.federations import federation
from tests.core.protocol.test_epochs import owned

from silomix.runtime.config.owners.pins import MAX_COUNTER
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.policy import MAX_SHUFFLERS
from silomix.runtime.core.protocol.hearing import LIFE_BYTES, Life
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.net.meeting import MOST_MEMBERS, greeting, read_greeting
from silomix.v1 import member_pb2

F = owned(federation(chunk_parameters=16))
SIGNED = bytes(SIGNATURE_BYTES)
PIN = Pin("silo-1", 1, b"", signature=SIGNED)
LIVES = tuple(Life(hop, bytes(LIFE_BYTES), SIGNED) for hop in F.chain)


def refused(wire: member_pb2.Greeting) -> Reason:
    with pytest.raises(PeerFault) as caught:
        read_greeting(wire, F)
    return caught.value.reason


@pytest.mark.parametrize("counter", [0, MAX_COUNTER + 1])
def test_a_pin_that_is_not_counted_or_beyond_the_largest_number_is_refused(counter: int) -> None:
    """No later pin could follow one beyond it."""
    assert refused(greeting(F, [replace(PIN, counter=counter)])) is Reason.MALFORMED


@pytest.mark.parametrize("size", [0, SIGNATURE_BYTES - 1, SIGNATURE_BYTES + 1])
def test_a_pin_with_a_signature_of_another_length_is_refused(size: int) -> None:
    assert refused(greeting(F, [replace(PIN, signature=bytes(size))])) is Reason.WRONG_LENGTH


def test_a_pin_of_a_stranger_is_refused() -> None:
    assert refused(greeting(F, [replace(PIN, name="stranger")])) is Reason.UNKNOWN_PEER


def test_two_pins_of_one_member_are_refused_though_there_are_no_more_than_members() -> None:
    assert refused(greeting(F, [PIN, replace(PIN, counter=2)])) is Reason.MALFORMED


def test_there_is_a_most_of_everything_that_a_greeting_repeats_whatever_epoch_it_comes_from() -> None:
    """An empty pin has two bytes on the wire and takes many more to hold."""
    elsewhere = greeting(F, ())
    elsewhere.federation_digest = bytes(32)
    elsewhere.pins.extend(member_pb2.Pin(name=str(i)) for i in range(MOST_MEMBERS))
    elsewhere.lives.extend([member_pb2.Life()] * MAX_SHUFFLERS)
    read = read_greeting(elsewhere, F)
    assert (read.pins, read.lives) == ((), ())  # passed over
    elsewhere.lives.add()
    assert refused(elsewhere) is Reason.MALFORMED
    del elsewhere.lives[:]
    elsewhere.pins.add(name="one more")
    assert refused(elsewhere) is Reason.MALFORMED
    twice = greeting(F, [PIN, replace(PIN, counter=2)])
    twice.federation_digest = bytes(32)
    assert refused(twice) is Reason.MALFORMED


def test_processes_of_more_hops_than_there_are_are_refused_before_any_is_read() -> None:
    wire = greeting(F, ())
    wire.lives.extend([member_pb2.Life(hop="stranger")] * (len(F.chain) + 1))
    assert refused(wire) is Reason.MALFORMED


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_federation_digest_of_another_length_is_refused(size: int) -> None:
    """It is not taken for that of another epoch."""
    wire = greeting(F, ())
    wire.federation_digest = bytes(size)
    assert refused(wire) is Reason.WRONG_LENGTH


def test_the_newest_process_of_every_hop_is_told_once() -> None:
    wire = greeting(F, (), lives=LIVES)
    assert read_greeting(wire, F).lives == LIVES
    wire.lives.append(wire.lives[0])
    assert refused(wire) is Reason.MALFORMED


def test_a_process_of_a_member_that_is_no_hop_is_refused() -> None:
    assert refused(greeting(F, (), lives=[replace(LIVES[0], name="silo-1")])) is Reason.UNKNOWN_PEER


@pytest.mark.parametrize("field", ["life", "signature"])
def test_a_process_with_a_number_or_a_signature_of_another_length_is_refused(field: str) -> None:
    wire = greeting(F, (), lives=LIVES[:1])
    setattr(wire.lives[0], field, getattr(wire.lives[0], field)[:-1])
    assert refused(wire) is Reason.WRONG_LENGTH
