"""Reconstruction against shuffling: the paper's R_M, R_L and R_P, which put shuffled pieces back to their owner.

The adversary has a shadow set of a target silo. Of the pieces that it holds, it takes those with which a model does
best on that set. R_M picks among whole models. R_L picks among last layers, the other layers being the average. R_P
picks each parameter of the last layer by itself, the rest being the average model.

R_P as the paper prints it evaluates k * n models on the shadow set, one after the other. But only the last layer
changes, so the features before it are computed once; and a changed parameter moves a single logit, so all candidates of
a class are evaluated in one array expression. `literal` in the tests is the loop.

"best" is the accuracy on the shadow set, as the paper has it, the first of equals winning: in shuffled order, a random
one. With `by="loss"` it is the least mean loss, which has fewer ties.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from silomix.attacks.errors import AttackError, Unfit
from silomix.attacks.views.classifier import Records, each, logits
from silomix.attacks.views.view import View
from silomix.runtime.core.numbers.plan import Granularity
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.task import Tensors

Floats = npt.NDArray[np.float64]
By = Literal["accuracy", "loss"]


@dataclass(frozen=True)
class Head:
    """The last layer: a dense one, whose output are the logits."""

    weight: str
    bias: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that it consists of."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


def head_of(net: nn.Module) -> Head:
    """Find the last layer."""
    dense = [(name, layer) for name, layer in net.named_modules() if isinstance(layer, nn.Linear)]
    if not dense:
        raise Unfit("the network has no dense layer, and R_L and R_P work on the last one")
    name, layer = dense[-1]
    prefix = f"{name}." if name else ""
    return Head(f"{prefix}weight", None if layer.bias is None else f"{prefix}bias")


def head_values(net: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    """Return the last layer as the network itself has it."""
    return {name: net.get_parameter(name).detach().float().cpu().numpy() for name in head_of(net).names}


def pick(net: nn.Module, models: Sequence[Tensors], shadows: Sequence[Records], by: By = "accuracy") -> list[int]:
    """R_M: for each shadow set, the number of the model that does best on it."""
    x = torch.cat([x for x, _ in shadows])
    ends = np.cumsum([len(y) for _, y in shadows])[:-1].tolist()
    scored: list[list[float]] = [[] for _ in shadows]
    for out in each(net, models, x):
        for row, part, (_, y) in zip(scored, out.tensor_split(ends), shadows, strict=True):
            row.append(_merit(part, y, by))
    return [int(np.argmax(row)) for row in scored]  # the first of equals, as `>` in the paper's loop


def _merit(out: Tensor, y: Tensor, by: By) -> float:
    if by == "accuracy":
        return (out.argmax(1) == y).double().mean().item()
    loss = functional.cross_entropy(out.double(), y).item()
    return -loss if np.isfinite(loss) else -np.inf


def remap_models(
    net: nn.Module, models: Sequence[Tensors], shadows: Sequence[Records], by: By = "accuracy"
) -> list[Tensors]:
    """R_M against model-level shuffling: a model for each target."""
    return [models[i] for i in pick(net, models, shadows, by)]


def remap_layers(
    net: nn.Module, average: Tensors, pieces: Tensors, shadows: Sequence[Records], by: By = "accuracy"
) -> list[Tensors]:
    """R_L against layer-level shuffling: the average model with the last layer that suits the target best.

    pieces  the tensors of the last layer, each with a first axis of n, and each in an order of its own: weight and bias
            travel as two tensors, so all n * n pairs are tried
    """
    head = head_of(net)
    weights = np.asarray(pieces[head.weight], np.float64)  # (n, classes, features)
    biases = np.zeros((1, weights.shape[1])) if head.bias is None else np.asarray(pieces[head.bias], np.float64)
    rebuilt: list[Tensors] = []
    for x, y in shadows:
        products = np.einsum("rf,ncf->nrc", features(net, average, x), weights)  # (n, records, classes)
        scored = [_merit(torch.from_numpy(product + bias), y, by) for product in products for bias in biases]
        i, j = divmod(int(np.argmax(scored)), len(biases))
        model = {**average, head.weight: np.ascontiguousarray(pieces[head.weight][i])}
        if head.bias is not None:
            model[head.bias] = np.ascontiguousarray(pieces[head.bias][j])
        rebuilt.append(model)
    return rebuilt


def remap_parameters(
    net: nn.Module,
    average: Tensors,
    candidates: Tensors,
    shadows: Sequence[Records],
    by: By = "accuracy",
) -> list[Tensors]:
    """R_P against parameter-level shuffling: the average model with the last layer put together value by value.

    candidates  the tensors of the last layer, each with a first axis of n: the shuffled values of every parameter
    """
    head = head_of(net)
    rows = [np.asarray(candidates[head.weight], np.float64)]  # (n, classes, features)
    base = [np.asarray(average[head.weight], np.float64)]
    if head.bias is not None:  # a bias is the weight of a feature that is always 1
        rows.append(np.asarray(candidates[head.bias], np.float64)[:, :, None])
        base.append(np.asarray(average[head.bias], np.float64)[:, None])
    values, start = np.concatenate(rows, axis=2), np.concatenate(base, axis=1)
    rebuilt: list[Tensors] = []
    for x, y in shadows:
        inputs = features(net, average, x)
        if head.bias is not None:
            inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
        chosen = choose(values, start, inputs, y.numpy(), by).astype(np.float32)
        width = np.asarray(average[head.weight]).shape[1]
        model = {**average, head.weight: np.ascontiguousarray(chosen[:, :width])}
        if head.bias is not None:
            model[head.bias] = np.ascontiguousarray(chosen[:, width])
        rebuilt.append(model)
    return rebuilt


def features(net: nn.Module, model: Tensors, x: Tensor) -> Floats:
    """Return what goes into the last layer, and check that what comes out of it are the logits."""
    head = head_of(net)
    layer = net.get_submodule(head.weight.rpartition(".")[0])
    assert isinstance(layer, nn.Linear)
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    try:
        out = logits(net, model, x).double().numpy()
    finally:
        hook.remove()
    inputs: Floats = torch.cat(seen).double().cpu().numpy()
    again = inputs @ np.asarray(model[head.weight], np.float64).T if inputs.ndim == 2 else np.empty(0)
    if head.bias is not None and inputs.ndim == 2:
        again = again + np.asarray(model[head.bias], np.float64)
    near = max(1e-3, 4 * torch.finfo(layer.weight.dtype).eps)  # as near as the network's own type comes
    if again.shape != out.shape or not np.allclose(again, out, rtol=near, atol=near * max(1.0, np.abs(out).max())):
        raise Unfit(
            f"the network does something to the output of {head.weight}, and R_L and R_P take that for the scores"
        )
    return inputs


def choose(values: Floats, start: Floats, inputs: Floats, y: npt.NDArray[np.int64], by: By) -> Floats:
    """Choose each parameter of the last layer by itself, all others being those of `start`.

    values  (n, classes, features): what each parameter may be
    start   (classes, features): the average
    inputs  (records, features), y (records,): the shadow set as it arrives at the last layer
    """
    scores = inputs @ start.T  # (records, classes)
    own = scores[np.arange(len(y)), y]
    chosen = np.empty_like(start)
    for c in range(len(start)):
        # What the logit of class c becomes: (n, features, records), and no other logit changes.
        moved = scores[:, c] + (values[:, c, :, None] - start[c, :, None]) * inputs.T
        if by == "accuracy":
            # argmax takes the first of equals, so a lower class wins a tie and a higher one loses it.
            lower, higher = scores[:, :c].max(1, initial=-np.inf), scores[:, c + 1 :].max(1, initial=-np.inf)
            wins = (moved > lower) & (moved >= higher)
            merit = np.where(y == c, wins, ~wins & (_runner_up(scores, c) == y)).sum(axis=2)
        else:
            rest = np.logaddexp.reduce(np.delete(scores, c, axis=1), axis=1)
            merit = (np.where(y == c, moved, own) - np.logaddexp(rest, moved)).sum(axis=2)
        best = merit.argmax(axis=0)  # (features,): the first of equals
        chosen[c] = values[best, c, np.arange(values.shape[2])]
    return chosen


def _runner_up(scores: Floats, c: int) -> npt.NDArray[np.int64]:
    """Return the class of the highest logit but for class c."""
    masked = scores.copy()
    masked[:, c] = -np.inf
    best: npt.NDArray[np.int64] = masked.argmax(axis=1)
    return best


def reconstruct(view: View, shadows: Sequence[Records], net: nn.Module, by: By = "accuracy") -> list[Tensors]:
    """Make the best local model for each silo of the cohort; `shadows` has one set for each, in the same order."""
    n = len(view.cohort)
    if view.rows is None:
        if view.mean is None:
            raise AttackError("the view holds neither bodies nor a sum: was the round captured to its end?")
        return [view.mean] * n
    if len(view.rows) != n:
        raise AttackError(f"{len(view.rows)} bodies for a cohort of {n}")
    if view.mixed is Granularity.NONE:
        return [view.whole(row) for row in view.rows]
    if len(shadows) != n:
        raise AttackError(f"{len(shadows)} shadow sets for a cohort of {n}: remapping takes one for each silo")
    if view.mixed is Granularity.MODEL:
        return remap_models(net, [view.whole(row) for row in view.rows], shadows, by)
    head, own = sent_head(net, view.schema), head_values(net)
    average = {**own, **view.whole(view.rows.mean(axis=0, dtype=np.float64))}
    pieces = {name: view.tensors(name) if name in head else np.repeat(own[name][None], n, axis=0) for name in own}
    if view.mixed is Granularity.PARAMETER:
        return remap_parameters(net, average, pieces, shadows, by)
    return remap_layers(net, average, pieces, shadows, by)


def sent_head(net: nn.Module, schema: Schema) -> frozenset[str]:
    """Name the tensors of the last layer that silos send; a network that keeps all of it to itself is refused."""
    names = head_of(net).names
    sent = frozenset(names) & {spec.name for spec in schema.tensors}
    if not sent:
        raise Unfit(f"{' and '.join(names)} do not travel, and R_L and R_P pick among what is sent of that layer")
    return sent
