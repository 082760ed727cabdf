"""What Prometheus reads: names and units by its conventions, closed labels, and nothing about training by default."""

import math
import os
import re
import socket
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from silomix.runtime.core.errors import Reason
from silomix.runtime.observe import endpoint
from silomix.runtime.observe.metrics import BUCKETS_S, HopState, Metrics, Outcome, Phase
from silomix.runtime.observe.pulse import SILENCE_S, Pulse

ROLES = ("aggregator", "shuffler", "silo")


def families(metrics: Metrics) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(metrics.text())}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"silomix_{name}", labels)


def everything(role: str) -> Metrics:
    """A node that has told all it can tell."""
    metrics = Metrics(role, f"{role}-1", training=role == "silo")
    metrics.bytes("received", "silo", 10)
    metrics.body("sent", "counts", 100, 40)
    metrics.plan(18)
    metrics.attempt(3, 2)
    metrics.ended("applied")
    with metrics.phase("collect"):
        pass
    metrics.round_took(1.5)
    metrics.cohort(7)
    metrics.minimum_cohort(3)
    metrics.policy(10, 20, 840)
    metrics.rejected(Reason.WRONG_ROUND)
    metrics.queue("relay", 4)
    metrics.hop("hop-1", "open")
    metrics.event("published")
    metrics.broker(connected=True)
    metrics.certificate_expires(2e9)
    metrics.capture_dropped(3)
    metrics.disk(Path("/"))
    metrics.trained(0.25, 600)
    metrics.clipped(9)
    if role == "aggregator":
        metrics.silos_present(10)
        metrics.paused(on=False)
        metrics.accuracy(0.97)
    return metrics


# --- what promtool checks ---------------------------------------------------------------------------------------------

NOT_BASE = {"bits", "kilobytes", "megabytes", "percent"}
NOT_BASE |= {"minutes", "hours", "days", "weeks", "milliseconds", "microseconds"}
ABBREVIATED = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"}
TYPES_IN_NAMES = {"counter", "gauge", "histogram", "summary"}


@pytest.mark.parametrize("role", ROLES)
def test_the_exposition_keeps_to_the_conventions_of_prometheus(role: str) -> None:
    text = everything(role).text()
    declared = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    assert len(declared) == len(dict(declared)) > 15
    for name, kind in declared:
        assert len(helps[name].split()) >= 3, f"{name} needs a help text"
        assert re.fullmatch(r"(silomix|process)_[a-z0-9_]+", name)
        words = set(name.split("_"))
        assert not words & (NOT_BASE | ABBREVIATED | TYPES_IN_NAMES), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert not name.endswith(("_bucket", "_count", "_sum", "_created"))
    for family in families(everything(role)).values():
        for sample in family.samples:
            assert ("le" in sample.labels) == sample.name.endswith("_bucket")
            assert all(re.fullmatch(r"[a-z_]+", label) for label in sample.labels)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_bytes_and_what_a_parameter_costs() -> None:
    metrics = Metrics("shuffler", "hop-1")
    metrics.bytes("received", "silo", 100)
    metrics.bytes("received", "silo", 28)
    assert value(metrics, "bytes_total", direction="received", peer_role="silo") == 128
    assert value(metrics, "bytes_total", direction="sent", peer_role="aggregator") == 0
    metrics.body("received", "counts", 2300, 1000)
    metrics.plan(18)
    assert value(metrics, "bytes_per_parameter", direction="received", encoding="counts") == 2.3
    assert value(metrics, "plan_bytes_per_parameter") == 18 / 8
    assert value(metrics, "model_parameters") == 1000


def test_rounds_attempts_and_cohorts() -> None:
    metrics = everything("aggregator")
    assert value(metrics, "round") == 3
    assert value(metrics, "attempt") == 2
    assert value(metrics, "cohort_size") == 7
    assert value(metrics, "minimum_cohort") == 3
    assert value(metrics, "invited_silos") == 10
    assert value(metrics, "policy_rounds") == 20
    assert value(metrics, "attempt_limit_seconds") == 840
    assert value(metrics, "silos_present") == 10
    assert value(metrics, "model_accuracy") == 0.97
    assert {o: value(metrics, "attempts_total", outcome=o) for o in get_args(Outcome)} == {
        "applied": 1,
        "aborted": 0,
        "abandoned": 0,
    }


