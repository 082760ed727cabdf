"""Who refused what: read off the nodes' own logs, which say so with a reason."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LOGGERS = ("silomix", "grpc", "asyncio")
"""Whose lines a drill keeps to itself: honest nodes under attack have much to complain of."""


@dataclass(frozen=True)
class Refusal:
    """A node did not do what was asked of it, and said why."""

    node: str
    reason: str
    sentence: str


class Witness(logging.Handler):
    """Hears all nodes of this process, and keeps what they refused."""

    def __init__(self) -> None:
        """Hear nothing yet."""
        super().__init__(logging.INFO)
        self.heard: list[Refusal] = []
        self.lines: list[tuple[str, str]] = []
        """All else that nodes have warned of: who, and what."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line that names a reason."""
        fields = getattr(record, "silomix_fields", {})
        if "reason" in fields:
            self.heard.append(Refusal(str(fields.get("node", "")), str(fields["reason"]), record.getMessage()))
        elif record.levelno >= logging.WARNING:
            self.lines.append((str(fields.get("node", "")), record.getMessage()))

    def since(self, mark: int) -> list[Refusal]:
        """Return what was refused since so much had been heard, once for each node and reason."""
        found: dict[tuple[str, str], Refusal] = {}
        for one in self.heard[mark:]:
            found.setdefault((one.node, one.reason), one)
        return list(found.values())


@contextmanager
def listening() -> Iterator[Witness]:
    """Hear what nodes log, and let nobody else hear it."""
    witness = Witness()
    before = {name: (logging.getLogger(name), logging.getLogger(name).propagate) for name in LOGGERS}
    for logger, _ in before.values():
        logger.propagate = False
        logger.addHandler(witness)
    try:
        yield witness
    finally:
        for logger, propagated in before.values():
            logger.removeHandler(witness)
            logger.propagate = propagated
