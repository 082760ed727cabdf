"""Separate hosts on one machine: a network namespace for each node, joined by a router.

Every node has its own address, its own link to the router, and nothing else: no loopback that others share. The router
lets through what the federation's edges allow and nothing more, loses packets, and sends them over a slow wire, as it
is told. The test itself stands at one more link, as an operator's host would.

All of it lives in namespaces whose names tell the process that made them; what a killed one left, the next removes.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.dashboard.monitored import ENV
from tests.tools import missing, program, root

from silomix.runtime.config.load import load_federation
from silomix.runtime.config.owners.accept import accept
from silomix.runtime.config.owners.owner import owner_identity
from silomix.runtime.config.owners.trial import OWNER
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.local import LocalFederation
from silomix.runtime.net.edges import edges

PREFIX = "smx"
OPERATOR = "operator"
"""The test's own name on the network."""
MTU = 1500
BURST = "64kb"
COMMAND_S = 20


class Network:
    """Hosts and their links. Use it as a context: leaving it removes everything."""

    def __init__(
        self, nodes: Iterable[str], *, rate_mbit: float = 0, delay_s: float = 0.0, loss_percent: int = 0
    ) -> None:
        """Each link has this rate in each direction; packets between nodes take this long and get lost this often."""
        self.nodes = list(nodes)
        self.rate_mbit, self.delay_s, self.loss_percent = rate_mbit, delay_s, loss_percent
        self._id = f"{PREFIX}{os.getpid()}"
        self._net = f"10.{64 + os.getpid() % 128}"
        self._hub = f"{self._id}-hub"
        self._relay: subprocess.Popen[bytes] | None = None

    # --- names ---

    def address(self, name: str) -> str:
        """Where a node is."""
        return f"{self._net}.{self._number(name)}.2"

    def namespace(self, name: str) -> str:
        """The namespace of a node."""
        return f"{self._id}-{name}"

    def _number(self, name: str) -> int:
        return 255 if name == OPERATOR else self.nodes.index(name)

    def _link(self, name: str) -> str:
        """The router's end of a node's link."""
        return "vop" if name == OPERATOR else f"v{self._number(name)}"

    # --- making and removing ---

    def __enter__(self) -> "Network":
        root()
        for name in ("ip", "nft", "tc"):
            program(name)
        if self.delay_s and not Path("/dev/net/tun").exists():
            missing("there is no /dev/net/tun")
        _remove_leftovers()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove every namespace, and with them their links."""
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
        for name in (self._hub, *(self.namespace(node) for node in self.nodes)):
            subprocess.run([program("ip"), "netns", "del", name], capture_output=True, timeout=COMMAND_S)

    def _make(self) -> None:
        hub = [f"netns add {self._hub}", *(f"netns add {self.namespace(node)}" for node in self.nodes)]
        # Packets no longer than a frame: else the counters would count one header where many frames have one each.
        for node in self.nodes:
            ends = (
                f"netns {self._hub} gso_max_segs 1 type veth peer name eth0 netns {self.namespace(node)} gso_max_segs 1"
            )
            hub.append(f"link add {self._link(node)} mtu {MTU} {ends}")
        hub.append(f"link add {self._link(OPERATOR)} netns {self._hub} type veth peer name {self._id}")
        _ip("", hub)
        for node in self.nodes:
            here = f"{self._net}.{self._number(node)}"
            _ip(
                self.namespace(node),
                [
                    "link set lo up",
                    f"addr add {here}.2/30 dev eth0",
                    "link set eth0 up",
                    f"route add default via {here}.1",
                ],
            )
        router = ["link set lo up"]
        for node in (*self.nodes, OPERATOR):
            router += [
                f"addr add {self._net}.{self._number(node)}.1/30 dev {self._link(node)}",
                f"link set {self._link(node)} up",
            ]
        _ip(self._hub, router)
        _ip("", [f"addr add {self.address(OPERATOR)}/30 dev {self._id}", f"link set {self._id} up"])
        _ip("", [f"route add {self._net}.0.0/16 via {self._net}.255.1"])
        self.run(
            None, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter"
        )
        if self.delay_s:
            self._make_slow()
        if self.rate_mbit:
            for node in self.nodes:
                for where, device in ((self._hub, self._link(node)), (self.namespace(node), "eth0")):
                    shape = f"tbf rate {self.rate_mbit}mbit burst {BURST} latency 200ms".split()
                    _run(program("tc"), "-n", where, "qdisc", "add", "dev", device, "root", *shape)
        self.allow([])

    def _make_slow(self) -> None:
        """Send what comes from a node over the slow wire, and from its far end to where it was going."""
        wire = ["tuntap add dev slow0 mode tun", "tuntap add dev slow1 mode tun"]
        wire += ["link set slow0 up", "link set slow1 up", "link set slow0 txqueuelen 5000"]
        wire += [f"rule add to {self._net}.255.0/30 lookup main priority 90", "route add default dev slow0 table 100"]
        wire += [f"rule add iif {self._link(node)} lookup 100 priority 100" for node in self.nodes]
        _ip(self._hub, wire)
        script = str(Path(__file__).with_name("delay.py"))
        command = [program("ip"), "netns", "exec", self._hub, sys.executable, script, "slow0", "slow1"]
        self._relay = subprocess.Popen([*command, str(self.delay_s), str(os.getpid())])

    # --- what happens on it ---

    def allow(self, allowed: Iterable[tuple[str, str, int]]) -> None:
        """Let these connections through, (from, to, port), and no others."""
        rules = []
        for source, target, port in allowed:
            a, b = self.address(source), self.address(target)
            rules.append(f"ip saddr {a} ip daddr {b} tcp dport {port} accept")
            rules.append(f"ip saddr {b} ip daddr {a} tcp sport {port} tcp flags & (syn | ack) != syn accept")
        lose = f'oifname "v*" numgen random mod 100 < {self.loss_percent} drop' if self.loss_percent else ""
        script = "\n".join(
            (
                "table inet silomix",
                "delete table inet silomix",
                "table inet silomix {",
                "chain forward {",
                "type filter hook forward priority 0; policy drop;",
                lose,
                *rules,
                "}",
                "}",
                "",
            )
        )
        self.run(None, program("nft"), "-f", "-", text=script)

    def allow_federation(self, federation: Federation, metrics_ports: Iterable[tuple[str, int]] = ()) -> None:
        """Let through what rounds need; and an operator, who reads the status and the metrics."""
        ports = {m.name: int(m.address.rpartition(":")[2]) for m in federation.members.values() if m.address}
        allowed = [(edge.source, edge.target, ports[edge.target]) for edge in edges(federation)]
        aggregator = federation.aggregator.name
        allowed += [(OPERATOR, aggregator, ports[aggregator])]
        allowed += [(OPERATOR, node, port) for node, port in metrics_ports]
        self.allow(allowed)

    def cut(self, name: str) -> None:
        """Pull a node's cable."""
        _ip(self._hub, [f"link set {self._link(name)} down"])

    def mend(self, name: str) -> None:
        """Put it back."""
        _ip(self._hub, [f"link set {self._link(name)} up"])

    def counters(self, name: str) -> tuple[int, int]:
        """Bytes that the kernel has seen a node receive and send: frames, with all headers."""
        shown = _run(program("ip"), "-n", self.namespace(name), "-j", "-s", "link", "show", "eth0")
        stats = json.loads(shown)[0]["stats64"]
        return int(stats["rx"]["bytes"]), int(stats["tx"]["bytes"])

    def run(self, name: str | None, *command: str, text: str = "") -> str:
        """Run a program on a node, or on the router, and return what it says."""
        where = self._hub if name is None else self.namespace(name)
        return _run(program("ip"), "netns", "exec", where, *command, text=text)

    def dial_s(self, source: str, target: str, port: int, timeout_s: float = 2.0) -> float | None:
        """Dial a port from a node: the time it took, or None if nobody answered."""
        dial = (
            "import socket, sys, time; start = time.monotonic()\n"
            "try: socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()\n"
            "except OSError: print('null')\n"
            "else: print(time.monotonic() - start)"
        )
        there = (self.address(target), str(port), str(timeout_s))
        value: float | None = json.loads(self.run(source, sys.executable, "-c", dial, *there))
        return value


