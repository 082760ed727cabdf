"""Any torch module as a task: what travels, how it trains, and what it says when it cannot."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

if os.environ.get("CI") != "true":  # there, a missing torch is a failure and not a reason to skip
    pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from silomix.models import torch_task
from silomix.models.torch_task import TorchTask, from_seed
from silomix.models.training import torch_seed
from silomix.runtime.core.errors import LocalFault, Reason
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.plan import plan
from silomix.runtime.core.numbers.schema import Dtype, TensorSpec
from silomix.runtime.store.modelfile import read_model, write_model
from silomix.runtime.task import Task, TaskError, Tensors, train_task

torch.set_num_threads(1)


def records(n: int, features: int = 4, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    x = rng.normal(size=(n, features)) + y[:, None]
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def linear(seed: int = 0) -> nn.Module:
    return from_seed(seed, lambda: nn.Linear(4, 3))


def make(net: nn.Module | None = None, n: int = 20, **options: Any) -> TorchTask:
    options = {"silo": 1, "seed": 5, "batch": 8, "epochs": 2, **options}
    return TorchTask(linear() if net is None else net, records(n), records(30, seed=1), **options)


def same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


# What travels.


class Zoo(nn.Module):
    """One of everything that a state dict may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.base_norm = nn.BatchNorm1d(6).requires_grad_(False)
        self.short = nn.Parameter(torch.full((3,), 0.25, dtype=torch.bfloat16))
        self.empty = nn.Parameter(torch.zeros(0, 5))
        self.also_empty = nn.Parameter(torch.zeros(0, 5))
        self.out = nn.Linear(6, 3)
        self.tied = nn.Linear(4, 6, bias=False)
        self.tied.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.seen: Tensor
        self.scratch: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
            self.scratch += 1
        x = self.norm(self.embed(x)) + self.tied(x)
        out: Tensor = self.out(self.base_norm(self.base(x))) + self.short.float()
        return out


def zoo(**options: Any) -> TorchTask:
    return make(from_seed(1, Zoo), **options)


def test_everything_travels_or_says_why_it_does_not(caplog: pytest.LogCaptureFixture) -> None:
    torch_task._say.cache_clear()  # another test may have made such a model
    with caplog.at_level(logging.INFO, "silomix.models"):
        task = zoo()
    specs = list(task.schema().tensors)
    mark = specs.pop()
    assert mark.name.startswith("frozen.")
    assert mark.shape == (0,)
    assert specs == [
        TensorSpec("short", (3,), Dtype.BF16),
        TensorSpec("empty", (0, 5)),
        TensorSpec("also_empty", (0, 5)),
        TensorSpec("embed.weight", (6, 4)),
        TensorSpec("norm.weight", (6,)),
        TensorSpec("norm.bias", (6,)),
        TensorSpec("norm.running_mean", (6,), buffer=True),
        TensorSpec("norm.running_var", (6,), buffer=True),
        TensorSpec("out.weight", (3, 6)),
        TensorSpec("out.bias", (3,)),
    ]
    assert task.local["tied.weight"] == "tied: it travels as embed.weight"
    assert task.local["seen"].startswith("a int64 has no mean")
    assert task.local["norm.num_batches_tracked"].startswith("a int64 has no mean")
    assert task.local["scratch"].startswith("not persistent")
    frozen = {name for name, why in task.local.items() if why.startswith("frozen")}
    buffers = {"running_mean", "running_var", "num_batches_tracked"}
    assert frozen == {"base.weight", "base.bias"} | {f"base_norm.{b}" for b in buffers | {"weight", "bias"}}
    known = {*(spec.name for spec in specs), *task.local}
    assert known == {*task.net.state_dict(), "scratch"}, "nothing is left out in silence"
    *local, short = (record.message for record in caplog.records)
    assert [message.split(" ")[0] for message in local] == list(task.local)
    assert short.startswith("short: bfloat16 holds 8 bits of a value, so a mean change below 1/256 of it is lost")


def test_a_round_of_everything_goes_through_file_and_codec() -> None:
    task = zoo(lr=0.05)
    start = task.initial()
    trained = train_task(task, start, 1).tensors
    assert trained["norm.running_mean"].any(), "the batch norm's statistics were learned"
    assert not same({"short": trained["short"]}, {"short": start["short"]})
    schema, again = read_model(write_model(task.schema(), trained))
    assert schema == task.schema()
    assert same(again, trained)
    codec = Codec(schema, (4.0,) * len(schema.tensors), plan(3, 5))
    total = codec.layout.body()
    total[:] = 0
    for _ in range(3):
        for i, planes in enumerate(codec.encode(trained)):
            codec.layout.add(total, i, planes)
    mean = codec.decode(total, 3).tensors
    task.load(mean)
    for name, tensor in task.state.read().items():
        if name != "short":
            np.testing.assert_allclose(tensor, trained[name], atol=5e-5)
    np.testing.assert_allclose(task.net.state_dict()["short"].float(), _bf16(trained["short"]), rtol=2**-8)
    assert task.net.state_dict()["tied.weight"].data_ptr() == task.net.state_dict()["embed.weight"].data_ptr()


