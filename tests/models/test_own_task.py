"""A user's own task: the example of docs/models.md runs, mistakes are told with file and fix, and harm nobody else."""

import logging
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if os.environ.get("CI") != "true":  # there, a missing torch is a failure and not a reason to skip
    pytest.importorskip("torch")

from silomix.runtime.config.load import load_node
from silomix.runtime.core.numbers.schema import Dtype, Schema, TensorSpec
from silomix.runtime.core.policy import Policy
from silomix.runtime.local import InProcess, create
from silomix.runtime.nodes import aggregator
from silomix.runtime.nodes.silo import SiloNode
from silomix.runtime.task import TaskError, Trained, difference, evaluate_task, load_task, train_task

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"
WAIT_S = 60.0


# The example.


def examples() -> dict[str, str]:
    """The page's programs, by the name that each has in its first line."""
    found = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return {name: text for text, name in found}


def test_a_torch_model_with_its_data_takes_less_than_twenty_lines() -> None:
    assert list(examples()) == ["flowers.py", "train_flowers.py"]
    lines = [line for line in examples()["flowers.py"].splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) < 20


def test_the_example_learns_in_a_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in examples().items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)  # nobody watches its end
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path("train_flowers.py")
    said = capsys.readouterr().out
    printed = re.fullmatch(r"4 rounds: \{'accuracy': ([\d.]+), 'loss': ([\d.]+)\}\n", said)
    assert printed is not None, said
    assert float(printed[1]) > 0.8


# Mistakes at the start.

GOOD = """
import numpy as np
from silomix.runtime.task import Trained
from silomix.runtime.core.numbers.schema import Schema, TensorSpec

class Mine:
    def schema(self):
        return Schema((TensorSpec("w", (2,)),))
    def initial(self):
        return {"w": np.zeros(2, np.float32)}
    def train(self, tensors, round):
        return Trained(dict(tensors), 1, {})
    def evaluate(self, tensors):
        return {"accuracy": 0.0, "loss": 0.0}

def task(silo=-1):
    return Mine()
"""


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("class Mine:", "class Mine", "cannot be imported: SyntaxError: expected ':' ({file}, line 6)"),
        ("import numpy as np", "import nunpy as np", "there is no module nunpy; install its package or correct"),
        ("class Mine:", "class Mine(Undefined):", "NameError: name 'Undefined' is not defined ({file}, line 6)"),
        (
            "    def evaluate",
            "    def evalute",
            "returned Mine, which has no method evaluate() (made by {path}, in {file})",
        ),
        ("(self, tensors, round)", "(self, tensors)", "Mine.train(tensors) must take (tensors, round) (made by"),
        (
            "return Mine()",
            "return Mine(silo)",
            "does not accept its options: Mine() takes no arguments ({file}, line 17)",
        ),
        ("return Mine()", "return {}['x']", "cannot be made: KeyError: 'x' ({file}, line 17)"),
        ("return Mine()", "open('/nowhere')", "No such file or directory: '/nowhere' ({file}, line 17)"),
        ("return Mine()", "return None", "returned NoneType, which has no method schema() (made by {path}, in {file})"),
        ("(2, np.float32)", "(3, np.float32)", "initial() returns w of shape (3,), the schema: (2,)"),
        ("(2, np.float32)", "(2)", "initial() returns w as float64, the schema: F32 (float32)"),
        ("np.zeros(2,", "np.full(2, np.nan,", "initial() returns w with NaN or infinity in it"),
        (
            "return Schema((",
            "return list((",
            "schema() returns list; return a silomix.runtime.core.numbers.codec.Schema",
        ),
        (
            'return {"w": np.zeros(2, np.float32)}',
            "return 1 / 0",
            "ZeroDivisionError: division by zero ({file}, line 10)",
        ),
    ],
)
def test_a_task_file_with_an_error_ends_in_its_name_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, right: str, message: str
) -> None:
    assert wrong in GOOD
    name = f"mine_{abs(hash((wrong, right)))}"
    file = tmp_path / f"{name}.py"
    file.write_text(GOOD.replace(wrong, right))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TaskError) as caught:
        load_task(f"{name}:task", {})
    assert message.format(file=file, path=f"{name}:task") in str(caught.value)


# Mistakes in a round.


class Adder:
    """Adds 1/2 to two numbers, unless it has something wrong with it."""

    def __init__(self, silo: int, wrong: str) -> None:
        self.silo, self.wrong = silo, wrong

    def schema(self) -> Schema:
        return Schema((TensorSpec("w", (2,)), TensorSpec("empty", (0,)), TensorSpec("half", (3,), Dtype.BF16)))

    def initial(self) -> dict[str, np.ndarray[Any, Any]]:
        return {"w": np.zeros(2, np.float32), "empty": np.zeros(0, np.float32), "half": np.zeros(3, np.uint16)}

    def train(self, tensors: Any, round: int) -> Any:  # noqa: A002
        trained = {**tensors, "w": tensors["w"] + np.float32(0.5)}
        match self.wrong:
            case "raises":
                raise KeyError("no such column")
            case "shape":
                trained["w"] = np.zeros(3, np.float32)
            case "name":
                del trained["w"]
            case "nan":
                trained["w"] = np.full(2, np.nan, np.float32)
            case "tuple":
                return trained, 1
            case "examples":
                return Trained(trained, 1.5, {})  # type: ignore[arg-type]
        return Trained(trained, 1, {})

    def evaluate(self, tensors: Any) -> dict[str, float]:
        return {"accuracy": 0.0, "loss": 0.0}


