"""What NetworkPolicies allow: a small evaluator of their rules, to compare with what the protocol needs.

It follows the API's words: policies add up; a pod that no policy of a direction selects is open in that direction; a
connection needs the sender's leave to go out and the receiver's to come in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Peer:
    """A pod, or an address outside of the cluster."""

    name: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    address: str = ""


def allowed(source: Peer, target: Peer, port: int, policies: Iterable[Document], protocol: str = "TCP") -> bool:
    """Whether a connection may be opened."""
    policies = list(policies)
    out = _direction(source, target, port, protocol, policies, "Egress")
    return out and _direction(target, source, port, protocol, policies, "Ingress")


def _direction(own: Peer, other: Peer, port: int, protocol: str, policies: list[Document], way: str) -> bool:
    if own.address:
        return True  # nobody's policies hold outside
    applying = [p for p in policies if way in p["spec"]["policyTypes"] and _governs(p, own)]
    if not applying:
        return True
    rules = [rule for policy in applying for rule in policy["spec"].get(way.lower(), [])]
    peers = "to" if way == "Egress" else "from"
    return any(_port(rule, port, protocol) and _any_peer(rule.get(peers), other, own) for rule in rules)


def _governs(policy: Document, pod: Peer) -> bool:
    namespace = policy["metadata"].get("namespace", pod.namespace)
    return bool(namespace == pod.namespace and selects(policy["spec"]["podSelector"], pod.labels))


def _port(rule: Document, port: int, protocol: str) -> bool:
    if "ports" not in rule:
        return True
    return any(p.get("port", port) == port and p.get("protocol", "TCP") == protocol for p in rule["ports"])


def _any_peer(peers: list[Document] | None, other: Peer, own: Peer) -> bool:
    return peers is None or any(_peer(peer, other, own) for peer in peers)


def _peer(peer: Document, other: Peer, own: Peer) -> bool:
    if "ipBlock" in peer:
        return bool(other.address) and ip_address(other.address) in ip_network(peer["ipBlock"]["cidr"])
    if other.address:
        return False
    if "namespaceSelector" in peer:
        found = selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
    else:
        found = other.namespace == own.namespace
    return found and selects(peer.get("podSelector", {}), other.labels)


def selects(selector: Document, labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches; operators that nothing here uses are errors."""
    unknown = selector.keys() - {"matchLabels", "matchExpressions"}
    assert not unknown, f"this evaluator does not know {unknown}"
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In", expression
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
