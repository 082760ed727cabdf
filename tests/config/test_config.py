"""Configuration and enrolment: what `init` writes loads at every node, and what is wrong is named with its place."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree
from typing import Any, cast

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from silomix.runtime.config.authority import CertificateAuthority
from silomix.runtime.config.certificates import load_identity, peer_name_from_cert
from silomix.runtime.config.enrol import dump_federation, init
from silomix.runtime.config.keys import NODE_KEYS, POLICY_KEYS, LogFormat
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig, load_federation, load_node
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Encoding, Level, Quantiser
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity, verify
from silomix.runtime.core.protocol.policy import MAX_SILOS, Granularity, Policy, Server, UpdateKind

SILOS, SHUFFLERS = 4, 2
NODES = ("aggregator", "shuffler-1", "shuffler-2", "silo-01", "silo-02", "silo-03", "silo-04")
POLICY = Policy(task_options={"seed": 7, "rate": 0.5, "note": 'a "quoted" \\ ü\x7f\n', "shuffle": True})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation that no test writes to."""
    directory = tmp_path_factory.mktemp("made") / "federation"
    init(directory, SILOS, SHUFFLERS, name="demo", policy=POLICY, silo_options=lambda index: {"partition": index})
    return directory


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A federation of the test's own."""
    return copytree(made, tmp_path / "federation")


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def public(number: int) -> bytes:
    """One of many public keys, the same each time."""
    return Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big")).public_key().public_bytes_raw()


def line_of(file: Path, start: str) -> str:
    return next(line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith(start))


