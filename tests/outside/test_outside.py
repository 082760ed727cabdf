"""A protected sum that is driven from outside: what goes in at silos comes out at the aggregator, and nothing else."""

import re
import runpy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from silomix.runtime import outside
from silomix.runtime.config.load import load_node
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.schema import Dtype
from silomix.runtime.core.policy import AUTO, Policy, Server
from silomix.runtime.local import create as create_federation
from silomix.runtime.outside.question import PATH, Stamp, task, unit_of
from silomix.runtime.store.journal import Journal
from silomix.runtime.task import TaskError

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "outside.md"
POLICY = Policy(rounds=1000, precision=4, bound=9999, deadline_s=60, release_s=60)
"""A step of 1: whole numbers travel as they are."""
WAIT_S = 60.0


class Answers:
    """Calls in threads of their own, and what became of them."""

    def __init__(self) -> None:
        self.errors: dict[str, Exception] = {}
        self._threads: list[threading.Thread] = []

    def call(self, name: str, function: Callable[..., object], *arguments: Any, **options: Any) -> None:
        def run() -> None:
            try:
                function(*arguments, **options)
            except Exception as error:
                self.errors[name] = error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def join(self) -> dict[str, Exception]:
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a call does not come back"
        return self.errors


@contextmanager
def submitted(federation: outside.Together, vectors: dict[int, Any], round_: int, **options: Any) -> Iterator[Answers]:
    """Hand vectors in at some silos, by index."""
    answers = Answers()
    for index, vector in vectors.items():
        silo = federation.silos[index]
        own = {key: value[index] if isinstance(value, dict) else value for key, value in options.items()}
        answers.call(silo.name, silo.submit, vector, round_, timeout_s=WAIT_S, **own)
    yield answers
    answers.join()


def test_what_silos_hand_in_comes_out_as_mean_and_weight_round_after_round(tmp_path: Path) -> None:
    outside.create(tmp_path / "fed", 4, 2, 3, policy=replace(POLICY, weight_levels=50))
    with outside.Together(tmp_path / "fed", log=tmp_path / "log") as federation:
        for round_ in (1, 2):
            vectors = {i: np.array([i, 100 * i, -round_]) for i in range(4)}
            with submitted(federation, vectors, round_, examples={i: 10 * i + 1 for i in range(4)}) as answers:
                total = federation.aggregator.result(round_, timeout_s=WAIT_S)
            assert not answers.errors
            assert (total.round, total.silos, total.weight) == (round_, 4, 1 + 11 + 21 + 31)
            np.testing.assert_allclose(total.total, [11 + 42 + 93, 100 * (11 + 42 + 93), -64 * round_], atol=1e-6)
        # What is over stays to be had; what is next cannot be skipped.
        assert federation.aggregator.result(1).total[2] == pytest.approx(-64)
        assert federation.aggregator.round == 3
        with pytest.raises(UserError, match="round 5 cannot be opened: round 3 is next"):
            federation.aggregator.open(5)
        with pytest.raises(outside.NotInSum, match="round 1 is over: a vector for round 2 was handed in"):
            federation.silos[0].submit(np.zeros(3), 1, timeout_s=WAIT_S)
    # The node has let go of its files, and a new one goes on where it was.
    with outside.Together(tmp_path / "fed", log=tmp_path / "log") as federation:
        assert federation.aggregator.round == 3  # as soon as its hops were heard
        assert federation.aggregator.result(2).weight == 64


def test_a_round_goes_on_at_the_deadline_without_a_silo_that_hands_nothing_in(tmp_path: Path) -> None:
    outside.create(tmp_path / "fed", 4, 1, 1, policy=replace(POLICY, deadline_s=3, attempts=10))
    with outside.Together(tmp_path / "fed", log=tmp_path / "log") as federation:
        with submitted(federation, {0: [1], 1: [2], 2: [4]}, 1):
            total = federation.aggregator.result(1, timeout_s=WAIT_S)
        assert (total.silos, total.total[0]) == (3, pytest.approx(7))
        with submitted(federation, {0: [1], 1: [2], 2: [4], 3: [8]}, 2) as answers:
            total = federation.aggregator.result(2, timeout_s=WAIT_S)
        assert not answers.errors, "the silo that was missing is back"
        assert (total.silos, total.total[0]) == (4, pytest.approx(15))


def test_quorum_closes_a_round_for_those_who_came(tmp_path: Path) -> None:
    outside.create(tmp_path / "fed", 5, 1, 1, policy=replace(POLICY, quorum=0.6))
    with outside.Together(tmp_path / "fed", log=tmp_path / "log") as federation:
        for round_, who in ((1, (0, 1, 2)), (2, (2, 3, 4))):
            with submitted(federation, {i: [10**i] for i in who if i < 4} | {i: [5] for i in who if i == 4}, round_):
                total = federation.aggregator.result(round_, timeout_s=WAIT_S)
            assert total.silos == 3
        assert total.total[0] == pytest.approx(100 + 1000 + 5)
        # Whoever comes when the round is over is told so, though the next one is not open.
        with pytest.raises(outside.NotInSum, match="this silo is not in the sum of round 2"):
            federation.silos[0].submit([1], 2, timeout_s=WAIT_S)


