"""Federations over gRPC, attacked from what their nodes recorded: the same claims, on real traffic."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from silomix.attacks.audit.attack import Attack, Block, Section, Size, share
from silomix.attacks.audit.pool import Job
from silomix.attacks.audit.subject import Subject
from silomix.attacks.audit.verdict import Expectation, Json
from silomix.attacks.audit.watch import watched
from silomix.attacks.collusion import quiet, run_colluding
from silomix.attacks.sia import Outcome, pooled
from silomix.models.simulation.experiment import Cell, Line, Plot, Table
from silomix.runtime.config.kinds import Role
from silomix.runtime.core.numbers.plan import Encoding, Granularity, Level
from silomix.runtime.core.policy import Policy
from silomix.runtime.local import create
from silomix.runtime.store.home import CAPTURE_DIRECTORY

NAME = "captures"
HOPS = 3
TARGETS = 300
"""Records to ask about, at least, so that a control that works can be told from chance: one run for each split."""
RUNS = 4
"""Federations of one kind, at most."""
SIDES = {
    "unprotected": "unprotected",
    "captured": "aggregator",
    "all_collude": "every hop",
    "all_but_one": "all but one",
}
"""Who attacks, by field of the report."""


def run_and_watch(policy: Policy, silos: int) -> Json:
    """Run a federation with mutual TLS, record what its aggregator and hops see, and attack that."""
    torch.set_num_threads(1)
    seen = {role: {"capture": CAPTURE_DIRECTORY} for role in (Role.AGGREGATOR, Role.SHUFFLER)}
    with tempfile.TemporaryDirectory(prefix="silomix-audit-", ignore_cleanup_errors=True) as place, quiet():
        home = Path(place) / "federation"
        create(home, silos, HOPS, policy=policy, name="audit", settings={**seen, Role.SILO: {"keep_updates": True}})
        run_colluding(home)
        return watched(home)


def _jobs(subject: Subject, size: Size) -> list[Job]:
    todo = []
    for one in subject.largest(TARGETS, RUNS):
        rounds = 5 if size.full else 3
        base = replace(one.policy, task_options=one.options, rounds=rounds, deadline_s=300, release_s=120)
        policies = [base]
        if size.full and not subject.own:
            for granularity in Granularity:
                encoding = Encoding.UNARY if granularity is Granularity.UNARY else Encoding.COUNTS
                policies.append(replace(base, granularity=granularity, level=Level.TRUSTED, encoding=encoding))
        todo += [Job(NAME, run_and_watch, {"policy": policy, "silos": subject.silos}, 25.0) for policy in policies]
    return todo


def _gather(subject: Subject, done: Sequence[tuple[Job, Any]], report: Json) -> Json:
    kinds: dict[tuple[str, str], list[Json]] = {}
    for _, one in done:
        kinds.setdefault((one["granularity"], one["level"]), []).append(one)
    return {"real": [_pooled(runs) for runs in kinds.values()]}


def _pooled(runs: Sequence[Json]) -> Json:
    """Pool federations of one kind."""
    pools: Json = {**runs[0], "runs": len(runs)}
    for side in SIDES:
        if all(one[side] for one in runs):
            total = pooled([Outcome.read(one[side]) for one in runs])
            pools[side] = {**total.json(), "random": runs[0][side]["random"]}
    return pools


def expected(report: Json) -> Iterable[Expectation]:
    """Sums hide, in the aggregator's capture and under one hop that keeps quiet; all else does not."""
    for one in report["real"]:
        name = f"captures, {one['granularity']}, {one['level']}"
        summed = one["granularity"] == Granularity.SUM
        for side, what, hidden, ours in (
            ("captured", "what the aggregator captured", summed or one["granularity"] == Granularity.UNARY, summed),
            ("unprotected", "the unprotected updates", False, True),
            ("all_collude", "every hop colludes", False, True),
            ("all_but_one", "all hops but one collude", True, True),
        ):
            if found := one[side]:
                yield from Expectation.of(f"{name}: {what}", found["last"], found["random"], hidden=hidden, ours=ours)


def summary(report: Json) -> str:
    """Say what the captures show."""
    one = report["real"][0]
    held = one["captured"]
    text = (
        f"Asked which silo a record came from, whoever reads what the aggregator captured is right "
        f"{held['last']['accuracy']:.1%} of the time, as by rolling a die ({held['random']:.0%})."
    )
    if one["unprotected"]:
        text += f" Unprotected, the same attack is right {one['unprotected']['last']['accuracy']:.1%} of the time."
    return text


def section(report: Json) -> Section:
    """Show every federation, and the rounds of the first."""
    rows: list[tuple[Cell, ...]] = []
    for one in report["real"]:
        cells = (share(one[side]["last"]) if one[side] else None for side in SIDES)
        sent = one["bits_per_parameter"]
        runs = f", {one['runs']} runs" if one.get("runs", 1) > 1 else ""
        asked = f"{one['captured']['last']['targets']:,} records"
        name = f"{one['granularity']}, {one['level']}\n{one['silos']} silos, {one['hops']} hops{runs}, {asked}"
        rows.append((name, *cells, None if sent is None else f"{sent:.2f}"))
    columns = ("federation", *SIDES.values(), "bits")
    blocks: list[Block] = [_by_round(report["real"][0]), Table("", columns, tuple(rows))]
    return Section(
        "From captured traffic",
        "Federations that ran over gRPC with mutual TLS and recorded what they saw. The attack reads the aggregator's "
        "capture; then hop 1's, with the round keys of every hop, and of all hops but one. The table has the last "
        "round; bits are those of a parameter, as a silo counted them on the wire.",
        tuple(blocks),
    )


def _by_round(one: Json) -> Plot:
    lines = []
    for side, name in SIDES.items():
        if found := one[side]:
            points = tuple((float(i), score["accuracy"]) for i, score in enumerate(found["by_round"], 1))
            lines.append(Line(name, points, tuple((score["low"], score["high"]) for score in found["by_round"])))
    random = one["captured"]["random"]
    return Plot("right guesses by round, from captures", "round", "right guesses", tuple(lines), random, "random guess")


ATTACK = Attack(NAME, "a federation over gRPC", _jobs, _gather, section, expected, summary)
