"""A sum that is here: however long its model takes, the round is not lost, and the sum is applied once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.nodes.federations import assert_model, make, manifest_at, peer, refusal, rejections, run, shuffler, until
from tests.nodes.toy import Toy

from silomix.runtime.config.kinds import Role
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.core.protocol.messages import Manifest, delivery_digest
from silomix.runtime.local import InProcess
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.v1 import services_pb2

EVALUATES = {Role.AGGREGATOR: {"evaluate": True}}


class Evaluation:
    """Holds the evaluation of a model up until a test lets it go."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self.times = 0

    def __call__(self, toy: Toy, tensors: Any) -> dict[str, float]:
        self.times += 1
        self.began.set()
        self.may_end.wait(15)
        return {"accuracy": 0.5, "loss": 1.0}


@pytest.fixture
def evaluation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Evaluation]:
    made = Evaluation()
    monkeypatch.setattr(Toy, "evaluate", lambda self, tensors: made(self, tensors))
    yield made
    made.may_end.set()


def test_a_slow_evaluation_abandons_no_round(tmp_path: Path, evaluation: Evaluation) -> None:
    """It takes longer than the deadline and the release together, and longer than the hop keeps its keys."""
    federation = make(tmp_path / "f", 3, 2, rounds=2, deadline_s=4, release_s=1, attempts=1, settings=EVALUATES)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            await until(evaluation.began.is_set, "the sum is here")
            machine, began = running.aggregator.core, running.aggregator.clock()
            assert machine.phase is core.Phase.APPLYING
            await until(lambda: running.aggregator.clock() > began + 5, "all clocks have run out")
            await until(lambda: not shuffler(running).core.keys, "the hop has let go of the round")
            assert (machine.phase, machine.round, machine.attempt) == (core.Phase.APPLYING, 1, 1)
            evaluation.may_end.set()
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 3), (1, 3)]
            assert_model(running.aggregator.tensors, [range(3)] * 2, federation.policy)
            assert evaluation.times == 2

    run(go())


def test_a_sum_that_is_delivered_again_gets_the_same_word_and_counts_once(
    tmp_path: Path, evaluation: Evaluation
) -> None:
    federation = make(tmp_path / "f", 3, 1, rounds=1, settings={Role.AGGREGATOR: {"evaluate": True, "linger": True}})

    async def go() -> None:
        async with (
            InProcess(tmp_path / "f") as running,
            peer(tmp_path / "f", "shuffler-1", "aggregator") as us,
            peer(tmp_path / "f", "silo-01", "aggregator") as silo,
        ):
            manifest = await manifest_at(running)
            node = running.aggregator

            async def frames() -> AsyncIterator[services_pb2.RelayFrame]:
                opening = services_pb2.RelayOpen(hop="shuffler-1", manifest_digest=manifest.digest)
                yield services_pb2.RelayFrame(open=opening)

            async def again() -> services_pb2.Delivery:
                delivery: services_pb2.Delivery = await us.aggregator.Deliver(frames(), metadata=us.metadata)
                return delivery

            await until(evaluation.began.is_set, "the sum is here")
            calls = [asyncio.ensure_future(again()) for _ in range(1)]
            error = await refusal(lambda: silo.aggregator.Deliver(frames(), metadata=silo.metadata))
            assert (error.details() or "").startswith(Reason.WRONG_CHAIN)
            assert not node.history  # it is on record when the model is durable, and not before
            assert [record.round for record in node.core.log.records] == [0]
            evaluation.may_end.set()
            answers = await asyncio.gather(*calls)
            await until(lambda: node.core.phase is core.Phase.FINISHED, "the round is over")
            answers.append(await again())
            assert len({answer.SerializeToString() for answer in answers}) == 1
            _holds(answers[0], manifest, running)
            assert [(r.attempts, r.cohort) for r in node.history] == [(1, 3)]
            assert evaluation.times == 1
            assert_model(node.tensors, [range(3)], federation.policy)
            node.stopping.set()

    run(go())


def _holds(delivery: services_pb2.Delivery, manifest: Manifest, running: InProcess) -> None:
    """The word is about this attempt and no other."""
    member = running.federation.aggregator
    what = delivery_digest(member.name, manifest.digest, delivery.root)
    verify(member.key, what, delivery.signature, member.name)


def test_a_sum_of_which_no_model_can_be_made_is_refused_and_tried_again_for_the_same_silos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    read_means = AggregatorNode._means

    def out_of_range(self: AggregatorNode, *released: Any) -> Any:
        means, size, received = read_means(self, *released)
        if not refused:
            refused.append(size)
            raise PeerFault(Reason.OUT_OF_RANGE, "the sum cannot be one of this cohort")
        return means, size, received

    monkeypatch.setattr(AggregatorNode, "_means", out_of_range)
    federation = make(tmp_path / "f", 3, 2, rounds=1)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(2, 3)]
            assert refused == [3]
            assert_model(running.aggregator.tensors, [range(3)], federation.policy)

    run(go())


def test_a_silo_that_finds_hop_1_busy_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many bodies are on their way: that is no fault of the silo's, and no round is lost by it."""
    monkeypatch.setattr("silomix.runtime.nodes.shuffler.SILO_STREAMS", 0)
    federation = make(tmp_path / "f", 3, 1, rounds=1)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            hop = shuffler(running)
            await until(lambda: rejections(hop, Reason.BUSY) >= 6, "all were refused twice")
            monkeypatch.setattr(hop.submitting, "_each", 4)
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 3)]
            assert_model(running.aggregator.tensors, [range(3)], federation.policy)

    run(go())
