"""Separate hosts, as network namespaces: slow and lossy links, a firewall, a pulled cable, bytes on the wire."""

import asyncio
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.nodes.federations import model_of, policy
from tests.nodes.toy import Toy
from tests.system.namespaces import Apart, Network, in_thread, settle

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_federation
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.local import LocalFederation, create
from silomix.v1 import services_pb2

WAIT_S = 90.0
PORT, METRICS_PORT = 7000, 9100
HOPS = ("shuffler-1", "shuffler-2")


def silos_of(network: Network) -> list[str]:
    return [node for node in network.nodes if node.startswith("silo-")]


def apart(directory: Path, network: Network, **changes: Any) -> Federation:
    """Write a federation for the hosts of a network, and let through what it needs."""
    settings: dict[Role, dict[str, Any]] = {
        role: {"metrics_port": METRICS_PORT, "metrics_host": "0.0.0.0"} for role in Role
    }
    for role in (Role.AGGREGATOR, Role.SILO):
        settings[role]["linger"] = True
    silo_options = changes.pop("silo_options", lambda index: {"silo": index})
    create(
        directory,
        len(silos_of(network)),
        len(HOPS),
        policy=replace(policy(), **changes),
        host="{name}.test",
        base_port=PORT,
        settings=settings,
        silo_options=silo_options,
    )
    settle(directory, network)
    federation = load_federation(directory)
    network.allow_federation(federation, [(node, METRICS_PORT) for node in network.nodes])
    return federation


@pytest.fixture
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    """Three silos, two hops and an aggregator, or as many silos as the test asks for."""
    settings = dict(getattr(request, "param", {}))
    silos = [f"silo-{i:02}" for i in range(1, settings.pop("silos", 3) + 1)]
    with Network(["aggregator", *HOPS, *silos], **settings) as made:
        yield made


async def _until(running: LocalFederation, holds: Any, what: str) -> services_pb2.GetStatusResponse:
    """Wait until the aggregator's status is so."""
    status = None
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                running.check()
                status = await running.status()
                if status is not None and holds(status):
                    return status
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"waited {WAIT_S} s for nothing: {what}; {status}") from None


def _times(log: Path, message: str) -> list[float]:
    """When a node logged something, in Unix time."""
    found = re.findall(rf"^(\S+Z) \w+ +\S+  {message}", log.read_text(), re.MULTILINE)
    return [datetime.fromisoformat(text).timestamp() for text in found]


SLOW = {"rate_mbit": 10, "delay_s": 0.02, "loss_percent": 1}


@pytest.mark.parametrize("network", [SLOW], indirect=True)
async def test_a_federation_trains_across_slow_and_lossy_links_behind_a_firewall(
    network: Network, tmp_path: Path
) -> None:
    """10 Mbit/s, 20 ms each way, one packet in a hundred lost, and no connection but the protocol's own."""
    federation = apart(tmp_path / "f", network, rounds=2, task_options={"parameters": 50_000}, chunk_parameters=16_384)
    reach = {m.name: int(m.address.rpartition(":")[2]) for m in federation.members.values() if m.address}

    async with Apart(tmp_path / "f", network) as running:
        status = await _until(running, lambda s: s.phase == "finished", "two rounds")
        assert [done.cohort for done in status.history] == [3, 3]
        dial = network.dial_s
        took = await asyncio.to_thread(dial, "silo-01", "aggregator", reach["aggregator"])
        assert took is not None
        assert took >= 2 * network.delay_s, "the links have no delay"
        for source, target in (
            ("silo-01", "shuffler-2"),
            ("shuffler-1", "aggregator"),
            ("shuffler-2", "shuffler-1"),
        ):
            assert await asyncio.to_thread(dial, source, target, reach[target], 0.5) is None, (source, target)
        for silo, port in (("silo-02", METRICS_PORT), ("silo-02", PORT)):
            assert await asyncio.to_thread(dial, "silo-01", silo, port, 0.5) is None
    assert_model_of(tmp_path / "f", federation, 50_000)


def assert_model_of(directory: Path, federation: Federation, parameters: int) -> None:
    """The model is the mean of what the silos added, by the toy's own arithmetic."""
    rounds = federation.policy.rounds
    found = model_of(directory)
    step = federation.policy.bound / (10**federation.policy.precision - 1)
    for name in ("a", "b"):
        updates = [[Toy(i, parameters).update(t)[name].astype(float) for i in range(3)] for t in range(1, rounds + 1)]
        expected = sum(np.mean(u, axis=0) for u in updates)
        assert np.abs(found[name] - expected).max() <= rounds * (step / 2 + 1e-6)


