"""How members greet each other: protocol and software versions, federation files, the newest pins, and later epochs.

A node that has changed its certificate is believed because its identity signed the pin, whoever brings it. So pins
travel from any member to any other, and nobody can hold one back for long. Epochs, which count by their owners'
signatures, travel likewise.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Protocol

from google.protobuf.descriptor import MethodDescriptor

from silomix.runtime.config.federation import parse_federation
from silomix.runtime.config.load import NodeConfig
from silomix.runtime.config.owners.epochs import Proposal
from silomix.runtime.config.owners.pins import MAX_COUNTER
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.policy import MAX_SHUFFLERS, MAX_SILOS
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.hearing import LIFE_BYTES, Life
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.net.calls import QUESTIONS_EACH, Call, Method, Pace, Room, Unseen
from silomix.runtime.net.health import anybody
from silomix.runtime.net.history import read_signatures, write_signatures
from silomix.runtime.net.limits import MOST_EPOCHS, TEXT_BYTES, Limits
from silomix.runtime.net.lines import Line
from silomix.runtime.net.transport import Tls, channel, metadata
from silomix.runtime.net.version import PROTOCOL
from silomix.runtime.net.wire import digest_field, fixed_field
from silomix.v1 import member_pb2

SERVICE = member_pb2.DESCRIPTOR.services_by_name["MemberService"]
MEET: MethodDescriptor = SERVICE.methods_by_name["Meet"]
MOST_MEMBERS = MAX_SILOS + MAX_SHUFFLERS + 1
"""Of any federation: what is known of one in another epoch."""
GREETINGS_AT_ONCE, GREETINGS_A_SECOND = 20, 2.0
"""Greetings of a member that are answered at once, and then in each second: it greets twice a minute, or a little more
often. To take one apart, before anybody knows what is in it, takes a hundred times as long as another call. In a large
federation one may be many mebibytes long, each of which takes a turn of its own."""
_WORD = 64


@dataclass(frozen=True)
class Greeting:
    """What a member says of itself, and the pins that it knows."""

    protocol: str
    version: str
    federation: bytes
    pins: tuple[Pin, ...]
    epochs: tuple[member_pb2.Epoch, ...] = ()
    """As they came: to read one takes time."""
    ready: bytes = b""
    """The epoch that the member goes into next."""
    lives: tuple[Life, ...] = ()
    """The newest process of each hop that it knows of."""


class Knowledge(Protocol):
    """What a node tells others when they meet."""

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The newest pins."""
        ...

    @property
    def ready(self) -> bytes:
        """Digest of the epoch that counts here as the next."""
        ...

    @property
    def lives(self) -> tuple[Life, ...]:
        """The newest process of each hop that is known."""
        ...

    def offers(self, federation: bytes) -> tuple[Proposal, ...]:
        """What somebody may lack who has this federation file."""
        ...


@dataclass(frozen=True)
class OnlyPins:
    """What somebody knows who takes no part in rounds, as `silomix check`."""

    pins: tuple[Pin, ...]
    ready: bytes = b""
    lives: tuple[Life, ...] = ()

    def offers(self, federation: bytes) -> tuple[Proposal, ...]:
        """Nothing."""
        return ()


def write_epoch(proposal: Proposal) -> member_pb2.Epoch:
    """Write an epoch."""
    return member_pb2.Epoch(
        file=proposal.file,
        accepted=write_signatures(tuple(proposal.accepted.items())),
        pins=[_write_pin(pin) for pin in proposal.pins.values()],
    )


def read_epoch(wire: member_pb2.Epoch, federation: Federation, peer: str) -> Proposal:
    """Read an epoch, or refuse it. Who signed it is looked at where it counts."""
    size, most = wire.ByteSize(), Limits.of(federation).epoch
    if size > most:
        raise PeerFault(
            Reason.WRONG_LENGTH, f"an epoch of {size} bytes where {most} are the most", peer=peer, found=size
        )
    if len(wire.accepted) > len(wire.file) or len(wire.pins) > len(wire.file):
        raise PeerFault(Reason.MALFORMED, "an epoch with more signatures than its file has letters", peer=peer)
    read = _read_file(wire.file, federation, peer)
    pins = {pin.name: _read_pin(pin) for pin in wire.pins if pin.name in read.members}
    return Proposal(read, dict(read_signatures(list(wire.accepted))), pins)


def _read_file(file: bytes, federation: Federation, peer: str) -> Federation:
    """Read an epoch's file. Anybody may have written it, so whatever Python makes of it is a refusal at most."""
    try:
        return parse_federation(file.decode(), Path(f"the epoch that {peer} offers"), federation.anchor)
    except (ConfigError, ValueError) as error:
        problem = str(error)[:TEXT_BYTES]
    except (ArithmeticError, RecursionError, MemoryError) as error:
        problem = f"its file cannot be read: {type(error).__name__}"
    raise PeerFault(Reason.WRONG_EPOCH, problem, peer=peer)  # out here nothing keeps what was half read


def _write_pin(pin: Pin) -> member_pb2.Pin:
    return member_pb2.Pin(
        name=pin.name, counter=pin.counter, current=pin.current, next=pin.next, signature=pin.signature
    )


