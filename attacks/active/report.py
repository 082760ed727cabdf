"""What came of a drill, as data: for a program, and as a section of the audit's report."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from silomix.attacks.active.registry import MEANINGS, Outcome, Result

Json = dict[str, Any]

COUNTED = (Outcome.SUCCEEDED, Outcome.CONCEDED, Outcome.OPEN, Outcome.BROKEN)
COLUMNS = ("attack", "rule", "adversary", "outcome", "refused by", "reason", "what the adversary got")


def summary(results: Sequence[Result], without: str = "") -> Json:
    """Return counts, and each attack by name."""
    counts = Counter(result.outcome for result in results)
    return {
        "runs": len(results),
        **{str(outcome): counts[outcome] for outcome in COUNTED},
        "without": without,
        "seconds": round(sum(result.seconds for result in results), 2),
        "by_attack": {result.attack.name: _entry(result) for result in results},
    }


def _entry(result: Result) -> Json:
    attack, loot = result.attack, result.loot
    return {
        "rule": str(attack.rule),
        "adversary": attack.adversary,
        "about": attack.about,
        "expected": str(attack.expect),
        "outcome": str(result.outcome),
        "refused_by": [{"node": r.node, "reason": r.reason, "sentence": r.sentence} for r in loot.refusals],
        "got": loot.said,
        "figures": loot.figures,
        "closed_by": attack.closed_by if attack.expect is Outcome.OPEN else "",
        "seconds": round(result.seconds, 2),
    }


def section(results: Sequence[Result]) -> Json:
    """Return what a report shows of a drill: a verdict, a sentence, and a table with a row for each attack."""
    counts = Counter(result.outcome for result in results)
    failed = [result.attack.name for result in results if not result.held]
    return {
        "title": "Attacks that do not keep to the protocol",
        "text": sentence(results),
        "held": not failed,
        "failed": failed,
        "outcomes": {result.attack.name: str(result.outcome) for result in results},
        "counts": {str(outcome): counts[outcome] for outcome in Outcome},
        "rules": {str(rule): text for rule, text in MEANINGS.items()},
        "columns": COLUMNS,
        "rows": [row(result) for result in results],
    }


def row(result: Result) -> tuple[str, ...]:
    """Return one attack's line of the table."""
    attack = result.attack
    return (attack.name, str(attack.rule), attack.adversary, str(result.outcome), *refusers(result), got(result))


def got(result: Result) -> str:
    """Say what the adversary got, with the figures."""
    loot = result.loot
    said = loot.said + (f" ({figures(loot.figures)})" if loot.figures else "")
    return said + (f"; to be closed by {result.attack.closed_by}" if result.outcome is Outcome.OPEN else "")


def refusers(result: Result) -> tuple[str, str]:
    """Name who refused, silos together, and for which reasons."""
    nodes = dict.fromkeys(r.node for r in result.loot.refusals)
    silos = [name for name in nodes if name.startswith("silo-")]
    named = [name for name in nodes if name not in silos]
    if silos:
        named.append(silos[0] if len(silos) == 1 else f"{len(silos)} silos")
    return ", ".join(named), ", ".join(dict.fromkeys(r.reason for r in result.loot.refusals))


def figures(found: dict[str, float]) -> str:
    """Write figures for people."""
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in found.items())


def sentence(results: Iterable[Result]) -> str:
    """Say in a sentence what came of all of them."""
    counts = Counter(result.outcome for result in results)
    said = [f"{number} {outcome}" for outcome in Outcome if (number := counts[outcome])]
    return f"{counts.total()} attacks on live nodes: {', '.join(said)}."
