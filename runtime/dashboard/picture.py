"""Drawing the dashboard's panels with matplotlib."""

from dataclasses import replace
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.runtime.core.errors import UserError
from silomix.runtime.dashboard.panels import COLUMNS, TITLE, Panel, PanelKind
from silomix.runtime.dashboard.prometheus import Series

if TYPE_CHECKING:
    from silomix.runtime.dashboard.query import Answered, Line, Span

SUFFIXES = (".png", ".svg", ".pdf")
WIDTH_IN = 16.0
ROW_IN = 0.37
HEAD_IN = 0.7
DPI = 110
MOST_LINES = 24
"""Series in a panel: more cannot be told apart, and the legend says how many were left out."""

INK, FAINT, GRID, PAPER = "#1f2430", "#6b7280", "#e6e8ec", "#f4f5f7"
COLOURS = ("#3866c9", "#e1812c", "#3a923a", "#c03d3e", "#8e6bb0", "#845b53", "#d684bd", "#7f7f7f", "#b5bd61", "#46b5c4")
MEANING = {"green": "#2f8f4e", "orange": "#d98a1f", "red": "#c2302e", "blue": "#3866c9"}
MISSING = "drawing needs matplotlib, which silos have and other nodes do not: pip install 'silomix[train]'"


def check_suffix(out: Path) -> None:
    """Refuse a file that cannot be written as a picture, before work is done for it."""
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"{out}: a picture's name ends in {', '.join(SUFFIXES)}")
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out}: there is no such directory; make it first")
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise UserError(MISSING) from None


def draw(answers: "list[Answered]", span: "Span", job: str, out: Path) -> None:
    """Draw all panels into one picture, where Grafana has them."""
    from matplotlib.figure import Figure

    rows = max(a.place.y + a.place.panel.height for a in answers)
    height = HEAD_IN + rows * ROW_IN + 0.1
    figure = Figure(figsize=(WIDTH_IN, height), facecolor=PAPER, dpi=DPI)
    times = f"{_stamp(span.start, '%Y-%m-%d %H:%M:%S')} to {_stamp(span.end, '%H:%M:%S')} UTC"
    figure.text(0.012, 1 - 0.36 / height, TITLE, fontsize=17, fontweight="bold", color=INK, va="center")
    figure.text(0.078, 1 - 0.37 / height, f"{job}, {times}", fontsize=10, color=FAINT, va="center")
    for answer in answers:
        place, panel = answer.place, answer.place.panel
        top = HEAD_IN + place.y * ROW_IN
        box = (
            place.x / COLUMNS * WIDTH_IN + 0.07,
            height - top - panel.height * ROW_IN + 0.05,
            panel.width / COLUMNS * WIDTH_IN - 0.14,
            panel.height * ROW_IN - 0.10,
        )
        _panel(figure, answer, span, box, height)
    figure.savefig(out, facecolor=PAPER)


def _panel(figure: Any, answer: "Answered", span: "Span", box: tuple[float, ...], height: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    panel = answer.place.panel
    left, bottom, wide, high = box
    card = FancyBboxPatch(
        (left / WIDTH_IN, bottom / height),
        wide / WIDTH_IN,
        high / height,
        boxstyle="square,pad=0",
        facecolor="white",
        edgecolor="#d9dce1",
        linewidth=0.8,
        transform=figure.transFigure,
        zorder=-1,
    )
    figure.add_artist(card)
    figure.text(
        (left + 0.12) / WIDTH_IN,
        (bottom + high - 0.17) / height,
        panel.title,
        fontsize=9.5,
        fontweight="bold",
        color=INK,
        va="center",
    )

    def inner(pad_left: float, pad_bottom: float, pad_right: float = 0.15, pad_top: float = 0.36) -> Any:
        axes = figure.add_axes(
            (
                (left + pad_left) / WIDTH_IN,
                (bottom + pad_bottom) / height,
                (wide - pad_left - pad_right) / WIDTH_IN,
                (high - pad_bottom - pad_top) / height,
            )
        )
        axes.tick_params(labelsize=7.5, colors=FAINT, length=2)
        for side in axes.spines.values():
            side.set_visible(False)
        return axes

    if not answer.lines:
        axes = inner(0.1, 0.1)
        axes.set_axis_off()
        axes.text(0.5, 0.5, panel.empty, ha="center", va="center", fontsize=10, color=FAINT)
    elif panel.kind is PanelKind.STAT:
        _stat(inner(0.1, 0.05, 0.1, 0.3), answer)
    elif panel.kind is PanelKind.GAUGE:
        _gauge(inner(0.95, 0.1, 0.6), answer)
    elif panel.kind is PanelKind.STATES:
        _states(inner(0.95, 0.5), answer, span)
    else:
        shown = _shown(answer)
        columns = max(1, min(len(shown), int((wide - 0.3) * 13 / (11 + max(len(line.name) for line in shown)))))
        lines = -(-len(shown) // columns)
        axes = inner(0.62, 0.34 + 0.15 * lines)
        (_bars if panel.kind is PanelKind.BARS else _lines)(axes, answer, shown, span)
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.20 / (high - 0.70 - 0.15 * lines)),
            ncols=columns,
            fontsize=7.5,
            frameon=False,
            labelcolor=INK,
            handlelength=1.4,
            columnspacing=1.4,
            labelspacing=0.25,
            borderpad=0,
        )


