"""`silomix.run` with tasks that are objects of this process: what may be given, what comes back, what is said."""

import asyncio
import copy
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nodes.toy import Toy

import silomix
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import RunError
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.policy import Server
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.front import run as front_run
from silomix.runtime.front.given import UNNAMED, tasks_of
from silomix.runtime.front.run import Hope, News
from silomix.runtime.nodes import aggregator
from silomix.runtime.observe.remarks import Remark
from silomix.runtime.results import find
from silomix.runtime.task import TaskError, load_task


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches the end of these."""
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)


def toy(silo: int = -1, parameters: int = 100, broken: bool = False) -> Toy:
    return Toy(silo, parameters, broken=broken)


def mean_of(rounds: int, silos: int) -> Any:
    return sum(np.mean([Toy(silo, 100).update(t)["a"] for silo in range(silos)], axis=0) for t in range(1, rounds + 1))


def test_a_function_makes_the_task_of_each_silo() -> None:
    done = silomix.run(toy, silos=4, rounds=2)
    assert [(one.round, one.cohort) for one in done.history] == [(1, 4), (2, 4)]
    np.testing.assert_allclose(done.model["a"], mean_of(2, 4), atol=2e-4)
    assert (done.accuracy_before, done.accuracy, done.abandoned) == (0.5, 0.5, [])
    assert done.directory is None


def test_a_list_has_one_task_for_each_silo(tmp_path: Path) -> None:
    done = silomix.run([toy(silo) for silo in range(3)], rounds=1, out=tmp_path / "run")
    np.testing.assert_allclose(done.model["a"], mean_of(1, 3), atol=2e-4)
    assert done.directory == tmp_path / "run"
    place = find(tmp_path / "run")
    assert place.federation.policy.task == UNNAMED
    with pytest.raises(TaskError, match="were objects of a Python program"):
        load_task(UNNAMED, {"silo": 1})


def test_a_notebook_has_a_loop_already() -> None:
    async def cell() -> silomix.Run:
        return silomix.run(lambda silo: toy(silo), silos=3, rounds=1)

    assert asyncio.run(cell()).history[0].cohort == 3


def test_a_run_at_level_malicious_needs_no_more_than_the_word() -> None:
    done = silomix.run(toy, 3, 1, policy=silomix.Policy(level=Level.MALICIOUS))
    np.testing.assert_allclose(done.model["a"], mean_of(1, 3), atol=2e-4)
    assert (done.history[0].attempts, done.history[0].cohort) == (1, 3)


def test_files_come_where_one_looks(tmp_path: Path) -> None:
    done = silomix.run(toy, 3, 2, out=tmp_path, policy=silomix.Policy(precision=5, task_options={"parameters": 50}))
    assert {path.name for path in tmp_path.iterdir()} == {
        *("federation", "final.safetensors", "best.safetensors", "history.jsonl"),
    }
    assert (tmp_path / "best.safetensors").read_bytes() == find(tmp_path).models()[
        1
    ].read_bytes()  # the first of equals
    assert sum(array.size for array in done.model.values()) == 50
    assert find(tmp_path).federation.policy.precision == 5
    again = silomix.run(tmp_path)  # a federation that has run: nothing is left to do, and the task is in a module
    assert [one.round for one in again.history] == [1, 2]
    assert np.array_equal(again.model["a"], done.model["a"])


@pytest.mark.parametrize(
    ("given", "silos", "says"),
    [
        ([toy(0), toy(1), toy(2)], 4, "3 tasks for 4 silos: give one for each silo"),
        (toy(0), 3, "Toy is one task, and 3 silos need one each"),
        (lambda: toy(), 3, "has no option silo, so all silos would train on the same records"),
        (3.5, 3, "a task is given as float"),
        ([toy(0), 5, toy(1)], 3, "task 1 of the list returned int, which has no method schema"),
    ],
)
def test_what_is_no_task_is_refused(given: Any, silos: int, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        silomix.run(given, silos, 1)


def test_a_class_is_a_function_that_makes_tasks() -> None:
    class Own(Toy):
        def __init__(self, silo: int) -> None:
            super().__init__(silo, 20)

    tasks, count = tasks_of(Own, 3, {})
    assert count == 3
    assert tasks.silos is not None
    assert [task.silo for task in tasks.silos if isinstance(task, Own)] == [0, 1, 2]


def test_a_shared_task_says_its_own_name() -> None:
    tasks, _ = tasks_of([toy(0), toy(1), toy(2)], None, {})
    assert tasks.judge.__class__ is Toy
    assert tasks.silos is not None
    assert tasks.silos[0] is tasks.judge


# --- nothing fails in silence -----------------------------------------------------------------------------------------


def test_silos_that_cannot_train_end_the_run_with_what_they_say(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"round 1 cannot come to a sum: .* silo-0\d says: b holds 1 value"):
        silomix.run(toy, 3, 5, out=tmp_path / "run", options={"broken": True})
    assert not (tmp_path / "run" / "final.safetensors").exists()


def test_what_is_clipped_is_a_warning() -> None:
    seen: list[News] = []
    policy = silomix.Policy(bound=0.01)
    with pytest.warns(silomix.SilomixWarning, match=r"3 silos clipped b .*to the bound 0.01.*policy.bound = 0.5"):
        silomix.run(toy, 3, 1, policy=policy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = silomix.run(toy, 3, 1, policy=policy, show=seen.append)  # whoever watches is told instead
    assert {remark.node for news in seen for remark in news.remarks} == {"silo-01", "silo-02", "silo-03"}
    clipped = next(remark for remark in done.remarks if remark.node == "silo-03" and remark.fields["tensor"] == "b")
    assert clipped.fields == {
        "round": 1,
        "tensor": "b",
        "clipped": 7,
        "share": 1.0,
        "bound": 0.01,
        "automatic": False,
        "largest": 0.25,
        "suggested_bound": 0.5,
    }


def test_trouble_between_nodes_that_they_got_over_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a hop may not answer in time: the log has it, and whoever takes warnings for errors goes on."""

    async def watch(running: Any, show: Any) -> None:
        for message in ("hop does not answer: no answer in 2 s", "clipped: all of it"):
            show(News(remarks=(Remark("aggregator", "error", message),)))
        await running.finished()

    monkeypatch.setattr(front_run, "_watch", watch)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        done = silomix.run(toy, 3, 1)
    assert [str(one.message) for one in said] == ["aggregator: clipped: all of it"]
    assert len(done.remarks) == 2


