"""The server's side: a Grid that returns one reply, with the weighted mean, in place of the clients' own."""

import contextlib
import logging
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from silomix.runtime.core.errors import RunError, UserError
from silomix.runtime.flower.arrays import NAME, announce, changed, only_arrays, question, staying, values_in
from silomix.runtime.flower.strategies import check_strategy
from silomix.runtime.observe.log import redirected
from silomix.runtime.outside.aggregator import Aggregator, NoSum
from silomix.runtime.outside.door import Door
from silomix.runtime.outside.together import Together
from silomix.runtime.store.home import FEDERATION_FILE, NODE_FILE

LOG = "log.txt"
ARRAYS, METRICS, EXAMPLES = "arrays", "metrics", "num-examples"

_log = logging.getLogger("flwr")  # where whoever runs a Flower app looks


class Protected(Grid):
    """A Grid for `strategy.start(grid=...)`: the strategy runs as it is, and sees the mean alone."""

    def __init__(
        self,
        grid: Grid,
        directory: Path | str,
        strategy: Strategy,
        *,
        mean_based: bool = False,
        evaluate: bool = False,
        log: Path | str | None = None,
    ) -> None:
        """Start the aggregator, or say why this strategy cannot do with a mean.

        directory   the aggregator's directory; or that of a whole federation, for a simulation: then all of its nodes
                    run in this process, which protects nobody from it
        mean_based  the word of whoever wrote a strategy that it makes nothing of its replies but their weighted mean
        evaluate    send messages other than train too: the replies carry each client's metrics in clear
        log         the file that the nodes here write their logs to; log.txt in the directory, if not given
        """
        check_strategy(strategy, mean_based=mean_based)
        self.grid, self.evaluate = grid, evaluate
        self._weighted_by = str(getattr(strategy, "weighted_by_key", EXAMPLES))
        self._key = str(getattr(strategy, "arrayrecord_key", ARRAYS))
        self._stack = contextlib.ExitStack()
        # An app makes a Grid for one run and never closes it: its nodes end with the Grid, or with the process.
        self._close = weakref.finalize(self, self._stack.close)
        self._told: set[str] = set()
        self._stay: list[str] | None = None
        """The arrays that do not travel, once the first round has shown which they are."""
        where = Path(directory)
        if (where / FEDERATION_FILE).exists():
            together = self._stack.enter_context(Together(where, log=log or where / LOG))
            for silo in together.silos:
                self._stack.enter_context(Door(silo))
            self.aggregator = together.aggregator
        elif (where / NODE_FILE).exists():
            file = self._stack.enter_context(Path(log or where / LOG).open("a"))  # noqa: SIM115 - closed with the rest
            self._stack.enter_context(redirected(file))  # or Flower's own lines would come twice
            self.aggregator = self._stack.enter_context(Aggregator(where))
        else:
            raise UserError(
                f"{where} holds neither {FEDERATION_FILE} nor {NODE_FILE}: give the aggregator's directory, or that of "
                "a federation to simulate, as silomix.runtime.outside.create wrote it"
            )

    def close(self) -> None:
        """Stop the nodes that run here. It is called when nobody has this Grid any more, if nobody does before."""
        self._close()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages, and return the mean of what they brought about: one reply, beside those that are errors."""
        sent = list(messages)
        kinds = {message.metadata.message_type.partition(".")[0] for message in sent}
        if kinds == {"train"}:
            return self._train(sent, timeout)
        if "train" in kinds:
            raise UserError("messages to train and others were sent together: send them apart")
        if not sent:
            return []
        if self.evaluate:
            return list(self.grid.send_and_receive(sent, timeout=timeout))
        self._once(
            f"{' and '.join(sorted(kinds))} messages are not sent: replies would carry each client's own metrics. "
            "Evaluate at the server (evaluate_fn), or let them pass with Protected(evaluate=True)"
        )
        return []

    def _train(self, sent: list[Message], timeout: float | None) -> list[Message]:
        before = only_arrays(sent[0].content, "the message")
        if self._stay is None:
            self._stay = staying(before)
        expected, found = self.aggregator.question.values, values_in(before, self._stay)
        if expected != found:
            raise UserError(
                f"the model has {found} values, and this federation sums vectors of {expected}: make it anew"
            )
        number = self.aggregator.round
        for message in sent:
            announce(message, number, self._stay)
        asked = {question(message) for message in sent}
        if len(asked) != 1:
            raise UserError(
                f"{len(sent)} clients were to be sent {len(asked)} different models or settings: there is no mean of "
                "answers to different questions"
            )
        self.aggregator.open(number)
        replies = list(self.grid.send_and_receive(sent, timeout=timeout))
        errors = [reply for reply in replies if reply.has_error()]
        handed_in = [reply for reply in replies if not reply.has_error()]
        for reply in handed_in:
            _check_empty(reply)
        least = self.aggregator.config.federation.minimum_cohort
        if len(handed_in) < least:
            _log.warning(
                f"round {number} is given up: {len(handed_in)} clients have handed in, and a sum takes {least} silos"
            )
            self.aggregator.abandon(number)
            return errors
        try:
            total = self.aggregator.result(number, question=asked.pop())
        except NoSum as why:
            _log.warning(str(why))
            return errors
        metrics = MetricRecord({self._weighted_by: total.weight})
        content = RecordDict({self._key: changed(before, total.mean, self._stay), METRICS: metrics})
        return [Message(content, reply_to=sent[0]), *errors]

    def _once(self, remark: str) -> None:
        if remark not in self._told:
            self._told.add(remark)
            _log.warning(remark)

    # What is left as it is.

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self.grid.run

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        """Create a message."""
        return self.grid.create_message(*arguments, **options)

    def get_node_ids(self) -> Iterable[int]:
        """List the nodes."""
        return self.grid.get_node_ids()

    def get_nodes(self) -> Any:
        """List the nodes, with what is known of them."""
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages; whoever pulls the replies gets what clients sent, which has nothing of an update."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages."""
        return self.grid.pull_messages(message_ids)


def _check_empty(reply: Message) -> None:
    """Refuse to go on if a client sent its update to the server: nobody is protected who thinks to be."""
    if list(reply.content) != [NAME]:
        raise RunError(
            f"node {reply.metadata.src_node_id} has sent {sorted(reply.content)} to the server in clear: its ClientApp "
            "lacks mods=[silomix.runtime.flower.protect(...)]"
        )
