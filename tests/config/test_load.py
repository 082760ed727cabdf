"""What is wrong with a federation file or a node's own is named with its place."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.config.written import edit, error_of, public

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_federation, load_node
from silomix.runtime.config.owners.assemble import dump_federation
from silomix.runtime.config.owners.trial import init
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.policy import MAX_SILOS, Policy


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


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ('name = "demo"', 'name = "De mo"', "name", "a-z"),
        ('name = "demo"', "", "name", "missing"),
        ("seed = 7", "seed = [7]", "policy.task_options", "strings, booleans or numbers"),
        ("seed = 7", "seed = 1979-05-27", "policy.task_options", "strings, booleans or numbers"),
        ("seed = 7", "seed = 0xffffffffffffffff", "policy.task_options", "below 2^63"),
        ("seed = 7", '"not a name" = 7', "policy.task_options", "names"),
        ('anchor = "ca.pem"', "", "tls.anchor", "pinned = true, or insecure = true"),
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
        ("silo-01", "../federation.toml", "federation.toml", "federation", "is not there"),
        ("silo-01", "# metrics_port = 0", 'listen = "0.0.0.0:1"', "listen", "aggregator or shuffler"),
        ("silo-01", "# metrics_port = 0", 'initial_model = "m"', "initial_model", "aggregator"),
        ("aggregator", "# metrics_port = 0", "metrics_training = true", "metrics_training", "silo"),
        ("shuffler-1", "# metrics_port = 0", "task_options = {}", "task_options", "silo"),
        ("shuffler-1", "# metrics_port = 0", 'listen = "0.0.0.0"', "listen", "host:port"),
        ("shuffler-1", "# insecure = false", "insecure = true", "insecure", "has TLS"),
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
    assert "is not there" in str(error_of(load_federation, file))
    file.write_bytes(b'name = "\xff"')
    assert "UTF-8" in str(error_of(load_federation, file))
    assert "node.toml" in str(error_of(load_node, tmp_path))


def test_roles_are_words() -> None:
    assert [str(role) for role in Role] == ["aggregator", "shuffler", "silo"]
