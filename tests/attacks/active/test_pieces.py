"""What the drill is made of: whether it measures what it says, and leaves nothing behind."""

import asyncio
import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from silomix.attacks.active import without
from silomix.attacks.active.acts.casts import AGGREGATOR
from silomix.attacks.active.drill import drill
from silomix.attacks.active.liars.sealing import SMALL, agreed_with, open_without_key, seal_carelessly
from silomix.attacks.active.measure import Closeness
from silomix.attacks.active.registry import Attack, Loot, Outcome, Rule, attack, find, judge
from silomix.attacks.active.seized import in_files, in_memory
from silomix.attacks.active.stage import SECOND, Stage
from silomix.attacks.active.task import Drill
from silomix.attacks.active.witness import Refusal, listening
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.masks import KEY_BYTES, MaskContext, Secret, public_key, seal, small_order
from silomix.runtime.core.protocol import rules
from silomix.runtime.observe.log import Log

CONTEXT = MaskContext(bytes(32), 2, 128)


def test_our_sealing_by_hand_is_the_librarys() -> None:
    private, seed = Secret.draw(os.urandom), Secret.draw(os.urandom)
    sealed = seal(seed, public_key(private), CONTEXT)
    agreed = agreed_with(private, sealed[:KEY_BYTES])
    assert open_without_key(sealed, public_key(private), CONTEXT, agreed) == seed
    assert open_without_key(sealed, public_key(private), CONTEXT) is None


def test_what_is_sealed_to_a_point_of_small_order_anybody_opens() -> None:
    seed = Secret.draw(os.urandom)
    assert small_order(SMALL)
    assert open_without_key(seal_carelessly(seed, SMALL, CONTEXT), SMALL, CONTEXT) == seed


def test_whoever_holds_the_mean_knows_nothing_of_what_sets_a_silo_apart() -> None:
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(6, 500)) + rng.normal(size=500)
    truth, mean = updates[2], updates.mean(axis=0)
    held, read = Closeness.of(mean, truth, mean), Closeness.of(truth, truth, mean)
    assert held.cosine > 0.6
    assert (held.apart, held.read) == (0.0, False)
    assert (round(read.apart, 9), read.error, read.read) == (1.0, 0.0, True)
    assert not Closeness.of(rng.normal(size=500), truth, mean).read


def test_the_task_is_repeatable_and_its_silos_differ() -> None:
    model = Drill(0).initial()
    first, again, other = (Drill(i).train(model, 1).tensors["output"] for i in (0, 0, 1))
    assert np.array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert Drill(0).evaluate(model)["accuracy"] > 0.8


def _attack(expect: Outcome) -> Attack:
    async def run(_: Stage) -> Loot:
        raise AssertionError("not run")

    return Attack("name", Rule.R1, "somebody", "", expect, AGGREGATOR, run)


@pytest.mark.parametrize(
    ("expect", "gained", "refused", "outcome"),
    [
        (Outcome.REFUSED, False, True, Outcome.REFUSED),
        (Outcome.REFUSED, True, True, Outcome.SUCCEEDED),
        (Outcome.USELESS, False, False, Outcome.USELESS),
        (Outcome.USELESS, True, False, Outcome.SUCCEEDED),
        (Outcome.OPEN, True, False, Outcome.OPEN),
        (Outcome.OPEN, False, True, Outcome.REFUSED),
        (Outcome.CONCEDED, True, False, Outcome.CONCEDED),
        (Outcome.CONCEDED, False, False, Outcome.USELESS),
    ],
)
def test_the_judge_goes_by_what_was_gained(expect: Outcome, gained: bool, refused: bool, outcome: Outcome) -> None:
    refusals = (Refusal("shuffler-1", "wrong_chain", "no"),) if refused else ()
    assert judge(_attack(expect), Loot(gained, "", refusals)) is outcome


@pytest.mark.parametrize("gained", [True, False])
def test_what_goes_beyond_what_is_conceded_has_succeeded(gained: bool) -> None:
    assert judge(_attack(Outcome.CONCEDED), Loot(gained, "", beyond=True)) is Outcome.SUCCEEDED


def test_a_drill_that_fails_is_broken_and_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(self: Stage) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Stage, "_start", lost)
    (result,) = asyncio.run(drill((_attack(Outcome.REFUSED),)))
    assert (result.outcome, result.held) == (Outcome.BROKEN, False)


def test_a_name_that_is_nearly_right_is_helped() -> None:
    with pytest.raises(UserError, match="did you mean short-chain"):
        find(["shortchain"])


def test_names_are_taken_once() -> None:
    with pytest.raises(ValueError, match="short-chain"):
        attack("short-chain", Rule.R1, "somebody", Outcome.REFUSED, AGGREGATOR)(_attack(Outcome.REFUSED).run)


def test_a_rule_is_on_again_when_the_drill_is_over() -> None:
    check = rules.check_chain
    with suppress(RuntimeError), without.switched_off(Rule.R1):
        assert rules.check_chain is not check
        raise RuntimeError
    assert rules.check_chain is check


def test_a_check_that_has_moved_cannot_be_switched_off_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without, "_patches", lambda: {Rule.R1: [(rules, "_check_that_was_here_once", None)]})
    with pytest.raises(KeyError), without.switched_off(Rule.R1):
        pass


def test_the_witness_hears_reasons_and_keeps_them_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), listening() as witness:
        Log("shuffler-1").warning("refused Open: no", reason="wrong_chain")
        Log("shuffler-1").info("attempt open")
        Log("shuffler-1").warning("refused Open: no, again", reason="wrong_chain")
    assert [(r.node, r.reason) for r in witness.since(0)] == [("shuffler-1", "wrong_chain")]
    assert not witness.since(2)
    assert not caplog.records
    Log("shuffler-1").warning("after")
    assert [record.getMessage() for record in caplog.records] == ["after"]


def test_a_process_memory_and_files_are_searched(tmp_path: Path) -> None:
    secret, absent = os.urandom(32), os.urandom(32)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "file").write_bytes(bytes(100) + secret + secret)
    assert in_files(tmp_path, {"there": secret, "not": absent}) == {"there": 2, "not": 0}
    keeping = "import sys; kept = sys.stdin.buffer.read(32); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", keeping], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(secret)
        process.stdin.flush()
        process.stdout.readline()
        found = in_memory(process.pid, {"there": secret, "not": absent})
        process.stdin.close()
    assert found["there"] >= 1
    assert found["not"] == 0


async def test_a_hop_forgets_in_time_if_nobody_asks_it_for_more() -> None:
    """The control of `secrets-kept-alive`: by the same clock, keys go when nobody winds it back."""

    with listening() as witness:
        async with Stage(AGGREGATOR, witness) as stage:
            node, policy = stage.hop(SECOND), stage.federation.policy
            await stage.begin(silos=())
            assert node.core.keys
            stage.pass_time(SECOND, policy.attempts * (policy.deadline_s + policy.release_s) + 1)
            await stage.until(lambda: not node.core.keys, "the keys are gone")


def test_a_stage_leaves_nothing_behind() -> None:
    async def go() -> Path:
        with listening() as witness:
            async with Stage(AGGREGATOR, witness) as stage:
                assert (stage.home / "f" / "federation.toml").exists()
                return stage.home

    assert not asyncio.run(go()).exists()
