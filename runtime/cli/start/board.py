"""TensorBoard's files, for those who have it: it is no dependency."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from silomix.runtime.core.errors import UserError

DIRECTORY = "tensorboard"
"""Below a run's own directory."""


class Board:
    """Writes numbers by round."""

    def __init__(self, directory: Path, done: int = 0) -> None:
        """Go on after so many rounds that are done; what an earlier run wrote of later ones no longer counts."""
        self._writer: Any = _tensorboard().SummaryWriter(str(directory), purge_step=done + 1)

    def write(self, round_: int, numbers: Mapping[str, float | None]) -> None:
        """Write what was measured of a round."""
        for name, value in numbers.items():
            if value is not None:
                self._writer.add_scalar(name, value, round_)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def check() -> None:
    """Say now, and not after an hour of training, that the package is not there."""
    _tensorboard()


def _tensorboard() -> Any:
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError:
        raise UserError("--tensorboard needs a package that is not installed: pip install tensorboard") from None
