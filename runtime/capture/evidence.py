"""What an aggregator held of each round, made of its own capture: the material of every attack on it.

A capture has the frames as they travelled. Here they are put together again, per round: who took part, the model that
the round began with, and what came out of the chain: one body for each silo (the paper's modes `none` to `parameter`),
sums of residues that were not reduced (`unary`), or one reduced sum (`trusted`; at level `semi-honest` it lies under
the aggregator's own mask, which the capture does not have: the sum itself shows in the next model).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from silomix.runtime.capture.format import CaptureError, Direction, Record
from silomix.runtime.capture.reader import read
from silomix.runtime.core.errors import Fault
from silomix.runtime.core.numbers.baseline import float_body
from silomix.runtime.core.numbers.plan import Granularity, Plan
from silomix.runtime.core.numbers.schema import Array
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.rules import baseline, layout
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
    """The global model that the round began with; None if the capture does not have it."""
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
    whole: bool = False


def evidence(path: Path | str) -> Iterator[Evidence]:
    """Yield the rounds of an aggregator's capture, in order. A stream that broke off, or came again, counts once."""
    manifests: dict[bytes, Manifest] = {}
    streams: dict[tuple[float, int], _Stream] = {}
    parts: dict[tuple[float, int], bytearray] = {}
    wanted: dict[tuple[float, int], bytes] = {}
    for record in read(path):
        if record.header.role != "aggregator":
            raise CaptureError(f"{path} is a capture of {record.header.node}, not of an aggregator")
        key = (record.header.started, record.stream)  # numbers begin anew with each run of the node
        _take(record, key, manifests, streams, parts, wanted)
    models = {digest: bytes(parts[key]) for key, digest in wanted.items() if key in parts}
    seen = set()
    for stream in streams.values():
        manifest = manifests.get(stream.digest)
        if stream.whole and manifest is not None and stream.digest not in seen:
            seen.add(stream.digest)
            yield _put_together(stream, manifest, models.get(manifest.model))


def _take(
    record: Record,
    key: tuple[float, int],
    manifests: dict[bytes, Manifest],
    streams: dict[tuple[float, int], _Stream],
    parts: dict[tuple[float, int], bytearray],
    wanted: dict[tuple[float, int], bytes],
) -> None:
    kind = record.kind
    if kind == "OpenRequest":
        manifest = read_manifest(record.message.manifest)  # type: ignore[attr-defined]
        manifests[manifest.digest] = manifest
    elif kind == "GetModelRequest":
        wanted[key] = record.message.model_digest  # type: ignore[attr-defined]
    elif kind == "ModelPart":
        parts.setdefault(key, bytearray()).extend(record.message.data)  # type: ignore[attr-defined]
    elif kind.startswith("RelayFrame.") and record.direction is Direction.RECEIVED:
        frame: Any = record.message
        stream = streams.setdefault(key, _Stream())
        if kind == "RelayFrame.open":
            stream.digest = frame.open.manifest_digest
        elif kind == "RelayFrame.cohort":
            stream.cohort = read_cohort(frame.cohort).silos
        elif kind == "RelayFrame.groups":
            stream.groups = len(frame.groups.groups)
        elif kind == "RelayFrame.chunk":
            stream.chunks.append(frame.chunk)
        elif kind == "RelayFrame.trailer":
            stream.whole = True


def _put_together(stream: _Stream, manifest: Manifest, model: bytes | None) -> Evidence:
    mode, shape = baseline(manifest), layout(manifest)
    rows, sums = None, None
    try:
        if mode is None:
            n = stream.groups or 1
            chunks = [shape.unpack(c.index // n, list(c.planes)).astype(np.int64) for c in stream.chunks]
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