WRONGS = {
    "raises": "Adder.train failed in round 1: KeyError: 'no such column'",
    "shape": "train() returns w of shape (3,), the schema: (2,) (Adder.train in",
    "name": "the schema has the tensor w, and train() does not return it (Adder.train in",
    "tuple": "train() returned tuple; return silomix.runtime.task.Trained (Adder.train in",
    "examples": "train() returned examples = 1.5; return how many records it trained on",
}


def adder(silo: int = -1, wrong: str = "") -> Adder:
    return Adder(silo, wrong)


@pytest.mark.parametrize(("wrong", "message"), WRONGS.items())
def test_what_is_wrong_with_a_training_is_said_with_its_file(wrong: str, message: str) -> None:
    task = adder(0, wrong)
    with pytest.raises(TaskError) as caught:
        train_task(task, task.initial(), 1)
    assert message in str(caught.value)
    assert __file__ in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, 'evaluate() returned NoneType; return a dict with "accuracy"'),
        ({"loss": 1.0}, "evaluate() returned ['loss']; return a dict with \"accuracy\""),
        ({"accuracy": "high"}, "evaluate() returned something that is no number: could not convert string to float"),
        (KeyError("column"), "Measured.evaluate failed: KeyError: 'column' ("),
    ],
)
def test_what_is_wrong_with_an_evaluation_is_said_with_its_file(returned: Any, says: str) -> None:
    class Measured(Adder):
        def evaluate(self, tensors: Any) -> Any:
            if isinstance(returned, Exception):
                raise returned
            return returned

    with pytest.raises(TaskError) as caught:
        evaluate_task(Measured(0, ""), {})
    assert says in str(caught.value)
    assert __file__ in str(caught.value)


W, B = TensorSpec("w", (2, 3)), TensorSpec("b", (3,))


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ([TensorSpec("w", (3, 3)), B], "w has the shape (3, 3), and this task's has (2, 3)"),
        ([TensorSpec("v", (2, 3)), B], "tensor 0 is v, and this task's is w"),
        ([TensorSpec("w", (2, 3), Dtype.F16), B], "w is a parameter of type F16, and this task's is a parameter of"),
        ([W, TensorSpec("b", (3,), buffer=True)], "b is a buffer of type F32, and this task's is a parameter of type"),
        ([W], "this task's b of shape (3,) is not in it"),
        ([W, B, TensorSpec("c", ())], "c of shape () is one tensor more than this task has"),
        ([W, B], ""),
    ],
)
def test_a_model_that_is_not_this_tasks_differs_in_a_tensor(theirs: list[TensorSpec], says: str) -> None:
    assert difference(Schema((W, B)), Schema(tuple(theirs))).startswith(says)
    assert bool(difference(Schema((W, B)), Schema(tuple(theirs)))) == bool(says)


def test_a_module_in_the_working_directory_needs_no_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_me.py").write_text(GOOD)
    (tmp_path / "json.py").write_text("raise AssertionError('this is not the json that everybody means')")
    with pytest.raises(TaskError, match="there is no module beside_me"):
        load_task("beside_me:task", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert load_task("beside_me:task", {}).schema().parameters == 2
    assert sys.path[-1] == str(tmp_path)  # last: no file there takes the place of an installed module
    monkeypatch.delitem(sys.modules, "beside_me")


async def test_silos_with_broken_tasks_do_not_harm_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)
    broken = dict(zip(range(3, 6), ("raises", "shape", "nan"), strict=True))
    create(
        tmp_path / "fed",
        silos=6,
        shufflers=1,
        policy=Policy(task=f"{__name__}:adder", rounds=2, minimum_cohort=3, quorum=0.5, deadline_s=20, release_s=20),
        silo_options=lambda index: {"silo": index, "wrong": broken.get(index, "")},
    )

    with caplog.at_level(logging.ERROR, "silomix"):
        async with InProcess(tmp_path / "fed") as federation:
            rounds = await federation.finished()
            silos = [federation.nodes[name] for name in federation.federation.silo_names]
            assert all(isinstance(silo, SiloNode) for silo in silos)
            tensors = federation.aggregator.tensors
    assert [r.cohort for r in rounds] == [3, 3]
    np.testing.assert_allclose(tensors["w"], 1.0, atol=1e-4)
    assert tensors["empty"].shape == (0,)
    lines = [r for r in caplog.records if r.levelno == logging.ERROR]
    said = {record.__dict__["silomix_fields"]["node"]: record.message for record in lines}
    assert "not in this round: Adder.train failed in round 2: KeyError: 'no such column'" in said["silo-04"]
    assert "train() returns w of shape (3,)" in said["silo-05"]
    assert "w holds 2 value(s) that are not finite" in said["silo-06"]
    assert set(said) == {"silo-04", "silo-05", "silo-06"}


def test_a_silo_whose_task_does_not_load_does_not_start(tmp_path: Path) -> None:
    policy = Policy(task=f"{__name__}:adder", task_options={})
    create(tmp_path / "fed", silos=3, shufflers=1, policy=policy, silo_options=lambda index: {"sillo": index})
    with pytest.raises(TaskError, match=r"has no option sillo \(did you mean silo\?\)"):
        SiloNode(load_node(tmp_path / "fed" / "silo-01"))
