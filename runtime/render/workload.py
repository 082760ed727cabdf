"""One node as Kubernetes objects: a StatefulSet around its pod, its Service, its settings."""

from typing import Any

from silomix.runtime.config.enrol import node_text
from silomix.runtime.config.keys import NODE_KEYS
from silomix.runtime.config.kinds import Role
from silomix.runtime.render.network import FEDERATION_LABEL, ROLE_LABEL, node_labels
from silomix.runtime.render.pod import (
    FEDERATION_PATH,
    KEYS_PATH,
    STATE_PATH,
    Document,
    Wants,
    pod_spec,
    tls_secret,
)
from silomix.runtime.render.source import METRICS_PORT, RenderError, Source
from silomix.runtime.store.home import (
    CAPTURE_DIRECTORY,
    CERTIFICATE_FILE,
    CERTIFICATE_KEY_FILE,
    FEDERATION_FILE,
    IDENTITY_FILE,
    INITIAL_MODEL,
)

MQTT_FILES = ("anchor", "certificate", "key", "password_file")


def labels(name: str, role: Role, source: Source) -> dict[str, str]:
    """What a node's objects are found by."""
    return {**node_labels(name), ROLE_LABEL: str(role), FEDERATION_LABEL: source.federation.name}


def node_settings(name: str, role: Role, source: Source, model_claim: str = "") -> str:
    """Write the node's file: its own settings, with the places that a pod has."""
    own = {key: value for key, value in source.settings(name).items() if key != "task_options"}
    if "capture" in own:
        own["capture"] = f"{STATE_PATH}/{CAPTURE_DIRECTORY}"
    if role is Role.AGGREGATOR and not model_claim:
        _check_model(own.get("initial_model", INITIAL_MODEL), name, source)
    for key in MQTT_FILES:
        if (path := own.get("mqtt", {}).get(key)) and not path.startswith("/"):
            raise RenderError(
                f"{source.home / name}: mqtt.{key}: {path} is not in the pod; give the path that you mount it at, or "
                "leave it out: the broker is then shown the node's own certificate"
            )
    places: dict[str, Any] = {
        "role": role,
        "name": name,
        "federation": f"{FEDERATION_PATH}/{FEDERATION_FILE}",
        "directory": f"{STATE_PATH}/state",
        "identity": f"{KEYS_PATH}/{IDENTITY_FILE}",
        "certificate": f"{KEYS_PATH}/{CERTIFICATE_FILE}",
        "key": f"{KEYS_PATH}/{CERTIFICATE_KEY_FILE}",
        "metrics_port": METRICS_PORT,
        "metrics_host": "0.0.0.0",  # noqa: S104 - the network policy says who may read them
        "log": "json",
        "linger": True,
        "initial_model": f"{STATE_PATH}/{INITIAL_MODEL}",
    }
    if role is not Role.SILO:
        port = source.port(name)
        if port == METRICS_PORT:
            raise RenderError(f"{source.file}: {name}: port {port} is for metrics in a pod; give it another address")
        places["listen"] = f"0.0.0.0:{port}"
    places = {key: value for key, value in places.items() if role in NODE_KEYS[key].roles}
    return node_text({**own, **places}, source.settings(name).get("task_options", {}))


def _check_model(path: str, name: str, source: Source) -> None:
    """In a pod the task makes the first model: say so before one of somebody's own is left out."""
    if path not in (INITIAL_MODEL, f"{STATE_PATH}/{INITIAL_MODEL}"):
        raise RenderError(
            f"{source.home / name}: initial_model: {path} is not in the pod; put it as {INITIAL_MODEL} on a volume and "
            "give --initial-model-claim, or leave the key out: the task then makes the first model"
        )


def stateful_set(
    name: str, role: Role, source: Source, wants: Wants, *, storage_class: str, volume_size: str, alone: bool
) -> Document:
    """Make the workload: one pod with a volume of its own.

    Pods are managed in parallel: a StatefulSet that waits for its pod to be ready never replaces one that cannot be.
    Among others in one cluster a pod is replaced when somebody deletes it, and not when the template changes: else a
    new image, or another size of the model, would take every node away at once.
    """
    pod_labels = labels(name, role, source)
    spec = pod_spec(name, role, source, wants)
    if role is Role.SHUFFLER:  # one machine that fails should take one hop
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {ROLE_LABEL: str(role)}},
            }
        ]
    metadata: Document = {"labels": pod_labels, "annotations": {"kubectl.kubernetes.io/default-container": "silomix"}}
    if role is Role.SHUFFLER:
        metadata["annotations"]["backup.velero.io/backup-volumes-excludes"] = "state"
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "labels": pod_labels},
        "spec": {
            "replicas": 1,  # two processes of one node would each release a round
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate" if alone else "OnDelete"},
            "serviceName": name,
            "selector": {"matchLabels": node_labels(name)},
            "template": {"metadata": metadata, "spec": spec},
            "volumeClaimTemplates": [_claim(role, volume_size, storage_class)],
        },
    }


def _claim(role: Role, size: str, storage_class: str) -> Document:
    """Ask for a volume. Nothing here may follow from the policy: a StatefulSet lets nobody change it later."""
    metadata: Document = {"name": "state"}
    if role is Role.SHUFFLER:  # a copy would keep round keys that were deleted here
        metadata |= {"labels": {"velero.io/exclude-from-backup": "true"}, "annotations": {"k8up.io/backup": "false"}}
    return {
        "metadata": metadata,
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            **({"storageClassName": storage_class} if storage_class else {}),
            "resources": {"requests": {"storage": size}},
        },
    }


def service(name: str, role: Role, source: Source) -> Document:
    """Give a server one address that outlives its pods, and a silo a name for its metrics."""
    if role is Role.SILO:
        spec: Document = {"clusterIP": "None", "ports": [_service_port("metrics", METRICS_PORT)]}
    else:
        spec = {"ports": [_service_port("grpc", source.port(name))]}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels(name, role, source)},
        "spec": {**spec, "selector": node_labels(name)},
    }


def certificate(name: str, role: Role, source: Source, issuer: str) -> Document:
    """Have cert-manager keep a TLS certificate for a node, under its name on the roster."""
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": {"name": tls_secret(name), "labels": labels(name, role, source)},
        "spec": {
            "secretName": tls_secret(name),
            "commonName": name,
            "dnsNames": [name, "localhost"],
            "duration": "2160h",
            "renewBefore": "1080h",
            "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
            "usages": ["digital signature", "client auth", "server auth"],
            "issuerRef": {"name": issuer, "kind": "Issuer"},
        },
    }


def _service_port(name: str, port: int) -> Document:
    return {"name": name, "port": port, "targetPort": name}
