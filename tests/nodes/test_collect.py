"""Which global models an aggregator keeps on its disk."""

import hashlib
from math import nan
from pathlib import Path

from tests.core.protocol.federations import federation, past, recorded

from silomix.runtime.core.protocol.roundlog import Outcome, RoundLog
from silomix.runtime.nodes.lead.collect import best_round, collect
from silomix.runtime.store.home import State
from silomix.v1.services_pb2 import RoundStatus

ROUNDS = 6
ABANDONED = 4


def digest(round_: int) -> bytes:
    return hashlib.sha256(bytes([round_])).digest()


def history() -> RoundLog:
    """Six rounds, of which the fourth was abandoned."""
    f = federation()
    log = RoundLog(f, list(past(f).records))
    for round_ in range(1, ROUNDS + 1):
        if round_ == ABANDONED:
            log.records.append(recorded(log))
        else:
            log.records.append(recorded(log, Outcome.APPLIED, model_after=digest(round_)))
    return log


def left(tmp_path: Path, keep: int, *scores: float) -> set[int]:
    """The rounds whose models are still there."""
    state, log = State(tmp_path), history()
    state.models.mkdir(parents=True)
    for round_ in range(1, ROUNDS + 1):
        state.model(digest(round_)).write_bytes(b"model")
    other = state.models / "just-written.safetensors"
    other.write_bytes(b"model")
    done = [RoundStatus(round=i + 1, cohort=3 * (i + 1 != ABANDONED), score=score) for i, score in enumerate(scores)]
    collect(state, log, done, keep)
    assert other.exists()
    return {i for i in range(1, ROUNDS + 1) if i != ABANDONED and state.model(digest(i)).exists()}


def test_the_newest_and_the_one_before_stay_whatever_the_configuration_says(tmp_path: Path) -> None:
    assert left(tmp_path, 1) == {5, 6}


def test_as_many_of_the_newest_stay_as_the_configuration_says(tmp_path: Path) -> None:
    assert left(tmp_path, 3) == {3, 5, 6}


def test_a_round_that_was_abandoned_takes_no_place(tmp_path: Path) -> None:
    assert left(tmp_path, 4) == {2, 3, 5, 6}


def test_what_was_deleted_is_named_once(tmp_path: Path) -> None:
    state, log = State(tmp_path), history()
    state.models.mkdir(parents=True)
    for round_ in (1, 2, 6):
        state.model(digest(round_)).write_bytes(b"model")
    assert collect(state, log, [], 1) == sorted(state.model(digest(round_)) for round_ in (1, 2))
    assert collect(state, log, [], 1) == []


def test_the_best_stays(tmp_path: Path) -> None:
    assert left(tmp_path, 1, 0.1, 0.9, 0.9, 1.0, nan, 0.2) == {2, 5, 6}


def test_all_stay_if_the_configuration_says_so(tmp_path: Path) -> None:
    """The initial model too, which no round has made."""
    state, log = State(tmp_path), history()
    state.models.mkdir(parents=True)
    initial = state.model(log.records[0].model_after)
    initial.write_bytes(b"model")
    assert collect(state, log, [], 0) == []
    assert initial.exists()
    assert collect(state, log, [], 9) == [initial]


def test_all_that_rounds_made_stay_if_the_configuration_says_so(tmp_path: Path) -> None:
    assert left(tmp_path, 0) == {1, 2, 3, 5, 6}


def test_without_a_measure_there_is_no_best() -> None:
    assert best_round([RoundStatus(round=1, cohort=3, score=nan), RoundStatus(round=2, cohort=0, score=1.0)]) == 0
    assert best_round([RoundStatus(round=1, cohort=3)]) == 0
