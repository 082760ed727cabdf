"""What each rule of the protocol costs, by role, in processor seconds and in bytes.

One real round is run inside this process, and what it left behind (its manifest, record, transcript and sum) is put
through the steps that each rule adds, one at a time, on one thread.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from silomix.runtime.core.numbers.masks import Secret, mask_stream, public_key
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES, Identity
from silomix.runtime.core.protocol.lineage import (
    Transcript,
    check_root,
    check_transcript,
    decode,
    next_model,
    uncover,
)
from silomix.runtime.core.protocol.messages import RoundKey
from silomix.runtime.core.protocol.release import PadContext, check_agreed, check_ready
from silomix.runtime.core.protocol.roundlog import Record, check_countersigned, check_record, countersign_digest
from silomix.runtime.core.protocol.rules import check_manifest, layout
from silomix.runtime.local import InProcess, create, interrupt_on_sigterm
from silomix.runtime.net.history import write_record, write_signatures, write_trail, write_transcript
from silomix.runtime.net.wire import write_manifest, write_round_key
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.store.modelfile import model_digest
from silomix.runtime.task import Trained
from silomix.runtime.terminal import console, say_json
from silomix.v1 import services_pb2

REPEATS = 5


@dataclass(frozen=True)
class Cost:
    """One step that a rule adds: whose it is, what is done, and what that costs in a round."""

    rule: str
    role: str
    what: str
    seconds: float
    bytes: int
    """Sent or received for it, by this party."""


class Vector:
    """A task that trains nothing: every silo's update is drawn at random."""

    def __init__(self, parameters: int) -> None:
        """`parameters` in one tensor."""
        self._parameters = parameters

    def schema(self) -> Schema:
        """A vector."""
        return Schema((TensorSpec("vector", (self._parameters,)),))

    def initial(self) -> dict[str, np.ndarray[Any, Any]]:
        """Zeros."""
        return {"vector": np.zeros(self._parameters, np.float32)}

    def train(self, tensors: Mapping[str, np.ndarray[Any, Any]], round: int) -> Trained:  # noqa: A002
        """Draw the update."""
        drawn = np.random.default_rng(round).uniform(-0.5, 0.5, self._parameters).astype(np.float32)
        return Trained({"vector": tensors["vector"] + drawn}, 1, {})

    def evaluate(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, float]:
        """Measure nothing."""
        return {}


@dataclass(frozen=True)
class _Round:
    """What one round leaves behind."""

    aggregator: AggregatorNode
    hop: Identity
    record: Record
    transcript: Transcript
    body: Bytes
    model: dict[str, np.ndarray[Any, Any]]


def bench_rules(silos: int, parameters: int, hops: int, precision: int, as_json: bool) -> int:
    """Print what each rule costs each role in a round."""
    interrupt_on_sigterm()
    progress = console(stderr=True, quiet=as_json)
    with tempfile.TemporaryDirectory(prefix="silomix-bench-") as directory, progress.status("running a round") as now:
        done = asyncio.run(_one_round(Path(directory) / "f", silos, parameters, hops, precision))
        now.update("timing what each rule adds")
        costs = _costs(done)
    result = {"silos": silos, "parameters": parameters, "hops": hops, "repeats": REPEATS}
    if as_json:
        say_json({**result, "costs": [asdict(cost) for cost in costs]})
        return 0
    table = Table(title=f"{silos} silos, {hops} hops, {parameters:,} parameters: one round, one thread")
    for column in ("rule", "role", "what it adds", "processor ms", "bytes"):
        table.add_column(column, justify="right" if column in ("processor ms", "bytes") else "left")
    for cost in costs:
        table.add_row(cost.rule, cost.role, cost.what, f"{cost.seconds * 1e3:,.2f}", f"{cost.bytes:,}")
    console().print(table)
    return 0


async def _one_round(directory: Path, silos: int, parameters: int, hops: int, precision: int) -> _Round:
    task = Vector(parameters)
    policy = Policy(task=f"{__name__}:bench_rules", rounds=1, precision=precision, minimum_cohort=silos, quorum=1.0)
    federation = create(directory, silos, hops, policy=policy, task=task, silo_options=lambda index: {})
    tasks = dict.fromkeys((federation.aggregator.name, *federation.silo_names), task)
    async with InProcess(directory, tasks=tasks, log=directory.with_suffix(".log")) as running:
        await running.finished()
        node, hop = running.aggregator, running.nodes[federation.chain[0]].identity
    record = node.core.log.last
    assert record is not None
    transcript = node.sums.read(record.round, record.attempts[-1].attempt)
    assert transcript is not None
    return _Round(node, hop, record, transcript, node.sums.vector(transcript.manifest), task.initial())


