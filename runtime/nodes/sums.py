"""The aggregator's kept sums: each as it left the chain, with its transcript. A restart goes on from the newest, and
silos make the next model of them.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from silomix.runtime.core.errors import Fault
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol.lineage import Transcript
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.net.framing import SUM, chunk_frame
from silomix.runtime.net.history import read_transcript, write_transcript
from silomix.runtime.net.wire import read_manifest
from silomix.runtime.store.files import sweep, write_atomically
from silomix.v1 import history_pb2, services_pb2


class KeptSums:
    """A directory with two files for each attempt whose sum came."""

    def __init__(self, directory: Path) -> None:
        """Make the directory."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        sweep(directory)

    def body(self, round_: int, attempt: int) -> Path:
        """The vector as it came, packed."""
        return self.directory / f"{round_}-{attempt}.sum"

    def _transcript(self, round_: int, attempt: int) -> Path:
        return self.directory / f"{round_}-{attempt}.transcript"

    def write(self, transcript: Transcript) -> None:
        """Write what it takes to read a sum, durably."""
        manifest = transcript.manifest
        wire = write_transcript(transcript).SerializeToString()
        write_atomically(self._transcript(manifest.round, manifest.attempt), wire)

    def read(self, round_: int, attempt: int) -> Transcript | None:
        """Read a transcript, or nothing if there is none that can be read."""
        try:
            raw = self._transcript(round_, attempt).read_bytes()
            return read_transcript(history_pb2.Transcript.FromString(raw))
        except (FileNotFoundError, DecodeError, Fault):
            return None

    def vector(self, manifest: Manifest) -> Bytes:
        """Read a vector as it came."""
        body: Bytes = np.fromfile(self.body(manifest.round, manifest.attempt), np.uint8)
        return body

    def parts(self, round_: int, attempt: int) -> Iterator[bytes] | None:
        """A sum as silos get it, if its pads are here: the transcript, then chunk after chunk, from the disk.

        A small request asks for it, so no more of the transcript is read than where the chunks lie.
        """
        try:
            wire = history_pb2.Transcript.FromString(self._transcript(round_, attempt).read_bytes())
            manifest = read_manifest(wire.manifest)
        except (FileNotFoundError, DecodeError, Fault):
            return None
        return self._parts(wire, manifest) if wire.pads else None

    def _parts(self, wire: history_pb2.Transcript, manifest: Manifest) -> Iterator[bytes]:
        shape, path = layout(manifest), self.body(manifest.round, manifest.attempt)
        first = [services_pb2.SumPart(transcript=wire).SerializeToString()]
        del wire, manifest  # all silos ask at once, and some take the chunks slowly
        yield first.pop()
        with open(path, "rb") as file:
            for i in range(shape.chunks):
                part = file.read(sum(shape.plan.plane_bytes(shape.length(i))))
                yield chunk_frame(SUM, i, shape.start(i), shape.planes(memoryview(part), i))

    def forget(self, before: int) -> None:
        """Delete the sums of rounds before this one."""
        for path in self.directory.iterdir():
            number = path.name.partition("-")[0]
            if number.isdecimal() and int(number) < before:
                os.unlink(path)