def test_a_round_begins_with_its_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics("aggregator", "aggregator")
    began = []
    for now, number, attempt in ((100.0, 1, 1), (200.0, 1, 2), (300.0, 2, 1)):
        monkeypatch.setattr("silomix.runtime.observe.metrics.time.time", lambda now=now: now)
        metrics.attempt(number, attempt)
        began.append(value(metrics, "round_start_timestamp_seconds"))
    assert began == [100, 100, 300]


def test_every_reason_is_there_before_anything_was_refused() -> None:
    metrics = Metrics("shuffler", "hop-1")
    assert {value(metrics, "rejections_total", reason=r.value) for r in Reason} == {0}
    metrics.rejected(Reason.TAMPERED)
    told = {s.labels["reason"]: s.value for s in families(metrics)["silomix_rejections"].samples}
    assert told == {r.value: float(r is Reason.TAMPERED) for r in Reason}


def test_a_phase_is_timed_and_a_failed_one_is_not() -> None:
    metrics = Metrics("silo", "silo-1")
    with metrics.phase("train"):
        pass
    with pytest.raises(ArithmeticError), metrics.phase("train"):
        raise ArithmeticError
    assert value(metrics, "round_phase_seconds_count", phase="train") == 1
    for phase in get_args(Phase):
        metrics.phase_took(phase, 0.02)
    assert value(metrics, "round_phase_seconds_bucket", phase="train", le="0.025") == 2
    metrics.round_took(4000)
    assert value(metrics, "round_seconds_bucket", le="3600.0") == 0
    assert value(metrics, "round_seconds_sum") == 4000
    assert (BUCKETS_S[0], BUCKETS_S[-1]) == (0.01, 3600)
    assert list(BUCKETS_S) == sorted(set(BUCKETS_S))


def test_a_hop_is_in_one_state_at_a_time() -> None:
    metrics = Metrics("aggregator", "aggregator")
    for state in get_args(HopState):
        metrics.hop("hop-1", state)
        assert {s: value(metrics, "hop_state", hop="hop-1", state=s) for s in get_args(HopState)} == {
            s: float(s == state) for s in get_args(HopState)
        }


def test_what_is_not_known_is_not_zero() -> None:
    metrics = Metrics("aggregator", "aggregator")
    times = ("certificate_expiry_timestamp_seconds", "round_start_timestamp_seconds")
    for name in ("model_accuracy", "broker_connected", *times):
        found = value(metrics, name)
        assert found is not None
        assert math.isnan(found)


def test_the_node_is_named_once_and_not_in_every_series() -> None:
    metrics = everything("silo")
    (info,) = families(metrics)["silomix_node_info"].samples
    assert info.labels.keys() == {"role", "node", "version"}
    assert (info.labels["role"], info.labels["node"], info.value) == ("silo", "silo-1", 1)
    assert metrics.text().count('"silo-1"') == 1


def test_two_nodes_in_one_process_do_not_mix() -> None:
    one, other = Metrics("shuffler", "hop-1"), Metrics("shuffler", "hop-2")
    one.cohort(5)
    assert value(other, "cohort_size") == 0


# --- what is not told -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_training_figures_do_not_exist_unless_asked_for(role: str) -> None:
    quiet = Metrics(role, "node")
    quiet.trained(0.5, 100)
    quiet.clipped(3)
    assert not quiet.training
    assert not re.search("training|examples|clipped|loss", quiet.text())


def test_training_figures_on_request() -> None:
    metrics = Metrics("silo", "silo-1", training=True)
    assert metrics.training
    metrics.trained(0.5, 100)
    metrics.clipped(3)
    metrics.clipped(4)
    assert value(metrics, "training_loss") == 0.5
    assert value(metrics, "training_examples") == 100
    assert value(metrics, "clipped_values_total") == 7


@pytest.mark.parametrize("role", ["shuffler", "silo"])
def test_only_an_aggregator_counts_silos_and_knows_the_accuracy(role: str) -> None:
    metrics = Metrics(role, "node")
    assert not re.search("silos_present|accuracy", metrics.text())
    with pytest.raises(ValueError, match="only an aggregator"):
        metrics.silos_present(3)
    with pytest.raises(ValueError, match="only an aggregator"):
        metrics.accuracy(0.5)


