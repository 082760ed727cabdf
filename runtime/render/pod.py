"""What is in a node's pod: one container with everything locked that can be, its volumes and its probes.

Secrets are mounted with the group's rights, since kubelet gives no file to a user; nodes refuse private keys that a
group can read. So whenever the container starts it copies them, with mode 600, into memory that only this pod has: a
Secret that was mended is taken up by the next start.
"""

from dataclasses import dataclass
from shlex import join
from typing import Any

from silomix.runtime.config.kinds import Role
from silomix.runtime.net.names import ALIVE_PATH, READY_PATH
from silomix.runtime.render.capacity import MIB, needs, place_of
from silomix.runtime.render.source import KEY_FILES, METRICS_PORT, USER, Source
from silomix.runtime.store.home import CERTIFICATE_FILE, CERTIFICATE_KEY_FILE, INITIAL_MODEL

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
MODEL_PATH = "/model"
TRAINING_BYTES = 1024 * MIB
"""Guess at what a task takes while it trains, for those who have not measured theirs."""
BURST_S = 10
"""A round's work is to be done in that time on the processor that was asked for."""
LEAST_CPU_M, MOST_CPU_M = 100, 2000

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


@dataclass(frozen=True)
class Wants:
    """What whoever runs a node's pod wants of it."""

    issuer: str = ""
    """cert-manager's Issuer of the TLS certificate; without one it comes with the keys."""
    proxy: str = ""
    """http://HOST:PORT, if a node may dial out through an HTTP proxy alone."""
    data_claim: str = ""
    """PersistentVolumeClaim with a silo's records, mounted read-only; {name} stands for the silo."""
    model_claim: str = ""
    """PersistentVolumeClaim with the aggregator's first model; without one the task makes it."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets with which images are pulled."""
    silo_cpu: str = "1"
    silo_memory: str = ""
    """What training takes, on top of the runtime: only the task's owner knows; a guess stands in for it."""


def pod_spec(name: str, role: Role, source: Source, wants: Wants) -> Document:
    """Make the pod, with no way to change anything but its own volume."""
    mounts = [
        _mount("federation", FEDERATION_PATH, read_only=True),
        _mount("node", NODE_PATH, read_only=True),
        _mount("secret", SECRET_PATH, read_only=True),
        _mount("keys", KEYS_PATH),
        _mount("state", STATE_PATH),
        _mount("tmp", "/tmp"),  # noqa: S108 - a volume of this pod
    ]
    volumes: list[Document] = [
        {"name": "federation", "configMap": {"name": "federation"}},
        {"name": "node", "configMap": {"name": f"{name}-node"}},
        {"name": "secret", "projected": {"defaultMode": 0o440, "sources": _secrets(name, wants.issuer)}},
        {"name": "keys", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
    ]
    if wants.data_claim and role is Role.SILO:
        mounts.append(_mount("data", DATA_PATH, read_only=True))
        volumes.append(_claimed("data", wants.data_claim))
    if wants.model_claim and role is Role.AGGREGATOR:
        volumes.append(_claimed("model", wants.model_claim))
    ports: list[Document] = [{"name": "metrics", "containerPort": METRICS_PORT}]
    if role is not Role.SILO:
        ports.insert(0, {"name": "grpc", "containerPort": source.port(name)})
    container = {
        "name": "silomix",
        "image": TRAIN_IMAGE if trains(name, role, source) else IMAGE,
        "command": _command(role),
        **({"env": [{"name": "https_proxy", "value": wants.proxy}]} if wants.proxy else {}),
        "ports": ports,
        **_probes(role),
        "resources": resources(name, role, source, wants),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }
    spec: Document = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        **({"imagePullSecrets": [{"name": secret} for secret in wants.pull_secrets]} if wants.pull_secrets else {}),
        **({"initContainers": [_first_model(wants)]} if role is Role.AGGREGATOR else {}),
        "containers": [container],
        "volumes": volumes,
    }
    return spec


