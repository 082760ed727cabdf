"""Adding residues up as a hop does: packed."""

from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.packing import Residues
from silomix.runtime.core.numbers.plan import Plan


def add_up(total: Residues, rows: Residues, p: Plan) -> None:
    """Add rows of residues, one for each plane, to a sum."""
    shape = Layout(p, total.shape[1])
    body = shape.pack(total)
    shape.add_body(body, shape.pack(rows))
    total[:] = shape.residues(body)
