"""A small reader of Prometheus' HTTP API: what the dashboard's queries return, for a stretch of time."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from silomix.runtime.core.errors import UserError

ANSWER_BYTES = 64 << 20
"""Largest answer that is read: whoever serves the address may be anybody."""
TIMEOUT_S = 10.0
DEFAULT_SCRAPE_S = 60.0
"""What Prometheus does if nobody tells it, and what is assumed if it does not say."""


class QueryError(UserError):
    """Prometheus could not be asked, or did not like the question."""


@dataclass(frozen=True)
class Series:
    """One line of an answer: its labels, and its points as (Unix time, value)."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class Prometheus:
    """One server, by its address."""

    def __init__(self, url: str) -> None:
        """The address is as a browser has it: http://127.0.0.1:9090, with a path if a proxy asks for one."""
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise QueryError(f"{url!r} is not the address of a Prometheus: give one such as http://127.0.0.1:9090")
        self.url = url.rstrip("/")

    def jobs(self) -> list[str]:
        """The scrape jobs that have silomix nodes: one for each federation."""
        return [str(job) for job in self._ask("label/job/values", {"match[]": "silomix_node_info"})]

    def scrape_s(self, job: str) -> float:
        """How often a job is scraped, in seconds."""
        targets = self._ask("targets", {"state": "active"}).get("activeTargets", [])
        for target in targets:
            if target.get("labels", {}).get("job") == job:
                return _seconds(target.get("scrapeInterval", ""))
        return DEFAULT_SCRAPE_S

    def range(self, expr: str, start: float, end: float, step_s: float) -> list[Series]:
        """Evaluate an expression at every step from start to end."""
        values = {"query": expr, "start": start, "end": end, "step": step_s}
        return [_series(row, "values") for row in self._ask("query_range", values)["result"]]

    def instant(self, expr: str, at: float) -> list[Series]:
        """Evaluate an expression at one moment."""
        return [_series(row, "value") for row in self._ask("query", {"query": expr, "time": at})["result"]]

    def _ask(self, path: str, values: Mapping[str, object]) -> Any:
        request = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(values)}"
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - http or https: checked
                raw = answer.read(ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise QueryError(f"{self.url} refused: {_complaint(error)}") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise QueryError(f"{self.url} does not answer ({why}): is Prometheus running there?") from None
        if len(raw) > ANSWER_BYTES:
            raise QueryError(f"{self.url} answered with more than {ANSWER_BYTES >> 20} MiB: ask for less time")
        try:
            value = json.loads(raw)
            if value["status"] != "success":
                raise QueryError(f"{self.url} refused: {value['error']}")
            return value["data"]
        except (ValueError, KeyError, TypeError):
            raise QueryError(f"{self.url} answers, but not as a Prometheus does: is that its address?") from None


def _series(row: Any, key: str) -> Series:
    """Read one series; what is not a number is not a point."""
    pairs = row[key] if key == "values" else [row[key]]
    points = ((float(time), float(value)) for time, value in pairs)
    return Series(dict(row["metric"]), tuple(point for point in points if isfinite(point[1])))


def _complaint(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(ANSWER_BYTES))["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"HTTP {error.code}"


def _seconds(text: str) -> float:
    """Read one of Prometheus' durations, such as 1m30s."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    total, number, unit = 0.0, "", ""
    for character in f"{text} ":
        if (character.isdigit() or character == " ") and unit:
            total, number, unit = total + float(number) * units.get(unit, 0.0), "", ""
        if character.isdigit():
            number += character
        elif number:
            unit += character
    return total or DEFAULT_SCRAPE_S
