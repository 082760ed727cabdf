"""Handshakes that fail are counted and logged as the node's own, and all else on stderr goes through as it came."""

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.nodes.federations import make

from silomix.runtime.cli.federation.nodes import _run
from silomix.runtime.config.load import load_node
from silomix.runtime.local import make_node
from silomix.runtime.observe.stderr import EVERY_S, Stderr

REPOSITORY = Path(__file__).parents[2]
HEAD = "E1117 20:18:06.490711    5201"
STRANGERS = """
import asyncio, json, os, ssl, sys
from tests.net.test_names import CA, Authority, serving
from silomix.runtime.observe.stderr import Stderr

async def knock(address, tls):
    host, port = address.split(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if tls is not None:
        for name, content in (("c.pem", tls.certificate), ("k.pem", tls.key)):
            open(os.path.join(sys.argv[1], name), "wb").write(content)
        context.load_cert_chain(*(os.path.join(sys.argv[1], name) for name in ("c.pem", "k.pem")))
    try:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        await reader.read()
        writer.close()
    except OSError:
        pass

async def main(told):
    async with serving(CA.certify("hop-1")) as address:
        for tls in (None, Authority().certify("silo-1")):
            before = len(told)
            while len(told) == before:  # a connection that ends too early is no failed handshake
                await knock(address, tls)
                await asyncio.sleep(0.5)
            first.append(told[before])

told, first = [], []
with Stderr() as stderr:
    stderr.told = told.append
    asyncio.run(asyncio.wait_for(main(told), 60))
    os.write(2, b"something else\\n")
print(json.dumps(first))
"""


@pytest.mark.full
def test_a_handshake_that_fails_is_told_with_its_reason_and_nothing_else_is_held_back(tmp_path: Path) -> None:
    """Nobody else says so: the C core writes it to stderr, in a format of its own."""
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / ".src")])
    done = subprocess.run(
        [sys.executable, "-c", STRANGERS, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    first, second = json.loads(done.stdout)
    assert first == "peer did not return a certificate"
    assert second in ("certificate verify failed", "bad signature")  # by the name of the other CA it might be ours
    assert done.stderr == "something else\n"


def test_lines_are_told_apart(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    with Stderr() as stderr:
        stderr.told = told.append
        for reason in (
            "SSL_ERROR_SSL: error:1000: SSL routines:OPENSSL_internal:NO_SHARED_CIPHER",
            "SSL_ERROR_SYSCALL",
        ):
            line = (
                f"E1117 20:18:06.490711    5201 ssl_transport_security.cc:1879] Handshake failed with error {reason}\n"
            )
            os.write(2, line.encode())
        os.write(2, b"E1117 20:18:06.490711    5201 call.cc:358] Handshake failed with error of another kind\n")
        os.write(2, b"no end")
    assert told == ["no shared cipher", "SSL_ERROR_SYSCALL"]
    assert capfd.readouterr().err.endswith("of another kind\nno end")


def test_of_what_the_core_says_again_and_again_a_line_passes_now_and_then(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call with metadata that does not parse has it write a line, before anything of ours is asked."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    metadata = f"{HEAD} hpack_parser.cc:1048] Error parsing 'te' metadata: invalid value\n"
    with Stderr() as stderr:
        for _ in range(1000):
            stderr._take(metadata.encode())
        stderr._take(f"{HEAD} hpack_parser.cc:7] something else\n".encode())
        now[0] += EVERY_S
        stderr._take(metadata.encode())
        for _ in range(2):
            stderr._take(b"not of the core\n")
    assert capfd.readouterr().err.splitlines() == [
        metadata.strip(),
        f"{HEAD} hpack_parser.cc:7] something else",
        f"{metadata.strip()} (and 999 lines from there that were left out)",
        "not of the core",
        "not of the core",
    ]


async def test_a_node_counts_every_one_and_logs_a_flood_of_them_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, 3, 1)
    node = make_node(load_node(tmp_path / "shuffler-1"))
    now = [100.0]
    node.steady = lambda: now[0]
    for _ in range(1000):
        node.handshake_failed("no shared cipher")
    now[0] += 60
    node.handshake_failed("no shared cipher")
    await node.close()
    assert node.metrics.registry.get_sample_value("silomix_failed_handshakes_total") == 1001
    lines = [record for record in caplog.records if "TLS handshake failed" in record.getMessage()]
    assert [record.getMessage() for record in lines] == ["TLS handshake failed: no shared cipher"] * 2
    assert [vars(record)["silomix_fields"].get("unsaid") for record in lines] == [None, 999]


async def test_handshakes_that_fail_are_told_to_the_node_that_serves_in_whatever_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a process that goes on in another epoch, the first node would count what nobody looks at any more."""
    heard: list[int] = []
    reading = Stderr()

    class Serving:
        """The node of one epoch, and of as many after it."""

        def __init__(self, epoch: int = 1) -> None:
            self.epoch = epoch
            self.stopping, self.switching = asyncio.Event(), asyncio.Event()

        def handshake_failed(self, _: str) -> None:
            heard.append(self.epoch)

        async def run(self) -> None:
            assert reading.told is not None
            reading.told("no shared cipher")
            (self.switching if self.epoch < 3 else self.stopping).set()

        def again(self) -> "Serving":
            return Serving(self.epoch + 1)

    monkeypatch.setattr("silomix.runtime.local.make_node", lambda _: Serving())
    monkeypatch.setattr("silomix.runtime.observe.stderr.Stderr", lambda: nullcontext(reading))
    last: Any = await _run(None)  # type: ignore[arg-type]
    assert (heard, last.epoch) == ([1, 2, 3], 3)
