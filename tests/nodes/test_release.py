"""The release over real nodes: killed between any two steps, it goes on, and never for a second cohort."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.nodes.federations import (
    PARAMETERS,
    assert_model,
    make,
    manifest_at,
    model_of,
    rejections,
    run,
    shuffler,
    until,
)
from tests.tools import first

from silomix.runtime.config.kinds import Role
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.protocol.lineage import next_model
from silomix.runtime.core.protocol.roundlog import Outcome
from silomix.runtime.core.protocol.shuffler import Closed, Padded
from silomix.runtime.local import InProcess
from silomix.runtime.nodes.facts import read_log, read_shuffler, sweep_pads, write_shuffler
from silomix.runtime.nodes.node import Node
from silomix.runtime.nodes.silo import SiloNode
from silomix.runtime.store.journal import Journal, JournalError

FACTS = {
    "shuffler-1": ("padded", "signed", "released", "log"),
    "shuffler-2": ("padded", "signed", "released", "log"),
    "aggregator": ("tried", "sealed", "done", "log"),
    "silo-01": ("joined", "log"),
}
"""The durable facts of each role, in the order in which a round writes them."""
TELLING = [("shuffler-1", "padded"), ("shuffler-2", "released"), ("shuffler-1", "released"), ("aggregator", "sealed")]
TELLING += [("aggregator", "log"), ("silo-01", "joined")]
DEATHS = [*TELLING, *(one for one in ((name, kind) for name in FACTS for kind in FACTS[name]) if one not in TELLING)]
"""Who dies after which fact: first those after which something could go wrong for good."""


def after(node: Node, kind: str, round_: int) -> Callable[[], bool]:
    """Watch for the moment at which a node has written a fact of a kind in a round."""
    put, written = node.journal.put, []

    def watched(a_kind: str, a_round: int, key: str, value: bytes) -> None:
        put(a_kind, a_round, key, value)
        if (a_kind, a_round) == (kind, round_):
            written.append(key)

    node.journal.put = watched  # type: ignore[method-assign, assignment]
    return lambda: bool(written)


def one_cohort_per_model(running: InProcess) -> None:
    """No hop has shown its pad for two cohorts on one model, and no two hops for different ones."""
    cohorts: dict[bytes, set[tuple[str, ...]]] = defaultdict(set)
    for name in running.federation.chain:
        for model, facts in shuffler(running, name).core.released.items():
            cohorts[model] |= {fact.silos for fact in facts}
    assert all(len(each) == 1 for each in cohorts.values())
    assert len(cohorts) == running.aggregator.core.log.applied


@pytest.mark.parametrize(("name", "kind"), first(6, DEATHS))
def test_a_node_that_dies_after_any_step_costs_no_round_and_no_second_cohort(
    tmp_path: Path, name: str, kind: str
) -> None:
    federation = make(tmp_path / "f", 4, 2, rounds=2, deadline_s=5, release_s=2, attempts=10)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            await until(after(running.nodes[name], kind, 1), f"{name} has written {kind}")
            await running.stop(name)
            running.start(name)
            history = await running.finished()
            assert [done.cohort for done in history] == [4, 4]
            assert_model(running.aggregator.tensors, [range(4)] * 2, federation.policy)
            one_cohort_per_model(running)
            log = running.aggregator.core.log
            assert [record.outcome for record in log.records[1:]] == [Outcome.APPLIED] * 2
            for hop in federation.chain:
                assert shuffler(running, hop).core.log.head == log.head
                assert not shuffler(running, hop).core.padded  # no pad outlives its round
            if (name, kind) == ("aggregator", "sealed") or kind == "released":
                assert history[0].attempts == 1  # the same attempt went on: everybody had signed

    run(go(), 40)


@pytest.mark.parametrize("kind", first(1, ["released", "signed", "padded"]))
def test_a_hop_whose_pad_was_damaged_and_deleted_starts_and_the_round_is_tried_again(tmp_path: Path, kind: str) -> None:
    federation = make(tmp_path / "f", 4, 2, rounds=1, deadline_s=5, release_s=2, attempts=10)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            await until(after(running.nodes["shuffler-1"], kind, 1), f"shuffler-1 has written {kind}")
            await running.stop("shuffler-1")
            for path in (tmp_path / "f" / "shuffler-1" / "state").rglob("pad-1-*"):
                path.unlink()  # as the message about a damaged one says
            running.start("shuffler-1")
            (done,) = await running.finished()
            assert done.cohort == 4
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)
            one_cohort_per_model(running)

    run(go(), 40)


def test_half_a_pad_is_swept(tmp_path: Path) -> None:
    """A hop that dies while it forgets one leaves the secret, which must not stay. An attempt without a pad is over."""
    journal = Journal(tmp_path / "journal.sqlite")
    pads = [
        Padded(1, i, bytes([i]) * 32, b"m", ("a",), b"c", ("s",), (), b"", Secret(bytes([i]) * 32)) for i in (1, 2, 3)
    ]
    for fact in pads:
        write_shuffler(journal, fact)
    journal.forget("padded", 1, pads[0].manifest.hex())
    journal.secrets.forget("pad", 1, pads[1].manifest.hex())
    sweep_pads(journal)
    assert list(read_shuffler(journal)) == [Closed(1, 3), *pads[2:]]
    assert journal.secrets.keys("pad") == [(1, pads[2].manifest.hex())]
    journal.close()


@pytest.mark.parametrize("kind", ["signed", "released"])
def test_what_cannot_be_written_down_is_not_done_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A hop whose disk is full signs nothing and shows no pad; when there is room, the same attempt goes on."""
    monkeypatch.setattr("silomix.runtime.nodes.node.RETRY_S", 0.05)
    federation = make(tmp_path / "f", 4, 2)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            hop, machine = shuffler(running, "shuffler-2"), running.aggregator.core
            put = hop.journal.put
            failed: list[str] = []

            def full(a_kind: str, round_: int, key: str, value: bytes) -> None:
                if a_kind == kind and len(failed) < 5:
                    failed.append(machine.phase)
                    raise JournalError("no space left on the device")
                put(a_kind, round_, key, value)

            hop.journal.put = full  # type: ignore[method-assign, assignment]
            (done,) = await running.finished()
            assert failed == ["ready" if kind == "signed" else "revealing"] * 5
            assert (done.attempts, done.cohort) == (1, 4)
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_every_silo_computes_the_same_model_as_the_aggregator(tmp_path: Path) -> None:
    make(tmp_path / "f", 4, 2, rounds=3, server="adam", server_lr=0.1)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            running.aggregator.config = replace(running.aggregator.config, keep_models=1)  # the old ones go meanwhile
            await running.finished()
            log, state = running.aggregator.core.log, running.aggregator.config.state
            assert log.applied == 3
            here = set(state.models.glob("*.safetensors"))
            assert here == {state.model(log.model), state.model(log.before)}, [r.model_after.hex() for r in log.records]
            for name in running.federation.silo_names:
                silo = running.nodes[name]
                assert isinstance(silo, SiloNode)
                await until(lambda silo=silo: silo.follower.at_head, f"{name} has the last model")  # type: ignore[misc]
                for tensor, values in running.aggregator.tensors.items():
                    assert (silo.follower.model[tensor] == values).all()

    run(go())


