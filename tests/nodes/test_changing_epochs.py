"""Epochs that begin while a federation runs: no restart, no round lost, and every sum that of exactly its cohort."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import numpy as np
import pytest
from tests.nodes.federations import make, mean_update, model_of, until

from silomix.runtime.cli.federation.history import verify_log
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_node
from silomix.runtime.config.owners.accept import accept
from silomix.runtime.config.owners.enrol import make_keys
from silomix.runtime.config.owners.owner import owner_identity
from silomix.runtime.config.owners.successor import newest, policy_after, succeed, write_successor
from silomix.runtime.config.owners.trial import OWNER
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.protocol import aggregator as hearing
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.owners import Enrolment
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.local import InProcess
from silomix.runtime.nodes import aggregator
from silomix.runtime.nodes.changes import renewal
from silomix.runtime.nodes.lead import rollcall
from silomix.runtime.nodes.silo import SiloNode

LONG_S = 240.0
"""Bound on a whole test's rounds on a machine that is busy with others."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "LOOK_S", 0.1)
    monkeypatch.setattr(renewal, "MEET_S", 0.5)


def owner(home: Path) -> Identity:
    """The one who owns everything here."""
    return owner_identity(OWNER, home / "owner.key")


def propose(
    home: Path,
    *enrolments: Enrolment,
    remove: Sequence[str] = (),
    pool: Sequence[str] = (),
    place: str = "",
    sign: bool = True,
    **policy: Any,
) -> Federation:
    """Write the next epoch beside the federation file, and accept it."""
    history = newest(home)
    old = history[-1].federation
    where = home / "epochs" / (place or str(old.epoch + 1))
    new = succeed(old, enrolments, policy=policy_after(old.policy, policy), file=where, remove=remove, pool=pool)
    write_successor(new, enrolments, history, where.with_name(f".{where.name}"))
    if sign:
        accept(new, owner(home), where.with_name(f".{where.name}"))
    where.with_name(f".{where.name}").rename(where)  # all of it at once
    return new


def keygen(home: Path, role: Role, name: str, address: str = "", index: int = 0) -> Enrolment:
    """Make a node that is new."""
    made = make_keys(role, name, owner(home), address)
    made.write(home / name, {}, {"silo": index} if role is Role.SILO else {})
    return made.enrolment


async def round_over(running: InProcess, number: int) -> None:
    """Wait until a round is on record."""
    await until(lambda: running.aggregator.core.log.round > number, f"round {number} is over", LONG_S)


def in_epoch(running: InProcess, number: int) -> bool:
    return all(node.federation.epoch == number for node in running.nodes.values())


def records_of(running: InProcess, name: str) -> list[Record]:
    core: Any = running.nodes[name].machine  # type: ignore[attr-defined]
    return list(core.log.records)


def assert_whole(running: InProcess, home: Path, rounds: int) -> None:
    """No round was lost, and each sum is that of exactly the silos that its record names."""
    records = running.aggregator.core.log.records
    assert [r.round for r in records] == list(range(rounds + 1))
    assert all(r.outcome is Outcome.APPLIED and len(r.attempts) == 1 for r in records[1:])
    config = load_node(home / "aggregator")
    assert verify_log(records, config.epochs) == []
    expected: dict[str, Any] = {"a": 0.0, "b": 0.0}
    slack = 0.0
    for record in records[1:]:
        policy = config.epochs.get(record.federation, "").policy
        mean = mean_update(record.round, [int(name.rpartition("-")[2]) - 1 for name in record.silos])
        expected = {name: expected[name] + mean[name] for name in expected}
        slack += policy.bound / (10**policy.precision - 1) / 2 + 1e-6
    found = model_of(home)
    for name, tensor in expected.items():
        assert np.abs(found[name] - tensor).max() <= slack, f"the sum of {name} is another"


