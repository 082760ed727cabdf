"""Whether everybody whom a node dials can be reached from its host, understands it, and has the same file."""

import asyncio
import socket
import time

import grpc

from silomix.runtime.checkup.findings import Finding
from silomix.runtime.config.load import NodeConfig
from silomix.runtime.core.errors import PeerFault
from silomix.runtime.core.protocol.federation import SHOWN
from silomix.runtime.net.answers import words_of
from silomix.runtime.net.edges import dialled_by
from silomix.runtime.net.meeting import OnlyPins, meet
from silomix.runtime.net.transport import tls_of
from silomix.runtime.net.version import difference


async def peers(config: NodeConfig, timeout_s: float) -> list[Finding]:
    """Greet everybody whom this node dials, with its own certificate, from here."""
    names = dict.fromkeys(dialled_by(config.name, config.federation))
    return list(await asyncio.gather(*(_peer(config, name, timeout_s) for name in names)))


async def _peer(config: NodeConfig, name: str, timeout_s: float) -> Finding:
    what = f"peer {name}"
    member = config.federation.member(name)
    host, _, port = member.address.rpartition(":")
    try:
        await _resolve(host.strip("[]"), int(port), timeout_s)
    except OSError as error:
        why = error.strerror or str(error) or "it took too long"
        return Finding(what, False, f"the name {host} does not resolve here: {why}", "see to DNS or /etc/hosts")
    try:
        await _connect(host.strip("[]"), int(port), timeout_s)
    except OSError as error:
        why = error.strerror or str(error) or "no answer"
        do = f"is {name} running, and does a firewall let this host through to {member.address}? Ask {member.owner}"
        return Finding(what, False, f"{member.address} cannot be reached: {why}", do)
    tls = tls_of(config)
    pins = () if tls is None or tls.pins is None else tuple(tls.pins)
    started = time.time()
    try:
        said = await meet(config, name, tls, OnlyPins(pins), timeout_s)
    except grpc.aio.AioRpcError as error:
        return Finding(what, False, *_call_trouble(error, config, name))
    except PeerFault as fault:
        return Finding(what, False, f"what it answers is not understood: {fault.message}", f"which version has {name}?")
    took = time.time() - started
    if differs := difference(said.protocol, name, config.name):
        return Finding(what, False, *differs)
    ours = config.federation.digest
    if said.federation != ours:
        return Finding(
            what,
            False,
            f"it has the federation file {said.federation.hex()[:SHOWN]}, and this node {ours.hex()[:SHOWN]}",
            f"compare with {member.owner} which file all have accepted, and replace the other",
        )
    return Finding(
        what,
        True,
        f"{member.address} in {1000 * took:.0f} ms, silomix {said.version}, protocol {said.protocol}, same file",
    )


def _call_trouble(error: grpc.aio.AioRpcError, config: NodeConfig, name: str) -> tuple[str, str]:
    details = words_of(error).strip()
    owner = config.federation.member(name).owner
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        if config.federation.pinned:
            do = (
                f"either {owner} has changed its certificate, or does not know this node's: exchange {name}.pin and "
                f"{config.name}.pin; or something between terminates TLS"
            )
        else:
            do = f"are both certificates of the federation's CAs? Ask {owner}; or something between terminates TLS"
        return f"the connection ends in the TLS handshake ({details[:120]})", do
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "it does not know how to greet", f"its version of silomix is older than this one: ask {owner}"
    return f"it refused: {details[:200]}", f"it says why; if that is not enough, its log says more: ask {owner}"


async def _resolve(host: str, port: int, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _connect(host: str, port: int, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        _, writer = await asyncio.open_connection(host, port)
    writer.close()
