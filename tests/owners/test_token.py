"""An identity in a PKCS#11 token: made there, never outside it, and whatever is wrong with it is said at the start."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.config.written import edit
from tests.nodes.federations import make
from tests.owners.hospitals import run
from tests.tools import missing, program

from silomix.runtime.checkup.host import key_files
from silomix.runtime.config.load import identity_of, load_federation, load_node
from silomix.runtime.config.owners.epochs import enter
from silomix.runtime.config.signer import SignerError
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.config.token import TokenSigner, parse_uri, token_key
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.local import InProcess

PIN = "271828"
MODULES = [Path(p) / "softhsm/libsofthsm2.so" for p in ("/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/local/lib")]


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A token of this process's own; the end of its URI. A process can have one library of tokens, and once."""
    tool = program("softhsm2-util")
    module = next((path for path in MODULES if path.is_file()), None)
    if module is None:
        missing("libsofthsm2.so is not where Debian has it")
    place = tmp_path_factory.mktemp("token")
    (place / "tokens").mkdir()
    (place / "softhsm2.conf").write_text(f"directories.tokendir = {place / 'tokens'}\nlog.level = ERROR\n")
    pin = place / "pin"
    pin.write_text(f"{PIN}\n")
    pin.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(place / "softhsm2.conf"))
        words = [tool, "--init-token", "--free", "--label", "hospital b", "--pin", PIN, "--so-pin", PIN]
        subprocess.run(words, check=True, capture_output=True, env=dict(os.environ))
        yield f"?module-path={module}&pin-source=file:{pin}"


def uri(token: str, name: str) -> str:
    return f"pkcs11:token=hospital%20b;object={name}{token}"


