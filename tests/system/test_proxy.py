"""Silos behind an HTTP CONNECT proxy: they dial out through it, and no other way is open to them."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.dashboard.monitored import ENV, free_ports
from tests.nodes.federations import assert_model, model_of, policy, run
from tests.system.namespaces import OPERATOR, Apart, Network, settle

from silomix.runtime.config.load import load_federation
from silomix.runtime.local import LocalFederation, create
from silomix.runtime.net.edges import edges

WAIT_S = 60.0
SCRIPT = str(Path(__file__).with_name("proxy.py"))
PROXY, PROXY_PORT = "proxy", 3128


@asynccontextmanager
async def proxy(command: list[str], host: str, port: int, log: Path, targets: dict[str, str]) -> AsyncIterator[None]:
    """Run the proxy, and wait until it listens as far as that can be seen from here."""
    pairs = [f"{name}={address}" for name, address in targets.items()]
    arguments = [*command, sys.executable, SCRIPT, host, str(port), str(log), *pairs]
    process = await asyncio.create_subprocess_exec(*arguments)
    try:
        yield
        assert process.returncode is None, "the proxy ended"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def asked_for(log: Path) -> set[str]:
    return set(log.read_text().splitlines())


class Behind(Apart):
    """A federation whose silos know a proxy; it is all that their network lets them dial."""

    def command(self, name: str) -> list[str]:
        command = super().command(name)
        if name not in self.federation.silo_names:
            return command
        place = command.index(sys.executable)
        url = f"http://{self.network.address(PROXY)}:{PROXY_PORT}"
        return [*command[:place], "env", f"https_proxy={url}", "no_proxy=", *command[place:]]


@pytest.mark.full
def test_silos_that_can_reach_nothing_but_a_proxy_take_part(tmp_path: Path) -> None:
    """Each on its own host, with a firewall that lets silos dial the proxy and nobody else."""
    home, log = tmp_path / "f", tmp_path / "asked"
    log.touch()
    nodes = ("aggregator", "shuffler-1", "silo-01", "silo-02", "silo-03", PROXY)
    with Network(nodes) as network:
        create(home, 3, 1, policy=policy(rounds=2), host="{name}.test", base_port=7000)
        settle(home, network)
        federation = load_federation(home)
        reach = {m.name: m.address for m in federation.members.values() if m.address}
        ports = {name: int(address.rpartition(":")[2]) for name, address in reach.items()}
        silos = federation.silo_names
        allowed = [(e.source, e.target, ports[e.target]) for e in edges(federation) if e.source not in silos]
        allowed += [(silo, PROXY, PROXY_PORT) for silo in silos]
        allowed += [(PROXY, name, port) for name, port in ports.items()]
        allowed += [(OPERATOR, "aggregator", ports["aggregator"])]
        network.allow(allowed)

        async def go() -> None:
            inside = ["ip", "netns", "exec", network.namespace(PROXY)]
            address = network.address(PROXY)
            async with (
                proxy(inside, address, PROXY_PORT, log, {a: a for a in reach.values()}),
                Behind(home, network) as running,
            ):
                await running.finished()
                straight = await asyncio.to_thread(network.dial_s, "silo-01", "shuffler-1", ports["shuffler-1"], 0.5)
                assert straight is None, "the firewall let a silo dial a hop itself"

        run(go(), WAIT_S)
    assert asked_for(log) == set(reach.values())
    assert_model(model_of(home), [range(3)] * 2, federation.policy)


@pytest.mark.full
async def test_nodes_whose_names_only_a_proxy_can_resolve_take_part(tmp_path: Path) -> None:
    """As any user can run it: no node can resolve the others' names; the proxy can, and TLS goes from end to end."""
    home, log, port = tmp_path / "f", tmp_path / "asked", free_ports(1)
    log.touch()
    federation = create(
        home, 3, 1, policy=policy(rounds=2), host="{name}.invalid", listen_host="127.0.0.1", base_port=free_ports(2)
    )
    reach = {m.address: f"127.0.0.1:{m.address.rpartition(':')[2]}" for m in federation.members.values() if m.address}
    env = {**ENV, "https_proxy": f"http://127.0.0.1:{port}", "no_proxy": ""}

    async with proxy([], "127.0.0.1", port, log, reach), LocalFederation(home, env=env) as running:
        await running.finished()
    assert asked_for(log) == set(reach)
    assert_model(model_of(home), [range(3)] * 2, federation.policy)
