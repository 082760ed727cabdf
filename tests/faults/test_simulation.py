"""Faults by the thousand: a federation in memory keeps its promises, and a node that lacks one rule is found out.

`silomix simulate-faults` runs far more of the same schedules.
"""

import json

import pytest

from silomix.runtime.cli.entry import main
from silomix.runtime.cli.measure import faults as command
from silomix.runtime.core.errors import PeerFault
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.protocol.identity import Identity, verify
from silomix.runtime.faults.campaign import campaign, run_lot
from silomix.runtime.faults.mutants import MUTANTS, NONE
from silomix.runtime.faults.schedule import Run, remembered_signatures
from silomix.runtime.faults.world import KINDS

SEED = 1
MOST = 400
"""Schedules within which a mutant must be found here; a thousand would do."""
CAUGHT = {
    "pad-before-record": 0,
    "pad-before-all-signed": 4,
    "count-before-end": 41,
    "old-attempt": 55,
    "log-unchecked": 2,
    "cohort-uncompared": 4,
    "checksum-unchecked": 29,
    "no-fence": 0,
}
"""Where each was found last: that one is tried first."""


def test_no_schedule_of_faults_breaks_a_promise() -> None:
    report = campaign(SEED, 20, workers=1)
    assert report.violations == 0, report.failed
    assert report.schedules == 20
    assert report.applied >= 20
    assert len(set(report.faults_by_kind) & set(KINDS)) >= 8


@pytest.mark.full
def test_no_schedule_of_a_thousand_breaks_a_promise() -> None:
    report = campaign(SEED + 1, 1000)
    assert report.violations == 0, report.failed


@pytest.mark.parametrize("name", list(MUTANTS))
def test_a_node_without_one_rule_is_found_out(name: str) -> None:
    first = CAUGHT[name]
    for schedule in (first, *(k for k in range(MOST) if k != first)):
        (result,) = run_lot(SEED, (schedule,), name)
        if result.violation:
            return
    pytest.fail(f"{name} passes for an honest node")


def test_a_schedule_runs_again_as_it_was() -> None:
    assert run_lot(SEED, (5, 6), "") == run_lot(SEED, (5, 6), "")
    assert run_lot(SEED, (5,), "") != run_lot(SEED + 1, (5,), "")


def test_signatures_are_checked_in_earnest() -> None:
    one = Identity("a", Secret(bytes(range(32))))
    with remembered_signatures():
        for _ in range(2):
            verify(one.public, bytes(32), one.sign(bytes(32)), "a")
            with pytest.raises(PeerFault):
                verify(one.public, bytes(32), bytes(64), "a")


def test_a_federation_without_faults_applies_every_round_at_once() -> None:
    run = Run(SEED, 0, NONE)
    run.world.rates.rates.clear()
    result = run.run()
    assert (result.violation, result.applied, result.attempts, result.abandoned) == ("", 2, 2, 0)
    assert not result.faults.keys() - {"reorder", "collusion"}


def test_the_command_reports_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate-faults", "--schedules", "2", "--seed", "1", "--workers", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["schedules"], report["violations"]) == (2, 0)
    assert report["faults_by_kind"]
    assert report["seconds"] > 0


def test_the_command_names_the_schedule_that_fails_and_runs_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate-faults", "--seed", "1", "--mutant", "pad-before-record", "--workers", "1"]
    assert main([*arguments, "--schedules", "30", "--json"]) == 1
    (failed,) = json.loads(capsys.readouterr().out)["failed"]
    assert main([*arguments, "--schedule", str(failed["schedule"])]) == 1
    out = capsys.readouterr().out
    assert failed["violation"] in out
    assert f"--seed 1 --schedule {failed['schedule']} --mutant pad-before-record" in " ".join(out.split())


def test_a_mutant_that_cannot_be_is_said_to_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate-faults", "--mutant", "nobody"]) == 2
    assert "pad-before-record" in capsys.readouterr().err


def test_the_help_lists_the_mutants_that_there_are() -> None:
    assert list(command.MUTANTS) == list(MUTANTS)
    for name, mutant in MUTANTS.items():
        assert command.MUTANTS[name].startswith(mutant.about)
