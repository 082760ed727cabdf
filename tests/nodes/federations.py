"""Whole federations for tests: made of the toy task, run in this process, and spoken to frame by frame."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
from tests.nodes.toy import Toy

from silomix.runtime.config.certificates import load_identity
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig, load_node
from silomix.runtime.config.texts import Value
from silomix.runtime.core.errors import Reason
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.masks import mask_stream
from silomix.runtime.core.numbers.packing import Residues, pack
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol import silo as core
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.messages import Manifest, body_root, chunk_digest, trailer_digest
from silomix.runtime.core.values import Scalar
from silomix.runtime.local import InProcess, create
from silomix.runtime.net.transport import channel, metadata, tls_of
from silomix.runtime.net.wire import write_header
from silomix.runtime.nodes.node import Node
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.runtime.store.modelfile import read_model
from silomix.v1 import body_pb2, services_pb2_grpc

TASK = "tests.nodes.toy:task"
PARAMETERS = 1001
"""Four chunks of 256, of which the last ends within a byte."""
WAIT_S = 20.0
"""Bound on everything that a test waits for; nothing here takes a tenth of it."""

T = TypeVar("T")
Tensors = dict[str, np.ndarray[Any, Any]]


def policy(**changes: Any) -> Policy:
    """Four chunks to a body, and deadlines that only a fault reaches."""
    base = Policy(
        task=TASK,
        task_options={"parameters": PARAMETERS},
        rounds=1,
        deadline_s=20,
        release_s=20,
        chunk_parameters=256,
    )
    return replace(base, **changes)


def make(
    directory: Path,
    silos: int = 4,
    shufflers: int = 2,
    *,
    insecure: bool = False,
    ca: bool = False,
    settings: Mapping[Role, Mapping[str, Value]] | None = None,
    silo_options: Callable[[int], Mapping[str, Scalar]] = lambda index: {"silo": index},
    pin_model: bool = True,
    **changes: Any,
) -> Federation:
    """Write a federation; further keywords change its policy."""
    return create(
        directory,
        silos,
        shufflers,
        policy=policy(**changes),
        insecure=insecure,
        ca=ca,
        settings=settings,
        silo_options=silo_options,
        pin_model=pin_model,
    )


def run(work: Coroutine[Any, Any, T], seconds: float = WAIT_S) -> T:
    """Run a test's coroutine, and never for ever."""
    return asyncio.run(asyncio.wait_for(work, seconds))


async def until(holds: Callable[[], Any], what: str, seconds: float = WAIT_S) -> None:
    """Wait for something that no event tells of."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - what has no event is polled
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited {seconds} s for nothing: {what}") from None


def mean_update(round_: int, silos: Iterable[int], weights: Sequence[int] | None = None) -> Tensors:
    """The mean of what these silos, by index, add in a round."""
    names = list(silos)
    updates = [Toy(i, PARAMETERS).update(round_) for i in names]
    scale = np.ones(len(names)) if weights is None else np.array(weights, float)
    return {
        name: np.einsum("i,ij->j", scale / scale.sum(), np.stack([u[name].astype(float) for u in updates]))
        for name in ("a", "b")
    }


def assert_model(
    found: Tensors, cohorts: Sequence[Iterable[int]], policy_: Policy, weights: Sequence[int] | None = None
) -> None:
    """Compare a model with the mean of exactly these silos, round by round, to half a quantisation step a round."""
    step = policy_.bound / (10**policy_.precision - 1)
    sums = [mean_update(t, silos, weights) for t, silos in enumerate(cohorts, 1)]
    for name in ("a", "b"):
        expected = sum(s[name] for s in sums)
        assert np.abs(found[name] - expected).max() <= len(sums) * (step / 2 + 1e-6), f"the sum of {name} is another"


def model_of(directory: Path, name: str = "aggregator") -> Tensors:
    """The newest model that an aggregator has written."""
    files = sorted((directory / name / "state" / "models").glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns)
    return read_model(files[-1].read_bytes())[1]


def shuffler(federation: InProcess, name: str = "shuffler-1") -> ShufflerNode:
    """A hop's node."""
    node = federation.nodes[name]
    assert isinstance(node, ShufflerNode)
    return node


def rejections(node: Node, reason: Reason) -> float:
    """How often a node has refused something for a reason."""
    return node.metrics.registry.get_sample_value("silomix_rejections_total", {"reason": str(reason)}) or 0.0


def leftovers(directory: Path, name: str = "shuffler-1") -> list[str]:
    """What lies in a hop's spool."""
    return [p.name for p in (directory / name / "state" / "spool").iterdir()]


