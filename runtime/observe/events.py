"""What a node tells an MQTT broker: that it is there, how rounds go, what it refused. docs/events.md has the format.

Events carry no authority. A node believes nothing that comes from a broker: the most that a message does is to make it
look for itself. Nothing secret is published, nothing waits for the broker, and a federation without one is complete.
"""

import asyncio
import json
import os
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from silomix.runtime.config.load import Broker, NodeConfig
from silomix.runtime.core.errors import Reason
from silomix.runtime.observe.log import Log
from silomix.runtime.observe.metrics import Metrics
from silomix.v1 import services_pb2

if TYPE_CHECKING:
    import aiomqtt

VERSION = 1
"""Of the format: a reader ignores what it does not know."""
QUEUE = 256
"""Events that wait for a broker that is away; beyond that the oldest are dropped."""
MOST_BYTES = 4096
"""Largest message that is read from a broker, and larger than any that is sent."""
CALL_S = 5.0
"""Time that the broker has for each answer."""
FAREWELL_S = 1.0
"""Time in which a node that stops in order says so."""
KEEPALIVE_S = 10
"""Silence after which a broker looks for its client. One and a half of these, and the last will goes out."""
REFUSALS_EVERY_S = 1.0
"""Refusals are counted up and told together: a flood of them is one event a second for each reason."""
FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 15.0

Presence = Literal["online", "stopped", "lost"]
RoundEvent = Literal[
    "announced", "closed", "applied", "aborted", "abandoned", "finished", "paused", "resumed", "hop_lost", "hop_back"
]
Field = str | int | float | None | tuple[str, ...]


@dataclass(frozen=True)
class _Event:
    topic: str
    payload: bytes
    retain: bool


@dataclass(frozen=True)
class Heard:
    """A message of the broker's that could be what it says: a hint, and never more."""

    node: str
    """Whom it is about; always a member of the federation."""
    event: str
    boot: str
    """Which start of that node's process."""


