"""Enrolment: what `init` writes loads at every node, and it writes nothing that would not."""

from pathlib import Path
from typing import Any

import pytest
from tests.config.written import NODES, POLICY, SHUFFLERS

from silomix.runtime.config.certificates import load_identity
from silomix.runtime.config.keys import LogFormat
from silomix.runtime.config.load import load_federation, load_node
from silomix.runtime.config.owners.trial import init
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.policy import MAX_SILOS, Policy
from silomix.runtime.core.protocol.identity import Identity


def test_init_then_load_at_every_node(made: Path) -> None:
    federation = load_federation(made)
    assert federation.policy == POLICY
    assert federation.chain == ("shuffler-1", "shuffler-2")
    configs = {node: load_node(made / node) for node in NODES}
    assert sorted(p.name for p in made.iterdir() if p.is_dir()) == sorted(NODES)
    assert {config.federation.digest for config in configs.values()} == {federation.digest}
    for node, config in configs.items():
        member = federation.member(node)
        assert config.name == node
        assert config.role == node.partition("-")[0]
        assert config.listen == member.address
        assert Identity(node, load_identity(config.identity)).public == member.key
        assert config.directory == made / node / "state"
    silo = configs["silo-03"]
    assert silo.listen == ""
    assert silo.options == {**POLICY.task_options, "partition": 2}
    assert (silo.metrics_port, silo.metrics_training, silo.required_hops, silo.capture) == (0, False, (), None)
    assert silo.log is LogFormat.CONSOLE
    assert configs["aggregator"].initial_model is None


def test_addresses_are_free_and_distinct(made: Path) -> None:
    federation = load_federation(made)
    assert len({m.address for m in (federation.aggregator, *federation.shufflers)}) == 1 + SHUFFLERS


def test_consecutive_ports_names_as_hosts_and_metrics(tmp_path: Path) -> None:
    init(
        tmp_path,
        3,
        2,
        name="demo",
        policy=Policy(),
        host="{name}",
        base_port=7000,
        listen_host="0.0.0.0",
        metrics_base_port=9000,
    )
    hop, silo = load_node(tmp_path / "shuffler-2" / "node.toml"), load_node(tmp_path / "silo-01")
    assert hop.federation.member("shuffler-2").address == "shuffler-2:7002"
    assert (hop.listen, hop.metrics_port, silo.metrics_port) == ("0.0.0.0:7002", 9002, 9003)


def test_insecure_federation_has_no_tls(tmp_path: Path) -> None:
    federation = init(tmp_path, 3, 1, name="demo", policy=Policy(), insecure=True)
    assert federation.anchor == b""
    assert sorted(p.name for p in (tmp_path / "silo-01").iterdir()) == ["identity.key", "node.toml", "silo-01.enrol"]
    config = load_node(tmp_path / "silo-01")
    assert config.insecure
    assert (config.certificate, config.key) == (None, None)
    assert not (tmp_path / "ca.key").exists()


def test_every_setting_of_a_node_is_read(home: Path) -> None:
    (home / "silo-01" / "node.toml").write_text(
        """
        role = "silo"
        name = "silo-01"
        federation = "../federation.toml"
        directory = "/var/lib/silomix"
        certificate = "tls.pem"
        key = "tls.key"
        metrics_port = 9100
        metrics_training = true
        required_hops = ["shuffler-2"]
        capture = "seen"
        log = "json"
        [task_options]
        partition = 3
        """,
        encoding="utf-8",
    )
    config = load_node(home / "silo-01")
    assert config.directory == Path("/var/lib/silomix")
    assert config.capture == home / "silo-01" / "seen"
    assert (config.metrics_port, config.metrics_training, config.log) == (9100, True, "json")
    assert config.required_hops == ("shuffler-2",)
    assert config.options["partition"] == 3


def test_relative_paths_do_not_depend_on_the_working_directory(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made / "silo-01")
    assert load_node(Path("node.toml")).identity == made / "silo-01" / "identity.key"
    assert load_federation(Path("../federation.toml")).name == "demo"


def test_init_leaves_an_existing_directory_alone(made: Path) -> None:
    before = {p: p.read_bytes() for p in made.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match="not empty"):
        init(made, 3, 1, name="demo", policy=Policy())
    assert {p: p.read_bytes() for p in made.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"silos": 2}, "silos"),
        ({"silos": MAX_SILOS + 1}, "silos"),
        ({"shufflers": 0}, "shufflers"),
        ({"name": "No Name"}, "name"),
        ({"policy": Policy(precision=99)}, "policy.precision"),
        ({"policy": Policy(task_options={"x": float("nan")})}, ""),
        ({"host": "not a host", "base_port": 7000}, "aggregator.address"),
        ({"host": "192.0.2.1"}, "base_port"),
        ({"base_port": 65534}, "base_port"),
        ({"metrics_base_port": -1}, "metrics_base_port"),
    ],
)
def test_init_writes_nothing_that_would_not_load(tmp_path: Path, arguments: dict[str, Any], key: str) -> None:
    directory = tmp_path / "new"
    with pytest.raises(ConfigError) as caught:
        init(directory, **{"silos": 3, "shufflers": 2, "name": "demo", "policy": Policy(), **arguments})
    assert key in str(caught.value)
    assert not directory.exists()
