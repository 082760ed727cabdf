"""Sums by group: one for each leaves the chain, and who is in which the aggregator is not told. Protocol, section 5."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nodes.federations import PARAMETERS, make, run, shuffler, until
from tests.nodes.toy import Toy
from tests.tools import first

from silomix.runtime.capture.evidence import evidence
from silomix.runtime.capture.format import Direction
from silomix.runtime.capture.reader import read
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Granularity, Level
from silomix.runtime.core.policy import Server
from silomix.runtime.local import InProcess

CAPTURE = {Role.AGGREGATOR: {"capture": "capture"}, Role.SHUFFLER: {"capture": "capture"}}


def finish(directory: Path, without: tuple[str, ...] = ()) -> InProcess:
    async def go() -> InProcess:
        async with InProcess(directory, without=without) as running:
            await running.finished()
        return running

    return run(go())


def groups_of(directory: Path, round_: int = 1) -> list[list[int]]:
    """Who was in which group, as hop 2 was told."""
    names, numbers = [], []
    for record in read(directory / "shuffler-2" / "capture"):
        message: Any = record.message
        if record.direction is Direction.RECEIVED and record.kind == "RelayFrame.cohort":
            names.append([p.silo for p in message.cohort.participants])
        if record.direction is Direction.RECEIVED and record.kind == "RelayFrame.grouping":
            numbers.append(list(message.grouping.groups))
    silos = [int(name.removeprefix("silo-")) - 1 for name in names[round_ - 1]]
    found: dict[int, list[int]] = {}
    for silo, number in zip(silos, numbers[round_ - 1], strict=True):
        found.setdefault(number, []).append(silo)
    return [found[number] for number in sorted(found)]


def mean_of(silos: list[int], round_: int = 1) -> np.ndarray:
    updates = [np.concatenate(list(Toy(i, PARAMETERS).update(round_).values())) for i in silos]
    mean: np.ndarray = np.mean(np.stack(updates).astype(np.float64), axis=0)
    return mean


def flat(tensors: dict[str, Any]) -> np.ndarray:
    return np.concatenate([tensors["a"], tensors["b"]])


@pytest.mark.parametrize("level", [Level.SEMI_HONEST, Level.TRUSTED])
@pytest.mark.parametrize("hops", first(1, [2, 3]))
def test_the_model_is_the_median_of_the_groups(tmp_path: Path, level: Level, hops: int) -> None:
    federation = make(tmp_path / "f", 10, hops, level=level, group_size=3, server=Server.MEDIAN, settings=CAPTURE)
    done = finish(tmp_path / "f")
    assert [r.cohort for r in done.aggregator.history] == [10]
    groups = groups_of(tmp_path / "f")
    assert sorted(map(len, groups)) == [3, 3, 4]
    assert sorted(silo for group in groups for silo in group) == list(range(10))
    expected = np.median([mean_of(group) for group in groups], axis=0)
    assert np.abs(flat(done.aggregator.tensors) - expected).max() <= 0.51 / federation.plan.v
    assert np.abs(expected - mean_of(list(range(10)))).max() > 1e-3  # the median is not the mean: the test can tell


def test_groups_with_the_average_give_the_mean_of_all(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 7, 2, group_size=3, rounds=2)
    done = finish(tmp_path / "f")
    expected = mean_of(list(range(7)), 1) + mean_of(list(range(7)), 2)
    assert np.abs(flat(done.aggregator.tensors) - expected).max() <= 1.1 / federation.plan.v


def test_weights_count_within_a_group(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 6, 2, group_size=3, weight_levels=100)
    done = finish(tmp_path / "f")
    weights = [10 * (i + 1) for i in range(6)]  # the toy's examples
    updates = [mean_of([i]) for i in range(6)]
    expected = np.average(updates, axis=0, weights=weights)
    assert np.abs(flat(done.aggregator.tensors) - expected).max() <= 1 / federation.plan.v


def test_the_aggregator_is_not_told_who_is_in_which_group(tmp_path: Path) -> None:
    """It gets the cohort's names, and for each group seeds that nobody's name is on; and no header at all."""
    make(tmp_path / "f", 9, 2, group_size=3, server=Server.MEDIAN, settings=CAPTURE)
    finish(tmp_path / "f")
    received = [r for r in read(tmp_path / "f" / "aggregator" / "capture") if r.direction is Direction.RECEIVED]
    kinds = Counter(r.kind for r in received if r.peer == "shuffler-2")
    assert kinds["RelayFrame.groups"] == 1
    assert not kinds["RelayFrame.header"]
    assert not kinds["RelayFrame.grouping"]
    assert kinds["RelayFrame.chunk"] == 4 * 3
    groups: Any = next(r.message for r in received if r.kind == "RelayFrame.groups")
    told = [{seed.commitment for seed in group.seeds} for group in groups.groups.groups]
    assert [g.size for g in groups.groups.groups] == [3, 3, 3]
    real: dict[bytes, str] = {}
    for record in read(tmp_path / "f" / "shuffler-1" / "capture"):
        message: Any = record.message
        if record.kind == "Frame.header":
            real[message.header.seeds[-1].commitment] = message.header.silo
    assert set().union(*told) == set(real)
    assert [sorted(int(real[c].removeprefix("silo-")) - 1 for c in group) for group in told] == groups_of(
        tmp_path / "f"
    )
    everything = b"".join(r.data for r in received)
    assert not [h for h in real if everything.count(h) != 1]  # each once, in its group, and nowhere beside a name


def test_groups_change_from_round_to_round(tmp_path: Path) -> None:
    make(tmp_path / "f", 9, 2, group_size=3, rounds=3, settings=CAPTURE)
    finish(tmp_path / "f")
    assert len({str(groups_of(tmp_path / "f", t)) for t in (1, 2, 3)}) > 1


def test_a_model_has_the_same_groups_when_the_aggregator_dies_while_pads_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hop has shown its pad and is bound to its groups; hop 1, which deals them, has not, and remembers nothing."""
    make(tmp_path / "f", 9, 2, group_size=3, rounds=1, deadline_s=5, release_s=2, attempts=10)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            dealer, other = (shuffler(running, name) for name in ("shuffler-1", "shuffler-2"))
            reveal, died = dealer.core._reveal, False

            def busy(event: Any) -> Any:
                if not died:
                    raise PeerFault(Reason.BUSY, "not yet")
                return reveal(event)

            monkeypatch.setattr(dealer.core, "_reveal", busy)
            await until(lambda: bool(other.core.released), "shuffler-2 has shown its pad")
            await running.stop("aggregator")
            died = True
            running.start("aggregator")
            (done,) = await running.finished()
            assert done.cohort == 9
            facts = [fact for hop in (dealer, other) for each in hop.core.released.values() for fact in each]
            assert len(facts) >= 2
            assert len({(fact.model, fact.silos, fact.groups) for fact in facts}) == 1

    run(go(), 40)


