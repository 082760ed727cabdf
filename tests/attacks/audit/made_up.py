"""An audit as it should come out, with made-up numbers: what is tested is what is made of them."""

from typing import Any

import numpy as np

from silomix.attacks.active.registry import Loot, Result, find
from silomix.attacks.active.registry import Outcome as End
from silomix.attacks.active.report import section
from silomix.attacks.active.witness import Refusal
from silomix.attacks.audit.audit import _judged
from silomix.attacks.audit.mounted.by_mode import bits
from silomix.attacks.audit.mounted.by_skew import MODES
from silomix.attacks.audit.pictures import strip
from silomix.attacks.audit.registry import attacks
from silomix.attacks.prior import CLASSES, INVENTED
from silomix.attacks.sia import Outcome, Score
from silomix.attacks.views.view import MEANINGS, PROTECTED, Mode

Json = dict[str, Any]

ALL = attacks()


def outcome(rate: float, targets: int = 1000) -> Json:
    score = Score(round(rate * targets), targets)
    return {**Outcome((score, score), score).json(), "random": 0.1}


def active(*outcomes: End) -> Json:
    """A drill of two attacks with these outcomes."""
    said = Loot(False, "nothing", (Refusal("shuffler-1", "wrong_chain", "no"),), {"apart": 0.1})
    mounted = find(["short-chain", "smallest-cohort"])
    return section([Result(one, end, said, 0.1) for one, end in zip(mounted, outcomes, strict=True)])


def report(**changes: Any) -> Json:
    rates = {mode: 0.1 if mode in PROTECTED else 0.5 for mode in Mode}
    picture = strip(np.zeros((2, 1, 8, 8), np.float32), np.ones((2, 1, 8, 8), np.float32))
    advantage = {"advantage": 0.9, "low": 0.8, "high": 1.0, "games": 400}
    dlg = {"silos": 2, "records": 2, "looked_for": 2, "loss": 1e-9, "chance": 0.1, "distance": 0.0, "picture": picture}
    collusion = [{"colluding": c, "honest": 10 - c, "error": 0.9, **Score(10, 100).json()} for c in (0, 9)]
    real = {
        "federation": "audit",
        "granularity": "sum",
        "level": "semi-honest",
        "silos": 10,
        "hops": 3,
        "runs": 1,
        "captured": outcome(0.1),
        "unprotected": outcome(0.5),
        "all_collude": outcome(0.5),
        "all_but_one": outcome(0.1),
        "bits_per_parameter": 18.28,
    }
    changing = {"subsample": 0.5, "cohort": 6, "silos": 10, "rounds": 12, "random": 0.1, "taken apart": outcome(0.4)}
    tensor = {"name": "out.weight", "shape": [10, 64], "type": "float32", "sent": True}
    made: Json = {
        "own": False,
        "random": 0.1,
        "skipped": {},
        "subject": {
            "task": "silomix.models.digits:task",
            "options": {"alpha": 0.1},
            "data": {"shape": [1, 8, 8], "type": "float32", "classes": 10, "test": 50, "counts": [[9] * 10] * 10},
            "model": {"network": "Linear", "values": 650, "sent": 640, "tensors": [tensor, {**tensor, "sent": False}]},
        },
        "sia": {str(mode): outcome(rates[mode]) for mode in Mode},
        "baselines": {CLASSES: outcome(0.5), INVENTED: outcome(0.2)},
        "unfit": {},
        "accuracy": [0.5, 0.9],
        "by_alpha": [
            {"alpha": a, "accuracy": 0.9, "sia": {str(m): outcome(rates[m]) for m in MODES}} for a in (0.1, 1.0, 10.0)
        ],
        "real": [real],
        "game": [{"silos": n, "values": 1, "unreduced": advantage, "reduced": advantage} for n in (2, 3, 5, 10)],
        "dlg": [dlg],
        "active": active(End.REFUSED, End.CONCEDED),
        "collusion": collusion,
        "changing_cohorts": changing,
        "bits": bits(10, 4),
        "meanings": {str(mode): text for mode, text in MEANINGS.items()},
        "setting": {
            "size": "quick",
            "silos": 10,
            "rounds": 2,
            "seeds": [3, 4],
            "precision": 4,
            "shadow": 0.05,
            "date": "2026-01-01",
            "machine": "2 cores",
            "command": "silomix audit --quick",
        },
        "seconds": 100.0,
    }
    return judged({**made, **changes})


def judged(made: Json) -> Json:
    """Judge a report that was changed."""
    return _judged({name: value for name, value in made.items() if name not in ("verdict", "attacks")}, ALL)