def error_of(load: Callable[[Path], object], path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return caught.value


# --- what init writes loads -------------------------------------------------------------------------------------------


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
    assert sorted(p.name for p in (tmp_path / "silo-01").iterdir()) == ["identity.key", "node.toml"]
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


# --- the digest -------------------------------------------------------------------------------------------------------

CHANGES: Mapping[str, Any] = {
    "task": "elsewhere:task",
    "task_options": {"seed": 8},
    "rounds": 11,
    "precision": 5,
    "quantiser": Quantiser.INT8,
    "encoding": Encoding.UNARY,
    "level": Level.TRUSTED,
    "update": UpdateKind.WEIGHTS,
    "bound": 0.25,
    "weight_levels": 2,
    "headroom": 1,
    "granularity": Granularity.LAYER,
    "minimum_cohort": 4,
    "cohort_step": 2,
    "quorum": 0.75,
    "minimum_hops": 2,
    "deadline_s": 601,
    "release_s": 121,
    "attempts": 4,
    "group_size": 3,
    "subsample": 0.75,
    "chunk_parameters": 16,
    "server": Server.ADAM,
    "server_lr": 0.5,
    "server_momentum": 0.5,
    "server_beta2": 0.5,
    "server_epsilon": 0.5,
    "clip_norm": 2.0,
    "noise_multiplier": 0.5,
    "schema": "0123456789abcdef" * 4,
    "parameters": 1001,
}
NEEDS: Mapping[str, Any] = {"noise_multiplier": {"clip_norm": 1.0}, "granularity": {"level": Level.TRUSTED}}
"""What a changed field takes beside it to be accepted."""


def test_every_policy_field_has_a_key_and_a_change() -> None:
    assert {f.name for f in fields(Policy)} == set(POLICY_KEYS) == set(CHANGES)
    assert {f.name for f in fields(NodeConfig)} == set(NODE_KEYS)


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_policy_field_survives_the_file_and_changes_the_digest(made: Path, tmp_path: Path, name: str) -> None:
    federation = load_federation(made)
    policy = Policy(**{name: CHANGES[name]}, **NEEDS.get(name, {}))
    changed = replace(federation, policy=policy)
    dump_federation(changed, tmp_path / "federation.toml")
    loaded = load_federation(tmp_path / "federation.toml")
    assert loaded == changed
    assert loaded.digest == changed.digest
    assert loaded.digest != replace(federation, policy=Policy(**NEEDS.get(name, {}))).digest


def test_a_whole_number_is_the_same_policy_as_its_float(home: Path) -> None:
    before = load_federation(home).digest
    edit(home / "federation.toml", "bound = 1.0", "bound = 1")
    assert load_federation(home).digest == before


def test_comments_do_not_change_the_digest_and_keys_anchor_and_order_do(home: Path, tmp_path: Path) -> None:
    file = home / "federation.toml"
    before = load_federation(file)
    edit(file, "# Rounds", "# rounds, says the owner of silo-01,")
    assert load_federation(file).digest == before.digest
    variants: Sequence[Federation] = [
        replace(before, name="other"),
        replace(before, anchor=before.anchor + b"\n"),
        replace(before, shufflers=before.shufflers[::-1]),
        replace(before, shufflers=before.shufflers[:1]),
        replace(before, silos=before.silos[::-1]),
        replace(before, aggregator=replace(before.aggregator, key=public(1))),
        replace(before, aggregator=replace(before.aggregator, address="[::1]:7000")),
    ]
    digests = {before.digest}
    for i, variant in enumerate(variants):
        copy = tmp_path / str(i)
        copy.mkdir()
        dump_federation(variant, copy / "federation.toml")
        digests.add(load_federation(copy).digest)
    assert len(digests) == len(variants) + 1


def test_the_written_file_explains_every_policy_key(made: Path) -> None:
    text = " ".join((made / "federation.toml").read_text(encoding="utf-8").replace("\n# ", " ").split())
    for key in POLICY_KEYS.values():
        assert key.what in text


# --- what is wrong is named -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "key", "hint"),
    [
        ("precision = 4", "precison = 4", "policy.precison", '"precision"'),
        ("deadline_s = 600", "deadline = 600", "policy.deadline", '"deadline_s"'),
        ("rounds = 10", "Rounds = 10", "policy.Rounds", '"rounds"'),
        ('name = "demo"', 'name = "demo"\nshuffler = []', "shuffler", '"shufflers"'),
        ('name = "demo"', 'name = "demo"\nrounds = 5', "rounds", "[policy]"),
        ('name = "demo"', 'name = "demo"\nqourum = 0.5', "qourum", '"quorum" in [policy]'),
        ('anchor = "ca.pem"', 'anchr = "ca.pem"', "tls.anchr", '"anchor"'),
        ('name = "silo-02"', 'name = "silo-02"\nadress = "x:1"', "silos[1].adress", '"address" in [aggregator]'),
        ('name = "shuffler-2"', 'name = "shuffler-2"\nkeys = ""', "shufflers[1].keys", '"key"'),
        ('name = "demo"', 'name = "demo"\nzzz = 1', "zzz", "known are name, tls"),
    ],
)
def test_unknown_keys_of_the_federation_file(home: Path, old: str, new: str, key: str, hint: str) -> None:
    file = home / "federation.toml"
    edit(file, old, new)
    error = error_of(load_federation, file)
    assert (error.file, error.key) == (file, key)
    assert str(error).startswith(f"{file}: {key}: ")
    assert hint in str(error)