def _read_pin(pin: member_pb2.Pin) -> Pin:
    if not 1 <= pin.counter <= MAX_COUNTER:
        raise PeerFault(Reason.MALFORMED, "a pin without a counter")
    if len(pin.signature) != SIGNATURE_BYTES:
        raise PeerFault(Reason.WRONG_LENGTH, f"a pin's signature has {len(pin.signature)} bytes")
    return Pin(pin.name, pin.counter, pin.current, pin.next, pin.signature)


def greeting(
    federation: Federation,
    pins: Iterable[Pin],
    epochs: Iterable[Proposal] = (),
    ready: bytes = b"",
    lives: Iterable[Life] = (),
) -> member_pb2.Greeting:
    """Write what a node says of itself."""
    most = Limits.of(federation).epoch  # one that is longer has to come by its owners
    return member_pb2.Greeting(
        protocol=str(PROTOCOL),
        version=own_version(),
        federation_digest=federation.digest,
        pins=[_write_pin(pin) for pin in pins],
        epochs=[one for one in map(write_epoch, islice(epochs, MOST_EPOCHS)) if one.ByteSize() <= most],
        ready_digest=ready,
        lives=[member_pb2.Life(hop=one.name, life=one.life, signature=one.signature) for one in lives],
    )


@cache
def own_version() -> str:
    """The version of the software."""
    try:
        return version("silomix")
    except PackageNotFoundError:
        return "unknown"


def read_greeting(wire: member_pb2.Greeting, federation: Federation) -> Greeting:
    """Read a greeting, or refuse it. Signatures are looked at where a pin is taken."""
    digest = digest_field(wire.federation_digest, "the federation digest")
    same = digest == federation.digest  # in another epoch there are other members, with other identities
    members, hops = (len(federation.members), len(federation.chain)) if same else (MOST_MEMBERS, MAX_SHUFFLERS)
    if len(wire.pins) > members or len({pin.name for pin in wire.pins}) < len(wire.pins):
        raise PeerFault(Reason.MALFORMED, "a greeting with more pins than there are members")
    if len(wire.lives) > hops:
        raise PeerFault(Reason.MALFORMED, "a greeting with more processes than there are hops")
    if len(wire.epochs) > MOST_EPOCHS:
        raise PeerFault(Reason.MALFORMED, f"a greeting with {len(wire.epochs)} epochs")
    for word in (wire.protocol, wire.version):
        if not 0 < len(word) <= _WORD or not (word.isascii() and word.isprintable()):
            raise PeerFault(Reason.MALFORMED, "a greeting without versions")
    pins = []
    for pin in wire.pins if same else ():
        pins.append(_read_pin(pin))
        federation.member(pin.name)
    ready = wire.ready_digest and digest_field(wire.ready_digest, "the digest of the next epoch")
    lives = tuple(_read_life(life, federation) for life in wire.lives) if same else ()
    if len({life.name for life in lives}) < len(lives):
        raise PeerFault(Reason.MALFORMED, "a greeting with two newest processes of one hop")
    return Greeting(wire.protocol, wire.version, digest, tuple(pins), tuple(wire.epochs), ready, lives)


def _read_life(wire: member_pb2.Life, federation: Federation) -> Life:
    if wire.hop not in federation.chain:
        raise PeerFault(Reason.UNKNOWN_PEER, "a greeting tells of a hop that there is not")
    life = fixed_field(wire.life, LIFE_BYTES, "a life")
    return Life(wire.hop, life, fixed_field(wire.signature, SIGNATURE_BYTES, "a life's signature"))


def answering(
    federation: Federation,
    limits: Limits,
    knows: Knowledge,
    heard: Callable[[str, Greeting], object],
) -> dict[str, dict[str, Method]]:
    """Make the service that answers greetings."""

    pace = Pace(time.monotonic, GREETINGS_AT_ONCE, GREETINGS_A_SECOND)

    async def meet(call: Call) -> None:
        request = await call.request(member_pb2.MeetRequest, limits.greeting, pace)
        if not request.HasField("greeting"):
            raise PeerFault(Reason.MALFORMED, f"{call.peer} called and did not greet", peer=call.peer)
        said = read_greeting(request.greeting, federation)
        heard(call.peer, said)
        answer = greeting(federation, knows.pins, knows.offers(said.federation), knows.ready, knows.lives)
        await call.answer(member_pb2.MeetResponse(greeting=answer))

    return {SERVICE.full_name: {"Meet": Method(anybody, meet, Room(QUESTIONS_EACH), seen=False, pace=pace)}}


async def meet(
    config: NodeConfig, peer: str, tls: Tls | None, knows: Knowledge, timeout_s: float, their: bytes = b""
) -> Greeting:
    """Greet a member over a line of its own, and return what it says; `their` is the federation file that it had."""
    federation, limits = config.federation, Limits.of(config.federation)
    offers = knows.offers(their or federation.digest)
    request = member_pb2.MeetRequest(greeting=greeting(federation, knows.pins, offers, knows.ready, knows.lives))
    async with channel(federation.member(peer).address, peer, tls, limits.answered) as to:
        line = Line(to, peer, metadata(config.name, tls), Unseen(), any_protocol=True)
        answer = await line.ask(MEET, request, member_pb2.MeetResponse, limits.answered, timeout_s)
    return read_greeting(answer.greeting, federation)