class Events:
    """One node's line to the broker. Every method but `run` returns at once, whatever the broker does."""

    def __init__(self, config: NodeConfig, log: Log, metrics: Metrics) -> None:
        """Without a broker in the configuration everything here does nothing."""
        self._broker = config.mqtt
        self._node, self._role, self._federation = config.name, str(config.role), config.federation
        self._log, self._metrics = log, metrics
        self._boot = os.urandom(8).hex()
        self._base = f"silomix/{self._federation.name}"
        self._waiting: deque[_Event] = deque()
        self._refused: Counter[Reason] = Counter()
        self._newest: _Event | None = None
        self._news = asyncio.Event()
        self.on_presence: Callable[[Heard], None] | None = None
        """Called when a broker says something about a node; set before `run`."""
        self.on_round: Callable[[Heard], None] | None = None
        """Called when a broker says something about a round; set before `run`."""
        if self._broker is not None:
            metrics.broker(connected=False)

    # --- telling ---

    def round(self, event: RoundEvent, round_: int, attempt: int, **fields: Field) -> None:
        """Tell how a round goes. The newest is retained: whoever subscribes later hears it first."""
        if self._broker is None:
            return
        payload = self._payload(event, {"round": round_, "attempt": attempt, **fields})
        self._newest = _Event(f"{self._base}/round", payload, retain=True)
        if len(self._waiting) >= QUEUE:
            self._waiting.popleft()
            self._metrics.event("dropped")
        self._waiting.append(self._newest)
        self._news.set()

    def applied(self, done: services_pb2.RoundStatus) -> None:
        """Tell that a round made a model, with the figures that every member may ask the aggregator for."""
        self.round(
            "applied",
            done.round,
            done.attempts,
            cohort=done.cohort,
            seconds=round(done.seconds, 3),
            bits_per_parameter=round(done.bits_per_parameter, 4),
            accuracy=done.score if done.HasField("score") else None,
        )

    def refused(self, reason: Reason) -> None:
        """Tell that something was refused: the reason and no more, since the rest is somebody else's words."""
        if self._broker is not None:
            self._refused[reason] += 1

    def _payload(self, event: str, fields: Mapping[str, Field]) -> bytes:
        moment = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        value = {"v": VERSION, "event": event, "node": self._node, "time": moment, **fields}
        return json.dumps({k: v for k, v in value.items() if v is not None}).encode()

    def _presence(self, event: Presence) -> _Event:
        payload = self._payload(event, {"role": self._role, "boot": self._boot})
        return _Event(f"{self._base}/presence/{self._node}", payload, retain=True)

    # --- the line ---

    async def run(self) -> None:
        """Keep the line to the broker up until cancelled; whatever happens to it, nobody else notices."""
        if self._broker is None:
            return
        pause, failures = FIRST_PAUSE_S, 0
        log = self._log.bind(broker=f"{self._broker.host}:{self._broker.port}")
        while True:
            since = time.monotonic()
            try:
                async with self._client(self._broker) as client:
                    await self._serve(client, log)
            except Exception as error:  # whatever it is, it ends no node
                if failures % 10 == 0:
                    log.warning(f"no line to the MQTT broker, rounds go on without: {_first(error)}")
                failures += 1
            finally:
                self._metrics.broker(connected=False)
            _unless_cancelled()
            if time.monotonic() - since > MOST_PAUSE_S:  # it held for a while
                pause, failures = FIRST_PAUSE_S, 0
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_S)

    def _client(self, broker: Broker) -> "aiomqtt.Client":
        import aiomqtt
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        limits = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        limits.MaximumPacketSize = 4 * MOST_BYTES
        will = self._presence("lost")
        password = None
        if broker.password_file is not None:
            password = broker.password_file.read_text().rstrip("\n")
        return aiomqtt.Client(
            broker.host,
            broker.port,
            username=broker.username or None,
            password=password,
            # One name for one node: the line of a process that died gives way to that of its successor.
            identifier=f"silomix-{self._federation.name}-{self._node}",
            protocol=aiomqtt.ProtocolVersion.V5,
            will=aiomqtt.Will(will.topic, will.payload, qos=1, retain=True),
            clean_start=True,
            keepalive=KEEPALIVE_S,
            timeout=CALL_S,
            max_queued_incoming_messages=QUEUE,
            max_queued_outgoing_messages=QUEUE,
            properties=limits,
            tls_context=self._tls(broker),
        )

    def _tls(self, broker: Broker) -> ssl.SSLContext | None:
        if not broker.tls:
            return None
        trusted = broker.anchor.read_text() if broker.anchor is not None else self._federation.anchor.decode()
        context = ssl.create_default_context(cadata=trusted)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if broker.certificate is not None:
            context.load_cert_chain(broker.certificate, broker.key)
        return context

    async def _serve(self, client: "aiomqtt.Client", log: Log) -> None:
        import aiomqtt

        await self._publish(client, self._presence("online"))
        if self._newest is not None and not self._waiting:  # a broker that was started again has forgotten it
            await self._publish(client, self._newest)
        for wanted, topic in ((self.on_presence, "presence/+"), (self.on_round, "round")):
            if wanted is not None:
                await client.subscribe(f"{self._base}/{topic}", qos=1, timeout=CALL_S)
                _unless_cancelled()
        self._metrics.broker(connected=True)
        log.info("telling the MQTT broker")
        # No task group: in Python 3.11 one that fails leaves its parent marked as cancelled, or loses that mark.
        parts = (self._send(client), self._send_refusals(client), self._listen(client))
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except asyncio.CancelledError:  # the node stops in order: tell the rest, and that this is no accident
            await _ended(tasks)
            with suppress(aiomqtt.MqttError, TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    for event in (*self._waiting, self._presence("stopped")):
                        await client.publish(event.topic, event.payload, qos=1, retain=event.retain, timeout=FAREWELL_S)
            raise
        finally:
            await _ended(tasks)

    async def _publish(self, client: "aiomqtt.Client", event: _Event) -> None:
        await client.publish(event.topic, event.payload, qos=1, retain=event.retain, timeout=CALL_S)
        self._metrics.event("published")
        _unless_cancelled()

    async def _send(self, client: "aiomqtt.Client") -> None:
        while True:
            while self._waiting:
                event = self._waiting.popleft()
                try:
                    await self._publish(client, event)
                except BaseException:  # it may have arrived: twice is better than never
                    self._waiting.appendleft(event)
                    raise
            self._news.clear()
            await self._news.wait()

    async def _send_refusals(self, client: "aiomqtt.Client") -> None:
        while True:
            told, self._refused = self._refused, Counter()
            for reason, count in told.items():
                payload = self._payload("refused", {"reason": str(reason), "count": count})
                await self._publish(client, _Event(f"{self._base}/refusals/{self._node}", payload, retain=False))
            await asyncio.sleep(REFUSALS_EVERY_S)

    async def _listen(self, client: "aiomqtt.Client") -> None:
        async for message in client.messages:
            topic, payload = str(message.topic), message.payload
            heard = self._read(topic, payload if isinstance(payload, bytes) else b"")
            hook = self.on_round if topic == f"{self._base}/round" else self.on_presence
            if heard is None or hook is None:
                self._metrics.event("ignored")
            else:
                hook(heard)

    def _read(self, topic: str, payload: bytes) -> Heard | None:
        """Read what a broker passed on: anybody may have written it."""
        try:
            value = json.loads(payload) if len(payload) <= MOST_BYTES else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or value.get("v") != VERSION:
            return None
        node, event, boot = value.get("node"), value.get("event"), value.get("boot", "")
        if not isinstance(node, str) or not isinstance(event, str) or not isinstance(boot, str):
            return None
        expected = f"{self._base}/round" if topic == f"{self._base}/round" else f"{self._base}/presence/{node}"
        if node not in self._federation.members or topic != expected or len(boot) > 64:
            return None
        return Heard(node, event, boot)


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _unless_cancelled() -> None:
    """End a task that was told to end while the broker answered: Python 3.11's `wait_for` loses such a word."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
