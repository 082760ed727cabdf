"""Three owners on three hosts: each runs only its own commands, no private key leaves its host, and rounds run."""

import asyncio
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from tests.nodes.federations import model_of
from tests.nodes.toy import Toy
from tests.owners.hospitals import NODES, Hospitals, run
from tests.system.namespaces import Network
from tests.tools import program

from silomix.runtime.config.load import load_federation
from silomix.runtime.local import PARENT

ROUNDS = 2
PORTS = {"aggregator": 7000, "shuffler-1": 7001, "shuffler-2": 7002}
DIALS = {("a", "b", 7001), ("a", "c", 7002), ("b", "a", 7000), ("b", "c", 7002), ("c", "a", 7000), ("c", "b", 7001)}
"""Between hosts: the aggregator dials the hops, a hop the next and the last one the aggregator, silos both."""
WAIT_S = 180.0


@pytest.fixture
def network() -> Iterator[Network]:
    """A host for each hospital, and what their firewalls let through."""
    with Network(NODES) as made:
        made.allow((f"hospital-{a}", f"hospital-{b}", port) for a, b, port in DIALS)
        yield made


def secrets_of(home: Path) -> set[bytes]:
    """An owner's private keys in every form that they could travel in: text, or bare bytes."""
    found: set[bytes] = set()
    for path in home.rglob("*.key"):
        data = path.read_bytes()
        found |= set(data.splitlines()[1:-1])
        key = load_pem_private_key(data, None)
        if isinstance(key, Ed25519PrivateKey):
            found |= {key.private_bytes_raw(), key.private_bytes_raw().hex().encode()}
        else:
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            found.add(key.private_numbers().private_value.to_bytes(32, "big"))
    return found


def search(place: Path, home: Path) -> int:
    """Look for an owner's private keys outside its own directory; return how many captures were looked through."""
    secrets, captures = secrets_of(home), 0
    assert len(secrets) >= 10
    for path in place.rglob("*"):
        if not path.is_file() or path.is_relative_to(home):
            continue
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = zlib.decompressobj(31).decompress(data)
            captures += 1
            assert len(data) > 1000
        assert not [secret for secret in secrets if secret in data], f"a private key from {home} is in {path}"
    return captures


class Hosts:
    """Processes on the hosts of a network."""

    def __init__(self, network: Network, hospitals: Hospitals) -> None:
        self.network, self.hospitals = network, hospitals
        self.running: list[asyncio.subprocess.Process] = []

    async def start(self, name: str) -> asyncio.subprocess.Process:
        """Start a node on its owner's host, recording all that it sees."""
        owner = self.hospitals.owner_of(name)
        home = self.hospitals.node(name)
        role = NODES[owner][name]
        where = [program("ip"), "netns", "exec", self.network.namespace(owner)]
        command = [sys.executable, "-m", "silomix.runtime.cli", role, "--config", str(home)]
        root = str(Path(__file__).parents[2])
        env = {**os.environ, PARENT: str(os.getpid()), "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
        with (home / "log.txt").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *where, *command, "--capture", str(home / "capture"), stdout=log, stderr=log, env=env, cwd=home
            )
        self.running.append(process)
        return process

    async def stop(self) -> None:
        """End what was started here."""
        for process in self.running:
            with suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*(process.wait() for process in self.running))


async def test_three_hospitals_on_three_hosts(network: Network, tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    hospitals.keygen({name: f"{network.address(hospitals.owner_of(name))}:{port}" for name, port in PORTS.items()})
    hospitals.assemble("--rounds", ROUNDS, "--chunk-parameters", 64)
    hospitals.accept("hospital-a", "hospital-b")
    assert run("model", "init", "--config", hospitals.node("aggregator")) == 0

    hosts = Hosts(network, hospitals)
    try:
        async with asyncio.timeout(WAIT_S):
            # hospital-c has not accepted: it stays out and says so, and nobody else serves either.
            for name in ("shuffler-2", "shuffler-1"):
                early = await hosts.start(name)
                assert await early.wait() == 75
                said = (hospitals.node(name) / "log.txt").read_text()
                assert "hospital-c has not accepted the federation file" in said
            hospitals.accept("hospital-c")

            started = {name: await hosts.start(name) for nodes in NODES.values() for name in nodes}
            assert await started["aggregator"].wait() == 0
    except TimeoutError:
        logs = {name: (hospitals.node(name) / "log.txt").read_text()[-1500:] for name in PORTS}
        raise AssertionError(f"the rounds did not end: {logs}") from None
    finally:
        await hosts.stop()

    # The model is the sum of all three, round by round.
    policy = load_federation(hospitals.home("hospital-a")).policy
    found = model_of(hospitals.home("hospital-a"))
    step = policy.bound / (10**policy.precision - 1)
    for name in ("a", "b"):
        expected = sum(sum(Toy(i, 50).update(t)[name].astype(float) for i in range(3)) / 3 for t in (1, 2))
        assert abs(found[name] - expected).max() <= ROUNDS * (step / 2 + 1e-6)

    # Nobody's private key is on another's disk, in the mail, or in anything that any other node saw.
    for owner in NODES:
        assert search(tmp_path, hospitals.home(owner)) >= 4
