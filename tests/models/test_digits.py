"""The task interface, the partition and the digits: the same bits from the same options, and it learns."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silomix.models.data.partition import dirichlet, iid
from silomix.runtime.core.numbers.schema import Dtype, Schema, TensorSpec
from silomix.runtime.task import Option, Task, TaskError, Tensors, Trained, load_task

if os.environ.get("CI") != "true":  # there, a missing torch is a failure and not a reason to skip
    pytest.importorskip("torch")

import torch

from silomix.models.digits import Cnn
from silomix.models.torch_task import TorchTask

DIGITS = "silomix.models.digits:task"


# The partition.


@given(
    labels=st.lists(st.integers(0, 9), min_size=24, max_size=200),
    silos=st.integers(1, 12),
    alpha=st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 100.0]),
    seed=st.integers(0, 2**32),
    least=st.integers(1, 2),
)
def test_dirichlet_deals_every_record_once(labels: list[int], silos: int, alpha: float, seed: int, least: int) -> None:
    parts = dirichlet(labels, silos, alpha, seed, least=least)
    assert len(parts) == silos
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    assert min(len(part) for part in parts) >= least
    again = dirichlet(np.array(labels), silos, alpha, seed, least=least)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@given(n=st.integers(12, 300), silos=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_iid_deals_every_record_once_in_equal_shares(n: int, silos: int, seed: int) -> None:
    parts = iid(n, silos, seed)
    assert sorted(np.concatenate(parts)) == list(range(n))
    assert {len(part) for part in parts} <= {n // silos, -(-n // silos)}
    assert all(np.array_equal(a, b) for a, b in zip(parts, iid(n, silos, seed), strict=True))


def test_a_smaller_alpha_is_a_greater_skew() -> None:
    labels = np.repeat(np.arange(10), 100)

    def largest_class(parts: list[npt.NDArray[np.int64]]) -> float:
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    even, mild, strong = iid(1000, 10, 1), dirichlet(labels, 10, 1.0, 1), dirichlet(labels, 10, 0.05, 1)
    assert largest_class(even) < 0.2 < largest_class(mild) < 0.5 < largest_class(strong)
    assert not np.array_equal(mild[0], dirichlet(labels, 10, 1.0, 2)[0])


def test_too_few_records_and_a_bad_alpha_are_refused() -> None:
    with pytest.raises(ValueError, match="5 records are too few for 3 silos with at least 2 each"):
        dirichlet([0] * 5, 3, 0.1, 1, least=2)
    with pytest.raises(ValueError, match="2 records are too few"):
        iid(2, 3, 1)
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="alpha"):
            dirichlet([0] * 5, 3, alpha, 1)


# Loading a task.


class Fake:
    """A task of one tensor."""

    def schema(self) -> Schema:
        return Schema((TensorSpec("w", (2,)),))

    def initial(self) -> dict[str, npt.NDArray[Any]]:
        return {"w": np.zeros(2, np.float32)}

    def train(self, tensors: Tensors, round: int) -> Trained:  # noqa: A002
        return Trained(dict(tensors), 1, {})

    def evaluate(self, tensors: Tensors) -> dict[str, float]:
        return {"accuracy": 0.0, "loss": 0.0}


def fake(rate: float = 0.1, size: int = 3, name: str = "x") -> Fake:
    return Fake()


def needs(data: str) -> Fake:
    return Fake()


def anything(**options: Option) -> Fake:
    return Fake()


def picky(size: int = 3) -> Fake:
    raise ValueError(f"size = {size} is odd")


def imports_late() -> Fake:
    raise ModuleNotFoundError("No module named 'opacus'", name="opacus")


def no_task() -> object:
    class Half:
        def schema(self) -> Schema:
            raise NotImplementedError

        def initial(self) -> dict[str, npt.NDArray[Any]]:
            raise NotImplementedError

    return Half()


def returning(tensors: Mapping[str, object], *specs: TensorSpec) -> Callable[[], Fake]:
    class Wrong(Fake):
        def schema(self) -> Schema:
            return Schema(specs or (TensorSpec("w", (2,)),))

        def initial(self) -> dict[str, Any]:
            return dict(tensors)

    return Wrong


W = np.zeros(2, np.float32)
missing_tensor = returning({})
extra_tensor = returning({"w": W, "b": W})
wrong_shape = returning({"w": np.zeros(3, np.float32)})
wrong_dtype = returning({"w": np.zeros(2)})
not_numpy = returning({"w": [0.0, 0.0]})
named_twice = returning({"w": W}, TensorSpec("w", (2,)), TensorSpec("w", (2,)))
a_bf16 = returning({"w": np.zeros(2, np.uint16)}, TensorSpec("w", (2,), Dtype.BF16))


def here(name: str) -> str:
    return f"{__name__}:{name}"


def test_a_task_is_loaded_with_its_options() -> None:
    assert isinstance(load_task(here("fake"), {"rate": 1, "size": 4}), Task)
    assert isinstance(load_task(here("needs"), {"data": "/data"}), Task)
    assert isinstance(load_task(here("anything"), {"whatever": True}), Task)
    assert isinstance(load_task(here("a_bf16"), {}), Task)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("no colon", {}, "'no colon' is not of the form 'package.module:factory'"),
        (".relative:task", {}, "is not of the form"),
        (
            "silomix.models.nowhere:task",
            {},
            "there is no module silomix.models.nowhere; install its package",
        ),
        ("silomix.runtime.task:task", {}, "the module silomix.runtime.task has no task"),
        (here("W"), {}, "W is a ndarray, not a function"),
        ("builtins:dict", {}, "does not say which options it takes; name a function that makes a task"),
        (here("fake"), {"sise": 4}, "no option sise (did you mean size?); accepted: rate: float = 0.1, size: int = 3"),
        (here("fake"), {"size": "4"}, "option size is '4', which is not of type int"),
        (here("fake"), {"size": True}, "option size is True, which is not of type int"),
        (here("fake"), {"rate": True}, "option rate is True, which is not of type float"),
        (here("needs"), {}, "needs the option data; accepted: data: str"),
        (here("picky"), {}, "does not accept its options: size = 3 is odd"),
        (here("imports_late"), {}, "needs opacus, which is not installed: pip install 'silomix[train]'"),
        (here("no_task"), {}, "returned Half, which has no method train()"),
        (here("missing_tensor"), {}, "the schema has the tensor w, and initial() does not return it"),
        (here("extra_tensor"), {}, "initial() returns the tensor b, and the schema does not have it"),
        (here("wrong_shape"), {}, "initial() returns w of shape (3,), the schema: (2,)"),
        (here("wrong_dtype"), {}, "initial() returns w as float64, the schema: F32 (float32)"),
        (here("not_numpy"), {}, "initial() returns w as list, not as a numpy array"),
        (here("named_twice"), {}, "the schema has the tensor w twice"),
        (DIGITS, {"silo": 10}, "silo = 10 of silos = 10: silos count from 0"),
        (DIGITS, {"model": "vgg"}, "model = 'vgg': known models are cnn, linear"),
        (DIGITS, {"epochs": 0}, "epochs = 0: it must be 1 or more"),
        (DIGITS, {"test_share": 1.0}, "0 < test_share < 1"),
        (DIGITS, {"silos": 2000, "silo": 0}, "records are too few for 2000 silos"),
    ],
)
def test_what_is_wrong_with_a_task_is_said_at_the_start(path: str, options: dict[str, Option], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        load_task(path, options)
    assert message in str(caught.value)


def test_a_missing_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "silomix.models.digits", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(TaskError, match=r"needs torch, which is not installed: pip install 'silomix\[train\]'"):
        load_task(DIGITS, {})


def test_the_interface_and_the_partition_need_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import silomix.runtime.task, silomix.models.data.partition"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={**os.environ, "PYTHONPATH": path})


# The digits.


def same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def mean(models: list[dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.mean([model[name] for model in models], axis=0) for name in models[0]}


def test_everybody_starts_from_the_same_model() -> None:
    before = torch.get_rng_state()
    nobody, silo = load_task(DIGITS, {}), load_task(DIGITS, {"silo": 3})
    assert nobody.schema().digest == silo.schema().digest
    assert nobody.schema().parameters == 21_546
    assert same(nobody.initial(), silo.initial())
    assert nobody.evaluate(nobody.initial()) == silo.evaluate(silo.initial())
    assert not same(nobody.initial(), load_task(DIGITS, {"seed": 2}).initial())
    assert torch.equal(before, torch.get_rng_state()), "loading a task used the process's own randomness"


def test_nobody_has_nothing_to_train_on() -> None:
    nobody = load_task(DIGITS, {})
    with pytest.raises(TaskError, match="silo = -1 has no records"):
        nobody.train(nobody.initial(), 1)


def test_the_shares_and_the_test_set_are_all_records() -> None:
    tasks = [load_task(DIGITS, {"silos": 5, "silo": silo, "epochs": 1, "model": "linear"}) for silo in range(5)]
    examples = [task.train(task.initial(), 1).examples for task in tasks]
    assert min(examples) >= 1
    assert sum(examples) == 1797 - round(0.2 * 1797)


def test_training_is_the_same_bit_for_bit() -> None:
    """A round that is tried again, in another process or thread, must not yield a second model to compare with."""
    options: dict[str, Option] = {"silo": 1, "epochs": 2}
    one, two = load_task(DIGITS, options), load_task(DIGITS, options)
    start = one.initial()
    for array in start.values():
        array.flags.writeable = False  # as from the wire
    first = one.train(start, 1)
    one.train(first.tensors, 2)
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(two.train, start, 1).result()
    assert same(first.tensors, again.tensors)
    assert first == Trained(first.tensors, again.examples, again.metrics)
    assert same(start, two.initial())
    assert not same(first.tensors, two.train(start, 2).tensors), "another round has another order"
    assert same(first.tensors, one.train(start, 1).tensors), "no state outlives a round"


def test_what_training_returns_is_the_callers() -> None:
    task = load_task(DIGITS, {"silo": 1, "model": "linear", "epochs": 1})
    trained = task.train(task.initial(), 1)
    kept = {name: array.copy() for name, array in trained.tensors.items()}
    task.train(trained.tensors, 2)
    task.initial()["out.weight"][:] = 7
    assert same(kept, trained.tensors)
    assert not (task.initial()["out.weight"] == 7).any()


def test_a_few_rounds_of_averaging_beat_chance() -> None:
    tasks = [load_task(DIGITS, {"silos": 5, "silo": silo, "alpha": 0.5, "epochs": 3}) for silo in range(5)]
    model = tasks[0].initial()
    before = tasks[0].evaluate(model)
    assert before["accuracy"] < 0.25
    for round_ in range(1, 6):
        trained = [task.train(model, round_).tensors for task in tasks]
        assert max(float(np.abs(t[name] - model[name]).max()) for t in trained for name in model) < 1.0
        model = mean(trained)
    after = tasks[0].evaluate(model)
    assert after["accuracy"] > 0.6
    assert after["loss"] < before["loss"]


def test_a_round_is_plain_sgd_over_the_share() -> None:
    """The loop as one would write it by hand, bit for bit: what a federation trains does not change unnoticed."""
    silo = load_task(DIGITS, {"silo": 4, "seed": 3})
    assert isinstance(silo, TorchTask)
    (x, y), start = silo.share, silo.initial()
    net = Cnn()
    net.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5)
    rng = np.random.default_rng([3, 5, 2])  # seed, silo + 1, round
    for _ in range(5):
        order = torch.from_numpy(rng.permutation(len(y)))
        for begin in range(0, len(y), 16):
            rows = order[begin : begin + 16]
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            sgd.step()
    expected = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    assert same(silo.train(start, 2).tensors, expected)


def test_shadow_records_are_of_nobodys_share_nor_of_the_test_set() -> None:
    plain = [load_task(DIGITS, {"silo": silo}) for silo in range(10)]
    tasks = [load_task(DIGITS, {"silo": silo, "shadow": 0.05}) for silo in range(10)]

    def rows(part: tuple[torch.Tensor, torch.Tensor]) -> list[bytes]:
        return [bytes([int(label)]) + image.numpy().tobytes() for image, label in zip(*part, strict=True)]

    for before, after in zip(plain, tasks, strict=True):
        assert isinstance(before, TorchTask)
        assert isinstance(after, TorchTask)
        assert before.shadow is not None
        assert after.shadow is not None
        assert not len(before.shadow[1])
        n = len(before.share[1])
        assert len(after.shadow[1]) == min(n - 1, max(1, round(0.05 * n))), "and a silo keeps at least one record"
        assert sorted(rows(after.share) + rows(after.shadow)) == sorted(rows(before.share))
        assert same(before.initial(), after.initial())
        for image in after.shadow[0]:
            assert not (after.test[0] == image).flatten(1).all(1).any()
