"""A silo that seals garbage to a later hop is left out, and the others go on: docs/protocol.md, section 4."""

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
    run,
    shuffler,
    until,
)
from tests.nodes.toy import Toy

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.local import InProcess
from silomix.runtime.net.answers import fault_of
from silomix.runtime.net.wire import write_header
from silomix.v1 import body_pb2

CULPRIT = "silo-05"


def _spoilt(body: Body, seed: int) -> Body:
    seeds = list(body.header.seeds)
    seeds[seed] = replace(seeds[seed], sealed=bytes(80))
    body.header = replace(body.header, seeds=tuple(seeds)).signed(body.identity)
    return body


@pytest.mark.parametrize(("seed", "whose"), [(1, "shuffler-2"), (2, "shuffler-3"), (3, "aggregator")])
def test_a_silo_whose_seed_does_not_open_is_left_out_and_the_others_go_on(
    seed: int, whose: str, tmp_path: Path
) -> None:
    federation = make(tmp_path / "f", 5, 3, rounds=2)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=(CULPRIT,)) as running, peer(tmp_path / "f", CULPRIT) as us:
            hop = shuffler(running)
            body = _spoilt(Body(us, await manifest_at(running), Toy(4, PARAMETERS).update(1)), seed)
            told = asyncio.Event()

            async def slowly() -> AsyncIterator[body_pb2.Frame]:
                yield body_pb2.Frame(header=write_header(body.header))
                await told.wait()
                for frame in (*body.middle, body.last):
                    yield frame

            sending = asyncio.create_task(us.submit(slowly()))
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


def test_who_names_a_silo_that_was_not_invited_is_not_believed(tmp_path: Path) -> None:
    make(tmp_path / "f", 6, 2, rounds=1, subsample=0.5, silo_options=lambda i: {"silo": i, "slow_s": 0.5})

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            manifest, hop = await manifest_at(running), shuffler(running)
            assert hop.passage is not None
            for silo in {f"silo-0{i}" for i in range(1, 7)} - set(manifest.invited) | {"nobody", "aggregator"}:
                fault = PeerFault(Reason.SEAL_BROKEN, "it does not open", peer=silo)
                assert not await hop._left_out(fault, "shuffler-2", hop.passage)
            assert hop.core.unfit == {}
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 3)]

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