class Apart(LocalFederation):
    """A federation with every node on its own host of a network."""

    def __init__(self, directory: Path, network: Network) -> None:
        super().__init__(directory, env=ENV)
        self.network = network

    def command(self, name: str) -> list[str]:
        """Start a node in its namespace."""
        return [program("ip"), "netns", "exec", self.network.namespace(name), *super().command(name)]


def settle(directory: Path, network: Network) -> None:
    """Give a federation that was made with `host="{name}.test"` the addresses of a network."""
    file = directory / "federation.toml"
    text = file.read_text()
    for node in network.nodes:
        text = text.replace(f'"{node}.test:', f'"{network.address(node)}:')
    file.write_text(text)
    accept(load_federation(directory), owner_identity(OWNER, directory / "owner.key"), directory)


async def in_thread(network: Network, work: str, *arguments: str) -> None:
    """Call one of the network's methods without holding up the event loop."""
    await asyncio.to_thread(getattr(network, work), *arguments)


def _ip(namespace: str, lines: list[str]) -> None:
    where = ["-n", namespace] if namespace else []
    _run(program("ip"), *where, "-batch", "-", text="\n".join((*lines, "")))


def _run(*command: str, text: str = "") -> str:
    done = subprocess.run(command, input=text, text=True, capture_output=True, timeout=COMMAND_S)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}\n{text}"
    return done.stdout


def _remove_leftovers() -> None:
    """Remove the namespaces of processes that are gone."""
    for line in _run(program("ip"), "netns", "list").splitlines():
        name = line.split()[0]
        owner = name.partition("-")[0].removeprefix(PREFIX)
        if name.startswith(PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with suppress(AssertionError, ProcessLookupError):
                for process in _run(program("ip"), "netns", "pids", name).split():
                    os.kill(int(process), signal.SIGKILL)
                _run(program("ip"), "netns", "del", name)
