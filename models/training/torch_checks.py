"""What is handed to a TorchTask, checked before anything is trained."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from silomix.runtime.task import TaskError

Records = tuple[Tensor, Tensor]
"""Inputs and what they should give, row by row."""


def as_records(data: Records | Dataset[Any], which: str) -> Records:
    """Hold records as two tensors. A Dataset is read once, from end to end."""
    if isinstance(data, Dataset):
        size = len(data)  # type: ignore[arg-type]
        data = tuple(default_collate([data[i] for i in range(size)]))
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise TaskError(f"{which} is {type(data).__name__}: give a pair (inputs, labels), or a Dataset of such pairs")
    x, y = (torch.as_tensor(part) for part in data)
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise TaskError(f"{which} has inputs of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)}: one each")
    return x, y


def check_numbers(whole: dict[str, int], least_0: dict[str, float], below_1: dict[str, float], lr: float) -> None:
    """Refuse numbers that no training can run with, by the name of their option."""
    for name, count in whole.items():
        if count < 1:
            raise TaskError(f"{name} = {count}: it must be 1 or more")
    for name, value in least_0.items():
        if not 0 <= value < math.inf:
            raise TaskError(f"{name} = {value}: it must be 0 or more")
    for name, value in below_1.items():
        if not 0 <= value < 1:
            raise TaskError(f"{name} = {value}: it must be from 0 to below 1")
    if not 0 < lr < 1e38:  # torch computes with it in float32
        raise TaskError(f"lr = {lr}: it must be above 0 and below 1e38")


def find_device(name: str) -> torch.device:
    """Return the device of that name, if torch has it here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        raise TaskError(f"device = {name!r}: it is cpu, cuda, cuda:1 and so on, or mps")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[device.type]:
        raise TaskError(
            f"device = {name!r}: torch {torch.__version__} finds none here; set the option device to cpu on this silo, "
            "or install the torch build and driver for it"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise TaskError(f"device = {name!r}: there are {torch.cuda.device_count()}, counted from cuda:0")
    return device
