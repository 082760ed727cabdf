"""The registry of the paper's tables and figures, the points that are kept, and the page made of them."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from silomix.attacks.paper import paper_size, registry
from silomix.attacks.paper.accuracy_trials import Setting
from silomix.attacks.paper.document import document, record, write_figures
from silomix.attacks.paper.registry import REGISTRY, Kept, ReproduceError, find, listing, run, state_of
from silomix.models.simulation.experiment import QUICK, RUNS, Experiment, Line, Plot, Progress, Result, Scale, Table
from silomix.runtime.cli import main

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reproduction.md"
LABELS = (
    "exp:rec",
    "fig:comm_cost",
    "fig:acc_with_r",
    "tab:sum_of_findings",
    "fig:rns",
    "fig:shuffle",
    "tbl:regul-def",
    "tbl:instahide_acc",
    "exp:rec_with_number_of_clients",
    "fig:le",
    "table:sia_geom_noise",
    "table:sia_color_noise",
    "table:acc_smaller_db",
    "tab:sia_defense_results",
    "tab:different_model",
    "fig:dlg",
    "app:exp_more_agg_func",
    "app:exp_more_agg_func_ACC",
    "tbl:comm_cost_more_clients",
    "fig:rns_shuffle_rounds",
    "fig:comm_cost_zoomed",
    "fig:expansion_factor",
    "table:comp_cost",
    "fig:sample",
    "tab:dp_ranges",
    "tab:dp_results",
)
"""Every table and figure of the paper, by the label that it has there."""


def test_every_table_and_figure_of_the_paper_has_an_experiment_with_a_state() -> None:
    named = " ".join(one.paper for one in REGISTRY)
    for label in LABELS:
        assert re.search(rf"{re.escape(label)}(?![\w:])", named), label
    ids = [one.id for one in REGISTRY]
    assert len(set(ids)) == len(ids)
    for row in listing():
        assert row["state"] == RUNS or row["state"].startswith(("needs ", "not reproduced: "))
        assert row["paper"]
    assert sum(one.state == RUNS for one in REGISTRY) >= 10


def test_what_needs_data_runs_where_the_data_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SILOMIX_DATA", str(tmp_path))
    one = find("sia-newsgroups")
    assert state_of(one).startswith("needs newsgroups")
    with pytest.raises(ReproduceError, match="data get newsgroups"):
        run(one, QUICK)
    (tmp_path / "newsgroups").mkdir()
    for name in ("20newsgroups-train.tab", "20newsgroups-test.tab"):
        (tmp_path / "newsgroups" / name).touch()
    assert state_of(one) == RUNS


def counting(fails_at: int = 99) -> tuple[Experiment, list[int]]:
    """An experiment of three points that can be interrupted."""
    computed: list[int] = []

    def go(scale: Scale, progress: Progress) -> Result:
        progress.plan(3)

        def value(i: int) -> Callable[[], dict[str, Any]]:
            def compute() -> dict[str, Any]:
                if i == fails_at:
                    raise KeyboardInterrupt
                computed.append(i)
                return {"i": i, "pair": (i, i)}

            return compute

        found = [progress.point(f"point {i}", value(i)) for i in range(3)]
        rows = tuple((f["i"], f"{f['pair']}", None, 0.123456) for f in found)
        plot = Plot("squares", "x", "y", (Line("a", ((0.0, 0.0), (1.0, 1.0))),), 0.5, "half")
        return Result((Table("points", ("a", "b | c", "d", "e"), rows),), (plot,), ("a note",), {"seen": scale.data})

    return Experiment("counting", "Points", "Table tab:none", go, data=("mnist",)), computed


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    broken, computed = counting(fails_at=2)
    with pytest.raises(KeyboardInterrupt):
        run(broken, QUICK, directory=tmp_path)
    assert computed == [0, 1]
    whole, computed = counting()
    seen: list[tuple[int, int]] = []
    done = run(whole, QUICK, directory=tmp_path, show=lambda n, total, what: seen.append((n, total)))
    assert computed == [2]
    assert done.from_before == 2
    assert seen[-1] == (3, 3)
    assert {row[1] for row in done.result.tables[0].rows} == {"[0, 0]", "[1, 1]", "[2, 2]"}  # alike, kept or new
    _, computed = again = counting()
    run(again[0], QUICK, directory=tmp_path, fresh=True)
    assert computed == [0, 1, 2]


def test_a_damaged_point_and_another_size_are_computed_anew(tmp_path: Path) -> None:
    one, computed = counting()
    run(one, QUICK, directory=tmp_path)
    for i, file in enumerate(sorted((tmp_path / "counting").iterdir())):
        file.write_text(["", "{", json.dumps({"key": "another", "value": 1})][i])
    run(one, QUICK, directory=tmp_path)
    run(one, Scale("other", (1,), 9), directory=tmp_path)
    assert len(computed) == 9


def test_a_point_that_is_no_json_is_the_experiments_fault(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Kept(tmp_path, "x", "quick").point("k", lambda: {1, 2})
    assert not list(tmp_path.rglob("*.json"))


def test_runs_are_written_down_and_the_page_is_made_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = counting()
    monkeypatch.setattr(registry, "REGISTRY", (one,))
    monkeypatch.setattr("silomix.attacks.paper.document.REGISTRY", (one,))
    record(tmp_path, run(one, QUICK, directory=tmp_path / "cache"))
    record(tmp_path, run(one, QUICK, data="mnist", directory=tmp_path / "cache"))
    text = (tmp_path / "reproduction.md").read_text()
    assert "| [counting](#counting), [counting-mnist](#counting-mnist) | Table tab:none | runs here |" in text
    assert "| 0 | [0, 0] | - | 0.1235 |" in text
    assert "![squares](reproduction/counting-1.png)" in text
    assert (tmp_path / "reproduction" / "counting-1.png").read_bytes().startswith(b"\x89PNG")
    assert "a note" in text
    assert json.loads((tmp_path / "reproduction" / "counting.json").read_text())["machine"] in text
    figures = write_figures(tmp_path / "figures", run(one, QUICK, directory=tmp_path / "cache"))
    assert [path.name for path in figures] == ["counting-1.svg", "counting-1.pdf"]
    assert b"<svg" in figures[0].read_bytes()
    assert figures[1].read_bytes().startswith(b"%PDF")
    (tmp_path / "reproduction" / "odd.json").write_text("[]")
    with pytest.raises(ReproduceError, match="move it away"):
        document(tmp_path)


def test_wrong_names_and_data_say_what_is_right() -> None:
    with pytest.raises(ReproduceError, match="did you mean sia-by-alpha"):
        find("sia-by-alpa")
    with pytest.raises(ReproduceError, match="runs on digits, mnist"):
        run(find("sia-by-alpha"), QUICK, data="imagenet")
    with pytest.raises(ReproduceError, match="a drawing"):
        run(find("shuffle-drawing"), QUICK)


def test_the_command_lists_and_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SILOMIX_DATA", str(tmp_path))
    assert main(["reproduce", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["state"] for row in rows)
    assert main(["reproduce", "crt-example", "expansion", "--quick", "--json", "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in found] == ["crt-example", "expansion"]
    assert found[0]["tables"][0]["rows"][2][1:] == ["55", "-50"]  # the paper's example does not fit its own moduli
    assert (tmp_path / "out" / "reproduction.md").exists()
    assert main(["reproduce"]) != 0
    assert "--all" in capsys.readouterr().err
    assert main(["reproduce", "nothing"]) != 0
    assert "--list" in capsys.readouterr().err


@pytest.mark.full
def test_rounds_at_the_papers_size_are_kept_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted run loses a round at most; and a round that goes on from a file is the one of an unbroken run."""
    monkeypatch.setitem(paper_size.SIZES, "digits", Setting("silomix.models.digits:task", {"model": "linear"}, True))
    monkeypatch.setattr(paper_size, "EPOCHS", 1)
    one = find("sia-paper-size")
    first = run(one, replace(QUICK, rounds=1), directory=tmp_path)
    second = run(one, replace(QUICK, rounds=2), directory=tmp_path)
    whole = run(one, replace(QUICK, rounds=2), directory=tmp_path / "whole")
    assert (first.from_before, second.from_before) == (0, 1)
    points = [[{**p, "seconds": 0} for p in r.result.values["points"][0]] for r in (first, second, whole)]
    assert points[0] == points[1][:1]
    assert points[1] == points[2]
    assert all("model" not in point for point in points[1])
    table = second.result.tables[0]
    assert [row[0] for row in table.rows] == ["1", "2", "best"]
    assert table.columns == ("round", "none", "model", "layer", "parameter", "semi-honest", "model accuracy", "paper")


