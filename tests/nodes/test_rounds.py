"""Rounds of whole federations: what comes out is the mean of exactly the cohort, and nobody sees more than it should.

docs/protocol.md, sections 3 to 5. Each silo's update is another, so a silo that is missing or counted twice shows.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.core.numbers.adding import add_up
from tests.nodes.federations import PARAMETERS, assert_model, make, model_of, run, shuffler, until
from tests.nodes.toy import Toy
from tests.tools import first

from silomix.runtime.capture.format import Direction, Record
from silomix.runtime.capture.reader import read
from silomix.runtime.config.kinds import Role
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.packing import Residues
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.policy import UpdateKind
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.local import InProcess
from silomix.v1 import body_pb2, services_pb2


async def _finish(directory: Path, without: tuple[str, ...] = ()) -> InProcess:
    async with InProcess(directory, without=without) as federation:
        await federation.finished()
    return federation


# --- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "hops", "insecure"),
    first(
        4,
        [
            (Level.SEMI_HONEST, 3, False),
            (Level.SEMI_HONEST, 1, False),
            (Level.TRUSTED, 2, False),
            (Level.TRUSTED, 1, True),
            (Level.SEMI_HONEST, 2, False),
            (Level.SEMI_HONEST, 2, True),
            (Level.TRUSTED, 3, False),
        ],
    ),
)
def test_the_model_is_the_mean_of_all_silos(tmp_path: Path, level: Level, hops: int, insecure: bool) -> None:
    federation = make(tmp_path / "f", 4, hops, insecure=insecure, level=level, rounds=2)
    done = run(_finish(tmp_path / "f"))
    assert [(r.round, r.attempts, r.cohort) for r in done.aggregator.history] == [(1, 1, 4), (2, 1, 4)]
    assert_model(done.aggregator.tensors, [range(4)] * 2, federation.policy)
    assert_model(model_of(tmp_path / "f"), [range(4)] * 2, federation.policy)


@pytest.mark.parametrize("level", [Level.SEMI_HONEST, Level.TRUSTED])
def test_weights_make_a_weighted_mean(tmp_path: Path, level: Level) -> None:
    """Section 3, weights: the toy silos have 10, 20, 30, 40 examples, and the fourth is cut to the highest level."""
    federation = make(tmp_path / "f", 4, 2, level=level, weight_levels=32, rounds=2)
    done = run(_finish(tmp_path / "f"))
    assert_model(done.aggregator.tensors, [range(4)] * 2, federation.policy, weights=[10, 20, 30, 32])


def test_silos_can_send_their_weights_instead_of_the_change(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 4, 2, update=UpdateKind.WEIGHTS, rounds=2)
    done = run(_finish(tmp_path / "f"))
    assert_model(done.aggregator.tensors, [range(4)] * 2, federation.policy)


def test_only_the_invited_take_part(tmp_path: Path) -> None:
    """Subsampling: the model is the mean of those that the manifest invites, and they change from round to round."""
    settings = {Role.AGGREGATOR: {"capture": "capture"}}
    federation = make(tmp_path / "f", 6, 1, subsample=0.67, rounds=4, settings=settings)
    done = run(_finish(tmp_path / "f"))
    told: dict[int, list[int]] = {}
    for record in read(tmp_path / "f" / "aggregator" / "capture"):
        if isinstance(record.message, services_pb2.Announcement) and record.message.HasField("manifest"):
            manifest = record.message.manifest
            told[manifest.round] = [int(name.removeprefix("silo-")) - 1 for name in manifest.invited]
    assert all(len(silos) == 4 for silos in told.values())
    assert len({tuple(silos) for silos in told.values()}) > 1
    assert_model(done.aggregator.tensors, [told[t] for t in range(1, 5)], federation.policy)


def test_a_quorum_closes_the_cohort_before_the_deadline(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 5, 1, quorum=0.6, deadline_s=600)
    done = run(_finish(tmp_path / "f", without=("silo-02", "silo-04")))
    assert [r.cohort for r in done.aggregator.history] == [3]
    assert_model(done.aggregator.tensors, [[0, 2, 4]], federation.policy)


def test_no_hop_keeps_a_key_when_all_rounds_are_done(tmp_path: Path) -> None:
    """Who breaks into a hop afterwards finds nothing that opens a recorded body."""
    make(tmp_path / "f", 4, 3, rounds=2)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            await running.finished()
            for name in ("shuffler-1", "shuffler-2", "shuffler-3"):
                hop = shuffler(running, name)
                await until(lambda hop=hop: not hop.core.keys, f"{name} has deleted its keys")  # type: ignore[misc]
                assert list(hop.journal.facts("key")) == []

    run(go())


# --- what a node sees -------------------------------------------------------------------------------------------------


def _capture(directory: Path, node: str) -> list[Record]:
    reading = read(directory / node / "capture")
    records = list(reading)
    assert not reading.warnings
    return records


def _plain(federation: Federation, silo: int, round_: int = 1) -> Residues:
    """A silo's residues before any mask."""
    toy, policy = Toy(silo, PARAMETERS), federation.policy
    codec = Codec(toy.schema(), (policy.bound,) * 2, federation.plan, policy.chunk_parameters)
    chunks = codec.encode(toy.update(round_))
    return np.concatenate([codec.layout.unpack(i, planes).copy() for i, planes in enumerate(chunks)], axis=1)


