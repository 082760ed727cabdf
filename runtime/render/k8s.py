"""A federation as kustomize files: a base with a directory for each node, and overlays for who runs what where.

base/                   the namespace, what every pod may and may not, and the federation's public files
base/NODE/              one node: its workload, its node.toml, and its keys, which are never committed
overlays/all-in-one/    every node in one cluster
overlays/NODE/          one node in its owner's own cluster: a silo there only dials out
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from silomix.runtime.config.kinds import Role
from silomix.runtime.render.capacity import needs, place_of
from silomix.runtime.render.network import always
from silomix.runtime.render.overlay import ALL_IN_ONE, MADE, Cluster, kustomization, overlay
from silomix.runtime.render.pod import Wants
from silomix.runtime.render.source import KEY_FILES, Files, RenderError, Source, yaml_bytes
from silomix.runtime.render.workload import certificate, node_settings, service, stateful_set
from silomix.runtime.store.home import ANCHOR_FILE, IDENTITY_FILE, NODE_FILE

__all__ = ["Cluster", "Wants", "keys", "overlay_name", "remarks", "render"]

NAMED_AS_THEY_ARE = {"disableNameSuffixHash": True}
"""With a hash in its name a changed file would restart every pod that mounts it, all of them at once, and leave the old
object behind, which for keys is a Secret that nobody knows of. A node reads its files when it starts."""
MAX_NAME = 52
"""A StatefulSet's pods carry its name and a hash in a label of at most 63 characters."""


def render(source: Source, cluster: Cluster) -> Files:
    """Make all files for one overlay, with what it needs of the base."""
    nodes = _nodes(source, cluster)
    _check_names(nodes, source)
    if cluster.wants.issuer and source.federation.pinned:
        raise RenderError(
            f"--cert-manager {cluster.wants.issuer}: {source.file} pins each node's own certificate, and peers would "
            "refuse an Issuer's; leave it out, or assemble the federation with --anchor ca.pem"
        )
    if cluster.overlay == ALL_IN_ONE:
        _check_addresses(source, cluster.namespace)
        if cluster.wants.proxy:
            raise RenderError("--proxy: inside one cluster nodes dial each other; give it with --overlay and a role")
    files = {Path("base") / path: data for path, data in _base(source, cluster).items()}
    for name, role in nodes.items():
        for path, data in _node(name, role, source, cluster).items():
            files[Path("base") / name / path] = data
    for path, data in overlay(nodes, source, cluster).items():
        files[Path("overlays") / overlay_name(nodes, cluster) / path] = data
    return files


def keys(source: Source, cluster: Cluster) -> tuple[dict[Path, Path], list[Path]]:
    """Find the keys that the base refers to: which are here to be copied, and which somebody has to bring."""
    here: dict[Path, Path] = {}
    missing: list[Path] = []
    for name in _nodes(source, cluster):
        for file in _key_files(cluster):
            path, origin = Path("base") / name / file, source.home / name / file
            if origin.is_file():
                here[path] = origin
            else:
                missing.append(path)
    return here, missing


def remarks(source: Source, cluster: Cluster) -> list[str]:
    """Say what would be noticed too late: a volume that is too small, images by tag, whose the first model is."""
    nodes, found = _nodes(source, cluster), []
    room = _bytes(cluster.volume_size)
    for name, role in nodes.items():
        need = needs(place_of(name, role, source.federation), source.load).disk_bytes
        if need > room * 4 // 5:
            found.append(
                f"{name}: {source.federation.policy.rounds} rounds take {need / 1e9:.1f} GB and its volume has "
                f"{cluster.volume_size}: give a larger --volume-size, or expand a volume that is there already"
            )
    for option, image in (("--image", cluster.image), ("--train-image", cluster.train_image)):
        if "@sha256:" not in image:
            found.append(
                f"{option}: by tag, which may come to mean another image; NAME@sha256:DIGEST means one for ever"
            )
    if Role.AGGREGATOR in nodes.values() and not cluster.wants.model_claim:
        found.append("the task makes the first model, in the aggregator's pod; --initial-model-claim brings another")
    return found


def _bytes(quantity: str) -> int:
    """Read a size as Kubernetes writes it."""
    number = quantity.rstrip("kMGTi")
    unit = quantity[len(number) :]
    power = 1 + "kMGT".index(unit[0]) if unit else 0
    return int(float(number) * (1024 if unit.endswith("i") else 1000) ** power)


def overlay_name(nodes: Mapping[str, Role], cluster: Cluster) -> str:
    """Name the overlay's directory: by the node that has the cluster to itself."""
    return ALL_IN_ONE if cluster.overlay == ALL_IN_ONE else next(iter(nodes))


