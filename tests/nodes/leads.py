"""An aggregator without a network: its process is made as it would be, and a test calls it as its peers do."""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from tests.net.contexts import Context, Host
from tests.nodes.federations import make, run

from silomix.runtime.config.load import load_node
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.policy import AUTO, Server
from silomix.runtime.core.protocol.lineage import Transcript
from silomix.runtime.local import InProcess
from silomix.runtime.net.calls import Call
from silomix.runtime.nodes import aggregator as module
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.lead.service import Service

ROUNDS = 2


def two_rounds_in(directory: Path) -> None:
    """Run a federation over all its rounds: the server has a state, and bounds follow from models.

    It runs in a process of its own, so that what a test of its aggregator passes is what the test itself calls.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    subprocess.run(
        [sys.executable, "-c", f"from tests.nodes.leads import run_two_rounds as run; run({str(directory)!r})"],
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
        capture_output=True,
        timeout=60,
    )


def run_two_rounds(directory: str) -> None:
    """Make the federation, and run it."""
    make(Path(directory), 3, 2, insecure=True, rounds=ROUNDS, bound=AUTO, server=Server.MOMENTUM)
    module.FAREWELL_S = 0.2

    async def go() -> None:
        async with InProcess(Path(directory)) as running:
            assert [done.cohort for done in await running.finished()] == [3, 3]

    run(go(), 60)


def home_of_an_aggregator(federation: Path, directory: Path) -> Path:
    """Copy what an aggregator has on its disk."""
    shutil.copytree(federation, directory, ignore=shutil.ignore_patterns("silo-*", "shuffler-*"))
    return directory / "aggregator"


def node_at(home: Path, **settings: Any) -> AggregatorNode:
    """Make the node, with some settings changed."""
    return AggregatorNode(replace(load_node(home), **settings))


@asynccontextmanager
async def leading(home: Path, **settings: Any) -> AsyncIterator[AggregatorNode]:
    """Make the node as it is before it serves, with all that is on record published; close it in the end."""
    node = node_at(home, **settings)
    node._knows, node._published = True, node.core.log.round
    try:
        yield node
    finally:
        await node.close()


def kept(node: AggregatorNode, round_: int) -> Transcript:
    """What the aggregator has kept of a round."""
    found = node.sums.read(round_, 1)
    assert found is not None
    return found


def call_of(peer: str, *messages: Message, silent: bool = False) -> tuple[Call, Context]:
    """A call that a member makes: what it sends, whether it then stays silent, and where its answers go."""
    context: Any = Context([message.SerializeToString() for message in messages], silent=silent)
    return Call(context, Host(), peer, "it"), context


async def answers(node: AggregatorNode, method: str, peer: str, *messages: Message) -> list[bytes]:
    """Call a method as gRPC does once the caller is known: it is let in or not, and answered."""
    served = Service(node).methods[method]
    served.admit(peer)
    call, context = call_of(peer, *messages)
    await served.answer(call)
    return context.sent


async def refused(node: AggregatorNode, method: str, peer: str, *messages: Message) -> tuple[Reason, str]:
    """Why a call is refused, and what its caller is told."""
    with pytest.raises(PeerFault) as caught:
        await answers(node, method, peer, *messages)
    return caught.value.reason, caught.value.message


class OneLine:
    """A line to one hop that gives the answers which a test has for it, and keeps the questions."""

    def __init__(self, given: Iterable[Message]) -> None:
        self.given = list(given)
        self.asked: list[Any] = []
        self.limits: list[int] = []

    async def ask(self, what: Any, request: Any, kind: Any, limit: int, timeout_s: float) -> Any:
        self.asked.append(request)
        return self.given.pop(0)

    async def listen(self, what: Any, request: Any, kind: Any, limit: int, timeout_s: float) -> AsyncIterator[Any]:
        self.asked.append(request)
        self.limits.append(limit)
        for one in self.given:
            yield one
