"""An audit's charts as files, for papers and slides: SVG and PDF, drawn by matplotlib."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from silomix.attacks.audit.attack import Bars, Block, Heat, Section, Tone
from silomix.models.simulation.experiment import Plot
from silomix.models.simulation.plots import draw
from silomix.runtime.core.errors import UserError
from silomix.runtime.store.files import write_atomically

FORMATS = ("svg", "pdf")
COLOURS = {Tone.EXPOSED: "#b3261e", Tone.PROTECTED: "#1b6e3c", Tone.CONTROL: "#5a6472"}


def write_figures(sections: Mapping[str, Section], directory: Path) -> list[Path]:
    """Write every chart of the sections, named after its section, and return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, section in sections.items():
        charts = [block for block in section.blocks if isinstance(block, Plot | Bars | Heat)]
        for i, chart in enumerate(charts, 1):
            for ending in FORMATS:
                path = directory / f"{name}{f'-{i}' if len(charts) > 1 else ''}.{ending}"
                _draw(chart, path)
                path.chmod(0o644)  # a figure is for others
                written.append(path)
    return written


def _draw(chart: Block, path: Path) -> None:
    if isinstance(chart, Plot):
        draw(chart, path)
        return
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("figures need matplotlib, which is not installed: pip install 'silomix[train]'") from None
    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    if isinstance(chart, Bars):
        _bars(figure, axes, chart)
    else:
        assert isinstance(chart, Heat)
        _heat(figure, axes, chart)
    out = BytesIO()
    figure.savefig(out, format=path.suffix.removeprefix("."))
    write_atomically(path, out.getvalue())


def _bars(figure: Any, axes: Any, chart: Bars) -> None:
    figure.set_size_inches(7, 0.6 + 0.32 * len(chart.bars))
    at = range(len(chart.bars))
    errors = ([b.value - b.low for b in chart.bars], [b.high - b.value for b in chart.bars])
    colours = [COLOURS[b.tone] for b in chart.bars]
    axes.barh(at, [b.value for b in chart.bars], xerr=errors, color=colours, height=0.62, capsize=2, ecolor="#1c2430")
    for y, bar in zip(at, chart.bars, strict=True):
        axes.text(bar.high, y, f"  {bar.value:.1%}", va="center")
    axes.set_yticks(at, [_plain(b.name) for b in chart.bars])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlim(right=1.12 * max(b.high for b in chart.bars))
    axes.axvline(chart.level, linestyle="--", color="#1c2430", label=_plain(chart.level_name))
    axes.legend(loc="lower right")
    axes.set_title(_plain(chart.title))


def _heat(figure: Any, axes: Any, chart: Heat) -> None:
    figure.set_size_inches(2 + 0.4 * len(chart.columns), 1 + 0.3 * len(chart.rows))
    axes.imshow(chart.counts, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(chart.columns)), [_plain(name) for name in chart.columns])
    axes.set_yticks(range(len(chart.rows)), [_plain(name) for name in chart.rows])
    most = max((count for row in chart.counts for count in row), default=0)
    for i, row in enumerate(chart.counts):
        for j, count in enumerate(row):
            if count:
                axes.text(j, i, str(count), ha="center", va="center", color="white" if count > 0.55 * most else "black")
    axes.set_title(_plain(chart.title))


def _plain(text: str) -> str:
    """Keep matplotlib from reading formulas into names."""
    return text.replace("$", r"\$")
