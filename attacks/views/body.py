"""One silo's body, opened: an update, or noise where a mask is still on."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from silomix.attacks.views.view import View
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.packing import Bytes

Row = npt.NDArray[np.float32]
"""A whole body, as values in the schema's order."""


def read_body(codec: Codec, body: Bytes, slack: int = 0) -> Row | None:
    """Read a body from which masks were taken off, or return None if one is still on.

    A silo's integers lie within its bound, and the plan has room for those of all silos. Under a mask they are spread
    over the whole room, so with n silos about one value in n lies where a silo's can: a handful of values tells.

    slack  how far noise may carry a value beyond its bound
    """
    values = residue.decode_sum(codec.layout.residues(body), codec.plan).astype(np.float64)
    weight = values[-1] if codec.weighted else 1.0
    values = values[: codec.schema.parameters]
    if not 1 <= weight <= codec.plan.weight_levels or np.abs(values).max(initial=0) > weight * codec.plan.v + slack:
        return None
    bounds = np.repeat(codec.bounds, [spec.size for spec in codec.schema.tensors])
    row: Row = (values / (weight * codec.plan.v) * bounds).astype(np.float32)
    return row


def with_bodies(view: View, rows: Sequence[Row | None]) -> View:
    """Add what opened to a view, if all of it did."""
    read = [row for row in rows if row is not None]
    return replace(view, rows=np.stack(read)) if len(read) == len(rows) else view
