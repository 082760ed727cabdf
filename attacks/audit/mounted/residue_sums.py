"""The gap in the paper's proof: sums of residues that are not reduced tell more than the sum of the values."""

from collections.abc import Sequence
from typing import Any

from silomix.attacks.audit.attack import Attack, Section, Size
from silomix.attacks.audit.pool import Job
from silomix.attacks.audit.subject import Subject
from silomix.attacks.audit.verdict import Json
from silomix.attacks.distinguish import play
from silomix.models.simulation.experiment import Cell, Table

NAME = "residue-sums"


def game(silos: int, values: int, games: int) -> Json:
    """Play the distinguishing game of un-reduced residue sums."""
    return play(silos, values, games).json()


def _jobs(subject: Subject, size: Size) -> list[Job]:
    games = 2000 if size.full else 400
    sizes = [(silos, values) for silos in sorted({2, 3, 5, 10, subject.silos}) for values in (1, 100)]
    return [Job(NAME, game, {"silos": n, "values": k, "games": games}, 0.0001 * games * k) for n, k in sizes]


def _gather(subject: Subject, done: Sequence[tuple[Job, Any]], report: Json) -> Json:
    return {"game": [result for _, result in done]}


def _section(report: Json) -> Section:
    rows: list[tuple[Cell, ...]] = [
        (g["silos"], g["values"], *(_advantage(g[kind]) for kind in ("unreduced", "reduced"))) for g in report["game"]
    ]
    return Section(
        "Sums of residues that are not reduced",
        "A game: which of two known models does silo 1 hold, when both make the same sum? The paper's Alg. 1 shows the "
        "server sums of residues un-reduced; silomix reduces them before they leave the chain. The advantage is how "
        "much more often the guess is right than wrong: 0 is a coin, 1 is certainty. The game does not depend on the "
        "task.",
        (Table("", ("silos", "parameters", "un-reduced (paper)", "reduced (silomix)"), tuple(rows)),),
    )


def _advantage(found: Json) -> str:
    return f"{found['advantage']:.2f}\n{found['low']:.2f} to {found['high']:.2f}"


ATTACK = Attack(NAME, "residue sums", _jobs, _gather, _section)
