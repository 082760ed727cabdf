"""Events without a broker: what is read of messages, what is kept while nobody listens, and the broker's settings."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nodes.federations import make

from silomix.runtime.cli import main
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_node
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import Reason
from silomix.runtime.observe.events import QUEUE, Events, Heard
from silomix.runtime.observe.log import Log
from silomix.runtime.observe.metrics import Metrics

BROKER: dict[str, Any] = {"host": "broker.example.org"}


def made(directory: Path, broker: dict[str, Any] | None = None, *, insecure: bool = False) -> Path:
    settings = {role: {} if broker is None else {"mqtt": broker} for role in Role}
    make(directory, 3, 1, settings=settings, insecure=insecure, ca=not insecure)
    return directory


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Events:
    home = made(tmp_path_factory.mktemp("events") / "f", BROKER)
    return Events(load_node(home / "aggregator"), Log("aggregator"), Metrics("aggregator", "aggregator"))


# --- reading ----------------------------------------------------------------------------------------------------------


def test_what_nodes_write_is_read(events: Events) -> None:
    event = events._presence("lost")
    assert events._read(event.topic, event.payload) == Heard("aggregator", "lost", events._boot)
    events.round("announced", 3, 1, invited=3)
    newest = events._waiting.pop()
    assert events._read(newest.topic, newest.payload) == Heard("aggregator", "announced", "")
    assert newest.retain


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 4000,
        b'{"v": 1}',
        b'{"v": 2, "node": "silo-01", "event": "lost"}',
        b'{"v": 1, "node": "silo-01", "event": 7}',
        b'{"v": 1, "node": ["silo-01"], "event": "lost"}',
        b'{"v": 1, "node": "silo-02", "event": "lost"}',
        b'{"v": 1, "node": "silo-01", "event": "lost", "boot": {}}',
        b'{"v": 1, "node": "silo-01", "event": "lost", "boot": "%s"}' % (b"b" * 65),
        b'{"v": 1, "node": "silo-01", "event": "lost", "x": "%s"}' % (b"x" * 5000),
        json.dumps({"v": 1, "node": "silo-01", "event": "lost", "boot": None}).encode(),
    ],
)
def test_garbage_is_nothing(events: Events, payload: bytes) -> None:
    assert events._read("silomix/local/presence/silo-01", payload) is None


def test_a_stranger_or_another_topic_is_nothing(events: Events) -> None:
    good = b'{"v": 1, "node": "silo-01", "event": "lost"}'
    assert events._read("silomix/local/presence/silo-01", good) == Heard("silo-01", "lost", "")
    for topic in ("silomix/local/presence/silo-02", "silomix/other/presence/silo-01", "silomix/local/refusals/silo-01"):
        assert events._read(topic, good) is None
    stranger = b'{"v": 1, "node": "nobody", "event": "lost"}'
    assert events._read("silomix/local/presence/nobody", stranger) is None


JSON = st.dictionaries(
    st.sampled_from(["v", "node", "event", "boot"]), st.none() | st.integers(0, 2) | st.text(max_size=9)
)


@given(st.binary(max_size=99) | JSON.map(json.dumps).map(str.encode))
def test_nothing_that_a_broker_sends_raises(events: Events, payload: bytes) -> None:
    events._read("silomix/local/round", payload)


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_what_waits_for_a_broker_is_bounded_and_the_newest_stays(tmp_path: Path) -> None:
    metrics = Metrics("aggregator", "aggregator")
    events = Events(load_node(made(tmp_path / "f", BROKER) / "aggregator"), Log("aggregator"), metrics)
    for number in range(QUEUE + 10):
        events.round("applied", number + 1, 1)
    assert len(events._waiting) == QUEUE
    assert json.loads(events._waiting[-1].payload)["round"] == QUEUE + 10
    assert metrics.registry.get_sample_value("silomix_events_total", {"outcome": "dropped"}) == 10
    for _ in range(10_000):
        events.refused(Reason.BAD_SIGNATURE)
    assert dict(events._refused) == {Reason.BAD_SIGNATURE: 10_000}
    assert metrics.registry.get_sample_value("silomix_broker_connected") == 0


def test_without_a_broker_nothing_is_kept(tmp_path: Path) -> None:
    events = Events(load_node(made(tmp_path / "f") / "silo-01"), Log("silo-01"), Metrics("silo", "silo-01"))
    events.round("applied", 1, 1)
    events.refused(Reason.BAD_SIGNATURE)
    assert not events._waiting
    assert not events._refused


async def test_a_task_that_is_told_to_end_while_the_broker_answers_ends(events: Events) -> None:
    """Python 3.11's wait_for returns an answer that comes with the cancellation, and forgets the cancellation."""

    class Answers:
        async def publish(self, *_: object, **__: object) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    events.round("applied", 1, 1)
    task = asyncio.create_task(events._send(cast("Any", Answers())))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait_for(asyncio.wait([task]), 5)
    assert task.cancelled()
    events._waiting.clear()


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_broker_survives_the_file_with_its_defaults(tmp_path: Path) -> None:
    home = made(tmp_path / "f", BROKER)
    for name in ("aggregator", "shuffler-1", "silo-01"):
        broker = load_node(home / name).mqtt
        assert broker is not None
        assert (broker.host, broker.port, broker.tls, broker.username) == ("broker.example.org", 8883, True, "")
        assert broker.certificate == home / name / "tls.pem"
        assert broker.key == home / name / "tls.key"
        assert "options" not in (home / name / "node.toml").read_text().partition("[mqtt]")[2]
    assert load_node(made(tmp_path / "g") / "silo-01").mqtt is None
    assert "# [mqtt]" in (tmp_path / "g" / "silo-01" / "node.toml").read_text()


