"""Greetings: what a hostile member may say, and what becomes of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.owners.hospitals import Hospitals

from silomix.runtime.config.load import load_node
from silomix.runtime.config.owners.pins import load_pins
from silomix.runtime.config.owners.selfsigned import MAX_BYTES
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.hearing import LIFE_BYTES, Life
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES
from silomix.runtime.net.limits import Limits
from silomix.runtime.net.meeting import greeting, own_version, read_greeting
from silomix.runtime.net.version import PROTOCOL
from silomix.v1 import member_pb2


@pytest.fixture
def known(agreed: Path) -> tuple[Federation, member_pb2.Greeting]:
    """A federation, and what one of its members says."""
    hospitals = Hospitals.__new__(Hospitals)
    hospitals.place = agreed
    config = load_node(hospitals.node("silo-02"))
    lives = [Life(hop, bytes(LIFE_BYTES), bytes(SIGNATURE_BYTES)) for hop in config.federation.chain]
    pins = load_pins(config.federation, config.agreement)
    return config.federation, greeting(config.federation, pins, lives=lives)


def test_a_greeting_says_versions_file_and_pins(known: tuple[Federation, member_pb2.Greeting]) -> None:
    federation, wire = known
    said = read_greeting(member_pb2.Greeting.FromString(wire.SerializeToString()), federation)
    assert (said.protocol, said.version, said.federation) == (str(PROTOCOL), own_version(), federation.digest)
    assert {life.name for life in said.lives} == set(federation.chain)
    assert {pin.name for pin in said.pins} == set(federation.members)
    for pin in said.pins:
        pin.check(federation)


def test_the_longest_greeting_fits_its_limit(known: tuple[Federation, member_pb2.Greeting]) -> None:
    federation, wire = known
    for pin in wire.pins:
        pin.current = pin.next = bytes(MAX_BYTES)
        pin.counter = (1 << 53) - 1
    assert wire.ByteSize() <= Limits.of(federation).greeting


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda g: g.pins.append(g.pins[0]), Reason.MALFORMED),
        (lambda g: g.pins[0].CopyFrom(g.pins[1]), Reason.MALFORMED),
        (lambda g: setattr(g, "protocol", ""), Reason.MALFORMED),
        (lambda g: setattr(g, "version", "x" * 65), Reason.MALFORMED),
        (lambda g: setattr(g, "version", "1\n2"), Reason.MALFORMED),
        (lambda g: setattr(g.pins[0], "counter", 0), Reason.MALFORMED),
        (lambda g: setattr(g.pins[0], "counter", 1 << 53), Reason.MALFORMED),
        (lambda g: setattr(g.pins[0], "signature", bytes(SIGNATURE_BYTES - 1)), Reason.WRONG_LENGTH),
        (lambda g: setattr(g.pins[0], "name", "stranger"), Reason.UNKNOWN_PEER),
        (lambda g: setattr(g, "federation_digest", bytes(31)), Reason.WRONG_LENGTH),
        (lambda g: g.lives.append(g.lives[0]), Reason.MALFORMED),
        (lambda g: setattr(g.lives[0], "hop", "silo-02"), Reason.UNKNOWN_PEER),
        (lambda g: setattr(g.lives[0], "life", bytes(LIFE_BYTES + 1)), Reason.WRONG_LENGTH),
        (lambda g: setattr(g.lives[0], "signature", bytes(SIGNATURE_BYTES - 1)), Reason.WRONG_LENGTH),
    ],
)
def test_a_greeting_that_no_working_node_sends(
    known: tuple[Federation, member_pb2.Greeting], spoil: Callable[[Any], Any], reason: Reason
) -> None:
    federation, wire = known
    spoil(wire)
    with pytest.raises(PeerFault) as caught:
        read_greeting(wire, federation)
    assert caught.value.reason is reason