def _bf16(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_what_stays_local_starts_anew_in_every_round() -> None:
    task, other = zoo(), zoo()
    first = task.train(task.initial(), 1)
    task.train(first.tensors, 2)
    assert task.net.state_dict()["seen"] == 6  # two epochs of three batches, and not those of round 1
    assert task.net.get_buffer("scratch").tolist() == [6, 6]
    assert task.net.state_dict()["base_norm.num_batches_tracked"] == 0, "a frozen batch norm does not learn"
    assert same(first.tensors, other.train(other.initial(), 1).tensors)
    assert same(first.tensors, task.train(task.initial(), 1).tensors)


def test_nodes_that_froze_other_values_do_not_agree_on_the_schema() -> None:
    other = from_seed(1, Zoo)
    with torch.no_grad():
        other.get_parameter("base.bias")[0] += 1
    assert zoo().schema().digest == zoo().schema().digest
    assert zoo().schema().digest != make(other).schema().digest


def test_only_a_part_is_trained_and_sent() -> None:
    def net() -> nn.Module:
        return from_seed(3, lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)))

    task = make(net(), trainable="3.*")
    assert [spec.name for spec in task.schema().tensors[:-1]] == ["3.weight", "3.bias"]
    before = {name: tensor.clone() for name, tensor in task.net.state_dict().items()}
    task.train(task.initial(), 1)
    changed = {name for name, tensor in task.net.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"3.weight", "3.bias"}
    assert len(make(net(), trainable="0.weight, 3.*").schema().tensors) == 4
    with pytest.raises(TaskError, match=r"no parameter's name matches '3\.wieght'; there are 3\.weight"):
        make(net(), trainable="3.wieght")


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda: nn.LazyLinear(3), "weight has no shape yet: call the model once"),
        (lambda: nn.Linear(4, 3, device="meta"), "weight has no values, it is on the meta device"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "Linear has no parameter that is trained"),
        (lambda: nn.Linear(4, 3, dtype=torch.complex64), "weight is complex64, which does not travel: make it one of"),
        (lambda: nn.Linear(5, 3), r"Linear cannot be trained on records of shape \(4,\) \(torch.float32\)"),
        (lambda: nn.Linear(4, 2), r"labels of shape \(\) \(torch.int64\): Target \d is out of bounds"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_model_that_cannot_be_sent_or_trained_is_refused_at_once(net: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make(net())


def test_a_foreign_model_is_refused() -> None:
    task = make()
    with pytest.raises(TaskError, match="this is not a model for Linear: bias is missing"):
        task.load({"weight": np.zeros((3, 4), np.float32)})
    with pytest.raises(TaskError, match=r"bias has shape \(2,\), not \(3,\)"):
        task.load({"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(2, np.float32)})


# How it trains.


def gradient(task: TorchTask, tensors: Tensors, rows: slice = slice(None)) -> dict[str, Tensor]:
    net = task.load(tensors)
    net.zero_grad()
    functional.cross_entropy(net(task.share[0][rows]), task.share[1][rows]).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def test_it_is_a_task_and_learns() -> None:
    task = make(n=60, epochs=20, lr=0.1)
    assert isinstance(task, Task)
    before, trained = task.evaluate(task.initial()), task.train(task.initial(), 1)
    after = task.evaluate(trained.tensors)
    assert trained.examples == 60
    assert after["accuracy"] > max(0.7, before["accuracy"])
    assert after["loss"] < before["loss"]


def test_fedsgd_is_one_step_along_the_whole_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make(algorithm="fedsgd", lr=0.5, epochs=9)
    start = task.initial()
    whole = task.train(start, 1)
    for name, grad in gradient(task, start).items():
        np.testing.assert_allclose(whole.tensors[name], start[name] - 0.5 * grad.numpy(), atol=1e-6)
    monkeypatch.setattr(torch_task, "AT_ONCE", 7)
    parts = task.train(start, 1)
    for name in start:
        np.testing.assert_allclose(parts.tensors[name], whole.tensors[name], atol=1e-6)
    assert parts.metrics["loss"] == pytest.approx(whole.metrics["loss"])


def test_fedprox_adds_the_pull_to_each_step() -> None:
    options: dict[str, Any] = {"batch": 100, "epochs": 2, "lr": 0.5, "momentum": 0.0}
    task, pulled = make(**options), make(mu=0.3, **options)
    start = task.initial()
    one = make(**{**options, "epochs": 1}).train(start, 1).tensors
    got = pulled.train(start, 1).tensors
    for name, grad in gradient(task, one).items():
        expected = one[name] - 0.5 * (grad.numpy() + 0.3 * (one[name] - start[name]))
        np.testing.assert_allclose(got[name], expected, atol=1e-6)
    assert not same(got, task.train(start, 1).tensors)


def test_weight_decay_and_label_smoothing_reach_the_optimiser() -> None:
    start = make().initial()
    plain = make(lr=0.1, momentum=0.0, epochs=1, batch=100).train(start, 1)
    decayed = make(lr=0.1, momentum=0.0, epochs=1, batch=100, weight_decay=0.5).train(start, 1)
    np.testing.assert_allclose(decayed.tensors["bias"], plain.tensors["bias"] - 0.05 * start["bias"], atol=1e-6)
    smoothed = make(lr=0.1, epochs=1, batch=100, label_smoothing=0.3)
    x, y = smoothed.share
    expected = functional.cross_entropy(smoothed.load(start)(x), y, label_smoothing=0.3).item()
    assert smoothed.train(start, 1).metrics["loss"] == pytest.approx(expected)


def test_dropout_is_the_same_in_every_try_and_thread() -> None:
    def dropping(silo: int) -> TorchTask:
        net = from_seed(2, lambda: nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)))
        return make(net, n=64, silo=silo, epochs=3)

    alone = [dropping(silo).train(dropping(0).initial(), 1).tensors for silo in range(4)]
    torch.manual_seed(99)  # the process's own randomness must not matter
    before = torch.get_rng_state()
    tasks = [dropping(silo) for silo in range(4)]
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda task: task.train(task.initial(), 1).tensors, tasks))
        assert all(same(a, b) for a, b in zip(alone, together, strict=True))
    assert torch.equal(before, torch.get_rng_state())
    assert not same(alone[0], alone[1])
    assert not same(alone[0], tasks[0].train(tasks[0].initial(), 2).tensors)


