"""Replay captured traffic at live nodes, as it was and spoiled in every way that a network or a thief could.

A call is taken from a capture with all its frames and made again: by whoever made it, by somebody else, with a byte
changed, with frames swapped, missing, doubled, or replaced by noise. A node must refuse each, and say why; the one
answer that is no finding is the very answer that it gave before, to the very same call, for that counts nothing twice.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from silomix.runtime.capture.format import Direction, Record
from silomix.runtime.capture.reader import read
from silomix.runtime.config.load import NodeConfig
from silomix.runtime.core.errors import UserError
from silomix.runtime.net.answers import fault_of
from silomix.runtime.net.lines import SERVICES
from silomix.runtime.net.transport import channel, metadata, tls_of
from silomix.v1 import services_pb2

ANSWER_S = 5.0
"""How long a node has to answer; one that does not has accepted nothing yet."""
TRIES = 5
"""A refusal that overtakes the frames shows as INTERNAL in grpc.aio now and then: then the call is made again."""

METHODS: dict[str, MethodDescriptor] = {
    method.name: method
    for service in SERVICES.values()
    for method in service.methods
    if method.name in ("Prepare", "Open", "Submit", "Relay", "Deliver")
}
"""The calls that change something. Watch, GetModel and GetStatus tell what any member may know."""


@dataclass(frozen=True)
class Call:
    """One call as it was captured: who made it, of whom, with which frames, and what the answer was."""

    method: str
    sender: str
    target: str
    frames: tuple[bytes, ...] = field(repr=False)
    answer: bytes | None = field(repr=False)

    @property
    def streamed(self) -> bool:
        """Whether it has frames that can be missing or swapped."""
        return bool(METHODS[self.method].client_streaming)


@dataclass(frozen=True)
class Replay:
    """What became of one replay."""

    method: str
    target: str
    sender: str
    identity: str
    variant: str
    result: str
    """refused, known (the answer that it gave before), silent (no answer in time), unreachable, or accepted."""
    reason: str

    @property
    def finding(self) -> bool:
        """Whether the node did what it must not."""
        return self.result == "accepted"


def calls(path: Path | str) -> list[Call]:
    """Put the calls of a capture together, in the order in which they began. Calls that had no frame are none."""
    requests: dict[tuple[float, str, int], list[Record]] = {}
    answers: dict[tuple[float, str, int], bytes] = {}
    for record in read(path):
        method = METHODS.get(record.method)
        if method is None:
            continue
        key = (record.header.started, record.header.node, record.stream)
        if record.type_name == method.input_type.full_name:
            requests.setdefault(key, []).append(record)
        elif record.type_name == method.output_type.full_name:
            answers[key] = record.data
    found = []
    for key, records in requests.items():
        first = records[0]
        ends = (first.peer, first.header.node)
        sender, target = ends if first.direction is Direction.RECEIVED else ends[::-1]
        found.append(Call(first.method, sender, target, tuple(r.data for r in records), answers.get(key)))
    return found


def sample(found: list[Call], limit: int) -> list[Call]:
    """Choose calls of every kind, the oldest and the newest first: old rounds and the one that may be open."""
    chosen: list[Call] = []
    for method in METHODS:
        kind = [call for call in found if call.method == method]
        order = [i for pair in zip(range(len(kind)), reversed(range(len(kind))), strict=True) for i in pair]
        chosen += [kind[i] for i in list(dict.fromkeys(order))[:limit]]
    return chosen


def variants(call: Call, rng: random.Random) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """Yield the call as it was, then spoiled: each with its name."""
    frames = call.frames
    yield "again", frames
    if call.method == "Prepare":
        return  # it is not signed: a byte of it changed is what the aggregator may as well have asked
    for place, name in {0: "first", len(frames) // 2: "middle", len(frames) - 1: "last"}.items():
        spoiled = _flip(frames[place], rng)
        yield (
            (f"a byte of the {name} frame changed" if call.streamed else "a byte changed"),
            _put(frames, place, spoiled),
        )
    if not call.streamed:
        return
    yield "noise instead of a frame", _put(frames, len(frames) // 2, rng.randbytes(200))
    yield "the end missing", frames[:-1]
    yield "every frame twice", tuple(frame for frame in frames for _ in range(2))
    yield "all of it twice", frames + frames
    if len(frames) > 3:
        yield "two frames swapped", (*frames[:1], frames[2], frames[1], *frames[3:])
        yield "a frame missing", (*frames[:2], *frames[3:])


def _flip(frame: bytes, rng: random.Random) -> bytes:
    # Towards the end lie signatures and planes: a change there leaves a message that can be read.
    at = rng.randrange(len(frame) // 2, len(frame)) if len(frame) > 1 else 0
    return frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :]


def _put(frames: tuple[bytes, ...], at: int, frame: bytes) -> tuple[bytes, ...]:
    return (*frames[:at], frame, *frames[at + 1 :])


class Thief:
    """Somebody who has captured calls, and the certificates of some members."""

    def __init__(self, members: Mapping[str, NodeConfig], addresses: Mapping[str, str], seed: int = 1) -> None:
        """`addresses` say where a node is reached, if not where the federation file says."""
        if not members:
            raise UserError("no identity to call with: give a directory with the nodes' certificates")
        self.members, self.addresses = members, addresses
        self.federation = next(iter(members.values())).federation
        self._rng = random.Random(seed)  # noqa: S311 - it chooses which byte to spoil

    async def resend(self, chosen: list[Call], told: Callable[[Replay], None] = lambda _: None) -> list[Replay]:
        """Make every call in every variant: in its sender's name if we have that, and in somebody else's."""
        outcomes = []
        for call in chosen:
            own = [call.sender] if call.sender in self.members else []
            other = sorted(name for name in self.members if name not in (call.sender, call.target))
            tries = [(name, *variant) for name in own or other[:1] for variant in variants(call, self._rng)]
            if other:
                tries.append((self._rng.choice(other), "in another's name", call.frames))
            for identity, variant, frames in tries:
                outcome = await self._try(call, identity, variant, frames)
                told(outcome)
                outcomes.append(outcome)
        return outcomes

    async def _try(self, call: Call, identity: str, variant: str, frames: tuple[bytes, ...]) -> Replay:
        result, reason = "unreachable", ""
        for _ in range(TRIES):
            result, reason = await self._call(call, identity, frames)
            if result != "internal":
                break
        if result == "internal":  # it was ended, and why got lost on the way
            result = "refused"
        return Replay(call.method, call.target, call.sender, identity, variant, result, reason)

    async def _call(self, call: Call, identity: str, frames: tuple[bytes, ...]) -> tuple[str, str]:
        config, method = self.members[identity], METHODS[call.method]
        tls = tls_of(config)
        address = self.addresses.get(call.target) or self.federation.member(call.target).address
        path = f"/{method.containing_service.full_name}/{method.name}"
        async with channel(address, call.target, tls) as to:
            made: Any = to.stream_unary(path) if call.streamed else to.unary_unary(path)
            sent = _stream(frames) if call.streamed else frames[0]
            try:
                answer = await made(sent, metadata=metadata(identity, tls), timeout=ANSWER_S)
            except grpc.aio.AioRpcError as error:
                return _judge(error)
        return ("known", "") if _same(call, answer) else ("accepted", f"{len(answer)} bytes of answer")


def _same(call: Call, answer: bytes) -> bool:
    """Whether an answer is the captured one. A hop that is asked for its keys again may have released since."""
    if call.method != "Prepare" or call.answer is None:
        return answer == call.answer
    both = (services_pb2.PrepareResponse.FromString(raw) for raw in (call.answer, answer))
    before, now = ([(key.silo, key.public_key) for key in response.keys] for response in both)
    return before == now


async def _stream(frames: tuple[bytes, ...]) -> Any:
    for frame in frames:
        yield frame


def _judge(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    fault = fault_of(error)
    if fault is not None:
        return "refused", str(fault.reason)
    code = error.code()
    if code is grpc.StatusCode.INTERNAL:
        return "internal", "internal"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "silent", f"no answer within {ANSWER_S:.0f} s"
    return "unreachable", f"{code.name.lower()}: {error.details()}"


def run(
    path: Path, members: Mapping[str, NodeConfig], addresses: Mapping[str, str], limit: int, told: Any
) -> list[Replay]:
    """Replay a capture, and return what became of each call."""
    found = calls(path)
    if not found:
        raise UserError(f"{path} has no call that could be replayed: capture at a shuffler or at the aggregator")
    return asyncio.run(Thief(members, addresses).resend(sample(found, limit), told))
