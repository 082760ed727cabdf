"""Real processes on this machine, of which one after the other is killed, cut off, damaged or put back in time.

A hop is not put back to an old copy here: it counts among the colluding then, and rightly does not serve any more.
`silomix simulate-faults` has those.
"""

import asyncio
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_federation
from silomix.runtime.core.errors import RunError
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.faults.checkable import UNIT
from silomix.runtime.faults.harm import BEHIND, SmallDisk, Wire, can_mount, flip_fact, ports_of, put_fact
from silomix.runtime.faults.times.recovery import Before, Log, Times
from silomix.runtime.local import LocalFederation, create
from silomix.runtime.nodes.facts import read_log
from silomix.runtime.store.home import Home
from silomix.runtime.store.journal import Journal
from silomix.runtime.store.modelfile import model_digest, read_model

SILOS, HOPS = 4, 2
STOPPED_S = (0.5, 3.0)
AWAY_S = (0.5, 4.0)
"""How long connections are cut, or a disk is full."""
REFUSES_S = 120.0
"""Time that a process has to end that must not run."""
BETWEEN_S = (0.0, 1.0)
TRAIN_S = 1.0
"""Time that a silo trains: about as long as a process takes to start, so that rounds do not run away from faults."""
MOST_KILLS = 3
"""At a time."""
PATIENCE_S = 240.0
"""Time for the next round after a fault. Attempts and deadlines are far shorter."""
KINDS = ("stop", "cut", "full", "damage", "restore", "double")
"""What befalls a node besides being killed."""
NOT_OF_HOPS = "restore"
STARTS_AGAIN = ("kill", "damage", "restore")
"""Faults with which the process is killed."""


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
    not_refused: int = 0
    """Processes that ran though their journal was damaged, or another with their identity ran."""
    sums_checked: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    """By role."""
    faults: Counter[str] = field(default_factory=Counter)
    """By role and kind."""
    startup_s: dict[str, float] = field(default_factory=dict)
    """By role: the median time until a process that was started again was up."""
    beyond_startup_s: dict[str, float] = field(default_factory=dict)
    """By role: the median time that it then took until it took part again."""
    recovery_s: dict[str, float] = field(default_factory=dict)
    """By role and kind of fault: the median time until the node took part again, start-up included."""
    next_round_s: dict[str, float] = field(default_factory=dict)
    """By role and kind of fault: the median time until the next round was over."""
    left_out: tuple[str, ...] = ()
    """Kinds of faults that cannot be had here."""
    seconds: float = 0.0

    @property
    def broken(self) -> bool:
        """Whether a promise was broken."""
        return bool(self.rounds_lost or self.applied_twice or self.wrong_sums or self.not_refused)


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
        federation = create(
            directory,
            SILOS,
            HOPS,
            policy=policy,
            silo_options=lambda i: {"silo": i, "train_s": TRAIN_S},
            settings={Role.AGGREGATOR: {"keep_models": 0}},
            listen_host=BEHIND,
        )
        self.directory, self.told = directory, told
        self.report = Report(seed, rounds)
        self._models = directory / "models-of-disks-put-back"
        """Models that went with a disk, to judge by."""
        self.wires = {one.name: Wire(one.address) for one in (*federation.shufflers, federation.aggregator)}
        self.disks: dict[str, SmallDisk] = {}
        self._nodes = (federation.aggregator.name, federation.chain[0], federation.chain[-1], *federation.silo_names)
        self._log: Log | None = None
        """Of the process that was started again last."""
        self._started: dict[str, Log] = {}
        """By node, since it was started again."""
        self._random = Random(seed)  # noqa: S311 - one seed is one order of faults
        self._times = Times()
        self._measuring: dict[str, asyncio.Task[None]] = {}
        """By node: how long it takes to get over the last fault."""

    async def run(self) -> Report:
        """Run all rounds, and kill as many processes; every other time something else befalls a node too."""
        started = time.monotonic()
        try:
            await self._mount()
            for wire in self.wires.values():
                await wire.lay()
            async with LocalFederation(self.directory) as running:
                done = await self._applied(running, 0)
                while done is not None:
                    behind = done + MOST_KILLS - self.report.kills.total()
                    kinds = ["kill"] * min(MOST_KILLS, max(1, behind)) + (
                        [self._random.choice(KINDS)] if done % 2 else []
                    )
                    done = await self._befall(running, done, kinds)
                await self._finished(running)
                for task in self._measuring.values():
                    await self._measured(task)
            self.report.startup_s = self._times.medians(lambda times: times.startup)
            self.report.beyond_startup_s = self._times.medians(lambda times: times.beyond)
            self.report.recovery_s = self._times.medians(lambda times: times.recovery)
            self.report.next_round_s = self._times.medians(lambda times: times.next_round)
            self.report.seconds = round(time.monotonic() - started, 1)
            self._judge()
        finally:
            for wire in self.wires.values():
                await wire.end()
            for disk in self.disks.values():
                disk.unmount()
        return self.report

    async def _mount(self) -> None:
        """Put every node's state on a disk that can be filled, if this user may."""
        if not can_mount(self.directory / "may-mount"):
            self.report.left_out = ("full",)
            return
        for name in self._nodes:
            self.disks[name] = SmallDisk(Home(self.directory / name).state.directory)

    async def _befall(self, running: LocalFederation, done: int, kinds: list[str]) -> int | None:
        """Strike, and wait for the next round; return how many are over, or nothing if all are."""
        over: dict[str, float] = {}
        for kind in kinds:
            await asyncio.sleep(self._random.uniform(*BETWEEN_S))
            name = self._draw(running, kind)
            self.told(f"round {done + 1}: {kind} {name}")
            before, self._log = Before.of(await running.status()), None
            if earlier := self._measuring.pop(name, None):
                await self._measured(earlier)
            if kind in self.report.left_out or not await self._strike(running, name, kind):
                continue
            role = self._role(running, name)
            over[f"{role} {kind}"] = time.monotonic()
            measure = self._times.measure(running, name, role, kind, self._log, before)
            self._measuring[name] = asyncio.create_task(measure)
            self.report.faults[f"{role} {kind}"] += 1
            self.report.kills[role] += kind in STARTS_AGAIN
        after = await self._applied(running, done + 1)
        for what, at in over.items():
            self._times.next_round.setdefault(what, []).append(time.monotonic() - at)
        return after

    async def _measured(self, task: asyncio.Task[None]) -> None:
        """Have no more of a measurement than there is: its node is struck again, or the federation has ended."""
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def _draw(self, running: LocalFederation, kind: str) -> str:
        f = running.federation
        roles = [(f.aggregator.name,), f.chain, f.silo_names]
        if kind == NOT_OF_HOPS:
            roles.remove(f.chain)
        return self._random.choice(self._random.choice(roles))

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
        match kind:
            case "stop":
                process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(self._random.uniform(*STOPPED_S))
                process.send_signal(signal.SIGCONT)
            case "cut":
                await self._cut(name, process.pid)
            case "full":
                await asyncio.to_thread(self.disks[name].fill)
                await asyncio.sleep(self._random.uniform(*AWAY_S))
                self.disks[name].free()
            case "double":
                if not await self._is_up(name, process):
                    return False
                await running.start(name)
                second, running.processes[name] = running.processes[name], process
                await self._refuses(second, process)
            case _:
                process.kill()
                await process.wait()
                await self._change(running, name, kind)
                self._log = self._started[name] = Log(running.log(name))
                await running.start(name)
        return True

    async def _is_up(self, name: str, process: asyncio.subprocess.Process) -> bool:
        """Wait until a process that was started again is up, and say whether it is: only then is there a second."""
        if name in self._started:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._started[name].up(), REFUSES_S)
        return process.returncode is None

    async def _cut(self, name: str, pid: int) -> None:
        if name in self.wires:
            await self.wires[name].cut(seconds=self._random.uniform(*AWAY_S))
            return
        ports = ports_of(pid)
        for wire in self.wires.values():
            await wire.cut(ports)

    async def _refuses(
        self, process: asyncio.subprocess.Process, first: asyncio.subprocess.Process | None = None
    ) -> None:
        """Wait for a process to end with an error: it must not run, unless the first has come to its end."""
        try:
            async with asyncio.timeout(REFUSES_S):
                ran = await process.wait() == 0
                self.report.not_refused += ran and (first is None or first.returncode is None)
        except TimeoutError:
            self.report.not_refused += 1
            process.kill()
            await process.wait()

    async def _change(self, running: LocalFederation, name: str, kind: str) -> None:
        """Do something to the disk of a node that is down."""
        if kind == "restore":
            if name != running.federation.aggregator.name or self._is_known(running):
                self._restore(name)
        elif kind == "damage" and name in running.federation.silo_names:
            self._damage(name)
        elif kind == "damage":
            journal = Home(self.directory / name).state.journal
            fact = flip_fact(journal, self._random)
            if fact is not None:
                await running.start(name)
                await self._refuses(running.processes[name])
                put_fact(journal, fact)

    def _is_known(self, running: LocalFederation) -> bool:
        """Whether an aggregator that loses its disk now can get its newest model back: a silo that runs has it.

        In the moment before, and when all rounds are over and silos have ended, it takes the owners (docs/faults.md).
        """
        name, silos = running.federation.aggregator.name, running.federation.silo_names
        with closing(Journal(Home(self.directory / name).state.journal)) as journal:
            newest = list(read_log(journal))[-1]
        states = [Home(self.directory / silo).state for silo in silos if running.processes[silo].returncode is None]
        known = any(state.model(newest.model_after).exists() for state in states)
        return known and newest.round < self.report.rounds

    def _damage(self, name: str) -> None:
        """Flip a bit in every file of a silo's frozen integers and models: it must use none of them."""
        state = Home(self.directory / name).state
        for path in [*state.frozen.glob("*.planes"), *state.models.glob("*")]:
            data = bytearray(path.read_bytes())
            if data:
                data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
                path.write_bytes(data)

    def _restore(self, name: str) -> None:
        """Put a node's state back to an earlier copy, and take a new one for the next time."""
        state, copy = Home(self.directory / name).state.directory, self.directory / f"copy-of-{name}"
        fresh = copy.with_suffix(".new")
        shutil.copytree(state, fresh)
        if copy.exists():
            if (models := Home(self.directory / name).state.models).exists():
                shutil.copytree(models, self._models, dirs_exist_ok=True)
            for path in state.iterdir():  # what is below: the directory may be a disk of its own
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.copytree(copy, state, dirs_exist_ok=True)
            shutil.rmtree(copy)
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
        made = home.state.model(digest)
        for path in (made, self._models / made.name, home.initial_model):
            if path.exists():
                schema, tensors = read_model(path.read_bytes())
                if model_digest(schema, tensors) == digest:
                    return [float(value) for value in tensors["values"]]
        return None
