"""What an aggregator held of each round, made of its own capture: the material of every attack on it.

A capture has the frames as they travelled. Here they are put together again, per round: who took part, the model that
the round began with, and what came out of the chain: one body for each silo (the paper's modes `none` to `parameter`),
sums of residues that were not reduced (`unary`), or one reduced sum, from which the pads that hops showed are taken off
(`trusted`; at level `semi-honest` it lies under the aggregator's own mask: the sum itself shows in the next model).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from silomix.runtime.capture.format import CaptureError, Direction, Record
from silomix.runtime.capture.reader import read
from silomix.runtime.core.errors import Fault
from silomix.runtime.core.numbers.baseline import float_body
from silomix.runtime.core.numbers.masks import Secret, mask_streams
from silomix.runtime.core.numbers.plan import Granularity, Plan
from silomix.runtime.core.numbers.schema import Array
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.release import Ready, Trail
from silomix.runtime.core.protocol.rules import baseline, layout
from silomix.runtime.net.history import read_trails
from silomix.runtime.net.wire import read_cohort, read_manifest
from silomix.runtime.store.modelfile import read_model
from silomix.v1 import body_pb2


@dataclass(frozen=True)
class Evidence:
    """One attempt whose output arrived whole."""

    round: int
    attempt: int
    manifest: Manifest = field(repr=False)
    cohort: tuple[str, ...]
    model: dict[str, Array] | None = field(repr=False)
    """The global model that the round began with, if a silo downloaded it: most compute it themselves."""
    rows: npt.NDArray[np.float32] | None = field(repr=False)
    """(silos, values): the bodies as they came, in modes `none` to `parameter`."""
    sums: npt.NDArray[Any] | None = field(repr=False)
    """(moduli, values): sums of residues; reduced, but for mode `unary`. With groups: (groups, moduli, values)."""

    @property
    def attributed(self) -> bool:
        """Whether row i is known to be that of the cohort's i-th silo."""
        return self.manifest.granularity is Granularity.NONE

    @property
    def plan(self) -> Plan:
        """The round's numbers."""
        return self.manifest.plan


@dataclass
class _Stream:
    digest: bytes = b""
    cohort: tuple[str, ...] = ()
    groups: int = 0
    chunks: list[body_pb2.Chunk] = field(default_factory=list)
    trails: tuple[Trail, ...] = ()

    @property
    def whole(self) -> bool:
        return bool(self.trails)


@dataclass
class _Seen:
    """All that was found so far, by the number of its call or by the digest that names it."""

    manifests: dict[bytes, Manifest] = field(default_factory=dict)
    streams: dict[tuple[float, int], _Stream] = field(default_factory=dict)
    parts: dict[tuple[float, int], bytearray] = field(default_factory=dict)
    wanted: dict[tuple[float, int], bytes] = field(default_factory=dict)
    asked: dict[tuple[float, int], bytes] = field(default_factory=dict)
    pads: dict[bytes, dict[str, Secret]] = field(default_factory=dict)
    """By manifest, then by hop."""


def evidence(path: Path | str) -> Iterator[Evidence]:
    """Yield the rounds of an aggregator's capture, in order. A stream that broke off, or came again, counts once."""
    found = _Seen()
    for record in read(path):
        if record.header.role != "aggregator":
            raise CaptureError(f"{path} is a capture of {record.header.node}, not of an aggregator")
        _take(record, (record.header.started, record.stream), found)  # numbers begin anew with each run of the node
    models = {digest: bytes(found.parts[key]) for key, digest in found.wanted.items() if key in found.parts}
    seen = set()
    for stream in found.streams.values():
        manifest = found.manifests.get(stream.digest)
        if stream.whole and manifest is not None and stream.digest not in seen:
            seen.add(stream.digest)
            yield _put_together(stream, manifest, models.get(manifest.model), found.pads.get(stream.digest, {}))


def _take(record: Record, key: tuple[float, int], found: _Seen) -> None:
    kind, message = record.kind, cast("Any", record.message)
    if kind == "OpenRequest":
        manifest = read_manifest(message.manifest)
        found.manifests[manifest.digest] = manifest
    elif kind == "GetModelRequest":
        found.wanted[key] = message.model_digest
    elif kind == "ModelPart":
        found.parts.setdefault(key, bytearray()).extend(message.data)
    elif kind == "RevealRequest":
        found.asked[key] = message.manifest_digest
    elif kind == "RevealResponse":
        found.pads.setdefault(found.asked.get(key, b""), {})[record.peer] = Secret(message.pad)
    elif kind.startswith("RelayFrame.") and record.direction is Direction.RECEIVED:
        stream = found.streams.setdefault(key, _Stream())
        if kind == "RelayFrame.open":
            stream.digest = message.open.manifest_digest
        elif kind == "RelayFrame.cohort":
            stream.cohort = read_cohort(message.cohort).silos
        elif kind == "RelayFrame.groups":
            stream.groups = len(message.groups.groups)
        elif kind == "RelayFrame.chunk":
            stream.chunks.append(message.chunk)
        elif kind == "RelayFrame.trailer":
            stream.trails = read_trails(list(message.trailer.trails))


def _uncovered(stream: _Stream, manifest: Manifest, pads: Mapping[str, Secret]) -> list[list[memoryview]]:
    """The chunks as they came, with the pads that were shown taken off."""
    shape, n, ready = layout(manifest), stream.groups or 1, Ready(manifest.digest, manifest.model, stream.trails)
    covers = [(pad, ready.pad_context(hop, manifest.chunk_parameters)) for hop, pad in pads.items()]
    streams, out = mask_streams(covers, manifest.plan.moduli), []
    for chunk in stream.chunks:
        lot = chunk.index // n
        body = np.frombuffer(b"".join(chunk.planes), np.uint8).copy()
        for one in streams:
            one.apply(body, chunk.index, shape.length(lot), -1)
        out.append(shape.planes(body.data, lot))
    return out


def _put_together(stream: _Stream, manifest: Manifest, model: bytes | None, pads: Mapping[str, Secret]) -> Evidence:
    mode, shape = baseline(manifest), layout(manifest)
    rows, sums = None, None
    try:
        if mode is None:
            n = stream.groups or 1
            parts = _uncovered(stream, manifest, pads)
            chunks = [shape.unpack(i // n, planes).astype(np.int64) for i, planes in enumerate(parts)]
            sums = np.stack([np.concatenate(chunks[k::n], axis=1) for k in range(n)])
            sums = sums if stream.groups else sums[0]
        elif float_body(manifest.granularity):
            n = len(stream.cohort)
            values = [np.frombuffer(c.planes[0], "<f4") for c in stream.chunks]
            rows = np.stack([np.concatenate(values[r::n]) for r in range(n)])
        else:
            sums = mode.tally()
            for chunk in stream.chunks:
                mode.add(sums, chunk.index // len(stream.cohort), list(chunk.planes))
        tensors = None if model is None else read_model(model)[1]
    except (Fault, ValueError, IndexError) as error:
        raise CaptureError(f"round {manifest.round} cannot be put together: {error}") from None
    return Evidence(manifest.round, manifest.attempt, manifest, stream.cohort, tensors, rows, sums)
