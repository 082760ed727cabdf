"""One schedule of faults, from its number to its outcome: the same number gives the same run."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

from cryptography.exceptions import InvalidSignature

from silomix.runtime.core.protocol import identity
from silomix.runtime.core.protocol.aggregator import Phase
from silomix.runtime.core.protocol.roundlog import Outcome as RoundOutcome
from silomix.runtime.faults.hop import Hop
from silomix.runtime.faults.lead import Lead, Liar
from silomix.runtime.faults.mutants import NONE, Mutant
from silomix.runtime.faults.process import Node
from silomix.runtime.faults.scene import LEAD, Scene, Shape
from silomix.runtime.faults.silo import Silo
from silomix.runtime.faults.watch import Watcher
from silomix.runtime.faults.world import Rates, Violation, World

MOST_STEPS = 30_000
PATIENCE_S = 4_000.0
"""Time that a federation has to go on in, once faults have ended: several rounds with all their attempts."""


@dataclass(frozen=True)
class Result:
    """What became of a schedule."""

    seed: int
    schedule: int
    violation: str = ""
    """The promise that was broken, if one was."""
    stopped: str = ""
    """Why the run ended before its last round, and that this was to be."""
    faults: dict[str, int] = field(default_factory=dict)
    applied: int = 0
    abandoned: int = 0
    attempts: int = 0
    steps: int = 0
    refusals: dict[str, int] = field(default_factory=dict)


class Run:
    """A federation under a schedule of faults."""

    def __init__(self, seed: int, schedule: int, mutant: Mutant = NONE) -> None:
        """Draw what the schedule is like, and start everybody."""
        self.seed, self.schedule = seed, schedule
        random = Random(f"{seed}/{schedule}")  # noqa: S311 - one seed is one run
        shape = Shape.draw(random, mutant.lies)
        self.world = World(random, Rates.draw(random))
        self.scene = Scene(shape, mutant, self.world)
        self.watch = self.scene.watch = Watcher(self.scene)
        f = self.scene.federation
        hop = EarlyHop if mutant.counts_early else Hop
        self.hops = {name: hop(name, self.scene) for name in f.chain}
        self.silos = {name: Silo(name, self.scene) for name in f.silo_names}
        self.lead = (Liar if shape.lies else Lead)(LEAD, self.scene)
        self.nodes: list[Node] = [*self.hops.values(), self.lead, *self.silos.values()]
        if shape.lies:
            self.world.counts["collusion"] += 1
        self.world.on_end = self._mend
        self.steps = 0
        self._since = 0

    def _mend(self) -> None:
        for node in self.nodes:
            node.mend()
        # An aggregator that lost its disk does not know yet which rounds are over: hops do. One that did not knows of
        # every record that a hop can have, since it writes a record down before it shows it to anybody.
        self._since = max(self.lead.core.round, *(hop.core.log.round for hop in self.hops.values()))

    def run(self) -> Result:
        """Run to the end, to a violation, or until nothing happens any more."""
        violation = ""
        try:
            for node in self.nodes:
                node.wake()
            self._to_the_end()
        except Violation as broken:
            violation = str(broken)
        except Exception as error:  # a node that ends with a traceback has broken a promise too
            where = traceback.extract_tb(error.__traceback__)[-1]
            violation = f"a node failed: {type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        records = self.lead.core.log.records
        return Result(
            self.seed,
            self.schedule,
            violation,
            "" if violation else self._stopped(),
            dict(self.world.counts),
            sum(record.outcome is RoundOutcome.APPLIED for record in records),
            sum(record.outcome is RoundOutcome.ABANDONED for record in records),
            sum(len(record.attempts) for record in records),
            self.steps,
            {str(reason): n for reason, n in self.watch.refusals.items()},
        )

    @property
    def done(self) -> bool:
        """Whether all rounds are over, and every silo has the last model."""
        core = self.lead.core
        if not self.lead.up or core.phase is not Phase.FINISHED:
            return False
        return all(one.up and one.at == core.log.round - 1 for one in self.silos.values())

    def _stopped(self) -> str:
        return "" if self.done else ", ".join(sorted(self.watch.stops))

    def _to_the_end(self) -> None:
        while not self.done:
            if not self.world.next() or self.steps >= MOST_STEPS or self._late():
                self._stall()
                return
            self.steps += 1
        self.watch.ended(self.lead.core.log, self._since)
        if not self.watch.stops and self.world.over:
            for record in self.lead.core.log.records[self._since + 1 :]:
                self.watch.expect(
                    record.outcome is RoundOutcome.APPLIED,
                    f"round {record.round} began when all faults were over, and was abandoned",
                )

    def _model_lost(self) -> None:
        """Allow for an aggregator that lost its disk when a record was stored and its model with too few silos.

        With none, nobody can give the model back. With half of them or less, the others cannot compute it, since the
        sum is lost, and take it on nobody else's word.
        """
        if LEAD not in self.watch.tainted:
            return
        core, silos = self.lead.core, self.silos.values()
        held = [silo.core.log.records[silo.at].model_after for silo in silos if silo.core.log.records]
        have = held.count(core.log.model)
        if core.phase is Phase.LOADING and not have:
            self.watch.stops.add("the aggregator lost a model that no silo had yet")
        applied = [record for record in core.log.records if record.outcome is RoundOutcome.APPLIED]
        if applied and 2 * have <= len(silos):
            kept = self.lead.kept(applied[-1].round, applied[-1].attempts[-1].attempt)
            if kept is None or not kept.pads:
                self.watch.stops.add("the aggregator lost a sum that no majority of silos had used yet")

    def _late(self) -> bool:
        return self.world.over and self.world.now > self.world.ended_at + PATIENCE_S

    def _stall(self) -> None:
        self._model_lost()
        if not self.watch.stops:
            core = self.lead.core
            trouble = "; ".join(f"{hop}: {why}" for hop, why in core.trouble.items())
            raise Violation(
                f"no end: round {core.round}, attempt {core.attempt}, {core.phase} ({trouble or 'no word'})"
            )


class EarlyHop(Hop):
    """A mutant: what comes of a stream is in the sum at once, whole or not."""

    def add(self, chunks: Any) -> None:
        """It is in already."""

    def come(self, header: Any, chunks: Any, *, ended: bool) -> None:
        """Count it."""
        super().add(chunks)


@contextmanager
def remembered_signatures() -> Iterator[None]:
    """Check each signature once, and not once at every node: the answer is always the same."""
    kept = getattr(identity, "Ed25519PublicKey")  # noqa: B009 - what `verify` looks up

    @lru_cache(maxsize=4096)
    def problem(key: bytes, signature: bytes, what: bytes) -> Exception | None:
        try:
            kept.from_public_bytes(key).verify(signature, what)
        except (InvalidSignature, ValueError) as error:
            return error
        return None

    class Remembering:
        def __init__(self, key: bytes) -> None:
            self._key = key

        @classmethod
        def from_public_bytes(cls, key: bytes) -> "Remembering":
            return cls(key)

        def verify(self, signature: bytes, what: bytes) -> None:
            error = problem(self._key, signature, what)
            if error is not None:
                raise error

    setattr(identity, "Ed25519PublicKey", Remembering)  # noqa: B010 - for as long as the simulation runs
    try:
        yield
    finally:
        setattr(identity, "Ed25519PublicKey", kept)  # noqa: B010