def _shown(answer: "Answered") -> "list[Line]":
    """The series to draw, by name; of many, those with the largest values."""
    lines = sorted(answer.lines, key=lambda line: max(v for _, v in line.series.points), reverse=True)[:MOST_LINES]
    order = {id(line): i for i, line in enumerate(answer.lines)}
    return sorted(lines, key=lambda line: (line.query.reference, order[id(line)]))


def _times(line: "Line") -> list[datetime]:
    return [datetime.fromtimestamp(t, UTC) for t, _ in line.series.points]


def _values(line: "Line") -> list[float]:
    return [v for _, v in line.series.points]


def _lines(axes: Any, answer: "Answered", shown: "list[Line]", span: "Span") -> None:
    references, unit, decimals = 0, answer.place.panel.unit, answer.place.panel.decimals
    for i, line in enumerate(shown):
        if line.query.reference:
            style = {"color": INK if references else FAINT, "linestyle": (0, (6, 3) if references else (2, 2))}
            references += 1
        else:
            style = {"color": _series_colour(line, i), "linestyle": "-" if i < len(COLOURS) else "-."}
        # Where lines lie on each other, their newest values tell them apart.
        label = line.name if decimals is None else f"{line.name}: {readable(line.last, unit, decimals)}"
        dots = "o" if len(line.series.points) < 3 else ""
        line = line if answer.place.panel.sparse else _broken(line, span)
        axes.plot(_times(line), _values(line), label=label, linewidth=1.4, marker=dots, ms=3, **style)
    _time_axis(axes, answer.place.panel, span)


def _broken(line: "Line", span: "Span") -> "Line":
    """Break a line where points are missing: what a node did while nobody could ask it is not known."""
    points: list[tuple[float, float]] = []
    for time, value in line.series.points:
        if points and time - points[-1][0] > 1.5 * span.step_s:
            points.append((time - span.step_s, nan))
        points.append((time, value))
    return replace(line, series=Series(line.series.labels, tuple(points)))


def _bars(axes: Any, answer: "Answered", shown: "list[Line]", span: "Span") -> None:
    width = span.window_s / 86400  # matplotlib counts days
    floor: dict[float, float] = {}
    for i, line in enumerate(shown):
        bottoms = [floor.get(t, 0.0) for t, _ in line.series.points]
        for t, v in line.series.points:
            floor[t] = floor.get(t, 0.0) + v
        # A bar ends where its window does.
        colour = _series_colour(line, i)
        axes.bar(
            _times(line), _values(line), -0.9 * width, bottoms, align="edge", color=colour, label=line.name, linewidth=0
        )
    _time_axis(axes, answer.place.panel, span)


def _time_axis(axes: Any, panel: Panel, span: "Span") -> None:
    _only_times(axes, span)
    axes.set_ylim(0, max(axes.get_ylim()[1] * 1.06, 1e-9))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_formatter(lambda value, _: readable(value, panel.unit))
    axes.locator_params(axis="y", nbins=5)


