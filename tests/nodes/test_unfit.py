"""A silo that seals garbage to a later hop is left out, and the others go on: docs/protocol.md, section 4."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

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

from silomix.runtime.core.errors import Reason
from silomix.runtime.local import InProcess
from silomix.runtime.wire import write_header
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
    monkeypatch.setattr("silomix.runtime.nodes.shuffler.HEADER_S", 0.5)
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

            for frames in ((), (body.first, body.middle[0])):
                error = await refusal(partial(stall, frames))
                assert (error.details() or "").startswith(Reason.COHORT_CLOSED)
            assert not hop.uploads[CULPRIT]
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 4)]
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())
