"""An aggregator that opens a round when it is asked for its sum, and hands the sum out."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig, load_node
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import RunError, UserError
from silomix.runtime.core.numbers.schema import Array
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.roundlog import Outcome
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.facts import read_log
from silomix.runtime.outside.host import Hosted, first_of
from silomix.runtime.outside.question import MARKED, VECTOR, Stamp, question_of, unit_of
from silomix.runtime.store.home import NODE_FILE
from silomix.runtime.store.journal import Journal
from silomix.runtime.store.modelfile import read_model

WEIGHTS = "weight"
"""The kind of the journal's facts about what the silos in a sum weigh together."""


class NoSum(RunError):  # noqa: N818 - what happened
    """A round came to no sum, or to none that means anything; the message says why."""


@dataclass(frozen=True)
class Sum:
    """What a round came to."""

    round: int
    mean: Array = field(repr=False)
    """The mean of the vectors, by weight."""
    weight: int
    """What the silos in it weigh together: how many they are, where all weigh 1."""
    silos: int

    @property
    def total(self) -> Array:
        """The weighted sum of the vectors."""
        return np.asarray(self.mean.astype(np.float64) * self.weight)


class Gate:
    """Between the program that asks for sums and the node: which rounds may open, and which are over."""

    def __init__(self) -> None:
        """No round may open yet."""
        self.changed = threading.Condition()
        self.allowed = 0
        self.next = 0
        """The round that is open or will be next; 0 before the node has started."""
        self.why: dict[int, str] = {}
        """Why a round came to nothing."""
        self.end: str | None = None

    def arrived(self, round_: int) -> None:
        """Hear that all rounds before this one are over."""
        with self.changed:
            self.next = max(self.next, round_)
            self.changed.notify_all()

    def ended(self, why: str) -> None:
        """Hear that the node has ended."""
        with self.changed:
            self.end = why
            self.changed.notify_all()


class OutsideAggregator(AggregatorNode):
    """An aggregator's node that begins no round before it is let.

    Its clock stands still while it waits: the machine gives hops so much time to answer, and they have not been asked.
    """

    def __init__(self, config: NodeConfig, gate: Gate) -> None:
        """Wait at this gate."""
        super().__init__(config)
        self.gate = gate
        self._held: core.AskKeys | None = None
        self._stopped: float | None = None
        self._skipped = 0.0
        self.clock = self._time

    def _time(self) -> float:
        return (time.monotonic() if self._stopped is None else self._stopped) - self._skipped

    async def run(self) -> None:
        """Run the node to its end, and say why it ended to whoever waits."""
        why = "the aggregator has ended"
        try:
            await super().run()
        except BaseException as error:
            why = f"the aggregator has failed: {first_of(error)}"
            raise
        finally:
            self.gate.ended(why)

    async def perform(self, effect: core.Effect) -> core.Event | None:
        """Carry one decision out, or hold the beginning of a round."""
        match effect:
            case core.AskKeys() if effect.round > self.gate.allowed:
                self._held, self._stopped = effect, time.monotonic()
                self.gate.arrived(effect.round)
                return None
            case core.AskKeys():
                self.gate.arrived(effect.round)
            case core.GiveUp():
                self.gate.why[effect.round] = effect.why
        learned = await super().perform(effect)
        if isinstance(effect, core.Finish):
            self.gate.arrived(effect.round + 1)
        return learned

    def let(self) -> None:
        """Begin the round that is held, if it may."""
        held = self._held
        if held is None or held.round > self.gate.allowed or self._stopped is None:
            return
        self._skipped += time.monotonic() - self._stopped
        self._held = self._stopped = None
        self.spawn(self._begin(held))

    def abandon(self, round_: int) -> None:
        """Give a round up at once: put the clock forward to the end of each attempt at it."""
        self.spawn(self._abandon(round_))

    async def _abandon(self, round_: int) -> None:
        while self.core.round == round_ and self._stopped is None:
            due = self.core.wake_at()
            if due is None:  # all have signed for its sum: no clock abandons it any more
                return
            self._skipped -= max(0.0, due - self.clock())
            await self.insist(core.Tick(self.clock()))

    async def _begin(self, held: core.AskKeys) -> None:
        async with self.lock:
            await super().perform(held)

    def weighed(self, manifest: Manifest, weight: int) -> None:
        """Keep what the silos in a sum weigh together: the model has their mean alone."""
        self.journal.put(WEIGHTS, manifest.round, "", str(weight).encode())