def test_what_a_capture_shows_of_groups_at_level_trusted(tmp_path: Path) -> None:
    make(tmp_path / "f", 6, 2, level=Level.TRUSTED, group_size=3, settings=CAPTURE)
    finish(tmp_path / "f")
    (e,) = evidence(tmp_path / "f" / "aggregator" / "capture")
    assert e.sums is not None
    moduli = np.array(e.plan.moduli)[:, None]
    for sums, group in zip(e.sums, groups_of(tmp_path / "f"), strict=True):
        updates = np.stack([np.concatenate(list(Toy(i, PARAMETERS).update(1).values())) for i in group])
        total = np.rint(updates.astype(np.float64) * e.plan.v).astype(np.int64).sum(0)
        assert np.array_equal(sums, total[None, :] % moduli)


def test_a_cohort_that_is_smaller_than_a_group_is_not_released(tmp_path: Path) -> None:
    make(tmp_path / "f", 5, 1, group_size=4, quorum=0.6, deadline_s=1, release_s=1, attempts=1)
    done = finish(tmp_path / "f", without=("silo-01", "silo-02"))
    assert [r.cohort for r in done.aggregator.history] == [0]  # abandoned
    assert not np.any(flat(done.aggregator.tensors))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"group_size": 2}, "group_size"),
        ({"group_size": 6}, "group_size"),
        ({"server": Server.MEDIAN}, "server"),
        ({"group_size": 3, "granularity": Granularity.MODEL, "level": Level.TRUSTED}, "group_size"),
    ],
)
def test_groups_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        make(tmp_path / "f", 5, 1, **changes)
