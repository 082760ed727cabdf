"""What a member may say where nodes meet: later epochs and the newest pins, each as many and as long as they may be."""

from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from tests.core.protocol.federations import federation
from tests.core.protocol.test_epochs import owned
from tests.net.contexts import Context, Host

from silomix.runtime.config.owners import epochs
from silomix.runtime.config.owners.epochs import Proposal
from silomix.runtime.config.owners.pins import MAX_COUNTER
from silomix.runtime.config.texts import federation_text
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.hearing import LIFE_BYTES, Life
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.net import meeting
from silomix.runtime.net.calls import Call, Pace
from silomix.runtime.net.limits import MOST_EPOCHS, Limits
from silomix.runtime.net.meeting import OnlyPins, answering, greeting, read_epoch, read_greeting, write_epoch
from silomix.runtime.observe.log import Log, redirected
from silomix.v1 import history_pb2, member_pb2

F = owned(federation(chunk_parameters=16))
PIN = Pin("silo-1", 1, b"", signature=bytes(SIGNATURE_BYTES))
EPOCH = Proposal(F, {"a": bytes(SIGNATURE_BYTES)}, {PIN.name: PIN})
ELSEWHERE = bytes(32)
"""The federation file of whoever is in another epoch."""


def refused(wire: member_pb2.Greeting) -> Reason:
    with pytest.raises(PeerFault) as caught:
        read_greeting(wire, F)
    return caught.value.reason


def test_a_refusal_is_no_longer_than_a_sentence_whatever_a_member_calls_itself() -> None:
    """Each is logged, and the line was as long as the greeting, ten times over: it filled a disk all the same."""
    name = "\x01" * (1 << 14)
    said = StringIO()
    with redirected(said), pytest.raises(PeerFault) as caught:
        read_greeting(greeting(F, (replace(PIN, name=name),)), F)
    with redirected(said):
        Log("hop-1").fault("refused Meet", caught.value, peer="silo-1")
    assert (caught.value.reason, said.getvalue().count("\n")) == (Reason.UNKNOWN_PEER, 1)
    assert len(said.getvalue()) < len(name) / 4


# Epochs


def test_an_epoch_that_is_written_is_read_back() -> None:
    assert read_epoch(write_epoch(EPOCH), F, "silo-1") == EPOCH


def test_a_file_is_written_once_for_all_who_may_lack_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any member may greet as one who has an old file, again and again."""
    wrote: list[Federation] = []

    def count(one: Federation) -> str:
        wrote.append(one)
        return federation_text(one)

    monkeypatch.setattr(epochs, "federation_text", count)
    proposal = Proposal(F)
    for _ in range(3):
        assert greeting(F, (), (proposal,)).epochs[0].file == federation_text(F).encode()
    assert wrote == [F]


@pytest.mark.parametrize("file", [b"no file at all", b"\xff\xfe"])
def test_an_epoch_that_is_no_federation_file_is_refused_in_the_name_of_whoever_offers_it(file: bytes) -> None:
    with pytest.raises(PeerFault) as caught:
        read_epoch(member_pb2.Epoch(file=file), F, "silo-1")
    assert (caught.value.reason, caught.value.details["peer"]) == (Reason.WRONG_EPOCH, "silo-1")


@pytest.mark.parametrize("error", [MemoryError, RecursionError, OverflowError, ValueError])
def test_an_epoch_that_python_cannot_read_ends_no_node(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(meeting, "parse_federation", fail)
    with pytest.raises(PeerFault) as caught:
        read_epoch(write_epoch(EPOCH), F, "silo-1")
    assert caught.value.reason is Reason.WRONG_EPOCH
    assert caught.value.__context__ is None  # which would keep what was read until then


def test_an_epoch_that_is_longer_than_one_may_be_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if there is room for it in the greeting, which may bring two."""
    wire = write_epoch(EPOCH)
    monkeypatch.setattr(Limits, "epoch", wire.ByteSize())
    assert read_epoch(wire, F, "silo-1") == EPOCH
    wire.file += b"\n"
    with pytest.raises(PeerFault) as caught:
        read_epoch(wire, F, "silo-1")
    assert (caught.value.reason, caught.value.details["peer"]) == (Reason.WRONG_LENGTH, "silo-1")


