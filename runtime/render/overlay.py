"""Overlays: who runs what where. Each takes nodes of the base, and opens what they need in that one cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from silomix.runtime.config.kinds import Role
from silomix.runtime.render.network import FEDERATION_LABEL, NAME_LABEL, ROLE_LABEL, Surroundings, edges, node_labels
from silomix.runtime.render.pod import IMAGE, TRAIN_IMAGE, Document, Wants
from silomix.runtime.render.source import Files, RenderError, Source, installed_version, yaml_bytes

MADE = "Written by `silomix render k8s`: change the federation or the options, and render again.\n"
ALL_IN_ONE = "all-in-one"


@dataclass(frozen=True)
class Cluster:
    """Where the federation, or one node of it, is to run."""

    overlay: str = ALL_IN_ONE
    """All nodes, or the role of the one that has this cluster to itself."""
    node: str = ""
    namespace: str = "silomix"
    image: str = ""
    train_image: str = ""
    storage_class: str = ""
    volume_size: str = "20Gi"
    """Of every node, whatever the policy says: it cannot be changed by rendering again."""
    wants: Wants = field(default_factory=Wants)
    pod_monitor: bool = False
    prometheus_namespace: str = "monitoring"
    cidrs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def overlay(nodes: Mapping[str, Role], source: Source, cluster: Cluster) -> Files:
    """Make the files of an overlay, for the nodes that run in its cluster."""
    proxy = proxy_of(cluster.wants.proxy) if cluster.wants.proxy else None
    around = Surroundings(frozenset(nodes), cluster.cidrs, cluster.prometheus_namespace, proxy)
    alone = cluster.overlay != ALL_IN_ONE
    files: Files = {
        Path("network.yaml"): yaml_bytes(
            MADE + "Exactly the connections that rounds need, and metrics for Prometheus.",
            *edges(source, around),
        )
    }
    resources = ["../../base", *(f"../../base/{name}" for name in nodes), "network.yaml"]
    if budgets := _budgets(nodes, source, alone):
        files[Path("disruption.yaml")] = yaml_bytes(MADE + "What a drain of machines may take away at once.", *budgets)
        resources.append("disruption.yaml")
    if cluster.pod_monitor:
        files[Path("monitor.yaml")] = yaml_bytes(MADE + "For the Prometheus operator.", _pod_monitor(source))
        resources.append("monitor.yaml")
    patches: list[Document] = []
    if alone and cluster.overlay != Role.SILO:
        patches.append(_open_to_the_world(next(iter(nodes))))
    what = f"{next(iter(nodes))} in its owner's own cluster." if alone else "The whole federation in one cluster."
    files[Path("kustomization.yaml")] = kustomization(
        what,
        namespace=cluster.namespace,
        resources=resources,
        images=_images(cluster),
        **({"patches": patches} if patches else {}),
    )
    return files


def proxy_of(url: str) -> tuple[str, int]:
    """Read an HTTP proxy's address: its host and port."""
    found = urlsplit(url)
    try:
        if found.scheme == "http" and found.hostname and found.port and found.path in ("", "/"):
            return found.hostname, found.port
    except ValueError:
        pass
    raise RenderError(f"--proxy {url}: give http://HOST:PORT, which is what gRPC can use")


def _images(cluster: Cluster) -> list[Document]:
    found = []
    for name, given in ((IMAGE, cluster.image), (TRAIN_IMAGE, cluster.train_image)):
        reference = given or f"{name}:{installed_version()}"
        head, at, digest = reference.partition("@")
        path, slash, last = head.rpartition("/")
        last, _, tag = last.partition(":")
        image: Document = {"name": name, "newName": f"{path}{slash}{last}"}
        found.append(image | ({"digest": digest} if at else {"newTag": tag or "latest"}))
    return found


def _open_to_the_world(name: str) -> Document:
    """Silos and hops of other clusters come in through a load balancer; TLS ends at the node, not there."""
    operations = (
        "- op: add\n  path: /spec/type\n  value: LoadBalancer\n"
        "- op: add\n  path: /spec/externalTrafficPolicy\n  value: Local\n"
    )
    return {"target": {"kind": "Service", "name": name}, "patch": operations}


def _budgets(nodes: Mapping[str, Role], source: Source, alone: bool) -> list[Document]:
    """Say what may be evicted at once: a round needs every hop, and enough silos for its minimum.

    Whoever is not evicted at all, as a server that has a cluster to itself or a silo that no round can spare, is
    deleted or scaled down by its owner, between rounds. Elsewhere a silo may be moved at any time, for its integers are
    on its volume.
    """
    if alone:
        servers = [name for name, role in nodes.items() if role is not Role.SILO]
        return [_budget(name, {"matchLabels": node_labels(name)}, 0) for name in servers]

    def among(*roles: Role) -> Document:
        values = [str(role) for role in roles]
        expression = [{"key": ROLE_LABEL, "operator": "In", "values": values}]
        return {"matchLabels": {NAME_LABEL: "silomix"}, "matchExpressions": expression}

    spare = len(source.federation.silos) - source.federation.minimum_cohort
    return [
        _budget("chain", among(Role.AGGREGATOR, Role.SHUFFLER), 1),
        _budget("silos", among(Role.SILO), spare),
    ]


def _budget(name: str, selector: Document, unavailable: int) -> Document:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": f"{name}-budget"},
        "spec": {
            "maxUnavailable": unavailable,
            "selector": selector,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",  # one that does not work holds nobody up
        },
    }


def _pod_monitor(source: Source) -> Document:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "silomix", "labels": {NAME_LABEL: "silomix"}},
        "spec": {
            "jobLabel": FEDERATION_LABEL,
            "selector": {"matchLabels": {NAME_LABEL: "silomix", FEDERATION_LABEL: source.federation.name}},
            "podMetricsEndpoints": [{"port": "metrics", "interval": "15s"}],
        },
    }


def kustomization(why: str, **content: Any) -> bytes:
    """Write a kustomization, below what it is for."""
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return yaml_bytes(MADE + why, {**head, **content})
