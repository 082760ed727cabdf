"""Who refused what: every node counts its refusals by their reasons, and its log has a sentence on most of them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from silomix.runtime.core.errors import Reason
from silomix.runtime.nodes.node import Node

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

    def count(self, node: Node) -> None:
        """Hear each refusal of a node as it is counted: its log spares the reader those that repeat themselves."""
        name, before = node.config.name, node.metrics.on_rejected

        def counted(reason: Reason) -> None:
            self.heard.append(Refusal(name, str(reason), ""))
            if before is not None:
                before(reason)

        node.metrics.on_rejected = counted

    def since(self, mark: int) -> list[Refusal]:
        """Return what was refused since so much had been heard, once for each node and reason."""
        found: dict[tuple[str, str], Refusal] = {}
        for one in self.heard[mark:]:
            known = found.setdefault((one.node, one.reason), one)
            if not known.sentence:
                found[one.node, one.reason] = one
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
