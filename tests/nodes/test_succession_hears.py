"""What a running node makes of later epochs: which it keeps, which it believes, and when the aggregator names one."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from tests.core.protocol.federations import AGGREGATOR, federation, identity
from tests.core.protocol.test_epochs import accepted, following, more, owned

from silomix.runtime.config.authority import blank
from silomix.runtime.config.owners.epochs import Proposal, own_place
from silomix.runtime.config.owners.selfsigned import self_signed
from silomix.runtime.core.errors import PeerFault, Reason, UserError
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.net.meeting import Greeting
from silomix.runtime.nodes.changes import epochs
from silomix.runtime.nodes.changes.epochs import MOST_EACH, OFFERS_S, OFFERS_TIMES, PATIENCE_S, SEEN, Succession
from silomix.runtime.nodes.node import LOG_EVERY_S, Node
from silomix.runtime.observe.log import Sparing
from silomix.runtime.store.home import State
from silomix.v1 import member_pb2

NOW = owned(federation())
NEXT = more(NOW, rounds=9)
OTHER = more(NOW, rounds=8)
BROUGHT = Path("brought")
"""Where the owner of a node has put a file."""


@cache
def certificate(name: str) -> bytes:
    return self_signed(name, ec.generate_private_key(ec.SECP256R1())).public_bytes(Encoding.DER)


def pin_of(name: str, signer: str = "", current: bytes | None = None) -> Pin:
    """A pin as its node would sign it, or as another does."""
    return Pin(name, 1, certificate(name) if current is None else current).signed(identity(signer or name))


class Log:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def warning(self, what: str, **_: object) -> None:
        self.said.append(what)

    info = error = warning


class Bare:
    """A node of which only that is there which epochs need. Its owner is a, as the aggregator's; a hop's is b."""

    def __init__(self, place: Path, name: str = AGGREGATOR, history: tuple[Federation, ...] = (NOW,)) -> None:
        self.federation = history[-1]
        self.config = SimpleNamespace(
            name=name,
            file=place / "node.toml",
            agreement=place,
            state=State(place / "state"),
            history=tuple(Proposal(one) for one in history),
            epochs=Epochs(history),
        )
        self.tls: Any = None
        self.log, self.time, self.told = Log(), 0.0, list[tuple[Epochs, bytes]]()
        self.listening: tuple[str, ...] = ()
        self.renewal = SimpleNamespace(tell=lambda: None)
        self.spawned: list[Coroutine[Any, Any, None]] = []
        self._lines = Sparing()
        self.succession = Succession(cast("Node", self))

    def clock(self) -> float:
        return self.time

    steady = clock

    unsaid = Node.unsaid

    async def work(self, run: Callable[..., Any], *arguments: object) -> Any:
        return run(*arguments)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.spawned.append(work)

    async def epochs_in(self, known: Epochs, named: bytes) -> None:
        self.told.append((known, named))

    async def take(self, f: Federation, *owners: str, place: Path | None = None, **more_: Any) -> None:
        """Take in a file that some owners have signed."""
        signed = accepted(f, *owners) if owners else {}
        proposal = Proposal(f, more_.pop("accepted", signed), more_.pop("pins", {}), place or Path())
        await self.succession._take(proposal)

    async def hears(self, digest: bytes, *peers: str) -> None:
        """Peers say which epoch they are ready for."""
        for peer in peers:
            self.succession.heard(peer, Greeting("1", "1", self.federation.digest, (), ready=digest))
        while self.spawned:
            await self.spawned.pop(0)

    @property
    def kept(self) -> set[bytes]:
        """The files that the node shows others."""
        return {one.federation.digest for one in self.succession.offers(self.federation.digest)}

    def on_disk(self, f: Federation) -> bool:
        return own_place(Proposal(f), self.config.state).exists()

    @property
    def named(self) -> list[bytes]:
        return [digest for _, digest in self.told if digest]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(epochs, "load_node", lambda *_: None)


# What others are told


def test_others_are_shown_the_pins_that_are_known_and_none_where_there_are_none(tmp_path: Path) -> None:
    bare, pin = Bare(tmp_path), Pin("silo-1", 1, b"")
    assert not bare.succession.pins
    bare.tls = SimpleNamespace(pins=None)
    assert not bare.succession.pins
    bare.tls = SimpleNamespace(pins=[pin])
    assert bare.succession.pins == (pin,)


async def test_who_is_behind_is_offered_what_came_after_and_who_is_not_what_is_proposed(tmp_path: Path) -> None:
    third = following(NEXT)
    bare = Bare(tmp_path, history=(NOW, NEXT, third))
    fourth = more(third, rounds=7)
    await bare.take(fourth, "a")

    def offered(digest: bytes) -> list[int]:
        return [one.federation.epoch for one in bare.succession.offers(digest)]

    assert offered(NOW.digest) == [2, 3]
    assert offered(NEXT.digest) == [3]
    assert offered(third.digest) == [4]
    assert offered(bytes(32)) == [4]


async def test_what_follows_is_offered_first_and_once(tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    await bare.take(OTHER, "c")
    await bare.take(NEXT, "a", "b")
    for _ in range(3):
        offered = [one.federation.digest for one in bare.succession.offers(NOW.digest)]
        assert offered == [NEXT.digest, OTHER.digest]


# What is kept


@pytest.mark.parametrize(
    "new",
    [
        following(NOW, name="other"),
        following(NOW, aggregator=replace(NOW.aggregator, address="b:2")),
        replace(NEXT, predecessor=bytes(32)),
        following(NEXT),
    ],
)
async def test_a_file_that_cannot_follow_is_not_even_kept_whoever_signs(tmp_path: Path, new: Federation) -> None:
    bare = Bare(tmp_path)
    await bare.take(new, "a", "b", "c")
    assert not bare.kept
    assert not bare.on_disk(new)
    assert not bare.told


async def test_a_peer_brings_nothing_that_no_owner_has_signed_and_the_nodes_owner_may(tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    await bare.take(NEXT)
    await bare.take(NEXT, accepted={"a": accepted(OTHER, "a")["a"]})
    assert not bare.kept
    assert not bare.on_disk(NEXT)
    await bare.take(NEXT, "c")
    assert bare.kept == {NEXT.digest}
    await bare.take(OTHER, place=BROUGHT)
    assert bare.kept == {NEXT.digest, OTHER.digest}


async def test_a_copy_without_signatures_may_bring_a_pin_for_a_file_that_is_known(tmp_path: Path) -> None:
    bare, pin = Bare(tmp_path), pin_of("silo-1")
    await bare.take(NEXT, "c")
    await bare.take(NEXT, pins={"silo-1": pin})
    assert [one.pins for one in bare.succession.offers(NOW.digest)] == [{"silo-1": pin}]


async def test_signatures_and_pins_that_do_not_hold_are_left_out(tmp_path: Path) -> None:
    """Else a false one would stand where the true one has to come, which is taken no more."""
    bare = Bare(tmp_path)
    forged = {**accepted(NEXT, "a"), "b": accepted(OTHER, "b")["b"], "x": accepted(NEXT, "x")["x"]}
    true = pin_of("silo-1")
    false = pin_of("silo-2", "silo-1")
    await bare.take(NEXT, accepted=forged, pins={"silo-1": true, "silo-2": false})
    (kept,) = bare.succession.offers(NOW.digest)
    assert kept.accepted == accepted(NEXT, "a")
    assert kept.pins == {"silo-1": true}


async def test_an_owner_who_signs_ever_more_pushes_out_its_own_oldest_and_nobody_elses(tmp_path: Path) -> None:
    bare = Bare(tmp_path, "hop-1")  # of b
    files = [more(NOW, rounds=20 + i) for i in range(MOST_EACH + 1)]
    others = {"a": more(NOW, rounds=40), "b": more(NOW, rounds=41)}
    for owner, one in others.items():
        await bare.take(one, owner)
    for one in files:
        await bare.take(one, "c")
    assert bare.kept == {one.digest for one in (*others.values(), *files[1:])}
    assert not bare.on_disk(files[0])


async def test_what_the_nodes_own_owner_has_signed_stays(tmp_path: Path) -> None:
    bare = Bare(tmp_path, "hop-1")
    files = [more(NOW, rounds=20 + i) for i in range(MOST_EACH + 2)]
    for one in files:
        await bare.take(one, "b")
    assert bare.kept == {one.digest for one in files}


def odd(name: str) -> bytes:
    """A certificate for which the library that reads it has an error of no kind of its own."""
    signer = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    feature = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.5.5.7.1.24"), bytes.fromhex("3003020163"))
    made = blank(subject, subject, signer.public_key(), datetime.now(UTC), 10).add_extension(feature, critical=False)
    return made.sign(signer, SHA256()).public_bytes(Encoding.DER)


@pytest.mark.parametrize("current", [b"", b"no certificate", certificate("silo-2"), odd("silo-1")])
async def test_a_member_who_pins_no_certificate_of_its_own_ends_no_node(tmp_path: Path, current: bytes) -> None:
    """What cannot be read cannot be written either, and what is another's could not be read at the next start."""
    bare = Bare(tmp_path)
    await bare.take(NEXT, "c", pins={"silo-1": pin_of("silo-1", current=current)})
    assert [one.pins for one in bare.succession.offers(NOW.digest)] == [{}]


