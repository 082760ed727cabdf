"""The audit's verdict and its page: judged right, complete, self-contained, and legible in a real browser."""

import copy
import json
import os
import re
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.attacks.audit.doubling import double, fail

from silomix.attacks.audit.audit import ALPHA, BY_ALPHA, QUICK, audit_captures, bits, plan_jobs
from silomix.attacks.audit.judgement import verdict_on
from silomix.attacks.audit.pictures import strip
from silomix.attacks.audit.pool import Done, Job, run_jobs
from silomix.attacks.audit.report import page
from silomix.attacks.prior import CLASSES, INVENTED
from silomix.attacks.sia import Outcome, Score
from silomix.attacks.views.view import MEANINGS, PROTECTED, Mode
from silomix.runtime.cli import main

Json = dict[str, Any]


def outcome(rate: float, targets: int = 1000) -> Json:
    score = Score(round(rate * targets), targets)
    return Outcome((score, score), score).json()


def report() -> Json:
    """An audit as it should come out, with made-up numbers: what is tested is what is made of them."""
    rates = {mode: 0.1 if mode in PROTECTED else 0.5 for mode in Mode}
    picture = strip(np.zeros((2, 1, 8, 8), np.float32), np.ones((2, 1, 8, 8), np.float32))
    advantage = {"advantage": 0.9, "low": 0.8, "high": 1.0, "games": 400}
    dlg = {"silos": 2, "records": 2, "looked_for": 2, "loss": 1e-9, "chance": 0.1, "distance": 0.0, "picture": picture}
    collusion = [{"colluding": c, "honest": 10 - c, "error": 0.9, **Score(10, 100).json()} for c in (0, 9)]
    real = {
        "federation": "audit",
        "granularity": "sum",
        "level": "semi-honest",
        "silos": 10,
        "hops": 3,
        "captured": outcome(0.1),
        "unprotected": outcome(0.5),
        "all_collude": outcome(0.5),
        "all_but_one": outcome(0.1),
        "bits_per_parameter": 18.28,
    }
    made: Json = {
        "sia": {str(mode): outcome(rates[mode]) for mode in Mode},
        "baselines": {CLASSES: outcome(0.5), INVENTED: outcome(0.2)},
        "random": 0.1,
        "by_alpha": [
            {"alpha": a, "accuracy": 0.9, "sia": {str(m): outcome(rates[m]) for m in BY_ALPHA}}
            for a in (0.1, 1.0, 10.0)
        ],
        "real": [real],
        "game": [{"silos": n, "values": 1, "unreduced": advantage, "reduced": advantage} for n in (2, 3, 5, 10)],
        "dlg": [dlg],
        "collusion": collusion,
        "changing_cohorts": {"subsample": 0.5, "rounds": 12, "random": 0.1, "taken apart": outcome(0.4)},
        "bits": bits(),
        "meanings": {str(mode): text for mode, text in MEANINGS.items()},
        "setting": {
            "size": "quick",
            "data": "digits",
            "silos": 10,
            "seeds": [3, 4],
            "precision": 4,
            "date": "2026-01-01",
            "machine": "2 cores",
            "command": "silomix audit --quick",
        },
        "seconds": 100.0,
    }
    return {"verdict": verdict_on(made), **made}


def test_all_as_it_should_be_is_protected() -> None:
    verdict = report()["verdict"]
    assert verdict["protected"]
    assert not verdict["findings"]
    assert verdict["text"].startswith("PROTECTED. ")
    assert "10.0%" in verdict["text"]
    assert "50.0%" in verdict["text"]


@pytest.mark.parametrize(
    ("where", "rate", "leak"),
    [
        (("sia", "semi-honest"), 0.3, True),
        (("sia", "trusted"), 0.3, True),
        (("sia", "semi-honest-all-but-one"), 0.3, True),
        (("real", 0, "captured"), 0.3, True),
        (("real", 0, "all_but_one"), 0.3, True),
        (("sia", "unary"), 0.3, False),
        (("sia", "none"), 0.1, False),
        (("sia", "semi-honest-all-collude"), 0.1, False),
        (("real", 0, "unprotected"), 0.1, False),
        (("real", 0, "all_collude"), 0.1, False),
    ],
)
def test_a_leak_is_called_one_and_a_control_that_fails_settles_nothing(
    where: tuple[str | int, ...], rate: float, leak: bool
) -> None:
    changed: Any = report()
    place = changed
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = outcome(rate)
    verdict = verdict_on(changed)
    assert not verdict["protected"]
    assert verdict["leak"] == leak
    assert len(verdict["findings"]) == 1
    assert verdict["text"].startswith("LEAK. " if leak else "NOT SETTLED. ")
    assert ("LEAK" if leak else "NOT SETTLED") in page({**changed, "verdict": verdict})


