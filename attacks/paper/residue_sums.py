"""The paper's theorem, as a game: what un-reduced sums of residues tell."""

from functools import partial

from silomix.attacks.audit.mounted.residue_sums import game
from silomix.models.simulation.experiment import Cell, Experiment, Progress, Result, Scale, Table


def residue_sums(scale: Scale, progress: Progress) -> Result:
    """The game behind the gap in the paper's proof."""
    sizes = [(n, k) for n in (2, 3, 5, 10) for k in (1, 10, 100)]
    progress.plan(len(sizes))
    games = 500 if scale.name == "quick" else 2000
    rows: list[tuple[Cell, ...]] = []
    for silos, values in sizes:
        found = progress.point(f"game {silos} {values} {games}", partial(game, silos, values, games))
        cells = (
            f"{found[kind]['advantage']:.2f} ({found[kind]['low']:.2f} to {found[kind]['high']:.2f})"
            for kind in ("unreduced", "reduced")
        )
        rows.append((silos, values, *cells, "0" if values == 1 else None))
    columns = ("silos", "parameters", "un-reduced (Alg. 1)", "reduced (ours)", "paper, by its theorem")
    note = (
        "Which of two known models does silo 1 hold, when both make the same sum? r = 4, values independent and "
        f"uniform. The advantage is 2p - 1 for a share p of right guesses in {games} games: 0 is a coin, 1 certainty."
    )
    return Result((Table("What un-reduced sums of residues tell", columns, tuple(rows)),), (), (note,))


RESIDUE_EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment("residue-sums", "Un-reduced sums of residues", "Theorem prop:perfect_protection", residue_sums),
)
