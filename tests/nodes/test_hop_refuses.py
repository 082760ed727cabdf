"""What a hop's process refuses itself, call by call: by name and place, by length, and when it is too late."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from tests.core.protocol.checks import F as CHECKED
from tests.core.protocol.checks import Led
from tests.core.protocol.checks import trails as checked_trails
from tests.core.protocol.federations import (
    AGGREGATOR,
    cohort,
    evidence,
    federation,
    header,
    headers,
    identity,
    manifest,
    past,
    private,
    ready,
    recorded,
    rng,
    secret,
)
from tests.core.protocol.hops import opening
from tests.nodes.alone import Peers, alone, call, config_of
from tests.nodes.federations import rejections, until
from tests.nodes.test_passage_refuses import sent, settled, signed_anew

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.packing import pack
from silomix.runtime.core.numbers.plan import Granularity, Level, Plan
from silomix.runtime.core.protocol import shuffler as core
from silomix.runtime.core.protocol.check.blame import Case, Charge, EquivocationError, decide
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.core.protocol.messages import (
    Accusation,
    Evidence,
    Header,
    Manifest,
    body_root,
    chunk_digest,
    delivery_digest,
    trailer_digest,
)
from silomix.runtime.core.protocol.roundlog import Attempted, Fork
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.core.protocol.silo import Silo
from silomix.runtime.net.check.said import write_check
from silomix.runtime.net.history import write_record, write_trail
from silomix.runtime.net.streams import Inbox
from silomix.runtime.net.wire import write_header, write_manifest
from silomix.runtime.nodes import shuffler as module
from silomix.runtime.nodes.passage import SumPassage
from silomix.runtime.nodes.rows import make_passage
from silomix.runtime.nodes.shuffler import ShufflerNode, Spool, _receipt, _Service, in_time
from silomix.v1 import body_pb2, services_pb2

F = federation(level=Level.TRUSTED)
MASKED = federation(4, 3)
Frame = body_pb2.Frame
Relay = services_pb2.RelayFrame


def hop(
    directory: Path, work: Callable[[ShufflerNode], Coroutine[Any, Any, Any]], name: str = "hop-1", f: Federation = F
) -> Any:
    """Have something done with a hop that nobody can reach."""

    async def go(node: ShufflerNode) -> Any:
        node.line = Peers(Relay=[_never], Deliver=[_never])  # type: ignore[method-assign, assignment]
        return await work(node)

    return alone(lambda: ShufflerNode(config_of(directory, f, name)), go)


async def _never(frames: Any) -> None:
    await asyncio.Event().wait()


async def opened(node: ShufflerNode, m: Manifest | None = None) -> Manifest:
    """Open an attempt at a node; it draws the keys that the tests' manifests have."""
    f = node.federation
    m = m or manifest(f)
    silos = f.draw(m.applied + 1, m.model)
    keys = deque(private(node.config.name, silo, m.round, m.attempt).value for silo in silos)
    random = node.core._rng
    node.core._rng = lambda size: keys.popleft() if keys else random(size)
    for record in past(f, m.round - 1).records[node.core.log.round :]:
        await node.step(core.RecordIn(record))
    now = node.clock()
    await node.step(core.Prepare(f.digest, m.round, m.attempt, silos, 0, m.head, now))
    await node.step(replace(opening(m), now=now))
    return m


async def why(work: Awaitable[Any]) -> Reason:
    with pytest.raises(PeerFault) as caught:
        await work
    return caught.value.reason


# Bodies


def chunks(m: Manifest, values: Any = 0, weight: int = 1) -> list[body_pb2.Chunk]:
    """A body in clear in which every value is the same integer, or that of its place."""
    shape, plan = layout(m), m.plan
    every = np.broadcast_to(np.asarray(values), (m.schema.parameters,)).tolist()
    every += [weight] if plan.weight_levels > 1 else []
    made = []
    for i in range(shape.chunks):
        part = every[shape.start(i) : shape.start(i) + shape.length(i)]
        residues = np.zeros((len(plan.moduli), len(part)), shape.buffer(0).dtype)
        for at, value in enumerate(part):
            residue.put_integer(value, plan, residues, at)
        planes = [pack(row, width) for row, width in zip(residues, plan.widths, strict=True)]
        made.append(body_pb2.Chunk(index=i, first_parameter=shape.start(i), planes=planes))
    return made