def test_a_policy_that_cannot_be_is_said_by_its_key_alone(tmp_path: Path) -> None:
    """The file in which it would have stood does not exist."""
    with pytest.raises(ConfigError, match=r'^policy.server: found "median" of one mean; give policy.group_size'):
        silomix.run(toy, 3, 1, out=tmp_path / "run", policy=silomix.Policy(server=Server.MEDIAN))
    with pytest.raises(ConfigError, match=r"^silos: found 2; give 3 to 1000"):
        silomix.run(toy, 2, 1)
    assert not list(tmp_path.rglob("*.toml"))


def test_an_evaluation_without_accuracy_is_refused_before_anything_starts(tmp_path: Path) -> None:
    class Blind(Toy):
        def evaluate(self, tensors: Any) -> dict[str, float]:
            return {"loss": 1.0}

    with pytest.raises(TaskError, match=r'returned \[\'loss\'\]; return a dict with "accuracy".*Blind.evaluate in'):
        silomix.run([Blind(silo, 20) for silo in range(3)], rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def _federation(silos: int, **policy: Any) -> Federation:
    members = tuple(Member(f"silo-{i:02}", bytes([i]) * 32) for i in range(1, silos + 1))
    servers = Member("aggregator", b"a" * 32), (Member("shuffler-1", b"s" * 32),)
    return Federation("f", *servers, members, silomix.Policy(**{"deadline_s": 60, **policy}))


def test_hope_lasts_as_long_as_silos_enough_are_left() -> None:
    def out(silo: int, round_: int, **fields: Any) -> Remark:
        return Remark(f"silo-{silo:02}", "error", "not in this round: NaN", {"round": round_, **fields})

    hope = Hope(_federation(5))  # a sum takes three
    hope.check([out(1, 1), out(2, 1), out(1, 1)])
    hope.check([out(3, 2), out(4, 2)])  # another round
    hope.check([out(3, 1, reason="cohort_closed")])  # its attempt was over: it may be in the next
    hope.check([Remark("silo-03", "warning", "clipped: 3 values", {"round": 1})])
    with pytest.raises(RunError, match="round 1 cannot come to a sum: 2 silos are left in it, and a sum takes 3"):
        hope.check([out(4, 1, reason="not_finite")])


def test_nobody_waits_an_hour_for_a_silo_that_has_said_why_it_is_out() -> None:
    out = Remark("silo-02", "error", "not in this round: one record alone", {"round": 1})
    with pytest.raises(RunError, match=r"wait 3600 s for silo-02. silo-02 says: one record alone.*quorum = 0.8 lets 4"):
        Hope(_federation(5, deadline_s=3600)).check([out])
    Hope(_federation(5, deadline_s=3600, quorum=0.8)).check([out])
    Hope(_federation(5, deadline_s=60)).check([out])


async def test_compiling_ends_when_the_run_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    started: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()
    original = asyncio.create_subprocess_exec

    async def seen(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await original(*command, **options)
        await started.put(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", seen)
    warming = asyncio.ensure_future(front_run._warm())
    process = await started.get()
    warming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await warming
    assert process.returncode == -signal.SIGKILL


# --- torch ------------------------------------------------------------------------------------------------------------


def test_records_are_dealt_out_once_each() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.arange(100.0).reshape(50, 2), torch.randint(2, (50,))
    task = silomix.TorchTask(torch.nn.Linear(2, 2), (x, y), (x, y), batch=4)
    shares = task.deal(4)
    assert [len(one.share[1]) for one in shares] == [13, 13, 12, 12]
    assert sorted(torch.cat([one.share[0] for one in shares])[:, 0].tolist()) == x[:, 0].tolist()
    assert [one.silo for one in shares] == [0, 1, 2, 3]
    first = task.initial()
    shares[0].train(first, 1)
    for one in (task, shares[1]):  # each has a network of its own
        assert all(np.array_equal(one.state.read()[name], first[name]) for name in first)
    with pytest.raises(TaskError, match="50 records cannot be dealt out to 51 silos"):
        task.deal(51)


def test_a_network_is_trained_and_comes_back_as_a_state_dict() -> None:
    torch = pytest.importorskip("torch")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=draw)
    y = (x.sum(1) > 0).long()
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    other = copy.deepcopy(net)
    task = silomix.TorchTask(net, (x[:200], y[:200]), (x[200:], y[200:]), batch=16, lr=0.05)
    done = silomix.run(task, silos=4, rounds=3, policy=silomix.Policy(bound=4.0))
    assert done.accuracy is not None
    assert done.accuracy_before is not None
    assert done.accuracy > max(0.8, done.accuracy_before)
    other.load_state_dict(done.state_dict())
    scores = other.eval()(x[200:]).argmax(1)
    assert float((scores == y[200:]).float().mean()) == pytest.approx(done.accuracy)
