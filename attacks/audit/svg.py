"""Charts as inline SVG: no script, no file beside the page, and sharp in print."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import log10

COLOURS = ("#b3261e", "#c2570c", "#9a7b00", "#5b7f00", "#0b7285", "#1f4e9e", "#6b3fa0")
"""From exposed to protected; each darker than 4.5 to 1 on white."""


@dataclass(frozen=True)
class Bar:
    """One bar: a share between 0 and 1 with the ends of its interval."""

    name: str
    value: float
    low: float
    high: float
    colour: str


def bars(items: Sequence[Bar], level: float, level_name: str) -> str:
    """Draw shares as horizontal bars with their intervals, and a line to compare with."""
    left, width, step, top = 172, 262, 30, 26
    height = top + step * len(items) + 30
    most = max(1e-9, *(item.high for item in items), level) * 1.05

    def x(value: float) -> float:
        return left + width * value / most

    parts = [_open(left + width + 62, height, "source inference by mode")]
    for tick in _ticks(most):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{height - 24}"/>')
        parts.append(_text(x(tick), height - 8, f"{tick:.0%}", "middle", "tick"))
    for i, item in enumerate(items):
        y = top + step * i
        parts.append(_text(left - 8, y + 19, item.name, "end"))
        parts.append(
            f'<rect x="{left}" y="{y + 5}" width="{max(0.0, x(item.value) - left):.1f}" height="{step - 10}" '
            f'fill="{item.colour}"/>'
        )
        middle = y + step / 2
        parts.append(
            f'<line class="error" x1="{x(item.low):.1f}" x2="{x(item.high):.1f}" y1="{middle}" y2="{middle}"/>'
        )
        parts += [
            f'<line class="error" x1="{x(end):.1f}" x2="{x(end):.1f}" y1="{middle - 4}" y2="{middle + 4}"/>'
            for end in (item.low, item.high)
        ]
        parts.append(_text(x(item.high) + 6, y + 19, f"{item.value:.1%}", "start", "value"))
    parts.append(f'<line class="level" x1="{x(level):.1f}" x2="{x(level):.1f}" y1="{top - 6}" y2="{height - 24}"/>')
    parts.append(_text(x(level), top - 10, level_name, "middle", "tick"))
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True)
class Curve:
    """One curve: points (x, y, low, high)."""

    name: str
    points: Sequence[tuple[float, float, float, float]]
    colour: str


def curves(items: Sequence[Curve], level: float, level_name: str, x_name: str) -> str:
    """Draw shares over a logarithmic axis, with bands for their intervals."""
    left, width, top, height = 44, 320, 16, 250
    xs = sorted({p[0] for item in items for p in item.points})
    most = max(1e-9, *(p[3] for item in items for p in item.points), level) * 1.05
    span = log10(xs[-1] / xs[0]) if len(xs) > 1 else 1.0

    def at(value: float) -> float:
        return left + 10 + (width - 20) * (log10(value / xs[0]) / span if span else 0.5)

    def up(value: float) -> float:
        return top + height * (1 - value / most)

    parts = [_open(left + width + 104, top + height + 42, "source inference by skew")]
    for tick in _ticks(most):
        parts.append(f'<line class="grid" x1="{left}" x2="{left + width}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>')
        parts.append(_text(left - 6, up(tick) + 4, f"{tick:.0%}", "end", "tick"))
    parts += [_text(at(value), top + height + 18, f"{value:g}", "middle", "tick") for value in xs]
    parts.append(_text(left + width / 2, top + height + 36, x_name, "middle", "tick"))
    parts.append(f'<line class="level" x1="{left}" x2="{left + width}" y1="{up(level):.1f}" y2="{up(level):.1f}"/>')
    labels = _apart([up(item.points[-1][1]) for item in items] + [up(level)], top + height)
    parts.append(_text(left + width + 4, labels[-1], level_name, "start", "tick"))
    for i, item in enumerate(items):
        band = [(at(p[0]), up(p[3])) for p in item.points] + [(at(p[0]), up(p[2])) for p in reversed(item.points)]
        parts.append(f'<polygon points="{_points(band)}" fill="{item.colour}" opacity="0.12"/>')
        line = [(at(p[0]), up(p[1])) for p in item.points]
        parts.append(f'<polyline points="{_points(line)}" fill="none" stroke="{item.colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{item.colour}"/>' for px, py in line]
        parts.append(
            f'<text x="{left + width + 4}" y="{labels[i]:.1f}" fill="{item.colour}">{escape(item.name)}</text>'
        )
    return "".join([*parts, "</svg>"])


def _apart(heights: Sequence[float], lowest: float, gap: float = 14.0) -> list[float]:
    """Move labels apart where curves end together: down as far as the axis, and from there up."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = [y + 4 for y in heights]
    for above, i in pairwise(order):
        placed[i] = max(placed[i], placed[above] + gap)
    limit = lowest
    for i in reversed(order):
        placed[i] = limit = min(placed[i], limit)
        limit -= gap
    return placed


def _open(width: float, height: float, title: str) -> str:
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{name}>{escape(text)}</text>'


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def _ticks(most: float) -> list[float]:
    step = 0.1 if most <= 0.6 else 0.2
    return [step * i for i in range(int(most / step) + 1)]
