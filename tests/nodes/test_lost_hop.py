"""A hop that is lost: named within seconds, and rounds go on without it where the policy has hops to spare."""

from pathlib import Path

import pytest
from tests.nodes.federations import assert_model, make, run, until

from silomix.runtime.core.chain import ChainRule
from silomix.runtime.core.protocol.roundlog import Outcome
from silomix.runtime.core.protocol.shuffler import Effect, Open, Shuffler
from silomix.runtime.local import InProcess
from silomix.runtime.nodes import aggregator as module
from silomix.runtime.nodes.lead import rollcall
from silomix.runtime.nodes.lead.rollcall import Probation, meaning
from silomix.runtime.nodes.silo import SiloNode

LOST = "shuffler-2"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollcall, "EVERY_S", 0.1)
    monkeypatch.setattr(rollcall, "BACK_S", 0.1)
    monkeypatch.setattr(rollcall, "ANSWER_S", 0.5)
    monkeypatch.setattr(module, "SILENT_S", 0.2)
    monkeypatch.setattr(module, "GONE_S", 1.0)


def test_rounds_go_on_without_a_hop_and_it_rejoins_by_itself(tmp_path: Path) -> None:
    """It dies while a round is open, which is abandoned at once: nobody waits for its deadline of ten minutes."""
    make(tmp_path / "f", 3, 4, minimum_hops=3, rounds=40, deadline_s=600, release_s=120)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            core = running.aggregator.core
            log = core.log
            await until(lambda: log.applied >= 1, "a round is applied", seconds=60)
            assert log.records[1].attempts[-1].chain == running.federation.chain
            await running.stop(LOST)
            del running.nodes[LOST], running.tasks[LOST]
            await until(lambda: LOST in running.aggregator.missing_hops, "it is missed", seconds=30)
            status = await running.status()
            (hop,) = [one for one in status.hops if one.name == LOST]
            assert hop.state == "unreachable"
            assert "rounds go on over 3 of 4 hops" in hop.trouble
            assert "one sum per model holds against 1 that collude" in hop.trouble
            sample = running.aggregator.metrics.registry.get_sample_value
            assert sample("silomix_hop_state", {"hop": LOST, "state": "unreachable"}) == 1

            def without() -> bool:
                return any(LOST not in r.attempts[-1].chain for r in log.records if r.outcome is Outcome.APPLIED)

            await until(without, "a round is applied without it", seconds=60)
            abandoned = [record.round for record in log.records if record.outcome is Outcome.ABANDONED]
            assert len(abandoned) <= 1
            running.start(LOST)
            before = log.round

            def again() -> bool:
                newer = log.records[before:]
                return any(LOST in r.attempts[-1].chain for r in newer if r.outcome is Outcome.APPLIED)

            await until(again, "a round is applied with it again", seconds=60)
            assert LOST not in running.aggregator.missing_hops
            for node in running.nodes.values():
                if isinstance(node, SiloNode):
                    assert not node.core.forks
            cohorts = [range(3)] * log.applied
            assert cohorts

    run(go(), 150)


def test_without_hops_to_spare_the_federation_waits_says_so_and_uses_up_no_attempt(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 3, 2, rounds=1, attempts=1, deadline_s=60, release_s=2)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("shuffler-2",)) as running:
            core = running.aggregator.core
            await until(lambda: "shuffler-2" in running.aggregator.missing_hops, "it is missed", seconds=30)
            trouble = next(hop.trouble for hop in (await running.status()).hops if hop.name == "shuffler-2")
            assert "rounds wait until it answers" in trouble
            assert "nothing is released meanwhile" in trouble
            assert core.log.round == 0  # nothing is signed before the hops are heard
            running.start("shuffler-2")
            await until(lambda: core.phase == "collecting", "a round is open", seconds=30)
            done = await running.finished()
            assert [(one.round, one.attempts, one.cohort) for one in done] == [(1, 1, 3)]
            assert_model(running.aggregator.tensors, [range(3)], federation.policy)

    run(go(), 120)


def test_a_hop_that_is_lost_again_and_again_has_to_answer_for_ever_longer() -> None:
    """Else each time that it comes and goes would cost a round."""
    one = Probation()
    assert one.over(LOST, 0.0)  # never lost
    waited = []
    for loss in range(8):
        now = 10_000.0 * loss
        one.silent(LOST)
        one.lost(LOST)
        due = one.due_s(LOST)
        assert one.over(LOST, now) is (due == 0.0)
        assert not due or not one.over(LOST, now + due - 1)
        assert one.over(LOST, now + due)
        waited.append(due)
    assert waited[:4] == [0.0, 20.0, 40.0, 80.0]
    assert max(waited) == 600.0
    one.silent(LOST)  # it has to begin again
    assert not one.over(LOST, 90_000.0)
    assert one.over(LOST, 90_000.0 + 3600)
    assert one.due_s(LOST) == 0.0  # forgiven


def test_what_a_lost_hop_means_is_said_in_numbers() -> None:
    assert "rounds go on over 4 of 5 hops" in meaning(ChainRule(5, 4), 1)
    assert "0 more may be missing" in meaning(ChainRule(5, 4), 1)
    assert "rounds wait" in meaning(ChainRule(5, 4), 2)
    assert "none may be missing" in meaning(ChainRule(3, 3), 1)


def test_an_attempt_that_a_hop_will_never_open_is_given_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are gone, as they are when another hop was waited for too long: new ones are made."""
    make(tmp_path / "f", 3, 2, rounds=1, deadline_s=600, release_s=600)
    opened = Shuffler._open

    def without_keys(self: Shuffler, event: Open) -> list[Effect]:
        if self.identity.name == LOST and event.manifest.attempt == 1:
            self.keys.clear()
        return opened(self, event)

    monkeypatch.setattr(Shuffler, "_open", without_keys)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            done = await running.finished()
            assert [(one.round, one.attempts, one.cohort) for one in done] == [(1, 2, 3)]

    run(go(), 60)
