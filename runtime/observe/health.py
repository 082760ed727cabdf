"""Is this node well? What container probes and service managers ask, with the node's own certificate.

The gRPC health service stands behind mutual TLS like everything else, and no scheduler's own probe can present a
client certificate. So the probe is a process: it reads the node's files, asks once, and ends. It runs every few seconds
beside a node that has work to do, so it parses no more than it needs and never loads the compiler.
"""

import http.client
import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from silomix.runtime.core.errors import UserError
from silomix.runtime.net.names import INSECURE_NAME
from silomix.runtime.store.home import NODE_FILE

SERVING = "SERVING"
_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}  # noqa: S104 - what such an address is reached at


class HealthError(UserError):
    """The question could not be asked: a file is missing or does not say what a probe needs."""


@dataclass(frozen=True)
class Answer:
    """What one node said: SERVING, another word of the health service, or why nobody answered."""

    node: str
    address: str
    state: str

    @property
    def healthy(self) -> bool:
        """Whether the node takes work."""
        return self.state == SERVING


@dataclass(frozen=True)
class _Asker:
    """A node's name and TLS material, unchecked: a server that does not like them says so."""

    name: str
    tls: tuple[bytes, bytes, bytes] | None

    def ask(self, node: str, address: str, timeout_s: float, *, own: bool) -> Answer:
        """Ask a server for its health; its certificate must carry the node's name."""
        options: list[tuple[str, Any]] = [("grpc.ssl_target_name_override", node)]
        if own:
            options.append(("grpc.enable_http_proxy", 0))  # the way to itself leads through no proxy
        if self.tls is None:
            line = grpc.insecure_channel(address, options)
        else:
            anchor, key, certificate = self.tls
            line = grpc.secure_channel(address, grpc.ssl_channel_credentials(anchor, key, certificate), options)
        with line:
            stub: Any = health_pb2_grpc.HealthStub(line)
            try:
                who = ((INSECURE_NAME, self.name),) if self.tls is None else ()
                answer = stub.Check(health_pb2.HealthCheckRequest(), metadata=who, timeout=timeout_s)
            except grpc.RpcError as error:
                return Answer(node, address, error.code().name)
        return Answer(node, address, health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def own_health(path: Path, timeout_s: float) -> Answer:
    """Ask the node that a directory describes, on this host."""
    file, node = _node(path)
    name = str(node["name"])
    if node["role"] == "silo":
        return _silo(name, node, file, timeout_s)
    federation = _toml(file.parent / node["federation"])
    rows = [federation["aggregator"], *federation["shufflers"]]
    listed = next((row["address"] for row in rows if row["name"] == name), "")
    host, _, port = str(node.get("listen") or listed).rpartition(":")
    if not port:
        raise HealthError(f"{file}: {name} has no address in the federation file")
    return _asker(file, node).ask(name, f"{_ANY.get(host, host)}:{port}", timeout_s, own=True)


def peers_health(path: Path, timeout_s: float) -> list[Answer]:
    """Ask everybody whom this node dials: what a firewall or a network policy between them stops shows here."""
    from silomix.runtime.config.load import load_node
    from silomix.runtime.net.edges import dialled_by
    from silomix.runtime.net.transport import tls_of

    config = load_node(path)  # a person waits for this one, so everything is checked
    tls = tls_of(config)
    answers = []
    for name in dialled_by(config.name, config.federation):
        material = None if tls is None else (tls.roots(name), tls.key, tls.certificate)
        address = config.federation.member(name).address
        answers.append(_Asker(config.name, material).ask(name, address, timeout_s, own=False))
    return answers


def show(path: Path, *, peers: bool, as_json: bool, timeout_s: float) -> int:
    """Ask and print; the exit code is 0 if all is well, else 1."""
    answers = peers_health(path, timeout_s) if peers else [own_health(path, timeout_s)]
    healthy = all(answer.healthy for answer in answers)
    if as_json:
        sys.stdout.write(json.dumps({"healthy": healthy, "nodes": [asdict(answer) for answer in answers]}) + "\n")
    else:
        for answer in answers:
            sys.stdout.write(f"{answer.node} at {answer.address}: {answer.state}\n")
    return 0 if healthy else 1


def _silo(name: str, node: Mapping[str, Any], file: Path, timeout_s: float) -> Answer:
    """Ask a silo, which serves nothing but its metrics, whether it is there."""
    port = node.get("metrics_port", 0)
    if not port:
        raise HealthError(
            f"{file}: metrics_port: a silo listens nowhere else, so it cannot be asked; give it a metrics port"
        )
    host = str(node.get("metrics_host", "127.0.0.1"))
    host = _ANY.get(host, _ANY.get(f"[{host}]", host)).strip("[]")
    line = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        line.request("GET", "/metrics")
        text = line.getresponse().read().decode(errors="replace")
        found = re.search(r'^silomix_node_info\{[^}]*node="([^"]*)"', text, re.MULTILINE)
        state = SERVING if found and found[1] == name else f"{found[1] if found else 'somebody else'} has this port"
    except (OSError, http.client.HTTPException) as error:
        state = f"UNAVAILABLE ({error})"
    finally:
        line.close()
    return Answer(name, f"{host}:{port}", state)


def _node(path: Path) -> tuple[Path, dict[str, Any]]:
    file = path / NODE_FILE if path.is_dir() else path
    node = _toml(file)
    for key in ("role", "name", "federation"):
        if not isinstance(node.get(key), str):
            raise HealthError(f"{file}: {key}: missing; give the directory of a node, as `silomix init` writes it")
    return file, node


def _asker(file: Path, node: Mapping[str, Any]) -> _Asker:
    if node.get("insecure"):
        return _Asker(node["name"], None)
    federation = file.parent / node["federation"]
    try:
        tls = _toml(federation)["tls"]
        anchor = file.parent / node["certificate"]  # a node that is pinned vouches for itself
        if not tls.get("pinned"):
            anchor = federation.parent / tls["anchor"]
        paths = (anchor, file.parent / node["key"], file.parent / node["certificate"])
    except KeyError as missing:
        raise HealthError(f"{file}: {missing.args[0]}: missing; TLS needs it") from None
    anchor_pem, key, certificate = (_read(path) for path in paths)
    return _Asker(node["name"], (anchor_pem, key, certificate))


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read(file).decode())
    except ValueError as error:
        raise HealthError(f"{file}: is not TOML: {error}") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise HealthError(f"{file}: cannot be read: {error.strerror}") from None
