"""The paper's models: their sizes (appendix), their shapes, and the tasks that train them on small files."""

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if os.environ.get("CI") != "true":  # there, a missing torch is a failure and not a reason to skip
    pytest.importorskip("torch")

import safetensors.torch
import torch
from tests.models.data.small_data import write_small
from torch import nn

from silomix.models import export
from silomix.models.built_in import crop
from silomix.models.cifar_cnn import CifarCnn
from silomix.models.har_cnn import HarCnn
from silomix.models.mlp import Mlp
from silomix.models.mnist_cnn import MnistCnn
from silomix.models.resnet import ResNet18
from silomix.models.torch_task import TorchTask
from silomix.models.transformer import Classifier, load_pretrained
from silomix.runtime.cli import main
from silomix.runtime.core.policy import Policy
from silomix.runtime.local import create
from silomix.runtime.store.modelfile import write_model
from silomix.runtime.task import TaskError, load_task

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("net", "expected", "record"),
    [
        (MnistCnn, 643_850, (1, 28, 28)),
        (CifarCnn, 940_362, (3, 32, 32)),
        (Mlp, 14_210, (60,)),
        (HarCnn, 250_246, (9, 128)),
    ],
)
def test_the_papers_networks_have_the_papers_sizes(net: Any, expected: int, record: tuple[int, ...]) -> None:
    made = net()
    assert parameters(made) == expected
    assert made(torch.zeros(2, *record)).shape == (2, 6 if net is HarCnn else 10)


def test_resnet_has_the_papers_weights_and_buffers() -> None:
    net = ResNet18()
    buffers = dict(net.named_buffers())
    counters = [name for name, buffer in buffers.items() if not buffer.is_floating_point()]
    assert parameters(net) == 11_227_812
    assert sum(buffer.numel() for buffer in buffers.values()) == 9_620
    task = TorchTask(net, None, (torch.zeros(1, 3, 32, 32), torch.tensor([99])))
    assert task.schema().parameters == 11_237_432 - len(counters)  # an average of counters means nothing
    assert len(counters) == 20
    assert set(task.local) == set(counters)
    assert ResNet18(100, enlarge_to=64).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 100)


def test_the_transformer_has_distilberts_shape() -> None:
    net = Classifier(20)
    assert parameters(net) == 66_362_880 + (768 + 1) * 768 + (768 + 1) * 20
    names = set(net.state_dict())
    assert {
        "distilbert.embeddings.word_embeddings.weight",
        "distilbert.embeddings.LayerNorm.bias",
        "distilbert.transformer.layer.5.attention.out_lin.bias",
        "distilbert.transformer.layer.0.sa_layer_norm.weight",
        "distilbert.transformer.layer.0.ffn.lin2.weight",
        "distilbert.transformer.layer.0.output_layer_norm.weight",
        "pre_classifier.weight",
        "classifier.bias",
    } <= names
    assert len(names) == 104


def test_padding_changes_nothing() -> None:
    net = Classifier(20, "tiny").eval()
    ids = torch.tensor([[101, 500, 600, 102]])
    padded = torch.tensor([[101, 500, 600, 102, 0, 0, 0]])
    torch.testing.assert_close(net(ids), net(padded))


def test_pretrained_weights_come_from_a_local_file(tmp_path: Path) -> None:
    source, net = Classifier(20, "tiny"), Classifier(20, "tiny")
    body = {name.removeprefix("distilbert."): t for name, t in source.distilbert.state_dict().items()}
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file({**body, "vocab_transform.weight": torch.zeros(2)}, file)
    lacking = load_pretrained(net, file)
    assert lacking == ["pre_classifier.weight", "pre_classifier.bias", "classifier.weight", "classifier.bias"]
    for name, tensor in source.distilbert.state_dict().items():
        assert torch.equal(tensor, net.distilbert.state_dict()[name])
    wider = {**body, "embeddings.LayerNorm.bias": torch.zeros(768)}
    safetensors.torch.save_file(wider, file)
    with pytest.raises(TaskError, match=r"LayerNorm\.bias has shape \(768,\), here \(64,\); set the option `size`"):
        load_pretrained(net, file)
    safetensors.torch.save_file({"conv.weight": torch.zeros(2)}, file)
    with pytest.raises(TaskError, match=r"conv\.weight is not in this network"):
        load_pretrained(net, file)
    file.write_bytes(b"garbage")
    with pytest.raises(TaskError, match="no safetensors file that can be read"):
        load_pretrained(net, file)


