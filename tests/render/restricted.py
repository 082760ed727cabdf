"""Pod Security "restricted", as Kubernetes' documentation of the Pod Security Standards lists it: what a pod breaks."""

from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
}
PROFILES = {"RuntimeDefault", "Localhost"}


def broken(pod: Document) -> list[str]:
    """Name every control of the profile that a pod's spec breaks."""
    return [*_pod(pod), *(rule for kind in KINDS for one in pod.get(kind, []) for rule in _container(one, pod))]


KINDS = ("initContainers", "containers", "ephemeralContainers")


def _pod(pod: Document) -> Iterator[str]:
    security = pod.get("securityContext", {})
    if any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
        yield "host namespaces"
    if any(kind not in VOLUMES for volume in pod.get("volumes", []) for kind in volume if kind != "name"):
        yield "volume types"
    if any(one["name"] not in SYSCTLS for one in security.get("sysctls", [])):
        yield "sysctls"
    if security.get("runAsUser") == 0:
        yield "running as non-root user"
    if "windowsOptions" in security or security.get("seLinuxOptions") or "appArmorProfile" in security:
        yield "profiles of others"


def _container(container: Document, pod: Document) -> Iterator[str]:
    own, shared = container.get("securityContext", {}), pod.get("securityContext", {})
    if own.get("privileged"):
        yield "privileged containers"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "host ports"
    if own.get("procMount", "Default") != "Default":
        yield "/proc mount type"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "privilege escalation"
    if own.get("runAsNonRoot", shared.get("runAsNonRoot")) is not True:
        yield "running as non-root"
    if own.get("runAsUser") == 0:
        yield "running as non-root user"
    if own.get("seccompProfile", shared.get("seccompProfile", {})).get("type") not in PROFILES:
        yield "seccomp"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "capabilities"
