"""Rule R4 over gRPC: who seals garbage is left out on evidence, at once, and the others go on."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.nodes.federations import (
    PARAMETERS,
    Body,
    assert_model,
    make,
    manifest_at,
    peer,
    refusal,
    rejections,
    run,
    shuffler,
    until,
)
from tests.nodes.toy import Toy
from tests.tools import first

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.protocol import shuffler as core
from silomix.runtime.core.protocol.messages import Accusation, Evidence
from silomix.runtime.core.protocol.rules import check_evidence
from silomix.runtime.local import InProcess
from silomix.runtime.net.answers import fault_of
from silomix.runtime.net.wire import write_header
from silomix.runtime.nodes.facts import read_shuffler
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.v1 import body_pb2

CULPRIT = "silo-05"


def _spoilt(body: Body, seed: int, how: str = "sealed") -> Body:
    """Seal garbage to one node, or commit to another seed than the sealed one."""
    seeds = list(body.header.seeds)
    value = getattr(seeds[seed], how)
    seeds[seed] = replace(seeds[seed], **{how: value[:-1] + bytes([value[-1] ^ 1])})
    body.header = replace(body.header, seeds=tuple(seeds)).signed(body.identity)
    return body


def _evidence(hop: ShufflerNode) -> list[Evidence]:
    """What a hop's journal has against silos."""
    return [fact.evidence for fact in read_shuffler(hop.journal) if isinstance(fact, core.Accused)]


async def _stay(body: Body, until_told: asyncio.Event) -> AsyncIterator[body_pb2.Frame]:
    """A header, and the rest when the test says so."""
    yield body_pb2.Frame(header=write_header(body.header))
    await until_told.wait()
    for frame in (*body.middle, body.last):
        yield frame


@pytest.mark.parametrize(
    ("seed", "how", "whose"),
    first(
        2,
        [
            (1, "sealed", "shuffler-2"),
            (3, "commitment", "aggregator"),
            (2, "commitment", "shuffler-3"),
            (3, "sealed", "aggregator"),
        ],
    ),
)
def test_a_silo_whose_seed_does_not_open_is_left_out_and_the_others_go_on(
    seed: int, how: str, whose: str, tmp_path: Path
) -> None:
    federation = make(tmp_path / "f", 5, 3, rounds=2)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=(CULPRIT,)) as running, peer(tmp_path / "f", CULPRIT) as us:
            hop, manifest = shuffler(running), await manifest_at(running)
            body = _spoilt(Body(us, manifest, Toy(4, PARAMETERS).update(1)), seed, how)
            told = asyncio.Event()
            sending = asyncio.create_task(us.submit(_stay(body, told)))
            await until(lambda: CULPRIT in hop.core.unfit, f"{whose} could not open the seed")
            told.set()
            with pytest.raises(Exception, match=r"seal_broken|wrong_manifest|cohort_closed|INTERNAL"):
                await sending
            # It sits out: also a body without fault is refused, so that no round waits for it.
            later = Body(us, await manifest_at(running, round_=2), Toy(4, PARAMETERS).update(2))
            error = await refusal(lambda: us.submit(later.frames()))
            assert (error.details() or "").startswith((Reason.SEAL_BROKEN, Reason.COHORT_CLOSED, Reason.WRONG_MANIFEST))
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 4), (1, 4)]
            assert_model(running.aggregator.tensors, [range(4)] * 2, federation.policy)
            # Every hop up to the one that was cheated has looked at the same evidence, and keeps it.
            places = manifest.layer(whose) or len(manifest.chain)
            for name in manifest.chain[:places]:
                (shown,) = _evidence(shuffler(running, name))
                assert (shown.recipient, shown.silo) == (whose, CULPRIT)
                check_evidence(shown, body.header, manifest)

    run(go())