def test_a_round_that_too_few_take_part_in_can_be_given_up_and_the_next_one_opened(tmp_path: Path) -> None:
    outside.create(tmp_path / "fed", 3, 1, 1, policy=POLICY)
    with outside.Together(tmp_path / "fed", log=tmp_path / "log") as federation:
        with submitted(federation, {0: [1]}, 1):
            assert federation.aggregator.open() == 1
        federation.aggregator.abandon(1)
        with pytest.raises(outside.NoSum, match=r"round 1 came to no sum.*takes 3 silos within 60 s"):
            federation.aggregator.result(1)
        with submitted(federation, {0: [1], 1: [2], 2: [4]}, 2) as answers:
            assert federation.aggregator.result(2, timeout_s=WAIT_S).total[0] == pytest.approx(7)
        assert not answers.errors


def test_the_clock_of_a_round_begins_when_it_is_opened(tmp_path: Path) -> None:
    """Or a driver that is slow between two rounds would find them given up."""
    outside.create(tmp_path / "fed", 3, 1, 1, policy=replace(POLICY, release_s=1, deadline_s=60, attempts=1))
    with outside.Together(tmp_path / "fed", log=tmp_path / "log") as federation:
        assert federation.aggregator.round == 1
        node = federation.aggregator._node
        assert node is not None
        held = node.clock()
        assert threading.Event().wait(2.5) is False, "longer than hops have to answer"
        assert node.clock() == held
        assert (node.core.round, node.core.attempt) == (1, 1)


def test_silos_that_were_asked_different_things_find_out_and_stop(tmp_path: Path) -> None:
    outside.create(tmp_path / "fed", 3, 1, 1, policy=POLICY)
    vectors = {0: [1], 1: [2], 2: [4]}
    with outside.Together(tmp_path / "fed", log=tmp_path / "log") as federation:
        with submitted(federation, vectors, 1, question=b"same"):
            assert federation.aggregator.result(1, question=b"same", timeout_s=WAIT_S).silos == 3
        with pytest.raises(outside.NoSum, match="not all asked the same"):
            federation.aggregator.result(1, question=b"another")
        with (
            submitted(federation, vectors, 2, question={0: b"special", 1: b"same", 2: b"same"}) as answers,
            pytest.raises(outside.NoSum, match="not all asked the same"),
        ):
            federation.aggregator.result(2, timeout_s=WAIT_S)
        assert not answers.errors
        with submitted(federation, vectors, 3, question=b"same") as answers:
            federation.aggregator.open(3)
        assert len(answers.errors) == 3
        for error in answers.errors.values():
            assert isinstance(error, outside.NotInSum)
            assert "Nothing was sent" in str(error)
    names = [path.name for path in (tmp_path / "fed" / "silo-01" / "state" / "frozen").iterdir()]
    assert not any(name.startswith("3-") for name in names), "nothing of round 3 was encoded"