# The tasks.


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("data")
    write_small(directory)
    return str(directory)


TASKS: dict[str, dict[str, Any]] = {
    "mnist_cnn": {"dropout": 0.3, "crop_to": 20},
    "mnist_cnn:fashion-mnist": {"dataset": "fashion-mnist", "shadow": 0.05},
    "cifar_cnn": {},
    "resnet": {"partition": "iid"},
    "mlp": {"dataset": "breast-cancer"},
    "mlp:synthetic": {"records": 200, "test_records": 100},
    "mlp:newsgroups": {"dataset": "newsgroups"},
    "har_cnn": {"partition": "natural"},
    "har_cnn:watch": {"dataset": "watch", "partition": "natural"},
    "transformer": {"length": 8},
}


@pytest.mark.parametrize("name", TASKS)
def test_built_in_tasks_train_and_evaluate(name: str, data: str) -> None:
    path = f"silomix.models.{name.partition(':')[0]}:task"
    options = {"silos": 3, "directory": data, "batch": 16, **TASKS[name]}
    nobody = load_task(path, options)
    assert isinstance(nobody, TorchTask)
    start = nobody.initial()
    silos = [load_task(path, {**options, "silo": silo}) for silo in range(3 if "shadow" in options else 1)]
    assert all(silo.schema().digest == nobody.schema().digest for silo in silos)
    trained = silos[0].train(start, 1)
    assert any(not np.array_equal(trained.tensors[tensor], start[tensor]) for tensor in start)
    assert 0 <= nobody.evaluate(trained.tensors)["accuracy"] <= 1
    if "shadow" in options:
        own = {row.numpy().tobytes() for silo in silos for row in silo.share[0]}  # type: ignore[attr-defined]
        for silo in silos:
            shadow = silo.shadow[0]  # type: ignore[attr-defined]
            assert len(shadow) == max(1, round(0.05 * (len(silo.share[1]) + len(shadow))))  # type: ignore[attr-defined]
            assert own.isdisjoint(row.numpy().tobytes() for row in shadow)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("mnist_cnn", {"dataset": "cifar10"}, "this network is for mnist and fashion-mnist"),
        ("cifar_cnn", {"dataset": "mnist"}, "this network is for cifar10"),
        ("resnet", {"dataset": "mnist"}, "this network is for cifar100 and cifar10"),
        ("mlp", {"dataset": "mnist"}, "this network is for synthetic, breast-cancer"),
        ("har_cnn", {"dataset": "mnist"}, "this network is for har and watch"),
        ("transformer", {"size": "huge"}, "size = 'huge': it is one of distilbert, tiny"),
        ("transformer", {"length": 2}, "length = 2: a text of this size has 3 to 128 tokens"),
        ("mnist_cnn", {"records": 10**9}, "1000000000 records were asked for, and there are"),
        ("mnist_cnn", {"seed": -1}, "seed = -1: it must be 0 or more"),
        ("mnist_cnn", {"partition": "natural"}, "these records do not say where they were collected"),
        ("mnist_cnn", {"learning_rate": 0.1}, "has no option learning_rate"),
        ("mnist_cnn", {"lr": "0.1"}, "option lr is '0.1', which is not of type float; accepted: silos: int = 10"),
        ("mnist_cnn", {"directory": "/nowhere"}, "run `silomix data get mnist`, or put into /nowhere/mnist: train-"),
        ("har_cnn", {"partition": "natural", "silos": 4}, "silos = 4: the records come from 3 places"),
    ],
)
def test_options_that_do_not_fit_are_refused(path: str, options: dict[str, Any], message: str, data: str) -> None:
    with pytest.raises(TaskError) as caught:
        load_task(f"silomix.models.{path}:task", {"directory": data, "silo": 0, "silos": 3, **options})
    assert message in str(caught.value)


