"""deploy/compose.yaml: what the renderer writes, complete, locked down, and scraped by the Prometheus beside it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from silomix.runtime.cli import main, make_parser
from silomix.runtime.config.broker import write_broker
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_node
from silomix.runtime.core.policy import Policy
from silomix.runtime.local import create
from silomix.runtime.render.compose import OTHERS

DEPLOY = Path(__file__).parents[2] / "deploy"
SETTINGS: dict[str, Any] = {"metrics_port": 9100, "metrics_host": "0.0.0.0", "mqtt": {"host": "broker"}}
PARSER = make_parser()
Document = dict[str, Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The federation that the first lines of compose.yaml make, with a task that needs no torch."""
    directory = tmp_path_factory.mktemp("compose") / "fed"
    found = create(
        directory,
        10,
        3,
        policy=Policy(task="tests.nodes.toy:task"),
        host="{name}",
        listen_host="0.0.0.0",
        base_port=7000,
        settings=dict.fromkeys(Role, SETTINGS),
    )
    write_broker(directory, found, "broker", 8883)
    return directory


@pytest.fixture(scope="module")
def compose() -> Document:
    found: Document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def nodes(compose: Document) -> dict[str, Document]:
    return {n: s for n, s in compose["services"].items() if n not in ("prometheus", "grafana", "broker")}


def test_the_committed_file_is_what_the_renderer_writes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "compose", "--federation", str(home)]) == 0
    again = "silomix render compose --federation deploy/fed --out deploy/compose.yaml"
    assert capsys.readouterr().out == (DEPLOY / "compose.yaml").read_text(), f"it differs: {again}"


def test_its_first_lines_make_the_federation(compose: Document) -> None:
    head = (DEPLOY / "compose.yaml").read_text().split("name:")[0]
    lines = head.replace("\\\n#", "").replace("#", "").splitlines()
    (init,) = (line.split() for line in lines if "silomix init" in line)
    args = PARSER.parse_args([word.strip("'") for word in init[1:]])
    assert (args.silos, args.shufflers, args.host, args.listen_host) == (10, 3, "{name}", "0.0.0.0")
    assert (args.metrics_port, args.metrics_host, args.mqtt) == (9100, "0.0.0.0", "broker")
    assert compose["name"] == f"silomix-{args.name}"
    builds = [line.split() for line in lines if "docker build" in line]
    assert {b[b.index("--target") + 1]: b[b.index("-t") + 1] for b in builds} == {
        "slim": "silomix:0.1.0",
        "train": "silomix-train:0.1.0",
    }


def test_ten_silos_three_shufflers_an_aggregator_and_what_watches_them(compose: Document) -> None:
    names = {"aggregator", *(f"shuffler-{i}" for i in (1, 2, 3)), *(f"silo-{i:02}" for i in range(1, 11))}
    assert compose["services"].keys() == names | {"prometheus", "grafana", "broker"}
    for name, node in nodes(compose).items():
        args = PARSER.parse_args(node["command"])
        assert name.startswith(args.role)
        assert args.config == Path("/fed", name)
        assert node["image"].startswith("${SILOMIX_TRAIN_IMAGE" if args.role == "silo" else "${SILOMIX_IMAGE")
        probe = node["healthcheck"]["test"]
        assert probe[:2] == ["CMD", "silomix"]
        assert PARSER.parse_args(probe[2:]).config == args.config


def test_the_images_of_others_are_held_by_digest(compose: Document) -> None:
    others = [service["image"] for name, service in compose["services"].items() if name in OTHERS]
    assert len(others) == len(OTHERS)
    assert all(re.fullmatch(r"[a-z/-]+:v?[0-9.]+@sha256:[0-9a-f]{64}", image) for image in others)


def test_a_node_sees_its_own_directory_and_the_public_files(compose: Document) -> None:
    for name, node in nodes(compose).items():
        mounts = [volume.removeprefix("${SILOMIX_FEDERATION:-./fed}/").split(":") for volume in node["volumes"]]
        assert mounts == [
            ["federation.toml", "/fed/federation.toml", "ro"],
            ["ca.pem", "/fed/ca.pem", "ro"],
            [name, f"/fed/{name}"],
        ]


