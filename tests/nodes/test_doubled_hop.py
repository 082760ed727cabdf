"""Two processes with the identity of one hop: the later one goes on, the other ends and says why; never a wrong sum."""

import asyncio
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from tests.nodes.federations import assert_model, make, run, shuffler, until

from silomix.runtime.cli import main
from silomix.runtime.cli.exits import LASTING, code_of
from silomix.runtime.config.load import load_node
from silomix.runtime.core.errors import PeerFault, Reason, UserError
from silomix.runtime.core.protocol.lives import Life
from silomix.runtime.local import InProcess, make_node
from silomix.runtime.nodes import pause
from silomix.runtime.nodes.changes import renewal
from silomix.runtime.nodes.node import DOUBLE

SILOS, HOPS = 3, 2
HOP = "shuffler-1"


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_of_two_hops_with_one_identity_the_later_goes_on_and_the_other_ends_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pause, "LOOK_S", 0.02)
    monkeypatch.setattr(renewal, "LOOK_S", 0.1)
    federation = make(tmp_path / "f", SILOS, HOPS, rounds=2, deadline_s=60, release_s=60)
    home, double = tmp_path / "f" / HOP, tmp_path / "f" / "double"

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            lead = running.aggregator
            await until(lambda: lead.core.phase == "collecting", "a round is open", seconds=60)
            assert main(["pause", "--config", str(tmp_path / "f" / "aggregator")]) == 0
            await until(lambda: lead.pause.on and len(lead.history) == 1, "it is held", seconds=60)
            earlier = shuffler(running, HOP).lives.own
            assert earlier is not None
            shutil.copytree(home, double)
            second = make_node(replace(load_node(double), listen=free_address()))
            beside = asyncio.create_task(second.run())
            with pytest.raises(UserError, match=f"another process with the identity of {HOP} has begun") as ended:
                await asyncio.wait_for(running.tasks.pop(HOP), 60)
            assert code_of(ended.value) in LASTING  # whoever starts nodes leaves it alone
            await until(lambda: second.lives.own in lead.lives.known, "the aggregator has heard of it", seconds=60)
            assert not beside.done()

            lead.heard_lives(HOP, [earlier])  # as when the earlier one still answers
            assert "TWO PROCESSES" in caplog.text
            assert [hop.trouble for hop in lead.status().hops if hop.name == HOP] == [DOUBLE]

            second.stopping.set()
            await beside
            shutil.rmtree(home / "state")
            shutil.move(double / "state", home / "state")  # the newest state goes on where others call it
            running.start(HOP)
            assert main(["resume", "--config", str(tmp_path / "f" / "aggregator")]) == 0
            done = await running.finished()
            assert [(one.round, one.cohort) for one in done] == [(1, SILOS), (2, SILOS)]
            assert_model(lead.tensors, [range(SILOS)] * 2, federation.policy)

    run(go(), 120.0)


def test_nobody_ends_a_hop_by_claiming_that_there_is_another(tmp_path: Path) -> None:
    """A life counts with the hop's own signature alone, and an older one of it changes nothing."""
    make(tmp_path / "f", SILOS, HOPS)

    async def go() -> None:
        hop, other = make_node(load_node(tmp_path / "f" / HOP)), make_node(load_node(tmp_path / "f" / "shuffler-2"))
        try:
            own = hop.lives.own
            assert own is not None
            later = Life(HOP, b"\xff" * len(own.life))
            for forged in (replace(later, signature=own.signature), later.signed(other.identity, other.federation)):
                with pytest.raises(PeerFault) as caught:
                    hop.heard_lives("shuffler-2", [forged])
                assert caught.value.reason is Reason.BAD_SIGNATURE
            older = Life(HOP, bytes(len(own.life))).signed(hop.identity, hop.federation)
            assert not hop.heard_lives("shuffler-2", [older, own])
            assert not hop.stopping.is_set()
            assert hop.lives.known == (own,)
            hop.heard_lives("shuffler-2", [later.signed(hop.identity, hop.federation)])
            assert hop.stopping.is_set()
        finally:
            await hop.close()
            await other.close()

    run(go(), 60.0)
