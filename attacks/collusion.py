"""Hops that collude: what hop 1's capture gives away to whoever also has round keys.

A hop is to delete its round keys when a round is over; one that colludes keeps them. `Colluding` runs a federation
whose hops and aggregator do, and `opened` puts hop 1's capture and the keys together: every body, with the masks of the
colluding nodes taken off. If these are all nodes, that is every silo's update; if one hop kept quiet, it is noise. At
level trusted there are no masks, and hop 1's capture is enough.
"""

import asyncio
import json
import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silomix.attacks.errors import AttackError
from silomix.attacks.views.body import Row, read_body, with_bodies
from silomix.attacks.views.captured import Scene
from silomix.attacks.views.view import View, as_changes
from silomix.runtime.capture.format import Direction
from silomix.runtime.capture.reader import read
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig, load_node
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.masks import Secret, mask_stream, unseal
from silomix.runtime.core.policy import UpdateKind
from silomix.runtime.core.protocol import aggregator, shuffler
from silomix.runtime.core.protocol.messages import Header, Manifest
from silomix.runtime.local import InProcess, make_node
from silomix.runtime.net.wire import read_header, read_manifest
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.node import Node
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.runtime.store.home import Home
from silomix.v1 import body_pb2

STOP_S = 10.0
"""Time that the nodes have to end when they are interrupted."""
KEPT = "kept-keys.jsonl"
"""Where a colluding node writes the keys that it should delete: one line {round, attempt, silo, key} each."""


def _keep(config: NodeConfig, round_: int, attempt: int, silo: str, key: Secret) -> None:
    line = {"round": round_, "attempt": attempt, "silo": silo, "key": key.value.hex()}
    with (config.directory / KEPT).open("a") as file:
        file.write(json.dumps(line) + "\n")


class ColludingShuffler(ShufflerNode):
    """A hop that follows the protocol and keeps its round keys."""

    def remember(self, fact: shuffler.Fact) -> None:
        """Keep keys that are made."""
        if isinstance(fact, shuffler.KeysMade):
            for silo, key in fact.keys:
                _keep(self.config, fact.round, fact.attempt, silo, key)
        super().remember(fact)


class ColludingAggregator(AggregatorNode):
    """An aggregator that follows the protocol and keeps its round keys."""

    async def perform(self, effect: aggregator.Effect) -> aggregator.Event | None:
        """Keep each key that is used."""
        if isinstance(effect, aggregator.Expand) and effect.key is not None:
            _keep(self.config, self.core.round, self.core.attempt, effect.header.silo, effect.key)
        return await super().perform(effect)


_COLLUDERS: dict[Role, type[Node]] = {Role.SHUFFLER: ColludingShuffler, Role.AGGREGATOR: ColludingAggregator}


class Colluding(InProcess):
    """A federation in this process whose hops and aggregator keep their keys, for the attack's positive control."""

    def start(self, name: str) -> Node:
        """Start a node that keeps its keys, or a silo as it is."""
        config = load_node(self.directory / name)
        kind = _COLLUDERS.get(config.role)
        node = make_node(config) if kind is None else kind(config)
        self.nodes[name] = node
        self.tasks[name] = asyncio.create_task(node.run(), name=name)
        return node


