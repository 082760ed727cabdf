"""The audit's page and figures: complete, self-contained, escaped, and legible in a real browser."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.attacks.audit.made_up import ALL, judged, report

from silomix.attacks.audit.attack import Bar, Bars, Section, Tone
from silomix.attacks.audit.charts import apart, curves
from silomix.attacks.audit.figures import write_figures
from silomix.attacks.audit.page import page, sections
from silomix.attacks.views.view import Mode
from silomix.models.simulation.experiment import Line, Plot


def test_the_page_needs_no_network_and_has_everything() -> None:
    text = page(report(), ALL)
    assert not re.search(r"https?://", text)
    assert not re.search(r"<(script|link|iframe)", text)
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    for mode in Mode:
        assert f">{mode}<" in text
    for heading in (
        "What is trained",
        "by mode",
        "heterogeneity",
        "captured traffic",
        "not reduced",
        "collude",
        "Cohorts",
        "DLG",
        "assumed",
    ):
        assert re.search(rf"<h2>[^<]*{heading}", text)
    assert text.index("PROTECTED") < text.index("<h2>")
    assert text.count("<svg") == 5
    assert "records by silo and class" in text
    assert "silomix.models.digits:task" in text


EVIL = "<script>alert(1)</script>"


def test_hostile_names_are_escaped() -> None:
    """A task, its options and its tensors may be named anything, and so may what is left out."""
    evil = report(skipped={"residue-sums": EVIL}, unfit={"layer": EVIL})
    evil["subject"]["task"] = EVIL
    evil["subject"]["options"] = {EVIL: '" onload="alert(1)'}
    evil["subject"]["model"]["network"] = EVIL
    evil["subject"]["model"]["tensors"][0]["name"] = EVIL
    evil["setting"]["command"] = f"silomix audit --task '{EVIL}'"
    evil["verdict"]["findings"] = ["<b onmouseover=x>"]
    text = page(evil, ALL)
    assert "<script" not in text
    assert "<b onmouseover" not in text
    assert 'onload="' not in text
    assert text.count("&lt;script&gt;") >= 6


def test_hostile_names_in_charts_are_escaped_and_are_no_formulas(tmp_path: Path) -> None:
    name = f'$\\frac{{{EVIL}"'
    bars = Bars(name, (Bar(name, 0.5, 0.4, 0.6, Tone.EXPOSED),), 0.1, name)
    plot = Plot("plot", name, "y", (Line(name, ((1.0, 0.5),)),), 0.1, name)
    from silomix.attacks.audit.page import _environment

    blocks: Any = _environment().get_template("blocks.html").module
    text = str(blocks.section(Section(name, name, (bars, plot, name))))
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 8
    assert len(write_figures({"bars": Section("t", "", (bars,))}, tmp_path)) == 2


def test_what_was_left_out_and_what_could_not_be_mounted_say_why() -> None:
    found = report(skipped={"inversion": "it draws square pictures"}, unfit={"layer": "no dense layer"})
    del found["sia"]["layer"]
    text = page(judged(found), ALL)
    assert "<b>inversion</b>: it draws square pictures." in text
    assert "Mode layer could not be attacked here: no dense layer." in text
    assert "DLG" not in re.findall(r"<h2>(.*?)</h2>", text)


def test_a_page_of_many_classes_and_tensors_stays_short() -> None:
    large = report()
    large["subject"]["data"] |= {"classes": 1000, "counts": [[1] * 1000] * 10}
    tensor = large["subject"]["model"]["tensors"][0]
    large["subject"]["model"]["tensors"] = [{**tensor, "name": f"layer.{i}"} for i in range(200)]
    text = page(large, ALL)
    assert len(text) < 1.1 * len(page(report(), ALL))
    assert "... 189 more" in text
    assert "layer.0<" in text
    assert "layer.199<" in text


def test_the_figures_are_written_as_svg_and_pdf(tmp_path: Path) -> None:
    written = write_figures(sections(report(), ALL), tmp_path / "figures")
    names = {path.name for path in written}
    assert names >= {"by-mode-1.svg", "by-mode-2.pdf", "captures.svg", "by-skew.pdf", "subject.svg"}
    for path in written:
        start = path.read_bytes()[:200]
        assert start.startswith(b"%PDF-") if path.suffix == ".pdf" else b"<?xml" in start


def test_labels_do_not_lie_on_each_other() -> None:
    placed = sorted(apart([100, 101, 101, 260], 266))
    assert all(b - a >= 14 for a, b in pairwise(placed))
    assert placed[-1] <= 266


def test_a_curve_of_one_point_is_drawn_in_the_middle() -> None:
    chart = curves(Plot("one round", "round", "y", (Line("a", ((1.0, 0.5),)),)))
    ((x, _),) = chart["lines"][0]["dots"]
    assert x == (chart["box"].left + chart["box"].right) / 2
    assert chart["level"] is None


def test_the_templates_are_package_data() -> None:
    """A page that works from a checkout only is no use to whoever installs it."""
    root = Path(__file__).resolve().parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["silomix.attacks.audit"]
    files = list((root / "attacks" / "audit" / "templates").iterdir())
    assert files
    assert all(any(fnmatch(f"templates/{file.name}", pattern) for pattern in patterns) for file in files)


@pytest.fixture(scope="module")
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium here, and in CI the report must be looked at: install the package chromium")
        pytest.skip("no Chromium here to look at the report with: install the package chromium")
    return found


@pytest.mark.parametrize(
    ("width", "least"),
    [
        pytest.param(1900, 0.015, id="wide"),
        pytest.param(1200, 0.03, id="desktop", marks=pytest.mark.full),
        pytest.param(390, 0.06, id="telephone", marks=pytest.mark.full),
    ],
)
def test_the_page_looks_right_in_a_browser(browser: str, tmp_path: Path, width: int, least: float) -> None:
    """Rendered by Chromium: something on every third of the page, the verdict's colour, and nothing cut off."""
    source, picture = tmp_path / "audit.html", tmp_path / "audit.png"
    source.write_text(page(report(), ALL))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--screenshot={picture}"]
    subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2400", source.as_uri()],
        check=True,
        capture_output=True,
        timeout=60,
    )
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    assert pixels.shape[:2] == (2400, width)
    dark = pixels.sum(axis=2) < 380
    for third in np.array_split(dark, 3):
        assert third.mean() > least / 3
    green = (np.abs(pixels - np.array([0x1B, 0x6E, 0x3C])).sum(axis=2) < 30).sum()
    red = (np.abs(pixels - np.array([0xB3, 0x26, 0x1E])).sum(axis=2) < 30).sum()
    assert green > 500  # the verdict's bar, and the protected modes
    assert red > 500  # the exposed ones
    margin = 4
    assert not dark[:, width - margin :].any()  # no text or table pushes past the edge: what is wide scrolls by itself
    if width > 1000:  # the width of the window is used
        assert dark[:, int(0.75 * width) :].any()


def test_the_json_has_what_scripts_read() -> None:
    found = json.loads(json.dumps(report()))
    for mode in ("none", "model", "layer", "parameter", "unary", "trusted", "semi-honest", "semi-honest-all-collude"):
        assert set(found["sia"][mode]) >= {"accuracy", "low", "high", "targets"}