def test_nobody_can_invent_a_label() -> None:
    metrics = Metrics("shuffler", "hop-1")
    before = metrics.text().count("silomix_")
    with pytest.raises(ValueError, match="sideways"):
        metrics.bytes("sideways", "silo", 1)
    with pytest.raises(ValueError, match="stranger"):
        metrics.bytes("sent", "stranger", 1)
    with pytest.raises(ValueError, match="sideways"):
        metrics.body("sideways", "counts", 1, 1)
    with pytest.raises(ValueError, match="lunch"):
        metrics.phase_took("lunch", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="asleep"):
        metrics.hop("hop-1", "asleep")  # type: ignore[arg-type]
    assert metrics.text().count("silomix_") == before
    with pytest.raises(ValueError, match="baker"):
        Metrics("baker", "node")


# --- the endpoint -----------------------------------------------------------------------------------------------------


def fetch(port: int | None) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def test_the_endpoint_serves_and_closes() -> None:
    metrics = Metrics("shuffler", "hop-1")
    metrics.cohort(8)
    close = metrics.serve(0)
    try:
        assert "silomix_cohort_size 8.0" in fetch(close.port)
        with pytest.raises(OSError, match=f"127.0.0.1:{close.port}.*choose another port"):
            metrics.serve(close.port)
    finally:
        close()
    close()
    with pytest.raises(urllib.error.URLError):
        fetch(close.port)


def test_the_room_that_is_left_is_measured_when_somebody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics("silo", "silo-01")
    assert math.isnan(value(metrics, "disk_free_bytes") or 0)
    metrics.disk(tmp_path)
    found = os.statvfs(tmp_path)
    assert value(metrics, "disk_size_bytes") == found.f_blocks * found.f_frsize
    full = os.statvfs_result((*found[:4], 0, *found[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert value(metrics, "disk_free_bytes") == 0
    monkeypatch.undo()
    metrics.disk(tmp_path / "nowhere")
    assert math.isnan(value(metrics, "disk_free_bytes") or 0)


def test_a_probe_is_answered_beside_the_metrics() -> None:
    now = 100.0
    pulse = Pulse(lambda: now)
    close = Metrics("shuffler", "hop-1").serve(0, probes=pulse.answer)

    def asked(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{close.port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    try:
        assert (asked("/livez"), asked("/readyz")) == (503, 503)  # nothing has begun
        pulse.beat()
        assert (asked("/livez"), asked("/readyz")) == (200, 503)
        pulse.serving = True
        assert (asked("/livez"), asked("/readyz")) == (200, 200)
        now += SILENCE_S  # an event loop that hangs: the thread that answers must not answer for it
        assert (asked("/livez"), asked("/readyz")) == (503, 503)
        assert "silomix_round" in fetch(close.port)
    finally:
        close()


def test_a_connection_that_asks_nothing_is_ended_and_not_spoken_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endpoint._Handler, "timeout", 0.01)
    close = Metrics("shuffler", "hop-1").serve(0)
    try:
        for said in (b"", b"GET /me"):
            with socket.create_connection(("127.0.0.1", close.port or 0), timeout=5) as idle:
                idle.sendall(said)
                assert idle.recv(1) == b""
    finally:
        close()
    assert capfd.readouterr() == ("", "")


def test_there_are_so_many_connections_and_another_one_ends_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint._Handler, "timeout", 60.0)  # none ends for saying nothing, however busy the machine is
    close = Metrics("shuffler", "hop-1").serve(0)
    with ExitStack() as stack:
        stack.callback(close)
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", close.port or 0), timeout=30))
            for _ in range(endpoint.CONNECTIONS + 2)
        ]
        assert "silomix_round" in fetch(close.port)
        assert [one.recv(1) for one in idle[:3]] == [b"", b"", b""]
        idle[3].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert idle[3].recv(4) == b"HTTP"


def test_the_endpoint_serves_the_newer_kind_of_address_too() -> None:
    try:
        close = Metrics("shuffler", "hop-1").serve(0, "::1")
    except OSError:
        pytest.skip("this host has no IPv6")
    try:
        with urllib.request.urlopen(f"http://[::1]:{close.port}/metrics", timeout=5) as answer:
            assert answer.status == 200
    finally:
        close()


def test_no_port_no_endpoint() -> None:
    close = Metrics("shuffler", "hop-1").serve(None)
    assert close.port is None
    close()