async def test_a_node_whose_identity_is_in_a_token_is_enrolled_and_runs(
    token: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made by `keygen`, in no file, and used by two nodes of one process."""
    home = tmp_path / "fed"
    names = {"aggregator": "aggregator", "shuffler-1": "shuffler", **{f"silo-0{i}": "silo" for i in (1, 2, 3)}}
    for i, (name, role) in enumerate(names.items()):
        words: list[object] = ["keygen", home / name, "--role", role, "--owner", "hospital-b"]
        words += ["--option", f"silo={i - 2}"] if role == "silo" else ["--address", f"127.0.0.1:{free_port()}"]
        if name in ("silo-02", "shuffler-1"):
            words += ["--token", uri(token, name)]
        assert run(*words) == 0
    said = capsys.readouterr().out
    assert said.count("made in the token, and in no file") == 2
    for name in ("silo-02", "shuffler-1"):
        assert not (home / name / "identity.key").exists()
    task = ("--task", "tests.nodes.toy:task", "--option", "parameters=50", "--rounds", 1)
    enrolments = [home / name / f"{name}.enrol" for name in names]
    assert run("assemble", home, *enrolments, "--name", "tokens", *task) == 0
    assert run("accept", home, "--yes") == 0
    assert run("model", "init", "--config", home / "aggregator") == 0
    assert key_files(load_node(home / "silo-02")) == "1 private keys, for their owner alone"  # that of TLS
    identity = identity_of(load_node(home / "silo-02"))
    verify(load_federation(home).member("silo-02").key, bytes(32), identity.sign(bytes(32)), "silo-02")
    assert PIN not in repr(identity) + repr(load_node(home / "silo-02"))
    async with InProcess(home) as running:
        assert [done.cohort for done in await running.finished()] == [3]

    # Its certificate is rotated by the identity in the token.
    assert run("rotate", "--config", home / "silo-02", "--now") == 0
    load_node(home / "silo-02")

    # Its identity changes to the next key in the token, once for each epoch, and the epoch says which signs.
    for number in (2, 3):
        assert run("enrol", "--config", home / "silo-02", "--new-identity") == 0
        place = home / "epochs" / str(number)
        assert run("assemble", place, home / "silo-02" / "silo-02.enrol", "--previous", home) == 0
        assert run("accept", place, "--yes") == 0
        new = load_federation(place)
        assert f"silo-02.{number}?" not in load_node(home / "silo-02").identity_token, "the epoch has not begun"
        config = load_node(home / "silo-02", new.digest)
        assert parse_uri(config.identity_token).object == f"silo-02.{number}"
        verify(new.member("silo-02").key, bytes(32), identity_of(config).sign(bytes(32)), "silo-02")
        assert new.member("silo-02").key != identity.public
        enter(new, config.state)
    assert not list((home / "silo-02").glob("*identity.key"))


def test_a_key_that_is_there_is_used_and_never_leaves(token: str, tmp_path: Path) -> None:
    from pkcs11 import Attribute, KeyType, ObjectClass, lib

    first, made = token_key(parse_uri(uri(token, "kept")))
    again, made_again = token_key(parse_uri(uri(token, "kept")))
    assert (made, made_again) == (True, False)
    assert first.public == again.public
    verify(first.public, bytes(32), again.sign(bytes(32)), "kept")
    library = lib(str(first.uri.module))
    with library.get_token(token_label="hospital b").open() as session:  # logged in, since this process is
        key = session.get_key(ObjectClass.PRIVATE_KEY, KeyType.EC_EDWARDS, "kept")
        assert key[Attribute.SENSITIVE]
        assert not key[Attribute.EXTRACTABLE]


def test_another_key_in_the_token_is_found_at_the_start(token: str, tmp_path: Path) -> None:
    home = tmp_path / "f"
    make(home, 3, 1)
    token_key(parse_uri(uri(token, "another")))
    edit(home / "silo-01" / "node.toml", '# identity_token = ""', f'identity_token = "{uri(token, "another")}"')
    with pytest.raises(ConfigError, match="is another than") as caught:
        load_node(home / "silo-01")
    assert caught.value.key == "identity_token"
    edit(home / "silo-01" / "node.toml", "# identity_command = []", 'identity_command = ["/bin/true"]')
    with pytest.raises(ConfigError, match="keep one of the two"):
        load_node(home / "silo-01")


def test_a_token_that_does_not_sign_says_why(token: str, tmp_path: Path) -> None:
    with pytest.raises(SignerError, match="the key 'nobody' in the token 'hospital b' is not there"):
        TokenSigner(parse_uri(uri(token, "nobody")), bytes(32)).sign(bytes(32))
    gone = uri(token, "kept").replace("hospital%20b", "gone")
    with pytest.raises(SignerError, match="in the token 'gone' cannot be used through"):
        TokenSigner(parse_uri(gone), bytes(32)).sign(bytes(32))
    pin = tmp_path / "pin"
    pin.write_text("1")
    pin.chmod(0o644)
    open_to_all = uri(token, "kept").partition("&")[0].replace("hospital%20b", "x") + f"&pin-source=file:{pin}"
    with pytest.raises(ConfigError, match="is open to others"):
        TokenSigner(parse_uri(open_to_all), bytes(32)).sign(bytes(32))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pkcs11:token=a;object=b", "lacks module-path, pin-source"),
        ("pkcs11:object=b?module-path=/m&pin-source=/p", "lacks token"),
        ("pkcs11:token=a;object=b?module-path=/m&pin-value=1234", "mode 600"),
        ("pkcs11:token=a;objekt=b?module-path=/m&pin-source=/p", "found 'objekt=b'"),
        ("pkcs11:token=a;token=a;object=b?module-path=/m&pin-source=/p", "found 'token=a'"),
        ("pkcs11:token=a;object=b?module-path=m&pin-source=/p", "give an absolute path"),
        ("file:/etc/key", "give pkcs11:token=NAME"),
    ],
)
def test_a_uri_that_names_no_key(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        parse_uri(text)
    assert "1234" not in str(caught.value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
