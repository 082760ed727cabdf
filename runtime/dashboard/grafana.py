"""The dashboard as Grafana reads it. `make grafana` writes deploy/grafana/dashboards/silomix.json with it.

Plain JSON in Grafana's classic model; a test holds it against the types that Grafana publishes.
"""

import json
import sys
from string import ascii_uppercase
from typing import Any

from silomix.runtime.dashboard.panels import TITLE, GridPlace, Panel, PanelKind, places

UID = "silomix"
DESCRIPTION = "A silomix federation: what it sends, how long rounds take, whom a silo hides among, what was refused."
SCHEMA_VERSION = 41
BAR = "30s"
"""Least time that a bar stands for. A shorter one would show again what the bar before it has shown."""

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_KINDS = {
    PanelKind.LINES: "timeseries",
    PanelKind.BARS: "timeseries",
    PanelKind.STAT: "stat",
    PanelKind.GAUGE: "bargauge",
    PanelKind.STATES: "state-timeline",
}
_NEWEST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LEGEND = {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True}
_TOOLTIP = {"mode": "multi", "sort": "none"}


def grafana_json() -> str:
    """Return the whole dashboard."""
    value = {
        "uid": UID,
        "title": TITLE,
        "description": DESCRIPTION,
        "tags": ["silomix", "federated-learning"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "utc",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "annotations": {"list": []},
        "templating": {"list": _variables()},
        "panels": [_panel(number, place) for number, place in enumerate(places(), 1)],
    }
    return json.dumps(value, indent=2) + "\n"


def _variables() -> list[dict[str, Any]]:
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    job = {
        "name": "job",
        "label": "Federation",
        "description": "The scrape job: one for each federation.",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(silomix_node_info, job)",
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
    }
    return [source, job]


def _panel(number: int, place: GridPlace) -> dict[str, Any]:
    panel = place.panel
    options, custom = _look(panel)
    by_value = bool(panel.steps or panel.states)
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "noValue": panel.empty,
        "color": {"mode": "thresholds" if by_value else "palette-classic"},
    }
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.kind in (PanelKind.LINES, PanelKind.BARS, PanelKind.GAUGE):
        defaults["min"] = 0
    if panel.steps:
        steps = [{"value": value, "color": colour} for value, colour in panel.steps]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.states:
        states = {
            str(value): {"text": text, "color": colour, "index": i}
            for i, (value, (text, colour)) in enumerate(panel.states.items())
        }
        defaults["mappings"] = [{"type": "value", "options": states}]
    if custom:
        defaults["custom"] = custom
    return {
        "id": number,
        "type": _KINDS[panel.kind],
        "title": panel.title,
        "description": panel.what,
        "datasource": _SOURCE,
        **({"interval": BAR} if panel.kind is PanelKind.BARS else {}),
        "gridPos": {"x": place.x, "y": place.y, "w": panel.width, "h": panel.height},
        "targets": _targets(panel),
        "fieldConfig": {"defaults": defaults, "overrides": _overrides(panel)},
        "options": options,
    }


def _targets(panel: Panel) -> list[dict[str, Any]]:
    instant = panel.kind is PanelKind.GAUGE
    return [
        {
            "refId": letter,
            "datasource": _SOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": instant,
            "range": not instant,
        }
        for letter, query in zip(ascii_uppercase, panel.queries, strict=False)
    ]


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """What single series look like: those to compare with are dashed, and some colours mean something."""
    overrides = []
    for query in panel.queries:
        properties: list[dict[str, Any]] = []
        if query.reference:
            properties.append({"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}})
        if query.colour:
            properties.append({"id": "color", "value": {"mode": "fixed", "fixedColor": query.colour}})
        if properties:
            overrides.append({"matcher": {"id": "byName", "options": query.legend}, "properties": properties})
    return overrides


def _look(panel: Panel) -> tuple[dict[str, Any], dict[str, Any]]:
    """What differs by kind: the panel's options, and the custom part of its fields."""
    match panel.kind:
        case PanelKind.LINES:
            custom = {"lineWidth": 1, "fillOpacity": 4, "spanNulls": panel.sparse, "showPoints": "auto"}
            return {"legend": _LEGEND, "tooltip": _TOOLTIP}, custom
        case PanelKind.BARS:
            stacking = {"mode": "normal", "group": "A"}
            custom = {"drawStyle": "bars", "lineWidth": 0, "fillOpacity": 70, "stacking": stacking}
            return {"legend": _LEGEND, "tooltip": _TOOLTIP}, custom
        case PanelKind.STAT:
            options = {
                "reduceOptions": _NEWEST,
                "graphMode": "none",
                "colorMode": "value" if panel.steps else "none",
                "textMode": "value_and_name" if len(panel.queries) > 1 else "value",
                "justifyMode": "auto",
                "orientation": "auto",
                "wideLayout": True,
                "showPercentChange": False,
                "percentChangeColorMode": "standard",
            }
            return options, {}
        case PanelKind.GAUGE:
            options = {
                "reduceOptions": _NEWEST,
                "displayMode": "basic",
                "valueMode": "color",
                "namePlacement": "auto",
                "orientation": "horizontal",
                "showUnfilled": True,
                "sizing": "auto",
                "minVizWidth": 8,
                "minVizHeight": 16,
                "maxVizHeight": 300,
                "legend": {**_LEGEND, "showLegend": False},
            }
            return options, {}
        case PanelKind.STATES:
            options = {
                "showValue": "auto",
                "rowHeight": 0.9,
                "mergeValues": True,
                "alignValue": "left",
                "legend": _LEGEND,
                "tooltip": _TOOLTIP,
            }
            return options, {"fillOpacity": 70, "lineWidth": 0}


if __name__ == "__main__":
    sys.stdout.write(grafana_json())
