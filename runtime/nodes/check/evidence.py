"""Where a node keeps the evidence of a tamper check, for `silomix verify`."""

from pathlib import Path

from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol.check.blame import Case
from silomix.runtime.net.check.case import write_case
from silomix.runtime.store.files import write_atomically


def keep(directory: Path, case: Case, vector: Bytes | None) -> Path:
    """Write a case, and the vector that goes with it, before anybody is told of it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{case.manifest.round}-{case.manifest.attempt}.case"
    if vector is not None:
        write_atomically(path.with_suffix(".vector"), vector.tobytes())
    write_atomically(path, write_case(case).SerializeToString())
    return path
