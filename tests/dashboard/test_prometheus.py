"""A real Prometheus scrapes a real federation: every panel has data, no rule is broken, promtool likes every page."""

import asyncio
import json
import time
from pathlib import Path

import grpc
import pytest
from tests.dashboard.monitored import check_metrics, fetch, free_ports, monitored
from tests.nodes.federations import PARAMETERS, peer, policy
from tests.tools import program

from silomix.runtime.cli import main
from silomix.runtime.config.kinds import Role
from silomix.runtime.dashboard import query
from silomix.runtime.dashboard.panels import PANELS, places
from silomix.runtime.dashboard.prometheus import Prometheus, QueryError
from silomix.runtime.local import LocalFederation, create
from silomix.v1 import services_pb2

NODES = 6
WAIT_S = 60.0


async def _ask_for_a_model_that_is_not_there(directory: Path) -> None:
    """Make the aggregator refuse something."""
    async with peer(directory, "silo-01", "aggregator") as silo:
        request = services_pb2.GetModelRequest(model_digest=bytes(32))
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in silo.aggregator.GetModel(request, timeout=5):
                pass


async def _empty(source: Prometheus, job: str) -> list[str]:
    """The panels of which a query returns nothing yet."""
    span = await asyncio.to_thread(query.find_span, source, job, time.time(), 600)
    missing = []
    for place in places():
        answer = await asyncio.to_thread(query.ask, source, place, job, span)
        if {line.query for line in answer.lines} != set(place.panel.queries):
            missing.append(place.panel.title)
    return missing


async def _until_all_panels_have_data(running: LocalFederation, source: Prometheus, job: str) -> None:
    missing = ["all"]
    async with asyncio.timeout(WAIT_S):
        while missing:
            running.check()
            await _ask_for_a_model_that_is_not_there(running.directory)  # again: an increase needs a value before it
            try:
                missing = await _empty(source, job)
            except QueryError:
                missing = ["all"]  # it is still starting, or has scraped nothing
            await asyncio.sleep(0.5)


async def test_every_panel_has_data_of_a_federation_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program("prometheus")
    base = free_ports(NODES)
    create(
        tmp_path / "f",
        3,
        2,
        policy=policy(rounds=100_000, task_options={"parameters": PARAMETERS, "slow_s": 0.3}),
        metrics_base_port=base,
        settings={Role.AGGREGATOR: {"evaluate": True}},
    )
    ports, job = range(base, base + NODES), "hospitals"

    def _draw(url: str) -> None:
        out = tmp_path / "p.png"
        assert main(["dashboard", "--out", str(out), "--prometheus", url]) == 0
        assert f"{len(PANELS)} panels of {job}" in capsys.readouterr().out
        assert out.read_bytes().startswith(b"\x89PNG")
        assert main(["dashboard", "--json", "--prometheus", url, "--job", job, "--last", "10m"]) == 0
        shown = json.loads(capsys.readouterr().out)
        (bits,) = [panel for panel in shown["panels"] if panel["title"].startswith("Bits per parameter, ")]
        newest = {series["name"]: series["points"][-1][1] for series in bits["series"]}
        assert newest["plan"] <= newest["sent by a silo (most)"] < newest["arrived at the aggregator"]
        assert newest["vanilla"] == 32
        assert main(["dashboard", "--json", "--prometheus", url, "--job", "banks"]) == 2
        assert "hospitals" in capsys.readouterr().err

    async with monitored(tmp_path, ports, job) as (running, url):
        source = Prometheus(url)
        try:
            await _until_all_panels_have_data(running, source, job)
        except TimeoutError:
            raise AssertionError(f"no data for {await _empty(source, job)}") from None
        for port in ports:
            assert check_metrics(await asyncio.to_thread(fetch, port)) == ""
        rules = await asyncio.to_thread(source._ask, "rules", {})
        for rule in (rule for group in rules["groups"] for rule in group["rules"]):
            assert rule["health"] == "ok", rule["lastError"]
        await asyncio.to_thread(_draw, url)