def last_frame(h: Header, of: list[body_pb2.Chunk]) -> Frame:
    root = body_root([chunk_digest(c.index, c.first_parameter, list(c.planes)) for c in of])
    return Frame(trailer=body_pb2.Trailer(root=root, signature=identity(h.silo).sign(trailer_digest(h.digest, root))))


def frames(m: Manifest, silo: str = "silo-1") -> list[Frame]:
    """An honest body."""
    h = header(m, silo)
    of = chunks(m)
    return [Frame(header=write_header(h)), *(Frame(chunk=c) for c in of), last_frame(h, of)]


def inbox(node: ShufflerNode, peer: str, kind: Any, sent_: list[Any], *, silent: bool = False) -> Inbox[Any]:
    return Inbox(call(peer, *sent_, silent=silent)[0], kind, node.limits)


async def submit(node: ShufflerNode, sent_: list[Frame], silo: str = "silo-1") -> Any:
    return await node.take_body(silo, inbox(node, silo, Frame, sent_))


def plan_limit(plan: Plan) -> int:
    return plan.v * plan.weight_levels


def taken(directory: Path, f: Federation, of: list[body_pb2.Chunk]) -> Reason | None:
    """Why a spool refuses a body, if it does."""
    m = manifest(f)
    spool = Spool(directory, header(m, "silo-1"), m)
    try:
        spool.take(list(of))
    except PeerFault as fault:
        return fault.reason
    finally:
        spool.drop()
    return None


@pytest.mark.parametrize("levels", [1, 3])
def test_where_values_are_in_clear_each_is_one_that_a_silo_can_have(tmp_path: Path, levels: int) -> None:
    f = federation(level=Level.TRUSTED, weight_levels=levels)
    m = manifest(f)
    limit, many = plan_limit(m.plan), m.schema.parameters
    assert m.plan.weight_levels == levels
    assert taken(tmp_path, f, chunks(m, limit, weight=levels)) is None
    assert taken(tmp_path, f, chunks(m, -limit)) is None
    for place in range(many):
        beyond = [limit + 1 if at == place else 0 for at in range(many)]
        assert taken(tmp_path, f, chunks(m, beyond)) is Reason.OUT_OF_RANGE
        assert taken(tmp_path, f, chunks(m, [-value for value in beyond])) is Reason.OUT_OF_RANGE


def test_where_values_are_in_clear_no_silo_gives_itself_a_weight_that_there_is_not(tmp_path: Path) -> None:
    """It would count for more than its share, or fail the round unnamed."""
    f = federation(level=Level.TRUSTED, weight_levels=3)
    m = manifest(f)
    for weight in (1, 3):
        assert taken(tmp_path, f, chunks(m, 5, weight=weight)) is None
    for weight in (0, -1, 4, 29_998):
        assert taken(tmp_path, f, chunks(m, 5, weight=weight)) is Reason.OUT_OF_RANGE


def test_a_body_of_plain_values_is_checked_before_anything_is_shuffled(tmp_path: Path) -> None:
    f = federation(level=Level.TRUSTED, granularity=Granularity.MODEL)
    m = manifest(f)
    shape = layout(m)
    good = [
        body_pb2.Chunk(index=i, first_parameter=shape.start(i), planes=[bytes(4 * shape.length(i))])
        for i in range(shape.chunks)
    ]
    assert taken(tmp_path, f, good) is None
    assert taken(tmp_path, f, good[1:]) is Reason.WRONG_SEQUENCE
    nan = np.full(shape.length(0), np.nan, "<f4").tobytes()
    assert taken(tmp_path, f, [body_pb2.Chunk(index=0, planes=[nan])]) is Reason.OUT_OF_RANGE


