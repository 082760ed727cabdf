"""Source inference on models as users bring them, beside one that is written here from the paper's definition alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.attacks.own import NETS, task
from tests.tools import first
from torch import Tensor, nn

from silomix.attacks.audit.campaign import Campaign, run
from silomix.attacks.collusion import opened, quiet, run_colluding
from silomix.attacks.errors import AttackError
from silomix.attacks.remap import reconstruct
from silomix.attacks.sia import draw_targets, losses
from silomix.attacks.views.captured import Scene
from silomix.attacks.views.simulated import Truth, view_of
from silomix.attacks.views.victims import victims_of
from silomix.attacks.views.view import CONTROLS, PROTECTED, Mode
from silomix.models.torch_task import TorchTask
from silomix.runtime.config.kinds import Role
from silomix.runtime.core.numbers.schema import Dtype, add, as_dtype, as_float, subtract
from silomix.runtime.core.policy import Policy
from silomix.runtime.local import create

SILOS = 5
KINDS = [("plain", "bfloat16"), ("frozen", "float32"), ("adapted", "bfloat16"), ("tempered", "float16")]


def options(net: str, dtype: str) -> dict[str, Any]:
    return {"net": net, "dtype": dtype, "silos": SILOS, "seed": 2}


State = dict[str, Tensor]


def by_the_book(net: nn.Module, before: State, updates: list[State], x: Tensor, y: Tensor) -> Tensor:
    """The loss of each record under each silo's model: Hu et al.'s attack names the silo of the least."""
    rows = []
    for update in updates:
        moved = {name: (before[name].float() + change.float()).to(change.dtype) for name, change in update.items()}
        net.load_state_dict({name: value for name, value in moved.items() if value.numel()}, strict=False)
        with torch.no_grad():
            rows.append(nn.functional.cross_entropy(net.eval()(x).double(), y, reduction="none"))
    return torch.stack(rows)


@pytest.fixture(
    scope="module",
    params=[*KINDS[:2], *first(0, ((kind,) for kind in KINDS[2:]))],
    ids=["-".join(kind) for kind in KINDS],
)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation that ran for real, whose silos kept their updates and whose hops their keys."""
    home = tmp_path_factory.mktemp("own") / "fed"
    policy = Policy(task="tests.attacks.own:task", task_options=options(*request.param), rounds=2, deadline_s=60)
    seen = {Role.AGGREGATOR: {"capture": "capture"}, Role.SHUFFLER: {"capture": "capture"}}
    with quiet():
        create(home, SILOS, 2, policy=policy, settings={**seen, Role.SILO: {"keep_updates": True}})
        run_colluding(home)
    return home


