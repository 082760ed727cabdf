"""Hints about hops: what makes the aggregator ask, how often, and what an answer does."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.nodes.federations import PARAMETERS, Body, assert_model, make, manifest_at, peer, run, shuffler, until
from tests.nodes.toy import Toy

from silomix.runtime.core.protocol import shuffler as core
from silomix.runtime.local import InProcess
from silomix.runtime.net.health import GAVE_UP, NOT_OPEN, has_attempt
from silomix.runtime.nodes import lookout
from silomix.runtime.nodes.lookout import Lookout
from silomix.runtime.observe.events import Heard


class Watched:
    """A lookout over a chain of two hops, with answers that the test chooses."""

    def __init__(self, answer: str = "") -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.lost: list[tuple[str, bytes, str]] = []
        self.tasks: list[asyncio.Task[None]] = []
        manifest = SimpleNamespace(digest=b"attempt")
        self.machine: Any = SimpleNamespace(chain=("hop-1", "hop-2"), manifest=manifest, phase="collecting")
        self.lookout = Lookout(self.machine, self._spawn, self._probe, self._gone)

    def _spawn(self, work: Any) -> None:
        self.tasks.append(asyncio.create_task(work))

    async def _probe(self, hop: str, manifest: bytes, timeout_s: float) -> str:
        self.asked.append(hop)
        return self.answer

    async def _gone(self, hop: str, manifest: bytes, why: str) -> None:
        self.lost.append((hop, manifest, why))

    async def settle(self) -> None:
        await asyncio.gather(*self.tasks)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "PROBE_EVERY_S", 0.01)


def test_a_hint_makes_it_ask_and_only_a_bad_answer_ends_anything() -> None:
    async def go() -> None:
        well, ill = Watched(), Watched("gone")
        for watched in (well, ill):
            watched.lookout.hint(Heard("hop-2", "lost", "b"))
            await watched.settle()
            assert watched.asked == ["hop-2"]
        assert well.lost == []
        assert ill.lost == [("hop-2", b"attempt", "gone")]

    run(go())


def test_what_is_no_hint() -> None:
    """Of silos, of strangers, of hops that are well, of words that nobody knows, and of a time without an attempt."""

    async def go() -> None:
        watched = Watched("gone")
        for heard in (
            Heard("silo-1", "lost", "b"),
            Heard("nobody", "lost", "b"),
            Heard("hop-1", "online", "b"),
            Heard("hop-1", "online", "b"),
            Heard("hop-1", "exploded", "b"),
            Heard("hop-1", "exploded", "another"),
        ):
            watched.lookout.hint(heard)
            assert watched.tasks == [], heard
        watched.machine.phase = "preparing"
        watched.lookout.hint(Heard("hop-1", "lost", "b"))
        await watched.settle()
        watched.machine.phase, watched.machine.manifest = "collecting", None
        watched.lookout.hint(Heard("hop-1", "lost", "b"))
        await watched.settle()
        assert watched.asked == []
        assert watched.lost == []

    run(go())


def test_a_hop_that_was_started_again_is_asked_though_it_says_that_it_is_well() -> None:
    async def go() -> None:
        watched = Watched()
        watched.lookout.hint(Heard("hop-1", "online", "first"))
        watched.lookout.hint(Heard("hop-1", "online", "second"))
        await watched.settle()
        assert watched.asked == ["hop-1"]

    run(go())


def test_a_flood_of_hints_is_one_question_at_a_time_and_the_last_hint_counts() -> None:
    async def go() -> None:
        watched = Watched()
        for _ in range(1000):
            watched.lookout.hint(Heard("hop-1", "lost", "b"))
        await asyncio.sleep(0)
        for _ in range(1000):  # while the first question is under way: one more is asked, after a pause
            watched.lookout.hint(Heard("hop-1", "lost", "b"))
        await watched.settle()
        assert watched.asked == ["hop-1", "hop-1"]
        assert len(watched.tasks) == 1
        watched.lookout.hint(Heard("hop-1", "lost", "b"))
        await watched.settle()
        assert len(watched.asked) == 3

    run(go())


def test_a_hop_says_over_grpc_whether_it_has_this_very_attempt(tmp_path: Path) -> None:
    make(tmp_path / "f", 3, 1, silo_options=lambda i: {"silo": i, "slow_s": 0.3})

    async def go() -> None:
        async with InProcess(tmp_path / "f") as federation:
            manifest = await manifest_at(federation)
            async with peer(tmp_path / "f", "aggregator", "shuffler-1") as caller:
                assert await has_attempt(caller.channel, manifest.digest, 5) == ""
                assert "lost the attempt" in await has_attempt(caller.channel, bytes(32), 5)
                assert "lost the attempt" in await has_attempt(caller.channel, b"", 5)
                await shuffler(federation).step(core.Spoiled(manifest.digest, "this test gives it up"))
                assert await has_attempt(caller.channel, manifest.digest, 5) == GAVE_UP
            federation.aggregator.stopping.set()
        async with peer(tmp_path / "f", "aggregator", "shuffler-1") as caller:
            assert "not reachable" in await has_attempt(caller.channel, manifest.digest, 0.2)

    run(go())


def test_without_a_broker_hops_are_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has lost the attempt ends it; one that does not answer is waited for."""
    monkeypatch.setattr(lookout, "WATCH_S", 0.01)

    async def go() -> None:
        for answer, ends in ((NOT_OPEN, True), (GAVE_UP, True), ("not reachable (unavailable)", False), ("", False)):
            watched = Watched(answer)
            watching = asyncio.create_task(watched.lookout.watch())
            await until(lambda watched=watched: len(watched.asked) > 3, "both hops were asked twice")  # type: ignore[misc]
            watching.cancel()
            assert set(watched.asked) == {"hop-1", "hop-2"}
            assert bool(watched.lost) is ends
            assert {why for _, _, why in watched.lost} <= {answer}

    run(go())


@pytest.mark.parametrize(("name", "attempt"), [("shuffler-1", 2), ("shuffler-2", 1)])
def test_a_hop_that_lost_the_attempt_costs_seconds_and_no_deadline(
    name: str, attempt: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies are in hop 1's memory: silos send them again. A later hop goes on with the same attempt."""
    monkeypatch.setattr(lookout, "WATCH_S", 0.1)
    federation = make(tmp_path / "f", 4, 2, rounds=1, deadline_s=600, release_s=600)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            await manifest_at(running)
            await running.stop(name)
            running.start(name)
            body = Body(us, await manifest_at(running, attempt=attempt), Toy(3, PARAMETERS).update(1))
            await us.submit(body.frames())
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(attempt, 4)]
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_a_hop_that_gave_the_attempt_up_costs_no_more_than_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Too few at the deadline: hop 1 gives up, and the next attempt begins without waiting for a release."""
    monkeypatch.setattr(lookout, "WATCH_S", 0.1)
    make(tmp_path / "f", 4, 2, rounds=1, deadline_s=1, release_s=600, attempts=2)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-03", "silo-04")) as running:
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(2, 0)]

    run(go())
    assert "2 silos came, and a sum needs 3: silo-03, silo-04 did not come in time" in caplog.text
    assert "hop lost" not in caplog.text