def test_time_of_remapping_is_that_of_the_paper_s_last_layer(tmp_path: Path) -> None:
    from silomix.attacks.paper.resources import time_remapping

    found = time_remapping(silos=3, records=10)
    assert found["parameters"] == 1290
    assert found["R_P"] > 0


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_the_page_has_the_papers_sets_at_the_papers_size(data: str) -> None:
    """All records at alpha 0.1: the rows hold what was measured, and a sum is where a random guess is."""
    [table] = json.loads((PAGE.parent / "reproduction" / f"sia-paper-size-{data}.json").read_text())["tables"]
    modes = ["none", "model", "layer", "parameter", "semi-honest"]
    assert table["columns"][1:6] == modes
    section = PAGE.read_text().split(f"## sia-paper-size-{data}\n")[1].split("\n## ")[0]
    assert "alpha = 0.1" in section
    for row in table["rows"]:
        assert f"| {' | '.join(map(str, row[:6]))} |" in section
    best = {
        mode: [float(n) for n in re.findall(r"[\d.]+", str(table["rows"][-1][1 + i]))] for i, mode in enumerate(modes)
    }
    assert all(best[mode][1] > 20 for mode in modes[:4]), "the lower end of the interval; a random guess is 10%"
    assert best["semi-honest"][1] < 10 < best["semi-honest"][2]
