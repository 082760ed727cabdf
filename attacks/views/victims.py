"""The silos under attack, as an experiment knows them: any classifier in torch, with its records.

A task may hold its labels as a column, or as floats for a loss with one output. Here they are classes, one for each
record, and a task that is no classifier is told so in a sentence before anything is trained.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from silomix.attacks.errors import AttackError
from silomix.attacks.views.classifier import Records, logits
from silomix.runtime.task import Task


@dataclass(frozen=True)
class Victim:
    """What an experiment knows of a silo: its records, and the network that they train."""

    net: nn.Module
    share: Records
    """What it trains on."""
    test: Records
    """What nobody trains on."""
    shadow: Records | None = None
    """Records of its kind that are in neither set."""


def victims_of(path: str, tasks: Iterable[Task]) -> list[Victim]:
    """Take from each silo's task what attacks need. One network serves all: a large one is held once."""
    found: list[Victim] = []
    for task in tasks:
        if not all(hasattr(task, part) for part in ("net", "share", "test")):
            raise AttackError(
                f"the task {path} has no net, share and test: the attacks need a torch network and its records; make "
                "the task with silomix.models.torch_task.TorchTask"
            )
        shadow = getattr(task, "shadow", None)
        share, test = (_classes(path, getattr(task, part)) for part in ("share", "test"))
        net = found[0].net if found else task.net  # type: ignore[attr-defined] # just checked
        found.append(Victim(net, share, test, None if shadow is None else _classes(path, shadow)))
    _try_one(path, found)
    return found


def _classes(path: str, records: Records) -> Records:
    x, y = records
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or (y.is_floating_point() and not torch.equal(y, y.round())):
        raise AttackError(
            f"the task {path} has labels of shape {tuple(records[1].shape[1:])} ({records[1].dtype}): source inference "
            "is for classifiers, whose records have one class each"
        )
    return x, y.long()


def _try_one(path: str, victims: list[Victim]) -> None:
    """Put one record through the network: its output must be scores of the classes."""
    for victim in victims:
        x, y = victim.share
        if len(y):
            classes = logits(victim.net, {}, x[:1]).shape[1]
            found: Tensor = torch.cat([y for one in victims for y in (one.share[1], one.test[1])])
            if found.min() < 0 or found.max() >= classes:
                raise AttackError(
                    f"the task {path} has labels from {int(found.min())} to {int(found.max())}, and its network scores "
                    f"{classes} classes: source inference is for classifiers"
                )
            return
