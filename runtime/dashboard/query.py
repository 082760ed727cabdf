"""The dashboard as a picture, for whoever has no Grafana: the same panels, from the same queries."""

import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.progress import track

from silomix.runtime.core.errors import UserError
from silomix.runtime.dashboard.panels import PANELS, GridPlace, Panel, PanelKind, Query, places
from silomix.runtime.dashboard.prometheus import Prometheus, QueryError, Series
from silomix.runtime.terminal import console, say_json

MOST_POINTS = 300
"""Steps of a line: more than a panel has pixels to show apart."""
LEAST_WINDOW = 4
"""Scrapes in a window for rates, as Grafana has it: one may fail, and two are needed."""


@dataclass(frozen=True)
class Span:
    """The time that is shown, and how finely: all in seconds."""

    start: float
    end: float
    step_s: float
    window_s: float


@dataclass(frozen=True)
class Line:
    """One series of a panel, with its name as the legend has it."""

    name: str
    query: Query
    series: Series

    @property
    def last(self) -> float:
        """The newest value."""
        return self.series.points[-1][1]


@dataclass(frozen=True)
class Answered:
    """A panel with what its queries returned."""

    place: GridPlace
    lines: tuple[Line, ...]


def show(out: Path | None, url: str, job: str | None, last_s: float, *, as_json: bool) -> int:
    """Ask Prometheus all the questions, and write the picture, or the answers as JSON."""
    if out is not None:
        from silomix.runtime.dashboard.picture import check_suffix

        check_suffix(out)  # before anything is asked
    source = Prometheus(url)
    job = choose_job(source, job)
    span = find_span(source, job, time.time(), last_s)
    quiet = as_json or not sys.stderr.isatty()
    progress = console(stderr=True, quiet=quiet)
    answers = [ask(source, place, job, span) for place in track(list(places()), "asking", console=progress)]
    if out is not None:
        from silomix.runtime.dashboard.picture import draw

        draw(answers, span, job, out)
    if as_json:
        say_json(as_json_value(answers, span, job))
    else:
        missing = [a.place.panel.title for a in answers if not a.lines]
        note = f"; nothing to show for: {', '.join(missing)}" if missing else ""
        sys.stdout.write(
            f"{out}: {len(answers)} panels of {job}, {_clock(span.start)} to {_clock(span.end)} UTC{note}\n"
        )
    return 0


def choose_job(source: Prometheus, wanted: str | None) -> str:
    """Find the federation: the one that was asked for, or the only one that is there."""
    jobs = source.jobs()
    if not jobs:
        raise QueryError(f"{source.url} has no metrics of silomix nodes: see docs/monitoring.md for its configuration")
    if wanted is None and len(jobs) == 1:
        return jobs[0]
    if wanted not in jobs:
        found = "which one?" if wanted is None else f"{wanted!r} is not among them."
        raise QueryError(f"{source.url} has several federations, {found} Give --job with one of {', '.join(jobs)}")
    return wanted


def find_span(source: Prometheus, job: str, now: float, last_s: float) -> Span:
    """Find the time in which the federation ran, within the last so many seconds, and how finely to show it."""
    scrape = source.scrape_s(job)
    coarse = max(scrape, last_s / MOST_POINTS)
    seen = source.range(f'count(silomix_node_info{{job="{job}"}})', now - last_s, now, coarse)
    if not seen:
        raise QueryError(f"{source.url} has nothing of {job} in the last {last_s:g} s: give a longer --last")
    first, last = seen[0].points[0][0], seen[0].points[-1][0]
    start, end = first, min(now, last + coarse)
    step = max(scrape, (end - start) / MOST_POINTS)
    return Span(start, end, step, max(step + scrape, LEAST_WINDOW * scrape))


def ask(source: Prometheus, place: GridPlace, job: str, span: Span) -> Answered:
    """Ask a panel's questions."""
    panel = place.panel
    lines: list[Line] = []
    for query in panel.queries:
        expr = fill(query.expr, job, span.window_s)
        if panel.kind is PanelKind.GAUGE:
            found = source.instant(expr, span.end)
        else:
            # Bars stand side by side: each shows its own window, and none shows what another has shown.
            step = span.window_s if panel.kind is PanelKind.BARS else span.step_s
            found = source.range(expr, span.start, span.end, step)
        lines += [Line(name(query.legend, series.labels), query, series) for series in found if series.points]
    return Answered(place, tuple(lines))


def fill(expr: str, job: str, window_s: float) -> str:
    """Put in what Grafana would put in."""
    escaped = job.replace("\\", "\\\\").replace('"', '\\"')
    return expr.replace("$job", escaped).replace("$__rate_interval", f"{max(1, round(window_s * 1000))}ms")


def name(legend: str, labels: Mapping[str, str]) -> str:
    """Name a series as its legend says."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), legend)


def as_json_value(answers: list[Answered], span: Span, job: str) -> dict[str, object]:
    """What a script wants: every panel with its series, oldest point first."""
    return {
        "job": job,
        "start": span.start,
        "end": span.end,
        "step_s": span.step_s,
        "panels": [
            {
                "title": a.place.panel.title,
                "unit": a.place.panel.unit,
                "series": [{"name": line.name, "points": [list(p) for p in line.series.points]} for line in a.lines],
            }
            for a in answers
        ],
    }


def duration(text: str) -> float:
    """Read what a person types for a stretch of time: 90s, 30m, 6h, 2d."""
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if not match or not int(match[1]):
        raise UserError(f"{text!r} is not a stretch of time: give one such as 30m, 6h or 2d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def _clock(unix: float) -> str:
    return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%d %H:%M:%S}"


__all__ = ["PANELS", "Answered", "Line", "Panel", "Span", "ask", "choose_job", "duration", "fill", "find_span", "show"]