WRONG_POLICY: Sequence[tuple[str, str, str]] = [
    ("task", '"nothing"', "package.module:factory"),
    ("task", "3", "package.module:factory"),
    ("rounds", "0", "1 to 1000000"),
    ("rounds", "true", "found true; give a whole number"),
    ("rounds", "1.0", "found 1.0; give a whole number"),
    ("rounds", '"10"', "found '10'; give a whole number"),
    ("rounds", "[1]", "found [1]"),
    ("rounds", "{}", "found a table"),
    ("rounds", "0x" + "f" * 5000, "found a number of 20000 bits"),
    ("precision", "19", "1 to 18"),
    ("quantiser", '"int4"', '"int8"'),
    ("encoding", "[]", '"counts"'),
    ("level", '"honest"', '"semi-honest"'),
    ("level", '"malicious"', "not available yet"),
    ("update", '"gradient"', '"delta"'),
    ("bound", "0", "above 0"),
    ("bound", "inf", "finite"),
    ("bound", "nan", "finite"),
    ("bound", '"1"', "found '1'"),
    ("weight_levels", "0", "from 1"),
    ("headroom", "-1", "from 0"),
    ("granularity", '"sums"', '"sum"'),
    ("granularity", '"layer"', 'policy.level = "trusted"'),
    ("minimum_cohort", "2", "from 3"),
    ("minimum_cohort", "5", "at most 4, the number of [[silos]]"),
    ("cohort_step", "-1", "from 0"),
    ("cohort_step", "1.5", "a whole number"),
    ("quorum", "0", "above 0 and at most 1"),
    ("quorum", "1.1", "above 0 and at most 1"),
    ("minimum_hops", "-1", "from 0"),
    ("minimum_hops", "1", "need not share an honest hop"),
    ("minimum_hops", "3", "from a pool of 2"),
    ("deadline_s", "0", "1 to 604800"),
    ("deadline_s", "604801", "1 to 604800"),
    ("release_s", "0", "1 to 604800"),
    ("attempts", "0", "from 1"),
    ("group_size", "2", "0, or a whole number from 3"),
    ("group_size", "false", "found false"),
    ("group_size", "5", "invites 4"),
    ("subsample", "0.0", "above 0"),
    ("subsample", "0.5", "policy.minimum_cohort = 3"),
    ("chunk_parameters", "24", "multiple of 16 from 16 to 1048576"),
    ("chunk_parameters", "0", "multiple of 16"),
    ("chunk_parameters", "1048592", "multiple of 16"),
    ("server", '"adamw"', '"adam"'),
    ("server", '"median"', "policy.group_size"),
    ("server_lr", "0", "above 0"),
    ("server_momentum", "1", "below 1"),
    ("server_beta2", "-0.1", "from 0"),
    ("server_epsilon", "0", "above 0"),
    ("clip_norm", "-1", "from 0"),
    ("noise_multiplier", "nan", "finite"),
    ("noise_multiplier", "1", "policy.clip_norm"),
    ("schema", '"ab"', "64 hex digits"),
    ("schema", f'"{"AB" * 32}"', "64 hex digits of 0-9 and a-f"),
    ("parameters", "-1", "from 0"),
    ("parameters", str((1 << 33) + 1), "from 0 to 8589934592"),
]


@pytest.mark.parametrize(("name", "value", "says"), WRONG_POLICY)
def test_wrong_policy_values_name_file_key_and_what_is_allowed(home: Path, name: str, value: str, says: str) -> None:
    file = home / "federation.toml"
    edit(file, line_of(file, f"{name} = "), f"{name} = {value}")
    for load, path in ((load_federation, file), (load_node, home / "silo-01")):
        error = error_of(load, path)
        assert error.key == f"policy.{name}"
        assert error.file.samefile(file)
        assert f"policy.{name}: " in str(error)
        assert says in str(error)


def test_the_table_of_wrong_values_leaves_no_policy_key_out() -> None:
    assert {name for name, _, _ in WRONG_POLICY} == set(POLICY_KEYS) - {"task_options"}


def test_a_plan_that_cannot_hold_names_the_policy_keys(home: Path) -> None:
    file = home / "federation.toml"
    edit(file, "precision = 4", "precision = 18")
    edit(file, "weight_levels = 1", "weight_levels = 1000")
    error = error_of(load_federation, file)
    for part in (str(file), "policy.precision = 18", "policy.weight_levels = 1000", "policy.headroom = 0"):
        assert part in str(error)


