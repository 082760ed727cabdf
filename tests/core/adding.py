"""Adding residues up as a hop does: packed."""

from silomix.runtime.core.codec import Layout
from silomix.runtime.core.packing import Residues
from silomix.runtime.core.plan import Plan


def add_up(total: Residues, rows: Residues, p: Plan) -> None:
    """Add rows of residues, one for each plane, to a sum."""
    shape = Layout(p, total.shape[1])
    body, packed = shape.pack(total), shape.pack(rows)
    for i in range(shape.chunks):
        shape.add(body, i, shape.planes(shape.part(packed, i).data, i))
    total[:] = shape.residues(body)
