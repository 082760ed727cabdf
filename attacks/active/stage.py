"""A live federation for attacks: honest nodes on this machine, under TLS, and the roles that the drill plays itself."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from silomix.attacks.active.liars.aggregator import Delivered, LyingAggregator
from silomix.attacks.active.liars.hop import LyingHop
from silomix.attacks.active.liars.member import Member, Refused
from silomix.attacks.active.measure import Closeness, Vector, flat
from silomix.attacks.active.registry import Cast, Loot, Rule
from silomix.attacks.active.seized import Apart
from silomix.attacks.active.task import TRAINED, Drill, fingerprint, trapped
from silomix.attacks.active.witness import Refusal, Witness
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.messages import Manifest, RoundKey
from silomix.runtime.local import InProcess, create
from silomix.runtime.nodes import follow
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.runtime.nodes.silo import SiloNode

MEMORY = Path("/dev/shm")  # noqa: S108 - with a name of its own, for its owner alone
"""Where there is one, federations live there: they write much, durably, and are gone in a moment."""
SILOS, HOPS = 6, 3
VICTIM = "silo-03"
"""Whose update the adversary is after."""
HOSTILE = "silo-06"
"""The silo that is on its side, where one is."""
FIRST, SECOND, LAST = "shuffler-1", "shuffler-2", "shuffler-3"
WAIT_S = 90.0
"""Bound on everything that a drill waits for; nothing takes a tenth of it, but on a machine that is very busy."""
PACE_S = 0.005
QUIET_S = 0.1
"""Nodes that say nothing for so long have said what there was: on a busy machine 0.03 was too short now and then."""
ROUNDS = 10_000
"""More than drills have, so that attacks can share a federation."""


class Stuck(Exception):  # noqa: N818 - what happened
    """What an attack waits for did not happen: the drill has to be mended."""


def policy(**changes: Any) -> Policy:
    """Five chunks to a body, deadlines that only a fault reaches, and three silos enough for a sum."""
    content: dict[str, Any] = {
        "task": "silomix.attacks.active.task:task",
        "rounds": ROUNDS,
        "bound": 0.5,
        "deadline_s": 30,
        "release_s": 30,
        "minimum_cohort": 3,
        "chunk_parameters": 128,
    }
    return Policy(**{**content, **changes})


class Stage:
    """One federation. Attacks take turns on it, each in rounds of its own."""

    def __init__(self, cast: Cast, witness: Witness, without: str = "") -> None:
        """`without` is the rule that is switched off here, for nodes in processes of their own, and what they keep."""
        self.cast, self.witness, self._without = cast, witness, without
        TRAINED.clear()
        self.home = Path(tempfile.mkdtemp(prefix="silomix-drill-", dir=MEMORY if MEMORY.is_dir() else None))
        self.federation = create(
            self.home / "f",
            SILOS,
            HOPS,
            policy=policy(**dict(cast.policy)),
            name="drill",
            pin_model=cast.pinned,
        )
        self.members: dict[str, Member] = {}
        self.aside = {name: Apart(self.home / "f" / name, without) for name in cast.apart}
        self._mark = self.born = len(witness.heard)
        self._late: dict[str, float] = {}
        self._passed_on: set[bytes] = set()

    async def __aenter__(self) -> "Stage":
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def _start(self) -> None:
        cast, f = self.cast, self.federation
        for node in self.aside.values():
            await node.start(node.home.name)
        liars = (*cast.hops, *((f.aggregator.name,) if cast.aggregator else ()))
        for name in liars:
            liar = self.member(name)
            if isinstance(liar, LyingHop) and not cast.aggregator:
                liar.deliver = liar.in_suspense  # an honest aggregator begins at once
            await liar.serve()
        self.running = InProcess(self.home / "f", without=(*liars, *cast.silos, *cast.apart))
        await self.running.__aenter__()
        for honest in self.running.nodes.values():
            self.witness.count(honest)
        for node in self.aside.values():
            await node.ready()
        if cast.aggregator:
            us = self.aggregator
            if cast.genesis == "trap":
                us.start = us.keep(trapped(us.tensors(us.start), int(VICTIM.removeprefix("silo-")) - 1))
            elif cast.genesis == "shape":
                us.start = us.keep_any(us.tensors(us.start))
            us.colluding = {name: self.liar(name) for name in cast.hops}
            if cast.genesis != "trap":
                await self.found()
        else:
            await self.until(lambda: self.running.aggregator.announced is not None, "the first round is announced")

    async def found(self) -> None:
        """Begin the history; an attack on its beginning does so itself."""
        await self.aggregator.found()
        await self.until(lambda: self.aggregator.watching >= set(self.honest_silos), "all silos watch")

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything, and leave nothing behind: liars first, so that nobody waits for them."""
        for member in self.members.values():
            await member.close()
        running = getattr(self, "running", None)
        if running is not None:
            for node in running.nodes.values():
                node.stopping.set()
            await asyncio.gather(*running.tasks.values(), return_exceptions=True)
        for node in self.aside.values():
            await node.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    # Who is who

    def member(self, name: str) -> Member:
        """Return somebody's directory, to act in that name: a liar's, or that of a node that also runs honestly."""
        if name not in self.members:
            home = self.home / "f" / name
            if name == self.federation.aggregator.name:
                self.members[name] = LyingAggregator(home)
            else:
                self.members[name] = (LyingHop if name in self.federation.chain else Member)(home)
        return self.members[name]

    @property
    def aggregator(self) -> LyingAggregator:
        """The aggregator that the drill plays."""
        found = self.member(self.federation.aggregator.name)
        assert isinstance(found, LyingAggregator)
        return found

    def liar(self, name: str) -> LyingHop:
        """Return a hop that the drill plays."""
        found = self.member(name)
        assert isinstance(found, LyingHop)
        return found

    def hop(self, name: str) -> ShufflerNode:
        """Return an honest hop of this process."""
        node = self.running.nodes[name]
        assert isinstance(node, ShufflerNode)
        return node

    def silo(self, name: str) -> SiloNode:
        """Return an honest silo."""
        node = self.running.nodes[name]
        assert isinstance(node, SiloNode)
        return node

    @property
    def honest_silos(self) -> tuple[str, ...]:
        """The silos that are nodes."""
        return tuple(name for name in self.federation.silo_names if name not in self.cast.silos)

    def dead(self) -> list[str]:
        """Name the honest nodes whose process would have ended."""
        return sorted(name for name, task in self.running.tasks.items() if task.done())

    # Time

    async def until(self, holds: Callable[[], Any], what: str, unless: Iterable[str] = ()) -> None:
        """Wait for something that no event tells of, unless one of these nodes refuses to have a part in it."""
        names = set(unless)
        try:
            async with asyncio.timeout(WAIT_S):
                while not holds():
                    if refusal := next((r for r in self.refusals() if r.node in names), None):
                        raise Refused(refusal)
                    await asyncio.sleep(PACE_S)
        except TimeoutError:
            raise Stuck(f"waited {WAIT_S:.0f} s for nothing: {what}") from None

    async def within(self, seconds: float, holds: Callable[[], Any]) -> bool:
        """Wait for what may happen or not, and say whether it has."""
        end = time.monotonic() + seconds
        while not holds() and time.monotonic() < end:  # noqa: ASYNC110 - what has no event is polled
            await asyncio.sleep(PACE_S)
        return bool(holds())

    def pass_time(self, hop: str, seconds: float = 0.0) -> None:
        """Let time pass by a hop's own clock: so much, or until its deadline for bodies is over."""
        node = self.hop(hop)
        self._late[hop] = late = self._late.get(hop, 0.0) + (seconds or self.federation.policy.deadline_s + 1)
        node.clock = lambda: time.monotonic() + late
        node.woken.set()

    # Rounds, as an honest aggregator would run them

    def next_round(self) -> int:
        """Return the next round for an attack: the one that is due, or the one behind it if it was tried already."""
        chronicle = self.aggregator.chronicle
        return chronicle.log.round + (chronicle.log.round in chronicle.tried)

    @property
    def last_round(self) -> int:
        """The last round that there is a record of."""
        return self.aggregator.chronicle.log.round - 1

    async def settle(self, before: int = 0) -> None:
        """End the round that is under way: with its sum, if one was released, or without."""
        us = self.aggregator
        number = us.chronicle.log.round
        if number not in us.chronicle.tried or (before and number >= before):
            return
        known = (came.manifest for came in us.came.values())
        released = next((m for m in known if m.round == number and us.readable(m)), None)
        if released is not None:
            await us.conclude(released)
        else:
            await us.publish(us.chronicle.abandoned())

    async def keys(
        self, round_: int, attempt: int = 1, chain: Iterable[str] = (), small: Mapping[str, bytes] | None = None
    ) -> dict[str, tuple[RoundKey, ...]]:
        """Collect the keys of an attempt, from honest hops by a call and from the drill's own ones as it likes."""
        await self.settle(round_)
        small = small or {}
        return {
            hop: await self.aggregator.prepare(hop, round_, attempt, small=small.get(hop, b""))
            for hop in chain or self.federation.chain
        }

    async def open(self, manifest: Manifest, hops: Iterable[str] = ()) -> None:
        """Open an attempt at hops, the last one first; honest ones may refuse."""
        for hop in reversed(tuple(hops) or manifest.chain):
            await self.aggregator.open(hop, manifest)

    async def begin(
        self,
        round_: int = 0,
        *,
        attempt: int = 1,
        model: bytes = b"",
        silos: Iterable[str] | None = None,
        **changes: Any,
    ) -> Manifest:
        """Open an attempt in all order, and announce it to these silos."""
        number = round_ or self.next_round()
        keys = await self.keys(number, attempt)
        manifest = self.aggregator.propose(number, keys, attempt=attempt, model=model, **changes)
        await self.open(manifest)
        await self.aggregator.announce(manifest, self.honest_silos if silos is None else silos)
        return manifest

    async def padded_round(self, *, silos: Iterable[str] | None = None, **changes: Any) -> Manifest:
        """Run one round through honest hops until its sum is at the aggregator, under all pads."""
        names = self.honest_silos if silos is None else tuple(silos)
        manifest = await self.begin(silos=names, **changes)
        if set(names) != set(self.aggregator.invited()):
            await self.counted(names)
            self.pass_time(manifest.chain[0])
        what, nodes = f"the sum of round {manifest.round}", (*names, *manifest.chain)
        await self.until(lambda: self.came(manifest).whole, what, unless=nodes)
        done = [self.hop(hop) for hop in manifest.chain if hop in self.running.nodes]
        if self._without != Rule.R6:  # there they forget nothing
            await self.until(lambda: all(not hop.core.keys for hop in done), "the hops have forgotten the round")
        return manifest

    async def whole_round(self, *, silos: Iterable[str] | None = None, **changes: Any) -> Manifest:
        """Run one round through honest hops, to its record; silos that are not told come too late."""
        manifest = await self.padded_round(silos=silos, **changes)
        await self.aggregator.release(manifest)
        await self.aggregator.conclude(manifest)
        return manifest

    async def clear(self) -> None:
        """End what the attack before has left, so that the next one finds a model that is bound to nobody."""
        if not self.cast.aggregator or not self.aggregator.chronicle.log.records:
            return
        self.mark()
        await self.settle()
        bond = self.aggregator.chronicle.sealed.get(self.aggregator.model)
        if bond is not None and FIRST not in self.cast.hops:
            await self.whole_round(silos=bond.silos)

    async def followed(self, names: Iterable[str] = ()) -> None:
        """Wait until these silos have made the newest model themselves, or refused to; without R5 they make none."""
        wanted, us = set(names or self.honest_silos), self.aggregator
        if not vars(follow)["follows"](self.federation):  # as `without` may have left it
            return
        await self.until(
            lambda: all(name in us.computed or self.refused_by((name,)) for name in wanted), "silos have a new model"
        )

    def came(self, manifest: Manifest) -> Delivered:
        """Return what the aggregator has been sent in an attempt."""
        return self.aggregator.came[manifest.digest]

    async def counted(self, names: Iterable[str], hop: str = FIRST) -> None:
        """Wait until an honest hop 1 has the bodies of these silos."""
        wanted, node = set(names), self.hop(hop)

        def all_in() -> bool:
            return node.core.attempt is not None and wanted <= set(node.core.attempt.counted)

        await self.until(all_in, f"the bodies of {', '.join(sorted(wanted))} at {hop}", unless=wanted)

    async def submitted(self, manifest: Manifest, hop: str, names: Iterable[str] = ()) -> None:
        """Wait until a hop that the drill plays has the bodies of these silos."""
        wanted = set(names or self.honest_silos)
        bodies = self.liar(hop).bodies.setdefault(manifest.digest, {})
        await self.until(lambda: wanted <= set(bodies), f"the bodies of all silos at {hop}")

    async def newest_at(self, hop: LyingHop) -> Manifest:
        """Wait until a hop that the drill plays has a sum of the attempt that an honest aggregator waits for."""
        node = self.running.aggregator

        def here() -> bool:
            open_now, newest = node.core.manifest, hop.newest
            waits = newest is not None and newest == open_now and newest.digest not in self._passed_on
            return waits and newest is not None and bool(hop.heard[newest.digest].root)

        await self.until(here, "a sum is here")
        assert hop.newest is not None
        self._passed_on.add(hop.newest.digest)
        return hop.newest

    # The truth, which only the drill knows

    def truth(self, silo: str, model: bytes, round_: int) -> Vector:
        """Return the update that a silo makes of a model; if it was trained on before, then that one."""
        number = int(silo.removeprefix("silo-")) - 1
        task, tensors = Drill(number), self.aggregator.tensors(model)
        round_ = TRAINED.get((number, fingerprint(tensors)), round_)
        return flat(task.schema(), task.learn(tensors, round_)) - flat(task.schema(), tensors)

    def mean(self, model: bytes, round_: int) -> Vector:
        """Return the mean of all silos' updates: what the aggregator may know."""
        updates = [self.truth(name, model, round_) for name in self.federation.silo_names]
        total: Vector = sum(updates[1:], updates[0])
        return total / len(updates)

    def closeness(self, estimate: Vector, manifest: Manifest, silo: str = VICTIM) -> Closeness:
        """Compare an estimate of a silo's update with the truth."""
        model, round_ = manifest.model, manifest.round
        return Closeness.of(estimate, self.truth(silo, model, round_), self.mean(model, round_))

    # What came of it

    async def quiet(self) -> None:
        """Wait until nodes have nothing more to say about the attack before."""
        heard = -1
        while heard != len(self.witness.heard):
            heard = len(self.witness.heard)
            await asyncio.sleep(QUIET_S)

    def mark(self, since: int | None = None) -> None:
        """Begin an attack: what nodes refuse from now on is its doing, or from when they had said so much."""
        self._mark = len(self.witness.heard) if since is None else since

    def refusals(self) -> tuple[Refusal, ...]:
        """Return what honest nodes have refused since then."""
        return tuple(self.witness.since(self._mark))

    def refused_by(self, names: Iterable[str]) -> bool:
        """Whether each of these nodes has refused something since then."""
        return set(names) <= {refusal.node for refusal in self.witness.heard[self._mark :]}

    def loot(self, gained: bool, said: str, /, **figures: float) -> Loot:
        """Say what the adversary has, with all that honest nodes have refused it."""
        return Loot(gained, said, self.refusals(), figures)

    def loot_for(self, reason: str, gained: bool, said: str, /, **figures: float) -> Loot:
        """Say what the adversary has; only refusals for this reason answer the attack."""
        return Loot(gained, said, tuple(r for r in self.refusals() if r.reason == reason), figures)

    def conceded(self, gained: bool, said: str, /, *, beyond: bool, **figures: float) -> Loot:
        """Say what the adversary has that it may have, and whether it has more than that."""
        return replace(self.loot(gained, said, **figures), beyond=beyond)
