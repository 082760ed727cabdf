"""Traces: one for each round, from every node, with nothing in it that a hop does not know."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.nodes.federations import make, run

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_node
from silomix.runtime.config.texts import Value
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.local import InProcess
from silomix.runtime.observe import traces
from silomix.runtime.observe.log import Log
from silomix.runtime.observe.traces import Traces, span_of, trace_of

COLLECTOR = "http://127.0.0.1:4317"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The library's own logger is left as it was."""
    library = logging.getLogger("opentelemetry")
    level = library.level
    yield
    library.setLevel(level)


def spans_of(directory: Path, federation: Federation, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[ReadableSpan]]:
    """Run a federation, and return what each node has told, by its name."""
    told = InMemorySpanExporter()
    monkeypatch.setattr(traces, "_collector", lambda _: told)
    monkeypatch.setattr(told, "shutdown", lambda: None)

    async def go() -> None:
        async with InProcess(directory) as running:
            await running.finished()

    run(go(), 60)
    found: dict[str, list[ReadableSpan]] = {name: [] for name in federation.members}
    for span in told.get_finished_spans():
        found[str(span.resource.attributes["service.instance.id"])].append(span)
    return found


def test_a_round_is_one_trace_across_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = {role: {"traces": COLLECTOR} for role in Role}
    federation = make(tmp_path / "f", 3, 2, rounds=2, settings=every)
    found = spans_of(tmp_path / "f", federation, monkeypatch)

    phases = {name: sorted({span.name for span in spans}) for name, spans in found.items()}
    hop = ["shuffler collect", "shuffler release"]
    server = [
        f"aggregator {phase}" for phase in ("apply", "collect", "prepare", "ready", "record", "release", "reveal")
    ]
    assert phases == {
        "aggregator": [*server, "round"],
        **{f"shuffler-{i}": hop for i in (1, 2)},
        **{name: ["silo follow", "silo submit", "silo work"] for name in federation.silo_names},
    }
    for spans in found.values():
        for span in spans:
            assert span.attributes is not None
            round_ = int(str(span.attributes["silomix.round"]))
            assert round_ in (1, 2)
            assert span.attributes.keys() == {"silomix.round", "silomix.attempt"}
            assert not span.events
            assert span.context is not None
            assert span.context.trace_id == trace_of(federation.digest, round_)
            root = span_of(federation.digest, round_)
            if span.name == "round":
                assert span.context.span_id == root
                assert span.parent is None
            else:
                assert span.context.span_id != root
                assert span.parent is not None
                assert span.parent.span_id == root
            assert span.start_time is not None
            assert span.end_time is not None
            assert span.start_time <= span.end_time
            known = {"service.name", "service.namespace", "service.instance.id"}
            assert {key for key in span.resource.attributes if not key.startswith("telemetry.sdk.")} == known
    assert len({span.context.trace_id for spans in found.values() for span in spans if span.context}) == 2


def test_a_silos_owner_may_tell_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[Role, dict[str, Value]] = {Role.SILO: {"traces": COLLECTOR, "metrics_training": True}}
    federation = make(tmp_path / "f", 3, 1, rounds=1, settings=settings)
    found = spans_of(tmp_path / "f", federation, monkeypatch)
    names = {span.name for span in found["silo-01"]}
    assert names == {"silo follow", "silo train", "silo encode", "silo submit", "silo work"}
    assert not found["aggregator"]
    assert not found["shuffler-1"]


def test_a_collector_gets_spans_over_otlp(tmp_path: Path) -> None:
    make(tmp_path / "f", 3, 1, settings={Role.SHUFFLER: {"traces": COLLECTOR}})
    config = load_node(tmp_path / "f" / "shuffler-1")
    got: list[Any] = []

    def export(request: Any, _: grpc.ServicerContext) -> Any:
        got.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=trace_service_pb2.ExportTraceServiceRequest.FromString,
        response_serializer=trace_service_pb2.ExportTraceServiceResponse.SerializeToString,
    )
    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        here = traces._collector(f"http://127.0.0.1:{port}")
        target = Traces(config, Log("shuffler-1"), here)
        target.attempt(7, 2)
        target.phase("collect", 1.5, 7, 2)
        target._provider.force_flush(10_000)
        target.close()
    finally:
        server.stop(None)
    (request,) = got
    (span,) = request.resource_spans[0].scope_spans[0].spans
    assert span.name == "shuffler collect"
    assert int.from_bytes(span.trace_id, "big") == trace_of(config.federation.digest, 7)
    assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 == pytest.approx(1.5, abs=1e-3)


def test_a_collector_that_takes_nothing_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Away(InMemorySpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.FAILURE

    make(tmp_path / "f", 3, 1)
    target = Traces(load_node(tmp_path / "f" / "aggregator"), Log("aggregator"), Away())
    for round_ in (1, 2, 3):
        target.phase("apply", 0.1, round_, 1)
        target._provider.force_flush(10_000)
    target.close()
    assert caplog.text.count("the collector does not take traces") == 1


def test_without_a_collector_nothing_is_loaded(tmp_path: Path) -> None:
    make(tmp_path / "f", 3, 1)
    code = f"""
import sys
from pathlib import Path
from silomix.runtime.config.load import load_node
from silomix.runtime.observe.log import Log
from silomix.runtime.observe.traces import Traces
target = Traces(load_node(Path({str(tmp_path / "f" / "silo-01")!r})), Log("silo-01"))
target.attempt(1, 1); target.phase("train", 1.0, 1, 1); target.round(1.0, 1, 1); target.close()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("wrong", ["collector:4317", "ftp://x:1", "http://x", "grpc://x:4317"])
def test_an_address_that_is_none_is_refused(wrong: str, tmp_path: Path) -> None:
    make(tmp_path / "f", 3, 1)
    file = tmp_path / "f" / "silo-01" / "node.toml"
    file.write_text(f'traces = "{wrong}"\n{file.read_text()}')
    with pytest.raises(Exception, match=r"traces: found .*http://HOST:PORT"):
        load_node(file)