@pytest.mark.parametrize(
    ("broker", "problem"),
    [
        ({}, "host: missing"),
        ({"hst": "h"}, 'did you mean "host"'),
        ({"host": "a b"}, "mqtt.host"),
        ({"host": "h", "port": 0}, "mqtt.port"),
        ({"host": "h", "port": "1883"}, "mqtt.port"),
        ({"host": "h", "tls": "no"}, "mqtt.tls"),
        ({"host": "h", "certificate": "tls.pem"}, "both of them"),
        ({"host": "h", "anchor": "gone.pem"}, "is not there"),
        ({"host": "h", "tls": False, "anchor": "tls.pem"}, "keep one of the two"),
        ({"host": "h", "password_file": "p"}, "needs a name"),
        ({"host": "h", "username": "u", "password_file": "gone"}, "cannot be read"),
        ({"host": "h", "username": "u", "password_file": "tls.pem"}, "open to others"),
        ({"host": "h", "tls": False, "username": "u", "password_file": "tls.key"}, "does not leave this host"),
    ],
)
def test_wrong_settings_are_found_when_the_node_starts(tmp_path: Path, broker: dict[str, Any], problem: str) -> None:
    home = made(tmp_path / "f")
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in broker.items())
    with (home / "silo-01" / "node.toml").open("a") as file:
        file.write(f"\n[mqtt]\n{lines}\n")
    with pytest.raises(ConfigError, match=problem):
        load_node(home / "silo-01")


def test_a_federation_without_tls_needs_a_broker_without_it_or_an_anchor(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="anchor"):
        load_node(made(tmp_path / "f", BROKER, insecure=True) / "silo-01")
    plain = load_node(made(tmp_path / "g", {**BROKER, "tls": False}, insecure=True) / "silo-01").mqtt
    assert plain is not None
    assert plain.certificate is None


def test_init_writes_the_brokers_files_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = ["--silos", "3", "--shufflers", "1", "--task", "tests.nodes.toy:task"]
    assert main(["init", str(tmp_path / "f"), *task, "--mqtt", "broker.example.org:8884"]) == 0
    home = tmp_path / "f" / "broker"
    assert {p.name for p in home.iterdir()} == {"mosquitto.conf", "acl", "tls.pem", "tls.key", "ca.pem"}
    assert (home / "tls.key").stat().st_mode & 0o077 == 0
    assert "listener 8884" in (home / "mosquitto.conf").read_text()
    assert main(["init", str(tmp_path / "g"), *task, "--mqtt", "a b"]) == 2
    assert "HOST:PORT" in capsys.readouterr().err
    assert not (tmp_path / "g").exists()
