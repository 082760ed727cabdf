"""The main job, small enough to watch: `silomix run` on a built-in task, with the verdict at the end.

Ten silos hold shares of scikit-learn's digits that differ as much as Dirichlet(0.1) makes them. Their updates travel
masked, over mutual TLS, through three shufflers. At the end the model that came out is compared with the plain mean of
the very updates that went in, which the silos of the demo keep for that purpose, and the same attack is mounted on what
the server captured and on those updates.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from silomix.runtime.cli.exits import Exit
from silomix.runtime.cli.start.running import Asked, attack, carry_out
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.policy import Policy
from silomix.runtime.local import interrupt_on_sigterm
from silomix.runtime.results import FINAL, RunFiles
from silomix.runtime.store.home import Home
from silomix.runtime.store.modelfile import read_model
from silomix.runtime.terminal import console, say, say_json

TASK = "silomix.models.digits:task"


def demo(
    silos: int, shufflers: int, rounds: int, *, keep: Path | None, as_json: bool, level: str = "semi-honest"
) -> int:
    """Run the demo and print what came of it; clean up in every case."""
    interrupt_on_sigterm()
    out = keep or Path(tempfile.mkdtemp(prefix="silomix-demo-"))
    try:
        policy = Policy(deadline_s=120, release_s=60, level=Level(level))
        place, done = carry_out(Asked(TASK, silos, shufflers, rounds, policy=policy, out=out, audit=True))
        summary: dict[str, Any] = {
            "rounds": len(done.history) - len(done.abandoned),
            "accuracy": done.accuracy,
            "accuracy_by_round": [one.accuracy for one in done.history],
            "cohort": done.history[-1].cohort,
            "silos": silos,
            "hops": shufflers,
            "bits_per_parameter": _silo_bits(place.home, place.federation.silo_names[0]),
            "max_abs_error_vs_plain": error_vs_plain(place, silos),
            "level": str(place.federation.policy.level),
            "seconds": done.seconds,
        }
        found = attack(place)
        if as_json:
            say_json({**summary, "verdict": found.json()})
        else:
            _tell(summary, policy)
            console().print(found.text(), style="bold" if found.protected else "bold red")
            if keep is not None:
                say(f"the trained model: {keep / FINAL}")
        return Exit.DONE if found.protected and not done.abandoned else Exit.NO
    finally:
        if keep is None:
            shutil.rmtree(out, ignore_errors=True)


def _silo_bits(home: Path, silo: str) -> float:
    """Bits per parameter that a silo sent in its last body, counted by the silo from the messages on the wire."""
    figures = json.loads(Home(home / silo).state.last_body.read_text())
    return float(figures["bits_per_parameter"])


def error_vs_plain(place: RunFiles, silos: int) -> float:
    """Compare each new model with the plain mean of the updates that went into it."""
    models = {round_: read_model(path.read_bytes())[1] for round_, path in place.models().items()}
    worst = 0.0
    for round_, after in models.items():
        updates = [Home(place.home / silo).state.update(round_) for silo in place.federation.silo_names]
        kept = [read_model(path.read_bytes())[1] for path in updates if path.exists()]
        if len(kept) == silos and round_ - 1 in models:
            for name in after:
                mean = np.mean([update[name].astype(np.float64) for update in kept], axis=0)
                error = np.abs(after[name].astype(np.float64) - models[round_ - 1][name] - mean)
                worst = max(worst, float(error.max(initial=0.0)))
    return worst


def _tell(summary: dict[str, Any], policy: Policy) -> None:
    half = policy.bound / (10**policy.precision - 1) / 2
    console().print(f"{summary['rounds']} rounds in {summary['seconds']:.0f} s, level {summary['level']}", style="bold")
    say(f"accuracy {summary['accuracy']:.3f} with {summary['cohort']} silos in the last cohort")
    say(f"{summary['bits_per_parameter']:.2f} bits per parameter and silo on the wire; unprotected takes 32")
    say(
        f"the model is off the plain mean of the same updates by at most {summary['max_abs_error_vs_plain']:.1e}"
        f" (half a quantisation step is {half:.1e})"
    )
