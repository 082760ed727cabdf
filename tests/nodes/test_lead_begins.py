"""An aggregator that begins: what it goes on from is all there, or it says what is not, and signs nothing."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.nodes.leads import ROUNDS, kept, leading, node_at

from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.learning.bounds import bounds_of
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.store.home import KEPT_ROUNDS
from silomix.runtime.store.modelfile import read_model
from silomix.v1 import services_pb2


async def test_it_goes_on_from_the_newest_model_though_that_is_not_the_one_that_was_agreed_to_begin_with(
    led: Path,
) -> None:
    async with leading(led) as node:
        assert node.core.log.round == ROUNDS + 1
        assert node.model == node.core.log.model
        assert node.model.hex() != node.federation.policy.initial_model
        assert node.data == node.config.state.model(node.model).read_bytes()


async def test_it_loads_the_task_only_if_it_is_to_measure_models(led: Path) -> None:
    async with leading(led) as node:
        assert node.task is None
    async with leading(led, evaluate=True) as node:
        assert node.task is not None


async def test_a_round_is_told_as_done_only_if_it_is_on_record(led: Path) -> None:
    """The model of a round is durable before its record is: it may have been killed in between."""
    async with leading(led) as node:
        for round_ in (ROUNDS + 1, ROUNDS + 2):
            done = services_pb2.RoundStatus(round=round_, attempts=1, cohort=3)
            node.journal.put("done", round_, "", done.SerializeToString())
    async with leading(led) as node:
        assert [done.round for done in node.history] == [1, 2]


@pytest.mark.parametrize("configured", [True, False])
def test_without_a_model_to_begin_with_it_says_which_and_how_to_make_it(led: Path, configured: bool) -> None:
    shutil.rmtree(led / "state")
    (led / "initial.safetensors").unlink()
    named = led / "initial.safetensors" if configured else None
    what = r"initial_model: .*initial\.safetensors" if configured else "initial_model: the model to begin with"
    with pytest.raises(ConfigError, match=f"{what} is not there: .* `silomix model init --config {led}`"):
        node_at(led, initial_model=named)


async def test_without_the_state_of_the_servers_optimiser_it_does_not_start_that_at_rest(led: Path) -> None:
    async with leading(led) as node:
        (path,) = node.models.glob("*.moments")
        moments = node._load_moments()
        assert any(value.any() for value in moments.values())
        path.unlink()
        with pytest.raises(ConfigError, match=r"\.moments: is missing: the server's optimiser cannot go on without it"):
            node._load_moments()


async def test_the_next_bounds_follow_from_the_two_newest_models_and_without_both_there_are_none(led: Path) -> None:
    async with leading(led) as node:
        path = node.config.state.model(node.core.log.before)
        previous = read_model(path.read_bytes())[1]
        policy = node.federation.policy
        assert node._bounds_here() == bounds_of(policy, node.schema, node.tensors, previous)
        assert node._bounds_here() != bounds_of(policy, node.schema, node.tensors, None)
        path.unlink()
        with pytest.raises(ConfigError, match="is missing: the next round's bounds follow from it; put it back"):
            node._bounds_here()
    shutil.rmtree(led / "state")
    async with leading(led) as node:
        assert node._bounds_here() == bounds_of(policy, node.schema, node.tensors, None)


async def test_sums_are_forgotten_when_as_many_newer_ones_count(led: Path) -> None:
    """A sum that stayed would be a sum that can still be taken."""
    async with leading(led) as node:
        newest = node.core.log.records[-1]
        await node.perform(core.Publish(replace(newest, round=KEPT_ROUNDS)))
        assert node.sums.read(1, 1) is not None
        await node.perform(core.Publish(replace(newest, round=KEPT_ROUNDS + 1)))
        assert sorted(path.name for path in node.sums.directory.iterdir()) == ["2-1.sum", "2-1.transcript"]


async def test_a_sum_that_changed_on_the_disk_makes_no_model(led: Path) -> None:
    async with leading(led) as node:
        found = kept(node, 2)
        pads = tuple(zip(found.manifest.chain, found.pads, strict=True))
        means, size, _ = node._means(found.manifest, found.ready, pads, None)
        assert (len(means), size) == (1, 3)
        path = node.sums.body(2, 1)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(PeerFault) as caught:
            node._means(found.manifest, found.ready, pads, None)
        assert caught.value.reason is Reason.ROOT_MISMATCH
