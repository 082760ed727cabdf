"""Real processes on this machine, of which one after the other is killed, stopped, damaged or put back in time.

A hop's journal and the aggregator's are neither damaged nor restored here: by design such a node does not serve any
more, and the federation would wait for it. `silomix simulate-faults` has those.
"""

import asyncio
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

from silomix.runtime.config.load import load_federation
from silomix.runtime.core.errors import RunError
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.faults.checkable import UNIT
from silomix.runtime.local import LocalFederation, create
from silomix.runtime.nodes.facts import read_log
from silomix.runtime.store.home import Home
from silomix.runtime.store.journal import Journal
from silomix.runtime.store.modelfile import model_digest, read_model

SILOS, HOPS = 4, 2
STOPPED_S = (0.5, 3.0)
BETWEEN_S = (0.0, 1.0)
PATIENCE_S = 240.0
"""Time for the next round after a fault. Attempts and deadlines are far shorter."""
EVERYBODY = ("kill", "kill", "stop")
"""Faults that any role is put through; kills twice as often."""
SILO_ONLY = ("damage", "restore")


@dataclass
class Report:
    """What came of it."""

    seed: int
    rounds: int
    applied: int = 0
    abandoned: int = 0
    rounds_lost: int = 0
    applied_twice: int = 0
    wrong_sums: int = 0
    sums_checked: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    """By role."""
    faults: Counter[str] = field(default_factory=Counter)
    """By role and kind."""
    recovery_s: dict[str, float] = field(default_factory=dict)
    """By role and kind of fault: the median time until the next round was applied, start-up included."""
    seconds: float = 0.0

    @property
    def broken(self) -> bool:
        """Whether a promise was broken."""
        return bool(self.rounds_lost or self.applied_twice or self.wrong_sums)


class Chaos:
    """A federation, and what befalls it."""

    def __init__(self, directory: Path, rounds: int, seed: int, told: Callable[[str], None] = lambda _: None) -> None:
        """Write the federation into a directory."""
        policy = Policy(
            task="silomix.runtime.faults.checkable:task",
            rounds=rounds,
            precision=4,
            bound=1.0,
            minimum_cohort=3,
            quorum=0.75,
            deadline_s=20,
            release_s=10,
            attempts=20,
        )
        create(directory, SILOS, HOPS, policy=policy, silo_options=lambda i: {"silo": i})
        self.directory, self.told = directory, told
        self.report = Report(seed, rounds)
        self._random = Random(seed)  # noqa: S311 - one seed is one order of faults
        self._took: dict[str, list[float]] = {}

    async def run(self) -> Report:
        """Run all rounds, with a fault in each."""
        started = time.monotonic()
        async with LocalFederation(self.directory) as running:
            done = await self._applied(running, 0)
            while done is not None:
                await asyncio.sleep(self._random.uniform(*BETWEEN_S))
                name, kind = self._draw(running)
                role = self._role(running, name)
                self.told(f"round {done + 1}: {kind} {name}")
                began = time.monotonic()
                if not await self._strike(running, name, kind):
                    break
                self.report.faults[f"{role} {kind}"] += 1
                self.report.kills[role] += kind != "stop"
                known, done = done, await self._applied(running, done + 1)
                if done is not None or known:
                    self._took.setdefault(f"{role} {kind}", []).append(time.monotonic() - began)
            await self._finished(running)
        self.report.recovery_s = {what: round(median(took), 2) for what, took in sorted(self._took.items())}
        self.report.seconds = round(time.monotonic() - started, 1)
        self._judge()
        return self.report

    def _draw(self, running: LocalFederation) -> tuple[str, str]:
        f = running.federation
        name = self._random.choice([f.aggregator.name, self._random.choice(f.chain), self._random.choice(f.silo_names)])
        kinds = EVERYBODY + SILO_ONLY if name in f.silo_names else EVERYBODY
        return name, self._random.choice(kinds)

    def _role(self, running: LocalFederation, name: str) -> str:
        f = running.federation
        return "aggregator" if name == f.aggregator.name else "silo" if name in f.silo_names else "hop"

    async def _applied(self, running: LocalFederation, rounds: int) -> int | None:
        """Wait until so many rounds are over; return how many are, or nothing if all are and the aggregator ended."""
        until = time.monotonic() + PATIENCE_S
        lead = running.processes[running.federation.aggregator.name]
        while time.monotonic() < until:
            status = await running.status()
            if status is not None and len(status.history) >= rounds:
                return len(status.history) if len(status.history) < self.report.rounds else None
            if lead.returncode == 0:
                return None
            running.check()
            await asyncio.sleep(0.05)
        raise RunError(f"no round was applied in {PATIENCE_S:.0f} s: see the logs below {self.directory}")

    async def _finished(self, running: LocalFederation) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await running.finished()

    async def _strike(self, running: LocalFederation, name: str, kind: str) -> bool:
        """Do it; say whether the node was still there."""
        process = running.processes[name]
        if process.returncode is not None:
            return False
        if kind == "stop":
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self._random.uniform(*STOPPED_S))
            process.send_signal(signal.SIGCONT)
            return True
        process.kill()
        await process.wait()
        if kind == "damage":
            self._damage(name)
        elif kind == "restore":
            self._restore(name)
        await running.start(name)
        return True

    def _damage(self, name: str) -> None:
        """Flip a bit in every file of a silo's frozen integers and models: it must use none of them."""
        state = Home(self.directory / name).state
        for path in [*state.frozen.glob("*.planes"), *state.models.glob("*")]:
            data = bytearray(path.read_bytes())
            if data:
                data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
                path.write_bytes(data)

    def _restore(self, name: str) -> None:
        """Put a silo's state back to an earlier copy, and take a new one for the next time."""
        state, copy = Home(self.directory / name).state.directory, self.directory / f"copy-of-{name}"
        fresh = copy.with_suffix(".new")
        shutil.copytree(state, fresh)
        if copy.exists():
            shutil.rmtree(state)
            copy.rename(state)
        fresh.rename(copy)

    # Judging

    def _judge(self) -> None:
        report = self.report
        federation = load_federation(self.directory)
        home = Home(self.directory / federation.aggregator.name)
        with closing(Journal(home.state.journal)) as journal:
            records = list(read_log(journal))
        applied = [record for record in records if record.outcome is Outcome.APPLIED]
        report.applied = len(applied)
        report.abandoned = sum(record.outcome is Outcome.ABANDONED for record in records)
        report.rounds_lost = report.rounds - report.applied - report.abandoned
        report.applied_twice = len(applied) - len({record.model_before for record in applied})
        for record in applied:
            self._check(record, home, federation.silo_names)

    def _check(self, record: Record, home: Home, silos: tuple[str, ...]) -> None:
        """Compare what a round added to the model with what its cohort sent, to the digit."""
        before, after = (self._values(digest, home) for digest in (record.model_before, record.model_after))
        if before is None or after is None:
            return
        self.report.sums_checked += 1
        wanted = sum(4 ** silos.index(silo) for silo in record.silos)
        found = {round((b - a) / UNIT * len(record.silos)) for a, b in zip(before, after, strict=True)}
        self.report.wrong_sums += found != {wanted}

    def _values(self, digest: bytes, home: Home) -> list[float] | None:
        """A model, if it is still kept."""
        for path in (home.state.model(digest), home.initial_model):
            if path.exists():
                schema, tensors = read_model(path.read_bytes())
                if model_digest(schema, tensors) == digest:
                    return [float(value) for value in tensors["values"]]
        return None
