"""What `silomix render k8s` writes: valid for several Kubernetes versions, locked down, complete, and as committed."""

import copy
import functools
import json
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.render.rendered import IN_CLUSTER, TASK, Document, documents, federation, of_kind, problem, source

from silomix.runtime.cli import main, make_parser
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_node
from silomix.runtime.local import create
from silomix.runtime.observe.pulse import Pulse
from silomix.runtime.render.k8s import Cluster, Wants, remarks, render
from silomix.runtime.render.source import KEY_FILES, METRICS_PORT, Files, RenderError, Source, load_source

COMMITTED = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ["1.27", "1.30", "1.33", "1.36", "1.37"]
KUBECTL = shutil.which("kubectl") or ""
needs_kubectl = pytest.mark.skipif(not KUBECTL, reason="kubectl is not installed")
OPERATORS = {"PodMonitor", "Certificate"}
"""Kinds of the Prometheus operator and of cert-manager: their schemas are not Kubernetes' own."""
PARSER = make_parser()
ELSEWHERE = "{name}.example.org"
CLUSTERS = {
    "all-in-one": (None, Cluster(pod_monitor=True)),
    "silo": (
        ELSEWHERE,
        Cluster(overlay="silo", node="silo-02", wants=Wants(data_claim="records"), storage_class="fast"),
    ),
    "shuffler": (ELSEWHERE, Cluster(overlay="shuffler", node="shuffler-1", wants=Wants(issuer="federation-ca"))),
    "aggregator": (
        ELSEWHERE,
        Cluster(
            overlay="aggregator",
            image="registry.example.org:5000/silomix@sha256:" + 64 * "a",
            wants=Wants(model_claim="pretrained", pull_secrets=("registry", "mirror")),
        ),
    ),
}


@functools.cache
def made(name: str) -> Files:
    host, cluster = CLUSTERS[name]
    return render(source() if host is None else source(host=host), cluster)


def pods(files: Files) -> Iterator[tuple[str, Document]]:
    for workload in of_kind(files, "StatefulSet"):
        yield workload["metadata"]["name"], workload["spec"]["template"]["spec"]


def containers(pod: Document) -> list[Document]:
    return [*pod.get("initContainers", []), *pod["containers"]]


# --- schemas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version"),
    [*(("all-in-one", version) for version in VERSIONS), *((name, VERSIONS[0]) for name in CLUSTERS)],
)
def test_every_object_is_valid(name: str, version: str) -> None:
    objects = [document for document in documents(made(name)) if document["kind"] not in OPERATORS]
    kinds = {document["kind"] for document in objects}
    assert kinds >= {"Namespace", "NetworkPolicy", "StatefulSet", "Service"}
    for document in objects:
        assert not problem(document, version)


@pytest.mark.parametrize(
    ("kind", "path", "wrong"),
    [
        ("StatefulSet", ("spec", "template", "spec", "containers", 0), "readynessProbe"),
        ("StatefulSet", ("spec", "template", "spec", "securityContext"), "runAsNonroot"),
        ("NetworkPolicy", ("spec",), "egres"),
        ("PodDisruptionBudget", ("spec",), "maxUnavailble"),
        ("Service", ("spec", "ports", 0), "targetport"),
    ],
)
def test_a_misspelt_field_is_caught(kind: str, path: tuple[Any, ...], wrong: str) -> None:
    document = copy.deepcopy(of_kind(made("all-in-one"), kind)[-1])
    place = document
    for step in path:
        place = place[step]
    place[wrong] = next(iter(place.values()))
    assert wrong in problem(document, VERSIONS[-1])


