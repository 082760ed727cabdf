"""The processes of the round's benchmark: silos, nodes and a plain server that wait for the start and say when."""

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from silomix.runtime.config.load import NodeConfig, load_node
from silomix.runtime.core.numbers.codec import Aggregate
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.net.calls import Context
from silomix.runtime.net.limits import Limits
from silomix.runtime.net.transport import Server, channel
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.memory import give_back
from silomix.runtime.nodes.node import tls_of
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.runtime.nodes.silo import SiloNode
from silomix.runtime.task import Trained

PLAIN_MESSAGE_BYTES = 256 << 10
_PLAIN = "silomix.bench.Plain"
CHECKED = 1000
"""Coordinates whose sum is compared between the arms."""

Vector = npt.NDArray[np.float32]


class VectorTask:
    """A task whose update is a given vector: nothing is trained while the clock runs."""

    def __init__(self, silo: int, parameters: int) -> None:
        """Make the vector once, from the silo's number."""
        self.parameters = parameters
        self.vector: Vector = np.empty(0, np.float32)
        if silo >= 0:
            rng = np.random.default_rng(silo)
            self.vector = rng.random(parameters, np.float32) * np.float32(0.2) - np.float32(0.1)

    def schema(self) -> Schema:
        """One tensor."""
        return Schema((TensorSpec("vector", (self.parameters,)),))

    def initial(self) -> dict[str, npt.NDArray[Any]]:
        """Zeros."""
        return {"vector": np.zeros(self.parameters, np.float32)}

    def train(self, tensors: Any, round: int) -> Trained:  # noqa: A002 - the protocol's word
        """Return the vector."""
        return Trained({"vector": self.vector}, 1, {})

    def evaluate(self, tensors: Any) -> dict[str, float]:
        """Measure nothing."""
        return {"accuracy": 0.0, "loss": 0.0}


def task(silo: int = -1, parameters: int = 1) -> VectorTask:
    """Make the task, by the name that the federation file gives it."""
    return VectorTask(silo, parameters)


def say(**event: Any) -> None:
    """Tell the parent something."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class BenchSilo(SiloNode):
    """A silo that has its update in memory and waits for the start."""

    def __init__(self, config: NodeConfig, task: VectorTask, arm: str) -> None:
        super().__init__(config, task)
        self.arm = arm
        self.gate = asyncio.Event()

    async def _freeze(self, manifest: Manifest) -> None:
        await self.follower.follow()  # before the start: it is a phase of its own
        say(event="ready", arm=self.arm, round=manifest.round)
        await self.gate.wait()
        self.gate.clear()
        assert isinstance(self.task, VectorTask)
        update = {"vector": self.task.vector}
        self.keep(manifest, await self.work(self.encode, manifest, update, 1))
        say(event="encoded", arm=self.arm, t=time.monotonic())

    async def _submit(self, manifest: Manifest) -> None:
        await super()._submit(manifest)
        say(event="submitted", arm=self.arm, t=time.monotonic())


class BenchAggregator(AggregatorNode):
    """An aggregator that says when it has the mean."""

    arm = ""

    def _means(self, *released: Any) -> tuple[list[Aggregate], int, int]:
        say(event="arrived", arm=self.arm, t=time.monotonic())
        means, size, received = super()._means(*released)
        said = float(means[0].tensors["vector"][:CHECKED].astype(np.float64).sum())
        say(event="decoded", arm=self.arm, t=time.monotonic(), check=said, size=size)
        return means, size, received


class Plain:
    """What federated learning does without protection: one service that takes float32 vectors in and averages them."""

    def __init__(self, silos: int, parameters: int) -> None:
        self.silos, self.parameters = silos, parameters
        self.total = np.zeros(parameters, np.float32)
        self.came = 0

    async def average(self, request: AsyncIterator[bytes], context: Context) -> bytes:
        """Take one silo's vector in."""
        at = 0
        async for part in request:
            values = np.frombuffer(part, np.float32)
            self.total[at : at + len(values)] += values
            at += len(values)
        self.came += 1
        if self.came == self.silos:
            self.total /= self.silos
            check = float(self.total[:CHECKED].astype(np.float64).sum())
            say(event="decoded", arm="unprotected", t=time.monotonic(), check=check, size=self.silos)
            self.total[:] = 0
            self.came = 0
        return b""

    async def discard(self, request: AsyncIterator[bytes], context: Context) -> bytes:
        """Take one silo's bytes in and throw them away."""
        async for _ in request:
            pass
        self.came += 1
        if self.came == self.silos:
            say(event="decoded", arm="floor", t=time.monotonic(), check=0.0, size=self.silos)
            self.came = 0
        return b""


