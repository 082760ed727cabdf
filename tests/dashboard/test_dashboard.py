"""The dashboard: made from code, asking only for what nodes tell, in the form that Grafana reads."""

import json
import re
import shutil
import subprocess
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import matplotlib
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.observe.test_metrics import ROLES, everything

from silomix.runtime.cli import main
from silomix.runtime.core.errors import UserError
from silomix.runtime.dashboard import picture
from silomix.runtime.dashboard import query as dashboard
from silomix.runtime.dashboard.grafana import grafana_json
from silomix.runtime.dashboard.panels import COLUMNS, PANELS, Panel, PanelKind, places
from silomix.runtime.dashboard.prometheus import Series, _seconds, _series

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
QUERIES = [(panel.title, query.expr) for panel in PANELS for query in panel.queries]
SCHEMA, TYPESCRIPT = "@grafana/schema@13.2.3", "typescript@7.0.2"


@cache
def metric_names() -> set[str]:
    """Every name under which a node of any role tells something."""
    text = "".join(everything(role).text() for role in ROLES)
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def metrics_in(expr: str) -> set[str]:
    """The metrics that an expression asks for. Only a metric's name stands before its braces, window or operator."""
    return set(re.findall(r"\b(?:silomix|process)_\w+|\bup\b", expr))


def test_the_file_is_what_the_code_makes() -> None:
    assert (GRAFANA / "dashboards" / "silomix.json").read_text() == grafana_json(), "run `make grafana`"


@pytest.mark.parametrize(("title", "expr"), QUERIES)
def test_a_query_parses_and_asks_for_metrics_that_exist(title: str, expr: str) -> None:
    promql_parser.parse(dashboard.fill(expr, "silomix", 20))
    assert metrics_in(expr) <= metric_names(), title
    assert metrics_in(expr) or expr.startswith("vector(")
    assert expr.count('job="$job"') >= len(metrics_in(expr)), "another federation's series would be shown too"


def test_what_the_issue_asks_for_is_shown() -> None:
    text = " ".join(expr for _, expr in QUERIES)
    for name in ("bytes_per_parameter", "plan_bytes_per_parameter", "bytes_total", "round_phase_seconds_sum"):
        assert f"silomix_{name}" in text
    for name in ("cohort_size", "rejections_total", "hop_state", "certificate_expiry_timestamp_seconds"):
        assert f"silomix_{name}" in text
    assert "vector(32)" in text


def test_panels_do_not_overlap_and_have_names_of_their_own() -> None:
    cells: set[tuple[int, int]] = set()
    for place in places():
        mine = {(place.x + i, place.y + j) for i in range(place.panel.width) for j in range(place.panel.height)}
        assert not mine & cells
        assert max(x for x, _ in mine) < COLUMNS
        cells |= mine
    assert len({panel.title for panel in PANELS}) == len(PANELS)
    assert all(len(panel.what) > 20 for panel in PANELS)


