"""docs/reproduction.md, made of the runs that are recorded beside it: nothing in it is typed by hand."""

import json
from pathlib import Path
from typing import Any

from silomix.attacks.paper.registry import REGISTRY, ReproduceError, Run, listing
from silomix.models.simulation.experiment import RUNS, Cell
from silomix.models.simulation.plots import draw
from silomix.runtime.store.files import write_atomically

PLACE = "reproduction"
"""Below the directory of the page: a JSON file for each run, and its plots."""
FORMATS = ("svg", "pdf")
"""Of figures for papers and slides."""
HEAD = """\
# The paper's tables and figures, repeated

This page is written by `silomix reproduce --all --out docs` from what it measured; the JSON of each run is in
`reproduction/`. `silomix reproduce ID` repeats one entry, and options such as `--data mnist` run it on a larger data
set if its files are there (`silomix data`). Sizes are smaller than the paper's, whose points take hours to days on
GPUs, so compare the order of the modes and where a random guess lies, not the digits. The exception is sia-paper-size,
which has all of the paper's records, networks and local epochs, but fewer of its rounds. [attacks.md](attacks.md)
explains how each attack works.
"""


def shown(cell: Cell) -> str:
    """Write a cell for people."""
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def record(out: Path, done: Run) -> None:
    """Write one run's JSON and plots, and the page anew."""
    place = out / PLACE
    place.mkdir(parents=True, exist_ok=True)
    _write(place / f"{done.name}.json", json.dumps(done.json(), indent=1))
    for i, plot in enumerate(done.result.plots):
        path = place / f"{done.name}-{i + 1}.png"
        draw(plot, path)
        path.chmod(0o644)
    _write(out / "reproduction.md", document(out))


def write_figures(directory: Path, done: Run) -> list[Path]:
    """Write one run's plots for papers and slides, and return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for i, plot in enumerate(done.result.plots):
        for ending in FORMATS:
            path = directory / f"{done.name}-{i + 1}.{ending}"
            draw(plot, path)
            path.chmod(0o644)
            written.append(path)
    return written


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
    path.chmod(0o644)  # a page for everybody


def document(out: Path) -> str:
    """Write the page from all runs that are recorded."""
    runs = [_read(path) for path in (out / PLACE).glob("*.json")]
    order = {one.id: i for i, one in enumerate(REGISTRY)}
    runs.sort(key=lambda run: (order.get(run["id"], len(order)), run["name"]))
    names: dict[str, list[str]] = {}
    for run in runs:
        names.setdefault(run["id"], []).append(run["name"])
    parts = [HEAD, "| id | in the paper | state |", "| --- | --- | --- |"]
    for one in listing():
        done = ", ".join(f"[{name}](#{name})" for name in names.get(one["id"], []))
        state = one["state"] if done or one["state"] != RUNS else f"{RUNS}; not run for this page"
        parts.append(f"| {done or one['id']} | {one['paper']} | {state} |")
    for run in runs:
        parts += ["", *_section(run)]
    return "\n".join(parts) + "\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        run = json.loads(path.read_bytes())
        return {key: run[key] for key in (*_KEYS, "tables", "plots", "notes")}
    except (ValueError, KeyError, TypeError):
        raise ReproduceError(f"{path}: this is no run of `silomix reproduce`; move it away, or delete it") from None


_KEYS = ("name", "id", "title", "paper", "scale", "data", "date", "machine", "seconds")


def _section(run: dict[str, Any]) -> list[str]:
    scale = run["scale"]
    size = f"{scale['name']}: {len(scale['seeds'])} seed(s), {scale['rounds']} rounds"
    lines = [f"## {run['name']}", "", f"{run['title']}. {run['paper']}. {run['date']}, {run['machine']}; size {size}."]
    for table in run["tables"]:
        lines += ["", f"**{table['title']}**", "", _markdown(table["columns"], table["rows"])]
    for i, plot in enumerate(run["plots"]):
        lines += ["", f"![{plot['title']}]({PLACE}/{run['name']}-{i + 1}.png)"]
    for note in run["notes"]:
        lines += ["", note]
    return lines


def _markdown(columns: list[str], rows: list[list[Cell]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    lines += [f"| {' | '.join(shown(cell).replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines)
