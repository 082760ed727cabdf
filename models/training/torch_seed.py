"""Torch's randomness, seeded for one silo and round: a retry draws the same, and nobody else notices.

Torch has one generator for a whole process, and silos may train in threads of one process. So whoever draws from it
holds a lock; a network without dropout and the like never does, which its first round shows.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

lock = threading.Lock()
"""Held by whoever seeds torch's generator."""


def from_seed(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Make a network whose first values come from the seed, and leave the process's own randomness as it was."""
    with lock, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


class Randomness:
    """What one silo's training draws from."""

    def __init__(self, seed: int, silo: int, device: torch.device) -> None:
        """Nobody knows yet whether the network draws at all."""
        self._seed, self._silo, self._device = seed, silo, device
        self._draws: bool | None = None

    @contextmanager
    def of_round(self, round_: int) -> Iterator[None]:
        """Seed torch for a round, and leave the process's own randomness as it was."""
        if self._draws is False:
            yield
            return
        devices = [self._device] if self._device.type == "cuda" else []
        with lock, torch.random.fork_rng(devices=devices):
            words = np.random.SeedSequence([self._seed, self._silo + 1, round_, 1]).generate_state(1, np.uint64)
            torch.manual_seed(int(words[0]) >> 1)
            before = self._state()
            yield
            self._draws = any(not torch.equal(a, b) for a, b in zip(before, self._state(), strict=True))

    def _state(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        if self._device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self._device))
        elif self._device.type == "mps":
            states.append(torch.mps.get_rng_state())
        return states