def test_ours_names_the_silo_that_an_attack_by_the_book_names(home: Path) -> None:
    """On the files that silos kept, read by safetensors itself: the same losses, and so the same guesses."""
    given = Scene(home).federation.policy.task_options
    net = task(**given, silo=-1).net  # type: ignore[arg-type]
    shares = [task(**given, silo=silo).share for silo in range(SILOS)]  # type: ignore[arg-type]
    targets = draw_targets(shares, seed=1)
    before = load_file(home / "aggregator" / "initial.safetensors")
    updates = [load_file(home / f"silo-{i + 1:02}" / "state" / "update-1.safetensors") for i in range(SILOS)]
    expected = by_the_book(net, before, updates, *targets.records).numpy()

    scene = Scene(home)
    view = dict(scene.kept())[1]
    table = losses(scene.victims()[0].net, reconstruct(view, [], net), targets.records)
    assert np.allclose(table, expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(table.argmin(0), expected.argmin(0))
    assert (expected.argmin(0) == targets.source).mean() > 0.4  # an attack that works: a random guess has 0.2


def test_on_its_captures_too_the_sum_hides_and_every_hop_together_does_not(home: Path) -> None:
    scene = Scene(home)
    kept = dict(scene.kept())
    for number, view in opened(scene):
        true = kept[number].rows
        assert view.rows is not None
        assert true is not None
        step = 0.5 / 9999 + 1e-6
        assert np.abs(view.rows - true)[np.abs(true) < 1].max() <= step
    for _, view in opened(scene, scene.federation.chain[:-1]):
        assert view.rows is None
    for number, view in scene.captured():
        assert view.rows is None
        assert view.mean is not None
        plain = kept[number]
        assert plain.rows is not None
        mean = plain.whole(np.clip(plain.rows, -1, 1).mean(axis=0))
        coarse = 2.0**-8  # bfloat16 has eight bits, and both the mean change and the model are rounded to it
        assert all(np.allclose(view.mean[name], mean[name], rtol=coarse, atol=coarse) for name in mean)


SHORT = [(net, dtype) for net in ("norm", "plain") for dtype in ("bfloat16", "float16", "float64")]


@pytest.mark.parametrize(("net", "dtype"), first(6, [SHORT[0], *((net, "float32") for net in NETS), *SHORT[1:]]))
def test_every_kind_of_network_can_be_attacked_in_simulation(net: str, dtype: str) -> None:
    policy = Policy(task="tests.attacks.own:task", rounds=1, task_options=options(net, dtype))
    found = run(Campaign(policy, silos=SILOS, seed=2))
    for mode in (Mode.NONE, Mode.MODEL, *CONTROLS):
        assert found.outcomes[mode].last.interval[0] > 1 / SILOS
    for mode in PROTECTED:
        assert found.outcomes[mode].last.holds(1 / SILOS)
    dense = {"plain", "frozen", "norm"}
    for mode in (Mode.LAYER, Mode.PARAMETER):
        assert (mode in found.outcomes) == (net in dense)
        assert (mode in found.unfit) == (net not in dense)


REASONS = {
    "frozen-head": "2.weight and 2.bias do not travel",
    "adapted": "2.base.weight and 2.base.bias do not travel",
    "tempered": "does something to the output of body.2.weight",
    "convolution": "no dense layer",
}


@pytest.mark.parametrize("net", first(2, REASONS))
def test_what_cannot_be_mounted_says_why(net: str) -> None:
    policy = Policy(task="tests.attacks.own:task", rounds=2, task_options=options(net, "float32"))
    unfit = run(Campaign(policy, silos=SILOS, seed=2, modes=(Mode.NONE, Mode.LAYER), baselines=True)).unfit
    assert REASONS[net] in unfit[Mode.LAYER]


def test_a_bias_alone_is_remapped_if_it_alone_travels() -> None:
    """As in BitFit: the weights of the last layer are the network's own, and the biases come shuffled."""
    made = task(silos=SILOS, seed=2)
    net = made.net
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name == "2.bias")
    tuned = TorchTask(net, made.share, made.test)
    before = tuned.initial()
    trained = tuple(
        {**before, "2.bias": before["2.bias"] + np.float32(3) * np.eye(10, dtype=np.float32)[c]} for c in range(SILOS)
    )
    truth = Truth(tuned.schema(), tuple(range(SILOS)), before, trained, bound=4.0)
    x, y = made.test
    shadows = [(x[y == c], y[y == c]) for c in range(SILOS)]
    for mode in (Mode.MODEL, Mode.LAYER):
        models = reconstruct(view_of(truth, mode, np.random.default_rng(1)), shadows, net)
        assert [int((m["2.bias"] - before["2.bias"]).argmax()) for m in models] == list(range(SILOS))
        own = net.get_parameter("2.weight").detach().numpy()
        assert all(np.array_equal(m.get("2.weight", own), own) for m in models)


class Binary(nn.Module):
    """One output for each record, as a binary cross-entropy wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)[:, 0]  # type: ignore[no-any-return]


def binary(y: Tensor, net: nn.Module | None = None) -> TorchTask:
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(1))
    loss = nn.functional.binary_cross_entropy_with_logits
    return TorchTask(net or Binary(), (x, y), (x, y), loss=loss, measure=lambda scores, y: {"accuracy": 0.0})


def test_one_output_is_the_second_class_of_two() -> None:
    (victim,) = victims_of("binary", [binary(torch.tensor([0.0, 1.0, 1.0]))])
    (x, y), net = victim.share, victim.net
    expected = nn.functional.binary_cross_entropy_with_logits(net(x), y.double().float(), reduction="none")
    assert np.allclose(losses(net, [{}], (x, y))[0], expected.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.tensor([0.5, 1.5, 2.0]), "one class each"),
        (torch.tensor([0.0, 4.0, 2.0]), "scores 2 classes"),
    ],
)
def test_a_task_that_is_no_classifier_is_told_so(y: Tensor, message: str) -> None:
    with pytest.raises(AttackError, match=message):
        victims_of("mine:task", [binary(y)])


@pytest.mark.parametrize("dtype", Dtype)
def test_a_tensor_without_a_shape_stays_an_array(dtype: Dtype) -> None:
    """numpy makes a scalar of it whenever it computes, and a scalar cannot be made read-only."""
    one = as_dtype(np.asarray(1.5, np.float64 if dtype is Dtype.F64 else np.float32), dtype)
    for found in (one, add(one, one, dtype), subtract(one, one, dtype), as_float(one, dtype)):
        assert isinstance(found, np.ndarray)
        assert found.shape == ()
    assert as_float(add(one, one, dtype), dtype) == 3.0