def test_provisioning_points_at_what_is_there() -> None:
    sources = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "silomix.yml").read_text())
    providers = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "silomix.yml").read_text())
    prometheus = yaml.safe_load((GRAFANA.parent / "prometheus" / "prometheus.yml").read_text())
    (source,) = sources["datasources"]
    assert source["type"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    assert providers["providers"][0]["options"]["path"].startswith("/")
    assert json.loads(grafana_json())["templating"]["list"][0]["query"] == source["type"]


# --- Grafana's own schema ---------------------------------------------------------------------------------------------

RAW = "./node_modules/@grafana/schema/dist/esm/raw/composable"
CHECK = f"""\
import type {{ Dashboard }} from "@grafana/schema";
import type * as bargauge from "{RAW}/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen";
import type * as stat from "{RAW}/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as states from "{RAW}/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen";
import type * as lines from "{RAW}/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
type Plain<T> = T extends string ? `${{T}}` : T extends object ? {{ [K in keyof T]: Plain<T[K]> }} : T;
"""
"""A JSON file has strings where the types have enumerations of strings."""
OPTIONS = {"timeseries": "lines", "stat": "stat", "bargauge": "bargauge", "state-timeline": "states"}
CUSTOM = {"timeseries": "lines", "state-timeline": "states"}


def typescript(value: dict[str, Any]) -> str:
    """A program that compiles only if the dashboard, and each panel's options, are of Grafana's types."""
    parts = [CHECK, f"export const dashboard: Plain<Dashboard> = {json.dumps(value)};\n"]
    for panel in value["panels"]:
        kind, number = panel["type"], panel["id"]
        options, custom = panel["options"], panel["fieldConfig"]["defaults"].get("custom")
        parts.append(f"export const o{number}: Plain<{OPTIONS[kind]}.Options> = {json.dumps(options)};\n")
        if custom is not None:
            parts.append(f"export const c{number}: Plain<{CUSTOM[kind]}.FieldConfig> = {json.dumps(custom)};\n")
    return "".join(parts)


@pytest.mark.full
def test_the_file_fits_grafanas_schema(tmp_path: Path) -> None:
    """Where npm can fetch Grafana's types, TypeScript checks every key and value of the file against them."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    (tmp_path / "package.json").write_text("{}")
    arguments = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", SCHEMA, TYPESCRIPT]
    try:
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip("npm could not fetch Grafana's schema within a minute")
    if done.returncode:
        pytest.skip(f"npm could not fetch Grafana's schema: {done.stderr.splitlines()[-1:]}")

    def compiles(value: dict[str, Any]) -> str:
        (tmp_path / "check.ts").write_text(typescript(value))
        flags = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler"]
        tsc = tmp_path / "node_modules" / ".bin" / "tsc"
        ran = subprocess.run([tsc, *flags, "check.ts"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        return ran.stdout

    good = json.loads(grafana_json())
    assert compiles(good) == ""
    misspelt = json.loads(grafana_json())
    misspelt["panels"][3]["gridPoss"] = misspelt["panels"][3].pop("gridPos")
    assert "gridPoss" in compiles(misspelt)
    wrong = json.loads(grafana_json())
    wrong["panels"][0]["options"]["graphMode"] = "sideways"
    assert "sideways" in compiles(wrong)


# --- the picture ------------------------------------------------------------------------------------------------------


def answered(panel: Panel, *values: float) -> dashboard.Answered:
    series = Series({"node": "silo-01"}, tuple((1000.0 + i, v) for i, v in enumerate(values)))
    lines = (dashboard.Line("silo-01", panel.queries[0], series),) if values else ()
    return dashboard.Answered(next(place for place in places() if place.panel is panel), lines)


@pytest.mark.parametrize("kind", PanelKind)
@pytest.mark.parametrize("values", [(), (0.0,), (1.0, 2.0, 0.0)], ids=["nothing", "one point", "a line"])
def test_every_kind_of_panel_is_drawn_with_much_little_or_nothing(
    tmp_path: Path, kind: PanelKind, values: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # words stay words
    panel = next(panel for panel in PANELS if panel.kind is kind)
    picture.draw([answered(panel, *values)], dashboard.Span(1000, 1010, 1, 4), "job", tmp_path / "p.svg")
    drawn = (tmp_path / "p.svg").read_text()
    assert panel.title.replace("'", "&#x27;") in drawn or panel.title in drawn
    assert (panel.empty in drawn) == (not values)


def test_values_are_readable() -> None:
    assert picture.readable(0.953, "percentunit", 1) == "95.3%"
    assert picture.readable(824.4, "d", 0) == "824 d"
    assert picture.readable(0.05, "s") == "50 ms"
    assert picture.readable(2.5, "s") == "2.5 s"
    assert picture.readable(2_250_000, "Bps") == "2.25 MB/s"
    assert picture.readable(0, "decbytes") == "0 B"
    assert picture.readable(18.284, "none", 2) == "18.28"


def test_durations() -> None:
    assert [dashboard.duration(text) for text in ("90s", "30m", "6h", "2d")] == [90, 1800, 21600, 172800]
    for text in ("", "0s", "1", "h", "-1h", "1.5h", "9999999s"):
        with pytest.raises(UserError, match="stretch of time"):
            dashboard.duration(text)
    assert [_seconds(text) for text in ("5s", "1m30s", "500ms", "", "1h")] == [5, 90, 0.5, 60, 3600]


def test_what_is_not_a_number_is_not_a_point() -> None:
    row = {"metric": {"node": "a"}, "values": [[1, "2"], [2, "NaN"], [3, "+Inf"], [4, "5"]]}
    assert _series(row, "values").points == ((1, 2), (4, 5))
    assert _series({"metric": {}, "value": [1, "NaN"]}, "value").points == ()


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, b"<html>hello</html>", "not as a Prometheus does"),
        (200, b"[]", "not as a Prometheus does"),
        (200, b'{"status": "success", "data": []}', "no metrics of silomix nodes"),
        (200, b'{"status": "success", "data": ["a", "b"]}', "which one"),
        (200, b'{"status": "error", "error": "tired"}', "tired"),
        (422, b'{"status": "error", "error": "bad expression"}', "bad expression"),
        (404, b"", "HTTP 404"),
    ],
)
def test_whatever_answers_at_the_address(
    capsys: pytest.CaptureFixture[str], status: int, body: bytes, problem: str
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert main(["dashboard", "--json", "--prometheus", f"http://127.0.0.1:{server.server_port}"]) == 2
        server.shutdown()
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


def test_a_dashboard_that_cannot_be_had_says_why_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: object) -> str:
        assert main(["dashboard", *map(str, arguments)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    nowhere = "http://127.0.0.1:9"
    assert "does not answer" in refused("--out", tmp_path / "p.png", "--prometheus", nowhere)
    assert ".png, .svg, .pdf" in refused("--out", tmp_path / "p.txt", "--prometheus", nowhere)
    assert "no such directory" in refused("--out", tmp_path / "gone" / "p.png")
    assert "not the address" in refused("--json", "--prometheus", "file:///etc/passwd")
    assert "stretch of time" in refused("--json", "--last", "soon")
    with pytest.raises(SystemExit):
        main(["dashboard"])
