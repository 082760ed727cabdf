"""Events through a real Mosquitto: what is told, that nobody believes it, and that rounds never wait for it."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiomqtt
import grpc
import pytest
from tests.dashboard.monitored import ENV, free_ports
from tests.nodes.federations import TASK, assert_model, make, peer, run, until
from tests.system.brokers import Recorder, mosquitto, recording

from silomix.runtime.cli import main
from silomix.runtime.config.kinds import Role
from silomix.runtime.local import InProcess, LocalFederation
from silomix.runtime.net.health import has_attempt
from silomix.runtime.net.transport import backoff
from silomix.runtime.nodes import aggregator, lookout, silo
from silomix.runtime.observe import events as events_module
from silomix.v1 import services_pb2

WAIT_S = 60.0
DOCS = Path(__file__).parents[2] / "docs" / "events.md"
EVENT_KEYS = {
    "presence": {"v", "event", "node", "time", "role", "boot"},
    "round": {"v", "event", "node", "time", "round", "attempt", "invited", "cohort", "seconds", "bits_per_parameter"}
    | {"accuracy", "hops"},
    "refusals": {"v", "event", "node", "time", "reason", "count"},
}
"""Everything that may be published, and nothing else ever is."""


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what tests do not look at."""
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)
    monkeypatch.setattr(events_module, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(events_module, "MOST_PAUSE_S", 0.4)


def told(port: int) -> dict[Role, dict[str, Any]]:
    """Settings of nodes that tell a plain broker on loopback."""
    return {role: {"mqtt": {"host": "127.0.0.1", "port": port, "tls": False}} for role in Role}


def _online(recorder: Recorder) -> set[str]:
    return {e["node"] for e in recorder.events() if e["event"] == "online"}


def rounds_seen(recorder: Recorder, event: str) -> list[int]:
    return [e["round"] for e in recorder.events("/round") if e["event"] == event]


def assert_nothing_secret(recorder: Recorder, directory: Path) -> None:
    """Only documented keys, short, and no bytes of any key or of any silo's integers."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(re.findall(r"```json\n(.*?)```", DOCS.read_text(), re.DOTALL)[0])
    secrets = [path.read_bytes() for path in directory.rglob("*.key")] + [
        path.read_bytes() for path in directory.rglob("*.planes")
    ]
    for topic, payload in recorder.seen:
        kind = topic.split("/")[2]
        value = json.loads(payload)
        jsonschema.validate(value, schema)
        assert set(value) <= EVENT_KEYS[kind], topic
        assert len(payload) < 400
        for item in value.values():
            assert isinstance(item, str | int | float | list)
            assert not isinstance(item, str) or re.fullmatch(r"[\w.:-]{1,40}", item), (topic, item)
        for secret in secrets:
            assert not any(secret[i : i + 16] in payload for i in range(0, max(1, len(secret) - 16), 16))


def test_the_documentation_lists_every_key_and_event() -> None:
    text = DOCS.read_text()
    schema = json.loads(re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0])
    assert set(schema["properties"]) == set.union(*EVENT_KEYS.values())
    for keys in EVENT_KEYS.values():
        for key in keys:
            assert f"`{key}`" in text
    for event in ("online", "stopped", "lost", "announced", "closed", "applied", "aborted", "abandoned", "finished"):
        assert f"`{event}`" in text


# --- processes, TLS, the files that `silomix init` writes ------------------------------------------------------------


def _tls(directory: Path, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=directory / "ca.pem")
    context.load_cert_chain(directory / name / "tls.pem", directory / name / "tls.key")
    return context


def _edit(file: Path, **changes: Any) -> None:
    text = file.read_text()
    for key, value in changes.items():
        text, count = re.subn(rf"^(# )?{key} = .*$", f"{key} = {value}", text, count=1, flags=re.MULTILINE)
        assert count == 1, key
    file.write_text(text)


@pytest.mark.full
async def test_a_hop_that_is_killed_ends_the_attempt_at_once_and_not_at_its_deadline(tmp_path: Path) -> None:
    """The last will is a hint; a probe confirms it. The deadline is ten minutes, and the test has one."""
    home, port = tmp_path / "f", free_ports(1)
    task = ["--task", TASK, "--option", "parameters=500", "--option", "slow_s=0.5", "--rounds", "1000"]
    size = ["--silos", "3", "--shufflers", "2", "--deadline-s", "600"]
    assert main(["init", str(home), *size, *task, "--mqtt", f"127.0.0.1:{port}"]) == 0
    for i in (1, 2, 3):
        assert "[mqtt]" in (home / f"silo-0{i}" / "node.toml").read_text()

    def _all_stopped(recorder: Recorder, running: LocalFederation) -> bool:
        last = {e["node"]: e["event"] for e in recorder.events() if "boot" in e}
        return set(last.values()) == {"stopped"} and len(last) == len(running.federation.members)

    async with mosquitto(home / "broker", port), recording(port, _tls(home, "silo-01")) as recorder:
        async with LocalFederation(home, env=ENV) as running:
            await recorder.until(lambda: len(rounds_seen(recorder, "applied")) >= 2, "two rounds")
            assert _online(recorder) == set(running.federation.members)
            await recorder.until(lambda: recorder.events("/round")[-1]["event"] == "announced", "a round is open")
            running.kill("shuffler-2")
            await recorder.until(lambda: rounds_seen(recorder, "aborted"), "the attempt is given up")
            lost = [e["node"] for e in recorder.events() if e["event"] == "lost"]
            assert lost == ["shuffler-2"]
            (aborted,) = [e for e in recorder.events("/round") if e["event"] == "aborted"]
            assert aborted["hops"] == ["shuffler-2"]
            await running.start("shuffler-2")
            await recorder.until(lambda: aborted["round"] in rounds_seen(recorder, "applied"), "the next attempt")
            running.check()
        await recorder.until(lambda: _all_stopped(recorder, running), "everybody says good-bye")
    assert_nothing_secret(recorder, home)


async def test_a_broker_with_these_files_lets_a_node_write_about_itself_alone(tmp_path: Path) -> None:
    home, port = tmp_path / "f", free_ports(1)
    task = ["--task", TASK, "--option", "parameters=50"]
    assert main(["init", str(home), "--silos", "3", "--shufflers", "1", *task, "--mqtt", f"127.0.0.1:{port}"]) == 0

    async with mosquitto(home / "broker", port), recording(port, _tls(home, "silo-01")) as recorder:
        async with aiomqtt.Client(
            "127.0.0.1", port, tls_context=_tls(home, "silo-02"), protocol=aiomqtt.ProtocolVersion.V5
        ) as client:
            for topic in ("presence/silo-01", "round", "presence/silo-02"):
                with suppress(aiomqtt.MqttError):
                    await client.publish(f"silomix/local/{topic}", topic, qos=1, retain=True)
        await recorder.until(lambda: recorder.seen, "its own presence")
    assert recorder.seen == [("silomix/local/presence/silo-02", b"presence/silo-02")]
    with pytest.raises(aiomqtt.MqttError):
        async with aiomqtt.Client("127.0.0.1", port, tls_context=ssl.create_default_context(cafile=home / "ca.pem")):
            pass


# --- one process, a plain broker -------------------------------------------------------------------------------------


async def test_rounds_go_on_while_the_broker_is_killed_and_started_again(tmp_path: Path) -> None:
    port = free_ports(1)
    federation = make(tmp_path / "f", 3, 2, rounds=100_000, settings=told(port))

    async with mosquitto(tmp_path / "broker", port) as broker, recording(port) as recorder:
        async with InProcess(tmp_path / "f") as running:
            history = running.aggregator.history
            await recorder.until(lambda: rounds_seen(recorder, "announced"), "a round is open")
            await broker.kill()
            before = len(history)
            await until(lambda: len(history) >= before + 5, "five rounds without a broker")
            await broker.start()
            await recorder.until(lambda: any(n > before + 5 for n in rounds_seen(recorder, "applied")), "news")
        await recorder.until(lambda: recorder.events("/presence/aggregator")[-1]["event"] == "stopped", "the end")
    assert {status.attempts for status in history} == {1}
    assert rounds_seen(recorder, "applied") == sorted(rounds_seen(recorder, "applied"))
    assert_model(running.aggregator.tensors, [range(3)] * len(history), federation.policy)
    assert_nothing_secret(recorder, tmp_path / "f")


@asynccontextmanager
async def flooding(port: int, payloads: list[tuple[str, bytes]]) -> AsyncIterator[list[int]]:
    """Publish these again and again: thousands a second, which leaves this process time for all the nodes in it."""
    count, enough = [0], asyncio.Event()

    async def flood() -> None:
        async with aiomqtt.Client("127.0.0.1", port, protocol=aiomqtt.ProtocolVersion.V5) as client:
            while not enough.is_set():
                for topic, payload in payloads:
                    await client.publish(topic, payload)
                    count[0] += 1
                await asyncio.sleep(0.01)

    task = asyncio.create_task(flood())
    try:
        yield count
    finally:
        enough.set()
        await task


@pytest.mark.full
async def test_forged_events_and_garbage_change_nothing_but_a_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody is said to be dead, rounds are said to be over, and the federation goes on."""
    port = free_ports(1)
    federation = make(
        tmp_path / "f", 3, 2, rounds=8, settings=told(port), silo_options=lambda i: {"silo": i, "slow_s": 0.05}
    )
    probes: list[str] = []
    ask = has_attempt

    async def counted(*arguments: Any) -> str:
        probes.append("")
        return await ask(*arguments)

    monkeypatch.setattr(aggregator, "has_attempt", counted)
    monkeypatch.setattr(lookout, "PROBE_EVERY_S", 0.3)
    lie = {"v": 1, "time": "2026-01-01T00:00:00.000Z"}
    lies = [
        (f"silomix/local/presence/{name}", json.dumps({**lie, "event": "lost", "node": name, "boot": "b"}).encode())
        for name in federation.members
    ]
    lies += [
        ("silomix/local/round", json.dumps({**lie, "event": e, "node": "aggregator", "round": 99}).encode())
        for e in ("finished", "abandoned", "announced")
    ]
    lies += [
        ("silomix/local/presence/shuffler-1", garbage)
        for garbage in (b"", b"\xff\x00", b"[" * 5000, b"{}", b"1" * 9000)
    ]
    lies += [("silomix/local/presence/nobody", lies[0][1]), ("silomix/local/round", b"null")]

    async with (
        mosquitto(tmp_path / "broker", port),
        flooding(port, lies) as count,
        InProcess(tmp_path / "f") as running,
    ):
        await until(lambda: count[0] > 500, "a flood")
        history = await running.finished()
    assert [status.attempts for status in history] == [1] * 8
    assert 0 < len(probes) < count[0] / 20, (probes, count)
    assert_model(running.aggregator.tensors, [range(3)] * 8, federation.policy)
    ignored = running.aggregator.metrics.registry.get_sample_value("silomix_events_total", {"outcome": "ignored"})
    assert ignored


async def test_a_silo_that_waits_before_it_dials_again_is_woken_by_the_announcement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_ports(1)
    make(tmp_path / "f", 3, 1, rounds=2, settings=told(port))

    async def only_when_woken(wake: asyncio.Event | None = None, **_: object) -> AsyncIterator[int]:
        """A pause that would never end, where one can be woken."""
        async for number in backoff():
            if wake is not None and number:
                await wake.wait()
                wake.clear()
            yield number

    monkeypatch.setattr(silo, "backoff", only_when_woken)

    async with mosquitto(tmp_path / "broker", port), recording(port) as recorder:
        async with InProcess(tmp_path / "f", without=("aggregator",)) as running:
            await recorder.until(lambda: len(_online(recorder)) == 4, "all but the aggregator wait")
            running.start("aggregator")
            history = await running.finished()
        assert [status.cohort for status in history] == [3, 3]


def test_without_a_broker_that_answers_everything_works(tmp_path: Path) -> None:
    """A port where nobody is, and one where somebody takes the call and says nothing."""

    async def go(port: int, name: str) -> None:
        federation = make(tmp_path / name, 3, 1, rounds=3, settings=told(port))
        async with InProcess(tmp_path / name) as running:
            await running.finished()
        assert_model(running.aggregator.tensors, [range(3)] * 3, federation.policy)
        get = running.aggregator.metrics.registry.get_sample_value
        assert get("silomix_broker_connected") == 0
        assert get("silomix_events_total", {"outcome": "published"}) == 0

    async def silent() -> None:
        calls: list[asyncio.StreamWriter] = []
        async with await asyncio.start_server(lambda _, writer: calls.append(writer), "127.0.0.1", 0) as server:
            await go(server.sockets[0].getsockname()[1], "silent")
        assert calls
        for writer in calls:
            writer.close()

    run(go(free_ports(1), "nobody"), WAIT_S)
    run(silent(), WAIT_S)


def _counts(recorder: Recorder) -> list[int]:
    return [e["count"] for e in recorder.events("/refusals/aggregator") if e["reason"] == "wrong_model"]


async def test_refusals_are_told_by_reason_and_counted_up(tmp_path: Path) -> None:

    port = free_ports(1)
    make(tmp_path / "f", 3, 1, rounds=1000, settings=told(port))

    async with (
        mosquitto(tmp_path / "broker", port),
        recording(port) as recorder,
        InProcess(tmp_path / "f") as running,
    ):
        await recorder.until(lambda: rounds_seen(recorder, "applied"), "a round")
        async with peer(tmp_path / "f", "silo-01", "aggregator") as caller:
            request = services_pb2.GetModelRequest(model_digest=bytes(32))
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError):
                    async for _part in caller.aggregator.GetModel(request, metadata=caller.metadata, timeout=5):
                        pass
        await recorder.until(lambda: sum(_counts(recorder)) == 20, "all refusals")
        assert len(_counts(recorder)) < 20
        running.aggregator.stopping.set()


async def test_the_newest_round_is_retained_for_whoever_comes_later(tmp_path: Path) -> None:
    port = free_ports(1)
    make(tmp_path / "f", 3, 1, rounds=2, settings=told(port))

    async with mosquitto(tmp_path / "broker", port):
        async with InProcess(tmp_path / "f") as running:
            await running.finished()
        async with recording(port) as recorder:
            await recorder.until(lambda: len(recorder.seen) >= 6, "what is retained")
        assert [e["event"] for e in recorder.events("/round")] == ["finished"]
        assert {e["event"] for e in recorder.events() if "boot" in e} == {"stopped"}
