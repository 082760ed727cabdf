"""A capture in numbers: messages and bytes by node, direction, peer, method and kind."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silomix.runtime.capture.format import Direction
from silomix.runtime.capture.reader import read


@dataclass(frozen=True, order=True)
class Traffic:
    """What records are counted by."""

    node: str
    direction: Direction
    peer: str
    method: str
    kind: str


@dataclass
class Tally:
    """How many messages, and how many bytes of them."""

    records: int = 0
    bytes: int = 0

    def add(self, records: int, size: int) -> None:
        """Count more."""
        self.records += records
        self.bytes += size


@dataclass
class Summary:
    """What a capture holds, in numbers."""

    groups: dict[Traffic, Tally] = field(default_factory=dict)
    first: float | None = None
    """Unix time of the earliest record, None if there are no records."""
    last: float | None = None
    """Unix time of the latest one."""
    warnings: list[str] = field(default_factory=list)
    """What was wrong with the files, as `Reading.warnings` has it."""

    @property
    def total(self) -> Tally:
        """Everything."""
        return Tally(sum(t.records for t in self.groups.values()), sum(t.bytes for t in self.groups.values()))

    def by(self, name: str) -> dict[str, Tally]:
        """Add up by one field of a group: node, direction, peer, method or kind."""
        tallies: dict[str, Tally] = {}
        for group, tally in sorted(self.groups.items()):
            tallies.setdefault(getattr(group, name), Tally()).add(tally.records, tally.bytes)
        return tallies

    def __str__(self) -> str:
        rows: list[tuple[Any, ...]] = [("node", "direction", "peer", "method", "kind", "records", "bytes")]
        rows += [
            (g.node, g.direction, g.peer, g.method, g.kind, t.records, t.bytes) for g, t in sorted(self.groups.items())
        ]
        widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
        lines = []
        for row in rows:
            texts = [f"{v!s:<{w}}" for v, w in zip(row[:5], widths, strict=False)]
            numbers = [f"{v!s:>{w}}" for v, w in zip(row[5:], widths[5:], strict=True)]
            lines.append("  ".join(texts + numbers))
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def summary(path: Path | str) -> Summary:
    """Count a capture's messages and their bytes by node, direction, peer, method and kind."""
    reading = read(path)
    result = Summary(warnings=reading.warnings)
    for record in reading:
        group = Traffic(record.header.node, record.direction, record.peer, record.method, record.kind)
        result.groups.setdefault(group, Tally()).add(1, len(record.data))
        result.first = record.time if result.first is None else min(result.first, record.time)
        result.last = record.time if result.last is None else max(result.last, record.time)
    return result
