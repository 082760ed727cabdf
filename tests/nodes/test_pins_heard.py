"""Pins that a running node hears of: whatever a member signs, it costs others little, and them alone who dial it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from tests.nodes.federations import make, until

from silomix.runtime.config.authority import private_pem
from silomix.runtime.config.load import identity_of, load_node
from silomix.runtime.config.owners.pins import read_pin
from silomix.runtime.config.owners.selfsigned import self_signed
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.local import InProcess
from silomix.runtime.net.meeting import Greeting, own_version
from silomix.runtime.net.transport import Tls
from silomix.runtime.net.version import PROTOCOL
from silomix.runtime.nodes.changes.renewal import PIN_EVERY_S, SAY_EVERY_S
from silomix.runtime.nodes.node import Node
from silomix.runtime.nodes.silo import SiloNode
from silomix.runtime.observe.log import redirected

PEERS = ("aggregator", "shuffler-1", "shuffler-2")


class Clock:
    """Stands until a test moves it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def _once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pins") / "f"
    make(directory, 3, 2)
    return directory


@pytest.fixture
def made(_once: Path, tmp_path: Path) -> Path:
    """A federation for one test: what its nodes hear, they keep."""
    return copytree(_once, tmp_path / "f")


@asynccontextmanager
async def hearing(made: Path) -> AsyncIterator[tuple[Node, Clock, Tls]]:
    """A silo that hears, with a clock of the test's."""
    node = Node(load_node(made / "silo-01"))
    node.steady = clock = Clock()
    assert node.tls is not None
    async with node.tasks:
        try:
            yield node, clock, node.tls
        finally:
            for task in node.tasks._tasks:
                task.cancel()
            await node.close()


def another(made: Path, name: str, counter: int, certificate: bytes = b"") -> Pin:
    """A member's pin with another certificate, or with one that is given."""
    shown = certificate or self_signed(name, ec.generate_private_key(ec.SECP256R1())).public_bytes(Encoding.DER)
    return Pin(name, counter, shown).signed(identity_of(load_node(made / name)))


def hear(node: Node, *pins: Pin) -> None:
    """Have the node hear of pins."""
    said = Greeting(str(PROTOCOL), own_version(), node.federation.digest, pins)
    node.renewal.heard("silo-02", said)


def counter(tls: Tls, name: str) -> int:
    assert tls.pins is not None
    pin = tls.pins.get(name)
    return 0 if pin is None else pin.counter


async def test_of_one_member_no_more_than_one_new_pin_is_taken_in_some_seconds_and_none_is_lost(made: Path) -> None:
    async with hearing(made) as (node, clock, tls):
        hear(node, another(made, "silo-02", 2))
        newer = another(made, "silo-02", 3)
        clock.now += PIN_EVERY_S - 1
        hear(node, newer, another(made, "silo-03", 2))
        assert (counter(tls, "silo-02"), counter(tls, "silo-03")) == (2, 2)  # each member by itself
        clock.now += 1
        hear(node, newer)  # as in each greeting of whoever knows it
        assert counter(tls, "silo-02") == 3


async def test_a_pin_that_its_member_has_not_signed_does_not_keep_the_next_from_being_taken(made: Path) -> None:
    async with hearing(made) as (node, _, tls):
        good = another(made, "silo-03", 2)
        with pytest.raises(PeerFault) as caught:
            hear(node, replace(good, counter=9))
        assert caught.value.reason is Reason.BAD_SIGNATURE
        hear(node, good)
        assert counter(tls, "silo-03") == 2


async def test_a_pin_that_no_reader_takes_is_refused_in_its_members_name(made: Path) -> None:
    """Whoever dials the member hears it in the answer to a greeting, where a refusal ends nothing but this one."""
    async with hearing(made) as (node, _, tls):
        good = another(made, "silo-03", 2)
        kind = b"\x82" + bytes([len("silo-03")]) + b"silo-03"
        with pytest.raises(PeerFault) as caught:
            hear(node, another(made, "silo-03", 3, good.current.replace(kind, b"\xa3" + kind[1:])))
        assert (caught.value.reason, caught.value.details["peer"]) == (Reason.UNKNOWN_PEER, "silo-03")
        hear(node, good)
        assert counter(tls, "silo-03") == 2


async def test_a_pin_is_kept_and_used_whatever_comes_behind_it(made: Path) -> None:
    """It was taken, and would be no news in the next greeting."""
    async with hearing(made) as (node, _, tls):
        good = another(made, "shuffler-2", 2)
        with pytest.raises(PeerFault):
            hear(node, good, replace(another(made, "silo-03", 2), counter=3))
        assert tls.pins is not None
        assert tls.anchor == tls.pins.roots()
        place = node.config.state.pins / "shuffler-2.pin"
        await until(lambda: place.is_file() and read_pin(place) == good, "the pin is on the disk")