async def _serve_plain(home: Path, silos: int, parameters: int) -> None:
    config = load_node(home / "aggregator")
    plain = Plain(silos, parameters)
    server = Server("127.0.0.1:0", tls_of(config), Limits.of(config.federation), 2 * PLAIN_MESSAGE_BYTES)
    handlers: dict[str, Any] = {
        "Average": grpc.stream_unary_rpc_method_handler(plain.average),
        "Discard": grpc.stream_unary_rpc_method_handler(plain.discard),
    }
    server.add_generic(grpc.method_handlers_generic_handler(_PLAIN, handlers))
    await server.start()
    say(event="ready", arm="plain", port=server.port)
    async for command in _commands():
        if command["do"] == "stop":
            break
    say(event="peak", role="plain", mib=_peak_mib())
    await server.stop(0)


async def _plain_parts(vector: Vector) -> AsyncIterator[bytes]:
    raw = vector.view(np.uint8).data
    for start in range(0, len(raw), PLAIN_MESSAGE_BYTES):
        yield bytes(raw[start : start + PLAIN_MESSAGE_BYTES])


async def _commands() -> AsyncIterator[dict[str, Any]]:
    """Read the parent's commands; the end of the input is a command to stop."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)
    yield {"do": "stop"}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _silos(homes: dict[str, Path], names: list[str], parameters: int, port: int) -> None:
    """Run some silos of every arm in one process."""
    tasks = {name: VectorTask(int(name.partition("-")[2]) - 1, parameters) for name in names}
    nodes = [BenchSilo(load_node(home / name), tasks[name], arm) for arm, home in homes.items() for name in names]
    running = [asyncio.create_task(node.run()) for node in nodes]
    tls = {name: tls_of(load_node(next(iter(homes.values())) / name)) for name in names}
    lines = {name: channel(f"127.0.0.1:{port}", "aggregator", tls[name]) for name in names}
    for line in lines.values():
        await line.channel_ready()
    say(event="ready", arm="plain")
    async for command in _commands():
        if command["do"] == "stop":
            break
        arm = command["arm"]
        if arm in homes:
            for node in nodes:
                if node.arm == arm:
                    node.gate.set()
            continue
        method = f"/{_PLAIN}/{'Average' if arm == 'unprotected' else 'Discard'}"
        calls: dict[str, Any] = {name: lines[name].stream_unary(method) for name in names}
        await asyncio.gather(*(calls[name](_plain_parts(tasks[name].vector)) for name in names))
    say(event="peak", role="silo", mib=_peak_mib())
    for node in nodes:
        node.stopping.set()
    await asyncio.gather(*running, return_exceptions=True)
    for line in lines.values():
        await line.close()


async def _node(home: Path, name: str, arm: str, role: str) -> None:
    config = load_node(home / name)
    if role == "shuffler":
        give_back()
    node = BenchAggregator(config) if role == "aggregator" else ShufflerNode(config)
    if isinstance(node, BenchAggregator):
        node.arm = arm
    running = asyncio.create_task(node.run())
    async for command in _commands():
        if command["do"] == "stop":
            break
    place = f"hop {config.federation.chain.index(name) + 1}" if role == "shuffler" else role
    say(event="peak", role=place, arm=arm, mib=_peak_mib())
    node.stopping.set()
    await asyncio.gather(running, return_exceptions=True)


def worker(argv: list[str]) -> None:
    """Be one of the benchmark's processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("silos", "node", "plain"))
    parser.add_argument("spec", type=json.loads)
    args = parser.parse_args(argv)
    spec = args.spec
    if args.kind == "plain":
        asyncio.run(_serve_plain(Path(spec["home"]), spec["silos"], spec["parameters"]))
    elif args.kind == "node":
        asyncio.run(_node(Path(spec["home"]), spec["name"], spec["arm"], spec["role"]))
    else:
        homes = {arm: Path(home) for arm, home in spec["homes"].items()}
        asyncio.run(_silos(homes, spec["names"], spec["parameters"], spec["port"]))