def _nodes(source: Source, cluster: Cluster) -> dict[str, Role]:
    """Choose the nodes that run in this cluster."""
    if cluster.overlay == ALL_IN_ONE:
        if cluster.node:
            raise RenderError(f"--node {cluster.node}: all-in-one has every node; give --overlay with its role")
        return source.nodes
    role = Role(cluster.overlay)
    names = [name for name, found in source.nodes.items() if found is role]
    if not cluster.node:
        owned = [name for name in names if source.here(name)]
        if len(names) > 1 and len(owned) != 1:
            raise RenderError(f"--overlay {role}: which one? give --node with one of {', '.join(names)}")
        return {owned[0] if len(names) > 1 else names[0]: role}
    if cluster.node not in names:
        raise RenderError(f"--node {cluster.node}: no {role} has this name; there are {', '.join(names)}")
    return {cluster.node: role}


def _check_names(nodes: Mapping[str, Role], source: Source) -> None:
    for name in nodes:
        if len(name) > MAX_NAME or not name[0].isalpha():
            raise RenderError(
                f"{source.file}: {name}: Kubernetes needs a name of at most {MAX_NAME} characters that begins with a "
                "letter; the owners would have to agree on another"
            )


def _check_addresses(source: Source, namespace: str) -> None:
    """Inside one cluster nodes find each other as Services, so the roster must have those names."""
    for name, role in source.nodes.items():
        if role is Role.SILO:
            continue
        full = f"{name}.{namespace}.svc.cluster.local"
        names = {full, full.removesuffix(".cluster.local"), f"{name}.{namespace}", name}
        if source.host(name) not in names:
            raise RenderError(
                f"{source.file}: {name}: its address {source.federation.member(name).address} is not that of a Service "
                f"in namespace {namespace}: make the federation with --host '{{name}}.{namespace}.svc', or render "
                "--overlay silo, shuffler and aggregator for clusters of their own"
            )


def _base(source: Source, cluster: Cluster) -> Files:
    hardened = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": cluster.namespace, "labels": hardened}}
    return {
        **source.public_files(),
        Path("namespace.yaml"): yaml_bytes(
            MADE + "Deleting the namespace deletes the journals, without which no shuffler can come back.", namespace
        ),
        Path("network.yaml"): yaml_bytes(
            MADE + "Nobody may talk to anybody, but for names; overlays open the protocol's connections one by one.\n"
            "A cluster that resolves names on each node (node-local DNS) has to add that address.",
            *always(),
        ),
        Path("kustomization.yaml"): kustomization(
            "What every cluster of the federation has: the public files, and a namespace in which nothing is allowed.",
            resources=["namespace.yaml", "network.yaml"],
            configMapGenerator=[{"name": "federation", "files": list(map(str, source.public_files()))}],
            generatorOptions=NAMED_AS_THEY_ARE,
        ),
    }


def _node(name: str, role: Role, source: Source, cluster: Cluster) -> Files:
    workload = stateful_set(
        name,
        role,
        source,
        replace(cluster.wants, data_claim=cluster.wants.data_claim.replace("{name}", name)),
        storage_class=cluster.storage_class,
        volume_size=cluster.volume_size,
        alone=cluster.overlay != ALL_IN_ONE,
    )
    files = {
        Path("workload.yaml"): yaml_bytes(MADE + _about(role), workload, service(name, role, source)),
        Path(NODE_FILE): node_settings(name, role, source, cluster.wants.model_claim).encode(),
        Path(".gitignore"): "".join(f"/{file}\n" for file in KEY_FILES).encode(),
    }
    resources = ["workload.yaml"]
    if cluster.wants.issuer:
        files[Path("certificate.yaml")] = yaml_bytes(
            MADE + f"Its issuer must be the CA in {ANCHOR_FILE}. A node reads its certificate when it starts: restart "
            "it after a renewal.",
            certificate(name, role, source, cluster.wants.issuer),
        )
        resources.append("certificate.yaml")
    files[Path("kustomization.yaml")] = kustomization(
        f"{name}: its own settings and keys. The key files are secret: they stay out of version control.",
        resources=resources,
        configMapGenerator=[{"name": f"{name}-node", "files": [NODE_FILE]}],
        secretGenerator=[{"name": f"{name}-keys", "files": list(_key_files(cluster))}],
        generatorOptions=NAMED_AS_THEY_ARE,
    )
    return files


def _key_files(cluster: Cluster) -> tuple[str, ...]:
    return (IDENTITY_FILE,) if cluster.wants.issuer else KEY_FILES


def _about(role: Role) -> str:
    return {
        Role.AGGREGATOR: "The aggregator, which announces rounds and makes the next model of their sums.",
        Role.SHUFFLER: "A hop. Its volume holds round keys and what was released: it must survive restarts, and must "
        "never be\nbacked up, snapshotted or copied.",
        Role.SILO: "A silo, which only dials out. Its Service is for names and metrics; nothing of the protocol "
        "listens here.",
    }[role]
