"""R_M, R_L and R_P against their literal loops, as the paper's appendix prints them."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from tests.attacks.networks import Net, random_models, records
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from silomix.attacks.errors import AttackError
from silomix.attacks.remap import By, features, head_of, remap_layers, remap_models, remap_parameters
from silomix.attacks.views.classifier import Records
from silomix.runtime.task import Tensors

Model = dict[str, np.ndarray]


def merit(net: nn.Module, model: Tensors, shadow: Records, by: By) -> float:
    """A(w, D) of the algorithms, in double precision."""
    state = {name: torch.from_numpy(np.asarray(array, np.float64)) for name, array in model.items()}
    with torch.inference_mode():
        out = functional_call(net.double(), state, (shadow[0].double(),))
    if by == "accuracy":
        return float((out.argmax(1) == shadow[1]).double().mean().item())
    return -functional.cross_entropy(out, shadow[1]).item()


def judge(net: nn.Module, shadow: Records, by: By) -> Callable[[Tensors], float]:
    return lambda model: merit(net, model, shadow, by)


def literal_model(models: Sequence[Tensors], merit_of: Callable[[Tensors], float]) -> Tensors:
    """Alg. R_M."""
    best = models[0]
    for model in models[1:]:
        if merit_of(model) > merit_of(best):
            best = model
    return best


def literal_parameters(
    average: Tensors, names: Sequence[str], candidates: Tensors, merit_of: Callable[[Tensors], float]
) -> Tensors:
    """Alg. R_P with REP: one parameter of the last layer after the other, each candidate in a model of its own."""
    rebuilt = {name: np.array(array, np.float64) for name, array in average.items()}
    for name in names:
        for at in np.ndindex(average[name].shape):

            def replaced(j: int, name: str = name, at: tuple[int, ...] = at) -> Model:
                model = {n: np.array(a, np.float64) for n, a in average.items()}
                model[name][at] = candidates[name][(j, *at)]
                return model

            best, most = 0, merit_of(replaced(0))
            for j in range(1, len(candidates[name])):
                if (found := merit_of(replaced(j))) > most:
                    best, most = j, found
            rebuilt[name][at] = candidates[name][(best, *at)]
    return {name: array.astype(np.float32) for name, array in rebuilt.items()}


def pieces(net: nn.Module, n: int, seed: int) -> tuple[Tensors, Tensors]:
    """The average of n models, and the shuffled values of their last layer."""
    rng = np.random.default_rng(seed)
    models = random_models(net, n, seed, scale=1.0)
    average = {k: np.mean([m[k] for m in models], axis=0).astype(np.float32) for k in models[0]}
    return average, {name: rng.permuted(np.stack([m[name] for m in models]), axis=0) for name in head_of(net).names}


@pytest.mark.parametrize("by", ["accuracy", "loss"])
@pytest.mark.parametrize("bias", [True, False])
def test_all_candidates_at_once_choose_what_the_loop_chooses(by: By, bias: bool) -> None:
    net = Net(bias).double()
    average, candidates = pieces(net, 4, 1)
    shadows = [records(7, i) for i in range(2)]
    net64 = Net(bias).double()
    doubled = [(x.double(), y) for x, y in shadows]
    found = remap_parameters(net64, {k: v.astype(np.float64) for k, v in average.items()}, candidates, doubled, by)
    assert len(found) == 2
    for one, shadow in zip(found, shadows, strict=True):
        names = head_of(net).names
        expected = literal_parameters(average, names, candidates, judge(net, shadow, by))
        assert all(np.array_equal(one[name].astype(np.float32), expected[name]) for name in expected)


@pytest.mark.parametrize("by", ["accuracy", "loss"])
def test_a_tied_logit_goes_to_the_lower_class_as_in_argmax(by: By) -> None:
    """Weights of whole numbers make ties between classes: the array expression and argmax must break them alike."""
    net = Net().double()
    rng = np.random.default_rng(3)
    whole = {k: rng.integers(-1, 2, v.shape).astype(np.float64) for k, v in random_models(net, 1)[0].items()}
    candidates = {name: rng.integers(-2, 3, (3, *whole[name].shape)).astype(np.float64) for name in head_of(net).names}
    x = torch.from_numpy(rng.integers(-1, 2, (30, 6)).astype(np.float64))
    shadow = (x, torch.from_numpy(rng.integers(0, 4, 30)))
    (found,) = remap_parameters(net, whole, candidates, [shadow], by)
    expected = literal_parameters(whole, head_of(net).names, candidates, judge(net, shadow, by))
    if by == "accuracy":
        assert all(np.array_equal(found[k], expected[k]) for k in expected)
    else:  # equal losses are equal up to rounding: compare what the choice achieves
        assert merit(net, found, shadow, by) == pytest.approx(merit(net, expected, shadow, by), abs=1e-9)


@pytest.mark.parametrize("by", ["accuracy", "loss"])
def test_the_best_whole_model_is_picked_for_each_target(by: By) -> None:
    net = Net()
    models = random_models(net, 6, scale=1.0)
    shadows = [records(9, i) for i in range(4)]
    found = remap_models(net, models, shadows, by)
    for one, shadow in zip(found, shadows, strict=True):
        expected = literal_model(models, judge(Net(), shadow, by))
        assert one is expected


@pytest.mark.parametrize("by", ["accuracy", "loss"])
def test_the_best_last_layer_is_picked_among_all_pairs_of_weight_and_bias(by: By) -> None:
    net = Net().double()
    average, candidates = pieces(net, 4, 7)
    average = {k: v.astype(np.float64) for k, v in average.items()}
    shadow = records(11, 1)
    pairs = [
        {**average, "out.weight": w, "out.bias": b} for w in candidates["out.weight"] for b in candidates["out.bias"]
    ]
    (found,) = remap_layers(net, average, candidates, [(shadow[0].double(), shadow[1])], by)
    expected = literal_model(pairs, judge(net, shadow, by))
    assert all(np.array_equal(found[k], expected[k]) for k in expected)


def test_the_true_last_layer_is_found_if_its_silo_is_unlike_the_others() -> None:
    """Silo c says class c whatever it sees; shadow set c has nothing else."""
    net = Net()
    models = random_models(net, 4, scale=0.01)
    for c, model in enumerate(models):
        model["out.bias"][c] = 2.0
    average = {k: np.mean([m[k] for m in models], axis=0).astype(np.float32) for k in models[0]}
    rng = np.random.default_rng(0)
    stacked = {k: np.stack([m[k] for m in models]) for k in ("out.weight", "out.bias")}
    shadows = [(x, torch.full_like(y, c)) for c in range(4) for x, y in [records(10, c)]]
    layers = remap_layers(net, average, {k: rng.permutation(v) for k, v in stacked.items()}, shadows)
    assert [int(model["out.bias"].argmax()) for model in layers] == [0, 1, 2, 3]
    values = remap_parameters(net, average, {k: rng.permuted(v, axis=0) for k, v in stacked.items()}, shadows)
    assert [float(model["out.bias"][c]) for c, model in enumerate(values)] == [2.0] * 4


def test_a_network_without_a_last_dense_layer_is_refused() -> None:
    with pytest.raises(AttackError, match="dense"):
        head_of(nn.Conv2d(1, 1, 1))

    class Scaled(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    net = Scaled()
    with pytest.raises(AttackError, match="scores"):
        features(net, random_models(net, 1)[0], records(5)[0])
