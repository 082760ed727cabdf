"""Run misbehaviours against a federation in memory, and look who was named.

A run counts as missed if nothing was detected, and as wrongly named if anybody honest was named for it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest import mock

from silomix.attacks.tamper.lies import Honest
from silomix.attacks.tamper.registry import MISBEHAVIOURS, Ends, FlipsResidue, Misbehaviour, Solves
from silomix.attacks.tamper.ring import Ring, federation
from silomix.runtime.core.numbers import tamper
from silomix.runtime.core.numbers.tamper import Scalars
from silomix.runtime.core.protocol import lineage
from silomix.runtime.core.protocol.check.forms import scalars_of
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.rules import layout

SINGLE = "single-coordinate"
SINGLE_RUNS = 200


@dataclass(frozen=True)
class Result:
    """What came of one run."""

    name: str
    node: str
    detected: bool
    named: tuple[str, ...]
    """Everybody who was named, with proof or in a refusal."""
    proven: bool
    applied: bool
    expected: Ends
    said: str

    @property
    def missed(self) -> bool:
        """Whether it went through, or was detected without what it has to end with."""
        if self.expected is Ends.LISTED:
            return not self.detected
        if self.expected is Ends.LEFT_OUT and not self.applied:
            return True
        return not self.detected or self.node not in self.named or (self.expected is Ends.PROVEN and not self.proven)

    @property
    def wrongly(self) -> tuple[str, ...]:
        """The honest nodes that were named."""
        return tuple(name for name in self.named if name != self.node)


@contextmanager
def without_check() -> Iterator[None]:
    """Switch the check's equations off, in this process and for the drill alone: what it says is not looked at."""
    nothing = mock.patch.object(tamper, "verify", return_value=[])
    with nothing, mock.patch.object(lineage, "false_pads", return_value=()):
        yield


def run_one(which: Misbehaviour, seed: int = 0, f: Federation | None = None) -> Result:
    """Run one misbehaviour against a federation whose other nodes are honest."""
    lie = which.lie(which.node, Random(seed))  # noqa: S311 - drills are repeated by their seeds
    ring = Ring({which.node: lie}, seed=seed, f=f or federation(rounds=which.rounds, traps=which.traps))
    _equip(lie, ring, which.node)
    ring.run()
    return judge(which, ring)


def _equip(lie: Honest, ring: Ring, node: str) -> None:
    """Give a hop what it needs to solve its own equation: its masks."""
    if isinstance(lie, Solves):
        hop, f = ring.hops[node], ring.f
        lie.moduli = f.plan.moduli

        def removed() -> Scalars:
            m, coin = hop.core.manifest, hop.measuring
            context = m.context(m.layer(node))
            cohort = hop.core.attempt.released
            found = scalars_of(coin, layout(m), (), [(hop.seeds[p.header], context) for p in cohort.participants])
            return tuple(
                tuple(sum(column) % p for column in zip(*(one[plane] for one in found), strict=True))
                for plane, p in enumerate(f.plan.moduli)
            )

        lie.removed = removed


def judge(which: Misbehaviour, ring: Ring) -> Result:
    """Look who was named, by whom, and for what."""
    members = set(ring.f.members)
    named: dict[str, str] = {verdict.culprit: verdict.sentence for verdict in ring.verdicts}
    proven = which.node in named
    for silo in ring.evidence:
        named.setdefault(silo, f"{silo} sealed garbage")
        proven = proven or silo == which.node
    for node, fault in ring.refusals:
        peer = fault.details.get("peer")
        if isinstance(peer, str) and peer in members:
            named.setdefault(peer, f"{node}: {fault.message}")
    gave_up = [one.why for one in ring.gave_up]
    gave_up += [f"{hop}: the release waits for its pad" for hop in ring.lead.core.unrevealed]
    detected = bool(named or gave_up)
    said = next(iter(named.values()), "") or "; ".join(gave_up[:1]) or "nothing"
    return Result(which.name, which.node, detected, tuple(named), proven, ring.applied, which.ends, said)


Told = Callable[[str], None]


def drill(which: Sequence[Misbehaviour] = MISBEHAVIOURS, singles: int = SINGLE_RUNS, told: Told | None = None) -> Any:
    """Run misbehaviours, and single-coordinate changes under so many seeds; return what came of each."""
    say = told or (lambda _: None)
    results = []
    for one in which:
        say(one.name)
        results.append(run_one(one))
    small = federation(3, 2)
    for seed in range(singles):
        hop = small.chain[seed % len(small.chain)]
        say(f"{SINGLE} {seed + 1}")
        about = "changes one residue of one value, in a run of its own"
        one = Misbehaviour(SINGLE, hop, FlipsResidue, Ends.PROVEN, about)
        results.append(run_one(one, seed, small))
    return results


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Return the drill's outcome as plain JSON."""
    by: dict[str, dict[str, Any]] = {}
    for one in results:
        row = by.setdefault(
            one.name,
            {"runs": 0, "detected": 0, "named": {}, "missed": 0, "wrongly_named": 0, "expected": str(one.expected)},
        )
        row["runs"] += 1
        row["detected"] += one.detected
        row["missed"] += one.missed
        row["wrongly_named"] += bool(one.wrongly)
        row.setdefault("said", one.said)
        for name in one.named:
            row["named"][name] = row["named"].get(name, 0) + 1
    return {
        "runs": len(results),
        "missed": sum(one.missed for one in results),
        "wrongly_named": sum(bool(one.wrongly) for one in results),
        "by_misbehaviour": by,
    }