def test_a_silo_that_cheats_hop_1_is_told_so_and_gets_no_further(tmp_path: Path) -> None:
    make(tmp_path / "f", 5, 2, rounds=1)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=(CULPRIT,)) as running, peer(tmp_path / "f", CULPRIT) as us:
            manifest = await manifest_at(running)
            body = _spoilt(Body(us, manifest, Toy(4, PARAMETERS).update(1)), 0)
            error = await refusal(lambda: us.submit(body.frames()))
            assert (error.details() or "").startswith(Reason.SEAL_BROKEN)
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 4)]
            assert not _evidence(shuffler(running, "shuffler-2"))

    run(go())


def test_what_was_shown_is_known_after_a_restart(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 5, 2, rounds=1, attempts=5)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=(CULPRIT,)) as running, peer(tmp_path / "f", CULPRIT) as us:
            manifest = await manifest_at(running)
            await running.stop("silo-01")  # so that the round is still open when the hop comes back
            body = _spoilt(Body(us, manifest, Toy(4, PARAMETERS).update(1)), 1)
            sending = asyncio.create_task(us.submit(_stay(body, asyncio.Event())))
            await until(lambda: CULPRIT in shuffler(running).core.unfit, "hop 2 showed its key")
            sending.cancel()
            await running.stop("shuffler-1")
            running.start("shuffler-1")
            assert CULPRIT in shuffler(running).core.unfit
            again = await manifest_at(running, attempt=2)
            later = Body(us, again, Toy(4, PARAMETERS).update(1))
            error = await refusal(lambda: us.submit(later.frames()))
            assert (error.details() or "").startswith(Reason.SEAL_BROKEN)
            running.start("silo-01")
            assert [r.cohort for r in await running.finished()] == [4]
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_a_silo_that_began_twice_and_cheated_once_costs_nobody_else_a_header(tmp_path: Path) -> None:
    """Its first header was passed on; when it is dropped, the stream to the next hop must skip nobody's."""
    federation = make(tmp_path / "f", 5, 2, rounds=1)

    async def go() -> None:
        everybody = tuple(f"silo-0{i}" for i in range(1, 6))
        async with InProcess(tmp_path / "f", without=everybody) as running, peer(tmp_path / "f", CULPRIT) as us:
            manifest, second = await manifest_at(running), shuffler(running, "shuffler-2")
            good = Body(us, manifest, Toy(4, PARAMETERS).update(1))
            bad = _spoilt(Body(us, manifest, Toy(4, PARAMETERS).update(1)), 0)
            begun = asyncio.create_task(us.submit(_stay(good, asyncio.Event())))
            attempt = second.core.attempt
            assert attempt is not None
            await until(lambda: good.header.digest in attempt.headers, "hop 2 has its first header")
            error = await refusal(lambda: us.submit(bad.frames()))
            assert (error.details() or "").startswith(Reason.SEAL_BROKEN)
            begun.cancel()
            for name in everybody[:4]:
                running.start(name)
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 4)]
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_a_stalled_upload_is_ended_and_the_round_closes_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silomix.runtime.nodes.shuffler.LATE_S", 0.2)
    monkeypatch.setattr("silomix.runtime.net.streams.FIRST_S", 0.5)
    federation = make(tmp_path / "f", 5, 1, rounds=1, deadline_s=2)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=(CULPRIT,)) as running, peer(tmp_path / "f", CULPRIT) as us:
            hop = shuffler(running)
            body = Body(us, await manifest_at(running), Toy(4, PARAMETERS).update(1))

            async def stalling(frames: tuple[body_pb2.Frame, ...]) -> AsyncIterator[body_pb2.Frame]:
                for frame in frames:
                    yield frame
                await asyncio.Event().wait()

            async def stall(frames: tuple[body_pb2.Frame, ...]) -> None:
                await us.submit(stalling(frames))

            for frames, reason in (((), Reason.TOO_SLOW), ((body.first, body.middle[0]), Reason.COHORT_CLOSED)):
                error = await refusal(partial(stall, frames))
                assert (error.details() or "").startswith(reason)
            assert not hop.submitting.open[CULPRIT]
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 4)]
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_a_hop_that_accuses_on_a_bare_word_is_not_believed(tmp_path: Path) -> None:
    """It shows a key that opens the seed, or another key: the silo stays, and it is the hop that is at fault."""
    make(tmp_path / "f", 4, 2, rounds=1)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            manifest, hop, second = await manifest_at(running), shuffler(running), shuffler(running, "shuffler-2")
            body = Body(us, manifest, Toy(3, PARAMETERS).update(1))
            told = asyncio.Event()
            sending = asyncio.create_task(us.submit(_stay(body, told)))
            assert second.core.attempt is not None
            headers = second.core.attempt.headers
            await until(lambda: body.header.digest in headers, "hop 2 has the header")
            assert hop.passage is not None
            keys = second.core.keys[manifest.round, manifest.attempt]
            for key in (keys["silo-04"], keys["silo-01"], Secret(bytes(32))):
                shown = Evidence.of(manifest.digest, "shuffler-2", body.header, key)
                fault = await hop._accused(Accusation(shown), "shuffler-2", hop.passage)
                assert fault is not None
                assert fault.reason is Reason.FALSE_EVIDENCE
            assert rejections(hop, Reason.FALSE_EVIDENCE) == 3
            assert not hop.core.unfit
            told.set()
            await sending
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 4)]

    run(go())