def test_nobody_has_rights_that_it_does_not_need(compose: Document) -> None:
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.keys() & {"privileged", "network_mode", "pid", "cap_add"}, name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} is open to the network"
        if name != "grafana":  # which keeps its plugins beside itself
            assert service["read_only"] is True, name
    for name, node in nodes(compose).items():
        assert node["user"] == "${SILOMIX_USER:-10001:10001}", name


def test_what_is_mounted_from_the_repository_is_there(compose: Document) -> None:
    found = []
    for name in ("prometheus", "grafana"):
        for volume in compose["services"][name]["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).is_dir(), source
                found.append(source)
            else:
                assert source in compose["volumes"]
    assert found == ["./prometheus", "./grafana/provisioning", "./grafana/dashboards"]
    assert (DEPLOY / "prometheus/prometheus.yml").is_file()
    for service in nodes(compose).values():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_prometheus_scrapes_every_node_and_nobody_else(compose: Document) -> None:
    (group,) = yaml.safe_load((DEPLOY / "prometheus/targets/silomix.yml").read_text())
    assert sorted(group["targets"]) == sorted(f"{name}:9100" for name in nodes(compose))


def test_grafana_finds_prometheus_and_the_dashboards(compose: Document) -> None:
    provisioning = DEPLOY / "grafana/provisioning"
    (datasource,) = yaml.safe_load((provisioning / "datasources/silomix.yml").read_text())["datasources"]
    assert datasource["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/silomix.yml").read_text())["providers"]
    targets = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in targets
    assert "/etc/grafana/provisioning" in targets


def test_the_broker_runs_what_init_has_written(compose: Document, home: Path) -> None:
    broker = compose["services"]["broker"]
    assert broker["volumes"] == ["${SILOMIX_FEDERATION:-./fed}/broker:/fed/broker:ro"]
    assert broker["working_dir"] == "/fed/broker"
    assert broker["command"] == ["mosquitto", "-c", "mosquitto.conf"]
    assert (home / "broker" / "mosquitto.conf").is_file()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("shuffler-1", 'listen = "0.0.0.0:7001"', 'listen = "127.0.0.1:7001"'), "listen: give 0.0.0.0:7001"),
        (("silo-03", 'metrics_host = "0.0.0.0"', 'metrics_host = "127.0.0.1"'), "metrics_port: give 9100 on 0.0.0.0"),
        (("silo-03", 'host = "broker"', 'host = "elsewhere"'), "the broker's container is called broker"),
        (("silo-03", "metrics_port", "metrics_prot"), "a silo has no such key"),
    ],
)
def test_settings_that_cannot_work_in_containers_are_refused(
    change: tuple[str, str, str], says: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (
        "federation.toml",
        "ca.pem",
        *(f"{n.name}/node.toml" for n in home.iterdir() if (n / "node.toml").exists()),
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes((home / path).read_bytes())
    node, old, new = change
    text = (tmp_path / node / "node.toml").read_text()
    assert old in text
    (tmp_path / node / "node.toml").write_text(text.replace(old, new))
    assert main(["render", "compose", "--federation", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_a_federation_of_other_addresses_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(tmp_path / "fed", 3, 1, policy=Policy(task="tests.nodes.toy:task"))
    assert main(["render", "compose", "--federation", str(tmp_path / "fed")]) == 2
    assert "its container's is aggregator" in capsys.readouterr().err


def test_init_writes_what_containers_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--metrics-port` is one port for all, each on its own host; without it the files say nothing about metrics."""
    task = ["--silos", "3", "--shufflers", "1", "--task", "tests.nodes.toy:task"]
    flags = ["--metrics-port", "9100", "--metrics-host", "0.0.0.0", "--host", "{name}", "--base-port", "7000"]
    assert main(["init", str(tmp_path / "one"), *task, *flags]) == 0
    for name in ("aggregator", "shuffler-1", "silo-01", "silo-03"):
        config = load_node(tmp_path / "one" / name)
        assert (config.metrics_port, config.metrics_host) == (9100, "0.0.0.0")
    assert main(["init", str(tmp_path / "two"), *task]) == 0
    config = load_node(tmp_path / "two" / "silo-01")
    assert (config.metrics_port, config.metrics_host) == (0, "127.0.0.1")
    capsys.readouterr()
    assert main(["init", str(tmp_path / "three"), *task, "--metrics-port", "65536"]) == 2
    assert "give 1 to 65535" in capsys.readouterr().err
    assert not (tmp_path / "three").exists()
