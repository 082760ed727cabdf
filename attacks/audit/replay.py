"""The replay client: captured traffic, fed to the adversary offline, which mounts every attack that applies to it.

From an aggregator's capture that is source inference, after remapping if bodies came shuffled, and a comparison of
rounds if cohorts changed. From hop 1's capture it is source inference on whatever opens: everything at level trusted;
at the other levels, what the round keys of all other nodes open, if these were kept.
"""

from pathlib import Path
from typing import Any

from silomix.attacks.audit.watch import Watched, Watcher, look
from silomix.attacks.collusion import opened
from silomix.attacks.errors import AttackError
from silomix.attacks.sums import disaggregate
from silomix.attacks.views.captured import Scene
from silomix.attacks.views.view import View
from silomix.runtime.capture.format import FileHeader
from silomix.runtime.capture.reader import read
from silomix.runtime.core.numbers.plan import Granularity


def replay(capture: Path, scene: Scene, seed: int = 1) -> dict[str, Any]:
    """Attack a capture, and return what was held and what each attack achieved."""
    header = first_header(capture)
    if header.federation != scene.federation.digest:
        raise AttackError(f"{capture} was recorded in another federation than {scene.home}: give its own directory")
    if header.role == "aggregator":
        views = list(scene.captured(capture))
    elif header.node == scene.federation.chain[0]:
        views = list(opened(scene, capture=capture))
    else:
        raise AttackError(
            f"{capture} was recorded by {header.node}: attacks read the aggregator's capture, or that of "
            f"{scene.federation.chain[0]}, to whom silos submit"
        )
    if not views:
        raise AttackError(f"{capture}: no round can be put together from it; is it whole?")
    watcher = look(scene, seed)
    mounted = {"source inference": watcher.attack(views)}
    if changing := _changing(watcher, views):
        mounted["sums taken apart"] = changing
    n = len(watcher.victims)
    return {
        "node": header.node,
        "held": describe(views[0][1]),
        "rounds": len(views),
        "silos": n,
        "random": 1 / n,
        "attacks": {name: one.json() for name, one in mounted.items()},
        "beats_random": [
            name
            for name, one in mounted.items()
            if one.outcome.together.beats(1 / n) or one.outcome.last.beats(one.random)
        ],
    }


def first_header(capture: Path) -> FileHeader:
    """Read who recorded a capture."""
    for record in read(capture):
        return record.header
    raise AttackError(f"{capture}: the capture is empty")


def describe(view: View) -> str:
    """Say what the adversary held in a round."""
    if view.rows is not None:
        named = view.mixed is Granularity.NONE
        return "every silo's update" if named else f"all silos' values, shuffled by {view.mixed}"
    return "sums of residues, un-reduced" if view.residue_sums is not None else "one sum over the cohort"


def _changing(watcher: Watcher, views: list[tuple[int, View]]) -> Watched | None:
    """Compare rounds, if all are sums and cohorts changed."""
    only = [view for _, view in views]
    if len({view.cohort for view in only}) < 2 or any(view.mean is None for view in only):
        return None
    return watcher.attack_models([(view.cohort, models) for view, models in zip(only, disaggregate(only), strict=True)])
