"""The pieces of an audit: functions of plain values that return plain JSON, so that they can run in any process."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from silomix.attacks import dlg
from silomix.attacks.audit.campaign import DISAGGREGATED, Campaign, Siege, run
from silomix.attacks.audit.pictures import strip
from silomix.attacks.audit.verdict import look
from silomix.attacks.collusion import opened, quiet, run_colluding
from silomix.attacks.distinguish import play
from silomix.attacks.sia import Attack, Outcome, Score
from silomix.attacks.sums import without_colluders
from silomix.attacks.views.captured import Scene
from silomix.attacks.views.simulated import view_of
from silomix.attacks.views.view import Mode
from silomix.models.simulation.simulate import simulate
from silomix.runtime.config.load import Role
from silomix.runtime.core.numbers.plan import Encoding, Level
from silomix.runtime.core.protocol.federation import Granularity, Policy
from silomix.runtime.local import create

Json = dict[str, Any]


def campaign(alpha: float, seed: int, rounds: int, modes: list[str], baselines: bool = False) -> Json:
    """Train a federation of digits and mount source inference on every round, in each mode."""
    torch.set_num_threads(1)
    policy = Policy(rounds=rounds, task_options={"alpha": alpha})
    found = run(Campaign(policy, seed=seed, modes=tuple(Mode(m) for m in modes), baselines=baselines))
    return {
        "outcomes": {name: rounds_of(one) for name, one in found.outcomes.items()},
        "accuracy": found.accuracy,
        "targets": found.targets,
    }


def changing_cohorts(seed: int, rounds: int, subsample: float) -> Json:
    """Attack sums over cohorts that change from round to round: a limit of every protocol that releases sums."""
    torch.set_num_threads(1)
    found = run(Campaign(Policy(rounds=rounds, subsample=subsample), seed=seed, modes=(Mode.SEMI_HONEST,)))
    each = {"one by one": Mode.SEMI_HONEST, "taken apart": DISAGGREGATED}
    return {
        "subsample": subsample,
        "rounds": rounds,
        "random": 1 / 10,
        **{name: found.outcomes[key].together.json() for name, key in each.items()},
    }


def rounds_of(one: Outcome) -> Json:
    """Write an outcome down so that it can be pooled later."""
    return {
        "rounds": [[score.hits, score.targets] for score in one.rounds],
        "together": [one.together.hits, one.together.targets],
    }


def outcome_of(one: Json) -> Outcome:
    """Read it back."""
    return Outcome(tuple(Score(*pair) for pair in one["rounds"]), Score(*one["together"]))


def game(silos: int, values: int, games: int) -> Json:
    """Play the distinguishing game of un-reduced residue sums."""
    return play(silos, values, games).json()


def inversion(silos: int, per_silo: int, look_for: int | None, steps: int, tries: int) -> Json:
    """Invert the mean gradient of some silos."""
    torch.set_num_threads(1)
    from silomix.models.digits import task

    records = task(silos=1, silo=0).share
    found = dlg.attack(records, silos, 1, per_silo=per_silo, look_for=look_for, steps=steps, tries=tries)
    return {**found.json(), "picture": strip(found.truth, found.found)}


def colluding_silos(seed: int, rounds: int, counts: list[int]) -> list[Json]:
    """Let the last so many silos hand the aggregator their own models, and attack the others."""
    torch.set_num_threads(1)
    plan = Campaign(Policy(rounds=rounds), seed=seed)
    siege = Siege.of(plan)
    *_, done = simulate(replace(plan.policy, task_options=plan.options), plan.silos, seed=seed, protect=False)
    truth = siege.truth(done)
    view = view_of(truth, Mode.TRUSTED, np.random.default_rng(seed))
    found = []
    for count in counts:
        honest = [silo for silo in done.cohort if silo < plan.silos - count]
        known = {silo: done.trained[silo] for silo in done.cohort if silo not in honest}
        models = [
            model for silo, model in zip(done.cohort, without_colluders(view, known), strict=True) if silo in honest
        ]
        score = Attack(siege.net, siege.targets, (seed, count)).round(models, honest)
        errors = [_error(models[i], done.trained[silo], done.before) for i, silo in enumerate(honest)]
        found.append({"colluding": count, "honest": len(honest), "error": float(np.mean(errors)), **score.json()})
    return found


def _error(guess: Any, true: Any, before: Any) -> float:
    """How far off a model is, in parts of what its silo's training changed."""
    off = sum(float(np.sum((guess[n] - true[n]).astype(np.float64) ** 2)) for n in true)
    moved = sum(float(np.sum((true[n] - before[n]).astype(np.float64) ** 2)) for n in true)
    return float(np.sqrt(off / moved))


def real(place: str, granularity: str, level: str, seed: int, rounds: int, silos: int = 10, hops: int = 3) -> Json:
    """Run a federation over gRPC with mutual TLS, record what its aggregator and hops see, and attack that."""
    torch.set_num_threads(1)
    encoding = Encoding.UNARY if granularity == Granularity.UNARY else Encoding.COUNTS
    policy = Policy(
        task_options={"silos": silos, "seed": seed, "shadow": 0.05},
        rounds=rounds,
        granularity=Granularity(granularity),
        level=Level(level),
        encoding=encoding,
        deadline_s=300,
        release_s=120,
    )
    settings = {Role.AGGREGATOR: {"capture": "capture"}, Role.SHUFFLER: {"capture": "capture"}}
    home = Path(place) / f"{granularity}-{level}"
    with quiet():
        create(home, silos, hops, policy=policy, name="audit", settings={**settings, Role.SILO: {"keep_updates": True}})
        run_colluding(home)
        return judged(home)


def judged(home: Path, seed: int = 1) -> Json:
    """Attack a federation that has ended, from the captures in its directory."""
    scene = Scene(home)
    federation = scene.federation
    seen = look(scene, seed)
    found: Json = {
        "federation": federation.name,
        "granularity": str(federation.policy.granularity),
        "level": str(federation.policy.level),
        "silos": len(federation.silos),
        "hops": len(federation.chain),
        "captured": seen.attack(scene.captured()).json(),
        "unprotected": None,
        "all_collude": None,
        "all_but_one": None,
        "bits_per_parameter": _bits(scene),
    }
    if kept := list(scene.kept()):
        found["unprotected"] = seen.attack(kept).json()
    summed = federation.policy.granularity is Granularity.SUM
    if summed and (home / federation.chain[0] / "capture").exists():
        found["all_collude"] = seen.attack(opened(scene)).json()
        if federation.policy.level is not Level.TRUSTED:
            found["all_but_one"] = seen.attack(opened(scene, federation.chain[:-1])).json()
    return found


def _bits(scene: Scene) -> float | None:
    """Bits per parameter that a silo sent, as it counted them on the wire."""
    path = scene.home / scene.federation.silo_names[0] / "state" / "last-body.json"
    return float(json.loads(path.read_text())["bits_per_parameter"]) if path.exists() else None
