"""One round, protected and not, side by side: the same silos, the same vectors, separate processes, mutual TLS.

Arms, each timed from float32 updates in the silos' memory to the decoded mean in the aggregator's:

floor        each silo streams its float32 bytes to one server, which throws them away
unprotected  the same, and the server averages them
protected    encode, mask, submit, through the chain, unmask, decode: the runtime's own nodes, at the semi-honest level
protected with one hop less

All arms run in turn, several times over, and the medians are compared, so that a noisy machine is noisy for all.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from silomix.runtime.bench.network import own_network
from silomix.runtime.bench.workers import CHECKED, VectorTask
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.owners.trial import init
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.plan import Level, chunk_for
from silomix.runtime.core.policy import Policy
from silomix.runtime.local import interrupt_on_sigterm
from silomix.runtime.store.home import INITIAL_MODEL, Home
from silomix.runtime.store.modelfile import write_model
from silomix.runtime.terminal import console, say_json

START_S = 180
ROUND_S = 300
IDLE = 0.02
"""Processor seconds of all processes in a tenth of a second in which nobody works."""


@dataclass
class Worker:
    """One process of the benchmark, and the line to it."""

    process: asyncio.subprocess.Process
    log: Path
    role: str

    def cpu_s(self) -> float:
        """Processor time that it has used so far, all threads, in user and system mode."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def tell(self, **command: Any) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps(command) + "\n").encode())


