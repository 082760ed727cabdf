"""NetworkPolicies that allow exactly the connections of the protocol, for the nodes of one cluster.

Everything is denied first. Then each node may dial whom `edges` says and be dialled by whom it says, on that one port,
Prometheus may read metrics, and everybody may ask for names. Peers in other clusters have addresses and no labels:
where nobody has said which, any address may be dialled on the peer's port, and mutual TLS decides who it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from silomix.runtime.config.keys import MQTT_KEYS
from silomix.runtime.net.edges import dialled_by, diallers_of
from silomix.runtime.render.source import METRICS_PORT, RenderError, Source, is_address

Document = dict[str, Any]

NAME_LABEL = "app.kubernetes.io/name"
NODE_LABEL = "app.kubernetes.io/instance"
ROLE_LABEL = "app.kubernetes.io/component"
FEDERATION_LABEL = "app.kubernetes.io/part-of"
ANYWHERE = ("0.0.0.0/0", "::/0")
API = "networking.k8s.io/v1"


@dataclass(frozen=True)
class Surroundings:
    """What is around the nodes of one cluster."""

    inside: frozenset[str]
    """Nodes in this cluster."""
    cidrs: Mapping[str, tuple[str, ...]]
    """Where nodes of other clusters are, as far as somebody has said."""
    prometheus_namespace: str
    proxy: tuple[str, int] | None = None
    """Host and port of the HTTP proxy that is the only way out."""


def always() -> list[Document]:
    """What every node gets: nothing, and name lookups. Others in the namespace, such as a broker, are not ours."""
    lookups = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    servers = _namespace("kube-system") | {"podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}
    ours = {"matchLabels": {NAME_LABEL: "silomix"}}
    return [
        _policy("default-deny", ours, {"policyTypes": ["Ingress", "Egress"]}),
        _policy("dns", ours, {"policyTypes": ["Egress"], "egress": [{"to": [servers], "ports": lookups}]}),
    ]


def edges(source: Source, around: Surroundings) -> list[Document]:
    """Open the connections of the nodes in this cluster: a policy for each server, and one for silos that are alike."""
    silos = [name for name in source.federation.silo_names if name in around.inside]
    _check_peers(source, around)
    found = [
        _policy(f"{name}-edges", {"matchLabels": node_labels(name)}, _rules(name, source, around))
        for name in source.nodes
        if name in around.inside and name not in silos
    ]
    alike: list[tuple[Document, list[str]]] = []
    for name in silos:
        rules = _rules(name, source, around)
        group = next((names for known, names in alike if known == rules), None)
        if group is None:
            alike.append((rules, [name]))
        else:
            group.append(name)
    found += [_policy(f"edges-of-{names[0]}-and-alike", _among(names), rules) for rules, names in alike]
    return found


def _rules(name: str, source: Source, around: Surroundings) -> Document:
    """Say who may dial a node and whom it may dial; with its metrics for Prometheus, its broker, its collector."""
    federation = source.federation
    ingress: list[Document] = []
    if callers := diallers_of(name, federation):
        ingress.append({"from": _peers(callers, source, around), "ports": _port(source.port(name))})
    prometheus = _namespace(around.prometheus_namespace) | {
        "podSelector": {"matchLabels": {NAME_LABEL: "prometheus"}},
    }
    ingress.append({"from": [prometheus], "ports": _port(METRICS_PORT)})
    if around.proxy is not None:
        host, port = around.proxy
        egress = [{"to": _somewhere(host), "ports": _port(port)}]
    else:
        egress = [
            {"to": _peers([target], source, around), "ports": _port(source.port(target))}
            for target in dialled_by(name, federation)
        ]
    if broker := source.settings(name).get("mqtt"):
        port = broker.get("port", MQTT_KEYS["port"].default)
        egress.append({"to": _somewhere(str(broker["host"])), "ports": _port(port)})
    if collector := source.settings(name).get("traces"):
        there = urlsplit(str(collector))
        egress.append({"to": _somewhere(there.hostname or ""), "ports": _port(there.port or 0)})
    return {"policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": egress}


def _somewhere(host: str) -> list[Document]:
    """A broker or proxy inside the cluster is some pod of its namespace; elsewhere it is an address, or any.

    Many networks do not count pods among any addresses, so a name that may be a Service's opens its namespace too.
    """
    if is_address(host):
        return _blocks(_address_of(host))
    parts = host.split(".")
    if len(parts) == 1:
        return [{"podSelector": {}}]
    if len(parts) >= 3 and parts[2] == "svc":
        return [_namespace(parts[1])]
    return [*([_namespace(parts[1])] if len(parts) == 2 else []), *_blocks(ANYWHERE)]


def node_labels(name: str) -> dict[str, str]:
    """What selects a node's pod, and no other's."""
    return {NAME_LABEL: "silomix", NODE_LABEL: name}


def _among(names: list[str]) -> Document:
    """Select the pods of several nodes."""
    expression = {"key": NODE_LABEL, "operator": "In", "values": names}
    return {"matchLabels": {NAME_LABEL: "silomix"}, "matchExpressions": [expression]}


def _peers(names: Iterable[str], source: Source, around: Surroundings) -> list[Document]:
    inside = [name for name in names if name in around.inside]
    outside = [name for name in names if name not in around.inside]
    found: list[Document] = []
    if inside:
        found.append({"podSelector": _among(inside)})
    blocks: dict[str, None] = {}
    for name in outside:
        blocks |= dict.fromkeys(_known(name, source, around))
    return found + _blocks(ANYWHERE if set(ANYWHERE) <= set(blocks) else tuple(blocks))


def _check_peers(source: Source, around: Surroundings) -> None:
    """Refuse an address that changes nothing: whoever gave it believes that nobody else gets in."""
    federation = source.federation
    met: set[str] = set()
    for name in sorted(around.inside):
        callers = [peer for peer in diallers_of(name, federation) if peer not in around.inside]
        met.update(callers, dialled_by(name, federation))
        said = [peer for peer in callers if peer in around.cidrs]
        unsaid = [peer for peer in callers if peer not in said and set(ANYWHERE) <= set(_known(peer, source, around))]
        if said and unsaid:
            raise RenderError(
                f"--peer {said[0]}: without effect while {', '.join(unsaid)} may be anywhere, since all of them dial "
                f"{name} on one port: give --peer for each, or {unsaid[0]}=0.0.0.0/0 if you mean that"
            )
    for peer in around.cidrs:
        if peer not in met - around.inside:
            raise RenderError(f"--peer {peer}: without effect, since no node of this cluster meets it outside")


def _known(name: str, source: Source, around: Surroundings) -> tuple[str, ...]:
    """Where a node of another cluster is: as somebody said, or as the roster has it, or anywhere."""
    address = source.federation.member(name).address
    return around.cidrs.get(name) or (_address_of(source.host(name)) if address else ANYWHERE)


def _address_of(host: str) -> tuple[str, ...]:
    return (f"{host}/{128 if ':' in host else 32}",) if is_address(host) else ANYWHERE


def _blocks(cidrs: Iterable[str]) -> list[Document]:
    return [{"ipBlock": {"cidr": cidr}} for cidr in cidrs]


def _namespace(name: str) -> Document:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _port(number: int) -> list[Document]:
    return [{"protocol": "TCP", "port": number}]


def _policy(name: str, selector: Document, rules: Document) -> Document:
    return {
        "apiVersion": API,
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": selector, **rules},
    }
