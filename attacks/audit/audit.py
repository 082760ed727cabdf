"""`silomix audit`: every attack on every mode, in one run, with a verdict.

Federations of digits are simulated with several seeds until 1,000 records can be asked about, at several degrees of
skew; at least one federation runs for real, over gRPC, and is attacked from what its nodes recorded. The result is
plain JSON, which report.py turns into a page.
"""

import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from silomix.attacks.audit import jobs
from silomix.attacks.audit.campaign import Campaign, splits
from silomix.attacks.audit.jobs import Json, outcome_of
from silomix.attacks.audit.judgement import verdict_on
from silomix.attacks.audit.pool import Done, Job, run_jobs
from silomix.attacks.prior import CLASSES, INVENTED
from silomix.attacks.sia import PER_SILO, Outcome, pooled
from silomix.attacks.views.view import EXPOSED, MEANINGS, Mode
from silomix.runtime.core.numbers.plan import Encoding, Level, plan
from silomix.runtime.core.protocol.policy import Granularity, Policy

SILOS = 10
ALPHA = 0.1
"""The skew of the headline: the paper's hardest case."""
BY_ALPHA = (Mode.NONE, Mode.MODEL, Mode.LAYER, Mode.PARAMETER, Mode.UNARY, Mode.SEMI_HONEST)
"""The modes of the figure over alpha: the paper's five, and ours."""


@dataclass(frozen=True)
class Size:
    """How much to run."""

    name: str
    targets: int
    """Records to ask about, at least, pooled over seeds."""
    rounds: int
    alphas: tuple[float, ...]
    alpha_targets: int
    """The same for each further point of the figure over alpha."""
    games: int
    steps: int
    """Of the gradient inversion."""
    real: tuple[Granularity, ...]
    """The federations that run for real, besides that at level semi-honest."""
    real_rounds: int
    changing_rounds: int
    """Rounds with changing cohorts."""


QUICK = Size("quick", 1000, 8, (0.1, 1.0, 10.0), 1000, 400, 30, (), 3, 12)
"""Within ten minutes on two cores."""
FULL = Size("full", 3000, 15, (0.1, 0.3, 1.0, 10.0), 2000, 2000, 60, tuple(Granularity), 5, 30)


def seeds_for(alpha: float, targets: int, rounds: int, first: int = 1) -> list[int]:
    """Find splits, from a first seed on, until there are records enough. Splits with a tiny silo are passed over."""
    chosen: list[int] = []
    found = 0
    base = Campaign(Policy(rounds=rounds, task_options={"alpha": alpha}), silos=SILOS, seed=first)
    for one in splits(base):
        smallest = min(len(victim.share[1]) for victim in one.victims())
        chosen.append(one.seed)
        found += SILOS * min(PER_SILO, smallest)
        if found >= targets:
            break
    return chosen


def plan_jobs(size: Size, place: str) -> list[Job]:
    """List all that an audit does. Federations that run for real live below `place`."""
    todo: list[Job] = []
    for alpha in size.alphas:
        headline = alpha == ALPHA
        modes = [str(mode) for mode in (Mode if headline else BY_ALPHA)]
        for seed in seeds_for(alpha, size.targets if headline else size.alpha_targets, size.rounds):
            given = {"alpha": alpha, "seed": seed, "rounds": size.rounds, "modes": modes, "baselines": headline}
            todo.append(Job(f"campaign {alpha}", jobs.campaign, given, 1.5 * size.rounds))
    sums = {"place": place, "granularity": "sum", "level": "semi-honest", "seed": 6, "rounds": size.real_rounds}
    todo.append(Job("real", jobs.real, sums, 20.0))
    for granularity in size.real:
        given = {**sums, "granularity": str(granularity), "level": "trusted"}
        todo.append(Job("real", jobs.real, given, 25.0))
    for silos in (2, 3, 5, 10):
        for values in (1, 100):
            given = {"silos": silos, "values": values, "games": size.games}
            todo.append(Job("game", jobs.game, given, 0.01 * size.games * (values > 1)))
    for silos, per_silo, look_for in ((1, 1, 1), (2, 1, 1), (5, 1, 1), (10, 1, 1), (2, 1, 2), (5, 1, 5), (10, 1, 10)):
        given = {"silos": silos, "per_silo": per_silo, "look_for": look_for, "steps": size.steps, "tries": 2}
        todo.append(Job("dlg", jobs.inversion, given, 6.0))
    crowd = {"silos": 10, "per_silo": 8, "look_for": 80, "steps": size.steps, "tries": 1}
    todo.append(Job("dlg", jobs.inversion, crowd, 8.0))
    silos_collude = {"seed": 6, "rounds": 2, "counts": [0, 1, 5, 8, 9]}
    todo.append(Job("collusion", jobs.colluding_silos, silos_collude, 6.0))
    changing = {"seed": 6, "rounds": size.changing_rounds, "subsample": 0.5}
    todo.append(Job("changing", jobs.changing_cohorts, changing, 0.8 * size.changing_rounds))
    return todo


