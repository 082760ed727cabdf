"""What it takes to repeat one table or figure of the paper: an experiment, its size, and what comes of it.

`silomix reproduce` runs them (attacks/paper/registry.py has the registry). An experiment asks for its numbers point by
point through `Progress.point`, which keeps every finished point on disk: a run that is interrupted goes on where it
stopped.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

RUNS = "runs here"
"""The state of an experiment that needs nothing but this installation."""

Cell = str | int | float | None
"""One field of a table; None is shown as a dash: not measured, or not printed in the paper."""
T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """How much of an experiment to run. The paper's sizes take GPU days, so every number of ours says its own size."""

    name: str
    """In the cache's key: points of different sizes are never mixed."""
    seeds: tuple[int, ...]
    """Independent repetitions: another split, another first model, another order of records."""
    rounds: int
    """Rounds of federated training in each."""
    data: str = "digits"
    """The data set to use where an experiment runs on several: `digits` is embedded, the others must be there."""


QUICK = Scale("quick", (1,), 6)
"""Minutes on two cores: to see that it runs, and the sign of the effect."""
FULL = Scale("full", (1, 2, 3), 15)
"""What docs/reproduction.md is made of."""


class Progress(Protocol):
    """Where an experiment reports to, and where it finds what an interrupted run had finished."""

    def plan(self, points: int) -> None:
        """Say how many points there will be, so that the time left can be told."""
        ...

    def point(self, key: str, compute: Callable[[], T]) -> T:
        """Return the value of a point: from an earlier run, or computed now and kept. The value must be plain JSON.

        The key names all that the value depends on, but for the experiment and the scale, which are added.
        """
        ...


@dataclass(frozen=True)
class Table:
    """Numbers side by side: ours and, where the paper prints one, the paper's."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Line:
    """One curve: points (x, y), and where it was measured by sampling, the ends of each point's interval."""

    name: str
    points: tuple[tuple[float, float], ...]
    intervals: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Plot:
    """Curves over one axis. `level` is a line to compare with, such as a random guess."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    level: float | None = None
    level_name: str = ""
    log_x: bool = False


@dataclass(frozen=True)
class Result:
    """What an experiment found, for people and for programs."""

    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()
    """What differs from the paper's setting, and what the numbers do and do not say."""
    values: dict[str, Any] = field(default_factory=dict)
    """More for programs; plain JSON."""

    def json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper, and how it is repeated here, if it is."""

    id: str
    """What `silomix reproduce` takes: lower case, with hyphens."""
    title: str
    paper: str
    """Which table, figure or paragraph: the paper's label, such as "Table tbl:regul-def"."""
    run: Callable[[Scale, Progress], Result] | None
    state: str = RUNS
    """`RUNS`, "needs <data>: where to get it" (it has a `run` for when that is there), or "not reproduced: why"."""
    data: tuple[str, ...] = ()
    """Data sets that it also runs on, besides the embedded ones, when their files are there."""
    by_round: bool = False
    """Its points are single rounds: what was kept serves a run of any size."""

    def __post_init__(self) -> None:
        if self.run is None and self.state == RUNS:
            raise ValueError(f"experiment {self.id} says that it runs, and has nothing to run")
        if not self.state.startswith((RUNS, "needs ", "not reproduced: ")):
            raise ValueError(f"experiment {self.id} has no state: found {self.state!r}")