async def test_an_owner_who_signs_ever_more_fills_neither_the_log_nor_the_memory(tmp_path: Path) -> None:
    bare, many = Bare(tmp_path), SEEN + 10
    files = [more(NOW, rounds=20 + i) for i in range(many)]
    for one in files:
        await bare.take(one, "b")
    assert len(bare.log.said) == 1
    await bare.take(NEXT, "c")  # what another owner has signed is told of at once
    assert len(bare.log.said) == 2
    for one in files:
        bare.time += LOG_EVERY_S
        await bare.take(one, "b")
    assert len(bare.log.said) == 1 + many  # nothing new is to be said of the first
    assert len(bare.succession._said) == SEEN


async def test_owners_who_sign_two_files_again_and_again_fill_no_log(tmp_path: Path) -> None:
    bare = Bare(tmp_path, "hop-1")
    await bare.take(NEXT, "a", "c")
    for i in range(20):
        await bare.take(more(NOW, rounds=20 + i), "a", "b")
    assert sum(said.startswith("FORK") for said in bare.log.said) == 1


# Which one counts


async def test_an_epoch_counts_with_a_quorum_and_is_told_once(tmp_path: Path) -> None:
    bare = Bare(tmp_path, "hop-1")
    await bare.take(NEXT, "b")
    assert "is signed by b: it takes 2 of the 3 owners" in bare.log.said[-1]
    assert not bare.told
    assert bare.succession.ready == b""
    await bare.take(NEXT, "a")
    assert bare.told == [(Epochs((NOW, NEXT)), b"")]
    assert bare.succession.ready == NEXT.digest
    assert bare.succession.epochs == Epochs((NOW, NEXT))
    await bare.take(NEXT, "c")
    assert len(bare.told) == 1