def test_silos_without_randomness_do_not_wait_for_each_other() -> None:
    task = make()
    task.train(task.initial(), 1)  # the first round shows that nothing is drawn
    with torch_seed.lock, ThreadPoolExecutor(1) as pool:
        pool.submit(task.train, task.initial(), 2).result(timeout=20)


def test_augment_sees_every_batch_and_its_own_randomness() -> None:
    seen: list[int] = []

    def noisy(x: Tensor, rng: np.random.Generator) -> Tensor:
        seen.append(len(x))
        return x + torch.from_numpy(rng.normal(size=tuple(x.shape)).astype(np.float32))

    task = make(augment=noisy)
    start = task.initial()
    assert same(task.train(start, 1).tensors, task.train(start, 1).tensors)
    assert seen == [8, 8, 4] * 4


def test_a_batch_norm_never_gets_one_record_alone() -> None:
    net = from_seed(1, lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    task = make(net, n=17)
    assert [len(batch) for batch in task._batches(np.random.default_rng(1))] == [8, 9] * 2
    task.train(task.initial(), 1)
    assert [len(batch) for batch in make(n=17)._batches(np.random.default_rng(1))] == [8, 8, 1] * 2


def test_evaluation_in_parts_is_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make()
    whole = task.evaluate(task.initial())
    monkeypatch.setattr(torch_task, "AT_ONCE", 7)
    assert task.evaluate(task.initial()) == pytest.approx(whole, rel=1e-6)


def test_records_come_as_arrays_or_as_a_dataset() -> None:
    x, y = records(20)
    expected = make().train(make().initial(), 1).tensors
    for share in ((x.numpy(), y.numpy()), TensorDataset(x, y)):
        task = TorchTask(linear(), share, TensorDataset(x, y), silo=1, seed=5, batch=8, epochs=2)  # type: ignore[arg-type]
        assert same(task.train(task.initial(), 1).tensors, expected)
    with pytest.raises(TaskError, match="test is Tensor: give a pair"):
        TorchTask(linear(), None, x)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="one each"):
        TorchTask(linear(), (x, y[:3]), (x, y))


