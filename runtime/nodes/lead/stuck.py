"""A model that is bound and cannot be stepped from: why, and the way out.

When all have signed for a release, pads may be out, and the model is released for those silos and no others, ever. If
its sum is lost after that, the same silos have to come again.
"""

from collections.abc import Iterable

WAY_OUT = 'if that cannot be, see "When a model is bound" in docs/operations.md'
NAMED = 5


def why(bound: tuple[str, ...], unrevealed: tuple[str, ...], present: Iterable[str]) -> str:
    """Say why a model that is bound is not stepped from, and what to do; nothing for one that is free."""
    if not bound:
        return ""
    said = f"signed for {len(bound)} silos and for no others"
    if unrevealed:
        return f"{said}; waiting for the pad of {_named(unrevealed)}: start that again with its state; {WAY_OUT}"
    away = tuple(silo for silo in bound if silo not in set(present))
    if away:
        return f"{said}, of whom {_named(away)} are not here: start them again with their state; {WAY_OUT}"
    return f"{said}; all of them are here, and it is tried again"


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