@pytest.mark.full
async def test_a_lost_hop_is_taken_out_and_an_aggregator_two_epochs_behind_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollcall, "EVERY_S", 0.1)
    monkeypatch.setattr(rollcall, "BACK_S", 0.1)
    monkeypatch.setattr(rollcall, "ANSWER_S", 2.0)
    monkeypatch.setattr(aggregator, "SILENT_S", 0.5)
    monkeypatch.setattr(aggregator, "GONE_S", 1.0)
    monkeypatch.setattr(hearing, "HEAR_S", 1.0)
    home = tmp_path / "f"
    make(home, 3, 4, minimum_hops=3, rounds=1000, deadline_s=120, release_s=60)
    state = home / "aggregator" / "state"
    async with asyncio.timeout(LONG_S), InProcess(home, log=tmp_path / "log.txt") as running:
        tasks = dict(running.tasks)
        await round_over(running, 1)
        await running.stop("shuffler-2")
        del running.nodes["shuffler-2"], running.tasks["shuffler-2"], tasks["shuffler-2"]

        def without() -> bool:
            newest = running.aggregator.core.log.records[-1]
            return newest.outcome is Outcome.APPLIED and "shuffler-2" not in newest.attempts[-1].chain

        await until(without, "a round is applied without it", LONG_S)
        seen = running.aggregator.core.log.round
        await running.stop("aggregator")  # for a copy of its disk that is whole
        copytree(state, tmp_path / "copy")
        running.start("aggregator")
        tasks["aggregator"] = running.tasks["aggregator"]
        await round_over(running, seen)
        begun = running.aggregator.core.log.round

        propose(home, remove=["shuffler-2"])
        await until(lambda: in_epoch(running, 2), "all are in epoch 2", LONG_S)
        propose(home, rounds=900)
        await until(lambda: in_epoch(running, 3), "all are in epoch 3", LONG_S)
        await round_over(running, running.aggregator.core.log.round)
        records = records_of(running, "aggregator")
        assert all(r.outcome is Outcome.APPLIED and len(r.attempts) == 1 for r in records[begun:])
        assert all(running.tasks[name] is task for name, task in tasks.items())  # nobody was started again
        assert not any(task.done() for task in tasks.values())

        # Its disk is lost, and what there is of it is of epoch 1. Silos have used the newest sum, or it would wait.
        running.aggregator.config.state.paused.touch()
        await until(lambda: running.aggregator.pause.on, "no round is open", LONG_S)
        silos = [node for node in running.nodes.values() if isinstance(node, SiloNode)]
        await until(lambda: all(node.follower.at_head for node in silos), "all silos have the newest model", LONG_S)
        await running.stop("aggregator")
        before = records_of(running, "shuffler-1")
        rmtree(state)
        copytree(tmp_path / "copy", state)
        rmtree(home / "epochs")  # its owner has no later file either: peers bring them
        assert running.start("aggregator").federation.epoch == 1
        await until(lambda: in_epoch(running, 3), "it is where the others are", LONG_S)
        await round_over(running, len(before))
        found = records_of(running, "aggregator")
        assert [r.digest for r in found[: len(before)]] == [r.digest for r in before]
        assert found[-1].federation == running.nodes["silo-01"].federation.digest


def known(running: InProcess, names: Sequence[str], counter: int) -> bool:
    """Whether every node has seen so many pins of some."""
    return all(node.renewal.knows(name) >= counter for node in running.nodes.values() for name in names)


def certificate_of(running: InProcess, name: str) -> bytes:
    tls = running.nodes[name].tls
    assert tls is not None
    return tls.certificate


async def taken_out(running: InProcess, tasks: dict[str, asyncio.Task[None]], name: str) -> None:
    """Wait until a node hears that it is not in the next epoch, and ends."""
    with pytest.raises(UserError, match=f"{name} is not in it: its owners took it out"):
        await tasks.pop(name)
    del running.nodes[name], running.tasks[name]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
