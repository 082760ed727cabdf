"""How long the paper's reconstructions take, beside what it reports."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from silomix.attacks.remap import head_of, remap_layers, remap_models, remap_parameters
from silomix.attacks.views.classifier import Records, logits
from silomix.models.simulation.experiment import Cell, Experiment, Progress, Result, Scale, Table
from silomix.runtime.task import Tensors


def resources(scale: Scale, progress: Progress) -> Result:
    """How long the reconstructions take at the size of the paper's MNIST network."""
    progress.plan(1)
    found = progress.point("remap mnist-cnn 10 silos 300 records", time_remapping)
    rows: list[tuple[Cell, ...]] = [
        ("R_M", f"{found['R_M']:.2f} s", "about 1 hour, with R_L and training"),
        ("R_L", f"{found['R_L']:.2f} s", "about 1 hour, with R_M and training"),
        ("R_P", f"{found['R_P']:.2f} s", "about 20 hours, with training"),
        ("R_P, one candidate after the other", f"{found['loop']:.0f} s, from {found['sampled']} candidates", None),
    ]
    columns = ("attack on one target, one round", "here, one core", "paper, two GPUs, a point of figure exp:rec")
    note = (
        f"The CNN of 643,850 parameters, last layer {found['parameters']:,}, 10 silos, a shadow set of 300 records (5% "
        "of 6,000). Random models and pictures: the time does not depend on them. A point of the figure takes the "
        "attack on ten targets in ten rounds."
    )
    return Result((Table("Time to reconstruct", columns, tuple(rows)),), (), (note,), found)


def time_remapping(silos: int = 10, records: int = 300) -> dict[str, Any]:
    """Time R_M, R_L and R_P against the MNIST network, and a sample of the literal loop."""
    from silomix.models.mnist_cnn import MnistCnn

    torch.set_num_threads(1)
    net = MnistCnn()
    rng = np.random.default_rng(1)
    state = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    models: list[Tensors] = [
        {name: (array + rng.normal(0, 0.01, array.shape)).astype(np.float32) for name, array in state.items()}
        for _ in range(silos)
    ]
    average = {name: np.mean([m[name] for m in models], axis=0).astype(np.float32) for name in state}
    shadow: Records = (
        torch.from_numpy(rng.normal(size=(records, 1, 28, 28)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, 10, records)),
    )
    pieces = {name: rng.permuted(np.stack([m[name] for m in models]), axis=0) for name in head_of(net).names}
    found: dict[str, Any] = {"parameters": sum(pieces[name][0].size for name in pieces)}
    attacks: dict[str, Callable[[], object]] = {
        "R_M": lambda: remap_models(net, models, [shadow]),
        "R_L": lambda: remap_layers(net, average, pieces, [shadow]),
        "R_P": lambda: remap_parameters(net, average, pieces, [shadow]),
    }
    for name, work in attacks.items():
        began = time.perf_counter()
        work()
        found[name] = time.perf_counter() - began
    sample = 5
    began = time.perf_counter()
    for _ in range(sample):
        logits(net, average, shadow[0])
    found["sampled"] = sample
    found["loop"] = (time.perf_counter() - began) / sample * found["parameters"] * silos
    return found


RESOURCE_EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment("resources", "Time of the reconstruction attacks", "Section app:resources", resources),
)