@pytest.mark.full
async def test_a_hop_that_is_cut_off_is_named_and_the_round_goes_on_when_the_link_is_back(
    network: Network, tmp_path: Path
) -> None:
    apart(tmp_path / "f", network, rounds=100_000, deadline_s=3, release_s=2, attempts=100)

    def _trouble(status: services_pb2.GetStatusResponse) -> set[str]:
        return {hop.name for hop in status.hops if hop.state == "unreachable"}

    async with Apart(tmp_path / "f", network) as running:
        await _until(running, lambda s: len(s.history) >= 2, "two rounds")
        await in_thread(network, "cut", "shuffler-2")
        status = await _until(running, lambda s: bool(_trouble(s)), "the hop is named")
        assert _trouble(status) == {"shuffler-2"}
        stuck = len(status.history)
        again = await running.status()
        assert again is not None
        assert len(again.history) <= stuck + 1  # a sum that is here may still be applied; its record waits
        await in_thread(network, "mend", "shuffler-2")
        status = await _until(running, lambda s: len(s.history) >= stuck + 3, "rounds go on")
        assert [done.cohort for done in status.history[stuck:]] == [3] * len(status.history[stuck:])


# --- bytes on the wire ------------------------------------------------------------------------------------------------

MILLION = 1_000_000


def say(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Show figures also when the test passes."""
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


async def _metrics(network: Network, node: str) -> dict[tuple[str, str], float]:
    """What a node says that it received and sent, by direction and whom."""

    def fetch() -> str:
        with urlopen(f"http://{network.address(node)}:{METRICS_PORT}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    families = {f.name: f for f in text_string_to_metric_families(await asyncio.to_thread(fetch))}
    samples = families["silomix_bytes"].samples
    return {(s.labels["direction"], s.labels["peer_role"]): s.value for s in samples}


@pytest.mark.full
async def test_what_we_count_is_what_the_kernel_counts_but_for_tls_and_tcp(
    network: Network, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = apart(
        tmp_path / "f", network, rounds=1, task_options={"parameters": MILLION}, chunk_parameters=65_536, deadline_s=60
    )

    async with Apart(tmp_path / "f", network) as running:
        await _until(running, lambda s: s.phase == "finished", "a round")
        ours, (received, sent) = (
            await _metrics(network, "silo-01"),
            await asyncio.to_thread(network.counters, "silo-01"),
        )
    our_sent = sum(value for (direction, _), value in ours.items() if direction == "sent")
    our_received = sum(value for (direction, _), value in ours.items() if direction == "received")
    plan = federation.plan.packed_bits
    say(
        capsys,
        f"silo-01, {MILLION:,} parameters: sent {our_sent:,.0f} bytes of messages, {sent:,} on the wire "
        f"({sent / our_sent:.3f} times), {8 * our_sent / MILLION:.3f} and {8 * sent / MILLION:.3f} bits per parameter, "
        f"plan {plan}; received {our_received:,.0f} and {received:,} ({received / our_received:.3f} times)",
    )
    # What is received is acknowledged, and the acknowledgements are sent: the two directions are judged together.
    # A busy host acknowledges in smaller pieces: the bounds leave room for that, and for nothing of a chunk's size.
    assert 1.00 < (sent + received) / (our_sent + our_received) < 1.2
    assert 1.00 < received / our_received < 1.2
    assert 1.00 < sent / our_sent < 1.25
    assert plan <= 8 * our_sent / MILLION < 1.01 * plan


# --- how long a round takes -------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("network", [{"rate_mbit": 10, "delay_s": 0.02, "silos": n} for n in (3, 6)], indirect=True)
async def test_a_round_takes_little_longer_than_its_slowest_link_needs(
    network: Network, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From frozen updates to the decoded mean, over 10 Mbit/s with 20 ms each way. Printed, and bounded generously."""
    (tmp_path / "ready").mkdir()
    rounds, silos = 3, silos_of(network)
    apart(
        tmp_path / "f",
        network,
        rounds=rounds,
        task="tests.system.together:task",
        task_options={"parameters": MILLION, "silos": len(silos), "directory": str(tmp_path / "ready")},
        chunk_parameters=65_536,
        deadline_s=120,
    )

    counted: list[tuple[int, int]] = []
    async with Apart(tmp_path / "f", network) as running:
        for done in range(rounds + 1):
            await _until(running, lambda s, done=done: len(s.history) >= done, "a round")
            counted.append(await asyncio.to_thread(network.counters, "shuffler-1"))
    logs = {node: tmp_path / "f" / node / "log.txt" for node in network.nodes}
    frozen = [max(times) for times in zip(*(_times(logs[silo], "trained") for silo in silos), strict=True)]
    closed = _times(logs["shuffler-1"], "releasing")
    decoded = _times(logs["aggregator"], "applied")
    lines = []
    for i, (start, middle, end, (before, after)) in enumerate(
        zip(frozen, closed, decoded, pairwise(counted), strict=True), 1
    ):
        ingress, egress = (after[0] - before[0]) * 8 / 10e6, (after[1] - before[1]) * 8 / 10e6
        took, path = end - start, ingress + egress
        if i == 1:  # silos encode for the first time, and do not begin together
            continue
        lines.append(
            f"{len(silos)} silos, round {i}: {took:.2f} s from frozen updates to the decoded mean, "
            f"{middle - start:.2f} s of them until the cohort closed; hop 1's ingress needs {ingress:.2f} s for its "
            f"bytes: {took / ingress:.2f} times; with one sum after the last body, which no release can precede, "
            f"{path:.2f} s: {took / path:.2f} times"
        )
        assert took > ingress, "faster than the wire"
    say(capsys, "\n".join(lines))
