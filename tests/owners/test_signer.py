"""An identity in no file: a command signs, the node never sees the key, and nonsense is found before a peer sees it."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from tests.config.written import edit
from tests.nodes.federations import make

from silomix.runtime.config.load import identity_of, load_node
from silomix.runtime.config.signer import CommandSigner, SignerError
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.local import InProcess

AGENT = """
import sys
from cryptography.hazmat.primitives.serialization import load_pem_private_key
key = load_pem_private_key(open(sys.argv[1], "rb").read(), None)
print(key.sign(bytes.fromhex(sys.stdin.read())).hex())
"""


def guarded(home: Path, vault: Path, agent: str = AGENT) -> list[str]:
    """Take a node's key away from it, and let a command sign."""
    vault.mkdir()
    shutil.move(home / "identity.key", vault / "identity.key")
    (vault / "agent.py").write_text(agent)
    command = [sys.executable, str(vault / "agent.py"), str(vault / "identity.key")]
    edit(home / "node.toml", "# identity_command = []", f"identity_command = {json.dumps(command)}")
    return command


async def test_a_silo_runs_with_its_identity_elsewhere(tmp_path: Path) -> None:
    home = tmp_path / "f"
    make(home, 3, 1, rounds=1)
    guarded(home / "silo-01", tmp_path / "vault")
    config = load_node(home / "silo-01")
    identity = identity_of(config)
    assert identity.public == config.federation.member("silo-01").key
    verify(identity.public, bytes(32), identity.sign(bytes(32)), "silo-01")
    async with InProcess(home) as running:
        assert [done.cohort for done in await running.finished()] == [3]


def test_another_key_behind_the_command_is_found_at_the_start(tmp_path: Path) -> None:
    home = tmp_path / "f"
    make(home, 3, 1)
    guarded(home / "silo-01", tmp_path / "vault")
    shutil.copy(home / "silo-02" / "identity.key", tmp_path / "vault" / "identity.key")
    with pytest.raises(ConfigError, match="signs with another key") as caught:
        load_node(home / "silo-01")
    assert caught.value.key == "identity_command"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["/no/such/command"], "cannot be run"),
        ([sys.executable, "-c", "print('00')"], "wrote 2 characters"),
        ([sys.executable, "-c", "print('00' * 64)"], "signs with another key"),
        ([sys.executable, "-c", "import sys; sys.exit('no token')"], "ended with code 1 and said: no token"),
    ],
)
def test_a_command_that_does_not_sign(command: list[str], says: str) -> None:
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    with pytest.raises(SignerError, match=says):
        CommandSigner(command, public).sign(bytes(32))