def test_regression_brings_its_own_loss_and_measure() -> None:
    x, y = torch.eye(4), torch.arange(4.0)[:, None]

    def near(scores: Tensor, y: Tensor) -> dict[str, float]:
        return {"accuracy": ((scores - y).abs() < 0.5).double().mean().item()}

    net = from_seed(0, lambda: nn.Linear(4, 1))
    task = TorchTask(net, (x, y), (x, y), silo=0, epochs=200, lr=0.1, loss=functional.mse_loss, measure=near)
    assert task.evaluate(task.train(task.initial(), 1).tensors)["accuracy"] == 1.0


# What it says when it cannot.


def test_training_that_explodes_names_the_tensor_and_the_fix() -> None:
    net = from_seed(1, lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)))
    task = make(net, lr=1e4, epochs=50)
    with pytest.raises(LocalFault) as caught:
        task.train(task.initial(), 3)
    assert caught.value.reason is Reason.NOT_FINITE
    tensor = caught.value.details["tensor"]
    assert tensor in task.initial()
    for part in ("round 3: training exploded: at step", str(tensor), "Lower the option lr (now 10000)"):
        assert part in str(caught.value)


def test_the_last_step_may_explode_too() -> None:
    task = make(algorithm="fedsgd", lr=9e37)
    task.share[0].mul_(1e4)
    with pytest.raises(LocalFault, match="after the last step weight holds NaN or infinity"):
        task.train(task.initial(), 1)


def test_bad_records_and_bad_global_models_are_told_apart() -> None:
    task = make()
    task.share[0][3, 1] = float("nan")
    with pytest.raises(LocalFault, match="a record of silo 1 holds NaN or infinity: mend the data"):
        task.train(task.initial(), 1)
    start = task.initial()
    start["bias"][0] = np.inf
    with pytest.raises(LocalFault, match="the global model came with NaN or infinity in bias"):
        task.train(start, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:99"}, "device = 'cuda:99': "),
        ({"device": "tpu"}, "device = 'tpu': it is cpu, cuda"),
        ({"algorithm": "adam"}, "algorithm = 'adam': it is one of sgd, fedsgd"),
        ({"lr": 0.0}, "lr = 0.0: it must be above 0"),
        ({"lr": float("nan")}, "lr = nan: it must be above 0"),
        ({"mu": -1.0}, "mu = -1.0: it must be 0 or more"),
        ({"momentum": 1.0}, "momentum = 1.0: it must be from 0 to below 1"),
        ({"batch": 0}, "batch = 0: it must be 1 or more"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make(**options)


def test_a_silo_without_records_says_so() -> None:
    x, y = records(20)
    for share, number in ((None, -1), ((x[:0], y[:0]), 2)):
        task = TorchTask(linear(), share, (x, y), silo=number)
        with pytest.raises(TaskError, match=f"silo = {number} has no records to train on"):
            task.train(task.initial(), 1)


# --- sentences that help ----------------------------------------------------------------------------------------------


class Forgetful(TorchTask):
    """Its way of training says nothing of its loss."""

    def fit(self, rng: np.random.Generator, round: int) -> float:  # noqa: A002
        return None  # type: ignore[return-value]


def test_a_fit_that_returns_nothing_is_told_what_to_return() -> None:
    x, y = torch.randn(9, 4), torch.zeros(9, dtype=torch.int64)
    task = Forgetful(nn.Linear(4, 3), (x, y), (x, y), silo=0)
    with pytest.raises(TaskError, match=r"Forgetful\.fit returned NoneType; return the mean loss as a number"):
        train_task(task, task.initial(), 1)


@pytest.mark.parametrize(
    ("records", "batch", "says"),
    [
        (1, 16, "silo 2 has one record, and a batch norm cannot learn from one record alone: give it more records, or"),
        (6, 1, "silo 2 has 6 records in batches of 1, and a batch norm .* more records, or a larger batch, or let"),
    ],
)
def test_a_batch_norm_with_one_record_is_told_why(records: int, batch: int, says: str) -> None:
    x, y = torch.randn(records, 4), torch.zeros(records, dtype=torch.int64)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    task = TorchTask(net, (x, y), (x, y), silo=2, batch=batch)
    with pytest.raises(TaskError, match=says):
        train_task(task, task.initial(), 1)


def test_one_picture_is_enough_for_a_batch_norm_over_its_pixels() -> None:
    x, y = torch.randn(1, 1, 4, 4), torch.zeros(1, dtype=torch.int64)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    task = TorchTask(net, (x, y), (x, y), silo=0)
    assert train_task(task, task.initial(), 1).examples == 1
