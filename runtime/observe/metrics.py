"""What a node tells Prometheus, and the only file that knows the names of metrics and labels.

Nodes call methods; the methods are the vocabulary. Each node has a registry of its own, so that several can live in one
process. What the labels can be is closed: no peer can make a series, and every reason that exists is there from the
start with 0, so that the first refusal shows as an increase.

A silo's loss, its number of examples and its clip counts are attack material. They have no metric at all unless the
silo's owner asks for them, and then only on the silo's own port.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from silomix.runtime.config.kinds import Role
from silomix.runtime.core.errors import Reason
from silomix.runtime.observe.endpoint import Answer, Endpoint, serve

Direction = Literal["received", "sent"]
"""Which way a message went, as seen from this node."""
Phase = Literal[
    "prepare",
    "collect",
    "release",
    "check",
    "ready",
    "reveal",
    "apply",
    "record",
    "train",
    "encode",
    "submit",
    "follow",
]
"""What a node is busy with in a round."""
Outcome = Literal["applied", "aborted", "abandoned"]
"""How an attempt ended: with a new model, for another attempt, or with the round given up."""
EventOutcome = Literal["published", "dropped", "ignored"]
"""What became of an event: told to the broker, given up for want of one, or heard and not understood."""
HopState = Literal["ready", "open", "unreachable"]
"""How a hop looks from here; the words of HopStatus.state."""

BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""A hop adds a small body in milliseconds; a silo may train for an hour."""

