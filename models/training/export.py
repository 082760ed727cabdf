"""From a federation's model file to what torch loads: `model.load_state_dict(torch.load("model.pt"))`."""

import argparse
import io
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from silomix.models.torch_task import TorchTask
from silomix.models.training.torch_state import FROZEN, to_torch
from silomix.runtime.store.modelfile import read_model
from silomix.runtime.task import Task


def state_dict(model: bytes, task: Task | None = None) -> tuple[dict[str, Tensor], list[str]]:
    """Return a plain state dict, and what it lacks.

    What did not travel (frozen and tied tensors, counters) is not in the file. A TorchTask has it, and makes the state
    dict complete.
    """
    schema, tensors = read_model(model)
    if isinstance(task, TorchTask):
        return {name: tensor.cpu().clone() for name, tensor in task.load(tensors).state_dict().items()}, []
    marks = [spec.name for spec in schema.tensors if spec.name.startswith(FROZEN) and spec.shape == (0,)]
    plain = {s.name: to_torch(tensors[s.name], s.dtype) for s in schema.tensors if s.name not in marks}
    return plain, ["the frozen tensors"] * bool(marks)


def export(args: argparse.Namespace) -> int:
    """Handle `silomix model export`."""
    from silomix.runtime.config.load import load_federation, load_node
    from silomix.runtime.store.files import write_atomically
    from silomix.runtime.store.home import NODE_FILE
    from silomix.runtime.task import load_task

    task = None
    if args.config is not None:
        home: Path = args.config if args.config.is_dir() else args.config.parent
        federation = load_node(home).federation if (home / NODE_FILE).exists() else load_federation(args.config)
        task = load_task(federation.policy.task, federation.policy.task_options)
    tensors, lacking = state_dict(args.model.read_bytes(), task)
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    write_atomically(args.out, buffer.getvalue())
    values = sum(tensor.numel() for tensor in tensors.values())
    if args.json:
        told = {"out": str(args.out), "tensors": len(tensors), "values": values, "lacks": lacking}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        sys.stdout.write(f"{args.out}: {len(tensors)} tensors with {values:,} values, for load_state_dict()\n")
        if lacking:
            sys.stdout.write(f"it lacks {', '.join(lacking)}: name the federation with --config to have them\n")
    return 0