def test_a_body_that_the_disk_has_lost_in_part_is_not_added_up(tmp_path: Path) -> None:
    m = manifest(F)
    spool = Spool(tmp_path, header(m, "silo-1"), m)
    spool.take(list(chunks(m, 1)))
    spool.finish()
    total = spool.layout.body()
    spool.add_to(total)
    assert total.any()
    spool.path.write_bytes(spool.path.read_bytes()[:-1])
    with pytest.raises(OSError, match="ends early"):
        spool.add_to(total)


@pytest.mark.parametrize("lot", [1, module.LOT_BYTES])
def test_a_body_is_taken_in_however_many_chunks_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lot: int
) -> None:
    monkeypatch.setattr(module, "LOT_BYTES", lot)

    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        assert (await submit(node, frames(m))).silo == "silo-1"

    hop(tmp_path, go)


def test_a_body_ends_with_its_trailer_which_has_a_whole_root(tmp_path: Path) -> None:
    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        body = frames(m)
        assert await why(submit(node, [*body, body[-1]])) is Reason.WRONG_SEQUENCE
        short = Frame(trailer=body_pb2.Trailer(root=b"short", signature=body[-1].trailer.signature))
        assert await why(submit(node, [*body[:-1], short])) is Reason.WRONG_LENGTH
        assert await why(submit(node, [body[0], body[1], body[-1]])) is Reason.WRONG_SEQUENCE
        assert not node.core.attempt.counted  # type: ignore[union-attr]
        assert not list(node.spool.iterdir())
        assert await submit(node, body)

    hop(tmp_path, go)


@pytest.mark.parametrize("then", ["nothing", "another attempt"])
def test_a_body_whose_attempt_ends_while_its_header_is_read_is_refused(tmp_path: Path, then: str) -> None:
    async def go(node: ShufflerNode) -> None:
        m, step = await opened(node), node.step

        async def ends(event: core.Event) -> list[core.Effect]:
            effects = await step(event)
            node._sweep()
            if then == "another attempt":
                node.passage = make_passage(manifest(F, attempt=2), "hop-1", node.workers, node.spool)
            return effects

        node.step = ends  # type: ignore[method-assign]
        assert await why(submit(node, frames(m))) is Reason.WRONG_MANIFEST

    hop(tmp_path, go)


def test_of_two_bodies_with_one_header_the_one_that_was_signed_is_counted(tmp_path: Path) -> None:
    """Both are whole at once, and what is counted is what was compared with the signature."""

    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        body = frames(m)
        other = [*body[:1], *(Frame(chunk=c) for c in chunks(m, 1)), body[-1]]
        async with node._counting:
            true = asyncio.ensure_future(submit(node, body))
            await until(lambda: node._counting._waiters, "the first waits")
            false = asyncio.ensure_future(submit(node, other))
            await until(lambda: len(node._counting._waiters or ()) == 2, "the second waits")
        assert await why(false) is Reason.ROOT_MISMATCH
        assert (await true).silo == "silo-1"
        assert isinstance(node.passage, SumPassage)
        assert not node.passage.sum.any()

    hop(tmp_path, go)


def test_a_silo_gets_no_receipt_for_a_body_that_could_not_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Spool, total: Any) -> None:
        raise OSError("the disk is gone")

    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        with pytest.raises(OSError, match="this attempt was given up"):
            await submit(node, frames(m))
        assert node.core.state is core.State.GIVEN_UP

    monkeypatch.setattr(Spool, "add_to", full)
    hop(tmp_path, go)


def test_whoever_takes_too_long_is_refused_and_a_slow_disk_is_not_taken_for_it() -> None:
    async def late() -> None:
        async with in_time(0.0, "too late"):
            await asyncio.Event().wait()

    async def disk() -> None:
        async with in_time(60.0, "too late"):
            raise TimeoutError("the disk's")

    with pytest.raises(PeerFault, match="too late") as caught:
        asyncio.run(late())
    assert caught.value.reason is Reason.COHORT_CLOSED
    with pytest.raises(TimeoutError, match="the disk's"):
        asyncio.run(disk())


