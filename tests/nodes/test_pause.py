"""An operator holds a federation between rounds: nothing is lost by it, however long it takes."""

import asyncio
from pathlib import Path

import pytest
from tests.nodes.federations import assert_model, make, run
from tests.nodes.leads import leading

from silomix.runtime.cli import main
from silomix.runtime.local import InProcess
from silomix.runtime.nodes import pause
from silomix.runtime.nodes.node import LOG_EVERY_S
from silomix.runtime.nodes.pause import Pause
from silomix.runtime.store.home import Home


def test_time_stands_still_while_somebody_waits_for_the_end_of_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause, "LOOK_S", 0.0)
    now, file = 100.0, tmp_path / "paused"
    told: list[bool] = []
    clock = Pause(file, lambda: now)

    async def go() -> None:
        nonlocal now
        await clock.over(told.append)  # nobody wants one
        file.touch()
        now = 110.0
        waiting = asyncio.ensure_future(clock.over(told.append))
        await asyncio.sleep(0)
        assert clock.on
        now = 5000.0
        assert clock.now() == 110.0
        file.unlink()
        await waiting

    run(go())
    assert told == [True, False]
    assert clock.now() == 110.0
    now = 5007.0
    assert clock.now() == 117.0


async def test_members_are_held_to_a_pace_and_the_log_goes_on_while_time_stands_still(led: Path) -> None:
    async with leading(led) as node:
        now, node.pause._stopped_at = 100.0, node.clock()
        node.steady = lambda: now
        assert node.unsaid("a fork") == {}
        assert node.unsaid("a fork") is None
        now += LOG_EVERY_S
        assert node.unsaid("a fork") == {"unsaid": 1}


def test_a_federation_is_held_between_rounds_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pause, "LOOK_S", 0.02)
    federation = make(tmp_path / "f", 3, 1, rounds=3, release_s=20)
    home = str(tmp_path / "f" / "aggregator")
    assert main(["pause", "--config", home]) == 0

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            async with asyncio.timeout(20):
                while (status := await running.status()).phase != "paused" or len(status.present) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert not status.history
            assert running.aggregator.metrics.registry.get_sample_value("silomix_paused") == 1
            assert main(["resume", "--config", home]) == 0
            done = await running.finished()
            assert [(one.round, one.attempts, one.cohort) for one in done] == [(t, 1, 3) for t in (1, 2, 3)]
            assert running.aggregator.metrics.registry.get_sample_value("silomix_paused") == 0
            assert_model(running.aggregator.tensors, [range(3)] * 3, federation.policy)

    run(go(), 60)
    assert "no other begins" in capsys.readouterr().out
    assert main(["resume", "--config", home]) == 0
    assert "nobody had paused it" in capsys.readouterr().out


def test_only_the_aggregator_is_paused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "f", 3, 1)
    assert main(["pause", "--config", str(tmp_path / "f" / "silo-01")]) == 2
    assert "only the aggregator is paused" in capsys.readouterr().err
    assert not Home(tmp_path / "f" / "silo-01").state.paused.exists()
