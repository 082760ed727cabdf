"""The paper's experiment on gradient inversion, repeated, and with an adversary that looks for more pictures."""

from functools import partial

from silomix.attacks import dlg
from silomix.attacks.audit.mounted.inversion import CASES, invert
from silomix.models.digits import task
from silomix.models.simulation.experiment import Cell, Experiment, Progress, Result, Scale, Table


def leakage(scale: Scale, progress: Progress) -> Result:
    """Gradient inversion on one silo's update, and on the mean of several."""
    records = task(silos=1, silo=0).share
    progress.plan(len(CASES))
    steps = 30 if scale.name == "quick" else 60
    rows: list[tuple[Cell, ...]] = []
    pictures = {}
    for silos, each, look in sorted(CASES, key=lambda case: (case[1], *case)):
        found = progress.point(
            f"dlg {silos} {each} {look}",
            partial(invert, records, silos, each, look, steps, 1 if each > 1 else dlg.TRIES),
        )
        pictures[f"{silos} silos, {each} record(s) each, looking for {look}"] = found["picture"]
        paper = {(1, 1): "0.0003", (5, 1): "0.98 (and with 10)"}.get((silos, look))
        rows.append((silos, silos * each, look, f"{found['loss']:.2g}", f"{found['chance']:.2g}", paper))
    columns = ("silos", "records", "looked for", "loss", "unrelated pictures", "paper, CIFAR-10")
    note = (
        "Digits, one step of each silo, a sigmoid network of 3,362 parameters, the exact mean of the gradients. The "
        "loss is the mean squared error per pixel (0..1) after the best matching. Looking for one picture in the mean "
        "of several fails, as in the paper; looking for as many as there are succeeds while the network has more "
        "parameters than the pictures have pixels. So a sum over few records does not hide the records."
    )
    table = Table("Gradient inversion (DLG)", columns, tuple(rows))
    return Result((table,), (), (note,), {"pictures": pictures})


INVERSION_EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment("dlg", "Gradient inversion (DLG)", "Figure fig:dlg and Section app:dras", leakage),
)