def test_whoever_sends_a_header_that_seals_garbage_is_shown_the_evidence() -> None:
    f = federation()
    m = manifest(f)
    shown = evidence(m, header(m, "silo-1"), "hop-1")
    with pytest.raises(Accusation) as caught:
        _receipt([core.Accuse(shown)])
    assert caught.value.evidence is shown
    assert _receipt([]) is None


# Sums


def relay_open(m: Manifest, says: str = "hop-1") -> Relay:
    return Relay(open=services_pb2.RelayOpen(hop=says, manifest_digest=m.digest))


async def relay(node: ShufflerNode, sent_: list[Relay], peer: str = "hop-1") -> Any:
    return await node.take_sum(peer, inbox(node, peer, Relay, sent_))


def test_a_sum_is_taken_of_the_hop_before_in_the_open_attempt_and_of_nobody_else(tmp_path: Path) -> None:
    async def go(node: ShufflerNode) -> None:
        service = _Service(node)
        assert await why(relay(node, [relay_open(manifest(F))])) is Reason.WRONG_MANIFEST
        with pytest.raises(PeerFault) as none:
            service._hop_before("hop-1")
        assert none.value.reason is Reason.WRONG_MANIFEST
        m = await opened(node)
        assert node.before() == ("hop-1",)
        service._hop_before("hop-1")
        for peer in ("hop-2", "silo-1", AGGREGATOR):
            with pytest.raises(PeerFault) as caught:
                service._hop_before(peer)
            assert caught.value.reason is Reason.WRONG_CHAIN
        assert await why(relay(node, [relay_open(manifest(F, attempt=2))])) is Reason.WRONG_MANIFEST
        assert await why(relay(node, [relay_open(m, "hop-2")], "hop-2")) is Reason.WRONG_CHAIN
        assert await why(relay(node, [relay_open(m, "hop-2")])) is Reason.WRONG_CHAIN
        assert await why(relay(node, [relay_open(m)])) is Reason.WRONG_SEQUENCE, "it may come, and ends early"
        node._sweep()
        node._through = (m, bytes(32))
        assert node.before() == ("hop-1",)
        assert (await relay(node, [relay_open(m)])).root == bytes(32)
        assert await why(relay(node, [relay_open(m, "silo-1")], "silo-1")) is Reason.WRONG_CHAIN
        assert await why(relay(node, [relay_open(m, "hop-2")])) is Reason.WRONG_CHAIN

    hop(tmp_path, go, "hop-2")


def test_a_sum_that_begins_and_stalls_is_refused_when_the_attempt_is_over(tmp_path: Path) -> None:
    """Chunks come as the hops before are done with them, so none has a time of its own."""

    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        frames = inbox(node, "hop-1", Relay, [relay_open(m)], silent=True)
        node._opened_at -= node._left() - 0.01
        async with asyncio.timeout(5):
            assert await why(node.take_sum("hop-1", frames)) is Reason.COHORT_CLOSED

    hop(tmp_path, go, "hop-2")


def test_nobody_stands_before_the_first_hop(tmp_path: Path) -> None:
    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        assert node.before() == ()
        assert await why(relay(node, [relay_open(m, "hop-2")], "hop-2")) is Reason.WRONG_CHAIN

    hop(tmp_path, go)


def test_a_header_that_seals_garbage_to_a_later_hop_ends_the_stream_with_the_evidence(tmp_path: Path) -> None:
    f = federation()

    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        with pytest.raises(Accusation) as caught:
            await relay(node, [relay_open(m), Relay(header=write_header(header(m, "silo-1")))])
        assert caught.value.evidence.silo == "silo-1"
        assert caught.value.evidence.recipient == "hop-2"

    hop(tmp_path, go, "hop-2", f)


def test_a_hop_before_that_signs_two_sums_is_refused_with_the_verdict(tmp_path: Path) -> None:
    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        told = await sent(node.workers, CHECKED)
        passage = node.passage
        assert passage is not None
        _, c = settled(CHECKED)
        signed_anew(0, pad=secret("another").value)(told)
        passage.trails = checked_trails(m, c)[:1]
        step = node.step

        async def knows_the_cohort(event: core.Event) -> list[core.Effect]:
            return [] if isinstance(event, core.CohortIn) else await step(event)

        node.step = knows_the_cohort  # type: ignore[method-assign]
        with pytest.raises(EquivocationError):
            await asyncio.wait_for(relay(node, [relay_open(m), *told]), 5)
        assert node.core.state is core.State.GIVEN_UP

    hop(tmp_path, go, "hop-2", CHECKED)


