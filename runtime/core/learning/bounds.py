"""Bounds that follow from the model itself: what `bound = "auto"` means, and who can check it.

A tensor's bound is a power of two: the least that holds the tensor's largest value, and a few times the largest change
that the last round made to it. So a batch norm's variance of 40 gets the room that it needs, weights below 0.1 keep
their digits, and a bound that has clipped everybody grows within a round. The numbers are those of public models, and
every operation is exact or a single IEEE-754 one, so whoever has the models computes the same bounds. Hops have no
models: they can only tell whether a bound could be one.
"""

from collections.abc import Mapping, Sequence
from math import frexp, isfinite, ldexp

import numpy as np

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.schema import Array, Schema, TensorSpec, as_float
from silomix.runtime.core.policy import AUTO, Policy, UpdateKind

Model = Mapping[str, Array]

GROWTH = 4.0
"""A silo may move a value so many times as far as the last round moved any of its tensor: were all silos clipped, their
mean would be the bound itself, and the next one four times as large."""
FIRST_LEAST = 1.0
"""The least bound in round 1, before anything has moved: zeros such as biases say nothing of how far they will go."""
FIRST_GROWTH = 2.0
FIRST_BUFFERS = 32.0
"""Buffers get so much more in round 1: a batch norm's statistics begin at 0 and 1, and go where the records are."""
LEAST, MOST = -40, 100
"""Exponents of bounds: with these, no number of digits makes a factor that is not finite."""


def bounds_of(policy: Policy, schema: Schema, model: Model, previous: Model | None) -> tuple[float, ...]:
    """Return the bound of each tensor for the round that begins with `model`.

    previous  the model of the round before; None in round 1
    """
    if policy.bound != AUTO:
        return (policy.bound,) * len(schema.tensors)
    whole = policy.update is UpdateKind.WEIGHTS
    return tuple(
        _bound(spec, model[spec.name], None if previous is None else previous[spec.name], whole=whole)
        for spec in schema.tensors
    )


def check_bounds(policy: Policy, schema: Schema, bounds: Sequence[float]) -> None:
    """Refuse bounds that follow from no model under this policy: all that a hop can tell, which has no models."""
    if len(bounds) != len(schema.tensors):
        raise _bad(f"there are {len(bounds)} bounds for {len(schema.tensors)} tensors: one each is needed")
    if policy.bound != AUTO:
        if tuple(bounds) != (policy.bound,) * len(bounds):
            raise _bad(f"the manifest needs one bound per tensor: the policy's, {policy.bound}")
        return
    for spec, bound in zip(schema.tensors, bounds, strict=True):
        if not _possible(bound):
            raise _bad(f"{spec.name} has the bound {bound!r}, which is no power of two from 2^{LEAST} to 2^{MOST}")


def check_followed(
    policy: Policy, schema: Schema, bounds: Sequence[float], model: Model, previous: Model | None
) -> None:
    """Compute the bounds from the two newest models, as a silo can, and refuse others."""
    check_bounds(policy, schema, bounds)
    for spec, bound, right in zip(schema.tensors, bounds, bounds_of(policy, schema, model, previous), strict=True):
        if bound != right:
            raise _bad(f"{spec.name} has the bound {bound:g}, and the models make it {right:g}")


def _bound(spec: TensorSpec, now: Array, before: Array | None, *, whole: bool) -> float:
    if not spec.size:
        return 1.0
    values = as_float(now, spec.dtype).astype(np.float64)
    size = _largest(spec, values)
    if before is None:
        reach = max(FIRST_LEAST, FIRST_GROWTH * size) * (FIRST_BUFFERS if spec.buffer else 1.0)
    else:
        moved = _largest(spec, values - as_float(before, spec.dtype).astype(np.float64))
        reach = max(size, GROWTH * moved) or FIRST_LEAST
    return _power(reach + size if whole else reach)


def _largest(spec: TensorSpec, values: Array) -> float:
    found = float(np.abs(values).max(initial=0.0))
    if not isfinite(found):
        raise LocalFault(Reason.NOT_FINITE, f"{spec.name} holds NaN or infinity: no bound follows", tensor=spec.name)
    return found


def _power(value: float) -> float:
    """Return the least power of two that is not below a value, within the limits."""
    mantissa, exponent = frexp(value)  # value = mantissa * 2^exponent, exactly, and the mantissa is 0.5 or more
    least = LEAST if not mantissa else exponent - 1 if mantissa == 0.5 else exponent
    return ldexp(1.0, min(MOST, max(LEAST, least)))


def _possible(bound: float) -> bool:
    return isfinite(bound) and bound > 0 and frexp(bound)[0] == 0.5 and ldexp(1.0, LEAST) <= bound <= ldexp(1.0, MOST)


def _bad(what: str) -> PeerFault:
    return PeerFault(Reason.BAD_BOUND, what)