async def test_an_epoch_does_not_count_without_the_nodes_own_owner(tmp_path: Path) -> None:
    bare = Bare(tmp_path, "hop-1")
    await bare.take(NEXT, "a", "c")
    assert "b has not accepted epoch 2" in bare.log.said[-1]
    assert not bare.told
    assert bare.succession.epochs == Epochs((NOW,))
    await bare.take(NEXT, "b")
    assert bare.succession.ready == NEXT.digest


async def test_a_second_file_that_a_quorum_has_signed_does_not_count(tmp_path: Path) -> None:
    bare = Bare(tmp_path, "hop-1")
    await bare.take(NEXT, "a", "c")  # it follows, and does not count before b has signed
    await bare.take(OTHER, "a", "b")
    assert any(said.startswith("FORK") and said.endswith("Both were signed by a") for said in bare.log.said)
    assert not bare.told
    assert bare.succession.following is not None
    assert bare.succession.following.federation == NEXT


async def test_what_was_chosen_before_a_restart_is_chosen_still(tmp_path: Path) -> None:
    first = Bare(tmp_path, "hop-1")
    await first.take(NEXT, "a", "c")
    second = Bare(tmp_path, "hop-1")
    await second.take(OTHER, "a", "b")
    assert second.succession.following is None
    assert not second.told
    assert any(said.startswith("FORK") for said in second.log.said)
    await second.take(NEXT, "a", "b")
    assert second.succession.ready == NEXT.digest


async def test_with_pinned_certificates_an_epoch_counts_when_there_is_a_pin_of_everybody(tmp_path: Path) -> None:
    bare = Bare(tmp_path, "hop-1")
    bare.tls = SimpleNamespace(pins=[])
    await bare.take(NEXT, "a", "b")
    assert "there is no pin of" in bare.log.said[-1]
    before = len(bare.log.said)
    await bare.take(NEXT, pins={"silo-1": pin_of("silo-1")})
    assert len(bare.log.said) == before + 1  # what is missing of the one that follows is said at once
    assert not bare.told
    bare.tls = SimpleNamespace(pins=None)  # with CAs nobody needs one
    await bare.take(NEXT, "a", "b")
    assert bare.succession.ready == NEXT.digest


async def test_an_epoch_does_not_count_where_the_node_cannot_be_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise UserError("there is no room")

    monkeypatch.setattr(epochs, "load_node", fails)
    bare = Bare(tmp_path, "hop-1")
    await bare.take(NEXT, "a", "b")
    assert bare.log.said[-1] == "this node cannot be in epoch 2: there is no room"
    assert not bare.told
    assert bare.succession.ready == b""


