"""Other defences, to compare with: what they do to source inference, and what they cost in accuracy.

The paper's appendix has them: three against overfitting (random cropping, dropout, weight decay), one against the
reconstruction of data (InstaHide) and DP-SGD. None hides which model is whose, so none helps until it has ruined the
model. Each is an option of local training, and what is attacked is unprotected: mode `none`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from silomix.attacks.audit.campaign import Campaign, options_of
from silomix.attacks.views.classifier import Records
from silomix.models import digits
from silomix.models.built_in import crop
from silomix.models.torch_task import TorchTask, Training, from_seed

OWN_SHARE = 0.65
"""The largest part of a blend that one picture has: InstaHide's."""
Option = str | int | float | bool


class Dropped(digits.Cnn):
    """The demo's network with dropout before its last layer."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Score the classes."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)  # (n, 1, 8, 8) -> (n, 16, 4, 4)
        x = functional.relu(self.conv2(x))  # (n, 32, 4, 4)
        x = functional.dropout(functional.relu(self.hidden(x.flatten(1))), self.p, self.training)  # (n, 32)
        scores: Tensor = self.out(x)  # (n, 10)
        return scores


def blend(records: Records, public: Tensor, k: int, seed: int) -> Records:
    """Blend each picture with k - 1 public ones, once and for good, as InstaHide does; labels stay the silo's own.

    Here the public pictures are those of the test set, and signs are not flipped: that would hide pictures from people,
    and here it is about the silo. With k = 1 nothing is blended.
    """
    x, y = records
    if k == 1 or not len(y):
        return records
    rng = np.random.default_rng([seed, k])
    parts = np.sort(rng.dirichlet(np.ones(k), len(y)), axis=1)[:, ::-1]  # the silo's own picture has the largest part
    parts[:, 0] = np.minimum(parts[:, 0], OWN_SHARE)
    parts = parts / parts.sum(axis=1, keepdims=True)
    mixed = x * torch.from_numpy(parts[:, 0].copy()).to(x.dtype).view(-1, 1, 1, 1)
    for j in range(1, k):
        picked = public[torch.from_numpy(rng.integers(0, len(public), len(y)))]
        mixed = mixed + picked * torch.from_numpy(parts[:, j].copy()).to(x.dtype).view(-1, 1, 1, 1)
    return mixed, y


def task(
    silos: int = 10,
    silo: int = -1,
    alpha: float = 0.1,
    seed: int = 1,
    crop_to: int = 0,
    dropout: float = 0.0,
    instahide: int = 1,
    shadow: float = 0.0,
    **training: Unpack[Training],
) -> TorchTask:
    """Make the demo's task with a defence: crop_to pixels, dropout, blends of `instahide` pictures, SGD's options."""
    if instahide < 1:
        raise ValueError(f"instahide = {instahide}: it is the number of pictures in a blend, 1 for none")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout = {dropout}: it is a probability, from 0 to below 1")
    plain = digits.task(silos, silo, alpha, seed, shadow=shadow)
    options: Training = {"epochs": 5, "batch": 16, "lr": 0.05, "momentum": 0.5, "threads": 1, **training}
    return TorchTask(
        from_seed(seed, lambda: Dropped(dropout)) if dropout else plain.net,
        blend(plain.share, plain.test[0], instahide, seed * 1000 + silo + 1),
        plain.test,
        shadow=plain.shadow,
        silo=silo,
        seed=seed,
        augment=crop(crop_to) if crop_to else None,
        **options,
    )


@dataclass(frozen=True)
class Defence:
    """One defence at one strength."""

    name: str
    strength: str
    options: Mapping[str, Option]
    paper_mnist: tuple[float, float] | None = None
    """The paper's model accuracy and SIA accuracy on MNIST, in percent, where it has this one."""

    def applied(self, campaign: Campaign) -> Campaign:
        """Return the campaign against silos that defend themselves so."""
        policy = replace(campaign.policy, task="silomix.attacks.paper.defences:task")
        return replace(campaign, policy=options_of(policy, **self.options))


def defences(rounds: int) -> tuple[Defence, ...]:
    """List the defences. Digits have 8 pixels a side where MNIST has 28, so the crops of 24, 20, 16 are 7, 6, 5."""
    private: dict[str, Option] = {"dp_rounds": rounds, "dp_seeded": True, "dp_range": "off"}
    return (
        Defence("none", "", {}, (97.22, 45.01)),
        Defence("random cropping", "7 of 8 pixels", {"crop_to": 7}, (92.56, 50.24)),
        Defence("random cropping", "6 of 8 pixels", {"crop_to": 6}, (83.30, 53.17)),
        Defence("random cropping", "5 of 8 pixels", {"crop_to": 5}, (62.15, 56.10)),
        Defence("dropout", "p = 0.2", {"dropout": 0.2}, (96.45, 55.70)),
        Defence("dropout", "p = 0.5", {"dropout": 0.5}, (96.28, 50.92)),
        Defence("dropout", "p = 0.8", {"dropout": 0.8}, (96.42, 45.17)),
        Defence("weight decay", "0.001", {"weight_decay": 0.001}),
        Defence("weight decay", "0.01", {"weight_decay": 0.01}),
        Defence("weight decay", "0.1", {"weight_decay": 0.1}),
        Defence("InstaHide", "k = 1", {"instahide": 1}, (97.48, 50.3)),
        Defence("InstaHide", "k = 2", {"instahide": 2}, (86.65, 49.9)),
        Defence("InstaHide", "k = 3", {"instahide": 3}, (81.52, 50.9)),
        Defence("InstaHide", "k = 4", {"instahide": 4}, (78.65, 50.45)),
        Defence("InstaHide", "k = 5", {"instahide": 5}, (78.37, 52.71)),
        Defence("DP-SGD", "epsilon = 5", {"dp_epsilon": 5.0, **private}),
        Defence("DP-SGD", "epsilon = 1", {"dp_epsilon": 1.0, **private}),
    )
