"""Three owners change a federation while its rounds run: no round is lost, nobody is restarted, and every sum is right.

One federation for all of these tests. Each changes one thing, as owners do: one of them writes the next epoch, the
others find it at their nodes and accept it there. Then every round since the beginning is looked at.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.nodes.federations import PARAMETERS, mean_update, peer, refusal, until
from tests.owners.hospitals import NODES, SERVERS, Apart, Hospitals, free_port, run

from silomix.runtime.cli.federation.history import verify_log
from silomix.runtime.config.load import load_federation, load_node
from silomix.runtime.config.owners.rotate import finish, prepare
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.protocol.federation import SHOWN, Federation
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.nodes.changes import renewal
from silomix.runtime.store.modelfile import read_model
from silomix.v1 import services_pb2

WAIT_S = 120.0
"""Bound on each thing that a test waits for, on a machine that is busy with others."""


class Four(Hospitals):
    """Hospitals with four silos, so that one can go. They train a little, so that a round takes about half a second."""

    nodes: Mapping[str, Mapping[str, str]] = {**NODES, "hospital-a": {**NODES["hospital-a"], "silo-04": "silo"}}
    task = ("--task", "tests.nodes.toy:task", "--option", f"parameters={PARAMETERS}", "--option", "slow_s=0.3")


class World:
    """A federation that runs as long as somebody looks, and what its owners do."""

    def __init__(self, place: Path) -> None:
        self.hospitals = Four(place / "hospitals")
        self.hospitals.keygen({name: f"127.0.0.1:{free_port()}" for name in SERVERS})
        self.hospitals.assemble("--rounds", 1000, "--deadline-s", 600, "--release-s", 600, "--chunk-parameters", 256)
        self.hospitals.accept()
        home = self.hospitals.node("aggregator")
        assert run("model", "init", "--config", home) == 0
        file = home / "node.toml"
        file.write_text(f"keep_models = 0\n{file.read_text()}")
        self.log = place / "log.txt"
        self.running = Apart(self.hospitals, self.log)
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.Runner()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the federation run until something is done."""
        self._loop.run(asyncio.wait_for(work, 3 * WAIT_S))

    async def begin(self) -> None:
        await self.running.__aenter__()
        self.tasks = dict(self.running.tasks)
        await self.rounds(1)

    def close(self) -> None:
        self.run(self.running.__aexit__(None, None, None))
        self._loop.close()

    # What owners do

    async def do(self, *words: object) -> None:
        """Run a command while rounds go on."""
        assert await asyncio.to_thread(run, *words) == 0

    async def propose(self, owner: str, *words: object) -> Federation:
        """Let one owner write the next epoch beside its own files, and all accept it, each where it is told to."""
        number = self.epoch + 1
        home = self.hospitals.home(owner)
        draft = home / f"draft-{number}"
        await self.do("assemble", draft, *words, "--previous", home)
        new = load_federation(draft)
        assert new.epoch == number, "it follows what the nodes are in, whoever wrote that"
        (home / "epochs").mkdir(exist_ok=True)
        place = draft.rename(home / "epochs" / str(number))
        await self.do("accept", place, "--yes")
        for other in sorted(set(self.hospitals.nodes) - {owner}):
            node = next(n for n in self.hospitals.nodes[other] if n in self.running.nodes)
            kept = self.hospitals.node(node) / "state" / "epochs" / f"{number}-{new.digest.hex()[:SHOWN]}"
            await until((kept / "federation.toml").is_file, f"{other} is told of epoch {number}", WAIT_S)
            await self.do("accept", kept, "--yes")
        return new

    async def change(self, owner: str, *words: object) -> Federation:
        """The same, until all are in it."""
        new = await self.propose(owner, *words)
        await self.all_in(new)
        return new

    async def all_in(self, new: Federation) -> None:
        inside = [name for name in self.running.nodes if name in new.members]
        await until(lambda: all(self.running.nodes[n].federation == new for n in inside), "all are in it", WAIT_S)

    def keygen(self, owner: str, name: str, role: str, *words: object) -> Path:
        """Make a node that is new; return its enrolment file."""
        home = self.hospitals.home(owner) / name
        assert run("keygen", home, "--role", role, "--owner", owner, *words) == 0
        self.hospitals.nodes = {**self.hospitals.nodes, owner: {**self.hospitals.nodes[owner], name: role}}
        return home / f"{name}.enrol"

    def start(self, name: str) -> None:
        self.running.start(name)
        self.tasks[name] = self.running.tasks[name]

    async def taken_out(self, name: str) -> None:
        """Wait until a node hears that it is not in the next epoch, and ends."""
        with pytest.raises(UserError, match=f"{name} is not in it: its owners took it out"):
            await self.tasks.pop(name)
        del self.running.nodes[name], self.running.tasks[name]

    # What happened

    @property
    def epoch(self) -> int:
        return self.running.aggregator.federation.epoch

    @property
    def records(self) -> list[Record]:
        return list(self.running.aggregator.core.log.records)

    async def rounds(self, count: int) -> None:
        """Wait for so many more rounds."""
        last = self.running.aggregator.core.log.round + count
        await until(lambda: self.running.aggregator.core.log.round >= last, f"round {last} is over", WAIT_S)

    def intact(self) -> None:
        """No round was lost, nobody was started again, and each step is the mean of exactly the silos on record."""
        records, config = self.records, load_node(self.hospitals.node("aggregator"))
        assert [r.round for r in records] == list(range(len(records)))
        assert all(r.outcome is Outcome.APPLIED and len(r.attempts) == 1 for r in records[1:])
        assert {name: task for name, task in self.running.tasks.items() if not task.done()} == self.tasks
        assert verify_log(records, config.epochs) == []
        assert config.initial_model is not None
        files = {records[0].model_after: config.initial_model}
        files |= {record.model_after: config.state.model(record.model_after) for record in records[1:]}
        models = {digest: read_model(file.read_bytes())[1] for digest, file in files.items()}
        for record in records[1:]:
            policy = config.epochs.get(record.federation, "").policy
            before, after = (models[digest] for digest in (record.model_before, record.model_after))
            mean = mean_update(record.round, [int(name[-2:]) - 1 for name in record.silos])
            slack = policy.bound / (10**policy.precision - 1) / 2 + 1e-6
            for name, tensor in mean.items():
                assert np.abs(after[name] - before[name] - tensor).max() <= slack, f"the sum of round {record.round}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renewal, "LOOK_S", 0.1)
        patch.setattr(renewal, "MEET_S", 0.5)
        made = World(tmp_path_factory.mktemp("load"))
        try:
            made.run(made.begin())
            yield made
        finally:
            made.close()


