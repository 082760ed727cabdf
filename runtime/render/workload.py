"""One node as Kubernetes objects: a StatefulSet with everything locked that can be, its Service, its settings.

Secrets are mounted with the group's rights, since kubelet gives no file to a user; nodes refuse private keys that a
group can read. So a first container copies them, with mode 600, into memory that only this pod has.
"""

from typing import Any

from silomix.runtime.config.keys import NODE_KEYS
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.texts import node_text
from silomix.runtime.render.capacity import MIB, needs, place_of
from silomix.runtime.render.network import FEDERATION_LABEL, ROLE_LABEL, node_labels
from silomix.runtime.render.source import KEY_FILES, METRICS_PORT, USER, RenderError, Source
from silomix.runtime.store.home import (
    CAPTURE_DIRECTORY,
    CERTIFICATE_FILE,
    CERTIFICATE_KEY_FILE,
    FEDERATION_FILE,
    IDENTITY_FILE,
    INITIAL_MODEL,
)

Document = dict[str, Any]

IMAGE = "silomix"
TRAIN_IMAGE = "silomix-train"
"""Names that overlays replace by where the images really are."""
FEDERATION_PATH = "/etc/silomix/federation"
NODE_PATH = "/etc/silomix/node"
SECRET_PATH = "/etc/silomix/secret"  # noqa: S105 - a path
KEYS_PATH = "/run/silomix/keys"
STATE_PATH = "/var/lib/silomix"
DATA_PATH = "/data"
MQTT_FILES = ("anchor", "certificate", "key", "password_file")
PROBE_BYTES = 64 * MIB
"""Memory of the probe's process, which runs beside the node."""
TRAINING_BYTES = 1024 * MIB
"""Guess at what a task takes while it trains, for those who have not measured theirs."""
BURST_S = 10
"""A round's work is to be done in that time on the processor that was asked for."""
LEAST_CPU_M, MOST_CPU_M = 100, 2000
LEAST_DISK_GIB = 1

CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}


def labels(name: str, role: Role, source: Source) -> dict[str, str]:
    """What a node's objects are found by."""
    return {**node_labels(name), ROLE_LABEL: str(role), FEDERATION_LABEL: source.federation.name}


def tls_secret(name: str) -> str:
    """The Secret that cert-manager keeps a node's certificate in."""
    return f"{name}-tls"


def node_settings(name: str, role: Role, source: Source) -> str:
    """Write the node's file: its own settings, with the places that a pod has."""
    own = {key: value for key, value in source.settings(name).items() if key != "task_options"}
    if "capture" in own:
        own["capture"] = f"{STATE_PATH}/{CAPTURE_DIRECTORY}"
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