def _only_times(axes: Any, span: "Span") -> None:
    dates = _dates()
    form = "%H:%M:%S" if span.end - span.start < 1200 else "%H:%M" if span.end - span.start < 86400 else "%d %b %H:%M"
    axes.set_xlim(datetime.fromtimestamp(span.start, UTC), datetime.fromtimestamp(span.end, UTC))
    axes.xaxis.set_major_locator(dates.AutoDateLocator(maxticks=8, tz=UTC))
    axes.xaxis.set_major_formatter(dates.DateFormatter(form, tz=UTC))


def _dates() -> Any:
    """matplotlib's part for times, which has no types."""
    from matplotlib import dates

    return dates


def _stat(axes: Any, answer: "Answered") -> None:
    axes.set_axis_off()
    panel, count = answer.place.panel, len(answer.lines)
    for i, line in enumerate(answer.lines):
        x = (i + 0.5) / count
        text = readable(line.last, panel.unit, panel.decimals)
        named = count > 1
        axes.text(
            x,
            0.58 if named else 0.48,
            text,
            ha="center",
            va="center",
            fontsize=21 if count == 1 else 18,
            fontweight="bold",
            color=_colour(panel, line.last),
        )
        if named:
            axes.text(x, 0.16, line.name, ha="center", va="center", fontsize=8, color=FAINT)


def _gauge(axes: Any, answer: "Answered") -> None:
    panel = answer.place.panel
    lines = sorted(answer.lines, key=lambda line: line.name, reverse=True)[-MOST_LINES:]
    values = [line.last for line in lines]
    axes.barh([line.name for line in lines], values, height=0.66, color=[_colour(panel, v) for v in values])
    for i, value in enumerate(values):
        axes.text(value, i, f" {readable(value, panel.unit, panel.decimals)}", va="center", fontsize=8, color=INK)
    axes.set_xlim(0, max([*values, 1e-9]))
    axes.set_xticks([])
    axes.tick_params(axis="y", labelcolor=INK, length=0)


def _states(axes: Any, answer: "Answered", span: "Span") -> None:
    from matplotlib.patches import Patch

    panel = answer.place.panel
    lines = sorted(answer.lines, key=lambda line: line.name, reverse=True)[-MOST_LINES:]
    step = span.step_s / 86400
    for i, line in enumerate(lines):
        colours = [MEANING.get(panel.states.get(round(v), ("", ""))[1], FAINT) for v in _values(line)]
        axes.broken_barh(
            [(_dates().date2num(t), step) for t in _times(line)], (i - 0.36, 0.72), facecolors=colours, linewidth=0
        )
    axes.set_yticks(range(len(lines)), [line.name for line in lines])
    axes.tick_params(axis="y", labelcolor=INK, length=0)
    axes.set_ylim(-0.6, len(lines) - 0.4)
    _only_times(axes, span)
    patches = [Patch(color=MEANING[colour], label=text) for text, colour in panel.states.values()]
    axes.legend(
        handles=patches,
        loc="upper left",
        bbox_to_anchor=(0, -0.10),
        ncols=len(patches),
        fontsize=7.5,
        frameon=False,
        labelcolor=INK,
        handlelength=1.0,
        borderpad=0,
    )


def _series_colour(line: "Line", number: int) -> str:
    return MEANING.get(line.query.colour, COLOURS[number % len(COLOURS)])


def _colour(panel: Panel, value: float) -> str:
    colour = ""
    for least, name in panel.steps:
        if least is None or value >= least:
            colour = name
    return MEANING.get(colour, INK)


def readable(value: float, unit: str, decimals: int | None = None) -> str:
    """Write a value as a person reads it, in the unit's own words."""
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None else decimals}f}%"
    if unit == "d":
        return f"{value:.{decimals or 0}f} d"
    if unit == "s":
        if 0 < abs(value) < 1:
            return f"{1000 * value:.0f} ms" if decimals is None or value < 0.1 else f"{value:.{decimals}f} s"
        return f"{value:.{decimals}f} s" if decimals is not None else f"{value:g} s"
    if unit in ("Bps", "decbytes"):
        signs, power = ("B", "kB", "MB", "GB"), 0
        while abs(value) >= 1000 and power < len(signs) - 1:
            value, power = value / 1000, power + 1
        return f"{value:.3g} {signs[power]}{'/s' if unit == 'Bps' else ''}"
    return f"{value:.{decimals}f}" if decimals is not None else f"{value:g}"


def _stamp(unix: float, form: str) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime(form)