def test_operators_get_the_fields_that_they_have() -> None:
    """Their schemas cannot be had here, so each field is named: a new one has to be looked up."""
    (monitor,) = of_kind(made("all-in-one"), "PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"].keys() == {"jobLabel", "selector", "podMetricsEndpoints"}
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "metrics", "interval": "15s"}]
    labels = [s["spec"]["template"]["metadata"]["labels"] for s in of_kind(made("all-in-one"), "StatefulSet")]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert all(wanted.items() <= found.items() for found in labels)
    assert {found[monitor["spec"]["jobLabel"]] for found in labels} == {"hospitals"}

    (certificate,) = of_kind(made("shuffler"), "Certificate")
    assert certificate["apiVersion"] == "cert-manager.io/v1"
    assert certificate["spec"] == {
        "secretName": "shuffler-1-tls",
        "commonName": "shuffler-1",
        "dnsNames": ["shuffler-1", "localhost"],
        "duration": "2160h",
        "renewBefore": "1080h",
        "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
        "usages": ["digital signature", "client auth", "server auth"],
        "issuerRef": {"name": "federation-ca", "kind": "Issuer"},
    }


# --- locks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLUSTERS)
def test_pods_may_do_nothing_that_they_need_not(name: str) -> None:
    for _, pod in pods(made(name)):
        security = pod["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"}
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
        kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "projected", "emptyDir", "persistentVolumeClaim"}
    (namespace,) = of_kind(made(name), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_only_the_node_sees_the_secret_and_only_memory_gets_a_copy() -> None:
    for _, pod in pods(made("all-in-one")):
        for volume in ("secret", "keys"):
            assert [c["name"] for c in containers(pod) for m in c["volumeMounts"] if m["name"] == volume] == ["silomix"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["keys"]["emptyDir"]["medium"] == "Memory"


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_start_takes_up_a_secret_that_was_mended(name: str) -> None:
    """A container that starts again reads its Secret again, and no StatefulSet waits for a pod that cannot be ready."""
    for workload in of_kind(made(name), "StatefulSet"):
        assert workload["spec"]["podManagementPolicy"] == "Parallel"
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        shell, _, script = container["command"]
        copy, _, node = script.partition(" && exec ")
        assert shell == "sh"
        assert copy.split()[:3] == ["install", "-m", "0600"]
        assert {Path(file).name for file in copy.split()[3:-1]} == set(KEY_FILES)
        assert node.startswith("silomix ")


@pytest.mark.parametrize("name", CLUSTERS)
def test_an_apply_restarts_nobody_among_others_and_leaves_no_old_secret(name: str) -> None:
    """Objects of files have no hash in their names, and a changed template waits until somebody deletes the pod."""
    found = [yaml.safe_load(data) for path, data in made(name).items() if path.name == "kustomization.yaml"]
    of_files = [one for one in found if {"configMapGenerator", "secretGenerator"} & one.keys()]
    assert of_files
    assert all(one["generatorOptions"] == {"disableNameSuffixHash": True} for one in of_files)
    strategies = {workload["spec"]["updateStrategy"]["type"] for workload in of_kind(made(name), "StatefulSet")}
    assert strategies == ({"OnDelete"} if name == "all-in-one" else {"RollingUpdate"})


def test_a_volumes_size_follows_from_nothing_that_may_change() -> None:
    def claims(found: Source, cluster: Cluster) -> list[Document]:
        return [s["spec"]["volumeClaimTemplates"][0]["spec"] for s in of_kind(render(found, cluster), "StatefulSet")]

    def short(found: Source, cluster: Cluster) -> set[str]:
        return {line.partition(":")[0] for line in remarks(found, cluster) if "--volume-size" in line}

    small, large, roomy = source(), load_source(federation(), 1_000_000_000), Cluster(volume_size="1Ti")
    assert claims(small, Cluster()) == claims(large, Cluster())
    assert short(large, Cluster()) == {"aggregator"}
    assert not short(small, Cluster())
    assert not short(large, roomy)
    assert {claim["resources"]["requests"]["storage"] for claim in claims(small, roomy)} == {"1Ti"}


def test_images_by_tag_are_remarked_on_and_private_registries_get_their_secrets() -> None:
    by_digest = "registry.example.org/silomix@sha256:" + 64 * "a"
    assert len([line for line in remarks(source(), Cluster()) if "sha256" in line]) == 2
    pinned = Cluster(image=by_digest, train_image=by_digest)
    assert not [line for line in remarks(source(), pinned) if "sha256" in line]
    ((_, pod),) = pods(made("aggregator"))
    assert pod["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]
    assert "imagePullSecrets" not in next(pods(made("silo")))[1]


def test_a_first_model_of_ones_own_is_brought_or_refused(tmp_path: Path) -> None:
    ((_, pod),) = pods(made("aggregator"))
    (first,) = pod["initContainers"]
    assert "cp /model/initial.safetensors" in first["command"][-1]
    assert {"name": "model", "mountPath": "/model", "readOnly": True} in first["volumeMounts"]
    assert {"claimName": "pretrained", "readOnly": True} in (v.get("persistentVolumeClaim") for v in pod["volumes"])
    home = federation()
    public = [path.name for path in home.iterdir() if path.is_file()]
    for name in (*public, "aggregator/node.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((home / name).read_bytes())
    file = tmp_path / "aggregator/node.toml"
    file.write_text(file.read_text().replace("initial.safetensors", "mine.safetensors"))
    own, brought = load_source(tmp_path, 50), Cluster(wants=Wants(model_claim="pretrained"))
    with pytest.raises(RenderError, match=r"mine\.safetensors is not in the pod"):
        render(own, Cluster())
    assert render(own, brought)
    assert [line for line in remarks(source(), Cluster()) if "first model" in line]
    assert not [line for line in remarks(own, brought) if "first model" in line]


def test_an_issuer_is_refused_where_certificates_are_pinned(tmp_path: Path) -> None:
    """Peers know such a node by its pin: an Issuer's certificate would reach nobody."""
    create(tmp_path / "fed", 3, 2, policy=TASK, host=IN_CLUSTER, base_port=7000)
    pinned, issued = load_source(tmp_path / "fed", 50), Cluster(wants=Wants(issuer="federation-ca"))
    with pytest.raises(RenderError, match="pins each node's own certificate"):
        render(pinned, issued)
    assert render(pinned, Cluster())
    assert render(source(), issued)


def test_a_shufflers_volume_is_never_backed_up_and_the_others_may_be() -> None:
    marked = set()
    for workload in of_kind(made("all-in-one"), "StatefulSet"):
        (claim,) = workload["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["name"] == "state"
        pod = workload["spec"]["template"]["metadata"]["annotations"]
        marks = (
            claim["metadata"].get("labels", {}).get("velero.io/exclude-from-backup"),
            claim["metadata"].get("annotations", {}).get("k8up.io/backup"),
            pod.get("backup.velero.io/backup-volumes-excludes"),
        )
        assert marks in (("true", "false", "state"), (None, None, None))
        if marks[0]:
            marked.add(workload["metadata"]["name"])
    assert marked == {"shuffler-1", "shuffler-2"}


# --- completeness -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLUSTERS)
def test_whatever_is_referred_to_is_there(name: str) -> None:
    files = made(name)
    generated: set[str] = set()
    for path, data in files.items():
        if path.name == "kustomization.yaml":
            kustomization = yaml.safe_load(data)
            for generator in ("configMapGenerator", "secretGenerator"):
                for entry in kustomization.get(generator, []):
                    generated.add(entry["name"])
                    for file in entry["files"]:
                        assert path.parent / file in files or file in KEY_FILES, f"{path} generates from {file}"
            for resource in kustomization["resources"]:
                target = Path(*_resolved(path.parent / resource))
                assert target in files or target / "kustomization.yaml" in files, f"{path} lists {resource}"
    certificates = {c["spec"]["secretName"] for c in of_kind(files, "Certificate")}
    for node, pod in pods(files):
        mounted = {m["name"] for c in containers(pod) for m in c["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]} | {"state"}, node
        for volume in pod["volumes"]:
            if "configMap" in volume:
                assert volume["configMap"]["name"] in generated
            for part in volume.get("projected", {}).get("sources", []):
                assert part["secret"]["name"] in generated | certificates


def _resolved(path: Path) -> list[str]:
    parts: list[str] = []
    for part in path.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return parts


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_command_in_a_pod_exists(name: str) -> None:
    for _, pod in pods(made(name)):
        commands = [c["command"][-1].partition("exec silomix ")[2].split() for c in containers(pod)]
        for arguments in commands:
            if arguments:
                PARSER.parse_args(arguments)
        assert commands[-1]


@pytest.mark.parametrize("name", CLUSTERS)
def test_probes_start_no_process_and_ask_what_a_node_answers(name: str) -> None:
    for _, pod in pods(made(name)):
        (container,) = pod["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        pulse = Pulse()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                asked = container[probe]["httpGet"]
                assert ports[asked["port"]] == METRICS_PORT
                assert pulse.answer(asked["path"]) is False
        pulse.beat()
        assert pulse.answer(container["livenessProbe"]["httpGet"]["path"])
        assert ("readinessProbe" in container) == ("grpc" in ports)


@pytest.mark.parametrize("node", ["aggregator", "shuffler-1", "silo-02"])
def test_a_pods_settings_make_a_node(node: str, tmp_path: Path) -> None:
    """The files are laid out as a pod has them, below another root, and the node reads them."""
    files, home = made("all-in-one"), federation()
    places = {"/etc/silomix": tmp_path / "etc", "/run/silomix": tmp_path / "run", "/var/lib/silomix": tmp_path / "var"}
    text = files[Path("base") / node / "node.toml"].decode()
    for place, stand_in in places.items():
        text = text.replace(place, str(stand_in))
    for directory in ("etc/node", "etc/federation", "run/keys"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "etc/node/node.toml").write_text(text)
    for file in ("federation.toml", "ca.pem", "operator.accepted"):
        (tmp_path / "etc/federation" / file).write_bytes(files[Path("base") / file])
    ((_, pod),) = ((name, pod) for name, pod in pods(files) if name == node)
    (container,) = pod["containers"]
    _, _, mode, *copied, target = container["command"][-1].partition(" && ")[0].split()
    for path in copied:
        (tmp_path / "run/keys" / Path(path).name).write_bytes((home / node / Path(path).name).read_bytes())
        (tmp_path / "run/keys" / Path(path).name).chmod(int(mode, 8))
    assert target == "/run/silomix/keys/"

    config = load_node(tmp_path / "etc/node")
    assert config.federation.digest == source().federation.digest
    assert (config.metrics_host, config.metrics_port) == ("0.0.0.0", 9100)
    if config.role is Role.SILO:
        assert config.options["silo"] == 1  # its own share, as its own file said
        assert config.linger
    else:
        assert config.listen == f"0.0.0.0:{container['ports'][0]['containerPort']}"


def test_who_can_be_evicted_at_once() -> None:
    budgets = {
        b["metadata"]["name"]: b["spec"]["maxUnavailable"] for b in of_kind(made("all-in-one"), "PodDisruptionBudget")
    }
    assert budgets == {"chain-budget": 1, "silos-budget": 0}  # no round can spare one of three silos
    many = render(source(5, 3), Cluster())
    assert [b["spec"]["maxUnavailable"] for b in of_kind(many, "PodDisruptionBudget")] == [1, 5 - 3]
    assert [b["spec"]["maxUnavailable"] for b in of_kind(made("shuffler"), "PodDisruptionBudget")] == [0]
    assert not of_kind(made("silo"), "PodDisruptionBudget")


def test_requests_follow_the_model() -> None:
    small, large = (
        {name: pod["containers"][0]["resources"]["requests"] for name, pod in pods(render(found, Cluster()))}
        for found in (source(), load_source(federation(), 100_000_000))
    )
    for name in ("aggregator", "shuffler-1", "shuffler-2"):
        assert int(large[name]["memory"].removesuffix("Mi")) > int(small[name]["memory"].removesuffix("Mi")) + 300
        assert int(large[name]["cpu"].removesuffix("m")) > int(small[name]["cpu"].removesuffix("m"))


# --- the command ------------------------------------------------------------------------------------------------------


def run(*arguments: object) -> int:
    return main(["render", "k8s", *map(str, arguments)])


def test_keys_are_copied_for_their_owner_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--federation", federation(), "--out", tmp_path, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["missing_keys"] == []
    assert len(said["keys"]) == 6 * len(KEY_FILES)
    for key in said["keys"]:
        assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600
        ignored = (tmp_path / key).with_name(".gitignore").read_text().splitlines()
        assert f"/{Path(key).name}" in ignored


@needs_kubectl
def test_it_writes_what_kubectl_builds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--federation", federation(), "--out", tmp_path, "--namespace", "silomix", "--json") == 0
    built = kustomize(Path(json.loads(capsys.readouterr().out)["overlay"]))
    for document in built:
        assert not problem(document, VERSIONS[-1])
        assert document["metadata"].get("namespace") == (None if document["kind"] == "Namespace" else "silomix")
    secrets = {d["metadata"]["name"]: d["data"] for d in built if d["kind"] == "Secret"}
    maps = {d["metadata"]["name"] for d in built if d["kind"] == "ConfigMap"}
    for workload in (d for d in built if d["kind"] == "StatefulSet"):
        spec = workload["spec"]["template"]["spec"]
        names = {v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v}
        assert names <= maps
        (secret,) = (v["projected"]["sources"][0]["secret"]["name"] for v in spec["volumes"] if "projected" in v)
        assert secrets[secret].keys() == set(KEY_FILES)
        assert {c["image"] for c in containers(spec)} <= {"silomix:0.1.0", "silomix-train:0.1.0"}


@needs_kubectl
def test_a_shuffler_is_reached_through_a_load_balancer_and_a_silo_is_not(tmp_path: Path) -> None:
    home = federation(host=ELSEWHERE)
    for role, node in (("shuffler", "shuffler-2"), ("silo", "silo-01")):
        assert run("--federation", home, "--out", tmp_path, "--overlay", role, "--node", node) == 0
    (hop,) = (d for d in kustomize(tmp_path / "overlays" / "shuffler-2") if d["kind"] == "Service")
    assert (hop["spec"]["type"], hop["spec"]["externalTrafficPolicy"]) == ("LoadBalancer", "Local")
    assert not problem(hop, VERSIONS[0])
    (silo,) = (d for d in kustomize(tmp_path / "overlays" / "silo-01") if d["kind"] == "Service")
    assert silo["spec"]["clusterIP"] == "None"
    assert [port["name"] for port in silo["spec"]["ports"]] == ["metrics"]


def kustomize(directory: Path) -> list[Document]:
    done = subprocess.run(
        [KUBECTL, "kustomize", str(directory)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def test_a_hospital_renders_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host has the public files and its own node's directory: the node need not be named, and no key is missing."""
    whole, own = federation(host=ELSEWHERE), tmp_path / "own"
    (own / "silo-03").mkdir(parents=True)
    for file in (
        "federation.toml",
        "ca.pem",
        "operator.accepted",
        "silo-03/node.toml",
        *(f"silo-03/{key}" for key in KEY_FILES),
    ):
        (own / file).write_bytes((whole / file).read_bytes())
    assert run("--federation", own, "--out", tmp_path / "out", "--overlay", "silo", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["overlay"] == str(tmp_path / "out/overlays/silo-03")
    assert said["missing_keys"] == []
    assert not [path for path in said["files"] if "silo-01" in path]
    assert run("--federation", own, "--out", tmp_path / "out", "--overlay", "shuffler", "--node", "shuffler-1") == 0
    assert "missing: " in capsys.readouterr().out


def test_what_was_rendered_can_be_rendered_again_in_place(tmp_path: Path) -> None:
    assert run("--federation", federation(), "--out", tmp_path) == 0
    first = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert run("--federation", tmp_path / "base", "--out", tmp_path, "--parameters", 50) == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == first


@pytest.mark.parametrize(
    ("host", "arguments", "says"),
    [
        (ELSEWHERE, [], "--host '{name}.silomix.svc'"),
        (ELSEWHERE, ["--overlay", "silo"], "which one? give --node with one of silo-01, silo-02, silo-03"),
        (ELSEWHERE, ["--overlay", "silo", "--node", "shuffler-1"], "no silo has this name"),
        (ELSEWHERE, ["--node", "silo-01"], "all-in-one has every node"),
        (ELSEWHERE, ["--overlay", "silo", "--node", "silo-01", "--peer", "nobody=10.0.0.0/8"], "no node has this name"),
        ("{name}.silomix.svc", ["--namespace", "other"], "not that of a Service in namespace other"),
    ],
)
def test_what_cannot_be_rendered_is_one_line(
    host: str, arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--federation", federation(host=host), "--out", tmp_path / "out", *arguments) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--parameters", "-5"],
        ["--parameters", "many"],
        ["--silo-memory", "lots"],
        ["--silo-cpu", "1 core"],
        ["--data-claim", "We ird"],
        ["--storage-class", ".."],
        ["--namespace", "A_b"],
        ["--image", "x y"],
        ["--overlay", "everything"],
    ],
)
def test_options_that_no_cluster_would_take_are_refused(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run("--federation", federation(), "--out", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("peer", ["silo-01", "silo-01=", "silo-01=10.0.0.1/8", "=10.0.0.0/8x"])
def test_a_peer_that_is_no_network_is_refused(peer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--federation", federation(), "--out", tmp_path, "--peer", peer)
    assert "NODE=CIDR" in capsys.readouterr().err


def test_names_that_kubernetes_refuses_are_refused_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (federation(host=ELSEWHERE) / "federation.toml").read_text()
    for file in ("ca.pem", "operator.accepted"):
        (tmp_path / file).write_bytes((federation(host=ELSEWHERE) / file).read_bytes())
    for name in ("1st-silo", "s" + 60 * "x"):
        (tmp_path / "federation.toml").write_text(text.replace('"silo-01"', f'"{name}"'))
        out = tmp_path / "out"
        assert run("--federation", tmp_path, "--out", out, "--overlay", "silo", "--node", name) == 2
        assert "at most 52 characters that begins with a letter" in capsys.readouterr().err


def test_a_federation_without_tls_is_for_one_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (federation() / "federation.toml").read_text().replace('anchor = "ca.pem"', "insecure = true")
    (tmp_path / "federation.toml").write_text(text)
    assert run("--federation", tmp_path, "--out", tmp_path / "out") == 2
    assert "without TLS is for one machine" in capsys.readouterr().err


def test_a_nodes_broker_goes_into_its_pod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = federation()
    for file in ("federation.toml", "ca.pem", "operator.accepted", "silo-01/node.toml"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes((home / file).read_bytes())
    text = (tmp_path / "silo-01/node.toml").read_text()
    broker = '\n[mqtt]\nhost = "broker.example.org"\nanchor = "{}"\n'
    (tmp_path / "silo-01/node.toml").write_text(text + broker.format("/etc/broker/ca.pem"))
    assert run("--federation", tmp_path, "--out", tmp_path / "out") == 0
    written = tomllib.loads((tmp_path / "out/base/silo-01/node.toml").read_text())
    assert written["mqtt"] == {"host": "broker.example.org", "anchor": "/etc/broker/ca.pem"}
    (tmp_path / "silo-01/node.toml").write_text(text + broker.format("broker.pem"))
    capsys.readouterr()
    assert run("--federation", tmp_path, "--out", tmp_path / "other") == 2
    assert "broker.pem is not in the pod" in capsys.readouterr().err


# --- what is committed ------------------------------------------------------------------------------------------------


EXAMPLES = {
    "one-cluster": [Cluster(pod_monitor=True)],
    "own-clusters": [
        Cluster(overlay="silo", node="silo-01", pod_monitor=True),
        Cluster(overlay="shuffler", node="shuffler-1", pod_monitor=True),
        Cluster(overlay="aggregator", pod_monitor=True),
    ],
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_committed_examples_are_what_the_renderer_writes(example: str) -> None:
    home = COMMITTED / example
    found = load_source(home / "base")
    expected: Files = {}
    for cluster in EXAMPLES[example]:
        expected |= render(found, cluster)
    again = f"silomix render k8s --federation {home}/base --out {home} --pod-monitor, with each --overlay"
    for path, data in expected.items():
        assert (home / path).read_bytes() == data, f"{path} differs: {again}"
    committed = {path.relative_to(home) for path in home.rglob("*") if path.is_file()}
    assert committed == set(expected), "a file is there that nobody renders"


def test_no_private_key_is_committed() -> None:
    for path in COMMITTED.rglob("*"):
        if path.is_file():
            assert b"PRIVATE KEY" not in path.read_bytes(), path
            assert path.name not in ("identity.key", "tls.key", "ca.key")
