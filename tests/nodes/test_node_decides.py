"""What every node decides for itself: which epoch it goes on in, which process of a hop it believes, what it logs."""

import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.core.protocol.federations import AGGREGATOR, federation, identity, past, recorded
from tests.core.protocol.test_epochs import following, more
from tests.nodes.alone import alone, config_of

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol import aggregator as lead
from silomix.runtime.core.protocol import shuffler as hop
from silomix.runtime.core.protocol import silo
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.hearing import Life, life_after
from silomix.runtime.core.protocol.roundlog import Record
from silomix.runtime.net.meeting import Greeting
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.node import LOG_EVERY_S, Driver, Node
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.runtime.nodes.silo import SiloNode
from silomix.v1 import member_pb2

NOW = federation()
NEXT = more(NOW, rounds=9)
WITHOUT = following(NOW, silos=NOW.silos[1:])
HOP = NOW.chain[0]


class Idle(Node):
    """A node whose work is noted, and done at once."""

    records: tuple[Record, ...] = ()
    worked = False

    @property
    def counted(self) -> tuple[Record, ...]:
        return self.records

    async def main(self) -> None:
        self.worked = True


def idle(directory: Path, work: Callable[[Any], Coroutine[Any, Any, Any]], name: str = "silo-1") -> Any:
    """Have something done with such a node."""
    return alone(lambda: Idle(config_of(directory, NOW, name)), work)


# Where it is decided


@pytest.mark.parametrize(
    ("node", "event"),
    [(AggregatorNode, lead.TossIn), (ShufflerNode, hop.RecordIn), (SiloNode, silo.RecordsIn)],
    ids=["shares", "a record", "records"],
)
async def test_what_takes_hundreds_of_signatures_does_not_hold_up_the_event_loop(node: type[Any], event: type) -> None:
    """The last share of a coin has all others looked at again: in a large federation that took more than a second. A
    record may name one release in each of 128 attempts, with everybody's signatures every time."""
    driver: Driver[Any, Any] = object.__new__(node)
    driver.machine = SimpleNamespace(step=lambda _: [threading.current_thread()])  # type: ignore[assignment]
    (decided,) = await driver._decide(object.__new__(event))
    assert decided is not threading.current_thread()


# Epochs


@pytest.mark.parametrize("ready", [NEXT.digest, b""], ids=["ready", "not ready"])
@pytest.mark.parametrize("named", [NEXT.digest, b""], ids=["on record", "not on record"])
def test_a_node_goes_on_where_the_log_says_if_it_was_killed_before_it_had_written_that_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: bytes, named: bytes
) -> None:
    """And works where it is as long as no epoch is ready here, or the log names none."""

    async def go(node: Idle) -> tuple[bool, bool]:
        node.records = (replace(recorded(past(NOW)), next=named),)

        async def look() -> None:
            pass

        monkeypatch.setattr(node.succession, "look", look)
        monkeypatch.setattr(type(node.succession), "ready", ready)
        monkeypatch.setattr(type(node.succession), "epochs", Epochs((NOW, NEXT)))
        await node._work_to_the_end()
        return node.switching.is_set(), node.worked

    goes_on = bool(ready and named)
    assert idle(tmp_path, go) == (goes_on, not goes_on)


@pytest.mark.parametrize(
    ("epoch", "known"),
    [(NEXT.digest, True), (NOW.digest, False), (bytes(32), False)],
    ids=["the next", "this one", "an unknown one"],
)
def test_a_node_enters_a_later_epoch_that_it_knows_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: bytes, known: bool
) -> None:
    async def go(node: Idle) -> tuple[bool, bool]:
        monkeypatch.setattr(type(node.succession), "epochs", Epochs((NOW, NEXT)))
        node.switch(epoch)
        return node.switching.is_set(), node.stopping.is_set()

    assert idle(tmp_path, go) == (known, False)


def test_a_node_that_its_owners_took_out_leaves_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go(node: Idle) -> tuple[bool, bool]:
        monkeypatch.setattr(type(node.succession), "epochs", Epochs((NOW, WITHOUT)))
        node.switch(WITHOUT.digest)
        return node.switching.is_set(), node.stopping.is_set()

    assert idle(tmp_path / "1", go, "silo-1") == (False, True)
    assert idle(tmp_path / "2", go, "silo-2") == (True, False)


# Two processes of one hop


def life(hop: str, number: int) -> Life:
    return Life(hop, life_after(number - 1, bytes)).signed(identity(hop), NOW)


