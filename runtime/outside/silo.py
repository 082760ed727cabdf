"""A silo whose vectors come from outside: `submit` hands one in, and returns when it counts."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import grpc

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig, load_node
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import LocalFault, PeerFault, RunError, UserError
from silomix.runtime.core.numbers.schema import Array
from silomix.runtime.core.protocol import silo as core
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.net.lines import method
from silomix.runtime.net.transport import backoff
from silomix.runtime.nodes.silo import SiloNode
from silomix.runtime.outside.host import Hosted, first_of
from silomix.runtime.outside.question import (
    MARKED,
    VECTOR,
    Question,
    Stamp,
    check_examples,
    check_vector,
    question_of,
    unit_of,
)
from silomix.runtime.store.home import NODE_FILE
from silomix.runtime.store.journal import Journal
from silomix.runtime.task import TaskError, Tensors, Trained
from silomix.v1 import services_pb2

MARKS = "mark"
"""The kind of the journal's facts about what this silo was asked."""
STATUS_S = 5.0
"""Time that the aggregator has to say which round is open."""


class NotInSum(RunError):  # noqa: N818 - what happened
    """A vector that was handed in is not in its round's sum; the message says why."""


@dataclass(frozen=True)
class HandedIn:
    """What the program handed in for a round."""

    round: int
    vector: Array = field(repr=False)
    examples: int
    question: bytes


class Mailbox(Question):
    """The task of a silo that is driven from outside: `train` waits for the round's vector.

    Three threads meet here: the program's, which hands in and waits; the node's loop, which tells how the round goes;
    and the one that the node trains in.
    """

    def __init__(self, asked: Question, unit: float, *, anyway: bool = False) -> None:
        """`unit` is what becomes the integer 1; `anyway` goes on after silos were asked different things."""
        super().__init__(asked.values, asked.dtype)
        self.unit, self.anyway = unit, anyway
        self.journal: Journal | None = None
        """Where it notes what it was asked: the process may be another one by the next round."""
        self._changed = threading.Condition()
        self._given: HandedIn | None = None
        self._now = 0
        """The newest round that was announced."""
        self._counted = 0
        """The newest round that this silo is in."""
        self._why: tuple[int, str, bool] = (0, "", False)
        """The newest round that it was left out of, why, and whether that is the last word."""
        self._end: str | None = None
        """Why nothing can be handed in any more."""

    @property
    def open(self) -> bool:
        """Whether the node has not ended."""
        with self._changed:
            return self._end is None

    def put(self, given: HandedIn) -> None:
        """Hand a vector in."""
        with self._changed:
            if self._end is not None:
                raise NotInSum(self._end)
            if self._given is not None and given.round < self._given.round:
                raise NotInSum(f"round {given.round} is over: a vector for round {self._given.round} was handed in")
            if self._counted < given.round:  # a second one for a round that this silo is in would change nothing
                self._given = given
            self._changed.notify_all()

    def wait(self, round_: int, timeout_s: float | None) -> None:
        """Wait until the round's vector counts, or say why it does not."""

        def settled() -> bool:
            out = self._why[0] == round_ and self._why[2]
            return self._counted >= round_ or self._now > round_ or out or self._end is not None

        with self._changed:
            if not self._changed.wait_for(settled, timeout_s):
                state = "is open" if self._now == round_ else f"was not announced (round {self._now} was)"
                raise NotInSum(f"after {timeout_s:g} s the vector for round {round_} does not count yet: it {state}")
            if self._counted == round_:
                return
            why = self._why[1] if self._why[0] == round_ else ""
            if self._counted > round_ or self._now > round_:
                why = why or f"round {max(self._now, self._counted)} is open already"
            raise NotInSum(f"this silo is not in the sum of round {round_}: {why or self._end}")

    def announced(self, round_: int) -> None:
        """Hear that a round is open."""
        with self._changed:
            self._now = max(self._now, round_)
            self._changed.notify_all()

    def counted(self, round_: int) -> None:
        """Hear that this silo is in a round."""
        with self._changed:
            self._counted = round_
            self._changed.notify_all()

    def left_out(self, round_: int, why: str, final: bool) -> None:
        """Hear that this silo is not in an attempt at a round; if that is not final, another one may follow."""
        with self._changed:
            self._why = (round_, why, final)
            self._changed.notify_all()

    def ended(self, why: str) -> None:
        """Hear that the node has ended."""
        with self._changed:
            self._end = why
            self._changed.notify_all()

    def train(self, tensors: Tensors, round: int) -> Trained:  # noqa: A002 - the protocol's word for it
        """Wait for the round's vector, and mark it."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._end is not None
                    or self._now > round
                    or (self._given is not None and self._given.round >= round)
                )
            )
            given = self._given
        if given is None or given.round != round:
            raise TaskError(f"nothing was handed in for round {round}")
        mark = self._mark(tensors, given.question)
        return Trained({VECTOR: given.vector, MARKED: mark.values(self.unit, self.dtype)}, given.examples, {})

    def _mark(self, tensors: Tensors, question: bytes) -> Stamp:
        """Number the sum that is under way, unless the last one shows that silos were asked different things."""
        last = Stamp.read(tensors[MARKED], self.unit)
        noted = {number: value.decode() for number, _, value in self.journal.facts(MARKS)} if self.journal else {}
        agreed = bool(last.question) and last.question == noted.get(last.number, last.question)
        if not agreed and not self.anyway:
            raise TaskError(
                "the silos of the last sum were not all asked the same thing: whoever asks may have shown this silo "
                "something else than the others, to tell its answer from theirs. Nothing was sent; if that is known to "
                "be a mistake and mended, open the silo with anyway=True"
            )
        mark = Stamp.of(last.number + 1, question)
        if self.journal:
            self.journal.put(MARKS, mark.number, "", mark.question.encode())
            for number in noted:
                if number < last.number:
                    self.journal.forget(MARKS, number, "")
        return mark


class OutsideSilo(SiloNode):
    """A silo's node that tells its inbox how the round goes."""

    def __init__(self, config: NodeConfig, inbox: Mailbox) -> None:
        """Drive the node with this inbox."""
        super().__init__(config, inbox)
        self.inbox = inbox
        inbox.journal = self.journal

    async def run(self) -> None:
        """Run the node to its end, and say why it ended to whoever waits."""
        why = "the federation is done"
        try:
            await super().run()
        except BaseException as error:
            why = f"it failed: {first_of(error)}"
            raise
        finally:
            self.inbox.ended(f"{self.config.name} has ended: {why}")

    async def perform(self, effect: core.Effect) -> core.Event | None:
        """Carry one decision out."""
        if isinstance(effect, core.TakePart):
            self.inbox.announced(effect.manifest.round)
        if isinstance(effect, core.Done):
            self.inbox.counted(effect.manifest.round)
        return await super().perform(effect)

    def left_out(self, manifest: Manifest, error: Exception) -> None:
        """Say why this silo is not in an attempt's sum."""
        super().left_out(manifest, error)
        ours = isinstance(error, LocalFault | UserError)
        self.inbox.left_out(manifest.round, str(error), final=ours)
        if not ours:
            self.spawn(self._find_out(manifest, str(error)))

    async def _find_out(self, manifest: Manifest, why: str) -> None:
        """Ask the aggregator until the round is over, unless another attempt at it is announced: nobody else tells."""
        what, kind = method("AggregatorService", "GetStatus"), services_pb2.GetStatusResponse
        line, limit = self.line(self.federation.aggregator.name), self.limits.status
        async for _ in backoff():
            if self.core.current is not manifest:
                return
            try:
                status = await line.ask(what, services_pb2.GetStatusRequest(), kind, limit, STATUS_S)
            except (grpc.aio.AioRpcError, PeerFault):
                continue
            if status.round > manifest.round or any(done.round == manifest.round for done in status.history):
                self.inbox.left_out(manifest.round, why, final=True)
                return