def test_a_delivery_is_of_the_sum_that_was_sent_and_signed_by_whoever_got_it(tmp_path: Path) -> None:
    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        passage = node.passage
        assert passage is not None
        passage.sent_root = root = secret("root").value

        def delivery(root: bytes, signer: str = "hop-2", name: str = "hop-2") -> services_pb2.Delivery:
            signature = identity(signer).sign(delivery_digest(name, m.digest, root))
            return services_pb2.Delivery(name=name, root=root, signature=signature)

        node._check_delivery(delivery(root), "hop-2", passage)
        passage.sent_root = b""
        with pytest.raises(PeerFault) as early:  # before all of it was sent
            node._check_delivery(delivery(b""), "hop-2", passage)
        assert early.value.reason is Reason.ROOT_MISMATCH
        passage.sent_root, other = root, secret("other").value
        for bad, reason in (
            (delivery(other), Reason.ROOT_MISMATCH),
            (delivery(root, "hop-1"), Reason.BAD_SIGNATURE),
            (delivery(root, name="hop-1"), Reason.BAD_SIGNATURE),
        ):
            with pytest.raises(PeerFault) as caught:
                node._check_delivery(bad, "hop-2", passage)
            assert caught.value.reason is reason
            node.line = Peers(Relay=[_answer(bad)])  # type: ignore[method-assign, assignment]
            arrived = asyncio.Event()
            await node._send(passage, arrived)
            assert not arrived.is_set()
        node.line = Peers(Relay=[_answer(delivery(root))])  # type: ignore[method-assign, assignment]
        await node._send(passage, arrived)
        assert arrived.is_set()

    hop(tmp_path, go)


def _answer(delivery: services_pb2.Delivery) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    async def at_once(frames_: Any) -> services_pb2.Delivery:
        return delivery

    return at_once


def test_a_hop_whose_attempt_is_gone_answers_no_coin(tmp_path: Path) -> None:
    async def go(node: ShufflerNode) -> None:
        with pytest.raises(PeerFault) as caught:
            node._checked()
        assert caught.value.reason is Reason.WRONG_SEQUENCE

    hop(tmp_path, go)


# Who may call, and with what


def test_only_the_aggregator_leads_a_hop(tmp_path: Path) -> None:
    async def go(node: ShufflerNode) -> None:
        methods = _Service(node).methods
        for name in {*methods} - {"Submit", "Relay"}:
            methods[name].admit(AGGREGATOR)
            for peer in ("hop-2", "silo-1"):
                with pytest.raises(PeerFault) as caught:
                    methods[name].admit(peer)
                assert caught.value.reason is Reason.UNKNOWN_PEER

    hop(tmp_path, go)


def test_bodies_are_those_of_invited_silos_and_go_to_the_first_hop(tmp_path: Path) -> None:
    f = federation(silos=8, level=Level.TRUSTED, subsample=0.5)
    m = manifest(f)
    absent = next(silo for silo in f.silo_names if silo not in m.invited)

    def admit(node: ShufflerNode, peer: str) -> Reason | None:
        try:
            _Service(node).methods["Submit"].admit(peer)
        except PeerFault as fault:
            return fault.reason
        return None

    async def first(node: ShufflerNode) -> None:
        assert admit(node, m.invited[0]) is Reason.WRONG_MANIFEST, "no attempt is open"
        await opened(node, m)
        assert admit(node, m.invited[0]) is None
        assert admit(node, absent) is Reason.NOT_INVITED
        assert admit(node, "hop-2") is admit(node, AGGREGATOR) is Reason.UNKNOWN_PEER

    async def second(node: ShufflerNode) -> None:
        await opened(node, m)
        assert admit(node, m.invited[0]) is Reason.WRONG_CHAIN

    hop(tmp_path / "1", first, f=f)
    hop(tmp_path / "2", second, "hop-2", f)


