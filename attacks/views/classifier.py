"""Any classifier in torch, asked what it makes of records: one model after the other, without touching its weights."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from silomix.attacks.errors import AttackError
from silomix.runtime.task import Tensors

Records = tuple[Tensor, Tensor]
"""Inputs and their classes."""
BATCH = 2048


def logits(net: nn.Module, model: Tensors, x: Tensor) -> Tensor:
    """Run one model over records, in evaluation mode, without touching the network's own weights.

    The model holds what travelled, in floats; it is rounded to the network's own types. What is not in it, because it
    is frozen or a counter, is the network's own.
    """
    state, device = _state(net, model), next((p.device for p in net.parameters()), x.device)
    training = net.training
    net.eval()
    try:
        with torch.inference_mode():
            parts = torch.split(x, BATCH)
            return torch.cat([_scores(functional_call(net, state, (part.to(device),))).cpu() for part in parts])
    finally:
        net.train(training)


def _state(net: nn.Module, model: Tensors) -> dict[str, Tensor]:
    parameters, buffers = net.named_parameters(remove_duplicate=False), net.named_buffers(remove_duplicate=False)
    own: dict[str, Tensor] = {**dict(parameters), **dict(buffers)}
    for name, array in model.items():
        if name not in own and array.size:  # an empty one marks which tensors were frozen
            raise AttackError(f"the model has a tensor {name}, and the network has none of that name")
    return {name: torch.from_numpy(np.array(array)).to(own[name]) for name, array in model.items() if name in own}


def _scores(out: Tensor) -> Tensor:
    """Take a network's output for scores of the classes: one output for a record is the second class's of two."""
    scores: object = getattr(out, "logits", out)  # what the networks of transformers return has them by that name
    if not isinstance(scores, Tensor) or scores.ndim not in (1, 2):
        shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise AttackError(f"the network's output is {shape}: source inference takes a row of scores for each record")
    scores = scores[:, None] if scores.ndim == 1 else scores
    return torch.cat([torch.zeros_like(scores), scores], 1) if scores.shape[1] == 1 else scores


def each(net: nn.Module, models: Sequence[Tensors], x: Tensor) -> Iterable[Tensor]:
    """Yield every model's logits. Equal models are run once, so that their losses are equal to the last bit."""
    seen: dict[bytes, Tensor] = {}
    for model in models:
        key = b"".join(np.ascontiguousarray(array).tobytes() for array in model.values())
        if key not in seen:
            seen[key] = logits(net, model, x)
        yield seen[key]