def _unpacked(federation: Federation, chunks: list[body_pb2.Chunk]) -> Residues:
    layout = Layout(federation.plan, PARAMETERS, federation.policy.chunk_parameters)
    return np.concatenate([layout.unpack(c.index, list(c.planes)).copy() for c in chunks], axis=1)


def _looks_uniform(row: Residues, modulus: int) -> bool:
    """Chi-square over 16 bins: 80 is beyond what a uniform draw gives once in a hundred million."""
    bins = 16
    counts, edges = np.histogram(row, bins=np.linspace(0, modulus, bins + 1))
    expected = len(row) * np.diff(np.ceil(edges)) / modulus
    return float(((counts - expected) ** 2 / expected).sum()) < 80


def test_the_aggregator_sees_one_vector_a_round_and_of_silos_their_presence(tmp_path: Path) -> None:
    """Sections 2 and 4: no body of a silo reaches the aggregator, only headers and one masked sum."""
    federation = make(tmp_path / "f", 4, 2, rounds=2, settings={Role.AGGREGATOR: {"capture": "capture"}})
    done = run(_finish(tmp_path / "f"))
    assert_model(done.aggregator.tensors, [range(4)] * 2, federation.policy)
    received = [r for r in _capture(tmp_path / "f", "aggregator") if r.direction is Direction.RECEIVED]
    kinds = {peer: Counter(r.kind for r in received if r.peer == peer) for peer in {r.peer for r in received}}
    assert set(kinds) == {"shuffler-1", "shuffler-2", *federation.silo_names}
    for silo in federation.silo_names:
        asked = {"WatchRequest": 1, "GetModelRequest": 1, "GetSumRequest": 2}
        assert kinds[silo] - Counter(ConfirmRequest=2) == asked  # the last word may come after the end
    answers = {"PrepareResponse": 2, "OpenResponse": 2, "AgreeResponse": 2, "RevealResponse": 2, "StoreResponse": 3}
    answers["ShowResponse"] = 1
    assert kinds["shuffler-1"] == answers
    assert kinds["shuffler-2"] == answers | {
        "RelayFrame.open": 2,
        "RelayFrame.header": 8,
        "RelayFrame.cohort": 2,
        "RelayFrame.chunk": 8,  # four to a vector, one vector to a round
        "RelayFrame.trailer": 2,
    }
    streams = {r.stream for r in received if r.kind == "RelayFrame.chunk"}
    assert len(streams) == 2
    sums = [r.message for r in received if r.kind == "RelayFrame.chunk" and r.stream == min(streams)]
    vector = _unpacked(federation, [m.chunk for m in sums if isinstance(m, services_pb2.RelayFrame)])
    total = residue.zeros(federation.plan, PARAMETERS)
    for index in range(4):
        add_up(total, _plain(federation, index), federation.plan)
        assert (vector != _plain(federation, index)).mean() > 0.9
    assert (vector != total).mean() > 0.9  # the last hop does not know the sum either


@pytest.mark.parametrize("level", [Level.SEMI_HONEST, Level.TRUSTED])
def test_hop_1_sees_values_only_at_level_trusted(tmp_path: Path, level: Level) -> None:
    """Section 4: the same bytes, masked; at level trusted they are the silo's residues themselves."""
    federation = make(tmp_path / "f", 3, 2, level=level, settings={Role.SHUFFLER: {"capture": "capture"}})
    run(_finish(tmp_path / "f"))
    for index, silo in enumerate(federation.silo_names):
        bodies = [r.message for r in _capture(tmp_path / "f", "shuffler-1") if r.peer == silo]
        frames = [m for m in bodies if isinstance(m, body_pb2.Frame)]
        assert [f.WhichOneof("kind") for f in frames] == ["header", *["chunk"] * 4, "trailer"]
        assert len(frames[0].header.seeds) == (0 if level is Level.TRUSTED else 3)
        found, plain = _unpacked(federation, [f.chunk for f in frames[1:-1]]), _plain(federation, index)
        if level is Level.TRUSTED:
            assert np.array_equal(found, plain)
            continue
        assert (found != plain).mean() > 0.9
        for row, bare, modulus in zip(found, plain, federation.plan.moduli, strict=True):
            assert _looks_uniform(row, modulus)
            assert not _looks_uniform(bare, modulus)  # so the comparison means something


def test_a_later_hop_gets_one_sum_and_no_body(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 3, 2, settings={Role.SHUFFLER: {"capture": "capture"}})
    run(_finish(tmp_path / "f"))
    received = [r for r in _capture(tmp_path / "f", "shuffler-2") if r.direction is Direction.RECEIVED]
    assert {r.peer for r in received} == {"aggregator", "shuffler-1"}
    assert Counter(r.kind for r in received if r.peer == "shuffler-1")["RelayFrame.chunk"] == 4
    assert not [r for r in received if isinstance(r.message, body_pb2.Frame)]
    vector = _unpacked(
        federation,
        [
            r.message.chunk
            for r in received
            if isinstance(r.message, services_pb2.RelayFrame) and r.message.HasField("chunk")
        ],
    )
    for silo in range(3):
        assert (vector != _plain(federation, silo)).mean() > 0.9