def test_a_hop_that_lies_stops_the_round_and_leaves_nobody_out(tmp_path: Path) -> None:
    """Hop 2 accuses an honest silo over the wire: hop 1 looks, gives the attempt up, and says who is wrong."""
    make(tmp_path / "f", 4, 2, rounds=1, attempts=1)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            manifest, hop, second = await manifest_at(running), shuffler(running), shuffler(running, "shuffler-2")
            body = Body(us, manifest, Toy(3, PARAMETERS).update(1))
            sending = asyncio.create_task(us.submit(_stay(body, asyncio.Event())))
            assert second.core.attempt is not None
            headers = second.core.attempt.headers
            await until(lambda: body.header.digest in headers, "hop 2 has the header")
            passage = second.passage
            assert passage is not None
            key = second.core.keys[manifest.round, manifest.attempt]["silo-04"]
            shown = Evidence.of(manifest.digest, "shuffler-2", body.header, key)

            def seen_through() -> bool:  # it lies again and again: a refusal is lost if something is written meanwhile
                passage.refuse(Accusation(shown))
                return hop.core.state is core.State.GIVEN_UP

            await until(seen_through, "hop 1 saw through it")
            assert rejections(hop, Reason.FALSE_EVIDENCE)
            assert not hop.core.unfit
            sending.cancel()

    run(go())


def test_a_header_that_the_aggregator_refused_is_refused_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first refusal is lost on its way, as grpc.aio now and then does; nobody may take the header for known."""
    federation = make(tmp_path / "f", 5, 1, rounds=1)
    lost: list[object] = []

    def once(error: Any) -> PeerFault | None:
        fault = fault_of(error)
        if fault is not None and fault.reason is Reason.SEAL_BROKEN and not lost:
            lost.append(fault)
            return None
        return fault

    monkeypatch.setattr("silomix.runtime.nodes.shuffler.fault_of", once)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=(CULPRIT,)) as running, peer(tmp_path / "f", CULPRIT) as us:
            body = _spoilt(Body(us, await manifest_at(running), Toy(4, PARAMETERS).update(1)), 1)

            async def header() -> AsyncIterator[body_pb2.Frame]:
                yield body_pb2.Frame(header=write_header(body.header))
                await asyncio.Event().wait()

            sending = asyncio.create_task(us.submit(header()))
            await until(lambda: CULPRIT in shuffler(running).core.unfit, "the aggregator refused again")
            assert lost
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 4)]
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)
            sending.cancel()

    run(go())