def test_groups_are_of_sums(home: Path) -> None:
    file = home / "federation.toml"
    edit(file, 'level = "semi-honest"', 'level = "trusted"')
    edit(file, 'granularity = "sum"', 'granularity = "model"')
    load_federation(file)
    edit(file, "group_size = 0", "group_size = 3")
    assert error_of(load_federation, file).key == "policy.group_size"
    edit(file, 'granularity = "model"', 'granularity = "sum"')
    load_federation(file)


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ('name = "demo"', 'name = "De mo"', "name", "a-z"),
        ('name = "demo"', "", "name", "missing"),
        ("seed = 7", "seed = [7]", "policy.task_options", "strings, booleans or numbers"),
        ("seed = 7", "seed = 1979-05-27", "policy.task_options", "strings, booleans or numbers"),
        ("seed = 7", "seed = 0xffffffffffffffff", "policy.task_options", "below 2^63"),
        ("seed = 7", '"not a name" = 7', "policy.task_options", "names"),
        ('anchor = "ca.pem"', "", "tls.anchor", "insecure = true"),
        ('anchor = "ca.pem"', 'anchor = "ca.pem"\ninsecure = true', "tls.insecure", "one of the two"),
        ('anchor = "ca.pem"', 'anchor = "gone.pem"', "tls.anchor", "gone.pem"),
        ('anchor = "ca.pem"', 'anchor = "federation.toml"', "tls.anchor", "no certificates"),
        ('anchor = "ca.pem"', "insecure = 1", "tls.insecure", "true or false"),
        ('name = "silo-02"', 'name = "silo-01"', "silos[1].name", "silos[0].name"),
        ('name = "silo-02"', 'name = "shuffler-1"', "silos[1].name", "shufflers[0].name"),
        ('name = "silo-02"', 'name = "localhost"', "silos[1].name", "localhost"),
        ('name = "silo-02"', 'name = "-silo"', "silos[1].name", "a-z"),
        ('name = "silo-02"', f'name = "{"x" * 64}"', "silos[1].name", "1 to 63"),
        ('name = "silo-02"', 'name = ""', "silos[1].name", "1 to 63"),
        ('name = "silo-02"', "", "silos[1].name", "missing"),
        ('name = "shuffler-1"\nkey = "', 'name = "shuffler-1"\nkey = "00', "shufflers[0].key", "64 hex digits"),
        ('address = "127.0.0.1:', 'address = "127.0.0.1:0', "aggregator.address", "host:port"),
        ('address = "127.0.0.1:', 'address = "http://127.0.0.1:', "aggregator.address", "host:port"),
        ("[aggregator]", "[[aggregator]]", "aggregator", "give a table"),
        ('name = "demo"', 'name = "demo"\naggregator = 1', "", "is not TOML"),
        ('name = "demo"', 'name = "demo', "", "is not TOML"),
        ('name = "demo"', f"name = {'9' * 5000}", "", "is not TOML"),
    ],
)
def test_wrong_federation_files(home: Path, old: str, new: str, key: str, says: str) -> None:
    file = home / "federation.toml"
    edit(file, old, new)
    error = error_of(load_federation, file)
    assert (error.file, error.key) == (file, key)
    assert str(file) in str(error)
    assert says in str(error)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (bytes(32), "small order"),
        (bytes([1]) + bytes(31), "small order"),
        (bytes([1]) + bytes(30) + bytes([0x80]), "small order"),
        (bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85"), "small order"),
        ((2**255 - 19 + 3).to_bytes(32, "little"), "canonical"),
        (b"\xff" * 32, "canonical"),
        (bytes([2]) + bytes(31), "not a point of the curve"),
    ],
)
def test_a_key_that_binds_nobody_is_refused(home: Path, key: bytes, says: str) -> None:
    file = home / "federation.toml"
    federation = load_federation(file)
    edit(file, federation.shufflers[1].key.hex(), key.hex())
    error = error_of(load_federation, file)
    assert error.key == "shufflers[1].key"
    assert key.hex() in str(error)
    assert says in str(error)
    assert "give an Ed25519 public key" in str(error)


def test_a_roster_is_made_of_tables(home: Path) -> None:
    file = home / "federation.toml"
    text = file.read_text(encoding="utf-8").partition("[[silos]]")[0]
    file.write_text(f'silos = ["silo-01"]\n{text}', encoding="utf-8")
    error = error_of(load_federation, file)
    assert error.key == "silos[0]"
    assert "found 'silo-01'; give a table" in str(error)


