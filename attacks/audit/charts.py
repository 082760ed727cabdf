"""Charts as geometry: where lines and letters go, for the SVG templates of the page. No script, and sharp in print."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log10
from typing import Any

from silomix.attacks.audit.attack import Bars, Heat
from silomix.models.simulation.experiment import Plot

COLOURS = ("#b3261e", "#1b6e3c", "#5a6472", "#c2570c", "#8a6d00", "#a03070", "#1f4e9e", "#0b7285")
"""Of curves, one after the other: what is exposed first, what is protected, the control, then whatever there is.

Each is darker than 4.5 to 1 on white.
"""
LETTER = 7.0
"""About the width of a letter."""
GAP = 14.0
"""Between labels that would otherwise lie on top of each other."""


@dataclass(frozen=True)
class Box:
    """Where a chart's own area lies, and how large the whole is with its labels."""

    left: float
    top: float
    right: float
    bottom: float
    width: float
    height: float


def bars(chart: Bars) -> dict[str, Any]:
    """Lay out horizontal bars with their intervals, and a line to compare with."""
    left, wide, step, top = 172.0, 262.0, 28.0, 26.0
    bottom = top + step * len(chart.bars)
    box = Box(left, top, left + wide, bottom, left + wide + 62, bottom + 30)
    most = max(1e-9, chart.level, *(bar.high for bar in chart.bars)) * 1.05

    def x(value: float) -> float:
        return left + wide * value / most

    rows = [
        {
            "bar": bar,
            "y": top + step * i,
            "middle": top + step * (i + 0.5),
            "width": x(bar.value) - left,
            "low": x(bar.low),
            "high": x(bar.high),
        }
        for i, bar in enumerate(chart.bars)
    ]
    return {"box": box, "rows": rows, "step": step, "ticks": [(x(t), t) for t in ticks(most)], "level": x(chart.level)}


def curves(chart: Plot) -> dict[str, Any]:
    """Lay out curves with bands for their intervals; the names stand where the curves end."""
    names = [line.name for line in chart.lines] + [chart.level_name]
    box = Box(44, 16, 384, 266, 392 + LETTER * max(map(len, names)), 308)
    xs = sorted({x for line in chart.lines for x, _ in line.points})
    highs = [high for line in chart.lines for _, high in line.intervals]
    most = max(1e-9, chart.level or 0.0, *highs, *(y for line in chart.lines for _, y in line.points)) * 1.05
    scale = log10 if chart.log_x else float
    start, span = scale(xs[0]), scale(xs[-1]) - scale(xs[0])

    def at(value: float) -> float:
        return box.left + 10 + (box.right - box.left - 20) * ((scale(value) - start) / span if span else 0.5)

    def up(value: float) -> float:
        return box.top + (box.bottom - box.top) * (1 - value / most)

    level = None if chart.level is None else up(chart.level)
    ends = [up(line.points[-1][1]) for line in chart.lines]
    labels = apart([*ends, *([] if level is None else [level])], box.bottom)
    lines = []
    for i, line in enumerate(chart.lines):
        dots = [(at(x), up(y)) for x, y in line.points]
        edges = list(zip(line.points, line.intervals, strict=False))
        band = [(at(p[0]), up(ends[1])) for p, ends in edges] + [(at(p[0]), up(ends[0])) for p, ends in edges[::-1]]
        colour = COLOURS[i % len(COLOURS)]
        lines.append({"name": line.name, "colour": colour, "dots": dots, "band": band, "label": labels[i]})
    few = xs if len(xs) <= 10 else xs[:: -(-len(xs) // 10)]
    return {
        "box": box,
        "lines": lines,
        "level": level,
        "level_label": labels[-1],
        "across": [(at(x), f"{x:g}") for x in few],
        "ticks": [(up(t), t) for t in ticks(most)],
    }


def heat(chart: Heat) -> dict[str, Any]:
    """Lay out counts as squares."""
    left, top, side = 64.0, 24.0, max(14.0, min(34.0, 420.0 / max(1, len(chart.columns))))
    tall = min(24.0, max(10.0, 300.0 / max(1, len(chart.rows))))
    most = max((count for row in chart.counts for count in row), default=1) or 1
    cells = [
        {"x": left + side * j, "y": top + tall * i, "count": count, "strength": count / most}
        for i, row in enumerate(chart.counts)
        for j, count in enumerate(row)
    ]
    right, bottom = left + side * len(chart.columns), top + tall * len(chart.rows)
    columns = [(left + side * (j + 0.5), name) for j, name in enumerate(chart.columns)]
    rows = [(top + tall * (i + 0.5), name, sum(chart.counts[i])) for i, name in enumerate(chart.rows)]
    box = Box(left, top, right, bottom, right + 56, bottom + 8)
    return {"box": box, "cells": cells, "columns": columns, "rows": rows, "side": side, "tall": tall}


def apart(heights: Sequence[float], lowest: float) -> list[float]:
    """Move labels apart where curves end together: down as far as the axis, and from there up."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = [y + 4 for y in heights]
    for above, i in pairwise(order):
        placed[i] = max(placed[i], placed[above] + GAP)
    limit = lowest
    for i in reversed(order):
        placed[i] = limit = min(placed[i], limit)
        limit -= GAP
    return placed


def ticks(most: float) -> list[float]:
    """Choose the lines of a grid of shares."""
    step = 0.1 if most <= 0.6 else 0.2
    return [step * i for i in range(int(most / step) + 1)]