def open_silo(config: NodeConfig, *, anyway: bool = False) -> tuple[Mailbox, NodeConfig]:
    """Make the inbox of a silo, or say what its configuration lacks."""
    file = config.directory.parent / NODE_FILE
    if config.role is not Role.SILO:
        raise ConfigError(file, "role", f'found "{config.role}"; give the directory of a silo')
    federation = config.federation
    return Mailbox(question_of(federation, file), unit_of(federation), anyway=anyway), config


class Silo:
    """A silo in this process, from a directory that `outside.create` or `silomix init` wrote.

    It stays in the federation between two rounds; leaving the context stops it. Calls may come from any thread.
    """

    def __init__(self, directory: Path | str, *, anyway: bool = False) -> None:
        """Read the configuration; the node starts with the context, or with `start`.

        anyway  take part although the silos of the last sum were asked different things: by mistake, as is known
        """
        self.inbox, self.config = open_silo(load_node(Path(directory)), anyway=anyway)
        self.name = self.config.name
        self._host: Hosted[OutsideSilo] | None = None

    @classmethod
    def at(cls, node: OutsideSilo) -> "Silo":
        """Return what drives a node that somebody else runs."""
        silo = cls.__new__(cls)
        silo.inbox, silo.config, silo.name, silo._host = node.inbox, node.config, node.config.name, None
        return silo

    def start(self) -> "Silo":
        """Start the node."""
        self._host = Hosted(lambda: OutsideSilo(self.config, self.inbox))
        self._host.start()
        return self

    def stop(self) -> None:
        """Stop the node."""
        if self._host is not None:
            self._host.stop()

    @property
    def running(self) -> bool:
        """Whether vectors can be handed in."""
        return self.inbox.open

    def __enter__(self) -> "Silo":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def submit(
        self,
        vector: object,
        round: int,  # noqa: A002 - the protocol's word for it
        *,
        examples: int = 1,
        question: bytes = b"",
        clip: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Hand in this silo's vector for a round, and wait until hop 1 has it: then it counts.

        round      as the aggregator counts: 1, 2, 3, ...; a round that is not open yet is waited for
        examples   this silo's weight, where the policy has weight_levels; it leaves the silo under masks only
        question   what the vector answers, if that came from somebody: all silos must have been given the same bytes,
                   and a silo that finds out that others were not refuses all further rounds
        clip       cut values that are beyond the policy's bound instead of refusing them
        timeout_s  how long to wait, at most; without it, until the round is over

        The vector is taken once: to hand another one in for the same round changes nothing when the first one counts.
        """
        policy = self.config.federation.policy
        if isinstance(round, bool) or not isinstance(round, int) or not 1 <= round <= policy.rounds:
            raise UserError(f"round = {round!r}; give 1 to {policy.rounds}")
        values = check_vector(vector, self.inbox, policy, clip=clip)
        self.inbox.put(HandedIn(round, values, check_examples(examples, policy), question))
        self.inbox.wait(round, timeout_s)
