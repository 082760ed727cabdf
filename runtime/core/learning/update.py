"""What a silo makes of its training: the update that it encodes, and its weight."""

from collections.abc import Mapping

from silomix.runtime.core.numbers.schema import Array, Schema, subtract


def update_of(
    schema: Schema, before: Mapping[str, Array], trained: Mapping[str, Array], *, change: bool
) -> dict[str, Array]:
    """Return what is sent: what training changed, or the trained values themselves."""
    if not change:
        return dict(trained)
    return {t.name: subtract(trained[t.name], before[t.name], t.dtype) for t in schema.tensors}


def weight_of(examples: int, levels: int) -> int:
    """Scale a silo's number of examples to the plan's levels: one level per example, up to the highest."""
    return max(1, min(levels, examples))
