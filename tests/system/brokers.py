"""A real Mosquitto on loopback, and somebody who writes down all that it passes on."""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiomqtt
from tests.tools import program

PLAIN = "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
START_S = 10.0


class Mosquitto:
    """One broker that can be killed and started again, with a configuration in a directory of its own."""

    def __init__(self, directory: Path, port: int) -> None:
        """The configuration is there already, or a plain one is written."""
        self.directory, self.port = directory, port
        self._process: asyncio.subprocess.Process | None = None
        directory.mkdir(exist_ok=True)
        config = directory / "mosquitto.conf"
        if not config.exists():
            config.write_text(PLAIN.format(port=port))
        if os.geteuid() == 0:  # it would become somebody who cannot read a test's files
            config.write_text(f"{config.read_text()}user root\n")

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        with open(self.directory / "log", "ab") as log:  # noqa: ASYNC230 - opened to be given away
            self._process = await asyncio.create_subprocess_exec(
                program("mosquitto"), "-c", "mosquitto.conf", cwd=self.directory, stdout=log, stderr=log
            )
        async with asyncio.timeout(START_S):
            while True:
                assert self._process.returncode is None, (self.directory / "log").read_text()
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def mosquitto(directory: Path, port: int) -> AsyncIterator[Mosquitto]:
    """Run a broker."""
    broker = Mosquitto(directory, port)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.kill()


class Recorder:
    """Subscribes to everything, and comes back when the broker does."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port, self._tls = port, tls
        self.seen: list[tuple[str, bytes]] = []
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Write down what comes, until cancelled."""
        task = asyncio.current_task()
        while task is not None and not task.cancelling():  # aiomqtt may lose a cancellation
            with suppress(aiomqtt.MqttError, OSError):
                async with aiomqtt.Client(
                    "127.0.0.1", self._port, protocol=aiomqtt.ProtocolVersion.V5, tls_context=self._tls
                ) as client:
                    await client.subscribe("#", qos=1)
                    async for message in client.messages:
                        assert isinstance(message.payload, bytes)
                        async with self._changed:
                            self.seen.append((str(message.topic), message.payload))
                            self._changed.notify_all()
            await asyncio.sleep(0.05)

    def events(self, topic: str = "") -> list[dict[str, Any]]:
        """What came on topics that end so, oldest first."""
        return [json.loads(payload) for name, payload in self.seen if name.endswith(topic)]

    async def until(self, holds: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
        """Wait until something has been seen."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            raise AssertionError(f"waited {seconds} s for nothing: {what}; seen {self.seen[-5:]}") from None


@asynccontextmanager
async def recording(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Recorder]:
    """Write down what a broker passes on."""
    recorder = Recorder(port, tls)
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=START_S)