def _costs(done: _Round) -> list[Cost]:
    federation, record, transcript = done.aggregator.federation, done.record, done.transcript
    manifest, ready = transcript.manifest, transcript.ready
    hops, silos = len(manifest.chain), len(transcript.cohort.participants)
    identity = done.hop
    shape, kept, size = layout(manifest), done.body.copy(), done.body.nbytes

    def keys() -> list[RoundKey]:
        private = Secret(bytes(range(1, 33)))
        made = (RoundKey(identity.name, silo, 1, 1, public_key(private), 0) for silo in federation.silo_names)
        return [key.signed(identity, federation.digest, manifest.head) for key in made]

    def pad() -> None:
        context = PadContext(ready.cohort, ready.grouping, identity.name, manifest.chunk_parameters)
        stream = mask_stream(Secret(bytes(range(32))), context, manifest.plan.moduli)
        for i in range(shape.chunks):
            stream.apply(shape.part(done.body, i), i, shape.length(i), 1)

    def pads_off() -> None:
        for _ in range(hops):
            pad()

    def release() -> None:
        check_ready(ready, transcript.cohort.digest, manifest.chain, federation)
        identity.sign(ready.digest)
        check_agreed(ready.digest, transcript.signatures, manifest.chain, federation)

    def log() -> None:
        check_record(record, federation)
        check_countersigned(record, federation)
        identity.sign(countersign_digest(record.digest, identity.name))

    def fresh() -> None:
        done.body[:] = kept

    def follow() -> None:
        check_transcript(transcript, record, federation)
        check_root(done.body, transcript)
        uncover(done.body, transcript)
        mean = decode(done.body, manifest, silos, federation)
        model, _ = next_model(federation, manifest, [mean], done.model, {})
        assert model_digest(manifest.schema, model) == record.model_after, "the round was not computed again"

    digest, made = manifest.digest, sum(_size(write_round_key(key)) for key in keys())
    shown = services_pb2.RevealResponse(pad=transcript.pads[0].value)
    released = (
        services_pb2.AgreeRequest(manifest_digest=digest, trails=[write_trail(trail) for trail in ready.trails]),
        services_pb2.AgreeResponse(signature=bytes(SIGNATURE_BYTES)),
        services_pb2.RevealRequest(manifest_digest=digest, signatures=write_signatures(transcript.signatures)),
        shown,
    )
    manifest_bytes, record_bytes = _size(write_manifest(manifest)), _size(write_record(record))
    down = size + _size(write_transcript(transcript))
    return [
        Cost(
            "R1 chain",
            "silo",
            "check the manifest: the chain, every key",
            _time(lambda: check_manifest(manifest, federation)),
            manifest_bytes,
        ),
        Cost("R4 nobody left out", "hop", "make and sign a key for every silo", _time(keys), made),
        Cost(
            "R2 history",
            "silo, hop",
            "check a record with its countersignatures, and sign it",
            _time(log),
            record_bytes,
        ),
        Cost("R3 release", "hop", "put the pad on the vector", _time(pad, fresh), 0),
        Cost(
            "R3 release",
            "hop",
            "check the trails and signatures, and sign; show 32 bytes",
            _time(release),
            sum(map(_size, released)),
        ),
        Cost("R3 release", "aggregator", "take all pads off", _time(pads_off, fresh), hops * _size(shown)),
        Cost("R5 lineage", "silo", "compute the sum and the next model", _time(follow, fresh), down),
    ]


def _size(message: Any) -> int:
    return int(message.ByteSize())


def _time(run: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Time one step by this process's processor, several times over, and keep the median."""
    laps = []
    for lap in range(REPEATS + 1):
        before()
        start = time.process_time()
        run()
        if lap:  # the first lap compiles the kernels and touches the memory
            laps.append(time.process_time() - start)
    return float(np.median(laps))