def test_a_silo_is_added_in_mid_training(world: World) -> None:
    async def go() -> None:
        file = world.keygen("hospital-b", "silo-05", "silo", "--option", "silo=4")
        await world.change("hospital-b", file)
        world.start("silo-05")
        await until(lambda: "silo-05" in world.records[-1].silos, "it takes part", WAIT_S)
        world.intact()

    world.run(go())


def test_precision_and_rounds_change(world: World) -> None:
    async def go() -> None:
        old = world.running.aggregator.federation
        new = await world.change("hospital-c", "--precision", 5, "--rounds", 2000)
        assert (new.policy.precision, new.policy.rounds) == (5, 2000)
        await world.rounds(1)
        world.intact()

        # An aggregator that goes on in the old epoch with some hop is refused.
        log = world.running.aggregator.core.log
        ask = services_pb2.PrepareRequest(
            federation_digest=old.digest,
            round=log.round,
            attempt=1,
            silos=old.silo_names,
            head_digest=log.head,
            life=world.running.aggregator.core.life,
        )
        async with peer(world.hospitals.home("hospital-a"), "aggregator", "shuffler-1") as liar:
            refused = await refusal(lambda: liar.shuffler.Prepare(ask, metadata=liar.metadata, timeout=20))
        assert str(refused.details()).startswith("wrong_federation")

    world.run(go())


