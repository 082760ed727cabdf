"""The values of the Helm chart in deploy/helm, for one node in its owner's own cluster.

The chart knows what every node has in common, and these values what is this one's. No key is among them: values are
kept with every release, so keys come from Secrets that the owner has made.
"""

from typing import Any

from silomix.runtime.config.kinds import Role
from silomix.runtime.render.network import Surroundings, edges
from silomix.runtime.render.overlay import proxy_of
from silomix.runtime.render.pod import Wants, resources, trains
from silomix.runtime.render.source import METRICS_PORT, RenderError, Source, installed_version, yaml_bytes
from silomix.runtime.render.workload import node_settings

MADE = """\
Written by `silomix render helm`: change the federation or the options, and write it again.
helm install {name} deploy/helm/silomix-node --values FILE
"""


def values(name: str, source: Source, around: Surroundings, wants: Wants) -> dict[str, Any]:
    """Work out what the chart needs to know of a node."""
    role = source.nodes.get(name)
    if role is None:
        raise RenderError(f"--node {name}: no node has this name; there are {', '.join(source.nodes)}")
    (policy,) = edges(source, around)
    (image, train) = ({"repository": image, "tag": installed_version()} for image in ("silomix", "silomix-train"))
    found = {
        "role": str(role),
        "name": name,
        "federation": source.federation.name,
        "files": {str(path): data.decode() for path, data in source.public_files().items()},
        "nodeToml": node_settings(name, role, source, wants.model_claim),
        "port": 0 if role is Role.SILO else source.port(name),
        "ingress": [rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] != METRICS_PORT],
        "egress": policy["spec"]["egress"],
        "resources": resources(name, role, source, wants),
        "trains": trains(name, role, source),
        "image": image,
        "trainImage": train,
        "initialModelClaim": wants.model_claim,
        "dataClaim": wants.data_claim.replace("{name}", name),
        "proxy": wants.proxy,
    }
    return {key: value for key, value in found.items() if value != ""}


def text(name: str, source: Source, around: Surroundings, wants: Wants) -> bytes:
    """Write the values as a file for `helm --values`."""
    return yaml_bytes(MADE.format(name=name), values(name, source, around, wants))


def surroundings(name: str, cidrs: dict[str, tuple[str, ...]], proxy: str) -> Surroundings:
    """A node that has its owner's cluster to itself: all others are outside."""
    return Surroundings(frozenset([name]), cidrs, "", proxy_of(proxy) if proxy else None)