def test_two_nodes_share_neither_key_nor_address(home: Path) -> None:
    file = home / "federation.toml"
    federation = load_federation(file)
    one, two, *rest = federation.silos
    with pytest.raises(ConfigError, match=r"silos\[1\]\.key.*silos\[0\]\.key"):
        dump_federation(replace(federation, silos=(one, replace(two, key=one.key), *rest)), file)
    first, second = federation.shufflers
    with pytest.raises(ConfigError, match=r"shufflers\[1\]\.address"):
        dump_federation(replace(federation, shufflers=(first, replace(second, address=first.address))), file)
    assert load_federation(file) == federation


def test_the_roster_has_bounds(made: Path, tmp_path: Path) -> None:
    federation = load_federation(made)
    few = replace(federation, silos=federation.silos[:2])
    many = tuple(replace(federation.silos[0], name=f"s{i}", key=public(i)) for i in range(1, MAX_SILOS + 2))
    for wrong in (few, replace(federation, silos=many)):
        with pytest.raises(ConfigError, match="give 3 to 1000"):
            dump_federation(wrong, tmp_path / "federation.toml")
    dump_federation(replace(federation, silos=many[:MAX_SILOS]), tmp_path / "federation.toml")
    assert len(load_federation(tmp_path).silos) == MAX_SILOS


@pytest.mark.parametrize(
    ("node", "old", "new", "key", "says"),
    [
        ("silo-01", "# metrics_port = 0", "metric_port = 1", "metric_port", '"metrics_port"'),
        ("silo-01", 'identity = "identity.key"', 'identiy = "identity.key"', "identiy", '"identity"'),
        ("silo-01", "# metrics_port = 0", "metrics_port = 65536", "metrics_port", "0 to 65535"),
        ("silo-01", "# metrics_training = false", "metrics_training = 1", "metrics_training", "true or false"),
        ("silo-01", '# log = "console"', 'log = "yaml"', "log", '"json"'),
        ("silo-01", "# required_hops = []", 'required_hops = ["shuffler-3"]', "required_hops", "did you mean"),
        ("silo-01", "# required_hops = []", 'required_hops = "shuffler-1"', "required_hops", "a list"),
        ("silo-01", 'role = "silo"', 'role = "server"', "role", '"aggregator"'),
        ("silo-01", 'role = "silo"\n', "", "role", "missing"),
        ("silo-01", 'name = "silo-01"', 'name = "silo-1"', "name", "did you mean"),
        ("silo-01", 'name = "silo-01"', 'name = "silo-02"', "identity", "public key"),
        ("silo-01", 'name = "silo-01"', 'name = "shuffler-1"', "role", 'as "shuffler"'),
        ("silo-01", 'directory = "state"', 'directory = ""', "directory", "a path"),
        ("silo-01", 'directory = "state"', 'directory = "a\\u0000"', "directory", "a path"),
        ("silo-01", "../federation.toml", "federation.toml", "federation", "cannot be read"),
        ("silo-01", "# metrics_port = 0", 'listen = "0.0.0.0:1"', "listen", "aggregator or shuffler"),
        ("silo-01", "# metrics_port = 0", 'initial_model = "m"', "initial_model", "aggregator"),
        ("aggregator", "# metrics_port = 0", "metrics_training = true", "metrics_training", "silo"),
        ("shuffler-1", "# metrics_port = 0", "task_options = {}", "task_options", "silo"),
        ("shuffler-1", "# metrics_port = 0", 'listen = "0.0.0.0"', "listen", "host:port"),
        ("shuffler-1", "# insecure = false", "insecure = true", "insecure", "has a TLS anchor"),
        ("shuffler-1", 'certificate = "tls.pem"', "", "certificate", "missing"),
        ("shuffler-1", '"tls.pem"', '"../ca.pem"', "key", "does not belong"),
        ("shuffler-1", '"tls.pem"', '"identity.key"', "certificate", "no certificates"),
        ("shuffler-1", '"tls.pem"', '"gone.pem"', "certificate", "gone.pem"),
        ("shuffler-1", '"tls.key"', '"../shuffler-2/tls.key"', "key", "does not belong"),
        ("shuffler-1", '"identity.key"', '"tls.key"', "identity", "not an Ed25519"),
        ("shuffler-1", '"identity.key"', '"gone.key"', "identity", "gone.key"),
    ],
)
def test_wrong_node_files(home: Path, node: str, old: str, new: str, key: str, says: str) -> None:
    file = home / node / "node.toml"
    edit(file, old, new)
    error = error_of(load_node, file)
    assert (error.file, error.key) == (file, key)
    assert str(error).startswith(f"{file}: {key}: ")
    assert says in str(error)


