"""Frozen integers: one name for everything that shaped them, and nothing of a file is used that does not fit."""

import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.config.written import CHANGES, NEEDS
from tests.core.protocol.federations import OTHER_MODEL, SCHEMA, federation, manifest

from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.plan import Granularity
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.policy import KEYS, UpdateKind
from silomix.runtime.store.files import PRIVATE
from silomix.runtime.store.frozen import Frozen, FrozenError, frozen_name

NAME, OTHER = "3-" + "ab" * 32, "4-" + "cd" * 32
F = federation(5)
M = manifest(F)


def body(size: int = 5000, seed: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(Random(seed).randbytes(size), np.uint8)


# --- the name ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"model": OTHER_MODEL},
        {"schema": Schema((TensorSpec("c", (5,)), SCHEMA.tensors[1]))},
        {"plan": federation(6).plan},
        {"bounds": (1.0, 2.0)},
        {"bounds": (1.0, 1.0, 1.0)},
        {"chunk_parameters": 8},
        {"update": UpdateKind.WEIGHTS},
        {"granularity": Granularity.MODEL},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_a_manifest_says_is_in_the_name(changes: dict[str, Any]) -> None:
    assert frozen_name(replace(M, **changes), F) != frozen_name(M, F)


def test_attempts_and_rounds_on_one_model_share_a_name() -> None:
    """R3: a silo sends the same integers for the same model, whenever it is asked for them."""
    assert frozen_name(manifest(F, attempt=2), F) == frozen_name(replace(M, round=2), F) == frozen_name(M, F)


@pytest.mark.parametrize("key", sorted(KEYS))
def test_the_policy_is_in_the_name_as_far_as_it_shapes_integers(key: str) -> None:
    """Whatever else the owners change, the integers of a model stay what they were."""
    needed = NEEDS.get(key, {})
    before, after = federation(5, **needed), replace(F, policy=replace(F.policy, **{**needed, key: CHANGES[key]}))
    apart = frozen_name(M, before) == frozen_name(M, after)
    assert apart is not KEYS[key].shapes


def test_the_share_of_the_noise_is_in_the_name() -> None:
    """Of more silos each adds less: another minimum is another promise, if there is noise."""
    noise = {"clip_norm": 1.0, "noise_multiplier": 1.0, "precision": 2}
    names = [frozen_name(M, federation(5, minimum_cohort=n, **noise)) for n in (3, 4)]
    assert names[0] != names[1]
    assert len({frozen_name(M, federation(5, minimum_cohort=n)) for n in (3, 4)}) == 1


def test_somebody_has_thought_of_every_key() -> None:
    """A new key shapes integers unless it is marked as apart; whoever adds one decides, and says so here."""
    assert {name for name, key in KEYS.items() if key.shapes} == {
        *("task", "task_options", "precision", "quantiser", "encoding", "level", "update", "bound", "weight_levels"),
        *("headroom", "granularity", "chunk_parameters", "clip_norm", "noise_multiplier"),
    }


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 5000, 1 << 20])
def test_what_was_written_is_read(tmp_path: Path, size: int) -> None:
    frozen = Frozen(tmp_path / "frozen")
    assert frozen.read(NAME) is None
    frozen.write(NAME, body(size))
    found = frozen.read(NAME)
    assert found is not None
    assert np.array_equal(found, body(size))
    assert frozen.path(NAME).stat().st_mode & 0o777 == PRIVATE


def test_it_holds_the_newest_alone(tmp_path: Path) -> None:
    frozen = Frozen(tmp_path)
    frozen.write(NAME, body())
    (tmp_path / ".torn.undone").write_bytes(b"of a process that was killed")
    (tmp_path / "own").mkdir()
    frozen.write(OTHER, body(seed=2))
    assert frozen.read(NAME) is None
    assert sorted(p.name for p in tmp_path.iterdir()) == [frozen.path(OTHER).name, "own"]


def refuses(frozen: Frozen, name: str = NAME) -> None:
    """It says which file, that it is damaged, what happens and what to do, and leaves it as it is."""
    path = frozen.path(name)
    before = path.read_bytes()
    with pytest.raises(FrozenError) as caught:
        frozen.read(name)
    assert isinstance(caught.value, UserError)
    assert str(caught.value).startswith(f"{path} is damaged: this silo sits the round out")
    assert "See to the disk" in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("seed", range(20))
def test_40_flipped_bytes_anywhere_are_found(tmp_path: Path, seed: int) -> None:
    frozen, draw = Frozen(tmp_path), Random(seed)
    frozen.write(NAME, body())
    data = bytearray(frozen.path(NAME).read_bytes())
    for at in draw.sample(range(len(data)), 40):
        data[at] ^= draw.randrange(1, 256)
    frozen.path(NAME).write_bytes(data)
    refuses(frozen)


@pytest.mark.parametrize("at", [0, 2500, 4999, 5000, 5031])
def test_one_flipped_bit_is_found(tmp_path: Path, at: int) -> None:
    frozen = Frozen(tmp_path)
    frozen.write(NAME, body())
    data = bytearray(frozen.path(NAME).read_bytes())
    data[at] ^= 1
    frozen.path(NAME).write_bytes(data)
    refuses(frozen)


@pytest.mark.parametrize("left", [0, 1, 31, 32, 33, 4999, 5000, 5031])
def test_a_truncated_file_is_found(tmp_path: Path, left: int) -> None:
    frozen = Frozen(tmp_path)
    frozen.write(NAME, body())
    os.truncate(frozen.path(NAME), left)
    refuses(frozen)


def test_a_file_that_grew_is_found(tmp_path: Path) -> None:
    frozen = Frozen(tmp_path)
    frozen.write(NAME, body())
    with frozen.path(NAME).open("ab") as file:
        file.write(b"\0")
    refuses(frozen)


def test_a_file_of_another_round_is_found_under_this_ones_name(tmp_path: Path) -> None:
    frozen = Frozen(tmp_path)
    frozen.write(OTHER, body())
    frozen.path(OTHER).rename(frozen.path(NAME))
    refuses(frozen)


def test_a_file_without_a_checksum_is_no_file_of_ours(tmp_path: Path) -> None:
    frozen = Frozen(tmp_path)
    frozen.path(NAME).write_bytes(body().tobytes())
    refuses(frozen)


def test_what_cannot_be_read_is_not_what_is_not_there(tmp_path: Path) -> None:
    """To make integers anew for the want of a file that is only out of reach would be as bad."""
    frozen = Frozen(tmp_path)
    frozen.path(NAME).mkdir()
    with pytest.raises(OSError, match="directory"):
        frozen.read(NAME)
