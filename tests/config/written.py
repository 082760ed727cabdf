"""What the tests of configuration share: a policy with a change for every key, and ways to spoil a file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.numbers.plan import Encoding, Granularity, Level, Quantiser
from silomix.runtime.core.policy import Policy, Server, TrapPlacement, UpdateKind

SILOS, SHUFFLERS = 4, 2
NODES = ("aggregator", "shuffler-1", "shuffler-2", "silo-01", "silo-02", "silo-03", "silo-04")
POLICY = Policy(task_options={"seed": 7, "rate": 0.5, "note": 'a "quoted" \\ ü\x7f\n', "shuffle": True})


CHANGES: Mapping[str, Any] = {
    "task": "elsewhere:task",
    "task_options": {"seed": 8},
    "rounds": 11,
    "precision": 5,
    "quantiser": Quantiser.INT8,
    "encoding": Encoding.UNARY,
    "level": Level.TRUSTED,
    "update": UpdateKind.WEIGHTS,
    "bound": 0.25,
    "weight_levels": 2,
    "headroom": 1,
    "granularity": Granularity.LAYER,
    "minimum_cohort": 4,
    "cohort_step": 2,
    "quorum": 0.75,
    "early_close": 0.5,
    "minimum_hops": 2,
    "deadline_s": 601,
    "release_s": 121,
    "attempts": 4,
    "group_size": 3,
    "subsample": 0.75,
    "chunk_parameters": 16,
    "server": Server.ADAM,
    "server_lr": 0.5,
    "server_momentum": 0.5,
    "server_beta2": 0.5,
    "server_epsilon": 0.5,
    "clip_norm": 2.0,
    "noise_multiplier": 0.5,
    "schema": "0123456789abcdef" * 4,
    "parameters": 1001,
    "task_package": "somebodys-task==1.2.3",
    "task_digest": "fedcba9876543210" * 4,
    "initial_model": "0011223344556677" * 4,
    "traps": 5,
    "trap_placement": TrapPlacement.LAST_LAYER,
}
NEEDS: Mapping[str, Any] = {
    "noise_multiplier": {"clip_norm": 1.0},
    "granularity": {"level": Level.TRUSTED},
    "traps": {"level": Level.MALICIOUS},
    "trap_placement": {"level": Level.MALICIOUS, "traps": 1},
}
"""What a changed field takes beside it to be accepted."""


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def public(number: int) -> bytes:
    """One of many public keys, the same each time."""
    return Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big")).public_key().public_bytes_raw()


def line_of(file: Path, start: str) -> str:
    return next(line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith(start))


def error_of(load: Callable[[Path], object], path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return caught.value