@pytest.mark.parametrize(
    ("vector", "options", "message"),
    [
        ([1, 2], {}, r"the vector has the shape (2,), and this federation sums vectors of shape (3,)"),
        (np.zeros((3, 1)), {}, r"the shape (3, 1)"),
        ([1, 2, np.nan], {}, "nan at position 2; give numbers"),
        ([1, 2, 10_000], {}, "10000 at position 2, and the policy's bound is 9999"),
        (["a", "b", "c"], {}, "<U1; give real numbers"),
        ([1j, 1, 1], {}, "give real numbers"),
        ([1, 2, 3], {"examples": 0}, "examples = 0; give how many records"),
        ([1, 2, 3], {"examples": 51}, "weight_levels = 50 would cut that"),
        ([1, 2, 3], {"round": 0}, "round = 0; give 1 to 1000"),
    ],
)
def test_what_cannot_be_summed_is_refused_where_it_is_handed_in(
    sums: Path, vector: Any, options: dict[str, Any], message: str
) -> None:
    silo = outside.Silo(sums / "silo-01")  # not started: nothing gets as far as the node
    with pytest.raises(UserError, match=re.escape(message)):
        silo.submit(vector, **{"round": 1, **options})
    with pytest.raises(UserError, match=re.escape(message)) if "round" not in options else pytest.raises(UserError):
        outside.submit(sums / "silo-01", vector, **{"round": 1, **options})


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation that nobody runs."""
    fed = tmp_path_factory.mktemp("sums") / "fed"
    outside.create(fed, 3, 1, 3, policy=replace(POLICY, weight_levels=50))
    return fed


def test_values_beyond_the_bound_are_cut_only_if_that_was_said(sums: Path) -> None:
    silo = outside.Silo(sums / "silo-01")
    silo.inbox.ended("it was never started")
    with pytest.raises(outside.NotInSum, match="never started"):
        silo.submit([1, 2, 10_000], 1, clip=True)


def test_nobody_opens_what_is_not_theirs(sums: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='found "shuffler"; give the directory of a silo'):
        outside.Silo(sums / "shuffler-1")
    with pytest.raises(ConfigError, match='found "silo"; give the directory of the aggregator'):
        outside.Aggregator(sums / "silo-01")
    with pytest.raises(UserError, match=r"does not open its door.*python -m silomix.runtime.outside"):
        outside.submit(sums / "silo-01", [1, 2, 3], 1)
    with pytest.raises(ConfigError, match=r"policy\.server: found median"):
        outside.create(tmp_path / "median", 6, 1, 3, policy=replace(POLICY, server=Server.MEDIAN, group_size=3))
    with pytest.raises(ConfigError, match=r'policy\.bound: found "auto"; give the largest value of any vector'):
        outside.create(tmp_path / "auto", 3, 1, 3, policy=replace(POLICY, bound=AUTO))
    plain = replace(POLICY, task=PATH, task_options={"values": 1})
    create_federation(tmp_path / "delta", 3, 1, policy=plain, task=task(1))
    with pytest.raises(ConfigError, match=r"policy\.update: found delta"):
        outside.Silo(tmp_path / "delta" / "silo-01")


def test_a_plain_silo_says_how_to_start_one_that_is_driven() -> None:
    asked = task(values=3)
    with pytest.raises(TaskError, match=r"python -m silomix\.runtime\.outside"):
        asked.train(asked.initial(), 1)
    for values, dtype in ((0, "F64"), (3, "F16")):
        with pytest.raises(TaskError, match="give"):
            task(values, dtype)


@pytest.mark.parametrize(("precision", "bound"), [(1, 1.0), (4, 1.0), (4, 9999.0), (8, 1e-3)])
def test_a_mark_survives_the_mean_and_differs_for_each_sum(tmp_path: Path, precision: int, bound: float) -> None:
    made = outside.create(tmp_path / "fed", 3, 1, 1, policy=replace(POLICY, precision=precision, bound=bound))
    unit = unit_of(made)
    for dtype in (Dtype.F32, Dtype.F64):
        marks = [Stamp.of(number, b"question") for number in (1, 2, 8**8 - 1)]
        for mark in marks:
            sent = mark.values(unit, dtype)
            assert np.abs(sent).max() <= bound
            assert Stamp.read(sent, unit) == mark
            np.testing.assert_allclose(sent / unit, np.rint(sent / unit), atol=1e-5)
        mixed = (2 * Stamp.of(1, b"a").values(unit, dtype) + Stamp.of(1, b"b").values(unit, dtype)) / 3
        assert Stamp.read(mixed, unit) == Stamp(1, "")


def test_other_processes_hand_in_at_the_door(tmp_path: Path) -> None:
    """The directory's name is longer than a socket's may be."""
    fed = tmp_path / ("long" * 30) / "fed"
    fed.parent.mkdir()
    outside.create(fed, 3, 1, 2, policy=POLICY)
    with outside.Together(fed, log=tmp_path / "log") as federation:
        doors = [outside.Door(silo) for silo in federation.silos]
        for door in doors:
            door.__enter__()
        door_file = load_node(fed / "silo-01").state.directory / "door"
        assert door_file.stat().st_mode & 0o077 == 0, "nobody else may knock"
        answers = Answers()
        for i in range(3):
            answers.call(str(i), outside.submit, fed / f"silo-0{i + 1}", [i, 1], 1, timeout_s=WAIT_S)
        total = federation.aggregator.result(1, timeout_s=WAIT_S)
        assert answers.join() == {}
        np.testing.assert_allclose(total.total, [3, 3])
        outside.submit(fed / "silo-01", [9, 9], 1)  # it counts already: this one changes nothing
        np.testing.assert_allclose(federation.aggregator.result(1).total, [3, 3])
        for door in doors:
            door.__exit__(None, None, None)
        assert not door_file.exists()


def test_only_the_newest_marks_are_kept(tmp_path: Path) -> None:
    asked = outside.Silo(_three(tmp_path) / "silo-01").inbox
    asked.journal = Journal(tmp_path / "journal")
    tensors = asked.initial()
    for number in range(1, 6):
        mark = asked._mark(tensors, b"%d" % number)
        assert mark.number == number
        tensors = {**tensors, "mark": mark.values(asked.unit, asked.dtype)}
    assert [number for number, _, _ in asked.journal.facts("mark")] == [4, 5]
    asked.journal.close()


def _three(tmp_path: Path) -> Path:
    outside.create(tmp_path / "three", 3, 1, 1, policy=POLICY)
    return tmp_path / "three"


def examples() -> dict[str, str]:
    """The page's programs, by the name that each has in its first line."""
    found = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return {name: text for text, name in found}


def test_the_histogram_of_the_page_is_that_of_all_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(examples()) == ["histogram.py"]
    (tmp_path / "histogram.py").write_text(examples()["histogram.py"])
    monkeypatch.chdir(tmp_path)
    runpy.run_path("histogram.py")
    printed = capsys.readouterr().out.splitlines()
    ages = np.concatenate([np.random.default_rng(silo).normal(50, 15, 1000) for silo in range(3)])
    counts = np.histogram(ages, range(0, 101, 10))[0]
    assert printed == [f"{low:2d} to {low + 9}: {count}" for low, count in zip(range(0, 100, 10), counts, strict=True)]