def test_tls_must_be_given_up_on_both_sides(tmp_path: Path) -> None:
    init(tmp_path, 3, 1, name="demo", policy=Policy(), insecure=True)
    file = tmp_path / "silo-01" / "node.toml"
    edit(file, "insecure = true", "insecure = false")
    assert "tls.insecure = true" in str(error_of(load_node, file))
    edit(file, "insecure = false", 'insecure = true\ncertificate = "tls.pem"')
    assert error_of(load_node, file).key == "certificate"


def test_files_that_are_not_text(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    assert "cannot be read" in str(error_of(load_federation, file))
    file.write_bytes(b'name = "\xff"')
    assert "UTF-8" in str(error_of(load_federation, file))
    assert "node.toml" in str(error_of(load_node, tmp_path))


# --- private keys -----------------------------------------------------------------------------------------------------


def test_modes_are_right_from_the_start(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        init(tmp_path, 3, 1, name="demo", policy=Policy())
    finally:
        os.umask(before)
    private = set(tmp_path.rglob("*.key"))
    assert len(private) == 1 + 2 * 5
    for path in tmp_path.rglob("*"):
        expected = 0o700 if path.is_dir() else 0o600 if path in private else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
@pytest.mark.parametrize(("file", "key"), [("identity.key", "identity"), ("tls.key", "key")])
def test_a_private_key_that_others_may_read_is_refused(home: Path, mode: int, file: str, key: str) -> None:
    path = home / "silo-01" / file
    path.chmod(mode)
    error = error_of(load_node, home / "silo-01")
    assert error.key == key
    assert f"run chmod 600 {path}" in str(error)
    path.chmod(0o400)
    load_node(home / "silo-01")


def test_secrets_never_print(home: Path) -> None:
    config = load_node(home / "silo-01")
    secret = load_identity(config.identity)
    pem = config.identity.read_text(encoding="utf-8").splitlines()[1]
    printed = [f"{x!r} {x}" for x in (config, config.federation, secret, Identity(config.name, secret))]
    config.identity.write_text(f"-----BEGIN PRIVATE KEY-----\n{pem}x\n-----END PRIVATE KEY-----\n", encoding="utf-8")
    printed.append(str(error_of(load_node, home / "silo-01")))
    for text in printed:
        assert pem not in text
        assert secret.value.hex() not in text
        assert repr(secret.value) not in text


def test_an_identity_signs_for_its_entry(made: Path) -> None:
    federation = load_federation(made)
    identity = Identity("silo-01", load_identity(made / "silo-01" / "identity.key"))
    verify(federation.member("silo-01").key, b"digest", identity.sign(b"digest"), "silo-01")


# --- certificates -----------------------------------------------------------------------------------------------------


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.mark.parametrize("node", NODES)
def test_certificates_verify_for_their_node_and_no_other(made: Path, node: str) -> None:
    leaf, store = certificate(made / node / "tls.pem"), Store([certificate(made / "ca.pem")])
    builder = PolicyBuilder().store(store)
    for name in (node, "localhost"):
        builder.build_server_verifier(x509.DNSName(name)).verify(leaf, [])
    other = NODES[NODES.index(node) - 1]
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName(other)).verify(leaf, [])
    subjects = builder.build_client_verifier().verify(leaf, []).subjects
    assert subjects is not None
    assert x509.DNSName(node) in subjects
    assert timedelta(days=824) < leaf.not_valid_after_utc - datetime.now(UTC) <= timedelta(days=825)
    private = load_pem_private_key((made / node / "tls.key").read_bytes(), None)
    assert private.public_key() == leaf.public_key()


def test_a_node_cannot_certify_another(made: Path) -> None:
    leaf = certificate(made / "silo-01" / "tls.pem")
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not constraints.ca
    assert not leaf.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def reissue(home: Path, authority: CertificateAuthority, name: str) -> None:
    private = load_pem_private_key((home / "silo-01" / "tls.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    (home / "silo-01" / "tls.pem").write_bytes(
        authority.issue(name, private.public_key(), ["10.0.0.1", "host.example"])
    )


def test_a_certificate_that_peers_would_refuse_is_found_at_the_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = CertificateAuthority("demo")
    reissue(home, stranger, "silo-01")
    assert "not issued by the federation's anchor" in str(error_of(load_node, home / "silo-01"))
    (home / "ca.pem").write_bytes(stranger.anchor)
    load_node(home / "silo-01")
    reissue(home, stranger, "silo-02")
    assert "the common name and the DNS name silo-01" in str(error_of(load_node, home / "silo-01"))
    monkeypatch.setattr("silomix.runtime.config.authority.CERTIFICATE_DAYS", 0)
    reissue(home, stranger, "silo-01")
    assert "ran out on" in str(error_of(load_node, home / "silo-01"))


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"x509_common_name": [b"silo-01"]},
        {"x509_common_name": [b"silo-01"], "x509_subject_alternative_name": [b"localhost"]},
        {"x509_common_name": [b"a", b"b"], "x509_subject_alternative_name": [b"a", b"b"]},
        {"x509_common_name": [b"localhost"], "x509_subject_alternative_name": [b"localhost"]},
        {"x509_common_name": [b"silo-01\x00"], "x509_subject_alternative_name": [b"silo-01\x00"]},
        {"x509_common_name": [b"\xff"], "x509_subject_alternative_name": [b"\xff"]},
    ],
)
def test_a_certificate_without_a_name_is_nobody(context: Mapping[str, Sequence[bytes]]) -> None:
    with pytest.raises(PeerFault) as caught:
        peer_name_from_cert(context)
    assert caught.value.reason is Reason.UNKNOWN_PEER


