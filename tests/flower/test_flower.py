"""Flower apps with a protected mean: the same model, and nothing of an update in Flower's own messages."""

import os
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if os.environ.get("CI") != "true":  # there, a missing Flower is a failure and not a reason to skip
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'silomix[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedProx, Strategy
from tests.flower.apps import APP, EXAMPLES, PAGE, SECRET, InMemory, first_model, imported, made_up, patched, update

from silomix.runtime import outside
from silomix.runtime.core.errors import RunError, UserError
from silomix.runtime.core.policy import Policy
from silomix.runtime.flower import Protected, protect, values_in
from silomix.runtime.flower.strategies import MEAN_BASED, REFUSED, check_strategy

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own

CLIENTS = 5
POLICY = Policy(rounds=1000, weight_levels=400, deadline_s=60, release_s=60)
HALF_STEP = 0.5 / 9999 + 1e-6
"""Half a quantisation step, and what float32 rounds."""


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    outside.create(tmp_path / "fed", CLIENTS, 2, values_in(first_model()), policy=POLICY, dtype="F32")
    return tmp_path / "fed"


@contextmanager
def grids(
    fed: Path, strategy: Strategy, failing: Callable[[int, int], bool] = lambda *_: False, **options: Any
) -> Iterator[tuple[Protected, InMemory]]:
    """A protected Grid over one in memory."""
    inner = InMemory(made_up([protect(fed, evaluate=options.get("evaluate", False))]), CLIENTS, failing)
    grid = Protected(inner, fed, strategy, log=fed.parent / "log", **options)
    try:
        yield grid, inner
    finally:
        grid.close()


def plain(strategy: Strategy, rounds: int, failing: Callable[[int, int], bool] = lambda *_: False) -> ArrayRecord:
    """What Flower makes of the same clients without us."""
    return strategy.start(InMemory(made_up([]), CLIENTS, failing), first_model(), rounds).arrays


def distance(one: ArrayRecord, other: ArrayRecord) -> float:
    assert list(one) == list(other)
    return max(float(np.abs(one[n].numpy() - other[n].numpy()).max()) for n in one if n != "batches")


def test_the_mean_is_flowers_own_and_its_messages_have_nothing_of_an_update(fed: Path) -> None:
    strategy, rounds = FedAvg(fraction_evaluate=0.0), 3
    with grids(fed, strategy) as (grid, inner):
        found = strategy.start(grid, first_model(), rounds)
    assert distance(found.arrays, plain(FedAvg(fraction_evaluate=0.0), rounds)) <= rounds * HALF_STEP
    assert found.arrays["batches"].numpy() == 0, "counters stay what the server sent"
    assert len(inner.replies) == rounds * CLIENTS
    for reply in inner.replies:
        assert b"silomix" in reply, "that is a reply"
        assert len(reply) < 2000, "300 values in float32 would take 1,200 bytes beside the rest"
        for secret in traces():
            assert secret not in reply


def traces() -> list[bytes]:
    """How a client's numbers would look in a message."""
    values = np.float32(SECRET), update(0)["weight"][3, 3], update(1)["scale"]
    after = [np.float32(v + w) for v, w in zip(values, first_model()["weight"].numpy()[0], strict=False)]
    found = [np.float32(v).tobytes() for v in (*values, *after)]
    return [*found, struct.pack("<d", SECRET), b"num-examples", b"loss", b"weight", b"numpy.ndarray"]


def test_what_is_looked_for_is_found_without_the_mod() -> None:
    """Or the test above would find nothing whatever is sent."""
    inner = InMemory(made_up([]), CLIENTS)
    FedAvg(fraction_evaluate=0.0).start(inner, first_model(), 1)
    for secret in (b"num-examples", b"loss", b"weight", struct.pack("<d", SECRET)):
        assert all(secret in reply for reply in inner.replies)
    assert any(len(reply) > 2000 for reply in inner.replies)


