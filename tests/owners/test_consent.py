"""What an owner agreed to run, and a command of its own that is asked before each round."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.nodes.federations import make

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_node
from silomix.runtime.consent import source_of, task_problem
from silomix.runtime.core.policy import Policy
from silomix.runtime.factory import TaskError
from silomix.runtime.local import InProcess, create
from silomix.runtime.nodes.silo import SiloNode

TASK = """
from tests.nodes.toy import task as toy

def task(silo=0):
    return toy(silo, 50)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of one's own, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "a_task_of_ones_own.py"
    file.write_text(TASK)
    return file


def test_a_file_of_ones_own_is_known_by_its_source(own: Path) -> None:
    found = source_of("a_task_of_ones_own:task")
    assert found.package == ""
    pinned = Policy(task="a_task_of_ones_own:task", task_digest=found.digest)
    assert not task_problem(pinned)
    own.write_text(TASK + "# changed\n")
    assert "the owners agreed on" in task_problem(pinned)
    assert not task_problem(replace(pinned, task_digest=""))


def test_nothing_of_a_task_runs_before_it_is_known(own: Path) -> None:
    own.write_text("raise SystemExit('I ran')")
    assert source_of("a_task_of_ones_own:task").digest
    assert "a_task_of_ones_own" not in sys.modules
    with pytest.raises(TaskError, match="there is no module"):
        source_of("a_task_that_is_not_there:task")


def test_a_package_is_known_by_its_version_and_all_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = source_of("yaml.loader:task")  # any installed package will do
    name, _, version = found.package.partition("==")
    assert (name, bool(version)) == ("PyYAML", True)
    wrong = Policy(task="yaml.loader:task", task_package="PyYAML==0.1")
    assert "agreed on PyYAML==0.1: install that" in task_problem(wrong)
    package = tmp_path / "a_package" / "inside"
    package.mkdir(parents=True)
    for file in (tmp_path / "a_package" / "__init__.py", package / "__init__.py", package / "tasks.py"):
        file.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    before = source_of("a_package.inside.tasks:task")
    (tmp_path / "a_package" / "helper.py").write_text("x = 1\n")
    assert source_of("a_package.inside.tasks:task") != before


def test_a_silo_refuses_a_task_that_was_not_agreed_on(own: Path, tmp_path: Path) -> None:
    policy = Policy(task="a_task_of_ones_own:task", rounds=1)
    create(tmp_path / "f", 3, 1, policy=policy, silo_options=lambda index: {"silo": index})
    config = load_node(tmp_path / "f" / "silo-01")
    assert config.federation.policy.task_digest
    own.write_text(TASK + "# changed\n")
    with pytest.raises(TaskError, match="the owners agreed on"):
        SiloNode(config)


async def test_a_silo_takes_part_only_if_its_owners_command_says_so(tmp_path: Path) -> None:
    """silo-03's owner says yes, silo-04's no; the others have no such command."""
    told = tmp_path / "told.json"
    say_yes = [sys.executable, "-c", f"import sys; open({str(told)!r}, 'a').write(sys.stdin.read())"]
    say_no = [sys.executable, "-c", "import sys; sys.exit('not on a Tuesday')"]
    home = tmp_path / "f"
    federation = make(home, 4, 1, rounds=2, quorum=0.75, deadline_s=60)
    for name, command in (("silo-03", say_yes), ("silo-04", say_no)):
        file = home / name / "node.toml"
        file.write_text(file.read_text().replace("# before_round = []", f"before_round = {json.dumps(command)}"))
        assert load_node(home / name).before_round == tuple(command)
    log = tmp_path / "log.txt"
    async with InProcess(home, log=log) as running:
        assert [done.cohort for done in await running.finished()] == [3, 3]
    asked = [json.loads(line) for line in told.read_text().splitlines()]
    assert [one["round"] for one in asked] == [1, 2]  # once a round
    assert asked[0]["federation_digest"] == federation.digest.hex()
    assert "not in this round: before_round" in log.read_text()
    assert "says no, with code 1: not on a Tuesday" in log.read_text()


def test_only_silos_are_asked(tmp_path: Path) -> None:
    make(tmp_path / "f", 3, 1, settings={Role.SILO: {"before_round": ["/bin/true"]}})
    assert load_node(tmp_path / "f" / "silo-01").before_round == ("/bin/true",)
    assert "before_round" not in (tmp_path / "f" / "shuffler-1" / "node.toml").read_text()
