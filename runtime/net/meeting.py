"""How members greet each other: protocol and software versions, federation files, and the newest pins.

A node that has changed its certificate is believed because its identity signed the pin, whoever brings it. So pins
travel from any member to any other, and nobody can hold one back for long.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from google.protobuf.descriptor import MethodDescriptor

from silomix.runtime.config.load import NodeConfig
from silomix.runtime.config.owners.pins import MAX_COUNTER
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.net.calls import QUESTIONS_EACH, Call, Method, Room, Unseen
from silomix.runtime.net.health import anybody
from silomix.runtime.net.limits import Limits
from silomix.runtime.net.lines import Line
from silomix.runtime.net.transport import Tls, channel, metadata
from silomix.runtime.net.version import PROTOCOL
from silomix.runtime.net.wire import digest_field
from silomix.v1 import member_pb2

SERVICE = member_pb2.DESCRIPTOR.services_by_name["MemberService"]
MEET: MethodDescriptor = SERVICE.methods_by_name["Meet"]
_WORD = 64


@dataclass(frozen=True)
class Greeting:
    """What a member says of itself, and the pins that it knows."""

    protocol: str
    version: str
    federation: bytes
    pins: tuple[Pin, ...]


def greeting(federation: Federation, pins: Iterable[Pin]) -> member_pb2.Greeting:
    """Write what a node says of itself."""
    return member_pb2.Greeting(
        protocol=str(PROTOCOL),
        version=own_version(),
        federation_digest=federation.digest,
        pins=[
            member_pb2.Pin(
                name=pin.name, counter=pin.counter, current=pin.current, next=pin.next, signature=pin.signature
            )
            for pin in pins
        ],
    )


def own_version() -> str:
    """The version of the software."""
    try:
        return version("silomix")
    except PackageNotFoundError:
        return "unknown"


def read_greeting(wire: member_pb2.Greeting, federation: Federation) -> Greeting:
    """Read a greeting, or refuse it. Signatures are looked at where a pin is taken."""
    if len(wire.pins) > len(federation.members) or len({pin.name for pin in wire.pins}) < len(wire.pins):
        raise PeerFault(Reason.MALFORMED, "a greeting with more pins than there are members")
    for word in (wire.protocol, wire.version):
        if not 0 < len(word) <= _WORD or not (word.isascii() and word.isprintable()):
            raise PeerFault(Reason.MALFORMED, "a greeting without versions")
    pins = []
    for pin in wire.pins:
        if not 1 <= pin.counter <= MAX_COUNTER:
            raise PeerFault(Reason.MALFORMED, "a pin without a counter")
        if len(pin.signature) != SIGNATURE_BYTES:
            raise PeerFault(Reason.WRONG_LENGTH, f"a pin's signature has {len(pin.signature)} bytes")
        name = federation.member(pin.name).name
        pins.append(Pin(name, pin.counter, pin.current, pin.next, pin.signature))
    digest = digest_field(wire.federation_digest, "the federation digest")
    return Greeting(wire.protocol, wire.version, digest, tuple(pins))


def answering(
    federation: Federation,
    limits: Limits,
    pins: Callable[[], Iterable[Pin]],
    heard: Callable[[str, Greeting], object],
) -> dict[str, dict[str, Method]]:
    """Make the service that answers greetings."""

    async def meet(call: Call) -> None:
        request = await call.request(member_pb2.MeetRequest, limits.greeting)
        if not request.HasField("greeting"):
            raise PeerFault(Reason.MALFORMED, f"{call.peer} called and did not greet", peer=call.peer)
        heard(call.peer, read_greeting(request.greeting, federation))
        await call.answer(member_pb2.MeetResponse(greeting=greeting(federation, pins())))

    return {SERVICE.full_name: {"Meet": Method(anybody, meet, Room(QUESTIONS_EACH), seen=False)}}


async def meet(config: NodeConfig, peer: str, tls: Tls | None, pins: Iterable[Pin], timeout_s: float) -> Greeting:
    """Greet a member over a line of its own, and return what it says."""
    federation, limits = config.federation, Limits.of(config.federation)
    request = member_pb2.MeetRequest(greeting=greeting(federation, pins))
    async with channel(federation.member(peer).address, peer, tls, limits.answered) as to:
        line = Line(to, peer, metadata(config.name, tls), Unseen(), any_protocol=True)
        answer = await line.ask(MEET, request, member_pb2.MeetResponse, limits.answered, timeout_s)
    return read_greeting(answer.greeting, federation)
