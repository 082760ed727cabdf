"""Curves as pictures: one style for simulations and experiments, drawn without a display."""

from io import BytesIO
from pathlib import Path

from silomix.models.simulation.experiment import Line, Plot
from silomix.runtime.core.errors import UserError
from silomix.runtime.store.files import write_atomically

__all__ = ["Line", "Plot", "draw"]

SIZE_IN = (7.0, 4.2)
DPI = 120


def draw(plot: Plot, path: Path) -> None:
    """Draw a plot into a file, PNG or whatever its name ends in; a file that is there is replaced whole."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("pictures need matplotlib, which is not installed: pip install 'silomix[train]'") from None

    figure = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for line in plot.lines:
        x, y = [p[0] for p in line.points], [p[1] for p in line.points]
        (curve,) = axes.plot(x, y, marker="o", markersize=3, label=line.name)
        if line.intervals:
            low, high = [i[0] for i in line.intervals], [i[1] for i in line.intervals]
            axes.fill_between(x, low, high, alpha=0.15, color=curve.get_color())
    if plot.level is not None:
        axes.axhline(plot.level, linestyle="--", color="grey", label=plot.level_name or None)
    if plot.log_x:
        axes.set_xscale("log")
    axes.set_title(plot.title)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    axes.grid(alpha=0.3)
    if len(plot.lines) > 1 or plot.level_name:
        axes.legend()
    out = BytesIO()
    figure.savefig(out, format=path.suffix.removeprefix(".") or "png")
    write_atomically(path, out.getvalue())
