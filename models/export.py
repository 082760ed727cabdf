"""From a federation's model file to what torch loads: `model.load_state_dict(torch.load("model.pt"))`."""

import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from silomix.models.torch_task import TorchTask
from silomix.models.training.torch_state import FROZEN, to_torch
from silomix.runtime.results import find
from silomix.runtime.store.files import write_atomically
from silomix.runtime.store.modelfile import read_model
from silomix.runtime.task import Task, load_task

MODEL = "model.pt"
"""What the state dict is called if nobody says otherwise."""


def state_dict(
    model: bytes, task: Task | None = None, file: Path | str = "this"
) -> tuple[dict[str, Tensor], list[str]]:
    """Return a plain state dict, and what it lacks.

    What did not travel (frozen and tied tensors, counters) is not in the file. A TorchTask has it, and makes the state
    dict complete.
    """
    schema, tensors = read_model(model, file)
    if isinstance(task, TorchTask):
        return {name: tensor.cpu().clone() for name, tensor in task.load(tensors).state_dict().items()}, []
    marks = [spec.name for spec in schema.tensors if spec.name.startswith(FROZEN) and spec.shape == (0,)]
    plain = {s.name: to_torch(tensors[s.name], s.dtype) for s in schema.tensors if s.name not in marks}
    return plain, ["the frozen tensors"] * bool(marks)


@dataclass(frozen=True)
class Exported:
    """What was written: where, and of which model."""

    out: Path
    model: Path
    tensors: int
    values: int
    lacks: list[str]
    """What of the network's state is not in it."""


def export(config: Path | None, model: Path | None = None, out: Path | None = None) -> Exported:
    """Write a model file as a torch state dict: by default the trained model of a federation, into its directory."""
    task = None
    if config is not None:
        place = find(config)
        task = load_task(place.federation.policy.task, place.federation.policy.task_options)
        model = model or place.trained()
        out = out or place.results / MODEL
    assert model is not None
    assert out is not None
    tensors, lacks = state_dict(model.read_bytes(), task, model)
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    write_atomically(out, buffer.getvalue())
    return Exported(out, model, len(tensors), sum(tensor.numel() for tensor in tensors.values()), lacks)
