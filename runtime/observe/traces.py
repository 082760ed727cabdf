"""Traces of rounds for an OpenTelemetry collector: one trace for each round, with the phases of every node in it.

No context travels: the trace's number follows from the federation's digest and the round's number, which every node
knows, and so does the number of the span that is the round itself, which the aggregator tells. Each node tells its own
collector; owners who share one see the whole chain, and which step of it is slow.

A span says which node, round, attempt and phase, and how long it took. What a silo's training and its encoding took
apart tells of its records, and no hop learns it: a silo tells one span from hearing of an attempt to its first byte,
and one for its upload, both of which hop 1 sees anyway. Its owner may tell more, with `metrics_training`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig
from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import UserError
from silomix.runtime.observe.log import Log

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

TRACE_BYTES, SPAN_BYTES = 16, 8
EXPORT_S = 5
"""Time that the collector has to take spans in."""
FAREWELL_S = 1.0
"""Time in which a node that stops tells what is left."""
QUEUE = 2048
"""Spans that wait for a collector; beyond that the newest are dropped."""
OWN = {"train", "encode"}
"""Phases that a silo tells only if its owner wants it to."""


class Traces:
    """What one node tells its collector. Every method returns at once, whatever the collector does."""

    def __init__(
        self,
        config: NodeConfig,
        log: Log,
        exporter: "SpanExporter | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without a collector in the configuration everything here does nothing, and nothing is loaded."""
        self._tracer: Any = None
        self._provider: Any = None
        self._clock = clock
        if exporter is None and not config.traces:
            return
        self._federation, self._role = config.federation.digest, config.role
        self._detailed = config.role is not Role.SILO or config.metrics_training
        self._began = (0, 0, 0.0)
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise UserError("traces: OpenTelemetry is not installed: pip install 'silomix[traces]'") from None
        self._ids = _ids()
        names = {
            "service.name": "silomix",
            "service.namespace": config.federation.name,
            "service.instance.id": config.name,
        }
        self._provider = TracerProvider(resource=Resource(names), id_generator=self._ids, shutdown_on_exit=False)
        told = _told(exporter or _collector(config.traces), log, config.traces)
        self._provider.add_span_processor(BatchSpanProcessor(told, max_queue_size=QUEUE))
        self._tracer = self._provider.get_tracer("silomix")

    def attempt(self, round_: int, attempt: int) -> None:
        """Take note of when an attempt began here."""
        if self._tracer is not None and self._began[:2] != (round_, attempt):
            self._began = (round_, attempt, self._clock())

    def phase(self, phase: str, seconds: float, round_: int, attempt: int) -> None:
        """Tell a phase that is over just now."""
        if self._tracer is None:
            return
        end = self._clock()
        if self._detailed or phase not in OWN:
            self._tell(phase, end - seconds, end, round_, attempt)
        if self._role is Role.SILO and phase == "submit" and self._began[:2] == (round_, attempt):
            self._tell("work", min(self._began[2], end - seconds), end - seconds, round_, attempt)

    def round(self, seconds: float, round_: int, attempt: int) -> None:
        """Tell a whole round: the aggregator does, when it is over."""
        if self._tracer is not None:
            end = self._clock()
            self._tell("round", end - seconds, end, round_, attempt, whole=True)

    def _tell(self, name: str, start: float, end: float, round_: int, attempt: int, *, whole: bool = False) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context

        numbers = trace_of(self._federation, round_), span_of(self._federation, round_)
        around = trace.SpanContext(*numbers, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
        context = trace.set_span_in_context(trace.NonRecordingSpan(around))
        with self._ids.given(numbers if whole else None):
            span = self._tracer.start_span(
                name if whole else f"{self._role} {name}",
                context=Context() if whole else context,
                start_time=int(start * 1e9),
                attributes={"silomix.round": round_, "silomix.attempt": attempt},
            )
        span.end(int(end * 1e9))

    def close(self) -> None:
        """Tell what is left, for a moment: a collector that hangs holds no node up."""
        if self._provider is None:
            return
        last = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        last.start()
        last.join(FAREWELL_S)


def trace_of(federation: bytes, round_: int) -> int:
    """The number of a round's trace, which every node works out for itself."""
    return int.from_bytes(digest("trace", federation, round_)[:TRACE_BYTES], "big") or 1


def span_of(federation: bytes, round_: int) -> int:
    """The number of the span that is the round itself, and around all others."""
    return int.from_bytes(digest("round span", federation, round_)[:SPAN_BYTES], "big") or 1


def _collector(endpoint: str) -> "SpanExporter":
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=EXPORT_S)


def _ids() -> Any:
    """Make what numbers spans: at random, but for the round's own."""
    from contextlib import contextmanager

    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        def __init__(self) -> None:
            self._lock = threading.Lock()
            self._given: tuple[int, int] | None = None

        @contextmanager
        def given(self, numbers: tuple[int, int] | None) -> Any:
            with self._lock:
                self._given = numbers
                yield
                self._given = None

        def generate_trace_id(self) -> int:
            return self._given[0] if self._given else super().generate_trace_id()

        def generate_span_id(self) -> int:
            return self._given[1] if self._given else super().generate_span_id()

    return Ids()


def _told(exporter: "SpanExporter", log: Log, endpoint: str) -> "SpanExporter":
    """Have the node's own log say, once, that a collector does not take its spans; the library says it every time."""
    import logging

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    class Told(SpanExporter):
        well = True

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = exporter.export(spans)
            well, self.well = self.well, result is SpanExportResult.SUCCESS
            if well and not self.well:
                log.warning("the collector does not take traces, rounds go on without", collector=endpoint)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

    return Told()
