"""The capacity formula: its bytes are what a real federation moves, and the manual's example is what it gives."""

import json
from pathlib import Path

import pytest
from tests.nodes.federations import make

from silomix.runtime.cli import main
from silomix.runtime.config.kinds import Role
from silomix.runtime.local import InProcess
from silomix.runtime.nodes.node import Node
from silomix.runtime.render.capacity import COSTS, Load, Place, load_of, needs, place_of

LOAD = Load(parameters=1_000_000, silos=10, hops=3, bits=18, rounds=100)


def moved(node: Node, direction: str) -> float:
    """All bytes that a node has counted one way."""
    found = (
        node.metrics.registry.get_sample_value("silomix_bytes_total", {"direction": direction, "peer_role": str(role)})
        for role in Role
    )
    return sum(value or 0.0 for value in found)


async def test_the_bytes_are_those_of_a_real_round(tmp_path: Path) -> None:
    """Within 2 % and some kilobytes of calls that carry no vector: announcements, keys, receipts."""
    parameters = 200_000
    options = {"parameters": parameters}
    federation = make(tmp_path / "f", 3, 2, rounds=1, task_options=options, chunk_parameters=65_536)

    async with InProcess(tmp_path / "f") as running:
        await running.finished()
        found = {name: (moved(node, "received"), moved(node, "sent")) for name, node in running.nodes.items()}
    load = load_of(federation, parameters)
    roles = {
        "aggregator": Role.AGGREGATOR,
        "shuffler-1": Role.SHUFFLER,
        "shuffler-2": Role.SHUFFLER,
        "silo-01": Role.SILO,
    }
    for name, role in roles.items():
        need = needs(place_of(name, role, federation), load)
        # Before the first round every silo downloads the initial model.
        once = {Role.SILO: (load.model_bytes, 0), Role.AGGREGATOR: (0, 3 * load.model_bytes)}.get(role, (0, 0))
        for what, counted, expected in (
            ("received", found[name][0], need.received_bytes + once[0]),
            ("sent", found[name][1], need.sent_bytes + once[1]),
        ):
            assert counted == pytest.approx(expected, rel=0.02, abs=8192), f"{name} {what}"


def test_more_of_anything_needs_no_less() -> None:
    for place in Place:
        base = needs(place, LOAD)
        for more in (
            Load(2_000_000, 10, 3, 18, 100),
            Load(1_000_000, 20, 3, 18, 100),
            Load(1_000_000, 10, 4, 18, 100),
            Load(1_000_000, 10, 3, 21, 100),
            Load(1_000_000, 10, 3, 18, 200),
            Load(1_000_000, 10, 3, 18, 100, sums=3),
        ):
            found = needs(place, more)
            for name in ("received_bytes", "sent_bytes", "cpu_s", "memory_bytes", "disk_bytes"):
                assert getattr(found, name) >= getattr(base, name), (place, more, name)
    assert COSTS.keys() == set(Place)


def test_only_hop_1_carries_every_silo() -> None:
    first, later = needs(Place.FIRST_HOP, LOAD), needs(Place.LATER_HOP, LOAD)
    assert first.received_bytes > 9 * later.received_bytes
    assert first.sent_bytes == later.sent_bytes == later.received_bytes


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "--silos", "10", "--parameters", "1000000", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["load"] == {
        "parameters": 1_000_000,
        "silos": 10,
        "hops": 3,
        "bits": 18,
        "rounds": 100,
        "chunk_parameters": 131_072,
        "sums": 1,
    }
    assert said["places"]["silo"]["sent_bytes"] == needs(Place.SILO, LOAD).sent_bytes
    assert main(["capacity"]) == 0
    assert "hop 1" in capsys.readouterr().out
    assert main(["capacity", "--precision", "400"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    for wrong in (["--parameters", "0"], ["--shufflers", "-1"], ["--rounds", "1e3"], ["--silos", 16 * "9"]):
        with pytest.raises(SystemExit):
            main(["capacity", *wrong])