def test_at_most_19_bits_per_parameter_come_down_to_a_silo(tmp_path: Path) -> None:
    """The sum that silos read is as long as what each of them sent: 18 bits and the transcript."""
    make(tmp_path / "f", 4, 2, rounds=2, task_options={"parameters": 200_000}, chunk_parameters=1 << 16)
    counted: dict[str, int] = defaultdict(int)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            crossed = running.aggregator.crossed

            def count(direction: str, peer: str, method: str, stream: int, kind: str, raw: bytes) -> None:
                counted[method] += len(raw) if (direction, peer) == ("sent", "silo-01") else 0
                crossed(direction, peer, method, stream, kind, raw)

            running.aggregator.crossed = count  # type: ignore[method-assign]
            await running.finished()
            silo = running.nodes["silo-01"]
            assert isinstance(silo, SiloNode)
            await until(lambda: silo.follower.at_head, "the last model is computed")

    run(go())
    assert 8 * counted["GetSum"] / 2 / 200_000 <= 19


def _forgotten(home: Path) -> bool:
    kept = {path.name.partition("-")[0] for path in (home / "aggregator" / "state" / "sums").iterdir()}
    return bool(kept) and kept.isdisjoint({"1"})


def test_a_silo_that_comes_too_late_adopts_what_a_majority_has_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("silomix.runtime.nodes.aggregator.KEPT_ROUNDS", 1)
    federation = make(tmp_path / "f", 5, 1, rounds=4, quorum=0.8, minimum_cohort=4)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-05",)) as running:
            await until(partial(_forgotten, tmp_path / "f"), "the sum of round 1 is not kept any more")
            running.start("silo-05")
            await running.finished()
            late = running.nodes["silo-05"]
            assert isinstance(late, SiloNode)
            await until(lambda: late.follower.at_head, "the late-comer has the last model")
            for tensor, values in running.aggregator.tensors.items():
                assert (late.follower.model[tensor] == values).all()
            assert not rejections(late, Reason.WRONG_STEP)

    run(go())
    assert model_of(tmp_path / "f")["a"].size < PARAMETERS
    with_log = Journal(tmp_path / "f" / "silo-05" / "state" / "journal.sqlite")
    assert [record.round for record in read_log(with_log)] == [0, 1, 2, 3, 4]
    with_log.close()
    assert federation.minimum_cohort == 4
    assert any("adopted" in record.getMessage() for record in caplog.records)