def test_fewer_records_are_the_same_for_everybody(data: str) -> None:
    options: dict[str, Any] = {"directory": data, "silos": 3, "records": 60, "partition": "iid"}
    tasks = [load_task("silomix.models.mnist_cnn:task", {**options, "silo": silo}) for silo in range(3)]
    rows = [row.numpy().tobytes() for task in tasks for row in task.share[0]]  # type: ignore[attr-defined]
    assert len(rows) == len(set(rows)) == 60


def test_tasks_of_one_process_share_their_test_set(data: str) -> None:
    tasks = [load_task("silomix.models.mnist_cnn:task", {"directory": data, "silos": 3, "silo": i}) for i in range(2)]
    one, two = (task.test[0].data_ptr() for task in tasks)  # type: ignore[attr-defined]
    assert one == two


def test_a_crop_shows_one_square() -> None:
    seen = crop(5)(torch.ones(4, 1, 8, 8), np.random.default_rng(1))
    assert seen.sum(dim=(1, 2, 3)).tolist() == [25.0] * 4
    assert len({tuple(image.flatten().tolist()) for image in seen}) > 1
    with pytest.raises(ValueError, match="crop = 9: the images have 8 by 8 pixels"):
        crop(9)(torch.ones(4, 1, 8, 8), np.random.default_rng(1))


# Export.


def test_a_model_is_exported_for_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str], data: str) -> None:
    options: dict[str, Any] = {"silos": 3, "directory": data, "trainable": "fc.*"}
    policy = Policy(task="silomix.models.resnet:task", task_options=options)
    create(tmp_path / "fed", silos=3, shufflers=1, policy=policy)
    model = tmp_path / "fed" / "aggregator" / "initial.safetensors"
    command = ["model", "export", "--model", str(model), "--out", str(tmp_path / "part.pt")]
    assert main(command) == 0
    assert "it lacks the frozen tensors: name the federation with --config" in capsys.readouterr().out
    assert set(torch.load(tmp_path / "part.pt")) == {"fc.weight", "fc.bias"}
    command[-1] = str(tmp_path / "whole.pt")
    assert main([*command, "--config", str(tmp_path / "fed"), "--json"]) == 0
    assert '"values": 11237432' in capsys.readouterr().out
    net = ResNet18(100)
    net.load_state_dict(torch.load(tmp_path / "whole.pt"))  # strict: nothing is missing, nothing is left over
    task = load_task(policy.task, options)
    np.testing.assert_array_equal(net.fc.weight.detach().numpy(), task.initial()["fc.weight"])


def test_export_refuses_what_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.safetensors").write_bytes(gzip.compress(b"no"))
    out = tmp_path / "x.pt"
    assert main(["model", "export", "--model", str(tmp_path / "x.safetensors"), "--out", str(out)]) == 2
    assert f"{tmp_path / 'x.safetensors'} is not a model file of silomix" in capsys.readouterr().err
    assert not out.exists()


def test_bfloat16_is_exported_as_it_is() -> None:
    net = nn.Linear(2, 1, dtype=torch.bfloat16)
    task = TorchTask(net, None, (torch.ones(1, 2, dtype=torch.bfloat16), torch.tensor([0])))
    plain, lacking = export.state_dict(write_model(task.schema(), task.initial()))
    assert not lacking
    assert torch.equal(plain["weight"], net.weight)
