"""R7 in running nodes: a federation that `create` wrote holds its task's model and no other."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.nodes.federations import PARAMETERS, TASK, make, policy, rejections, run, shuffler, until
from tests.nodes.toy import task

from silomix.runtime.cli import main
from silomix.runtime.config.load import load_federation, load_node
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import Reason, UserError
from silomix.runtime.local import InProcess, create, make_node
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.store.home import Home
from silomix.runtime.store.modelfile import model_digest, read_model, write_model

OTHER = task(parameters=PARAMETERS + 1)


def test_create_pins_the_tasks_model(tmp_path: Path) -> None:
    made = make(tmp_path / "f", 3, 1)
    schema = task(parameters=PARAMETERS).schema()
    assert (made.policy.schema, made.policy.parameters) == (schema.digest.hex(), schema.parameters)
    assert load_federation(tmp_path / "f") == made


def test_create_refuses_pins_that_are_not_the_tasks(tmp_path: Path) -> None:
    wrong = replace(policy(), parameters=PARAMETERS + 5)
    with pytest.raises(UserError, match=f"has .* values, and the policy pins {PARAMETERS + 5}"):
        create(tmp_path / "f", 3, 1, policy=wrong)
    assert not (tmp_path / "f").exists()


def test_init_pins_too(tmp_path: Path) -> None:
    words = ["--silos", "3", "--shufflers", "1", "--task", TASK, "--option", f"parameters={PARAMETERS}", "--insecure"]
    assert main(["init", str(tmp_path / "f"), *words]) == 0
    assert load_federation(tmp_path / "f").policy.schema == task(parameters=PARAMETERS).schema().digest.hex()


def test_an_aggregator_does_not_start_with_another_model(tmp_path: Path) -> None:
    make(tmp_path / "f", 3, 1)
    home = Home(tmp_path / "f" / "aggregator")
    home.initial_model.write_bytes(write_model(OTHER.schema(), OTHER.initial()))
    with pytest.raises(ConfigError, match=r"initial_model: the model that is here has .* the policy pins"):
        make_node(load_node(home.directory))


def test_a_hop_holds_nothing_for_another_model(tmp_path: Path) -> None:
    """An aggregator that skips its own check announces a model that nobody agreed on."""

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("aggregator",)) as federation:
            node = federation.start("aggregator")
            assert isinstance(node, AggregatorNode)
            node.data = write_model(OTHER.schema(), OTHER.initial())  # before it runs
            node.schema, node.tensors = read_model(node.data)
            node.model = model_digest(node.schema, node.tensors)
            hop = shuffler(federation)
            await until(lambda: rejections(hop, Reason.WRONG_SCHEMA), "hop 1 refuses the attempt")
            assert hop.passage is None

    make(tmp_path / "f", 3, 1)
    run(go())
