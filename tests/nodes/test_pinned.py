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


@pytest.mark.parametrize("reason", [Reason.WRONG_MODEL, Reason.WRONG_SCHEMA])
def test_a_hop_holds_nothing_for_another_model(tmp_path: Path, reason: Reason) -> None:
    """An aggregator that skips its own check announces a model that nobody agreed on: the values, or the schema."""

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("aggregator",)) as federation:
            node = federation.start("aggregator")
            assert isinstance(node, AggregatorNode)
            node.data = write_model(OTHER.schema(), OTHER.initial())  # before it runs
            node.schema, node.tensors = read_model(node.data)
            node.model = model_digest(node.schema, node.tensors)
            hop = shuffler(federation)
            await until(lambda: rejections(hop, reason), "hop 1 refuses")
            assert hop.passage is None

    make(tmp_path / "f", 3, 1, pin_model=reason is Reason.WRONG_MODEL)
    run(go())


def test_an_aggregator_does_not_start_with_other_values(tmp_path: Path) -> None:
    """The schema is the agreed one, and so a hop would hold it; but the values are not what owners have agreed on."""
    made = make(tmp_path / "f", 3, 1)
    home = Home(tmp_path / "f" / "aggregator")
    schema, tensors = read_model(home.initial_model.read_bytes())
    assert made.policy.initial_model == model_digest(schema, tensors).hex()
    home.initial_model.write_bytes(write_model(schema, {name: value + 1 for name, value in tensors.items()}))
    with pytest.raises(ConfigError, match=r"initial_model: the model that is here has .* agreed to begin with"):
        make_node(load_node(home.directory))


def test_a_pin_that_is_not_the_tasks_model_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the one it pins"):
        create(tmp_path / "f", 3, 1, policy=replace(policy(), initial_model="00" * 32))
    assert not (tmp_path / "f").exists()


def test_model_init_writes_the_agreed_model_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another version of a library may make another model of the same seed: nothing could begin with that."""
    make(tmp_path / "f", 3, 1)
    out = tmp_path / "again.safetensors"
    words = ["model", "init", "--config", str(tmp_path / "f" / "aggregator"), "--out", str(out)]
    monkeypatch.setattr("silomix.runtime.local.initial_model", lambda _: write_model(OTHER.schema(), OTHER.initial()))
    assert main(words) == 2
    assert "agreed to begin with" in capsys.readouterr().err
    assert not out.exists()
    monkeypatch.undo()
    assert main(words) == 0
    assert out.read_bytes() == Home(tmp_path / "f" / "aggregator").initial_model.read_bytes()