class Aggregator:
    """The aggregator in this process, from a directory that `outside.create` or `silomix init` wrote.

    Leaving the context stops it. Calls may come from any thread.
    """

    def __init__(self, directory: Path | str) -> None:
        """Read the configuration; the node starts with the context, or with `start`."""
        config = load_node(Path(directory))
        file = config.directory.parent / NODE_FILE
        if config.role is not Role.AGGREGATOR:
            raise ConfigError(file, "role", f'found "{config.role}"; give the directory of the aggregator')
        self.question = question_of(config.federation, file)
        self.config, self.gate = config, Gate()
        self._host: Hosted[OutsideAggregator] | None = None
        self._node: OutsideAggregator | None = None
        self._soon: Callable[[Callable[[], object]], None] | None = None

    @classmethod
    def at(cls, directory: Path, node: OutsideAggregator, soon: Callable[[Callable[[], object]], None]) -> "Aggregator":
        """Return what drives a node that somebody else runs; `soon` has something done on its loop."""
        aggregator = cls(directory)
        aggregator.gate, aggregator._node, aggregator._soon = node.gate, node, soon
        return aggregator

    def start(self) -> "Aggregator":
        """Start the node."""
        self._host = Hosted(lambda: OutsideAggregator(self.config, self.gate))
        self._node, self._soon = self._host.start(), self._host.soon
        return self

    def stop(self) -> None:
        """Stop the node. A round that is open goes on when it is started again."""
        if self._host is not None:
            self._host.stop()

    def __enter__(self) -> "Aggregator":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def round(self) -> int:
        """The round that is open, or the one that opens next."""
        with self.gate.changed:
            self.gate.changed.wait_for(lambda: self.gate.next or self.gate.end is not None)
            if not self.gate.next:
                raise NoSum(str(self.gate.end))
            return self.gate.next

    def open(self, round: int | None = None) -> int:  # noqa: A002 - the protocol's word for it
        """Open a round, the next one if none is named, and return its number: its deadline counts from now."""
        due = self.round
        number = due if round is None else round
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UserError(f"round = {number!r}; give 1, 2, 3, ...")
        if number > self.config.federation.policy.rounds:
            raise UserError(f"round {number} is beyond the policy's last, {self.config.federation.policy.rounds}")
        if number > due:
            raise UserError(f"round {number} cannot be opened: round {due} is next")
        with self.gate.changed:
            self.gate.allowed = max(self.gate.allowed, number)
        if self._soon is not None and self._node is not None:
            self._soon(self._node.let)
        return number

    def abandon(self, round: int) -> None:  # noqa: A002 - the protocol's word for it
        """Give an open round up, if it is known that too few silos will hand anything in: the next can be opened."""
        with self.gate.changed:
            if self.gate.next > round or round > self.gate.allowed:
                return
        if self._soon is not None and self._node is not None:
            node = self._node
            self._soon(lambda: node.abandon(round))
        with self.gate.changed:
            self.gate.changed.wait_for(lambda: self.gate.next > round or self.gate.end is not None)

    def result(
        self,
        round: int | None = None,  # noqa: A002 - the protocol's word for it
        *,
        question: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Sum:
        """Return a round's sum: open it if it is not open yet, and wait until it is over.

        A round is over when every silo has handed its vector in, or the policy's quorum of them, or at the deadline.
        One that came to no sum raises NoSum, and the next one can be opened. Sums of earlier rounds stay to be had.
        """
        number = self.open(round)
        with self.gate.changed:
            if not self.gate.changed.wait_for(lambda: self.gate.next > number or self.gate.end is not None, timeout_s):
                raise NoSum(f"after {timeout_s:g} s round {number} is not over yet")
        return self._read(number, question)

    def _read(self, number: int, question: bytes | None) -> Sum:
        with self._journal() as journal:
            record = {one.round: one for one in read_log(journal)}.get(number)
            weights = {round_: int(value) for round_, _, value in journal.facts(WEIGHTS)}
        federation = self.config.federation
        if record is None:
            raise NoSum(f"round {number} is not over, and {self.gate.end}")
        if record.outcome is not Outcome.APPLIED:
            raise NoSum(
                f"round {number} came to no sum: {self.gate.why.get(number, 'it was given up')}. A sum takes "
                f"{federation.minimum_cohort} silos within {federation.policy.deadline_s} s of the round's opening"
            )
        tensors = read_model(self.config.state.model(record.model_after).read_bytes())[1]
        mark = Stamp.read(tensors[MARKED], unit_of(federation))
        if not mark.question or (question is not None and mark.question != Stamp.of(0, question).question):
            raise NoSum(f"the sum of round {number} means nothing: its silos were not all asked the same thing")
        return Sum(number, tensors[VECTOR], weights.get(number, len(record.silos)), len(record.silos))

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        """The node's journal, or the file if the node has let go of it."""
        with self.gate.changed:
            ended = self.gate.end is not None
        if self._node is not None and not ended:
            yield self._node.journal
            return
        with closing(Journal(self.config.state.journal)) as journal:
            yield journal