class Bench:
    """The parent: starts the processes, gives the starts, collects the times."""

    def __init__(
        self, silos: int, parameters: int, hops: int, precision: int, per_process: int = 1, mbit: int = 0
    ) -> None:
        """`mbit` is the rate of the network that all share; 0 for the loopback's own."""
        self.silos, self.parameters, self.hops, self.precision = silos, parameters, hops, precision
        self.per_process, self.mbit = per_process, mbit
        self.directory = Path(tempfile.mkdtemp(prefix="silomix-bench-"))
        self.workers: list[Worker] = []
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._readers: list[asyncio.Task[None]] = []
        self.ready: dict[str, int] = {}

    @property
    def protected(self) -> dict[str, int]:
        """The protected arms by name, with their hops."""
        arms = {"protected": self.hops}
        if self.hops > 1:
            arms["one_hop_less"] = self.hops - 1
        return arms

    def level(self, arm: str) -> Level:
        """The level of a protected arm."""
        return Level.SEMI_HONEST

    def write(self, rounds: int) -> dict[str, Path]:
        """Write a federation for each protected arm."""
        homes = {}
        for arm, hops in self.protected.items():
            home = self.directory / arm
            policy = Policy(
                task="silomix.runtime.bench.workers:task",
                task_options={"parameters": self.parameters},
                rounds=rounds,
                precision=self.precision,
                level=self.level(arm),
                deadline_s=ROUND_S * 10,
                release_s=ROUND_S * 10,
                chunk_parameters=chunk_for(self.silos),
            )
            init(
                home,
                self.silos,
                hops,
                name=arm.replace("_", "-"),
                policy=policy,
                settings={Role.AGGREGATOR: {"initial_model": INITIAL_MODEL}},
            )
            model = VectorTask(-1, self.parameters)
            Home(home / "aggregator").initial_model.write_bytes(write_model(model.schema(), model.initial()))
            homes[arm] = home
        return homes

    async def start(self, kind: str, name: str, spec: dict[str, Any]) -> Worker:
        """Start one process."""
        log = self.directory / f"{name}.log"
        with open(log, "wb") as err:  # noqa: ASYNC230 - opened to be given away
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "import sys; from silomix.runtime.bench.workers import worker; worker(sys.argv[1:])",
                kind,
                json.dumps(spec),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=err,
                env={**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
            )
        place = f"hop {spec['name'].rpartition('-')[2]}" if spec.get("role") == "shuffler" else spec.get("role", kind)
        worker = Worker(process, log, place)
        self.workers.append(worker)
        self._readers.append(asyncio.create_task(self._read(worker)))
        return worker

    async def _read(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        async for line in worker.process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                self.ready[event["arm"]] = self.ready.get(event["arm"], 0) + 1
            await self.events.put(event)

    async def until(self, holds: Any, timeout_s: float) -> list[dict[str, Any]]:
        """Collect events until a condition holds; fail with a worker's log if one has died."""
        seen: list[dict[str, Any]] = []
        deadline = time.monotonic() + timeout_s
        while not holds(seen):
            try:
                seen.append(await asyncio.wait_for(self.events.get(), 1.0))
            except TimeoutError:
                for w in self.workers:
                    if w.process.returncode not in (None, 0):
                        tail = w.log.read_text(errors="replace")[-2000:]
                        raise UserError(f"a process of the benchmark died:\n{tail}") from None
                if time.monotonic() > deadline:
                    raise UserError(f"the benchmark did not get on within {timeout_s:.0f} s") from None
        return seen

    async def run(self, repeats: int, out: Console) -> dict[str, Any]:
        """Run everything and return the figures."""
        homes = self.write(repeats + 2)  # the last one is prepared like the others, and never begins
        names = [f"silo-{i:0{max(2, len(str(self.silos)))}}" for i in range(1, self.silos + 1)]
        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=out
        )
        arms = ["floor", "unprotected", *homes]
        times: dict[str, list[dict[str, float]]] = {arm: [] for arm in arms}
        with bar:
            task = bar.add_task("starting processes", total=(repeats + 1) * len(arms))
            plain_spec = {"home": str(next(iter(homes.values()))), "silos": self.silos, "parameters": self.parameters}
            await self.start("plain", "plain", plain_spec)
            first = await self.until(lambda seen: bool(seen), START_S)
            for arm, home in homes.items():
                for hop in range(1, self.protected[arm] + 1):
                    spec = {"home": str(home), "name": f"shuffler-{hop}", "arm": arm, "role": "shuffler"}
                    await self.start("node", f"{arm}-shuffler-{hop}", spec)
                spec = {"home": str(home), "name": "aggregator", "arm": arm, "role": "aggregator"}
                await self.start("node", f"{arm}-aggregator", spec)
            groups = [names[i : i + self.per_process] for i in range(0, len(names), self.per_process)]
            clients = []
            for i, group in enumerate(groups):
                shared: dict[str, Any] = {
                    "homes": {arm: str(home) for arm, home in homes.items()},
                    "names": group,
                    "parameters": self.parameters,
                    "port": first[0]["port"],
                }
                clients.append(await self.start("silos", f"silos-{i}", shared))
            await self.until(lambda _: self.ready.get("plain", 0) == 1 + len(groups), START_S)
            for lap in range(repeats + 1):
                for arm in arms:
                    bar.update(task, description=arm)
                    if arm in homes and not lap:
                        await self.until(partial(self._all_ready, arm, lap), START_S)
                    await self._settled()
                    figures = await self._lap(arm, clients)
                    if arm in homes:  # its next round is prepared before another arm is timed
                        await self.until(partial(self._all_ready, arm, lap + 1), START_S)
                    if lap:  # the first lap warms everything up
                        times[arm].append(figures)
                    bar.advance(task)
            peaks = await self._stop()
        return self._result(times, peaks, homes)

    def _all_ready(self, arm: str, lap: int, _: object) -> bool:
        return self.ready.get(arm, 0) >= self.silos * (lap + 1)

    async def _settled(self) -> None:
        """Wait until the processes have nothing left to do of what came before, or for ten seconds."""
        for _ in range(100):
            used = sum(worker.cpu_s() for worker in self.workers)
            await asyncio.sleep(0.1)
            if sum(worker.cpu_s() for worker in self.workers) - used <= IDLE:
                return

    async def _lap(self, arm: str, clients: list[Worker]) -> dict[str, float]:
        used = [worker.cpu_s() for worker in self.workers]
        start = time.monotonic()
        for client in clients:
            client.tell(do="go", arm=arm)
        seen = await self.until(lambda s: any(e["event"] == "decoded" and e["arm"] == arm for e in s), ROUND_S)
        mine = [e for e in seen if e.get("arm") == arm]
        end = next(e for e in mine if e["event"] == "decoded")
        figures = {"seconds": end["t"] - start, "check": end["check"], "cpu": 0.0}
        for worker, before in zip(self.workers, used, strict=True):
            spent = worker.cpu_s() - before
            figures["cpu"] += spent
            figures[f"cpu {worker.role}"] = figures.get(f"cpu {worker.role}", 0.0) + spent
        for phase in ("encoded", "submitted", "arrived"):
            if at := [e["t"] - start for e in mine if e["event"] == phase]:
                figures[phase] = max(at)
        return figures

    async def _stop(self) -> dict[str, float]:
        for worker in self.workers:
            worker.tell(do="stop")
        seen = await self.until(lambda s: sum(e["event"] == "peak" for e in s) == len(self.workers), START_S)
        peaks: dict[str, float] = {}
        for e in seen:
            if e["event"] == "peak" and e.get("arm", "protected") == "protected":
                peaks[e["role"]] = max(peaks.get(e["role"], 0.0), e["mib"])
        return peaks

    async def close(self) -> None:
        """End every process and clean up."""
        for worker in self.workers:
            if worker.process.returncode is None:
                worker.process.kill()
        await asyncio.gather(*(w.process.wait() for w in self.workers))
        for reader in self._readers:
            reader.cancel()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _result(
        self, times: dict[str, list[dict[str, float]]], peaks: dict[str, float], homes: dict[str, Path]
    ) -> dict[str, Any]:
        for lap in (lap for arm in self.protected for lap in times[arm]):  # a fast wrong answer is none
            if abs(lap["check"] - times["unprotected"][0]["check"]) > CHECKED * 10.0**-self.precision:
                raise UserError("the protected mean is not the unprotected one: the times mean nothing")
        seconds = {arm: median(t["seconds"] for t in laps) for arm, laps in times.items()}
        sent = [Home(silo).state.last_body for silo in homes["protected"].glob("silo-*") if silo.is_dir()]
        bodies = [json.loads(p.read_text()) for p in sent]
        laps = times["protected"]
        marks = {phase: median(t[phase] for t in laps) for phase in ("encoded", "submitted", "arrived")}
        return {
            "silos": self.silos,
            "parameters": self.parameters,
            "hops": self.hops,
            "repeats": len(laps),
            "mbit": self.mbit,
            "seconds": seconds,
            "protected_vs_unprotected": seconds["protected"] / seconds["unprotected"],
            "unprotected_vs_floor": seconds["unprotected"] / seconds["floor"],
            "third_hop_overhead": seconds["protected"] / seconds["one_hop_less"] - 1
            if "one_hop_less" in seconds
            else None,
            "bits_per_parameter": max(b["bits_per_parameter"] for b in bodies),
            "phases": {
                "encode": marks["encoded"],
                "mask_and_submit": marks["submitted"] - marks["encoded"],
                "release": marks["arrived"] - marks["submitted"],
                "decode": seconds["protected"] - marks["arrived"],
            },
            "cpu_s": {arm: median(t["cpu"] for t in laps) for arm, laps in times.items()},
            "protected_cpu_s": self._by_role(laps),
            "cpu_s_by_role": {arm: self._by_role(laps) for arm, laps in times.items()},
            "peak_mib": peaks,
            "model_mib": self.parameters * 4 / (1 << 20),
        }

    def _by_role(self, laps: list[dict[str, float]]) -> dict[str, float]:
        return {role: median(t[f"cpu {role}"] for t in laps) for role in dict.fromkeys(w.role for w in self.workers)}


