"""Attacks on what nodes really recorded: captures, kept keys, verdict and replay."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tools import first

from silomix.attacks.audit.replay import replay
from silomix.attacks.audit.watch import Compared, verdict, watched
from silomix.attacks.collusion import KEPT, opened, quiet, run_colluding
from silomix.attacks.errors import AttackError
from silomix.attacks.views.captured import Scene, scene_of
from silomix.runtime.cli import main
from silomix.runtime.config.kinds import Role
from silomix.runtime.core.numbers.plan import Encoding, Granularity, Level
from silomix.runtime.core.policy import Policy
from silomix.runtime.local import create

SILOS = 5
OPTIONS: dict[str, str | int | float] = {
    "silos": SILOS,
    "seed": 2,
    "model": "linear",
    "epochs": 5,
    "lr": 0.05,
    "alpha": 0.2,
    "shadow": 0.05,
}


def federation(home: Path, **changes: Any) -> Path:
    """Run a federation of five silos and two hops, whose hops and aggregator keep what they should forget."""
    policy = Policy(task_options=OPTIONS, **{"rounds": 2, "deadline_s": 60, **changes})
    seen = {Role.AGGREGATOR: {"capture": "capture"}, Role.SHUFFLER: {"capture": "capture"}}
    create(home, SILOS, 2, policy=policy, settings={**seen, Role.SILO: {"keep_updates": True}})
    with quiet():
        run_colluding(home)
    return home


@pytest.fixture(scope="module")
def semi_honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federation(tmp_path_factory.mktemp("attacked") / "fed")


@pytest.fixture(scope="module")
def unprotected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federation(
        tmp_path_factory.mktemp("attacked") / "fed", level=Level.TRUSTED, granularity=Granularity.NONE, rounds=1
    )


def test_the_aggregator_has_the_mean_and_every_hop_together_has_every_update(semi_honest: Path) -> None:
    """The positive control on real traffic: hop 1's capture and all keys give the very updates that silos kept."""
    scene = Scene(semi_honest)
    kept = dict(scene.kept())
    held = dict(scene.captured())
    together = dict(opened(scene))
    assert sorted(kept) == sorted(held) == sorted(together) == [1, 2]
    for number, true in kept.items():
        assert held[number].rows is None
        summed = held[number].mean
        assert summed is not None
        assert true.rows is not None
        mean = true.whole(true.rows.mean(axis=0))
        assert all(np.abs(summed[n] - mean[n]).max() < 1e-4 for n in mean)
        found = together[number].rows
        assert found is not None
        assert np.abs(found - true.rows).max() <= 0.5 / 9999 + 1e-6


@pytest.mark.parametrize("hops", [("shuffler-1",), ("shuffler-2",), ()])
def test_one_hop_that_keeps_quiet_is_enough(semi_honest: Path, hops: tuple[str, ...]) -> None:
    for _, view in opened(Scene(semi_honest), hops):
        assert view.rows is None  # what opens does not add up to the sum: it is noise


def test_the_verdict_is_protected_with_masks_and_not_without(semi_honest: Path, unprotected: Path) -> None:
    good, bad = verdict(semi_honest), verdict(unprotected)
    assert isinstance(good, Compared)
    assert good.protected
    assert good.captured.outcome.last.holds(1 / SILOS)
    assert good.unprotected.outcome.last.beats(1 / SILOS)
    assert "verdict: protected" in good.text()
    assert not bad.protected
    assert bad.captured.outcome.last == bad.unprotected.outcome.last
    assert "NOT PROTECTED" in bad.text()
    assert json.loads(json.dumps(good.json()))["protected"]


def test_without_a_capture_the_checkpoints_are_judged(semi_honest: Path, tmp_path: Path) -> None:
    home = tmp_path / "fed"
    shutil.copytree(semi_honest, home)
    shutil.rmtree(home / "aggregator" / "capture")
    assert verdict(home).captured.outcome.last.holds(1 / SILOS)
    for update in home.glob("silo-*/state/update-*"):
        update.unlink()
    with pytest.raises(AttackError, match="keep_updates"):
        verdict(home)


def test_watching_has_both_controls(semi_honest: Path) -> None:
    found = watched(semi_honest)
    assert found["all_collude"]["last"]["low"] > 1 / SILOS
    assert found["all_but_one"]["last"]["low"] <= 1 / SILOS <= found["all_but_one"]["last"]["high"]
    assert 14 < found["bits_per_parameter"] < 40  # a tiny model: the framing weighs


@pytest.mark.parametrize(
    ("granularity", "held"),
    first(
        1,
        [
            (Granularity.SUM, "one sum"),
            (Granularity.PARAMETER, "shuffled by parameter"),
            (Granularity.UNARY, "un-reduced"),
        ],
    ),
)
def test_replay_says_what_was_held(tmp_path: Path, granularity: Granularity, held: str) -> None:
    encoding = Encoding.UNARY if granularity is Granularity.UNARY else Encoding.COUNTS
    home = federation(
        tmp_path / "fed", level=Level.TRUSTED, granularity=granularity, encoding=encoding, rounds=1, precision=2
    )
    found = replay(home / "aggregator" / "capture", Scene(home))
    assert held in found["held"]
    assert found["attacks"]["source inference"]["targets"] > 50
    hop = replay(home / "shuffler-1" / "capture", Scene(home)) if granularity is Granularity.SUM else None
    if hop is not None:  # level trusted: hop 1 reads everything
        assert hop["held"] == "every silo's update"
        assert hop["beats_random"]
        assert not found["beats_random"]


def test_replay_from_the_command_line(unprotected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "replay", str(unprotected / "aggregator" / "capture"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["held"] == "every silo's update"
    assert found["beats_random"] == ["source inference"]
    assert main(["attack", "replay", str(unprotected / "aggregator" / "capture")]) == 0
    assert "beaten by source inference" in capsys.readouterr().out


def test_captures_that_cannot_be_attacked_say_why(
    semi_honest: Path, unprotected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AttackError, match="another federation"):
        replay(unprotected / "aggregator" / "capture", Scene(semi_honest))
    with pytest.raises(AttackError, match="to whom silos submit"):
        replay(semi_honest / "shuffler-2" / "capture", Scene(semi_honest))
    with pytest.raises(AttackError, match=r"federation\.toml"):
        scene_of(tmp_path)
    with pytest.raises(AttackError, match="--capture"):
        list(Scene(semi_honest).captured(tmp_path / "nothing"))
    (tmp_path / "broken-000001.silocap.gz").write_bytes(b"not a capture")
    assert main(["attack", "replay", str(tmp_path), "--federation", str(semi_honest)]) != 0
    assert "broken" in capsys.readouterr().err


def test_a_capture_that_was_cut_off_gives_the_rounds_that_are_whole(semi_honest: Path, tmp_path: Path) -> None:
    (source,) = (semi_honest / "aggregator" / "capture").glob("*.gz")
    data = source.read_bytes()
    place = tmp_path / "cut"
    place.mkdir()
    (place / source.name).write_bytes(data[: int(len(data) * 0.75)])
    rounds = [number for number, _ in Scene(semi_honest).captured(place)]
    assert rounds in ([1], [1, 2])


def test_kept_keys_are_where_the_control_looks_for_them(semi_honest: Path) -> None:
    lines = (semi_honest / "shuffler-2" / "state" / KEPT).read_text().splitlines()
    assert len(lines) == 2 * SILOS
    assert {json.loads(line)["round"] for line in lines} == {1, 2}