async def test_who_hears_nothing_new_greets_nobody_for_it(made: Path) -> None:
    """Each greeting would bring about others, without end."""
    async with hearing(made) as (node, _, _tls):
        hear(node)
        assert not node.renewal._news.is_set()
        hear(node, another(made, "silo-03", 2))
        assert node.renewal._news.is_set()


async def test_a_node_says_of_each_member_which_pin_it_has_seen(made: Path) -> None:
    async with hearing(made) as (node, _, tls):
        hear(node, another(made, "silo-03", 2))
        members = list(node.federation.members)
        assert {name: node.renewal.knows(name) for name in members} == {name: counter(tls, name) for name in members}
        assert node.renewal.knows("silo-03") == 2
        assert node.renewal.knows("nobody") == 0


@pytest.mark.parametrize("without", ["TLS", "pins"])
async def test_a_node_that_knows_nobody_by_pins_hears_of_some_and_takes_none(made: Path, without: str) -> None:
    async with hearing(made) as (node, _, tls):
        if without == "TLS":
            node.tls = None
        tls.pins, anchor = None, tls.anchor
        hear(node, another(made, "silo-03", 2))
        assert tls.anchor == anchor
        assert not node.renewal._news.is_set()


async def test_a_member_ends_no_lines_but_those_to_itself(made: Path) -> None:
    async with hearing(made) as (node, clock, tls):
        before = {name: node.channel_to(name) for name in PEERS}

        def changed() -> set[str]:
            return {name for name in PEERS if node.channel_to(name) is not before[name]}

        assert tls.pins is not None
        pin = tls.pins.get("shuffler-2")
        assert pin is not None
        version = tls.version
        hear(node, another(made, "shuffler-2", 2, pin.current))
        assert tls.version == version  # the certificate is the same
        hear(node, another(made, "silo-03", 2))
        assert tls.version == version + 1  # this one is not: servers have to know it
        assert not changed()  # and nobody dials silo-03
        clock.now += PIN_EVERY_S
        hear(node, another(made, "shuffler-2", 3))
        assert changed() == {"shuffler-2"}
        key = ec.generate_private_key(ec.SECP256R1())
        own = self_signed("silo-01", key).public_bytes(Encoding.PEM)
        tls.renew(Tls(tls.anchor, own, private_pem(key), tls.pins))
        assert changed() == set(PEERS)


async def test_a_silo_listens_again_when_its_line_is_closed_for_the_aggregators_new_certificate(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listens for as long as the federation lasts, and gRPC ends that as if the silo's own task had been told to."""
    async with InProcess(made, without=("silo-03",)) as running:  # so the round waits
        silo, lead = running.nodes["silo-01"], running.aggregator
        await until(lambda: "silo-01" in lead.listening, "the silo listens")
        assert isinstance(silo, SiloNode)
        listen, again = silo._news, asyncio.Event()

        def listens(name: str) -> Any:
            again.set()
            return listen(name)

        monkeypatch.setattr(silo, "_news", listens)
        monkeypatch.setattr(silo, "limits", replace(silo.limits, round_s=1))
        assert silo.tls is not None
        assert silo.tls.pins is not None
        pin = silo.tls.pins.get("aggregator")
        assert pin is not None
        coming = self_signed("aggregator", ec.generate_private_key(ec.SECP256R1())).public_bytes(Encoding.DER)
        hear(silo, replace(pin, counter=2, next=coming).signed(lead.identity))
        silo.line("aggregator")
        await until(lambda: again.is_set() and "silo-01" in lead.listening, "the silo listens again")


async def test_a_member_that_changes_its_certificate_all_the_time_fills_no_log(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StringIO()
    with redirected(stream):
        async with hearing(made) as (node, clock, _):
            kept: list[int] = []
            monkeypatch.setattr(node, "work", _noting(kept))
            times = int(SAY_EVERY_S / PIN_EVERY_S)
            for number in range(times + 1):
                hear(node, another(made, "silo-03", 2 + number))
                await until(lambda number=number: len(kept) == number + 1, "it is kept")  # type: ignore[misc]
                clock.now += PIN_EVERY_S
    lines = [line for line in stream.getvalue().splitlines() if "a member has changed its certificate" in line]
    assert [f"unsaid={times - 1}" in line for line in lines] == [False, True]


def _noting(kept: list[int]) -> Callable[..., Any]:
    async def work(_: object, pin: Pin, *rest: object) -> None:
        kept.append(pin.counter)

    return work
