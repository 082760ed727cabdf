"""`silomix bench check`: what the tamper check adds to a round that really runs, and what a trap costs."""

import json

import pytest

from silomix.runtime.bench import check
from silomix.runtime.bench.check import Passes
from silomix.runtime.cli import main
from silomix.runtime.core.numbers.check_costs import check_cost
from silomix.runtime.core.numbers.fold import Fold
from silomix.runtime.core.numbers.packing import Bytes


def test_each_role_goes_over_as_many_vectors_as_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[int] = []
    update = Fold.update_packed

    def counted(self: Fold, index: int, part: Bytes, coordinates: int | None = None) -> None:
        folded.append(index)
        update(self, index, part, coordinates)

    monkeypatch.setattr(Fold, "update_packed", counted)
    passes = Passes(3, 3000, 2, 4)
    costs = check_cost(passes.plan, 2)
    for role, vectors in ((passes.silo, costs.silo_passes), (passes.hop, costs.hop_passes), (passes.aggregator, 1)):
        folded.clear()
        role()
        assert len(folded) == vectors * passes.layout.value_chunks


def test_shares_are_of_the_round_that_was_given() -> None:
    passes = Passes(3, 3000, 2, 4)
    figures = check._lap(passes)
    round_ = {
        "repeats": 1,
        "seconds": {"protected": 2.0, "checked": 3.0},
        "cpu_s": {"protected": 4.0, "checked": 5.0},
        "cpu_s_by_role": {
            "protected": {"silos": 3.0, "plain": 0.0, "hop 1": 1.0},
            "checked": {"silos": 3.5, "plain": 0.0, "hop 1": 1.5},
        },
    }
    found = check._result(passes, round_, figures, {"silo_s": 1.0, "hop_s": 1.0, "verifier_s": 1.0})
    assert found["adds"]["wall"] == pytest.approx(0.5)
    assert found["adds"]["cpu"] == pytest.approx(0.25)
    total = 3 * figures["silo_s"] + 2 * figures["hop_s"] + figures["aggregator_s"]
    assert found["adds"]["cpu_passes"] == pytest.approx(total / 4.0)
    assert found["round"]["cpu_s_by_role"] == {"silos": 3.0, "hop 1": 1.0}
    assert found["round"]["checked_cpu_s_by_role"] == {"silos": 3.5, "hop 1": 1.5}


@pytest.mark.full
def test_the_check_is_timed_beside_a_round_that_really_ran(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "REPEATS", 1)
    monkeypatch.setattr(check, "SAMPLE_TRAPS", 1)
    size = ("--silos", "3", "--hops", "2", "--parameters", "20000", "--repeats", "1")
    assert main(["bench", "check", *size, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["soundness_bits"] >= 72
    assert found["bytes_per_silo"] < 1024
    assert min(found["trap"].values()) > 0
    assert set(found["round"]["cpu_s_by_role"]) >= {"hop 1", "hop 2", "aggregator", "silos"}
    check._show(found)
    shown = capsys.readouterr().out
    for words in ("at level malicious", "A trap takes", "masks modulo primes"):
        assert words in shown