def stateful_set(
    name: str,
    role: Role,
    source: Source,
    *,
    issuer: str,
    storage_class: str,
    proxy: str,
    data_claim: str,
    silo_cpu: str,
    silo_memory: str,
) -> Document:
    """Make the workload: one pod with a volume of its own, and no way to change anything else."""
    pod_labels = labels(name, role, source)
    need = needs(place_of(name, role, source.federation), source.load)
    trains = role is Role.SILO or bool(source.settings(name).get("evaluate"))
    mounts = [
        _mount("federation", FEDERATION_PATH, read_only=True),
        _mount("node", NODE_PATH, read_only=True),
        _mount("keys", KEYS_PATH, read_only=True),
        _mount("state", STATE_PATH),
        _mount("tmp", "/tmp"),  # noqa: S108 - a volume of this pod
    ]
    volumes: list[Document] = [
        {"name": "federation", "configMap": {"name": "federation"}},
        {"name": "node", "configMap": {"name": f"{name}-node"}},
        {"name": "secret", "projected": {"defaultMode": 0o440, "sources": _secrets(name, issuer)}},
        {"name": "keys", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
    ]
    if data_claim:
        mounts.append(_mount("data", DATA_PATH, read_only=True))
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": data_claim, "readOnly": True}})
    memory = need.memory_bytes + PROBE_BYTES
    if role is Role.SILO:
        request = {"cpu": silo_cpu, "memory": silo_memory or _mebi(memory + TRAINING_BYTES)}
        limit = silo_memory or _mebi((memory + TRAINING_BYTES) * 3 // 2)
    else:
        millis = min(MOST_CPU_M, max(LEAST_CPU_M, round(need.cpu_s * 1000 / BURST_S / 10) * 10))
        request = {"cpu": f"{millis}m", "memory": _mebi(memory)}
        limit = _mebi(memory * 3 // 2)
    ports: list[Document] = [{"name": "metrics", "containerPort": METRICS_PORT}]
    if role is not Role.SILO:
        ports.insert(0, {"name": "grpc", "containerPort": source.port(name)})
    container = {
        "name": "silomix",
        "image": TRAIN_IMAGE if trains else IMAGE,
        "args": [str(role), "--config", NODE_PATH],
        **({"env": [{"name": "https_proxy", "value": proxy}]} if proxy else {}),
        "ports": ports,
        **_probes(role),
        "resources": {"requests": request, "limits": {"memory": limit}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }
    spec: Document = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "initContainers": _first_containers(role, trains),
        "containers": [container],
        "volumes": volumes,
    }
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
            "serviceName": name,
            "selector": {"matchLabels": node_labels(name)},
            "template": {"metadata": metadata, "spec": spec},
            "volumeClaimTemplates": [_claim(role, need.disk_bytes, storage_class)],
        },
    }


def _first_containers(role: Role, trains: bool) -> list[Document]:
    image = TRAIN_IMAGE if trains else IMAGE
    small = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}}
    files = [f"{SECRET_PATH}/{file}" for file in KEY_FILES]
    found = [
        {
            "name": "keys",
            "image": image,
            "command": ["install", "-m", "0600", *files, f"{KEYS_PATH}/"],
            "resources": small,
            "securityContext": CONTAINER_SECURITY,
            "volumeMounts": [_mount("secret", SECRET_PATH, read_only=True), _mount("keys", KEYS_PATH)],
        }
    ]
    if role is Role.AGGREGATOR:  # the task makes the model before round 1, and only the train image has the task
        model = f"{STATE_PATH}/{INITIAL_MODEL}"
        write = f"test -f {model} || exec silomix model init --config {FEDERATION_PATH} --out {model}"
        found.append(
            {
                "name": "initial-model",
                "image": TRAIN_IMAGE,
                "command": ["sh", "-c", write],
                "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}},
                "securityContext": CONTAINER_SECURITY,
                "volumeMounts": [
                    _mount("federation", FEDERATION_PATH, read_only=True),
                    _mount("state", STATE_PATH),
                    _mount("tmp", "/tmp"),  # noqa: S108 - a volume of this pod
                ],
            }
        )
    return found


def _probes(role: Role) -> Document:
    """Ask the node itself: it listens behind mutual TLS, which no probe of kubelet's own speaks."""
    ask = {"exec": {"command": ["silomix", "health", "--config", NODE_PATH]}, "timeoutSeconds": 10}
    patience = 360 if role is Role.SILO else 60  # a silo reads its records before it is there, others compile at most
    found: Document = {
        "startupProbe": {**ask, "periodSeconds": 5, "failureThreshold": patience},
        "livenessProbe": {**ask, "periodSeconds": 60, "failureThreshold": 3},
    }
    if role is not Role.SILO:  # nobody is sent to a silo, so it need not be ready for anybody
        found["readinessProbe"] = {**ask, "periodSeconds": 20, "failureThreshold": 2}
    return found


def _secrets(name: str, issuer: str) -> list[Document]:
    own: Document = {"secret": {"name": f"{name}-keys"}}
    if not issuer:
        return [own]
    items = [{"key": "tls.crt", "path": CERTIFICATE_FILE}, {"key": "tls.key", "path": CERTIFICATE_KEY_FILE}]
    return [own, {"secret": {"name": tls_secret(name), "items": items}}]


def _claim(role: Role, disk_bytes: int, storage_class: str) -> Document:
    gib = max(LEAST_DISK_GIB, -(-disk_bytes * 5 // (4 << 30)))
    metadata: Document = {"name": "state"}
    if role is Role.SHUFFLER:  # a copy would keep round keys that were deleted here
        metadata |= {"labels": {"velero.io/exclude-from-backup": "true"}, "annotations": {"k8up.io/backup": "false"}}
    return {
        "metadata": metadata,
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            **({"storageClassName": storage_class} if storage_class else {}),
            "resources": {"requests": {"storage": f"{gib}Gi"}},
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


def _mount(volume: str, path: str, *, read_only: bool = False) -> Document:
    return {"name": volume, "mountPath": path, **({"readOnly": True} if read_only else {})}


def _mebi(size: int) -> str:
    return f"{-(-size // (16 * MIB)) * 16}Mi"