@pytest.mark.parametrize("field", ["accepted", "pins"])
def test_an_epoch_has_no_more_signatures_than_its_file_has_letters(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has two bytes on the wire, if it is empty, and takes many more to read."""
    monkeypatch.setattr(meeting, "parse_federation", lambda *_: F)
    one = history_pb2.Signature(name="a", signature=bytes(SIGNATURE_BYTES)) if field == "accepted" else None
    wire = member_pb2.Epoch(file=b"abc")
    getattr(wire, field).extend([one or member_pb2.Pin(name="stranger")] * 3)
    read_epoch(wire, F, "silo-1")
    getattr(wire, field).append(getattr(wire, field)[0])
    with pytest.raises(PeerFault) as caught:
        read_epoch(wire, F, "silo-1")
    assert (caught.value.reason, caught.value.details["peer"]) == (Reason.MALFORMED, "silo-1")


def test_of_an_epochs_pins_those_of_its_members_are_read() -> None:
    """A pin's name becomes that of a file."""
    stranger = Pin("../stranger", 1, b"", signature=bytes(SIGNATURE_BYTES))
    wire = write_epoch(replace(EPOCH, pins={PIN.name: PIN, stranger.name: stranger}))
    assert read_epoch(wire, F, "silo-1").pins == {PIN.name: PIN}


def test_an_epoch_that_is_too_long_for_a_greeting_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owners bring it: the whole greeting would be refused."""
    size = write_epoch(EPOCH).ByteSize()
    for most, told in ((size, 1), (size - 1, 0)):
        monkeypatch.setattr(Limits, "epoch", most)
        assert len(greeting(F, (), [EPOCH]).epochs) == told


def test_a_greeting_brings_so_many_epochs_and_no_more() -> None:
    wire = greeting(F, (), [EPOCH] * (MOST_EPOCHS + 1))
    assert len(read_greeting(wire, F).epochs) == MOST_EPOCHS
    wire.epochs.append(wire.epochs[0])
    assert refused(wire) is Reason.MALFORMED


@pytest.mark.parametrize("ready", [b"", bytes(32)])
def test_the_next_epoch_is_named_by_its_digest_or_not_at_all(ready: bytes) -> None:
    wire = greeting(F, (), ready=ready)
    assert read_greeting(wire, F).ready == ready
    wire.ready_digest = bytes(31)
    assert refused(wire) is Reason.WRONG_LENGTH


# Pins and words


def test_a_pin_is_counted_up_to_the_largest_number() -> None:
    last = replace(PIN, counter=MAX_COUNTER)
    assert read_greeting(greeting(F, [last]), F).pins == (last,)


def test_a_greeting_with_more_pins_than_members_is_refused_before_any_is_read() -> None:
    everybody = [replace(PIN, name=name) for name in F.members]
    assert len(read_greeting(greeting(F, everybody), F).pins) == len(everybody)
    assert refused(greeting(F, [*everybody, replace(PIN, name="stranger", counter=0)])) is Reason.MALFORMED
    assert refused(greeting(F, [*everybody, replace(PIN, name="stranger")])) is Reason.MALFORMED


def test_of_a_member_in_another_epoch_neither_pins_nor_processes_are_taken() -> None:
    """It has other members, of whom some may be strangers here: it is met all the same, for the epochs it brings."""
    wire = greeting(F, [replace(PIN, name=f"stranger-{i}", counter=0) for i in range(len(F.members) + 1)], [EPOCH])
    wire.lives.add(hop="stranger", life=bytes(LIFE_BYTES), signature=bytes(SIGNATURE_BYTES))
    wire.federation_digest = ELSEWHERE
    said = read_greeting(wire, F)
    assert (said.federation, said.pins, said.lives, len(said.epochs)) == (ELSEWHERE, (), (), 1)


def test_a_greeting_tells_of_one_newest_process_for_each_hop() -> None:
    """Two could be told in any order, and the earlier one of them believed."""
    lives = [Life(hop, bytes(LIFE_BYTES), bytes(SIGNATURE_BYTES)) for hop in F.chain]
    assert read_greeting(greeting(F, (), lives=lives), F).lives == tuple(lives)
    assert refused(greeting(F, (), lives=[lives[0], replace(lives[0], life=b"\1" * LIFE_BYTES)])) is Reason.MALFORMED


@pytest.mark.parametrize("field", ["protocol", "version"])
def test_a_version_is_a_short_word_that_a_terminal_can_show(field: str) -> None:
    wire = greeting(F, ())
    setattr(wire, field, "x" * 64)
    assert getattr(read_greeting(wire, F), field) == "x" * 64
    for word in ("x" * 65, "", "1.0ü", "1\x1b[2J"):
        setattr(wire, field, word)
        assert refused(wire) is Reason.MALFORMED


async def test_whoever_calls_and_does_not_greet_is_refused_by_name() -> None:
    heard: list[Any] = []
    method = answering(F, Limits.of(F), OnlyPins(()), lambda *said: heard.append(said))[meeting.SERVICE.full_name]
    context: Any = Context([b""])
    with pytest.raises(PeerFault, match="did not greet") as caught:
        await method["Meet"].answer(Call(context, Host(), "silo-1", "Meet"))
    assert (caught.value.reason, caught.value.details["peer"], heard) == (Reason.MALFORMED, "silo-1", [])


@pytest.mark.parametrize(("mebibytes", "turns"), [(0, 0), (3, 3)])
async def test_each_mebibyte_of_a_greeting_takes_a_turn_before_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, mebibytes: int, turns: int
) -> None:
    """In a federation of a thousand silos one may have twelve: two of those a second would leave no time for others."""
    taken: list[str] = []

    class Turns(Pace):
        async def turn(self, peer: str) -> None:
            taken.append(peer)

    monkeypatch.setattr(meeting, "Pace", Turns)
    limits: Any = SimpleNamespace(greeting=4 << 20)
    (service,) = answering(F, limits, OnlyPins(()), lambda *_: None).values()
    context: Any = Context([b"\xff" * (mebibytes << 20 or 1)])
    with pytest.raises(PeerFault, match="MeetRequest"):
        await service["Meet"].answer(Call(context, Host(), "silo-1", "Meet"))
    assert taken == ["silo-1"] * turns


def test_greetings_have_a_pace_of_their_own() -> None:
    """To take one apart takes far longer than other calls do, and any member may greet."""
    (service,) = answering(F, Limits.of(F), OnlyPins(()), lambda *_: None).values()
    assert service["Meet"].pace is not None
    assert service["Meet"].pace._each == 1 / meeting.GREETINGS_A_SECOND
