"""`bound = "auto"` in live federations: who proposes bounds, who refuses others, and who was away."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nodes.federations import make, rejections, run, until

from silomix.runtime.core.errors import Reason
from silomix.runtime.core.learning.bounds import bounds_of
from silomix.runtime.core.policy import AUTO
from silomix.runtime.core.protocol.lineage import next_model
from silomix.runtime.local import InProcess
from silomix.runtime.nodes import aggregator
from silomix.runtime.nodes.silo import SiloNode


def _silo(running: InProcess, name: str) -> SiloNode:
    node = running.nodes[name]
    assert isinstance(node, SiloNode)
    return node


def test_silos_refuse_bounds_that_the_models_do_not_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The aggregator sends twice the bounds from round 2 on: hops cannot tell, and no silo trains."""
    make(tmp_path / "f", 3, 1, insecure=True, bound=AUTO, rounds=2)

    def doubled(policy: Any, schema: Any, model: Any, previous: Any) -> tuple[float, ...]:
        right = bounds_of(policy, schema, model, previous)
        return right if previous is None else tuple(2 * bound for bound in right)

    monkeypatch.setattr(aggregator, "bounds_of", doubled)
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            silos = [_silo(running, name) for name in running.federation.silo_names]
            await until(lambda: all(rejections(silo, Reason.BAD_BOUND) for silo in silos), "all have refused")
            assert [done.cohort for done in running.aggregator.history] == [3]
            assert running.aggregator.core.phase == "collecting"

    run(go())


@pytest.mark.parametrize("groups", [False, True], ids=["sum", "groups"])
def test_a_silo_that_was_away_computes_the_same_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: bool
) -> None:
    """It has neither the model nor the one before: the aggregator gives it both, and the round log names them."""
    monkeypatch.setattr(aggregator, "KEPT_ROUNDS", 1)  # the sums that it missed are gone
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)
    changes: dict[str, Any] = {"group_size": 3} if groups else {}
    make(tmp_path / "f", 4, 1, insecure=True, bound=AUTO, rounds=8, minimum_cohort=3, quorum=0.75, **changes)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running:
            node = running.aggregator
            await until(lambda: len(node.history) >= 2, "two rounds are done")
            node.config.state.paused.touch()
            await until(lambda: node.pause.on, "no round is open")
            await until(lambda: groups or len(node.computed) == 3, "a majority has signed for the model")
            await running.stop("silo-03")
            running.start("silo-04")
            node.config.state.paused.unlink()
            done = await running.finished()
            late = _silo(running, "silo-04")
            assert late.follower.at > 2
            assert not rejections(late, Reason.BAD_BOUND)
            assert [(one.cohort, one.attempts) for one in done] == [(3, 1)] * 8  # from the pause on with the late one

    run(go())


def test_a_model_that_overflows_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "f", 3, 1, insecure=True, bound=AUTO, rounds=1, attempts=1)

    def endless(*arguments: Any) -> Any:
        model, state = next_model(*arguments)
        return {**model, "b": np.full_like(model["b"], np.inf)}, state

    monkeypatch.setattr(aggregator, "next_model", endless)
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            assert [done.cohort for done in await running.finished()] == [0]

    run(go())
