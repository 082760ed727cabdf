"""`kill -9` of real processes in the tamper check: each round one node, at another step, in one federation."""

import asyncio
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.attacks.tamper.dying import Dying

from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol import shuffler, silo
from silomix.runtime.core.protocol.roundlog import Outcome
from silomix.runtime.faults.checkable import UNIT
from silomix.runtime.local import create
from silomix.runtime.nodes.facts import read_log, read_shuffler, read_silo
from silomix.runtime.store.home import Home
from silomix.runtime.store.journal import Journal
from silomix.runtime.store.modelfile import read_model

DEATHS = {
    "silo-01": (1, "Show"),  # it has written that it tosses, and its share has not left
    "silo-02": (2, "Answer"),  # its answer is written, and has not left
    "shuffler-1": (3, "Measure"),  # it is to answer
    "shuffler-2": (4, "Answer"),  # its answer is written
    "aggregator": (5, "AskScalars"),  # the coin is tossed
}
SILOS = 3
WAIT_S = 240.0


def facts(directory: Path, name: str) -> list[object]:
    with closing(Journal(Home(directory / name).state.journal)) as journal:
        return list(read_silo(journal) if name.startswith("silo") else read_shuffler(journal))


async def to_the_end(running: Dying) -> None:
    async with running, asyncio.timeout(WAIT_S):
        lead = running.federation.aggregator.name
        while running.processes[lead].returncode != 0:
            await running.raise_the_dead()
            running.check()
            await asyncio.sleep(0.05)


@pytest.mark.full
def test_no_second_coin_is_answered_and_every_round_is_applied_once(tmp_path: Path) -> None:
    policy = Policy(
        task="silomix.runtime.faults.checkable:task",
        rounds=len(DEATHS),
        precision=4,
        bound=1.0,
        minimum_cohort=SILOS,
        level=Level.MALICIOUS,
        deadline_s=20,
        release_s=10,
        attempts=6,
    )
    home = tmp_path / "f"
    create(home, SILOS, 2, policy=policy, silo_options=lambda i: {"silo": i})
    running = Dying(home, DEATHS)
    asyncio.run(to_the_end(running))
    assert all(running.died(name) for name in DEATHS)
    with closing(Journal(Home(home / "aggregator").state.journal)) as journal:
        records = list(read_log(journal))[1:]
    assert [record.outcome for record in records] == [Outcome.APPLIED] * len(DEATHS)
    assert not any(one.culprit for record in records for one in record.attempts)
    tried = [len(record.attempts) for record in records]
    assert tried[1] == 1, "a silo whose answer was written gives it again, and costs no attempt"
    for name in (*running.federation.silo_names, *running.federation.chain):
        known = facts(home, name)
        answers = [fact for fact in known if isinstance(fact, silo.Stated | shuffler.Stated)]
        assert answers
        assert max(Counter(fact.manifest for fact in answers).values()) == 1
        assert all(fact.statement.name == name for fact in answers)
    model = read_model(Home(home / "aggregator").state.model(records[-1].model_after).read_bytes())[1]
    each = sum(4**i for i in range(SILOS)) / SILOS * UNIT
    assert np.abs(model["values"] - len(DEATHS) * each).max() < UNIT