def bench_round(bench: Bench, repeats: int, as_json: bool) -> int:
    """Run the benchmark and print it."""
    interrupt_on_sigterm()
    out = console(stderr=True, quiet=not sys.stderr.isatty())
    result = asyncio.run(_bench(bench, repeats, out))
    if as_json:
        say_json(result)
        return 0
    network = f"{bench.mbit} Mbit/s in all" if bench.mbit else "loopback"
    title = f"{bench.silos} silos, {bench.parameters:,} parameters, {bench.hops} hops, mutual TLS, {network}"
    table = Table(title=title)
    for column in ("arm", "seconds", "x unprotected", "processor s", "x unprotected"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for arm, value in result["seconds"].items():
        used, least = result["cpu_s"][arm], result["cpu_s"]["unprotected"]
        ratio = f"{value / result['seconds']['unprotected']:.2f}"
        table.add_row(arm.replace("_", " "), f"{value:.2f}", ratio, f"{used:.2f}", f"{used / least:.2f}")
    out = console()
    out.print(table)
    out.print("phases of the protected round: " + ", ".join(f"{k} {v:.2f} s" for k, v in result["phases"].items()))
    out.print(f"{result['bits_per_parameter']:.3f} bits per parameter on the wire")
    out.print(
        "processor seconds: " + ", ".join(f"{k} {v:.2f}" for k, v in result["protected_cpu_s"].items() if v > 0.01)
    )
    out.print("peak MiB: " + ", ".join(f"{k} {v:.0f}" for k, v in result["peak_mib"].items()))
    return 0


async def _bench(bench: Bench, repeats: int, out: Console) -> dict[str, Any]:
    try:
        if bench.mbit:
            own_network(bench.mbit)
        return await bench.run(repeats, out)
    finally:
        await bench.close()