def test_captures_alone_make_a_report_too() -> None:
    found = audit_captures([report()["real"][0]])
    assert found["verdict"]["protected"]
    text = page(found)
    assert "From captured traffic" in text
    assert "Pictures" not in text


def test_the_page_needs_no_network_and_has_everything() -> None:
    text = page(report())
    assert not re.search(r"https?://", text)
    assert not re.search(r"<(script|link|iframe)", text)
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    for mode in Mode:
        assert f">{mode}<" in text
    for heading in (
        "by mode",
        "heterogeneity",
        "captured traffic",
        "not reduced",
        "Limits",
        "DLG",
        "Bits per",
        "assumed",
    ):
        assert heading in text
    assert text.index("PROTECTED") < text.index("<h2>")


def test_the_page_escapes_what_it_is_given() -> None:
    evil = copy.deepcopy(report())
    evil["setting"]["machine"] = "<script>alert(1)</script>"
    evil["verdict"]["findings"] = ["<b onmouseover=x>"]
    text = page(evil)
    assert "<script>" not in text
    assert "<b onmouseover" not in text


def test_a_quick_audit_asks_about_enough_records_in_every_mode() -> None:
    todo = plan_jobs(QUICK, "nowhere")
    campaigns = [job for job in todo if job.name == f"campaign {ALPHA}"]
    assert all(job.arguments["modes"] == [str(m) for m in Mode] for job in campaigns)
    assert len({job.arguments["seed"] for job in campaigns}) == len(campaigns) > 1
    assert {job.arguments["silos"] for job in todo if job.name == "game"} == {2, 3, 5, 10}
    assert {job.name.partition(" ")[0] for job in todo} == {"campaign", "real", "game", "dlg", "collusion", "changing"}


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_run_in_any_number_of_processes_and_report_how_far_they_are(workers: int) -> None:
    seen: list[Done] = []
    todo = [Job(f"n {i}", double, {"number": i}, float(i)) for i in range(4)]
    assert run_jobs(todo, workers, seen.append) == [0, 2, 4, 6]
    assert seen[0].job is None
    assert seen[-1].done == pytest.approx(1.0)
    assert seen[-1].left_s == pytest.approx(0.0, abs=1e-6)
    assert [d.done for d in seen] == sorted(d.done for d in seen)
    with pytest.raises(ValueError, match="job 1"):
        run_jobs([*todo, Job("bad", fail, {"number": 1}, 9.0)], workers, seen.append)


@pytest.mark.full
def test_a_small_audit_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All attacks on all modes and a real federation, at a size that shows that they run."""
    size = replace(QUICK, targets=300, alphas=(ALPHA,), rounds=2, games=100, steps=5, real_rounds=1, changing_rounds=3)
    monkeypatch.setattr("silomix.runtime.cli.audit.QUICK", size)
    out = tmp_path / "audit.html"
    code = main(["audit", "--quick", "--json", "--out", str(out), "--workers", "1"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["verdict"]["protected"] else 1)
    assert not found["verdict"]["leak"]
    assert found["sia"]["semi-honest-all-collude"]["accuracy"] > 0.4
    assert found["real"][0]["all_collude"]["last"]["low"] > 0.1
    assert "picture" not in found["dlg"][0]
    assert "data:image/png" in out.read_text()
    assert stat.S_IMODE(out.stat().st_mode) == 0o644


def test_bits_are_those_of_the_plan() -> None:
    assert bits() == {
        "none": 32,
        "model": 32,
        "layer": 32,
        "parameter": 32,
        "unary": 53,
        "trusted": 18,
        "semi-honest": 18,
    }


@pytest.fixture(scope="module")
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium here, and in CI the report must be looked at: install the package chromium")
        pytest.skip("no Chromium here to look at the report with: install the package chromium")
    return found


@pytest.mark.parametrize(("width", "least"), [(1200, 0.03), (390, 0.06)], ids=["desktop", "telephone"])
def test_the_page_looks_right_in_a_browser(browser: str, tmp_path: Path, width: int, least: float) -> None:
    """Rendered by Chromium: something on every third of the page, the verdict's colour, and nothing cut off."""
    source, picture = tmp_path / "audit.html", tmp_path / "audit.png"
    source.write_text(page(report()))
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


def test_the_json_has_what_scripts_read() -> None:
    found = json.loads(json.dumps(report()))
    for mode in ("none", "model", "layer", "parameter", "unary", "trusted", "semi-honest", "semi-honest-all-collude"):
        assert set(found["sia"][mode]) >= {"accuracy", "low", "high", "targets"}
