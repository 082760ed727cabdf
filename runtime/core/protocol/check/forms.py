"""The linear forms of the tamper check over what travels: packed bodies, and the expansions of seeds and pads.

All that one node folds under one coin is folded in step, chunk by chunk, so that the coefficients are made once.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.fold import Fold, Scalars, rhos
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.masks import Context, Rng, Secret, expanding
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.tamper import blinders

SCALAR_BYTES = 3
"""Of a scalar as it travels: no modulus is above 2^20."""


class Forms:
    """l of several extended vectors under one coin. Feed every chunk of each, the blinders' included."""

    def __init__(self, coin: bytes, shape: Layout, count: int) -> None:
        """Begin with nothing folded of so many vectors."""
        self._shape = shape
        first = Fold(coin, shape.plan, shape.coordinates, shape.chunk_parameters)
        self._folds = [first, *(first.sibling() for _ in range(count - 1))][:count]
        self._blinders: list[Scalars] = [()] * count

    def update(self, which: int, index: int, part: Bytes) -> None:
        """Take in one packed chunk of one vector; feed all vectors their chunk before the next one."""
        shape = self._shape
        if index < shape.value_chunks:
            self._folds[which].update_packed(index, part)
            return
        rows = shape.unpack(index, shape.planes(part.data, index))
        counts = rhos(shape.plan)
        self._blinders[which] = tuple(tuple(int(x) for x in row[:n]) for row, n in zip(rows, counts, strict=True))

    def finish(self) -> list[Scalars]:
        """Return the scalars of each."""
        return [fold.finish(own) for fold, own in zip(self._folds, self._blinders, strict=True)]


def scalars_of(
    coin: bytes, shape: Layout, bodies: Sequence[Bytes] = (), secrets: Iterable[tuple[Secret, Context]] = ()
) -> list[Scalars]:
    """Fold whole bodies, and then the expansions of secrets, in one pass."""
    with expanding(secrets, shape.plan.moduli) as streams:
        forms = Forms(coin, shape, len(bodies) + len(streams))
        for i in range(shape.chunks):
            for which, body in enumerate(bodies):
                forms.update(which, i, shape.part(body, i))
            for which, stream in enumerate(streams, len(bodies)):
                forms.update(which, i, stream.packed(i, shape.length(i)))
        return forms.finish()


def draw_blinders(shape: Layout, rng: Rng) -> Bytes:
    """Draw a silo's blinders for one header, packed: the chunk behind its values."""
    residues = shape.buffer(shape.blinders)
    for row, drawn in zip(residues, blinders(shape.plan, rng), strict=True):
        row[: len(drawn)] = drawn
    chunk = np.empty(sum(shape.plan.plane_bytes(shape.blinders)), np.uint8)
    shape.put(chunk, residues)
    return chunk


def write_scalars(scalars: Scalars) -> bytes:
    """Write scalars as they travel and are signed."""
    return b"".join(x.to_bytes(SCALAR_BYTES, "little") for row in scalars for x in row)


def read_scalars(raw: bytes, shape: Sequence[int]) -> Scalars:
    """Read scalars, so many for each plane; whether each is a residue is checked by `tamper.verify`."""
    if len(raw) != SCALAR_BYTES * sum(shape):
        raise PeerFault(Reason.WRONG_LENGTH, f"scalars have {SCALAR_BYTES * sum(shape)} bytes, not {len(raw)}")
    found = [int.from_bytes(raw[i : i + SCALAR_BYTES], "little") for i in range(0, len(raw), SCALAR_BYTES)]
    rows, at = [], 0
    for n in shape:
        rows.append(tuple(found[at : at + n]))
        at += n
    return tuple(rows)