SHORT: dict[str, Message] = {
    "Prepare": services_pb2.PrepareRequest(head_digest=b"short"),
    "Answer": services_pb2.AnswerRequest(manifest_digest=b"short"),
    "Prove": services_pb2.ProveRequest(manifest_digest=b"short"),
    "Defend": services_pb2.DefendRequest(manifest_digest=b"short"),
    "Agree": services_pb2.AgreeRequest(manifest_digest=b"short"),
    "Reveal": services_pb2.RevealRequest(manifest_digest=b"short"),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_digest_that_is_none_is_refused_for_its_length(tmp_path: Path, name: str) -> None:
    request = SHORT[name]
    if name == "Prepare":
        request = services_pb2.PrepareRequest(
            federation_digest=F.digest, round=1, attempt=1, silos=F.silo_names, head_digest=b"short"
        )

    async def go(node: ShufflerNode) -> None:
        asked, _ = call(AGGREGATOR, request)
        assert await why(_Service(node).methods[name].answer(asked)) is Reason.WRONG_LENGTH

    hop(tmp_path, go)


def test_an_attempt_is_not_opened_without_the_record_before_it(tmp_path: Path) -> None:
    m = manifest(F)
    head = past(F).records[0]

    async def go(node: ShufflerNode) -> None:
        service = _Service(node)
        for record in past(F).records:
            await node.step(core.RecordIn(record))
        without, _ = call(AGGREGATOR, services_pb2.OpenRequest(manifest=write_manifest(m)))
        with pytest.raises(PeerFault, match="the record before it is missing") as caught:
            await service._open(without)
        assert caught.value.reason is Reason.MALFORMED
        whole = services_pb2.OpenRequest(manifest=write_manifest(m), head=write_record(head))
        asked, context = call(AGGREGATOR, whole)
        await service._open(asked)
        assert services_pb2.OpenResponse.FromString(context.sent[0]).manifest_digest == m.digest

    hop(tmp_path, go)


def garbled(m: Manifest, silo: str = "silo-1") -> Header:
    """A header whose seed for the last hop does not open."""
    seeds = list(Silo(MASKED, identity(silo)).sealing(m, rng(silo)).header.seeds)
    sealed = seeds[2].sealed
    seeds[2] = replace(seeds[2], sealed=sealed[:-1] + bytes([sealed[-1] ^ 1]))
    return replace(header(m, silo), seeds=tuple(seeds)).signed(identity(silo))


async def accused(node: ShufflerNode, shown: Evidence) -> tuple[PeerFault | None, PeerFault | None]:
    """What a hop makes of the evidence that the next one shows, and what the one before is told of it."""
    assert node.passage is not None
    told = node.passage._refused
    fault = await node._accused(Accusation(shown), "hop-3", node.passage)
    return fault, told.result() if told.done() else None


def test_evidence_about_another_attempt_is_false_and_names_the_hop_that_shows_it(tmp_path: Path) -> None:
    """Nothing of it could be looked at, and an honest silo would be accused up the chain, on a bare word."""

    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        h = garbled(m)
        await node.step(core.HeaderIn(h, "hop-1"))
        later = manifest(MASKED, 1, 2)
        for other in (replace(evidence(m, h, "hop-3"), manifest=bytes(32)), evidence(later, h, "hop-3")):
            fault, told = await accused(node, other)
            assert fault is not None
            assert fault.reason is Reason.FALSE_EVIDENCE
            assert fault.details["peer"] == "hop-3"
            assert told is None
        assert rejections(node, Reason.FALSE_EVIDENCE) == 2
        assert not node.core.unfit
        fault, told = await accused(node, evidence(m, h, "hop-3"))  # what is true is believed
        assert fault is None
        assert isinstance(told, Accusation)
        assert "silo-1" in node.core.unfit

    hop(tmp_path, go, "hop-2", MASKED)


@pytest.mark.parametrize("over", ["another attempt", "done"])
def test_evidence_that_comes_when_its_attempt_is_over_accuses_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], over: str
) -> None:
    """Nobody looks at it any more."""

    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        h, passage = garbled(m), node.passage
        assert passage is not None
        if over == "done":
            node.core.state = core.State.DONE
        else:
            await opened(node, manifest(MASKED, 1, 2))
        fault = await node._accused(Accusation(evidence(m, h, "hop-3")), "hop-3", passage)
        assert isinstance(fault, Accusation)
        assert not passage._refused.done()
        assert not node.core.unfit

    hop(tmp_path, go, "hop-2", MASKED)
    assert "left out" not in capsys.readouterr().err


