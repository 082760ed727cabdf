"""A silo that is away does not cost every round its whole deadline, if the policy says so."""

from pathlib import Path

import pytest
from tests.nodes.federations import assert_model, make, run, shuffler, until

from silomix.runtime.cli.federation.status import closes
from silomix.runtime.core import pace
from silomix.runtime.local import InProcess

FOR_EVER_S = 100_000


def test_a_silo_that_is_away_is_not_waited_for_until_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "LEAST", 1)
    federation = make(tmp_path / "f", 4, 2, rounds=3, minimum_cohort=3, early_close=0.75, deadline_s=FOR_EVER_S)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running:
            hop = shuffler(running, "shuffler-1")
            hop.core.pace = hop.core.pace.after((0.5, 0.5, 0.5, 0.5), 4)  # an earlier round of all four
            seen = [running.aggregator.status()]

            def early() -> bool:
                seen[0] = running.aggregator.status()
                return seen[0].closes_early

            await until(early, "it is said when the cohort closes", seconds=30)
            assert 0 <= seen[0].closes_s <= 1.5 * 0.5
            assert "before the deadline" in closes(seen[0])
            done = await running.finished()
            assert [(one.cohort, one.attempts) for one in done] == [(3, 1)] * 3
            assert_model(running.aggregator.tensors, [range(3)] * 3, federation.policy)
            assert len(hop.core.pace.rounds) == 4

    run(go(), 60)