def test_a_strategy_with_a_state_of_its_own_runs_unmodified(fed: Path) -> None:
    strategy = FedAdam(fraction_evaluate=0.0, eta=0.1)
    with grids(fed, strategy) as (grid, _):
        found = strategy.start(grid, first_model(), 2).arrays
    expected = plain(FedAdam(fraction_evaluate=0.0, eta=0.1), 2)
    # Adam divides by how much a value changed: a rounded change of nearly nothing counts for more than its size.
    changes = np.abs(expected["weight"].numpy() - first_model()["weight"].numpy())
    close = np.abs(found["weight"].numpy() - expected["weight"].numpy()) <= 0.01 * np.maximum(changes, 0.02)
    assert close.mean() > 0.97


def test_clients_that_fail_are_missing_from_the_mean_and_nothing_more(tmp_path: Path) -> None:
    fed = tmp_path / "fed"
    policy = replace(POLICY, deadline_s=4, attempts=10)
    outside.create(fed, CLIENTS, 1, values_in(first_model()), policy=policy, dtype="F32")

    def failing(number: int, call: int) -> bool:
        return (call == 1 and number in (1, 4)) or (call == 2 and number != 0)

    strategy = FedAvg(fraction_evaluate=0.0)
    with grids(fed, strategy, failing) as (grid, _):
        found = strategy.start(grid, first_model(), 3)

    # In round 2 one client is left, which is too few for a sum: the model stays.
    def two_rounds(number: int, call: int) -> bool:
        return call == 1 and number in (1, 4)

    expected = plain(FedAvg(fraction_evaluate=0.0), 2, two_rounds)
    assert distance(found.arrays, expected) <= 2 * HALF_STEP
    assert sorted(found.train_metrics_clientapp) == [1, 3]


def test_a_share_of_the_clients_is_enough_where_the_policy_has_that_quorum(tmp_path: Path) -> None:
    fed = tmp_path / "fed"
    outside.create(fed, CLIENTS, 1, values_in(first_model()), policy=replace(POLICY, quorum=0.6), dtype="F32")
    strategy = FedAvg(fraction_train=0.6, fraction_evaluate=0.0)
    sampled: list[list[int]] = []
    with grids(fed, strategy) as (grid, _):
        original = grid.grid.send_and_receive

        def watched(messages: Any, **options: Any) -> Any:
            messages = list(messages)
            sampled.append([m.metadata.dst_node_id - 1 for m in messages])
            return original(messages, **options)

        grid.grid.send_and_receive = watched  # type: ignore[method-assign]
        found = strategy.start(grid, first_model(), 2).arrays
    expected = first_model()["weight"].numpy().astype(float)
    for who in sampled:
        assert len(who) == 3
        weights = np.array([EXAMPLES + i for i in who], float)
        expected += np.average([update(i)["weight"] for i in who], axis=0, weights=weights)
    assert np.abs(found["weight"].numpy() - expected).max() <= 2 * HALF_STEP


def test_evaluation_at_clients_is_left_out_unless_somebody_says_that_it_may_tell(fed: Path) -> None:
    strategy = FedAvg()
    with grids(fed, strategy) as (grid, inner):
        found = strategy.start(grid, first_model(), 1)
        assert found.evaluate_metrics_clientapp == {}
        assert len(inner.replies) == CLIENTS, "of the training alone"
        [message] = FedAvg(min_evaluate_nodes=1, fraction_evaluate=0.2).configure_evaluate(
            1, first_model(), ConfigRecord(), inner
        )
        reply = inner._call(message)
    assert "would tell the server this client's own metrics" in str(reply.error.reason)
    strategy = FedAvg()
    with grids(fed, strategy, evaluate=True) as (grid, _):
        found = strategy.start(grid, first_model(), 1)
    assert found.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(SECRET)