def test_a_silo_adopts_nothing_on_the_word_of_a_minority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silomix.runtime.nodes.aggregator.KEPT_ROUNDS", 1)

    def forgets(self: Any, silo: str, record: bytes, signature: bytes) -> None:
        if silo in ("silo-01", "silo-02"):
            self.computed[silo] = signature

    monkeypatch.setattr("silomix.runtime.nodes.aggregator.AggregatorNode.confirm", forgets)
    make(tmp_path / "f", 5, 1, rounds=3, quorum=0.8, minimum_cohort=4, settings={Role.AGGREGATOR: {"linger": True}})

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-05",)) as running:
            await until(partial(_forgotten, tmp_path / "f"), "the sum of round 1 is not kept any more")
            late = running.start("silo-05")
            await until(lambda: rejections(late, Reason.WRONG_STEP), "it does not take the aggregator's word")
            assert isinstance(late, SiloNode)
            assert not late.follower.at_head
            running.aggregator.stopping.set()

    run(go())


def test_what_is_frozen_already_is_not_sent_to_an_aggregator_that_was_seen_to_lie(tmp_path: Path) -> None:
    make(tmp_path / "f", 4, 1, rounds=1)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running:
            manifest, silo = await manifest_at(running), running.nodes["silo-01"]
            assert isinstance(silo, SiloNode)
            await until(lambda: silo._body is not None, "the round's integers are frozen")
            await silo._freeze(manifest)
            silo.follower.liar = "the model is another one"
            with pytest.raises(PeerFault, match="the model is another one") as refused:
                await silo._freeze(manifest)
            assert refused.value.reason is Reason.WRONG_STEP

    run(go())


def test_an_aggregator_that_was_seen_to_lie_stays_a_liar_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silo that comes back must not take the model from a majority that is in on it."""
    make(tmp_path / "f", 4, 1, rounds=1, settings={Role.AGGREGATOR: {"linger": True}})

    def another(*given: Any) -> Any:
        model, state = next_model(*given)
        return {name: tensor + 1 for name, tensor in model.items()}, state

    monkeypatch.setattr("silomix.runtime.nodes.follow.next_model", another)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            silo = running.nodes["silo-01"]
            assert isinstance(silo, SiloNode)
            await until(lambda: bool(silo.follower.liar), "silo-01 has seen the lie")
            await running.stop("silo-01")
            again = running.start("silo-01")
            assert isinstance(again, SiloNode)
            with pytest.raises(PeerFault, match="this silo trains on nothing more"):
                again.follower.check_honest()
            running.aggregator.stopping.set()

    run(go())