def audit(size: Size, workers: int, on_done: Callable[[Done], None] = lambda _: None) -> Json:
    """Run everything, and put it together."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="silomix-audit-", ignore_cleanup_errors=True) as place:
        todo = plan_jobs(size, place)
        results = list(zip(todo, run_jobs(todo, workers, on_done), strict=True))

    def of(name: str) -> list[Any]:
        return [result for job, result in results if job.name == name]

    by_alpha: dict[float, dict[str, Outcome]] = {}
    accuracy: dict[float, float] = {}
    for alpha in size.alphas:
        runs = of(f"campaign {alpha}")
        names = runs[0]["outcomes"]
        by_alpha[alpha] = {name: pooled([outcome_of(one["outcomes"][name]) for one in runs]) for name in names}
        accuracy[alpha] = sum(one["accuracy"][-1] for one in runs) / len(runs)
    headline = by_alpha[ALPHA]
    report: Json = {
        "sia": {name: one.json() for name, one in headline.items() if name not in (CLASSES, INVENTED)},
        "baselines": {name: headline[name].json() for name in (CLASSES, INVENTED)},
        "random": 1 / SILOS,
        "by_alpha": [
            {
                "alpha": alpha,
                "accuracy": accuracy[alpha],
                "sia": {str(mode): by_alpha[alpha][mode].json() for mode in BY_ALPHA},
            }
            for alpha in size.alphas
        ],
        "real": of("real"),
        "game": of("game"),
        "dlg": of("dlg"),
        "collusion": of("collusion")[0],
        "changing_cohorts": of("changing")[0],
        "bits": bits(),
        "meanings": {str(mode): text for mode, text in MEANINGS.items()},
        "setting": _setting(size, todo),
        "seconds": time.monotonic() - began,
    }
    return {"verdict": verdict_on(report), **report}


def bits(precision: int = 4) -> Json:
    """Return bits per parameter by mode, framing aside."""
    unary = plan(SILOS, precision, Encoding.UNARY, Level.TRUSTED)
    counts = plan(SILOS, precision, Encoding.COUNTS, Level.SEMI_HONEST)
    plain = dict.fromkeys((str(mode) for mode in EXPOSED), 32)
    packed = dict.fromkeys((str(Mode.TRUSTED), str(Mode.SEMI_HONEST)), counts.packed_bits)
    return {**plain, str(Mode.UNARY): sum(unary.moduli), **packed}


def _setting(size: Size, todo: list[Job]) -> Json:
    seeds = sorted({job.arguments["seed"] for job in todo if job.name == f"campaign {ALPHA}"})
    return {
        "size": size.name,
        "data": "digits (1,797 images of 8 by 8 pixels, scikit-learn)",
        "silos": SILOS,
        "alpha": ALPHA,
        "rounds": size.rounds,
        "seeds": seeds,
        "shadow": 0.05,
        "precision": 4,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "command": f"silomix audit{' --quick' if size.name == 'quick' else ''}",
    }


def audit_captures(judged: list[Json]) -> Json:
    """Put together an audit of federations that have already run, from their captures alone."""
    report: Json = {
        "real": judged,
        "random": 1 / judged[0]["silos"],
        "setting": {
            "size": "captures",
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "command": "silomix audit --federation DIR",
        },
    }
    return {"verdict": verdict_on(report), **report}