def test_a_hop_that_accuses_again_and_again_fills_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        h = garbled(m)
        await node.step(core.HeaderIn(h, "hop-1"))
        for _ in range(20):
            await accused(node, evidence(m, h, "hop-3"))

    hop(tmp_path, go, "hop-2", MASKED)
    assert capsys.readouterr().err.count("left out") == 1


async def agreeing(node: ShufflerNode, request: services_pb2.AgreeRequest) -> services_pb2.AgreeResponse:
    asked, context = call(AGGREGATOR, request)
    await _Service(node)._agree(asked)
    return services_pb2.AgreeResponse.FromString(context.sent[0])


def test_a_hop_signs_for_the_release_of_the_sum_that_it_passed_on(tmp_path: Path) -> None:
    async def go(node: ShufflerNode) -> None:
        m = await opened(node)
        for silo in F.silo_names:
            await submit(node, frames(m, silo), silo)
        padded = node.core.padded[m.digest]
        agreed = ready(m, cohort(m, headers(m, F)), {"hop-1": padded.pad})
        request = services_pb2.AgreeRequest(
            manifest_digest=m.digest, trails=[write_trail(trail) for trail in agreed.trails]
        )
        answer = await agreeing(node, request)
        verify(identity("hop-1").public, agreed.digest, answer.signature, "hop-1")

    hop(tmp_path, go)


def test_a_hop_that_sees_in_the_check_who_lied_says_so_and_does_not_sign(tmp_path: Path) -> None:
    led = Led()
    led.stated()
    check, m = led.hearing.transcript, led.core._open_manifest
    told = checked_trails(m, led.hearing.subject.cohort)
    case = Case(Charge.TRAILS, m, trails=(told[0], replace(told[0], pad=bytes(32)).signed(identity("hop-1"))))
    heard: list[Any] = []

    async def go(node: ShufflerNode) -> None:
        async def decides(event: core.Event) -> list[core.Effect]:
            heard.append(event)
            return [core.Convict(1, 1, decide(case, CHECKED))]

        node.step = decides  # type: ignore[method-assign]
        request = services_pb2.AgreeRequest(manifest_digest=m.digest, check=write_check(check))
        with pytest.raises(PeerFault) as caught:
            await agreeing(node, request)
        assert caught.value.reason is Reason.TAMPERED
        assert caught.value.details["peer"] == "hop-1"
        assert heard[0].check == check

    hop(tmp_path, go, f=CHECKED)


# What it remembers


def test_a_hop_that_is_started_again_knows_what_it_knew(tmp_path: Path) -> None:
    records = past(F, 2).records

    async def store(node: ShufflerNode) -> services_pb2.StoreResponse:
        answer = await node.store(tuple(records), b"")
        assert answer.records == 3
        assert answer.signature
        return answer

    async def again(node: ShufflerNode) -> None:
        assert [record.digest for record in node.core.log.records] == [record.digest for record in records]

    hop(tmp_path, store)
    hop(tmp_path, again)


def test_a_fork_is_kept_and_refused_and_said_once_however_often_it_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = past(F)
    one = replace(recorded(log), countersignatures=())
    other = replace(one, attempts=(Attempted(1, bytes(32), F.chain),)).signed(identity(AGGREGATOR))

    async def go(node: ShufflerNode) -> None:
        await node.store((*log.records, one), b"")
        for _ in range(20):
            with pytest.raises(Fork):
                await node.store((other,), b"")
        assert node.core.forks

    hop(tmp_path, go)
    assert capsys.readouterr().err.count("FORK") == 1
