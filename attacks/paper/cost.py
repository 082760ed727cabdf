"""The paper's tables and figures on cost: communication recomputed, computation measured, its example checked."""

import time
from functools import partial

import numpy as np

from silomix.attacks.paper import tables as paper_tables
from silomix.attacks.paper.tables import Section
from silomix.models.simulation.experiment import Cell, Experiment, Line, Plot, Progress, Result, Scale, Table
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.plan import Encoding, Level, Plan, Quantiser, plan
from silomix.runtime.core.numbers.schema import Schema, TensorSpec


def communication(scale: Scale, progress: Progress, *, sections: tuple[str, ...]) -> Result:
    """Put what `silomix plan --paper` computes into tables and plots."""
    progress.plan(1)
    found = [section for section in paper_tables.paper_report().sections if section.id in sections]
    tables: list[Table] = []
    plots: list[Plot] = []
    notes: dict[str, None] = {}
    for section in found:
        if section.comparisons:
            tables.append(_compared(section, notes))
        for series in section.series:
            tables.append(_series_table(section, series.title, series.columns, series.rows))
            lines = tuple(
                Line(name, tuple((float(row[0]), float(row[i])) for row in series.rows))
                for i, name in enumerate(series.columns[1:], 1)
            )
            plots.append(Plot(f"{section.title}, {series.title}", series.columns[0], "", lines))
    return Result(tuple(tables), tuple(plots), tuple(notes))


def _compared(section: Section, notes: dict[str, None]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for c in section.comparisons:
        if c.why:
            notes[f"{c.what}: {c.why}."] = None
        also = ", ".join(f"{name} {_short(value)}" for name, value in c.also.items())
        rows.append((c.what, c.silos, c.precision, _short(c.paper), _short(c.computed), str(c.mark), also or None))
    return Table(section.title, ("what", "silos", "r", "paper", "ours", "mark", "also"), tuple(rows))


def _series_table(section: Section, title: str, columns: tuple[str, ...], rows: tuple[tuple[int, ...], ...]) -> Table:
    step = max(1, len(rows) // 12)
    return Table(f"{section.title}, {title} (a plot in the paper, without values)", columns, rows[::step])


def _short(value: float | int | str) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


PARAMETERS = {
    "MNIST/CNN": (643_850, 1.16, 3.8),
    "CIFAR-10/CNN": (940_362, 1.6, 5.6),
    "CIFAR-100/ResNet": (11_237_432, 19.1, 57.0),
}
"""Table table:comp_cost: parameters, and the seconds that the paper's encoding and decoding take."""


def computation(scale: Scale, progress: Progress) -> Result:
    """Encode and decode models of the paper's sizes."""
    progress.plan(len(PARAMETERS))
    rows: list[tuple[Cell, ...]] = []
    for name, (size, encoding, decoding) in PARAMETERS.items():
        found = progress.point(f"codec {size}", partial(time_codec, size))
        rows.append((name, size, f"{found['encode']:.3f}", encoding, f"{found['decode']:.3f}", decoding))
    columns = ("data and model", "parameters", "encoding, s", "paper", "decoding, s", "paper")
    note = "One core, 10 silos, r = 4, moduli 512 and 511, packed to bytes; the best of three."
    return Result((Table("Time to encode and decode", columns, tuple(rows)),), (), (note,))


def time_codec(size: int) -> dict[str, float]:
    """Time the codec on a model of so many parameters."""
    numbers = plan(10, 4, Encoding.COUNTS, Level.SEMI_HONEST)
    codec = Codec(Schema((TensorSpec("w", (size,)),)), (1.0,), numbers)
    update = {"w": np.random.default_rng(1).normal(0, 0.05, size).astype(np.float32)}
    layout = codec.layout
    total = layout.body()
    best = {"encode": np.inf, "decode": np.inf}
    for attempt in range(4):
        began = time.perf_counter()
        for _ in codec.encode(update):
            pass
        encoded = time.perf_counter() - began
        if not attempt:  # compiled now: from here on it counts
            for i, planes in enumerate(codec.encode(update)):
                layout.add(total, i, planes)
        began = time.perf_counter()
        codec.decode(total, 1)
        decoded = time.perf_counter() - began
        if attempt:
            best = {"encode": min(best["encode"], encoded), "decode": min(best["decode"], decoded)}
    return best


def example(scale: Scale, progress: Progress) -> Result:
    """Follow the worked example of the Chinese remainder theorem: moduli 3, 5, 7, n = 2, r = 2."""
    progress.plan(1)
    moduli, seen = (3, 5, 7), (1, 0, 6)
    numbers = Plan(2, 2, Encoding.UNARY, Level.TRUSTED, 1, 0, Quantiser.DECIMAL, moduli)
    sums = residue.zeros(numbers, 1)
    sums[:, 0] = seen
    signed = int(residue.decode_sum(sums, numbers)[0])
    enough = plan(2, 2, Encoding.UNARY, Level.TRUSTED)
    rows: list[tuple[Cell, ...]] = [
        ("solution in 0..M-1", "55", str(signed % numbers.M)),
        ("M", "105", str(numbers.M)),
        ("the sum that it stands for", "55", str(signed)),
        ("largest sum that can be told apart", None, str((numbers.M - 1) // 2)),
        ("largest sum of two silos, n v", None, str(2 * numbers.v)),
        ("moduli that hold it", "3 5 7", " ".join(map(str, enough.moduli))),
    ]
    note = (
        "The arithmetic is right, and the moduli are too small: with signs, 55 modulo 105 stands for -50, and sums of "
        "two silos reach 198 either way."
    )
    return Result((Table("The worked example", ("what", "paper", "ours"), tuple(rows)),), (), (note,))


def _drawing(id_: str, title: str, paper: str) -> Experiment:
    return Experiment(id_, title, paper, None, "not reproduced: a drawing, which has no numbers")


def _costs(id_: str, title: str, paper: str, *sections: str) -> Experiment:
    return Experiment(id_, title, paper, partial(communication, sections=sections))


COST_EXPERIMENTS: tuple[Experiment, ...] = (
    _costs(
        "bits-by-silos", "Bits per silo and parameter", "Figures fig:comm_cost, fig:comm_cost_zoomed", "bits-by-silos"
    ),
    _costs(
        "expansion", "Expansion against 32 bits", "Table tab:sum_of_findings, Figure fig:expansion_factor", "expansion"
    ),
    _costs(
        "bits-more-clients", "Bits for larger parameters", "Table tbl:comm_cost_more_clients", "more-clients", "in-text"
    ),
    _costs("shuffling-rounds", "Shuffling rounds", "Figure fig:rns_shuffle_rounds", "rounds"),
    _costs("range-condition", "The least product of the moduli", "Alg. alg:param_rns", "condition"),
    Experiment("computation", "Time to encode and decode", "Table table:comp_cost", computation),
    Experiment("crt-example", "The worked example", "Figure fig:rns and Section chinese_example", example),
    _drawing("shuffle-drawing", "Granularities of shuffling", "Figure fig:shuffle"),
)
