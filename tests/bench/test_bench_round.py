"""`silomix bench round`: real processes, and figures that can be right."""

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.tools import program, root

from silomix.runtime.bench.network import own_network
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.plan import chunk_for, plan

KEYS = {
    "protected_vs_unprotected",
    "third_hop_overhead",
    "bits_per_parameter",
    "peak_mib",
    "phases",
    "unprotected_vs_floor",
}


def _bench(*more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "silomix.runtime.cli", "bench", "round", "--repeats", "1", "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    assert figures.keys() >= KEYS
    return figures


@pytest.mark.parametrize("hops", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_round_is_raced_and_its_bytes_are_counted(hops: int) -> None:
    figures = _bench("--silos", "4", "--parameters", "100000", "--hops", str(hops), "--silos-per-process", "4")
    assert set(figures["seconds"]) == {"floor", "unprotected", "protected", *(["one_hop_less"] if hops > 1 else [])}
    bits = plan(4, 4).packed_bits
    assert bits <= figures["bits_per_parameter"] <= bits * 1.01
    assert set(figures["peak_mib"]) == {"plain", "silo", "aggregator", *(f"hop {i}" for i in range(1, hops + 1))}
    assert all(value > 0 for value in figures["phases"].values())


@pytest.mark.full
def test_on_a_slow_network_it_is_the_bytes_that_count() -> None:
    """At 20 Mbit/s the network takes longer than the computing, and fewer bytes are faster."""
    root()
    program("tc")
    figures = _bench(
        "--silos", "4", "--parameters", "250000", "--hops", "1", "--silos-per-process", "4", "--mbit", "20"
    )
    for arm, bits in {"unprotected": 32, "protected": figures["bits_per_parameter"]}.items():
        assert figures["seconds"][arm] > 0.9 * 4 * bits * 250_000 / 20e6, arm
    assert figures["protected_vs_unprotected"] < 1


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        def unshare(self, _: int) -> int:
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: Refused())
    with pytest.raises(UserError, match="needs root, Linux and iproute2"):
        own_network(100)


@pytest.mark.parametrize(
    ("silos", "expected"), [(3, 262_144), (10, 262_144), (11, 131_072), (20, 131_072), (21, 65_536)]
)
def test_what_hop_1_holds_of_all_silos_does_not_grow_with_them(silos: int, expected: int) -> None:
    assert chunk_for(silos) == expected