def test_who_dials_others_passes_on_that_a_hop_has_a_new_process(tmp_path: Path) -> None:
    """Whatever else it hears in the same greeting. A silo, which is on the way to nobody, keeps it to itself."""

    async def go(node: Idle) -> list[bool]:
        first, second = NOW.chain[:2]
        told = [
            node.heard_lives(second, [life(first, 1), life(second, 1)]),
            node.heard_lives(second, [life(first, 1), life(second, 1)]),
            node.heard_lives(second, [life(first, 2), life(second, 1)]),
            node.heard_lives(second, [life(first, 2), life(second, 2)]),
        ]
        return [*told, bool(node.doubled)]

    assert idle(tmp_path / "1", go, AGGREGATOR) == [True, False, True, True, False]
    assert idle(tmp_path / "2", go, "silo-1") == [False, False, False, False, False]


# What is logged


def test_a_refusal_that_comes_again_and_again_is_logged_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go(node: Idle) -> list[int]:
        now, said = 100.0, []
        monkeypatch.setattr(node, "steady", lambda: now)
        for after in (0.0, 0.0, LOG_EVERY_S / 2, LOG_EVERY_S):
            now += after
            node.refused("Submit", PeerFault(Reason.BUSY, "later"), "silo-2", "")
            said.append(sum("refused Submit" in one.getMessage() for one in caplog.records))
        return said

    assert idle(tmp_path, go, HOP) == [1, 1, 1, 2]


def test_a_refusal_is_logged_with_who_called_by_name_or_if_nobody_knows_that_by_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go(node: Idle) -> None:
        node.refused("Submit", PeerFault(Reason.BUSY, "later"), "silo-2", "ipv4:192.0.2.7:4321")
        node.refused("Submit", PeerFault(Reason.UNKNOWN_PEER, "a stranger"), "", "ipv4:192.0.2.7:4321")

    idle(tmp_path, go, HOP)
    lines = [vars(one)["silomix_fields"] for one in caplog.records if "refused Submit" in one.getMessage()]
    assert [(line.get("peer"), line.get("address")) for line in lines] == [
        ("silo-2", None),
        (None, "ipv4:192.0.2.7:4321"),
    ]


def said_in(caplog: pytest.LogCaptureFixture, *what: str) -> list[int]:
    """How often each of these things was logged."""
    return [sum(one in record.getMessage() for record in caplog.records) for one in what]


def test_what_a_member_says_in_greetings_is_logged_now_and_then_though_it_is_new_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = ("protocol", "has the federation file", "an epoch that a peer offers is refused")

    async def go(node: Idle) -> list[list[int]]:
        now, said = 100.0, []
        monkeypatch.setattr(node, "steady", lambda: now)
        for i, after in enumerate((0.0, 0.0, LOG_EVERY_S / 2, LOG_EVERY_S)):
            now += after
            epoch = member_pb2.Epoch(file=bytes([i]))
            node.renewal.heard("silo-2", Greeting(str(1000 + i), "1", bytes([i]) * 32, ()))
            await node.succession._offered("silo-2", epoch)
            said.append(said_in(caplog, *what))
        node.renewal.heard("silo-3", Greeting("1000", "1", bytes(32), ()))
        return [*said, said_in(caplog, *what)]

    assert idle(tmp_path, go, HOP) == [[1, 1, 1], [1, 1, 1], [1, 1, 1], [2, 2, 2], [3, 3, 2]]


def test_a_call_that_fails_again_and_again_is_logged_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go(node: Idle) -> None:
        for _ in range(20):
            node.failed("Submit", OSError("no room"))

    idle(tmp_path, go, HOP)
    assert said_in(caplog, "Submit failed") == [1]


def test_a_hop_that_shows_earlier_processes_of_itself_again_and_again_is_an_error_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go(node: Idle) -> list[int]:
        now, said = 100.0, []
        monkeypatch.setattr(node, "steady", lambda: now)
        node.heard_lives("silo-2", [life(HOP, 9)])
        for i, after in enumerate((0.0, 0.0, LOG_EVERY_S / 2, LOG_EVERY_S)):
            now += after
            node.heard_lives(HOP, [life(HOP, 1 + i)])
            said += said_in(caplog, "TWO PROCESSES")
        return [*said, int(node.doubled[HOP] == now)]

    assert idle(tmp_path, go, AGGREGATOR) == [1, 1, 1, 2, 1]