def run_colluding(home: Path) -> None:
    """Run a federation of colluding nodes to its end.

    It runs in a thread of its own: in the main one, nodes take the process's signals for themselves, and an interrupt
    would end one of them and leave the others waiting for it.
    """
    ended: list[BaseException] = []
    over = threading.Event()
    loop = asyncio.new_event_loop()

    async def finish() -> None:
        async with Colluding(home) as running:
            await running.finished()

    task = loop.create_task(finish())

    def work() -> None:
        try:
            loop.run_until_complete(task)
        except BaseException as error:
            ended.append(error)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            over.set()

    threading.Thread(target=work, name="federation", daemon=True).start()
    try:
        while not over.wait(0.2):
            pass
    except BaseException:
        loop.call_soon_threadsafe(task.cancel)
        over.wait(STOP_S)
        raise
    if ended:
        raise ended[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the nodes' logs off the terminal: a federation in this process writes to its standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@dataclass
class _Body:
    header: Header | None = None
    chunks: list[body_pb2.Chunk] = field(default_factory=list)
    whole: bool = False


def opened(
    scene: Scene, hops: Collection[str] | None = None, capture: Path | None = None
) -> Iterator[tuple[int, View]]:
    """Yield the rounds as hop 1, the aggregator and the named hops (by default all) can open them together."""
    chain = scene.federation.chain
    first = capture or Home(scene.home / chain[0]).capture
    if not first.exists():
        raise AttackError(f"{first}: there is no capture of hop 1; start it with --capture")
    colluders = [*(chain if hops is None else hops), scene.federation.aggregator.name]
    keys = {name: _keys(scene.home / name) for name in colluders}
    manifests, bodies = _bodies(first)
    slack = scene.federation.noise.slack(1)
    rounds: dict[int, dict[int, Row | None]] = {}
    used: dict[int, Manifest] = {}
    for body in bodies:
        if not body.whole or body.header is None or body.header.manifest not in manifests:
            continue
        manifest = manifests[body.header.manifest]
        rounds.setdefault(manifest.round, {})[scene.numbers[body.header.silo]] = _open(body, manifest, keys, slack)
        used[manifest.round] = manifest
    for number, rows in sorted(rounds.items()):
        before, after = scene.models.get(number - 1), scene.models.get(number)
        if before is not None and after is not None:
            cohort = tuple(sorted(rows))
            view = with_bodies(View(used[number].schema, cohort, before, mean=after), [rows[silo] for silo in cohort])
            yield number, view if used[number].update is UpdateKind.DELTA else as_changes(view)


def _keys(directory: Path) -> dict[tuple[int, int, str], Secret]:
    path = Home(directory).state.directory / KEPT
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {(line["round"], line["attempt"], line["silo"]): Secret(bytes.fromhex(line["key"])) for line in lines}


def _bodies(capture: Path) -> tuple[dict[bytes, Manifest], list[_Body]]:
    manifests: dict[bytes, Manifest] = {}
    streams: dict[tuple[float, int], _Body] = {}
    for record in read(capture):
        message: Any = record.message
        if record.kind == "OpenRequest":
            manifest = read_manifest(message.manifest)
            manifests[manifest.digest] = manifest
        elif record.kind.startswith("Frame.") and record.direction is Direction.RECEIVED:
            body = streams.setdefault((record.header.started, record.stream), _Body())
            if record.kind == "Frame.header":
                body.header = read_header(message.header)
            elif record.kind == "Frame.chunk":
                body.chunks.append(message.chunk)
            else:
                body.whole = True
    return manifests, list(streams.values())


def _open(
    body: _Body, manifest: Manifest, keys: dict[str, dict[tuple[int, int, str], Secret]], slack: int
) -> Row | None:
    """Take off every mask whose key is there, and read what is left as an update, if it is one."""
    codec = Codec(manifest.schema, manifest.bounds, manifest.plan, manifest.chunk_parameters)
    shape, header = codec.layout, body.header
    assert header is not None
    total = shape.body()
    for chunk in body.chunks:
        shape.add(total, chunk.index, list(chunk.planes))
    for sealed in header.seeds:
        own = keys.get(sealed.recipient, {})
        private = own.get((manifest.round, manifest.attempt, header.silo))
        if private is not None:
            context = manifest.context(manifest.layer(sealed.recipient))
            stream = mask_stream(unseal(sealed.sealed, private, context), context, manifest.plan.moduli)
            for i in range(shape.chunks):
                stream.apply(shape.part(total, i), i, shape.length(i), -1)
    return read_body(codec, total, slack)