def _command(role: Role) -> list[str]:
    """Copy the keys, then become the node: it has the shell's place, and hears every signal."""
    copy = join(["install", "-m", "0600", *(f"{SECRET_PATH}/{file}" for file in KEY_FILES), f"{KEYS_PATH}/"])
    return ["sh", "-c", f"{copy} && exec {join(['silomix', str(role), '--config', NODE_PATH])}"]


def _first_model(wants: Wants) -> Document:
    """Put the model before round 1 in place: only the train image has the task that makes it."""
    model = f"{STATE_PATH}/{INITIAL_MODEL}"
    if wants.model_claim:
        bring = f"{{ cp {MODEL_PATH}/{INITIAL_MODEL} {model}.new && mv {model}.new {model}; }}"
        from_claim = [_mount("model", MODEL_PATH, read_only=True)]
    else:
        bring = f"exec silomix model init --config {FEDERATION_PATH} --out {model}"
        from_claim = []
    return {
        "name": "initial-model",
        "image": TRAIN_IMAGE,
        "command": ["sh", "-c", f"test -f {model} || {bring}"],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            _mount("federation", FEDERATION_PATH, read_only=True),
            _mount("state", STATE_PATH),
            _mount("tmp", "/tmp"),  # noqa: S108 - a volume of this pod
            *from_claim,
        ],
    }


def _probes(role: Role) -> Document:
    """Ask beside the metrics, where an answer costs next to nothing: a process of its own took half a CPU second."""

    def ask(path: str) -> Document:
        return {"httpGet": {"path": path, "port": "metrics"}, "timeoutSeconds": 5}

    patience = 360 if role is Role.SILO else 60  # a silo reads its records before it is there, others compile at most
    found: Document = {
        "startupProbe": {**ask(ALIVE_PATH), "periodSeconds": 5, "failureThreshold": patience},
        "livenessProbe": {**ask(ALIVE_PATH), "periodSeconds": 30, "failureThreshold": 3},
    }
    if role is not Role.SILO:  # nobody is sent to a silo, so it need not be ready for anybody
        found["readinessProbe"] = {**ask(READY_PATH), "periodSeconds": 10, "failureThreshold": 2}
    return found


def trains(name: str, role: Role, source: Source) -> bool:
    """Whether a node needs the task, and with it the larger image."""
    return role is Role.SILO or bool(source.settings(name).get("evaluate"))


def resources(name: str, role: Role, source: Source, wants: Wants) -> Document:
    """What a node asks its machine for, by the capacity formula."""
    need = needs(place_of(name, role, source.federation), source.load)
    memory = need.memory_bytes
    if role is Role.SILO:
        request = {"cpu": wants.silo_cpu, "memory": wants.silo_memory or _mebi(memory + TRAINING_BYTES)}
        limit = wants.silo_memory or _mebi((memory + TRAINING_BYTES) * 3 // 2)
    else:
        millis = min(MOST_CPU_M, max(LEAST_CPU_M, round(need.cpu_s * 1000 / BURST_S / 10) * 10))
        request = {"cpu": f"{millis}m", "memory": _mebi(memory)}
        limit = _mebi(memory * 3 // 2)
    return {"requests": request, "limits": {"memory": limit}}


def _secrets(name: str, issuer: str) -> list[Document]:
    own: Document = {"secret": {"name": f"{name}-keys"}}
    if not issuer:
        return [own]
    items = [{"key": "tls.crt", "path": CERTIFICATE_FILE}, {"key": "tls.key", "path": CERTIFICATE_KEY_FILE}]
    return [own, {"secret": {"name": tls_secret(name), "items": items}}]


def tls_secret(name: str) -> str:
    """The Secret that cert-manager keeps a node's certificate in."""
    return f"{name}-tls"


def _claimed(volume: str, claim: str) -> Document:
    return {"name": volume, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


def _mount(volume: str, path: str, *, read_only: bool = False) -> Document:
    return {"name": volume, "mountPath": path, **({"readOnly": True} if read_only else {})}


def _mebi(size: int) -> str:
    return f"{-(-size // (16 * MIB)) * 16}Mi"
