"""The shadow set: the little that an adversary may already know of a silo.

It is like the silo's own records, and has none of them. A task with the option `shadow` holds such records back from
training; otherwise records that no silo trains on are drawn from the test set, in the proportions of the silo's
classes. A noisy one is what an adversary has who knows the records only about.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cos, pi, sin

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from silomix.attacks.errors import AttackError
from silomix.attacks.views.classifier import Records
from silomix.attacks.views.victims import Victim

FRACTION = 0.05
"""Size of a shadow set in parts of the silo's records: the paper's; it also takes 0.01 and 0.005."""


def shadow_set(victim: Victim, seed: int, fraction: float = FRACTION, noise: str = "clean") -> Records:
    """Draw a shadow set of a silo: a fraction of the number of its records, at least one, none twice."""
    if not 0 < fraction <= 1:
        raise AttackError(f"a shadow set of {fraction}: give a share of the silo's records above 0, such as 0.05")
    rng = np.random.default_rng([seed, 0x5AD])
    own = victim.shadow
    if own is not None and len(own[1]):
        count = round(fraction * (len(own[1]) + len(victim.share[1])))
        (x, y), rows = own, rng.permutation(len(own[1]))[: max(1, count)]
    else:
        (x, y), rows = victim.test, _like(victim.share[1].numpy(), victim.test[1].numpy(), fraction, rng)
    picked = torch.from_numpy(rows)
    return distort(x[picked], noise, rng), y[picked]


def _like(
    own: npt.NDArray[np.int64], held_out: npt.NDArray[np.int64], fraction: float, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Find held-out records of the silo's classes, in their proportions."""
    wanted = rng.choice(own, max(1, round(fraction * len(own))))
    rows = []
    for label, count in zip(*np.unique(wanted, return_counts=True), strict=True):
        pool = np.flatnonzero(held_out == label)
        rows.append(rng.choice(pool, min(int(count), len(pool)), replace=False))
    found: npt.NDArray[np.int64] = np.concatenate(rows)
    if not len(found):
        raise AttackError("the held-out records have none of the silo's classes: give the task the option shadow")
    return found


def shadow_sets(
    victims: Sequence[Victim], seed: int, fraction: float = FRACTION, noise: str = "clean"
) -> list[Records]:
    """Draw one shadow set for each silo: n adversaries of the paper's kind, each with one target."""
    return [shadow_set(victim, seed * 1000 + i, fraction, noise) for i, victim in enumerate(victims)]


def distort(x: Tensor, noise: str, rng: np.random.Generator) -> Tensor:
    """Blur what the adversary knows, by one of `NOISES`."""
    if noise not in NOISES:
        raise AttackError(f"noise = {noise!r}: known are {', '.join(NOISES)}")
    if noise != "clean" and x.dim() != 4:
        raise AttackError(f"noise = {noise!r} is for images; these records have the shape {tuple(x.shape[1:])}")
    if noise == "clean":
        return x
    low, high = x.min(), x.max()  # pixels may be normalised: noise is made in 0..1
    scale = (high - low).clamp_min(1e-9)
    return NOISES[noise]((x - low) / scale, rng) * scale + low


def _rotate(x: Tensor, degrees: float) -> Tensor:
    angle = degrees * pi / 180
    turn = torch.tensor([[cos(angle), -sin(angle), 0.0], [sin(angle), cos(angle), 0.0]])
    grid = functional.affine_grid(turn.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False)


_TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


@dataclass(frozen=True)
class _Colour:
    """Brightness, contrast and saturation by a factor in 1-x..1+x, hue by a turn of at most x/10.

    Images in grey have no saturation and no hue. The hue is turned in YIQ space,
    which for small turns is what a turn in HSV space is.
    """

    x: float

    def __call__(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        n = len(images)

        def factor() -> Tensor:
            return torch.from_numpy(rng.uniform(1 - self.x, 1 + self.x, (n, 1, 1, 1))).to(images.dtype)

        images = (images * factor()).clamp(0, 1)
        mean = images.mean((1, 2, 3), keepdim=True)
        images = ((images - mean) * factor() + mean).clamp(0, 1)
        if images.shape[1] != 3:
            return images
        grey = (images * _TO_YIQ[0].view(1, 3, 1, 1)).sum(1, keepdim=True)
        images = ((images - grey) * factor() + grey).clamp(0, 1)
        turn = torch.from_numpy(rng.uniform(-self.x / 10, self.x / 10, n) * 2 * pi).to(images.dtype)
        yiq = torch.einsum("ij,njhw->nihw", _TO_YIQ, images)
        c, s = turn.cos().view(-1, 1, 1), turn.sin().view(-1, 1, 1)
        turned = torch.stack([yiq[:, 0], c * yiq[:, 1] - s * yiq[:, 2], s * yiq[:, 1] + c * yiq[:, 2]], 1)
        return torch.einsum("ij,njhw->nihw", torch.linalg.inv(_TO_YIQ), turned).clamp(0, 1)


NOISES: dict[str, Callable[[Tensor, np.random.Generator], Tensor]] = {
    "clean": lambda x, _: x,
    "rotate-30": lambda x, _: _rotate(x, 30.0),
    "flip-horizontal": lambda x, _: x.flip(3),
    "flip-vertical": lambda x, _: x.flip(2),
    "colour-0.2": _Colour(0.2),
    "colour-0.4": _Colour(0.4),
    "colour-0.6": _Colour(0.6),
}
"""The paper's noises: geometric, and of colour with brightness = contrast = saturation = x, hue = x/10."""
