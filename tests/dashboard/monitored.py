"""A real federation that a real Prometheus scrapes, both on loopback."""

import asyncio
import contextlib
import os
import random
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.tools import program

from silomix.runtime.local import LocalFederation

REPOSITORY = Path(__file__).parents[2]
SCRAPE_S = 1
ENV = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / ".src")])}
CONFIG = """\
global: {{scrape_interval: {scrape_s}s, evaluation_interval: {scrape_s}s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: "{job}"
    static_configs: [{{targets: [{targets}]}}]
"""


def free_ports(count: int) -> int:
    """The first of so many consecutive ports that are free now."""
    for _ in range(100):
        base = random.randrange(20_000, 32_000 - count)
        with contextlib.ExitStack() as held:
            try:
                for port in range(base, base + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise AssertionError("no free ports")


@asynccontextmanager
async def scraping(directory: Path, ports: Sequence[int], job: str) -> AsyncIterator[str]:
    """Run a Prometheus that scrapes these ports by our own rules, and yield its address."""
    directory.mkdir()  # noqa: ASYNC240 - a test's own small files
    targets = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    rules = REPOSITORY / "deploy" / "prometheus" / "rules.yml"
    config = directory / "prometheus.yml"
    config.write_text(CONFIG.format(scrape_s=SCRAPE_S, rules=rules, job=job, targets=targets))
    address = f"127.0.0.1:{free_ports(1)}"
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={directory}", f"--web.listen-address={address}"]
    with open(directory / "log", "wb") as log:  # noqa: ASYNC230 - opened to be given away
        process = await asyncio.create_subprocess_exec(program("prometheus"), *arguments, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def monitored(directory: Path, ports: Sequence[int], job: str) -> AsyncIterator[tuple[LocalFederation, str]]:
    """Run a federation's processes and a Prometheus beside them; yield both."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(scraping(directory / "prometheus", ports, job))
        running = await stack.enter_async_context(LocalFederation(directory / "f", env=ENV))
        yield running, url


def fetch(port: int) -> str:
    """What a node's metrics port serves."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def check_metrics(text: str) -> str:
    """What promtool objects to in a page of metrics."""
    done = subprocess.run([program("promtool"), "check", "metrics"], input=text, text=True, capture_output=True)
    return done.stdout + done.stderr