def test_certificates_are_rotated(world: World) -> None:
    """Of a silo, a hop and the aggregator, all at once, each by its own owner."""
    names = ("silo-03", "shuffler-1", "aggregator")

    def known(nodes: Sequence[str], counter: int) -> bool:
        return all(node.renewal.knows(name) >= counter for node in world.running.nodes.values() for name in nodes)

    async def go() -> None:
        for name in names:
            prepare(world.hospitals.node(name))
        await until(lambda: known(names, 2), "all have heard of the next ones", WAIT_S)
        for name in names:
            finish(world.hospitals.node(name))
        await until(lambda: known(names, 3), "all have changed over", WAIT_S)
        for name in names:
            shown = (world.hospitals.node(name) / "tls.pem").read_bytes()
            await until(lambda n=name, s=shown: world.running.nodes[n].tls.certificate == s, f"{name} shows it", WAIT_S)  # type: ignore[misc,union-attr]
        await world.rounds(2)
        world.intact()

    world.run(go())


def test_a_silo_is_revoked(world: World) -> None:
    """It hears so and ends, and its certificate opens nothing."""

    async def go() -> None:
        new = await world.propose("hospital-a", "--remove", "silo-02")
        await world.taken_out("silo-02")
        await world.all_in(new)
        seen = len(world.records)
        async with peer(world.hospitals.home("hospital-b"), "silo-02", "aggregator") as caller:
            ask = services_pb2.GetStatusRequest()
            refused = await refusal(lambda: caller.aggregator.GetStatus(ask, metadata=caller.metadata, timeout=20))
        assert refused.code() is grpc.StatusCode.UNAVAILABLE  # the handshake ends
        await world.rounds(2)
        assert not any("silo-02" in r.silos for r in world.records[seen + 1 :])
        world.intact()

    world.run(go())


@pytest.mark.full
def test_an_identity_is_rotated(world: World) -> None:
    async def go() -> None:
        home = world.hospitals.node("silo-03")
        before = world.running.nodes["silo-03"].identity.public
        await world.do("enrol", "--config", home, "--new-identity")
        new = await world.change("hospital-c", home / "silo-03.enrol")
        assert world.running.nodes["silo-03"].identity.public == new.member("silo-03").key != before
        await until(lambda: new.digest == world.records[-1].federation, "a round is over", WAIT_S)
        assert "silo-03" in world.records[-1].silos
        world.intact()

        # A silo that was killed before it had written down in which epoch it is finds out from its journal.
        await world.running.stop("silo-01")
        (world.hospitals.node("silo-01") / "state" / "epochs" / "now").unlink()
        world.start("silo-01")
        assert world.running.nodes["silo-01"].federation.epoch == 1
        await world.all_in(new)

    world.run(go())


@pytest.mark.full
def test_a_shuffler_moves(world: World) -> None:
    async def go() -> None:
        home = world.hospitals.node("shuffler-2")
        port = free_port()
        await world.do("enrol", "--config", home, "--address", f"127.0.0.1:{port}")
        new = await world.change("hospital-c", home / "shuffler-2.enrol")
        assert new.member("shuffler-2").address == f"127.0.0.1:{port}"
        await world.rounds(2)
        world.intact()

    world.run(go())


@pytest.mark.full
def test_a_shuffler_is_replaced(world: World) -> None:
    """By one of another owner, who did not write the epoch and finds it at its nodes."""

    async def go() -> None:
        file = world.keygen("hospital-b", "shuffler-3", "shuffler", "--address", f"127.0.0.1:{free_port()}")
        words = ("--remove", "shuffler-2", "--pool", "shuffler-3,shuffler-1")
        new = await world.propose("hospital-c", file, *words)
        world.start("shuffler-3")
        await world.taken_out("shuffler-2")
        await until(lambda: new.digest == world.records[-1].federation, "a round is over", WAIT_S)
        assert world.records[-1].attempts[-1].chain == ("shuffler-3", "shuffler-1")
        world.intact()

    world.run(go())