def test_a_server_that_tells_clients_different_things_is_refused_and_found_out(fed: Path) -> None:
    class Unfair(FedAvg):
        """Sends one client other settings than the rest."""

        def configure_train(self, *arguments: Any) -> list[Message]:
            messages = list(super().configure_train(*arguments))
            first = messages[0].content
            config = ConfigRecord({**first["config"], "lr": 0.0})  # type: ignore[dict-item]
            messages[0].content = RecordDict({"arrays": first["arrays"], "config": config})
            return messages

    strategy = Unfair(fraction_evaluate=0.0)
    with (
        grids(fed, strategy) as (grid, _),
        pytest.raises(UserError, match="5 clients were to be sent 2 different models or settings"),
    ):
        strategy.start(grid, first_model(), 1)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_strategies_that_need_single_updates_are_refused_with_the_reason(name: str) -> None:
    kind = getattr(flower, name)
    with pytest.raises(UserError, match=re.escape(f"{name} {REFUSED[name]}")):
        check_strategy(kind.__new__(kind), mean_based=True)


def test_every_strategy_of_flower_is_either_known_or_refused() -> None:
    for name in MEAN_BASED:
        if hasattr(flower, name):
            check_strategy(getattr(flower, name).__new__(getattr(flower, name)))
    known = {*MEAN_BASED, *REFUSED, "Result", "Strategy", "DifferentialPrivacyClientSideFixedClipping"}
    assert {name for name in flower.__all__ if name[0].isupper()} <= known


def test_a_strategy_of_ones_own_takes_a_word() -> None:
    class Saving(FedProx):
        """Overrides what makes the model."""

        def aggregate_train(self, *arguments: Any) -> Any:
            return super().aggregate_train(*arguments)

    class Harsh(FedMedian):
        """Is still a median."""

    with pytest.raises(UserError, match=r"Saving has an aggregate_train of its own.*mean_based=True"):
        check_strategy(Saving(proximal_mu=0.1))
    check_strategy(Saving(proximal_mu=0.1), mean_based=True)
    with pytest.raises(UserError, match="Harsh takes the median"):
        check_strategy(Harsh(), mean_based=True)


def test_a_client_without_the_mod_ends_the_run(fed: Path) -> None:
    strategy = FedAvg(fraction_evaluate=0.0)
    with grids(fed, strategy) as (grid, inner):
        inner.app = made_up([])
        with pytest.raises(RunError, match=r"has sent \['arrays', 'metrics'\] to the server in clear"):
            strategy.start(grid, first_model(), 1)


def test_a_client_whose_server_is_not_protected_sends_nothing(fed: Path) -> None:
    inner = InMemory(made_up([protect(fed)]), CLIENTS)
    FedAvg(fraction_evaluate=0.0).start(inner, first_model(), 1)
    assert all(b"did not open a protected round" in reply for reply in inner.replies)
    assert not any(b"weight" in reply for reply in inner.replies)


def test_a_node_that_is_no_silo_and_a_directory_that_is_no_federation_say_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds neither federation.toml nor node.toml"):  # noqa: RUF043
        Protected(InMemory(ClientApp(), 1), tmp_path, FedAvg())
    message = Message(RecordDict({"arrays": first_model()}), 1, "train")
    message.content["silomix"] = ConfigRecord({"round": 1, "stay": []})
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises(UserError, match=r"does not say which silo it is.*--node-config"):
        made_up([protect()])(message, context)


# The app of the page.


def test_the_diff_changes_six_lines() -> None:
    diff = re.search(r"^```diff\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert diff is not None
    added = [line for line in diff[1].splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert len(added) <= 6


def test_the_app_of_the_page_learns_the_same_with_the_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    policy = replace(POLICY, weight_levels=1000)
    outside.create("fed", 3, 2, 650, policy=policy, dtype="F32")  # as the page says
    accuracies = []
    runs: list[tuple[Path, UserConfig]] = [(APP, {}), (patched(tmp_path / "app"), {"federation": "fed"})]
    for directory, config in runs:
        with imported(directory) as (client, server):
            run_config: UserConfig = {"num-server-rounds": 3, **config}
            context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config)
            server(InMemory(client, 3), context)
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("silomix")]
        assert not left, "the nodes end with the run, although no app closes its Grid"
        printed = re.search(r"accuracy ([\d.]+)", capsys.readouterr().out)
        assert printed is not None
        accuracies.append(float(printed[1]))
    assert accuracies[0] > 0.85
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.005)