@pytest.fixture
def names_seen(made: Path) -> Iterator[tuple[int, list[str]]]:
    """A gRPC server of the aggregator that notes who calls."""
    seen: list[str] = []

    def call(request: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append(peer_name_from_cert(cast("Mapping[str, Sequence[bytes]]", context.auth_context())))
        return request

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        handlers: dict[str, Any] = {"Call": grpc.unary_unary_rpc_method_handler(call)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Names", handlers),))
        home = made / "aggregator"
        pair = (home / "tls.key").read_bytes(), (home / "tls.pem").read_bytes()
        anchor = (made / "ca.pem").read_bytes()
        credentials = grpc.ssl_server_credentials([pair], anchor, require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        yield port, seen
        server.stop(0).wait()


def dial(made: Path, port: int, caller: str, target: str) -> bytes:
    home = made / caller
    credentials = grpc.ssl_channel_credentials(
        (made / "ca.pem").read_bytes(), (home / "tls.key").read_bytes(), (home / "tls.pem").read_bytes()
    )
    options = [("grpc.ssl_target_name_override", target)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        call: Callable[..., bytes] = channel.unary_unary("/test.Names/Call")
        return call(b"hello", timeout=5)


def test_grpc_takes_the_certificates_and_tells_the_name(made: Path, names_seen: tuple[int, list[str]]) -> None:
    port, seen = names_seen
    assert dial(made, port, "silo-02", "aggregator") == b"hello"
    assert seen == ["silo-02"]
    with pytest.raises(grpc.RpcError) as caught:
        dial(made, port, "silo-02", "shuffler-1")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert seen == ["silo-02"]


def test_roles_are_words() -> None:
    assert [str(role) for role in Role] == ["aggregator", "shuffler", "silo"]