# Creation times would double the number of series, and a counter's start shows in process_start_time_seconds.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """One node's metrics: a method for each thing worth telling."""

    def __init__(self, role: str, node: str, training: bool = False) -> None:
        """Training figures exist only on request, since whoever reads them can attack the silo."""
        self.role = Role(role)
        self.registry = registry = CollectorRegistry()
        self._number = self._try = 0

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"silomix_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"silomix_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"silomix_{name}", text, labels, registry=registry, buckets=BUCKETS_S)

        Info("silomix_node", "Which node this is, and what it runs.", registry=registry).info(
            {"role": str(self.role), "node": node, "version": _version()}
        )
        ProcessCollector(registry=registry)

        total = counter("bytes_total", "Serialised messages that crossed the wire.", "direction", "peer_role")
        self._bytes = {(d, r.value): total.labels(d, r.value) for d in get_args(Direction) for r in Role}
        # Prometheus' base unit is the byte: eight times either of these is the paper's bits per parameter.
        self._body_bytes = gauge(
            "bytes_per_parameter",
            "Bytes of the last body per model parameter, framing included.",
            "direction",
            "encoding",
        )
        self._plan_bytes = gauge("plan_bytes_per_parameter", "Bytes per model parameter that the plan calls for.")
        self._parameters = gauge("model_parameters", "Parameters of the model in the last body; 0 before the first.")

        self._phase = histogram("round_phase_seconds", "Time that each phase of a round took.", "phase")
        self._round_seconds = histogram("round_seconds", "Time from a round's first announcement to its end.")
        self._round = gauge("round", "Round that is under way, or the last one; 0 before the first.")
        self._round_start = gauge(
            "round_start_timestamp_seconds", "When this node first heard of that round, in Unix time; NaN before."
        )
        self._round_start.set(math.nan)
        self._attempt = gauge("attempt", "Attempt at that round; 0 before the first.")
        self._cohort = gauge("cohort_size", "Silos in the last cohort; 0 before the first.")
        self._minimum = gauge("minimum_cohort", "Silos that a sum holds at least, by this node's policy.")
        self._invited = gauge("invited_silos", "Silos that a round invites, by this node's policy.")
        self._rounds = gauge("policy_rounds", "Rounds until the federation is done, by this node's policy.")
        self._attempt_limit = gauge(
            "attempt_limit_seconds", "Longest time that an attempt can take, by this node's policy."
        )
        self._head = gauge("round_log_round", "Round of this node's newest record; NaN before the first.")
        self._head.set(math.nan)
        self._forks = counter(
            "forks_total", "Second records of a round that the aggregator signed: evidence that it told two stories."
        )
        self._bound_for = gauge(
            "bound_model", "1 while the model can be released for one cohort only, and its sum has not come; else 0."
        )
        attempts = counter("attempts_total", "Attempts that ended, by how they did.", "outcome")
        self._attempts = {o: attempts.labels(o) for o in get_args(Outcome)}

        rejections = counter("rejections_total", "What this node refused, by reason.", "reason")
        self._rejections = {r: rejections.labels(r.value) for r in Reason}
        self._handshakes = counter("failed_handshakes_total", "TLS handshakes that failed, before anybody was known.")
        self._queue = gauge("queue_depth", "Items that wait in a bounded queue.", "queue")
        self._hop = gauge(
            "hop_state", "1 for the state that a hop of the chain is in, 0 for the others.", "hop", "state"
        )
        self._expiry = gauge(
            "certificate_expiry_timestamp_seconds",
            "When this node's certificate expires, in Unix time; NaN without one.",
        )
        self._expiry.set(math.nan)  # 0 would read as long expired

        events = counter("events_total", "Events for the MQTT broker, and of it, by what became of them.", "outcome")
        self._events = {o: events.labels(o) for o in get_args(EventOutcome)}
        self._broker = gauge("broker_connected", "1 with a line to the MQTT broker, 0 without; NaN if none is wanted.")
        self._broker.set(math.nan)
        self._dropped = counter("capture_dropped_total", "Records that a capture lacks: queue or disk were full.")
        self._free = gauge("disk_free_bytes", "Room that is left where this node keeps its state; NaN if unknown.")
        self._size = gauge("disk_size_bytes", "Room that there is where this node keeps its state; NaN if unknown.")
        self._free.set(math.nan)
        self._size.set(math.nan)
        self.on_phase: Callable[[str, float, int, int], None] | None = None
        """Who else hears of phases that are over: which, how long, of which round and attempt."""
        self.on_round: Callable[[float, int, int], None] | None = None
        """Who else hears of rounds that are over: how long, which, with which attempt."""
        self.on_attempt: Callable[[int, int], None] | None = None
        """Who else hears of attempts that begin."""
        self.on_rejected: Callable[[Reason], None] | None = None
        """Who else hears of refusals: every one of them passes here."""

        self._present: Gauge | None = None
        self._paused: Gauge | None = None
        self._accuracy: Gauge | None = None
        if self.role is Role.AGGREGATOR:
            self._present = gauge("silos_present", "Silos that wait for announcements.")
            self._paused = gauge("paused", "1 while an operator holds the federation between rounds, else 0.")
            self._accuracy = gauge(
                "model_accuracy", "Share of the test set that the global model gets right; NaN if unknown."
            )
            self._accuracy.set(math.nan)

        self._loss: Gauge | None = None
        self._examples: Gauge | None = None
        self._clipped: Counter | None = None
        if training:
            self._loss = gauge("training_loss", "Loss at the end of this silo's last training; NaN before the first.")
            self._loss.set(math.nan)
            self._examples = gauge("training_examples", "Examples that this silo's last training used.")
            self._clipped = counter("clipped_values_total", "Values of this silo that were clipped to their bound.")

    # --- the wire ---

    def bytes(self, direction: str, peer_role: str, size: int) -> None:
        """Count a message by its serialised size: what the protocol costs is a claim that operators can check."""
        try:
            self._bytes[direction, peer_role].inc(size)
        except KeyError:
            raise ValueError(f"no such direction or role: {direction!r}, {peer_role!r}") from None

    def body(self, direction: str, encoding: str, size: int, parameters: int) -> None:
        """Tell what the last body cost: its bytes with all framing, over the model's parameters."""
        if direction not in get_args(Direction):
            raise ValueError(f"no such direction: {direction!r}")
        self._body_bytes.labels(direction, encoding).set(size / parameters)
        self._parameters.set(parameters)

    def plan(self, bits_per_parameter: float) -> None:
        """Tell what a body should cost by the plan, to hold the measured figure against."""
        self._plan_bytes.set(bits_per_parameter / 8)

    # --- rounds ---

    def attempt(self, number: int, attempt: int) -> None:
        """Tell which attempt at which round is under way."""
        if number != self._number:
            self._number = number
            self._round_start.set(time.time())
        self._try = attempt
        self._round.set(number)
        self._attempt.set(attempt)
        if self.on_attempt is not None:
            self.on_attempt(number, attempt)

    def finished(self) -> None:
        """Tell that no round is under way any more: nobody need wait for the next."""
        self._round_start.set(math.nan)

    def ended(self, outcome: Outcome) -> None:
        """Count an attempt that is over: retries that grow show a sick chain before rounds fail."""
        self._attempts[outcome].inc()

    def head(self, number: int) -> None:
        """Tell how far this node's round log goes: nodes that fall behind show."""
        self._head.set(number)

    def forked(self) -> None:
        """Count evidence against the aggregator."""
        self._forks.inc()

    def bound(self, *, is_bound: bool) -> None:
        """Tell whether pads may be out for a sum that has not come: then rounds wait for just those silos."""
        self._bound_for.set(is_bound)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Time a phase. One that fails is not observed: how long a failure took says nothing about the phase."""
        start = time.perf_counter()
        yield
        self.phase_took(phase, time.perf_counter() - start)

    def phase_took(self, phase: Phase, seconds: float) -> None:
        """Observe a phase that no single block of code spans."""
        if phase not in get_args(Phase):
            raise ValueError(f"no such phase: {phase!r}")
        self._phase.labels(phase).observe(seconds)
        if self.on_phase is not None:
            self.on_phase(phase, seconds, self._number, self._try)

    def round_took(self, seconds: float) -> None:
        """Observe a whole round, all of its attempts included."""
        self._round_seconds.observe(seconds)
        if self.on_round is not None:
            self.on_round(seconds, self._number, self._try)

    def cohort(self, size: int) -> None:
        """Tell how many silos were in the last cohort: the smaller, the less each of them is hidden."""
        self._cohort.set(size)

    def minimum_cohort(self, size: int) -> None:
        """Tell the policy's minimum, so that an alert can compare the cohort with it."""
        self._minimum.set(size)

    def policy(self, invited: int, rounds: int, attempt_limit_s: float) -> None:
        """Tell what else an alert needs of the policy: whom a round waits for, how many there are, and for how long."""
        self._invited.set(invited)
        self._rounds.set(rounds)
        self._attempt_limit.set(attempt_limit_s)

    # --- health ---

    def rejected(self, reason: Reason) -> None:
        """Count a refusal under the word that also went into the log and the gRPC status."""
        self._rejections[reason].inc()
        if self.on_rejected is not None:
            self.on_rejected(reason)

    def handshake_failed(self) -> None:
        """Count a TLS handshake that failed: somebody without a certificate of the federation, or with an old one."""
        self._handshakes.inc()

    def event(self, outcome: EventOutcome) -> None:
        """Count an event: those that are dropped show a broker that is away too long."""
        self._events[outcome].inc()

    def broker(self, *, connected: bool) -> None:
        """Tell whether the MQTT broker is there."""
        self._broker.set(connected)

    def queue(self, queue: str, depth: int) -> None:
        """Tell how full a bounded queue is. The name is ours, never a peer's."""
        self._queue.labels(queue).set(depth)

    def hop(self, hop: str, state: HopState) -> None:
        """Tell the state of a hop that the federation file names."""
        if state not in get_args(HopState):
            raise ValueError(f"no such state of a hop: {state!r}")
        for each in get_args(HopState):
            self._hop.labels(hop, each).set(each == state)

    def certificate_expires(self, unix_time: float) -> None:
        """Tell when the certificate expires: the one failure that can be seen coming for a year."""
        self._expiry.set(unix_time)

    def capture_dropped(self, records: int) -> None:
        """Count records that a capture lacks: an audit that reads it has to know."""
        self._dropped.inc(records)

    def disk(self, state: Path) -> None:
        """Tell how much room is left where the state is, whenever somebody asks: a node without any holds rounds up."""

        def room(of: Callable[[os.statvfs_result], int]) -> Callable[[], float]:
            def measure() -> float:
                try:
                    found = os.statvfs(state)
                except OSError:
                    return math.nan
                return float(of(found) * found.f_frsize)

            return measure

        self._free.set_function(room(lambda found: found.f_bavail))
        self._size.set_function(room(lambda found: found.f_blocks))

    # --- the aggregator's own ---

    def silos_present(self, count: int) -> None:
        """Tell how many silos watch for announcements."""
        _existing(self._present, "only an aggregator counts silos").set(count)

    def paused(self, *, on: bool) -> None:
        """Tell that an operator holds the federation, or lets it go on: it is not stalled."""
        _existing(self._paused, "only an aggregator is paused").set(on)

    def accuracy(self, share: float) -> None:
        """Tell what the evaluator beside the aggregator measured, between 0 and 1."""
        _existing(self._accuracy, "only an aggregator has an evaluator").set(share)

    # --- a silo's own ---

    @property
    def training(self) -> bool:
        """Whether this silo's owner wants training figures on the silo's own port."""
        return self._loss is not None

    def trained(self, loss: float, examples: int) -> None:
        """Tell how the last training went; nothing happens unless the owner asked for it."""
        if self._loss is not None and self._examples is not None:
            self._loss.set(loss)
            self._examples.set(examples)

    def clipped(self, values: int) -> None:
        """Count values beyond their bound; nothing happens unless the owner asked for it."""
        if self._clipped is not None:
            self._clipped.inc(values)

    # --- reading ---

    def text(self) -> str:
        """Render everything in Prometheus' text format, as the endpoint serves it."""
        return generate_latest(self.registry).decode()

    def serve(self, port: int | None, host: str = "127.0.0.1", probes: Answer | None = None) -> Endpoint:
        """Serve the metrics over HTTP and return what closes them again. Only this host can read them by default.

        None serves nothing. Port 0 is a free port, as everywhere; that it means "off" in a file is the file's affair.
        """
        return serve(self.registry, port, host, probes)


def _existing(gauge: Gauge | None, otherwise: str) -> Gauge:
    if gauge is None:
        raise ValueError(otherwise)
    return gauge


def _version() -> str:
    try:
        return version("silomix")
    except PackageNotFoundError:  # run from a tree that was never installed
        return "unknown"