async def manifest_at(federation: InProcess, name: str = "shuffler-1", round_: int = 1, attempt: int = 0) -> Manifest:
    """Wait until an attempt is announced, and return what hop 1 has of it."""
    node = shuffler(federation, name)

    def is_open() -> bool:
        now = node.core.attempt
        if now is None or now.manifest.round != round_ or (attempt and now.manifest.attempt != attempt):
            return False
        return federation.aggregator.core.phase == "collecting" and federation.aggregator.core.round == round_

    await until(is_open, f"round {round_} is open")
    assert node.core.attempt is not None
    return node.core.attempt.manifest


def shuffler_stub(to: grpc.aio.Channel) -> Any:
    """What calls a shuffler as gRPC would; the generated stubs have no types."""
    return services_pb2_grpc.ShufflerServiceStub(to)  # type: ignore[no-untyped-call]


class Peer:
    """A member without a node: calls what it likes, in its own name."""

    def __init__(self, config: NodeConfig, target: str) -> None:
        self.config = config
        self.tls = tls_of(config)
        self.metadata = metadata(config.name, self.tls)
        self.identity = Identity(config.name, load_identity(config.identity))
        member = config.federation.member(target)
        self.channel = channel(member.address, target, self.tls)
        self.shuffler = shuffler_stub(self.channel)
        self.aggregator: Any = services_pb2_grpc.AggregatorServiceStub(self.channel)  # type: ignore[no-untyped-call]

    async def submit(self, frames: Iterable[body_pb2.Frame] | AsyncIterator[body_pb2.Frame]) -> body_pb2.Receipt:
        """Send a stream of frames, and return the receipt or raise what came instead."""
        receipt: body_pb2.Receipt = await self.shuffler.Submit(frames, metadata=self.metadata, timeout=WAIT_S)
        return receipt


@asynccontextmanager
async def peer(directory: Path, name: str, target: str = "shuffler-1") -> AsyncIterator[Peer]:
    """Open a line to a node in a member's name."""
    caller = Peer(load_node(directory / name), target)
    async with caller.channel:
        yield caller


class Body:
    """A silo's body for an attempt as it should be, in pieces that a test can spoil."""

    def __init__(self, who: Peer, manifest: Manifest, update: Tensors, *, weight: int = 1) -> None:
        self.identity, self.manifest = who.identity, manifest
        machine = core.Silo(who.config.federation, who.identity)
        self.sealing = machine.sealing(manifest, os.urandom)
        self.header = self.sealing.header
        codec = Codec(manifest.schema, manifest.bounds, manifest.plan, manifest.chunk_parameters)
        self.layout = codec.layout
        streams = [mask_stream(s, manifest.context(layer), manifest.plan.moduli) for layer, s in self.sealing.seeds]
        self.chunks: list[body_pb2.Chunk] = []
        self.digests: list[bytes] = []
        body = self.layout.body()
        for i, _ in enumerate(codec.encode(update, weight=weight, body=body)):
            part = self.layout.part(body, i)
            for stream in streams:
                stream.apply(part, i, self.layout.length(i))
            start, planes = self.layout.start(i), [bytes(plane) for plane in self.layout.planes(part.data, i)]
            self.chunks.append(body_pb2.Chunk(index=i, first_parameter=start, planes=planes))
            self.digests.append(chunk_digest(i, start, planes))

    @property
    def first(self) -> body_pb2.Frame:
        return body_pb2.Frame(header=write_header(self.header))

    @property
    def middle(self) -> list[body_pb2.Frame]:
        return [body_pb2.Frame(chunk=chunk) for chunk in self.chunks]

    @property
    def last(self) -> body_pb2.Frame:
        root = body_root(self.digests)
        signature = self.identity.sign(trailer_digest(self.header.digest, root))
        return body_pb2.Frame(trailer=body_pb2.Trailer(root=root, signature=signature))

    def frames(self) -> list[body_pb2.Frame]:
        return [self.first, *self.middle, self.last]


def close_chunk(residues: Residues, widths: tuple[int, ...], index: int, first: int) -> body_pb2.Chunk:
    """Pack residues into a chunk."""
    planes = [pack(row, width) for row, width in zip(residues, widths, strict=True)]
    return body_pb2.Chunk(index=index, first_parameter=first, planes=planes)


async def refusal(call: Callable[[], Any]) -> grpc.aio.AioRpcError:
    """Make a call that must fail, and return its error.

    A refusal that overtakes what the caller is still sending shows as INTERNAL now and then: grpc.aio reports its own
    failure to send, and not the status that came. The caller cannot tell, and calls again; so do we.
    """
    for _ in range(10):
        try:
            await call()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.INTERNAL:
                return error
        else:
            raise AssertionError("it was not refused")
    raise AssertionError("the refusal never came through")