async def test_a_node_that_is_taken_out_needs_no_owner_of_its_own_to_believe_it(tmp_path: Path) -> None:
    hop = Member("hop-3", identity("hop-3").public, "h3:1", "c")
    without = following(NOW, shufflers=(NOW.shufflers[0], hop))
    bare = Bare(tmp_path, "hop-2")
    await bare.take(without, "a", "c")
    assert bare.log.said[-1].endswith("this node is not in it: its owners have taken it out")
    assert bare.succession.ready == without.digest


# When the aggregator names it


async def test_the_aggregator_names_an_epoch_once_when_all_who_stay_are_ready_for_this_very_one(tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    await bare.hears(NEXT.digest, "hop-1", "hop-2")
    await bare.take(NEXT, "b", "c")  # a has not signed: it does not count here
    assert not bare.named
    await bare.hears(OTHER.digest, "hop-2")
    await bare.take(NEXT, "a")
    assert bare.succession.counts
    assert not bare.named
    await bare.hears(NEXT.digest, "hop-2")
    assert bare.named == [NEXT.digest]
    await bare.hears(NEXT.digest, "hop-1")
    assert bare.named == [NEXT.digest]


async def test_nobody_but_the_aggregator_names_an_epoch(tmp_path: Path) -> None:
    bare = Bare(tmp_path, "hop-1")
    await bare.take(NEXT, "a", "b")
    await bare.hears(NEXT.digest, "hop-1", "hop-2", AGGREGATOR)
    assert bare.succession.counts
    assert not bare.named


async def test_owners_have_a_day_to_accept_and_no_longer(tmp_path: Path) -> None:
    now = owned(federation(hops=3, minimum_hops=2))
    new = more(now, rounds=9)
    bare = Bare(tmp_path, history=(now,))
    await bare.take(new, "a", "b")
    bare.time = PATIENCE_S - 1
    await bare.hears(new.digest, "hop-1", "hop-2")
    assert not bare.named
    bare.time = PATIENCE_S
    bare.listening = now.silo_names
    await bare.hears(new.digest, *now.silo_names)
    assert bare.named == [new.digest]


async def test_what_peers_offer_is_read_one_by_one_and_each_waits_ten_times_as_long_as_that_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are few workers: files that are written to take long must not keep journals and sums from them."""
    bare, reading, most, pauses = Bare(tmp_path), 0, 0, list[float]()
    bare.metrics = SimpleNamespace(rejected=lambda _: None)  # type: ignore[attr-defined]
    bare.log.fault = lambda *_, **__: None  # type: ignore[attr-defined]
    sleep = asyncio.sleep

    async def work(run: Callable[..., Any], *arguments: object) -> Any:
        nonlocal reading, most
        reading, most = reading + 1, max(most, reading + 1)
        await sleep(0)
        reading, bare.time = reading - 1, bare.time + 0.75
        raise PeerFault(Reason.WRONG_EPOCH, "that is none")

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(bare, "work", work)
    monkeypatch.setattr(asyncio, "sleep", pause)
    for peer in ("silo-1", "silo-2"):
        offered = tuple(member_pb2.Epoch(file=f"{peer} {i}".encode()) for i in range(2))
        bare.succession.heard(peer, Greeting("1", "1", NOW.digest, (), offered))
    await asyncio.gather(*bare.spawned)
    assert (most, pauses) == (1, [2 * 0.75 * OFFERS_TIMES] * 2)
    await bare.succession._offers_of("silo-3", offered)
    assert pauses[2:] == [OFFERS_S]  # these were seen already


async def test_a_file_that_finds_no_room_is_kept_when_it_is_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, full, write = Bare(tmp_path), [True] * 20, Proposal.write
    offered = (member_pb2.Epoch(file=b"the next"),)

    def on_a_full_disk(self: Proposal, place: Path) -> None:
        if full:
            full.pop()
            raise OSError(28, "No space left on device")
        write(self, place)

    async def pause(_: float) -> None:
        pass

    monkeypatch.setattr(epochs, "read_epoch", lambda *_: Proposal(NEXT, accepted(NEXT, "a")))
    monkeypatch.setattr(Proposal, "write", on_a_full_disk)
    monkeypatch.setattr(asyncio, "sleep", pause)
    for _ in range(len(full)):
        assert not bare.kept
        await bare.succession._offers_of("silo-1", offered)
    await bare.succession._offers_of("silo-1", offered)
    assert bare.kept == {NEXT.digest}
    assert sum("cannot be kept" in said for said in bare.log.said) == 1, "nor does that fill the log"
